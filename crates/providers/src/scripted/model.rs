//! The scripted model: returns the replies of its script, and records its requests.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Message, ModelError, ModelErrorKind, NotationError, ReplyStream, Role, Transcript,
};

use super::{ScriptedReply, check, request_text};

/// A model with scripted replies that checks its requests.
///
/// Clones are handles to one model: give one to an agent, keep one to inspect its requests.
///
/// # What it checks
/// Each request must follow these rules. A violation is an error of kind
/// [`InvalidRequest`](ModelErrorKind::InvalidRequest) with the reason, and [`verify`](Scripted::verify)
/// reports it again, in case a layer has swallowed the error.
///
/// - The conversation passes [`check`](Transcript::check), and is not empty.
/// - A reply is sent back unchanged, directly after the messages before it: the prefix is stable within a
///   turn. Call ids may change, since providers may omit them.
/// - Tools have different names that providers accept, and schemas of an object.
/// - Within a turn, no tool's description or schema changes. Tools may come and go.
/// - A required or named choice is among the tools.
/// - The next reply calls only offered tools (unless
///   [`calling_unknown_tools`](ScriptedReply::calling_unknown_tools) is set).
/// - There is a reply left.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use serde_json::json;
/// use stepfold_providers::Scripted;
/// use stepfold_state_core::chat::{ChatModel, ChatRequest, ModelErrorKind, ToolSpec, Transcript};
///
/// let model = Scripted::new([r#"> c1 search(q="stalls")"#, "area 3"]).then(ModelErrorKind::Overloaded);
/// let search = ToolSpec::new("search", "Finds stalls.", json!({"type": "object"}));
///
/// let asked: Transcript = "user: which area?".parse()?;
/// let request = ChatRequest::new(asked.clone()).with_tools([search.clone()]);
/// let reply = model.respond(request).into_reply().await?;
/// assert_eq!(reply.message.tool_calls().next().unwrap().name, "search");
///
/// // An unanswered call is detected before a provider would reject it.
/// let broken = asked.with(reply.message);
/// let error = model.respond(ChatRequest::new(broken)).into_reply().await.unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "invalid request (scripted): request 2: malformed conversation: message 1, call `c1`: missing result",
/// );
/// assert_eq!((model.requests().len(), model.remaining()), (2, 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct Scripted {
    id: Arc<str>,
    checks_prefix: bool,
    /// `None` for whole replies.
    seed: Option<u64>,
    shared: Arc<Mutex<ScriptState>>,
}

/// The state shared by all handles.
struct ScriptState {
    script: ReplySource,
    exchanges: Vec<ScriptedExchange>,
    broken: Vec<String>,
}

/// The source of replies.
enum ReplySource {
    List(VecDeque<ScriptLine>),
    /// A conversation before its first request, which decides where it continues.
    Conversation(VecDeque<ScriptLine>),
    Function(Box<dyn FnMut(&ChatRequest) -> ScriptedReply + Send>),
}

/// A reply, and the messages that the request has to end with.
pub(super) struct ScriptLine {
    pub(super) expects: Vec<Arc<Message>>,
    pub(super) reply: ScriptedReply,
}

/// A request, and the message of its reply.
pub(super) struct ScriptedExchange {
    pub(super) request: ChatRequest,
    pub(super) reply: Option<Message>,
}

/// The rules that requests to a [`Scripted`] model broke, or a script that was not used up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenRule(Vec<String>);

impl fmt::Display for BrokenRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("; "))
    }
}

impl std::error::Error for BrokenRule {}

impl Scripted {
    /// A model with these replies, in this order.
    pub fn new<R: Into<ScriptedReply>>(replies: impl IntoIterator<Item = R>) -> Self {
        let lines = replies.into_iter().map(|reply| ScriptLine { expects: Vec::new(), reply: reply.into() });
        Scripted::of(ReplySource::List(lines.collect()))
    }

    /// A model that answers with a function of each request.
    ///
    /// # Examples
    /// ```
    /// use stepfold_providers::Scripted;
    /// use stepfold_state_core::chat::ChatRequest;
    ///
    /// let echo = Scripted::from_fn(|request: &ChatRequest| {
    ///     let heard = request.messages.last().map(|message| message.text().into_owned());
    ///     format!("You said: {}", heard.unwrap_or_default())
    /// });
    /// ```
    pub fn from_fn<F, R>(mut function: F) -> Self
    where
        F: FnMut(&ChatRequest) -> R + Send + 'static,
        R: Into<ScriptedReply>,
    {
        Scripted::of(ReplySource::Function(Box::new(move |request| function(request).into())))
    }

    /// A model that replies with the assistant messages of a conversation; each request must end with the messages
    /// before the reply.
    ///
    /// A conversation that an earlier process began is continued: if the first request already ends with some of the
    /// replies, each after the messages before it in the text, these count as given. A conversation that was played to its
    /// end starts again.
    ///
    /// # Errors
    /// The text is no [notation](stepfold_state_core::chat::notation).
    ///
    /// # Examples
    /// ```
    /// use stepfold_providers::Scripted;
    ///
    /// let model = Scripted::conversation(r#"
    /// user:      which area has most stalls?
    /// assistant: > c1 search(q="stalls")
    /// tool c1:   [3, 4]
    /// assistant: area 3
    /// "#)?;
    /// assert_eq!(model.remaining(), 2);
    /// # Ok::<(), stepfold_state_core::chat::NotationError>(())
    /// ```
    pub fn conversation(text: &str) -> Result<Self, NotationError> {
        let transcript: Transcript = text.parse()?;
        let mut lines = VecDeque::new();
        let mut expects = Vec::new();
        for message in &transcript {
            if message.role() == Role::Assistant {
                let reply = Message::clone(message).into();
                lines.push_back(ScriptLine { expects: std::mem::take(&mut expects), reply });
            } else {
                expects.push(Arc::clone(message));
            }
        }
        Ok(Scripted::of(ReplySource::Conversation(lines)))
    }

    fn of(script: ReplySource) -> Self {
        let shared = ScriptState { script, exchanges: Vec::new(), broken: Vec::new() };
        Scripted {
            id: "scripted".into(),
            checks_prefix: true,
            seed: Some(0),
            shared: Arc::new(Mutex::new(shared)),
        }
    }

    /// Adds a reply at the end of the list. It has no effect on a model that answers with a function.
    #[must_use]
    pub fn then(self, reply: impl Into<ScriptedReply>) -> Self {
        if let ReplySource::List(lines) | ReplySource::Conversation(lines) = &mut self.lock().script {
            lines.push_back(ScriptLine { expects: Vec::new(), reply: reply.into() });
        }
        self
    }

    /// Sets the [id](ChatModel::id), `scripted` by default.
    #[must_use]
    pub fn named(mut self, id: impl Into<Arc<str>>) -> Self {
        self.id = id.into();
        self
    }

    /// A handle that accepts changes of earlier messages within a turn: for tests of hooks that rewrite
    /// messages, and of windows that shrink.
    #[must_use]
    pub fn with_changing_prefix(mut self) -> Self {
        self.checks_prefix = false;
        self
    }

    /// A handle that divides its replies by another seed, 0 by default. Each reply streams in pieces, which follow
    /// from the seed and the number of the request; replies that set their own pieces, or are
    /// [`whole`](ScriptedReply::whole), do not change.
    #[must_use]
    pub const fn with_seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// A handle whose replies have one chunk for each part, unless they set their own pieces.
    #[must_use]
    pub const fn whole(mut self) -> Self {
        self.seed = None;
        self
    }

    /// All requests, in order.
    pub fn requests(&self) -> Vec<ChatRequest> {
        self.lock().exchanges.iter().map(|exchange| exchange.request.clone()).collect()
    }

    /// The last request.
    pub fn last_request(&self) -> Option<ChatRequest> {
        self.lock().exchanges.last().map(|exchange| exchange.request.clone())
    }

    /// All requests as text: for each request its new messages, in notation.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use stepfold_providers::Scripted;
    /// use stepfold_state_core::chat::{ChatModel, ChatRequest, Message, Transcript};
    ///
    /// let model = Scripted::new(["one", "two"]);
    /// let mut messages = Transcript::new();
    /// for text in ["first?", "second?"] {
    ///     messages.push(Message::user(text));
    ///     let reply = model.respond(ChatRequest::new(messages.clone())).into_reply().await?;
    ///     messages.push(reply.message);
    /// }
    /// assert_eq!(model.asked(), "\
    /// -- request 1
    /// user:      first?
    /// -- request 2, after the first 1 of request 1
    /// assistant: one
    /// user:      second?
    /// ");
    /// # Ok::<(), stepfold_state_core::chat::ModelError>(())
    /// # }).unwrap();
    /// ```
    pub fn asked(&self) -> String {
        request_text::render(&self.lock().exchanges)
    }

    /// The number of unused replies; zero for a function.
    pub fn remaining(&self) -> usize {
        match &self.lock().script {
            ReplySource::List(lines) | ReplySource::Conversation(lines) => lines.len(),
            ReplySource::Function(_) => 0,
        }
    }

    /// Whether every request followed the rules and every reply was used.
    ///
    /// # Errors
    /// All rules that were broken, and the number of replies left over.
    pub fn verify(&self) -> Result<(), BrokenRule> {
        let mut broken = self.lock().broken.clone();
        let remaining = self.remaining();
        if remaining > 0 {
            broken.push(format!("unused replies: {remaining}"));
        }
        if broken.is_empty() { Ok(()) } else { Err(BrokenRule(broken)) }
    }

    /// Locks the state. A poisoned lock is usable: no operation on the state panics halfway.
    fn lock(&self) -> MutexGuard<'_, ScriptState> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ChatModel for Scripted {
    fn id(&self) -> &str {
        &self.id
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        let mut shared = self.lock();
        let number = shared.exchanges.len() + 1;
        let answer = shared.answer(&request, self.checks_prefix);
        let reply = answer.as_ref().ok().filter(|reply| reply.is_whole());
        let reply = reply.and_then(|reply| reply.message.clone().ok());
        shared.exchanges.push(ScriptedExchange { request, reply });
        match answer {
            Ok(reply) => reply.into_stream(self.seed.map(|seed| seed.wrapping_add(number as u64))),
            Err(fault) => {
                let fault = format!("request {number}: {fault}");
                shared.broken.push(fault.clone());
                // NOTE: An error and not a panic: a panic in a task is easily lost. `verify` reports it again.
                ReplyStream::failed(failure(fault))
            }
        }
    }
}

impl ScriptState {
    /// Returns the next reply, or the rule that the request breaks. An invalid request consumes no reply.
    fn answer(&mut self, request: &ChatRequest, checks_prefix: bool) -> Result<ScriptedReply, String> {
        check::request(request)?;
        if checks_prefix {
            check::history(request, &self.exchanges)?;
        }
        if let ReplySource::Conversation(lines) = &mut self.script {
            let mut lines = std::mem::take(lines);
            let given = check::count_given(request, lines.make_contiguous());
            lines.drain(..given);
            self.script = ReplySource::List(lines);
        }
        let reply = match &mut self.script {
            ReplySource::Function(function) => function(request),
            ReplySource::List(lines) | ReplySource::Conversation(lines) => {
                let ended =
                    || format!("the script has ended: no reply to this request{}", check::last(request));
                let line = lines.front().ok_or_else(ended)?;
                check::ending(request, &line.expects)?;
                line.reply.clone()
            }
        };
        check::reply(request, &reply)?;
        if let ReplySource::List(lines) = &mut self.script {
            lines.pop_front();
        }
        Ok(reply)
    }
}

/// The error for a request that cannot be answered.
pub(super) fn failure(message: String) -> ModelError {
    ModelError::new(ModelErrorKind::InvalidRequest, message).with_provider("scripted")
}

impl fmt::Debug for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shared = self.lock();
        f.debug_struct("Scripted")
            .field("id", &self.id)
            .field("requests", &shared.exchanges.len())
            .field("broken", &shared.broken)
            .finish_non_exhaustive()
    }
}
