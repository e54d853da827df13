//! `stepfold replay`, `fork` and `rewind`: what can be done with what has happened.

use serde_json::json;
use stepfold::runner::RunnerError;

use crate::args::{At, Place, WhenBusy};
use crate::desk::{Desk, quoted, short_id};
use crate::error::{Ending, chain};
use crate::other::interrupted;
use crate::show::{self, Restart};

pub(super) async fn replay(place: &Place, json: bool) -> anyhow::Result<Ending> {
    let desk = Desk::to_read(place)?;
    let session = desk.session().await?;
    let id = session.key().id.as_str();
    match session.replay(desk.runner.agent()).await {
        Ok(runs) => {
            show::line(if json {
                json!({"runs": runs, "same": true, "session": id}).to_string()
            } else {
                format!("session {id}: the same again, {}", show::counted(runs as u64, "run"))
            });
            Ok(Ending::Done)
        }
        Err(error @ RunnerError::Diverged { .. }) => {
            let words = chain(&error);
            show::line(if json {
                json!({"same": false, "session": id, "why": words}).to_string()
            } else {
                words
            });
            Ok(Ending::Failed)
        }
        Err(error) => Err(error.into()),
    }
}

pub(super) async fn fork(
    place: &Place,
    at: Option<&At>,
    to: Option<&str>,
    json: bool,
) -> anyhow::Result<Ending> {
    let desk = Desk::to_write(place)?;
    let session = desk.session().await?;
    let at = match at {
        Some(at) => Some(desk.version(session.key(), at).await?),
        None => None,
    };
    let to = to.map_or_else(short_id, str::to_owned);
    let fork = session.fork(to, at).await?;
    let (id, from) = (fork.key().id.as_str(), session.key().id.as_str());
    if json {
        show::line(json!({"from": from, "session": id}).to_string());
    } else {
        show::line(id);
        show::aside(&format!("continue: stepfold chat {} --session {}", desk.words(), quoted(id)));
    }
    Ok(Ending::Done)
}

pub(super) async fn rewind(
    place: &Place,
    to: &At,
    when_claimed: WhenBusy,
    json: bool,
) -> anyhow::Result<Ending> {
    let desk = Desk::to_change(place, when_claimed)?;
    let session = desk.session().await?;
    let to = desk.version(session.key(), to).await?;
    let run = interrupted(&session).await;
    let version = session.rewind(to).await?;
    let given_up = match run {
        Some(run) if interrupted(&session).await.is_none() => {
            Some(Restart::of(&run, desk.speakers.is_some()))
        }
        _ => None,
    };
    let id = session.key().id.as_str();
    if json {
        let told = json!({"abandoned": given_up, "session": id, "to": to, "version": version});
        show::line(told.to_string());
        return Ok(Ending::Done);
    }
    show::line(format!("session {id} is as it was at version {to}; that is version {version}"));
    if let Some(run) = given_up {
        show::note(format!("gives up {run}"));
    }
    Ok(Ending::Done)
}
