//! A model that plays its part in a written conversation, so that a program works without a key.
//!
//! Its replies are the written ones; the tools that it calls are real. It finds its place in the conversation from each
//! request, so it continues in any process and session.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use stepfold::state_core::chat::{
    ChatModel, ChatRequest, Chunk, Content, FinishReason, Message, ModelError, ModelErrorKind, NotationError,
    ReplyStream, Role, Transcript,
};
use tokio::sync::Semaphore;

/// A written conversation as a model.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use std::time::Duration;
/// use stepfold::prelude::*;
/// use stepfold_examples::Recording;
///
/// let recording = Recording::new("user: which area?\nassistant: area 3", Duration::ZERO)?;
/// let agent = Agent::builder(recording).build()?;
/// // Only the first line of a question is compared.
/// assert_eq!(agent.run("which area?\nThere are 9 of them.").await?.text(), "area 3");
/// assert!(agent.run("which one?").await.is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Recording {
    conversation: Transcript,
    delay: Duration,
    stop: Option<Stop>,
}

/// A reply that is held back until the program releases it.
#[derive(Clone, Debug)]
struct Stop {
    question: String,
    given: usize,
    gate: Arc<Semaphore>,
}

impl Recording {
    /// The conversation in the notation of transcripts, with a pause after each word, to be read as it comes.
    ///
    /// # Errors
    /// When it is not in that notation.
    pub fn new(conversation: &str, delay: Duration) -> Result<Self, NotationError> {
        Ok(Recording { conversation: conversation.parse()?, delay, stop: None })
    }

    /// Holds back the reply to this question that follows so many others, until it is [released](Self::go_on).
    #[must_use]
    pub fn stopping_at(mut self, question: &str, given: usize) -> Self {
        self.stop = Some(Stop { question: question.to_owned(), given, gate: Arc::new(Semaphore::new(0)) });
        self
    }

    /// Returns whether the reply to this request is held back.
    pub fn stops_at(&self, request: &ChatRequest) -> bool {
        self.stop.as_ref().is_some_and(|stop| stop.is_at(request))
    }

    /// Returns whether the held-back reply was released.
    pub fn is_let_go(&self) -> bool {
        self.stop.as_ref().is_none_or(|stop| stop.gate.available_permits() > 0)
    }

    /// Releases the held-back reply.
    pub fn go_on(&self) {
        if let Some(stop) = &self.stop {
            stop.gate.add_permits(1);
        }
    }

    /// The user's messages, in order.
    pub fn questions(&self) -> Vec<String> {
        let users = self.conversation.iter().filter(|message| message.role() == Role::User);
        users.map(|message| message.text().into_owned()).collect()
    }

    /// The written reply for a request: after the same question, and the same number of replies to it. Only the first line
    /// of a question is compared, since the rest depends on the results of tools.
    fn reply(&self, request: &ChatRequest) -> Option<Arc<Message>> {
        let (question, given) = last_turn(request.messages.iter())?;
        let mut messages = self
            .conversation
            .iter()
            .skip_while(|message| message.role() != Role::User || first_line(&message.text()) != question);
        messages.next()?;
        let turn = messages.take_while(|message| message.role() != Role::User);
        turn.filter(|message| message.role() == Role::Assistant).nth(given).cloned()
    }
}

impl Stop {
    fn is_at(&self, request: &ChatRequest) -> bool {
        let last = last_turn(request.messages.iter());
        last.is_some_and(|(question, given)| question == self.question && given == self.given)
    }
}

/// The last question, and the number of replies after it.
fn last_turn<'m>(messages: impl Iterator<Item = &'m Arc<Message>>) -> Option<(String, usize)> {
    messages.fold(None, |last, message| match (message.role(), last) {
        (Role::User, _) => Some((first_line(&message.text()).to_owned(), 0)),
        (Role::Assistant, Some((question, given))) => Some((question, given + 1)),
        (_, last) => last,
    })
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default().trim_end()
}

impl ChatModel for Recording {
    fn id(&self) -> &'static str {
        "recording"
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        let Some(reply) = self.reply(&request) else {
            let asked = last_turn(request.messages.iter()).map(|(question, _)| question).unwrap_or_default();
            let reason = format!(
                "this is not in the written conversation; ask a real model: --model PROVIDER:MODEL (asked: {asked:?})"
            );
            return ReplyStream::failed(ModelError::new(ModelErrorKind::InvalidRequest, reason));
        };
        let delay = self.delay;
        let reason = match reply.tool_calls().next() {
            Some(_) => FinishReason::ToolCalls,
            None => FinishReason::Stop,
        };
        let chunks: Vec<Chunk> =
            Chunk::of(&reply).into_iter().flat_map(words).chain([Chunk::Finished(reason)]).collect();
        let gate = self.stop.as_ref().filter(|stop| stop.is_at(&request)).map(|stop| Arc::clone(&stop.gate));
        ReplyStream::new(stream::unfold((chunks.into_iter(), gate), move |(mut chunks, gate)| async move {
            let chunk = chunks.next()?;
            if let Some(gate) = gate {
                // It is never closed, and stays open once it is.
                drop(gate.acquire().await);
            }
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            Some((Ok(chunk), (chunks, None)))
        }))
    }
}

/// Splits text into words, across consecutive parts: they are one text.
fn words(chunk: Chunk) -> Vec<Chunk> {
    let split = |text: &str| text.split_inclusive(' ').map(|word| Chunk::Text(word.to_owned())).collect();
    match chunk {
        Chunk::Text(text) => split(&text),
        Chunk::Part(part) => match &part.content {
            Content::Text(text) => split(text),
            _ => vec![Chunk::Part(part)],
        },
        chunk => vec![chunk],
    }
}
