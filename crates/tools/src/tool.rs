//! A tool: what the model sees of it, the function behind it, and how the two meet the state.
//!
//! Everything that can be known to be wrong is refused by [`ToolBuilder::build`] or, where the state schema
//! is needed to know it, by [`Tool::check`]: a typo fails there, not in production.

use std::any::{Any, TypeId};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use stepfold_state_core::chat::{Extras, ToolSpec};
use stepfold_state_core::json_schema::ValueType;
use stepfold_state_core::state::{Fault, Faults, Handler, MESSAGES, Schema, check_key};

use crate::binding::{InputBinding, OutputBinding, ResultText, Source};
use crate::error::BuildError;
use crate::extract::Needs;
use crate::function::{Function, Parameters, ToolFunction, ToolReturn, Work};
use crate::policy::{Approval, Effect, Retry};
use crate::resources::Resources;
use crate::schema::{self, drop_stand_in_nulls};

/// The longest tool name, in bytes: what providers accept.
const MAX_NAME_BYTES: usize = 64;

/// Something that a model may do. Immutable and cheap to clone.
///
/// # Examples
/// spec/000, "calculator":
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
pub struct Tool(Arc<Inner>);

#[derive(Clone)]
pub(crate) struct Inner {
    pub(crate) name: Arc<str>,
    pub(crate) spec: ToolSpec,
    pub(crate) function: Function,
    /// Checks what the model sends. The schema is the plain one, also when the model sees the strict one.
    pub(crate) arguments: Arc<ValueType>,
    pub(crate) inputs: Arc<[InputBinding]>,
    pub(crate) outputs: Arc<[OutputBinding]>,
    pub(crate) result_text: Option<ResultText>,
    pub(crate) access: Arc<Access>,
    pub(crate) resources: Arc<[(TypeId, &'static str)]>,
    pub(crate) effect: Effect,
    pub(crate) time_out: Option<Duration>,
    pub(crate) retry: Option<Retry>,
    pub(crate) approval: Approval,
}

/// What a tool reads of the state and writes to it, by which calls of one reply are ordered.
#[derive(Debug, Default)]
pub(crate) struct Access {
    pub(crate) reads: BTreeSet<Arc<str>>,
    /// With the handler, where a binding overrides the key's own.
    pub(crate) writes: Vec<(Arc<str>, Option<Handler>)>,
}

impl Access {
    pub(crate) fn may_write(&self, key: &str) -> bool {
        self.writes.iter().any(|(known, _)| **known == *key)
    }
}

impl Tool {
    /// Starts a tool from an async function or closure of [extractors](crate::Extract).
    #[expect(clippy::new_ret_no_self, reason = "a tool starts as its builder, and reads so")]
    pub fn new<P, F>(name: impl Into<String>, description: impl Into<String>, function: F) -> ToolBuilder
    where
        P: Parameters,
        F: ToolFunction<P, Output: Future<Output: ToolReturn> + Send + 'static>,
    {
        let mut needs = Needs::default();
        P::needs(&mut needs);
        ToolBuilder::new(name.into(), description.into(), Function::of_async(function), needs)
    }

    /// Starts a tool from a function that waits: for a file, a database, a program. It runs on a thread of its own,
    /// never on those that drive the run; [`MAX_BLOCKING_THREADS`](crate::MAX_BLOCKING_THREADS) run at a time in a
    /// process, and further calls wait for their turn. One that computes is better a [`cpu`](Tool::cpu) tool.
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
        let mut needs = Needs::default();
        P::needs(&mut needs);
        ToolBuilder::new(name.into(), description.into(), Function::on_thread(Work::Waits, function), needs)
    }

    /// Starts a tool from a function that computes: it runs on a pool of as many threads as there are cores, never
    /// on those that drive the run. One that waits would keep a core from the others: see
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
        let mut needs = Needs::default();
        P::needs(&mut needs);
        ToolBuilder::new(
            name.into(),
            description.into(),
            Function::on_thread(Work::Computes, function),
            needs,
        )
    }

    /// Starts a tool that has no function: a host that [runs such tools](crate::InvokeOptions::hosts_calls) knows what
    /// to do by what it finds with [`hosted_as`](Tool::hosted_as). So does the agent loop with agents as tools. Arguments,
    /// approval, order and the form of the result are those of any tool.
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
        let function = Function::Hosted(Arc::new(work));
        ToolBuilder::new(name.into(), description.into(), function, Needs::default())
    }

    /// What the host of a [hosted](Tool::hosted) tool knows it by, if it is a `T`.
    pub fn hosted_as<T: Any>(&self) -> Option<&T> {
        match &self.0.function {
            Function::Hosted(work) => work.downcast_ref(),
            _ => None,
        }
    }

    /// Whether the tool has no function, because its [host](Tool::hosted) runs it.
    pub fn is_hosted(&self) -> bool {
        matches!(self.0.function, Function::Hosted(_))
    }

    /// What the model calls the tool by.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// What the model sees.
    pub fn spec(&self) -> &ToolSpec {
        &self.0.spec
    }

    /// What a call may do to the world.
    pub fn effect(&self) -> Effect {
        self.0.effect
    }

    /// Who has to agree before a call runs.
    pub fn approval(&self) -> &Approval {
        &self.0.approval
    }

    /// The timeout of one attempt of a call, if the tool has one of its own.
    pub fn time_out(&self) -> Option<Duration> {
        self.0.time_out
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

    /// The bindings of the tool to the state, and what of a result the model reads, as JSON, to compare them with recorded
    /// ones. Of functions that format a result it has only that they are there.
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
            json!([&*output.key, output.source.words(), output.handler.as_ref().map(ToString::to_string)])
        });
        let mut bindings = json!({
            "inputs": inputs.collect::<Vec<_>>(),
            "outputs": outputs.collect::<Vec<_>>(),
            "reads": self.reads().collect::<Vec<_>>(),
            "writes": self.writes().collect::<Vec<_>>(),
        });
        if let Some(text) = &self.0.result_text {
            bindings["text"] = text.words();
        }
        bindings
    }

    /// Checks the tool against the schema of the state that it will be used with and the resources that the
    /// run will have.
    ///
    /// # Errors
    /// [`BuildError::InvalidTool`] with all faults: a key that the schema does not declare, a handler that it
    /// does not know or that cannot give the key's type, a resource that is missing.
    pub fn check(&self, schema: &Schema, resources: &Resources) -> Result<(), BuildError> {
        let mut faults = Vec::new();
        for key in &self.0.access.reads {
            if schema.key(key).is_none() && !schema.is_open() {
                faults.push(Fault::new(
                    format!("state key \"{key}\""),
                    "is read, but the schema does not declare it",
                ));
            }
        }
        for (key, handler) in &self.0.access.writes {
            if let Err(error) = schema.check_write_to(key, handler.as_ref()) {
                faults.push(Fault::new(format!("state key \"{key}\""), error.to_string()));
            }
        }
        for (id, name) in &*self.0.resources {
            if !resources.has(*id) {
                faults.push(Fault::new(format!("resource {name}"), "is not among the resources of the run"));
            }
        }
        self.fail_with(faults)
    }

    /// The JSON Schema that arguments are checked against: without the parameters that only the state sets. Not the strict
    /// form, which a model may be shown.
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

    /// Checks arguments against the schema that the model sees, as a call does before it runs.
    ///
    /// # Errors
    /// All faults, with their JSON paths.
    pub fn check_arguments(&self, arguments: &Map<String, Value>) -> Result<(), Faults> {
        self.accept(arguments).map(drop)
    }

    /// The arguments that the model may set, if they fit; what only the state sets is ignored.
    pub(crate) fn accept(&self, sent: &Map<String, Value>) -> Result<Value, Faults> {
        let mut arguments = sent.clone();
        for input in self.0.inputs.iter().filter(|input| !input.is_visible) {
            arguments.remove(&input.parameter);
        }
        let mut arguments = Value::Object(arguments);
        if self.0.spec.strict {
            drop_stand_in_nulls(self.parameters(), &mut arguments);
            self.drop_fed_nulls(&mut arguments);
        }
        self.0.arguments.check(&arguments)?;
        Ok(arguments)
    }

    /// In strict mode a model has no other way to leave a parameter out than null, also where null is a value
    /// of it. What the state can fill counts as left out then.
    fn drop_fed_nulls(&self, arguments: &mut Value) {
        let Value::Object(arguments) = arguments else { return };
        for input in self.0.inputs.iter() {
            if arguments.get(&input.parameter).is_some_and(Value::is_null) {
                arguments.remove(&input.parameter);
            }
        }
    }

    fn fail_with(&self, faults: Vec<Fault>) -> Result<(), BuildError> {
        if faults.is_empty() {
            return Ok(());
        }
        Err(BuildError::InvalidTool { tool: self.name().to_owned(), faults: faults.into_iter().collect() })
    }

    /// The same tool under another name.
    ///
    /// # Errors
    /// [`BuildError::InvalidTool`] when the name is not one that models can use.
    pub fn renamed(&self, name: impl Into<String>) -> Result<Tool, BuildError> {
        let name = name.into();
        if let Some(fault) = fault_of_name(&name) {
            return Err(BuildError::InvalidTool { tool: name, faults: fault.into() });
        }
        let mut inner = (*self.0).clone();
        inner.name = name.as_str().into();
        inner.spec.name = name;
        Ok(Tool(Arc::new(inner)))
    }

    pub(crate) fn inner(&self) -> &Inner {
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

/// Puts a [`Tool`] together; nothing is checked before [`build`](ToolBuilder::build).
#[must_use = "a builder does nothing until it is built"]
pub struct ToolBuilder {
    name: String,
    description: String,
    function: Function,
    needs: Needs,
    parameters: Option<Value>,
    is_strict: bool,
    extras: Extras,
    inputs: Vec<InputBinding>,
    outputs: Vec<OutputBinding>,
    result_text: Option<ResultText>,
    reads: Vec<String>,
    writes: Vec<String>,
    effect: Effect,
    time_out: Option<Duration>,
    retry: Option<Retry>,
    approval: Approval,
}

impl ToolBuilder {
    fn new(name: String, description: String, function: Function, needs: Needs) -> Self {
        ToolBuilder {
            name,
            description,
            function,
            needs,
            parameters: None,
            is_strict: false,
            extras: Extras::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            result_text: None,
            reads: Vec::new(),
            writes: Vec::new(),
            effect: Effect::default(),
            time_out: None,
            retry: None,
            approval: Approval::default(),
        }
    }

    /// The JSON Schema of the arguments, for a function that takes [`RawArgs`](crate::RawArgs), or in place
    /// of the one made from [`Args`](crate::Args).
    pub fn parameters(mut self, schema: Value) -> Self {
        self.parameters = Some(schema);
        self
    }

    /// Adds fields that one API has for a tool beside the others, under the name of its dialect (`anthropic`, say); other
    /// APIs leave them out.
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

    /// Asks providers to hold the model to the schema. One that has a strict mode sends the form that its mode takes, and
    /// the plain schema where there is none, which it logs.
    pub fn strict(mut self) -> Self {
        self.is_strict = true;
        self
    }

    /// Feeds a parameter from a key of the state: the model neither sees nor sets it. A stored null is fed;
    /// an unset key leaves the parameter out.
    pub fn input_from_state(self, key: impl Into<Arc<str>>, parameter: impl Into<String>) -> Self {
        self.input(key, parameter, false)
    }

    /// Fills a parameter from a key of the state when the model left it out. The model sees it, and its
    /// argument wins.
    pub fn default_from_state(self, key: impl Into<Arc<str>>, parameter: impl Into<String>) -> Self {
        self.input(key, parameter, true)
    }

    fn input(mut self, key: impl Into<Arc<str>>, parameter: impl Into<String>, is_visible: bool) -> Self {
        self.inputs.push(InputBinding { key: key.into(), parameter: parameter.into(), is_visible });
        self
    }

    /// Writes a field of the result, or [all of it](Source::Whole), to a key of the state, by the key's own
    /// handler. A result without the field writes nothing.
    pub fn output_to_state(mut self, key: impl Into<Arc<str>>, source: impl Into<Source>) -> Self {
        self.outputs.push(OutputBinding { key: key.into(), source: source.into(), handler: None });
        self
    }

    /// The same with another handler.
    pub fn output_to_state_with(
        mut self,
        key: impl Into<Arc<str>>,
        source: impl Into<Source>,
        handler: Handler,
    ) -> Self {
        self.outputs.push(OutputBinding { key: key.into(), source: source.into(), handler: Some(handler) });
        self
    }

    /// What the model reads of the result.
    pub fn output_to_string(mut self, text: ResultText) -> Self {
        self.result_text = Some(text);
        self
    }

    /// Keys that the function reads through its [`ToolContext`](crate::ToolContext). A call runs after the
    /// other calls of the same reply that write one of them.
    pub fn reads<K: Into<String>>(mut self, keys: impl IntoIterator<Item = K>) -> Self {
        self.reads.extend(keys.into_iter().map(Into::into));
        self
    }

    /// Keys that the function writes through its [`StateWriter`](crate::StateWriter). Others it may not write.
    pub fn writes<K: Into<String>>(mut self, keys: impl IntoIterator<Item = K>) -> Self {
        self.writes.extend(keys.into_iter().map(Into::into));
        self
    }

    /// What a call may do to the world; undeclared, it counts as [`Effect::AtMostOnce`].
    pub fn effect(mut self, effect: Effect) -> Self {
        self.effect = effect;
        self
    }

    /// Sets the timeout of one attempt of a call.
    pub fn time_out(mut self, time_out: Duration) -> Self {
        self.time_out = Some(time_out);
        self
    }

    /// Retries a failed or timed-out call. Only for tools that say they are pure or idempotent.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = Some(retry);
        self
    }

    /// Who has to agree before a call runs.
    pub fn approval(mut self, approval: Approval) -> Self {
        self.approval = approval;
        self
    }

    /// Checks all that can be checked without the state's schema, and builds the tool.
    ///
    /// # Errors
    /// [`BuildError::InvalidTool`] with all faults: a name or description that models cannot use, a schema
    /// that is none, a binding to an unknown parameter or an invalid key or `messages`, two bindings of one
    /// parameter, a retry of a tool that may have its effect only once, writes that are not declared.
    pub fn build(self) -> Result<Tool, BuildError> {
        let mut faults = self.faults();
        let parameters = self.model_parameters().unwrap_or_else(|message| {
            faults.push(Fault::new("parameters", message));
            Map::new()
        });
        faults.extend(self.faults_of_inputs(&parameters));
        let visible = Value::Object(self.visible(parameters));
        let arguments = match ValueType::of_schema(visible.clone()) {
            Ok(arguments) => Arc::new(arguments),
            Err(message) => {
                faults.push(Fault::new("parameters", message));
                Arc::new(ValueType::anything())
            }
        };
        if !faults.is_empty() {
            return Err(BuildError::InvalidTool { tool: self.name, faults: faults.into_iter().collect() });
        }
        let spec = self.spec(visible);
        Ok(Tool(Arc::new(Inner {
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
            time_out: self.time_out,
            retry: self.retry,
            approval: self.approval,
        })))
    }

    fn faults(&self) -> Vec<Fault> {
        let mut faults = self.needs.faults.clone();
        faults.extend(fault_of_name(&self.name));
        if self.description.trim().is_empty() {
            faults.push(Fault::new(
                "description",
                "is empty; say for the model what the tool does and when to use it",
            ));
        }
        if self.time_out.is_some_and(|time_out| time_out.is_zero()) {
            faults.push(Fault::new("time_out", "is zero; no call could ever finish"));
        }
        if self.retry.is_some() && self.effect == Effect::AtMostOnce {
            let message = "is only for tools that are pure or idempotent; declare the effect, or leave the retry to the model";
            faults.push(Fault::new("retry", message));
        }
        if self.needs.writes_state && self.writes.is_empty() {
            faults.push(Fault::new(
                "writes",
                "the function takes a StateWriter; declare the keys that it writes",
            ));
        }
        let keys = self.inputs.iter().map(|input| (&*input.key, false));
        let keys = keys.chain(self.outputs.iter().map(|output| (&*output.key, true)));
        let keys = keys.chain(self.writes.iter().map(|key| (key.as_str(), true)));
        for (key, is_written) in keys {
            if is_written && key == MESSAGES {
                faults.push(Fault::new("messages", "is the conversation and takes no writes from tools"));
            } else if let Err(error) = check_key(key) {
                faults.push(Fault::new(format!("state key \"{}\"", key.escape_debug()), error.to_string()));
            }
        }
        faults
    }

    /// The whole JSON Schema of the arguments, state-fed ones included.
    fn model_parameters(&self) -> Result<Map<String, Value>, String> {
        match self.parameters.as_ref().or(self.needs.arguments.as_ref()) {
            Some(parameters) => schema::for_model(parameters.clone()),
            None if self.needs.takes_raw_arguments => {
                Err("the function takes raw arguments; give their JSON Schema with `parameters`".to_owned())
            }
            None => schema::for_model(serde_json::json!({"type": "object"})),
        }
    }

    fn faults_of_inputs(&self, parameters: &Map<String, Value>) -> Vec<Fault> {
        let known: Vec<&str> = match parameters.get("properties") {
            Some(Value::Object(properties)) => properties.keys().map(String::as_str).collect(),
            _ => Vec::new(),
        };
        let mut faults = Vec::new();
        for (index, input) in self.inputs.iter().enumerate() {
            let path = format!("parameter \"{}\"", input.parameter);
            if !known.contains(&input.parameter.as_str()) {
                let message = format!(
                    "is fed from state, but the tool has no such parameter; it has: {}",
                    known.join(", ")
                );
                faults.push(Fault::new(&path, message));
            }
            if self.inputs[..index].iter().any(|earlier| earlier.parameter == input.parameter) {
                faults.push(Fault::new(&path, "is fed from two keys of the state"));
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
                // Not `remove`, which may change the order of the others, and their order reaches the model.
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

    fn access(&self) -> Access {
        let reads = self.inputs.iter().map(|input| Arc::clone(&input.key));
        let declared = self.reads.iter().chain(&self.needs.reads).map(|key| Arc::from(key.as_str()));
        let writes = self.outputs.iter().map(|output| (Arc::clone(&output.key), output.handler.clone()));
        let written = self.writes.iter().map(|key| (Arc::from(key.as_str()), None));
        Access { reads: reads.chain(declared).collect(), writes: writes.chain(written).collect() }
    }
}

impl fmt::Debug for ToolBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolBuilder").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Providers accept letters, digits, `_` and `-`, up to 64 of them.
fn fault_of_name(name: &str) -> Option<Fault> {
    let is_plain =
        name.chars().all(|character| character.is_ascii_alphanumeric() || matches!(character, '_' | '-'));
    let is_valid = is_plain && !name.is_empty() && name.len() <= MAX_NAME_BYTES;
    (!is_valid).then(|| {
        Fault::new("name", "is not of 1 to 64 letters, digits, '_' or '-', which is what models can call")
    })
}
