//! Outcomes that come later (deferred calls, callbacks, durable timers): the attempt ends, the run is suspended, and
//! the call continues when the outcome arrives or its deadline passes, in any process.

use std::time::{Duration, SystemTime};

use serde_json::Value;

use crate::context::{ToolContext, encode_key_part};
use crate::error::ToolError;
use crate::input::{Deadline, InputRequest, InputResponse, LaterRequest};

/// An outcome that comes later: see [`ToolContext::later`].
#[doc(alias("deferred", "callback", "webhook", "awakeable", "task_token"))]
#[derive(Clone, Debug)]
#[must_use = "nothing is waited for until its outcome is requested"]
pub struct Later {
    context: ToolContext,
    request: InputRequest,
    token: String,
    deadline: Option<Deadline>,
}

impl Later {
    fn new(context: ToolContext, label: String) -> Self {
        // NOTE: Encoded: a slash in the label must not make the token look like that of another call.
        let token = context.key_for(&encode_key_part(&label));
        let message = format!("waiting for `{label}`");
        Later { context, request: InputRequest::new(label, message), token, deadline: None }
    }

    /// The token under which the outcome is delivered, once. It is the idempotency key of the call with the
    /// label, so it is the same when the call runs again after a crash, and not a secret.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Whether no response has arrived, so that the tool must start the work.
    pub fn is_new(&self) -> bool {
        self.response().is_none()
    }

    /// Sets a description of the outcome, for lists of pending requests.
    pub fn message(mut self, message: impl Into<String>) -> Self {
        self.request.message = message.into();
        self
    }

    /// Sets further information: a JSON object.
    pub fn details(mut self, details: impl Into<Value>) -> Self {
        self.request = self.request.details(details);
        self
    }

    /// Sets the JSON Schema of the outcome. One that does not fit is refused, and the call continues waiting.
    pub fn schema(mut self, schema: impl Into<Value>) -> Self {
        self.request = self.request.schema(schema);
        self
    }

    /// Ends waiting at this time. If the call runs again before, the deadline that was stored first counts.
    pub fn deadline(mut self, at: SystemTime) -> Self {
        self.deadline = Some(Deadline::At(at));
        self
    }

    /// Ends waiting after this time.
    pub fn within(mut self, duration: Duration) -> Self {
        self.deadline = Some(Deadline::Within(duration));
        self
    }

    /// The response, if it has arrived: [`InputResponse::Completed`], [`InputResponse::Decline`] for a failure, or
    /// [`InputResponse::Expired`].
    pub fn response(&self) -> Option<&InputResponse> {
        // NOTE: By the label alone: the token depends on nothing else.
        let is_same = |request: &InputRequest| request.later.is_some() && request.label == self.request.label;
        let answered = self.context.answered().iter().rfind(|answered| is_same(&answered.request));
        answered.map(|answered| &answered.response)
    }

    /// The outcome. If it has not arrived, this returns an error, which the tool passes on with `?`: the attempt ends,
    /// the run stores the request and is suspended, and the tool runs again from its beginning when the outcome arrives.
    ///
    /// # Errors
    /// Until the outcome arrives: an error that makes the run wait. Then, for a failure or a passed deadline, an error
    /// that the model reads.
    pub fn outcome(self) -> Result<Value, ToolError> {
        match self.response() {
            Some(InputResponse::Completed(outcome) | InputResponse::Accept(outcome)) => Ok(outcome.clone()),
            Some(InputResponse::Decline { reason }) if reason.is_empty() => {
                Err(ToolError::permanent(format!("`{}` failed", self.request.label)))
            }
            Some(InputResponse::Decline { reason }) => Err(ToolError::permanent(reason)),
            Some(InputResponse::Expired) => {
                let label = &self.request.label;
                Err(ToolError::permanent(format!("no outcome of `{label}`: its deadline has passed")))
            }
            None => Err(self.into_suspension()),
        }
    }

    /// The error that ends the attempt.
    fn into_suspension(self) -> ToolError {
        let Later { mut request, token, deadline, .. } = self;
        request.later = Some(LaterRequest { token, deadline });
        ToolError::input_required([request])
    }
}

impl ToolContext {
    /// An outcome that comes later: from a webhook, a form, another process. The tool starts the work, hands out the
    /// [token](Later::token), and ends its attempt with [`Later::outcome`]. The run is suspended and holds no resources.
    /// When the outcome is delivered under the token, or the deadline has passed, the tool runs again from its beginning
    /// and finds it. Each of several outcomes in one call has its own label.
    ///
    /// A process may die between the start and the end of the attempt. Then the call runs again if it is
    /// [idempotent](crate::Effect::Idempotent), with the same token; by default its outcome is unknown.
    ///
    /// If the host does not support requests (an [`Invocation`](crate::Invocation) alone), the call fails.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use serde_json::Value;
    /// use stepfold_tools::{Effect, Tool, ToolContext, ToolError};
    ///
    /// # async fn order_taxi(_callback: &str) -> Result<(), ToolError> { Ok(()) }
    /// async fn taxi(context: ToolContext) -> Result<Value, ToolError> {
    ///     let taxi = context.later("taxi").within(Duration::from_secs(600));
    ///     if taxi.is_new() {
    ///         order_taxi(taxi.token()).await?;
    ///     }
    ///     taxi.outcome()
    /// }
    /// let tool = Tool::new("taxi", "Orders a taxi.", taxi).effect(Effect::Idempotent).build()?;
    /// # Ok::<(), stepfold_tools::BuildError>(())
    /// ```
    pub fn later(&self, label: impl Into<String>) -> Later {
        Later::new(self.clone(), label.into())
    }

    /// Waits until this time (a durable timer): the run is suspended, and no process has to stay alive. A caller with the
    /// [token](Later::token) of the label may end it early. If the tool runs again, the time that was stored first counts.
    ///
    /// # Errors
    /// Until that time: an error that makes the run wait.
    ///
    /// # Examples
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use stepfold_tools::{Args, Tool, ToolContext, ToolError};
    ///
    /// #[derive(serde::Deserialize, schemars::JsonSchema)]
    /// struct Reminder {
    ///     unix_seconds: u64,
    /// }
    ///
    /// async fn remind(context: ToolContext, Args(at): Args<Reminder>) -> Result<&'static str, ToolError> {
    ///     context.sleep_until("reminder", SystemTime::UNIX_EPOCH + Duration::from_secs(at.unix_seconds))?;
    ///     Ok("it is time")
    /// }
    /// let tool = Tool::new("remind", "Waits until a time.", remind).build()?;
    /// # Ok::<(), stepfold_tools::BuildError>(())
    /// ```
    pub fn sleep_until(&self, label: impl Into<String>, at: SystemTime) -> Result<(), ToolError> {
        self.later(label).deadline(at).sleep()
    }

    /// Waits this long, as [`sleep_until`](ToolContext::sleep_until) does.
    ///
    /// # Errors
    /// As `sleep_until`.
    pub fn sleep_for(&self, label: impl Into<String>, duration: Duration) -> Result<(), ToolError> {
        self.later(label).within(duration).sleep()
    }
}

impl Later {
    fn sleep(self) -> Result<(), ToolError> {
        if self.is_new() { Err(self.into_suspension()) } else { Ok(()) }
    }
}
