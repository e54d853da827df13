//! The requests of a session beside each other: which prefix each shares with the one before, which is what a provider
//! caches, and what broke it. From the record alone.

use std::fmt;
use std::sync::Arc;

use stepfold_agent_loop::{Event, EventKind, Run};
use stepfold_session_scopes::{CommittedEvent, SessionKey};
use stepfold_state_core::chat::{ChatRequest, Message, Usage};
use stepfold_trim::{ApproximateTokens, View};

use crate::error::{RunnerError, RunnerErrorKind};
use crate::handle::session_handle::SessionHandle;

/// A request of a stored session, and the prefix that it shares with the request before it. Created by
/// [`SessionHandle::prompt_cache`].
///
/// Sizes are estimates by [`ApproximateTokens`]; the usage is that of the provider.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct CachedRequest {
    /// The version of the session with the reply.
    pub version: u64,
    /// The model that replied, as the provider named it, if it did.
    pub model: Option<String>,
    /// The tokens of the messages.
    pub tokens: usize,
    /// The tokens of the messages that are the same as in the request before.
    pub shared_tokens: usize,
    /// The reason why the prefix broke; `None` if the request continues the one before, or is the first.
    pub broken_by: Option<PrefixBreak>,
    /// The tokens of the request before that are not shared: they were cached in vain.
    pub lost_tokens: usize,
    /// The usage that the provider reported, with the tokens that it read from its cache.
    pub usage: Usage,
}

/// Why a request does not begin as the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PrefixBreak {
    /// Another model: caches are per model.
    Model,
    /// Other tools, or other descriptions of them. Tools come first in a request.
    Tools,
    /// Other instructions: a placeholder in them has another value.
    Instructions,
    /// A summary has taken the place of messages.
    Summary,
    /// Messages are left out that were there: by a trim or a window, or because the request was too long.
    LeftOut,
    /// Results are cleared that were there.
    Cleared,
    /// Messages or results are shown that were left out or cleared: a turn begins with what its trim shows.
    ShownAgain,
    /// A message has changed: it was edited, or a hook has rewritten the conversation.
    Changed,
}

impl fmt::Display for PrefixBreak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PrefixBreak::Model => "another model",
            PrefixBreak::Tools => "other tools",
            PrefixBreak::Instructions => "other instructions",
            PrefixBreak::Summary => "a summary",
            PrefixBreak::LeftOut => "messages left out",
            PrefixBreak::Cleared => "results cleared",
            PrefixBreak::ShownAgain => "messages shown again",
            PrefixBreak::Changed => "a changed message",
        })
    }
}

impl SessionHandle {
    /// The requests to the model of the session's own runs, oldest first, each beside the one before: the prefix that
    /// they share, what broke it, and what the provider read from its cache. Runs inside of calls and nodes have caches of
    /// their own, and are left out. O(the session).
    ///
    /// # Errors
    /// When a record does not fit the agent, or the store fails.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_runner::{PrefixBreak, Runner};
    /// use stepfold_session_scopes::MemoryStore;
    /// use stepfold_trim::Trim;
    ///
    /// # let model = Script::parse("assistant: area 3\nassistant: area 7\nassistant: area 3")?;
    /// let agent = Agent::builder(model).trim(Trim::keep_last(3)).build()?;
    /// let runner = Runner::builder(agent, MemoryStore::new()).build();
    /// let session = runner.session("ada", "s1").await?;
    /// for text in ["which area has most stalls?", "and fewest?", "say the first again"] {
    ///     session.run(text).await?;
    /// }
    /// let requests = session.prompt_cache().await?;
    /// let broken: Vec<_> = requests.iter().map(|request| request.broken_by).collect();
    /// assert_eq!(broken, [None, None, Some(PrefixBreak::LeftOut)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub async fn prompt_cache(&self) -> Result<Vec<CachedRequest>, RunnerError> {
        crate::handle::replay::prompt_cache(&self.access()).await
    }
}

/// The requests that were seen, in order.
#[derive(Default)]
pub(super) struct SeenRequests {
    pub(super) requests: Vec<CachedRequest>,
    last: Option<SeenRequest>,
}

struct SeenRequest {
    model: Option<String>,
    tools: RecordedTools,
    request: ChatRequest,
    view: View,
}

/// The tools of a request, by the record: those of the agent now may be others.
#[derive(Clone, Default)]
struct RecordedTools {
    /// Their digest, where it is recorded.
    digest: Option<String>,
    /// Whether an upgrade has changed them since the request before.
    are_upgraded: bool,
}

impl RecordedTools {
    /// Follows an event of a run.
    fn follow(&mut self, event: &EventKind) {
        match event {
            EventKind::Began { tools, .. } => self.digest.clone_from(tools),
            // Tools that are listed at each step.
            EventKind::Replied { tools: Some(tools), .. } => self.digest = Some(tools.clone()),
            EventKind::Upgraded { changes, .. }
                if changes.iter().any(|change| change.part.starts_with("tool ")) =>
            {
                *self = RecordedTools { digest: None, are_upgraded: true };
            }
            _ => {}
        }
    }
}

impl SeenRequests {
    /// Adds those of a run, from its events.
    pub(super) fn of_run(
        &mut self,
        key: &SessionKey,
        mut run: Run,
        committed: &[CommittedEvent],
        recorded: &[Event],
    ) -> Result<(), RunnerError> {
        // An agent that has changed since may have decided otherwise.
        run.follow_other_agent();
        let mut tools = RecordedTools::default();
        for (committed, event) in committed.iter().zip(recorded) {
            tools.follow(&event.kind);
            if let EventKind::Replied { usage, model, .. } = &event.kind {
                self.add(&run, committed.version, model.clone(), &tools, *usage);
                tools.are_upgraded = false;
            }
            run.catch_up(event.clone()).map_err(|error| {
                let (version, source) = (committed.version, Arc::new(error));
                RunnerError::new(key, RunnerErrorKind::Recover { version, source })
            })?;
        }
        Ok(())
    }

    fn add(&mut self, run: &Run, version: u64, model: Option<String>, tools: &RecordedTools, usage: Usage) {
        let request = run.request();
        let tokens = ApproximateTokens::of_messages(&request.messages);
        let mut added = CachedRequest {
            version,
            model: model.clone(),
            tokens,
            shared_tokens: 0,
            broken_by: None,
            lost_tokens: 0,
            usage,
        };
        if let Some(SeenRequest { model: last_model, tools: last_tools, request: last, view }) = &self.last {
            let shared = request.messages.common_prefix(&last.messages);
            let has_same_tools = !tools.are_upgraded
                && match (&last_tools.digest, &tools.digest) {
                    (Some(before), Some(now)) => before == now,
                    _ => last.tools == request.tools,
                };
            added.broken_by = match (*last_model == model, has_same_tools) {
                (false, _) => Some(PrefixBreak::Model),
                (true, false) => Some(PrefixBreak::Tools),
                (true, true) => (shared < last.messages.len()).then(|| break_at(shared, run, view, last)),
            };
            if !matches!(added.broken_by, Some(PrefixBreak::Model | PrefixBreak::Tools)) {
                added.shared_tokens = ApproximateTokens::of_messages(request.messages.iter().take(shared));
            }
            added.lost_tokens =
                ApproximateTokens::of_messages(&last.messages).saturating_sub(added.shared_tokens);
        }
        self.requests.push(added);
        self.last = Some(SeenRequest { model, tools: tools.clone(), request, view: run.view().clone() });
    }
}

/// The reason why the prefix broke at this message of the request before, by the places of both messages in the conversation.
fn break_at(shared: usize, run: &Run, before: &View, last: &ChatRequest) -> PrefixBreak {
    // The instructions precede the conversation; there may have been none.
    let (leads, leads_before) =
        (usize::from(run.instructions().is_some()), last.messages.len() - before.transcript().len());
    if shared < leads.max(leads_before) {
        return PrefixBreak::Instructions;
    }
    match (ShownMessage::at(run.view(), shared - leads), ShownMessage::at(before, shared - leads_before)) {
        (Some(ShownMessage::Summary), _) | (_, Some(ShownMessage::Summary)) => PrefixBreak::Summary,
        (Some(ShownMessage::InLog(now)), Some(ShownMessage::InLog(before_it))) if now < before_it => {
            PrefixBreak::ShownAgain
        }
        (Some(ShownMessage::InLog(now)), Some(ShownMessage::InLog(before_it))) if now == before_it => {
            match (before.cleared().contains(now), run.view().cleared().contains(now)) {
                (false, true) => PrefixBreak::Cleared,
                (true, false) => PrefixBreak::ShownAgain,
                _ => PrefixBreak::Changed,
            }
        }
        _ => PrefixBreak::LeftOut,
    }
}

/// A message that a view shows.
enum ShownMessage {
    Summary,
    /// A message of the conversation, at this index.
    InLog(usize),
}

impl ShownMessage {
    fn at(view: &View, position: usize) -> Option<Self> {
        let is_summary =
            |message: &Arc<Message>| view.summary().is_some_and(|summary| Arc::ptr_eq(summary, message));
        let summary = view.transcript().iter().take(position + 1).position(is_summary);
        if summary == Some(position) {
            return Some(ShownMessage::Summary);
        }
        view.kept().indexes().nth(position - usize::from(summary.is_some())).map(ShownMessage::InLog)
    }
}
