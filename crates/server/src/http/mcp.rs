//! Apps for clients of the Model Context Protocol, at `/mcp/{app}`; and at `/mcp`, if there is one app only.
//!
//! Requests pass what all requests pass: hosts and origins, authentication, the role, the limits. Each principal has a
//! service of its own, so that no session of another principal exists for it, whatever id it sends.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::routing::{MethodFilter, on};
use bytes::Bytes;
use http::request::Parts;
use http::{Method, Response};
use http_body_util::Full;
use serde::Deserialize;
use tower_service::Service as _;

use super::access::CallerName;
use super::auth::{Principal, Role};
use super::operation::{names, read_body, weight_of_json};
use super::problem::Problem;
use super::server::{App, ServerState, admit, finish, holding};
use crate::mcp::{AgentServer, HttpOptions, HttpService, RunPermits};

/// Services without requests are dropped when there are more than this.
const IDLE: usize = 256;

/// The services of principals, by app.
#[derive(Default)]
pub(super) struct McpServices(Mutex<ServiceCache>);

#[derive(Default)]
struct ServiceCache {
    services: HashMap<ServiceOwner, HttpService>,
    /// How many were left when idle ones were dropped last.
    left: usize,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct ServiceOwner {
    app: String,
    user: String,
    author: String,
}

/// A message of a client: only what it is.
#[derive(Deserialize)]
struct McpMessage {
    #[serde(default)]
    method: String,
}

impl McpServices {
    async fn of(&self, app: &App, principal: &Principal) -> HttpService {
        let (user, author) = (principal.user().to_string(), principal.name().to_owned());
        let whose = ServiceOwner { app: app.name().to_owned(), user, author };
        if let Some(service) = self.with(|kept| kept.services.get(&whose).cloned()) {
            return service;
        }
        self.forget_idle().await;
        self.with(|kept| kept.services.entry(whose).or_insert_with(|| service(app, principal)).clone())
    }

    /// Drops services without clients when there are many, and twice as many as were left the last time: so a principal that
    /// is new pays for a look at few others, on average. A request under way keeps its own service.
    async fn forget_idle(&self) {
        let all: Vec<_> = self.with(|kept| match kept.services.len() < IDLE.max(2 * kept.left) {
            true => Vec::new(),
            false => kept.services.clone().into_iter().collect(),
        });
        if all.is_empty() {
            return;
        }
        for (whose, service) in all {
            if service.clients().await == 0 {
                self.with(|kept| kept.services.remove(&whose));
            }
        }
        self.with(|kept| kept.left = kept.services.len());
    }

    /// Ends all streams.
    pub(super) fn stop(&self) {
        self.with(|kept| kept.services.values().for_each(HttpService::stop));
    }

    fn with<T>(&self, change: impl FnOnce(&mut ServiceCache) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn service(app: &App, principal: &Principal) -> HttpService {
    let server = AgentServer::new(app.runner().clone(), principal.user().as_str()).by(principal.name());
    let server = match app.description() {
        Some(description) => server.describe(description),
        None => server,
    };
    server.into_http(HttpOptions::new().behind_a_gate())
}

/// Adds the routes.
pub(super) fn mount(mut router: Router, shared: &Arc<ServerState>) -> Router {
    let methods = MethodFilter::GET.or(MethodFilter::POST).or(MethodFilter::DELETE);
    for path in ["/mcp", "/mcp/{app}"] {
        let shared = Arc::clone(shared);
        let handler = move |request: Request| {
            let shared = Arc::clone(&shared);
            async move { answer(&shared, request).await }
        };
        router = router.route(path, on(methods, handler));
    }
    router
}

async fn answer(shared: &Arc<ServerState>, request: Request) -> Response<Body> {
    let foreign = shared.rules.allowed_origin(request.headers());
    let (parts, body) = request.into_parts();
    let admitted = admit(shared, &parts, Role::Act).await;
    let caller = admitted.as_ref().ok().map(|principal| CallerName(principal.name().to_owned()));
    let answered = match admitted {
        Ok(principal) => serve(shared, &principal, parts, body).await,
        Err(problem) => Err(problem),
    };
    let mut response = answered.unwrap_or_else(Problem::into_response);
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
) -> Result<Response<Body>, Problem> {
    let app = app(shared, &mut parts).await?;
    let memory = shared.usage.memory(principal.user(), &shared.limits);
    let body = Bytes::from(read_body(shared, &memory, body, shared.limits.body).await?);
    memory.take(weight_of_json(&body))?;
    let mut service = shared.mcp.of(&app, principal).await;
    let stream = match parts.method {
        Method::GET => {
            let place = shared.usage.stream(principal.user(), &shared.limits)?;
            Some(shared.metrics.stream(place))
        }
        _ => None,
    };
    admit_message(shared, principal, &service, &mut parts, &body).await?;
    let Ok(response) = service.call(Request::from_parts(parts, Full::new(body))).await;
    // The place of a stream is free again with its end.
    Ok(holding(response, stream))
}

/// Takes the place of a run for what may start one; and bounds the sessions of the protocol.
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
            let place = shared.usage.run(principal.user(), &shared.limits)?;
            // It is held by the request, which the call keeps until its run ends.
            parts.extensions.insert(Arc::new(place));
        }
        // It continues with a run whose process died.
        "tasks/get" => {
            let (usage, user, limits) =
                (shared.usage.clone(), principal.user().clone(), shared.limits.clone());
            parts.extensions.insert(RunPermits::new(move || usage.run(&user, &limits).ok()));
        }
        "initialize" if service.clients().await >= most => {
            return Err(Problem::too_many("sessions of the Model Context Protocol", most));
        }
        _ => {}
    }
    Ok(())
}

async fn app(shared: &ServerState, parts: &mut Parts) -> Result<Arc<App>, Problem> {
    let names = names(parts).await?;
    let mut apps = shared.apps.values();
    let app = match (names.get("app"), apps.next(), apps.next()) {
        (Some(name), ..) => shared.apps.get(name).ok_or_else(|| Problem::unknown_app(name))?,
        (None, Some(only), None) => only,
        (None, ..) => return Err(Problem::invalid("path", "the server has several apps: use /mcp/{app}")),
    };
    Ok(Arc::clone(app))
}
