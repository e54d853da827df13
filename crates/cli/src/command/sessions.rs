//! `stepfold sessions` and `delete`: lists sessions, and deletes one.

use serde_json::json;
use stepfold::agent_loop::ExhaustedBudget;
use stepfold::prelude::*;
use stepfold::runner::{SystemClock, WallClock as _, exhausted_budget, is_unfinished};
use stepfold::session_scopes::{EventRange, GetSession, Session, SessionStore as _, WorkerId};
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
    let context = CommandContext::for_read(target)?;
    let sessions = context.list(limit).await?;
    let mut statuses = Vec::with_capacity(sessions.len());
    for session in &sessions {
        statuses.push(SessionSummary::of(&context, session).await?);
    }
    if json {
        let sessions = sessions.iter().zip(&statuses).map(|(session, status)| {
            json!({
                "created": session.created.to_string(),
                "inbox": status.messages,
                "parent": session.parent.as_ref().map(|parent| json!({"id": parent.id.as_str(), "version": parent.version})),
                "pending": status.activity.pending(),
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
    let width = sessions.iter().map(|session| session.key.id.as_str().chars().count()).max().unwrap_or(0);
    for (session, status) in sessions.iter().zip(&statuses) {
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
    /// It waits for decisions about these requests.
    Waits(Vec<String>),
    /// This worker runs in it, or was killed a moment ago on another host.
    Running(WorkerId),
    /// Its last run waits for this budget.
    WaitsForBudget(Box<ExhaustedBudget>),
    /// Its last run was interrupted or failed.
    Interrupted,
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

    /// Reads the activity of a session from its claim and its newest event, and counts its inbox.
    async fn of(context: &CommandContext, session: &Session) -> anyhow::Result<Self> {
        let newest = GetSession::new(session.key.clone()).events(EventRange::Last(1)).without_state();
        let read = context.runner.store().get(newest.now(SystemClock.now())).await?;
        let messages = match read.inbox {
            0 => 0,
            _ => handle(context, session).await?.inbox().await?.len() as u64,
        };
        Ok(SessionSummary { activity: SessionActivity::of(context, &read).await?, messages })
    }

    /// The words at the end of the line.
    fn words(&self) -> String {
        let activity = match &self.activity {
            SessionActivity::Idle => String::new(),
            SessionActivity::Waits(pending) => format!(", waits for a decision about {}", pending.join(", ")),
            SessionActivity::WaitsForBudget(waits) => {
                format!(", waits for budget `{}` of {}", waits.budget, waits.scope)
            }
            SessionActivity::Running(worker) => {
                format!(", running in {}", with_short_workers(worker.as_str()))
            }
            SessionActivity::Interrupted => ", interrupted".to_owned(),
        };
        match self.messages {
            0 => activity,
            messages => format!("{activity}, {} in the inbox", show::counted(messages, "message")),
        }
    }
}

async fn handle(context: &CommandContext, session: &Session) -> anyhow::Result<SessionHandle> {
    Ok(context.runner.session(session.key.user.as_str(), session.key.id.as_str()).await?)
}

impl SessionActivity {
    async fn of(context: &CommandContext, session: &Session) -> anyhow::Result<Self> {
        if let Some(claim) = context.runner.other_worker(session) {
            return Ok(SessionActivity::Running(claim.owner.clone()));
        }
        let Some(newest) = session.events.last().filter(|newest| is_unfinished(&newest.event)) else {
            return Ok(SessionActivity::Idle);
        };
        if let Some(waits) = exhausted_budget(&newest.event).filter(|waits| waits.pauses) {
            return Ok(SessionActivity::WaitsForBudget(Box::new(waits)));
        }
        // NOTE: A changed agent may be unable to tell its pending requests.
        let pending = handle(context, session).await?.pending().await.unwrap_or_default();
        Ok(match pending.is_empty() {
            true => SessionActivity::Interrupted,
            false => SessionActivity::Waits(pending.into_iter().map(|request| request.id).collect()),
        })
    }

    fn name(&self) -> &'static str {
        match self {
            SessionActivity::Idle => "idle",
            SessionActivity::Waits(_) | SessionActivity::WaitsForBudget(_) => "waits",
            SessionActivity::Running(_) => "running",
            SessionActivity::Interrupted => "interrupted",
        }
    }

    fn pending(&self) -> &[String] {
        match self {
            SessionActivity::Waits(pending) => pending,
            SessionActivity::Idle
            | SessionActivity::Running(_)
            | SessionActivity::WaitsForBudget(_)
            | SessionActivity::Interrupted => &[],
        }
    }

    fn worker(&self) -> Option<&str> {
        match self {
            SessionActivity::Running(worker) => Some(worker.as_str()),
            SessionActivity::Idle
            | SessionActivity::Waits(_)
            | SessionActivity::WaitsForBudget(_)
            | SessionActivity::Interrupted => None,
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
    let context = CommandContext::for_change(target, when_claimed)?;
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
