//! `stepfold eval watch`: the last turns of stored sessions are evaluated, and the sessions labelled.
//!
//! The label of a turn is the memory of the command: after a kill, or beside another process, a turn that has one is left out.

use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;
use stepfold::eval::{Case, CaseStatus, EvalError, Expectation, Experiment, Mode};
use stepfold::session_scopes::{Label, LabelVersion, ReadLabels, SessionStore as _};

use super::judge::judged;
use super::programs::Programs;
use crate::args::EvalWatchArgs;
use crate::context::CommandContext;
use crate::error::{CommandEnding, UsageError};
use crate::show;

/// The file of expectations.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectationFile {
    expect: Vec<Expectation>,
}

pub(super) async fn watch(args: &EvalWatchArgs, json: bool) -> anyhow::Result<CommandEnding> {
    if !(0.0..=1.0).contains(&args.sample) {
        return Err(UsageError(format!("invalid --sample {}: must be from 0 to 1", args.sample)).into());
    }
    let expect = expectations(&args.expect)?;
    let context = CommandContext::for_write(&args.target)?;
    let folder = args.expect.parent().filter(|folder| !folder.as_os_str().is_empty());
    let experiment = Experiment::new(context.runner.agent())
        .mode(Mode::Recorded)
        .prices(context.prices.clone())
        .programs(Programs { folder: folder.unwrap_or(Path::new(".")).to_owned() });
    let experiment = judged(experiment, &args.judge, &args.expect, context.prices.clone())?;
    let watching = Watching { context: &context, experiment, expect, json };
    let looking = Box::pin(async {
        loop {
            let ending = Box::pin(watching.look(args)).await?;
            match args.every {
                Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds.get())).await,
                None => return Ok(ending),
            }
        }
    });
    context.work(looking).await
}

fn expectations(path: &Path) -> anyhow::Result<Vec<Expectation>> {
    let fault = |why: String| UsageError(format!("expectations {} could not be read: {why}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| fault(error.to_string()))?;
    let file: ExpectationFile = toml::from_str(&text).map_err(|error| fault(error.to_string()))?;
    // Checked as those of a case are; the turns that they are for have records.
    let mut case = Case::new("turn", "-");
    case.expect = file.expect.iter().filter(|expectation| !expectation.needs_record()).cloned().collect();
    case.check().map_err(|error| fault(error.to_string()))?;
    Ok(file.expect)
}

struct Watching<'a> {
    context: &'a CommandContext,
    experiment: Experiment,
    expect: Vec<Expectation>,
    json: bool,
}

impl Watching<'_> {
    /// Looks at each session once.
    async fn look(&self, args: &EvalWatchArgs) -> anyhow::Result<CommandEnding> {
        let mut ending = CommandEnding::Done;
        for listed in self.context.list(args.newest.get()).await? {
            let id = listed.key.id.as_str();
            match Box::pin(self.evaluate(id, args.sample)).await {
                Ok(true) => {}
                Ok(false) => ending = CommandEnding::Failed,
                // One damaged session does not hide the others.
                Err(error) => {
                    show::note(format!("session {id} could not be evaluated: {error:#}"));
                    ending = CommandEnding::Failed;
                }
            }
        }
        Ok(ending)
    }

    /// Evaluates the last turn of a session, if it has ended, is in the sample, and has no label. False if it could not be
    /// evaluated.
    async fn evaluate(&self, id: &str, sample: f64) -> anyhow::Result<bool> {
        let session = self.context.session_named(id).await?;
        if session.unfinished().await?.is_some() {
            return Ok(true);
        }
        let case = match Case::taken_from(&session, None).await {
            Ok(case) => case,
            Err(EvalError::NoTurn { .. } | EvalError::Unsuited { .. }) => return Ok(true),
            Err(error) => return Err(error.into()),
        };
        let Some(version) = case.source.as_ref().map(|source| source.last_version) else { return Ok(true) };
        let names = [format!("eval-passed-{version}"), format!("eval-failed-{version}")];
        let labels = self.context.runner.store().labels(ReadLabels::new(session.key().clone())).await?;
        let is_labelled = labels.iter().any(|(label, _)| names.iter().any(|name| label.as_str() == name));
        if is_labelled || !case.is_sampled(sample) {
            return Ok(true);
        }
        let case = self.expect.iter().cloned().fold(case, Case::expect);
        let result = self.experiment.run_case(&case).await;
        let [passed, failed] = names;
        let name = match result.status {
            CaseStatus::Passed => passed,
            CaseStatus::Failed => failed,
            _ => {
                show::note(format!("session {id} could not be evaluated: {}", result.why()));
                return Ok(false);
            }
        };
        let label = LabelVersion::new(session.key().clone(), Label::new(name.as_str())?, version);
        self.context.runner.store().set_label(label).await?;
        show::line(match self.json {
            true => {
                json!({"session": id, "version": version, "label": name, "scores": result.scores}).to_string()
            }
            false => format!("{id}  {name}  {}", result.why()).trim_end().to_owned(),
        });
        Ok(true)
    }
}
