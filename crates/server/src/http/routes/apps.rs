//! Apps: what a server has.

use axum::Json;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use stepfold_agent_loop::Agent;
use stepfold_agent_loop::tools::{Approval, RefusedTool, Tool, Tools};

use super::model::digest;
use crate::http::app::App;
use crate::http::guard::auth::Role;
use crate::http::guard::problem::Problem;
use crate::http::operation::reply::OpenMetrics;
use crate::http::operation::request::{ApiRequest, AppTarget, WholeServer};
use crate::http::rows::{
    AgentRow, AppDetail, AppRow, Apps, InsideRow, MeRow, ModelOfRow, OutputRow, PricesRow, RefusedToolRow,
    ToolRow, UpgradeRows, json,
};

pub(super) async fn metrics(request: ApiRequest<WholeServer>) -> Result<OpenMetrics, Problem> {
    for app in request.shared.apps.values() {
        request.shared.metrics.read(app.name(), app.runner()).await;
    }
    Ok(OpenMetrics(request.shared.metrics.text()))
}

pub(super) async fn list(request: ApiRequest<WholeServer>) -> Result<Json<Apps>, Problem> {
    Ok(Json(Apps { apps: request.shared.apps.values().map(|app| row(app)).collect() }))
}

pub(super) async fn read(request: ApiRequest<AppTarget>) -> Result<Json<AppDetail>, Problem> {
    Ok(Json(detail(&request.target.0)))
}

pub(super) async fn graph(request: ApiRequest<AppTarget>) -> Result<Json<Value>, Problem> {
    let shape = request.target.0.shape().cloned();
    shape.map(Json).ok_or_else(|| Problem::no_graph(request.target.0.name()))
}

pub(super) async fn me(request: ApiRequest<WholeServer>) -> Result<Json<MeRow>, Problem> {
    let principal = &request.principal;
    let role = principal.role().as_str();
    let (user, name) = (principal.user().to_string(), principal.name().to_owned());
    Ok(Json(MeRow { user, name, role }))
}

/// The bound of a check.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct UpgradeQuery {
    /// The number of unfinished runs that are checked; 200 by default, at most 1,000.
    limit: Option<usize>,
}

pub(super) async fn upgrade(
    request: ApiRequest<AppTarget, UpgradeQuery>,
) -> Result<Json<UpgradeRows>, Problem> {
    let limit = request.query.limit.unwrap_or(200).clamp(1, 1_000);
    let mut check = request.target.0.runner().check_upgrade().at_most(MOST_LISTS);
    if request.principal.role() != Role::Administer {
        check = check.of_user(request.principal.user().clone());
    }
    let mut runs = Vec::new();
    let mut has_more = false;
    while let Some(run) = check.next().await? {
        has_more = runs.len() == limit;
        if has_more {
            break;
        }
        runs.push(run);
    }
    Ok(Json(UpgradeRows::of(&runs, has_more || check.has_more())))
}

/// The most lists of users and sessions that a check reads.
const MOST_LISTS: u64 = 500;

fn detail(app: &App) -> AppDetail {
    let agent = app.runner().agent();
    let agents = inside(agent);
    let mut models: Vec<ModelOfRow> = Vec::new();
    let mut add = |model: &str, agent: &str| match models.iter_mut().find(|known| known.model == model) {
        Some(known) if known.agents.iter().any(|name| name == agent) => {}
        Some(known) => known.agents.push(agent.to_owned()),
        None => models.push(ModelOfRow { model: model.to_owned(), agents: vec![agent.to_owned()] }),
    };
    for agent in std::iter::once(agent).chain(agents.iter().map(|(_, agent)| *agent)) {
        add(agent.model().id(), agent.name());
        if let Some(model) = agent.summary_model() {
            add(model.id(), agent.name());
        }
    }
    let of_inside = |(path, agent): (Vec<&str>, &Agent)| InsideRow {
        name: agent.name().to_owned(),
        model: agent.model().id().to_owned(),
        inside_of: path.into_iter().map(str::to_owned).collect(),
        made_of: made_of(agent),
    };
    let prices = &app.pricing().prices;
    AppDetail {
        app: row(app),
        made_of: made_of(agent),
        models,
        agents: agents.into_iter().map(of_inside).collect(),
        prices: (!prices.is_empty()).then(|| PricesRow { currency: "USD", models: json(prices) }),
        graph: app.shape().cloned(),
    }
}

/// Agents that have each other inside end here.
const DEEPEST: usize = 16;

/// The agents inside, at all depths, each with the names of the items inside of which it is.
fn inside(agent: &Agent) -> Vec<(Vec<&str>, &Agent)> {
    let mut all: Vec<(Vec<&str>, &Agent)> = Vec::new();
    let mut next = vec![(Vec::new(), agent)];
    while let Some((path, agent)) = next.pop() {
        for (name, inner) in agent.inside().into_iter().rev().filter(|_| path.len() < DEEPEST) {
            let path: Vec<&str> = path.iter().copied().chain([name]).collect();
            next.push((path, inner));
        }
        if !path.is_empty() {
            all.push((path, agent));
        }
    }
    all
}

fn made_of(agent: &Agent) -> AgentRow {
    let inside = agent.inside();
    let tool = |tool: &Tool| ToolRow {
        name: tool.name().to_owned(),
        description: tool.spec().description.clone(),
        parameters: tool.spec().parameters.clone(),
        effect: json(&tool.effect()),
        approval: match tool.approval() {
            Approval::Never => "never",
            Approval::Always => "always",
            Approval::Once => "once",
            _ => "when",
        },
        agent: inside.iter().find(|(name, _)| *name == tool.name()).map(|(_, agent)| agent.name().to_owned()),
        digest: digest(tool.spec()),
    };
    AgentRow {
        instructions: agent.instructions().map(|template| template.text().to_owned()),
        tools: agent.tools().into_iter().flat_map(Tools::iter).map(tool).collect(),
        lists_tools: agent.tools().is_none(),
        refused_tools: agent.refused_tools().into_iter().map(refused).collect(),
        output: OutputRow::of(agent),
    }
}

fn refused((toolset, refused): (String, RefusedTool)) -> RefusedToolRow {
    RefusedToolRow { toolset, tool: refused.tool, reason: refused.reason }
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
