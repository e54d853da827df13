//! The cards of the apps: what an agent is, and where it is reached.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodFilter, on};
use axum::{Json, Router};
use http::request::Parts;
use http::{HeaderMap, header};
use serde_json::{Value, json};

use crate::http::app::App;
use crate::http::guard::auth::Role;
use crate::http::guard::problem::Problem;
use crate::http::operation::admission::admit;
use crate::http::operation::path::segment;
use crate::http::operation::response::finish;
use crate::http::protocol::a2a::VERSION;
use crate::http::state::ServerState;

/// Adds the cards: `/a2a/{app}/.well-known/agent-card.json`, and at the root, if there is one app.
pub(in crate::http) fn mount_cards(router: Router<Arc<ServerState>>) -> Router<Arc<ServerState>> {
    let paths = ["/.well-known/agent-card.json", "/a2a/{app}/.well-known/agent-card.json"];
    paths.into_iter().fold(router, |router, path| router.route(path, on(MethodFilter::GET, answer)))
}

async fn answer(State(shared): State<Arc<ServerState>>, request: Request) -> Response {
    let foreign = shared.rules.allowed_origin(request.headers());
    let (parts, _) = request.into_parts();
    finish(card(&shared, parts).await.into_response(), foreign)
}

/// The card of an app: for readers, or for anyone, as the server is set.
async fn card(shared: &ServerState, mut parts: Parts) -> Result<Json<Value>, Problem> {
    if shared.has_public_cards {
        shared.rules.admit_host(&parts.headers).map_err(Problem::denied)?;
    } else {
        admit(shared, &parts, Role::Read).await?;
    }
    let app = shared.app_of(&mut parts).await?.ok_or_else(Problem::unknown_path)?;
    let scheme = if shared.has_secure_cookies { "https" } else { "http" };
    Ok(Json(card_of(app, scheme, &parts.headers)))
}

fn card_of(app: &App, scheme: &str, headers: &HeaderMap) -> Value {
    let name = app.name();
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let description = app.description().map_or_else(|| format!("The agent {name}."), str::to_owned);
    json!({
        "name": name,
        "description": description,
        "version": env!("CARGO_PKG_VERSION"),
        "supportedInterfaces": [{
            "url": format!("{scheme}://{host}/a2a/{}", segment(name)),
            "protocolBinding": "JSONRPC",
            "protocolVersion": VERSION,
        }],
        "capabilities": {"streaming": true, "pushNotifications": false, "extendedAgentCard": false},
        "securitySchemes": {"bearer": {"httpAuthSecurityScheme": {"scheme": "Bearer"}}},
        "securityRequirements": [{"schemes": {"bearer": {"list": []}}}],
        "defaultInputModes": ["text/plain", "application/json"],
        "defaultOutputModes": ["text/plain", "application/json"],
        "skills": [{"id": name, "name": name, "description": description, "tags": ["agent"]}],
    })
}
