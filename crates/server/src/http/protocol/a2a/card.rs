//! The cards of the apps: what an agent is, and where it is reached.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::routing::{MethodFilter, on};
use http::{HeaderMap, Response, StatusCode, header};
use serde_json::{Value, json};

use crate::http::app::App;
use crate::http::guard::auth::Role;
use crate::http::guard::problem::Problem;
use crate::http::operation::admission::admit;
use crate::http::operation::path::{names, segment};
use crate::http::operation::reply::json_response;
use crate::http::operation::response::finish;
use crate::http::protocol::a2a::VERSION;
use crate::http::state::ServerState;

/// Adds the cards: `/a2a/{app}/.well-known/agent-card.json`, and at the root, if there is one app.
pub(in crate::http) fn mount_cards(mut router: Router, shared: &Arc<ServerState>) -> Router {
    for path in ["/.well-known/agent-card.json", "/a2a/{app}/.well-known/agent-card.json"] {
        let shared = Arc::clone(shared);
        let handler = move |request: Request| {
            let shared = Arc::clone(&shared);
            async move {
                let foreign = shared.rules.allowed_origin(request.headers());
                let card = card(&shared, request).await.unwrap_or_else(Problem::into_response);
                finish(card, foreign)
            }
        };
        router = router.route(path, on(MethodFilter::GET, handler));
    }
    router
}

/// The card of an app: for readers, or for anyone, as the server is set.
async fn card(shared: &ServerState, request: Request) -> Result<Response<Body>, Problem> {
    let (mut parts, _) = request.into_parts();
    if shared.has_public_cards {
        shared.rules.admit_host(&parts.headers).map_err(Problem::denied)?;
    } else {
        admit(shared, &parts, Role::Read).await?;
    }
    let names = names(&mut parts).await?;
    let mut apps = shared.apps.values();
    let app = match (names.get("app"), apps.next(), apps.next()) {
        (Some(name), ..) => shared.apps.get(name).ok_or_else(|| Problem::unknown_app(name))?,
        (None, Some(only), None) => only,
        (None, ..) => return Err(Problem::unknown_path()),
    };
    let scheme = if shared.has_secure_cookies { "https" } else { "http" };
    Ok(json_response(StatusCode::OK, &card_of(app, scheme, &parts.headers)))
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
