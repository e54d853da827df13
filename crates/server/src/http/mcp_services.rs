//! A service of the Model Context Protocol for each principal of an app.
//!
//! Each principal has a service of its own, so that it cannot see other principals' sessions, whatever id it sends.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::http::app::App;
use crate::http::guard::auth::Principal;
use crate::mcp::{AgentServer, HttpOptions, HttpService};

/// The number of services above which idle ones are dropped.
const IDLE: usize = 256;

/// The services of principals, by app.
#[derive(Default)]
pub(in crate::http) struct McpServices(Mutex<ServiceCache>);

#[derive(Default)]
struct ServiceCache {
    services: HashMap<ServiceOwner, HttpService>,
    /// The number of services after idle ones were dropped last.
    left: usize,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct ServiceOwner {
    app: String,
    user: String,
    author: String,
}

impl McpServices {
    pub(super) async fn of(&self, app: &App, principal: &Principal) -> HttpService {
        let (user, author) = (principal.user().to_string(), principal.name().to_owned());
        let whose = ServiceOwner { app: app.name().to_owned(), user, author };
        if let Some(service) = self.with(|kept| kept.services.get(&whose).cloned()) {
            return service;
        }
        // NOTE: Before the new service is added, so that a service without a client yet is not dropped.
        self.forget_idle().await;
        self.with(|kept| kept.services.entry(whose).or_insert_with(|| service(app, principal)).clone())
    }

    /// Drops services without clients when there are many, and twice as many as were left the last time: so a principal
    /// that is new pays for a look at few others, on average. A request under way keeps its own service.
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
    pub(in crate::http) fn stop(&self) {
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
