//! Erasure of content, by administrators: of events, a call, a session with its forks, or a user.

use std::collections::BTreeSet;

use axum::Json;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use stepfold_agent_loop::{Ids as _, RandomIds};
use stepfold_runner::{EraseRequest, ErasureReport, ErasureSubject, Runner};
use stepfold_session_scopes::{
    Author, ErasureId, ErasureRecord, ListErasures, SessionId, SessionStore as _, UserId, VacuumStore,
};

use crate::http::app::App;
use crate::http::guard::problem::Problem;
use crate::http::operation::request::{ApiRequest, AppTarget, JsonBody};

/// The content to be erased, and the reason.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewErasure {
    /// The user whose content it is.
    user: String,
    /// The session; without it, everything of the user is erased, and `everything` must be true.
    #[serde(default)]
    session: Option<String>,
    /// The versions of events of the session; without them and `call`, the whole session is erased.
    #[serde(default)]
    versions: BTreeSet<u64>,
    /// A call of the session, with its arguments and its result.
    #[serde(default)]
    call: Option<String>,
    /// Confirms that everything of the user is erased.
    #[serde(default)]
    everything: bool,
    /// The reason, which is recorded. It must not contain what is erased.
    reason: String,
    /// The id of the erasure; a new one by default. A repeated request with the same id, reason and administrator is recorded
    /// once, and has the answer of the first; one that would erase more is refused.
    #[serde(default)]
    id: Option<String>,
    /// Lists what would be erased, and erases nothing.
    #[serde(default)]
    dry_run: bool,
    /// Also removes deleted bytes from the files of the store, which takes time, and makes writers wait.
    #[serde(default)]
    vacuum: bool,
}

impl NewErasure {
    fn subject(&self) -> Result<ErasureSubject, Problem> {
        let user = UserId::new(self.user.as_str())?;
        let is_of_event = !self.versions.is_empty() || self.call.is_some();
        let Some(session) = &self.session else {
            return match (self.everything, is_of_event) {
                (true, false) => Ok(ErasureSubject::User(user)),
                (true, true) => Err(Problem::invalid("erasure", "`versions` and `call` need a `session`")),
                (false, _) => Err(Problem::invalid("erasure", "name a `session`, or set `everything`")),
            };
        };
        if self.everything {
            return Err(Problem::invalid("erasure", "`session` and `everything` exclude each other"));
        }
        let session = SessionId::new(session.as_str())?;
        match (&self.call, self.versions.is_empty()) {
            (Some(_), false) => Err(Problem::invalid("erasure", "`versions` and `call` exclude each other")),
            (Some(call), true) => Ok(ErasureSubject::Call { user, session, call: call.clone() }),
            (None, false) => Ok(ErasureSubject::Events { user, session, versions: self.versions.clone() }),
            (None, true) => Ok(ErasureSubject::Session { user, session }),
        }
    }
}

/// An event that was erased, or would be.
#[derive(Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ErasedVersion {
    session: String,
    version: u64,
}

/// A case of a data set that was taken from erased content, or is an erased user's own.
#[derive(Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ErasedCaseRow {
    /// The user with the data set.
    user: String,
    data_set: String,
    case: String,
}

/// The result of an erasure.
#[expect(clippy::struct_excessive_bools, reason = "an answer as clients read it")]
#[derive(Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ErasureRow {
    /// Whether nothing was erased.
    dry_run: bool,
    /// The id of the erasure, for a repeat of the request after a vacuum that failed; none of a dry run.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    /// The sessions that are erased, or of which events are.
    sessions: Vec<String>,
    /// The erased events, unless whole sessions are erased.
    versions: Vec<ErasedVersion>,
    /// The number of erased events.
    events: u64,
    /// The erased keys of `user:`.
    user_keys: Vec<String>,
    /// The records of spend that no longer name the user.
    spend: u64,
    /// The budgets of the user that are erased.
    budgets: u64,
    /// Whether the user had a key in the ring of the store, which is destroyed.
    key: bool,
    /// Whether there was anything to erase: not of an unknown user, nor of what was erased before.
    found: bool,
    /// The erased cases of data sets that were taken from it, with their results, and all of an erased user's own data sets.
    cases: Vec<ErasedCaseRow>,
    /// The number of the erased results of such cases.
    results: u64,
    /// Whether deleted bytes were removed from the files of the store.
    vacuumed: bool,
}

pub(super) async fn erase(
    request: ApiRequest<AppTarget, (), JsonBody<NewErasure>>,
) -> Result<Json<ErasureRow>, Problem> {
    let (app, JsonBody(new)) = (request.target.0, request.body);
    let by = Author::new(request.principal.user().as_str())?;
    if new.reason.trim().is_empty() {
        return Err(Problem::invalid("erasure", "`reason` must not be empty"));
    }
    let id = ErasureId::new(new.id.clone().unwrap_or_else(|| RandomIds.next()))?;
    let erasure = EraseRequest::new(new.subject()?, by, new.reason.as_str()).with_id(id.clone());
    let erasure = if new.dry_run { erasure.dry_run() } else { erasure };
    let (report, CopyRows { cases, results }) = erased(&app, erasure).await?;
    let vacuumed = new.vacuum && !new.dry_run && is_vacuumed(app.runner()).await;
    let found = !report.is_empty() || !cases.is_empty() || results > 0;
    let version = |(key, version): &(stepfold_session_scopes::SessionKey, u64)| ErasedVersion {
        session: key.id.to_string(),
        version: *version,
    };
    Ok(Json(ErasureRow {
        dry_run: new.dry_run,
        id: (!new.dry_run).then(|| id.to_string()),
        sessions: report.sessions.iter().map(|key| key.id.to_string()).collect(),
        versions: report.versions.iter().map(version).collect(),
        events: report.events,
        user_keys: report.user_keys,
        spend: report.spend,
        budgets: report.budgets,
        key: report.had_key,
        found,
        cases,
        results,
        vacuumed,
    }))
}

/// The copies of erased content in data sets and reports.
#[derive(Default)]
struct CopyRows {
    cases: Vec<ErasedCaseRow>,
    results: u64,
}

#[cfg(not(feature = "eval"))]
async fn erased(app: &App, request: EraseRequest) -> Result<(ErasureReport, CopyRows), Problem> {
    Ok((app.runner().erase(request).await?, CopyRows::default()))
}

/// Erases content and its copies.
#[cfg(feature = "eval")]
async fn erased(app: &App, request: EraseRequest) -> Result<(ErasureReport, CopyRows), Problem> {
    use crate::http::experiments::{ErasedCase, ErasureError};

    let Some(folder) = app.experiment_folder() else {
        return Ok((app.runner().erase(request).await?, CopyRows::default()));
    };
    let erased = folder.erase_with_content(app.runner(), request).await;
    let (report, copies) = erased.map_err(|error| match error {
        ErasureError::Content(error) => error.into(),
        ErasureError::Copies(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
            Problem::busy_copies(&error)
        }
        ErasureError::Copies(error) => {
            tracing::error!(%error, "cases of experiments could not be erased");
            Problem::failed_experiment(
                "copies in data sets could not be erased: repeat the request; the log of the server has the cause",
            )
        }
    })?;
    let row = |ErasedCase { user, data_set, case }| ErasedCaseRow { user, data_set, case };
    Ok((report, CopyRows { cases: copies.cases.into_iter().map(row).collect(), results: copies.results }))
}

/// Vacuums the store; returns whether it did. The content is erased in any case, and the caller is told of that.
async fn is_vacuumed(runner: &Runner) -> bool {
    let vacuumed = runner.store().vacuum(VacuumStore::new()).await;
    if let Err(error) = &vacuumed {
        tracing::warn!(%error, "content was erased, but the store was not vacuumed");
    }
    vacuumed.is_ok()
}

/// The place of a page of records.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ErasuresQuery {
    /// The number of records before the page.
    #[serde(default)]
    after: usize,
}

/// The most records of a page.
const PAGE: usize = 100;

/// The record of an erasure: it has neither content nor the id of a user.
#[derive(Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ErasureRecordRow {
    id: String,
    /// `events`, `session` or `user`.
    kind: String,
    /// The time (RFC 3339).
    at: String,
    /// The administrator who erased.
    by: String,
    reason: String,
    /// The number of sessions that were erased, or of which events were.
    sessions: u64,
    /// The number of erased events.
    events: u64,
}

impl ErasureRecordRow {
    fn of(record: &ErasureRecord) -> Self {
        ErasureRecordRow {
            id: record.id.to_string(),
            kind: record.kind.to_string(),
            at: record.at.to_string(),
            by: record.by.to_string(),
            reason: record.reason.clone(),
            sessions: record.sessions,
            events: record.events,
        }
    }
}

/// Records of erasures, oldest first.
#[derive(Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ErasurePage {
    erasures: Vec<ErasureRecordRow>,
    /// The beginning of the next page; none at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<usize>,
}

pub(super) async fn list(
    request: ApiRequest<AppTarget, ErasuresQuery>,
) -> Result<Json<ErasurePage>, Problem> {
    let runner = request.target.0.runner();
    let after = request.query.after;
    // NOTE: erasures are rare, so a page is counted from the first record.
    let wanted = ListErasures::new(runner.key("-", "-")?.app).limit(after.saturating_add(PAGE + 1));
    let listed = runner.store().erasures(wanted).await?;
    let next = (listed.len() > after + PAGE).then_some(after + PAGE);
    let erasures = listed.iter().skip(after).take(PAGE).map(ErasureRecordRow::of).collect();
    Ok(Json(ErasurePage { erasures, next }))
}
