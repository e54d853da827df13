//! `stepfold replay`, `fork` and `rewind`: operations on the history of a session.

use serde_json::json;
use stepfold::runner::{RunnerError, RunnerErrorKind};

use crate::args::{BusyPolicy, SessionArgs, VersionName};
use crate::argument_text::shell_quoted;
use crate::context::{CommandContext, short_id};
use crate::error::{CommandEnding, chain};
use crate::other_process::unfinished_run;
use crate::show::{self, UnfinishedRun};

pub(super) async fn replay(target: &SessionArgs, json: bool) -> anyhow::Result<CommandEnding> {
    let context = CommandContext::for_read(target)?;
    let session = context.session().await?;
    let id = session.key().id.as_str();
    match session.replay(context.runner.agent()).await {
        Ok(runs) => {
            show::line(if json {
                json!({"runs": runs, "same": true, "session": id}).to_string()
            } else {
                format!("session {id}: the same again, {}", show::counted(runs as u64, "run"))
            });
            Ok(CommandEnding::Done)
        }
        Err(error @ RunnerError { kind: RunnerErrorKind::Diverged { .. }, .. }) => {
            let words = chain(&error);
            show::line(if json {
                json!({"same": false, "session": id, "why": words}).to_string()
            } else {
                words
            });
            Ok(CommandEnding::Failed)
        }
        Err(error) => Err(error.into()),
    }
}

pub(super) async fn fork(
    target: &SessionArgs,
    at: Option<&VersionName>,
    to: Option<&str>,
    json: bool,
) -> anyhow::Result<CommandEnding> {
    let context = CommandContext::for_write(target)?;
    let session = context.session().await?;
    let at = match at {
        Some(at) => Some(context.version(session.key(), at).await?),
        None => None,
    };
    let to = to.map_or_else(short_id, str::to_owned);
    let fork = session.fork(to, at).await?;
    let (id, from) = (fork.key().id.as_str(), session.key().id.as_str());
    if json {
        show::line(json!({"from": from, "session": id}).to_string());
    } else {
        show::line(id);
        show::aside(&format!("continue: stepfold chat {} --session {}", context.words(), shell_quoted(id)));
    }
    Ok(CommandEnding::Done)
}

pub(super) async fn rewind(
    target: &SessionArgs,
    to: &VersionName,
    when_claimed: BusyPolicy,
    json: bool,
) -> anyhow::Result<CommandEnding> {
    let context = CommandContext::for_change(target, when_claimed)?;
    let session = context.session().await?;
    let to = context.version(session.key(), to).await?;
    let run = unfinished_run(&session).await;
    let version = session.rewind(to).await?;
    // NOTE: A rewind abandons an unfinished run only if it goes back before its beginning.
    let given_up = match run {
        Some(run) if unfinished_run(&session).await.is_none() => {
            Some(UnfinishedRun::of(&run, context.speakers.is_some()))
        }
        _ => None,
    };
    let id = session.key().id.as_str();
    if json {
        let object = json!({"abandoned": given_up, "session": id, "to": to, "version": version});
        show::line(object.to_string());
        return Ok(CommandEnding::Done);
    }
    show::line(format!("session {id} is as it was at version {to}; that is version {version}"));
    if let Some(run) = given_up {
        show::note(format!("gives up {run}"));
    }
    Ok(CommandEnding::Done)
}
