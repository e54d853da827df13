//! What the expansion of `#[tool]` uses from here, so that a user's crate needs neither serde nor schemars
//! as a dependency of its own. Not for any other use: it changes without notice.

use ::schemars::JsonSchema;
use ::serde::Serialize;
use ::serde::de::DeserializeOwned;
use serde_json::Value;

pub use ::{schemars, serde};

use crate::error::ToolError;
use crate::extract::Extract;
use crate::function::ToolReturn;

/// What an argument of a `#[tool]` function can be.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an argument of a tool",
    label = "cannot be read from the JSON that a model sends",
    note = "for a type of your own, derive `serde::Deserialize` and `schemars::JsonSchema`",
    note = "an extractor of your own is marked `#[extract]`"
)]
pub trait Argument {}

#[diagnostic::do_not_recommend]
impl<T: DeserializeOwned + JsonSchema> Argument for T {}

/// Asserts that a parameter can be an argument.
pub fn argument<T: Argument>() {}

/// Asserts that a parameter can be extracted.
pub fn extractor<T: Extract>() {}

/// Asserts that an async function can run beside others.
pub fn future<F: Future + Send + 'static>(future: F) -> F {
    future
}

/// What a function returned: a `Result` under whatever name, or a plain value.
///
/// A method of the type is found before one of a trait, and so the `Result` before the plain value.
pub struct Returned<T>(pub T);

/// The JSON of what was returned.
pub struct Finished(Result<Value, ToolError>);

impl<T, E> Returned<Result<T, E>> {
    pub fn outcome(self) -> Finished
    where
        T: Serialize,
        E: Into<ToolError>,
    {
        Finished(self.0.into_value())
    }
}

/// See [`Returned`].
pub trait Plain<T> {
    fn outcome(self) -> Finished
    where
        T: Serialize;
}

impl<T> Plain<T> for Returned<T> {
    fn outcome(self) -> Finished
    where
        T: Serialize,
    {
        Finished(Ok::<T, ToolError>(self.0).into_value())
    }
}

impl ToolReturn for Finished {
    fn into_value(self) -> Result<Value, ToolError> {
        self.0
    }
}
