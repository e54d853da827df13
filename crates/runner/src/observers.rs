//! Observers of all runs of a runner: one is made for each invocation.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use stepfold_agent_loop::{Observer, ObserverError, RunEvent};
use stepfold_session_scopes::SessionKey;

/// What makes them, in the order in which they are told.
#[derive(Clone, Default)]
pub(crate) struct Observers(Vec<Arc<Make>>);

type Make = dyn Fn(&SessionKey) -> Box<dyn DynObserver> + Send + Sync;

impl Observers {
    pub(crate) fn push<O: Observer + 'static>(
        &mut self,
        make: impl Fn(&SessionKey) -> O + Send + Sync + 'static,
    ) {
        self.0.push(Arc::new(move |key| Box::new(make(key))));
    }

    /// Those of one invocation, as one.
    pub(crate) fn of(&self, key: &SessionKey) -> Together {
        Together(self.0.iter().map(|make| make(key)).collect())
    }
}

/// Each in its turn; the first that fails is the last that is told.
pub(crate) struct Together(Vec<Box<dyn DynObserver>>);

impl Observer for Together {
    async fn observe(&mut self, event: &RunEvent) -> Result<(), ObserverError> {
        for observer in &mut self.0 {
            observer.observe_boxed(event).await?;
        }
        Ok(())
    }
}

/// Tells an observer of a run from its first stored event on. A run of which nothing is stored did not begin: another worker
/// was faster, and its run is the one that is seen.
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

/// The erased twin of [`Observer`].
trait DynObserver: Send {
    fn observe_boxed<'a>(&'a mut self, event: &'a RunEvent) -> BoxFuture<'a, Result<(), ObserverError>>;
}

impl<O: Observer> DynObserver for O {
    fn observe_boxed<'a>(&'a mut self, event: &'a RunEvent) -> BoxFuture<'a, Result<(), ObserverError>> {
        Box::pin(self.observe(event))
    }
}
