//! What somebody has to decide, and what becomes of decisions: ids of requests, and checks.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use stepfold_state_core::chat::ToolCall;

use super::batch::{Batch, Call, CallState, Suspended};
use super::event::{Event, EventKind};
use super::feed::decided_outcome;
use super::machine::{Phase, Run};
use super::walk;
use crate::approval::{ApprovalRequest, AskReason, Decision, Subject};
use crate::decisions::{DecisionError, Decisions, Settled};
use crate::error::FeedError;

/// Whose requests are named: a run at a step.
#[derive(Clone, Debug)]
pub(crate) struct Asker {
    run: Arc<str>,
    step: u64,
}

impl Asker {
    /// What tells requests about the call or branch at a place.
    pub(crate) fn subject<'a>(
        &'a self,
        place: usize,
        round: u32,
        reason: AskReason,
        name: &'a str,
    ) -> Subject<'a> {
        Subject { run: &self.run, step: self.step, place, round, reason, name }
    }

    /// The id of the request about a call.
    fn id(&self, place: usize, call: &Call, reason: AskReason, tool_call: &ToolCall) -> String {
        self.subject(place, call.round, reason, &tool_call.name).id(&tool_call.id, &tool_call.arguments)
    }

    /// The id of a request of the agent that a call is.
    pub(super) fn id_inside(&self, place: usize, call: &Call, tool_call: &ToolCall, inner: &str) -> String {
        self.subject(place, call.round, AskReason::Rule, &tool_call.name).id_inside(&tool_call.id, inner)
    }

    /// The decision about a call that waits for one.
    pub(super) fn decision<'d>(
        &self,
        place: usize,
        call: &Call,
        tool_call: &ToolCall,
        decisions: &'d [(String, Decision)],
    ) -> Option<&'d Decision> {
        let CallState::Asking(reason) = call.state else { return None };
        let id = self.id(place, call, reason, tool_call);
        decisions.iter().find(|(decided, _)| *decided == id).map(|(_, decision)| decision)
    }
}

/// The decisions about requests of something inside, under its own ids; `outer` gives the ids here.
pub(super) fn inner_decisions(
    requests: &[ApprovalRequest],
    decisions: &[(String, Decision)],
    outer: impl Fn(&str) -> String,
) -> Vec<(String, Decision)> {
    let inner = requests.iter().filter_map(|request| {
        let id = outer(&request.id);
        let (_, decision) = decisions.iter().find(|(decided, _)| *decided == id)?;
        Some((request.id.clone(), decision.clone()))
    });
    inner.collect()
}

impl Run {
    pub(crate) fn asker(&self) -> Asker {
        Asker { run: Arc::clone(&self.id), step: self.tally.steps }
    }

    /// The requests that somebody has to decide about: calls, and questions of nodes.
    pub fn pending(&self) -> Vec<ApprovalRequest> {
        match &self.phase {
            Phase::Calling(batch) => self.pending_calls(batch),
            Phase::Walking(walk) => walk::pending(walk, &self.asker()),
            _ => Vec::new(),
        }
    }

    fn pending_calls(&self, batch: &Batch) -> Vec<ApprovalRequest> {
        let asker = self.asker();
        let mut pending = Vec::new();
        for (place, (call, tool_call)) in batch.calls.iter().zip(self.calls()).enumerate() {
            match &call.state {
                CallState::Asking(reason) => pending.push(ApprovalRequest {
                    id: asker.id(place, call, *reason, tool_call),
                    call: tool_call.clone(),
                    reason: *reason,
                }),
                CallState::Suspended(suspended) => {
                    pending.extend(suspended.open().map(|request| ApprovalRequest {
                        id: asker.id_inside(place, call, tool_call, &request.id),
                        ..request.clone()
                    }));
                }
                _ => {}
            }
        }
        pending
    }

    /// Checks decisions against what is pending, without taking them: each has to be about a pending request, once,
    /// and modified arguments have to fit. Decisions that the run [has](Run::has_decided) already pass as a repeat.
    ///
    /// # Errors
    /// [`DecisionError`] for the first decision that would be refused.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// # use stepfold_agent_loop::test_kit::Script;
    /// # use stepfold_tools::{Approval, Tool, ToolError};
    /// use stepfold_agent_loop::{Agent, Decision, DecisionError, Decisions};
    ///
    /// # async fn pay() -> Result<&'static str, ToolError> { Ok("paid") }
    /// # let pay = Tool::new("pay", "Pays a bill.", pay).approval(Approval::Always).build()?;
    /// # let model = Script::parse("assistant: > c1 pay()\nassistant: done")?;
    /// let agent = Agent::builder(model).tools([pay]).build()?;
    /// let run = agent.run("pay the bill").await?.into_run();
    /// let id = run.pending().remove(0).id;
    /// assert_eq!(run.check_decisions(&Decisions::from([(id, Decision::Approve)])), Ok(()));
    ///
    /// let unknown = Decisions::from([("c2", Decision::Approve)]);
    /// assert!(matches!(run.check_decisions(&unknown), Err(DecisionError::NotPending { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn check_decisions(&self, decisions: &Decisions) -> Result<(), DecisionError> {
        if decisions.is_empty() || self.has_decided(decisions) {
            return Ok(());
        }
        if let Some(key) = &decisions.idempotency_key
            && self.settled_under(key).next().is_some()
        {
            return Err(DecisionError::KeyReused { idempotency_key: key.clone() });
        }
        self.check_new(&decisions.decisions)
    }

    /// Whether these decisions are the same as earlier ones with the same idempotency key: a repeat, which changes
    /// nothing. Without a key nothing is a repeat.
    pub fn has_decided(&self, decisions: &Decisions) -> bool {
        let Some(key) = &decisions.idempotency_key else { return false };
        let is_settled = |(id, decision): &(String, Decision)| {
            self.decided.get(id).is_some_and(|settled| {
                settled.decision == *decision && settled.idempotency_key.as_ref() == Some(key)
            })
        };
        !decisions.is_empty()
            && decisions.decisions.iter().all(is_settled)
            && self.settled_under(key).all(|id| decisions.decisions.iter().any(|(decided, _)| decided == id))
    }

    /// The ids of the requests that were decided under this idempotency key.
    fn settled_under<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        let under =
            self.decided.iter().filter(move |(_, settled)| settled.idempotency_key.as_deref() == Some(key));
        under.map(|(id, _)| id.as_str())
    }

    /// Whether each decision is about something that waits for one, once, and fits.
    fn check_new(&self, decisions: &[(String, Decision)]) -> Result<(), DecisionError> {
        let pending = self.pending();
        for (place, (id, decision)) in decisions.iter().enumerate() {
            let Some(request) = pending.iter().find(|request| request.id == *id) else {
                return Err(self.not_pending(id, &pending));
            };
            if decisions[..place].iter().any(|(earlier, _)| earlier == id) {
                return Err(DecisionError::Duplicate { id: id.clone() });
            }
            if let Decision::Modify { arguments } = decision {
                self.check_modified(request, arguments)?;
            }
        }
        self.check_decisions_of_nodes(decisions)
    }

    fn not_pending(&self, id: &str, pending: &[ApprovalRequest]) -> DecisionError {
        let id = id.to_owned();
        if let Some(Settled { decision, by, .. }) = self.decided.get(&id) {
            return DecisionError::AlreadyDecided { id, decision: decision.clone(), by: by.clone() };
        }
        let pending = pending.iter().map(|request| request.id.as_str()).collect();
        DecisionError::NotPending { id, pending }
    }

    fn check_modified(&self, request: &ApprovalRequest, arguments: &Value) -> Result<(), DecisionError> {
        let fault = |faults| DecisionError::InvalidArguments { id: request.id.clone(), faults };
        let Value::Object(arguments) = arguments else {
            return Err(fault("expected a JSON object".to_owned()));
        };
        let Phase::Calling(batch) = &self.phase else {
            return match request.reason {
                AskReason::MayHaveHappened if self.is_own_branch(&request.id) => {
                    Err(fault("a node runs again as it is, or not; approve or reject".to_owned()))
                }
                _ => Ok(()),
            };
        };
        // The tools of an agent that is a tool are its own: it checks them when it goes on.
        let is_own = batch.calls.iter().zip(self.calls()).any(|(call, tool_call)| {
            matches!(call.state, CallState::Asking(_)) && tool_call.id == request.call.id
        });
        // Without the tools of the step, they are checked before the call runs.
        let (true, Some(tools)) = (is_own, self.tools()) else { return Ok(()) };
        let tool = tools.get(&request.call.name);
        let tool = tool.ok_or_else(|| fault(format!("unknown tool `{}`", request.call.name)))?;
        tool.check_arguments(arguments).map_err(|faults| fault(faults.to_string()))
    }

    /// Decisions are all taken or none: a faulty one among them must not hide behind the others.
    pub(super) fn decided(
        &self,
        batch: &Batch,
        decisions: Decisions,
        elapsed: Duration,
    ) -> Result<Event, FeedError> {
        self.check_not_repeated(&decisions)?;
        let asker = self.asker();
        let given = decisions.decisions.clone();
        let mut event = Event::new(self.tally.steps, elapsed, decisions.into());
        self.closing_if_done(&mut event, batch, |place, tool_call| {
            let call = &batch.calls[place];
            decided_outcome(call, tool_call, asker.decision(place, call, tool_call, &given)?)
        });
        Ok(event)
    }

    /// For a commit: a repeat is none.
    pub(super) fn check_not_repeated(&self, decisions: &Decisions) -> Result<(), FeedError> {
        self.check_decisions(decisions)?;
        Ok(self.check_new(&decisions.decisions)?)
    }

    /// Keeps what was decided, so that a second decision is known as such.
    pub(super) fn note_decisions(&mut self, kind: &EventKind) {
        let EventKind::Decided { decisions, by, idempotency_key } = kind else { return };
        for (id, decision) in decisions {
            let (decision, by, idempotency_key) = (decision.clone(), by.clone(), idempotency_key.clone());
            self.decided.insert(id.clone(), Settled { decision, by, idempotency_key });
        }
    }
}

impl From<Decisions> for EventKind {
    fn from(decisions: Decisions) -> Self {
        let Decisions { decisions, by, idempotency_key } = decisions;
        EventKind::Decided { decisions, by, idempotency_key }
    }
}

impl Suspended {
    pub(crate) fn open(&self) -> impl Iterator<Item = &ApprovalRequest> {
        let is_decided = |id: &str| self.decisions.iter().any(|(decided, _)| decided == id);
        self.requests.iter().filter(move |request| !is_decided(&request.id))
    }
}
