//! Errors of tools, by who can act on them.
//!
//! The model can: the error becomes a tool message ([`ToolError::new`]). The caller can: the error ends the
//! run, and other outcomes are kept ([`ToolError::fatal`]). The author can: [`BuildError`], before anything
//! runs.

use std::error::Error;
use std::fmt;

use stepfold_state_core::ErrorChain;
use stepfold_state_core::state::Issues;
use thiserror::Error as ThisError;

use crate::input::InputRequest;

/// An error of a tool call.
///
/// `?` converts any error into one that the model reads. Like `anyhow::Error`, and for the same reason, this
/// type does not implement [`Error`] itself.
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
pub struct ToolError(ToolErrorKind);

#[derive(Debug)]
pub(crate) enum ToolErrorKind {
    /// For the model.
    Failed { message: String, is_permanent: bool },
    /// For the model: invalid arguments.
    InvalidArguments(Issues),
    /// For the model and the record: the call may have had its effect.
    Unknown(String),
    /// For the user; the call continues with the answers.
    InputRequired(Vec<InputRequest>),
    /// For the caller.
    Fatal(Box<dyn Error + Send + Sync>),
}

impl ToolError {
    /// An error that the model reads, after the retries that the tool allows.
    pub fn new(message: impl Into<String>) -> Self {
        ToolError(ToolErrorKind::Failed { message: message.into(), is_permanent: false })
    }

    /// An error that the model reads immediately, without retries.
    pub fn permanent(message: impl Into<String>) -> Self {
        ToolError(ToolErrorKind::Failed { message: message.into(), is_permanent: true })
    }

    /// An error with an unknown outcome: the call may have had its effect. For example, the connection to a service
    /// ended before the response. The status is [`Unknown`](crate::CallStatus::Unknown), as after a crash, and the model
    /// reads that the effect may have happened; a [pure](crate::Effect::Pure) tool fails as with any error.
    ///
    /// # Examples
    /// ```
    /// use serde_json::json;
    /// use stepfold_tools::state_core::chat::ToolCall;
    /// use stepfold_tools::state_core::state::{Schema, State};
    /// use stepfold_tools::{Invocation, InvokeOptions, CallStatus, Tool, ToolError, Tools};
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// async fn pay() -> Result<(), ToolError> {
    ///     Err(ToolError::unknown("the connection to the bank ended"))
    /// }
    /// let tools = Tools::of([Tool::new("pay", "Pays the bill.", pay).build()?])?;
    /// let calls = vec![ToolCall::new("c1", "pay", json!({}))];
    /// let state = State::new(&Schema::builder().build()?);
    /// let done = Invocation::new(&tools, state, calls, InvokeOptions::default()).finish().await;
    /// assert_eq!(done.outcomes[0].status, CallStatus::Unknown);
    /// assert_eq!(done.outcomes[0].result.text(), "the connection to the bank ended; the effect may have happened");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn unknown(message: impl Into<String>) -> Self {
        ToolError(ToolErrorKind::Unknown(message.into()))
    }

    /// Disables retries, if the error is for the model.
    ///
    /// # Examples
    /// ```
    /// use stepfold_tools::ToolError;
    ///
    /// fn parse(text: &str) -> Result<f64, ToolError> {
    ///     // A retry would fail for the same reason.
    ///     text.parse::<f64>().map_err(|error| ToolError::from(error).into_permanent())
    /// }
    /// assert_eq!(parse("x").unwrap_err().to_string(), "invalid float literal");
    /// ```
    #[must_use]
    pub fn into_permanent(mut self) -> Self {
        if let ToolErrorKind::Failed { is_permanent, .. } = &mut self.0 {
            *is_permanent = true;
        }
        self
    }

    /// An error that no model can act on: it ends the run, and the outcomes of the other calls are kept.
    pub fn fatal(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        ToolError(ToolErrorKind::Fatal(source.into()))
    }

    /// Ends the attempt with questions to the user. The run stores them and waits, as for an approval. When all of them
    /// are answered, in any process, the tool runs again, with the answers in
    /// [`ToolContext::answered`](crate::ToolContext::answered). For one question,
    /// [`ToolContext::ask`](crate::ToolContext::ask) is shorter.
    ///
    /// The attempt must not have an effect that the next one repeats.
    ///
    /// # Examples
    /// ```
    /// use stepfold_tools::{InputRequest, ToolError};
    ///
    /// let error = ToolError::input_required([InputRequest::new("seat", "Window or aisle?")]);
    /// assert_eq!(error.to_string(), "input required: Window or aisle?");
    /// ```
    pub fn input_required(requests: impl IntoIterator<Item = InputRequest>) -> Self {
        ToolError(ToolErrorKind::InputRequired(requests.into_iter().collect()))
    }

    pub(crate) fn invalid_arguments(faults: Issues) -> Self {
        ToolError(ToolErrorKind::InvalidArguments(faults))
    }

    /// Whether a retry may succeed.
    pub(crate) fn is_retryable(&self) -> bool {
        // NOTE: An unknown outcome may be retried: only pure and idempotent tools have retries.
        matches!(self.0, ToolErrorKind::Failed { is_permanent: false, .. } | ToolErrorKind::Unknown(_))
    }

    /// Takes the questions, if it has some.
    pub(crate) fn take_requests(&mut self) -> Vec<InputRequest> {
        match &mut self.0 {
            ToolErrorKind::InputRequired(requests) => std::mem::take(requests),
            _ => Vec::new(),
        }
    }

    pub(crate) fn into_kind(self) -> ToolErrorKind {
        self.0
    }
}

impl fmt::Display for ToolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            ToolErrorKind::Failed { message, .. } | ToolErrorKind::Unknown(message) => f.write_str(message),
            ToolErrorKind::InvalidArguments(faults) => write!(f, "invalid arguments: {faults}"),
            ToolErrorKind::InputRequired(requests) => {
                let messages: Vec<&str> = requests.iter().map(|request| request.message.as_str()).collect();
                write!(f, "input required: {}", messages.join("; "))
            }
            ToolErrorKind::Fatal(source) => ErrorChain(&**source).fmt(f),
        }
    }
}

/// The text, since a failed `unwrap` and a `main` that returns the error print the `Debug` form.
impl fmt::Debug for ToolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for ToolError {
    fn from(error: E) -> Self {
        ToolError::new(ErrorChain(&error).to_string())
    }
}

/// An error of building a tool, a toolset or the tools of an agent. All faults are listed.
#[derive(ThisError)]
#[non_exhaustive]
pub enum BuildError {
    /// The declaration of a tool is invalid.
    #[error("invalid tool '{tool}': {faults}")]
    InvalidTool {
        /// The tool's name.
        tool: String,
        /// The faults, each with its subject as the path.
        faults: Issues,
    },
    /// Tools conflict with each other, the state schema or the resources.
    #[error("invalid tools: {faults}")]
    InvalidTools {
        /// The faults, each with the tool's name as the path.
        faults: Issues,
    },
}

/// An error of listing the tools of a toolset.
#[derive(ThisError)]
#[non_exhaustive]
pub enum ToolsetError {
    /// A dynamic toolset failed to list its tools.
    #[error("toolset \"{toolset}\" failed to list its tools: {}", ErrorChain(&**source))]
    List {
        /// The toolset's name.
        toolset: String,
        /// The cause.
        r#source: Box<dyn Error + Send + Sync>,
    },
    /// The tools conflict, or have names that models cannot use.
    #[error(transparent)]
    Build(#[from] BuildError),
}

stepfold_state_core::debug_as_text!(BuildError, ToolsetError);
