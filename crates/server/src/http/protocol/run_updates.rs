//! The updates of a run, in order, as the encoders of all protocols get them.

use std::collections::{HashSet, VecDeque};

use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt as _};
use serde_json::Value;
use stepfold_agent_loop::tools::{CallFailure, CallOutcome, CallStatus};
use stepfold_agent_loop::{ApprovalRequest, Decision, Event, EventKind, Exit, Outcome, Pause, Run, RunEvent};
use stepfold_runner::{Invocation, InvocationEvent, Runner, RunnerError, SessionHandle, failure};
use stepfold_session_scopes::{
    CommittedEvent, EventRange, GetSession, Session, SessionError, SessionKey, SessionStore as _, Timestamp,
};
use stepfold_state_core::chat::{Content, Message, Role, ToolCall, ToolContent, ToolResult, Usage};
use tokio::sync::oneshot;

use crate::http::guard::problem::Problem;
use crate::http::loading::page_plan::{PagePlan, newest};
use crate::http::rows::row_builder::event_of;
use crate::http::rows::{CallRow, json};
use crate::question::of_persons;

/// The number of commits that are read from the store at once.
const PAGE: usize = 64;

/// The number of commits among which the beginning of an invocation is looked for.
const RECENT: usize = 1024;

/// An update of a run. Text and reasoning come in deltas, and before the commit that has the whole: together
/// they are the whole, whatever of them was streamed.
#[derive(Clone, Debug)]
pub(super) enum RunUpdate {
    /// The stream begins: always first.
    Began {
        invocation: String,
        /// The time of the commit before.
        at: Timestamp,
        /// All values of the state.
        state: Value,
        /// The calls of the reply with which a run continues: those that waited.
        open: Vec<StreamedCall>,
    },
    /// The model is asked, for the reply of this step.
    Step(u64),
    Reasoning(String),
    Text(String),
    /// Text and reasoning of this step are void: the model is asked again.
    Restarted,
    Call(StreamedCall),
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
    Committed(CommittedEvent),
    /// The last words of a run whose last reply has none: the result of its exit tool. For protocols that show no calls.
    LastWords(String),
    /// The answer of a request that was sent again: it was streamed to another reader.
    Repeated(String),
    /// The end: no update follows.
    Ended {
        end: StreamEnd,
        usage: Usage,
        version: u64,
    },
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StreamedCall {
    pub(super) id: String,
    pub(super) name: String,
    /// An object, or text if the model sent no valid one.
    pub(super) arguments: Value,
}

impl From<&ToolCall> for StreamedCall {
    fn from(call: &ToolCall) -> Self {
        let CallRow { id, name, arguments } = CallRow::of(call);
        StreamedCall { id, name, arguments }
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
        CallEnd::of(&outcome.result, outcome.status == CallStatus::Failed(CallFailure::Rejected))
    }
}

impl CallEnd {
    fn of(result: &ToolResult, is_rejected: bool) -> Self {
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
            is_rejected,
        }
    }
}

/// The end of a stream.
#[derive(Clone, Debug)]
pub(super) enum StreamEnd {
    Finished(Exit),
    /// Decisions of persons about these are needed: not outcomes that come later.
    Waiting(Vec<ApprovalRequest>),
    /// It continues later, by itself or when it is resumed.
    Suspended,
    Failed(Problem),
}

/// The streamed part of an unfinished reply.
#[derive(Debug, Default)]
struct ReplyDraft {
    text: String,
    reasoning: String,
    /// Some was missed: the commit tells the rest.
    has_gap: bool,
}

/// Reads the updates of an invocation, for one client. When it is dropped, nothing else stops.
///
/// Commits are read from the store, and unfinished text comes from the run, if it is in this process: so a reader that is
/// slow has each commit, once and in order.
pub(super) struct RunReader {
    runner: Runner,
    session: SessionHandle,
    /// The id of the invocation.
    id: String,
    /// The id of the invocation that began the run, before decisions.
    run: String,
    source: RunSource,
    queue: VecDeque<RunUpdate>,
    draft: ReplyDraft,
    step: u64,
    /// The version of the newest commit that was told, or from which the stream began.
    version: u64,
    /// The version of the newest known commit.
    newest: u64,
    /// Whether only commits of the invocation itself are told: others may be of runs before this one.
    only_own: bool,
    /// The calls of the newest reply whose outcomes were told.
    answered: HashSet<String>,
    /// The calls of that reply that were rejected.
    rejected: HashSet<String>,
    state: Option<Value>,
    has_seen: bool,
    is_over: bool,
    /// Dropped with the reader.
    drop_signal: Option<oneshot::Sender<()>>,
}

/// The process of a run: this one, or another.
enum RunSource {
    Local {
        invocation: Invocation,
        seen: BoxStream<'static, InvocationEvent>,
    },
    /// In another process over the same store: only its commits are seen.
    Remote(BoxStream<'static, Result<CommittedEvent, RunnerError>>),
}

/// The start of a reader: the session before the run.
pub(super) struct RunStart {
    pub(super) version: u64,
    at: Timestamp,
    state: Value,
    /// The calls of the reply with which the run continues.
    open: Vec<StreamedCall>,
    /// The open calls whose outcome was sent before.
    answered: HashSet<String>,
    /// The invocation that began the run, if it has begun.
    run: Option<String>,
}

impl RunStart {
    /// The session as it is.
    pub(super) async fn read(runner: &Runner, session: &SessionHandle) -> Result<Self, RunnerError> {
        let stored = session.read(EventRange::None).await?;
        let unfinished = session.unfinished().await?;
        let reply = unfinished.as_ref().and_then(|run| run.reply());
        let open: Vec<StreamedCall> =
            reply.map(|reply| reply.tool_calls().map(StreamedCall::from).collect()).unwrap_or_default();
        let answered = match open.is_empty() {
            true => HashSet::new(),
            false => answered(&recent(runner, session).await?, stored.version),
        };
        Ok(RunStart {
            version: stored.version,
            at: stored.updated,
            state: stored.to_json(),
            open,
            answered,
            run: None,
        })
    }

    /// The session before the last message or decision of the run that continues: where its newest stream began, in
    /// whatever process. As it is, if the message of this invocation waits until then.
    async fn before_invocation(
        runner: &Runner,
        session: &SessionHandle,
        invocation: &str,
    ) -> Result<Self, RunnerError> {
        let waits = session.inbox().await?.iter().any(|message| message.id.as_str() == invocation);
        let recent = recent(runner, session).await?;
        let last_of = |kinds: &[&str]| {
            let is_one = |commit: &&CommittedEvent| kinds.contains(&commit.event.kind.as_str());
            recent.visible_events().rfind(is_one)
        };
        let Some(first) = last_of(&["began", "decided"]).filter(|_| !waits) else {
            return RunStart::read(runner, session).await;
        };
        let before = RunStart::at(runner, session, &recent, first.version).await?;
        let Some(before) = before else { return RunStart::read(runner, session).await };
        Ok(RunStart { run: last_of(&["began"]).map(|commit| commit.event.invocation.to_string()), ..before })
    }

    /// The session before the commit with a version; `None` if retention has deleted it.
    async fn at(
        runner: &Runner,
        session: &SessionHandle,
        recent: &Session,
        commit: u64,
    ) -> Result<Option<Self>, RunnerError> {
        let version = commit - 1;
        let mut get = GetSession::new(session.key().clone()).events(EventRange::None);
        get.version = Some(version);
        let Ok(stored) = runner.store().get(get).await else { return Ok(None) };
        Ok(Some(RunStart {
            version,
            at: stored.updated,
            state: stored.to_json(),
            open: open_calls(recent, commit),
            answered: answered(recent, version),
            run: None,
        }))
    }

    /// The session before a request, which the commit with a version has taken: a repeat is told what the first one was,
    /// from its beginning.
    pub(super) async fn or_earlier(
        self,
        runner: &Runner,
        session: &SessionHandle,
        taken: Option<u64>,
    ) -> Result<Self, RunnerError> {
        let Some(taken) = taken.filter(|taken| *taken <= self.version) else { return Ok(self) };
        let recent = recent(runner, session).await?;
        Ok(RunStart::at(runner, session, &recent, taken).await?.unwrap_or(self))
    }
}

/// The calls of the newest reply before a version.
fn open_calls(recent: &Session, version: u64) -> Vec<StreamedCall> {
    let before: Vec<_> = recent.visible_events().filter(|commit| commit.version < version).collect();
    let messages = before.iter().rev().flat_map(|commit| commit.event.messages.iter().rev());
    let reply = messages.into_iter().find(|message| message.role() == Role::Assistant);
    reply.map(|reply| reply.tool_calls().map(StreamedCall::from).collect()).unwrap_or_default()
}

/// The ids of the calls of the newest reply up to a version whose outcomes are known.
fn answered(recent: &Session, version: u64) -> HashSet<String> {
    let mut answered = HashSet::new();
    for commit in recent.visible_events().filter(|commit| commit.version <= version) {
        let Some(event) = event_of(commit) else { continue };
        if let EventKind::Replied { .. } = event.kind {
            answered.clear();
        }
        answered.extend(ends_of(&event).into_iter().map(|end| end.id));
    }
    answered
}

/// The outcomes that an event has.
fn ends_of(event: &Event) -> Vec<CallEnd> {
    event.outcomes().iter().filter_map(|item| Some(item.outcome.call()?.into())).collect()
}

/// Whether an event rejects a call. The id of a request begins with that of its call.
fn rejects(event: &Event, call: &str) -> bool {
    let EventKind::Decided { decisions, .. } = &event.kind else { return false };
    let is_rejection = |(id, decision): &(String, Decision)| {
        matches!(decision, Decision::Reject { .. }) && id.split('#').next() == Some(call)
    };
    decisions.iter().any(is_rejection)
}

impl RunReader {
    /// A reader of an invocation in this process.
    pub(super) fn new(
        runner: &Runner,
        session: SessionHandle,
        invocation: Invocation,
        before: RunStart,
    ) -> Self {
        let (id, seen) = (invocation.id().to_string(), invocation.subscribe(0).boxed());
        RunReader::from(runner, session, id, RunSource::Local { invocation, seen }, before)
    }

    /// A reader of the run that is active now, in this process or another one, from the beginning of its invocation. `None`
    /// if none does: what waits for decisions does not.
    pub(super) async fn attach(
        runner: &Runner,
        session: &SessionHandle,
    ) -> Result<Option<Self>, RunnerError> {
        if let Some(invocation) = session.running() {
            let before = RunStart::before_invocation(runner, session, invocation.id().as_str()).await?;
            return Ok(Some(RunReader::new(runner, session.clone(), invocation, before)));
        }
        let stored = session.read_events(EventRange::Last(1)).await?;
        let Some(last) = stored.visible_events().last() else { return Ok(None) };
        if runner.other_worker(&stored).is_none() || session.unfinished().await?.is_none() {
            return Ok(None);
        }
        let id = last.event.invocation.to_string();
        let before = RunStart::before_invocation(runner, session, &id).await?;
        let commits = runner.follow(session.key().clone(), before.version).boxed();
        Ok(Some(RunReader::from(runner, session.clone(), id, RunSource::Remote(commits), before)))
    }

    fn from(
        runner: &Runner,
        session: SessionHandle,
        id: String,
        source: RunSource,
        before: RunStart,
    ) -> Self {
        let RunStart { version, at, state, open, answered, run } = before;
        let run = run.unwrap_or_else(|| id.clone());
        let began = RunUpdate::Began { invocation: id.clone(), at, state: state.clone(), open };
        RunReader {
            runner: runner.clone(),
            session,
            id,
            run,
            source,
            queue: VecDeque::from([began]),
            draft: ReplyDraft::default(),
            step: 0,
            version,
            newest: version,
            only_own: false,
            answered,
            rejected: HashSet::new(),
            state: Some(state),
            has_seen: false,
            is_over: false,
            drop_signal: None,
        }
    }

    /// The invocation, if it is in this process.
    pub(super) fn invocation(&self) -> Option<Invocation> {
        match &self.source {
            RunSource::Local { invocation, .. } => Some(invocation.clone()),
            RunSource::Remote(_) => None,
        }
    }

    /// The id of the invocation.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// The version after which commits are told.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// The id of the invocation that began the run.
    pub(super) fn run(&self) -> &str {
        &self.run
    }

    /// Sends a signal when the reader is dropped.
    pub(super) fn signal_when_dropped(mut self, drop_signal: Option<oneshot::Sender<()>>) -> Self {
        self.drop_signal = drop_signal;
        self
    }

    /// Leaves out values of the state, which are read for each commit that writes.
    pub(super) fn without_state(mut self) -> Self {
        self.state = None;
        self
    }

    pub(super) fn into_stream(self) -> impl Stream<Item = RunUpdate> + Send {
        futures_util::stream::unfold(self, |mut reader| async move {
            let update = reader.next().await?;
            Some((update, reader))
        })
    }

    async fn next(&mut self) -> Option<RunUpdate> {
        loop {
            if let Some(update) = self.queue.pop_front() {
                return Some(update);
            }
            if self.is_over {
                return None;
            }
            match &mut self.source {
                RunSource::Local { invocation, seen } => match seen.next().await {
                    Some(InvocationEvent::Event { event, version, is_earlier, .. }) => {
                        self.on_run_event(event, version, is_earlier).await;
                    }
                    Some(_) => self.catch_up().await,
                    None => {
                        let ended = invocation.clone().outcome().await;
                        self.finish(ended).await;
                    }
                },
                RunSource::Remote(commits) => match commits.next().await {
                    Some(Ok(commit)) => self.report_remote_commit(commit).await,
                    Some(Err(error)) => self.end(StreamEnd::Failed(Problem::from(error)), Usage::default()),
                    None => self.end(StreamEnd::Suspended, Usage::default()),
                },
            }
        }
    }

    async fn on_run_event(&mut self, event: RunEvent, version: u64, is_earlier: bool) {
        self.only_own = is_earlier;
        if is_earlier {
            self.version = self.version.max(version);
            return;
        }
        self.has_seen = true;
        self.newest = self.newest.max(version);
        // NOTE: Commits come from the store: only there they have their ids and times, and a slow reader or one of another
        // process reads them there anyway (docs/decisions/server.md).
        self.read_commits(version).await;
        match event {
            RunEvent::ToolProgress { call_id, report } => {
                self.queue.push_back(RunUpdate::Progress { call: call_id, report });
            }
            // NOTE: Text that was written before a commit that was sent is part of that commit.
            _ if version < self.version => {}
            RunEvent::Asking { step, .. } => self.begin_step(step),
            RunEvent::Text(text) if !self.draft.has_gap => {
                self.draft.text.push_str(&text);
                self.queue.push_back(RunUpdate::Text(text));
            }
            RunEvent::Reasoning(text) if !self.draft.has_gap => {
                self.draft.reasoning.push_str(&text);
                self.queue.push_back(RunUpdate::Reasoning(text));
            }
            _ => {}
        }
    }

    fn begin_step(&mut self, step: u64) {
        if !self.draft.text.is_empty() || !self.draft.reasoning.is_empty() {
            self.queue.push_back(RunUpdate::Restarted);
        }
        self.draft = ReplyDraft::default();
        if step != self.step {
            self.step = step;
            self.queue.push_back(RunUpdate::Step(step));
        }
    }

    /// Sends missed updates from their commits. Missed unfinished text is part of the next reply.
    async fn catch_up(&mut self) {
        self.draft.has_gap = true;
        self.read_commits(u64::MAX).await;
        self.draft.has_gap = true;
    }

    /// Sends the commits that were not sent, up to a version.
    async fn read_commits(&mut self, until: u64) {
        while self.version < until {
            let key = self.session.key().clone();
            let (commits, is_last) = match page(self.runner.clone(), key, self.version).await {
                Ok(page) => page,
                Err(error) => {
                    // The next event reads them again.
                    tracing::warn!(%error, "commits for a stream could not be read");
                    return;
                }
            };
            for commit in commits.into_iter().filter(|commit| commit.version <= until) {
                self.version = commit.version;
                if !self.only_own || commit.event.invocation.as_str() == self.id {
                    self.report_commit(commit).await;
                }
            }
            if is_last {
                return;
            }
        }
    }

    async fn report_commit(&mut self, commit: CommittedEvent) {
        self.version = commit.version;
        if let Some(event) = event_of(&commit) {
            if let EventKind::Replied { .. } = &event.kind {
                self.report_reply(&event);
            }
            self.report_outcomes(&event);
        }
        if !commit.event.actions.delta.is_empty() {
            self.report_state(commit.version).await;
        }
        self.queue.push_back(RunUpdate::Committed(commit));
    }

    /// Sends the outcomes of calls: those of the event; and those that only the messages which end the step have, as that
    /// of a call which was rejected.
    fn report_outcomes(&mut self, event: &Event) {
        let mut ends = ends_of(event);
        let results = event.messages.iter().filter_map(|message| message.tool_result());
        for result in results.filter(|result| !self.answered.contains(result.call_id())) {
            let id = result.call_id();
            if !ends.iter().any(|end| end.id == id) {
                ends.push(CallEnd::of(result, self.rejected.contains(id) || rejects(event, id)));
            }
        }
        if let EventKind::Decided { decisions, .. } = &event.kind {
            let calls = decisions.iter().filter_map(|(id, _)| id.split('#').next());
            self.rejected.extend(calls.filter(|call| rejects(event, call)).map(str::to_owned));
        }
        self.answered.extend(ends.iter().map(|end| end.id.clone()));
        self.queue.extend(ends.into_iter().map(RunUpdate::Outcome));
    }

    /// Sends the part of a reply that was not streamed.
    fn report_reply(&mut self, event: &Event) {
        let Some(message) = event.messages.iter().find(|message| message.role() == Role::Assistant) else {
            return;
        };
        self.answered.clear();
        self.rejected.clear();
        if event.step != self.step {
            self.begin_step(event.step);
        }
        let draft = std::mem::take(&mut self.draft);
        let (text, reasoning) = (message.text().into_owned(), reasoning(message));
        let rest = text.strip_prefix(draft.text.as_str()).map(str::to_owned);
        if rest.is_none() {
            self.queue.push_back(RunUpdate::Restarted);
        }
        // NOTE: Reasoning comes before the text in all protocols; after text was sent, it is left out.
        if draft.text.is_empty()
            && let Some(rest) =
                reasoning.strip_prefix(draft.reasoning.as_str()).filter(|rest| !rest.is_empty())
        {
            self.queue.push_back(RunUpdate::Reasoning(rest.to_owned()));
        }
        let rest = rest.unwrap_or(text);
        if !rest.is_empty() {
            self.queue.push_back(RunUpdate::Text(rest));
        }
        self.queue.extend(message.tool_calls().map(|call| RunUpdate::Call(call.into())));
    }

    async fn report_state(&mut self, version: u64) {
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
                    self.queue.push_back(RunUpdate::State { before, after });
                }
            }
            // The next commit tells it all.
            Err(error) => tracing::warn!(%error, "the state for a stream could not be read"),
        }
    }

    /// Sends a commit of another process, and the end of the run if it is the last.
    async fn report_remote_commit(&mut self, commit: CommittedEvent) {
        let exit = commit.event.metadata.read::<Exit>("exit");
        let cause = failure(&commit.event);
        self.report_commit(commit).await;
        match (exit, cause) {
            (Some(exit), _) => {
                match self.session.last_run().await {
                    Ok(run) => {
                        self.queue
                            .extend(run.as_ref().and_then(missing_last_words).map(RunUpdate::LastWords));
                    }
                    Err(error) => tracing::warn!(%error, "the last words of a run could not be read"),
                }
                self.end(StreamEnd::Finished(exit), Usage::default());
            }
            (None, Some(cause)) => {
                self.end(StreamEnd::Failed(Problem::unavailable(&cause)), Usage::default());
            }
            (None, None) => match waiting(self.session.clone(), self.version).await {
                Ok(requests) if requests.is_empty() => {}
                Ok(requests) => self.end(StreamEnd::Waiting(requests), Usage::default()),
                // The next commit asks again.
                Err(error) => tracing::warn!(%error, "pending requests could not be read"),
            },
        }
    }

    async fn finish(&mut self, ended: stepfold_runner::InvocationResult) {
        self.read_commits(self.newest).await;
        let outcome = match ended {
            Ok(outcome) => outcome,
            Err(error) => {
                let problem = match &self.source {
                    RunSource::Local { invocation, .. } => {
                        Problem::of_message(&self.session, invocation.id().as_str(), error).await
                    }
                    RunSource::Remote(_) => Problem::from(error),
                };
                return self.end(StreamEnd::Failed(problem), Usage::default());
            }
        };
        if !self.has_seen {
            // NOTE: Another process has run it, or the request is a repetition and nothing is new.
            self.only_own = true;
            self.read_commits(u64::MAX).await;
            if self.queue.is_empty() {
                self.queue.extend(outcome.last_words().map(RunUpdate::Repeated));
                return self.end(end_of(&outcome), outcome.usage());
            }
        }
        self.queue.extend(missing_last_words(outcome.run()).map(RunUpdate::LastWords));
        self.end(end_of(&outcome), outcome.usage());
    }

    fn end(&mut self, end: StreamEnd, usage: Usage) {
        self.is_over = true;
        self.queue.push_back(RunUpdate::Ended { end, usage, version: self.version });
    }
}

/// The requests that wait at a version for persons; none if there are newer commits.
async fn waiting(session: SessionHandle, version: u64) -> Result<Vec<ApprovalRequest>, RunnerError> {
    let pending = session.pending().await?;
    let is_newest = session.read_events(EventRange::None).await?.version == version;
    Ok(if is_newest { of_persons(&pending).cloned().collect() } else { Vec::new() })
}

/// A session with its newest commits.
pub(super) async fn recent(runner: &Runner, session: &SessionHandle) -> Result<Session, RunnerError> {
    let version = session.read_events(EventRange::None).await?.version;
    session.read_events(newest(runner, session.key(), (version, RECENT)).await).await
}

/// A page of commits, and whether it is the last one.
async fn page(
    runner: Runner,
    key: SessionKey,
    after: u64,
) -> Result<(Vec<CommittedEvent>, bool), SessionError> {
    let page = PagePlan::just_after(&runner, &key, (after, PAGE)).await?;
    let stored = runner.store().get(GetSession::new(key).events(page.range).without_state()).await?;
    let is_last = stored.events.last().is_none_or(|last| last.version >= stored.version);
    Ok((stored.events, is_last))
}

/// The last words of a run whose last reply has no text.
fn missing_last_words(run: &Run) -> Option<String> {
    run.text().trim().is_empty().then(|| run.last_words())?
}

fn end_of(outcome: &Outcome) -> StreamEnd {
    match outcome.exit() {
        Exit::Paused(Pause::Approval) => match of_persons(&outcome.pending()).cloned().collect::<Vec<_>>() {
            // Outcomes of calls come later, from elsewhere.
            requests if requests.is_empty() => StreamEnd::Suspended,
            requests => StreamEnd::Waiting(requests),
        },
        Exit::Paused(_) => StreamEnd::Suspended,
        exit => StreamEnd::Finished(exit.clone()),
    }
}

fn reasoning(message: &Message) -> String {
    let texts = message.parts().iter().filter_map(|part| match &part.content {
        Content::Reasoning(text) => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}
