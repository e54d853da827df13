//! What can go wrong with a tool, by who can act on it.
//!
//! The model can: the error becomes a tool message ([`ToolError::new`]). The caller can: the error ends
//! the run beside the other outcomes ([`ToolError::fatal`]). The author can: [`BuildError`], before
//! anything runs.

use std::error::Error;
use std::fmt;

use stepfold_state_core::ErrorChain;
use stepfold_state_core::state::Faults;
use thiserror::Error as ThisError;

/// Why a tool call has no value.
///
/// `?` turns any error into one that the model reads. Like `anyhow::Error`, and for the same reason, this
/// type is not an [`Error`] itself.
///
/// # Examples
/// ```
/// use stepfold_tools::ToolError;
///
/// fn parse(text: &str) -> Result<f64, ToolError> {
///     if text.is_empty() {
///         return Err(ToolError::permanent("the expression is empty; give one like `1 + 2`"));
///     }
///     Ok(text.parse::<f64>()?)
/// }
/// assert_eq!(parse("x").unwrap_err().to_string(), "invalid float literal");
/// ```
#[derive(Debug)]
pub struct ToolError(Kind);

#[derive(Debug)]
pub(crate) enum Kind {
    /// For the model.
    Failed { message: String, is_permanent: bool },
    /// For the model: what it sent does not fit.
    InvalidArguments(Faults),
    /// For the model and the record: the call may have had its effect.
    Unknown(String),
    /// For the caller.
    Fatal(Box<dyn Error + Send + Sync>),
}

impl ToolError {
    /// An error that the model reads. A tool that allows retries is called again before.
    pub fn new(message: impl Into<String>) -> Self {
        ToolError(Kind::Failed { message: message.into(), is_permanent: false })
    }

    /// An error that the model reads at once: trying again would give the same.
    pub fn permanent(message: impl Into<String>) -> Self {
        ToolError(Kind::Failed { message: message.into(), is_permanent: true })
    }

    /// An error after which nobody knows whether the call had its effect: the connection to a service ended before the
    /// answer, say. The call's outcome is [unknown](crate::Status::Unknown), as after a crash, and the model reads that it
    /// may have had its effect; of a [pure](crate::Effect::Pure) tool it is a failure as any.
    ///
    /// # Examples
    /// ```
    /// use serde_json::json;
    /// use stepfold_tools::state_core::chat::ToolCall;
    /// use stepfold_tools::state_core::state::{Schema, State};
    /// use stepfold_tools::{Invocation, InvokeOptions, Status, Tool, ToolError, Tools};
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// async fn pay() -> Result<(), ToolError> {
    ///     Err(ToolError::unknown("the connection to the bank ended"))
    /// }
    /// let tools = Tools::of([Tool::new("pay", "Pays the bill.", pay).build()?])?;
    /// let calls = vec![ToolCall::new("c1", "pay", json!({}))];
    /// let state = State::new(&Schema::builder().build()?);
    /// let done = Invocation::new(&tools, state, calls, InvokeOptions::default()).finish().await;
    /// assert_eq!(done.outcomes[0].status, Status::Unknown);
    /// assert_eq!(done.outcomes[0].result.text(), "the connection to the bank ended; it may have had its effect");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn unknown(message: impl Into<String>) -> Self {
        ToolError(Kind::Unknown(message.into()))
    }

    /// The same error, if it is for the model, without further attempts.
    ///
    /// # Examples
    /// ```
    /// use stepfold_tools::ToolError;
    ///
    /// fn parse(text: &str) -> Result<f64, ToolError> {
    ///     // The text does not become a number by trying again.
    ///     text.parse::<f64>().map_err(|error| ToolError::from(error).into_permanent())
    /// }
    /// assert_eq!(parse("x").unwrap_err().to_string(), "invalid float literal");
    /// ```
    #[must_use]
    pub fn into_permanent(mut self) -> Self {
        if let Kind::Failed { is_permanent, .. } = &mut self.0 {
            *is_permanent = true;
        }
        self
    }

    /// An error that no model can do anything about: it ends the run, and the outcomes of the other
    /// calls are kept.
    pub fn fatal(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        ToolError(Kind::Fatal(source.into()))
    }

    pub(crate) fn invalid_arguments(faults: Faults) -> Self {
        ToolError(Kind::InvalidArguments(faults))
    }

    /// Whether another attempt may help.
    pub(crate) fn is_retryable(&self) -> bool {
        matches!(self.0, Kind::Failed { is_permanent: false, .. } | Kind::Unknown(_))
    }

    pub(crate) fn into_kind(self) -> Kind {
        self.0
    }
}

impl fmt::Display for ToolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Failed { message, .. } | Kind::Unknown(message) => f.write_str(message),
            Kind::InvalidArguments(faults) => write!(f, "the arguments do not fit: {faults}"),
            Kind::Fatal(source) => ErrorChain(&**source).fmt(f),
        }
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for ToolError {
    fn from(error: E) -> Self {
        ToolError::new(ErrorChain(&error).to_string())
    }
}

/// Why a tool, a toolset or the tools of an agent could not be put together. All faults are listed.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum BuildError {
    /// A tool says something about itself that cannot hold.
    #[error("tool '{tool}' has faults: {faults}")]
    InvalidTool {
        /// The tool's name.
        tool: String,
        /// Each fault, with what it is about as its path.
        faults: Faults,
    },
    /// Tools do not fit each other, the state schema or the resources they are used with.
    #[error("the tools have faults: {faults}")]
    InvalidTools {
        /// Each fault, with the tool's name as its path.
        faults: Faults,
    },
}

/// Why a toolset could not say which tools it has.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum ToolsetError {
    /// A dynamic toolset failed to list its tools.
    #[error("toolset \"{toolset}\" cannot list its tools: {}", ErrorChain(&**source))]
    List {
        /// The toolset.
        toolset: String,
        /// Why not.
        r#source: Box<dyn Error + Send + Sync>,
    },
    /// The tools do not fit each other, or have names that models cannot use.
    #[error(transparent)]
    Build(#[from] BuildError),
}
