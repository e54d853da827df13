//! Extractors: the parameters that a tool function may have, in any order.
//!
//! Each extractor also says what it needs, so that a tool whose needs cannot be met is refused when it is
//! built and not when it is called.

use std::any::{TypeId, type_name};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;
use stepfold_state_core::decode;
use stepfold_state_core::json_schema::json_schema_of;
use stepfold_state_core::state::{Fault, Key};

use crate::context::{StateWriter, ToolContext};
use crate::error::ToolError;

/// A parameter of a tool function that is made from the [`ToolContext`].
///
/// Implemented by [`Args`] (typed arguments), [`FromState`] (a typed read), [`StateWriter`] (buffered
/// writes), [`Resource`] (something of the application's) and [`ToolContext`] itself. Implement it for
/// your own types to combine these; the engine calls `needs` once, when the tool is built, and `extract`
/// for each call.
///
/// # Examples
/// ```
/// use stepfold_tools::{Extract, Needs, Resource, ToolContext, ToolError};
///
/// struct Region(String);
///
/// impl Extract for Region {
///     fn needs(needs: &mut Needs) {
///         Resource::<String>::needs(needs);
///     }
///     fn extract(context: &ToolContext) -> Result<Self, ToolError> {
///         Ok(Region(Resource::<String>::extract(context)?.0.to_uppercase()))
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a parameter of a tool function",
    label = "not an extractor",
    note = "parameters are `Args<T>`, `FromState<K>`, `StateWriter`, `Resource<T>`, `ToolContext`, or your own `Extract`"
)]
pub trait Extract: Sized {
    /// Adds what the parameter needs.
    fn needs(needs: &mut Needs) {
        let _ = needs;
    }

    /// Makes the parameter for one call.
    ///
    /// # Errors
    /// What the model reads when it cannot be made.
    fn extract(context: &ToolContext) -> Result<Self, ToolError>;
}

/// What the parameters of a tool function need, collected when the tool is built.
#[derive(Debug, Default)]
pub struct Needs {
    pub(crate) arguments: Option<Value>,
    pub(crate) takes_raw_arguments: bool,
    pub(crate) reads: Vec<String>,
    pub(crate) writes_state: bool,
    pub(crate) resources: Vec<(TypeId, &'static str)>,
    pub(crate) faults: Vec<Fault>,
}

impl Needs {
    /// The function takes typed arguments with this JSON Schema. It can do so once.
    pub fn arguments(&mut self, schema: Value) {
        if self.arguments.replace(schema).is_some() {
            self.faults.push(Fault::new("arguments", "two parameters take the arguments; use one struct"));
        }
    }

    /// The function takes its arguments as JSON, whatever their schema.
    pub fn raw_arguments(&mut self) {
        self.takes_raw_arguments = true;
    }

    /// The function reads a key of the state.
    pub fn reads(&mut self, key: impl Into<String>) {
        self.reads.push(key.into());
    }

    /// The function writes to the state.
    pub fn writes_state(&mut self) {
        self.writes_state = true;
    }

    /// The function uses a resource of the application.
    pub fn resource<T: 'static>(&mut self) {
        self.resources.push((TypeId::of::<T>(), type_name::<T>()));
    }
}

impl Extract for ToolContext {
    fn extract(context: &ToolContext) -> Result<Self, ToolError> {
        Ok(context.clone())
    }
}

/// The arguments of the call as a `T`. The tool's JSON Schema is made from `T`.
///
/// # Examples
/// ```
/// use schemars::JsonSchema;
/// use serde::Deserialize;
/// use stepfold_tools::{Args, Tool, ToolError};
///
/// #[derive(Deserialize, JsonSchema)]
/// struct Expression {
///     /// What to work out, such as `15 + 27`.
///     expression: String,
/// }
///
/// async fn count(Args(arguments): Args<Expression>) -> Result<usize, ToolError> {
///     Ok(arguments.expression.len())
/// }
/// let tool = Tool::new("count", "Counts the characters of an expression.", count).build()?;
/// assert_eq!(tool.spec().parameters["properties"]["expression"]["type"], "string");
/// # Ok::<(), stepfold_tools::BuildError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Args<T>(pub T);

impl<T: DeserializeOwned + JsonSchema> Extract for Args<T> {
    fn needs(needs: &mut Needs) {
        let schema = json_schema_of::<T>();
        if !["type", "properties", "$ref", "anyOf", "oneOf", "allOf"]
            .iter()
            .any(|rule| schema.get(rule).is_some())
        {
            let message =
                "`Args` of a type that may be anything has no schema; take `RawArgs` and give `parameters`";
            needs.faults.push(Fault::new("arguments", message));
        }
        needs.arguments(schema);
    }

    fn extract(context: &ToolContext) -> Result<Self, ToolError> {
        let arguments = decode(context.arguments());
        arguments.map(Args).map_err(|error| ToolError::invalid_arguments(Fault::from(error).into()))
    }
}

/// The arguments as a JSON object, for a tool with a schema of its own.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_tools::{RawArgs, Tool, ToolError};
///
/// let echo = |RawArgs(arguments): RawArgs| async move { Ok::<_, ToolError>(arguments) };
/// let tool = Tool::new("echo", "Gives back its arguments.", echo)
///     .parameters(json!({"type": "object", "properties": {"x": {"type": "integer"}}}))
///     .build()?;
/// # Ok::<(), stepfold_tools::BuildError>(())
/// ```
#[derive(Clone, Debug)]
pub struct RawArgs(pub Value);

impl Extract for RawArgs {
    fn needs(needs: &mut Needs) {
        needs.raw_arguments();
    }

    fn extract(context: &ToolContext) -> Result<Self, ToolError> {
        Ok(RawArgs(context.arguments().clone()))
    }
}

/// Names a key of the state with the type of its values, for [`FromState`]. See [`state_key!`](crate::state_key).
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not name a key of the state",
    label = "not a state key",
    note = "declare it with `state_key!`"
)]
pub trait StateKey: 'static {
    /// What the key holds.
    type Value: DeserializeOwned;
    /// The key.
    const KEY: Key<Self::Value>;
}

/// Declares a type that names a state key.
///
/// # Examples
/// ```
/// use stepfold_tools::{FromState, Tool, ToolError, state_key};
///
/// state_key! {
///     /// How the user wants to be called.
///     pub UserName: String = "user_name";
/// }
///
/// async fn greet(FromState(name): FromState<UserName>) -> Result<String, ToolError> {
///     Ok(format!("Hello {}", name.unwrap_or_else(|| "you".to_owned())))
/// }
/// let tool = Tool::new("greet", "Greets the user.", greet).build()?;
/// # Ok::<(), stepfold_tools::BuildError>(())
/// ```
#[macro_export]
macro_rules! state_key {
    ($($(#[$attribute:meta])* $visibility:vis $name:ident: $value:ty = $key:literal;)+) => {$(
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug)]
        $visibility struct $name;

        impl $crate::StateKey for $name {
            type Value = $value;
            const KEY: $crate::state_core::state::Key<$value> = $crate::state_core::state::Key::new($key);
        }
    )+};
}

/// A typed read of a state key: its value, or none if it is unset.
///
/// A call that reads a key runs after the other calls of the same reply that write it.
#[derive(Clone, Debug)]
pub struct FromState<K: StateKey>(pub Option<K::Value>);

impl<K: StateKey> Extract for FromState<K> {
    fn needs(needs: &mut Needs) {
        needs.reads(K::KEY.name());
    }

    fn extract(context: &ToolContext) -> Result<Self, ToolError> {
        match context.state().get(K::KEY) {
            Ok(value) => Ok(FromState(value)),
            // The source may show the value, and values of the state are not for the model.
            Err(_) => Err(ToolError::fatal(format!(
                "state key \"{}\" is not of the type that the tool reads",
                K::KEY.name()
            ))),
        }
    }
}

impl Extract for StateWriter {
    fn needs(needs: &mut Needs) {
        needs.writes_state();
    }

    fn extract(context: &ToolContext) -> Result<Self, ToolError> {
        Ok(context.writer())
    }
}

/// Something of the application's own, by type; see [`Resources`](crate::Resources).
#[derive(Clone, Debug)]
pub struct Resource<T>(pub Arc<T>);

impl<T: Send + Sync + 'static> Extract for Resource<T> {
    fn needs(needs: &mut Needs) {
        needs.resource::<T>();
    }

    fn extract(context: &ToolContext) -> Result<Self, ToolError> {
        context.resource().map(Resource).ok_or_else(|| {
            ToolError::fatal(format!("no resource of type {} was given to the run", type_name::<T>()))
        })
    }
}
