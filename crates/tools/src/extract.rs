//! Extractors: the parameter types of tool functions, in any order.
//!
//! Each extractor declares its requirements, so that a tool with unmet requirements is rejected when it is
//! built, not when it is called.

use std::any::{TypeId, type_name};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;
use stepfold_state_core::decode;
use stepfold_state_core::json_schema::json_schema_of;
use stepfold_state_core::state::{Issue, Key};

use crate::context::{StateWriter, ToolContext};
use crate::error::ToolError;

/// A parameter of a tool function, created from the [`ToolContext`].
///
/// Implemented by [`Args`] (typed arguments), [`FromState`] (a typed read), [`StateWriter`] (buffered
/// writes), [`Resource`] (an application's resource) and [`ToolContext`] itself. Implement it for your own
/// types to combine these; `needs` is called once, when the tool is built, and `extract` for each call.
///
/// # Examples
/// ```
/// use stepfold_tools::{Extract, Requirements, Resource, ToolContext, ToolError};
///
/// struct Region(String);
///
/// impl Extract for Region {
///     fn needs(needs: &mut Requirements) {
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
    /// Adds the parameter's requirements.
    fn needs(needs: &mut Requirements) {
        let _ = needs;
    }

    /// Creates the parameter for one call.
    ///
    /// # Errors
    /// The error that the model reads.
    fn extract(context: &ToolContext) -> Result<Self, ToolError>;
}

/// The requirements of a tool function's parameters, collected when the tool is built.
#[derive(Debug, Default)]
pub struct Requirements {
    pub(crate) arguments: Option<Value>,
    pub(crate) takes_raw_arguments: bool,
    pub(crate) reads: Vec<String>,
    pub(crate) writes_state: bool,
    pub(crate) resources: Vec<(TypeId, &'static str)>,
    pub(crate) faults: Vec<Issue>,
}

impl Requirements {
    /// Requires typed arguments with this JSON Schema; at most once.
    pub fn arguments(&mut self, schema: Value) {
        if self.arguments.replace(schema).is_some() {
            self.faults.push(Issue::new(
                "arguments",
                "two parameters take the arguments: combine them in one struct",
            ));
        }
    }

    /// Requires the arguments as JSON, with any schema.
    pub fn raw_arguments(&mut self) {
        self.takes_raw_arguments = true;
    }

    /// Declares a read of a state key.
    pub fn reads(&mut self, key: impl Into<String>) {
        self.reads.push(key.into());
    }

    /// Declares writes to the state.
    pub fn writes_state(&mut self) {
        self.writes_state = true;
    }

    /// Requires a resource of the application.
    pub fn resource<T: 'static>(&mut self) {
        self.resources.push((TypeId::of::<T>(), type_name::<T>()));
    }
}

impl Extract for ToolContext {
    fn extract(context: &ToolContext) -> Result<Self, ToolError> {
        Ok(context.clone())
    }
}

/// The typed arguments of the call. The tool's JSON Schema is derived from `T`.
///
/// # Examples
/// ```
/// use schemars::JsonSchema;
/// use serde::Deserialize;
/// use stepfold_tools::{Args, Tool, ToolError};
///
/// #[derive(Deserialize, JsonSchema)]
/// struct Expression {
///     /// The expression, such as `15 + 27`.
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
    fn needs(needs: &mut Requirements) {
        let schema = json_schema_of::<T>();
        // NOTE: `Args<Value>` has an empty schema: no argument would be described or checked.
        if !["type", "properties", "$ref", "anyOf", "oneOf", "allOf"]
            .iter()
            .any(|rule| schema.get(rule).is_some())
        {
            let message = "`Args` of an unconstrained type has no schema: use `RawArgs` and `parameters`";
            needs.faults.push(Issue::new("arguments", message));
        }
        needs.arguments(schema);
    }

    fn extract(context: &ToolContext) -> Result<Self, ToolError> {
        let arguments = decode(context.arguments());
        arguments.map(Args).map_err(|error| ToolError::invalid_arguments(Issue::from(error).into()))
    }
}

/// The arguments as a JSON object, for a tool with an explicit schema.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_tools::{RawArgs, Tool, ToolError};
///
/// let echo = |RawArgs(arguments): RawArgs| async move { Ok::<_, ToolError>(arguments) };
/// let tool = Tool::new("echo", "Returns its arguments.", echo)
///     .parameters(json!({"type": "object", "properties": {"x": {"type": "integer"}}}))
///     .build()?;
/// # Ok::<(), stepfold_tools::BuildError>(())
/// ```
#[derive(Clone, Debug)]
pub struct RawArgs(pub Value);

impl Extract for RawArgs {
    fn needs(needs: &mut Requirements) {
        needs.raw_arguments();
    }

    fn extract(context: &ToolContext) -> Result<Self, ToolError> {
        Ok(RawArgs(context.arguments().clone()))
    }
}

/// A typed state key, for [`FromState`]. See [`state_key!`](crate::state_key).
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not name a key of the state",
    label = "not a state key",
    note = "declare it with `state_key!`"
)]
pub trait StateKey: 'static {
    /// The type of the key's values.
    type Value: DeserializeOwned;
    /// The key.
    const KEY: Key<Self::Value>;
}

/// Declares a type for a state key.
///
/// # Examples
/// ```
/// use stepfold_tools::{FromState, Tool, ToolError, state_key};
///
/// state_key! {
///     /// The user's preferred name.
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

/// A typed read of a state key: its value, or `None` if it is unset.
///
/// A call that reads a key runs after the earlier calls of the reply that write it.
#[derive(Clone, Debug)]
pub struct FromState<K: StateKey>(pub Option<K::Value>);

impl<K: StateKey> Extract for FromState<K> {
    fn needs(needs: &mut Requirements) {
        needs.reads(K::KEY.name());
    }

    fn extract(context: &ToolContext) -> Result<Self, ToolError> {
        match context.state().get(K::KEY) {
            Ok(value) => Ok(FromState(value)),
            // NOTE: A type's own decoding error may describe the value, and the model must not see values of the state.
            Err(_) => Err(ToolError::fatal(format!(
                "state key \"{}\" does not have the type that the tool reads",
                K::KEY.name()
            ))),
        }
    }
}

impl Extract for StateWriter {
    fn needs(needs: &mut Requirements) {
        needs.writes_state();
    }

    fn extract(context: &ToolContext) -> Result<Self, ToolError> {
        Ok(context.writer())
    }
}

/// A resource of the application, by type; see [`Resources`](crate::Resources).
#[doc(alias("deps", "dependency", "RunContext"))]
#[derive(Clone, Debug)]
pub struct Resource<T>(pub Arc<T>);

impl<T: Send + Sync + 'static> Extract for Resource<T> {
    fn needs(needs: &mut Requirements) {
        needs.resource::<T>();
    }

    fn extract(context: &ToolContext) -> Result<Self, ToolError> {
        context.resource().map(Resource).ok_or_else(|| {
            ToolError::fatal(format!(
                "missing resource of type {}: add it to the run's resources",
                type_name::<T>()
            ))
        })
    }
}
