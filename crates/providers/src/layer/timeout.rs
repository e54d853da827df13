//! Limits the time of a reply. The HTTP client limits the time to connect: a `ChatModel` shows only what
//! arrives.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Chunk, ModelError, ModelErrorKind, OmittedTool, ReplyStream, TimeoutKind,
    ToolSpec, WireRequest,
};
use tokio::time::{Instant, timeout_at};

use super::ModelLayer;
use super::opening::is_content;

/// Limits the time of a reply. The clock starts when a stream is first polled; the time that its reader takes does not
/// count. A reply that has finished is not lost to a limit.
///
/// A layer sees only the chunks of a model: a server that merely keeps the connection alive, while its model reasons
/// silently or a tool runs on the server, looks idle to it. HTTP models know the difference: prefer their own
/// `HttpModelBuilder::timeout`.
///
/// A model over HTTP waits up to five seconds after the finish of a reply for its usage. Limits that are shorter than that
/// belong in its builder (`HttpModelBuilder::timeout`), which does not count that time; a layer does.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use stepfold_providers::Scripted;
/// use stepfold_providers::layer::{ChatModelExt, Timeout};
///
/// let model = Scripted::new(["area 3"]).layer(Timeout::default().total(Duration::from_secs(30)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeout {
    pub(crate) first_token: Option<Duration>,
    pub(crate) idle: Option<Duration>,
    pub(crate) total: Option<Duration>,
}

/// Five minutes to the first token, two minutes between two pieces, no limit for the whole reply.
impl Default for Timeout {
    fn default() -> Self {
        Timeout::NONE.first_token(Duration::from_secs(300)).idle(Duration::from_secs(120))
    }
}

impl Timeout {
    /// No limit.
    pub const NONE: Self = Timeout { first_token: None, idle: None, total: None };

    /// Limits the time to the first piece of the reply: five minutes by default, since a model that reasons in silence
    /// is slow. `None` for no limit.
    #[must_use]
    pub fn first_token(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.first_token = limit.into();
        self
    }

    /// Limits the time from one piece to the next: two minutes by default. `None` for no limit.
    #[must_use]
    pub fn idle(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.idle = limit.into();
        self
    }

    /// Limits the time of the whole reply; there is no limit by default.
    #[must_use]
    pub fn total(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.total = limit.into();
        self
    }
}

impl ModelLayer for Timeout {
    fn layer(&self, model: Arc<dyn ChatModel>) -> Arc<dyn ChatModel> {
        Arc::new(TimeoutModel { inner: model, timeout: *self })
    }
}

struct TimeoutModel {
    inner: Arc<dyn ChatModel>,
    timeout: Timeout,
}

impl ChatModel for TimeoutModel {
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
        with_timeout(self.inner.respond(request), self.timeout, || false, || 0, name)
    }

    fn omitted_tools(&self, tools: &Arc<[ToolSpec]>) -> Vec<OmittedTool> {
        self.inner.omitted_tools(tools)
    }

    fn wire_request(&self, request: &ChatRequest) -> Option<Result<WireRequest, ModelError>> {
        self.inner.wire_request(request)
    }
}

/// Adds limits to a reply. They end when the reply is complete. `held` returns the amount that is held back.
pub(crate) fn with_timeout(
    reply: ReplyStream,
    timeout: Timeout,
    is_whole: impl Fn() -> bool + Send + 'static,
    held: impl Fn() -> usize + Send + 'static,
    name: impl Fn(ModelError) -> ModelError + Send + 'static,
) -> ReplyStream {
    let (is_whole, held) = (Box::new(is_whole), BufferedProgress { now: Box::new(held), before: 0 });
    let (spent, idle) = (Duration::ZERO, Duration::ZERO);
    let watched =
        TimedReply { reply, timeout, is_whole, held, has_begun: false, is_finished: false, spent, idle };
    ReplyStream::new(stream::unfold((watched, name), |(mut watched, name)| async move {
        let item = watched.next().await?;
        Some((item.map_err(|fault| fault.into_error(&name)), (watched, name)))
    }))
}

struct TimedReply {
    reply: ReplyStream,
    is_whole: Box<dyn Fn() -> bool + Send>,
    held: BufferedProgress,
    timeout: Timeout,
    has_begun: bool,
    /// Whether the last chunk of the reply was passed on. Usage may follow.
    is_finished: bool,
    /// The time waited for the reply.
    spent: Duration,
    /// The time waited since the last progress.
    idle: Duration,
}

/// The amount of the reply that is held back: its growth is progress, too.
struct BufferedProgress {
    now: Box<dyn Fn() -> usize + Send>,
    before: usize,
}

impl BufferedProgress {
    fn has_grown(&mut self) -> bool {
        let now = (self.now)();
        now > std::mem::replace(&mut self.before, now)
    }
}

/// An error of the model, or ours.
enum TimedReplyError {
    Theirs(ModelError),
    TooLong(TimeoutKind, Duration),
}

impl TimedReplyError {
    fn into_error(self, name: impl Fn(ModelError) -> ModelError) -> ModelError {
        match self {
            TimedReplyError::Theirs(error) => error,
            TimedReplyError::TooLong(kind, limit) => {
                name(ModelError::new(ModelErrorKind::TimedOut(kind), format!("the limit is {limit:?}")))
            }
        }
    }
}

impl TimedReply {
    async fn next(&mut self) -> Option<Result<Chunk, TimedReplyError>> {
        let now = Instant::now();
        let until = |limit: Option<Duration>, waited: Duration, kind| {
            let limit = limit?;
            Some((now.checked_add(limit.saturating_sub(waited))?, kind, limit))
        };
        let step = if self.has_begun {
            until(self.timeout.idle, self.idle, TimeoutKind::Idle)
        } else {
            until(self.timeout.first_token, self.spent, TimeoutKind::FirstToken)
        };
        let total = until(self.timeout.total, self.spent, TimeoutKind::Total);
        let first = step.into_iter().chain(total).min_by_key(|(deadline, ..)| *deadline);
        let item = match first {
            None => self.reply.next().await,
            Some((deadline, kind, limit)) => {
                let in_time = match now < deadline {
                    true => timeout_at(deadline, self.reply.next()).await.ok(),
                    // NOTE: Without this, a stream that is always ready would never check the timeout.
                    false => None,
                };
                let item = match in_time {
                    // NOTE: A limit must not throw a complete reply away because its usage is late. See
                    // docs/decisions/providers.md.
                    None if self.is_finished => Some(None),
                    None if (self.is_whole)() => Some(self.reply.next().await),
                    in_time => in_time,
                };
                let Some(item) = item else {
                    // An error is the last item; the rest is dropped with its connection.
                    self.reply = ReplyStream::from_chunks([]);
                    return Some(Err(TimedReplyError::TooLong(kind, limit)));
                };
                item
            }
        };
        let has_grown = self.held.has_grown();
        let is_progress = has_grown || !matches!(&item, Some(Ok(chunk)) if !is_content(chunk));
        self.has_begun |= is_progress;
        self.is_finished |= matches!(item, Some(Ok(Chunk::Finished(_))));
        let waited = now.elapsed();
        self.spent = self.spent.saturating_add(waited);
        self.idle = if is_progress { Duration::ZERO } else { self.idle.saturating_add(waited) };
        Some(item?.map_err(TimedReplyError::Theirs))
    }
}
