//! Experiments: a candidate, confronted with the cases of a data set.

use std::collections::BTreeSet;
use std::fs::File;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use stepfold_agent_loop::{Agent, Event, EventKind, ModelView, Redact};
use stepfold_runner::OutsideRequests;
use stepfold_state_core::chat::Prices;
use stepfold_tools::Effect;

use crate::answers::RecordAnswers;
use crate::case::Case;
use crate::data_set::{DataSet, hash};
use crate::error::EvalError;
use crate::expectation::{CallRule, EvaluationContext, Evaluator, Expectation, ProgramRunner, Score, Trials};
use crate::judge::Judge;
use crate::mode::{Attempt, Ending, Mode, next, recorded, replay, roll};
use crate::report::{CaseResult, CaseStatus, Measured, Report, ReportHead, Summary, result_key};
use crate::run_redaction::RunRedaction;
use crate::spending::{Spending, SpentNote};
use crate::stored_report::KnownResults;
use crate::telemetry;
use crate::timelines::Timelines;
use crate::trial::Trial;

/// A candidate with the options of its evaluation. See the [crate](crate) for an example.
///
/// No mode but [`Mode::Live`] calls a function of a tool, except for [pure tools that are allowed by
/// name](Experiment::allow_pure). Hooks of
/// the candidate run, as in any run. In [`Mode::Roll`] a hook after tools sees outcomes that the recorded agent's hooks
/// have seen before.
#[derive(Clone)]
#[must_use]
pub struct Experiment {
    candidate: Agent,
    mode: Mode,
    concurrency: usize,
    timeout: Duration,
    allowed: BTreeSet<String>,
    allowed_live: BTreeSet<String>,
    rule: CallRule,
    is_measured: bool,
    has_timelines: bool,
    repeats: u64,
    known: Option<Arc<KnownResults>>,
    context: EvaluationContext,
}

impl std::fmt::Debug for Experiment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Experiment").field("mode", &self.mode).finish_non_exhaustive()
    }
}

impl Experiment {
    /// An experiment that [rolls](Mode::Roll) each case, one after the other.
    pub fn new(candidate: &Agent) -> Self {
        Experiment {
            candidate: candidate.clone(),
            mode: Mode::default(),
            concurrency: 1,
            timeout: Duration::from_secs(300),
            allowed: BTreeSet::new(),
            allowed_live: BTreeSet::new(),
            rule: CallRule::default(),
            is_measured: false,
            has_timelines: false,
            repeats: 1,
            known: None,
            context: EvaluationContext::default(),
        }
    }

    /// Sets the mode.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets the number of cases at a time; 1 by default. The order of the results does not depend on it.
    pub fn concurrency(mut self, cases: usize) -> Self {
        self.concurrency = cases.max(1);
        self
    }

    /// The most times that a case is tried by the command and over the API. In code there is no bound.
    pub const MAX_REPEATS: u64 = 20;

    /// Sets how often each case is tried; once by default. A case whose results differ is [flaky](crate::Comparison::flaky).
    pub const fn repeats(mut self, times: u64) -> Self {
        self.repeats = if times == 0 { 1 } else { times };
        self
    }

    /// Takes the results of an interrupted experiment: a case is not tried again if it is the same, by its digest, and if its
    /// result is no [error](CaseStatus::Error). In mode live with [tools that may run once](Experiment::allow_live), a case that had begun
    /// and has no such result is an error: its tools may have run. To be called after the other options.
    ///
    /// # Errors
    /// [`EvalError::Continue`] when mode, candidate or options differ. Models are compared by their id, not by their replies,
    /// and evaluators in code not at all.
    pub fn continuing(self, interrupted: &Report) -> Result<Self, EvalError> {
        match KnownResults::of(interrupted)? {
            Some(known) => self.knowing(Arc::new(known)),
            None => Ok(self),
        }
    }

    /// The same with results that are read when their cases come.
    pub(crate) fn knowing(mut self, known: Arc<KnownResults>) -> Result<Self, EvalError> {
        let differences = known.head().differences(&self.head());
        if !differences.is_empty() {
            return Err(EvalError::Continue { differences });
        }
        self.known = Some(known);
        Ok(self)
    }

    /// Notes what is spent among the results, where an interrupted experiment has noted it before.
    pub(crate) fn spending_noted_in(mut self, file: Arc<Mutex<File>>, before: Option<SpentNote>) -> Self {
        self.context.spending = self.context.spending.noted_in(file, before);
        self
    }

    /// Sets the timeout of a case, which is an [error](CaseStatus::Error) afterwards; five minutes by default. It bounds the candidate
    /// with its tools, and what evaluates: [programs](Experiment::programs), whose runner ends them when they are dropped, the judge, whose
    /// run is cancelled, and evaluators in code and long comparisons, whose threads are left to end by themselves.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Allows a tool to run where the record has no answer to a call. A tool that is not [pure](stepfold_tools::Effect::Pure)
    /// never does, and [`check_allowed`](Experiment::check_allowed) says so.
    pub fn allow_pure(mut self, tool: impl Into<String>) -> Self {
        self.allowed.insert(tool.into());
        self
    }

    /// Allows a tool that may run at most once, or that needs an approval, to run in [`Mode::Live`], as often as a candidate
    /// calls it. It is approved then.
    pub fn allow_live(mut self, tool: impl Into<String>) -> Self {
        self.allowed_live.insert(tool.into());
        self
    }

    /// Sets the judge, for [`Expectation::Judge`](crate::Expectation::Judge). Without one, a case with a rubric is an
    /// [error](CaseStatus::Error), and so is one whose judge fails.
    pub fn judge(mut self, judge: Judge) -> Self {
        self.context.judge = Some(judge.unlimited());
        self
    }

    /// Limits the requests to models, of the candidate and the judge together.
    pub fn spending(mut self, spending: Spending) -> Self {
        self.context.spending = spending;
        self.context.judge = self.context.judge.map(Judge::unlimited);
        self
    }

    /// Has the requests of the candidate count in the budgets and rate limits of a runner as well, as those of a run of the session
    /// that these are of. A case whose request does not fit is an [error](CaseStatus::Error), whether the budget pauses or fails.
    pub fn budgets(mut self, requests: OutsideRequests) -> Self {
        self.context.budgets = Some(requests);
        self
    }

    /// Redacts the turn of the candidate as a [runner](stepfold_runner::RunnerBuilder::redact) redacts those of sessions: with the rules of
    /// [its sessions](stepfold_runner::Runner::redaction) an unchanged agent does as its redacted record. Cases are redacted too: they may be
    /// older than a rule, or written by hand. Reports, judges, programs and traces have nothing that the rules find, except for names of
    /// cases, by which results are paired.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use std::sync::Arc;
    /// use stepfold_agent_loop::{Agent, ModelView, Redaction, test_kit::Script};
    /// use stepfold_eval::{Case, Expectation, Experiment};
    ///
    /// let agent = Agent::builder(Script::parse("assistant: I write to ada@example.org")?.whole()).build()?;
    /// let case = Case::new("letter", "write").expect(Expectation::TextEquals("no".to_owned()));
    /// let experiment = Experiment::new(&agent).redact(Arc::new(Redaction::all()), ModelView::Redacted);
    /// let why = experiment.run_case(&case).await.why();
    /// assert_eq!(why, "text_equals: expected `no`, found `I write to [email]`");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn redact(mut self, rules: Arc<dyn Redact>, view: ModelView) -> Self {
        self.context.redaction = RunRedaction::new(rules, view);
        self.context.judge = self.context.judge.map(Judge::unlimited);
        self
    }

    /// Sets how [`Mode::Next`] compares calls.
    pub fn call_rule(mut self, rule: CallRule) -> Self {
        self.rule = rule;
        self
    }

    /// Adds an evaluator in code, for each case. It sees trials of [`Mode::Roll`].
    pub fn evaluator(mut self, evaluator: impl Evaluator + 'static) -> Self {
        self.context.evaluators.push(Arc::new(evaluator));
        self
    }

    /// Sets the port that runs programs. Without one, a case that expects something of a program is an
    /// [error](CaseStatus::Error), and so is one whose program is broken.
    pub fn programs(mut self, runner: impl ProgramRunner + 'static) -> Self {
        self.context.programs = Some(Arc::new(runner));
        self
    }

    /// Sets the prices, for costs and [`MaxCost`](crate::Expectation::MaxCost).
    pub fn prices(mut self, prices: Prices) -> Self {
        self.context.prices = prices;
        self
    }

    /// Adds times and costs to the results. A report with them is not the same twice.
    pub fn measured(mut self) -> Self {
        self.is_measured = true;
        self
    }

    /// Adds the recorded turn and that of the candidate to the result of each case that has not passed, line by line.
    pub fn timelines(mut self) -> Self {
        self.has_timelines = true;
        self
    }

    /// The head of the report.
    pub fn head(&self) -> ReportHead {
        let redaction = &self.context.redaction;
        let mut head = ReportHead::new(
            self.mode,
            self.candidate.name(),
            redaction.fingerprint(self.candidate.fingerprint()),
        );
        if let Some(view) = redaction.option() {
            head.options.insert("redact".to_owned(), view.to_owned());
        }
        if !self.allowed.is_empty() {
            let allowed: Vec<&str> = self.allowed.iter().map(String::as_str).collect();
            head.options.insert("allow".to_owned(), allowed.join(","));
        }
        if !self.allowed_live.is_empty() {
            let allowed: Vec<&str> = self.allowed_live.iter().map(String::as_str).collect();
            head.options.insert("allow live".to_owned(), allowed.join(","));
        }
        if let Some(judge) = &self.context.judge {
            head.options.insert("judge".to_owned(), judge.digest().to_owned());
        }
        if self.rule != CallRule::default() {
            let rule = serde_json::to_string(&self.rule).unwrap_or_default();
            head.options.insert("call rule".to_owned(), rule);
        }
        if self.context.prices != Prices::new() {
            // A table may be long, and a report says that it is the same.
            let prices = serde_json::to_string(&self.context.prices).unwrap_or_default();
            head.options.insert("prices".to_owned(), format!("{:016x}", hash(&prices)));
        }
        if self.is_measured {
            head.options.insert("measured".to_owned(), "true".to_owned());
        }
        if self.has_timelines {
            head.options.insert("timelines".to_owned(), "true".to_owned());
        }
        head
    }

    /// Checks that the candidate has the allowed tools, and that they can be allowed, unless its tools are listed at each step.
    ///
    /// # Errors
    /// [`EvalError::UnknownTool`] and [`EvalError::ImpureTool`].
    pub fn check_allowed(&self) -> Result<(), EvalError> {
        let Some(tools) = self.candidate.tools() else { return Ok(()) };
        let mut allowed = self.allowed.iter().chain(&self.allowed_live);
        if let Some(tool) = allowed.find(|tool| tools.get(tool).is_none()) {
            let available = tools.names().map(str::to_owned).collect();
            return Err(EvalError::UnknownTool { tool: tool.clone(), available });
        }
        let is_pure = |tool: &&String| tools.get(tool).is_some_and(|tool| tool.effect() == Effect::Pure);
        match self.allowed.iter().find(|tool| !is_pure(tool)) {
            Some(tool) => Err(EvalError::ImpureTool { tool: tool.clone() }),
            None => Ok(()),
        }
    }

    /// Confronts the candidate with all cases, and keeps the results.
    ///
    /// # Errors
    /// When a case cannot be read or is invalid. What fails in a case is its status.
    pub async fn run(&self, cases: DataSet<'_>) -> Result<Report, EvalError> {
        let mut results = Vec::new();
        self.run_each(cases, |result| {
            results.push(result);
            Ok(())
        })
        .await?;
        Ok(Report::new(self.head(), results))
    }

    /// The same, and gives each result away, in the order of the cases: memory does not grow with the results.
    ///
    /// # Errors
    /// As [`run`](Experiment::run), and when `sink` fails.
    pub async fn run_each(
        &self,
        cases: DataSet<'_>,
        mut sink: impl FnMut(CaseResult) -> Result<(), EvalError>,
    ) -> Result<Summary, EvalError> {
        self.run_each_known(cases, |result, _| sink(result)).await
    }

    /// The same, and says of each result whether it was [known](Experiment::continuing).
    ///
    /// # Errors
    /// As [`run`](Experiment::run), and when `sink` fails.
    pub async fn run_each_known(
        &self,
        cases: DataSet<'_>,
        mut sink: impl FnMut(CaseResult, bool) -> Result<(), EvalError>,
    ) -> Result<Summary, EvalError> {
        let mut summary = Summary::default();
        let repeated = cases.flat_map(|case| {
            let case = case.map(Arc::new);
            (0..self.repeats).map(move |repeat| (case.clone(), repeat))
        });
        let started = repeated.map(|(case, repeat)| async move {
            let case = case?;
            Ok::<_, EvalError>(match self.known_result(&case, repeat)? {
                Some(known) => (known, true),
                None => (self.run_once(&case, repeat).await?, false),
            })
        });
        let mut results = stream::iter(started).buffered(self.concurrency);
        while let Some(result) = results.next().await {
            let (result, is_known) = result?;
            summary.add(&result);
            sink(result, is_known)?;
            // Scripted models never wait: other tasks of the thread get their turn.
            tokio::task::yield_now().await;
        }
        Ok(summary)
    }

    /// Tries a case. Where tools may run that must not run twice, one that had begun before the experiment was interrupted is not
    /// tried again: they may have run.
    async fn run_once(&self, case: &Case, repeat: u64) -> Result<CaseResult, EvalError> {
        if self.mode == Mode::Live && !self.allowed_live.is_empty() {
            if self.known.as_ref().is_some_and(|known| known.has_begun(&case.name, repeat)) {
                let why = "interrupted: its tools may have run, so it is not tried again in this experiment";
                let (status, reason) = (CaseStatus::Error, Some(why.to_owned()));
                return Ok(CaseResult { repeat, status, reason, ..CaseResult::new(case) });
            }
            let noted = self.context.spending.note_begun(result_key(&case.name, repeat));
            noted.map_err(EvalError::io("writing of the results"))?;
        }
        Ok(self.run_repeat(case, repeat).await.0)
    }

    /// The result of an interrupted experiment about a case.
    fn known_result(&self, case: &Case, repeat: u64) -> Result<Option<CaseResult>, EvalError> {
        let Some(known) = &self.known else { return Ok(None) };
        Ok(known.find(&case.name, repeat)?.filter(|result| result.digest == case.digest()))
    }

    /// Stops what runs beside the experiment itself: judgements under way end at their last commits, and are continued by the next
    /// experiment. For a host that stops before the end; cases under way end when their future is dropped, with their tools and programs.
    pub async fn shutdown(&self) {
        if let Some(judge) = &self.context.judge {
            judge.shutdown().await;
        }
    }

    /// Confronts the candidate with one case.
    pub async fn run_case(&self, case: &Case) -> CaseResult {
        self.run_with_events(case).await.0
    }

    /// The same, with the events that the candidate made: those of its whole run in [`Mode::Roll`], of its replies in
    /// [`Mode::Next`], none in [`Mode::Replay`].
    pub async fn run_with_events(&self, case: &Case) -> (CaseResult, Vec<Event>) {
        self.run_repeat(case, 0).await
    }

    async fn run_repeat(&self, case: &Case, repeat: u64) -> (CaseResult, Vec<Event>) {
        let mut tried =
            TriedCase { result: CaseResult { repeat, ..CaseResult::new(case) }, events: Vec::new() };
        // One timeout for the candidate, its evaluators, their programs and the judge: each ends when it is dropped.
        let trying = self.try_case(case, &mut tried);
        if tokio::time::timeout(self.timeout, trying).await.is_err() {
            let why = match tried.result.scores.is_empty() && tried.events.is_empty() {
                true => format!("timeout after {:?}", self.timeout),
                false => format!("timeout after {:?}, before all was evaluated", self.timeout),
            };
            (tried.result.status, tried.result.reason) = (CaseStatus::Error, Some(why));
        }
        let TriedCase { result, events } = tried;
        let result = self.context.redaction.result(result);
        telemetry::report(self.candidate.name(), &self.mode.to_string(), &result);
        (result, events)
    }

    /// Confronts the candidate with a case, and evaluates its turn. A timeout leaves what is known by then.
    async fn try_case(&self, written: &Case, tried: &mut TriedCase) {
        let case = match self.context.redaction.case(written) {
            Ok(case) => case,
            Err(why) => {
                (tried.result.status, tried.result.reason) = (CaseStatus::Error, Some(why));
                return;
            }
        };
        let attempt = match self.fault_of_expectations(written, &case) {
            Some(why) => Attempt { ending: Ending::Error(why), ..Attempt::default() },
            None => self.attempt((written, &case), tried.result.repeat).await,
        };
        tried.events.clone_from(&attempt.events);
        self.evaluate(&case, attempt, &mut tried.result).await;
        if self.has_timelines && tried.result.status != CaseStatus::Passed {
            let is_reply = |event: &&Event| matches!(event.kind, EventKind::Replied { .. });
            let (recorded, made) = (case.events().iter(), tried.events.iter());
            tried.result.timelines = match self.mode {
                // The candidate makes no event.
                Mode::Replay | Mode::Recorded => None,
                Mode::Next => Some(Timelines::of(recorded.filter(is_reply), made)),
                Mode::Roll | Mode::Live => Some(Timelines::of(recorded, made)),
            };
        }
    }

    /// Why a case cannot be evaluated, whatever the candidate does: then nothing is spent for it.
    fn fault_of_expectations(&self, written: &Case, case: &Case) -> Option<String> {
        // The modes that look at the last text alone evaluate nothing else.
        let is_evaluated = |expectation: &Expectation| match self.mode {
            Mode::Replay => false,
            Mode::Next => expectation.is_about_text(),
            _ => true,
        };
        let pairs = written.expect.iter().zip(&case.expect).filter(|(written, _)| is_evaluated(written));
        pairs.into_iter().find_map(|(written, stored)| {
            let missing = stored.missing_port(&self.context);
            missing.or_else(|| self.context.redaction.incomparable(written, stored))
        })
    }

    async fn attempt(&self, (written, case): (&Case, &Case), repeat: u64) -> Attempt {
        match self.mode {
            // The events are computed from those of the record, whatever is in them.
            Mode::Replay => replay(&self.candidate, written, &self.context.redaction).await,
            Mode::Next => next(&self.candidate, case, &self.rule, &self.context).await,
            Mode::Roll => {
                let answers = |state| RecordAnswers::of(state, case.events(), self.allowed.clone());
                roll(&self.candidate, (written, case), answers, &self.context).await
            }
            Mode::Live => {
                // A service that honours idempotency keys would answer a repeat, or another candidate, from memory.
                let candidate = serde_json::to_string(self.candidate.fingerprint()).unwrap_or_default();
                let scope = format!("eval/{:016x}/{}/{repeat}", hash(&candidate), case.name);
                let answers = |_| RecordAnswers::live(scope, self.allowed_live.clone());
                roll(&self.candidate, (written, case), answers, &self.context).await
            }
            Mode::Recorded => recorded(case, &self.context.prices),
        }
    }

    async fn evaluate(&self, case: &Case, attempt: Attempt, result: &mut CaseResult) {
        let Attempt { ending, coverage, cost, elapsed, scores, .. } = attempt;
        (result.answered, result.ran, result.scores) = (coverage.answered, coverage.ran, scores);
        if self.is_measured {
            result.measured = Some(Measured {
                elapsed_us: u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX),
                cost_nanodollars: cost.map(stepfold_state_core::chat::Cost::nanodollars),
            });
        }
        let cost = cost.map(dollars);
        match ending {
            Ending::Made(trial) => {
                result.set_trial(&trial);
                let error = self.add_scores(case, &trial, (cost, elapsed), &mut result.scores).await;
                result.set_evaluated(error);
                // A case that expects nothing has not passed.
                if result.status == CaseStatus::Skipped {
                    result.reason = Some(match self.mode {
                        Mode::Recorded => "nothing is expected of it beside its own record".to_owned(),
                        _ => "nothing is expected of it".to_owned(),
                    });
                }
            }
            Ending::Compared(scores, trial) => {
                result.set_trial(&trial);
                result.scores = scores;
                // The last reply, which texts are expected of, was asked for.
                let error = match self.mode == Mode::Next && coverage.left_at.is_none() {
                    true => self.add_text_scores(case, &trial, &mut result.scores).await,
                    false => None,
                };
                result.set_evaluated(error);
                // The rest of the recorded replies could not be asked for.
                result.reason = result.reason.take().or(coverage.left_at);
            }
            Ending::LeftRecord => {
                result.status = CaseStatus::LeftRecord;
                result.reason = coverage.left_at;
            }
            Ending::Error(error) => (result.status, result.reason) = (CaseStatus::Error, Some(error)),
            Ending::Unsuited(why) => {
                (result.status, result.reason) = (CaseStatus::Skipped, Some(why.to_owned()));
            }
            Ending::Skipped => result.status = CaseStatus::Skipped,
        }
    }

    /// Adds the scores of a trial. Returns the error of an expectation that could not be evaluated, after which there are none.
    async fn add_scores(
        &self,
        case: &Case,
        trial: &Trial,
        (cost, elapsed): (Option<f64>, Duration),
        scores: &mut Vec<Score>,
    ) -> Option<String> {
        let recorded = self.recorded(case, trial);
        let trials = Trials { cost, elapsed, ..Trials::new(trial, recorded.as_ref()) };
        // The recorded turn, compared with itself, would always pass.
        let is_compared =
            |expectation: &Expectation| self.mode != Mode::Recorded || !expectation.needs_record();
        let expected = case.expectations().into_iter().filter(is_compared);
        let error = self.add_expected(expected, case, &trials, scores).await;
        let evaluated = self.evaluated_in_code(case, trial).await;
        scores.extend(evaluated.unwrap_or_else(|error| std::panic::resume_unwind(error)));
        error
    }

    /// The recorded course. A key that the recorded agent did not have has its default there, as it would have had.
    fn recorded(&self, case: &Case, trial: &Trial) -> Option<Trial> {
        let mut recorded = Trial::recorded(case)?;
        let defaults = self.candidate.schema().keys().filter_map(|key| Some((key.name(), key.default()?)));
        for (key, default) in defaults.filter(|(key, _)| trial.values.contains_key(*key)) {
            recorded.values.entry(key).or_insert_with(|| default.clone());
        }
        Some(recorded)
    }

    /// The scores of evaluators in code, on a thread for work that blocks: they do not hold up the timeout of the case.
    async fn evaluated_in_code(&self, case: &Case, trial: &Trial) -> std::thread::Result<Vec<Score>> {
        let evaluators = self.context.evaluators.clone();
        if evaluators.is_empty() {
            return Ok(Vec::new());
        }
        let (case, trial) = (case.clone(), trial.clone());
        let evaluated = tokio::task::spawn_blocking(move || {
            evaluators.iter().map(|evaluator| evaluator.evaluate(&case, &trial)).collect()
        });
        evaluated.await.map_err(|error| match error.is_panic() {
            true => error.into_panic(),
            false => Box::new("the runtime ended"),
        })
    }

    /// Adds those of the expectations about the last text, of a case that has them.
    async fn add_text_scores(&self, case: &Case, trial: &Trial, scores: &mut Vec<Score>) -> Option<String> {
        let recorded = Trial::recorded(case);
        let trials = Trials::new(trial, recorded.as_ref());
        let expected = case.expect.iter().filter(|expectation| expectation.is_about_text()).cloned();
        self.add_expected(expected, case, &trials, scores).await
    }

    /// Adds the scores of a trial, up to the first expectation that could not be evaluated, whose error it returns.
    async fn add_expected(
        &self,
        expected: impl Iterator<Item = Expectation>,
        case: &Case,
        trials: &Trials<'_>,
        scores: &mut Vec<Score>,
    ) -> Option<String> {
        for expectation in expected {
            match expectation.evaluate(case, trials, &self.context).await {
                Ok(score) => scores.push(score),
                Err(error) => return Some(error),
            }
        }
        None
    }
}

/// A case that is tried, with what is known so far.
struct TriedCase {
    result: CaseResult,
    /// The events of the candidate.
    events: Vec<Event>,
}

#[expect(clippy::cast_precision_loss, reason = "an amount below 9 million dollars is exact")]
fn dollars(cost: stepfold_state_core::chat::Cost) -> f64 {
    cost.nanodollars() as f64 / 1e9
}
