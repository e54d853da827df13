//! Spans for `tracing`, named as the OpenTelemetry conventions for generative AI name them.
//!
//! <https://opentelemetry.io/docs/specs/semconv/gen-ai/>: `invoke_agent`, `chat` and `execute_tool`, with
//! attributes under `gen_ai.`. Messages and tool results are content, which is omitted by default.

use std::collections::HashMap;

use stepfold_tools::CallStatus;
use tracing::{Level, Span, field, span};

use super::{Observer, ObserverError, RunEvent};
use crate::exit::Exit;
use crate::planned::NodeStatus;
use crate::run::{Event, EventKind};

/// Makes a span of each run, each model call, each tool call and each node: also of agents that are tools or nodes, in the
/// span of their call or node.
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
    with_content: bool,
    run: RunSpans,
}

impl Traces {
    /// Spans for runs of the agent of this name.
    pub fn new(agent: impl Into<String>) -> Self {
        Traces { with_content: false, run: RunSpans::new(agent.into(), None, false) }
    }

    /// Adds messages, arguments and results. They may be secret.
    #[must_use]
    pub fn with_content(mut self) -> Self {
        (self.with_content, self.run.with_content) = (true, true);
        self
    }
}

/// The open spans of a run.
#[derive(Debug)]
struct RunSpans {
    agent: String,
    with_content: bool,
    /// The call or the node that it is inside of.
    within: Option<Span>,
    run: Option<Span>,
    chat: Option<Span>,
    tools: HashMap<String, Span>,
    nodes: HashMap<usize, Span>,
    /// The runs inside, by the place of their call or branch.
    inside: HashMap<usize, RunSpans>,
}

impl RunSpans {
    fn new(agent: String, within: Option<Span>, with_content: bool) -> Self {
        let (tools, nodes, inside) = (HashMap::new(), HashMap::new(), HashMap::new());
        RunSpans { agent, with_content, within, run: None, chat: None, tools, nodes, inside }
    }

    fn note(&mut self, event: &RunEvent) {
        match event {
            RunEvent::Asking { model, request, .. } => self.asking(model, request),
            RunEvent::Committed(event) => self.committed(event),
            RunEvent::ToolStarted { call_id, tool, arguments } => self.tool_started(call_id, tool, arguments),
            RunEvent::ServerToolUsed { call_id, tool, arguments } => {
                self.server_tool_used(call_id.as_deref(), tool, arguments);
            }
            RunEvent::ToolFinished { call_id, status, text, .. } => {
                self.tool_finished(call_id, *status, text);
            }
            RunEvent::NodeStarted { node, branch } => self.node_started(node, *branch),
            RunEvent::NodeFinished { branch, status, .. } => {
                self.inside.remove(branch);
                if let Some(span) = self.nodes.remove(branch).filter(|_| *status != NodeStatus::Succeeded) {
                    failed_with(&span, &format!("{status:?}"));
                }
            }
            RunEvent::Inner { name, id, is_node, place, event } => {
                let within = if *is_node { self.nodes.get(place) } else { self.tools.get(id) };
                let within = within.or(self.run.as_ref()).cloned();
                let with_content = self.with_content;
                let inside = self.inside.entry(*place);
                inside.or_insert_with(|| RunSpans::new(name.clone(), within, with_content)).note(event);
            }
            RunEvent::Ended(exit) => self.ended(exit),
            _ => {}
        }
    }

    fn run_span(&mut self) -> &Span {
        let (agent, within) = (&self.agent, self.within.as_ref());
        self.run.get_or_insert_with(|| {
            // Without a run around it, the span that is entered where the run is driven.
            let current = within.map_or_else(Span::current, Span::clone);
            span!(
                parent: &current,
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
            // Without an event of its call or node, that was reported before a restart.
            EventKind::Inner { place, event } => {
                if let Some(inside) = self.inside.get_mut(place) {
                    inside.committed(event);
                }
            }
            _ => {}
        }
    }

    fn node_started(&mut self, node: &str, branch: usize) {
        let parent = self.run_span().clone();
        let span = span!(
            parent: &parent,
            Level::INFO,
            "execute_node",
            otel.name = format!("execute_node {node}"),
            stepfold.node.name = node,
            stepfold.node.branch = branch,
            error.r#type = field::Empty,
            otel.status_code = field::Empty,
        );
        self.nodes.insert(branch, span);
    }

    fn tool_finished(&mut self, call_id: &str, status: CallStatus, text: &str) {
        let Some(span) = self.tools.remove(call_id) else { return };
        if status != CallStatus::Succeeded {
            failed_with(&span, &format!("{status:?}"));
        }
        if self.with_content {
            span.record("gen_ai.tool.call.result", text);
        }
    }

    fn tool_started(&mut self, call_id: &str, tool: &str, arguments: &str) {
        let parent = self.run_span().clone();
        let span = self.tool_span(&parent, (tool, None), Some(call_id), arguments);
        self.tools.insert(call_id.to_owned(), span);
    }

    /// Adds a span without a duration for a tool that the provider ran, within that of the model's call: providers do
    /// not report when it ran.
    fn server_tool_used(&self, call_id: Option<&str>, tool: &str, arguments: &str) {
        if let Some(chat) = &self.chat {
            self.tool_span(chat, (tool, Some("extension")), call_id, arguments);
        }
    }

    fn tool_span(
        &self,
        parent: &Span,
        (tool, kind): (&str, Option<&str>),
        call_id: Option<&str>,
        arguments: &str,
    ) -> Span {
        let span = span!(
            parent: parent,
            Level::INFO,
            "execute_tool",
            otel.name = format!("execute_tool {tool}"),
            gen_ai.operation.name = "execute_tool",
            gen_ai.tool.name = tool,
            gen_ai.tool.r#type = kind,
            gen_ai.tool.call.id = call_id,
            gen_ai.tool.call.arguments = field::Empty,
            gen_ai.tool.call.result = field::Empty,
            error.r#type = field::Empty,
            otel.status_code = field::Empty,
        );
        if self.with_content {
            span.record("gen_ai.tool.call.arguments", arguments);
        }
        span
    }

    fn ended(&mut self, exit: &Exit) {
        // A model call that failed was never committed.
        let has_failed = matches!(exit, Exit::Failed);
        if let Some(chat) = self.chat.take().filter(|_| has_failed) {
            failed_with(&chat, "model_error");
        }
        (self.inside, self.nodes, self.tools) = Default::default();
        if let Some(run) = self.run.take() {
            run.record("stepfold.exit", exit.to_string());
            if has_failed {
                failed_with(&run, "run_error");
            }
        }
    }
}

/// Marks a span as failed, with its own attributes and with those that every viewer shows.
fn failed_with(span: &Span, error: &str) {
    span.record("error.type", error);
    span.record("otel.status_code", "ERROR");
}

fn json<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

impl Observer for Traces {
    async fn observe(&mut self, event: &RunEvent) -> Result<(), ObserverError> {
        self.run.note(event);
        Ok(())
    }
}
