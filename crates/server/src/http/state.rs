//! The state that all requests share.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::request::Parts;
use tokio::sync::watch;

use crate::http::app::App;
use crate::http::guard::access::AccessLog;
use crate::http::guard::auth::{Authenticate, Principal};
use crate::http::guard::gate::OriginRules;
use crate::http::guard::limits::{LimitUsage, Limits};
use crate::http::guard::problem::Problem;
use crate::http::loading::write_index::WriteIndexes;
#[cfg(feature = "mcp")]
use crate::http::mcp_services::McpServices;
use crate::http::metrics::Metrics;
use crate::http::operation::path::names;
use crate::http::pages::adk_web::WebBundle;
use crate::http::phase::ServerPhase;
use crate::http::streams::channel::LiveChannels;
use crate::http::streams::permit::StreamPermit;
use crate::http::streams::user_feed::UserFeeds;

/// The state that all requests share.
pub(in crate::http) struct ServerState {
    pub(in crate::http) apps: BTreeMap<String, Arc<App>>,
    pub(in crate::http) auth: Box<dyn Authenticate>,
    pub(in crate::http) rules: OriginRules,
    pub(in crate::http) limits: Limits,
    pub(in crate::http) usage: LimitUsage,
    pub(in crate::http) channels: LiveChannels,
    pub(in crate::http) indexes: WriteIndexes,
    pub(in crate::http) feeds: Arc<UserFeeds>,
    pub(in crate::http) metrics: Metrics,
    pub(in crate::http) has_secure_cookies: bool,
    /// Whether anyone may read the cards of agents.
    pub(in crate::http) has_public_cards: bool,
    /// The page of adk-web.
    pub(in crate::http) adk_web: Option<WebBundle>,
    /// The function that logs requests.
    pub(in crate::http) access: Option<AccessLog>,
    /// The OpenAPI document, once it was asked for.
    pub(in crate::http) openapi: OnceLock<Bytes>,
    #[cfg(feature = "mcp")]
    pub(in crate::http) mcp: McpServices,
    pub(in crate::http) phase: watch::Sender<ServerPhase>,
}

impl ServerState {
    /// The app that a path names; without a name, the app of a server that has one only.
    pub(in crate::http) async fn app_of(&self, parts: &mut Parts) -> Result<Option<&Arc<App>>, Problem> {
        let (names, mut apps) = (names(parts).await?, self.apps.values());
        match (names.get("app"), apps.next(), apps.next()) {
            (Some(name), ..) => self.apps.get(name).map(Some).ok_or_else(|| Problem::unknown_app(name)),
            (None, only, None) => Ok(only),
            (None, ..) => Ok(None),
        }
    }

    /// Takes the permit of a live stream. As that of its run, it is taken before anything is stored: a client that is
    /// refused sends its message again.
    // NOTE: A client that gets 429 sends its message again. With a permit taken after the message was stored, a message
    // without a key ran twice (docs/decisions/server.md).
    pub(in crate::http) fn stream_permit(&self, principal: &Principal) -> Result<StreamPermit, Problem> {
        let permit = self.usage.stream_permit(principal.user(), &self.limits)?;
        let (permit, phase) = (self.metrics.stream(permit), self.phase.subscribe());
        let memory = self.usage.memory(principal.user(), &self.limits);
        Ok(StreamPermit { keep_alive: self.limits.keep_alive, phase, permit, memory })
    }
}
