//! An agent: everything that stays the same from run to run.

mod as_tool;
mod builder;
mod fingerprint;
mod first_fingerprint;
mod hooks;
mod leaked_calls;
mod limits;
mod named_keys;
mod output;
mod planner;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, OnceLock};

use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use stepfold_state_core::chat::{ChatModel, ModelParams, ToolSpec};
use stepfold_state_core::state::{Schema, Template};
use stepfold_tools::{
    Approval, CallLimits, Overflow, RECALL_READ, RefusedTool, Resources, Tool, Tools, Toolset,
};

pub use self::as_tool::AgentTool;
pub use self::builder::AgentBuilder;
pub use self::fingerprint::{AgentChange, ChangeKind, Fingerprint};
pub use self::hooks::{HookAction, HookContext, HookError, HookPoint, HookResult, HookVerdict};
pub use self::limits::{RepeatGuard, RunLimits};
pub use self::output::{OUTPUT_TOOL, Output, OutputMode};
pub use self::planner::{BranchAgent, BranchEnd, Emitter, EndedAgent, NotBegun, Planner};

pub(crate) use self::as_tool::{HostedAgent, result_of_call};
pub(crate) use self::fingerprint::{AGENT_PART, ATTEMPTS_PART, DEPENDENCIES_PART, EFFECT_PART, TOOLS_PART};
pub(crate) use self::fingerprint::{of_definition as digest_of_definition, of_offer as digest_of_offer};
pub(crate) use self::hooks::HookList;
pub(crate) use self::leaked_calls::recovered;
pub(crate) use self::output::OutputSpec;
use stepfold_trim::{Summarize, Trim, Window};

/// A model with tools, instructions, a state schema and rules for when to stop. Immutable, cheap to clone,
/// and shared by as many runs at a time as one likes.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use stepfold_agent_loop::test_kit::Script;
/// use serde_json::json;
/// use stepfold_agent_loop::{Agent, Exit, Input};
/// use stepfold_state_core::state::Schema;
/// use stepfold_tools::{Args, Tool, ToolError};
///
/// #[derive(serde::Deserialize, schemars::JsonSchema)]
/// struct Search {
///     q: String,
/// }
///
/// async fn search(Args(search): Args<Search>) -> Result<Vec<u64>, ToolError> {
///     Ok(vec![search.q.len() as u64])
/// }
///
/// # let model = Script::parse("assistant: > c1 search(q=\"stalls\")\nassistant: area 6")?;
/// let agent = Agent::builder(model)
///     .instructions("You help {user_name} with statistics.")
///     .schema(Schema::builder().key::<String>("user_name").build()?)
///     .tools([Tool::new("search", "Finds areas.", search).build()?])
///     .build()?;
///
/// let input = Input::from("which area has most stalls?").with_values(json!({"user_name": "Ada"}));
/// let outcome = agent.run(input).await?;
/// assert_eq!(outcome.exit(), &Exit::Text);
/// assert_eq!(outcome.transcript().to_string(), "\
/// user:      which area has most stalls?
/// assistant: > c1 search(q=\"stalls\")
/// tool c1:   [6]
/// assistant: area 6
/// ");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct Agent(Arc<BuiltAgent>);

/// A built agent: the result of [`AgentBuilder::build`].
struct BuiltAgent {
    config: AgentConfig,
    /// The tools of every step, if they are the same at every step.
    offer: Option<OfferedTools>,
    output: Option<OutputSpec>,
    derived: DerivedParts,
}

/// Values of an agent that are computed when they are first needed.
#[derive(Default)]
struct DerivedParts {
    fingerprint: OnceLock<Fingerprint>,
    fingerprint_json: OnceLock<Arc<RawValue>>,
    tools_digest: OnceLock<String>,
    shared_keys: OnceLock<BTreeSet<String>>,
}

/// The configuration of an agent.
#[derive(Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub(crate) struct AgentConfig {
    pub(crate) name: String,
    pub(crate) model: Arc<dyn ChatModel>,
    pub(crate) summary_model: Option<Arc<dyn ChatModel>>,
    pub(crate) model_name: Option<String>,
    pub(crate) params: ModelParams,
    pub(crate) instructions: Option<Template>,
    pub(crate) schema: Schema,
    pub(crate) toolset: Toolset,
    pub(crate) resources: Resources,
    pub(crate) tool_limits: CallLimits,
    pub(crate) overflow: Overflow,
    pub(crate) raise_on_failure: bool,
    pub(crate) exit_tools: Vec<String>,
    pub(crate) limits: RunLimits,
    pub(crate) final_answer: bool,
    pub(crate) repeat_guard: Option<RepeatGuard>,
    /// Digests of what it uses outside of this process, by name.
    pub(crate) dependencies: Option<BTreeMap<String, String>>,
    pub(crate) recover_leaked_calls: bool,
    pub(crate) hooks: HookList,
    pub(crate) approval: Approval,
    pub(crate) ask_when_uncertain: bool,
    pub(crate) trim: Trim,
    pub(crate) window: Option<Window>,
    pub(crate) summarize: Option<Summarize>,
    pub(crate) output: Option<Output>,
    /// Plans the steps instead of a model.
    pub(crate) planner: Option<Arc<dyn Planner>>,
}

/// The tools of a step, and their specifications for the model.
#[derive(Clone, Debug)]
pub(crate) struct OfferedTools {
    pub(crate) tools: Tools,
    pub(crate) specs: Arc<[ToolSpec]>,
}

impl OfferedTools {
    pub(crate) fn new(tools: Tools, output: Option<&OutputSpec>) -> Self {
        let specs = match output.and_then(OutputSpec::tool) {
            None => tools.specs(),
            Some(own) => tools.specs().iter().cloned().chain([own]).collect(),
        };
        OfferedTools { tools, specs }
    }
}

impl Agent {
    /// Starts an agent with this model. Everything else has a default: no tools, no instructions, no state
    /// but the conversation, 100 steps.
    pub fn builder(model: impl ChatModel + 'static) -> AgentBuilder {
        AgentBuilder::new(Arc::new(model))
    }

    /// A builder with the same configuration, for changes: for one run, or for a variant of this agent.
    pub fn to_builder(&self) -> AgentBuilder {
        AgentBuilder::of(self.config().clone())
    }

    /// The agent's name, in records and traces; "agent" by default.
    pub fn name(&self) -> &str {
        &self.config().name
    }

    /// The schema of the state that runs have.
    pub fn schema(&self) -> &Schema {
        &self.config().schema
    }

    /// The bounds of a run.
    pub fn limits(&self) -> &RunLimits {
        &self.config().limits
    }

    /// The model.
    pub fn model(&self) -> &dyn ChatModel {
        &*self.config().model
    }

    /// The template of the instructions, if it has some.
    pub fn instructions(&self) -> Option<&Template> {
        self.config().instructions.as_ref()
    }

    /// The tools that it offers at every step; `None` if some are listed at each step. The tool of an output is
    /// not among them.
    pub fn tools(&self) -> Option<&Tools> {
        self.static_offer().map(|offer| &offer.tools)
    }

    /// The tools that its toolsets [have left out](stepfold_tools::Toolset::refused) of their last lists, each with its
    /// toolset.
    pub fn refused_tools(&self) -> Vec<(String, RefusedTool)> {
        self.config().toolset.refused()
    }

    /// The way in which its [output](AgentBuilder::output) is requested, if it has one.
    pub fn output_mode(&self) -> Option<OutputMode> {
        self.output_spec().map(OutputSpec::mode)
    }

    /// The model that writes summaries, if it is another one.
    pub fn summary_model(&self) -> Option<&dyn ChatModel> {
        self.config().summary_model.as_deref()
    }

    /// The agents directly inside: each with the name of its tool or node. Those of tools that are listed at each step
    /// are unknown.
    ///
    /// # Examples
    /// ```
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::Agent;
    ///
    /// let counter = Agent::builder(Script::parse("")?).name("counter").build()?;
    /// let count = counter.as_tool("count", "Counts the stalls of an area.");
    /// let agent = Agent::builder(Script::parse("")?).tool(count).build()?;
    /// let inside: Vec<_> = agent.inside().into_iter().map(|(name, agent)| (name, agent.name())).collect();
    /// assert_eq!(inside, [("count", "counter")]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias("subagents"))]
    pub fn inside(&self) -> Vec<(&str, &Agent)> {
        let called = self.tools().into_iter().flat_map(Tools::iter);
        let called = called.filter_map(|tool| Some((tool.name(), &tool.hosted_as::<HostedAgent>()?.agent)));
        let nodes = self.planner().into_iter().flat_map(|planner| {
            planner.names().iter().filter_map(|name| Some((name.as_str(), planner.agent(name)?.agent())))
        });
        called.chain(nodes).collect()
    }

    /// The agent directly inside that a tool or a node of this name runs. It knows those of static tools that are offered
    /// next to dynamic toolsets, too.
    ///
    /// # Examples
    /// ```
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::Agent;
    ///
    /// let counter = Agent::builder(Script::parse("")?).name("counter").build()?;
    /// let count = counter.as_tool("count", "Counts the stalls of an area.");
    /// let agent = Agent::builder(Script::parse("")?).tool(count).build()?;
    /// assert_eq!(agent.inside_of("count").unwrap().name(), "counter");
    /// assert!(agent.inside_of("other").is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn inside_of(&self, name: &str) -> Option<&Agent> {
        match self.planner() {
            Some(planner) => Some(planner.agent(name)?.agent()),
            None => Some(&self.static_tool(name)?.hosted_as::<HostedAgent>()?.agent),
        }
    }

    /// The [planner](AgentBuilder::planner) of its steps, if it is a workflow.
    ///
    /// # Examples
    /// ```
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::Agent;
    ///
    /// let agent = Agent::builder(Script::parse("")?).build()?;
    /// assert!(agent.planner().is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn planner(&self) -> Option<&dyn Planner> {
        self.config().planner.as_deref()
    }

    /// The parts that a run depends on: used to detect a changed agent when a stored run is loaded.
    pub fn fingerprint(&self) -> &Fingerprint {
        self.0.derived.fingerprint.get_or_init(|| Fingerprint::of(self))
    }

    /// The changes since `recorded`, the fingerprint that a run was stored with, in whatever form that is.
    ///
    /// # Examples
    /// ```
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::Agent;
    ///
    /// let agent = Agent::builder(Script::parse("")?).build()?;
    /// let changed = agent.to_builder().instructions("Be kind.").build()?;
    /// assert_eq!(changed.changes_since(agent.fingerprint())[0].to_string(), "instructions is new");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn changes_since(&self, recorded: &Fingerprint) -> Vec<AgentChange> {
        if recorded.is_of_first_form() {
            return recorded.differences(&self.first_fingerprint());
        }
        let mut changes = recorded.differences(self.fingerprint());
        changes.retain(|change| !change.is_of_newer_part());
        changes
    }

    /// Whether both are the same agent, and no part of either has changed.
    #[doc(hidden)]
    pub fn is_same_as(&self, other: &Agent) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.fingerprint() == other.fingerprint()
    }

    /// The fingerprint in its first form, which stored runs may have.
    #[doc(hidden)]
    pub fn first_fingerprint(&self) -> Fingerprint {
        Fingerprint::first_of(self)
    }

    /// The same as JSON, for hosts that store it where each run begins: made once.
    ///
    /// # Examples
    /// ```
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::{Agent, Fingerprint};
    ///
    /// let agent = Agent::builder(Script::parse("")?).build()?;
    /// let stored: Fingerprint = serde_json::from_str(agent.fingerprint_json().get())?;
    /// assert_eq!(&stored, agent.fingerprint());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fingerprint_json(&self) -> &Arc<RawValue> {
        let text = || to_raw_value(self.fingerprint()).unwrap_or_else(|_| RawValue::NULL.to_owned());
        self.0.derived.fingerprint_json.get_or_init(|| text().into())
    }

    /// A digest of the offered tools and their bindings; `None` if they are listed at each step.
    pub(crate) fn tools_digest(&self) -> Option<&str> {
        let offer = self.static_offer()?;
        Some(self.0.derived.tools_digest.get_or_init(|| fingerprint::of_offer(offer)))
    }

    /// The keys of shared scopes that a run records when it begins.
    pub(crate) fn shared_keys(&self) -> &BTreeSet<String> {
        self.0.derived.shared_keys.get_or_init(|| named_keys::shared_keys(self))
    }

    pub(crate) fn config(&self) -> &AgentConfig {
        &self.0.config
    }

    pub(crate) fn static_offer(&self) -> Option<&OfferedTools> {
        self.0.offer.as_ref()
    }

    /// A tool that is offered at every step, even next to dynamic toolsets.
    pub(crate) fn static_tool(&self, name: &str) -> Option<&Tool> {
        match self.static_offer() {
            Some(offer) => offer.tools.get(name),
            None => self.config().toolset.static_tool(name),
        }
    }

    /// The policy that trims the conversation when a run begins.
    pub fn trim(&self) -> &Trim {
        &self.config().trim
    }

    /// The window of the conversation within a run, if it has one.
    pub fn window(&self) -> Option<&Window> {
        self.config().window.as_ref()
    }

    /// The name of its tool that reads what the model is no longer shown, if it has one.
    pub(crate) fn reader(&self) -> Option<&'static str> {
        self.static_tool(RECALL_READ).map(|_| RECALL_READ)
    }

    /// The JSON Schema of its [output](AgentBuilder::output), if it has one.
    pub fn output_schema(&self) -> Option<&Value> {
        self.output_spec().map(|spec| &spec.output.schema)
    }

    pub(crate) fn output_spec(&self) -> Option<&OutputSpec> {
        self.0.output.as_ref()
    }

    /// Whether there is nothing that the model could call.
    pub(crate) fn has_no_tools(&self) -> bool {
        self.static_offer().is_some_and(|offer| offer.specs.is_empty())
    }
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent")
            .field("name", &self.name())
            .field("model", &self.model().id())
            .field("tools", &self.config().toolset)
            .field("limits", self.limits())
            .finish_non_exhaustive()
    }
}
