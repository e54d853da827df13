//! The server over streamable HTTP, as a service that a program mounts in its own router.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body;
use http_body_util::combinators::BoxBody;
use rmcp::model as wire;
use rmcp::service::{RequestContext, RoleServer};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tower_service::Service;

use super::AgentServer;

/// Origins of this machine, on any port.
const LOCAL_ORIGINS: [&str; 3] = ["http://localhost:*", "http://127.0.0.1:*", "http://[::1]:*"];

/// Finds the user of a request.
#[derive(Clone)]
pub(super) struct UserLookup(Arc<UserFunction>);

type UserFunction = dyn Fn(&Parts) -> Option<String> + Send + Sync;

/// Limits on requests over HTTP: their hosts, origins, length and users.
#[derive(Clone)]
#[must_use = "it does nothing until a server is given it"]
pub struct HttpOptions {
    config: StreamableHttpServerConfig,
    user_of: Option<UserLookup>,
}

impl Default for HttpOptions {
    fn default() -> Self {
        HttpOptions::new()
    }
}

impl HttpOptions {
    /// Takes requests for this machine from pages of this machine and from programs, of at most 4 MiB.
    pub fn new() -> Self {
        let config = StreamableHttpServerConfig::default()
            .with_allowed_origins(LOCAL_ORIGINS)
            .enforce_origin_validation();
        HttpOptions { config, user_of: None }
    }

    /// Sets the names that the server is asked by (`Host`), with or without a port; those of this machine by default.
    /// Others are refused: a page could have its own name lead to this machine (DNS rebinding).
    pub fn hosts<S: Into<String>>(mut self, hosts: impl IntoIterator<Item = S>) -> Self {
        self.config = self.config.with_allowed_hosts(hosts);
        self
    }

    /// Sets the pages that may ask (`Origin`), each with its scheme and its port or `:*`; those of this machine by default.
    /// Programs send no origin.
    pub fn origins<S: Into<String>>(mut self, origins: impl IntoIterator<Item = S>) -> Self {
        self.config = self.config.with_allowed_origins(origins).enforce_origin_validation();
        self
    }

    /// Limits the bytes of a request; 4 MiB by default.
    pub fn request_bytes(mut self, bytes: usize) -> Self {
        self.config = self.config.with_max_request_body_bytes(bytes);
        self
    }

    /// Keeps nothing of a client between its requests, so that any process may answer each: clients of revisions before
    /// 2026-07-28 cannot be asked anything then. By default these have a session in memory, for five minutes after their
    /// last request.
    pub fn stateless(mut self) -> Self {
        self.config = self.config.with_legacy_session_mode(false);
        self
    }

    /// Leaves hosts, origins and the length of requests to what stands before the service.
    #[cfg(feature = "http")]
    pub(crate) fn behind_a_gate(mut self) -> Self {
        self.config = self.config.disable_allowed_hosts().disable_allowed_origins();
        self.config = self.config.with_max_request_body_bytes(usize::MAX);
        self
    }

    /// Sets whose sessions a request works in, by what authenticated it (its extensions, for instance). A request without a
    /// user is refused. By default all work in those of the server's user.
    pub fn user_of(mut self, user: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        self.user_of = Some(UserLookup(Arc::new(user)));
        self
    }
}

impl fmt::Debug for HttpOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpOptions")
            .field("hosts", &self.config.allowed_hosts)
            .field("origins", &self.config.allowed_origins)
            .finish_non_exhaustive()
    }
}

/// An agent as a server of the Model Context Protocol over streamable HTTP: a tower service for any path. Cheap to clone.
///
/// # Examples
/// ```
/// use stepfold_agent_loop::Agent;
/// use stepfold_agent_loop::test_kit::Script;
/// use stepfold_runner::Runner;
/// use stepfold_server::mcp::{AgentServer, HttpOptions};
/// use stepfold_session_scopes::MemoryStore;
///
/// # let model = Script::parse("assistant: hello")?;
/// let agent = Agent::builder(model).name("helper").build()?;
/// let runner = Runner::builder(agent, MemoryStore::new()).build();
/// let service = AgentServer::new(runner, "ada").into_http(HttpOptions::new().hosts(["agents.example.com"]));
/// // With axum: `Router::new().route_service("/mcp", service)`.
/// # let _ = service;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct HttpService {
    service: StreamableHttpService<AgentServer, LocalSessionManager>,
    sessions: Arc<LocalSessionManager>,
}

impl HttpService {
    /// Closes all sessions and streams, and refuses new requests: for a shutdown, before waiting for connections to
    /// close.
    pub fn stop(&self) {
        self.service.config.cancellation_token.cancel();
    }

    /// The number of clients that have a session of the protocol: those of revisions before 2026-07-28.
    #[cfg(feature = "http")]
    pub(crate) async fn clients(&self) -> usize {
        self.sessions.sessions.read().await.len()
    }
}

impl fmt::Debug for HttpService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpService").finish_non_exhaustive()
    }
}

impl<B> Service<Request<B>> for HttpService
where
    B: Body + Send + 'static,
    B::Data: Send + 'static,
    B::Error: fmt::Display,
{
    type Response = Response<BoxBody<Bytes, Infallible>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        Box::pin(self.service.call(request))
    }
}

impl AgentServer {
    /// Serves many clients over HTTP.
    pub fn into_http(mut self, options: HttpOptions) -> HttpService {
        self.user_of = options.user_of;
        // NOTE: Over HTTP a closed stream is also how a lost connection looks, which must not cancel a run.
        self.outlives_clients = true;
        let sessions = Arc::new(LocalSessionManager::default());
        let of_service = Arc::clone(&sessions);
        let service = StreamableHttpService::new(move || Ok(self.clone()), of_service, options.config);
        HttpService { service, sessions }
    }

    /// The same for the user of a request.
    pub(super) fn of(&self, context: &RequestContext<RoleServer>) -> Result<Self, wire::ErrorData> {
        let Some(UserLookup(user_of)) = &self.user_of else { return Ok(self.clone()) };
        let user = context.extensions.get::<Parts>().and_then(|parts| user_of(parts));
        let user =
            user.ok_or_else(|| wire::ErrorData::invalid_request("unknown user: sign in first", None))?;
        Ok(AgentServer { user: user.into(), ..self.clone() })
    }
}
