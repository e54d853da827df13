//! The router: which request is answered by which operation or page.

use std::sync::Arc;

use axum::Router;
use axum::body::HttpBody as _;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodFilter, on};
use bytes::Bytes;
use http::{Method, StatusCode, header};

use super::Server;
use crate::http::guard::access::{CallerName, logged};
use crate::http::guard::auth::{Principal, Role};
use crate::http::guard::own_thread::{joined, on_own_thread};
use crate::http::guard::problem::{Problem, ProblemForm};
use crate::http::operation::admission::{admit, authenticate};
use crate::http::operation::response::{
    SLICE, allowed_headers, finish, holding, in_slices, with_headers, with_origin,
};
use crate::http::operation::{ApiOperation, openapi};
use crate::http::pages::adk_web::BASE as ADK_WEB;
use crate::http::pages::studio;
use crate::http::phase::ServerPhase;
use crate::http::state::ServerState;
use crate::http::{protocol, routes};

impl Server {
    /// The router, to embed into an application's own [axum](https://docs.rs/axum) program. All rules apply to it; limits
    /// of connections are those of the program.
    pub fn router(&self) -> Router {
        let mut router = Router::new();
        for operation in operations() {
            let path = format!("{}{}", operation.base, operation.path);
            let filter = MethodFilter::try_from(operation.method.clone()).unwrap_or(MethodFilter::GET);
            let operation = Arc::new(operation);
            let handler = move |State(shared), request| answer(shared, Some(Arc::clone(&operation)), request);
            router = router.route(&path, on(filter, handler));
        }
        for path in PUBLIC.into_iter().chain(studio::paths()) {
            router = router.route(path, on(MethodFilter::GET, answer_public));
        }
        #[cfg(feature = "mcp")]
        let mut router = super::mcp_endpoint::mount(router);
        if self.shared.adk_web.is_some() {
            for path in [ADK_WEB.to_owned(), format!("{ADK_WEB}{{*path}}")] {
                router = router.route(&path, on(MethodFilter::GET, adk_web));
            }
        }
        let router = protocol::mount_cards(router)
            .method_not_allowed_fallback(not_allowed)
            .fallback(|State(shared), request| answer(shared, None, request))
            .with_state(Arc::clone(&self.shared));
        match self.shared.access.clone() {
            None => router,
            Some(log) => router.layer(axum::middleware::from_fn(move |request, next| {
                logged(Arc::clone(&log), request, next)
            })),
        }
    }
}

/// All operations: those of the API, and those of protocols of others.
pub(super) fn operations() -> Vec<ApiOperation> {
    let mut operations = routes::operations();
    operations.extend(protocol::operations());
    operations
}

/// Paths without authentication, for requests that name the host: their contents are not secret.
const PUBLIC: [&str; 3] = ["/healthz", "/readyz", "/api/v1/openapi.json"];

async fn answer_public(State(shared): State<Arc<ServerState>>, request: Request) -> Response {
    let response = match shared.rules.admit_host(request.headers()) {
        Err(denied) => Problem::denied(denied).into_response(),
        Ok(()) => match request.uri().path() {
            "/healthz" => "ok\n".into_response(),
            // NOTE: The store is not asked: all processes share it, so that a failing probe would take all of them out of
            // rotation (docs/decisions/server.md).
            "/readyz" if *shared.phase.borrow() != ServerPhase::Serving => {
                (StatusCode::SERVICE_UNAVAILABLE, "stopping\n").into_response()
            }
            "/readyz" => "ready\n".into_response(),
            "/api/v1/openapi.json" => {
                ([(header::CONTENT_TYPE, "application/json")], shared.openapi()).into_response()
            }
            path => studio::answer(path, request.headers()),
        },
    };
    with_headers(response)
}

/// A file of the page of adk-web. It is not a secret: its requests are authenticated.
async fn adk_web(State(shared): State<Arc<ServerState>>, request: Request) -> Response {
    let path = request.uri().path().strip_prefix(ADK_WEB).unwrap_or_default();
    let file = || shared.adk_web.as_ref().and_then(|bundle| bundle.file(path));
    let response = match shared.rules.admit_host(request.headers()) {
        Err(denied) => Problem::denied(denied).into_response(),
        Ok(()) => file().unwrap_or_else(|| Problem::unknown_path().into_response()),
    };
    with_headers(response)
}

impl ServerState {
    /// The OpenAPI document. Anyone may ask for it, so that it is made once.
    fn openapi(&self) -> Bytes {
        let document = || serde_json::to_vec(&openapi::document(&operations())).unwrap_or_default().into();
        self.openapi.get_or_init(document).clone()
    }
}

/// Answers a request: the rules first, then who sends it, then what it may do. Without an operation, the path is unknown.
async fn answer(
    shared: Arc<ServerState>,
    operation: Option<Arc<ApiOperation>>,
    request: Request,
) -> Response {
    let operation = operation.as_deref();
    let (metrics, foreign) = (shared.metrics.clone(), shared.rules.allowed_origin(request.headers()));
    let (parts, body) = request.into_parts();
    let needs = operation.map_or(Role::Read, |operation| operation.needs);
    let form = operation.map_or(ProblemForm::Plain, |operation| operation.form);
    let admitted = admit(&shared, &parts, needs).await;
    let caller = admitted.as_ref().ok().map(|principal| CallerName(principal.name().to_owned()));
    let answered = match (admitted, operation) {
        (Err(problem), _) => Err(problem),
        (Ok(_), None) => Err(Problem::unknown_path()),
        (Ok(principal), Some(operation)) => {
            execute(shared, operation, principal, Request::from_parts(parts, body)).await
        }
    };
    let mut response = answered.map_err(|problem| problem.in_form(form)).into_response();
    if let Some(caller) = caller {
        response.extensions_mut().insert(caller);
    }
    metrics.answered(operation.map_or("unknown", |operation| operation.id), response.status());
    finish(response, foreign)
}

/// Executes an operation. One that changes something has a task of its own: a client that is gone cancels nothing.
async fn execute(
    shared: Arc<ServerState>,
    operation: &ApiOperation,
    principal: Principal,
    request: Request,
) -> Result<Response, Problem> {
    // NOTE: A replay changes nothing, although it is a POST.
    let is_read = operation.method == Method::GET || operation.id == "replay";
    let timeout = shared.limits.heavy_timeout;
    // Before the body is read.
    let permit = match operation.is_heavy {
        true => Some(shared.usage.heavy_permit(principal.user(), &shared.limits)?),
        false => None,
    };
    let memory = shared.usage.memory(principal.user(), &shared.limits);
    let answered = (operation.handler)(shared, principal, memory.clone(), request);
    let answered = async move {
        let response = answered.await?;
        // NOTE: The length of a stream is unknown here; its memory has a reservation of its own.
        let bytes = response.body().size_hint().exact().unwrap_or(0);
        memory.resize(usize::try_from(bytes).unwrap_or(usize::MAX))?;
        match usize::try_from(bytes) {
            Ok(bytes) if bytes <= SLICE => Ok(response),
            _ => Ok(holding(in_slices(response), (memory, permit))),
        }
    };
    match (is_read, operation.is_whole) {
        (true, false) => answered.await,
        (true, true) => on_own_thread(answered, Some(timeout)).await,
        // NOTE: hyper drops a handler when its client is gone. In a task, a message that was accepted is also started
        // (docs/decisions/server.md).
        (false, false) => joined(tokio::spawn(answered).await),
        (false, true) => joined(tokio::spawn(on_own_thread(answered, None)).await),
    }
}

/// A known path with an unknown method; or a browser that asks first, for a page of an allowed origin.
async fn not_allowed(State(shared): State<Arc<ServerState>>, request: Request) -> Response {
    let foreign = shared.rules.allowed_origin(request.headers());
    let (parts, _) = request.into_parts();
    let is_preflight = foreign.is_some() && parts.method == Method::OPTIONS;
    let response = match shared.rules.admit_host(&parts.headers) {
        Err(denied) => Problem::denied(denied).into_response(),
        Ok(()) if is_preflight => (StatusCode::NO_CONTENT, "").into_response(),
        Ok(()) => match authenticate(&shared, &parts).await {
            Err(problem) => problem.into_response(),
            Ok(_) => Problem::method().into_response(),
        },
    };
    let mut response = with_origin(with_headers(response), foreign);
    if is_preflight {
        let allowed = allowed_headers(&parts.headers);
        response.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_HEADERS, allowed);
    }
    response
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use stepfold_agent_loop::Agent;
    use stepfold_agent_loop::test_kit::Script;
    use stepfold_runner::Runner;
    use stepfold_session_scopes::MemoryStore;

    use super::*;
    use crate::http::guard::auth::Tokens;

    #[test]
    fn the_openapi_document_is_made_once() {
        let agent = Agent::builder(Script::parse("").unwrap()).build().unwrap();
        let runner = Runner::builder(agent, MemoryStore::new()).build();
        let server = Server::builder().app(runner).auth(Tokens::new()).build().unwrap();
        let document = server.shared.openapi();
        assert_eq!(serde_json::from_slice::<Value>(&document).unwrap(), server.openapi());
        assert_eq!(server.clone().shared.openapi().as_ptr(), document.as_ptr());
    }
}
