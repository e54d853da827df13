//! Requests for decisions: their ids and checks.

use std::collections::BTreeSet;
use std::time::SystemTime;

use serde_json::{Map, Value};
use stepfold_state_core::json_schema::ValueType;
use stepfold_state_core::state::Issues;

use super::event::EventKind;
use super::machine::Run;
use super::step::{ItemCondition, ItemState, StepItem};
use crate::approval::{
    ApprovalRequest, AskReason, Decision, RequestSubject, id_within, nested_path, path_of_call,
};
use crate::decisions::{DecisionError, Decisions, SettledDecision};
use crate::error::FeedError;

/// A request that waits for its decision.
struct PendingRequest {
    /// The item that it is about.
    place: usize,
    /// Its id inside of the item, if it is about something there.
    inside: Option<String>,
    request: ApprovalRequest,
}

/// A decision about an item, or about something inside of it.
pub(super) struct ItemDecision<'d> {
    pub(super) place: usize,
    /// The id of the request inside of the item.
    pub(super) inside: Option<String>,
    pub(super) decision: &'d Decision,
}

impl Run {
    /// The scope of this run's requests, which distinguishes them from those of other continuations of the same record:
    /// the prefix of idempotency keys. `None` where that is the run's id, and for a run inside of another, whose
    /// requests the outer one distinguishes.
    pub(crate) fn request_scope(&self) -> Option<&str> {
        (self.depth == 0 && self.key_prefix != self.id).then_some(&*self.key_prefix)
    }

    /// The pending requests: for calls, and of nodes.
    pub fn pending(&self) -> Vec<ApprovalRequest> {
        let scope = self.request_scope();
        let requests = self.pending_requests(scope).into_iter().map(|waiting| waiting.request);
        let Some(prefix) = scope else { return requests.collect() };
        let with_own_token = |request: ApprovalRequest| {
            let token = request.token.map(|token| token_under(prefix, token));
            ApprovalRequest { token, ..request }
        };
        requests.map(with_own_token).collect()
    }

    /// The places of the items with a request that has one of these decisions.
    pub(super) fn decided_items(&self, decisions: &[(String, Decision)]) -> BTreeSet<usize> {
        if decisions.is_empty() {
            return BTreeSet::new();
        }
        let requests = self.pending_requests(self.request_scope()).into_iter();
        let is_decided = |id: &str| decisions.iter().any(|(decided, _)| decided == id);
        requests.filter(|waiting| is_decided(&waiting.request.id)).map(|waiting| waiting.place).collect()
    }

    /// The requests that wait for a decision, in the order of the items, with their ids under a prefix of keys.
    fn pending_requests(&self, scope: Option<&str>) -> Vec<PendingRequest> {
        let Some(step) = self.open_step().filter(|step| step.items.any(ItemCondition::Waiting)) else {
            return Vec::new();
        };
        // The number of calls that a decision about each item holds for.
        let mut times = vec![1; step.items.len()];
        for item in step.items.iter() {
            if let ItemState::Same(first) = item.state {
                times[first] += 1;
            }
        }
        let mut all = Vec::new();
        for (place, item) in step.items.iter().enumerate().filter(|(_, item)| item.waits()) {
            match item.state {
                ItemState::Asking(reason) => {
                    let (call, times) = (step.shown(place), times[place]);
                    let (run, step, round) = (&*self.id, self.tally.steps, item.round);
                    let (name, inputs) = (&*call.name, &*item.inputs);
                    let subject = RequestSubject { run, step, place, round, reason, name, times, inputs };
                    // NOTE: A digest of the content and the place: an id is never used again for anything else, so a
                    // decision approves what was shown and nothing else. See docs/decisions/loop.md.
                    let id = outer_id(scope, subject.id(&self.path_of(place), &call.arguments));
                    let request = ApprovalRequest {
                        inputs_from_state: item.inputs.clone(),
                        times,
                        is_redacted: item.is_redacted,
                        is_asked_again: round > 0,
                        change: item.change.clone(),
                        is_start_uncertain: reason == AskReason::MayHaveHappened && !item.was_started(),
                        ..ApprovalRequest::new(id, call, reason)
                    };
                    all.push(PendingRequest { place, inside: None, request });
                }
                ItemState::Same(_) => {}
                _ => all.extend(item.open_requests().into_iter().map(|request| {
                    let id = self.id_inside(scope, place, &request.id);
                    PendingRequest {
                        place,
                        inside: Some(request.id),
                        request: ApprovalRequest { id, ..request },
                    }
                })),
            }
        }
        all
    }

    /// The id of a request of what is inside of an item.
    fn id_inside(&self, scope: Option<&str>, place: usize, inner: &str) -> String {
        outer_id(scope, nested_path(&self.path_of(place), inner))
    }

    /// The beginning of the ids of requests about an item.
    fn path_of(&self, place: usize) -> String {
        let task = self.task(place);
        let label = task.map(|task| task.label()).unwrap_or_default();
        match task.and_then(|task| task.planned()) {
            None => path_of_call(&label),
            Some(_) => label,
        }
    }

    /// The decisions of an event, each with its item, in the order of the items. The event is the next one.
    pub(super) fn item_decisions<'d>(&self, event: &'d EventKind) -> Vec<ItemDecision<'d>> {
        match event {
            EventKind::Decided { decisions, key_prefix, .. } => {
                self.matched_decisions(key_prefix.as_deref(), decisions)
            }
            _ => Vec::new(),
        }
    }

    fn matched_decisions<'d>(
        &self,
        scope: Option<&str>,
        decisions: &'d [(String, Decision)],
    ) -> Vec<ItemDecision<'d>> {
        let Some(step) = self.open_step() else { return Vec::new() };
        let waiting = self.pending_requests(scope).into_iter();
        let mut decided: Vec<ItemDecision<'d>> = waiting
            .filter_map(|PendingRequest { place, inside, request }| {
                Some(ItemDecision { place, inside, decision: decision_for(decisions, &request.id)? })
            })
            .collect();
        // Equal calls that are asked about once have the same decision.
        let same = step.items.iter().enumerate().filter_map(|(place, item)| {
            let ItemState::Same(first) = item.state else { return None };
            let first = decided.binary_search_by_key(&first, |decided| decided.place).ok()?;
            Some(ItemDecision { place, inside: None, decision: decided[first].decision })
        });
        let same: Vec<_> = same.collect();
        decided.extend(same);
        decided.sort_by_key(|decided| decided.place);
        decided
    }

    /// The first deadline of what [comes later](crate::AskReason::Later), here and in the runs inside, if there is any.
    pub fn next_deadline(&self) -> Option<SystemTime> {
        let step = self.open_step().filter(|step| step.items.any(ItemCondition::Waiting))?;
        let open = step.items.iter().filter(|item| item.waits()).flat_map(StepItem::open_requests);
        open.filter_map(|request| request.deadline).min()
    }

    /// Checks decisions against the pending requests, without applying them: each must be about a pending request,
    /// once, and modified arguments must fit. Decisions that the run [has](Run::has_decided) already pass as a repeat.
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
        let waiting = self.pending_requests(self.request_scope());
        // NOTE: All decisions are checked before one is taken: modified arguments that were refused later would end the
        // run for good.
        for (index, (id, decision)) in decisions.iter().enumerate() {
            let Some(found) = waiting.iter().find(|waiting| waiting.request.id == *id) else {
                return Err(self.not_pending(id, &waiting));
            };
            let request = &found.request;
            if decisions[..index].iter().any(|(earlier, _)| earlier == id) {
                return Err(DecisionError::Duplicate { id: id.clone() });
            }
            if !decision.is_for(request.reason) {
                return Err(unfit_decision(request, decision));
            }
            match decision {
                Decision::Complete { outcome } => check_outcome(request, outcome)?,
                Decision::Modify { arguments } => self.check_modified(found, arguments)?,
                // It is an answer with nothing in it.
                Decision::Approve if request.reason == AskReason::Input && request.can_modify() => {
                    self.check_modified(found, &Value::Object(Map::new()))?;
                }
                _ => {}
            }
        }
        self.check_inside(&waiting, decisions)
    }

    fn not_pending(&self, id: &str, waiting: &[PendingRequest]) -> DecisionError {
        let id = id.to_owned();
        if let Some(SettledDecision { decision, by, .. }) = self.decided.get(&id) {
            return DecisionError::AlreadyDecided {
                id,
                decision: Box::new(decision.clone()),
                by: by.clone(),
            };
        }
        let pending = waiting.iter().map(|waiting| waiting.request.id.as_str()).collect();
        DecisionError::NotPending { id, pending }
    }

    fn check_modified(&self, waiting: &PendingRequest, arguments: &Value) -> Result<(), DecisionError> {
        let (request, is_own) = (&waiting.request, waiting.inside.is_none());
        let fault = |faults| DecisionError::InvalidArguments { id: request.id.clone(), faults };
        let Value::Object(arguments) = arguments else {
            return Err(fault("expected a JSON object".to_owned()));
        };
        if !request.can_modify() {
            return Err(fault("nothing of it can be modified; approve or reject".to_owned()));
        }
        if is_own && self.walk().is_some() {
            return Err(fault("a node runs again as it is, or not; approve or reject".to_owned()));
        }
        if let Some(parameters) = &request.parameters {
            return fits(parameters, arguments).map_err(|faults| fault(faults.to_string()));
        }
        // What is inside checks its own.
        if !is_own {
            return Ok(());
        }
        let recorded = self.item(waiting.place).and_then(|item| item.parameters.as_ref());
        let checked = match (self.tool(&request.call.name), recorded) {
            (Some(tool), _) => tool.check_given(arguments),
            (None, _) if self.tools().is_some() => {
                return Err(fault(format!("unknown tool `{}`", request.call.name)));
            }
            // The tool as it was shown; a call of another one is asked about again.
            (None, Some(parameters)) => fits(parameters, arguments),
            // They are checked before the call runs.
            (None, None) => Ok(()),
        };
        checked.map_err(|faults| fault(faults.to_string()))
    }

    /// Whether other arguments for a call can be checked only by its tool as its server lists it now: the record does not have its
    /// schema.
    pub(crate) fn needs_tools_to_modify(&self, id: &str) -> bool {
        let waiting = self.pending_requests(self.request_scope()).into_iter();
        let Some(PendingRequest { place, inside, request }) =
            waiting.into_iter().find(|waiting| waiting.request.id == *id)
        else {
            return false;
        };
        if request.reason.is_of_running() || request.parameters.is_some() {
            return false;
        }
        let item = self.item(place);
        match inside {
            Some(inside) => {
                item.and_then(StepItem::child).is_none_or(|child| child.needs_tools_to_modify(&inside))
            }
            None => {
                self.walk().is_none()
                    && self.tool(&request.call.name).is_none()
                    && item.is_some_and(|item| item.parameters.is_none())
            }
        }
    }

    /// Whether the runs inside would take the decisions about their requests.
    fn check_inside(
        &self,
        waiting: &[PendingRequest],
        decisions: &[(String, Decision)],
    ) -> Result<(), DecisionError> {
        for (place, child) in self.children() {
            let of_child = waiting.iter().filter(|waiting| waiting.place == place);
            let inner = of_child.filter_map(|PendingRequest { inside, request, .. }| {
                Some((inside.clone()?, decision_for(decisions, &request.id)?.clone()))
            });
            let inner: Vec<(String, Decision)> = inner.collect();
            let outer = |id: &str| self.id_inside(self.request_scope(), place, id);
            child.check_decisions(&inner.into()).map_err(|error| error.renamed(outer))?;
        }
        Ok(())
    }

    /// The event of decisions. All are taken or none: an invalid one must not pass unnoticed among the others.
    pub(super) fn decisions(&self, decisions: Decisions) -> Result<EventKind, FeedError> {
        // NOTE: The ids of requests that are asked again count from the record of the upgrade on.
        if self.open_step().is_none() || self.upgrade.is_some() {
            return Err(self.not_needed("decided"));
        }
        match self.has_decided(&decisions) {
            // A repeat does not count as a commit.
            true => self.check_new(&decisions.decisions)?,
            false => self.check_decisions(&decisions)?,
        }
        let Decisions { decisions, by, idempotency_key } = decisions;
        // NOTE: Ids depend on the prefix, so that a decision for a fork does not count for the original; a
        // reader of the record has to know it.
        let key_prefix = self.request_scope().map(str::to_owned);
        Ok(EventKind::Decided { decisions, by, idempotency_key, key_prefix })
    }

    /// Records the decisions, so that a second decision about a request is recognised.
    pub(super) fn note_decisions(&mut self, kind: &EventKind) {
        let EventKind::Decided { decisions, by, idempotency_key, .. } = kind else { return };
        for (id, decision) in decisions {
            let (decision, by, idempotency_key) = (decision.clone(), by.clone(), idempotency_key.clone());
            self.decided.insert(id.clone(), SettledDecision { decision, by, idempotency_key });
        }
    }
}

fn decision_for<'d>(decisions: &'d [(String, Decision)], id: &str) -> Option<&'d Decision> {
    decisions.iter().find(|(decided, _)| decided == id).map(|(_, decision)| decision)
}

/// The id of a request as it is known outside of the run: the continuations of one have others.
fn outer_id(scope: Option<&str>, id: String) -> String {
    match scope {
        None => id,
        Some(scope) => id_within(scope, &id),
    }
}

/// The token of a request under this prefix of keys. A copy of the run, in another session, waits under tokens of its own:
/// whatever comes for the first run is not for the copy.
fn token_under(prefix: &str, token: String) -> String {
    let parts = prefix.split('/').count();
    let is_own = token.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'));
    match token.splitn(parts + 1, '/').nth(parts).filter(|_| !is_own) {
        Some(rest) => format!("{prefix}/{rest}"),
        None => token,
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

fn unfit_decision(request: &ApprovalRequest, decision: &Decision) -> DecisionError {
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
