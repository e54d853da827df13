//! A span for each request, with the field names of OpenTelemetry's conventions for generative AI. It
//! contains messages only if that is enabled.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::Stream;
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Chunk, ModelError, ModelErrorKind, OmittedTool, ReplyBuilder, ReplyStream,
    ToolSpec, WireRequest,
};
use tracing::Span;
use tracing::field::Empty;

use super::ModelLayer;

/// Whether traces hold the text of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TraceContent {
    /// They do not.
    #[default]
    Omit,
    /// They hold all messages and the reply, as JSON.
    Include,
}

/// Traces each request by `tracing`, under OpenTelemetry's names, without the text of messages by default.
///
/// The span is `chat`, of level INFO and target `stepfold_providers::chat`, from the request to the end of
/// its stream. Its fields are those of OpenTelemetry's conventions for generative AI: `gen_ai.operation.name`,
/// `gen_ai.provider.name`, `gen_ai.request.*`, `gen_ai.response.*`, `gen_ai.usage.*`, `error.type`.
///
/// # Examples
/// ```
/// use stepfold_providers::Scripted;
/// use stepfold_providers::layer::{ChatModelExt, Trace, TraceContent};
///
/// let model = Scripted::new(["hi"]).layer(Trace::default());
/// let verbose = Scripted::new(["hi"]).layer(Trace::new(TraceContent::Include));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trace(TraceContent);

impl Trace {
    /// Traces with or without the text of messages.
    pub const fn new(content: TraceContent) -> Self {
        Trace(content)
    }
}

impl ModelLayer for Trace {
    fn layer(&self, model: Arc<dyn ChatModel>) -> Arc<dyn ChatModel> {
        Arc::new(TracedModel { inner: model, content: self.0 })
    }
}

struct TracedModel {
    inner: Arc<dyn ChatModel>,
    content: TraceContent,
}

impl ChatModel for TracedModel {
    fn id(&self) -> &str {
        self.inner.id()
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        let span = span(self.inner.id(), &request, self.content);
        let reply = span.in_scope(|| self.inner.respond(request));
        let record = SpanRecord { reply: Some(ReplyBuilder::new()), content: self.content };
        ReplyStream::new(SpannedReply { reply, span, record })
    }

    fn omitted_tools(&self, tools: &Arc<[ToolSpec]>) -> Vec<OmittedTool> {
        self.inner.omitted_tools(tools)
    }

    fn wire_request(&self, request: &ChatRequest) -> Option<Result<WireRequest, ModelError>> {
        self.inner.wire_request(request)
    }
}

fn span(id: &str, request: &ChatRequest, content: TraceContent) -> Span {
    let (provider, model) = id.split_once('/').unwrap_or((id, id));
    let model = request.model.as_deref().unwrap_or(model);
    let span = tracing::info_span!(
        target: "stepfold_providers::chat",
        "chat",
        otel.name = format_args!("chat {model}"),
        otel.kind = "client",
        otel.status_code = Empty,
        gen_ai.operation.name = "chat",
        gen_ai.provider.name = provider,
        gen_ai.request.model = model,
        gen_ai.request.temperature = request.params.temperature,
        gen_ai.request.top_p = request.params.top_p,
        gen_ai.request.max_tokens = request.params.max_output_tokens,
        gen_ai.request.seed = request.params.seed,
        gen_ai.response.id = Empty,
        gen_ai.response.model = Empty,
        gen_ai.response.finish_reasons = Empty,
        gen_ai.usage.input_tokens = Empty,
        gen_ai.usage.output_tokens = Empty,
        gen_ai.usage.cache_read.input_tokens = Empty,
        gen_ai.usage.cache_creation.input_tokens = Empty,
        gen_ai.input.messages = Empty,
        gen_ai.output.messages = Empty,
        error.type = Empty,
    );
    if content == TraceContent::Include && !span.is_disabled() {
        span.record("gen_ai.input.messages", json(&request.messages));
    }
    span
}

/// A stream whose work is done in a span.
struct SpannedReply {
    reply: ReplyStream,
    span: Span,
    record: SpanRecord,
}

impl Stream for SpannedReply {
    type Item = Result<Chunk, ModelError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        // NOTE: Entered for each poll only: a guard must not live across an await.
        let _entered = this.span.enter();
        let polled = Pin::new(&mut this.reply).poll_next(cx);
        match &polled {
            Poll::Pending => {}
            Poll::Ready(Some(Ok(chunk))) => this.record.chunk(chunk),
            Poll::Ready(Some(Err(error))) => this.record.failed(&this.span, error.kind()),
            Poll::Ready(None) => this.record.ended(&this.span),
        }
        polled
    }
}

/// The recorded fields of a reply, after its end.
struct SpanRecord {
    /// `None` after it was recorded.
    reply: Option<ReplyBuilder>,
    content: TraceContent,
}

impl SpanRecord {
    fn chunk(&mut self, chunk: &Chunk) {
        let is_content =
            matches!(chunk, Chunk::Text(_) | Chunk::Reasoning(_) | Chunk::ToolCall(_) | Chunk::Part(_));
        if let Some(reply) = &mut self.reply
            && (self.content == TraceContent::Include || !is_content)
        {
            reply.push(chunk.clone());
        }
    }

    fn ended(&mut self, span: &Span) {
        let Some(reply) = self.reply.take() else {
            return;
        };
        match reply.finish() {
            Err(error) => error_type(span, error.kind()),
            Ok(reply) => {
                span.record("gen_ai.response.finish_reasons", json(&[&reply.finish_reason]));
                span.record("gen_ai.usage.input_tokens", reply.usage.input_tokens);
                span.record("gen_ai.usage.output_tokens", reply.usage.output_tokens);
                span.record("gen_ai.usage.cache_read.input_tokens", reply.usage.cached_input_tokens);
                span.record("gen_ai.usage.cache_creation.input_tokens", reply.usage.cache_write_tokens);
                if let Some(id) = &reply.id {
                    span.record("gen_ai.response.id", id);
                }
                if let Some(model) = &reply.model {
                    span.record("gen_ai.response.model", model);
                }
                if self.content == TraceContent::Include {
                    span.record("gen_ai.output.messages", json(&[&reply.message]));
                }
            }
        }
    }

    fn failed(&mut self, span: &Span, kind: &ModelErrorKind) {
        if self.reply.take().is_some() {
            error_type(span, kind);
        }
    }
}

/// The text of an error may quote messages; its kind does not.
fn error_type(span: &Span, error: &ModelErrorKind) {
    span.record("error.type", error.name());
    span.record("otel.status_code", "ERROR");
}

fn json<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}
