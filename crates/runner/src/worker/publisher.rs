//! The observer that publishes the events of a run to subscribers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use stepfold_agent_loop::{Observer, ObserverError, RunEvent};

use crate::session::event_hub::{EventHub, PublishedEvent};
use crate::session::local_session::LocalSession;

/// The observer that publishes a run's events to the hub.
pub(crate) struct HubPublisher {
    pub(crate) hub: Arc<EventHub>,
    /// Has the invocations whose messages the run has taken.
    pub(crate) local: Arc<LocalSession>,
    pub(crate) is_earlier: bool,
    /// The version after the newest commit.
    pub(crate) version: Arc<AtomicU64>,
}

impl Observer for HubPublisher {
    async fn observe(&mut self, event: &RunEvent) -> Result<(), ObserverError> {
        let version = self.version.load(Ordering::SeqCst);
        let published = |is_earlier| PublishedEvent { event: event.clone(), version, is_earlier };
        self.hub.push(published(self.is_earlier));
        self.local.queue().joined_hubs().iter().for_each(|hub| hub.push(published(false)));
        Ok(())
    }
}
