//! The values of a session that a worker caches between turns, so that a turn reads only changed values.

use stepfold_session_scopes::{Event, Receipt, Scope, SeenVersions, Session, SessionError, SessionSchema};
use stepfold_state_core::chat::Transcript;
use stepfold_state_core::state::{State, StoredValue};

/// The cached values of a session, and their versions. Without the conversation.
#[derive(Clone, Debug)]
pub(crate) struct CachedValues {
    state: State,
    seen: SeenVersions,
}

impl CachedValues {
    /// The values of a session that was read completely.
    pub(crate) fn read(session: &Session, schema: &SessionSchema) -> Result<Self, SessionError> {
        Ok(CachedValues { state: session.state_with(schema, Transcript::new())?, seen: session.seen() })
    }

    /// The values after a run: those stored by its events, without `temp:`.
    ///
    /// `seen` are the versions after the last event, as returned by [`versions_after`].
    pub(crate) fn from_run(state: &State, seen: SeenVersions) -> Option<Self> {
        let is_temp = |key: &&str| Scope::of(key) == Scope::Temp;
        let temp: Vec<(Box<str>, Option<StoredValue>)> =
            state.iter().map(|(key, _)| key).filter(is_temp).map(|key| (key.into(), None)).collect();
        let mut state = without_messages(state.clone());
        state.replace_cells(temp).ok()?;
        Some(CachedValues { state, seen })
    }

    /// Updates the values with those that changed since; `session` was read with
    /// [`changed_since`](stepfold_session_scopes::GetSession::changed_since) its [versions](CachedValues::seen).
    pub(crate) fn updated(self, session: &Session, schema: &SessionSchema) -> Result<Self, SessionError> {
        Ok(CachedValues { state: session.update(self.state, schema)?, seen: session.seen() })
    }

    /// The versions of the values.
    pub(crate) fn seen(&self) -> SeenVersions {
        self.seen
    }

    /// The values.
    pub(crate) fn state(&self) -> State {
        self.state.clone()
    }
}

fn without_messages(mut state: State) -> State {
    state.replace_messages(Transcript::new());
    state
}

/// The shared scopes that an event writes: `app:` and `user:`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SharedWrites {
    app: bool,
    user: bool,
}

impl SharedWrites {
    pub(crate) fn of(event: &Event) -> Self {
        let has = |scope| event.actions.delta.iter().any(|write| Scope::of(write.key()) == scope);
        SharedWrites { app: has(Scope::App), user: has(Scope::User) }
    }
}

/// The versions after an append, if no other worker wrote in between: the store counts one for each event and
/// scope.
pub(crate) fn versions_after(
    before: SeenVersions,
    writes: SharedWrites,
    receipt: &Receipt,
) -> Option<SeenVersions> {
    let mut after = before;
    after.version += 1;
    after.scopes.app += u64::from(writes.app);
    after.scopes.user += u64::from(writes.user);
    let stored = SeenVersions::new(receipt.version, receipt.scopes);
    (after == stored).then_some(stored)
}

#[cfg(test)]
mod tests {
    use super::*;
    use stepfold_session_scopes::{EventId, ScopeVersions};

    const BEFORE: SeenVersions = SeenVersions::new(4, ScopeVersions { app: 2, user: 7 });

    fn receipt(version: u64, app: u64, user: u64) -> Receipt {
        let event = EventId::new("e1").unwrap();
        Receipt::new(event, version).with_scopes(ScopeVersions { app, user })
    }

    #[test]
    fn versions_follow_while_no_other_process_writes() {
        let user = SharedWrites { app: false, user: true };
        let after = SeenVersions::new(5, ScopeVersions { app: 2, user: 8 });
        assert_eq!(versions_after(BEFORE, user, &receipt(5, 2, 8)), Some(after));
        // Another session has written to the scope, or to the other one.
        assert_eq!(versions_after(BEFORE, user, &receipt(5, 2, 9)), None);
        assert_eq!(versions_after(BEFORE, user, &receipt(5, 3, 8)), None);
        // A store that does not count writes.
        assert_eq!(versions_after(BEFORE, user, &receipt(5, 2, 7)), None);
        assert_eq!(versions_after(BEFORE, SharedWrites { app: false, user: false }, &receipt(5, 2, 8)), None);
    }
}
