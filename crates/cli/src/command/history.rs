//! `stepfold replay`, `fork` and `rewind`: operations on the history of a session.

use serde_json::{Value, json};
use stepfold::agent_loop::Edit;
use stepfold::eval::Judge;
use stepfold::prelude::*;
use stepfold::runner::{RunnerError, RunnerErrorKind};

use crate::args::{BusyPolicy, SessionArgs, VersionName};
use crate::argument_text::{shell_quoted, values};
use crate::context::{CommandContext, short_id};
use crate::error::{CommandEnding, UsageError, chain};
use crate::other_process::unfinished_run;
use crate::show::{self, UnfinishedRun};

pub(super) async fn replay(target: &SessionArgs, json: bool) -> anyhow::Result<CommandEnding> {
    let context = CommandContext::for_read(target).await?;
    let session = context.session().await?;
    let id = session.key().id.as_str();
    let agent = context.runner.agent();
    let replayed = match session.replay(agent).await {
        Err(diverged @ RunnerError { kind: RunnerErrorKind::Diverged { .. }, .. }) => {
            // A judge of `eval` has an output that its file does not have.
            match Judge::agent_of(agent) {
                Ok(judge) if judged(&session, &judge).await => session.replay(&judge).await,
                _ => Err(diverged),
            }
        }
        replayed => replayed,
    };
    match replayed {
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

/// Whether the last run of a session is one of this judge, perhaps of another version of its file.
async fn judged(session: &SessionHandle, judge: &Agent) -> bool {
    let runs = session.recorded_runs().await.unwrap_or_default();
    let recorded = runs.last().and_then(|run| run.agent.as_ref());
    let changes = recorded.map(|recorded| recorded.differences(judge.fingerprint()));
    changes.is_some_and(|changes| changes.iter().all(|change| change.part != "output"))
}

pub(super) async fn fork(
    target: &SessionArgs,
    at: Option<&VersionName>,
    to: Option<&str>,
    results: &[String],
    json: bool,
) -> anyhow::Result<CommandEnding> {
    let results = values(results)?;
    let context = CommandContext::for_write(target).await?;
    let session = context.session().await?;
    let results: Vec<(&String, &Value)> = results.as_object().into_iter().flatten().collect();
    let at = match at {
        Some(at) => Some(context.version(session.key(), at).await?),
        None => version_of_results(&session, results.iter().map(|(call, _)| call.as_str())).await?,
    };
    let to = to.map_or_else(short_id, str::to_owned);
    let edit = results
        .iter()
        .fold(Edit::new(), |edit, (call, result)| edit.result(call.as_str(), Value::clone(result)));
    let edit = if edit.is_empty() { edit } else { edit.by(&*context.user) };
    // NOTE: The agent is opened without its model, so it looks changed; the command that resumes the run checks the agent.
    let fork = match session.fork_with(to, at, edit).with_changed_agent().waiting().await {
        Err(RunnerError { kind: RunnerErrorKind::Edit { error }, .. }) => {
            return Err(UsageError(error.to_string()).into());
        }
        fork => fork?,
    };
    let (id, from) = (fork.key().id.as_str(), session.key().id.as_str());
    if json {
        show::line(json!({"from": from, "session": id}).to_string());
    } else {
        show::line(id);
        let go_on = match unfinished_run(&fork).await {
            Some(_) => context.resume_command(id),
            None => format!("stepfold chat {} --session {}", context.words(), shell_quoted(id)),
        };
        show::aside(&format!("continue: {go_on}"));
    }
    Ok(CommandEnding::Done)
}

/// The version at which all of these calls have their results; none without calls.
async fn version_of_results(
    session: &SessionHandle,
    calls: impl Iterator<Item = &str>,
) -> anyhow::Result<Option<u64>> {
    let (mut at, id) = (None, session.key().id.as_str());
    for call in calls {
        let Some(found) = session.find_call(call).await? else {
            let words = format!("unknown call `{call}` of session {id}; `stepfold inspect` shows the calls");
            return Err(UsageError(words).into());
        };
        let Some(answered_at) = found.answered_at else {
            return Err(UsageError(format!("call `{call}` of session {id} has no result to replace")).into());
        };
        at = at.max(Some(answered_at));
    }
    Ok(at)
}

pub(super) async fn rewind(
    target: &SessionArgs,
    to: &VersionName,
    when_claimed: BusyPolicy,
    json: bool,
) -> anyhow::Result<CommandEnding> {
    let context = CommandContext::for_change(target, when_claimed).await?;
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
