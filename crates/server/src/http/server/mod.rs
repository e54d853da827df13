//! The server: how it is built, and how it serves.

#[cfg(feature = "mcp")]
mod mcp_endpoint;
mod router;
mod scrape;
mod serve;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use serde_json::Value;
use thiserror::Error;
use tokio::sync::watch;

use self::router::operations;
use crate::http::app::App;
use crate::http::guard::access::{Access, AccessLog};
use crate::http::guard::auth::Authenticate;
use crate::http::guard::gate::OriginRules;
use crate::http::guard::limits::{LimitUsage, Limits};
use crate::http::loading::write_index::WriteIndexes;
#[cfg(feature = "mcp")]
use crate::http::mcp_services::McpServices;
use crate::http::metrics::Metrics;
use crate::http::operation::openapi;
use crate::http::pages::adk_web;
use crate::http::phase::ServerPhase;
use crate::http::state::ServerState;
use crate::http::streams::channel::LiveChannels;

/// Agents over HTTP. See the [module](super).
#[derive(Clone)]
pub struct Server {
    pub(in crate::http) shared: Arc<ServerState>,
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
    AdkWeb(#[source] adk_web::BundleError),
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

    /// The OpenAPI 3.1 document of the API.
    pub fn openapi(&self) -> Value {
        openapi::document(&operations())
    }

    /// The apps.
    pub fn apps(&self) -> impl Iterator<Item = &App> {
        self.shared.apps.values().map(|app| &**app)
    }

    pub(in crate::http) fn limits(&self) -> &Limits {
        &self.shared.limits
    }
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

    /// Marks cookies as secure: for a server that clients reach by HTTPS only, through a reverse proxy. Pages of its own
    /// have the scheme `https` then, and `http` without it: one of the other scheme is of another origin.
    pub fn secure_cookies(mut self) -> Self {
        (self.has_secure_cookies, self.rules.is_https) = (true, true);
        self
    }

    /// Lets anyone who can reach the server read the agent cards of its apps (A2A): their names and descriptions. By
    /// default a token is needed.
    pub fn public_agent_cards(mut self) -> Self {
        self.has_public_cards = true;
        self
    }

    /// Serves adk-web, the page of the Agent Development Kit, at `/dev-ui/`, from a folder with its bundle: that of the
    /// package google-adk is `google/adk/cli/browser`. It is served under a policy that lets it load nothing from other
    /// hosts, since it shows what models say as Markdown with images. Without it, only the routes of the kit are served,
    /// for its clients.
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
            let name = app.name().to_owned();
            if apps.insert(name.clone(), Arc::new(app)).is_some() {
                return Err(ServerError::DuplicateApp { app: name });
            }
        }
        if apps.is_empty() {
            return Err(ServerError::NoApps);
        }
        let adk_web = self.adk_web.map(|folder| adk_web::WebBundle::read(&folder)).transpose();
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
            mcp: McpServices::default(),
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
