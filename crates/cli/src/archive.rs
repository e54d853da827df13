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
use stepfold::agent_loop::AgentError;
use stepfold::prelude::*;
use stepfold::runner::{AgentArchive, ArchiveError, EarlierAgent, RunnerError, RunnerErrorKind};
use stepfold::session_scopes::{AnyStore, ErrorKind, EventRange, GetSession, Session, SessionStore as _};
use stepfold::state_core::canonical_json;
use stepfold::state_core::state::ValueRef;

use crate::agent_file::{AgentFile, AgentTexts, normal};
use crate::args::RunArgs;
use crate::context::LoadedAgent;
use crate::migrate::session_schema;
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
        let path = normal(path);
        let folder = path.parent().unwrap_or(Path::new(""));
        let relative = |path: &Path| path.strip_prefix(folder).unwrap_or(path).to_owned();
        let texts = texts.into_iter().map(|(path, text)| (relative(&normal(&path)), text)).collect();
        AgentBundle { file: relative(&path), texts }
    }

    /// The version that a session of the archive stores.
    pub(crate) fn stored_in(session: &Session) -> Result<Self, ArchiveError> {
        let stored = session.get("version").map(ValueRef::to_json).unwrap_or_default();
        serde_json::from_value(stored).map_err(|error| fault(format!("invalid stored version: {error}")))
    }

    /// Whether both have the same files, except for comments and spaces.
    pub(crate) fn says_the_same_as(&self, other: &AgentBundle) -> bool {
        let says_the_same = |text: &str, other: &str| {
            text == other
                || matches!((text.parse::<toml::Table>(), other.parse()), (Ok(text), Ok(other)) if text == other)
        };
        self.file == other.file
            && self.texts.len() == other.texts.len()
            && self
                .texts
                .iter()
                .all(|(path, text)| other.texts.get(path).is_some_and(|other| says_the_same(text, other)))
    }

    /// The texts as if they were files beside the file of today.
    fn in_folder(&self, folder: &Path) -> (PathBuf, AgentTexts) {
        let texts = self.texts.iter().map(|(path, text)| (folder.join(path), text.clone()));
        (folder.join(&self.file), AgentTexts::given(texts.collect()))
    }

    /// The agent, with what these texts make it use outside of this process in its fingerprint: another program under the
    /// same tool is another version of the agent.
    pub(crate) fn identify(&self, agent: &Agent) -> Result<Agent, AgentError> {
        agent.to_builder().dependencies(self.dependencies()).build()
    }

    /// Programs and addresses by their names, and tables of servers, whose tools no fingerprint has, each with all that the
    /// files say about it. Models have parts of their own.
    fn dependencies(&self) -> BTreeMap<String, String> {
        let mut found: BTreeMap<String, String> = BTreeMap::new();
        let mut add = |name: &str, words: &str| {
            let name: String = name.chars().take(DEPENDENCY_NAME_CHARS).collect();
            let known = found.entry(name).or_default();
            known.push_str(words);
            known.push('\n');
        };
        for access in self.external_access().iter().filter(|access| !access.is_model) {
            add(&access.name, &access.fields);
        }
        for (path, table) in self.tables() {
            // Programs are found from the folder of the file that names them.
            let folder = path.parent().unwrap_or(Path::new(""));
            for (name, server) in servers_of(&table) {
                add(&format!("mcp {name}"), &canonical_json(&json!([folder, server])));
            }
        }
        found
    }

    /// The files that are TOML. Any other is a script of a model, or a fault that the build reports.
    fn tables(&self) -> impl Iterator<Item = (&PathBuf, toml::Table)> {
        self.texts.iter().filter_map(|(path, text)| Some((path, text.parse().ok()?)))
    }

    /// All programs and addresses that the files name, each with all that it is started or called with.
    fn external_access(&self) -> BTreeSet<ExternalAccess> {
        let mut found = BTreeSet::new();
        for (path, table) in self.tables() {
            // Programs are found from the folder of the file that names them.
            collect(&table, path.parent().unwrap_or(Path::new("")), &mut found);
        }
        found
    }
}

/// The tables of MCP servers in a table, with those of agents inside of it, such as the agents of nodes.
fn servers_of(table: &toml::Table) -> Vec<(&String, &toml::Value)> {
    let mut servers = Vec::new();
    for (key, value) in table {
        match value {
            toml::Value::Table(named) if key == "mcp" => {
                servers.extend(named.iter().filter(|(_, server)| server.is_table()));
            }
            toml::Value::Table(inside) => servers.extend(servers_of(inside)),
            toml::Value::Array(list) => {
                servers.extend(list.iter().filter_map(toml::Value::as_table).flat_map(servers_of));
            }
            _ => {}
        }
    }
    servers
}

/// A program, an address or a file that an agent file makes the process use.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ExternalAccess {
    /// The program with its arguments, or the address.
    name: String,
    /// All fields that say how it is started or called.
    fields: String,
    /// Whether its name alone says all of it.
    is_plain: bool,
    /// Whether it is a model.
    is_model: bool,
}

/// The most characters of the name of a dependency. Another one with the same beginning is digested with it.
const DEPENDENCY_NAME_CHARS: usize = 100;

impl ExternalAccess {
    fn new(name: impl Into<String>, fields: &Value, is_plain: bool) -> Self {
        ExternalAccess { name: name.into(), fields: canonical_json(fields), is_plain, is_model: false }
    }

    fn model(name: &str) -> Self {
        ExternalAccess { is_model: true, ..ExternalAccess::new(name, &json!("model"), true) }
    }
}

/// The fields of a table that say how a server is called.
const ADDRESS: [&str; 7] =
    ["url", "hosts", "method", "headers", "headers_from_environment", "token_from_environment", "oauth"];

fn collect(table: &toml::Table, folder: &Path, found: &mut BTreeSet<ExternalAccess>) {
    if let Some(command) = table.get("command") {
        let argv = command.get("argv").unwrap_or(command).as_array();
        let words = argv.into_iter().flatten().filter_map(toml::Value::as_str).collect::<Vec<_>>().join(" ");
        let others = command.as_table().into_iter().flatten().map(|(field, _)| field.as_str());
        let is_plain = folder == Path::new("")
            && others.into_iter().all(|field| matches!(field, "argv" | "output" | "output_bytes"));
        let fields = json!({ "argv": argv, "table": command.as_table(), "folder": folder });
        found.insert(ExternalAccess::new(words, &fields, is_plain));
    }
    let text = |field: &str| table.get(field).and_then(toml::Value::as_str);
    if let Some(url) = text("url") {
        let fields: BTreeMap<&str, &toml::Value> =
            ADDRESS.iter().filter_map(|field| Some((*field, table.get(*field)?))).collect();
        let is_plain = fields.keys().all(|field| matches!(*field, "url" | "hosts" | "method"));
        found.insert(ExternalAccess::new(url, &json!(fields), is_plain));
    }
    // A model by its address gets a key of this process.
    if let Some(model) = text("model").filter(|model| model.contains("://")) {
        found.insert(ExternalAccess::model(model));
    }
    // The command writes this file.
    if let Some(approved) = text("approved") {
        found.insert(ExternalAccess::new(approved, &json!({ "approved": folder }), false));
    }
    // A value of the state names the model.
    if table.get("per_run").and_then(toml::Value::as_bool) == Some(true) {
        found.insert(ExternalAccess::model("per_run"));
    }
    for value in table.values() {
        match value {
            toml::Value::Table(inner) => collect(inner, folder, found),
            toml::Value::Array(list) => {
                list.iter().filter_map(toml::Value::as_table).for_each(|it| collect(it, folder, found));
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
    /// The file of today, whose programs and addresses earlier versions may use.
    today: AgentBundle,
    former_programs: Vec<String>,
    /// The versions that this process has built, by the digests of their agents.
    known: Mutex<BTreeMap<String, AgentBundle>>,
}

impl AgentFiles {
    /// The stored versions of a file.
    pub(crate) fn of(loaded: &LoadedAgent, path: &Path, store: &AnyStore, options: Option<&RunArgs>) -> Self {
        let digest = loaded.agent.fingerprint().digest();
        let known = Mutex::new([(digest, loaded.texts.clone())].into());
        AgentFiles {
            store: store.clone(),
            app: loaded.agent.name().to_owned(),
            folder: path.parent().unwrap_or(Path::new("")).to_owned(),
            options: options.cloned(),
            today: loaded.texts.clone(),
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

    /// The session of a stored version.
    async fn stored(&self, digest: &str, with_state: bool) -> Result<Option<Session>, ArchiveError> {
        let get = GetSession::new(self.versions()?.key(&*self.app, digest)?).events(EventRange::None);
        match self.store.get(if with_state { get } else { get.without_state() }).await {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            session => Ok(Some(session?)),
        }
    }

    /// Refuses programs and addresses that this process is not configured for: who may write to the store must not choose
    /// what it runs.
    fn check_access(&self, version: &AgentBundle) -> Result<(), ArchiveError> {
        let today = self.today.external_access();
        let is_allowed = |access: &ExternalAccess| {
            today.contains(access) || (access.is_plain && self.former_programs.contains(&access.name))
        };
        let refused = version.external_access().into_iter().filter(|access| !is_allowed(access));
        let refused: BTreeSet<String> = refused.map(|access| format!("`{}`", access.name)).collect();
        if refused.is_empty() {
            return Ok(());
        }
        let names = refused.into_iter().collect::<Vec<_>>().join(", ");
        Err(fault(format!(
            "it uses {names} as the file of today does not; name it in `former_programs`, or keep it in the file if it has a \
             folder, an environment, headers or credentials of its own"
        )))
    }

    fn build(&self, version: &AgentBundle) -> Result<EarlierAgent, ArchiveError> {
        self.check_access(version)?;
        let (path, files) = version.in_folder(&self.folder);
        let (models, _failures) = match &self.options {
            Some(options) => ModelSource::command_line(options),
            None => ModelSource::none(),
        };
        let models = models.with_files(files);
        models.recall.connect(self.store.clone());
        let file = AgentFile::read_from(&models.files, &path)
            .map_err(|error| fault(crate::error::chain(error.as_ref())))??;
        let migrations = file.migrations();
        let built = file.build(&models).map_err(|error| fault(crate::error::chain(error.as_ref())))??;
        let agent = version.identify(&Agent::from(built))?;
        let schema = session_schema(agent.schema(), migrations);
        Ok(EarlierAgent::new(agent).with_schema(schema))
    }

    fn known(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, AgentBundle>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn fault(words: String) -> ArchiveError {
    words.into()
}

impl AgentArchive for AgentFiles {
    fn load<'a>(&'a self, digest: &'a str) -> BoxFuture<'a, Result<Option<EarlierAgent>, ArchiveError>> {
        Box::pin(async move {
            let Some(session) = self.stored(digest, true).await? else { return Ok(None) };
            let version = AgentBundle::stored_in(&session)?;
            let earlier = self.build(&version)?;
            self.known().insert(earlier.agent().fingerprint().digest(), version);
            Ok(Some(earlier))
        })
    }

    fn keep<'a>(&'a self, agent: &'a Agent) -> BoxFuture<'a, Result<(), ArchiveError>> {
        Box::pin(async move {
            let digest = agent.fingerprint().digest();
            let Some(version) = self.known().get(&digest).cloned() else { return Ok(()) };
            if self.stored(&digest, false).await?.is_some() {
                return Ok(());
            }
            let version = json!({ "version": version });
            if version.to_string().len() > MAX_BYTES {
                let words = format!(
                    "agent file and the files that it names: more than {MAX_BYTES} bytes; make its scripts smaller, or set \
                     another `when_changed`"
                );
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

#[cfg(test)]
mod tests {
    use stepfold::session_scopes::MemoryStore;

    use super::*;

    fn bundle(texts: &[(&str, &str)]) -> AgentBundle {
        let texts = texts.iter().map(|(path, text)| (PathBuf::from(path), (*text).to_owned())).collect();
        AgentBundle { file: "a.toml".into(), texts }
    }

    /// The words of the refusal of a stored version beside this file; none if it is allowed.
    fn refused(today: &str, former_programs: &[&str], stored: &[(&str, &str)]) -> Option<String> {
        let files = AgentFiles {
            store: AnyStore::new(MemoryStore::new()),
            app: "a".to_owned(),
            folder: PathBuf::new(),
            options: None,
            today: bundle(&[("a.toml", today)]),
            former_programs: former_programs.iter().map(|name| (*name).to_owned()).collect(),
            known: Mutex::default(),
        };
        let error = files.check_access(&bundle(stored)).err()?.to_string();
        Some(error.split(" as the file").next().unwrap_or_default().to_owned())
    }

    const PAY: &str = "[tools.pay]\ncommand = [\"./pay.sh\", \"now\"]\n";

    #[test]
    fn a_stored_version_starts_and_calls_what_the_file_of_today_does() {
        let uses = |name: &str| Some(format!("it uses `{name}`"));
        assert_eq!(refused(PAY, &[], &[("a.toml", PAY)]), None);
        assert_eq!(refused("", &[], &[("a.toml", PAY)]), uses("./pay.sh now"));
        assert_eq!(refused("", &["./pay.sh now"], &[("a.toml", PAY)]), None);
        // The program alone does not say what it does.
        assert_eq!(refused("", &["./pay.sh"], &[("a.toml", PAY)]), uses("./pay.sh now"));
        // The same words in another folder, or with more, are another program.
        for path in ["/tmp/x/a.toml", "../up/a.toml", "nodes/a.toml"] {
            assert_eq!(refused(PAY, &["./pay.sh now"], &[(path, PAY)]), uses("./pay.sh now"));
        }
        for more in ["folder = \"/tmp/x\"", "environment = [\"KEY\"]", "env = { A = \"b\" }"] {
            let pay = format!("[tools.pay.command]\nargv = [\"./pay.sh\", \"now\"]\n{more}");
            assert_eq!(refused(PAY, &["./pay.sh now"], &[("a.toml", &pay)]), uses("./pay.sh now"));
        }
        let url = "[mcp.bank]\nurl = \"https://bank.example\"\n";
        assert_eq!(refused("", &["https://bank.example"], &[("a.toml", url)]), None);
        let with_key = format!("{url}headers_from_environment = {{ key = \"KEY\" }}");
        assert_eq!(
            refused(url, &["https://bank.example"], &[("a.toml", &with_key)]),
            uses("https://bank.example")
        );
        let writes = format!("{url}approved = \"/etc/x\"");
        assert_eq!(refused(url, &[], &[("a.toml", &writes)]), uses("/etc/x"));
        let model = "model = \"https://evil.example/v1#m\"";
        assert_eq!(refused("", &[], &[("a.toml", model)]), uses("https://evil.example/v1#m"));
        assert_eq!(refused("", &[], &[("a.toml", "per_run = true")]), uses("per_run"));
        assert_eq!(refused("", &[], &[("a.toml", "model = \"openai:gpt\"")]), None);
    }

    #[test]
    fn servers_are_dependencies_wherever_their_tables_are() {
        let of = |text: &str| {
            let found = bundle(&[("a.toml", text)]).dependencies();
            found.into_keys().filter(|name| name.starts_with("mcp ")).collect::<Vec<_>>()
        };
        assert_eq!(of("[mcp.bank]\nurl = \"https://bank.example\""), ["mcp bank"]);
        assert_eq!(of("[nodes.pay.agent.mcp.bank]\ncommand = [\"./bank\"]"), ["mcp bank"]);
        assert_eq!(of("[tools.mcp]\ncommand = [\"./bank\"]"), [""; 0]);
        // Its words count, and the folder of the file, not the file's name.
        let deny = |path: &str, deny: &str| {
            bundle(&[(path, &format!("[nodes.pay.agent.mcp.bank]\ncommand = [\"./bank\"]\ndeny = [{deny}]"))])
                .dependencies()
        };
        assert_ne!(deny("a.toml", ""), deny("a.toml", "\"pay\""));
        assert_ne!(deny("a.toml", ""), deny("nodes/a.toml", ""));
        assert_eq!(deny("a.toml", ""), deny("b.toml", ""));
    }

    #[test]
    fn a_version_is_the_same_however_its_file_is_named() {
        let of = |path: &str, script: &str| {
            AgentBundle::of(
                Path::new(path),
                [(path.into(), String::new()), (script.into(), String::new())].into(),
            )
        };
        assert_eq!(of("a.toml", "./a.script"), of("./a.toml", "./a.script"));
        assert_eq!(of("dir/a.toml", "dir/a.script"), of("a.toml", "a.script"));
        assert_eq!(of("dir/a.toml", "dir/../b/b.toml"), of("a.toml", "../b/b.toml"));
    }
}
