//! Items for the expansion of `#[tool]`, so that a user's crate does not need serde or schemars as a
//! dependency. Not for any other use: it changes without notice.

use ::schemars::JsonSchema;
use ::serde::Serialize;
use ::serde::de::DeserializeOwned;
use serde_json::Value;

pub use ::{schemars, serde};

use crate::error::ToolError;
use crate::extract::Extract;
pub use crate::function::IntoToolError;
use crate::function::ToolReturn;

/// A type that can be an argument of a `#[tool]` function.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an argument of a tool",
    label = "cannot be read from the JSON that a model sends",
    note = "for a type of your own, derive `serde::Deserialize` and `schemars::JsonSchema`",
    note = "mark a custom extractor with `#[extract]`",
    note = "a tool reads the state with a parameter marked `#[from_state]`, and writes it with a `StateWriter`"
)]
pub trait Argument {}

#[diagnostic::do_not_recommend]
impl<T: DeserializeOwned + JsonSchema> Argument for T {}

/// Asserts that a parameter can be an argument.
pub fn argument<T: Argument>() {}

/// Asserts that a parameter can be extracted.
pub fn extractor<T: Extract>() {}

/// Asserts that an async function can run concurrently with others.
pub fn future<F: Future + Send + 'static>(future: F) -> F {
    future
}

/// The return value of a function: a `Result` under any name, or a plain value.
///
/// Inherent methods take precedence over trait methods, so a `Result` is recognised before a plain value.
pub struct Returned<T>(pub T);

/// The JSON of a return value.
pub struct Finished(Result<Value, ToolError>);

impl<T, E> Returned<Result<T, E>> {
    pub fn outcome(self) -> Finished
    where
        T: Serialize,
        E: IntoToolError,
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
