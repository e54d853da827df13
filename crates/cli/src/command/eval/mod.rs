//! `stepfold eval`: cases from stored sessions, experiments with them, and comparisons of their reports.

mod add;
mod candidate;
mod files;
mod interchange;
mod judge;
mod programs;
mod served;
mod watch;

use std::io::BufReader;
use std::path::Path;

use anyhow::Context as _;
use stepfold::agent_loop::{Ids as _, RandomIds};
use stepfold::eval::{
    CaseResult, Comparison, DataSet, EvalError, Experiment, LeftOut, Mode, ReportFile, StoredReport, Summary,
    Verdict,
};
use tempfile::SpooledTempFile;

use self::add::add;
use self::candidate::experiment;
use self::files::{CommandFiles, written};
pub(super) use self::served::experiments;
use crate::args::{EvalCommand, EvalCompareArgs, EvalFormat, EvalReportArgs, EvalRunArgs};
use crate::error::{CommandEnding, UsageError};
use crate::show::{self, counted};
use crate::signals::EndSignals;

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
            print(&read_report(report)?, format_of(*format, json))?;
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
        let cases = DataSet::from_toml(&files::read_text(path).map_err(fault)?);
        return cases.map_err(|error| invalid(named("data set", path), error));
    }
    if path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml") {
        let path = path.display();
        let words = format!(
            "data set {path} must be JSON lines (.jsonl) or TOML; `stepfold eval import {path} cases.jsonl` reads those of pydantic-evals"
        );
        return Err(UsageError(words).into());
    }
    Ok(DataSet::from_json_lines(BufReader::new(files::open_regular(path).map_err(fault)?)))
}

/// Reads all cases, one by one: the fault of the last one is found before anything is spent for the first.
fn check_cases(path: &Path) -> anyhow::Result<u64> {
    let name = || named("data set", path);
    match open(path)?.check().map_err(|error| invalid(name(), error))? {
        0 => Err(UsageError(format!("{} has no cases", name())).into()),
        cases => Ok(cases),
    }
}

/// The progress of an experiment, for a person at a terminal.
struct Progress {
    done: u64,
    all: u64,
}

impl Progress {
    /// The cells of the bar.
    const CELLS: u64 = 20;

    fn count(&mut self) {
        self.done += 1;
        if show::is_at_terminal() {
            show::on_this_line(&self.line());
        }
    }

    fn line(&self) -> String {
        let Progress { done, all } = self;
        let cells = (done.saturating_mul(Progress::CELLS) / (*all).max(1)).min(Progress::CELLS);
        let of = |cell: &str, count: u64| (0..count).map(|_| cell).collect::<String>();
        format!(
            "[{}{}] {done} of {}",
            of("#", cells),
            of("-", Progress::CELLS - cells),
            counted(*all, "result")
        )
    }

    fn clear() {
        if show::is_at_terminal() {
            show::on_this_line("");
        }
    }
}

/// Refuses a data set in place of the agent.
fn check_order(agent: &Path, data_set: &Path) -> Result<(), UsageError> {
    let is_data_set = |path: &Path| {
        let text = || files::read_text(path).unwrap_or_default();
        let endings = ["jsonl", "json", "yaml", "yml"];
        let has_ending = path.extension().is_some_and(|found| endings.iter().any(|ending| found == *ending));
        has_ending || is_toml(path) && text().lines().any(|line| line.trim() == "[[case]]")
    };
    if !is_data_set(agent) {
        return Ok(());
    }
    let (agent, data_set) = (agent.display(), data_set.display());
    let words = format!(
        "{agent} is a data set, and the agent file comes first: stepfold eval run {data_set} {agent}"
    );
    Err(UsageError(words))
}

fn is_toml(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "toml")
}

/// The name of a file, for errors about its contents.
fn named(what: &str, path: &Path) -> String {
    format!("{what} {}", path.display())
}

/// The error of a file: a fault of its contents is one of the command line that names it.
fn invalid(file: String, error: EvalError) -> anyhow::Error {
    match error {
        EvalError::Line { .. }
        | EvalError::Case { .. }
        | EvalError::Duplicate { .. }
        | EvalError::DuplicateResult { .. }
        | EvalError::Compare { .. } => UsageError(format!("{file}: {error}")).into(),
        error => anyhow::Error::from(error).context(file),
    }
}

/// Notes some of many faults, and the number of the others.
fn note_bounded(notes: &LeftOut, words: &str) {
    const MOST: u64 = 20;
    notes.lines().iter().take(20).for_each(|note| show::note_line(&format!("{words}{note}")));
    let left = notes.count().saturating_sub(MOST);
    if left > 0 {
        let all = if notes.count() > LeftOut::MOST as u64 { "the first 1,000" } else { "them all" };
        show::note_line(&format!("and {left} more; --json has {all}"));
    }
}

/// Confronts a candidate with a data set.
async fn run(args: &EvalRunArgs, json: bool) -> anyhow::Result<CommandEnding> {
    let (report, cassette) = (args.report.as_deref().map(written), args.cassette.as_deref().map(written));
    let args = &EvalRunArgs { cassette, report, ..args.clone() };
    CommandFiles::of_run(args).check()?;
    if let Some(report) = &args.report {
        let checked = ReportFile::check(report, &files::beside(report, ".partial"));
        checked.map_err(|error| UsageError(error.to_string()))?;
    }
    check_order(&args.agent, &args.data_set)?;
    let baseline = args.baseline.as_deref().map(read_report).transpose()?;
    // Before anything is spent.
    if let Some(before) =
        baseline.as_ref().map(|baseline| baseline.head().mode).filter(|mode| *mode != args.mode)
    {
        let words = format!(
            "baseline is of mode {before}: give --mode {before}, or the report of a baseline in mode {}",
            args.mode
        );
        return Err(UsageError(words).into());
    }
    let (experiment, budgets) = experiment(args).await?;
    let all = check_cases(&args.data_set)?.saturating_mul(args.repeats.get());
    let mut progress = Progress { done: 0, all };
    let cases = open(&args.data_set)?;
    let (mut results, experiment) = KeptResults::begin(args.report.as_deref(), experiment)?;
    let experiment = match budgets {
        Some(budgets) => budgets.bound(experiment, &results.id()?).await?,
        None => experiment,
    };
    let keep = |result: CaseResult, is_known: bool| {
        progress.count();
        results.keep(&result, is_known)
    };
    let ended = until_signal(&experiment, experiment.run_each_known(cases, keep)).await;
    Progress::clear();
    let summary = match ended? {
        EndedExperiment::Stopped(ending) => {
            show::note_line(match args.report {
                Some(_) => "stopped; the same command continues after the results so far",
                None => "stopped; with --report the same command would continue",
            });
            return Ok(ending);
        }
        EndedExperiment::Done(summary) => {
            summary.map_err(|error| invalid(named("data set", &args.data_set), error))?
        }
    };
    if summary.trials < all {
        return Err(UsageError(shorter(args, summary.trials, all)).into());
    }
    let report = results.finish()?;
    print(&report, format_of(args.format, json))?;
    let mut ending = ending_of(&summary, args);
    if let Some(baseline) = baseline {
        let compared =
            compare(&baseline, &report, (args.seed, args.max_losses), format_of(args.format, json))?;
        ending = if ending == CommandEnding::Done { compared } else { ending };
    }
    Ok(ending)
}

/// The words about a data set that has become shorter: its report would be that of a part.
fn shorter(args: &EvalRunArgs, found: u64, all: u64) -> String {
    let data_set = args.data_set.display();
    let kept = args.report.as_ref().map_or("", |_| ": it continues with the results so far");
    format!(
        "data set {data_set} was changed under the experiment: expected {}, found {found}; run it again{kept}",
        counted(all, "result")
    )
}

/// An experiment that has ended, or was stopped by a signal.
enum EndedExperiment {
    Done(Result<Summary, EvalError>),
    Stopped(CommandEnding),
}

/// Runs an experiment until its end or a signal. Its tools, programs and judgements are ended before the process is: a judgement whose
/// case has run out of time may still be under way.
async fn until_signal(
    experiment: &Experiment,
    running: impl Future<Output = Result<Summary, EvalError>>,
) -> anyhow::Result<EndedExperiment> {
    let mut signals = EndSignals::listen()?;
    let mut running = std::pin::pin!(running);
    let ended = tokio::select! {
        ended = &mut running => Ok(EndedExperiment::Done(ended)),
        stopped = signals.received() => stopped.map(EndedExperiment::Stopped),
    };
    // While its cases still wait for them: a judgement that is stopped is continued, and one that is dropped is cancelled.
    experiment.shutdown().await;
    ended
}

/// The most bytes of results that are kept in memory where no report is named. Others go into a file that has no name.
const MOST_IN_MEMORY: usize = 8 << 20;

/// The results of an experiment on their way.
enum KeptResults<'a> {
    Named(&'a Path, ReportFile),
    Unnamed(SpooledTempFile),
}

impl<'a> KeptResults<'a> {
    fn begin(report: Option<&'a Path>, experiment: Experiment) -> anyhow::Result<(Self, Experiment)> {
        if let Some(report) = report {
            let (file, experiment) = kept_results(report, experiment)?;
            return Ok((KeptResults::Named(report, file), experiment));
        }
        let mut file = SpooledTempFile::new(MOST_IN_MEMORY);
        experiment.head().write_line(&mut file)?;
        Ok((KeptResults::Unnamed(file), experiment))
    }

    /// The id of the experiment, which it keeps over kills.
    fn id(&self) -> Result<String, EvalError> {
        match self {
            KeptResults::Named(_, file) => file.id(|| RandomIds.next()),
            KeptResults::Unnamed(_) => Ok(RandomIds.next()),
        }
    }

    fn keep(&mut self, result: &CaseResult, is_known: bool) -> Result<(), EvalError> {
        match self {
            KeptResults::Named(_, file) => file.keep(result, is_known),
            KeptResults::Unnamed(file) => result.write_line(file),
        }
    }

    fn finish(self) -> anyhow::Result<StoredReport> {
        Ok(match self {
            KeptResults::Named(report, file) => {
                file.finish()?;
                read_report(report)?
            }
            KeptResults::Unnamed(file) => StoredReport::new(file)?,
        })
    }
}

/// Begins the results of an experiment, in a file beside its report, or continues those of an interrupted one.
fn kept_results(report: &Path, experiment: Experiment) -> anyhow::Result<(ReportFile, Experiment)> {
    let partial = &files::beside(report, ".partial");
    let words = || format!("results {}", partial.display());
    let mut file = match ReportFile::open(report, partial) {
        Err(error @ (EvalError::Busy { .. } | EvalError::NotAReport { .. })) => {
            return Err(UsageError(error.to_string()).into());
        }
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
        show::note_line(&format!("continues after {}", counted(kept, "result")));
    }
    Ok((file, experiment))
}

/// The ending that the thresholds demand.
fn ending_of(summary: &Summary, args: &EvalRunArgs) -> CommandEnding {
    let is_below =
        |rate: Option<f64>, least: Option<f64>| least.is_some_and(|least| rate.unwrap_or(0.0) < least);
    let mut faults = Vec::new();
    // A coverage that suffices says that the rest does not count.
    let rate = match args.min_coverage {
        Some(_) => summary.pass_rate(),
        None => summary.sure_pass_rate(),
    };
    if is_below(rate, args.min_pass_rate) {
        faults.push(match is_below(summary.pass_rate(), args.min_pass_rate) {
            true => "pass rate below --min-pass-rate",
            false => {
                "pass rate below --min-pass-rate: cases that could not be evaluated have not passed, unless --min-coverage allows them"
            }
        });
    }
    if is_below(summary.coverage(), args.min_coverage) {
        faults.push("coverage below --min-coverage");
    }
    if summary.passed + summary.failed == 0 {
        // A check that has seen nothing must not be green.
        faults.push("no case could be evaluated");
    }
    if summary.errors > args.max_errors {
        faults.push("more errors than --max-errors");
    }
    for fault in &faults {
        show::note_line(fault);
    }
    if faults.is_empty() { CommandEnding::Done } else { CommandEnding::Failed }
}

fn read_report(path: &Path) -> anyhow::Result<StoredReport> {
    StoredReport::open(path).map_err(|error| match error {
        EvalError::Io { source, .. } => {
            UsageError(format!("report {} could not be read: {source}", path.display())).into()
        }
        error => invalid(named("report", path), error),
    })
}

/// Compares a candidate with a baseline. A regression, or a comparison that says nothing, fails the command.
fn compare(
    baseline: &StoredReport,
    candidate: &StoredReport,
    (seed, max_losses): (u64, Option<u64>),
    format: EvalFormat,
) -> anyhow::Result<CommandEnding> {
    let comparison = Comparison::of_stored(baseline, candidate, seed)
        .map_err(|error| invalid("invalid comparison".to_owned(), error))?;
    match format {
        EvalFormat::Json => {
            let mut object = serde_json::to_value(&comparison)?;
            object["verdict"] = serde_json::to_value(comparison.verdict())?;
            show::single_line(&object.to_string());
        }
        EvalFormat::Markdown => show::print(comparison.to_markdown(ROWS)),
        EvalFormat::Table => {
            let lost = comparison.lost.iter();
            let word = if comparison.mode == Mode::Replay { "differs" } else { "lost" };
            let lost = lost.map(|(case, why)| format!("{word} {}: {why}\n", show::in_one_line(case)));
            show::print(format!("{comparison}{}", lost.collect::<String>()));
            let left = comparison.losses - comparison.lost.len() as u64;
            if left > 0 {
                show::single_line(&format!("{word}: and {left} more"));
            }
        }
        // A test report stays one document: the comparison is for the person who reads the log.
        EvalFormat::Junit => show::note(comparison.to_string().trim_end().to_owned()),
    }
    let is_over = max_losses.is_some_and(|most| comparison.possible_losses() > most);
    if is_over {
        show::note_line(&over_losses(&comparison));
    }
    Ok(match comparison.verdict() {
        _ if is_over => CommandEnding::Failed,
        Verdict::Better | Verdict::NoDifference | Verdict::Agrees => CommandEnding::Done,
        _ => CommandEnding::Failed,
    })
}

/// The reason of a status 1 for --max-losses. A case that the candidate could not answer has not shown that it is no loss.
fn over_losses(comparison: &Comparison) -> String {
    let Comparison { losses, unpaired_passed, untried_failed, .. } = comparison;
    let mut parts = vec![format!("{losses} lost")];
    if *unpaired_passed > 0 {
        parts.push(format!("{unpaired_passed} that the baseline passed and the candidate could not answer"));
    }
    if *untried_failed > 0 {
        parts.push(format!("{untried_failed} that it failed and the baseline has not tried"));
    }
    format!("more cases than --max-losses are lost, or may be: {}", parts.join(", "))
}

fn format_of(format: EvalFormat, json: bool) -> EvalFormat {
    if json { EvalFormat::Json } else { format }
}

/// Prints a report result by result.
fn print(report: &StoredReport, format: EvalFormat) -> anyhow::Result<()> {
    let mut out = show::OutputLines::default();
    match format {
        EvalFormat::Table => report.write_table(&mut out),
        EvalFormat::Markdown => report.write_markdown(&mut out, ROWS),
        EvalFormat::Junit => report.write_junit(&mut out),
        EvalFormat::Json => report.write_json_lines(&mut out),
    }?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Progress;

    #[test]
    fn the_bar_is_as_long_as_its_share() {
        let line = |done, all| Progress { done, all }.line();
        assert_eq!(line(0, 10), "[--------------------] 0 of 10 results");
        assert_eq!(line(5, 10), "[##########----------] 5 of 10 results");
        assert_eq!(line(10, 10), "[####################] 10 of 10 results");
        // Cases that were added meanwhile.
        assert_eq!(line(3, 1), "[####################] 3 of 1 result");
    }
}
