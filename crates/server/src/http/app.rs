//! An app of a server, and a session in it.

use std::sync::Arc;

use serde_json::Value;
use stepfold_runner::{Runner, SessionHandle};
use stepfold_state_core::chat::Prices;

#[cfg(feature = "eval")]
use crate::http::experiments::ExperimentFolder;
use crate::http::rows::pricing::AppPricing;

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
    #[cfg(feature = "eval")]
    experiments: Option<Arc<ExperimentFolder>>,
}

impl From<Runner> for App {
    fn from(runner: Runner) -> Self {
        // A key of any session has the name.
        let key = runner.key("-", "-");
        let name = key.map_or_else(|_| runner.agent().name().to_owned(), |key| key.app.to_string());
        let pricing = Arc::new(AppPricing::new(runner.agent().clone(), Prices::new()));
        App {
            runner,
            name,
            description: None,
            graph: None,
            pricing,
            #[cfg(feature = "eval")]
            experiments: None,
        }
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

    /// Sets the folder of its data sets and experiments. Without one it has none. Experiments that wait or were interrupted are run
    /// while a server [serves](crate::http::Server::serve_until); one that is embedded by its
    /// [router](crate::http::Server::router) begins with the first new one.
    #[cfg(feature = "eval")]
    #[must_use]
    pub fn experiments(mut self, folder: ExperimentFolder) -> Self {
        self.experiments = Some(Arc::new(folder));
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

    pub(in crate::http) fn description(&self) -> Option<&str> {
        self.description.as_deref()
    }

    #[cfg(feature = "eval")]
    pub(in crate::http) fn experiment_folder(&self) -> Option<&Arc<ExperimentFolder>> {
        self.experiments.as_ref()
    }

    pub(in crate::http) fn pricing(&self) -> &Arc<AppPricing> {
        &self.pricing
    }

    pub(in crate::http) fn shape(&self) -> Option<&Value> {
        self.graph.as_ref()
    }
}

/// A session of the principal.
pub(in crate::http) struct SessionTarget {
    pub(in crate::http) app: Arc<App>,
    pub(in crate::http) session: SessionHandle,
}

impl SessionTarget {
    pub(in crate::http) fn runner(&self) -> &Runner {
        self.app.runner()
    }
}
