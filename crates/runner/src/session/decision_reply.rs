//! The receipt of stored decisions, and its way to the caller that decided.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use stepfold_agent_loop::EventKind;
use stepfold_session_scopes::InvocationId;
use tokio::sync::oneshot;

use crate::error::RunnerError;

/// The receipt of stored decisions: their requests, author, version, and run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DecisionReceipt {
    /// The version of the session with the decisions.
    pub version: u64,
    /// The ids of the requests.
    pub requests: Vec<String>,
    /// The author of the decisions, if known.
    pub by: Option<String>,
    /// The invocation that began the run, whichever continues it.
    pub invocation: InvocationId,
}

impl DecisionReceipt {
    /// The receipt of an event with decisions, which is stored at this version of the run; `None` for other events.
    pub(crate) fn of(kind: &EventKind, version: u64, invocation: &InvocationId) -> Option<Self> {
        let EventKind::Decided { decisions, by, .. } = kind else { return None };
        let requests = decisions.iter().map(|(id, _)| id.clone()).collect();
        Some(DecisionReceipt { version, requests, by: by.clone(), invocation: invocation.clone() })
    }
}

/// Sends the receipt to the caller that decided. When all of its copies are gone without one, nothing was decided.
#[derive(Clone, Debug, Default)]
pub(crate) struct DecisionReply {
    waiting: Arc<Mutex<Option<ReceiptSender>>>,
    stored: StoredReceipt,
}

/// The receipt, once the decisions are stored.
pub(crate) type StoredReceipt = Arc<OnceLock<DecisionReceipt>>;

/// The waiting caller.
type ReceiptSender = oneshot::Sender<Result<DecisionReceipt, RunnerError>>;

impl DecisionReply {
    pub(crate) fn new() -> (Self, oneshot::Receiver<Result<DecisionReceipt, RunnerError>>) {
        let (sender, receiver) = oneshot::channel();
        let waiting = Arc::new(Mutex::new(Some(sender)));
        (DecisionReply { waiting, stored: StoredReceipt::default() }, receiver)
    }

    /// Only the first result counts.
    pub(crate) fn send(&self, receipt: Result<DecisionReceipt, RunnerError>) {
        if let Ok(receipt) = &receipt {
            self.stored.get_or_init(|| receipt.clone());
        }
        if let Some(sender) = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // The caller may be gone.
            let _ = sender.send(receipt);
        }
    }

    /// The cell of the receipt, which is set after storage.
    pub(crate) fn stored_receipt(&self) -> StoredReceipt {
        Arc::clone(&self.stored)
    }

    /// The decisions of an event were stored.
    pub(crate) fn stored(&self, kind: &EventKind, version: u64, invocation: &InvocationId) {
        if let Some(receipt) = DecisionReceipt::of(kind, version, invocation) {
            self.send(Ok(receipt));
        }
    }
}
