//! Experiments: a candidate, confronted with the cases of a data set.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use stepfold_agent_loop::{Agent, Event, EventKind};
use stepfold_state_core::chat::Prices;

use crate::answers::RecordAnswers;
use crate::case::Case;
use crate::data_set::{DataSet, hash};
use crate::error::EvalError;
use crate::expectation::{CallRule, EvaluationContext, Evaluator, ProgramRunner, Score, Trials};
use crate::judge::Judge;
use crate::mode::{Attempt, Ending, Mode, next, recorded, replay, roll};
use crate::report::{CaseResult, CaseStatus, Measured, Report, ReportHead, Summary};
use crate::spending::Spending;
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
    known: Arc<KnownResults>,
    context: EvaluationContext,
}

/// Results of an interrupted experiment, by case and repeat.
type KnownResults = BTreeMap<(String, u64), CaseResult>;

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
            known: Arc::default(),
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

    /// Sets how often each case is tried; once by default. A case whose results differ is [flaky](crate::Comparison::flaky).
    pub const fn repeats(mut self, times: u64) -> Self {
        self.repeats = if times == 0 { 1 } else { times };
        self
    }

    /// Takes the results of an interrupted experiment: a case is not tried again if it is the same, by its digest, and if its
    /// result is no [error](CaseStatus::Error). To be called after the other options.
    ///
    /// # Errors
    /// [`EvalError::Continue`] when mode, candidate or options differ. Models are compared by their id, not by their replies,
    /// and evaluators in code not at all.
    pub fn continuing(mut self, interrupted: Report) -> Result<Self, EvalError> {
        let differences = interrupted.head.differences(&self.head());
        if !differences.is_empty() {
            return Err(EvalError::Continue { differences });
        }
        let known = interrupted.results.into_iter().filter(|result| result.status != CaseStatus::Error);
        self.known = Arc::new(known.map(|result| ((result.case.clone(), result.repeat), result)).collect());
        Ok(self)
    }

    /// Sets the timeout of a case, which is an [error](CaseStatus::Error) afterwards; five minutes by default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Allows a tool to run where the record has no answer to a call. It has no effect for a tool that is not
    /// [pure](stepfold_tools::Effect::Pure).
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

    /// Sets the port that runs programs. Without one, an expectation of a program fails.
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
        let mut head =
            ReportHead::new(self.mode, self.candidate.name(), self.candidate.fingerprint().clone());
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

    /// Checks that the candidate has the allowed tools, unless its tools are listed at each step.
    ///
    /// # Errors
    /// [`EvalError::UnknownTool`].
    pub fn check_allowed(&self) -> Result<(), EvalError> {
        let Some(tools) = self.candidate.tools() else { return Ok(()) };
        match self.allowed.iter().chain(&self.allowed_live).find(|tool| tools.get(tool).is_none()) {
            Some(tool) => Err(EvalError::UnknownTool {
                tool: tool.clone(),
                available: tools.names().map(str::to_owned).collect(),
            }),
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
            Ok::<_, EvalError>(match self.known_result(&case, repeat) {
                Some(known) => (known.clone(), true),
                None => (self.run_repeat(&case, repeat).await.0, false),
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

    /// The result of an interrupted experiment about a case.
    fn known_result(&self, case: &Case, repeat: u64) -> Option<&CaseResult> {
        if self.known.is_empty() {
            return None;
        }
        let known = self.known.get(&(case.name.clone(), repeat))?;
        (known.digest == case.digest()).then_some(known)
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
        let attempt = match tokio::time::timeout(self.timeout, self.attempt(case, repeat)).await {
            Ok(attempt) => attempt,
            Err(_) => Attempt {
                ending: Ending::Error(format!("timeout after {:?}", self.timeout)),
                ..Attempt::default()
            },
        };
        let events = attempt.events.clone();
        let mut result = CaseResult { repeat, ..self.result(case, attempt).await };
        if self.has_timelines && result.status != CaseStatus::Passed {
            let is_reply = |event: &&Event| matches!(event.kind, EventKind::Replied { .. });
            let recorded = case.events().iter();
            result.timelines = match self.mode {
                // The candidate makes no event.
                Mode::Replay | Mode::Recorded => None,
                Mode::Next => Some(Timelines::of(recorded.filter(is_reply), events.iter())),
                Mode::Roll | Mode::Live => Some(Timelines::of(recorded, events.iter())),
            };
        }
        telemetry::report(self.candidate.name(), &self.mode.to_string(), &result);
        (result, events)
    }

    async fn attempt(&self, case: &Case, repeat: u64) -> Attempt {
        match self.mode {
            Mode::Replay => replay(&self.candidate, case).await,
            Mode::Next => next(&self.candidate, case, &self.rule, &self.context).await,
            Mode::Roll => {
                let answers = |state| RecordAnswers::of(state, case.events(), self.allowed.clone());
                roll(&self.candidate, case, answers, &self.context).await
            }
            Mode::Live => {
                // A service that honours idempotency keys would answer a repeat, or another candidate, from memory.
                let candidate = serde_json::to_string(self.candidate.fingerprint()).unwrap_or_default();
                let scope = format!("eval/{:016x}/{}/{repeat}", hash(&candidate), case.name);
                let answers = |_| RecordAnswers::live(scope, self.allowed_live.clone());
                roll(&self.candidate, case, answers, &self.context).await
            }
            Mode::Recorded => recorded(case, &self.context.prices),
        }
    }

    async fn result(&self, case: &Case, attempt: Attempt) -> CaseResult {
        let Attempt { ending, coverage, cost, elapsed, .. } = attempt;
        let mut result = CaseResult::new(case);
        (result.answered, result.ran) = (coverage.answered, coverage.ran);
        if self.is_measured {
            result.measured = Some(Measured {
                elapsed_us: u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX),
                cost_nanodollars: cost.map(stepfold_state_core::chat::Cost::nanodollars),
            });
        }
        let cost = cost.map(dollars);
        match ending {
            Ending::Made(trial) => {
                let scores = self.scores(case, &trial, cost).await;
                result.set_evaluated(scores, &trial);
                // A case that expects nothing has not passed.
                if result.status == CaseStatus::Skipped {
                    result.reason = Some("nothing is expected of it".to_owned());
                }
            }
            Ending::Compared(scores, trial) => {
                let mut scores = Ok(scores);
                // The last reply, which texts are expected of, was asked for.
                if self.mode == Mode::Next && coverage.left_at.is_none() {
                    let texts = self.text_scores(case, &trial).await;
                    scores = scores.and_then(|scores| Ok([scores, texts?].concat()));
                }
                result.set_evaluated(scores, &trial);
                // The rest of the recorded replies could not be asked for.
                result.reason = result.reason.or(coverage.left_at);
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
        result
    }

    async fn scores(&self, case: &Case, trial: &Trial, cost: Option<f64>) -> Result<Vec<Score>, String> {
        let recorded = Trial::recorded(case);
        let trials = Trials { trial, recorded: recorded.as_ref(), cost };
        let mut scores = Vec::new();
        for expectation in case.expectations() {
            scores.push(expectation.evaluate(case, &trials, &self.context).await?);
        }
        scores.extend(self.context.evaluators.iter().map(|evaluator| evaluator.evaluate(case, trial)));
        Ok(scores)
    }

    /// The expectations about the last text, of a case that has them.
    async fn text_scores(&self, case: &Case, trial: &Trial) -> Result<Vec<Score>, String> {
        let recorded = Trial::recorded(case);
        let trials = Trials { trial, recorded: recorded.as_ref(), cost: None };
        let mut scores = Vec::new();
        for expectation in case.expect.iter().filter(|expectation| expectation.is_about_text()) {
            scores.push(expectation.evaluate(case, &trials, &self.context).await?);
        }
        Ok(scores)
    }
}

#[expect(clippy::cast_precision_loss, reason = "an amount below 9 million dollars is exact")]
fn dollars(cost: stepfold_state_core::chat::Cost) -> f64 {
    cost.nanodollars() as f64 / 1e9
}
