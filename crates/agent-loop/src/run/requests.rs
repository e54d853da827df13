//! Requests for decisions: their ids and checks.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value};
use stepfold_state_core::chat::ToolCall;
use stepfold_state_core::json_schema::ValueType;
use stepfold_state_core::state::Issues;
use stepfold_tools::{CallFailure, CallOutcome, CallStatus};

use super::event::{Event, EventKind};
use super::machine::{Phase, Run};
use super::work::{Item, ItemState, Items, Work, WorkOutcome};
use crate::approval::{
    ApprovalRequest, AskReason, Decision, Subject, id_within, nested_path, path_of_call, rejection,
};
use crate::decisions::{DecisionError, Decisions, Settled};
use crate::error::FeedError;

/// Whose requests are named: a run at a step.
#[derive(Clone, Debug)]
pub(crate) struct Asker {
    run: Arc<str>,
    step: u64,
    /// Distinguishes the requests of different continuations of the run.
    scope: Option<Arc<str>>,
}

impl Asker {
    /// What tells requests about the item at a place.
    fn subject<'a>(&'a self, place: usize, round: u32, reason: AskReason, name: &'a str) -> Subject<'a> {
        Subject { run: &self.run, step: self.step, place, round, reason, name, times: 1, inputs: &[] }
    }

    /// The id of a request as it is known outside of the run.
    fn outer(&self, id: String) -> String {
        match &self.scope {
            None => id,
            Some(scope) => id_within(scope, &id),
        }
    }

    /// The id of the request about an item, and about those that are decided with it. The call is as it is shown.
    fn id(&self, place: usize, item: &Item, asked: (AskReason, usize), call: &ToolCall) -> String {
        let (reason, times) = asked;
        let subject = self.subject(place, item.round, reason, &call.name);
        let subject = Subject { times, inputs: &item.inputs, ..subject };
        self.outer(subject.id(&path_of(item, &call.id), &call.arguments))
    }

    /// The id of a request of what is inside of an item.
    fn id_inside(&self, item: &Item, label: &str, inner: &str) -> String {
        self.outer(nested_path(&path_of(item, label), inner))
    }

    /// The decision that each item has, if it waits for one itself: equal calls that are asked about once have the same.
    pub(super) fn decided<'d>(
        &self,
        items: &Items,
        shown: impl Fn(usize) -> ToolCall,
        decisions: &'d [(String, Decision)],
    ) -> Vec<Option<&'d Decision>> {
        if !items.are_asked_about() {
            return vec![None; items.len()];
        }
        let times = times_asked(items);
        let mut decided: Vec<Option<&Decision>> = Vec::with_capacity(items.len());
        for (place, item) in items.iter().enumerate() {
            let decision = match item.state {
                ItemState::Asking(reason) => {
                    let id = self.id(place, item, (reason, times[place]), &shown(place));
                    given(decisions, &id)
                }
                // The call that it is decided with comes before it.
                ItemState::Same(first) => decided.get(first).copied().flatten(),
                _ => None,
            };
            decided.push(decision);
        }
        decided
    }

    /// The decisions about what is asked within an item, by the ids there.
    pub(super) fn decided_inside(
        &self,
        item: &Item,
        label: &str,
        decisions: &[(String, Decision)],
    ) -> Vec<(String, Decision)> {
        let inner = item.open_requests().into_iter().filter_map(|request| {
            let decision = given(decisions, &self.id_inside(item, label, &request.id))?;
            Some((request.id, decision.clone()))
        });
        inner.collect()
    }
}

/// What the ids of requests about an item begin with.
fn path_of(item: &Item, label: &str) -> String {
    match &item.planned {
        None => path_of_call(label),
        Some(_) => label.to_owned(),
    }
}

fn given<'d>(decisions: &'d [(String, Decision)], id: &str) -> Option<&'d Decision> {
    decisions.iter().find(|(decided, _)| decided == id).map(|(_, decision)| decision)
}

/// The number of calls that a decision about each item holds for.
fn times_asked(items: &[Item]) -> Vec<usize> {
    let mut times = vec![1; items.len()];
    for item in items {
        if let ItemState::Same(first) = item.state {
            times[first] += 1;
        }
    }
    times
}

/// The outcome that a decision gives an item at once: if it was rejected.
pub(super) fn decided_outcome(item: &Item, call: &ToolCall, decision: &Decision) -> Option<WorkOutcome> {
    let Decision::Reject { reason } = decision else { return None };
    match item.asks()? {
        AskReason::Rule => {
            let text = rejection(&call.name, reason);
            Some(CallOutcome::without_result(call, CallStatus::Failed(CallFailure::Rejected), text).into())
        }
        _ => Some(WorkOutcome::unknown(item.planned.as_ref(), call)),
    }
}

impl Run {
    pub(crate) fn asker(&self) -> Asker {
        self.asker_of(self.request_scope())
    }

    /// The same under the key prefix that a recorded decision was given under.
    pub(crate) fn asker_of(&self, scope: Option<&str>) -> Asker {
        Asker { run: Arc::clone(&self.id), step: self.tally.steps, scope: scope.map(Arc::from) }
    }

    /// What tells the requests of this run from those of others who continue with the same record: its prefix of
    /// idempotency keys. None where that is the run's id, and for a run inside of another, which tells its own apart.
    pub(crate) fn request_scope(&self) -> Option<&str> {
        (self.depth == 0 && self.key_prefix != self.id).then_some(&*self.key_prefix)
    }

    /// The pending requests: for calls, and of nodes.
    pub fn pending(&self) -> Vec<ApprovalRequest> {
        let Phase::Working(work) = &self.phase else { return Vec::new() };
        if !work.items.wait() {
            return Vec::new();
        }
        let (asker, times) = (self.asker(), times_asked(&work.items));
        let mut pending = Vec::new();
        for (place, item) in work.items.iter().enumerate().filter(|(_, item)| item.waits()) {
            let Some(task) = self.task(place) else { continue };
            match item.state {
                ItemState::Asking(reason) => {
                    let (call, times) = (task.call(), times[place]);
                    let id = asker.id(place, item, (reason, times), &call);
                    let inputs_from_state = item.inputs.clone();
                    let request = ApprovalRequest::new(id, call, reason);
                    pending.push(ApprovalRequest { inputs_from_state, times, ..request });
                }
                ItemState::Same(_) => {}
                _ => {
                    let label = task.label();
                    pending.extend(item.open_requests().into_iter().map(|request| {
                        let id = asker.id_inside(item, &label, &request.id);
                        ApprovalRequest { id, ..request }
                    }));
                }
            }
        }
        pending
    }

    /// The first deadline of what [comes later](crate::AskReason::Later), here and in the runs inside, if there is any.
    pub fn next_deadline(&self) -> Option<SystemTime> {
        let Phase::Working(work) = &self.phase else { return None };
        if !work.items.wait() {
            return None;
        }
        work.items.iter().filter(|item| item.waits()).filter_map(Item::next_deadline).min()
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
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_tools::{Approval, Tool, ToolError};
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
            if !decision.is_for(request.reason) {
                return Err(unfit(request, decision));
            }
            match decision {
                Decision::Complete { outcome } => check_outcome(request, outcome)?,
                Decision::Modify { arguments } => self.check_modified(request, arguments)?,
                // It is an answer with nothing in it.
                Decision::Approve if request.reason == AskReason::Input && request.can_modify() => {
                    self.check_modified(request, &Value::Object(Map::new()))?;
                }
                _ => {}
            }
        }
        self.check_inside(decisions)
    }

    fn not_pending(&self, id: &str, pending: &[ApprovalRequest]) -> DecisionError {
        let id = id.to_owned();
        if let Some(Settled { decision, by, .. }) = self.decided.get(&id) {
            return DecisionError::AlreadyDecided {
                id,
                decision: Box::new(decision.clone()),
                by: by.clone(),
            };
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
        let is_own = self.is_own_request(&request.id);
        if is_own && self.walk().is_some() {
            return Err(fault("a node runs again as it is, or not; approve or reject".to_owned()));
        }
        if let Some(parameters) = &request.parameters {
            return fits(parameters, arguments).map_err(|faults| fault(faults.to_string()));
        }
        // What is inside checks its own. Without the tools of the step, they are checked before the call runs.
        let (true, Some(tools)) = (is_own, self.tools()) else { return Ok(()) };
        let tool = tools.get(&request.call.name);
        let tool = tool.ok_or_else(|| fault(format!("unknown tool `{}`", request.call.name)))?;
        tool.check_arguments(arguments).map_err(|faults| fault(faults.to_string()))
    }

    /// Whether a request is about an item of the run itself, not about something inside of one.
    fn is_own_request(&self, id: &str) -> bool {
        let Phase::Working(work) = &self.phase else { return false };
        let decided = [(id.to_owned(), Decision::Approve)];
        self.asker().decided(&work.items, |place| self.shown(place), &decided).iter().any(Option::is_some)
    }

    /// Whether the runs inside would take the decisions about their requests.
    fn check_inside(&self, decisions: &[(String, Decision)]) -> Result<(), DecisionError> {
        let Phase::Working(work) = &self.phase else { return Ok(()) };
        let asker = self.asker();
        for (place, item) in work.items.iter().enumerate() {
            let (Some(child), Some(task)) = (item.child(), self.task(place)) else { continue };
            let label = task.label();
            let inner = asker.decided_inside(item, &label, decisions);
            let outer = |id: &str| asker.id_inside(item, &label, id);
            child.check_decisions(&inner.into()).map_err(|error| error.renamed(outer))?;
        }
        Ok(())
    }

    /// Decisions are all taken or none: a faulty one among them must not hide behind the others.
    pub(super) fn decided(
        &self,
        work: &Work,
        decisions: Decisions,
        elapsed: Duration,
    ) -> Result<Event, FeedError> {
        self.check_decisions(&decisions)?;
        // A repeat does not count as a commit.
        self.check_new(&decisions.decisions)?;
        let Decisions { decisions, by, idempotency_key } = decisions;
        let given = decisions.clone();
        let decided = self.asker().decided(&work.items, |place| self.shown(place), &given);
        let key_prefix = self.request_scope().map(str::to_owned);
        let kind = EventKind::Decided { decisions, by, idempotency_key, key_prefix };
        let mut event = Event::new(self.tally.steps, elapsed, kind);
        self.close_if_done(&mut event, work, |place, item| {
            let decision = (*decided.get(place)?)?;
            decided_outcome(item, &self.shown(place), decision)
        })?;
        Ok(event)
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

/// Whether an outcome that came later fits the schema that the tool gave.
fn check_outcome(request: &ApprovalRequest, outcome: &Value) -> Result<(), DecisionError> {
    let Some(Ok(schema)) = request.schema().map(|schema| ValueType::of_schema(schema.clone())) else {
        return Ok(());
    };
    schema.check(outcome).map_err(|faults| DecisionError::InvalidArguments {
        id: request.id.clone(),
        faults: faults.to_string(),
    })
}

fn unfit(request: &ApprovalRequest, decision: &Decision) -> DecisionError {
    let expected = match request.reason {
        AskReason::Later => "an outcome: it is completed, rejected or expired",
        _ => "an approval, a rejection or a modification",
    };
    let faults = format!("expected {expected}; found {}", decision.verb());
    DecisionError::InvalidArguments { id: request.id.clone(), faults }
}

/// Checks arguments against the schema that a node has given. As in a call, null stands for what is left out.
fn fits(parameters: &Value, arguments: &Map<String, Value>) -> Result<(), Issues> {
    let Ok(parameters) = ValueType::of_schema(parameters.clone()) else { return Ok(()) };
    let checked = parameters.check(&Value::Object(arguments.clone()));
    let given = arguments.iter().filter(|(_, value)| !value.is_null());
    let given = given.map(|(name, value)| (name.clone(), value.clone())).collect();
    checked.or_else(|faults| parameters.check(&Value::Object(given)).map_err(|_| faults))
}
