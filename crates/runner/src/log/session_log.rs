//! The log of a session: its events, each with the changes that it made to the state.

use std::fmt;

use stepfold_session_scopes::{Session, SessionSchema};
use stepfold_state_core::state::{MESSAGES, State};

use super::{ActiveBranches, event_lines};
use crate::error::RunnerError;

/// The log of a session, as text: the lines of each visible event, and below them the changes of its values. Created by
/// [`SessionHandle::log`](crate::SessionHandle::log).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionLog(Vec<String>);

impl SessionLog {
    /// The log of a session that was read with its events, given its values before the first of them.
    pub(crate) fn of(session: &Session, origin: State) -> Self {
        let (mut state, mut active, mut lines) = (origin, ActiveBranches::default(), Vec::new());
        if session.oldest > 0 {
            lines.push(format!("events up to version {} were deleted by retention", session.oldest));
        }
        for committed in session.visible_events() {
            lines.extend(event_lines(committed, true, &mut active));
            let before = state.clone();
            // A value of another schema is shown by its event alone.
            if state.apply(&committed.event.actions.delta).is_ok() {
                let diff = state.diff(&before);
                let changes = diff.iter().filter(|change| change.key != MESSAGES);
                lines.extend(changes.map(|change| format!("{:>17}~ {change}", "")));
            }
        }
        SessionLog(lines)
    }

    /// The lines.
    pub fn lines(&self) -> impl ExactSizeIterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

impl fmt::Display for SessionLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

/// The values before the first event of a session: those of its creation, or those that retention has kept. Shared values
/// are left out: they do not follow from the events.
pub(crate) fn own_values(mut session: Session, schema: &SessionSchema) -> Result<State, RunnerError> {
    if let Some(values) = &mut session.values {
        (values.app, values.user) = Default::default();
    }
    session.state(schema).map_err(|error| RunnerError::store(&session.key, error))
}
