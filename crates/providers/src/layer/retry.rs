//! Repeats failed requests, within bounds, as long as no part of a reply was passed on.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, ModelError, NextAttempt, OmittedTool, ReplyStream, ToolSpec, WireRequest,
};
use tokio::time::{Instant, sleep};

use super::ModelLayer;
use super::opening::{Attempted, Opening, OpeningStep, all_failed, reply_of};

/// Repeats failed requests.
///
/// By default a request is repeated if its error [is temporary](ModelError::is_retryable);
/// [`when`](Retry::when) sets another predicate. A request is never repeated after a part of its reply was
/// passed on. Pauses double, with jitter, so that many clients do not return at once; a wait requested by the
/// provider takes precedence. If the next attempt would begin after [`max_total`](Retry::max_total), the
/// error is returned immediately. It is the last one, and its text lists the failures of all attempts if they differ. The
/// usage of a reply is that of the attempt that gave it.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use stepfold_providers::Scripted;
/// use stepfold_providers::layer::{ChatModelExt, Retry};
/// use stepfold_state_core::chat::ModelErrorKind;
///
/// let patient = Retry::attempts(10)
///     .max_total(Duration::from_secs(600))
///     .when(|error| error.is_retryable() || error.kind() == &ModelErrorKind::NotFound);
/// let model = Scripted::new(["area 3"]).layer(patient);
/// ```
#[derive(Clone)]
pub struct Retry {
    attempts: usize,
    min_pause: Duration,
    max_pause: Duration,
    max_total: Duration,
    seed: Option<u64>,
    predicate: Arc<RetryPredicate>,
    listener: Option<Arc<RetryListener>>,
}

type RetryPredicate = dyn Fn(&ModelError) -> bool + Send + Sync;
type RetryListener = dyn Fn(&FailedAttempt<'_>) + Send + Sync;

/// Four attempts within two minutes, with pauses of half a second to 20 seconds.
impl Default for Retry {
    fn default() -> Self {
        Retry {
            attempts: 4,
            min_pause: Duration::from_millis(500),
            max_pause: Duration::from_secs(20),
            max_total: Duration::from_secs(120),
            seed: None,
            predicate: Arc::new(ModelError::is_retryable),
            listener: None,
        }
    }
}

impl Retry {
    /// At most `attempts` attempts, the first included; zero counts as one. The rest is as by default.
    pub fn attempts(attempts: usize) -> Self {
        Retry { attempts: attempts.max(1), ..Retry::default() }
    }

    /// Sets the first and the longest pause, without jitter: half a second and 20 seconds by default.
    #[must_use]
    pub fn pauses(mut self, min: Duration, max: Duration) -> Self {
        (self.min_pause, self.max_pause) = (min, max);
        self
    }

    /// Sets how long after the first attempt began another one may begin: two minutes by default.
    #[must_use]
    pub fn max_total(mut self, time: Duration) -> Self {
        self.max_total = time;
        self
    }

    /// Sets the seed of the jitter, for tests. By default each request has a random one.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Sets which errors are worth another attempt: by default those that [may pass](ModelError::is_retryable).
    #[must_use]
    pub fn when(mut self, predicate: impl Fn(&ModelError) -> bool + Send + Sync + 'static) -> Self {
        self.predicate = Arc::new(predicate);
        self
    }

    /// Reports each failed attempt before the pause that precedes the next one.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(async {
    /// use std::sync::{Arc, Mutex};
    /// use stepfold_providers::layer::{ChatModelExt, Retry};
    /// use stepfold_providers::{Scripted, ScriptedReply};
    /// use stepfold_state_core::chat::{ChatModel, ChatRequest, Message, ModelErrorKind, Transcript};
    ///
    /// let script = Scripted::new([ScriptedReply::from(ModelErrorKind::Overloaded), "area 3".into()]);
    /// let reports = Arc::new(Mutex::new(Vec::new()));
    /// let seen = Arc::clone(&reports);
    /// let model = script.layer(Retry::default().on_retry(move |failed| {
    ///     seen.lock().unwrap().push(format!("{} of {}", failed.attempt, failed.max_attempts));
    /// }));
    ///
    /// let request = ChatRequest::new(Transcript::new().with(Message::user("which area?")));
    /// assert_eq!(model.respond(request).into_reply().await?.message.text(), "area 3");
    /// assert_eq!(*reports.lock().unwrap(), ["1 of 4"]);
    /// # Ok::<(), stepfold_state_core::chat::ModelError>(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub fn on_retry(mut self, listener: impl Fn(&FailedAttempt<'_>) + Send + Sync + 'static) -> Self {
        self.listener = Some(Arc::new(listener));
        self
    }

    /// The pauses between attempts.
    fn all_pauses(&self) -> impl Iterator<Item = Duration> + use<> {
        let builder = ExponentialBuilder::new()
            .with_min_delay(self.min_pause)
            .with_max_delay(self.max_pause)
            .with_max_times(self.attempts.saturating_sub(1))
            // NOTE: Without jitter, clients that failed together would return together.
            .with_jitter();
        match self.seed {
            Some(seed) => builder.with_jitter_seed(seed).build(),
            None => builder.build(),
        }
    }
}

impl ModelLayer for Retry {
    fn layer(&self, model: Arc<dyn ChatModel>) -> Arc<dyn ChatModel> {
        Arc::new(RetryingModel { inner: model, retry: self.clone() })
    }
}

impl fmt::Debug for Retry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retry")
            .field("attempts", &self.attempts)
            .field("min_pause", &self.min_pause)
            .field("max_pause", &self.max_pause)
            .field("max_total", &self.max_total)
            .finish_non_exhaustive()
    }
}

/// A failed attempt that another one follows; see [`Retry::on_retry`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct FailedAttempt<'a> {
    /// The id of the model.
    pub model: &'a str,
    /// The number of the attempt, from 1.
    pub attempt: usize,
    /// The attempts that are allowed.
    pub max_attempts: usize,
    /// The error.
    pub error: &'a ModelError,
    /// The pause before the next attempt.
    pub pause: Duration,
}

struct RetryingModel {
    inner: Arc<dyn ChatModel>,
    retry: Retry,
}

impl ChatModel for RetryingModel {
    fn id(&self) -> &str {
        self.inner.id()
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        reply_of(Attempts::new(Arc::clone(&self.inner), self.retry.clone(), request), Attempts::proceed)
    }

    fn omitted_tools(&self, tools: &Arc<[ToolSpec]>) -> Vec<OmittedTool> {
        self.inner.omitted_tools(tools)
    }

    fn wire_request(&self, request: &ChatRequest) -> Option<Result<WireRequest, ModelError>> {
        self.inner.wire_request(request)
    }
}

/// Attempts until one begins to answer or no further one is allowed.
struct Attempts {
    model: Arc<dyn ChatModel>,
    retry: Retry,
    request: ChatRequest,
    pauses: Box<dyn Iterator<Item = Duration> + Send>,
    failures: Vec<String>,
    /// When the first attempt began.
    start: Option<Instant>,
    current: CurrentAttempt,
    /// Whether a layer inside has asked another model since the attempt began.
    has_asked_another: bool,
}

enum CurrentAttempt {
    /// It begins after this pause.
    After(Duration),
    Opening(Opening),
}

impl Attempts {
    fn new(model: Arc<dyn ChatModel>, retry: Retry, request: ChatRequest) -> Self {
        let (pauses, current) = (Box::new(retry.all_pauses()), CurrentAttempt::After(Duration::ZERO));
        let (failures, start, has_asked_another) = (Vec::new(), None, false);
        Attempts { model, retry, request, pauses, failures, start, current, has_asked_another }
    }

    /// Continues with the current attempt, until it answers or fails.
    async fn proceed(mut self) -> Attempted<Self> {
        let current = std::mem::replace(&mut self.current, CurrentAttempt::After(Duration::ZERO));
        let opening = match current {
            CurrentAttempt::Opening(opening) => opening,
            CurrentAttempt::After(pause) => {
                if !pause.is_zero() {
                    sleep(pause).await;
                }
                self.start.get_or_insert_with(Instant::now);
                Opening::of(self.model.respond(self.request.clone()))
            }
        };
        // NOTE: After the first content the caller has seen a part of the reply: a repetition would show it twice.
        match opening.step().await {
            Ok(OpeningStep::Begun(begun)) => Attempted::Ended(Ok(begun)),
            Ok(OpeningStep::NextAttempt(opening, next)) => {
                self.current = CurrentAttempt::Opening(opening);
                self.has_asked_another |= next.model.is_some();
                Attempted::Again(next, self)
            }
            Err(error) => match self.pause_after(&error) {
                Some(pause) => {
                    self.current = CurrentAttempt::After(pause);
                    Attempted::Again(self.next_after(&error), self)
                }
                None => Attempted::Ended(Err(self.failed(error))),
            },
        }
    }

    /// The next attempt: it begins with the first model, which is named if a fallback inside has asked others.
    fn next_after(&mut self, error: &ModelError) -> NextAttempt {
        let next = NextAttempt::after(error);
        match std::mem::take(&mut self.has_asked_another) {
            true => next.of_model(self.request.model_id(self.model.id())),
            false => next,
        }
    }

    fn spent(&self) -> Duration {
        self.start.map(|start| start.elapsed()).unwrap_or_default()
    }

    /// The pause before the next attempt; `None` if no further one is allowed.
    fn pause_after(&mut self, error: &ModelError) -> Option<Duration> {
        self.failures.push(error.to_string());
        let pause = self.pauses.next().filter(|_| (self.retry.predicate)(error))?;
        // NOTE: A wait of zero comes from a date that has passed; it does not mean that a retry may follow at once.
        let pause = error.retry_after().filter(|wait| !wait.is_zero()).unwrap_or(pause);
        if self.spent().saturating_add(pause) > self.retry.max_total {
            return None;
        }
        tracing::debug!(model = self.model.id(), %error, ?pause, "a request failed and is sent again");
        if let Some(listener) = &self.retry.listener {
            let (attempt, max_attempts) = (self.failures.len(), self.retry.attempts);
            listener(&FailedAttempt { model: self.model.id(), attempt, max_attempts, error, pause });
        }
        Some(pause)
    }

    /// The error of all attempts.
    fn failed(&self, last: ModelError) -> ModelError {
        if self.failures.len() == 1 {
            return last;
        }
        let what = format!("{} attempts in {:.1?}", self.failures.len(), self.spent());
        all_failed(last, &what, &listed(&self.failures))
    }
}

/// Lists the failures with their numbers; empty if all are equal to the last one, which the error shows.
fn listed(failures: &[String]) -> Vec<String> {
    if failures.iter().all(|failure| Some(failure) == failures.last()) {
        return Vec::new();
    }
    failures.iter().zip(1..).map(|(failure, number)| format!("{number}: {failure}")).collect()
}
