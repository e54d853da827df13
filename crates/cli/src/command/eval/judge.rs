//! The judge of an experiment, and the limit of what is spent.

use std::path::{Path, PathBuf};

use stepfold::eval::{Experiment, Judge, Spending};
use stepfold::state_core::chat::Prices;

use super::files::beside;
use crate::args::{EvalJudgeArgs, RunArgs};
use crate::context::{LoadedAgent, with_spend_limits};
use crate::error::UsageError;
use crate::model::ModelSource;
use crate::store::open_or_create;

/// The experiment with its judge, if there is one, and within its limits.
pub(super) fn judged(
    experiment: Experiment,
    args: &EvalJudgeArgs,
    file: &Path,
    prices: Prices,
) -> anyhow::Result<Experiment> {
    let Some(path) = &args.judge else { return Ok(experiment.spending(spending(args, prices)?)) };
    if args.max_requests.is_none() && args.max_usd.is_none() {
        let words = "a judge calls a model for each case; set --max-requests or --max-usd";
        return Err(UsageError(words.to_owned()).into());
    }
    let options = RunArgs::of_model(args.judge_model.as_deref());
    let models = ModelSource::command_line(&options);
    let loaded = LoadedAgent::read(path, &models.0)?;
    let of_judge = loaded.prices.clone();
    let judge = loaded_judge(path, loaded, &judge_store(args, file))?;
    Ok(experiment.judge(judge).spending(spending(args, prices)?.also_priced(of_judge)))
}

/// The judge of a file, whose budgets and redaction hold in its store.
pub(super) fn loaded_judge(path: &Path, loaded: LoadedAgent, store: &Path) -> anyhow::Result<Judge> {
    let LoadedAgent { agent, prices, spend_limits, redaction, .. } = loaded;
    let store = open_or_create(store, true, None)?;
    let judge =
        Judge::new(&agent, store).map_err(|error| UsageError(format!("{}: {error}", path.display())))?;
    Ok(judge.runner_with(move |builder| {
        let builder = redaction.iter().cloned().fold(builder, |builder, redaction| redaction.add_to(builder));
        with_spend_limits(builder, &prices, spend_limits.clone())
    }))
}

/// The store of a judge, whose default is beside another file.
pub(super) fn judge_store(args: &EvalJudgeArgs, file: &Path) -> PathBuf {
    args.judge_store.clone().unwrap_or_else(|| beside(file, ".judge.db"))
}

fn spending(args: &EvalJudgeArgs, prices: Prices) -> anyhow::Result<Spending> {
    let spending = match args.max_requests {
        Some(most) => Spending::new().max_requests(most),
        None => Spending::new(),
    };
    let Some(dollars) = args.max_usd else { return Ok(spending) };
    if !(0.0..=1e9).contains(&dollars) {
        return Err(UsageError(format!("invalid --max-usd {dollars}: must be from 0 to a billion")).into());
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range was checked")]
    let nanodollars = (dollars * 1e9) as u64;
    Ok(spending.max_nanodollars(nanodollars, prices))
}
