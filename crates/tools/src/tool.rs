//! A tool: its specification for the model, its function, and its bindings to the state.
//!
//! Errors are detected by [`ToolBuilder::build`] or, if the state schema is needed, by [`Tool::check`]: a
//! typo fails there, not in production.

use std::any::{Any, TypeId};
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::{Map, Value, json};
use stepfold_state_core::canonical_json;
use stepfold_state_core::chat::{Extras, ToolSpec};
use stepfold_state_core::json_schema::ValueType;
use stepfold_state_core::state::{Handler, Issue, Issues, MESSAGES, Schema, State, ValueRef, check_key};

use crate::binding::{InputBinding, InputFromState, KeyAccess, OutputBinding, ResultSource, ResultText};
use crate::error::BuildError;
use crate::extract::Requirements;
use crate::function::{ErasedFunction, Parameters, ThreadKind, ToolFunction, ToolReturn};
use crate::policy::{Approval, Effect, Retry};
use crate::resources::Resources;
use crate::schema::{self, UnlistedProperties, drop_stand_in_nulls};

/// The maximum length of a tool name in bytes, by providers' limits.
const MAX_NAME_BYTES: usize = 64;

/// A tool for a model. Immutable and cheap to clone.
///
/// # Examples
/// The calculator of Haystack 2.31, "State":
/// ```
/// use schemars::JsonSchema;
/// use serde::Deserialize;
/// use serde_json::{Value, json};
/// use stepfold_tools::{Args, Effect, Tool, ToolError};
///
/// #[derive(Deserialize, JsonSchema)]
/// struct Sum {
///     /// The numbers to add.
///     numbers: Vec<i64>,
/// }
///
/// async fn add(Args(sum): Args<Sum>) -> Result<Value, ToolError> {
///     Ok(json!({"result": sum.numbers.iter().sum::<i64>()}))
/// }
///
/// let calculator = Tool::new("calculator", "Adds numbers.", add)
///     .effect(Effect::Pure)
///     .output_to_state("calc_result", "result")
///     .build()?;
/// assert_eq!(calculator.name(), "calculator");
/// # Ok::<(), stepfold_tools::BuildError>(())
/// ```
#[derive(Clone)]
pub struct Tool(Arc<ToolDefinition>);

#[derive(Clone)]
pub(crate) struct ToolDefinition {
    pub(crate) name: Arc<str>,
    pub(crate) spec: ToolSpec,
    pub(crate) function: ErasedFunction,
    /// Checks the model's arguments. The schema is the plain one, even if the model sees the strict one.
    pub(crate) arguments: Arc<ValueType>,
    pub(crate) inputs: Arc<[InputBinding]>,
    pub(crate) outputs: Arc<[OutputBinding]>,
    pub(crate) result_text: Option<ResultText>,
    pub(crate) access: Arc<KeyAccess>,
    pub(crate) resources: Arc<[(TypeId, &'static str)]>,
    pub(crate) effect: Effect,
    pub(crate) timeout: Option<Duration>,
    pub(crate) retry: Option<Retry>,
    pub(crate) approval: Approval,
    pub(crate) listing: Option<ToolListing>,
    pub(crate) canonical: OnceLock<CanonicalTexts>,
}

/// The definition of a tool at the server that lists it. An approval holds for the tool as it was shown, and so for all of this.
///
/// # Examples
/// ```
/// use stepfold_tools::{Tool, ToolError, ToolListing};
///
/// let listing = ToolListing::new("9f86d081").changed("-Orders.\n+Orders at once.");
/// let order = Tool::new("order", "Orders at once.", async || Ok::<_, ToolError>("ordered")).listing(listing);
/// assert_eq!(order.build()?.listing().map(|listing| &*listing.digest), Some("9f86d081"));
/// # Ok::<(), stepfold_tools::BuildError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolListing {
    /// A digest of the whole definition, with the parts that models are not shown.
    pub digest: String,
    /// The difference from the definition that was approved before, in words, which each request for approval shows; none if
    /// it is the same.
    pub change: Option<String>,
    /// The dependency of the agent that the tool is listed by, as the agent names it: without it, a run that has an open call of
    /// the tool cannot continue.
    pub dependency: Option<String>,
}

impl ToolListing {
    /// A definition with this digest.
    pub fn new(digest: impl Into<String>) -> Self {
        ToolListing { digest: digest.into(), change: None, dependency: None }
    }

    /// Says which dependency of the agent lists it.
    #[must_use]
    pub fn from_dependency(mut self, name: impl Into<String>) -> Self {
        self.dependency = Some(name.into());
        self
    }

    /// Says how it differs from the one that was approved before.
    #[must_use]
    pub fn changed(mut self, change: impl Into<String>) -> Self {
        self.change = Some(change.into());
        self
    }
}

/// The canonical bindings of a tool without bindings, as most tools are.
const NO_BINDINGS: &str = r#"{"inputs":[],"outputs":[],"reads":[],"writes":[]}"#;

/// The canonical texts of a tool, for digests; created once.
#[derive(Clone)]
pub(crate) struct CanonicalTexts {
    specification: Box<str>,
    signature: Box<str>,
    words: Box<str>,
    bindings: Box<str>,
}

impl Tool {
    /// Creates a tool from an async function or closure of [extractors](crate::Extract).
    #[expect(clippy::new_ret_no_self, reason = "returns the builder, for a short call chain")]
    pub fn new<P, F>(name: impl Into<String>, description: impl Into<String>, function: F) -> ToolBuilder
    where
        P: Parameters,
        F: ToolFunction<P, Output: Future<Output: ToolReturn> + Send + 'static>,
    {
        let mut needs = Requirements::default();
        P::needs(&mut needs);
        ToolBuilder::new(name.into(), description.into(), ErasedFunction::of_async(function), needs)
    }

    /// Creates a tool from a blocking function: one that waits for a file, a database, a program. It runs on
    /// a thread of its own, never on the threads of the run; at most
    /// [`MAX_BLOCKING_THREADS`](crate::MAX_BLOCKING_THREADS) run at a time in a process, and further calls
    /// wait. Use [`cpu`](Tool::cpu) for CPU-bound functions.
    ///
    /// # Examples
    /// ```
    /// use stepfold_tools::{Tool, ToolError};
    ///
    /// let hosts = Tool::blocking("hosts", "Reads the hosts file.", || {
    ///     std::fs::read_to_string("/etc/hosts").map_err(|error| ToolError::permanent(error.to_string()))
    /// });
    /// assert_eq!(hosts.build()?.name(), "hosts");
    /// # Ok::<(), stepfold_tools::BuildError>(())
    /// ```
    pub fn blocking<P, F>(name: impl Into<String>, description: impl Into<String>, function: F) -> ToolBuilder
    where
        P: Parameters,
        F: ToolFunction<P, Output: ToolReturn>,
    {
        let mut needs = Requirements::default();
        P::needs(&mut needs);
        ToolBuilder::new(
            name.into(),
            description.into(),
            ErasedFunction::on_thread(ThreadKind::Blocking, function),
            needs,
        )
    }

    /// Creates a tool from a CPU-bound function: it runs on a pool of as many threads as there are cores,
    /// never on the threads of the run. A function that waits would block a core for the others: use
    /// [`blocking`](Tool::blocking).
    ///
    /// # Examples
    /// ```
    /// use stepfold_tools::{Tool, ToolError};
    ///
    /// let sum = Tool::cpu("sum", "Adds up.", || Ok::<_, ToolError>((0..1_000_u64).sum::<u64>()));
    /// assert_eq!(sum.build()?.name(), "sum");
    /// # Ok::<(), stepfold_tools::BuildError>(())
    /// ```
    pub fn cpu<P, F>(name: impl Into<String>, description: impl Into<String>, function: F) -> ToolBuilder
    where
        P: Parameters,
        F: ToolFunction<P, Output: ToolReturn>,
    {
        let mut needs = Requirements::default();
        P::needs(&mut needs);
        ToolBuilder::new(
            name.into(),
            description.into(),
            ErasedFunction::on_thread(ThreadKind::CpuBound, function),
            needs,
        )
    }

    /// Creates a tool without a function: a host that [runs such tools](crate::InvokeOptions::hosts_calls)
    /// identifies it with [`hosted_as`](Tool::hosted_as). The agent loop does so for agents as tools.
    /// Arguments, approval, order and the form of the result are those of any tool.
    ///
    /// # Examples
    /// ```
    /// use serde_json::json;
    /// use stepfold_tools::Tool;
    ///
    /// struct Workflow(&'static str);
    ///
    /// let tool = Tool::hosted("count", "Counts the stalls.", Workflow("stalls"))
    ///     .parameters(json!({"type": "object"}))
    ///     .build()?;
    /// assert_eq!(tool.hosted_as::<Workflow>().unwrap().0, "stalls");
    /// # Ok::<(), stepfold_tools::BuildError>(())
    /// ```
    pub fn hosted(
        name: impl Into<String>,
        description: impl Into<String>,
        work: impl Any + Send + Sync,
    ) -> ToolBuilder {
        let function = ErasedFunction::Hosted(Arc::new(work));
        ToolBuilder::new(name.into(), description.into(), function, Requirements::default())
    }

    /// The value that identifies a [hosted](Tool::hosted) tool to its host, if it is a `T`.
    pub fn hosted_as<T: Any>(&self) -> Option<&T> {
        match &self.0.function {
            ErasedFunction::Hosted(work) => work.downcast_ref(),
            _ => None,
        }
    }

    /// Whether the tool has no function, because a [host](Tool::hosted) runs it.
    pub fn is_hosted(&self) -> bool {
        matches!(self.0.function, ErasedFunction::Hosted(_))
    }

    /// The tool's name for the model.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The tool's specification for the model.
    pub fn spec(&self) -> &ToolSpec {
        &self.0.spec
    }

    /// The effect of a call outside the process.
    pub fn effect(&self) -> Effect {
        self.0.effect
    }

    /// The approval rule of a call.
    pub fn approval(&self) -> &Approval {
        &self.0.approval
    }

    /// Its definition at the server that lists it, if there is one.
    pub fn listing(&self) -> Option<&ToolListing> {
        self.0.listing.as_ref()
    }

    /// The timeout of one attempt of a call, if the tool sets one.
    pub fn timeout(&self) -> Option<Duration> {
        self.0.timeout
    }

    /// The state keys that a call reads: those bound to its parameters, and those declared with `reads`.
    ///
    /// # Examples
    /// ```
    /// use stepfold_tools::{Tool, ToolError};
    ///
    /// async fn show() -> Result<(), ToolError> {
    ///     Ok(())
    /// }
    /// let show = Tool::new("show", "Shows the limit.", show).reads(["limit"]).writes(["shown"]).build()?;
    /// assert_eq!((show.reads().collect(), show.writes().collect()), (vec!["limit"], vec!["shown"]));
    /// # Ok::<(), stepfold_tools::BuildError>(())
    /// ```
    pub fn reads(&self) -> impl Iterator<Item = &str> {
        self.0.access.reads.iter().map(|key| &**key)
    }

    /// The keys of the state that a call may write.
    pub fn writes(&self) -> impl Iterator<Item = &str> {
        self.0.access.writes.iter().map(|(key, _)| &**key)
    }

    /// The state keys that are bound to parameters.
    ///
    /// # Examples
    /// ```
    /// use serde_json::json;
    /// use stepfold_tools::{RawArgs, Tool, ToolError};
    ///
    /// async fn show(RawArgs(arguments): RawArgs) -> Result<serde_json::Value, ToolError> {
    ///     Ok(arguments)
    /// }
    /// let parameters = json!({"type": "object", "properties": {"limit": {"type": "integer"}}});
    /// let show = Tool::new("show", "Shows the limit.", show).parameters(parameters).input_from_state("max", "limit");
    /// assert_eq!(show.build()?.input_keys().collect::<Vec<_>>(), ["max"]);
    /// # Ok::<(), stepfold_tools::BuildError>(())
    /// ```
    pub fn input_keys(&self) -> impl Iterator<Item = &str> {
        self.0.inputs.iter().map(|input| &*input.key)
    }

    /// The parameters that the state fills in a call with these arguments, with their values: the arguments are as the
    /// model sent them. Empty if they do not fit the tool, since such a call does not run.
    ///
    /// # Examples
    /// ```
    /// use serde_json::json;
    /// use stepfold_state_core::state::{Schema, State};
    /// use stepfold_tools::{RawArgs, Tool, ToolError};
    ///
    /// async fn show(RawArgs(arguments): RawArgs) -> Result<serde_json::Value, ToolError> {
    ///     Ok(arguments)
    /// }
    /// let parameters = json!({"type": "object", "properties": {"limit": {"type": "integer"}}});
    /// let show = Tool::new("show", "Shows the limit.", show).parameters(parameters);
    /// let show = show.default_from_state("max", "limit").build()?;
    ///
    /// let mut state = State::new(&Schema::builder().key::<u64>("max").build()?);
    /// state.set("max", 10)?;
    /// let empty = serde_json::Map::new();
    /// let inputs = show.inputs_on(&empty, &state);
    /// assert_eq!((inputs[0].parameter, inputs[0].key, inputs[0].value.to_json()), ("limit", "max", json!(10)));
    ///
    /// let given = json!({"limit": 3});
    /// assert!(show.inputs_on(given.as_object().unwrap(), &state).is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn inputs_on<'a>(&'a self, sent: &Map<String, Value>, state: &'a State) -> Vec<InputFromState<'a>> {
        if self.0.inputs.is_empty() {
            return Vec::new();
        }
        let Ok(arguments) = self.accept(sent) else { return Vec::new() };
        let inputs = self.bound_inputs(&arguments, state);
        let shown = |(_, input, value): (usize, &'a InputBinding, _)| InputFromState {
            parameter: &input.parameter,
            key: &input.key,
            value,
        };
        inputs.map(shown).collect()
    }

    /// The inputs from the state for [accepted](Tool::accept) arguments: each binding with its index and value.
    pub(crate) fn bound_inputs<'a>(
        &'a self,
        arguments: &Value,
        state: &'a State,
    ) -> impl Iterator<Item = (usize, &'a InputBinding, ValueRef<'a>)> {
        let inputs = self.0.inputs.iter().enumerate();
        inputs.filter_map(|(index, input)| match arguments.get(&input.parameter) {
            Some(_) => None,
            None => Some((index, input, state.get(&*input.key)?)),
        })
    }

    /// The bindings of the tool to the state, and the rule of its result text, as JSON, to compare them with
    /// recorded ones. Of formatters it only contains their presence.
    ///
    /// # Examples
    /// ```
    /// use serde_json::json;
    /// use stepfold_tools::{RawArgs, Tool, ToolError};
    ///
    /// async fn show(RawArgs(arguments): RawArgs) -> Result<serde_json::Value, ToolError> {
    ///     Ok(arguments)
    /// }
    /// let show = || {
    ///     let parameters = json!({"type": "object", "properties": {"limit": {"type": "integer"}}});
    ///     Tool::new("show", "Shows the limit.", show).parameters(parameters)
    /// };
    /// assert_ne!(show().input_from_state("limit", "limit").build()?.bindings(), show().build()?.bindings());
    /// # Ok::<(), stepfold_tools::BuildError>(())
    /// ```
    pub fn bindings(&self) -> Value {
        let inputs = self.0.inputs.iter();
        let inputs = inputs.map(|input| json!([&*input.key, input.parameter, input.is_visible]));
        let outputs = self.0.outputs.iter().map(|output| {
            json!([&*output.key, output.source.to_json(), output.handler.as_ref().map(ToString::to_string)])
        });
        let mut bindings = json!({
            "inputs": inputs.collect::<Vec<_>>(),
            "outputs": outputs.collect::<Vec<_>>(),
            "reads": self.reads().collect::<Vec<_>>(),
            "writes": self.writes().collect::<Vec<_>>(),
        });
        if let Some(text) = &self.0.result_text {
            bindings["text"] = text.to_json();
        }
        bindings
    }

    /// Its [specification](Tool::spec) as [canonical JSON](canonical_json); created once and shared by all agents with the
    /// tool.
    pub fn canonical_spec(&self) -> &str {
        &self.canonical().specification
    }

    /// Its [bindings](Tool::bindings) in the same form.
    pub fn canonical_bindings(&self) -> &str {
        &self.canonical().bindings
    }

    /// The part of the specification that decides which arguments fit, in the same form: the parameters without their
    /// descriptions.
    ///
    /// # Examples
    /// ```
    /// use stepfold_tools::{Tool, ToolError};
    ///
    /// async fn count() -> Result<u32, ToolError> {
    ///     Ok(12)
    /// }
    /// let brief = Tool::new("count", "Counts.", count).build()?;
    /// let clear = Tool::new("count", "Counts the stalls of an area.", count).build()?;
    /// assert_eq!(brief.canonical_signature(), clear.canonical_signature());
    /// assert_ne!(brief.canonical_words(), clear.canonical_words());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn canonical_signature(&self) -> &str {
        &self.canonical().signature
    }

    /// The rest of the specification, in the same form: the description, and those of the parameters.
    pub fn canonical_words(&self) -> &str {
        &self.canonical().words
    }

    /// Whether it reads or writes the state.
    pub fn has_bindings(&self) -> bool {
        let ToolDefinition { inputs, outputs, access, result_text, .. } = &*self.0;
        !inputs.is_empty()
            || !outputs.is_empty()
            || !access.reads.is_empty()
            || !access.writes.is_empty()
            || result_text.is_some()
    }

    fn canonical(&self) -> &CanonicalTexts {
        self.0.canonical.get_or_init(|| {
            let ToolSpec { description, parameters, strict, extras, .. } = &self.0.spec;
            let mut words = Map::new();
            let parameters = schema::without_words(parameters, "", &mut words);
            let words = json!([description, strict, extras, words]);
            CanonicalTexts {
                specification: canonical_json(&serde_json::to_value(&self.0.spec).unwrap_or_default()).into(),
                signature: canonical_json(&parameters).into(),
                words: canonical_json(&words).into(),
                bindings: match self.has_bindings() {
                    true => canonical_json(&self.bindings()).into(),
                    false => NO_BINDINGS.into(),
                },
            }
        })
    }

    /// Checks the tool against the state schema and the run's resources.
    ///
    /// # Errors
    /// [`BuildError::InvalidTool`] with all faults: an undeclared key, a handler that the schema does not
    /// know or that cannot return the key's type, a missing resource.
    pub fn check(&self, schema: &Schema, resources: &Resources) -> Result<(), BuildError> {
        let mut faults = Vec::new();
        for key in &self.0.access.reads {
            if schema.key(key).is_none() && !schema.is_open() {
                faults.push(undeclared(key));
            }
        }
        for (key, handler) in &self.0.access.writes {
            if schema.key(key).is_none() && !schema.is_open() {
                // NOTE: A key that is also read was reported above.
                if !self.0.access.reads.contains(key) {
                    faults.push(undeclared(key));
                }
            } else if let Err(error) = schema.check_write_to(key, handler.as_ref()) {
                faults.push(Issue::new(format!("state key \"{key}\""), error.to_string()));
            }
        }
        for (id, name) in &*self.0.resources {
            if !resources.has(*id) {
                faults.push(Issue::new(format!("resource {name}"), "missing from the resources of the run"));
            }
        }
        self.fail_with(faults)
    }

    /// The JSON Schema for validating arguments: without the parameters that only the state sets. Not the
    /// strict form, which a model may be shown.
    ///
    /// # Examples
    /// ```
    /// use serde_json::json;
    /// use stepfold_tools::{RawArgs, Tool, ToolError};
    ///
    /// async fn count(RawArgs(_): RawArgs) -> Result<u64, ToolError> {
    ///     Ok(3)
    /// }
    /// let schema = json!({"type": "object", "properties": {"area": {"type": "integer"}}});
    /// let count = Tool::new("count", "Counts the stalls.", count).parameters(schema).build()?;
    /// assert_eq!(count.parameters()["properties"], json!({"area": {"type": "integer"}}));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn parameters(&self) -> &Value {
        self.0.arguments.schema()
    }

    /// Validates arguments against the schema that the model sees, as a call does before it runs.
    ///
    /// # Errors
    /// All faults, with their JSON paths.
    pub fn check_arguments(&self, arguments: &Map<String, Value>) -> Result<(), Issues> {
        self.accept(arguments).map(drop)
    }

    /// Validates arguments that a person gives in place of the model's: as [`check_arguments`](Tool::check_arguments)
    /// does, but rejects a parameter that only the state sets, since the call would run with the state's value.
    ///
    /// # Errors
    /// All faults, with their JSON paths.
    ///
    /// # Examples
    /// ```
    /// use serde_json::json;
    /// use stepfold_tools::{RawArgs, Tool, ToolError};
    ///
    /// async fn pay(RawArgs(_): RawArgs) -> Result<&'static str, ToolError> {
    ///     Ok("paid")
    /// }
    /// let parameters = json!({"type": "object", "properties": {"account": {"type": "string"}}});
    /// let pay = Tool::new("pay", "Pays a bill.", pay).parameters(parameters);
    /// let pay = pay.input_from_state("account", "account").build()?;
    ///
    /// let arguments = json!({"account": "B-2"});
    /// let arguments = arguments.as_object().unwrap();
    /// assert!(pay.check_arguments(arguments).is_ok(), "a model's are ignored");
    /// let faults = pay.check_given(arguments).unwrap_err();
    /// assert_eq!(
    ///     faults.to_string(),
    ///     "cannot be given: only the state sets it, by its key \"account\"; leave it out at $.account",
    /// );
    /// # Ok::<(), stepfold_tools::BuildError>(())
    /// ```
    pub fn check_given(&self, arguments: &Map<String, Value>) -> Result<(), Issues> {
        let hidden = self.0.inputs.iter().filter(|input| !input.is_visible);
        let given = hidden.filter(|input| arguments.contains_key(&input.parameter));
        let fault = |input: &InputBinding| {
            let message = format!(
                "cannot be given: only the state sets it, by its key \"{}\"; leave it out",
                input.key
            );
            Issue::new(format!("$.{}", input.parameter), message)
        };
        let mut faults: Vec<Issue> = given.map(fault).collect();
        if let Err(others) = self.check_arguments(arguments) {
            faults.extend(others.iter().cloned());
        }
        if faults.is_empty() { Ok(()) } else { Err(faults.into_iter().collect()) }
    }

    /// The model's arguments, if valid; parameters that only the state sets are ignored.
    pub(crate) fn accept(&self, sent: &Map<String, Value>) -> Result<Value, Issues> {
        let mut arguments = sent.clone();
        for input in self.0.inputs.iter().filter(|input| !input.is_visible) {
            // NOTE: The state's value wins: the model neither sees nor sets such a parameter.
            arguments.remove(&input.parameter);
        }
        let mut arguments = Value::Object(arguments);
        // NOTE: Only a strict mode makes models write null for an omitted parameter.
        if self.0.spec.strict {
            drop_stand_in_nulls(self.parameters(), &mut arguments);
            self.drop_bound_nulls(&mut arguments);
        }
        self.0.arguments.check(&arguments)?;
        Ok(arguments)
    }

    /// In strict mode null is a model's only way to omit a parameter, even if null is a valid value. A
    /// parameter that the state can fill then counts as omitted.
    fn drop_bound_nulls(&self, arguments: &mut Value) {
        let Value::Object(arguments) = arguments else { return };
        for input in self.0.inputs.iter() {
            if arguments.get(&input.parameter).is_some_and(Value::is_null) {
                arguments.remove(&input.parameter);
            }
        }
    }

    fn fail_with(&self, faults: Vec<Issue>) -> Result<(), BuildError> {
        if faults.is_empty() {
            return Ok(());
        }
        Err(BuildError::InvalidTool { tool: self.name().to_owned(), faults: faults.into_iter().collect() })
    }

    /// Renames the tool.
    ///
    /// # Errors
    /// [`BuildError::InvalidTool`] when models cannot use the name.
    pub fn renamed(&self, name: impl Into<String>) -> Result<Tool, BuildError> {
        let name = name.into();
        if let Some(fault) = fault_of_name(&name) {
            return Err(BuildError::InvalidTool { tool: name, faults: fault.into() });
        }
        let mut inner = (*self.0).clone();
        inner.name = name.as_str().into();
        inner.spec.name = name;
        // NOTE: The specification contains the name.
        inner.canonical = OnceLock::new();
        Ok(Tool(Arc::new(inner)))
    }

    pub(crate) fn definition(&self) -> &ToolDefinition {
        &self.0
    }
}

impl fmt::Debug for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tool")
            .field("name", &self.0.name)
            .field("effect", &self.0.effect)
            .field("inputs", &self.0.inputs)
            .field("outputs", &self.0.outputs)
            .finish_non_exhaustive()
    }
}

/// A tool or a builder of one, for lists of tools.
///
/// An error of a builder is kept and reported when the agent is built, together with all other faults.
///
/// # Examples
/// ```
/// use stepfold_tools::state_core::state::Schema;
/// use stepfold_tools::{Resources, Tool, ToolError, Toolset};
///
/// let ping = Tool::new("ping", "", async || Ok::<_, ToolError>("pong"));
/// let error = Toolset::from([ping]).check(&Schema::default(), &Resources::new()).unwrap_err();
/// assert!(error.to_string().starts_with("invalid tools: ping: description: must not be empty"));
/// ```
pub trait IntoTool {
    /// The tool.
    ///
    /// # Errors
    /// [`BuildError`] with all faults of the tool.
    fn into_tool(self) -> Result<Tool, BuildError>;
}

impl IntoTool for Tool {
    fn into_tool(self) -> Result<Tool, BuildError> {
        Ok(self)
    }
}

impl IntoTool for ToolBuilder {
    fn into_tool(self) -> Result<Tool, BuildError> {
        self.build()
    }
}

impl IntoTool for Result<Tool, BuildError> {
    fn into_tool(self) -> Result<Tool, BuildError> {
        self
    }
}

/// Builds a [`Tool`]; nothing is validated before [`build`](ToolBuilder::build).
#[must_use = "a builder does nothing until it is built"]
pub struct ToolBuilder {
    name: String,
    description: String,
    function: ErasedFunction,
    needs: Requirements,
    parameters: Option<Value>,
    unlisted: UnlistedProperties,
    is_strict: bool,
    extras: Extras,
    inputs: Vec<InputBinding>,
    outputs: Vec<OutputBinding>,
    result_text: Option<ResultText>,
    reads: Vec<String>,
    writes: Vec<String>,
    effect: Effect,
    timeout: Option<Duration>,
    retry: Option<Retry>,
    approval: Approval,
    listing: Option<ToolListing>,
}

impl ToolBuilder {
    fn new(name: String, description: String, function: ErasedFunction, needs: Requirements) -> Self {
        ToolBuilder {
            name,
            description,
            function,
            needs,
            parameters: None,
            unlisted: UnlistedProperties::default(),
            is_strict: false,
            extras: Extras::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            result_text: None,
            reads: Vec::new(),
            writes: Vec::new(),
            effect: Effect::default(),
            timeout: None,
            retry: None,
            approval: Approval::default(),
            listing: None,
        }
    }

    /// Sets the JSON Schema of the arguments, for a function that takes [`RawArgs`](crate::RawArgs), or in
    /// place of the one derived from [`Args`](crate::Args).
    pub fn parameters(mut self, schema: Value) -> Self {
        self.parameters = Some(schema);
        self
    }

    /// Leaves objects open that do not set `additionalProperties`, as in JSON Schema: for a function that passes its
    /// arguments to another party with its own reader, such as a server. By default the objects of the parameters are
    /// closed where possible, since nothing reads unlisted properties.
    ///
    /// # Examples
    /// ```
    /// use serde_json::{Value, json};
    /// use stepfold_tools::{RawArgs, Tool, ToolError};
    ///
    /// async fn send(RawArgs(arguments): RawArgs) -> Result<Value, ToolError> {
    ///     Ok(arguments)
    /// }
    /// let schema = json!({"type": "object", "properties": {"area": {"type": "integer"}}});
    /// let send = Tool::new("send", "Asks the server.", send).parameters(schema).open_parameters();
    /// let more = json!({"area": 3, "note": "more"});
    /// assert!(send.build()?.check_arguments(more.as_object().unwrap()).is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open_parameters(mut self) -> Self {
        self.unlisted = UnlistedProperties::Accepted;
        self
    }

    /// Adds fields that only one API has for a tool, under the name of its dialect (`anthropic`, for example); other APIs
    /// do not get them.
    ///
    /// # Examples
    /// ```
    /// use serde_json::json;
    /// use stepfold_tools::{Tool, ToolError};
    ///
    /// let search = Tool::new("search", "Finds.", || async { Ok::<_, ToolError>(3) })
    ///     .extra("anthropic", json!({"cache_control": {"type": "ephemeral"}}))
    ///     .build()?;
    /// assert!(search.spec().extras.get("anthropic").is_some());
    /// # Ok::<(), stepfold_tools::BuildError>(())
    /// ```
    pub fn extra(mut self, dialect: impl Into<String>, fields: impl Into<Value>) -> Self {
        self.extras.insert(dialect, fields);
        self
    }

    /// Asks providers to enforce the schema. A provider with a strict mode sends the form that its mode accepts, or the
    /// plain schema if there is no such form, and logs that.
    pub fn strict(mut self) -> Self {
        self.is_strict = true;
        self
    }

    /// Reads a parameter from a key of the state: the model neither sees nor sets it. A stored null is
    /// passed; an unset key omits the parameter.
    pub fn input_from_state(self, key: impl Into<Arc<str>>, parameter: impl Into<String>) -> Self {
        self.input(key, parameter, false)
    }

    /// Reads a parameter from a key of the state if the model omits it. The model sees the parameter, and its
    /// argument takes precedence.
    pub fn default_from_state(self, key: impl Into<Arc<str>>, parameter: impl Into<String>) -> Self {
        self.input(key, parameter, true)
    }

    fn input(mut self, key: impl Into<Arc<str>>, parameter: impl Into<String>, is_visible: bool) -> Self {
        self.inputs.push(InputBinding { key: key.into(), parameter: parameter.into(), is_visible });
        self
    }

    /// Writes a field of the result, or [the whole result](ResultSource::Whole), to a key of the state, with the
    /// key's own handler. A result without the field writes nothing.
    pub fn output_to_state(mut self, key: impl Into<Arc<str>>, source: impl Into<ResultSource>) -> Self {
        self.outputs.push(OutputBinding { key: key.into(), source: source.into(), handler: None });
        self
    }

    /// As [`output_to_state`](ToolBuilder::output_to_state), with another handler.
    pub fn output_to_state_with(
        mut self,
        key: impl Into<Arc<str>>,
        source: impl Into<ResultSource>,
        handler: Handler,
    ) -> Self {
        self.outputs.push(OutputBinding { key: key.into(), source: source.into(), handler: Some(handler) });
        self
    }

    /// Sets the text of the result for the model.
    pub fn output_to_string(mut self, text: ResultText) -> Self {
        self.result_text = Some(text);
        self
    }

    /// Declares keys that the function reads through its [`ToolContext`](crate::ToolContext). A call runs
    /// after the earlier calls of the reply that write one of them.
    pub fn reads<K: Into<String>>(mut self, keys: impl IntoIterator<Item = K>) -> Self {
        self.reads.extend(keys.into_iter().map(Into::into));
        self
    }

    /// Declares keys that the function writes through its [`StateWriter`](crate::StateWriter). Writes to
    /// other keys fail.
    pub fn writes<K: Into<String>>(mut self, keys: impl IntoIterator<Item = K>) -> Self {
        self.writes.extend(keys.into_iter().map(Into::into));
        self
    }

    /// Sets the effect of a call outside the process; [`Effect::AtMostOnce`] by default.
    pub fn effect(mut self, effect: Effect) -> Self {
        self.effect = effect;
        self
    }

    /// Sets the timeout of one attempt of a call.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Retries a failed or timed-out call. Only for pure or idempotent tools.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = Some(retry);
        self
    }

    /// Sets the approval rule of a call.
    pub fn approval(mut self, approval: Approval) -> Self {
        self.approval = approval;
        self
    }

    /// Sets its definition at the server that lists it.
    pub fn listing(mut self, listing: ToolListing) -> Self {
        self.listing = Some(listing);
        self
    }

    /// Validates everything that does not need the state's schema, and builds the tool.
    ///
    /// # Errors
    /// [`BuildError::InvalidTool`] with all faults: a name or description that models cannot use, an invalid
    /// schema, a binding to an unknown parameter, an invalid key or `messages`, two bindings of one
    /// parameter, retries of a tool that is not repeatable, undeclared writes.
    pub fn build(self) -> Result<Tool, BuildError> {
        let mut faults = self.faults();
        let parameters = self.model_parameters().unwrap_or_else(|message| {
            faults.push(Issue::new("parameters", message));
            Map::new()
        });
        faults.extend(self.faults_of_inputs(&parameters));
        let visible = Value::Object(self.visible(parameters));
        let arguments = match ValueType::of_schema(visible.clone()) {
            Ok(arguments) => Arc::new(arguments),
            Err(error) => {
                faults.push(Issue::new("parameters", error.to_string()));
                // NOTE: A stand-in, so that the remaining faults are found and reported together.
                Arc::new(ValueType::anything())
            }
        };
        if !faults.is_empty() {
            return Err(BuildError::InvalidTool { tool: self.name, faults: faults.into_iter().collect() });
        }
        let spec = self.spec(visible);
        Ok(Tool(Arc::new(ToolDefinition {
            name: self.name.as_str().into(),
            spec,
            arguments,
            access: Arc::new(self.access()),
            function: self.function,
            inputs: self.inputs.into(),
            outputs: self.outputs.into(),
            result_text: self.result_text,
            resources: self.needs.resources.into(),
            effect: self.effect,
            timeout: self.timeout,
            retry: self.retry,
            approval: self.approval,
            listing: self.listing,
            canonical: OnceLock::new(),
        })))
    }

    fn faults(&self) -> Vec<Issue> {
        let mut faults = self.needs.faults.clone();
        faults.extend(fault_of_name(&self.name));
        if self.description.trim().is_empty() {
            faults.push(Issue::new(
                "description",
                "must not be empty: describe for the model what the tool does and when to use it",
            ));
        }
        if self.timeout.is_some_and(|timeout| timeout.is_zero()) {
            faults.push(Issue::new("timeout", "must be positive: no call could finish"));
        }
        // NOTE: A retry could repeat the effect.
        if self.retry.is_some() && self.effect == Effect::AtMostOnce {
            let message =
                "requires a pure or idempotent tool: declare the effect, or leave retries to the model";
            faults.push(Issue::new("retry", message));
        }
        // NOTE: Calls are ordered by declared keys; an undeclared write would be an unseen race
        // (docs/decisions/tools.md).
        if self.needs.writes_state && self.writes.is_empty() {
            faults.push(Issue::new(
                "writes",
                "missing: the function takes a StateWriter, so declare the keys that it writes",
            ));
        }
        let keys = self.inputs.iter().map(|input| (&*input.key, false));
        let keys = keys.chain(self.outputs.iter().map(|output| (&*output.key, true)));
        let keys = keys.chain(self.writes.iter().map(|key| (key.as_str(), true)));
        for (key, is_written) in keys {
            if is_written && key == MESSAGES {
                faults.push(Issue::new("messages", "must not be written by tools: it is the conversation"));
            } else if let Err(error) = check_key(key) {
                faults.push(Issue::new(format!("state key \"{}\"", key.escape_debug()), error.to_string()));
            }
        }
        faults
    }

    /// The whole JSON Schema of the arguments, including those read from the state.
    fn model_parameters(&self) -> Result<Map<String, Value>, String> {
        match self.parameters.as_ref().or(self.needs.arguments.as_ref()) {
            Some(parameters) => schema::for_model(parameters.clone(), self.unlisted),
            None if self.needs.takes_raw_arguments => {
                Err("missing JSON Schema: set it with `parameters`, since the function takes raw arguments"
                    .to_owned())
            }
            None => schema::for_model(serde_json::json!({"type": "object"}), self.unlisted),
        }
    }

    fn faults_of_inputs(&self, parameters: &Map<String, Value>) -> Vec<Issue> {
        let known: Vec<&str> = match parameters.get("properties") {
            Some(Value::Object(properties)) => properties.keys().map(String::as_str).collect(),
            _ => Vec::new(),
        };
        let mut faults = Vec::new();
        for (index, input) in self.inputs.iter().enumerate() {
            let path = format!("parameter \"{}\"", input.parameter);
            if !known.contains(&input.parameter.as_str()) {
                let message =
                    format!("unknown parameter, read from the state; available: {}", known.join(", "));
                faults.push(Issue::new(&path, message));
            }
            if self.inputs[..index].iter().any(|earlier| earlier.parameter == input.parameter) {
                faults.push(Issue::new(&path, "read from two keys of the state"));
            }
        }
        faults
    }

    /// The parameters that the model sees: without those that only the state sets.
    fn visible(&self, mut parameters: Map<String, Value>) -> Map<String, Value> {
        for input in &self.inputs {
            if !input.is_visible
                && let Some(Value::Object(properties)) = parameters.get_mut("properties")
            {
                // NOTE: Not `remove`, which may change the order of the other parameters, and the model sees that order.
                properties.retain(|name, _| *name != input.parameter);
            }
            if let Some(Value::Array(required)) = parameters.get_mut("required") {
                required.retain(|name| *name != input.parameter);
            }
        }
        parameters
    }

    fn spec(&self, visible: Value) -> ToolSpec {
        let mut spec =
            ToolSpec::new(&self.name, self.description.trim(), visible).with_strict(self.is_strict);
        spec.extras = self.extras.clone();
        spec
    }

    fn access(&self) -> KeyAccess {
        let reads = self.inputs.iter().map(|input| Arc::clone(&input.key));
        let declared = self.reads.iter().chain(&self.needs.reads).map(|key| Arc::from(key.as_str()));
        let writes = self.outputs.iter().map(|output| (Arc::clone(&output.key), output.handler.clone()));
        let written = self.writes.iter().map(|key| (Arc::from(key.as_str()), None));
        KeyAccess { reads: reads.chain(declared).collect(), writes: writes.chain(written).collect() }
    }
}

impl fmt::Debug for ToolBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolBuilder").field("name", &self.name).finish_non_exhaustive()
    }
}

fn undeclared(key: &str) -> Issue {
    let message = "not declared: add it to the agent's schema, or to that of the graph around it";
    Issue::new(format!("state key \"{key}\""), message)
}

/// Providers accept names of up to 64 letters, digits, `_` and `-`.
fn fault_of_name(name: &str) -> Option<Issue> {
    let is_plain =
        name.chars().all(|character| character.is_ascii_alphanumeric() || matches!(character, '_' | '-'));
    let is_valid = is_plain && !name.is_empty() && name.len() <= MAX_NAME_BYTES;
    (!is_valid).then(|| Issue::new("name", "expected 1 to 64 letters, digits, '_' or '-'"))
}
