//! Repeated decisions: looks them up in the record of a session.

use std::collections::BTreeSet;

use stepfold_agent_loop::{Decision, DecisionError, Decisions, EventKind};
use stepfold_session_scopes::{
    CommittedEvent, EventRange, FindTagged, InvocationId, Session, SessionStore, Timestamp,
};

use crate::access::session_access::SessionAccess;
use crate::error::RunnerError;
use crate::record::events::{decision_tag, loop_event, request_tag};
use crate::session::decision_reply::DecisionReceipt;

/// The number of events in which decisions and edits are listed.
pub(crate) const MAX_LISTED_EVENTS: usize = 4_096;

/// A decision in the record of a session.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RecordedDecision {
    /// The id of the request.
    pub request: String,
    /// The decision.
    pub decision: Decision,
    /// The author of the decision, if known.
    pub by: Option<String>,
    /// The idempotency key, if any.
    pub idempotency_key: Option<String>,
    /// The version of the session with the decision.
    pub version: u64,
    /// The time of storage.
    pub at: Timestamp,
    /// The invocation that began the run.
    pub invocation: InvocationId,
}

/// An event with decisions.
struct DecidedEvent {
    kind: EventKind,
    version: u64,
    at: Timestamp,
    invocation: InvocationId,
}

/// Compares new decisions with a recorded event: the receipt if they are the same, an error if they conflict,
/// `None` if they are unrelated.
fn match_decisions(
    new: &Decisions,
    recorded: &DecidedEvent,
) -> Option<Result<DecisionReceipt, DecisionError>> {
    let DecidedEvent { kind, version, invocation, .. } = recorded;
    let EventKind::Decided { decisions, by, idempotency_key, .. } = kind else { return None };
    if new.idempotency_key.is_some() && new.idempotency_key == *idempotency_key {
        let is_same = decisions.len() == new.decisions.len()
            && decisions.iter().all(|decided| new.decisions.contains(decided));
        if let (false, Some(key)) = (is_same, &new.idempotency_key) {
            return Some(Err(DecisionError::KeyReused { idempotency_key: key.clone() }));
        }
        return DecisionReceipt::of(kind, *version, invocation).map(Ok);
    }
    let (id, decision) =
        decisions.iter().find(|(id, _)| new.decisions.iter().any(|(other, _)| other == id))?;
    Some(Err(DecisionError::AlreadyDecided {
        id: id.clone(),
        decision: Box::new(decision.clone()),
        by: by.clone(),
    }))
}

impl SessionAccess {
    /// Looks up decisions in the record: the receipt of the same ones, or the newest conflict; `None` if they
    /// are new. Any run may have used the key.
    pub(crate) async fn find_decisions(
        &self,
        decisions: &Decisions,
    ) -> Result<Option<Result<DecisionReceipt, RunnerError>>, RunnerError> {
        // NOTE: an event has tags for its key and its requests: its id cannot have them, as one event may decide several
        // requests.
        let decisions = &self.runner.redacted_decisions(decisions);
        let key = decisions.idempotency_key.as_deref().map(decision_tag);
        let requests = decisions.decisions.iter().map(|(id, _)| request_tag(id));
        let events = self.tagged(key.into_iter().chain(requests)).await?;
        Ok(self.match_recorded(decisions, self.decided(&events)?))
    }

    /// Compares decisions with recorded ones, newest first.
    fn match_recorded(
        &self,
        decisions: &Decisions,
        recorded: Vec<DecidedEvent>,
    ) -> Option<Result<DecisionReceipt, RunnerError>> {
        let mut refused = None;
        for recorded in recorded {
            match match_decisions(decisions, &recorded) {
                Some(Ok(receipt)) => return Some(Ok(receipt)),
                Some(Err(error)) => {
                    let key = &self.local.key;
                    refused.get_or_insert_with(|| RunnerError::decided_before(key, error, recorded.at));
                }
                None => {}
            }
        }
        refused.map(Err)
    }

    /// The newest visible event with each of these tags, newest first.
    pub(crate) async fn tagged(
        &self,
        tags: impl IntoIterator<Item = String>,
    ) -> Result<Vec<CommittedEvent>, RunnerError> {
        let find = FindTagged::new(self.local.key.clone(), tags);
        let found = self.runner.store.find_tagged(find).await;
        let found = found.map_err(|error| RunnerError::store(&self.local.key, error))?;
        let versions: BTreeSet<u64> = found.into_iter().flatten().collect();
        let mut events = Vec::new();
        for version in versions.into_iter().rev() {
            // Retention may have deleted it since.
            events.extend(self.event_at(version).await?);
        }
        Ok(events)
    }

    /// The decisions of the newest events, newest first.
    pub(crate) async fn recorded_decisions(&self) -> Result<Vec<RecordedDecision>, RunnerError> {
        let session = self.read_events(EventRange::Last(MAX_LISTED_EVENTS)).await?;
        self.decisions_in(newest_first(&session))
    }

    /// The decision that was made under an idempotency key, however long ago.
    pub(crate) async fn decision_with_key(&self, key: &str) -> Result<Option<RecordedDecision>, RunnerError> {
        let recorded = self.decisions_in(&self.tagged([decision_tag(key)]).await?)?;
        Ok(recorded.into_iter().find(|decided| decided.idempotency_key.as_deref() == Some(key)))
    }

    fn decisions_in<'a>(
        &self,
        events: impl IntoIterator<Item = &'a CommittedEvent>,
    ) -> Result<Vec<RecordedDecision>, RunnerError> {
        let mut recorded = Vec::new();
        for DecidedEvent { kind, version, at, invocation } in self.decided(events)? {
            let EventKind::Decided { decisions, by, idempotency_key, .. } = kind else { continue };
            recorded.extend(decisions.into_iter().map(|(request, decision)| {
                let (by, idempotency_key, invocation) =
                    (by.clone(), idempotency_key.clone(), invocation.clone());
                RecordedDecision { request, decision, by, idempotency_key, version, at, invocation }
            }));
        }
        Ok(recorded)
    }

    /// The events with decisions among these.
    fn decided<'a>(
        &self,
        events: impl IntoIterator<Item = &'a CommittedEvent>,
    ) -> Result<Vec<DecidedEvent>, RunnerError> {
        let events = events.into_iter().filter(|it| it.event.kind.as_str() == "decided");
        let read = events.filter_map(|committed| {
            let event = loop_event(&self.local.key, committed).transpose()?;
            let (version, at) = (committed.version, committed.event.at);
            let invocation = committed.event.invocation.clone();
            Some(event.map(|event| DecidedEvent { kind: event.kind, version, at, invocation }))
        });
        read.collect()
    }
}

/// The visible events of a session that were read, newest first.
pub(crate) fn newest_first(session: &Session) -> Vec<&CommittedEvent> {
    let mut events: Vec<_> = session.visible_events().collect();
    events.reverse();
    events
}
