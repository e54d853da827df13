//! Giving up on what takes too long. How long it may take to connect is for the HTTP client to watch: of a
//! `ChatModel` one sees only what comes.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Chunk, ModelError, ModelErrorKind, ReplyStream, TimeoutKind,
};
use tokio::time::{Instant, timeout_at};

/// How long a reply may take. None is for ever.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use stepfold_providers::layer::Timeouts;
///
/// let hurried = Timeouts { total: Some(Duration::from_secs(30)), ..Timeouts::default() };
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Until the first piece of it: five minutes by default. A model that thinks in silence is slow.
    pub first_token: Option<Duration>,
    /// From one piece to the next: two minutes by default.
    pub idle: Option<Duration>,
    /// All of it: for ever by default.
    pub total: Option<Duration>,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts {
            first_token: Some(Duration::from_secs(300)),
            idle: Some(Duration::from_secs(120)),
            total: None,
        }
    }
}

impl Timeouts {
    /// For ever.
    pub const NONE: Self = Timeouts { first_token: None, idle: None, total: None };
}

/// A model that is given up on; see [`with_timeouts`](super::ChatModelExt::with_timeouts).
///
/// The clock runs from when a stream is first polled. Time that its reader takes does not count.
pub struct TimedOut<M> {
    inner: Arc<M>,
    timeouts: Timeouts,
}

impl<M> TimedOut<M> {
    pub(super) fn new(inner: M, timeouts: Timeouts) -> Self {
        TimedOut { inner: Arc::new(inner), timeouts }
    }
}

impl<M: ChatModel + 'static> ChatModel for TimedOut<M> {
    fn id(&self) -> &str {
        self.inner.id()
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        let (provider, model) = self.inner.id().split_once('/').unwrap_or((self.inner.id(), ""));
        let model = request.model.clone().unwrap_or_else(|| model.to_owned());
        let provider = provider.to_owned();
        let name = move |error: ModelError| {
            let error = error.with_provider(&provider);
            if model.is_empty() { error } else { error.with_model(&model) }
        };
        watch(self.inner.respond(request), self.timeouts, || false, name)
    }
}

/// The same reply, given up on when it takes too long. Once it is whole, no limit holds: it ends by itself.
pub(crate) fn watch(
    reply: ReplyStream,
    timeouts: Timeouts,
    is_whole: impl Fn() -> bool + Send + 'static,
    name: impl Fn(ModelError) -> ModelError + Send + 'static,
) -> ReplyStream {
    let is_whole = Box::new(is_whole);
    let watched = Watched { reply, timeouts, is_whole, start: None, has_begun: false, idle: Duration::ZERO };
    ReplyStream::new(stream::unfold((watched, name), |(mut watched, name)| async move {
        let item = watched.next().await?;
        Some((item.map_err(|fault| fault.into_error(&name)), (watched, name)))
    }))
}

struct Watched {
    reply: ReplyStream,
    is_whole: Box<dyn Fn() -> bool + Send>,
    timeouts: Timeouts,
    start: Option<Instant>,
    has_begun: bool,
    /// How long the reply has been waited for since it last got on.
    idle: Duration,
}

/// An error of the model, or ours.
enum Fault {
    Theirs(ModelError),
    TooLong(TimeoutKind, Duration),
}

impl Fault {
    fn into_error(self, name: impl Fn(ModelError) -> ModelError) -> ModelError {
        match self {
            Fault::Theirs(error) => error,
            Fault::TooLong(kind, limit) => {
                name(ModelError::new(ModelErrorKind::TimedOut(kind), format!("the limit is {limit:?}")))
            }
        }
    }
}

impl Watched {
    async fn next(&mut self) -> Option<Result<Chunk, Fault>> {
        let now = Instant::now();
        let start = *self.start.get_or_insert(now);
        let step = if self.has_begun {
            let left = |limit: Duration| limit.saturating_sub(self.idle);
            self.timeouts
                .idle
                .and_then(|limit| Some((now.checked_add(left(limit))?, TimeoutKind::Idle, limit)))
        } else {
            (self.timeouts.first_token)
                .and_then(|limit| Some((start.checked_add(limit)?, TimeoutKind::FirstToken, limit)))
        };
        let total = self.timeouts.total;
        let total = total.and_then(|limit| Some((start.checked_add(limit)?, TimeoutKind::Total, limit)));
        let first = step.into_iter().chain(total).min_by_key(|(deadline, ..)| *deadline);
        let item = match first {
            None => self.reply.next().await,
            Some((deadline, kind, limit)) => {
                let in_time = match now < deadline {
                    true => timeout_at(deadline, self.reply.next()).await.ok(),
                    // A stream that is always ready would never let the timeout be looked at.
                    false => None,
                };
                let item = match in_time {
                    None if (self.is_whole)() => Some(self.reply.next().await),
                    in_time => in_time,
                };
                let Some(item) = item else {
                    // An error is the last item; what is behind it is let go of with its connection.
                    self.reply = ReplyStream::from_chunks([]);
                    return Some(Err(Fault::TooLong(kind, limit)));
                };
                item
            }
        };
        let gets_on = gets_on(item.as_ref());
        self.has_begun |= gets_on;
        self.idle = if gets_on { Duration::ZERO } else { self.idle + now.elapsed() };
        Some(item?.map_err(Fault::Theirs))
    }
}

/// Whether the reply gets on with it: counts and empty text keep a connection alive, and are no answer.
fn gets_on(item: Option<&Result<Chunk, ModelError>>) -> bool {
    match item {
        Some(Ok(Chunk::Text(text) | Chunk::Reasoning(text))) => !text.is_empty(),
        Some(Ok(Chunk::Identity { .. } | Chunk::Usage(_))) => false,
        _ => true,
    }
}

impl<M: ChatModel> fmt::Debug for TimedOut<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimedOut").field("model", &self.inner.id()).field("timeouts", &self.timeouts).finish()
    }
}
