//! Limits the rate of requests and tokens: buckets that leak at a steady rate, on tokio's clock, which a test can
//! stop.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Content, ModelError, OmittedTool, ReplyStream, ToolSpec, WireRequest,
};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

use super::ModelLayer;

const MINUTE: Duration = Duration::from_secs(60);

/// Limits the rate of requests, and optionally of tokens: a request that would exceed it waits, in order of arrival.
///
/// The requests of a minute may be sent at once; after that, at a steady rate. The tokens of a request are not known
/// before it was answered. They are estimated, as one token for four bytes of input and as many as may be written
/// ([`max_output_tokens`](stepfold_state_core::chat::ModelParams::max_output_tokens)), or by a function of yours. A
/// request larger than the limit of a minute waits for a whole minute's tokens.
///
/// # Examples
/// ```
/// use stepfold_providers::Scripted;
/// use stepfold_providers::layer::{ChatModelExt, RateLimit};
///
/// let model = Scripted::new(["hi"]).layer(RateLimit::per_minute(500).tokens_per_minute(30_000));
/// ```
#[derive(Clone)]
pub struct RateLimit {
    requests: u32,
    tokens: Option<u32>,
    estimate: Arc<TokenEstimate>,
}

type TokenEstimate = dyn Fn(&ChatRequest) -> u64 + Send + Sync;

impl RateLimit {
    /// Limits requests per minute. Zero counts as one.
    pub fn per_minute(requests: u32) -> Self {
        RateLimit { requests: requests.max(1), tokens: None, estimate: Arc::new(estimate) }
    }

    /// Limits tokens per minute as well. Zero counts as one.
    #[must_use]
    pub fn tokens_per_minute(mut self, tokens: u32) -> Self {
        self.tokens = Some(tokens.max(1));
        self
    }

    /// Sets another estimate of the tokens of a request.
    #[must_use]
    pub fn estimated_by(mut self, estimate: impl Fn(&ChatRequest) -> u64 + Send + Sync + 'static) -> Self {
        self.estimate = Arc::new(estimate);
        self
    }
}

impl fmt::Debug for RateLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit")
            .field("requests", &self.requests)
            .field("tokens", &self.tokens)
            .finish_non_exhaustive()
    }
}

/// A token for four bytes, and as many as may be written.
fn estimate(request: &ChatRequest) -> u64 {
    let bytes = |content: &Content| match content {
        Content::Text(text) | Content::Reasoning(text) => text.len(),
        Content::ToolCall(call) => call.name.len() + call.arguments.to_text().len(),
        Content::ToolResult(result) => result.text().len(),
        _ => 0,
    };
    let parts = request.messages.iter().flat_map(|message| message.parts());
    let bytes: usize = parts.map(|part| bytes(&part.content)).sum();
    (bytes as u64 / 4).saturating_add(request.params.max_output_tokens.unwrap_or(0))
}

impl ModelLayer for RateLimit {
    fn layer(&self, model: Arc<dyn ChatModel>) -> Arc<dyn ChatModel> {
        let gates = RateBuckets {
            requests: RateBucket::new(self.requests),
            tokens: self.tokens.map(RateBucket::new),
        };
        let (estimate, gates) = (Arc::clone(&self.estimate), Arc::new(Mutex::new(gates)));
        Arc::new(RateLimitedModel { inner: model, estimate, gates })
    }
}

struct RateLimitedModel {
    inner: Arc<dyn ChatModel>,
    estimate: Arc<TokenEstimate>,
    /// Held by the waiting request, so that others wait in order.
    gates: Arc<Mutex<RateBuckets>>,
}

/// The limits of a request.
struct RateBuckets {
    requests: RateBucket,
    tokens: Option<RateBucket>,
}

/// A bucket that fills up in a minute.
struct RateBucket {
    size: u32,
    /// When it will be full again.
    full_at: Instant,
}

impl ChatModel for RateLimitedModel {
    fn id(&self) -> &str {
        self.inner.id()
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        let model = Arc::clone(&self.inner);
        let gates = Arc::clone(&self.gates);
        let estimate = Arc::clone(&self.estimate);
        let reply = async move {
            let mut gates = gates.lock().await;
            gates.requests.pass(1).await;
            if let Some(gate) = &mut gates.tokens {
                gate.pass(estimate(&request)).await;
            }
            model.respond(request)
        };
        ReplyStream::new(reply.flatten_stream())
    }

    fn omitted_tools(&self, tools: &Arc<[ToolSpec]>) -> Vec<OmittedTool> {
        self.inner.omitted_tools(tools)
    }

    fn wire_request(&self, request: &ChatRequest) -> Option<Result<WireRequest, ModelError>> {
        self.inner.wire_request(request)
    }
}

impl RateBucket {
    fn new(per_minute: u32) -> Self {
        RateBucket { size: per_minute, full_at: Instant::now() }
    }

    /// Waits until this many are available, or the bucket is full, and takes them.
    async fn pass(&mut self, count: u64) {
        let count = u32::try_from(count).unwrap_or(u32::MAX).min(self.size);
        // NOTE: Requests wait in order behind one lock, so that a bucket is one line of arithmetic and needs no
        // library.
        let full_at = self.full_at.max(Instant::now()) + MINUTE * count / self.size;
        if let Some(there_at) = full_at.checked_sub(MINUTE) {
            sleep_until(there_at).await;
        }
        self.full_at = full_at;
    }
}
