//! Asking again. Only as long as nothing of a reply was handed on, and within bounds.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use futures_util::FutureExt;
use stepfold_state_core::chat::{ChatModel, ChatRequest, ModelError, ReplyStream};
use tokio::time::{Instant, sleep};

use super::opening::{Begun, all_failed, opening};

/// When to ask again, and how often.
///
/// Pauses double, with jitter, so that many clients do not come back at once. When a provider says how
/// long to wait, that is how long; if it says longer than the time that is left, there is no point in
/// waiting and the error comes at once.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use stepfold_providers::layer::RetryPolicy;
///
/// let patient = RetryPolicy { max_attempts: 10, max_total: Duration::from_secs(600), ..RetryPolicy::default() };
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// How often a request is sent at most, the first time included: 4 by default. Zero counts as one.
    pub max_attempts: usize,
    /// The first pause, without its jitter: half a second by default.
    pub min_pause: Duration,
    /// The longest pause, without its jitter: 20 seconds by default.
    pub max_pause: Duration,
    /// How long after the first attempt began another one may begin: two minutes by default.
    pub max_total: Duration,
    /// The seed of the jitter, for tests; none draws another one each time.
    pub seed: Option<u64>,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        RetryPolicy {
            max_attempts: 4,
            min_pause: Duration::from_millis(500),
            max_pause: Duration::from_secs(20),
            max_total: Duration::from_secs(120),
            seed: None,
        }
    }
}

impl RetryPolicy {
    /// The pauses between attempts.
    fn pauses(&self) -> impl Iterator<Item = Duration> + use<> {
        let builder = ExponentialBuilder::new()
            .with_min_delay(self.min_pause)
            .with_max_delay(self.max_pause)
            .with_max_times(self.max_attempts.saturating_sub(1))
            .with_jitter();
        match self.seed {
            Some(seed) => builder.with_jitter_seed(seed).build(),
            None => builder.build(),
        }
    }
}

/// A model that is asked again when it failed; see [`with_retry`](super::ChatModelExt::with_retry).
///
/// An attempt is repeated if its error [may pass](ModelError::is_retryable) and nothing of the reply was
/// handed on. The last error names the failures of all attempts if they differ, and has the last one as its source.
pub struct Retried<M> {
    inner: Arc<M>,
    policy: RetryPolicy,
    listener: Option<Arc<Listener>>,
}

type Listener = dyn Fn(&FailedAttempt<'_>) + Send + Sync;

/// An attempt that failed and is followed by another one; see [`Retried::on_retry`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct FailedAttempt<'a> {
    /// The id of the model.
    pub model: &'a str,
    /// The number of the attempt, from 1.
    pub attempt: usize,
    /// The attempts that the policy allows.
    pub max_attempts: usize,
    /// Why it failed.
    pub error: &'a ModelError,
    /// The pause before the next attempt.
    pub pause: Duration,
}

impl<M> Retried<M> {
    pub(super) fn new(inner: M, policy: RetryPolicy) -> Self {
        Retried { inner: Arc::new(inner), policy, listener: None }
    }

    /// Reports each attempt that failed, before the pause that precedes the next one: a program that shows nothing for
    /// seconds looks as if it hung.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(async {
    /// use std::sync::{Arc, Mutex};
    /// use stepfold_providers::layer::{ChatModelExt, RetryPolicy};
    /// use stepfold_providers::{Scripted, ScriptedReply};
    /// use stepfold_state_core::chat::{ChatModel, ChatRequest, Message, ModelErrorKind, Transcript};
    ///
    /// let script = Scripted::new([ScriptedReply::from(ModelErrorKind::Overloaded), "area 3".into()]);
    /// let reports = Arc::new(Mutex::new(Vec::new()));
    /// let seen = Arc::clone(&reports);
    /// let model = script.with_retry(RetryPolicy::default()).on_retry(move |failed| {
    ///     seen.lock().unwrap().push(format!("{} of {}", failed.attempt, failed.max_attempts));
    /// });
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
}

impl<M: ChatModel + 'static> ChatModel for Retried<M> {
    fn id(&self) -> &str {
        self.inner.id()
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        let listener = self.listener.clone();
        let attempts = attempts(Arc::clone(&self.inner), self.policy.clone(), listener, request);
        let reply = attempts.map(|begun| begun.map_or_else(ReplyStream::failed, Begun::into_stream));
        ReplyStream::new(reply.flatten_stream())
    }
}

/// Attempts until one begins to answer, or there is no point in another one.
async fn attempts<M: ChatModel>(
    model: Arc<M>,
    policy: RetryPolicy,
    listener: Option<Arc<Listener>>,
    request: ChatRequest,
) -> Result<Begun, ModelError> {
    let start = Instant::now();
    let mut pauses = policy.pauses();
    let mut failures = Vec::new();
    loop {
        let error = match opening(model.respond(request.clone())).await {
            Ok(begun) => return Ok(begun),
            Err(error) => error,
        };
        failures.push(error.to_string());
        let pause = pauses.next().filter(|_| error.is_retryable());
        let pause = pause.map(|pause| error.retry_after().unwrap_or(pause));
        let spent = start.elapsed();
        let Some(pause) = pause.filter(|pause| spent.saturating_add(*pause) <= policy.max_total) else {
            let what = format!("{} attempts in {spent:.1?}", failures.len());
            return Err(if failures.len() == 1 {
                error
            } else {
                all_failed(error, &what, &listed(&failures))
            });
        };
        tracing::debug!(model = model.id(), %error, ?pause, "a request failed and is sent again");
        if let Some(listener) = &listener {
            let (attempt, max_attempts) = (failures.len(), policy.max_attempts);
            listener(&FailedAttempt { model: model.id(), attempt, max_attempts, error: &error, pause });
        }
        sleep(pause).await;
    }
}

/// Lists the failures with their numbers; empty if all are equal to the last one, which the error shows.
fn listed(failures: &[String]) -> Vec<String> {
    if failures.iter().all(|failure| Some(failure) == failures.last()) {
        return Vec::new();
    }
    failures.iter().zip(1..).map(|(failure, number)| format!("{number}: {failure}")).collect()
}

impl<M: ChatModel> fmt::Debug for Retried<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retried")
            .field("model", &self.inner.id())
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}
