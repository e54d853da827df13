//! Experiments with stored sessions. A principal has data sets and experiments of its own; an administrator those of all users.

use std::sync::Arc;

use axum::Json;
use axum::response::NoContent;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use stepfold_eval::{
    Case, CaseResult, CaseStatus, Comparison, DEFAULT_SEED, EvalError, Mode, StoredReport, Summary, Verdict,
};
use stepfold_runner::SessionHandle;

use crate::http::app::App;
use crate::http::experiments::{
    ExperimentFolder, ExperimentJob, NewExperiment, StoredExperiment, check_name, of_eval,
};
use crate::http::guard::auth::{Principal, Role};
use crate::http::guard::own_thread::joined;
use crate::http::guard::problem::Problem;
use crate::http::operation::reply::AcceptedReply;
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

fn folder(app: &App) -> Result<&Arc<ExperimentFolder>, Problem> {
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
    added: u64,
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
            Err(error @ (EvalError::Unsuited { .. } | EvalError::Erased { .. })) => {
                unsuited.push(error.to_string());
            }
            Err(error) => return Err(of_eval(&error)),
        }
    }
    let folder = Arc::clone(folder(&app)?);
    let appending = tokio::task::spawn_blocking(move || folder.append(&own, &new.data_set, &cases));
    let added = joined(appending.await)?;
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

/// The user whose experiment it is.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct UserQuery {
    /// The user, for administrators; the principal's by default.
    #[serde(default)]
    user: Option<String>,
}

/// The experiments that are listed.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ExperimentsQuery {
    /// The user, for administrators; the principal's by default.
    #[serde(default)]
    user: Option<String>,
    /// Whether only experiments that wait or run are listed, without reports and data sets: for clients that wait.
    #[serde(default)]
    under_way: bool,
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
    /// `waiting`, `running`, `done` or `failed`. One that was interrupted is `running`: it is continued.
    status: &'static str,
    /// Why it failed: it cannot be run.
    why: Option<String>,
    /// The number of results that it has at its end.
    expected: u64,
    /// The mode: `replay`, `next`, `roll`, `live` or `recorded`.
    mode: String,
    /// The name of the candidate.
    candidate: String,
    /// The results so far: one for each case and repeat.
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
    /// The part of the tried cases that passed: one with an error has not, one that says nothing does not count.
    pass_rate: Option<f64>,
    /// The part of the cases that could be evaluated.
    coverage: Option<f64>,
    /// The replies of the model.
    steps: u64,
    /// The tokens, in and out.
    tokens: u64,
}

impl ExperimentRow {
    fn new(name: &str, mode: Mode, candidate: &str, summary: &Summary) -> Self {
        ExperimentRow {
            name: name.to_owned(),
            status: "done",
            why: None,
            expected: summary.trials,
            mode: mode.to_string(),
            candidate: candidate.to_owned(),
            cases: summary.trials,
            passed: summary.passed,
            failed: summary.failed,
            left_record: summary.left_record,
            errors: summary.errors,
            skipped: summary.skipped,
            pass_rate: summary.tried_pass_rate(),
            coverage: summary.coverage(),
            steps: summary.steps,
            tokens: summary.tokens,
        }
    }

    fn of(name: &str, report: &StoredReport) -> Self {
        ExperimentRow::new(name, report.head().mode, &report.head().candidate, &report.summary())
    }

    fn of_job(app: &App, job: &ExperimentJob, summary: &Summary) -> Self {
        let (request, candidate) = (job.request(), app.runner().agent().name());
        let row = ExperimentRow::new(&request.name, request.mode(), candidate, summary);
        ExperimentRow { expected: job.expected, ..row }
    }

    fn under_way(app: &App, job: &ExperimentJob, (summary, has_begun): (Summary, bool)) -> Self {
        let status = if has_begun { "running" } else { "waiting" };
        ExperimentRow { status, ..ExperimentRow::of_job(app, job, &summary) }
    }

    fn failed(app: &App, job: &ExperimentJob) -> Self {
        let row = ExperimentRow::of_job(app, job, &Summary::default());
        ExperimentRow { status: "failed", why: job.why.clone(), ..row }
    }
}

pub(super) async fn list(
    request: ApiRequest<AppTarget, ExperimentsQuery>,
) -> Result<Json<ExperimentList>, Problem> {
    let user = user_of(&request.principal, request.query.user)?;
    let (app, is_under_way) = (request.target.0, request.query.under_way);
    joined(tokio::task::spawn_blocking(move || listed(&app, &user, is_under_way)).await).map(Json)
}

/// The data sets and experiments of a user. Reads the files, result by result.
fn listed(app: &App, user: &str, is_under_way: bool) -> Result<ExperimentList, Problem> {
    let mut list = ExperimentList { data_sets: Vec::new(), experiments: Vec::new(), unreadable: Vec::new() };
    let Some(folder) = app.experiment_folder() else { return Ok(list) };
    let jobs = folder.jobs_of(user)?;
    let under_way = jobs.iter().map(|job| ExperimentRow::under_way(app, job, folder.progress(job)));
    list.experiments = under_way.collect();
    if is_under_way {
        return Ok(list);
    }
    let [data_sets, names] = folder.names(user)?;
    list.data_sets = data_sets;
    let has_ended = |name: &String| jobs.iter().all(|job| job.request().name != *name);
    for name in names.into_iter().filter(has_ended) {
        match folder.ended(user, &name) {
            Ok(StoredExperiment::Done(report)) => list.experiments.push(ExperimentRow::of(&name, &report)),
            Ok(StoredExperiment::Failed(job)) => list.experiments.push(ExperimentRow::failed(app, &job)),
            _ => list.unreadable.push(name),
        }
    }
    list.experiments.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(list)
}

pub(super) async fn run(
    request: ApiRequest<AppTarget, (), JsonBody<NewExperiment>>,
) -> Result<AcceptedReply<ExperimentRow>, Problem> {
    let (app, JsonBody(new)) = (request.target.0, request.body);
    let user = request.principal.user().to_string();
    new.check(&app, &request.principal)?;
    let folder = Arc::clone(folder(&app)?);
    // A request that cannot be run is refused now.
    drop(new.experiment(&app, &folder)?);
    let (accepting, limits) = (Arc::clone(&folder), request.shared.limits.clone());
    let accepted = tokio::task::spawn_blocking(move || accepting.accept(&user, new, &limits));
    let job = joined(accepted.await)?;
    folder.work(&app, &request.shared.limits, request.shared.phase.subscribe());
    let row = ExperimentRow::under_way(&app, &job, folder.progress(&job));
    Ok(AcceptedReply(row))
}

pub(super) async fn delete(request: ApiRequest<ExperimentTarget, UserQuery>) -> Result<NoContent, Problem> {
    let user = user_of(&request.principal, request.query.user)?;
    let ExperimentTarget { app: AppTarget(app), name } = request.target;
    let (folder, deleted) = (Arc::clone(folder(&app)?), name.clone());
    let deleting = tokio::task::spawn_blocking(move || folder.delete(&user, &deleted));
    match joined(deleting.await)? {
        true => Ok(NoContent),
        false => Err(Problem::unknown_experiment(&name)),
    }
}

/// A data set of an app, as a path names it.
pub(super) struct DataSetTarget {
    app: AppTarget,
    name: String,
}

impl PathTarget for DataSetTarget {
    async fn find(path: NamedPath<'_>) -> Result<Self, Problem> {
        let app = AppTarget::find(path).await?;
        Ok(DataSetTarget { app, name: path.get("data_set").to_owned() })
    }
}

pub(super) async fn delete_data_set(
    request: ApiRequest<DataSetTarget, UserQuery>,
) -> Result<NoContent, Problem> {
    let user = user_of(&request.principal, request.query.user)?;
    let DataSetTarget { app: AppTarget(app), name } = request.target;
    let (folder, deleted) = (Arc::clone(folder(&app)?), name.clone());
    let deleting = tokio::task::spawn_blocking(move || folder.delete_data_set(&user, &deleted));
    match joined(deleting.await)? {
        true => Ok(NoContent),
        false => Err(Problem::unknown_data_set(&name)),
    }
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
    /// The number of results before the page.
    #[serde(default)]
    after: u64,
}

/// An experiment with its results.
#[derive(Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ExperimentRows {
    experiment: ExperimentRow,
    /// The results so far, in the order of the cases: at most 500 of them, or fewer with long timelines.
    results: Vec<ResultRow>,
    /// The beginning of the next page; none at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<u64>,
    /// The comparison with the baseline, if it has ended.
    comparison: Option<ComparisonRow>,
}

/// The most results of a page.
const PAGE: usize = 500;

/// The most bytes of the texts of a page, but for its last result.
const PAGE_BYTES: usize = 4 << 20;

impl ExperimentRows {
    /// A page of the results.
    fn of(experiment: ExperimentRow, report: Option<&StoredReport>, after: u64) -> Result<Self, Problem> {
        let (mut results, mut next) = (Vec::new(), None);
        let (mut at, mut bytes) = (0, 0);
        let page = |result: &CaseResult| {
            at += 1;
            if at <= after {
                return Ok(());
            }
            if results.len() == PAGE || bytes >= PAGE_BYTES {
                next = Some(at - 1);
                return Err(EvalError::Stopped);
            }
            let row = ResultRow::from(result);
            bytes += row.why.len() + row.recorded.iter().chain(&row.made).map(String::len).sum::<usize>();
            results.push(row);
            Ok(())
        };
        match report.map_or(Ok(()), |report| report.each(page)) {
            Ok(()) | Err(EvalError::Stopped) => {}
            Err(error) => return Err(of_eval(&error)),
        }
        Ok(ExperimentRows { experiment, results, next, comparison: None })
    }
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
    /// `better`, `no_difference`, `worse` or `unknown`; in mode `replay` `agrees` in place of better, and `differs` in place of worse.
    verdict: &'static str,
    /// The verdict in words, with the interval and the test.
    text: String,
    wins: u64,
    losses: u64,
    ties: u64,
    /// The cases that only the candidate passed: the first 1,000 of them, as in the following lists.
    won: Vec<String>,
    /// The cases that only the baseline passed.
    lost: Vec<String>,
    /// The cases of the baseline that say nothing about the candidate.
    unpaired: Vec<String>,
    /// The number of all unpaired cases.
    unpaired_count: u64,
}

impl From<&Comparison> for ComparisonRow {
    fn from(comparison: &Comparison) -> Self {
        ComparisonRow {
            verdict: match comparison.verdict() {
                Verdict::Better => "better",
                Verdict::Worse => "worse",
                Verdict::NoDifference => "no_difference",
                Verdict::Agrees => "agrees",
                Verdict::Differs => "differs",
                _ => "unknown",
            },
            text: comparison.to_string(),
            wins: comparison.wins,
            losses: comparison.losses,
            ties: comparison.ties,
            won: comparison.won.clone(),
            lost: comparison.lost.iter().map(|(case, _)| case.clone()).collect(),
            unpaired: comparison.unpaired.clone(),
            unpaired_count: comparison.unpaired_count,
        }
    }
}

pub(super) async fn read(
    request: ApiRequest<ExperimentTarget, ExperimentQuery>,
) -> Result<Json<ExperimentRows>, Problem> {
    let user = user_of(&request.principal, request.query.user.clone())?;
    let (target, query) = (request.target, request.query);
    joined(tokio::task::spawn_blocking(move || read_page(&target, &user, &query)).await).map(Json)
}

/// A page of an experiment. Reads the files, result by result.
fn read_page(
    target: &ExperimentTarget,
    user: &str,
    query: &ExperimentQuery,
) -> Result<ExperimentRows, Problem> {
    let ExperimentTarget { app: AppTarget(app), name } = target;
    let folder = folder(app)?;
    let (experiment, report) = match folder.experiment(user, name)? {
        StoredExperiment::Done(report) => (ExperimentRow::of(name, &report), Some(report)),
        StoredExperiment::UnderWay(job, report) => {
            let row = ExperimentRow::under_way(app, &job, folder.progress(&job));
            return ExperimentRows::of(row, report.as_ref(), query.after);
        }
        StoredExperiment::Failed(job) => (ExperimentRow::failed(app, &job), None),
    };
    let mut rows = ExperimentRows::of(experiment, report.as_ref(), query.after)?;
    if let (Some(report), Some(baseline)) = (report, &query.baseline) {
        let StoredExperiment::Done(baseline) = folder.experiment(user, baseline)? else {
            return Err(Problem::invalid("baseline", format!("experiment `{baseline}` has no report")));
        };
        let compared = Comparison::of_stored(&baseline, &report, DEFAULT_SEED);
        rows.comparison = Some(ComparisonRow::from(&compared.map_err(|error| of_eval(&error))?));
    }
    Ok(rows)
}
