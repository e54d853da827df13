//! Repeated decisions: looks them up in the record of a session.

use std::collections::BTreeSet;

use stepfold_agent_loop::{Decision, DecisionError, Decisions, EventKind};
use stepfold_session_scopes::{
    CommittedEvent, EventRange, FindTagged, GetSession, Session, SessionError, SessionStore, Timestamp,
};

use crate::access::session_access::SessionAccess;
use crate::error::RunnerError;
use crate::record::events::{decision_tag, loop_event, request_tag};
use crate::session::decision_reply::{DecisionReceipt, receipt};

/// The number of events in which decisions and edits are listed, and looked for in a store that does not find them by
/// tags.
pub(crate) const MAX_SCANNED_EVENTS: usize = 4_096;

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
}

/// Compares new decisions with a recorded event: the receipt if they are the same, an error if they conflict,
/// `None` if they are unrelated.
fn match_decisions(
    new: &Decisions,
    kind: &EventKind,
    version: u64,
) -> Option<Result<DecisionReceipt, DecisionError>> {
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
        let key = decisions.idempotency_key.as_deref().map(decision_tag);
        let requests = decisions.decisions.iter().map(|(id, _)| request_tag(id));
        match self.tagged(key.into_iter().chain(requests)).await? {
            Some(events) => Ok(self.match_recorded(decisions, self.decided(events.iter())?)),
            None => self.scan_decisions(decisions).await,
        }
    }

    /// The same for a store that does not look up events by their tags: in the newest [`MAX_SCANNED_EVENTS`] ones.
    async fn scan_decisions(
        &self,
        decisions: &Decisions,
    ) -> Result<Option<Result<DecisionReceipt, RunnerError>>, RunnerError> {
        let mut events = 64;
        loop {
            let session = self.newest(events).await?;
            let met = self.match_recorded(decisions, self.decided(newest_first(&session))?);
            let is_last = session.events.len() < events || events >= MAX_SCANNED_EVENTS;
            match met {
                // The same decisions may precede those: then these are a repeat.
                Some(Err(_)) if decisions.idempotency_key.is_some() && !is_last => {}
                None if !is_last => {}
                met => return Ok(met),
            }
            events *= 8;
        }
    }

    /// Compares decisions with recorded ones, newest first.
    fn match_recorded(
        &self,
        decisions: &Decisions,
        recorded: Vec<(EventKind, u64, Timestamp)>,
    ) -> Option<Result<DecisionReceipt, RunnerError>> {
        let mut refused = None;
        for (kind, version, at) in recorded {
            match match_decisions(decisions, &kind, version) {
                Some(Ok(receipt)) => return Some(Ok(receipt)),
                Some(Err(error)) => {
                    refused.get_or_insert_with(|| RunnerError::decided_before(&self.local.key, error, at));
                }
                None => {}
            }
        }
        refused.map(Err)
    }

    /// The newest visible event with each of these tags, newest first; `None` if the store does not look them up.
    pub(crate) async fn tagged(
        &self,
        tags: impl IntoIterator<Item = String>,
    ) -> Result<Option<Vec<CommittedEvent>>, RunnerError> {
        let (key, store) = (&self.local.key, &self.runner.store);
        let failed = |error| RunnerError::store(key, error);
        let found = match store.find_tagged(FindTagged::new(key.clone(), tags)).await {
            Err(SessionError::Unsupported { .. }) => return Ok(None),
            found => found.map_err(failed)?,
        };
        let versions: BTreeSet<u64> = found.into_iter().flatten().collect();
        let mut events = Vec::new();
        for version in versions.into_iter().rev() {
            let page = EventRange::Page { after: version - 1, limit: 1 };
            let get = GetSession::new(key.clone()).events(page).without_state();
            let read = store.get(get).await.map_err(failed)?.events;
            // A rewind may have hidden it since.
            events.extend(read.into_iter().filter(|it| it.version == version));
        }
        Ok(Some(events))
    }

    /// The decisions of the newest events, newest first.
    pub(crate) async fn recorded_decisions(&self) -> Result<Vec<RecordedDecision>, RunnerError> {
        let session = self.newest(MAX_SCANNED_EVENTS).await?;
        self.decisions_in(newest_first(&session))
    }

    /// The decision that was made under an idempotency key, however long ago; in a store that does not find events by tags,
    /// as far as the newest [`MAX_SCANNED_EVENTS`] show.
    pub(crate) async fn decision_with_key(&self, key: &str) -> Result<Option<RecordedDecision>, RunnerError> {
        let recorded = match self.tagged([decision_tag(key)]).await? {
            Some(events) => self.decisions_in(&events)?,
            None => self.recorded_decisions().await?,
        };
        Ok(recorded.into_iter().find(|decided| decided.idempotency_key.as_deref() == Some(key)))
    }

    fn decisions_in<'a>(
        &self,
        events: impl IntoIterator<Item = &'a CommittedEvent>,
    ) -> Result<Vec<RecordedDecision>, RunnerError> {
        let mut recorded = Vec::new();
        for (kind, version, at) in self.decided(events)? {
            let EventKind::Decided { decisions, by, idempotency_key, .. } = kind else { continue };
            recorded.extend(decisions.into_iter().map(|(request, decision)| {
                let (by, idempotency_key) = (by.clone(), idempotency_key.clone());
                RecordedDecision { request, decision, by, idempotency_key, version, at }
            }));
        }
        Ok(recorded)
    }

    async fn newest(&self, events: usize) -> Result<Session, RunnerError> {
        let key = &self.local.key;
        let get = GetSession::new(key.clone()).events(EventRange::Last(events)).without_state();
        self.runner.store.get(get).await.map_err(|error| RunnerError::store(key, error))
    }

    /// The events with decisions among these.
    fn decided<'a>(
        &self,
        events: impl IntoIterator<Item = &'a CommittedEvent>,
    ) -> Result<Vec<(EventKind, u64, Timestamp)>, RunnerError> {
        let events = events.into_iter().filter(|it| it.event.kind.as_str() == "decided");
        let read = events.filter_map(|committed| {
            let event = loop_event(&self.local.key, committed).transpose()?;
            Some(event.map(|event| (event.kind, committed.version, committed.event.at)))
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
