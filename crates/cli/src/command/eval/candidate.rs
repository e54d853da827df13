//! The candidate of an experiment: the agent of a file, changed by the options.

use std::path::Path;

use stepfold::eval::{Experiment, Mode};
use stepfold::runner::Runner;

use super::files::read_text;
use super::judge::judged;
use super::programs::Programs;
use crate::args::{EvalRunArgs, RunArgs};
use crate::context::{LoadedAgent, with_spend_limits};
use crate::error::UsageError;
use crate::form::redact::FileRedaction;
use crate::model::ModelSource;
use crate::store::{StoreAccess, open_store};

/// The budgets of the candidate, in which the requests of a live experiment count.
pub(super) struct CandidateBudgets {
    runner: Runner,
    user: String,
}

impl CandidateBudgets {
    /// The experiment within these budgets. Its requests are those of a session of its own, so that what a killed experiment has left
    /// open is settled when it is continued, and not by another one.
    pub(super) async fn bound(&self, experiment: Experiment, id: &str) -> anyhow::Result<Experiment> {
        let session = self.runner.session(self.user.as_str(), format!("experiment-{id}")).await?;
        Ok(session.outside_requests().await?.into_iter().fold(experiment, Experiment::budgets))
    }
}

/// The experiment, with the candidate, and the budgets that it is to count in.
pub(super) async fn experiment(args: &EvalRunArgs) -> anyhow::Result<(Experiment, Option<CandidateBudgets>)> {
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
    let loaded = LoadedAgent::read_with(&args.agent, &args.set, &models.0)?;
    let LoadedAgent { mut agent, prices, schema, spend_limits, redaction, .. } = loaded;
    if let Some(path) = &args.instructions {
        let fault =
            |error: std::io::Error| format!("instructions {} could not be read: {error}", path.display());
        let text = read_text(path).map_err(|error| UsageError(fault(error)))?;
        let changed = agent.to_builder().instructions(text.trim_end()).build();
        agent = changed.map_err(|error| UsageError(format!("invalid candidate: {error}")))?;
    }
    let folder = args.data_set.parent().filter(|folder| !folder.as_os_str().is_empty());
    let experiment = Experiment::new(&agent)
        .mode(args.mode)
        .concurrency(args.parallel.get())
        .repeats(args.repeats.get())
        .timeout(std::time::Duration::from_secs(args.timeout.get()))
        .prices(prices.clone())
        .programs(Programs { folder: folder.unwrap_or(Path::new(".")).to_owned() });
    let experiment = match redaction.map(FileRedaction::rules) {
        Some((rules, view)) => experiment.redact(rules, view),
        None => experiment,
    };
    let experiment = args.allow.iter().fold(experiment, |experiment, tool| match args.mode {
        Mode::Live => experiment.allow_live(tool),
        _ => experiment.allow_pure(tool),
    });
    experiment.check_allowed().map_err(|error| UsageError(error.to_string()))?;
    let experiment = judged(experiment, &args.judge, &args.data_set, prices.clone())?;
    let budgets = match args.mode {
        // NOTE: The other modes are bounded by their data set, and run without a store, in a check of a repository for example.
        Mode::Live if !(spend_limits.budgets.is_empty() && spend_limits.rate_limits.is_empty()) => {
            let store = open_store(args.store.as_deref(), args.keys.as_deref(), StoreAccess::Create).await?;
            let builder = with_spend_limits(Runner::builder(agent, store), &prices, spend_limits);
            Some(CandidateBudgets { runner: builder.schema(schema).build(), user: args.user.clone() })
        }
        _ => None,
    };
    let experiment = if args.timelines { experiment.timelines() } else { experiment };
    Ok((if args.measured { experiment.measured() } else { experiment }, budgets))
}
