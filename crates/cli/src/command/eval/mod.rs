//! `stepfold eval`: cases from stored sessions, experiments with them, and comparisons of their reports.

mod add;
mod candidate;
mod interchange;
mod judge;
mod programs;
mod served;
mod watch;

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use anyhow::Context as _;
use stepfold::eval::{
    CaseResult, Comparison, DataSet, EvalError, Experiment, Report, ReportFile, Summary, Verdict,
};

use self::add::add;
use self::candidate::experiment;
pub(super) use self::served::experiments;
use crate::args::{EvalCommand, EvalCompareArgs, EvalFormat, EvalReportArgs, EvalRunArgs};
use crate::error::{CommandEnding, UsageError};
use crate::show::{self, counted};

/// The rows of a table in Markdown.
const ROWS: usize = 50;

pub(super) async fn eval(command: &EvalCommand, json: bool) -> anyhow::Result<CommandEnding> {
    match command {
        EvalCommand::Add(args) => add(args, json).await,
        EvalCommand::Run(args) => run(args, json).await,
        EvalCommand::Watch(args) => Box::pin(watch::watch(args, json)).await,
        EvalCommand::Import(args) => interchange::import(args, json),
        EvalCommand::Export(args) => interchange::export(args, json),
        EvalCommand::Report(EvalReportArgs { report, format }) => {
            show::print(text_of(&read_report(report)?, format_of(*format, json))?);
            Ok(CommandEnding::Done)
        }
        EvalCommand::Compare(EvalCompareArgs { format: EvalFormat::Junit, .. }) => {
            let words = "a comparison has no JUnit form; use --format table, markdown or json";
            Err(UsageError(words.to_owned()).into())
        }
        EvalCommand::Compare(EvalCompareArgs { baseline, candidate, seed, max_losses, format }) => {
            let (baseline, candidate) = (read_report(baseline)?, read_report(candidate)?);
            compare(&baseline, &candidate, (*seed, *max_losses), format_of(*format, json))
        }
    }
}

/// Opens a data set.
fn open(path: &Path) -> anyhow::Result<DataSet<'static>> {
    let fault =
        |error: std::io::Error| UsageError(format!("data set {} could not be read: {error}", path.display()));
    if is_toml(path) {
        let cases = DataSet::from_toml(&std::fs::read_to_string(path).map_err(fault)?);
        return cases.with_context(|| named("data set", path));
    }
    if path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml") {
        let path = path.display();
        let words = format!(
            "data set {path} must be JSON lines (.jsonl) or TOML; `stepfold eval import {path} cases.jsonl` reads those of pydantic-evals"
        );
        return Err(UsageError(words).into());
    }
    Ok(DataSet::from_json_lines(BufReader::new(File::open(path).map_err(fault)?)))
}

fn is_toml(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "toml")
}

/// The name of a file, for errors about its contents.
fn named(what: &str, path: &Path) -> String {
    format!("{what} {}", path.display())
}

/// Confronts a candidate with a data set.
async fn run(args: &EvalRunArgs, json: bool) -> anyhow::Result<CommandEnding> {
    let baseline = args.baseline.as_deref().map(read_report).transpose()?;
    // Before anything is spent.
    if let Some(before) =
        baseline.as_ref().map(|baseline| baseline.head.mode).filter(|mode| *mode != args.mode)
    {
        let words = format!(
            "baseline is of mode {before}: give --mode {before}, or the report of a baseline in mode {}",
            args.mode
        );
        return Err(UsageError(words).into());
    }
    let mut experiment = experiment(args)?;
    let cases = open(&args.data_set)?;
    let mut file = None;
    if let Some(path) = &args.report {
        let (opened, continued) = kept_results(path, experiment)?;
        (file, experiment) = (Some(opened), continued);
    }
    let mut results: Vec<CaseResult> = Vec::new();
    let keep = |result: CaseResult, is_known: bool| {
        if let Some(file) = file.as_mut().filter(|_| !is_known) {
            file.keep(&result)?;
        }
        results.push(result);
        Ok(())
    };
    let summary = experiment.run_each_known(cases, keep).await;
    let summary = summary.with_context(|| named("data set", &args.data_set))?;
    if summary.cases == 0 {
        return Err(UsageError(format!("{} has no cases", named("data set", &args.data_set))).into());
    }
    let report = Report::new(experiment.head(), results);
    if let Some(file) = file {
        file.finish(&report)?;
    }
    show::print(text_of(&report, format_of(args.format, json))?);
    let mut ending = ending_of(&summary, args);
    if let Some(baseline) = baseline {
        let compared =
            compare(&baseline, &report, (args.seed, args.max_losses), format_of(args.format, json))?;
        ending = if ending == CommandEnding::Done { compared } else { ending };
    }
    Ok(ending)
}

/// Begins the results of an experiment, in a file beside its report, or continues those of an interrupted one.
fn kept_results(report: &Path, experiment: Experiment) -> anyhow::Result<(ReportFile, Experiment)> {
    let mut partial = report.as_os_str().to_owned();
    partial.push(".partial");
    let partial = Path::new(&partial);
    let words = || format!("results {}", partial.display());
    let mut file = match ReportFile::open(report, partial) {
        Err(error @ EvalError::Busy { .. }) => return Err(UsageError(error.to_string()).into()),
        opened => opened.with_context(words)?,
    };
    let kept = file.kept().cases;
    let experiment = file.begin(experiment).map_err(|error| match error {
        EvalError::Continue { .. } => anyhow::Error::from(UsageError(format!(
            "{error}; delete {} to begin again, or name another report",
            partial.display()
        ))),
        error => anyhow::Error::from(error).context(words()),
    })?;
    if kept > 0 {
        show::note(format!("continues after {}", counted(kept, "result")));
    }
    Ok((file, experiment))
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
    Report::from_json_lines(BufReader::new(file)).with_context(|| named("report", path))
}

/// Compares a candidate with a baseline. A regression, or a comparison that says nothing, fails the command.
fn compare(
    baseline: &Report,
    candidate: &Report,
    (seed, max_losses): (u64, Option<u64>),
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
        EvalFormat::Table => {
            let lost = comparison.lost.iter().map(|(case, why)| format!("lost {case}: {why}\n"));
            show::print(format!("{comparison}{}", lost.collect::<String>()));
        }
        // A test report stays one document: the comparison is for the person who reads the log.
        EvalFormat::Junit => show::note(comparison.to_string().trim_end().to_owned()),
    }
    let is_over = max_losses.is_some_and(|most| comparison.losses > most);
    if is_over {
        show::note("more lost cases than --max-losses".to_owned());
    }
    Ok(match comparison.verdict() {
        _ if is_over => CommandEnding::Failed,
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
