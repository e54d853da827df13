//! What somebody has to decide, and what becomes of decisions: ids of requests, and checks.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use stepfold_state_core::chat::ToolCall;
use stepfold_state_core::json_schema::ValueType;
use stepfold_state_core::state::Faults;

use super::batch::{Batch, Call, CallState, Suspended};
use super::event::{Event, EventKind};
use super::feed::decided_outcome;
use super::machine::{Phase, Run};
use super::walk;
use crate::approval::{ApprovalRequest, AskReason, Decision, Subject, id_within, path_of_call};
use crate::decisions::{DecisionError, Decisions, Settled};
use crate::error::FeedError;

/// Whose requests are named: a run at a step.
#[derive(Clone, Debug)]
pub(crate) struct Asker {
    run: Arc<str>,
    step: u64,
    /// What tells the requests of whoever goes on with the run from those of others who do.
    scope: Option<Arc<str>>,
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
        Subject { run: &self.run, step: self.step, place, round, reason, name, times: 1 }
    }

    /// The id of a request as it is known outside of the run.
    pub(crate) fn outer(&self, id: String) -> String {
        match &self.scope {
            None => id,
            Some(scope) => id_within(scope, &id),
        }
    }

    /// The id of the request about a call, and about those that are decided with it.
    fn id(&self, place: usize, call: &Call, asked: (AskReason, usize), tool_call: &ToolCall) -> String {
        let (reason, times) = asked;
        let subject = self.subject(place, call.round, reason, &tool_call.name);
        self.outer(Subject { times, ..subject }.id(&path_of_call(&tool_call.id), &tool_call.arguments))
    }

    /// The id of a request of the agent that a call is.
    pub(super) fn id_inside(&self, place: usize, call: &Call, tool_call: &ToolCall, inner: &str) -> String {
        let subject = self.subject(place, call.round, AskReason::Rule, &tool_call.name);
        self.outer(subject.id_inside(&path_of_call(&tool_call.id), inner))
    }

    /// The decision that each call has, if it waits for one: equal calls that are asked about once have the same.
    pub(super) fn decided<'d, 'c>(
        &self,
        calls: &[Call],
        tool_calls: impl Iterator<Item = &'c ToolCall>,
        decisions: &'d [(String, Decision)],
    ) -> Vec<Option<&'d Decision>> {
        let times = times_asked(calls);
        let given = |id: &str| decisions.iter().find(|(decided, _)| decided == id);
        let mut decided: Vec<Option<&Decision>> = Vec::with_capacity(calls.len());
        for (place, (call, tool_call)) in calls.iter().zip(tool_calls).enumerate() {
            let decision = match call.state {
                CallState::Asking(reason) => {
                    let id = self.id(place, call, (reason, times[place]), &call.as_run(tool_call));
                    given(&id).map(|(_, decision)| decision)
                }
                // The call that it is decided with comes before it.
                CallState::Same(first) => decided.get(first).copied().flatten(),
                _ => None,
            };
            decided.push(decision);
        }
        decided
    }
}

/// The number of calls that a decision about each call holds for.
fn times_asked(calls: &[Call]) -> Vec<usize> {
    let mut times = vec![1; calls.len()];
    for call in calls {
        if let CallState::Same(first) = call.state {
            times[first] += 1;
        }
    }
    times
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

/// Whether requests come with the schemas that modified arguments must fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parameters {
    Given,
    LeftOut,
}

impl Run {
    pub(crate) fn asker(&self) -> Asker {
        self.asker_of(self.request_scope())
    }

    /// The same under the key prefix that a recorded decision was given under.
    pub(crate) fn asker_of(&self, scope: Option<&str>) -> Asker {
        Asker { run: Arc::clone(&self.id), step: self.tally.steps, scope: scope.map(Arc::from) }
    }

    /// What tells the requests of this run from those of others who go on with the same record: its prefix of
    /// idempotency keys. None where that is the run's id, and for a run inside of another, which tells its own apart.
    pub(crate) fn request_scope(&self) -> Option<&str> {
        (!self.is_inner && self.key_prefix != self.id).then_some(&*self.key_prefix)
    }

    /// The requests that somebody has to decide about: calls, and questions of nodes.
    pub fn pending(&self) -> Vec<ApprovalRequest> {
        self.requests(Parameters::LeftOut)
    }

    /// The requests that somebody has to decide about, for whoever knows the tools or for whoever does not.
    pub(crate) fn requests(&self, parameters: Parameters) -> Vec<ApprovalRequest> {
        match &self.phase {
            Phase::Calling(batch) => self.requests_of_calls(batch, parameters),
            Phase::Walking(walk) => walk::pending(walk, &self.asker(), parameters),
            _ => Vec::new(),
        }
    }

    fn requests_of_calls(&self, batch: &Batch, parameters: Parameters) -> Vec<ApprovalRequest> {
        let (asker, times) = (self.asker(), times_asked(&batch.calls));
        let known = |tool: &str| match parameters {
            Parameters::Given => Some(self.tools()?.get(tool)?.parameters().clone()),
            Parameters::LeftOut => None,
        };
        let mut pending = Vec::new();
        for (place, (call, tool_call)) in batch.calls.iter().zip(self.calls()).enumerate() {
            match &call.state {
                CallState::Asking(reason) => {
                    let as_run = call.as_run(tool_call);
                    pending.push(ApprovalRequest {
                        id: asker.id(place, call, (*reason, times[place]), &as_run),
                        call: as_run,
                        reason: *reason,
                        times: times[place],
                        parameters: known(&tool_call.name),
                    });
                }
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
        if !request.can_modify() {
            return Err(fault("nothing of it can be modified; approve or reject".to_owned()));
        }
        if request.reason == AskReason::MayHaveHappened && self.is_own_branch(&request.id) {
            return Err(fault("a node runs again as it is, or not; approve or reject".to_owned()));
        }
        if let Some(parameters) = &request.parameters {
            return fits(parameters, arguments).map_err(|faults| fault(faults.to_string()));
        }
        // Without the tools of the step, they are checked before the call runs.
        let (true, Some(tools)) = (self.is_own_call(&request.id), self.tools()) else { return Ok(()) };
        let tool = tools.get(&request.call.name);
        let tool = tool.ok_or_else(|| fault(format!("unknown tool `{}`", request.call.name)))?;
        tool.check_arguments(arguments).map_err(|faults| fault(faults.to_string()))
    }

    /// Whether a request is about a call of the run itself, not about something inside of it.
    fn is_own_call(&self, id: &str) -> bool {
        let Phase::Calling(batch) = &self.phase else { return false };
        let decided = [(id.to_owned(), Decision::Approve)];
        self.asker().decided(&batch.calls, self.calls(), &decided).iter().any(Option::is_some)
    }

    /// Decisions are all taken or none: a faulty one among them must not hide behind the others.
    pub(super) fn decided(
        &self,
        batch: &Batch,
        decisions: Decisions,
        elapsed: Duration,
    ) -> Result<Event, FeedError> {
        self.check_not_repeated(&decisions)?;
        let given = decisions.decisions.clone();
        let decided = self.asker().decided(&batch.calls, self.calls(), &given);
        let mut event = self.decided_event(decisions, elapsed);
        self.closing_if_done(&mut event, batch, |place, tool_call| {
            decided_outcome(&batch.calls[place], tool_call, (*decided.get(place)?)?)
        });
        Ok(event)
    }

    pub(super) fn decided_event(&self, decisions: Decisions, elapsed: Duration) -> Event {
        let Decisions { decisions, by, idempotency_key } = decisions;
        let key_prefix = self.request_scope().map(str::to_owned);
        let kind = EventKind::Decided { decisions, by, idempotency_key, key_prefix };
        Event::new(self.tally.steps, elapsed, kind)
    }

    /// For a commit: a repeat is none.
    pub(super) fn check_not_repeated(&self, decisions: &Decisions) -> Result<(), FeedError> {
        self.check_decisions(decisions)?;
        Ok(self.check_new(&decisions.decisions)?)
    }

    /// Keeps what was decided, so that a second decision is known as such.
    pub(super) fn note_decisions(&mut self, kind: &EventKind) {
        let EventKind::Decided { decisions, by, idempotency_key, .. } = kind else { return };
        for (id, decision) in decisions {
            let (decision, by, idempotency_key) = (decision.clone(), by.clone(), idempotency_key.clone());
            self.decided.insert(id.clone(), Settled { decision, by, idempotency_key });
        }
    }
}

/// Checks arguments against the schema of a tool that is not at hand. As in a call, null stands for what is left out.
fn fits(parameters: &Value, arguments: &Map<String, Value>) -> Result<(), Faults> {
    let Ok(parameters) = ValueType::of_schema(parameters.clone()) else { return Ok(()) };
    let checked = parameters.check(&Value::Object(arguments.clone()));
    let given = arguments.iter().filter(|(_, value)| !value.is_null());
    let given = given.map(|(name, value)| (name.clone(), value.clone())).collect();
    checked.or_else(|faults| parameters.check(&Value::Object(given)).map_err(|_| faults))
}

impl Suspended {
    pub(crate) fn open(&self) -> impl Iterator<Item = &ApprovalRequest> {
        let is_decided = |id: &str| self.decisions.iter().any(|(decided, _)| decided == id);
        self.requests.iter().filter(move |request| !is_decided(&request.id))
    }
}
