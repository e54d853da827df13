//! An agent as a tool of another one.
//!
//! What would surprise a reader: the inner run is no part of the outer record until its call has an outcome,
//! or waits for somebody. Then it is stored inside the outer run, and the decisions that somebody makes about
//! the outer run reach it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stepfold_state_core::chat::{Role, Usage};
use stepfold_state_core::state::{Delta, Write};
use stepfold_tools::{BuildError, Effect, RawArgs, Resources, Tool, ToolContext, ToolError};

use crate::agent::{Agent, RunLimits};
use crate::approval::{ApprovalRequest, Decision};
use crate::error::RunError;
use crate::observe::{Observer, ObserverError, RunEvent};
use crate::outcome::Outcome;
use crate::run::{Exit, Input, Parameters, Run};

/// Agents inside agents inside agents: no deeper than this.
const MAX_NESTING: usize = 16;
/// How long an inner run may take if nobody says.
const TIME_OUT: Duration = Duration::from_secs(3600);

/// An agent that another agent can call.
///
/// The model gives a task in words and reads the agent's answer. The inner agent has a state of its own;
/// [shared](AgentTool::share) keys begin with the outer state's values, and what the inner run writes to them
/// is written to the outer state, by the same handlers, at the end of the step. Tokens add up; the outer run's
/// limits bound the inner one; when somebody has to decide about an inner call, the outer run pauses.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// # use stepfold_agent_loop::test_kit::Script;
/// use stepfold_agent_loop::Agent;
///
/// let counter = Agent::builder(Script::parse("assistant: 12 stalls")?).build()?;
/// let count = counter.as_tool("count", "Counts the stalls of an area.").build()?;
///
/// # let model = Script::parse("assistant: > c1 count(task=\"area 3\")\nassistant: Area 3 has 12 stalls.")?;
/// let agent = Agent::builder(model).tools([count]).build()?;
/// let outcome = agent.run("how many stalls has area 3?").await?;
/// assert_eq!(outcome.transcript().to_string(), "\
/// user:      how many stalls has area 3?
/// assistant: > c1 count(task=\"area 3\")
/// tool c1:   12 stalls
/// assistant: Area 3 has 12 stalls.
/// ");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[must_use = "a builder does nothing until it is built"]
#[derive(Debug)]
pub struct AgentTool {
    agent: Agent,
    name: String,
    description: String,
    shared: Vec<String>,
    effect: Effect,
}

impl Agent {
    /// The agent as a tool of another one, which the model calls by `name`.
    pub fn as_tool(&self, name: impl Into<String>, description: impl Into<String>) -> AgentTool {
        AgentTool {
            agent: self.clone(),
            name: name.into(),
            description: description.into(),
            shared: Vec::new(),
            effect: Effect::AtMostOnce,
        }
    }
}

impl AgentTool {
    /// Shares these keys of the state; both schemas have to declare them alike.
    pub fn share<K: Into<String>>(mut self, keys: impl IntoIterator<Item = K>) -> Self {
        self.shared.extend(keys.into_iter().map(Into::into));
        self
    }

    /// What a call may do to the world: what the inner agent's tools may, at most once unless said.
    pub fn effect(mut self, effect: Effect) -> Self {
        self.effect = effect;
        self
    }

    /// Builds the tool.
    ///
    /// # Errors
    /// [`BuildError`] as for any tool, and when the inner agent does not declare a shared key.
    pub fn build(self) -> Result<Tool, BuildError> {
        let AgentTool { agent, name, description, shared, effect } = self;
        let unknown = shared.iter().filter(|key| !agent.schema().declares(key) && !agent.schema().is_open());
        let faults: Vec<_> = unknown
            .map(|key| {
                let words = format!("is shared, but agent '{}' does not declare it", agent.name());
                stepfold_state_core::state::Fault::new(format!("state key \"{key}\""), words)
            })
            .collect();
        if !faults.is_empty() {
            return Err(BuildError::InvalidTool { tool: name, faults: faults.into_iter().collect() });
        }
        let time_out = agent.limits().time.unwrap_or(TIME_OUT);
        let keys: Arc<[String]> = shared.clone().into();
        let function = move |context: ToolContext, RawArgs(arguments): RawArgs| {
            call(agent.clone(), Arc::clone(&keys), context, arguments)
        };
        Tool::new(name, description, function)
            .parameters(json!({
                "type": "object",
                "properties": {
                    "task": {
                        "type": "string",
                        "description": "What is to be done, with everything that has to be known for it.",
                    },
                },
                "required": ["task"],
            }))
            .reads(shared.clone())
            .writes(shared)
            .effect(effect)
            .time_out(time_out)
            .build()
    }
}

/// What the outer run gives to the agents among its tools, and what it gets back.
#[derive(Default)]
pub(super) struct Scope {
    /// How many runs this one is inside of.
    depth: usize,
    open: Mutex<OpenStep>,
}

/// The same for the open step.
#[derive(Default)]
struct OpenStep {
    /// What is left of the outer run's limits.
    limits: RunLimits,
    /// By call id: the inner runs that waited, and what was decided.
    resumed: HashMap<String, (Value, Vec<(String, Decision)>)>,
    back: HashMap<String, Nested>,
}

/// What comes back from an inner run, beside the result.
pub(super) enum Nested {
    /// It cost this.
    Used(Usage),
    /// It waits.
    Suspended { child: Value, requests: Vec<ApprovalRequest> },
}

/// An inner run that waits, and what it has written to shared keys until now.
#[derive(Serialize, Deserialize)]
struct StoredChild {
    run: Value,
    #[serde(default)]
    writes: Delta,
}

impl Scope {
    /// The scope of a run; it goes to the tools among the resources.
    pub(super) fn of(run: &Run) -> (Arc<Self>, Resources) {
        let resources = &run.agent().config().resources;
        let depth = resources.get::<Arc<Scope>>().map_or(0, |outer| outer.depth + 1);
        let scope = Arc::new(Scope { depth, ..Scope::default() });
        (Arc::clone(&scope), resources.clone().with(scope))
    }

    /// A step begins.
    pub(super) fn open(&self, run: &Run, elapsed: Duration) {
        let mut open = self.lock();
        open.limits = left(run, elapsed);
        open.back.clear();
        let resumed = run
            .suspended_calls()
            .map(|(id, suspended)| (id.to_owned(), (suspended.child.clone(), suspended.decisions.clone())));
        open.resumed = resumed.collect();
    }

    pub(super) fn take(&self, call_id: &str) -> Option<Nested> {
        self.lock().back.remove(call_id)
    }

    fn give(&self, call_id: &str, nested: Nested) {
        self.lock().back.insert(call_id.to_owned(), nested);
    }

    fn limits(&self) -> RunLimits {
        self.lock().limits.clone()
    }

    fn resumed(&self, call_id: &str) -> Option<(Value, Vec<(String, Decision)>)> {
        self.lock().resumed.get(call_id).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, OpenStep> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is left of a run's limits. Nothing left is one, since a limit of zero is refused: the inner run ends
/// after its first step.
fn left(run: &Run, elapsed: Duration) -> RunLimits {
    let limits = run.agent().limits();
    let ran = || run.calls_by_tool().map(|(_, calls)| calls).sum::<u64>();
    RunLimits {
        steps: u64::MAX,
        calls_per_reply: usize::MAX,
        tool_calls: limits.tool_calls.map(|limit| limit.saturating_sub(ran()).max(1)),
        tokens: limits.tokens.map(|limit| limit.saturating_sub(run.usage().total_tokens()).max(1)),
        time: limits.time.map(|limit| limit.saturating_sub(elapsed).max(Duration::from_millis(1))),
        reply_bytes: limits.reply_bytes,
    }
}

/// One call of an agent.
async fn call(
    agent: Agent,
    shared: Arc<[String]>,
    context: ToolContext,
    arguments: Value,
) -> Result<Value, ToolError> {
    let scope = context.resource::<Arc<Scope>>();
    if scope.as_ref().is_some_and(|scope| scope.depth >= MAX_NESTING) {
        return Err(ToolError::permanent(format!("agents are nested deeper than {MAX_NESTING}")));
    }
    let agent = within(&agent, scope.as_deref().map(|scope| &**scope))?;
    let call_id = context.call_id();
    let resumed = scope.as_ref().and_then(|scope| scope.resumed(call_id));
    let mut watch = Watch { context: context.clone(), shared, writes: Delta::new() };
    let (run, decisions) = if let Some((child, decisions)) = resumed {
        let stored = StoredChild::deserialize(&child)?;
        watch.writes = stored.writes;
        // What is left of the outer limits has changed; else the inner agent is the one it was.
        let (run, _) = Run::load_changed(&agent, &stored.run.to_string())?;
        // It may have been stored by the session that this one was forked from.
        (run.within_run(context.key_for("run")), decisions)
    } else {
        let task = arguments.get("task").and_then(Value::as_str).unwrap_or_default();
        let input = Input::from(task).with_values(shared_values(&context, &watch.shared));
        (Run::new(&agent, input, context.key_for("run"))?.within_run(context.key_for("run")), Vec::new())
    };
    let ended = run
        .resume()
        .decide_all(decisions)
        .observe(&mut watch)
        .cancel_with(context.cancellation().clone())
        .await;
    let (outcome, error) = match ended {
        Ok(outcome) => (outcome, None),
        Err(error) => (error.outcome().clone(), Some(error)),
    };
    if *outcome.exit() == Exit::Paused(crate::run::Pause::Approval)
        && let Some(scope) = &scope
    {
        return suspend(scope, call_id, &outcome, watch.writes);
    }
    if let Some(scope) = &scope {
        scope.give(call_id, Nested::Used(outcome.usage()));
    }
    answer(&outcome, error, &context, &watch.writes)
}

/// The agent within what is left of the outer run's limits.
fn within(agent: &Agent, scope: Option<&Scope>) -> Result<Agent, ToolError> {
    let Some(scope) = scope else { return Ok(agent.clone()) };
    let limits = agent.limits().clone().within(&scope.limits());
    let is_same = limits == *agent.limits();
    let outer = Arc::new(Scope { depth: scope.depth, ..Scope::default() });
    let resources = agent.config().resources.clone().with(outer);
    let builder = agent.to_builder().resources(resources);
    Ok(if is_same { builder.build()? } else { builder.limits(limits).build()? })
}

fn shared_values(context: &ToolContext, shared: &[String]) -> Value {
    let values =
        shared.iter().filter_map(|key| Some((key.clone(), context.state().get(key.as_str())?.to_json())));
    Value::Object(values.collect())
}

fn suspend(scope: &Scope, call_id: &str, outcome: &Outcome, writes: Delta) -> Result<Value, ToolError> {
    let stored = StoredChild { run: serde_json::to_value(outcome.run())?, writes };
    let requests = outcome.run().requests(Parameters::Given);
    scope.give(call_id, Nested::Suspended { child: serde_json::to_value(stored)?, requests });
    Err(ToolError::permanent("the agent waits for a decision"))
}

fn answer(
    outcome: &Outcome,
    error: Option<RunError>,
    context: &ToolContext,
    writes: &Delta,
) -> Result<Value, ToolError> {
    if let Some(error) = error {
        return Err(ToolError::from(error).into_permanent());
    }
    for write in writes {
        if let (Some(value), Some(handler)) = (write.value(), write.handler()) {
            context.writer().set_with(write.key(), value.clone(), handler)?;
        }
    }
    if let Some(output) = outcome.run().output() {
        return Ok(output.clone());
    }
    let said =
        outcome.transcript().last().filter(|message| matches!(message.role(), Role::Assistant | Role::Tool));
    let last = said.map(|message| match message.tool_result() {
        Some(result) => result.text().into_owned(),
        None => message.text().into_owned(),
    });
    let words = last.unwrap_or_default();
    match outcome.exit() {
        Exit::Text | Exit::Tool(_) | Exit::NoTools | Exit::Hook(_) | Exit::End => Ok(words.into()),
        exit => Err(ToolError::permanent(match words.trim() {
            "" => format!("the agent did not finish: {exit}"),
            words => format!("the agent did not finish: {exit}. Its last words: {words}"),
        })),
    }
}

/// Reports what the inner run does, and keeps what it writes to shared keys.
struct Watch {
    context: ToolContext,
    shared: Arc<[String]>,
    writes: Delta,
}

impl Observer for Watch {
    async fn observe(&mut self, event: &RunEvent) -> Result<(), ObserverError> {
        if let RunEvent::Committed(event) = event {
            let is_shared = |write: &&Write| self.shared.iter().any(|key| key == write.key());
            let writes: Vec<Write> = event.delta.iter().filter(is_shared).cloned().collect();
            self.writes.extend(writes);
        }
        self.context.report(serde_json::to_value(event)?);
        Ok(())
    }
}
