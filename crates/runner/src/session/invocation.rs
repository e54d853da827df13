//! A running invocation, in its own task.

use std::fmt;
use std::future::IntoFuture;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::Stream;
use futures_util::future::BoxFuture;
use stepfold_agent_loop::Outcome;
use stepfold_session_scopes::{InvocationId, SessionKey};
use stepfold_tools::CancellationToken;
use tokio::sync::watch;

use crate::error::{RunnerError, RunnerErrorKind};
use crate::session::decision_reply::{DecisionReceipt, StoredReceipt};
use crate::session::event_hub::{EventHub, InvocationEvent};

/// The result of an invocation.
pub type InvocationResult = Result<Arc<Outcome>, RunnerError>;

/// A running invocation. It continues when all handles are dropped: a disconnect is not a cancellation.
///
/// Awaiting it waits for its outcome. Clones refer to the same invocation. The outcome of a run that has ended before
/// is read from the record: it has the session's values of its end, and those of `app:` and `user:` as they are now.
#[derive(Clone)]
pub struct Invocation {
    id: InvocationId,
    key: SessionKey,
    hub: Arc<EventHub>,
    ended: watch::Receiver<Option<InvocationResult>>,
    cancellation: CancellationToken,
    progress: Arc<InvocationProgress>,
    receipt: StoredReceipt,
}

/// The progress of an invocation, shared by its handles.
#[derive(Default)]
struct InvocationProgress {
    /// Cancels the run that has taken the message.
    joined: Mutex<Option<CancellationToken>>,
    recovered: Mutex<Vec<Arc<Outcome>>>,
    /// The version of the session after the run.
    version: AtomicU64,
}

impl Invocation {
    pub(crate) fn new(
        id: InvocationId,
        key: SessionKey,
        hub: Arc<EventHub>,
        ended: watch::Receiver<Option<InvocationResult>>,
        cancellation: CancellationToken,
    ) -> Self {
        let (progress, receipt) = (Arc::default(), StoredReceipt::default());
        Invocation { id, key, hub, ended, cancellation, progress, receipt }
    }

    /// One that has ended: its outcome is in the record.
    pub(crate) fn ended(id: InvocationId, key: SessionKey, recorded: StoredOutcome) -> Self {
        let hub = EventHub::new();
        hub.end();
        let (_, ended) = watch::channel(Some(Ok(recorded.outcome)));
        let invocation = Invocation::new(id, key, hub, ended, CancellationToken::new());
        invocation.set_version(recorded.version);
        invocation
    }

    /// The id of the invocation.
    pub fn id(&self) -> &InvocationId {
        &self.id
    }

    /// Cancels the invocation: the open calls of its run are answered as cancelled, and the session is immediately
    /// usable. The run of a message that [joined](crate::WhenBusy::Steer) it is that one. A run that comes before its own
    /// is not cancelled: the message is taken after it, and ends as cancelled. While it waits for another worker, its
    /// message is withdrawn; if that worker has taken the message, the wait ends with
    /// [`Claimed`](RunnerErrorKind::Claimed).
    pub fn cancel(&self) {
        self.cancellation.cancel();
        if let Some(run) = &*self.joined() {
            run.cancel();
        }
    }

    /// A run is the one of its message.
    pub(crate) fn join_run(&self, run: &CancellationToken) {
        *self.joined() = Some(run.clone());
        if self.cancellation.is_cancelled() {
            run.cancel();
        }
    }

    fn joined(&self) -> MutexGuard<'_, Option<CancellationToken>> {
        self.progress.joined.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The events from number `from` on, past ones first. Any number of subscribers is supported, each at its
    /// own pace; none slows the run down.
    #[doc(alias("stream", "astream", "callback"))]
    pub fn subscribe(&self, from: u64) -> impl Stream<Item = InvocationEvent> + Send + Unpin + use<> {
        Box::pin(self.hub.subscribe(from))
    }

    /// Waits for the outcome.
    ///
    /// # Errors
    /// [`RunnerError`].
    pub async fn outcome(&self) -> InvocationResult {
        let mut ended = self.ended.clone();
        match ended.wait_for(Option::is_some).await {
            Ok(ended) => ended.clone().unwrap_or_else(|| Err(self.panicked())),
            Err(_) => Err(self.panicked()),
        }
    }

    /// The outcomes of the interrupted runs that this invocation has completed, before its own run or instead
    /// of it: they may contain calls with an [unknown outcome](Outcome::unknown_calls). Available even if the
    /// invocation fails; the outcome of one that ends has [them](Outcome::recovered) too.
    pub fn recovered(&self) -> Vec<Arc<Outcome>> {
        self.recovered_so_far().clone()
    }

    /// The receipt of the decisions that it was resumed with, after their storage.
    pub fn receipt(&self) -> Option<DecisionReceipt> {
        self.receipt.get().cloned()
    }

    pub(crate) fn set_receipt(&mut self, receipt: StoredReceipt) {
        self.receipt = receipt;
    }

    /// The version of the session after the last event of the run whose outcome this is.
    pub(crate) fn version(&self) -> u64 {
        self.progress.version.load(Ordering::SeqCst)
    }

    pub(crate) fn set_version(&self, version: u64) {
        self.progress.version.store(version, Ordering::SeqCst);
    }

    pub(crate) fn add_recovered(&self, outcome: Arc<Outcome>) {
        self.recovered_so_far().push(outcome);
    }

    fn recovered_so_far(&self) -> MutexGuard<'_, Vec<Arc<Outcome>>> {
        self.progress.recovered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn panicked(&self) -> RunnerError {
        RunnerError::new(&self.key, RunnerErrorKind::Panicked)
    }
}

impl IntoFuture for Invocation {
    type Output = InvocationResult;
    type IntoFuture = BoxFuture<'static, InvocationResult>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.outcome().await })
    }
}

impl fmt::Debug for Invocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Invocation").field("id", &self.id).field("session", &self.key).finish_non_exhaustive()
    }
}

/// The outcome of a run as the record has it.
pub(crate) struct StoredOutcome {
    pub(crate) outcome: Arc<Outcome>,
    /// The version of the session after the last event of the run.
    pub(crate) version: u64,
}
