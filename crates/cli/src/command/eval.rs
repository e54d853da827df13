//! `stepfold eval`: cases from stored sessions, experiments with them, and comparisons of their reports.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use stepfold::eval::{
    Case, CaseResult, Comparison, DataSet, EvalError, Experiment, ProgramRunner, Report, Summary, Verdict,
};
use stepfold::prelude::*;

use crate::args::{EvalAddArgs, EvalCommand, EvalFormat, EvalRunArgs, RunArgs};
use crate::context::{CommandContext, LoadedAgent};
use crate::error::{CommandEnding, UsageError};
use crate::form::FaultCollector;
use crate::model::ModelSource;
use crate::show::{self, counted};
use crate::tool::ExternalProgram;

/// The rows of a table in Markdown.
const ROWS: usize = 50;

pub(super) async fn eval(command: &EvalCommand, json: bool) -> anyhow::Result<CommandEnding> {
    match command {
        EvalCommand::Add(args) => add(args, json).await,
        EvalCommand::Run(args) => run(args, json).await,
        EvalCommand::Report { report, format } => {
            show::print(text_of(&read_report(report)?, format_of(*format, json))?);
            Ok(CommandEnding::Done)
        }
        EvalCommand::Compare { baseline, candidate, seed, format } => {
            let (baseline, candidate) = (read_report(baseline)?, read_report(candidate)?);
            compare(&baseline, &candidate, *seed, format_of(*format, json))
        }
    }
}

/// Appends turns of sessions to a data set.
async fn add(args: &EvalAddArgs, json: bool) -> anyhow::Result<CommandEnding> {
    if is_toml(&args.data_set) {
        let words = "cases are added to JSON lines, not to TOML; name a file that ends in .jsonl";
        return Err(UsageError(words.to_owned()).into());
    }
    let mut known = names_of(&args.data_set)?;
    let context = CommandContext::for_read(&args.target)?;
    let mut cases = Vec::new();
    for session in sessions(args, &context).await? {
        match &args.at {
            Some(at) => {
                let version = context.version(session.key(), at).await?;
                cases.push(Case::taken_from(&session, Some(version)).await);
            }
            None => cases.extend(Case::all_of(&session).await?),
        }
    }
    let file = File::options().create(true).append(true).open(&args.data_set);
    let file = file.with_context(|| format!("data set {} could not be opened", args.data_set.display()))?;
    let mut writer = BufWriter::new(file);
    let (mut added, mut repeated, mut unsuited) = (0_u64, 0_u64, Vec::new());
    for case in cases {
        match case {
            Ok(case) if !known.insert(case.name.clone()) => repeated += 1,
            Ok(case) => {
                case.write_line(&mut writer)?;
                added += 1;
            }
            Err(error @ EvalError::Unsuited { .. }) => unsuited.push(error.to_string()),
            Err(error) => return Err(error.into()),
        }
    }
    writer.flush().context("data set could not be written")?;
    for fault in unsuited.iter().filter(|_| !json) {
        show::note(fault.clone());
    }
    show::line(if json {
        json!({"added": added, "repeated": repeated, "unsuited": unsuited}).to_string()
    } else {
        format!(
            "{} added to {}; {repeated} already there, {} unsuited",
            counted(added, "case"),
            args.data_set.display(),
            unsuited.len()
        )
    });
    Ok(CommandEnding::Done)
}

/// The sessions to take cases from: the one that is named, or the newest ones.
async fn sessions(args: &EvalAddArgs, context: &CommandContext) -> anyhow::Result<Vec<SessionHandle>> {
    let Some(newest) = args.newest else { return Ok(vec![context.session().await?]) };
    let mut sessions = Vec::new();
    for session in context.list(newest.get()).await? {
        sessions.push(context.session_named(session.key.id.as_str()).await?);
    }
    Ok(sessions)
}

/// The names of the cases of a file, which may be missing.
fn names_of(path: &Path) -> anyhow::Result<HashSet<String>> {
    if !path.exists() {
        return Ok(HashSet::new());
    }
    let names = open(path)?.map(|case| case.map(|case| case.name));
    Ok(names.collect::<Result<_, _>>()?)
}

/// Opens a data set.
fn open(path: &Path) -> anyhow::Result<DataSet<'static>> {
    let fault =
        |error: std::io::Error| UsageError(format!("data set {} could not be read: {error}", path.display()));
    if is_toml(path) {
        return Ok(DataSet::from_toml(&std::fs::read_to_string(path).map_err(fault)?)?);
    }
    Ok(DataSet::from_json_lines(BufReader::new(File::open(path).map_err(fault)?)))
}

fn is_toml(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "toml")
}

/// Confronts a candidate with a data set.
async fn run(args: &EvalRunArgs, json: bool) -> anyhow::Result<CommandEnding> {
    let baseline = args.baseline.as_deref().map(read_report).transpose()?;
    let experiment = experiment(args)?;
    let cases = open(&args.data_set)?;
    let mut results: Vec<CaseResult> = Vec::new();
    // The report is there as far as the experiment got, if it is ended.
    let mut file = args.report.as_deref().map(create).transpose()?;
    if let Some(file) = &mut file {
        experiment.head().write_line(file)?;
    }
    let summary = experiment
        .run_each(cases, |result| {
            if let Some(file) = &mut file {
                result.write_line(file)?;
            }
            results.push(result);
            Ok(())
        })
        .await?;
    if let Some(file) = &mut file {
        file.flush().context("report could not be written")?;
    }
    let report = Report::new(experiment.head(), results);
    show::print(text_of(&report, format_of(args.format, json))?);
    let mut ending = ending_of(&summary, args);
    if let Some(baseline) = baseline {
        let compared = compare(&baseline, &report, args.seed, format_of(args.format, json))?;
        ending = if ending == CommandEnding::Done { compared } else { ending };
    }
    Ok(ending)
}

fn create(path: &Path) -> anyhow::Result<BufWriter<File>> {
    let file = File::create(path);
    Ok(BufWriter::new(file.with_context(|| format!("report {} could not be created", path.display()))?))
}

/// The experiment, with the candidate: the agent of the file, changed by the options.
fn experiment(args: &EvalRunArgs) -> anyhow::Result<Experiment> {
    let mut options = RunArgs::of_model(args.model.as_deref());
    (options.cassette, options.mode) = (args.cassette.clone(), args.cassette_mode);
    let models = if args.mode == stepfold::eval::Mode::Replay {
        ModelSource::none()
    } else {
        ModelSource::command_line(&options)
    };
    let LoadedAgent { agent, prices, .. } = LoadedAgent::read(&args.agent, &models.0)?;
    let folder = args.data_set.parent().filter(|folder| !folder.as_os_str().is_empty());
    let experiment = Experiment::new(&candidate(&agent, args)?)
        .mode(args.mode)
        .concurrency(args.parallel.get())
        .timeout(std::time::Duration::from_secs(args.timeout))
        .prices(prices)
        .programs(Programs { folder: folder.unwrap_or(Path::new(".")).to_owned() });
    let experiment = args.allow.iter().fold(experiment, Experiment::allow_pure);
    Ok(if args.measured { experiment.measured() } else { experiment })
}

fn candidate(agent: &Agent, args: &EvalRunArgs) -> anyhow::Result<Agent> {
    let mut builder = agent.to_builder();
    if let Some(path) = &args.instructions {
        let text = std::fs::read_to_string(path).map_err(|error| {
            UsageError(format!("instructions {} could not be read: {error}", path.display()))
        })?;
        builder = builder.instructions(text.trim_end());
    }
    for setting in &args.set {
        let Some(("limits.steps", steps)) = setting.split_once('=') else {
            let words = format!("unknown setting `{setting}`; available: limits.steps=NUMBER");
            return Err(UsageError(words).into());
        };
        let fault = |_| UsageError(format!("invalid limits.steps `{steps}`: expected an integer"));
        builder = builder.max_steps(steps.parse().map_err(fault)?);
    }
    builder.build().map_err(|error| UsageError(format!("invalid candidate: {error}")).into())
}

/// The ending that the thresholds demand.
fn ending_of(summary: &Summary, args: &EvalRunArgs) -> CommandEnding {
    let is_below =
        |rate: Option<f64>, least: Option<f64>| least.is_some_and(|least| rate.unwrap_or(0.0) < least);
    let mut faults = Vec::new();
    if is_below(summary.pass_rate(), args.min_pass_rate) {
        faults.push("pass rate below --min-pass-rate");
    }
    if is_below(summary.coverage(), args.min_coverage) {
        faults.push("coverage below --min-coverage");
    }
    if summary.errors > args.max_errors {
        faults.push("more errors than --max-errors");
    }
    for fault in &faults {
        show::note((*fault).to_owned());
    }
    if faults.is_empty() { CommandEnding::Done } else { CommandEnding::Failed }
}

fn read_report(path: &Path) -> anyhow::Result<Report> {
    let file = File::open(path)
        .map_err(|error| UsageError(format!("report {} could not be read: {error}", path.display())))?;
    Ok(Report::from_json_lines(BufReader::new(file))?)
}

/// Compares a candidate with a baseline. A regression, or a comparison that says nothing, fails the command.
fn compare(
    baseline: &Report,
    candidate: &Report,
    seed: u64,
    format: EvalFormat,
) -> anyhow::Result<CommandEnding> {
    let comparison = Comparison::of(baseline, candidate, seed)?;
    match format {
        EvalFormat::Json => {
            let mut object = serde_json::to_value(&comparison)?;
            object["verdict"] = serde_json::to_value(comparison.verdict())?;
            show::line(object.to_string());
        }
        EvalFormat::Markdown => show::print(comparison.to_markdown(ROWS)),
        EvalFormat::Table | EvalFormat::Junit => {
            let lost = comparison.lost.iter().map(|(case, why)| format!("lost {case}: {why}\n"));
            show::print(format!("{comparison}{}", lost.collect::<String>()));
        }
    }
    Ok(match comparison.verdict() {
        Verdict::Worse | Verdict::Unknown => CommandEnding::Failed,
        _ => CommandEnding::Done,
    })
}

fn format_of(format: EvalFormat, json: bool) -> EvalFormat {
    if json { EvalFormat::Json } else { format }
}

fn text_of(report: &Report, format: EvalFormat) -> anyhow::Result<String> {
    Ok(match format {
        EvalFormat::Table => report.to_string(),
        EvalFormat::Markdown => report.to_markdown(ROWS),
        EvalFormat::Junit => report.to_junit()?,
        EvalFormat::Json => {
            let mut lines = Vec::new();
            report.write_json_lines(&mut lines)?;
            String::from_utf8(lines)?
        }
    })
}

/// Programs that evaluate, in the folder of the data set.
struct Programs {
    folder: PathBuf,
}

impl ProgramRunner for Programs {
    fn run<'a>(&'a self, command: &'a [String], input: Value) -> BoxFuture<'a, Result<Value, String>> {
        async move {
            let form =
                serde_json::from_value(json!({ "argv": command })).map_err(|error| error.to_string())?;
            let mut faults = FaultCollector::in_text(String::new());
            let program = ExternalProgram::new(&form, &self.folder, &mut faults);
            let Some(program) = program.filter(|_| faults.count() == 0) else {
                return Err(format!("program {} not found in {}", command.join(" "), self.folder.display()));
            };
            let output = program.run(&input.to_string(), "eval").await.map_err(|error| error.to_string())?;
            serde_json::from_str(&output)
                .map_err(|error| format!("expected a JSON object as output: {error}"))
        }
        .boxed()
    }
}
