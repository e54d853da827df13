//! Labels on versions, and the forks of a session.

use std::collections::HashMap;
use std::sync::Arc;

use http::HeaderMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use stepfold_session_scopes::{Label, LabelVersion, ListForks, ReadLabels, SessionStore as _};

use crate::http::auth::Principal;
use crate::http::operation::{Asked, Done, Found, InSession, Json, Target};
use crate::http::problem::Problem;
use crate::http::server::Shared;

/// A label of a session of the principal.
pub(super) struct InLabel {
    session: InSession,
    label: Label,
}

impl Target for InLabel {
    async fn find(
        shared: &Arc<Shared>,
        principal: &Principal,
        names: &HashMap<String, String>,
    ) -> Result<Self, Problem> {
        let session = InSession::find(shared, principal, names).await?;
        let label = Label::new(names.get("label").map_or("", String::as_str))?;
        Ok(InLabel { session, label })
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

pub(super) async fn labels(asked: Asked<InSession>) -> Result<Found<LabelRows>, Problem> {
    let InSession { app, session } = &asked.target;
    let labels = app.runner().store().labels(ReadLabels::new(session.key().clone())).await?;
    let row = |(label, version): (Label, u64)| LabelRow { label: label.to_string(), version };
    Ok(Found(LabelRows { labels: labels.into_iter().map(row).collect() }))
}

/// What a label names.
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

pub(super) async fn set_label(asked: Asked<InLabel, (), Json<Labelled>>) -> Result<Found<LabelSet>, Problem> {
    let InLabel { session: InSession { app, session }, label } = asked.target;
    let version = asked.body.0.version;
    let request = LabelVersion::new(session.key().clone(), label.clone(), version);
    let before = app.runner().store().set_label(request).await?;
    Ok(Found(LabelSet { label: label.to_string(), version, before }))
}

pub(super) async fn remove_label(asked: Asked<InLabel>) -> Result<Done, Problem> {
    let InLabel { session: InSession { app, session }, label } = asked.target;
    let request = LabelVersion::removal(session.key().clone(), label.clone());
    match app.runner().store().set_label(request).await? {
        Some(_) => Ok(Done(HeaderMap::new())),
        None => Err(Problem::unknown_label(label.as_str())),
    }
}

/// The forks of a session.
#[derive(Serialize, JsonSchema)]
pub(super) struct ForkRows {
    /// Those that are there, in the order in which they were made; not the forks of these.
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

pub(super) async fn forks(asked: Asked<InSession>) -> Result<Found<ForkRows>, Problem> {
    let InSession { app, session } = &asked.target;
    let forks = app.runner().store().forks(ListForks::new(session.key().clone())).await?;
    let forks = forks.into_iter().map(|fork| ForkRow {
        id: fork.id.to_string(),
        version: fork.version,
        created: fork.created.to_string(),
    });
    Ok(Found(ForkRows { forks: forks.collect() }))
}
