//! Metrics of a process, in the format of OpenMetrics. No label names a user or a session.
//!
//! Names and buckets of what concerns models are those of OpenTelemetry's conventions for generative AI, as Prometheus
//! writes them.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::time::Duration;

use http::StatusCode;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use stepfold_agent_loop::{BudgetUnit, EventKind, Observer, ObserverError, RunEvent};
use stepfold_runner::{BudgetSpender, BudgetStatus, Runner, RunnerLoad};
use stepfold_session_scopes::StoreConnections;
use tokio::time::Instant;

use crate::http::guard::limits::LimitPermit;

/// The bounds of durations, in seconds: `gen_ai.client.operation.duration`.
const SECONDS: [f64; 14] =
    [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92];

/// The bounds of token counts: `gen_ai.client.token.usage`.
const TOKENS: [f64; 12] =
    [1.0, 4.0, 16.0, 64.0, 256.0, 1_024.0, 4_096.0, 16_384.0, 65_536.0, 262_144.0, 1_048_576.0, 4_194_304.0];

/// The one operation of models that is measured.
const CHAT: &str = "chat";

/// The metrics of a process, shared by its server and the runners that it serves. Cloning is cheap.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use stepfold_agent_loop::Agent;
/// use stepfold_agent_loop::test_kit::Script;
/// use stepfold_runner::Runner;
/// use stepfold_server::http::Metrics;
/// use stepfold_session_scopes::MemoryStore;
///
/// # let model = Script::parse("assistant: area 3")?;
/// let metrics = Metrics::new();
/// let agent = Agent::builder(model).build()?;
/// let observer = metrics.observer();
/// let runner = Runner::builder(agent, MemoryStore::new()).observe(move |_| observer.clone()).build();
/// runner.session("ada", "s1").await?.run("which area has most stalls?").await?;
/// assert!(metrics.text().contains("stepfold_runs_total{exit=\"text\"} 1"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct Metrics(Arc<MetricFamilies>);

struct MetricFamilies {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    streams: Gauge<i64, AtomicI64>,
    runs: Family<RunLabels, Counter>,
    steps: Counter,
    tokens: Family<TokenLabels, Histogram>,
    model: Family<ModelLabels, Histogram>,
    tools: Family<ToolLabels, Histogram>,
    running: Family<AppLabels, Gauge<i64, AtomicI64>>,
    waiting: Family<AppLabels, Gauge<i64, AtomicI64>>,
    claims: Family<AppLabels, Gauge<i64, AtomicI64>>,
    lost_claims: Family<AppLabels, Counter>,
    expired_sessions: Family<AppLabels, Counter>,
    expired_events: Family<AppLabels, Counter>,
    retention_failures: Family<AppLabels, Counter>,
    due: Family<AppLabels, Gauge<i64, AtomicI64>>,
    blocked: Family<AppLabels, Gauge<i64, AtomicI64>>,
    oldest: Family<AppLabels, Gauge<i64, AtomicI64>>,
    connections: Family<ConnectionLabels, Gauge<i64, AtomicI64>>,
    most_connections: Family<AppLabels, Gauge<i64, AtomicI64>>,
    pending_connections: Family<AppLabels, Gauge<i64, AtomicI64>>,
    budgets: BudgetFamilies,
}

/// The time for which the metrics of an app wait for its store.
const STORE_TIMEOUT: Duration = Duration::from_secs(1);

/// The sums and limits of budgets, and the requests that they refused.
#[derive(Default)]
struct BudgetFamilies {
    spent: Family<BudgetLabels, Gauge<f64, AtomicU64>>,
    reserved: Family<BudgetLabels, Gauge<f64, AtomicU64>>,
    limit: Family<BudgetLabels, Gauge<f64, AtomicU64>>,
    refused: Family<RefusedLabels, Counter>,
}

/// A budget of an app or a group: those of users have no metrics.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BudgetLabels {
    #[prometheus(flatten)]
    app: AppLabels,
    budget: String,
    unit: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusedLabels {
    #[prometheus(flatten)]
    app: AppLabels,
    budget: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AppLabels {
    app: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ConnectionLabels {
    #[prometheus(flatten)]
    app: AppLabels,
    db_client_connection_state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    operation: &'static str,
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RunLabels {
    exit: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TokenLabels {
    #[prometheus(flatten)]
    model: ModelLabels,
    gen_ai_token_type: TokenType,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum TokenType {
    Input,
    Output,
}

impl EncodeLabelValue for TokenType {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), fmt::Error> {
        let word = match self {
            TokenType::Input => "input",
            TokenType::Output => "output",
        };
        EncodeLabelValue::encode(&word, encoder)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
#[expect(clippy::struct_field_names, reason = "the names of labels")]
struct ModelLabels {
    gen_ai_operation_name: &'static str,
    gen_ai_provider_name: String,
    gen_ai_request_model: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ToolLabels {
    gen_ai_tool_name: String,
    status: String,
}

impl BudgetFamilies {
    fn registered(registry: &mut Registry) -> Self {
        let families = BudgetFamilies::default();
        registry.register(
            "stepfold_budget_spent",
            "The spent amount of a budget of an app or a group in its window, in dollars, tokens or requests",
            families.spent.clone(),
        );
        registry.register(
            "stepfold_budget_reserved",
            "The amount that is reserved in it for requests under way",
            families.reserved.clone(),
        );
        registry.register("stepfold_budget_limit", "The limit that holds in it", families.limit.clone());
        registry.register(
            "stepfold_budget_refused_requests",
            "Requests to models that did not fit into a budget, also of users: their runs wait or have failed",
            families.refused.clone(),
        );
        families
    }

    /// Sets how the budgets of an app stand.
    async fn read(&self, app: &AppLabels, runner: &Runner) {
        for (budget, refused) in runner.refused_requests() {
            let labels = RefusedLabels { app: app.clone(), budget: budget.to_string() };
            let counter = self.refused.get_or_create(&labels);
            counter.inc_by(refused.saturating_sub(counter.get()));
        }
        // NOTE: a store that does not answer, or has no budgets, costs these figures and not the others.
        let spender = BudgetSpender::new();
        let reading = tokio::time::timeout(STORE_TIMEOUT, runner.budgets(&spender));
        let Ok(Ok(budgets)) = reading.await else { return };
        for BudgetStatus { budget, spent, reserved, limit, .. } in budgets {
            let (app, unit) = (app.clone(), budget.unit.as_str());
            let labels = BudgetLabels { app, budget: budget.name.to_string(), unit };
            for (gauge, amount) in [(&self.spent, spent), (&self.reserved, reserved), (&self.limit, limit)] {
                gauge.get_or_create(&labels).set(in_units(budget.unit, amount));
            }
        }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics::new()
    }
}

/// Registers the counters of retention: deleted sessions, deleted events, failures.
fn retention_counters(registry: &mut Registry) -> (AppCounters, AppCounters, AppCounters) {
    let (expired_sessions, expired_events) = (Family::default(), Family::default());
    registry.register(
        "stepfold_expired_sessions",
        "Sessions that retention has deleted in this process",
        expired_sessions.clone(),
    );
    registry.register(
        "stepfold_expired_events",
        "Events that retention has deleted in this process, those of sessions included",
        expired_events.clone(),
    );
    let retention_failures = Family::default();
    registry.register(
        "stepfold_retention_failures",
        "Sessions that retention could not read or change in this process",
        retention_failures.clone(),
    );
    (expired_sessions, expired_events, retention_failures)
}

type AppCounters = Family<AppLabels, Counter>;

impl Metrics {
    /// Metrics that are all zero.
    pub fn new() -> Self {
        let mut registry = Registry::default();
        let (requests, streams) = (Family::default(), Gauge::default());
        let (runs, steps) = (Family::default(), Counter::default());
        let tokens: Family<TokenLabels, Histogram> = Family::new_with_constructor(|| Histogram::new(TOKENS));
        let model: Family<ModelLabels, Histogram> = Family::new_with_constructor(|| Histogram::new(SECONDS));
        let tools: Family<ToolLabels, Histogram> = Family::new_with_constructor(|| Histogram::new(SECONDS));
        registry.register("stepfold_http_requests", "Requests, by operation and status", requests.clone());
        registry.register("stepfold_live_streams", "Open live streams", streams.clone());
        registry.register("stepfold_runs", "Runs that ended or paused, by exit reason", runs.clone());
        registry.register("stepfold_steps", "Replies of models", steps.clone());
        registry.register(
            "gen_ai_client_token_usage",
            "Tokens of a reply, by model and type",
            tokens.clone(),
        );
        registry.register_with_unit(
            "gen_ai_client_operation_duration",
            "Duration of a request to a model",
            Unit::Seconds,
            model.clone(),
        );
        registry.register_with_unit(
            "gen_ai_execute_tool_duration",
            "Duration of a call of a tool",
            Unit::Seconds,
            tools.clone(),
        );
        let (running, waiting, claims) = (Family::default(), Family::default(), Family::default());
        registry.register("stepfold_running_sessions", "Sessions with a running invocation", running.clone());
        registry.register(
            "stepfold_queued_messages",
            "Messages that wait for an invocation to end",
            waiting.clone(),
        );
        registry.register("stepfold_claims", "Claims on sessions that this process holds", claims.clone());
        let lost_claims = Family::default();
        registry.register(
            "stepfold_lost_claims",
            "Claims that other workers have taken from this process",
            lost_claims.clone(),
        );
        let (expired_sessions, expired_events, retention_failures) = retention_counters(&mut registry);
        let (due, blocked, oldest) = (Family::default(), Family::default(), Family::default());
        registry.register(
            "stepfold_due_sessions",
            "Sessions with work and without a worker, at the last look: at least so many",
            due.clone(),
        );
        registry.register(
            "stepfold_blocked_sessions",
            "Due sessions that could not be recovered, and wait for a deployment, a repair or a pause",
            blocked.clone(),
        );
        registry.register_with_unit(
            "stepfold_oldest_due",
            "Time since which the oldest due session has waited",
            Unit::Seconds,
            oldest.clone(),
        );
        let (connections, most_connections) = (Family::default(), Family::default());
        let pending_connections = Family::default();
        registry.register(
            "db_client_connection_count",
            "Connections of the store to its database, by state",
            connections.clone(),
        );
        registry.register(
            "db_client_connection_max",
            "The most connections that the store may open",
            most_connections.clone(),
        );
        registry.register(
            "db_client_connection_pending_requests",
            "Operations that wait for a connection",
            pending_connections.clone(),
        );
        Metrics(Arc::new(MetricFamilies {
            budgets: BudgetFamilies::registered(&mut registry),
            registry,
            requests,
            streams,
            runs,
            steps,
            tokens,
            model,
            tools,
            running,
            waiting,
            claims,
            lost_claims,
            expired_sessions,
            expired_events,
            retention_failures,
            due,
            blocked,
            oldest,
            connections,
            most_connections,
            pending_connections,
        }))
    }

    /// An observer that counts the runs of a runner: clone it for each invocation.
    pub fn observer(&self) -> RunMetrics {
        RunMetrics { metrics: self.clone(), run: RunTimings::default() }
    }

    /// Sets what the runner of an app does now, and how its budgets stand.
    pub(super) async fn read(&self, app: &str, runner: &Runner) {
        let labels = AppLabels { app: app.to_owned() };
        self.load(&labels, runner.load());
        self.0.budgets.read(&labels, runner).await;
    }

    fn load(&self, app: &AppLabels, load: RunnerLoad) {
        let oldest = usize::try_from(load.oldest.as_secs()).unwrap_or(usize::MAX);
        let StoreConnections { limit, open, used, waiting, .. } = load.connections;
        for (gauge, number) in [
            (&self.0.running, load.running),
            (&self.0.waiting, load.waiting),
            (&self.0.claims, load.claims),
            (&self.0.due, load.due),
            (&self.0.blocked, load.blocked),
            (&self.0.oldest, oldest),
            (&self.0.most_connections, limit),
            (&self.0.pending_connections, waiting),
        ] {
            gauge.get_or_create(app).set(i64::try_from(number).unwrap_or(i64::MAX));
        }
        for (state, number) in [("used", used), ("idle", open.saturating_sub(used))] {
            let of = ConnectionLabels { app: app.clone(), db_client_connection_state: state };
            self.0.connections.get_or_create(&of).set(i64::try_from(number).unwrap_or(i64::MAX));
        }
        // NOTE: A counter only grows, and the load has the total.
        for (counter, total) in [
            (&self.0.lost_claims, load.lost_claims),
            (&self.0.expired_sessions, load.expired_sessions),
            (&self.0.expired_events, load.expired_events),
            (&self.0.retention_failures, load.retention_failures),
        ] {
            let counter = counter.get_or_create(app);
            counter.inc_by(total.saturating_sub(counter.get()));
        }
    }

    /// The text of the metrics, in the format of OpenMetrics.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string never fails.
        let _ = encode(&mut text, &self.0.registry);
        text
    }

    pub(super) fn answered(&self, operation: &'static str, status: StatusCode) {
        let labels = RequestLabels { operation, status: status.as_u16() };
        self.0.requests.get_or_create(&labels).inc();
    }

    /// Counts a stream until its permit is dropped.
    pub(super) fn stream(&self, permit: LimitPermit) -> CountedStream {
        self.0.streams.inc();
        CountedStream { metrics: self.clone(), _permit: permit }
    }
}

/// An open stream.
pub(super) struct CountedStream {
    metrics: Metrics,
    _permit: LimitPermit,
}

impl Drop for CountedStream {
    fn drop(&mut self) {
        self.metrics.0.streams.dec();
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// Counts the events of an invocation: see [`Metrics::observer`].
#[derive(Clone, Debug)]
pub struct RunMetrics {
    metrics: Metrics,
    run: RunTimings,
}

/// The start times of the request and the calls of a run, and of the runs inside it, by the place of their call or branch.
#[derive(Clone, Debug, Default)]
struct RunTimings {
    /// The model that was asked, and when.
    asked: Option<(String, Instant)>,
    /// When the calls of the step were started.
    calls: HashMap<String, Instant>,
    inside: HashMap<usize, RunTimings>,
}

impl MetricFamilies {
    fn count(&self, run: &mut RunTimings, event: &RunEvent) {
        match event {
            RunEvent::Asking { model, .. } => run.asked = Some((model.clone(), Instant::now())),
            RunEvent::Committed(event) => self.committed(run, &event.kind),
            RunEvent::ToolStarted { call_id, .. } => {
                run.calls.insert(call_id.clone(), Instant::now());
            }
            RunEvent::ToolFinished { call_id, tool, status, .. } => {
                let Some(at) = run.calls.remove(call_id) else { return };
                let labels = ToolLabels { gen_ai_tool_name: tool.clone(), status: word(status) };
                self.tools.get_or_create(&labels).observe(at.elapsed().as_secs_f64());
            }
            RunEvent::NodeFinished { branch, .. } => drop(run.inside.remove(branch)),
            // Only whole runs are counted as such.
            RunEvent::Inner { place, event, .. } if !matches!(**event, RunEvent::Ended(_)) => {
                self.count(run.inside.entry(*place).or_default(), event);
            }
            RunEvent::Ended(exit) => {
                self.runs.get_or_create(&RunLabels { exit: word(exit) }).inc();
                *run = RunTimings::default();
            }
            _ => {}
        }
    }

    fn committed(&self, run: &mut RunTimings, kind: &EventKind) {
        let usage = match kind {
            EventKind::Replied { usage, .. } => usage,
            EventKind::Inner { place, event } => {
                return self.committed(run.inside.entry(*place).or_default(), &event.kind);
            }
            _ => return,
        };
        self.steps.inc();
        let Some((id, at)) = run.asked.take() else { return };
        // As in the spans of requests.
        let (provider, model) = id.split_once('/').unwrap_or((&id, &id));
        let labels = ModelLabels {
            gen_ai_operation_name: CHAT,
            gen_ai_provider_name: provider.to_owned(),
            gen_ai_request_model: model.to_owned(),
        };
        self.model.get_or_create(&labels).observe(at.elapsed().as_secs_f64());
        for (kind, tokens) in
            [(TokenType::Input, usage.input_tokens), (TokenType::Output, usage.output_tokens)]
        {
            let labels = TokenLabels { model: labels.clone(), gen_ai_token_type: kind };
            #[expect(clippy::cast_precision_loss, reason = "a count of tokens is far below 2^53")]
            self.tokens.get_or_create(&labels).observe(tokens as f64);
        }
    }
}

/// An amount in dollars, tokens or requests.
#[expect(clippy::cast_precision_loss, reason = "amounts are at most 2^53")]
fn in_units(unit: BudgetUnit, amount: u64) -> f64 {
    match unit {
        BudgetUnit::Usd => amount as f64 / 1e9,
        _ => amount as f64,
    }
}

/// The name of a variant, without what is in it: labels have few values.
fn word(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        Ok(serde_json::Value::Object(fields)) => fields.keys().next().cloned().unwrap_or_default(),
        _ => "other".to_owned(),
    }
}

impl Observer for RunMetrics {
    async fn observe(&mut self, event: &RunEvent) -> Result<(), ObserverError> {
        self.metrics.0.count(&mut self.run, event);
        Ok(())
    }
}
