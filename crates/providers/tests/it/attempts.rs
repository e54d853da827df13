//! Layers that send a request again say so first, and send it only when the next chunk is asked for.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::StreamExt;
use stepfold_providers::layer::{ChatModelExt, Fallback, Retry};
use stepfold_providers::{Scripted, ScriptedReply};
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Chunk, Message, ModelErrorKind, ReplyStream, Transcript,
};

/// A model with an id that counts its requests.
#[derive(Clone)]
struct Counted {
    id: &'static str,
    model: Scripted,
    asked: Arc<AtomicUsize>,
}

impl Counted {
    fn new(id: &'static str, replies: impl IntoIterator<Item = ScriptedReply>) -> Self {
        Counted { id, model: Scripted::new(replies), asked: Arc::default() }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

impl ChatModel for Counted {
    fn id(&self) -> &str {
        self.id
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.model.respond(request)
    }
}

fn request() -> ChatRequest {
    ChatRequest::new(Transcript::new().with(Message::user("which area?")))
}

/// The next chunk as text.
async fn next(stream: &mut ReplyStream) -> String {
    match stream.next().await.unwrap() {
        Ok(Chunk::NextAttempt(next)) => {
            let cost = if next.failed_free { "free" } else { "lost" };
            format!("next attempt of {} after a {cost} one", next.model.as_deref().unwrap_or("the same"))
        }
        Ok(Chunk::Identity { model, .. }) => format!("answered by {}", model.unwrap_or_default()),
        Ok(Chunk::Text(text)) => {
            assert!(!text.is_empty() && "area 3".starts_with(&text), "{text}");
            "the answer".to_owned()
        }
        Ok(other) => format!("{other:?}"),
        Err(error) => format!("error: {error}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_is_sent_when_the_chunk_after_its_notice_is_asked_for() {
    let replies = [ModelErrorKind::Transient.into(), ModelErrorKind::RateLimited.into(), "area 3".into()];
    let model = Counted::new("a/x", replies);
    let mut stream = model.clone().layer(Retry::attempts(3)).respond(request());
    assert_eq!(next(&mut stream).await, "next attempt of the same after a lost one");
    assert_eq!(model.asked(), 1);
    assert_eq!(next(&mut stream).await, "next attempt of the same after a free one");
    assert_eq!(model.asked(), 2);
    assert_eq!(next(&mut stream).await, "the answer");
    assert_eq!(model.asked(), 3);
    // A caller that drops the stream keeps the next attempt from being sent.
    let model = Counted::new("a/x", [ModelErrorKind::Transient.into(), "area 3".into()]);
    let mut stream = model.clone().layer(Retry::attempts(3)).respond(request());
    next(&mut stream).await;
    drop(stream);
    assert_eq!(model.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_fallback_names_the_model_before_it_is_asked() {
    let first = Counted::new("a/x", [ModelErrorKind::Overloaded.into(), ModelErrorKind::Overloaded.into()]);
    let second = Counted::new("b/y", [ModelErrorKind::Transient.into(), "area 3".into()]);
    let retry = || Retry::attempts(2);
    let model = first.clone().layer(retry()).layer(Fallback::to(second.clone().layer(retry())));
    let mut stream = model.respond(request());
    // Attempts of the layers inside are passed on at once, not with the answer.
    assert_eq!(next(&mut stream).await, "next attempt of the same after a free one");
    assert_eq!((first.asked(), second.asked()), (1, 0));
    assert_eq!(next(&mut stream).await, "next attempt of b/y after a free one");
    assert_eq!((first.asked(), second.asked()), (2, 0));
    assert_eq!(next(&mut stream).await, "next attempt of the same after a lost one");
    assert_eq!((first.asked(), second.asked()), (2, 1));
    assert_eq!(next(&mut stream).await, "answered by b/y");
    assert_eq!(next(&mut stream).await, "the answer");
    assert_eq!((first.asked(), second.asked()), (2, 2));
    // The reply is as it was without the notices.
    let reply = model.respond(request()).into_reply().await;
    assert!(reply.is_err(), "the scripts are at their end");
}

#[tokio::test(start_paused = true)]
async fn a_retry_around_a_fallback_names_the_first_model_again() {
    let first = Counted::new("a/x", [ModelErrorKind::Overloaded.into(), "area 3".into()]);
    let second = Counted::new("b/y", [ModelErrorKind::Overloaded.into()]);
    let model = first.layer(Fallback::to(second)).layer(Retry::attempts(3));
    let mut stream = model.respond(request());
    assert_eq!(next(&mut stream).await, "next attempt of b/y after a free one");
    // It is the first model that answers, and not the one that was asked last.
    assert_eq!(next(&mut stream).await, "next attempt of a/x after a free one");
    assert_eq!(next(&mut stream).await, "the answer");
}
