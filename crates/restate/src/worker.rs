//! A worker: an HTTP endpoint that Restate calls.

use std::time::Duration;

use restate_sdk::endpoint::{Endpoint, ServiceOptions};
use restate_sdk::http_server::HttpServer;
use restate_sdk::service::{IntoServiceDefinition, ServiceDefinition};
use stepfold_runner::Runner;
use tokio::net::TcpListener;

use crate::object::{SessionObject, WorkerOptions};

/// The time for which Restate waits beyond the end of a slice, before it takes a worker for stalled.
const MARGIN: Duration = Duration::from_secs(60);

/// After so many attempts an invocation is paused. At half a minute each, it is a year.
const ATTEMPTS: u64 = 1_000_000;

/// Serves the sessions of a runner to Restate, as a virtual object for each.
///
/// Start it in as many processes as there are machines, all with the same store and the same agent, and register their
/// common address with the server once.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use std::time::Duration;
/// use stepfold_agent_loop::Agent;
/// use stepfold_agent_loop::test_kit::Script;
/// use stepfold_restate::RestateWorker;
/// use stepfold_runner::Runner;
/// use stepfold_session_scopes::MemoryStore;
/// use tokio::net::TcpListener;
///
/// # let model = Script::parse("assistant: area 3")?;
/// // Workers on several machines share a store: PostgreSQL.
/// let runner = Runner::builder(Agent::builder(model).build()?, MemoryStore::new()).build();
/// let worker = RestateWorker::new(runner.clone()).slice(Duration::from_secs(30));
///
/// let listener = TcpListener::bind("127.0.0.1:0").await?;
/// let stop = async { /* A signal of the process. */ };
/// worker.serve(listener, stop).await;
/// runner.shutdown(Duration::from_secs(30)).await;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[must_use = "a worker does nothing until it serves"]
#[derive(Clone, Debug)]
pub struct RestateWorker {
    runners: Vec<Runner>,
    options: WorkerOptions,
}

impl RestateWorker {
    /// A worker with the usual options.
    pub fn new(runner: Runner) -> Self {
        let options = WorkerOptions {
            slice: Duration::from_secs(60),
            linger: Duration::from_secs(30),
            pauses: (Duration::from_secs(1), Duration::from_secs(600)),
            with_changed_agent: false,
        };
        RestateWorker { runners: vec![runner], options }
    }

    /// Adds the sessions of another application, with another agent: a server has one deployment of the virtual object,
    /// which serves them all.
    pub fn and(mut self, runner: Runner) -> Self {
        self.runners.push(runner);
        self
    }

    /// Sets the duration of a slice, one minute by default: a run that takes longer is suspended at the next boundary of
    /// steps, and continues in another journaled call, on any worker.
    pub fn slice(mut self, time: Duration) -> Self {
        self.options.slice = time;
        self
    }

    /// Sets the pause of a session that is blocked, such as by a [changed
    /// agent](stepfold_runner::RunnerErrorKind::AgentChanged), which doubles each time, and the longest pause; one second
    /// and ten minutes by default. Restate keeps the time, and the session costs nothing meanwhile.
    pub fn pauses(mut self, first: Duration, longest: Duration) -> Self {
        self.options.pauses = (first, longest.max(first));
        self
    }

    /// Runs continue with an agent that changed since they began. By default they wait for a worker with their agent.
    pub fn with_changed_agent(mut self) -> Self {
        self.options.with_changed_agent = true;
        self
    }

    /// Serves until `stop` completes: then no connection is taken any more, and requests that run have ten seconds.
    /// The slices that they began continue in this process until the runner is [shut down](Runner::shutdown), and after that on
    /// another one.
    pub async fn serve(self, listener: TcpListener, stop: impl Future) {
        let endpoint = Endpoint::builder().bind(self).build();
        HttpServer::new(endpoint).serve_with_cancel(listener, stop).await;
    }

    fn service_options(&self) -> ServiceOptions {
        let options = &self.options;
        ServiceOptions::new()
            // NOTE: Restate suspends an invocation that is silent for too long, also inside a journaled call; a slice
            // ends before that.
            .inactivity_timeout(options.slice + options.linger + MARGIN)
            .abort_timeout(Duration::from_secs(60))
            // The session remembers keys; a stored reply would hide how the run continued.
            .idempotency_retention(Duration::ZERO)
            .retry_policy_initial_interval(Duration::from_millis(100))
            .retry_policy_exponentiation_factor(2.0)
            .retry_policy_max_interval(Duration::from_secs(30))
            // NOTE: a paused invocation would wait for an operator; a changed agent therefore sleeps, and does not fail.
            .retry_policy_max_attempts(ATTEMPTS)
            .retry_policy_pause_on_max_attempts()
    }
}

/// For an endpoint that has services of its own as well.
impl IntoServiceDefinition for RestateWorker {
    fn into_service_definition(self) -> ServiceDefinition {
        let service_options = self.service_options();
        let RestateWorker { runners, options } = self;
        SessionObject { runners, options }.into_service_definition().options(service_options)
    }
}
