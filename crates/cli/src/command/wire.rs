//! `stepfold inspect --wire`: a request as the model's server reads it, and what was changed for that server.

use serde_json::{Value, json};

use super::inspect::at;
use crate::args::{RunArgs, SessionArgs, VersionName};
use crate::context::CommandContext;
use crate::error::{CommandEnding, UsageError};
use crate::show;

/// Shows the request of the step at a version, without sending it: of `model`, or of the agent's own.
pub(super) async fn wire(
    target: &SessionArgs,
    version: Option<&VersionName>,
    model: Option<&str>,
    json: bool,
) -> anyhow::Result<CommandEnding> {
    let context = CommandContext::for_read_with_model(target, &RunArgs::of_model(model)).await?;
    let handle = context.session().await?;
    let version = at(&context, handle.key(), version).await?.version;
    let step = handle.model_step(Some(version), None).await?;
    let Some(step) = step else {
        return Err(
            UsageError(format!("no request to a model at version {version}: no run has begun")).into()
        );
    };
    let model = step.run.agent().model();
    // NOTE: A scripted model has no server, so its requests have no wire form.
    let Some(wired) = model.wire_request(&step.run.request()) else {
        let why = "its requests have no wire form; name a model of a provider with --model";
        return Err(UsageError(format!("model `{}` has no server: {why}", model.id())).into());
    };
    let wired = wired?;
    let body: Value = serde_json::from_str(&wired.body)?;
    if json {
        let changes: Vec<Value> = wired
            .changes
            .iter()
            .map(|change| json!({"change": change.change, "message": change.message}))
            .collect();
        let shown = json!({"body": body, "changes": changes, "model": model.id(), "version": version});
        show::line(shown.to_string());
        return Ok(CommandEnding::Done);
    }
    show::line(show::styled(show::NAME, model.id()).and(format!(", the step at version {version}")));
    for change in &wired.changes {
        show::line(format!("~ {change}"));
    }
    serde_json::to_string_pretty(&body)?.lines().for_each(|line| show::line(line.to_owned()));
    Ok(CommandEnding::Done)
}
