//! The judge of an experiment, and the limit of what is spent.

use std::path::{Path, PathBuf};

use stepfold::eval::{Experiment, Judge, Spending};
use stepfold::state_core::chat::Prices;

use crate::args::{EvalJudgeArgs, RunArgs};
use crate::context::LoadedAgent;
use crate::error::UsageError;
use crate::model::ModelSource;
use crate::store::open_or_create;

/// The experiment with its judge, if there is one, and within its limits.
pub(super) fn judged(
    experiment: Experiment,
    args: &EvalJudgeArgs,
    beside: &Path,
    prices: Prices,
) -> anyhow::Result<Experiment> {
    let Some(path) = &args.judge else { return Ok(experiment.spending(spending(args, prices)?)) };
    if args.max_requests.is_none() && args.max_usd.is_none() {
        let words = "a judge calls a model for each case; set --max-requests or --max-usd";
        return Err(UsageError(words.to_owned()).into());
    }
    let options = RunArgs::of_model(args.judge_model.as_deref());
    let models = ModelSource::command_line(&options);
    let LoadedAgent { agent, prices: of_judge, .. } = LoadedAgent::read(path, &models.0)?;
    let store = open_or_create(Some(&store_of(args, beside)))?;
    let judge =
        Judge::new(&agent, store).map_err(|error| UsageError(format!("{}: {error}", path.display())))?;
    Ok(experiment.judge(judge).spending(spending(args, prices)?.also_priced(of_judge)))
}

fn store_of(args: &EvalJudgeArgs, beside: &Path) -> PathBuf {
    let default = || {
        let mut name = beside.as_os_str().to_owned();
        name.push(".judge.db");
        PathBuf::from(name)
    };
    args.judge_store.clone().unwrap_or_else(default)
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
