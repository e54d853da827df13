//! Spans for `tracing`, named as the OpenTelemetry conventions for generative AI name them.
//!
//! <https://opentelemetry.io/docs/specs/semconv/gen-ai/>: `invoke_agent`, `chat` and `execute_tool`, with
//! attributes under `gen_ai.`. Messages and tool results are content, which is omitted by default.

use std::collections::HashMap;

use tracing::{Level, Span, field, span};

use super::{Observer, ObserverError, RunEvent};
use crate::exit::Exit;
use crate::run::{Event, EventKind};

/// Makes a span of each run, each model call and each tool call.
///
/// A span is closed when its subject ends; it is not entered, so a tool's own spans are next to it and not
/// inside.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use stepfold_agent_loop::test_kit::Script;
/// use stepfold_agent_loop::{Agent, Traces};
///
/// let agent = Agent::builder(Script::parse("assistant: area 3")?).name("analyst").build()?;
/// let outcome = agent.run("which area has most stalls?").observe(Traces::new("analyst")).await?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct Traces {
    agent: String,
    with_content: bool,
    run: Option<Span>,
    chat: Option<Span>,
    tools: HashMap<String, Span>,
}

impl Traces {
    /// Spans for runs of the agent of this name.
    pub fn new(agent: impl Into<String>) -> Self {
        Traces { agent: agent.into(), with_content: false, run: None, chat: None, tools: HashMap::new() }
    }

    /// Adds messages, arguments and results. They may be secret.
    #[must_use]
    pub fn with_content(mut self) -> Self {
        self.with_content = true;
        self
    }

    fn run_span(&mut self) -> &Span {
        let agent = &self.agent;
        self.run.get_or_insert_with(|| {
            span!(
                Level::INFO,
                "invoke_agent",
                otel.name = format!("invoke_agent {agent}"),
                gen_ai.operation.name = "invoke_agent",
                gen_ai.agent.name = agent,
                gen_ai.conversation.id = field::Empty,
                gen_ai.input.messages = field::Empty,
                stepfold.exit = field::Empty,
                error.r#type = field::Empty,
                otel.status_code = field::Empty,
            )
        })
    }

    fn asking(&mut self, model: &str, request: &stepfold_state_core::chat::ChatRequest) {
        let parent = self.run_span().clone();
        let chat = span!(
            parent: &parent,
            Level::INFO,
            "chat",
            otel.name = format!("chat {model}"),
            otel.kind = "client",
            gen_ai.operation.name = "chat",
            gen_ai.request.model = model,
            gen_ai.request.temperature = request.params.temperature,
            gen_ai.request.top_p = request.params.top_p,
            gen_ai.request.max_tokens = request.params.max_output_tokens,
            gen_ai.request.seed = request.params.seed,
            gen_ai.response.model = field::Empty,
            gen_ai.response.id = field::Empty,
            gen_ai.response.finish_reasons = field::Empty,
            gen_ai.usage.input_tokens = field::Empty,
            gen_ai.usage.output_tokens = field::Empty,
            gen_ai.input.messages = field::Empty,
            gen_ai.output.messages = field::Empty,
            error.r#type = field::Empty,
            otel.status_code = field::Empty,
        );
        if self.with_content {
            chat.record("gen_ai.input.messages", json(&request.messages));
        }
        self.chat = Some(chat);
    }

    fn committed(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Began { id, .. } => {
                let content = self.with_content.then(|| json(&event.messages));
                let run = self.run_span();
                run.record("gen_ai.conversation.id", id.as_str());
                if let Some(content) = content {
                    run.record("gen_ai.input.messages", content);
                }
            }
            EventKind::Replied { finish_reason, usage, id, model, .. } => {
                let Some(chat) = self.chat.take() else { return };
                chat.record("gen_ai.response.finish_reasons", finish_reason.as_str());
                chat.record("gen_ai.usage.input_tokens", usage.input_tokens);
                chat.record("gen_ai.usage.output_tokens", usage.output_tokens);
                id.as_ref().map(|id| chat.record("gen_ai.response.id", id.as_str()));
                model.as_ref().map(|model| chat.record("gen_ai.response.model", model.as_str()));
                if self.with_content {
                    chat.record("gen_ai.output.messages", json(&event.messages));
                }
            }
            _ => {}
        }
    }

    fn tool_started(&mut self, call_id: &str, tool: &str, arguments: &str) {
        let parent = self.run_span().clone();
        let span = span!(
            parent: &parent,
            Level::INFO,
            "execute_tool",
            otel.name = format!("execute_tool {tool}"),
            gen_ai.operation.name = "execute_tool",
            gen_ai.tool.name = tool,
            gen_ai.tool.call.id = call_id,
            gen_ai.tool.call.arguments = field::Empty,
            gen_ai.tool.call.result = field::Empty,
            error.r#type = field::Empty,
            otel.status_code = field::Empty,
        );
        if self.with_content {
            span.record("gen_ai.tool.call.arguments", arguments);
        }
        self.tools.insert(call_id.to_owned(), span);
    }

    /// A tool that the provider ran is a span without a duration within that of the model's call: when it ran is not told.
    fn server_tool_used(&self, call_id: Option<&str>, tool: &str, arguments: &str) {
        let Some(chat) = &self.chat else { return };
        let span = span!(
            parent: chat,
            Level::INFO,
            "execute_tool",
            otel.name = format!("execute_tool {tool}"),
            gen_ai.operation.name = "execute_tool",
            gen_ai.tool.name = tool,
            gen_ai.tool.r#type = "extension",
            gen_ai.tool.call.id = call_id,
            gen_ai.tool.call.arguments = field::Empty,
        );
        if self.with_content {
            span.record("gen_ai.tool.call.arguments", arguments);
        }
    }

    fn ended(&mut self, exit: &Exit) {
        // A model call that failed was never committed.
        let has_failed = matches!(exit, Exit::Failed);
        if let Some(chat) = self.chat.take().filter(|_| has_failed) {
            failed_with(&chat, "model_error");
        }
        self.tools.clear();
        if let Some(run) = self.run.take() {
            run.record("stepfold.exit", exit.to_string());
            if has_failed {
                failed_with(&run, "run_error");
            }
        }
    }
}

/// Says that what a span stands for failed, in the words of its own and in those that every viewer looks at.
fn failed_with(span: &Span, error: &str) {
    span.record("error.type", error);
    span.record("otel.status_code", "ERROR");
}

fn json<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

impl Observer for Traces {
    async fn observe(&mut self, event: &RunEvent) -> Result<(), ObserverError> {
        match event {
            RunEvent::Asking { model, request, .. } => self.asking(model, request),
            RunEvent::Committed(event) => self.committed(event),
            RunEvent::ToolStarted { call_id, tool, arguments } => self.tool_started(call_id, tool, arguments),
            RunEvent::ServerToolUsed { call_id, tool, arguments } => {
                self.server_tool_used(call_id.as_deref(), tool, arguments);
            }
            RunEvent::ToolFinished { call_id, status, text, .. } => {
                if let Some(span) = self.tools.remove(call_id) {
                    if *status != stepfold_tools::CallStatus::Succeeded {
                        failed_with(&span, &format!("{status:?}"));
                    }
                    if self.with_content {
                        span.record("gen_ai.tool.call.result", text.as_str());
                    }
                }
            }
            RunEvent::Ended(exit) => self.ended(exit),
            _ => {}
        }
        Ok(())
    }
}
