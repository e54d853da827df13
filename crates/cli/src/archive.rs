//! Earlier versions of agent files, for runs that continue with the version that they began with.
//!
//! A version is stored once in the store of its sessions, when a run of it begins: as a session of an application of its
//! own, so that backups, exports and checks of a store have it as well. It has the texts of the files, with the names of
//! variables of the environment and never their values.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stepfold::prelude::*;
use stepfold::runner::{AgentArchive, ArchiveError, RunnerError, RunnerErrorKind};
use stepfold::session_scopes::{AnyStore, ErrorKind, EventRange, GetSession, Session, SessionStore as _};
use stepfold::state_core::state::ValueRef;

use crate::agent_file::{AgentFile, AgentTexts};
use crate::args::RunArgs;
use crate::context::LoadedAgent;
use crate::model::{ModelSource, PlaceholderModel};

/// The application whose sessions are the stored versions: the user is the agent, the session the digest.
pub(crate) const ARCHIVE_APP: &str = "stepfold.agents";

/// The most bytes of a stored version.
const MAX_BYTES: usize = 4 << 20;

/// The texts of an agent file and of the files that it names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AgentBundle {
    /// The name of the agent file.
    file: PathBuf,
    /// Texts by their paths, relative to the folder of the agent file.
    texts: BTreeMap<PathBuf, String>,
}

impl AgentBundle {
    pub(crate) fn of(path: &Path, texts: BTreeMap<PathBuf, String>) -> Self {
        let folder = path.parent().unwrap_or(Path::new(""));
        let relative = |path: PathBuf| path.strip_prefix(folder).map(Path::to_owned).unwrap_or(path);
        let texts = texts.into_iter().map(|(path, text)| (relative(path), text)).collect();
        AgentBundle { file: relative(path.to_owned()), texts }
    }

    /// The version that a session of the archive stores.
    pub(crate) fn stored_in(session: &Session) -> Result<Self, ArchiveError> {
        let stored = session.get("version").map(ValueRef::to_json).unwrap_or_default();
        serde_json::from_value(stored).map_err(|error| fault(format!("invalid stored version: {error}")))
    }

    /// The texts as if they were files beside the file of today.
    fn in_folder(&self, folder: &Path) -> (PathBuf, AgentTexts) {
        let texts = self.texts.iter().map(|(path, text)| (folder.join(path), text.clone()));
        (folder.join(&self.file), AgentTexts::given(texts.collect()))
    }

    /// All programs and addresses that the files name, each with all that it is started or called with.
    fn reached(&self) -> BTreeSet<Reached> {
        let mut reached = BTreeSet::new();
        for text in self.texts.values() {
            // What is not TOML is a script of a model, or a fault that the build reports.
            if let Ok(table) = text.parse::<toml::Table>() {
                collect(&table, &mut reached);
            }
        }
        reached
    }
}

/// A program or an address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Reached {
    /// The program, or the address.
    name: String,
    /// All fields that say how it is started or called.
    how: String,
}

/// The fields of a table that say how a server is called.
const ADDRESS: [&str; 7] =
    ["url", "hosts", "method", "headers", "headers_from_environment", "token_from_environment", "oauth"];

fn collect(table: &toml::Table, reached: &mut BTreeSet<Reached>) {
    if let Some(command) = table.get("command") {
        let argv = command.get("argv").unwrap_or(command);
        let program = argv.as_array().and_then(|argv| argv.first()).and_then(toml::Value::as_str);
        let how = match command.as_array() {
            Some(argv) => json!({ "argv": argv }),
            None => json!(command),
        };
        reached.insert(Reached { name: program.unwrap_or_default().to_owned(), how: how.to_string() });
    }
    if let Some(url) = table.get("url").and_then(toml::Value::as_str) {
        let how: BTreeMap<&str, &toml::Value> =
            ADDRESS.iter().filter_map(|field| Some((*field, table.get(*field)?))).collect();
        reached.insert(Reached { name: url.to_owned(), how: json!(how).to_string() });
    }
    // A model by its address gets a key of this process.
    if let Some(model) =
        table.get("model").and_then(toml::Value::as_str).filter(|model| model.contains("://"))
    {
        reached.insert(Reached { name: model.to_owned(), how: "model".to_owned() });
    }
    for value in table.values() {
        match value {
            toml::Value::Table(inner) => collect(inner, reached),
            toml::Value::Array(list) => {
                list.iter().filter_map(toml::Value::as_table).for_each(|it| collect(it, reached));
            }
            _ => {}
        }
    }
}

/// The stored versions of an agent file: see [`AgentArchive`].
pub(crate) struct AgentFiles {
    store: AnyStore,
    app: String,
    /// The folder of the file of today.
    folder: PathBuf,
    /// The options of models; without them no model is called.
    options: Option<RunArgs>,
    /// The programs and addresses of the file of today.
    reached: BTreeSet<Reached>,
    former_programs: Vec<String>,
    /// The versions that this process has built, by the digests of their agents.
    known: Mutex<BTreeMap<String, AgentBundle>>,
}

impl AgentFiles {
    pub(crate) fn of(loaded: &LoadedAgent, path: &Path, store: AnyStore, options: Option<&RunArgs>) -> Self {
        let digest = loaded.agent.fingerprint().digest();
        let known = Mutex::new([(digest, loaded.texts.clone())].into());
        AgentFiles {
            store,
            app: loaded.agent.name().to_owned(),
            folder: path.parent().unwrap_or(Path::new("")).to_owned(),
            options: options.cloned(),
            reached: loaded.texts.reached(),
            former_programs: loaded.former_programs.clone(),
            known,
        }
    }

    /// The runner whose sessions are the stored versions.
    fn versions(&self) -> Result<Runner, ArchiveError> {
        let schema = Schema::builder().key::<Value>("version").build()?;
        let agent = Agent::builder(PlaceholderModel).schema(schema).build()?;
        Ok(Runner::builder(agent, self.store.clone()).app(ARCHIVE_APP)?.build())
    }

    async fn stored(&self, digest: &str) -> Result<Option<AgentBundle>, ArchiveError> {
        let runner = self.versions()?;
        let get = GetSession::new(runner.key(&*self.app, digest)?).events(EventRange::None);
        let session = match self.store.get(get).await {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            session => session?,
        };
        AgentBundle::stored_in(&session).map(Some)
    }

    /// Refuses programs and addresses that this process is not configured for: who may write to the store must not choose
    /// what it runs.
    fn check_reached(&self, version: &AgentBundle) -> Result<(), ArchiveError> {
        let is_allowed = |reached: &Reached| {
            self.reached.contains(reached) || self.former_programs.contains(&reached.name)
        };
        let refused: BTreeSet<String> = version
            .reached()
            .into_iter()
            .filter(|it| !is_allowed(it))
            .map(|it| format!("`{}`", it.name))
            .collect();
        if refused.is_empty() {
            return Ok(());
        }
        let names = refused.into_iter().collect::<Vec<_>>().join(", ");
        Err(fault(format!("it uses {names} as the file of today does not; allow it in `former_programs`")))
    }

    fn build(&self, version: &AgentBundle) -> Result<Agent, ArchiveError> {
        self.check_reached(version)?;
        let (path, files) = version.in_folder(&self.folder);
        let (models, _failures) = match &self.options {
            Some(options) => ModelSource::command_line(options),
            None => ModelSource::none(),
        };
        let models = models.with_files(files);
        let file = AgentFile::read_from(&models.files, &path)
            .map_err(|error| fault(crate::error::chain(error.as_ref())))??;
        let built = file.build(&models).map_err(|error| fault(crate::error::chain(error.as_ref())))??;
        Ok(Agent::from(built))
    }

    fn known(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, AgentBundle>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn fault(words: String) -> ArchiveError {
    words.into()
}

impl AgentArchive for AgentFiles {
    fn load<'a>(&'a self, digest: &'a str) -> BoxFuture<'a, Result<Option<Agent>, ArchiveError>> {
        Box::pin(async move {
            let Some(version) = self.stored(digest).await? else { return Ok(None) };
            let agent = self.build(&version)?;
            self.known().insert(agent.fingerprint().digest(), version);
            Ok(Some(agent))
        })
    }

    fn keep<'a>(&'a self, agent: &'a Agent) -> BoxFuture<'a, Result<(), ArchiveError>> {
        Box::pin(async move {
            let digest = agent.fingerprint().digest();
            let Some(version) = self.known().get(&digest).cloned() else { return Ok(()) };
            let version = json!({ "version": version });
            if version.to_string().len() > MAX_BYTES {
                let words = format!("agent file and the files that it names: more than {MAX_BYTES} bytes");
                return Err(fault(words));
            }
            match self.versions()?.create(&*self.app, digest, version).await {
                Err(RunnerError { kind: RunnerErrorKind::Store { source, .. }, .. })
                    if source.kind() == ErrorKind::AlreadyExists =>
                {
                    Ok(())
                }
                kept => kept.map(drop).map_err(Into::into),
            }
        })
    }
}
