//! So many requests and tokens in a time. The counting is governor's; the clock is tokio's, so that a test
//! can stop it.

use std::fmt;
use std::num::NonZeroU32;
use std::ops::Add;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use governor::clock::{Clock, Reference};
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use stepfold_state_core::chat::{ChatModel, ChatRequest, Content, ReplyStream};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

/// How many requests, and perhaps tokens, a minute may have.
///
/// A minute's worth may come at once; after that, as it trickles back. What a request will cost in tokens
/// is not known before it was answered: it is estimated, as a token for four bytes that are read and as many
/// as may be written ([`max_output_tokens`](stepfold_state_core::chat::ModelParams::max_output_tokens)), or
/// by a function of yours. A request that is larger than a minute's worth waits until the whole of one is
/// there.
///
/// # Examples
/// ```
/// use stepfold_providers::Scripted;
/// use stepfold_providers::layer::{ChatModelExt, RateLimit};
///
/// let model = Scripted::new(["hi"]).with_rate_limit(RateLimit::per_minute(500).tokens_per_minute(30_000));
/// ```
#[derive(Clone)]
pub struct RateLimit {
    requests: NonZeroU32,
    tokens: Option<NonZeroU32>,
    estimate: Arc<dyn Fn(&ChatRequest) -> u64 + Send + Sync>,
}

impl RateLimit {
    /// So many requests a minute. Zero counts as one.
    pub fn per_minute(requests: u32) -> Self {
        RateLimit { requests: at_least_one(requests), tokens: None, estimate: Arc::new(estimate) }
    }

    /// And so many tokens. Zero counts as one.
    #[must_use]
    pub fn tokens_per_minute(mut self, tokens: u32) -> Self {
        self.tokens = Some(at_least_one(tokens));
        self
    }

    /// The cost of a request in tokens, by another estimate.
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

fn at_least_one(count: u32) -> NonZeroU32 {
    NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN)
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
    bytes as u64 / 4 + request.params.max_output_tokens.unwrap_or(0)
}

/// A model that waits before it would be asked too much; see
/// [`with_rate_limit`](super::ChatModelExt::with_rate_limit). Who comes first is served first.
pub struct RateLimited<M> {
    inner: Arc<M>,
    limit: RateLimit,
    gates: Arc<Gates>,
}

/// What a request has to pass.
struct Gates {
    /// Held by the one that waits, so that the others wait behind it in order.
    queue: Mutex<()>,
    requests: Gate,
    tokens: Option<Gate>,
}

/// A bucket that fills up in a minute.
struct Gate {
    limiter: RateLimiter<NotKeyed, InMemoryState, TokioClock, NoOpMiddleware<Moment>>,
    size: NonZeroU32,
}

impl<M> RateLimited<M> {
    pub(super) fn new(inner: M, limit: RateLimit) -> Self {
        let gates = Gates {
            queue: Mutex::new(()),
            requests: Gate::new(limit.requests),
            tokens: limit.tokens.map(Gate::new),
        };
        RateLimited { inner: Arc::new(inner), limit, gates: Arc::new(gates) }
    }
}

impl<M: ChatModel + 'static> ChatModel for RateLimited<M> {
    fn id(&self) -> &str {
        self.inner.id()
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        let model = Arc::clone(&self.inner);
        let gates = Arc::clone(&self.gates);
        let estimate = Arc::clone(&self.limit.estimate);
        let reply = async move {
            let tokens = gates.tokens.as_ref().map(|gate| (gate, estimate(&request)));
            let _turn = gates.queue.lock().await;
            gates.requests.pass(1).await;
            if let Some((gate, tokens)) = tokens {
                gate.pass(tokens).await;
            }
            model.respond(request)
        };
        ReplyStream::new(reply.flatten_stream())
    }
}

impl Gate {
    fn new(per_minute: NonZeroU32) -> Self {
        let limiter = RateLimiter::direct_with_clock(Quota::per_minute(per_minute), TokioClock::new());
        Gate { limiter, size: per_minute }
    }

    /// Waits until so many are there, and takes them.
    async fn pass(&self, count: u64) {
        let Some(count) = NonZeroU32::new(u32::try_from(count).unwrap_or(u32::MAX)) else {
            return;
        };
        // More than a full bucket never is there, so that the other error cannot come.
        while let Ok(Err(not_yet)) = self.limiter.check_n(count.min(self.size)) {
            sleep(not_yet.wait_time_from(self.limiter.clock().now())).await;
        }
    }
}

impl<M: ChatModel> fmt::Debug for RateLimited<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimited")
            .field("model", &self.inner.id())
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

/// The clock of the runtime, which a test can pause.
#[derive(Clone)]
struct TokioClock {
    start: Instant,
}

impl TokioClock {
    fn new() -> Self {
        TokioClock { start: Instant::now() }
    }
}

impl Clock for TokioClock {
    type Instant = Moment;

    fn now(&self) -> Moment {
        Moment(self.start.elapsed())
    }
}

/// The time since the clock was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Moment(Duration);

impl Reference for Moment {
    fn duration_since(&self, earlier: Self) -> Nanos {
        self.0.saturating_sub(earlier.0).into()
    }

    fn saturating_sub(&self, duration: Nanos) -> Self {
        Moment(self.0.checked_sub(duration.into()).unwrap_or(self.0))
    }
}

impl Add<Nanos> for Moment {
    type Output = Moment;

    fn add(self, other: Nanos) -> Moment {
        Moment(self.0 + Duration::from(other))
    }
}
