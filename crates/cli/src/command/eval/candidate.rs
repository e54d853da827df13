//! The candidate of an experiment: the agent of a file, changed by the options.

use std::path::Path;

use stepfold::eval::{Experiment, Mode};

use super::judge::judged;
use super::programs::Programs;
use crate::args::{EvalRunArgs, RunArgs};
use crate::context::LoadedAgent;
use crate::error::UsageError;
use crate::model::ModelSource;

/// The experiment, with the candidate.
pub(super) fn experiment(args: &EvalRunArgs) -> anyhow::Result<Experiment> {
    if args.mode == Mode::Live && args.judge.max_requests.is_none() && args.judge.max_usd.is_none() {
        let words = "mode live calls models and tools without a bound; set --max-requests or --max-usd";
        return Err(UsageError(words.to_owned()).into());
    }
    let mut options = RunArgs::of_model(args.model.as_deref());
    (options.cassette, options.mode) = (args.cassette.clone(), args.cassette_mode);
    let models = match args.mode {
        Mode::Replay | Mode::Recorded => ModelSource::none(),
        _ => ModelSource::command_line(&options),
    };
    let LoadedAgent { mut agent, prices, .. } = LoadedAgent::read_with(&args.agent, &args.set, &models.0)?;
    if let Some(path) = &args.instructions {
        let fault =
            |error: std::io::Error| format!("instructions {} could not be read: {error}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| UsageError(fault(error)))?;
        let changed = agent.to_builder().instructions(text.trim_end()).build();
        agent = changed.map_err(|error| UsageError(format!("invalid candidate: {error}")))?;
    }
    let folder = args.data_set.parent().filter(|folder| !folder.as_os_str().is_empty());
    let experiment = Experiment::new(&agent)
        .mode(args.mode)
        .concurrency(args.parallel.get())
        .repeats(args.repeats.get())
        .timeout(std::time::Duration::from_secs(args.timeout))
        .prices(prices.clone())
        .programs(Programs { folder: folder.unwrap_or(Path::new(".")).to_owned() });
    let experiment = args.allow.iter().fold(experiment, |experiment, tool| match args.mode {
        Mode::Live => experiment.allow_live(tool),
        _ => experiment.allow_pure(tool),
    });
    experiment.check_allowed().map_err(|error| UsageError(error.to_string()))?;
    let experiment = judged(experiment, &args.judge, &args.data_set, prices)?;
    let experiment = if args.timelines { experiment.timelines() } else { experiment };
    Ok(if args.measured { experiment.measured() } else { experiment })
}
