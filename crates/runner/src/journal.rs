//! The observer that stores: every commit of the loop is in the session before anything else happens.

use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};
use stepfold_agent_loop::{Agent, Event, EventKind, Observer, ObserverError, RunEvent};
use stepfold_session_scopes::{
    AnyStore, AppendEvent, ErrorKind, InvocationId, SessionError, SessionKey, SessionSchema, SessionStore,
};

use crate::ports::WallClock;
use crate::record::{Stamp, session_event, with_agent};

/// How often an append is repeated when the store was busy or lost, and how long that takes in all.
const REPEATS: usize = 6;
const LONGEST: Duration = Duration::from_secs(30);

pub(crate) struct Journal {
    pub(crate) store: AnyStore,
    pub(crate) key: SessionKey,
    pub(crate) schema: SessionSchema,
    pub(crate) clock: std::sync::Arc<dyn WallClock>,
    pub(crate) agent: Agent,
    pub(crate) invocation: InvocationId,
    /// What the ids of its events begin with.
    pub(crate) writer: String,
    /// The version of the session after the last append.
    pub(crate) version: u64,
    /// The number of events of the invocation that are stored.
    pub(crate) place: u64,
    /// The ids of the calls of the last reply.
    pub(crate) calls: Vec<String>,
}

impl Journal {
    async fn append(&mut self, event: &Event) -> Result<(), SessionError> {
        if let EventKind::Replied { .. } = event.kind {
            let calls = event.messages.first().into_iter().flat_map(|reply| reply.tool_calls());
            self.calls = calls.map(|call| call.id.clone()).collect();
        }
        let started = match &event.kind {
            EventKind::Started { calls } => {
                calls.iter().filter_map(|place| self.calls.get(*place).cloned()).collect()
            }
            _ => Vec::new(),
        };
        let stamp = Stamp {
            invocation: &self.invocation,
            writer: &self.writer,
            place: self.place,
            agent: self.agent.name(),
            at: self.clock.now(),
        };
        let mut stored = session_event(event.clone(), &stamp, started)?;
        if let EventKind::Began { .. } = event.kind {
            stored = with_agent(stored, &self.agent);
        }
        let request = AppendEvent::new(self.key.clone(), self.version, stored, &self.schema);
        let append = || self.store.append(request.clone());
        let receipt = append.retry(pauses()).when(|error| error.kind() == ErrorKind::Transient).await?;
        self.version = receipt.version;
        self.place += 1;
        Ok(())
    }
}

/// An append may be repeated: the store knows the event by its id.
fn pauses() -> ExponentialBuilder {
    ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(50))
        .with_max_times(REPEATS)
        .with_total_delay(Some(LONGEST))
}

impl Observer for Journal {
    async fn observe(&mut self, event: &RunEvent) -> Result<(), ObserverError> {
        match event.committed() {
            Some(event) => self.append(event).await.map_err(Into::into),
            None => Ok(()),
        }
    }
}
