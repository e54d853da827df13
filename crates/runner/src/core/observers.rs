//! Observers of all runs of a runner: one is created for each invocation.

use std::sync::Arc;

use stepfold_agent_loop::{DynObserver, Observer, ObserverError, RunEvent};
use stepfold_session_scopes::SessionKey;

/// The factories of observers, in notification order.
#[derive(Clone, Default)]
pub(crate) struct ObserverFactories(Vec<Arc<MakeObserver>>);

type MakeObserver = dyn Fn(&SessionKey) -> Box<dyn DynObserver> + Send + Sync;

impl ObserverFactories {
    pub(crate) fn push<O: Observer + 'static>(
        &mut self,
        make: impl Fn(&SessionKey) -> O + Send + Sync + 'static,
    ) {
        self.0.push(Arc::new(move |key| Box::new(make(key))));
    }

    /// The observers of one invocation, combined.
    pub(crate) fn of(&self, key: &SessionKey) -> Vec<Box<dyn DynObserver>> {
        self.0.iter().map(|make| make(key)).collect()
    }
}

/// Notifies an observer of a run from its first stored event on. A run without stored events did not begin:
/// another worker was faster, and its run is the observed one.
pub(crate) struct OnceStored<O> {
    pub(crate) observer: O,
    pub(crate) is_stored: bool,
}

impl<O: Observer> Observer for OnceStored<O> {
    async fn observe(&mut self, event: &RunEvent) -> Result<(), ObserverError> {
        self.is_stored |= event.committed().is_some();
        match self.is_stored {
            true => self.observer.observe(event).await,
            false => Ok(()),
        }
    }
}
