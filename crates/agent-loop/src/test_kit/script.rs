//! A model that answers from a script.

use std::sync::Arc;

use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Chunk, FinishReason, Message, ModelError, ModelErrorKind, NotationError,
    ReplyStream, Role, Transcript, Usage,
};

/// A model that answers with the lines of a script, in order.
///
/// It keeps no count: which line comes next it reads off the conversation, by how many replies that has since
/// it began. So a run that is stopped and resumed anywhere gets the same answers, and so do two runs at once.
/// A conversation that brings replies of its own says how many with [`after`](Script::after).
///
/// Replies stream in pieces, as from a server: the same ones each time, by the place of the reply and the
/// [seed](Script::with_seed). [`whole`](Script::whole) sends each part at once.
///
/// It refuses a conversation that is not well-formed, and it fails when the script is at its end.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use stepfold_agent_loop::Agent;
/// use stepfold_agent_loop::test_kit::Script;
///
/// let script = Script::parse("\
/// assistant: > c1 search(q=\"stalls\")
/// assistant: area 3
/// ")?;
/// let outcome = Agent::builder(script).max_steps(1).build()?.run("where?").await?;
/// assert_eq!(outcome.transcript().get(2).unwrap().text(), "");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Script {
    replies: Arc<[ReplyLine]>,
    after: usize,
    /// `None` for whole replies.
    seed: Option<u64>,
}

#[derive(Clone, Debug)]
enum ReplyLine {
    Reply { message: Message, finish_reason: FinishReason, usage: Usage },
    Fails(ModelError),
}

impl Script {
    /// The assistant messages of a conversation in the [notation](stepfold_state_core::chat::notation).
    ///
    /// # Errors
    /// When the text is not in the notation.
    pub fn parse(text: &str) -> Result<Self, NotationError> {
        let transcript: Transcript = text.parse()?;
        let replies = transcript.iter().filter(|message| message.role() == Role::Assistant);
        Ok(Script::new(replies.map(|message| (**message).clone())))
    }

    /// These replies.
    pub fn new(replies: impl IntoIterator<Item = Message>) -> Self {
        let reply = |message: Message| {
            let finish_reason =
                if message.has_tool_calls() { FinishReason::ToolCalls } else { FinishReason::Stop };
            ReplyLine::Reply { message, finish_reason, usage: Usage::default() }
        };
        Script { replies: replies.into_iter().map(reply).collect(), after: 0, seed: Some(0) }
    }

    /// The same, with a last reply that ended for this reason and cost this.
    #[must_use]
    pub fn then(self, message: Message, finish_reason: FinishReason, usage: Usage) -> Self {
        self.and(ReplyLine::Reply { message, finish_reason, usage })
    }

    /// The same, with a request that fails at the end.
    #[must_use]
    pub fn then_fail(self, error: ModelError) -> Self {
        self.and(ReplyLine::Fails(error))
    }

    /// The same, for conversations that bring this many replies of their own.
    #[must_use]
    pub const fn after(mut self, replies: usize) -> Self {
        self.after = replies;
        self
    }

    /// The same, with replies cut by another seed, 0 by default.
    #[must_use]
    pub const fn with_seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// The same, with replies that have one chunk for each part.
    #[must_use]
    pub const fn whole(mut self) -> Self {
        self.seed = None;
        self
    }

    fn and(mut self, line: ReplyLine) -> Self {
        self.replies = self.replies.iter().cloned().chain([line]).collect();
        self
    }

    /// The line that is due, with its place.
    fn line(&self, request: &ChatRequest) -> Result<(usize, &ReplyLine), ModelError> {
        if let Err(faults) = request.messages.check() {
            return Err(ModelError::new(
                ModelErrorKind::InvalidRequest,
                format!("not well-formed: {faults}"),
            ));
        }
        let replies = request.messages.iter().filter(|message| message.role() == Role::Assistant).count();
        let place = replies.saturating_sub(self.after);
        let line = self.replies.get(place).map(|line| (place, line));
        line.ok_or_else(|| {
            let words = format!("the script has {} replies, and is asked for one more", self.replies.len());
            ModelError::new(ModelErrorKind::InvalidRequest, words)
        })
    }
}

impl ChatModel for Script {
    fn id(&self) -> &'static str {
        "test-kit/script"
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        match self.line(&request) {
            Ok((place, ReplyLine::Reply { message, finish_reason, usage })) => {
                let mut chunks = match self.seed {
                    Some(seed) => Chunk::streamed(message, seed.wrapping_add(place as u64)),
                    None => Chunk::of(message),
                };
                chunks.push(Chunk::Usage(*usage));
                chunks.push(Chunk::Finished(finish_reason.clone()));
                ReplyStream::from_chunks(chunks)
            }
            Ok((_, ReplyLine::Fails(error))) => ReplyStream::failed(error.clone()),
            Err(error) => ReplyStream::failed(error),
        }
    }
}
