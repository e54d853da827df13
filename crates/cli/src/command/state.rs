//! `stepfold state get`, `state set` and `result set`: reads and edits a session from outside a run.

use serde_json::{Value, json};
use stepfold::agent_loop::Edit;
use stepfold::runner::{RunnerError, RunnerErrorKind};
use stepfold::session_scopes::{EventRange, Scope};
use stepfold::state_core::chat::ToolContent;
use stepfold::state_core::state::MESSAGES;

use crate::args::SessionArgs;
use crate::argument_text::{json_or_text, values};
use crate::context::CommandContext;
use crate::error::{CommandEnding, UsageError, chain, in_options};
use crate::migrate::{ValueFit, fit};
use crate::show;

pub(super) async fn get(
    target: &SessionArgs,
    key: Option<&str>,
    json: bool,
) -> anyhow::Result<CommandEnding> {
    let context = CommandContext::for_read(target).await?;
    let session = context.session().await?.read(EventRange::None).await?;
    // NOTE: Read with any types: the session may hold values that do not fit the agent's current schema.
    let state = session.state(&context.untyped)?;
    let Some(key) = key else {
        let values = state.iter().filter(|(key, _)| *key != MESSAGES);
        let seen_by_agent = values.filter_map(|(key, value)| {
            let fit = fit(&session, context.runner.schema(), key);
            Some((key.to_owned(), seen_by_agent(&context, key, value.to_json(), fit)?))
        });
        if json {
            show::line(Value::Object(seen_by_agent.collect()).to_string());
        } else {
            seen_by_agent
                .for_each(|(key, value)| show::row(&show::key_and_value("", &format!("{key} = {value}")), 4));
        }
        return Ok(CommandEnding::Done);
    };
    if let Some(value) = state.get(key) {
        let value = match fit(&session, context.runner.schema(), key) {
            // An undeclared value is shown only if its key is named.
            ValueFit::Undeclared => Some(value.to_json()),
            fit => seen_by_agent(&context, key, value.to_json(), fit),
        };
        if let Some(value) = value {
            // A value is printed as JSON with and without `--json`.
            show::line(value.to_string());
            return Ok(CommandEnding::Done);
        }
    }
    let schema = context.runner.agent().schema();
    if schema.key(key).is_none() && !schema.is_open() {
        let known: Vec<&str> = schema.keys().map(stepfold::state_core::state::KeySchema::name).collect();
        return Err(UsageError(format!("unknown key `{key}`; available: {}", known.join(", "))).into());
    }
    if json {
        show::line("null");
    } else {
        show::note(format!("{key} is not set"));
    }
    Ok(CommandEnding::Failed)
}

/// The value of a key as the agent sees it; none if it does not. A value that does not fit is returned as it is stored,
/// with a note.
fn seen_by_agent(context: &CommandContext, key: &str, stored: Value, fit: ValueFit) -> Option<Value> {
    match fit {
        ValueFit::Fits => Some(stored),
        ValueFit::Migrated(Some(value)) => Some(value),
        ValueFit::Migrated(None) => context.runner.schema().schema().key(key)?.default().cloned(),
        ValueFit::Undeclared => None,
        ValueFit::Misfit(why) => {
            show::note(format!("invalid stored value of {key}: {why}"));
            Some(stored)
        }
    }
}

/// Writes values, between runs or into a paused run.
pub(super) async fn set(
    target: &SessionArgs,
    pairs: &[String],
    is_replaced: bool,
    json: bool,
) -> anyhow::Result<CommandEnding> {
    let values = values(pairs)?;
    let mut edit = Edit::new();
    for (key, value) in values.as_object().into_iter().flatten() {
        if Scope::of(key) == Scope::Temp {
            return Err(UsageError(format!(
                "`{key}` is of one run and never stored; use `run --set` for it"
            ))
            .into());
        }
        edit = match is_replaced {
            true => edit.set(key, value.clone()),
            false => edit.merge(key, value.clone()),
        };
    }
    commit_edit(target, edit, json).await
}

/// Replaces the result of a call in a paused run.
pub(super) async fn set_result(
    target: &SessionArgs,
    call: &str,
    result: &str,
    is_error: bool,
    json: bool,
) -> anyhow::Result<CommandEnding> {
    let edit = match is_error {
        true => Edit::new().result_with(call, ToolContent::Error(result.to_owned())),
        false => {
            Edit::new().result(call, json_or_text(result).map_err(|error| UsageError(error.to_string()))?)
        }
    };
    commit_edit(target, edit, json).await
}

async fn commit_edit(target: &SessionArgs, edit: Edit, json: bool) -> anyhow::Result<CommandEnding> {
    let context = CommandContext::for_edit(target).await?;
    let session = context.session().await?;
    let receipt = match session.edit(edit.by(&*context.user)).await {
        Ok(receipt) => receipt,
        Err(RunnerError { kind: RunnerErrorKind::Edit { error, .. }, .. }) => {
            return Err(UsageError(error.to_string()).into());
        }
        Err(RunnerError { kind: RunnerErrorKind::Claimed { owner, expires, .. }, .. }) => {
            let key = session.key();
            anyhow::bail!("session {key} is claimed by {owner} until at least {expires}; wait for it")
        }
        // NOTE: An edit under another version than the one that continues the run could leave it to neither.
        Err(error) if error.is_of_other_agent() => {
            return Err(UsageError(format!(
                "{}; or edit it with the version of the agent file that continues it",
                in_options(&chain(&error))
            ))
            .into());
        }
        Err(error) => return Err(error.into()),
    };
    let id = session.key().id.as_str();
    show::line(if json {
        json!({"session": id, "version": receipt.version}).to_string()
    } else {
        format!("session {id} is at version {}", receipt.version)
    });
    Ok(CommandEnding::Done)
}
