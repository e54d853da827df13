//! `stepfold sessions` and `delete`: what there is, and what shall not be there any more.

use serde_json::json;
use stepfold::prelude::*;
use stepfold::runner::{SystemClock, WallClock as _, is_unfinished};
use stepfold::session_scopes::{EventRange, GetSession, Session, SessionStore as _};

use crate::args::{Place, WhenBusy};
use crate::desk::Desk;
use crate::error::{Ending, Misuse};
use crate::show;

pub(super) async fn sessions(place: &Place, limit: usize, json: bool) -> anyhow::Result<Ending> {
    let desk = Desk::to_read(place)?;
    let sessions = desk.list(limit).await?;
    let (mut statuses, mut waiting) = (Vec::new(), Vec::new());
    for session in &sessions {
        let newest = GetSession::new(session.key.clone()).events(EventRange::Last(1)).without_state();
        let read = desk.runner.store().get(newest.now(SystemClock.now())).await?;
        waiting.push(match read.inbox {
            0 => 0,
            _ => handle(&desk, session).await?.inbox().await?.len(),
        });
        statuses.push(status(&desk, &read).await?);
    }
    if json {
        let sessions = sessions.iter().zip(&statuses).zip(&waiting).map(|((session, status), waiting)| {
            json!({
                "created": session.created.to_string(),
                "inbox": waiting,
                "parent": session.parent.as_ref().map(|parent| json!({"id": parent.id.as_str(), "version": parent.version})),
                "pending": status.pending(),
                "session": session.key.id.as_str(),
                "status": status.name(),
                "updated": session.updated.to_string(),
                "version": session.version,
            })
        });
        show::line(serde_json::Value::Array(sessions.collect()).to_string());
        return Ok(Ending::Done);
    }
    let width = sessions.iter().map(|session| session.key.id.as_str().chars().count()).max().unwrap_or(0);
    for ((session, status), waiting) in sessions.iter().zip(&statuses).zip(&waiting) {
        let updated = session.updated.to_string();
        let updated = updated.get(..19).unwrap_or(&updated);
        let parent = session.parent.as_ref();
        let parent = parent.map(|parent| format!(", forked from {} at {}", parent.id, parent.version));
        let id = session.key.id.as_str();
        show::line(format!(
            "{id:width$}  {updated}  version {}{}{}{}",
            session.version,
            parent.unwrap_or_default(),
            status.words(),
            match waiting {
                0 => String::new(),
                waiting => format!(", {} in the inbox", show::counted(*waiting as u64, "message")),
            }
        ));
    }
    if sessions.is_empty() {
        show::note(format!("agent {} has no session of user {}", desk.runner.agent().name(), desk.user));
    }
    Ok(Ending::Done)
}

/// What a session is at.
enum Status {
    /// Its last run has ended, or there was none.
    Idle,
    /// It waits for decisions about these.
    Waits(Vec<String>),
    /// A process is at work in it, or was killed a moment ago on another host.
    Running,
    /// Its last run was interrupted or failed.
    Interrupted,
}

/// What a session is at, by its claim and its newest event.
async fn status(desk: &Desk, session: &Session) -> anyhow::Result<Status> {
    if desk.runner.other_worker(session).is_some() {
        return Ok(Status::Running);
    }
    if !session.events.last().is_some_and(|newest| is_unfinished(&newest.event)) {
        return Ok(Status::Idle);
    }
    // With an agent that has changed since, it may not be known what is waited for.
    let pending = handle(desk, session).await?.pending().await.unwrap_or_default();
    Ok(match pending.is_empty() {
        true => Status::Interrupted,
        false => Status::Waits(pending.into_iter().map(|request| request.id).collect()),
    })
}

async fn handle(desk: &Desk, session: &Session) -> anyhow::Result<SessionHandle> {
    Ok(desk.runner.session(session.key.user.as_str(), session.key.id.as_str()).await?)
}

impl Status {
    fn name(&self) -> &'static str {
        match self {
            Status::Idle => "idle",
            Status::Waits(_) => "waits",
            Status::Running => "running",
            Status::Interrupted => "interrupted",
        }
    }

    fn pending(&self) -> &[String] {
        match self {
            Status::Waits(pending) => pending,
            Status::Idle | Status::Running | Status::Interrupted => &[],
        }
    }

    /// What a person should know, behind everything else.
    fn words(&self) -> String {
        match self {
            Status::Idle => String::new(),
            Status::Waits(pending) => format!(", waits for a decision about {}", pending.join(", ")),
            Status::Running => ", running".to_owned(),
            Status::Interrupted => ", interrupted".to_owned(),
        }
    }
}

pub(super) async fn delete(
    place: &Place,
    user_state: bool,
    when_claimed: WhenBusy,
    json: bool,
) -> anyhow::Result<Ending> {
    if place.session.is_none() {
        // The one that was written last is a fine guess for looking at, and a bad one for this.
        return Err(Misuse("say which session is to be deleted, with --session ID".to_owned()).into());
    }
    let desk = Desk::to_change(place, when_claimed)?;
    let session = desk.session().await?;
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
    Ok(Ending::Done)
}
