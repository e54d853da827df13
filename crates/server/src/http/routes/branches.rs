//! Labels on versions, and the forks of a session.

use axum::Json;
use axum::response::NoContent;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use stepfold_session_scopes::{Label, LabelVersion, ListForks, ReadLabels, SessionStore as _};

use crate::http::app::SessionTarget;
use crate::http::guard::problem::Problem;

use crate::http::operation::request::{ApiRequest, JsonBody, PathParameter, SessionPart};

impl PathParameter for Label {
    const PARAMETER: &'static str = "label";

    fn read(text: &str) -> Result<Self, Problem> {
        Ok(Label::new(text)?)
    }
}

/// The labels of a session.
#[derive(Serialize, JsonSchema)]
pub(super) struct LabelRows {
    /// In the order of their versions.
    labels: Vec<LabelRow>,
}

/// A label: the name of a version.
#[derive(Serialize, JsonSchema)]
struct LabelRow {
    label: String,
    version: u64,
}

pub(super) async fn labels(request: ApiRequest<SessionTarget>) -> Result<Json<LabelRows>, Problem> {
    let SessionTarget { app, session } = &request.target;
    let labels = app.runner().store().labels(ReadLabels::new(session.key().clone())).await?;
    let row = |(label, version): (Label, u64)| LabelRow { label: label.to_string(), version };
    Ok(Json(LabelRows { labels: labels.into_iter().map(row).collect() }))
}

/// The version that a label names.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Labelled {
    version: u64,
}

/// A label that was set.
#[derive(Serialize, JsonSchema)]
pub(super) struct LabelSet {
    label: String,
    version: u64,
    /// The version that it named before; absent if there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<u64>,
}

pub(super) async fn set_label(
    request: ApiRequest<SessionPart<Label>, (), JsonBody<Labelled>>,
) -> Result<Json<LabelSet>, Problem> {
    let SessionPart { session: SessionTarget { app, session }, part: label } = request.target;
    let version = request.body.0.version;
    let change = LabelVersion::new(session.key().clone(), label.clone(), version);
    let before = app.runner().store().set_label(change).await?;
    Ok(Json(LabelSet { label: label.to_string(), version, before }))
}

pub(super) async fn remove_label(request: ApiRequest<SessionPart<Label>>) -> Result<NoContent, Problem> {
    let SessionPart { session: SessionTarget { app, session }, part: label } = request.target;
    let change = LabelVersion::removal(session.key().clone(), label.clone());
    match app.runner().store().set_label(change).await? {
        Some(_) => Ok(NoContent),
        None => Err(Problem::unknown_label(label.as_str())),
    }
}

/// The forks of a session.
#[derive(Serialize, JsonSchema)]
pub(super) struct ForkRows {
    /// The existing forks, in the order in which they were made; not the forks of these.
    forks: Vec<ForkRow>,
}

/// A fork.
#[derive(Serialize, JsonSchema)]
struct ForkRow {
    id: String,
    /// The version that it begins with.
    version: u64,
    /// When it was made (RFC 3339).
    created: String,
}

pub(super) async fn forks(request: ApiRequest<SessionTarget>) -> Result<Json<ForkRows>, Problem> {
    let SessionTarget { app, session } = &request.target;
    let forks = app.runner().store().forks(ListForks::new(session.key().clone())).await?;
    let forks = forks.into_iter().map(|fork| ForkRow {
        id: fork.id.to_string(),
        version: fork.version,
        created: fork.created.to_string(),
    });
    Ok(Json(ForkRows { forks: forks.collect() }))
}
