//! Limits hold against a model that is always ready: one that never lets anybody else have a turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use stepfold_agent_loop::state_core::chat::{
    ChatModel, ChatRequest, Chunk, FinishReason, MAX_REPLY_BYTES, ModelErrorKind, ReplyStream,
};
use stepfold_agent_loop::tools::CancellationToken;
use stepfold_agent_loop::{Agent, Exit, RunError, RunLimits};
use stepfold_trim::{Summarize, Trim};

use super::kit::*;

/// What is said in one go.
const WORDS: usize = 1_000;

/// Says a word a second, and is always ready; counts the words.
#[derive(Clone, Default)]
struct Chatterbox(Arc<AtomicUsize>);

impl ChatModel for Chatterbox {
    fn id(&self) -> &'static str {
        "chatterbox"
    }

    fn respond(&self, _: ChatRequest) -> ReplyStream {
        let said = Arc::clone(&self.0);
        let words = std::iter::repeat_with(move || {
            // The clock moves on when it is polled first; to wait for others is what this stream never does.
            let _ = tokio::time::advance(Duration::from_secs(1)).now_or_never();
            said.fetch_add(1, Ordering::Relaxed);
            Chunk::Text("so ".to_owned())
        });
        ReplyStream::from_chunks(words.take(WORDS).chain([Chunk::Finished(FinishReason::Stop)]))
    }
}

#[tokio::test(start_paused = true)]
async fn limit_of_time_at_a_model_that_is_always_ready() {
    let model = Chatterbox::default();
    let agent = Agent::builder(model.clone()).max_time(Duration::from_secs(10)).build().unwrap();
    let outcome = agent.run("where?").await.unwrap();
    assert_eq!((outcome.exit(), outcome.elapsed()), (&Exit::MaxTime, Duration::from_secs(10)));
    assert_eq!(model.0.load(Ordering::Relaxed), 10);
}

#[tokio::test(start_paused = true)]
async fn limit_of_time_at_a_summary_that_is_always_ready() {
    let model = Chatterbox::default();
    let summarize = Summarize::beyond(Trim::keep_last(1)).once(Trim::cap_messages(2));
    let agent = Agent::builder(script("assistant: never"))
        .summarize(summarize)
        .summary_model(model.clone())
        .max_time(Duration::from_secs(10))
        .build()
        .unwrap();
    let input = conversation("user: a\nassistant: b\nuser: c\nassistant: d\nuser: where?");
    let outcome = agent.run(input).await.unwrap();
    assert_eq!((outcome.exit(), outcome.elapsed()), (&Exit::MaxTime, Duration::from_secs(10)));
    assert_eq!(model.0.load(Ordering::Relaxed), 10);
}

/// Who cancels is a task of the same thread: it has its turn.
#[tokio::test(start_paused = true)]
async fn cancellation_of_a_model_that_is_always_ready() {
    let (model, token) = (Chatterbox::default(), CancellationToken::new());
    let agent = Agent::builder(model.clone()).build().unwrap();
    let canceller = tokio::spawn({
        let token = token.clone();
        async move { token.cancel() }
    });
    let outcome = agent.run("where?").cancel_with(token).await.unwrap();
    canceller.await.unwrap();
    assert_eq!(outcome.exit(), &Exit::Cancelled);
    assert!(model.0.load(Ordering::Relaxed) < WORDS);
}

/// Says these bytes again and again.
struct Endless(usize);

impl ChatModel for Endless {
    fn id(&self) -> &'static str {
        "endless"
    }

    fn respond(&self, _: ChatRequest) -> ReplyStream {
        let text = "x".repeat(self.0);
        ReplyStream::from_chunks(std::iter::repeat_with(move || Chunk::Text(text.clone())))
    }
}

fn too_large(error: &RunError) -> (usize, usize) {
    let error = error.model_error().unwrap();
    let &ModelErrorKind::ReplyTooLarge { limit } = error.kind() else { panic!("{error}") };
    (limit, error.partial().unwrap().message.text().len())
}

/// A reply that was cut is not an answer: the run fails, with what had come, and can be resumed.
#[tokio::test]
async fn limit_of_bytes_of_a_reply() {
    let limits = RunLimits::default().with_reply_bytes(1_000);
    let agent = Agent::builder(Endless(100)).limits(limits).build().unwrap();
    let error = agent.run("where?").await.unwrap_err();
    assert_eq!(too_large(&error), (1_000, 1_000));
    assert_eq!(error.into_run().transcript().to_string(), "user:      where?\n");
}

#[tokio::test]
async fn limit_of_bytes_of_a_reply_by_default() {
    let agent = Agent::builder(Endless(1 << 20)).build().unwrap();
    let error = agent.run("where?").await.unwrap_err();
    assert_eq!(too_large(&error), (MAX_REPLY_BYTES, MAX_REPLY_BYTES));
}

#[test]
fn limit_of_bytes_of_a_reply_that_is_zero() {
    let limits = RunLimits::default().with_reply_bytes(0);
    let error = Agent::builder(Endless(1)).limits(limits).build().unwrap_err();
    assert!(
        error.to_string().contains("limits.reply_bytes: must be positive: no reply could be read"),
        "{error}"
    );
}
