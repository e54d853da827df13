//! An agent file, opened with its store: what every command about sessions begins with.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::Context as _;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use stepfold::agent_loop::{Decisions, Ids as _, RandomIds, Traces};
use stepfold::prelude::*;
use stepfold::runner::{RunnerBuilder, RunnerError};
use stepfold::server::http::Metrics;
use stepfold::session_scopes::{
    AnyStore, AppId, ErrorKind, EventRange, GetSession, ListSessions, MemoryStore, ReadLabels, Session,
    SessionError, SessionKey, SessionSchema, SessionStore as _, SqliteOptions, SqliteStore,
};
use stepfold::state_core::chat::Prices;
use stepfold::state_core::{ExactError, read_exact};
use tokio::sync::Mutex;

use crate::agent_file::{AgentFile, Built};
use crate::args::{Asked, At, Mode, Place, WhenBusy};
use crate::error::{Ending, Misuse};
use crate::migrate::{session_schema, untyped};
use crate::model::{Failures, Models};
use crate::show;
use crate::signals::Signals;

/// How long a command that has ended waits for what it is still at work on.
const GRACE: Duration = Duration::from_secs(10);

/// How often a made-up name may be in use.
const TRIES: usize = 5;

/// An agent with the store of its sessions, for one user.
pub(crate) struct Desk {
    pub(crate) runner: Runner,
    pub(crate) user: String,
    /// Of a graph: the nodes that are agents and continue with its conversation.
    pub(crate) speakers: Option<BTreeSet<String>>,
    /// The keys of the agent with any types: for reading, which works whatever is stored.
    pub(crate) untyped: SessionSchema,
    /// Requests to models that failed and are sent again.
    pub(crate) failures: Mutex<Failures>,
    place: Place,
    asked: Option<Asked>,
    /// The session that the command works in, once it is known.
    at_work: OnceLock<String>,
}

/// An agent file, read and built.
pub(crate) struct Opened {
    pub(crate) agent: Agent,
    pub(crate) schema: SessionSchema,
    /// Of a graph: the nodes that are agents and continue with its conversation.
    pub(crate) speakers: Option<BTreeSet<String>>,
    /// Of a graph: its nodes and edges.
    pub(crate) shape: Option<Value>,
    /// The prices of its models.
    pub(crate) prices: Prices,
}

impl Opened {
    pub(crate) fn read(path: &Path, models: &Models<'_>) -> anyhow::Result<Self> {
        let file = AgentFile::read(path)??;
        let (migrations, prices) = (file.migrations(), file.prices());
        let built = match file.build(models) {
            Ok(built) => built?,
            // What is wrong with the files comes before models that cannot be had.
            Err(error) => {
                AgentFile::read(path)??.check()?;
                return Err(error);
            }
        };
        let (speakers, shape) = match &built {
            Built::Agent(_) => (None, None),
            Built::Graph(built) => {
                (Some(built.speakers.clone()), Some(serde_json::to_value(built.graph.shape())?))
            }
        };
        let agent = Agent::from(built);
        // The runner would take another name for one that no store accepts.
        AppId::new(agent.name()).map_err(|error| Misuse(error.to_string()))?;
        let schema = session_schema(agent.schema(), migrations);
        Ok(Opened { agent, schema, speakers, shape, prices })
    }
}

impl Desk {
    /// With a model and a store that is created if it is missing, for commands that begin sessions.
    pub(crate) fn to_run(place: &Place, asked: &Asked) -> anyhow::Result<Self> {
        let open = |path: &Path| if asked.last { open_existing(place, path) } else { open_or_create(path) };
        Desk::open(place, Some(asked), asked.when_claimed, Models::asked(asked), open, None)
    }

    /// With a model, for commands that continue in a session.
    pub(crate) fn to_resume(place: &Place, asked: &Asked) -> anyhow::Result<Self> {
        let open = |path: &Path| open_existing(place, path);
        Desk::open(place, Some(asked), asked.when_claimed, Models::asked(asked), open, None)
    }

    /// The same, for a worker that continues in all sessions, with the messages of any process.
    pub(crate) fn to_work(place: &Place, asked: &Asked, metrics: Option<&Metrics>) -> anyhow::Result<Self> {
        Desk::open(place, Some(asked), asked.when_claimed, Models::asked(asked), open_or_create, metrics)
    }

    /// Without one, for a command that ends a run.
    pub(crate) fn to_give_up(place: &Place, asked: &Asked) -> anyhow::Result<Self> {
        let open = |path: &Path| open_existing(place, path);
        Desk::open(place, Some(asked), asked.when_claimed, Models::none(), open, None)
    }

    /// Without a model, for commands that write to a session.
    pub(crate) fn to_write(place: &Place) -> anyhow::Result<Self> {
        Desk::to_change(place, WhenBusy::default())
    }

    /// Without a model, for commands that change a session in which another process may be at work.
    pub(crate) fn to_change(place: &Place, when_claimed: WhenBusy) -> anyhow::Result<Self> {
        let open = |path: &Path| open_existing(place, path);
        Desk::open(place, None, when_claimed, Models::none(), open, None)
    }

    /// Without a model, for commands that only read: no file is created or changed.
    pub(crate) fn to_read(place: &Place) -> anyhow::Result<Self> {
        let open = |path: &Path| if_existing(place, path, SqliteOptions::new(path).read_only().open());
        Desk::open(place, None, WhenBusy::default(), Models::none(), open, None)
    }

    /// The same with a model, for a command that shows what it would be sent.
    pub(crate) fn to_read_with_model(place: &Place, asked: &Asked) -> anyhow::Result<Self> {
        let open = |path: &Path| if_existing(place, path, SqliteOptions::new(path).read_only().open());
        Desk::open(place, None, WhenBusy::default(), Models::asked(asked), open, None)
    }

    /// For commands that check a store: it must exist.
    pub(crate) fn to_check(place: &Place) -> anyhow::Result<Self> {
        let open = |path: &Path| {
            SqliteOptions::new(path).read_only().open().map(AnyStore::new).map_err(cannot_open(path))
        };
        Desk::open(place, None, WhenBusy::default(), Models::none(), open, None)
    }

    fn open(
        place: &Place,
        asked: Option<&Asked>,
        when_claimed: WhenBusy,
        (models, failures): (Models<'_>, Failures),
        open_store: impl FnOnce(&Path) -> anyhow::Result<AnyStore>,
        metrics: Option<&Metrics>,
    ) -> anyhow::Result<Self> {
        let Opened { agent, schema, speakers, .. } = Opened::read(&place.agent, &models)?;
        let store = open_store(&store_path(place)?)?;
        let (untyped, failures) = (untyped(&schema), Mutex::new(failures));
        let runner = counted(traced(Runner::builder(agent, store)), metrics)
            .schema(schema)
            .process_worker()
            .when_claimed(when_claimed.into())
            // They are for the model and the terminal of another command.
            .leave_inbox()
            .build();
        let (user, place, asked) = (place.user.clone(), place.clone(), asked.cloned());
        Ok(Desk { runner, user, speakers, untyped, failures, place, asked, at_work: OnceLock::new() })
    }

    /// Does the work of a command, until it is done or the process is told to end. Then nothing is at work any more, and
    /// other processes can continue at once.
    pub(crate) async fn work(
        &self,
        command: impl Future<Output = anyhow::Result<Ending>>,
    ) -> anyhow::Result<Ending> {
        let mut signals = Signals::listen().context("could not listen for signals")?;
        let ended = tokio::select! {
            ended = command => ended,
            stopped = signals.received() => {
                show::note(match self.at_work.get() {
                    Some(id) => format!(
                        "stopped; a run that was at work is interrupted; continue with\n  {}",
                        self.resume_words(id)
                    ),
                    None => "stopped; nothing was begun".to_owned(),
                });
                Ok(stopped)
            }
        };
        let grace = match &ended {
            Ok(Ending::Stopped(_)) | Err(_) => Duration::ZERO,
            Ok(_) => GRACE,
        };
        self.runner.shutdown(grace).await;
        ended
    }

    /// The session that was asked for, which has to be there; the one that was written last if none was.
    pub(crate) async fn session(&self) -> anyhow::Result<SessionHandle> {
        let session = match &self.place.session {
            Some(id) => self.session_named(id).await,
            None => self.session_named(&self.newest().await?).await,
        };
        Ok(self.work_in(session?))
    }

    /// Notes the session that the command works in.
    fn work_in(&self, session: SessionHandle) -> SessionHandle {
        // A command works in one session, so it is set once.
        let _ = self.at_work.set(session.key().id.to_string());
        session
    }

    /// A session that must exist.
    pub(crate) async fn session_named(&self, id: &str) -> anyhow::Result<SessionHandle> {
        let key = self.runner.key(self.user.as_str(), id)?;
        let get = GetSession::new(key).events(EventRange::None).without_state();
        match self.runner.store().get(get).await {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let list = format!("stepfold sessions {}", self.words());
                Err(Misuse(format!("{error}; `{list}` lists the existing ones")).into())
            }
            found => {
                found?;
                Ok(self.runner.session(self.user.as_str(), id).await?)
            }
        }
    }

    /// The number of a version.
    pub(crate) async fn version(&self, key: &SessionKey, at: &At) -> anyhow::Result<u64> {
        let wanted = match at {
            At::Version(version) => return Ok(*version),
            At::Label(label) => label,
        };
        let labels = self.runner.store().labels(ReadLabels::new(key.clone())).await?;
        if let Some((_, version)) = labels.iter().find(|(label, _)| label.as_str() == wanted) {
            return Ok(*version);
        }
        let known: Vec<&str> = labels.iter().map(|(label, _)| label.as_str()).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        Err(Misuse(format!("unknown version or label `{wanted}` of session {}; labels: {known}", key.id))
            .into())
    }

    /// What to do while another process is at work in the session.
    pub(crate) fn when_claimed(&self) -> WhenBusy {
        self.asked.as_ref().map(|asked| asked.when_claimed).unwrap_or_default()
    }

    /// The session for a turn: the one that was asked for, made if it is not there; else a new one.
    pub(crate) async fn session_for_turn(&self) -> anyhow::Result<SessionHandle> {
        let session = match &self.place.session {
            Some(id) => self.runner.session(self.user.as_str(), id.as_str()).await?,
            None if self.asked.as_ref().is_some_and(|asked| asked.last) => self.session().await?,
            None => self.new_session().await?,
        };
        Ok(self.work_in(session))
    }

    async fn new_session(&self) -> anyhow::Result<SessionHandle> {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.runner.create(self.user.as_str(), short_id(), json!({})).await {
                Err(RunnerError::Store { source, .. })
                    if source.kind() == ErrorKind::AlreadyExists && tries < TRIES => {}
                made => return Ok(made?),
            }
        }
    }

    async fn newest(&self) -> anyhow::Result<String> {
        let page = self.list(1).await?;
        let newest = page.first().map(|session| session.key.id.to_string());
        newest.ok_or_else(|| Misuse(self.no_session()).into())
    }

    /// That there is no session, and how to begin one.
    pub(crate) fn no_session(&self) -> String {
        let agent = self.runner.agent().name();
        format!("agent {agent} has no session of user {} yet; `stepfold run` begins one", self.user)
    }

    /// The sessions that were written last.
    pub(crate) async fn list(&self, limit: usize) -> anyhow::Result<Vec<Session>> {
        // The app is what the runner calls itself by in every key.
        let key = self.runner.key(self.user.as_str(), "-")?;
        let list = ListSessions::new(key.app.as_str(), self.user.as_str())?.limit(limit);
        Ok(self.runner.store().list(list).await?.sessions)
    }

    /// Decisions with their author: the named one, otherwise the system's user, otherwise the session's user.
    pub(crate) fn decided(&self, decisions: Vec<(String, Decision)>) -> Decisions {
        let decided = Decisions::from(decisions);
        if decided.decisions.is_empty() {
            return decided;
        }
        let named = self.asked.as_ref().and_then(|asked| asked.by.clone());
        let name =
            |variable| crate::environment(variable)?.into_string().ok().filter(|name| !name.is_empty());
        let by = named.or_else(|| ["USER", "LOGNAME", "USERNAME"].into_iter().find_map(name));
        decided.by(by.unwrap_or_else(|| self.user.clone()))
    }

    /// The command that continues with a session.
    pub(crate) fn resume_words(&self, session: &str) -> String {
        format!("stepfold resume {} --session {}", self.words(), quoted(session))
    }

    /// The arguments after `stepfold COMMAND` that select the same agent, store and user.
    pub(crate) fn words(&self) -> String {
        let mut words = vec![quoted(&self.place.agent.to_string_lossy())];
        let mut add = |name: &str, value: &str| words.extend([name.to_owned(), quoted(value)]);
        if let Some(store) = &self.place.store {
            add("--store", &store.to_string_lossy());
        }
        if self.user != "local" {
            add("--user", &self.user);
        }
        let asked = self.asked.as_ref();
        if let Some(model) = asked.and_then(|asked| asked.model.as_ref()) {
            add("--model", model);
        }
        if let Some((cassette, mode)) = asked.and_then(|asked| Some((asked.cassette.as_ref()?, asked.mode))) {
            add("--cassette", &cassette.to_string_lossy());
            // To record again would throw away what was recorded until now.
            if mode == Mode::Replay {
                add("--mode", "replay");
            }
        }
        words.join(" ")
    }
}

/// With the spans of each run that this process works in, whichever command or client began it.
pub(crate) fn traced(builder: RunnerBuilder) -> RunnerBuilder {
    // The app of a session has the name of its agent.
    builder.observe(|session| Traces::new(session.app.as_str()))
}

fn counted(builder: RunnerBuilder, metrics: Option<&Metrics>) -> RunnerBuilder {
    match metrics.map(Metrics::observer) {
        Some(observer) => builder.observe(move |_| observer.clone()),
        None => builder,
    }
}

/// A made-up name of a session, short enough to be typed.
pub(crate) fn short_id() -> String {
    RandomIds.next().chars().take(8).collect()
}

/// `KEY=VALUE` pairs as an object. What is not JSON is text.
pub(crate) fn values(pairs: &[String]) -> anyhow::Result<Value> {
    let mut values = serde_json::Map::new();
    for pair in pairs {
        let (key, text) =
            pair.split_once('=').ok_or_else(|| Misuse(format!("`{pair}` is not of the form KEY=VALUE")))?;
        values.insert(key.to_owned(), json_or_text(text).map_err(|error| Misuse(format!("{key}: {error}")))?);
    }
    Ok(Value::Object(values))
}

/// What is not JSON is text. JSON that would be stored as something else is refused.
pub(crate) fn json_or_text(text: &str) -> Result<Value, ExactError> {
    match read_exact(text) {
        Err(ExactError::Json(_)) if serde_json::from_str::<IgnoredAny>(text).is_err() => Ok(text.into()),
        read => read,
    }
}

/// Where the sessions are.
pub(crate) fn store_path(place: &Place) -> anyhow::Result<PathBuf> {
    place.store.clone().map_or_else(default_store, Ok)
}

/// The store that exists. Where none was named and none exists, there are no sessions yet; a name that leads nowhere is
/// an error.
fn if_existing(
    place: &Place,
    path: &Path,
    opened: Result<SqliteStore, SessionError>,
) -> anyhow::Result<AnyStore> {
    match opened {
        Ok(store) => Ok(AnyStore::new(store)),
        Err(SessionError::NoStore { .. }) if place.store.is_none() => Ok(AnyStore::new(MemoryStore::new())),
        Err(error) => Err(cannot_open(path)(error)),
    }
}

fn open_existing(place: &Place, path: &Path) -> anyhow::Result<AnyStore> {
    if_existing(place, path, SqliteOptions::new(path).must_exist().open())
}

fn cannot_open(path: &Path) -> impl FnOnce(SessionError) -> anyhow::Error {
    let words = format!("session store {} could not be opened", path.display());
    move |error| anyhow::Error::new(error).context(words)
}

/// The store, created if nothing is at its path. A foreign database is not changed.
pub(crate) fn open_or_create(path: &Path) -> anyhow::Result<AnyStore> {
    if path.exists() {
        let opened = SqliteOptions::new(path).must_exist().open();
        return opened.map(AnyStore::new).map_err(cannot_open(path));
    }
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("folder {} of the sessions could not be created", folder.display()))?;
    }
    SqliteStore::open(path).map(AnyStore::new).map_err(cannot_open(path))
}

/// Where sessions are kept by default.
pub(crate) fn default_store() -> anyhow::Result<PathBuf> {
    let folder = data_folder()
        .map_err(|Misuse(reason)| Misuse(format!("{reason}: set the store with --store FILE")))?;
    Ok(folder.join("sessions.db"))
}

/// Where data of the user is kept.
pub(crate) fn data_folder() -> Result<PathBuf, Misuse> {
    let set = |name| crate::environment(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = || std::env::home_dir().filter(|home| !home.as_os_str().is_empty());
    let folder = set("XDG_DATA_HOME").or_else(|| match std::env::consts::OS {
        "windows" => set("LOCALAPPDATA"),
        "macos" => Some(home()?.join("Library/Application Support")),
        _ => Some(home()?.join(".local/share")),
    });
    let folder = folder.ok_or_else(|| Misuse("missing home folder".to_owned()))?;
    Ok(folder.join("stepfold"))
}

/// A word as a shell takes it.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+#,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) && !word.starts_with('#') {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}
