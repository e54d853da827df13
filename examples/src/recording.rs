//! A model that plays its part in a written conversation, so that the analyst works without a key.
//!
//! It says what stands in `conversation.txt`; the tools that it calls are real. Where it is in the
//! conversation it sees from what it is asked, and so it goes on in whatever process and session asks it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use stepfold::state_core::chat::{
    ChatModel, ChatRequest, Chunk, FinishReason, Message, ModelError, ModelErrorKind, NotationError,
    ReplyStream, Role, Transcript,
};

const CONVERSATION: &str = include_str!("conversation.txt");

/// The written conversation as a model.
#[derive(Clone, Debug)]
pub(crate) struct Recording {
    conversation: Transcript,
    delay: Duration,
}

impl Recording {
    /// With a pause after each word, to be read as it comes.
    pub(crate) fn new(delay: Duration) -> Result<Self, NotationError> {
        Ok(Recording { conversation: CONVERSATION.parse()?, delay })
    }

    /// What the user says, in order.
    pub(crate) fn questions(&self) -> Vec<String> {
        let users = self.conversation.iter().filter(|message| message.role() == Role::User);
        users.map(|message| message.text().into_owned()).collect()
    }

    /// The reply that stands where the request ends: after the same question, and as many replies to it.
    fn reply(&self, request: &ChatRequest) -> Option<Arc<Message>> {
        let (question, given) = last_turn(request.messages.iter())?;
        let mut messages = self
            .conversation
            .iter()
            .skip_while(|message| message.role() != Role::User || message.text() != question);
        messages.next()?;
        let turn = messages.take_while(|message| message.role() != Role::User);
        turn.filter(|message| message.role() == Role::Assistant).nth(given).cloned()
    }
}

/// The last question, and how many replies stand behind it.
fn last_turn<'m>(messages: impl Iterator<Item = &'m Arc<Message>>) -> Option<(String, usize)> {
    messages.fold(None, |last, message| match (message.role(), last) {
        (Role::User, _) => Some((message.text().into_owned(), 0)),
        (Role::Assistant, Some((question, given))) => Some((question, given + 1)),
        (_, last) => last,
    })
}

impl ChatModel for Recording {
    fn id(&self) -> &'static str {
        "recording"
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        let Some(reply) = self.reply(&request) else {
            let reason = "this is not in the written conversation; ask a real model: --model PROVIDER:MODEL";
            return ReplyStream::failed(ModelError::new(ModelErrorKind::InvalidRequest, reason));
        };
        let delay = self.delay;
        let reason = match reply.tool_calls().next() {
            Some(_) => FinishReason::ToolCalls,
            None => FinishReason::Stop,
        };
        let chunks: Vec<Chunk> =
            Chunk::of(&reply).into_iter().flat_map(words).chain([Chunk::Finished(reason)]).collect();
        ReplyStream::new(stream::unfold(chunks.into_iter(), move |mut chunks| async move {
            let chunk = chunks.next()?;
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            Some((Ok(chunk), chunks))
        }))
    }
}

/// Text comes word by word.
fn words(chunk: Chunk) -> Vec<Chunk> {
    match chunk {
        Chunk::Text(text) => text.split_inclusive(' ').map(|word| Chunk::Text(word.to_owned())).collect(),
        chunk => vec![chunk],
    }
}
