//! Builds agents. All detectable faults are reported together.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use stepfold_state_core::chat::{ChatModel, ModelParams};
use stepfold_state_core::state::{Issue, KeySchema, Schema, Template};
use stepfold_tools::{Approval, BuildError, CallLimits, IntoTool, Overflow, Resources, Tools, Toolset};

use super::hooks::{HookContext, HookList, HookPoint, HookResult};
use super::limits::{RepeatGuard, RunLimits};
use super::named_keys::{key_candidates, named_keys};
use super::output::{OUTPUT_TOOL, Output, OutputMode};
use super::planner::Planner;
use super::{Agent, AgentConfig, BuiltAgent, DerivedParts, OfferedTools, OutputSpec};
use crate::digest;
use crate::error::AgentError;
use stepfold_trim::{Summarize, Trim, Window};

/// Builds an [`Agent`]; nothing is checked before [`build`](AgentBuilder::build).
#[must_use = "a builder does nothing until it is built"]
#[derive(Clone)]
pub struct AgentBuilder {
    config: AgentConfig,
    /// Exit conditions that were found to name tools before the tools of one run took their place.
    known_exits: Vec<String>,
    /// The schema of the graph that the agent is to be a node of.
    graph_schema: Option<Schema>,
    /// It changes an agent that was built before.
    is_rebuild: bool,
}

impl AgentBuilder {
    pub(super) fn new(model: Arc<dyn ChatModel>) -> Self {
        AgentBuilder {
            config: AgentConfig {
                name: "agent".to_owned(),
                model,
                summary_model: None,
                model_name: None,
                params: ModelParams::default(),
                instructions: None,
                schema: Schema::default(),
                toolset: Toolset::default(),
                resources: Resources::new(),
                tool_limits: CallLimits::default(),
                overflow: Overflow::default(),
                raise_on_failure: false,
                exit_tools: Vec::new(),
                limits: RunLimits::default(),
                final_answer: false,
                repeat_guard: Some(RepeatGuard::default()),
                dependencies: None,
                recover_leaked_calls: false,
                hooks: HookList::default(),
                approval: Approval::Never,
                ask_when_uncertain: false,
                trim: Trim::none(),
                window: None,
                summarize: None,
                output: None,
                planner: None,
            },
            known_exits: Vec::new(),
            graph_schema: None,
            is_rebuild: false,
        }
    }

    pub(super) fn of(config: AgentConfig) -> Self {
        AgentBuilder { config, known_exits: Vec::new(), graph_schema: None, is_rebuild: true }
    }

    /// For one run, which may leave out tools that the agent's exit conditions name, though [`build`](AgentBuilder::build)
    /// refuses that otherwise.
    ///
    /// # Examples
    /// ```
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_tools::{Tool, ToolError};
    /// use stepfold_agent_loop::Agent;
    ///
    /// # async fn submit() -> Result<(), ToolError> { Ok(()) }
    /// # let submit = Tool::new("submit", "Submits.", submit).build()?;
    /// let agent = Agent::builder(Script::parse("")?).tools([submit]).exit_on(["submit"]).build()?;
    /// assert!(agent.to_builder().tools(Vec::<Tool>::new()).build().is_err());
    /// assert!(agent.to_builder().for_one_run().tools(Vec::<Tool>::new()).build().is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn for_one_run(mut self) -> Self {
        self.known_exits.clone_from(&self.config.exit_tools);
        self
    }

    /// Sets the agent's name, for records and traces.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.config.name = name.into();
        self
    }

    /// Asks this model instead.
    pub fn model(mut self, model: impl ChatModel + 'static) -> Self {
        self.config.model = Arc::new(model);
        self
    }

    /// Sets another model of the same provider.
    pub fn model_name(mut self, name: impl Into<String>) -> Self {
        self.config.model_name = Some(name.into());
        self
    }

    /// Sets the parameters of the model, such as the temperature.
    pub fn params(mut self, params: ModelParams) -> Self {
        self.config.params = params;
        self
    }

    /// Sets the system prompt: a [`Template`] over the state, rendered when a run begins. The caller's own
    /// system messages follow it. Every placeholder must name a key of the schema, even an optional one; see
    /// [`graph_schema`](AgentBuilder::graph_schema) for those of a graph.
    pub fn instructions(mut self, template: impl Into<String>) -> Self {
        self.config.instructions = Some(Template::parse(template));
        self
    }

    /// The keys of the state, with their types and merge handlers.
    pub fn schema(mut self, schema: Schema) -> Self {
        self.config.schema = schema;
        self
    }

    /// Sets the schema of the graph that the agent is a node of: keys that the instructions and the bindings
    /// of tools name, and the agent's own schema does not declare, are declared as in the graph. A graph does
    /// this itself for a builder that is its node.
    ///
    /// # Examples
    /// ```
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_state_core::state::Schema;
    ///
    /// # let model = Script::parse("assistant: done")?;
    /// let graph = Schema::builder().key::<String>("notes").key::<u64>("area").build()?;
    /// let writer = Agent::builder(model).instructions("Use these notes: {notes?}").graph_schema(graph).build()?;
    /// assert!(writer.schema().key("notes").is_some() && writer.schema().key("area").is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn graph_schema(mut self, schema: Schema) -> Self {
        self.graph_schema = Some(schema);
        self
    }

    /// Adds a tool, built or not; a tool that cannot be built is a fault of the agent.
    ///
    /// # Examples
    /// ```
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_tools::{Tool, ToolError};
    ///
    /// # let model = Script::parse("assistant: done")?;
    /// let ping = Tool::new("ping", "Answers.", async || Ok::<_, ToolError>("pong"));
    /// let agent = Agent::builder(model).tool(ping).build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn tool(mut self, tool: impl IntoTool) -> Self {
        self.config.toolset = self.config.toolset.with_tool(tool);
        self
    }

    /// Sets the tools: a list of tools, built or not, or a [`Toolset`], which may offer other tools at each step.
    /// Replaces those that were set before; [`tool`](AgentBuilder::tool) adds one.
    pub fn tools(mut self, tools: impl Into<Toolset>) -> Self {
        self.config.toolset = tools.into();
        self
    }

    /// Keeps only the tools with these names.
    pub fn only_tools<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.config.toolset = self.config.toolset.only(names);
        self
    }

    /// Sets the application's resources for its tools.
    #[doc(alias("deps", "dependencies", "runtime_context"))]
    pub fn resources(mut self, resources: Resources) -> Self {
        self.config.resources = resources;
        self
    }

    /// Bounds on each call.
    pub fn tool_limits(mut self, limits: CallLimits) -> Self {
        self.config.tool_limits = limits;
        self
    }

    /// Sets the handling of results above the limit.
    pub fn overflow(mut self, overflow: Overflow) -> Self {
        self.config.overflow = overflow;
        self
    }

    /// Makes the first failed call of a step the error of the run. By default the model reads the failure and
    /// the run continues.
    pub fn raise_on_failure(mut self) -> Self {
        self.config.raise_on_failure = true;
        self
    }

    /// Ends the run after a step in which one of these tools was called and none of them failed. Text without
    /// a call always ends it.
    pub fn exit_on<N: Into<String>>(mut self, tools: impl IntoIterator<Item = N>) -> Self {
        self.config.exit_tools.extend(tools.into_iter().map(Into::into));
        self
    }

    /// Sets all limits of a run.
    pub fn limits(mut self, limits: RunLimits) -> Self {
        self.config.limits = limits;
        self
    }

    /// Limits the steps of a run; the other limits stay.
    pub fn max_steps(mut self, steps: u64) -> Self {
        self.config.limits.steps = steps;
        self
    }

    /// Limits the time of a run; the other limits stay.
    pub fn max_time(mut self, time: Duration) -> Self {
        self.config.limits.time = Some(time);
        self
    }

    /// At a limit, requests a final answer without tools. The exit still names the limit.
    pub fn final_answer(mut self) -> Self {
        self.config.final_answer = true;
        self
    }

    /// Sets the handling of repeated equal calls; `None` disables it.
    pub fn repeat_guard(mut self, guard: impl Into<Option<RepeatGuard>>) -> Self {
        self.config.repeat_guard = guard.into();
        self
    }

    /// Names all that the agent uses outside of this process, each with a version of it in any words: programs, servers,
    /// functions of tools. The loop cannot see what is behind a tool; with this, a run that is stored can tell that it has
    /// changed. Only digests of the words are stored.
    ///
    /// # Examples
    /// ```
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::Agent;
    ///
    /// let agent = Agent::builder(Script::parse("")?).dependencies([("billing", "2.1")]).build()?;
    /// let changed = agent.to_builder().dependencies([("billing", "2.2"), ("mail", "1.0")]).build()?;
    /// assert_eq!(
    ///     agent.fingerprint().changes(changed.fingerprint()),
    ///     ["dependencies: billing changed", "dependencies: mail is new"],
    /// );
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn dependencies<N: Into<String>, V: AsRef<str>>(
        mut self,
        named: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let digested =
            named.into_iter().map(|(name, version)| (name.into(), digest::of_text(version.as_ref())));
        self.config.dependencies = Some(digested.collect());
        self
    }

    /// Recovers tool calls that the model wrote as JSON in its text: such a reply is treated as these calls.
    pub fn recover_leaked_calls(mut self) -> Self {
        self.config.recover_leaked_calls = true;
        self
    }

    /// Sets an approval rule for all calls, in addition to those of the tools. The stricter one applies.
    pub fn approval(mut self, approval: Approval) -> Self {
        self.config.approval = approval;
        self
    }

    /// Requests a decision about calls that must not run twice and had started before a crash. By default the model
    /// sees that their outcome is unknown.
    pub fn ask_when_uncertain(mut self) -> Self {
        self.config.ask_when_uncertain = true;
        self
    }

    /// Sets the trimming of the conversation when a run begins.
    pub fn trim(mut self, trim: Trim) -> Self {
        self.config.trim = trim;
        self
    }

    /// Limits the length of the conversation within a run.
    pub fn window(mut self, window: Window) -> Self {
        self.config.window = Some(window);
        self
    }

    /// Summarises messages that are no longer shown, before a run begins. If that fails, the
    /// [trim](AgentBuilder::trim) decides.
    pub fn summarize(mut self, summarize: Summarize) -> Self {
        self.config.summarize = Some(summarize);
        self
    }

    /// Sets the model that writes summaries; the agent's own by default.
    pub fn summary_model(mut self, model: impl ChatModel + 'static) -> Self {
        self.config.summary_model = Some(Arc::new(model));
        self
    }

    /// Ends each run with a `T`, by its JSON Schema; see [`Output`] for the handling of an invalid one, and
    /// [`output_with`](AgentBuilder::output_with) for other options.
    #[doc(alias("response_format", "output_type", "output_schema"))]
    pub fn output<T: JsonSchema + DeserializeOwned>(self) -> Self {
        self.output_with(Output::of::<T>())
    }

    /// Ends each run with an output.
    ///
    /// # Examples
    /// ```
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::{Agent, Output, OutputMode};
    ///
    /// # let model = Script::parse("assistant: 12")?;
    /// let stalls = Output::of::<u32>().mode(OutputMode::Prompt).repairs(1);
    /// let agent = Agent::builder(model).output_with(stalls).build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn output_with(mut self, output: Output) -> Self {
        self.config.output = Some(output);
        self
    }

    /// Adds a hook. Hooks of one point run in the order in which they were added; one that stops the run is
    /// the last.
    #[doc(alias("middleware", "callback", "guardrail"))]
    pub fn hook<F, Fut>(mut self, point: HookPoint, hook: F) -> Self
    where
        F: Fn(HookContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HookResult> + Send + 'static,
    {
        self.config.hooks.add(point, hook);
        self
    }

    /// Adds a hook that runs once, before the first step.
    pub fn before_run<F, Fut>(self, hook: F) -> Self
    where
        F: Fn(HookContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HookResult> + Send + 'static,
    {
        self.hook(HookPoint::BeforeRun, hook)
    }

    /// Adds a hook that runs before each request to the model.
    pub fn before_model<F, Fut>(self, hook: F) -> Self
    where
        F: Fn(HookContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HookResult> + Send + 'static,
    {
        self.hook(HookPoint::BeforeModel, hook)
    }

    /// Adds a hook that runs before each call.
    pub fn before_tool<F, Fut>(self, hook: F) -> Self
    where
        F: Fn(HookContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HookResult> + Send + 'static,
    {
        self.hook(HookPoint::BeforeTool, hook)
    }

    /// Adds a hook that runs after each call.
    pub fn after_tool<F, Fut>(self, hook: F) -> Self
    where
        F: Fn(HookContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HookResult> + Send + 'static,
    {
        self.hook(HookPoint::AfterTool, hook)
    }

    /// Adds a hook that runs when the run is about to end.
    pub fn on_exit<F, Fut>(self, hook: F) -> Self
    where
        F: Fn(HookContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HookResult> + Send + 'static,
    {
        self.hook(HookPoint::OnExit, hook)
    }

    /// Adds a hook that runs once, at the end.
    pub fn after_run<F, Fut>(self, hook: F) -> Self
    where
        F: Fn(HookContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HookResult> + Send + 'static,
    {
        self.hook(HookPoint::AfterRun, hook)
    }

    /// Sets these parameters; the agent's own apply to unset ones: see [`ModelParams::or`].
    pub fn params_over_own(mut self, params: ModelParams) -> Self {
        self.config.params = params.or(&self.config.params);
        self
    }

    /// Plans the steps with this [planner](crate::plan), instead of a model.
    pub fn planner(mut self, planner: Arc<impl Planner + 'static>) -> Self {
        self.config.planner = Some(planner);
        self
    }

    /// Checks all that can be checked, and builds the agent.
    ///
    /// # Errors
    /// [`AgentError`] with all faults: invalid tools or bindings, an unknown tool in an exit condition, a
    /// limit of zero, an invalid key in the instructions, an invalid output schema.
    ///
    /// An agent without tools is built, and a warning is traced (`tracing`, level WARN) when it is built for the first
    /// time.
    pub fn build(self) -> Result<Agent, AgentError> {
        let AgentBuilder { mut config, known_exits, graph_schema, is_rebuild } = self;
        if let Some(graph) = &graph_schema {
            config.schema = with_keys_of_graph(&config, graph);
        }
        let mut faults = config.limits.faults();
        faults.extend(faults_of_name(&config.name));
        faults.extend(config.repeat_guard.and_then(RepeatGuard::fault));
        faults.extend(faults_of_instructions(&config));
        if let Some(planner) = &config.planner {
            faults.extend(planner.faults(&config.schema));
        }
        if let Err(error) = config.toolset.check(&config.schema, &config.resources) {
            faults.extend(faults_of_tools(error));
        }
        let output = config.output.clone().map(OutputSpec::check).transpose().unwrap_or_else(|fault| {
            faults.push(fault);
            None
        });
        let tools = config.toolset.static_tools();
        if let Some(tools) = &tools {
            faults.extend(faults_of_exits(&config, tools, &known_exits));
            if config.recover_leaked_calls && tools.is_empty() {
                faults.push(Issue::new("recover_leaked_calls", "requires a tool"));
            }
            if output.as_ref().is_some_and(|output| output.mode() == OutputMode::Tool)
                && tools.get(OUTPUT_TOOL).is_some()
            {
                faults.push(Issue::new(
                    OUTPUT_TOOL,
                    "duplicate name: the output uses this tool; rename the other one",
                ));
            }
        }
        if !faults.is_empty() {
            return Err(AgentError { agent: config.name, faults: faults.into_iter().collect() });
        }
        // NOTE: A warning and not a fault, since most often the tools were forgotten. Only when an agent is first
        // built: for one run, in a graph or with an output, no tools are a normal case.
        if !is_rebuild && graph_schema.is_none() && config.planner.is_none() {
            warn_without_tools(&config, tools.as_ref());
        }
        let offer = tools.map(|tools| OfferedTools::new(tools, output.as_ref()));
        Ok(Agent(Arc::new(BuiltAgent { config, offer, output, derived: DerivedParts::default() })))
    }
}

/// Without tools the run is a single request (as in Haystack). A dynamic toolset may offer some later; a node
/// of a graph, or an agent with an output, needs none.
fn warn_without_tools(config: &AgentConfig, tools: Option<&Tools>) {
    if config.output.is_none() && tools.is_some_and(Tools::is_empty) {
        tracing::warn!(agent = config.name, "the agent has no tools: each run is one request to the model");
    }
}

fn faults_of_name(name: &str) -> Option<Issue> {
    name.trim().is_empty().then(|| Issue::new("name", "must not be empty: records and traces use it"))
}

/// The agent's schema with the keys of a graph's that its templates and bindings name. Of tools that are not known
/// before they are asked for, all keys may be named.
fn with_keys_of_graph(config: &AgentConfig, graph: &Schema) -> Schema {
    let keys = graph.declared_keys().map(KeySchema::name);
    let tools = config.toolset.static_tools();
    let named = named_keys(config, tools.as_ref());
    config.schema.with_keys_of(graph, keys.filter(|key| tools.is_none() || named.contains(key)))
}

/// A placeholder that may be absent has to name a key, too: nothing could ever fill it otherwise.
fn faults_of_instructions(config: &AgentConfig) -> Vec<Issue> {
    let Some(template) = &config.instructions else { return Vec::new() };
    let declares = |key: &str| config.schema.key(key).is_some() || config.schema.is_open();
    template
        .placeholders()
        .filter(|(name, _)| !key_candidates(name).any(declares))
        .map(|(name, _)| {
            let words = format!(
                "unknown state key \"{name}\": declare it in the agent's schema, or in that of the graph \
                 around it, or double the braces if it is text"
            );
            Issue::new("instructions", words)
        })
        .collect()
}

fn faults_of_tools(error: BuildError) -> Vec<Issue> {
    match error {
        BuildError::InvalidTool { tool, faults } => {
            faults.iter().map(|fault| Issue::new(format!("tool {tool}"), fault.message.clone())).collect()
        }
        BuildError::InvalidTools { faults } => faults
            .iter()
            .map(|fault| Issue::new(format!("tool {}", fault.path), fault.message.clone()))
            .collect(),
        other => vec![Issue::new("tools", other.to_string())],
    }
}

fn faults_of_exits(config: &AgentConfig, tools: &Tools, known: &[String]) -> Vec<Issue> {
    let unknown = config.exit_tools.iter().filter(|name| tools.get(name).is_none() && !known.contains(name));
    let available = tools.names().collect::<Vec<_>>().join(", ");
    unknown
        .map(|name| {
            let words = match available.as_str() {
                "" => "unknown tool: the agent has none".to_owned(),
                available => format!("unknown tool; available: {available}"),
            };
            Issue::new(format!("exit condition '{name}'"), words)
        })
        .collect()
}
