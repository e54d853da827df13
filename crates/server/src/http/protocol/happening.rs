//! What happens in a run, in order, as the encoders of all protocols are told it.

use std::collections::VecDeque;

use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt as _};
use serde_json::Value;
use stepfold_agent_loop::tools::{CallFailure, CallOutcome, CallStatus};
use stepfold_agent_loop::{ApprovalRequest, Event, EventKind, Exit, Outcome, Pause, RunEvent};
use stepfold_runner::{Invocation, Runner, Seen, SessionHandle};
use stepfold_session_scopes::{
    CommittedEvent, EventRange, GetSession, SessionError, SessionKey, SessionStore as _,
};
use stepfold_state_core::chat::{Content, Message, Role, ToolCall, ToolContent, Usage};
use tokio::sync::oneshot;

use crate::http::problem::Problem;
use crate::http::rows::{CallRow, json};
use crate::http::steps::event_of;

/// The number of commits that are read from the store at once.
const PAGE: usize = 64;

/// One thing that happens in a run. Text and reasoning come in deltas, and before the commit that has the whole: together
/// they are the whole, whatever of them was streamed.
#[derive(Clone, Debug)]
pub(super) enum Happening {
    /// The stream begins: always first.
    Began {
        invocation: String,
        /// All values of the state.
        state: Value,
        /// The calls of the reply with which a run goes on: those that waited.
        open: Vec<Call>,
    },
    /// The model is asked, for the reply of this step.
    Step(u64),
    Reasoning(String),
    Text(String),
    /// Text and reasoning of this step are void: the model is asked again.
    Restarted,
    Call(Call),
    Outcome(CallEnd),
    Progress {
        call: String,
        report: Value,
    },
    /// A commit has written to the state.
    State {
        before: Value,
        after: Value,
    },
    /// A commit; what it has was told before.
    Committed {
        version: u64,
    },
    /// Nothing follows.
    Ended {
        end: End,
        usage: Usage,
        version: u64,
    },
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) id: String,
    pub(super) name: String,
    /// An object, or text if the model sent no valid one.
    pub(super) arguments: Value,
}

impl From<&ToolCall> for Call {
    fn from(call: &ToolCall) -> Self {
        let CallRow { id, name, arguments } = CallRow::of(call);
        Call { id, name, arguments }
    }
}

/// The outcome of a call.
#[derive(Clone, Debug)]
pub(super) struct CallEnd {
    pub(super) id: String,
    pub(super) name: String,
    /// As the model reads it.
    pub(super) text: String,
    pub(super) value: Value,
    pub(super) is_error: bool,
    pub(super) is_rejected: bool,
}

impl From<&CallOutcome> for CallEnd {
    fn from(outcome: &CallOutcome) -> Self {
        let result = &outcome.result;
        let value = match result.content() {
            ToolContent::Value(value) => value.clone(),
            ToolContent::Error(text) => Value::String(text.clone()),
            ToolContent::Parts(parts) => json(parts),
            _ => Value::String(result.text().into_owned()),
        };
        CallEnd {
            id: result.call_id().to_owned(),
            name: result.name().to_owned(),
            text: result.text().into_owned(),
            value,
            is_error: result.is_error(),
            is_rejected: outcome.status == CallStatus::Failed(CallFailure::Rejected),
        }
    }
}

/// How a stream ends.
#[derive(Clone, Debug)]
pub(super) enum End {
    Finished(Exit),
    /// Decisions about these are needed.
    Waiting(Vec<ApprovalRequest>),
    /// It goes on later, by itself or when it is resumed.
    Suspended,
    Failed(Problem),
}

/// What was told of an unfinished reply.
#[derive(Debug, Default)]
struct Draft {
    text: String,
    reasoning: String,
    /// Some was missed: the commit tells the rest.
    has_gap: bool,
}

/// Reads what happens in an invocation. It belongs to one client; when it is dropped, nothing else stops.
pub(super) struct Reader {
    runner: Runner,
    session: SessionHandle,
    invocation: Invocation,
    seen: BoxStream<'static, Seen>,
    queue: VecDeque<Happening>,
    draft: Draft,
    step: u64,
    /// The version of the newest commit that was told, or from which the stream began.
    version: u64,
    /// Commits up to this version were read from the store.
    caught_up: u64,
    state: Option<Value>,
    has_seen: bool,
    is_over: bool,
    /// Dropped with the reader.
    kept: Option<oneshot::Sender<()>>,
}

/// Where a reader begins: the session before the run.
pub(super) struct Before {
    pub(super) version: u64,
    pub(super) state: Value,
    pub(super) open: Vec<Call>,
}

impl Before {
    /// Reads it.
    pub(super) async fn read(session: &SessionHandle) -> Result<Self, Problem> {
        let stored = session.read(EventRange::None).await?;
        let unfinished = session.unfinished().await?;
        let reply = unfinished.as_ref().and_then(|run| run.reply());
        let open = reply.map(|reply| reply.tool_calls().map(Call::from).collect()).unwrap_or_default();
        Ok(Before { version: stored.version, state: stored.to_json(), open })
    }
}

impl Reader {
    pub(super) fn new(
        runner: &Runner,
        session: SessionHandle,
        invocation: Invocation,
        before: Before,
    ) -> Self {
        let Before { version, state, open } = before;
        let id = invocation.id().to_string();
        let began = Happening::Began { invocation: id, state: state.clone(), open };
        Reader {
            runner: runner.clone(),
            session,
            seen: invocation.subscribe(0).boxed(),
            invocation,
            queue: VecDeque::from([began]),
            draft: Draft::default(),
            step: 0,
            version,
            caught_up: 0,
            state: Some(state),
            has_seen: false,
            is_over: false,
            kept: None,
        }
    }

    pub(super) fn invocation(&self) -> Invocation {
        self.invocation.clone()
    }

    /// With something that is told when there is no reader any more.
    pub(super) fn keeping(mut self, kept: Option<oneshot::Sender<()>>) -> Self {
        self.kept = kept;
        self
    }

    /// Without values of the state, which are read for each commit that writes.
    pub(super) fn without_state(mut self) -> Self {
        self.state = None;
        self
    }

    pub(super) fn into_stream(self) -> impl Stream<Item = Happening> + Send {
        futures_util::stream::unfold(self, |mut reader| async move {
            let happening = reader.next().await?;
            Some((happening, reader))
        })
    }

    async fn next(&mut self) -> Option<Happening> {
        loop {
            if let Some(happening) = self.queue.pop_front() {
                return Some(happening);
            }
            if self.is_over {
                return None;
            }
            match self.seen.next().await {
                // It is of a run before this one.
                Some(Seen::Event { is_earlier: true, .. }) => {}
                Some(Seen::Event { event, version, .. }) => self.saw(event, version).await,
                Some(_) => self.catch_up().await,
                None => self.end().await,
            }
        }
    }

    async fn saw(&mut self, event: RunEvent, version: u64) {
        self.has_seen = true;
        match event {
            RunEvent::Asking { step, .. } => self.asks(step),
            RunEvent::Text(text) if !self.draft.has_gap => {
                self.draft.text.push_str(&text);
                self.queue.push_back(Happening::Text(text));
            }
            RunEvent::Reasoning(text) if !self.draft.has_gap => {
                self.draft.reasoning.push_str(&text);
                self.queue.push_back(Happening::Reasoning(text));
            }
            RunEvent::ToolProgress { call_id, report } => {
                self.queue.push_back(Happening::Progress { call: call_id, report });
            }
            RunEvent::Committed(event) if version > self.caught_up => self.committed(&event, version).await,
            _ => {}
        }
    }

    fn asks(&mut self, step: u64) {
        if !self.draft.text.is_empty() || !self.draft.reasoning.is_empty() {
            self.queue.push_back(Happening::Restarted);
        }
        self.draft = Draft::default();
        if step != self.step {
            self.step = step;
            self.queue.push_back(Happening::Step(step));
        }
    }

    async fn committed(&mut self, event: &Event, version: u64) {
        if let EventKind::Replied { .. } = &event.kind {
            self.replied(event);
        }
        let ends = event.outcomes();
        self.queue
            .extend(ends.iter().filter_map(|item| Some(Happening::Outcome(item.outcome.call()?.into()))));
        self.version = version;
        if !event.delta.is_empty() {
            self.tell_state(version).await;
        }
        self.queue.push_back(Happening::Committed { version });
    }

    /// Tells what a reply has that was not streamed.
    fn replied(&mut self, event: &Event) {
        let Some(message) = event.messages.iter().find(|message| message.role() == Role::Assistant) else {
            return;
        };
        if event.step != self.step {
            self.asks(event.step);
        }
        let draft = std::mem::take(&mut self.draft);
        let (text, reasoning) = (message.text().into_owned(), reasoning(message));
        let rest = text.strip_prefix(draft.text.as_str()).map(str::to_owned);
        if rest.is_none() {
            self.queue.push_back(Happening::Restarted);
        }
        // What was thought before the text is told before it, or not at all.
        if draft.text.is_empty()
            && let Some(rest) =
                reasoning.strip_prefix(draft.reasoning.as_str()).filter(|rest| !rest.is_empty())
        {
            self.queue.push_back(Happening::Reasoning(rest.to_owned()));
        }
        let rest = rest.unwrap_or(text);
        if !rest.is_empty() {
            self.queue.push_back(Happening::Text(rest));
        }
        self.queue.extend(message.tool_calls().map(|call| Happening::Call(call.into())));
    }

    async fn tell_state(&mut self, version: u64) {
        if self.state.is_none() {
            return;
        }
        let mut get = GetSession::new(self.session.key().clone()).events(EventRange::None);
        get.version = Some(version);
        match self.runner.store().get(get).await {
            Ok(stored) => {
                let after = stored.to_json();
                let before = self.state.replace(after.clone()).unwrap_or_default();
                if before != after {
                    self.queue.push_back(Happening::State { before, after });
                }
            }
            // The next commit tells it all.
            Err(error) => tracing::warn!(%error, "the state for a stream could not be read"),
        }
    }

    /// Reads the commits that were missed from the store. Unfinished text is part of the next reply.
    async fn catch_up(&mut self) {
        self.draft.has_gap = true;
        loop {
            let read = match page(self.runner.clone(), self.session.key().clone(), self.version).await {
                Ok(read) => read,
                Err(error) => {
                    tracing::warn!(%error, "commits for a stream could not be read");
                    return;
                }
            };
            let is_last = read.len() < PAGE;
            for committed in &read {
                if let Some(event) = event_of(committed) {
                    self.committed(&event, committed.version).await;
                }
                self.version = committed.version;
            }
            self.caught_up = self.version;
            if is_last {
                return;
            }
        }
    }

    async fn end(&mut self) {
        self.is_over = true;
        let (end, usage) = match self.invocation.outcome().await {
            Ok(outcome) => {
                // The answer of a repetition is that of the first request.
                if !self.has_seen && !outcome.text().is_empty() {
                    self.queue.push_back(Happening::Text(outcome.text().into_owned()));
                }
                (end_of(&outcome), outcome.usage())
            }
            Err(error) => (End::Failed(Problem::from(error)), Usage::default()),
        };
        self.queue.push_back(Happening::Ended { end, usage, version: self.version });
    }
}

/// A page of commits.
async fn page(runner: Runner, key: SessionKey, after: u64) -> Result<Vec<CommittedEvent>, SessionError> {
    let get = GetSession::new(key).events(EventRange::Page { after, limit: PAGE }).without_state();
    Ok(runner.store().get(get).await?.events)
}

fn end_of(outcome: &Outcome) -> End {
    match outcome.exit() {
        Exit::Paused(Pause::Approval) => End::Waiting(outcome.pending()),
        Exit::Paused(_) => End::Suspended,
        exit => End::Finished(exit.clone()),
    }
}

fn reasoning(message: &Message) -> String {
    let texts = message.parts().iter().filter_map(|part| match &part.content {
        Content::Reasoning(text) => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}
