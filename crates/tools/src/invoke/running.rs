//! A started call: its attempts, and its outcome.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use serde_json::Value;
use stepfold_state_core::ErrorChain;
use stepfold_state_core::chat::{ToolCall, ToolContent, ToolResult};
use stepfold_state_core::state::{Delta, Issues};

use super::attempt::{AttemptFailure, attempt};
use super::deliver;
use super::outcome::{CallFailure, CallOutcome, CallStatus, FatalCause};
use super::redact::TextRedaction;
use super::settle::unmerged;
use crate::binding::InputBinding;
use crate::context::{CallContext, ToolContext};
use crate::error::{ToolError, ToolErrorKind};
use crate::input::InputRequest;
use crate::options::InvokeOptions;
use crate::policy::Effect;
use crate::tool::Tool;

/// An ended call, with its error if that is for the caller.
pub(super) struct FinishedCall {
    pub(super) outcome: CallOutcome,
    pub(super) error: Option<FatalCause>,
    /// The questions to the user, instead of an outcome.
    pub(super) requests: Vec<InputRequest>,
}

impl From<CallOutcome> for FinishedCall {
    fn from(outcome: CallOutcome) -> Self {
        FinishedCall { outcome, error: None, requests: Vec::new() }
    }
}

/// A call with everything it needs, detached from the invocation.
pub(super) struct RunningCall {
    tool: Tool,
    context: Arc<CallContext>,
    // NOTE: Atomic, because `run` reads it after a cancellation, which drops `attempts`.
    tries: AtomicU32,
}

impl RunningCall {
    pub(super) fn new(tool: Tool, context: CallContext) -> Self {
        RunningCall { tool, context: Arc::new(context), tries: AtomicU32::new(0) }
    }

    /// Whether the host runs it.
    pub(super) fn is_hosted(&self) -> bool {
        self.tool.is_hosted()
    }

    /// The outcome of a hosted call.
    pub(super) fn hosted(&self, result: Result<(Value, Delta), ToolError>) -> FinishedCall {
        let mut finished = match result {
            Ok((value, writes)) => self.deliver(value, writes).into(),
            Err(error) => self.fail(AttemptFailure::Error(error), Duration::ZERO),
        };
        finished.outcome.tries = 1;
        finished
    }

    fn call(&self) -> &ToolCall {
        self.context.call()
    }

    fn options(&self) -> &InvokeOptions {
        &self.context.invocation.options
    }

    /// Runs the call, and catches panics that nothing else catches: those during drop or formatting.
    pub(super) async fn run_caught(self) -> FinishedCall {
        let context = Arc::clone(&self.context);
        match AssertUnwindSafe(self.run()).catch_unwind().await {
            Ok(finished) => finished,
            Err(panic) => {
                // NOTE: Dropping the payload of the panic may panic again.
                std::mem::forget(panic);
                let call = context.call();
                let text = format!(
                    "tool '{}' panicked when it was dropped; the effect may have happened",
                    call.name
                );
                CallOutcome { tries: 1, ..CallOutcome::failed(call, CallFailure::Panicked, text) }.into()
            }
        }
    }

    /// Runs the call until it ends or is cancelled.
    async fn run(self) -> FinishedCall {
        let mut finished = tokio::select! {
                    biased;
        // NOTE: First, with `biased`: an attempt that has ended counts, even if the run is cancelled meanwhile.
                    finished = self.attempts() => finished,
                    () = self.context.invocation.cancellation.cancelled() => self.cancelled(),
                };
        finished.outcome.tries = self.tries.load(Ordering::Relaxed);
        finished
    }

    /// Attempts the call, with the tool's retries.
    async fn attempts(&self) -> FinishedCall {
        let definition = self.tool.definition();
        let timeout = definition.timeout.unwrap_or(self.options().limits.timeout);
        let mut pauses = definition.retry.map(|retry| retry.pauses());
        loop {
            self.tries.fetch_add(1, Ordering::Relaxed);
            // NOTE: Each attempt has its own writes and cancellation token: those of a failed one must not count.
            let context = ToolContext::new(Arc::clone(&self.context));
            let result = attempt(&definition.function, &context, timeout).await;
            // The attempt cannot write after its end.
            let writes = context.take_writes();
            let failure = match result {
                Ok(value) => return self.deliver(value, writes).into(),
                Err(failure) => failure,
            };
            let pause = pauses.as_mut().filter(|_| failure.is_retryable()).and_then(Iterator::next);
            match pause {
                Some(pause) => tokio::time::sleep(pause).await,
                None => return self.fail(failure, timeout),
            }
        }
    }

    fn deliver(&self, value: Value, writes: Delta) -> CallOutcome {
        match deliver::writes(&self.tool, self.context.state.schema(), writes, &value) {
            Ok(delta) => {
                let content = self.bounded(self.content(value));
                self.outcome(CallStatus::Succeeded, content, delta)
            }
            Err(error) => {
                let text = unmerged(&self.call().name, &error.to_string());
                self.outcome(
                    CallStatus::Failed(CallFailure::Merge),
                    self.bounded(ToolContent::Error(text)),
                    Delta::new(),
                )
            }
        }
    }

    /// The content of a result for the model: the default text if its formatter fails. A formatter may quote
    /// the tool's input, and the log shows no values of the state.
    fn content(&self, result: Value) -> ToolContent {
        let (content, failure) = deliver::content(&self.tool, result);
        if let Some(reason) = failure {
            tracing::warn!(
                tool = self.tool.name(),
                reason = self.redacted(&reason),
                "the result's formatter failed; the model reads the default text"
            );
        }
        content
    }

    fn fail(&self, mut failure: AttemptFailure, timeout: Duration) -> FinishedCall {
        let requests = match &mut failure {
            AttemptFailure::Error(error) if self.options().hosts_calls => error.take_requests(),
            _ => Vec::new(),
        };
        let name = &self.call().name;
        let (status, text, error) = match failure {
            AttemptFailure::TimedOut => {
                let text = format!("tool '{name}' timed out after {timeout:?}{}", self.effect_warning());
                (CallStatus::Failed(CallFailure::TimedOut), text, None)
            }
            AttemptFailure::NoThread(waited) => {
                let text = format!("tool '{name}' not started: no thread was available for {waited:?}");
                (CallStatus::Failed(CallFailure::TimedOut), text, None)
            }
            AttemptFailure::Panicked(message) => {
                let text = format!("tool '{name}' panicked: {}", self.redacted(&message));
                (CallStatus::Failed(CallFailure::Panicked), text, None)
            }
            AttemptFailure::Error(error) => self.outcome_of(error),
        };
        let content = self.bounded(ToolContent::Error(text));
        FinishedCall { outcome: self.outcome(status, content, Delta::new()), error, requests }
    }

    fn cancelled(&self) -> FinishedCall {
        let text = format!("tool '{}' cancelled while it ran{}", self.call().name, self.effect_warning());
        self.outcome(CallStatus::Cancelled, ToolContent::Error(text), Delta::new()).into()
    }

    /// The warning about an interrupted call's effect.
    fn effect_warning(&self) -> &'static str {
        if self.tool.effect() == Effect::Pure { "" } else { "; the effect may have happened" }
    }

    fn outcome(&self, status: CallStatus, content: ToolContent, delta: Delta) -> CallOutcome {
        // NOTE: `run` sets the number of attempts.
        CallOutcome {
            status,
            result: ToolResult::new(&self.call().id, &self.call().name, content),
            delta,
            tries: 0,
        }
    }

    fn bounded(&self, content: ToolContent) -> ToolContent {
        deliver::bounded(
            content,
            self.options().limits.output_bytes,
            &self.options().overflow,
            &self.call().id,
        )
    }

    /// The error text for the model, and the error itself if it is for the caller.
    fn outcome_of(&self, error: ToolError) -> (CallStatus, String, Option<FatalCause>) {
        let name = &self.call().name;
        match error.into_kind() {
            ToolErrorKind::Failed { message, .. } => {
                (CallStatus::Failed(CallFailure::Error), self.redacted(&message), None)
            }
            ToolErrorKind::Unknown(message) => {
                let is_pure = self.tool.effect() == Effect::Pure;
                let status =
                    if is_pure { CallStatus::Failed(CallFailure::Error) } else { CallStatus::Unknown };
                (status, format!("{}{}", self.redacted(&message), self.effect_warning()), None)
            }
            ToolErrorKind::InputRequired(requests) => {
                let messages: Vec<&str> = requests.iter().map(|request| request.message.as_str()).collect();
                let text =
                    format!("tool '{name}' asks the user, who cannot be asked here: {}", messages.join("; "));
                (CallStatus::Failed(CallFailure::Error), self.redacted(&text), None)
            }
            ToolErrorKind::InvalidArguments(faults) => {
                let text = format!("invalid arguments for tool '{name}': {}", self.text_of_faults(&faults));
                (CallStatus::Failed(CallFailure::InvalidArguments), text, None)
            }
            ToolErrorKind::Fatal(error) => {
                let shown = self.redacted(&ErrorChain(&*error).to_string());
                let text = format!("tool '{name}' failed: {shown}");
                (CallStatus::Failed(CallFailure::Fatal), text, Some(FatalCause { shown, error }))
            }
        }
    }

    /// The model cannot act on values from the state, and must not see them.
    fn text_of_faults(&self, faults: &Issues) -> String {
        let bound: Vec<&InputBinding> =
            self.context.bound.iter().map(|input| &self.tool.definition().inputs[*input]).collect();
        let texts = faults.iter().map(|fault| {
            // NOTE: A path into a value from the state may contain its keys.
            if let Some(input) = bound.iter().find(|input| is_inside(&fault.path, &input.parameter)) {
                return format!("invalid value in the state at $.{}", input.parameter);
            }
            // NOTE: A missing field is reported at the path of the whole object, so the text of `decode` names
            // it.
            let is_missing =
                |input: &&InputBinding| fault.message == format!("missing field `{}`", input.parameter);
            match self.tool.definition().inputs.iter().find(is_missing) {
                Some(input) if !input.is_visible => {
                    format!("missing state key \"{}\" for argument `{}`", input.key, input.parameter)
                }
                _ => format!("{} at {}", self.redacted(&fault.message), fault.path),
            }
        });
        texts.collect::<Vec<_>>().join("; ")
    }

    /// The text without values of the state that the tool reads: its inputs, and its declared keys.
    fn redacted(&self, text: &str) -> String {
        let definition = self.tool.definition();
        let bound: Vec<&InputBinding> =
            self.context.bound.iter().map(|input| &definition.inputs[*input]).collect();
        let is_bound = |key: &str| bound.iter().any(|input| *input.key == *key);
        let read = definition.access.reads.iter().map(|key| &**key).filter(|key| !is_bound(key));
        let inputs = bound.iter().map(|input| (input.parameter.as_str(), &*input.key));
        let values = inputs.chain(read.map(|key| (key, key)));
        let mut values =
            values.filter_map(|(name, key)| Some((name, self.context.state.get(key)?))).peekable();
        // NOTE: Most calls read nothing from the state, and their text need not be indexed.
        if values.peek().is_none() {
            return text.to_owned();
        }
        let mut redaction = TextRedaction::of(text);
        values.for_each(|(name, value)| redaction.redact(name, value));
        redaction.text().into_owned()
    }
}

/// Whether a JSON path leads into a parameter.
fn is_inside(path: &str, parameter: &str) -> bool {
    let rest = path.strip_prefix("$.").and_then(|path| path.strip_prefix(parameter));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}
