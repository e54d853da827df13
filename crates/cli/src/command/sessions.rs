//! `stepfold sessions` and `delete`: what there is, and what shall not be there any more.

use serde_json::json;
use stepfold::session_scopes::{DeleteSession, SessionStore as _};

use crate::args::Place;
use crate::desk::Desk;
use crate::error::{Ending, Misuse};
use crate::show;

pub(super) async fn sessions(place: &Place, limit: usize, json: bool) -> anyhow::Result<Ending> {
    let desk = Desk::without_model(place)?;
    let sessions = desk.list(limit).await?;
    if json {
        let sessions = sessions.iter().map(|session| {
            json!({
                "created": session.created.to_string(),
                "parent": session.parent.as_ref().map(|parent| json!({"id": parent.id.as_str(), "version": parent.version})),
                "session": session.key.id.as_str(),
                "updated": session.updated.to_string(),
                "version": session.version,
            })
        });
        show::line(&serde_json::Value::Array(sessions.collect()).to_string());
        return Ok(Ending::Done);
    }
    let width = sessions.iter().map(|session| session.key.id.as_str().chars().count()).max().unwrap_or(0);
    for session in &sessions {
        let updated = session.updated.to_string();
        let updated = updated.get(..19).unwrap_or(&updated);
        let parent = session.parent.as_ref();
        let parent = parent.map(|parent| format!(", forked from {} at {}", parent.id, parent.version));
        let id = session.key.id.as_str();
        show::line(&format!(
            "{id:width$}  {updated}  version {}{}",
            session.version,
            parent.unwrap_or_default()
        ));
    }
    if sessions.is_empty() {
        show::note(&format!("agent {} has no session of user {}", desk.runner.agent().name(), desk.user));
    }
    Ok(Ending::Done)
}

pub(super) async fn delete(place: &Place, user_state: bool, json: bool) -> anyhow::Result<Ending> {
    if place.session.is_none() {
        // The one that was written last is a fine guess for looking at, and a bad one for this.
        return Err(Misuse("say which session is to be deleted, with --session ID".to_owned()).into());
    }
    let desk = Desk::without_model(place)?;
    let session = desk.session().await?;
    let mut delete = DeleteSession::new(session.key().clone());
    delete.user_state = user_state;
    let deleted = desk.runner.store().delete(delete).await?;
    let id = session.key().id.as_str();
    show::line(&if json {
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
