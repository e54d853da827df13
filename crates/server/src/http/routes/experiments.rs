//! Experiments with stored sessions. A principal has data sets and experiments of its own; an administrator those of all users.

use axum::Json;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use stepfold_eval::{
    Case, CaseResult, CaseStatus, Comparison, DEFAULT_SEED, EvalError, Experiment, Mode, Report, Spending,
    Verdict,
};
use stepfold_runner::SessionHandle;

use crate::http::app::App;
use crate::http::experiments::{CandidateChange, ExperimentFolder, check_name, of_eval};
use crate::http::guard::auth::{Principal, Role};
use crate::http::guard::problem::Problem;
use crate::http::operation::request::{ApiRequest, AppTarget, JsonBody, NamedPath, PathTarget, find_session};

/// An experiment of an app, as a path names it.
pub(super) struct ExperimentTarget {
    app: AppTarget,
    name: String,
}

impl PathTarget for ExperimentTarget {
    async fn find(path: NamedPath<'_>) -> Result<Self, Problem> {
        let app = AppTarget::find(path).await?;
        Ok(ExperimentTarget { app, name: path.get("experiment").to_owned() })
    }
}

fn folder(app: &App) -> Result<&ExperimentFolder, Problem> {
    app.experiment_folder().ok_or_else(|| Problem::no_experiments(app.name()))
}

/// The user whose data sets these are: the principal's, or another one for an administrator.
fn user_of(principal: &Principal, user: Option<String>) -> Result<String, Problem> {
    match user {
        Some(user) if user != principal.user().as_str() && !principal.may(Role::Administer) => {
            Err(Problem::forbidden(Role::Administer))
        }
        Some(user) => Ok(user),
        None => Ok(principal.user().to_string()),
    }
}

/// The turns to be added to a data set.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewCases {
    /// The data set, which is created.
    data_set: String,
    /// The session.
    session: String,
    /// The version of the turn; all turns by default.
    #[serde(default)]
    at: Option<u64>,
    /// The user of the session, for administrators. The data set is the principal's.
    #[serde(default)]
    user: Option<String>,
}

/// The result of adding cases.
#[derive(Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AddedCases {
    /// The cases that were added. One whose name is there is not added again.
    added: usize,
    /// The turns that cannot be cases, with the reasons.
    unsuited: Vec<String>,
}

pub(super) async fn add_cases(
    request: ApiRequest<AppTarget, (), JsonBody<NewCases>>,
) -> Result<Json<AddedCases>, Problem> {
    let (app, JsonBody(new)) = (request.target.0, request.body);
    let own = request.principal.user().to_string();
    check_name(&new.data_set)?;
    let session = session_of(&app, &request.principal, &new).await?;
    let found = match new.at {
        Some(at) => vec![Case::taken_from(&session, Some(at)).await],
        None => Case::all_of(&session).await.map_err(|error| of_eval(&error))?,
    };
    let (mut cases, mut unsuited) = (Vec::new(), Vec::new());
    for case in found {
        match case {
            Ok(case) => cases.push(case),
            Err(error @ EvalError::Unsuited { .. }) => unsuited.push(error.to_string()),
            Err(error) => return Err(of_eval(&error)),
        }
    }
    let added = folder(&app)?.append(&own, &new.data_set, &cases)?;
    Ok(Json(AddedCases { added, unsuited }))
}

async fn session_of(app: &App, principal: &Principal, new: &NewCases) -> Result<SessionHandle, Problem> {
    let user = user_of(principal, new.user.clone())?;
    if user == principal.user().as_str() {
        return find_session(app, principal, &new.session).await;
    }
    let found = app.runner().find_session(user.as_str(), new.session.as_str()).await?;
    found.ok_or_else(|| Problem::unknown_session(&new.session))
}

/// The user whose experiments are read.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ExperimentsQuery {
    /// The user, for administrators; the principal's by default.
    #[serde(default)]
    user: Option<String>,
}

/// Data sets and experiments.
#[derive(Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ExperimentList {
    /// The names of the data sets.
    data_sets: Vec<String>,
    /// The experiments.
    experiments: Vec<ExperimentRow>,
    /// The names of reports that cannot be read.
    unreadable: Vec<String>,
}

/// An experiment, with its counts.
#[derive(Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ExperimentRow {
    /// The name.
    name: String,
    /// The mode: `replay`, `next`, `roll`, `live` or `recorded`.
    mode: String,
    /// The name of the candidate.
    candidate: String,
    /// The cases.
    cases: u64,
    /// Cases of which every expectation holds.
    passed: u64,
    /// Cases of which an expectation does not hold.
    failed: u64,
    /// Cases that say nothing: the record has no answer to a call.
    left_record: u64,
    /// Cases that could not be tried.
    errors: u64,
    /// Cases that do not suit the mode.
    skipped: u64,
    /// The part of the evaluated cases that passed.
    pass_rate: Option<f64>,
    /// The part of the cases that could be evaluated.
    coverage: Option<f64>,
    /// The replies of the model.
    steps: u64,
    /// The tokens, in and out.
    tokens: u64,
}

impl ExperimentRow {
    fn of(name: &str, report: &Report) -> Self {
        let summary = report.summary();
        ExperimentRow {
            name: name.to_owned(),
            mode: report.head.mode.to_string(),
            candidate: report.head.candidate.clone(),
            cases: summary.cases,
            passed: summary.passed,
            failed: summary.failed,
            left_record: summary.left_record,
            errors: summary.errors,
            skipped: summary.skipped,
            pass_rate: summary.pass_rate(),
            coverage: summary.coverage(),
            steps: summary.steps,
            tokens: summary.tokens,
        }
    }
}

pub(super) async fn list(
    request: ApiRequest<AppTarget, ExperimentsQuery>,
) -> Result<Json<ExperimentList>, Problem> {
    let user = user_of(&request.principal, request.query.user)?;
    let app = request.target.0;
    let Some(folder) = app.experiment_folder() else {
        return Ok(Json(ExperimentList {
            data_sets: Vec::new(),
            experiments: Vec::new(),
            unreadable: Vec::new(),
        }));
    };
    let [data_sets, names] = folder.names(&user)?;
    let (mut experiments, mut unreadable) = (Vec::new(), Vec::new());
    for name in names {
        match folder.report(&user, &name) {
            Ok(report) => experiments.push(ExperimentRow::of(&name, &report)),
            Err(_) => unreadable.push(name),
        }
    }
    Ok(Json(ExperimentList { data_sets, experiments, unreadable }))
}

/// An experiment to be run.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewExperiment {
    /// The name. A report of the same name is replaced.
    name: String,
    /// The data set.
    data_set: String,
    /// The mode: `roll` by default. `live` needs an administrator and `max_requests`.
    #[serde(default)]
    mode: ModeName,
    /// Another model, for administrators.
    #[serde(default)]
    model: Option<String>,
    /// Other instructions.
    #[serde(default)]
    instructions: Option<String>,
    /// Settings of the agent file, as `limits.steps=4`, for administrators.
    #[serde(default)]
    set: Vec<String>,
    /// The pure tools that may run where the record has no answer; in mode `live`, the tools that may run at most once.
    #[serde(default)]
    allow: Vec<String>,
    /// The number of times that each case is tried; once by default, at most 20.
    #[serde(default)]
    repeats: Option<u64>,
    /// The most requests to models: 1,000 by default, and at most so many without `administer`.
    #[serde(default)]
    max_requests: Option<u64>,
    /// Whether expectations with a rubric are judged, which needs an administrator and `max_requests`.
    #[serde(default)]
    judge: bool,
}

/// The name of a mode.
#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum ModeName {
    /// Replays the recorded turns without a model.
    Replay,
    /// Asks for each recorded reply once.
    Next,
    /// Runs whole turns, whose calls the record answers.
    #[default]
    Roll,
    /// Runs whole turns with real tools.
    Live,
    /// Evaluates the recorded turns themselves.
    Recorded,
}

impl From<ModeName> for Mode {
    fn from(mode: ModeName) -> Self {
        match mode {
            ModeName::Replay => Mode::Replay,
            ModeName::Next => Mode::Next,
            ModeName::Roll => Mode::Roll,
            ModeName::Live => Mode::Live,
            ModeName::Recorded => Mode::Recorded,
        }
    }
}

/// The most requests to models of an experiment, unless an administrator says otherwise.
const MAX_REQUESTS: u64 = 1_000;

/// The most times that a case is tried.
const MAX_REPEATS: u64 = 20;

pub(super) async fn run(
    request: ApiRequest<AppTarget, (), JsonBody<NewExperiment>>,
) -> Result<Json<ExperimentRow>, Problem> {
    let (app, JsonBody(new)) = (request.target.0, request.body);
    let user = request.principal.user().to_string();
    check_name(&new.name)?;
    let is_costly = new.mode == ModeName::Live || new.judge;
    let asks_model = is_costly || matches!(new.mode, ModeName::Next | ModeName::Roll);
    let is_other = new.model.is_some() || !new.set.is_empty();
    // NOTE: requests of experiments count in no budget of the app, so they must not be a way around one.
    let passes_budgets = asks_model && app.runner().has_spend_limits();
    if (is_costly || is_other || passes_budgets) && !request.principal.may(Role::Administer) {
        return Err(Problem::forbidden(Role::Administer));
    }
    if is_costly && new.max_requests.is_none() {
        return Err(Problem::invalid("experiment", "mode `live` and judges need `max_requests`"));
    }
    let is_bounded = !request.principal.may(Role::Administer);
    if is_bounded && new.max_requests.is_some_and(|most| most > MAX_REQUESTS) {
        return Err(Problem::invalid("max_requests", format!("at most {MAX_REQUESTS} without `administer`")));
    }
    let folder = folder(&app)?;
    let _permit = folder.run()?;
    let experiment = experiment(&app, folder, &new)?;
    let cases = folder.data_set(&user, &new.data_set)?;
    let report = experiment.run(cases).await.map_err(|error| of_eval(&error))?;
    folder.write(&user, &new.name, &report)?;
    Ok(Json(ExperimentRow::of(&new.name, &report)))
}

fn experiment(app: &App, folder: &ExperimentFolder, new: &NewExperiment) -> Result<Experiment, Problem> {
    let change = CandidateChange { model: new.model.clone(), set: new.set.clone() };
    let mut agent = folder.candidate(app.runner().agent(), &change)?;
    if let Some(instructions) = &new.instructions {
        let changed = agent.to_builder().instructions(instructions.as_str()).build();
        agent = changed.map_err(|error| Problem::invalid("candidate", error))?;
    }
    let repeats = new.repeats.unwrap_or(1);
    if !(1..=MAX_REPEATS).contains(&repeats) {
        return Err(Problem::invalid("repeats", format!("must be from 1 to {MAX_REPEATS}")));
    }
    let experiment = Experiment::new(&agent).mode(new.mode.into()).repeats(repeats).timelines();
    let experiment = experiment.prices(app.pricing().prices.clone());
    let experiment = new.allow.iter().fold(experiment, |experiment, tool| match new.mode {
        ModeName::Live => experiment.allow_live(tool),
        _ => experiment.allow_pure(tool),
    });
    let experiment = match (new.judge, folder.judge_of()) {
        (false, _) => experiment,
        (true, Some(judge)) => experiment.judge(judge.clone()),
        (true, None) => return Err(Problem::invalid("experiment", "this server has no judge")),
    };
    Ok(experiment.spending(Spending::new().max_requests(new.max_requests.unwrap_or(MAX_REQUESTS))))
}

/// The experiment beside which another one is read.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ExperimentQuery {
    /// The user, for administrators; the principal's by default.
    #[serde(default)]
    user: Option<String>,
    /// The experiment of the baseline.
    #[serde(default)]
    baseline: Option<String>,
}

/// An experiment with its results.
#[derive(Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ExperimentRows {
    experiment: ExperimentRow,
    /// The results, in the order of the cases.
    results: Vec<ResultRow>,
    /// The comparison with the baseline.
    comparison: Option<ComparisonRow>,
}

/// The result of a case.
#[derive(Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ResultRow {
    case: String,
    /// The number of the repeat, from 0.
    repeat: u64,
    /// `passed`, `failed`, `left_record`, `error` or `skipped`.
    status: &'static str,
    /// Why it did not pass.
    why: String,
    steps: u64,
    tokens: u64,
    /// The recorded turn, line by line, if the case has not passed.
    recorded: Vec<String>,
    /// The turn of the candidate.
    made: Vec<String>,
    /// The index of the first line in which they differ.
    differs_at: Option<usize>,
}

impl From<&CaseResult> for ResultRow {
    fn from(result: &CaseResult) -> Self {
        let timelines = result.timelines.clone().unwrap_or_default();
        ResultRow {
            case: result.case.clone(),
            repeat: result.repeat,
            status: match result.status {
                CaseStatus::Passed => "passed",
                CaseStatus::Failed => "failed",
                CaseStatus::LeftRecord => "left_record",
                CaseStatus::Error => "error",
                _ => "skipped",
            },
            why: result.why(),
            steps: result.steps,
            tokens: result.tokens,
            differs_at: result.timelines.as_ref().map(|timelines| timelines.differs_at),
            recorded: timelines.recorded,
            made: timelines.made,
        }
    }
}

/// The comparison of two experiments.
#[derive(Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ComparisonRow {
    /// `better`, `no_difference`, `worse` or `unknown`.
    verdict: &'static str,
    /// The verdict in words, with the interval and the test.
    text: String,
    wins: u64,
    losses: u64,
    ties: u64,
    /// The cases that only the candidate passed.
    won: Vec<String>,
    /// The cases that only the baseline passed.
    lost: Vec<String>,
    /// The cases of the baseline that say nothing about the candidate.
    unpaired: Vec<String>,
}

impl From<&Comparison> for ComparisonRow {
    fn from(comparison: &Comparison) -> Self {
        ComparisonRow {
            verdict: match comparison.verdict() {
                Verdict::Better => "better",
                Verdict::Worse => "worse",
                Verdict::NoDifference => "no_difference",
                _ => "unknown",
            },
            text: comparison.to_string(),
            wins: comparison.wins,
            losses: comparison.losses,
            ties: comparison.ties,
            won: comparison.won.clone(),
            lost: comparison.lost.iter().map(|(case, _)| case.clone()).collect(),
            unpaired: comparison.unpaired.clone(),
        }
    }
}

pub(super) async fn read(
    request: ApiRequest<ExperimentTarget, ExperimentQuery>,
) -> Result<Json<ExperimentRows>, Problem> {
    let ExperimentQuery { user, baseline } = request.query;
    let user = user_of(&request.principal, user)?;
    let ExperimentTarget { app: AppTarget(app), name } = request.target;
    let report = folder(&app)?.report(&user, &name)?;
    let comparison = match baseline {
        Some(baseline) => {
            let baseline = folder(&app)?.report(&user, &baseline)?;
            let compared =
                Comparison::of(&baseline, &report, DEFAULT_SEED).map_err(|error| of_eval(&error))?;
            Some(ComparisonRow::from(&compared))
        }
        None => None,
    };
    let results = report.results.iter().map(ResultRow::from).collect();
    Ok(Json(ExperimentRows { experiment: ExperimentRow::of(&name, &report), results, comparison }))
}
