//! Apps: what a server has.

use serde_json::Value;

use crate::http::auth::Role;
use crate::http::operation::{Asked, Found, InApp, OpenMetrics, Whole};
use crate::http::problem::Problem;
use crate::http::rows::{AppRow, Apps, MeRow, json};
use crate::http::server::App;

pub(super) async fn metrics(asked: Asked<Whole>) -> Result<OpenMetrics, Problem> {
    for app in asked.shared.apps.values() {
        asked.shared.metrics.load(app.name(), app.runner().load());
    }
    Ok(OpenMetrics(asked.shared.metrics.text()))
}

pub(super) async fn list(asked: Asked<Whole>) -> Result<Found<Apps>, Problem> {
    Ok(Found(Apps { apps: asked.shared.apps.values().map(|app| row(app)).collect() }))
}

pub(super) async fn read(asked: Asked<InApp>) -> Result<Found<AppRow>, Problem> {
    Ok(Found(row(&asked.target.0)))
}

pub(super) async fn graph(asked: Asked<InApp>) -> Result<Found<Value>, Problem> {
    let shape = asked.target.0.shape().cloned();
    shape.map(Found).ok_or_else(|| Problem::no_graph(asked.target.0.name()))
}

pub(super) async fn me(asked: Asked<Whole>) -> Result<Found<MeRow>, Problem> {
    let principal = &asked.principal;
    let role = match principal.role() {
        Role::Read => "read",
        Role::Act => "act",
        Role::Administer => "administer",
    };
    let (user, name) = (principal.user().to_string(), principal.name().to_owned());
    Ok(Found(MeRow { user, name, role }))
}

fn row(app: &App) -> AppRow {
    let agent = app.runner().agent();
    AppRow {
        app: app.name().to_owned(),
        agent: agent.name().to_owned(),
        description: app.description().map(str::to_owned),
        model: agent.model().id().to_owned(),
        schema: json(agent.schema()),
        has_graph: app.shape().is_some(),
    }
}
