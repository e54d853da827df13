//! `stepfold inspect --wire`: a request as the model's server reads it, and what was changed for that server.

use serde_json::{Value, json};

use super::inspect::at;
use crate::args::{Asked, At, Place};
use crate::desk::Desk;
use crate::error::{Ending, Misuse};
use crate::show;

/// Shows the request of the step at a version, without sending it: of `model`, or of the agent's own.
pub(super) async fn wire(
    place: &Place,
    version: Option<&At>,
    model: Option<&str>,
    json: bool,
) -> anyhow::Result<Ending> {
    let desk = Desk::to_read_with_model(place, &Asked::of_model(model))?;
    let handle = desk.session().await?;
    let version = at(&desk, handle.key(), version).await?.version;
    let step = handle.model_step(Some(version), None).await?;
    let Some(step) = step else {
        return Err(Misuse(format!("no request to a model at version {version}: no run has begun")).into());
    };
    let model = step.run.agent().model();
    let Some(wired) = model.wire_request(&step.run.request()) else {
        let why = "its requests have no wire form; name a model of a provider with --model";
        return Err(Misuse(format!("model `{}` has no server: {why}", model.id())).into());
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
        return Ok(Ending::Done);
    }
    show::line(show::styled(show::NAME, model.id()).and(format!(", the step at version {version}")));
    for change in &wired.changes {
        show::line(format!("~ {change}"));
    }
    serde_json::to_string_pretty(&body)?.lines().for_each(|line| show::line(line.to_owned()));
    Ok(Ending::Done)
}
