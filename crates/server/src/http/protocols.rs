//! Routes of protocols that others have designed. Requests pass what those of the API pass; what they answer is theirs.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::routing::{MethodFilter, on};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{Stream, StreamExt as _};
use http::request::Parts;
use http::{HeaderMap, Method, Response};
use serde::de::DeserializeOwned;

use super::auth::{Principal, Role};
use super::operation::{Answer as _, Events, names, read_body};
use super::problem::Problem;
use super::server::{App, Shared, admit, finish};

/// A request of a protocol that was let in.
pub(super) struct Call {
    pub(super) shared: Arc<Shared>,
    pub(super) principal: Principal,
    pub(super) headers: HeaderMap,
    names: HashMap<String, String>,
    pub(super) body: Bytes,
}

impl Call {
    /// A part of the path.
    pub(super) fn name(&self, name: &str) -> &str {
        self.names.get(name).map_or("", String::as_str)
    }

    /// The app that the path names.
    pub(super) fn app(&self) -> Result<Arc<App>, Problem> {
        self.app_named(self.name("app"))
    }

    pub(super) fn app_named(&self, name: &str) -> Result<Arc<App>, Problem> {
        self.shared.apps.get(name).map(Arc::clone).ok_or_else(|| Problem::unknown_app(name))
    }

    /// The body, as JSON. An absent one is an empty object.
    pub(super) fn json<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        let body: &[u8] = if self.body.is_empty() { b"{}" } else { &self.body };
        serde_json::from_slice(body).map_err(|error| Problem::invalid("request body", error))
    }

    /// A response of server-sent events, as [`event_stream`] makes it.
    pub(super) fn stream(
        &self,
        events: impl Stream<Item = String> + Send + 'static,
    ) -> Result<Response<Body>, Problem> {
        event_stream(&self.shared, &self.principal, events)
    }
}

/// A response of server-sent events. It takes a place among the streams of the user until it ends.
pub(super) fn event_stream(
    shared: &Shared,
    principal: &Principal,
    events: impl Stream<Item = String> + Send + 'static,
) -> Result<Response<Body>, Problem> {
    let place = shared.usage.stream(principal.user(), &shared.limits)?;
    let place = shared.metrics.stream(place);
    let state = (events.boxed(), shared.limits.keep_alive, place);
    let chunks = futures_util::stream::unfold(state, |(mut events, keep_alive, place)| async move {
        let chunk = next_chunk(&mut events, keep_alive).await?;
        Some((Ok::<_, std::convert::Infallible>(chunk), (events, keep_alive, place)))
    });
    Ok(Events(Body::from_stream(chunks)).respond())
}

/// The next event, or a comment that keeps proxies from closing the connection.
async fn next_chunk(
    events: &mut futures_util::stream::BoxStream<'static, String>,
    keep_alive: Duration,
) -> Option<Bytes> {
    match tokio::time::timeout(keep_alive, events.next()).await {
        Ok(event) => event.map(Bytes::from),
        Err(_) => Some(Bytes::from_static(b": keep-alive\n\n")),
    }
}

type Handle = fn(Call) -> BoxFuture<'static, Result<Response<Body>, Problem>>;

/// A route of a protocol.
pub(super) struct Route {
    /// The protocol, for metrics.
    pub(super) protocol: &'static str,
    pub(super) method: Method,
    pub(super) path: &'static str,
    pub(super) needs: Role,
    pub(super) handle: Handle,
}

/// Adds routes.
pub(super) fn mount(mut router: Router, shared: &Arc<Shared>, table: Vec<Route>) -> Router {
    for route in table {
        let filter = MethodFilter::try_from(route.method.clone()).unwrap_or(MethodFilter::GET);
        let (shared, path, route) = (Arc::clone(shared), route.path, Arc::new(route));
        let handler = move |request: Request| {
            let (shared, route) = (Arc::clone(&shared), Arc::clone(&route));
            async move { answer(shared, &route, request).await }
        };
        router = router.route(path, on(filter, handler));
    }
    router
}

async fn answer(shared: Arc<Shared>, route: &Route, request: Request) -> Response<Body> {
    let (metrics, foreign) = (shared.metrics.clone(), shared.rules.allowed_origin(request.headers()));
    let (parts, body) = request.into_parts();
    let answered = match admit(&shared, &parts, route.needs).await {
        Ok(principal) => act(shared, principal, route, parts, body).await,
        Err(problem) => Err(problem),
    };
    let response = answered.unwrap_or_else(Problem::into_response);
    metrics.answered(route.protocol, response.status());
    finish(response, foreign)
}

/// Does what is asked, in a task of its own: a client that is gone cancels nothing.
async fn act(
    shared: Arc<Shared>,
    principal: Principal,
    route: &Route,
    mut parts: Parts,
    body: Body,
) -> Result<Response<Body>, Problem> {
    let names = names(&mut parts).await?;
    let body = read_body(&shared, body, shared.limits.body).await?;
    let call = Call { shared, principal, headers: parts.headers, names, body };
    let stopped =
        |_| Problem::unavailable("the request was stopped: its handler panicked or the server stops");
    tokio::spawn((route.handle)(call)).await.map_err(stopped)?
}
