//! Apps for clients of the Model Context Protocol, at `/mcp/{app}`; and at `/mcp`, if there is one app only.
//!
//! Requests pass what all requests pass: hosts and origins, authentication, the role, the limits. Each principal has a
//! service of its own, so that no session of another principal exists for it, whatever id it sends.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodFilter, on};
use bytes::Bytes;
use http::Method;
use http::request::Parts;
use http_body_util::Full;
use serde::Deserialize;
use tower_service::Service as _;

use crate::http::guard::access::CallerName;
use crate::http::guard::auth::{Principal, Role};
use crate::http::guard::problem::Problem;
use crate::http::operation::admission::admit;
use crate::http::operation::request::{read_body, weight_of_json};
use crate::http::operation::response::{finish, holding};
use crate::http::state::ServerState;
use crate::mcp::{HttpService, RunPermits};

/// A message of a client: only what it is.
#[derive(Deserialize)]
struct McpMessage {
    #[serde(default)]
    method: String,
}

/// Adds the routes.
pub(in crate::http) fn mount(router: Router<Arc<ServerState>>) -> Router<Arc<ServerState>> {
    let methods = MethodFilter::GET.or(MethodFilter::POST).or(MethodFilter::DELETE);
    ["/mcp", "/mcp/{app}"].into_iter().fold(router, |router, path| router.route(path, on(methods, answer)))
}

async fn answer(State(shared): State<Arc<ServerState>>, request: Request) -> Response {
    let foreign = shared.rules.allowed_origin(request.headers());
    let (parts, body) = request.into_parts();
    let admitted = admit(&shared, &parts, Role::Act).await;
    let caller = admitted.as_ref().ok().map(|principal| CallerName(principal.name().to_owned()));
    let answered = match admitted {
        Ok(principal) => serve(&shared, &principal, parts, body).await,
        Err(problem) => Err(problem),
    };
    let mut response = answered.into_response();
    if let Some(caller) = caller {
        response.extensions_mut().insert(caller);
    }
    shared.metrics.answered("mcp", response.status());
    finish(response, foreign)
}

async fn serve(
    shared: &Arc<ServerState>,
    principal: &Principal,
    mut parts: Parts,
    body: Body,
) -> Result<Response, Problem> {
    let several = || Problem::invalid("path", "the server has several apps: use /mcp/{app}");
    let app = shared.app_of(&mut parts).await?.ok_or_else(several)?;
    let memory = shared.usage.memory(principal.user(), &shared.limits);
    let body = Bytes::from(read_body(shared, &memory, body, shared.limits.body).await?);
    memory.grow(weight_of_json(&body))?;
    let mut service = shared.mcp.of(app, principal).await;
    let stream = match parts.method {
        Method::GET => {
            let permit = shared.usage.stream_permit(principal.user(), &shared.limits)?;
            Some(shared.metrics.stream(permit))
        }
        _ => None,
    };
    admit_message(shared, principal, &service, &mut parts, &body).await?;
    let Ok(response) = service.call(Request::from_parts(parts, Full::new(body))).await;
    // The permit of a stream is released with its end.
    Ok(holding(response, stream))
}

/// Takes the permit of a run for a message that may start one, and limits the sessions of the protocol.
async fn admit_message(
    shared: &ServerState,
    principal: &Principal,
    service: &HttpService,
    parts: &mut Parts,
    body: &Bytes,
) -> Result<(), Problem> {
    let Ok(message) = serde_json::from_slice::<McpMessage>(body) else { return Ok(()) };
    let most = shared.limits.streams_per_user;
    match &*message.method {
        "tools/call" | "tasks/update" => {
            let permit = shared.usage.run_permit(principal.user(), &shared.limits)?;
            // It is held by the request, which the call keeps until its run ends.
            parts.extensions.insert(Arc::new(permit));
        }
        // NOTE: A poll continues a run whose process died, so that it may need a permit.
        "tasks/get" => {
            let (usage, user, limits) =
                (shared.usage.clone(), principal.user().clone(), shared.limits.clone());
            parts.extensions.insert(RunPermits::new(move || usage.run_permit(&user, &limits).ok()));
        }
        "initialize" if service.clients().await >= most => {
            return Err(Problem::too_many("sessions of the Model Context Protocol", most));
        }
        _ => {}
    }
    Ok(())
}
