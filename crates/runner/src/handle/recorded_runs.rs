//! The runs of a stored session as data: with them a run can be made again elsewhere, without the store.

use stepfold_agent_loop::{Event, Exit, Fingerprint, Input};
use stepfold_session_scopes::CommittedEvent;
use stepfold_state_core::state::State;
use stepfold_trim::Summary;

use crate::error::RunnerError;
use crate::handle::session_handle::SessionHandle;
use crate::record::events::{agent_of, exit_of};

/// A run of a stored session, with everything that it began with. Created by [`SessionHandle::recorded_runs`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RecordedRun {
    /// The version of the session with the first event of the run.
    pub first_version: u64,
    /// The version with its last event.
    pub last_version: u64,
    /// The agent that made it, if the record says so.
    pub agent: Option<Fingerprint>,
    /// The state before it, with the conversation, and with the values of shared scopes that its first event recorded.
    pub state: State,
    /// The summary of the beginning of the conversation.
    pub summary: Option<Summary>,
    /// Its events, in order, with their messages and writes.
    pub events: Vec<Event>,
    /// The reason of its end; `None` for a run that waits for decisions or a budget, has failed, was interrupted, or is under way.
    pub exit: Option<Exit>,
    /// The version of an erased event, without whose content the run cannot be made again: one of its own, or one in the conversation
    /// that it began with, unless that was erased before the run.
    pub erased: Option<u64>,
}

impl RecordedRun {
    pub(super) fn of(
        committed: &[CommittedEvent],
        events: Vec<Event>,
        (mut state, summary): (State, Option<Summary>),
        erased: Option<u64>,
    ) -> Self {
        if let Some(began) = events.first() {
            began.restore_shared(&mut state);
        }
        let version = |committed: Option<&CommittedEvent>| committed.map_or(0, |committed| committed.version);
        RecordedRun {
            first_version: version(committed.first()),
            last_version: version(committed.last()),
            agent: committed.first().and_then(|first| agent_of(&first.event)),
            state,
            summary,
            events,
            exit: committed.last().and_then(|last| exit_of(&last.event)),
            erased,
        }
    }

    /// The input that the run began with.
    #[must_use]
    pub fn input(&self) -> Option<Input> {
        let began = self.events.first()?;
        Some(Input::recorded(self.state.clone(), began).with_summary(self.summary.clone()))
    }
}

impl SessionHandle {
    /// The session's own runs, oldest first, each with the state that it began with. Runs that a rewind hid are left out,
    /// and so is a run whose beginning was pruned. O(the session).
    ///
    /// # Errors
    /// When the record does not fit the agent's schema, or the store fails.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_runner::Runner;
    /// use stepfold_session_scopes::MemoryStore;
    ///
    /// # let model = Script::parse("assistant: area 3\nassistant: area 7")?;
    /// let agent = Agent::builder(model).build()?;
    /// let runner = Runner::builder(agent, MemoryStore::new()).build();
    /// let session = runner.session("ada", "s1").await?;
    /// session.run("which area has most stalls?").await?;
    /// session.run("and fewest?").await?;
    /// let runs = session.recorded_runs().await?;
    /// let before: Vec<usize> = runs.iter().map(|run| run.state.messages().len()).collect();
    /// assert_eq!(before, [0, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub async fn recorded_runs(&self) -> Result<Vec<RecordedRun>, RunnerError> {
        crate::handle::replay::recorded_runs(&self.access()).await
    }
}
