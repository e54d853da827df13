//! One call that was started: its attempts, and its outcome.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use serde_json::Value;
use stepfold_state_core::ErrorChain;
use stepfold_state_core::chat::{ToolCall, ToolContent, ToolResult};
use stepfold_state_core::state::{Delta, Faults};

use super::attempt::{Fault, attempt};
use super::deliver;
use super::outcome::{Failure, FatalCause, Outcome, Status};
use super::redact::Redaction;
use super::settle::unmerged;
use crate::binding::InputBinding;
use crate::context::{CallContext, ToolContext};
use crate::error::{Kind, ToolError};
use crate::options::InvokeOptions;
use crate::policy::Effect;
use crate::tool::Tool;

/// A call that ended, with its error where that is for the caller.
pub(super) struct Finished {
    pub(super) outcome: Outcome,
    pub(super) error: Option<FatalCause>,
}

impl From<Outcome> for Finished {
    fn from(outcome: Outcome) -> Self {
        Finished { outcome, error: None }
    }
}

/// One call with all that it needs, detached from the invocation.
pub(super) struct Running {
    context: Arc<CallContext>,
    tries: AtomicU32,
}

impl Running {
    pub(super) fn new(context: CallContext) -> Self {
        Running { context: Arc::new(context), tries: AtomicU32::new(0) }
    }

    /// Whether the host runs it.
    pub(super) fn is_hosted(&self) -> bool {
        self.tool().is_hosted()
    }

    /// What the host has made of it.
    pub(super) fn hosted(&self, result: Result<(Value, Delta), ToolError>) -> Finished {
        let mut finished = match result {
            Ok((value, writes)) => self.deliver(value, writes).into(),
            Err(error) => self.fail(Fault::Error(error), Duration::ZERO),
        };
        finished.outcome.tries = 1;
        finished
    }

    fn call(&self) -> &ToolCall {
        self.context.call()
    }

    fn tool(&self) -> &Tool {
        &self.context.tool
    }

    fn options(&self) -> &InvokeOptions {
        &self.context.invocation.options
    }

    /// Runs the call, with a net under what no other net holds: what panics when it is dropped or printed.
    pub(super) async fn run_caught(self) -> Finished {
        let context = Arc::clone(&self.context);
        match AssertUnwindSafe(self.run()).catch_unwind().await {
            Ok(finished) => finished,
            Err(panic) => {
                // The panic may be made of what panics when it is dropped.
                std::mem::forget(panic);
                let call = context.call();
                let text =
                    format!("tool '{}' panicked when it was ended; it may have had its effect", call.name);
                Outcome { tries: 1, ..Outcome::failed(call, Failure::Panicked, text) }.into()
            }
        }
    }

    /// Runs the call to its end, or until it is cancelled.
    async fn run(self) -> Finished {
        let mut finished = tokio::select! {
            biased;
            finished = self.tries() => finished,
            () = self.context.invocation.cancellation.cancelled() => self.cancelled(),
        };
        finished.outcome.tries = self.tries.load(Ordering::Relaxed);
        finished
    }

    /// Tries the call as often as the tool allows.
    async fn tries(&self) -> Finished {
        let inner = self.tool().inner();
        let time_out = inner.time_out.unwrap_or(self.options().limits.time_out);
        let mut pauses = inner.retry.map(|retry| retry.pauses());
        loop {
            self.tries.fetch_add(1, Ordering::Relaxed);
            // Each attempt has its own writes, and can be told to stop alone.
            let context = ToolContext::new(Arc::clone(&self.context));
            let result = attempt(&inner.function, &context, time_out).await;
            // Whatever became of the attempt, it writes nothing more.
            let writes = context.end();
            let fault = match result {
                Ok(value) => return self.deliver(value, writes).into(),
                Err(fault) => fault,
            };
            let pause = pauses.as_mut().filter(|_| fault.is_retryable()).and_then(Iterator::next);
            match pause {
                Some(pause) => tokio::time::sleep(pause).await,
                None => return self.fail(fault, time_out),
            }
        }
    }

    fn deliver(&self, value: Value, writes: Delta) -> Outcome {
        match deliver::writes(self.tool(), self.context.state.schema(), writes, &value) {
            Ok(delta) => {
                let content = self.bounded(self.content(value));
                self.outcome(Status::Succeeded, content, delta)
            }
            Err(error) => {
                let text = unmerged(&self.call().name, &error.to_string());
                self.outcome(
                    Status::Failed(Failure::Merge),
                    self.bounded(ToolContent::Error(text)),
                    Delta::new(),
                )
            }
        }
    }

    /// What the model reads of a result: the default text where its formatter fails. A formatter may quote what the tool
    /// was fed, and the log shows no values of the state.
    fn content(&self, result: Value) -> ToolContent {
        let (content, failure) = deliver::content(self.tool(), result);
        if let Some(reason) = failure {
            tracing::warn!(
                tool = self.tool().name(),
                reason = self.redacted(&reason),
                "the result's formatter failed; the model reads the default text"
            );
        }
        content
    }

    fn fail(&self, fault: Fault, time_out: Duration) -> Finished {
        let name = &self.call().name;
        let (status, text, error) = match fault {
            Fault::TimedOut => {
                let text = format!("tool '{name}' timed out after {time_out:?}{}", self.warning());
                (Status::Failed(Failure::TimedOut), text, None)
            }
            Fault::NoThread(waited) => {
                let text = format!("tool '{name}' was not started: for {waited:?} no thread was free for it");
                (Status::Failed(Failure::TimedOut), text, None)
            }
            Fault::Panicked(words) => {
                let text = format!("tool '{name}' panicked: {}", self.redacted(&words));
                (Status::Failed(Failure::Panicked), text, None)
            }
            Fault::Error(error) => self.words_of(error),
        };
        let content = self.bounded(ToolContent::Error(text));
        Finished { outcome: self.outcome(status, content, Delta::new()), error }
    }

    fn cancelled(&self) -> Finished {
        let text = format!("tool '{}' was cancelled while it ran{}", self.call().name, self.warning());
        self.outcome(Status::Cancelled, ToolContent::Error(text), Delta::new()).into()
    }

    /// What the model has to know of an interrupted call before it calls again.
    fn warning(&self) -> &'static str {
        if self.tool().effect() == Effect::Pure { "" } else { "; it may have had its effect" }
    }

    fn outcome(&self, status: Status, content: ToolContent, delta: Delta) -> Outcome {
        // `run` counts the attempts.
        Outcome {
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

    /// What the model reads of an error, and the error itself where it is for the caller.
    fn words_of(&self, error: ToolError) -> (Status, String, Option<FatalCause>) {
        let name = &self.call().name;
        match error.into_kind() {
            Kind::Failed { message, .. } => (Status::Failed(Failure::Error), self.redacted(&message), None),
            Kind::Unknown(message) => {
                let is_pure = self.tool().effect() == Effect::Pure;
                let status = if is_pure { Status::Failed(Failure::Error) } else { Status::Unknown };
                (status, format!("{}{}", self.redacted(&message), self.warning()), None)
            }
            Kind::InvalidArguments(faults) => {
                let text =
                    format!("the arguments of tool '{name}' do not fit: {}", self.words_of_faults(&faults));
                (Status::Failed(Failure::InvalidArguments), text, None)
            }
            Kind::Fatal(error) => {
                let shown = self.redacted(&ErrorChain(&*error).to_string());
                let text = format!("tool '{name}' cannot work: {shown}");
                (Status::Failed(Failure::Fatal), text, Some(FatalCause { shown, error }))
            }
        }
    }

    /// The model can do nothing about what the state fed, and must not see it.
    fn words_of_faults(&self, faults: &Faults) -> String {
        let fed: Vec<&InputBinding> =
            self.context.fed.iter().map(|input| &self.tool().inner().inputs[*input]).collect();
        let words = faults.iter().map(|fault| {
            // The path into what was fed may show keys of the state.
            if let Some(input) = fed.iter().find(|input| lies_in(&fault.path, &input.parameter)) {
                return format!("at $.{}: what the state holds does not fit", input.parameter);
            }
            let is_missing =
                |input: &&InputBinding| fault.message == format!("missing field `{}`", input.parameter);
            match self.tool().inner().inputs.iter().find(is_missing) {
                Some(input) if !input.is_visible => {
                    format!(
                        "at {}: the state has no \"{}\" to feed `{}` from",
                        fault.path, input.key, input.parameter
                    )
                }
                _ => format!("at {}: {}", fault.path, self.redacted(&fault.message)),
            }
        });
        words.collect::<Vec<_>>().join("; ")
    }

    /// The text without what the tool read of the state: what was fed to it, and the keys that it says it
    /// reads.
    fn redacted(&self, text: &str) -> String {
        let inner = self.tool().inner();
        let fed: Vec<&InputBinding> = self.context.fed.iter().map(|input| &inner.inputs[*input]).collect();
        let is_fed = |key: &str| fed.iter().any(|input| *input.key == *key);
        let read = inner.access.reads.iter().map(|key| &**key).filter(|key| !is_fed(key));
        let bound = fed.iter().map(|input| (input.parameter.as_str(), &*input.key));
        let values = bound.chain(read.map(|key| (key, key)));
        let mut values =
            values.filter_map(|(name, key)| Some((name, self.context.state.get(key)?))).peekable();
        if values.peek().is_none() {
            return text.to_owned();
        }
        let mut redaction = Redaction::of(text);
        values.for_each(|(name, value)| redaction.take_out(name, value));
        redaction.shown().into_owned()
    }
}

/// Whether a JSON path leads into a parameter.
fn lies_in(path: &str, parameter: &str) -> bool {
    let rest = path.strip_prefix("$.").and_then(|path| path.strip_prefix(parameter));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}
