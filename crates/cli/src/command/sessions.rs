//! `stepfold sessions` and `delete`: lists sessions, and deletes one.

use serde_json::json;
use stepfold::agent_loop::{ApprovalRequest, ExhaustedBudget};
use stepfold::prelude::*;
use stepfold::runner::{RunnerError, exhausted_budget, is_unfinished};
use stepfold::session_scopes::{OutlineSessions, Session, SessionKey, WorkerId};
use stepfold::terminal::TextStyle;

use crate::args::{BusyPolicy, SessionArgs};
use crate::context::CommandContext;
use crate::error::{CommandEnding, UsageError};
use crate::other_process::with_short_workers;
use crate::show;

pub(super) async fn sessions(
    target: &SessionArgs,
    limit: usize,
    json: bool,
) -> anyhow::Result<CommandEnding> {
    let context = CommandContext::for_read(target).await?;
    let mut sessions = Vec::new();
    for session in context.list(limit).await? {
        let summary = SessionSummary::of(&context.runner, &session).await?;
        sessions.extend(summary.map(|summary| (session, summary)));
    }
    if json {
        let sessions = sessions.iter().map(|(session, status)| {
            json!({
                "created": session.created.to_string(),
                "inbox": status.messages,
                "parent": session.parent.as_ref().map(|parent| json!({"id": parent.id.as_str(), "version": parent.version})),
                "pending": status.activity.pending().iter().map(|request| &request.id).collect::<Vec<_>>(),
                "session": session.key.id.as_str(),
                "status": status.activity.name(),
                "updated": session.updated.to_string(),
                "version": session.version,
                "worker": status.activity.worker(),
            })
        });
        show::line(serde_json::Value::Array(sessions.collect()).to_string());
        return Ok(CommandEnding::Done);
    }
    let width =
        sessions.iter().map(|(session, _)| session.key.id.as_str().chars().count()).max().unwrap_or(0);
    for (session, status) in &sessions {
        let updated = show::moment(session.updated);
        let parent = session.parent.as_ref();
        let parent = parent.map(|parent| format!(", forked from {} at {}", parent.id, parent.version));
        let id = session.key.id.as_str();
        let version = format!("version {}{}", session.version, parent.unwrap_or_default());
        let row = show::styled(show::NAME, format!("{id:width$}")).with(show::DIM, format!("  {updated}  "));
        show::row(&row.and(version).with(status.look(), status.words()), width + 2);
    }
    if sessions.is_empty() {
        show::note(context.no_session_text());
    }
    Ok(CommandEnding::Done)
}

/// The activity and the inbox of a session.
struct SessionSummary {
    activity: SessionActivity,
    /// The number of messages in its inbox.
    messages: u64,
}

enum SessionActivity {
    /// Its last run has ended, or there is none.
    Idle,
    /// It waits for decisions about these requests, or for their outcomes.
    Waits(Vec<ApprovalRequest>),
    /// This worker runs in it, or was killed a moment ago on another host.
    Running(WorkerId),
    /// Its last run waits for this budget.
    WaitsForBudget(Box<ExhaustedBudget>),
    /// Its last run was interrupted or failed.
    Interrupted,
    /// No worker runs in it, and the rest is sealed: the store was opened without its key ring, or the key was destroyed.
    Sealed,
}

impl SessionSummary {
    fn look(&self) -> TextStyle {
        match (&self.activity, self.messages) {
            (SessionActivity::Interrupted, _) => TextStyle::BAD,
            (SessionActivity::Running(_), _) => TextStyle::GOOD,
            (SessionActivity::Idle, 0) => TextStyle::PLAIN,
            _ => TextStyle::ASK,
        }
    }

    /// The summary of a listed session; `None` if it was deleted meanwhile.
    async fn of(runner: &Runner, session: &Session) -> Result<Option<Self>, RunnerError> {
        let SessionKey { app, user, id } = session.key.clone();
        let found = match runner.outlines(OutlineSessions::new(app, user, [id])).await {
            Err(error) if error.is_sealed() => return Ok(Some(SessionSummary::sealed(runner, session))),
            found => found?,
        };
        let Some((session, outline)) = found.into_iter().flatten().next() else { return Ok(None) };
        match SessionSummary::read(&session, &outline.session).await {
            Err(error) if error.is_session_not_found() => Ok(None),
            Err(error) if error.is_sealed() => Ok(Some(SessionSummary::sealed(runner, &outline.session))),
            summary => summary.map(Some),
        }
    }

    /// The summary of a session whose content is sealed: by its claim, with all that waits in its inbox.
    fn sealed(runner: &Runner, session: &Session) -> Self {
        let activity = match runner.other_worker(session) {
            Some(claim) => SessionActivity::Running(claim.owner.clone()),
            None => SessionActivity::Sealed,
        };
        SessionSummary { activity, messages: session.inbox }
    }

    /// The activity of a session by its claim and its newest event, and the number of messages in its inbox.
    async fn read(session: &SessionHandle, stored: &Session) -> Result<Self, RunnerError> {
        let messages = match stored.inbox {
            0 => 0,
            _ => session.inbox().await?.len() as u64,
        };
        Ok(SessionSummary { activity: SessionActivity::of(session, stored).await, messages })
    }

    /// The words at the end of the line.
    fn words(&self) -> String {
        let activity = match &self.activity {
            SessionActivity::Idle => String::new(),
            SessionActivity::Waits(pending) => {
                let (later, asked): (Vec<_>, Vec<_>) = pending.iter().partition(|request| request.is_later());
                waits_for("a decision about", &asked) + &waits_for("the outcome of", &later)
            }
            SessionActivity::WaitsForBudget(waits) => {
                format!(", waits for budget `{}` of {}", waits.budget, waits.scope)
            }
            SessionActivity::Running(worker) => {
                format!(", running in {}", with_short_workers(worker.as_str()))
            }
            SessionActivity::Interrupted => ", interrupted".to_owned(),
            SessionActivity::Sealed => ", sealed".to_owned(),
        };
        match self.messages {
            0 => activity,
            messages => format!("{activity}, {} in the inbox", show::counted(messages, "message")),
        }
    }
}

/// The end of a line about these requests; empty without any.
fn waits_for(subject: &str, requests: &[&ApprovalRequest]) -> String {
    let ids: Vec<_> = requests.iter().map(|request| &*request.id).collect();
    if ids.is_empty() { String::new() } else { format!(", waits for {subject} {}", ids.join(", ")) }
}

impl SessionActivity {
    async fn of(session: &SessionHandle, stored: &Session) -> Self {
        if let Some(claim) = session.runner().other_worker(stored) {
            return SessionActivity::Running(claim.owner.clone());
        }
        let Some(newest) = stored.events.last().filter(|newest| is_unfinished(&newest.event)) else {
            return SessionActivity::Idle;
        };
        if let Some(waits) = exhausted_budget(&newest.event).filter(|waits| waits.pauses) {
            return SessionActivity::WaitsForBudget(Box::new(waits));
        }
        // NOTE: A changed agent may be unable to tell its pending requests.
        let pending = session.pending().await.unwrap_or_default();
        match pending.is_empty() {
            true => SessionActivity::Interrupted,
            false => SessionActivity::Waits(pending),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            SessionActivity::Idle => "idle",
            SessionActivity::Waits(_) | SessionActivity::WaitsForBudget(_) => "waits",
            SessionActivity::Running(_) => "running",
            SessionActivity::Interrupted => "interrupted",
            SessionActivity::Sealed => "sealed",
        }
    }

    fn pending(&self) -> &[ApprovalRequest] {
        match self {
            SessionActivity::Waits(pending) => pending,
            SessionActivity::Idle
            | SessionActivity::Running(_)
            | SessionActivity::WaitsForBudget(_)
            | SessionActivity::Interrupted
            | SessionActivity::Sealed => &[],
        }
    }

    fn worker(&self) -> Option<&str> {
        match self {
            SessionActivity::Running(worker) => Some(worker.as_str()),
            SessionActivity::Idle
            | SessionActivity::Waits(_)
            | SessionActivity::WaitsForBudget(_)
            | SessionActivity::Interrupted
            | SessionActivity::Sealed => None,
        }
    }
}

pub(super) async fn delete(
    target: &SessionArgs,
    user_state: bool,
    when_claimed: BusyPolicy,
    json: bool,
) -> anyhow::Result<CommandEnding> {
    if target.session.is_none() {
        // NOTE: The session with the newest write is a fine default for reading, and a dangerous one for deleting.
        return Err(UsageError("say which session is to be deleted, with --session ID".to_owned()).into());
    }
    let context = CommandContext::for_change(target, when_claimed).await?;
    let session = context.session().await?;
    let deleted = session.delete(user_state).await?;
    let id = session.key().id.as_str();
    show::line(if json {
        json!({
            "events": deleted.events,
            "keys": deleted.session_keys,
            "session": id,
            "user_keys": deleted.user_keys,
        })
        .to_string()
    } else {
        let mut words = format!("session {id} is deleted, with {}", show::counted(deleted.events, "event"));
        if !deleted.user_keys.is_empty() {
            words = format!("{words} and the user's values of {}", deleted.user_keys.join(", "));
        }
        words
    });
    Ok(CommandEnding::Done)
}

#[cfg(test)]
mod tests {
    use stepfold::agent_loop::test_kit::Script;
    use stepfold::session_scopes::{DeleteSession, GetSession, MemoryStore, SessionStore as _};

    use super::*;

    /// A session that another process deletes after it was listed is left out of the list, and is not made again.
    #[tokio::test]
    async fn a_session_that_was_deleted_since_it_was_listed_has_no_summary() {
        let agent = Agent::builder(Script::parse("assistant: noted").unwrap()).build().unwrap();
        let runner = Runner::builder(agent, MemoryStore::new()).build();
        let handle = runner.session("ada", "s1").await.unwrap();
        handle.run("hello").await.unwrap();
        let listed = runner.store().get(GetSession::new(handle.key().clone())).await.unwrap();
        assert!(SessionSummary::of(&runner, &listed).await.unwrap().is_some());
        runner.store().delete(DeleteSession::new(handle.key().clone())).await.unwrap();
        assert!(SessionSummary::of(&runner, &listed).await.unwrap().is_none());
        // It is deleted after its outline was read, and a message waits in it.
        let mut waiting = listed;
        waiting.inbox = 1;
        assert!(SessionSummary::read(&handle, &waiting).await.err().unwrap().is_session_not_found());
        assert!(runner.find_session("ada", "s1").await.unwrap().is_none());
    }
}
