//! Decisions that come twice: what the record of a session says about them.

use std::sync::{Arc, Mutex, PoisonError};

use stepfold_agent_loop::{DecisionError, Decisions, EventKind};
use stepfold_session_scopes::{EventRange, GetSession, SessionStore};
use tokio::sync::oneshot;

use crate::error::RunnerError;
use crate::record::loop_event;
use crate::turn::Turn;

/// How far back a decision is looked for, in events.
const LOOKED_THROUGH: usize = 4_096;

/// That decisions are stored: what they are about, who made them, and where they stand in the record.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DecisionReceipt {
    /// The version of the session that they made.
    pub version: u64,
    /// The ids of the requests.
    pub requests: Vec<String>,
    /// Who decided, if that was said.
    pub by: Option<String>,
}

/// What an earlier decision means for new ones: it is the same, with its receipt, or stands in their way; none if it is
/// about something else.
fn met(new: &Decisions, kind: &EventKind, version: u64) -> Option<Result<DecisionReceipt, DecisionError>> {
    let EventKind::Decided { decisions, by, idempotency_key, .. } = kind else { return None };
    if new.idempotency_key.is_some() && new.idempotency_key == *idempotency_key {
        let is_same = decisions.len() == new.decisions.len()
            && decisions.iter().all(|decided| new.decisions.contains(decided));
        return Some(match (is_same, &new.idempotency_key) {
            (false, Some(key)) => Err(DecisionError::KeyReused { idempotency_key: key.clone() }),
            _ => Ok(receipt(decisions.iter().map(|(id, _)| id.clone()), by.clone(), version)),
        });
    }
    let (id, decision) =
        decisions.iter().find(|(id, _)| new.decisions.iter().any(|(other, _)| other == id))?;
    Some(Err(DecisionError::AlreadyDecided { id: id.clone(), decision: decision.clone(), by: by.clone() }))
}

fn receipt(requests: impl Iterator<Item = String>, by: Option<String>, version: u64) -> DecisionReceipt {
    DecisionReceipt { version, requests: requests.collect(), by }
}

impl Turn {
    /// Looks for decisions in the record, the newest events first: the receipt of the same ones, or what stands in their
    /// way; none if they are new.
    pub(crate) async fn look_up(
        &self,
        decisions: &Decisions,
    ) -> Result<Option<Result<DecisionReceipt, DecisionError>>, RunnerError> {
        let key = &self.slot.key;
        let mut events = 64;
        loop {
            let get = GetSession::new(key.clone()).events(EventRange::Last(events)).without_state();
            let session = self.runner.store.get(get).await.map_err(|error| RunnerError::store(key, error))?;
            let visible: Vec<_> = session.visible_events().collect();
            for committed in visible.into_iter().rev().filter(|it| it.event.kind.as_str() == "decided") {
                let Some(event) = loop_event(key, committed)? else { continue };
                if let Some(met) = met(decisions, &event.kind, committed.version) {
                    return Ok(Some(met));
                }
            }
            if session.events.len() < events || events >= LOOKED_THROUGH {
                return Ok(None);
            }
            events *= 8;
        }
    }
}

/// Gives the receipt to whoever decided.
#[derive(Clone, Debug, Default)]
pub(crate) struct Receipts(Arc<Mutex<Option<Waiting>>>);

/// Whoever decided, and waits for the receipt.
type Waiting = oneshot::Sender<Result<DecisionReceipt, RunnerError>>;

impl Receipts {
    pub(crate) fn new() -> (Self, oneshot::Receiver<Result<DecisionReceipt, RunnerError>>) {
        let (sender, receiver) = oneshot::channel();
        (Receipts(Arc::new(Mutex::new(Some(sender)))), receiver)
    }

    /// The first word counts.
    pub(crate) fn tell(&self, receipt: Result<DecisionReceipt, RunnerError>) {
        if let Some(sender) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // Nobody may wait for it any more.
            let _ = sender.send(receipt);
        }
    }

    /// The decisions of an event were stored.
    pub(crate) fn stored(&self, kind: &EventKind, version: u64) {
        if let EventKind::Decided { decisions, by, .. } = kind {
            self.tell(Ok(receipt(decisions.iter().map(|(id, _)| id.clone()), by.clone(), version)));
        }
    }
}
