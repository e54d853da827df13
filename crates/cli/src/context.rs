//! The context of a command: an agent from its file, with the store of its sessions.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};
use stepfold::agent_loop::{Decisions, Ids as _, RandomIds, Traces};
use stepfold::prelude::*;
use stepfold::providers::GenaiPrices;
use stepfold::runner::{
    Budget, RetentionPolicy, RunnerBuilder, RunnerError, RunnerErrorKind, SharedRateLimit, WhenChanged,
};
use stepfold::server::http::Metrics;
use stepfold::session_scopes::{
    ErrorKind, ListSessions, ReadLabels, Session, SessionError, SessionKey, SessionSchema, SessionStore as _,
};
use stepfold::state_core::chat::Prices;
use tokio::sync::Mutex;

use crate::agent_file::{AgentFile, BuiltFile, read_budgets};
use crate::archive::{AgentBundle, AgentFiles};
use crate::args::{BusyPolicy, CassetteMode, RunArgs, SessionArgs, VersionName};
use crate::argument_text::shell_quoted;
use crate::error::{CommandEnding, UsageError};
use crate::form::redact::FileRedaction;
use crate::migrate::session_schema;
use crate::model::{FailedRequests, ModelSource};
use crate::show;
use crate::signals::StopSignals;
use crate::store::{StoreAccess, open_store, postgres_url};

/// The time that active runs get to complete after the command has ended.
const GRACE: Duration = Duration::from_secs(10);

/// The attempts to find a session id that is not in use.
const ATTEMPTS: usize = 5;

/// An agent with the store of its sessions, for one user.
pub(crate) struct CommandContext {
    pub(crate) runner: Runner,
    pub(crate) user: String,
    /// For a graph: the nodes whose agents continue its conversation.
    pub(crate) speakers: Option<BTreeSet<String>>,
    /// The keys of the agent with any types: stored values can be read even if they do not fit the agent's schema.
    pub(crate) untyped: SessionSchema,
    /// Failed requests to models, before their next attempts.
    pub(crate) failures: Mutex<FailedRequests>,
    target: SessionArgs,
    options: Option<RunArgs>,
    /// The prices of the models that the file names.
    pub(crate) prices: Prices,
    /// Its file, and those that it names.
    pub(crate) texts: AgentBundle,
    /// The id of the command's session, once it is known.
    active_session: OnceLock<String>,
}

/// An agent file, read and built.
pub(crate) struct LoadedAgent {
    pub(crate) agent: Agent,
    pub(crate) schema: SessionSchema,
    /// For a graph: the nodes whose agents continue its conversation.
    pub(crate) speakers: Option<BTreeSet<String>>,
    /// For a graph: its nodes and edges.
    pub(crate) shape: Option<Value>,
    /// The prices of its models.
    pub(crate) prices: Prices,
    /// The handling of unfinished runs after a change of the file.
    pub(crate) when_changed: WhenChanged,
    /// Its budgets and rate limits.
    pub(crate) spend_limits: SpendLimits,
    /// Its redaction.
    pub(crate) redaction: Option<FileRedaction>,
    /// Its retention.
    pub(crate) retention: Option<RetentionPolicy>,
    /// Its file, and those that it names.
    pub(crate) texts: AgentBundle,
    /// The programs and addresses that its earlier versions may use, beside those of today.
    pub(crate) former_programs: Vec<String>,
}

impl LoadedAgent {
    pub(crate) fn read(path: &Path, models: &ModelSource<'_>) -> anyhow::Result<Self> {
        LoadedAgent::read_with(path, &[], models)
    }

    /// Reads an agent file with settings of a command line, such as `limits.steps=4`.
    pub(crate) fn read_with(
        path: &Path,
        settings: &[String],
        models: &ModelSource<'_>,
    ) -> anyhow::Result<Self> {
        models.files.forget();
        let file = AgentFile::read_with(&models.files, path, settings)??;
        let (migrations, prices, when_changed) = (file.migrations(), file.prices(), file.when_changed());
        let spend_limits = SpendLimits { budgets: file.budgets(), rate_limits: file.rate_limits() };
        let former_programs = file.former_programs().to_vec();
        let (redaction, retention) = (file.redaction(), file.retention());
        let built = match file.build(models) {
            Ok(built) => built?,
            // NOTE: Faults of the file are reported before a missing model: they are the author's to fix first.
            Err(error) => {
                AgentFile::read_with(&models.files, path, settings)??.check()?;
                return Err(error);
            }
        };
        let (speakers, shape) = match &built {
            BuiltFile::Agent(_) => (None, None),
            BuiltFile::Graph(built) => {
                (Some(built.speakers.clone()), Some(serde_json::to_value(built.graph.shape())?))
            }
        };
        let texts = AgentBundle::of(path, models.files.all());
        let agent = texts.identify(&Agent::from(built))?;
        let schema = session_schema(agent.schema(), migrations);
        Ok(LoadedAgent {
            agent,
            schema,
            speakers,
            shape,
            prices,
            when_changed,
            spend_limits,
            redaction,
            retention,
            texts,
            former_programs,
        })
    }
}

impl CommandContext {
    /// Opens the agent with a model, and the store, created if it is missing: for commands that create sessions.
    pub(crate) async fn for_run(target: &SessionArgs, options: &RunArgs) -> anyhow::Result<Self> {
        let access = if options.last { StoreAccess::Write } else { StoreAccess::Create };
        CommandContext::with_model(target, options, access, None).await
    }

    /// Opens the agent with a model, and an existing store: for commands that continue a session.
    pub(crate) async fn for_resume(target: &SessionArgs, options: &RunArgs) -> anyhow::Result<Self> {
        CommandContext::with_model(target, options, StoreAccess::Write, None).await
    }

    /// Opens the agent with a model, and the store: for a worker, which resumes runs in all sessions.
    pub(crate) async fn for_worker(
        target: &SessionArgs,
        options: &RunArgs,
        metrics: Option<&Metrics>,
    ) -> anyhow::Result<Self> {
        CommandContext::with_model(target, options, StoreAccess::Create, metrics).await
    }

    /// Opens the agent with a model, which is not called, and the store, read-only: for a list of runs.
    pub(crate) async fn for_list(target: &SessionArgs, options: &RunArgs) -> anyhow::Result<Self> {
        CommandContext::with_model(target, options, StoreAccess::Read, None).await
    }

    /// Opens the agent without a model: for a command that abandons a run.
    pub(crate) async fn for_abandon(target: &SessionArgs, options: &RunArgs) -> anyhow::Result<Self> {
        let (busy, models) = (options.when_claimed, ModelSource::none());
        CommandContext::open(target, Some(options), busy, models, StoreAccess::Write, None).await
    }

    /// Opens the agent without a model: for commands that write to a session.
    pub(crate) async fn for_write(target: &SessionArgs) -> anyhow::Result<Self> {
        CommandContext::for_change(target, BusyPolicy::default()).await
    }

    /// Opens the agent without a model: for commands that change a session in which another process may run.
    pub(crate) async fn for_change(target: &SessionArgs, when_claimed: BusyPolicy) -> anyhow::Result<Self> {
        CommandContext::open(target, None, when_claimed, ModelSource::none(), StoreAccess::Write, None).await
    }

    /// Opens the agent with the model that its file names, which is never called: for a command that edits a run, which this
    /// version of the agent may have to leave alone.
    pub(crate) async fn for_edit(target: &SessionArgs) -> anyhow::Result<Self> {
        CommandContext::with_checked_model(target, BusyPolicy::Refuse, StoreAccess::Write).await
    }

    /// Opens the agent without a model: for commands that only read. No file is created or changed.
    pub(crate) async fn for_read(target: &SessionArgs) -> anyhow::Result<Self> {
        let (busy, models) = (BusyPolicy::default(), ModelSource::none());
        CommandContext::open(target, None, busy, models, StoreAccess::Read, None).await
    }

    /// Opens the agent with the model that its file names, which is never called, and the store, read-only.
    pub(crate) async fn for_check(target: &SessionArgs) -> anyhow::Result<Self> {
        CommandContext::with_checked_model(target, BusyPolicy::default(), StoreAccess::Read).await
    }

    /// The same with a store that is written to: for a command that removes stored versions of the agent.
    pub(crate) async fn for_prune(target: &SessionArgs) -> anyhow::Result<Self> {
        CommandContext::with_checked_model(target, BusyPolicy::default(), StoreAccess::Write).await
    }

    /// Opens the agent with a model, read-only: for a command that shows the request to the model.
    pub(crate) async fn for_read_with_model(target: &SessionArgs, options: &RunArgs) -> anyhow::Result<Self> {
        let (busy, models) = (BusyPolicy::default(), ModelSource::command_line(options));
        CommandContext::open(target, None, busy, models, StoreAccess::Read, None).await
    }

    /// Opens the agent without a model, and a store that must exist: for commands that verify it.
    pub(crate) async fn for_verify(target: &SessionArgs) -> anyhow::Result<Self> {
        let (busy, models) = (BusyPolicy::default(), ModelSource::none());
        CommandContext::open(target, None, busy, models, StoreAccess::Verify, None).await
    }

    async fn with_model(
        target: &SessionArgs,
        options: &RunArgs,
        access: StoreAccess,
        metrics: Option<&Metrics>,
    ) -> anyhow::Result<Self> {
        let models = ModelSource::command_line(options);
        CommandContext::open(target, Some(options), options.when_claimed, models, access, metrics).await
    }

    async fn with_checked_model(
        target: &SessionArgs,
        when_claimed: BusyPolicy,
        access: StoreAccess,
    ) -> anyhow::Result<Self> {
        let models = (ModelSource::checked(), ModelSource::none().1);
        CommandContext::open(target, None, when_claimed, models, access, None).await
    }

    async fn open(
        target: &SessionArgs,
        options: Option<&RunArgs>,
        when_claimed: BusyPolicy,
        (models, failures): (ModelSource<'_>, FailedRequests),
        access: StoreAccess,
        metrics: Option<&Metrics>,
    ) -> anyhow::Result<Self> {
        let loaded = LoadedAgent::read(&target.agent, &models)?;
        let store = open_store(target.store.as_deref(), target.keys.as_deref(), access).await?;
        let archive = AgentFiles::of(&loaded, &target.agent, &store, options);
        let LoadedAgent {
            agent,
            schema,
            speakers,
            prices,
            when_changed,
            spend_limits,
            redaction,
            retention,
            texts,
            ..
        } = loaded;
        let when_changed = options.and_then(|options| options.when_changed).unwrap_or(when_changed);
        let (untyped, failures) = (schema.untyped(), Mutex::new(failures));
        models.recall.connect(store.clone());
        let spend_limits = spend_limits.with_file(options.and_then(|options| options.budgets.as_deref()))?;
        let builder = with_spend_limits(Runner::builder(agent, store), &prices, spend_limits);
        let builder = builder.archive(archive);
        let builder = redaction.into_iter().fold(builder, |builder, redaction| redaction.add_to(builder));
        let builder = retention.into_iter().fold(builder, RunnerBuilder::retention);
        let runner = with_metrics(with_traces(builder), metrics)
            .schema(schema)
            // NOTE: The runs of a killed process on this host can be resumed immediately, without waiting for its claim
            // to expire.
            .process_worker()
            .when_claimed(when_claimed.into())
            .when_changed(when_changed)
            // NOTE: Queued messages are for the process that sent them: its model and its terminal.
            .leave_inbox()
            .build();
        let (user, target, options) = (target.user.clone(), target.clone(), options.cloned());
        Ok(CommandContext {
            runner,
            user,
            speakers,
            untyped,
            failures,
            target,
            options,
            prices,
            texts,
            active_session: OnceLock::new(),
        })
    }

    /// Runs a command until it is done or a signal stops the process. Afterwards no run is active, so that other processes
    /// can continue immediately.
    pub(crate) async fn work(
        &self,
        command: impl Future<Output = anyhow::Result<CommandEnding>>,
    ) -> anyhow::Result<CommandEnding> {
        let mut signals = StopSignals::listen().context("could not listen for signals")?;
        let ended = tokio::select! {
            ended = command => ended,
            stopped = signals.received() => {
                show::note(match self.active_session.get() {
                    Some(id) => format!(
                        "stopped; a run that was at work is interrupted; continue with\n  {}",
                        self.resume_command(id)
                    ),
                    None => "stopped; nothing was begun".to_owned(),
                });
                Ok(stopped)
            }
        };
        // NOTE: After a signal or an error runs are not awaited: the next process resumes them from their last commit.
        let grace = match &ended {
            Ok(CommandEnding::Stopped(_)) | Err(_) => Duration::ZERO,
            Ok(_) => GRACE,
        };
        self.runner.shutdown(grace).await;
        ended
    }

    /// The requested session, which must exist; by default the one with the newest write.
    pub(crate) async fn session(&self) -> anyhow::Result<SessionHandle> {
        let session = match &self.target.session {
            Some(id) => self.session_named(id).await,
            None => self.session_named(&self.newest().await?).await,
        };
        Ok(self.set_active_session(session?))
    }

    /// Records the command's session, for the hint of an interrupted command.
    fn set_active_session(&self, session: SessionHandle) -> SessionHandle {
        // A command works in one session: a second call has the same id.
        let _ = self.active_session.set(session.key().id.to_string());
        session
    }

    /// A session that must exist.
    pub(crate) async fn session_named(&self, id: &str) -> anyhow::Result<SessionHandle> {
        // NOTE: `Runner::session` creates a missing session: a mistyped id must be an error.
        let found = self.runner.find_session(self.user.as_str(), id).await?;
        let Some(session) = found else {
            let missing = SessionError::NotFound { key: Box::new(self.runner.key(self.user.as_str(), id)?) };
            let list = format!("stepfold sessions {}", self.words());
            return Err(UsageError(format!("{missing}; `{list}` lists the existing ones")).into());
        };
        Ok(session)
    }

    /// Resolves the name of a version to its number.
    pub(crate) async fn version(&self, key: &SessionKey, at: &VersionName) -> anyhow::Result<u64> {
        let wanted = match at {
            VersionName::Version(version) => return Ok(*version),
            VersionName::Label(label) => label,
        };
        let labels = self.runner.store().labels(ReadLabels::new(key.clone())).await?;
        if let Some((_, version)) = labels.iter().find(|(label, _)| label.as_str() == wanted) {
            return Ok(*version);
        }
        let known: Vec<&str> = labels.iter().map(|(label, _)| label.as_str()).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        Err(UsageError(format!("unknown version or label `{wanted}` of session {}; labels: {known}", key.id))
            .into())
    }

    /// The action while another process runs in the session.
    pub(crate) fn when_claimed(&self) -> BusyPolicy {
        self.options.as_ref().map(|options| options.when_claimed).unwrap_or_default()
    }

    /// The session for a turn: the requested one, created if it does not exist; otherwise a new one.
    pub(crate) async fn session_for_turn(&self) -> anyhow::Result<SessionHandle> {
        let session = match &self.target.session {
            Some(id) => self.runner.session(self.user.as_str(), id.as_str()).await?,
            None if self.options.as_ref().is_some_and(|options| options.last) => self.session().await?,
            None => self.new_session().await?,
        };
        Ok(self.set_active_session(session))
    }

    async fn new_session(&self) -> anyhow::Result<SessionHandle> {
        // NOTE: Eight characters can collide with an existing session: then another id is drawn.
        let mut attempts = 0;
        loop {
            attempts += 1;
            match self.runner.create(self.user.as_str(), short_id(), json!({})).await {
                Err(RunnerError { kind: RunnerErrorKind::Store { source, .. }, .. })
                    if source.kind() == ErrorKind::AlreadyExists && attempts < ATTEMPTS => {}
                made => return Ok(made?),
            }
        }
    }

    async fn newest(&self) -> anyhow::Result<String> {
        let page = self.list(1).await?;
        let newest = page.first().map(|session| session.key.id.to_string());
        newest.ok_or_else(|| UsageError(self.no_session_text()).into())
    }

    /// The text for an agent without sessions, with the command that creates one.
    pub(crate) fn no_session_text(&self) -> String {
        let agent = self.runner.agent().name();
        format!("agent {agent} has no session of user {} yet; `stepfold run` begins one", self.user)
    }

    /// Lists the sessions with the newest writes.
    pub(crate) async fn list(&self, limit: usize) -> anyhow::Result<Vec<Session>> {
        Ok(self.runner.store().list(self.listing(limit)?).await?.sessions)
    }

    /// The same without sessions in which nothing is said: those in which a live experiment counts its requests, and those that were
    /// rewound to their beginning.
    pub(crate) async fn list_begun(&self, limit: usize) -> anyhow::Result<Vec<Session>> {
        let (mut request, mut begun) = (self.listing(limit)?, Vec::new());
        loop {
            let page = self.runner.store().list(request.clone()).await?;
            begun.extend(page.sessions.into_iter().filter(has_begun));
            request.after = page.next;
            if request.after.is_none() || begun.len() >= limit {
                begun.truncate(limit);
                return Ok(begun);
            }
        }
    }

    fn listing(&self, limit: usize) -> anyhow::Result<ListSessions> {
        // NOTE: The id `-` is a placeholder: only the app and the user of the key are used.
        // Only the runner knows the app of its keys: it is the agent's name.
        let key = self.runner.key(self.user.as_str(), "-")?;
        Ok(ListSessions::new(key.app.as_str(), self.user.as_str())?.limit(limit))
    }

    /// Adds the approver to decisions: the one of `--by`, otherwise the system's user, otherwise the session's user.
    pub(crate) fn decided(&self, decisions: Vec<(String, Decision)>) -> Decisions {
        let decided = Decisions::from(decisions);
        if decided.decisions.is_empty() {
            return decided;
        }
        let named = self.options.as_ref().and_then(|options| options.by.clone());
        let name = |variable| {
            crate::environment::variable(variable)?.into_string().ok().filter(|name| !name.is_empty())
        };
        let by = named.or_else(|| ["USER", "LOGNAME", "USERNAME"].into_iter().find_map(name));
        decided.by(by.unwrap_or_else(|| self.user.clone()))
    }

    /// The command line that resumes a session.
    pub(crate) fn resume_command(&self, session: &str) -> String {
        format!("stepfold resume {} --session {}", self.words(), shell_quoted(session))
    }

    /// The arguments after `stepfold COMMAND` that select the same agent, store and user.
    pub(crate) fn words(&self) -> String {
        let mut words = vec![shell_quoted(&self.target.agent.to_string_lossy())];
        match &self.target.store {
            // NOTE: The address may have a password.
            Some(store) if postgres_url(store).is_some() => {
                words.push(r#"--store "$STEPFOLD_STORE""#.to_owned());
            }
            Some(store) => words.extend(["--store".to_owned(), shell_quoted(&store.to_string_lossy())]),
            None => {}
        }
        let mut add = |name: &str, value: &str| words.extend([name.to_owned(), shell_quoted(value)]);
        if let Some(keys) = &self.target.keys {
            add("--keys", &keys.to_string_lossy());
        }
        // NOTE: The default of `--user` is left out, so that the printed command stays short.
        if self.user != "local" {
            add("--user", &self.user);
        }
        let options = self.options.as_ref();
        if let Some(model) = options.and_then(|options| options.model.as_ref()) {
            add("--model", model);
        }
        if let Some((cassette, mode)) =
            options.and_then(|options| Some((options.cassette.as_ref()?, options.mode)))
        {
            add("--cassette", &cassette.to_string_lossy());
            // NOTE: `--mode record` is left out: a second recording would replace the first one.
            if mode == CassetteMode::Replay {
                add("--mode", "replay");
            }
        }
        words.join(" ")
    }
}

/// Adds the spans of each run in this process, whichever command or client started it.
pub(crate) fn with_traces(builder: RunnerBuilder) -> RunnerBuilder {
    // The app of a session has the name of its agent.
    builder.observe(|session| Traces::new(session.app.as_str()))
}

/// The budgets and rate limits of a file.
#[derive(Clone)]
pub(crate) struct SpendLimits {
    pub(crate) budgets: Vec<Budget>,
    pub(crate) rate_limits: Vec<SharedRateLimit>,
}

impl SpendLimits {
    /// Adds the budgets of a file that hold beside those of the agent.
    pub(crate) fn with_file(mut self, path: Option<&Path>) -> anyhow::Result<Self> {
        for budget in path.map(read_budgets).transpose()?.into_iter().flatten() {
            if self.budgets.iter().any(|own| own.name == budget.name) {
                let file = path.unwrap_or(Path::new("")).display();
                let words =
                    format!("{file}: the agent has a budget `{}` too: rename one of them", budget.name);
                return Err(UsageError(words).into());
            }
            self.budgets.push(budget);
        }
        Ok(self)
    }
}

/// Adds the budgets and rate limits of a file, at its prices; models that it has no prices of have those of the table that is
/// compiled in.
pub(crate) fn with_spend_limits(
    builder: RunnerBuilder,
    prices: &Prices,
    limits: SpendLimits,
) -> RunnerBuilder {
    let builder = builder.prices(prices.clone()).default_prices(GenaiPrices::bundled());
    let builder = limits.budgets.into_iter().fold(builder, RunnerBuilder::budget);
    limits.rate_limits.into_iter().fold(builder, RunnerBuilder::rate_limit)
}

fn with_metrics(builder: RunnerBuilder, metrics: Option<&Metrics>) -> RunnerBuilder {
    match metrics.map(Metrics::observer) {
        Some(observer) => builder.observe(move |_| observer.clone()),
        None => builder,
    }
}

/// A random session id, short enough to type.
pub(crate) fn short_id() -> String {
    RandomIds.next().chars().take(8).collect()
}
/// Whether a session has a visible event beside its rewinds, each of which begins a range of visible versions.
fn has_begun(session: &Session) -> bool {
    session.visible.ranges().any(|(first, last)| last > first)
}
