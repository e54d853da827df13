//! An item of the open step, for its executor.

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Map, Value, json};
use stepfold_state_core::chat::{Arguments, ToolCall};
use stepfold_state_core::state::State;
use stepfold_tools::{InputRequest, Invocation, InvokeOptions, key_of_call};

use super::machine::Run;
use super::step::StepItem;
use crate::approval::{ApprovalRequest, AskReason, Decision, RequestSubject, path_of_call, whole_micros};
use crate::planned::{OpenBranch, PlannedBranch};

/// An item of the open step of a run: a call, or a branch.
#[derive(Clone, Copy)]
pub(crate) struct StepTask<'a> {
    pub(crate) run: &'a Run,
    pub(crate) place: usize,
    pub(super) item: &'a StepItem,
}

impl<'a> StepTask<'a> {
    pub(super) const fn new(run: &'a Run, place: usize, item: &'a StepItem) -> Self {
        StepTask { run, place, item }
    }

    /// The branch, if it is one.
    pub(crate) fn planned(&self) -> Option<&'a PlannedBranch> {
        self.item.planned.as_ref()
    }

    /// The call as it runs; of a branch, what a request about it shows.
    pub(crate) fn call(&self) -> ToolCall {
        self.run.shown(self.place)
    }

    /// The name of the item within its step: the id of the call, or the node.
    pub(crate) fn label(&self) -> String {
        match &self.item.planned {
            None => self.run.call_at(self.place).map(|call| call.id.clone()).unwrap_or_default(),
            Some(planned) => planned.label(self.place),
        }
    }

    /// The tool, or the node.
    pub(crate) fn name(&self) -> &'a str {
        match &self.item.planned {
            None => self.run.call_at(self.place).map(|call| call.name.as_str()).unwrap_or_default(),
            Some(planned) => &planned.node,
        }
    }

    /// The beginning of the idempotency keys of the item, or of the run inside of it.
    pub(crate) fn key(&self) -> String {
        self.under(self.run.key_prefix())
    }

    /// The id of the run inside of it: the same for all who continue with the record.
    pub(super) fn inner_id(&self) -> String {
        self.under(self.run.id())
    }

    fn under(&self, prefix: &str) -> String {
        // NOTE: Derived from the place in the record, so that a second process makes the same key for the same work.
        let scope = format!("{prefix}/{}", self.run.steps());
        match &self.item.planned {
            None => format!("{}/run", key_of_call(&scope, &self.label())),
            Some(_) => format!("{scope}/{}", self.place),
        }
    }

    /// The number of the superstep, among those in which the node has branches, from 1.
    pub(crate) fn execution(&self) -> u64 {
        self.planned().map_or(0, |planned| self.run.execution(&planned.node))
    }

    /// The state that it sees: that of before the step, with the writes of the calls that it comes after.
    pub(crate) fn state(&self) -> State {
        let reads = self.run.tool(self.name()).is_some_and(|tool| tool.reads().next().is_some());
        let calls = (self.planned().is_none() && reads).then(|| self.run.calls_in_order()).flatten();
        calls.map_or_else(|| self.run.state().clone(), |calls| calls.state_seen_by(self.place))
    }

    /// The decisions, by the ids within the item, as they were given.
    pub(crate) fn decisions(&self) -> Vec<(String, Decision)> {
        self.item.given_decisions()
    }

    /// The requests of a tool that asks the user, under ids within the item.
    pub(crate) fn requests(&self, asked: Vec<InputRequest>, now: SystemTime) -> Vec<ApprovalRequest> {
        asked.into_iter().map(|asked| self.request(asked, now)).collect()
    }

    fn request(&self, asked: InputRequest, now: SystemTime) -> ApprovalRequest {
        let name = self.name();
        let reason = if asked.later.is_some() { AskReason::Later } else { AskReason::Input };
        let subject = RequestSubject {
            run: &self.run.id,
            step: self.run.steps(),
            place: self.place,
            round: 0,
            reason,
            name,
            times: 1,
            inputs: &[],
        };
        let InputRequest { label, message, details, schema, state, later, .. } = asked;
        let id = subject.id_about(&path_of_call(&label), &json!([message, details, schema]));
        let call = ToolCall::new(label, name, Arguments::from(details));
        let request = ApprovalRequest::new(id, call, reason);
        let deadline = later.as_ref().and_then(|later| later.deadline?.resolve(now)).map(whole_micros);
        let token = later.map(|later| later.token);
        ApprovalRequest { message: Some(message), parameters: schema, state, token, deadline, ..request }
    }

    /// The requests of a branch as they are asked in another round: under other ids, except for those that are decided.
    pub(super) fn requests_in_round(&self, round: u32) -> Vec<ApprovalRequest> {
        let is_decided = |id: &str| self.item.decisions.iter().any(|(decided, _)| decided == id);
        let requests = self.item.asked.iter().cloned().map(|request| {
            if request.reason != AskReason::Node || is_decided(&request.id) {
                return request;
            }
            let (run, step) = (&*self.run.id, self.run.steps());
            let subject = RequestSubject::of_node(run, step, (self.place, self.name()), round);
            let arguments = &request.call.arguments;
            let about = match arguments.as_object() {
                Some(fields) => Value::Object(fields.clone()),
                None => serde_json::from_str(&arguments.to_text()).unwrap_or_default(),
            };
            let id = subject.id_about(&request.call.id, &about);
            ApprovalRequest { id, is_asked_again: round > 0, ..request }
        });
        requests.collect()
    }

    /// The item as an open branch, for the function of a node or the agent inside. The item of a call are its arguments.
    pub(crate) fn branch(&self) -> OpenBranch {
        let planned = self.planned().cloned().unwrap_or_else(|| {
            let call = self.run.call_at(self.place).map(|call| self.item.as_executed(call));
            let ToolCall { name, arguments, .. } = call.unwrap_or_else(|| self.call());
            PlannedBranch::new(name, arguments.as_object().cloned().map(Value::Object))
        });
        OpenBranch {
            place: self.place,
            planned,
            execution: self.execution(),
            key: self.key(),
            state: self.state(),
            resources: self.run.agent().config().resources.clone(),
            decisions: self.decisions(),
            run: Arc::clone(&self.run.id),
            step: self.run.steps(),
            round: self.item.round,
        }
    }
}

impl Run {
    /// The calls of the open step, of which none is run here: they know whose writes each of them sees. None without the
    /// tools of the step.
    pub(super) fn calls_in_order(&self) -> Option<Invocation> {
        let (calls, finished) = (self.calls_as_run(), self.finished_calls());
        let (tools, state) = (self.tools()?, self.state().clone());
        Some(Invocation::resume(tools, state, calls, finished, InvokeOptions::default()))
    }
}

impl PlannedBranch {
    /// The branch as a call of its node about its item.
    pub(super) fn as_call(&self, place: usize) -> ToolCall {
        let about = match &self.item {
            Some(Value::Object(item)) => item.clone(),
            Some(item) => Map::from_iter([("item".to_owned(), item.clone())]),
            None => Map::new(),
        };
        ToolCall::new(self.label(place), &*self.node, Arguments::from(Value::Object(about)))
    }
}
