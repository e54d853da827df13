//! The server: its apps, its rules, and its router.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::routing::{MethodFilter, on};
use axum::{BoxError, Router};
use bytes::Bytes;
use futures_util::StreamExt as _;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use serde_json::Value;
use stepfold_runner::Runner;
use stepfold_state_core::chat::Prices;
use thiserror::Error;
use tokio::sync::watch;

use super::access::{Access, AccessLog, CallerName, logged};
use super::apart::{apart, done};
use super::auth::{Authenticate, Credentials, Principal, Role};
use super::changes::UserFeeds;
use super::channel::LiveChannels;
use super::gate::{OriginRules, RequestOrigin, cookie_name};
use super::index::WriteIndexes;
use super::limits::{LimitUsage, Limits};
use super::metrics::Metrics;
use super::operation::ApiOperation;
use super::priced::AppPricing;
use super::problem::{Problem, ProblemForm};
use super::serve::ServerPhase;
use super::{openapi, page, protocol, routes};

/// The path before each operation.
pub(super) const BASE: &str = "/api/v1";

/// An app of a server: a runner, under the name of its application.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_agent_loop::Agent;
/// use stepfold_agent_loop::test_kit::Script;
/// use stepfold_runner::Runner;
/// use stepfold_server::http::App;
/// use stepfold_session_scopes::MemoryStore;
///
/// # let model = Script::parse("assistant: area 3")?;
/// let agent = Agent::builder(model).name("stalls").build()?;
/// let app = App::from(Runner::builder(agent, MemoryStore::new()).build()).describe("Counts stalls.");
/// assert_eq!(app.name(), "stalls");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct App {
    runner: Runner,
    name: String,
    description: Option<String>,
    graph: Option<Value>,
    pricing: Arc<AppPricing>,
}

impl From<Runner> for App {
    fn from(runner: Runner) -> Self {
        // A key of any session has the name.
        let key = runner.key("-", "-");
        let name = key.map_or_else(|_| runner.agent().name().to_owned(), |key| key.app.to_string());
        let pricing = Arc::new(AppPricing::new(runner.agent().clone(), Prices::new()));
        App { runner, name, description: None, graph: None, pricing }
    }
}

impl App {
    /// Sets the description of the app for clients.
    #[must_use]
    pub fn describe(mut self, description: impl Into<String>) -> Self {
        self.description = Some(description.into());
        self
    }

    /// Sets the shape of its graph, if it is one: nodes and edges, as JSON.
    #[must_use]
    pub fn graph(mut self, shape: impl Into<Value>) -> Self {
        self.graph = Some(shape.into());
        self
    }

    /// Sets the prices of its models: rows of commits have the cost of replies and summaries then. A cost that a provider
    /// reports is told without a price.
    ///
    /// # Examples
    /// ```
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_runner::Runner;
    /// use stepfold_server::http::App;
    /// use stepfold_session_scopes::MemoryStore;
    /// use stepfold_state_core::chat::{Price, Prices};
    ///
    /// let agent = Agent::builder(Script::parse("")?).build()?;
    /// let prices = Prices::new().with("gpt-5-mini", Price::new(0.25, 2.0).with_cached_input(0.025));
    /// let app = App::from(Runner::builder(agent, MemoryStore::new()).build()).prices(prices);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn prices(mut self, prices: Prices) -> Self {
        self.pricing = Arc::new(AppPricing::new(self.runner.agent().clone(), prices));
        self
    }

    /// The name, as in paths: that of the runner's application.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The runner.
    pub fn runner(&self) -> &Runner {
        &self.runner
    }

    pub(super) fn description(&self) -> Option<&str> {
        self.description.as_deref()
    }

    pub(super) fn pricing(&self) -> &Arc<AppPricing> {
        &self.pricing
    }

    pub(super) fn shape(&self) -> Option<&Value> {
        self.graph.as_ref()
    }
}

/// Agents over HTTP. See the [module](super).
#[derive(Clone)]
pub struct Server {
    pub(super) shared: Arc<ServerState>,
}

/// What all requests share.
pub(super) struct ServerState {
    pub(super) apps: BTreeMap<String, Arc<App>>,
    pub(super) auth: Box<dyn Authenticate>,
    pub(super) rules: OriginRules,
    pub(super) limits: Limits,
    pub(super) usage: LimitUsage,
    pub(super) channels: LiveChannels,
    pub(super) indexes: WriteIndexes,
    pub(super) feeds: Arc<UserFeeds>,
    pub(super) metrics: Metrics,
    pub(super) has_secure_cookies: bool,
    /// Whether anyone may read the cards of agents.
    pub(super) has_public_cards: bool,
    /// The page of adk-web.
    pub(super) adk_web: Option<protocol::WebBundle>,
    /// Where requests are logged.
    access: Option<AccessLog>,
    /// The OpenAPI document, once it was asked for.
    openapi: OnceLock<Bytes>,
    #[cfg(feature = "mcp")]
    pub(super) mcp: super::mcp::McpServices,
    pub(super) phase: watch::Sender<ServerPhase>,
}

/// Builds a [`Server`].
#[must_use = "a builder does nothing until it is built"]
pub struct ServerBuilder {
    apps: Vec<App>,
    auth: Option<Box<dyn Authenticate>>,
    rules: OriginRules,
    limits: Limits,
    metrics: Metrics,
    has_secure_cookies: bool,
    has_public_cards: bool,
    adk_web: Option<PathBuf>,
    access: Option<AccessLog>,
}

/// Why a server cannot be built.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServerError {
    /// It has no apps.
    #[error("missing app: a server needs at least one")]
    NoApps,
    /// Two apps have one name.
    #[error("duplicate app `{app}`: give one of the runners another name with `RunnerBuilder::app`")]
    DuplicateApp {
        /// The name.
        app: String,
    },
    /// It does not authenticate anyone.
    #[error("missing authentication: set it with `auth`, for example to `Tokens`")]
    NoAuthentication,
    /// A folder is not a bundle of adk-web.
    #[error("invalid bundle of adk-web: {0}")]
    AdkWeb(#[source] protocol::BundleError),
}

impl Server {
    /// Starts building a server.
    pub fn builder() -> ServerBuilder {
        ServerBuilder {
            apps: Vec::new(),
            auth: None,
            rules: OriginRules::default(),
            limits: Limits::default(),
            metrics: Metrics::new(),
            has_secure_cookies: false,
            has_public_cards: false,
            adk_web: None,
            access: None,
        }
    }

    /// The router, to embed into an application's own [axum](https://docs.rs/axum) program. All rules apply to it; limits
    /// of connections are those of the program.
    pub fn router(&self) -> Router {
        let mut router = Router::new();
        for operation in operations() {
            let path = format!("{}{}", operation.base, operation.path);
            let filter = MethodFilter::try_from(operation.method.clone()).unwrap_or(MethodFilter::GET);
            let (shared, operation) = (Arc::clone(&self.shared), Arc::new(operation));
            let handler = move |request: Request| {
                let (shared, operation) = (Arc::clone(&shared), Arc::clone(&operation));
                async move { answer(shared, Some(&operation), request).await }
            };
            router = router.route(&path, on(filter, handler));
        }
        let health = |shared: Arc<ServerState>| {
            move |request: Request| {
                let shared = Arc::clone(&shared);
                async move { public(&shared, &request) }
            }
        };
        for path in PUBLIC.into_iter().chain(page::paths()) {
            router = router.route(path, on(MethodFilter::GET, health(Arc::clone(&self.shared))));
        }
        #[cfg(feature = "mcp")]
        let router = super::mcp::mount(router, &self.shared);
        let router = protocol::mount_cards(router, &self.shared);
        let router = match &self.shared.adk_web {
            Some(_) => self.with_adk_web(router),
            None => router,
        };
        let (shared, other) = (Arc::clone(&self.shared), Arc::clone(&self.shared));
        let router = router
            .method_not_allowed_fallback(move |request: Request| {
                let shared = Arc::clone(&shared);
                async move { not_allowed(shared, request).await }
            })
            .fallback(move |request: Request| {
                let shared = Arc::clone(&other);
                async move { answer(shared, None, request).await }
            });
        match self.shared.access.clone() {
            None => router,
            Some(log) => router.layer(axum::middleware::from_fn(move |request, next| {
                logged(Arc::clone(&log), request, next)
            })),
        }
    }

    /// Adds the page of adk-web.
    fn with_adk_web(&self, router: Router) -> Router {
        let shared = Arc::clone(&self.shared);
        let page = move |request: Request| {
            let shared = Arc::clone(&shared);
            async move { adk_web(&shared, &request) }
        };
        let router = router.route(protocol::ADK_WEB, on(MethodFilter::GET, page.clone()));
        router.route(&format!("{}{{*path}}", protocol::ADK_WEB), on(MethodFilter::GET, page))
    }

    /// The OpenAPI 3.1 document of the API.
    pub fn openapi(&self) -> Value {
        openapi::document(&operations())
    }

    /// The apps.
    pub fn apps(&self) -> impl Iterator<Item = &App> {
        self.shared.apps.values().map(|app| &**app)
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.shared.limits
    }
}

/// All operations: those of the API, and those of protocols of others.
fn operations() -> Vec<ApiOperation> {
    let mut operations = routes::operations();
    operations.extend(protocol::operations());
    operations
}

/// What anyone may read who names the host: nothing of it is secret.
const PUBLIC: [&str; 3] = ["/healthz", "/readyz", "/api/v1/openapi.json"];

fn public(shared: &ServerState, request: &Request) -> Response<Body> {
    let response = match shared.rules.admit_host(request.headers()) {
        Err(denied) => Problem::denied(denied).into_response(),
        Ok(()) => match request.uri().path() {
            "/healthz" => text(StatusCode::OK, "ok\n"),
            "/readyz" if *shared.phase.borrow() != ServerPhase::Serving => {
                text(StatusCode::SERVICE_UNAVAILABLE, "stopping\n")
            }
            "/readyz" => text(StatusCode::OK, "ready\n"),
            "/api/v1/openapi.json" => typed(StatusCode::OK, "application/json", shared.openapi()),
            path => page::answer(path, request.headers()),
        },
    };
    with_headers(response)
}

/// A file of the page of adk-web. It is not a secret: its requests are authenticated.
fn adk_web(shared: &ServerState, request: &Request) -> Response<Body> {
    let path = request.uri().path().strip_prefix(protocol::ADK_WEB).unwrap_or_default();
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

fn text(status: StatusCode, text: &'static str) -> Response<Body> {
    typed(status, "text/plain; charset=utf-8", text)
}

fn typed(status: StatusCode, kind: &'static str, body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Answers a request: the rules first, then who sends it, then what it may do. Without an operation, the path is unknown.
async fn answer(
    shared: Arc<ServerState>,
    operation: Option<&ApiOperation>,
    request: Request,
) -> Response<Body> {
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
            act(shared, operation, principal, Request::from_parts(parts, body)).await
        }
    };
    let mut response = answered.unwrap_or_else(|problem| problem.in_form(form).into_response());
    if let Some(caller) = caller {
        response.extensions_mut().insert(caller);
    }
    metrics.answered(operation.map_or("unknown", |operation| operation.id), response.status());
    finish(response, foreign)
}

/// The principal of a request that passes the rules about hosts and origins, and has this role.
pub(super) async fn admit(shared: &ServerState, parts: &Parts, needs: Role) -> Result<Principal, Problem> {
    let principal = authenticate(shared, parts).await?;
    if principal.may(needs) { Ok(principal) } else { Err(Problem::forbidden(needs)) }
}

/// A response with what all responses have.
pub(super) fn finish(response: Response<Body>, foreign: Option<HeaderValue>) -> Response<Body> {
    with_origin(with_headers(response), foreign)
}

/// Does what is asked. What changes something is done in a task of its own: a client that is gone cancels nothing.
async fn act(
    shared: Arc<ServerState>,
    operation: &ApiOperation,
    principal: Principal,
    request: Request,
) -> Result<Response<Body>, Problem> {
    let is_read = operation.method == Method::GET || operation.id == "replay";
    let timeout = shared.limits.heavy_timeout;
    // Before the body is read.
    let place = match operation.is_heavy {
        true => Some(shared.usage.heavy(principal.user(), &shared.limits)?),
        false => None,
    };
    let memory = shared.usage.memory(principal.user(), &shared.limits);
    let answered = (operation.handler)(shared, principal, memory.clone(), request);
    let answered = async move {
        let response = answered.await?;
        // Of a stream nothing is told here: it has an account of its own.
        let bytes = response.body().size_hint().exact().unwrap_or(0);
        memory.hold(usize::try_from(bytes).unwrap_or(usize::MAX))?;
        match usize::try_from(bytes) {
            Ok(bytes) if bytes <= SLICE => Ok(response),
            _ => Ok(holding(in_slices(response), (memory, place))),
        }
    };
    match (is_read, operation.is_whole) {
        (true, false) => answered.await,
        (true, true) => apart(answered, Some(timeout)).await,
        (false, false) => done(tokio::spawn(answered).await),
        (false, true) => done(tokio::spawn(apart(answered, None)).await),
    }
}

/// The bytes of a piece of a large response.
const SLICE: usize = 64 << 10;

/// A response whose body is sent piece by piece: a connection takes no more of it than its client reads.
fn in_slices(mut response: Response<Body>) -> Response<Body> {
    if let Some(bytes) = response.body().size_hint().exact() {
        response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(bytes));
    }
    response.map(|body| {
        let slices = body.into_data_stream().flat_map(|data| match data {
            Ok(data) => {
                let starts = (0..data.len()).step_by(SLICE);
                let slices = starts.map(move |start| Ok(data.slice(start..data.len().min(start + SLICE))));
                futures_util::stream::iter(slices).left_stream()
            }
            Err(error) => futures_util::stream::iter([Err(error)]).right_stream(),
        });
        Body::from_stream(slices)
    })
}

/// A response that keeps something until its body has ended, or its client is gone.
pub(super) fn holding<B>(response: Response<B>, kept: impl Send + 'static) -> Response<Body>
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            let _ = &kept;
            frame
        }))
    })
}

/// A known path with an unknown method; or a browser that asks first, for a page of an allowed origin.
async fn not_allowed(shared: Arc<ServerState>, request: Request) -> Response<Body> {
    let foreign = shared.rules.allowed_origin(request.headers());
    let (parts, _) = request.into_parts();
    let is_preflight = foreign.is_some() && parts.method == Method::OPTIONS;
    let response = match shared.rules.admit_host(&parts.headers) {
        Err(denied) => Problem::denied(denied).into_response(),
        Ok(()) if is_preflight => text(StatusCode::NO_CONTENT, ""),
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

async fn authenticate(shared: &ServerState, parts: &Parts) -> Result<Principal, Problem> {
    let headers = &parts.headers;
    let admitted = shared.rules.admit(&parts.method, &parts.uri, headers).map_err(Problem::denied)?;
    let name = cookie_name(headers);
    let token = bearer(headers).or_else(|| match admitted {
        RequestOrigin::Own => cookie(headers, &name),
        RequestOrigin::Foreign => None,
    });
    match shared.auth.authenticate(&Credentials::new(token, headers)).await {
        Ok(Some(principal)) => Ok(principal),
        Ok(None) => Err(Problem::unauthenticated()),
        Err(error) => {
            tracing::error!(%error, "a request could not be authenticated");
            Err(Problem::unavailable("authentication is unavailable"))
        }
    }
}

/// The token of the header `Authorization`.
pub(super) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
    let mut pairs =
        cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(found, _)| *found == name).map(|(_, value)| value)
}

/// The headers of every response.
fn with_headers(mut response: Response<Body>) -> Response<Body> {
    let headers = response.headers_mut();
    let policy = "default-src 'none'; frame-ancestors 'none'";
    for (name, value) in [
        ("cache-control", "no-store"),
        ("content-security-policy", policy),
        ("cross-origin-resource-policy", "same-origin"),
        ("referrer-policy", "no-referrer"),
        ("x-content-type-options", "nosniff"),
    ] {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

/// What pages of an allowed origin may send.
const ALLOWED_HEADERS: &str = "a2a-version, authorization, content-type, idempotency-key, last-event-id, mcp-method, mcp-name, \
                               mcp-protocol-version, mcp-session-id, openai-organization, openai-project, user-agent, \
                               x-stepfold-session";

/// What the clients of OpenAI begin the headers with by which they describe themselves: each version has others.
const CLIENT_HEADERS: &str = "x-stainless-";

/// The number of them that a page may send.
const MAX_CLIENT_HEADERS: usize = 32;

/// What this page of an allowed origin may send, of what it asks for.
fn allowed_headers(asked: &HeaderMap) -> HeaderValue {
    let asked = asked.get_all(header::ACCESS_CONTROL_REQUEST_HEADERS).iter();
    let names = asked.filter_map(|names| names.to_str().ok()).flat_map(|names| names.split(','));
    let names = names.map(|name| name.trim().to_ascii_lowercase());
    let is_name = |name: &String| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let names = names.filter(|name| name.starts_with(CLIENT_HEADERS) && is_name(name));
    let allowed =
        names.take(MAX_CLIENT_HEADERS).fold(ALLOWED_HEADERS.to_owned(), |all, name| all + ", " + &name);
    HeaderValue::from_str(&allowed).unwrap_or(HeaderValue::from_static(ALLOWED_HEADERS))
}

/// Lets pages of an allowed origin read the response.
fn with_origin(mut response: Response<Body>, foreign: Option<HeaderValue>) -> Response<Body> {
    let headers = response.headers_mut();
    headers.insert(header::VARY, HeaderValue::from_static("origin"));
    let Some(origin) = foreign else { return response };
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    for (name, value) in [
        (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, PUT, PATCH, DELETE"),
        (header::ACCESS_CONTROL_ALLOW_HEADERS, ALLOWED_HEADERS),
        (
            header::ACCESS_CONTROL_EXPOSE_HEADERS,
            "location, mcp-session-id, retry-after, x-stepfold-session, x-vercel-ai-ui-message-stream",
        ),
        (header::ACCESS_CONTROL_MAX_AGE, "600"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

impl ServerBuilder {
    /// Adds an app. Its runner keeps its own settings: what a message for a busy session does, the duration of claims,
    /// observers.
    pub fn app(mut self, app: impl Into<App>) -> Self {
        self.apps.push(app.into());
        self
    }

    /// Sets how senders of requests are authenticated. It is required: there is no server without.
    pub fn auth(mut self, auth: impl Authenticate) -> Self {
        self.auth = Some(Box::new(auth));
        self
    }

    /// Adds a name by which clients may reach the server, without a port; those of the loopback interface are always
    /// allowed. A request with another `Host` is refused: its page may have rebound a name to this address.
    pub fn host_name(mut self, name: impl Into<String>) -> Self {
        self.rules.hosts.push(name.into());
        self
    }

    /// Adds an origin, such as `https://app.example`, whose pages may use the API with bearer tokens. Cookies of such
    /// requests do not count.
    pub fn allow_origin(mut self, origin: impl Into<String>) -> Self {
        self.rules.origins.push(origin.into().trim_end_matches('/').to_owned());
        self
    }

    /// Sets the limits.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets the metrics, shared with [observers](Metrics::observer) of the runners.
    pub fn metrics(mut self, metrics: &Metrics) -> Self {
        self.metrics = metrics.clone();
        self
    }

    /// Marks cookies as secure: for a server that clients reach by HTTPS only, through a reverse proxy. Pages of its own have the
    /// scheme `https` then, and `http` without it: one of the other scheme is of another origin.
    pub fn secure_cookies(mut self) -> Self {
        (self.has_secure_cookies, self.rules.is_https) = (true, true);
        self
    }

    /// Lets anyone who can reach the server read the agent cards of its apps (A2A): their names and descriptions. By default
    /// a token is needed.
    pub fn public_agent_cards(mut self) -> Self {
        self.has_public_cards = true;
        self
    }

    /// Serves adk-web, the page of the Agent Development Kit, at `/dev-ui/`, from a folder with its bundle: that of the package
    /// google-adk is `google/adk/cli/browser`. It is served under a policy that lets it load nothing from other hosts, since it
    /// shows what models say as Markdown with images. Without it, only the routes of the kit are served, for its clients.
    pub fn adk_web(mut self, folder: impl Into<PathBuf>) -> Self {
        self.adk_web = Some(folder.into());
        self
    }

    /// Sets where requests are logged: it is called at the end of each answer.
    ///
    /// # Examples
    /// ```
    /// use stepfold_server::http::Server;
    /// use stepfold_session_scopes::Timestamp;
    ///
    /// # let now = || Timestamp::from_micros(0);
    /// let server = Server::builder().access_log(move |access| println!("{}", access.common_log(now())));
    /// # drop(server);
    /// ```
    pub fn access_log(mut self, log: impl Fn(&Access) + Send + Sync + 'static) -> Self {
        self.access = Some(Arc::new(log));
        self
    }

    /// Builds the server.
    ///
    /// # Errors
    /// [`ServerError`].
    pub fn build(self) -> Result<Server, ServerError> {
        let auth = self.auth.ok_or(ServerError::NoAuthentication)?;
        let mut apps = BTreeMap::new();
        for app in self.apps {
            let name = app.name.clone();
            if apps.insert(name.clone(), Arc::new(app)).is_some() {
                return Err(ServerError::DuplicateApp { app: name });
            }
        }
        if apps.is_empty() {
            return Err(ServerError::NoApps);
        }
        let adk_web = self.adk_web.map(|folder| protocol::WebBundle::read(&folder)).transpose();
        let adk_web = adk_web.map_err(ServerError::AdkWeb)?;
        let pricing = apps.iter().map(|(name, app)| (name.clone(), Arc::clone(app.pricing())));
        let channels = LiveChannels::new(pricing);
        let shared = ServerState {
            apps,
            auth,
            rules: self.rules,
            limits: self.limits,
            usage: LimitUsage::default(),
            channels,
            indexes: WriteIndexes::default(),
            feeds: Arc::default(),
            #[cfg(feature = "mcp")]
            mcp: super::mcp::McpServices::default(),
            metrics: self.metrics,
            has_secure_cookies: self.has_secure_cookies,
            has_public_cards: self.has_public_cards,
            adk_web,
            access: self.access,
            openapi: OnceLock::new(),
            phase: watch::Sender::new(ServerPhase::Serving),
        };
        Ok(Server { shared: Arc::new(shared) })
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let apps: Vec<&String> = self.shared.apps.keys().collect();
        f.debug_struct("Server").field("apps", &apps).finish_non_exhaustive()
    }
}

impl fmt::Debug for ServerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerBuilder").field("apps", &self.apps).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use stepfold_agent_loop::Agent;
    use stepfold_agent_loop::test_kit::Script;
    use stepfold_session_scopes::MemoryStore;

    use super::super::auth::Tokens;
    use super::*;

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
