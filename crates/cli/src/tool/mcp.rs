//! The MCP servers of an agent file: built with the agent, started by the run, stopped at the end of the command.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use stepfold::mcp::{
    ApprovedTools, CredentialFile, McpError, McpServer, McpServerBuilder, OAuth, RefusedDefinition,
    ServerLimits,
};
use stepfold::prelude::*;
use stepfold::state_core::chat::Part;

use crate::environment;
use crate::error::UsageError;
use crate::form::FaultCollector;
use crate::form::agent::{McpCommandForm, McpForm, OAuthForm};
use crate::show;

/// A server of this process, and the file of its approved tool definitions.
#[derive(Clone)]
struct KnownServer {
    server: McpServer,
    approved: Option<PathBuf>,
    oauth: Option<OAuthForm>,
}

/// The servers of this process: a command has one agent, or the agents of one graph, and stops the servers at its end.
// NOTE: A static, since an agent is built deep inside of a graph file, and the end of the command must stop all servers.
static SERVERS: Mutex<Vec<KnownServer>> = Mutex::new(Vec::new());

fn servers() -> MutexGuard<'static, Vec<KnownServer>> {
    SERVERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Builds a server, and returns its tools; none if its table has faults.
pub(crate) fn toolset(
    name: &str,
    form: &McpForm,
    folder: &Path,
    faults: &mut FaultCollector,
) -> Option<Toolset> {
    let before = faults.count();
    let builder = match (&form.command, &form.url) {
        (Some(command), None) => command_of(name, &command.command(), folder, faults),
        (None, Some(url)) => remote(name, url, form, faults),
        (None, None) => {
            faults.add_to_whole("invalid server: expected `command` or `url`");
            return None;
        }
        (Some(_), Some(_)) => {
            faults.add_to_whole("invalid server: expected `command` or `url`, found both");
            return None;
        }
    };
    if form.command.is_some() {
        for (field, is_there) in [
            ("headers", !form.headers.is_empty()),
            ("headers_from_environment", !form.headers_from_environment.is_empty()),
            ("oauth", form.oauth.is_some()),
            ("token_from_environment", form.token_from_environment.is_some()),
        ] {
            if is_there {
                faults.add(&[field], format!("`{field}` requires a `url`"));
            }
        }
    }
    let mut builder = builder.allow(&form.allow).deny(&form.deny).approval(form.approval.into());
    if let Some(effect) = form.effect {
        builder = builder.effect(effect.into());
    }
    for (tools, effect) in form.effects.iter() {
        builder = builder.effect_of(tools, (*effect).into());
    }
    for (tools, approval) in form.approvals.iter() {
        builder = builder.approval_of(tools, (*approval).into());
    }
    if form.trust_hints {
        builder = builder.trust_hints();
    }
    if let Some(prefix) = &form.prefix {
        builder = builder.prefix(prefix);
    }
    if let Some(timeout) = form.timeout {
        builder = builder.call_timeout(timeout.0);
    }
    if let Some(timeout) = form.start_timeout {
        builder = builder.limits(ServerLimits::default().with_start_timeout(timeout.0));
    }
    let approved = form.approved.as_ref().map(|file| folder.join(file));
    if let Some(file) = &approved {
        if let Some(stored) = read_approved(file, faults) {
            builder = builder.approved(stored);
        }
        let file = file.clone();
        builder = builder.on_approved(move |approved| keep_approved(&file, approved));
    }
    match builder.build() {
        Ok(server) if faults.count() == before => {
            let tools = server.toolset();
            servers().push(KnownServer { server, approved, oauth: form.oauth.clone() });
            Some(tools)
        }
        Ok(_) => None,
        Err(McpError::Invalid { reason, .. }) => {
            faults.add_to_whole(reason);
            None
        }
        Err(error) => {
            faults.add_to_whole(error.to_string());
            None
        }
    }
}

fn command_of(
    name: &str,
    command: &McpCommandForm,
    folder: &Path,
    faults: &mut FaultCollector,
) -> McpServerBuilder {
    let mut argv = command.argv.clone();
    // A bare name is searched in PATH; a path is relative to the folder of the file.
    if let Some(first) = argv.first_mut().filter(|first| Path::new(first.as_str()).components().count() > 1) {
        let program = folder.join(&*first);
        if !program.is_file() {
            let words = format!("program {first} not found, relative to the folder of this file");
            faults.add(&["command", "argv"], words);
        }
        *first = std::path::absolute(&program).unwrap_or(program).to_string_lossy().into_owned();
    }
    let inside = command.folder.as_ref().map_or_else(|| folder.to_owned(), |inner| folder.join(inner));
    if !inside.is_dir() {
        faults.add(&["command", "folder"], format!("folder {} not found", inside.display()));
    }
    let inherited = command
        .environment
        .iter()
        .filter_map(|name| Some((name.into(), crate::environment::variable(name)?)));
    let named = command.env.iter().map(|(name, value)| (name.into(), value.into()));
    inherited.chain(named).fold(
        McpServer::command(name, argv).folder(inside),
        |builder, (name, value): (std::ffi::OsString, std::ffi::OsString)| builder.env(name, value),
    )
}

/// Describes a server at a URL. A header whose variable is not set is left out: the server reports what it misses.
fn remote(name: &str, url: &str, form: &McpForm, faults: &mut FaultCollector) -> McpServerBuilder {
    let mut builder = McpServer::http(name, url);
    for (header, value) in &form.headers {
        builder = builder.header(header, value);
    }
    let variable = |name: &String| Some(crate::environment::variable(name)?.to_string_lossy().into_owned());
    for (header, name) in &form.headers_from_environment {
        if let Some(value) = variable(name) {
            builder = builder.header(header, value);
        }
    }
    if let Some(token) = form.token_from_environment.as_ref().and_then(variable) {
        builder = builder.bearer_token(token);
    }
    match &form.oauth {
        Some(oauth) => builder.oauth(authorization(name, url, oauth, faults)),
        None => builder,
    }
}

/// Describes the sign-in to a server. Tokens are kept beside the sessions of the user. Only `login` opens a sign-in; a run
/// without a token waits for it as for an approval.
fn authorization(name: &str, url: &str, form: &OAuthForm, faults: &mut FaultCollector) -> OAuth {
    let mut oauth = OAuth::new()
        .scopes(&form.scopes)
        .advice(format!("run `stepfold login AGENT.toml {name}` with this agent file"));
    match environment::data_folder() {
        Ok(folder) => oauth = oauth.credentials(CredentialFile::in_folder(folder.join("credentials"), url)),
        Err(error) => faults.add(&["oauth"], error.to_string()),
    }
    let secret =
        form.client_secret_from_environment.as_ref().and_then(|name| crate::environment::variable(name));
    let secret = secret.map(|secret| secret.to_string_lossy().into_owned());
    match &form.client_id {
        Some(id) => oauth = oauth.client(id, secret),
        None if form.client_secret_from_environment.is_some() => {
            let words = "`client_secret_from_environment` requires a `client_id`";
            faults.add(&["oauth", "client_secret_from_environment"], words);
        }
        None => {}
    }
    match &form.client_metadata_url {
        Some(url) => oauth.client_metadata_url(url),
        None => oauth,
    }
}

fn read_approved(file: &Path, faults: &mut FaultCollector) -> Option<ApprovedTools> {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        // The first command that lists the tools writes the file.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        Err(error) => {
            faults.add(&["approved"], format!("{} cannot be read: {error}", file.display()));
            return None;
        }
    };
    let read = serde_json::from_str(&text);
    read.inspect_err(|error| {
        let words =
            format!("invalid file of approved tools {}: {error}; delete it to start over", file.display());
        faults.add(&["approved"], words);
    })
    .ok()
}

/// The servers of the agent.
pub(crate) fn all_servers() -> Vec<McpServer> {
    servers().iter().map(|known| known.server.clone()).collect()
}

/// The result of starting a server to check its tools.
pub(crate) struct ServerCheck {
    pub(crate) server: String,
    /// The number of offered tools, and the refused ones; or the error of the server.
    pub(crate) tools: Result<(usize, Vec<RefusedDefinition>), String>,
}

/// Starts the servers of the files that were read since the last call, and checks their tools. The servers are stopped,
/// and their definitions do not count as approved.
pub(crate) async fn check_servers() -> Vec<ServerCheck> {
    // NOTE: Taken out of the list, so that their definitions are not stored as approved.
    let known = std::mem::take(&mut *servers());
    let mut checked = Vec::with_capacity(known.len());
    for KnownServer { server, .. } in known {
        let tools = Box::pin(async {
            let refused = server.refused().await?;
            Ok((server.offered().await?.len(), refused))
        });
        let tools = tools.await.map_err(|error: McpError| error.to_string());
        server.stop().await;
        checked.push(ServerCheck { server: server.name().to_owned(), tools });
    }
    checked
}

/// The servers of the agent that require a sign-in, or the one of this name, each with the port for the redirect.
pub(crate) fn with_oauth(name: Option<&str>) -> Result<Vec<(McpServer, Option<u16>)>, UsageError> {
    let known = servers();
    let with_sign_in: Vec<_> =
        known.iter().filter_map(|known| Some((known.server.clone(), known.oauth.as_ref()?.port))).collect();
    let named = with_sign_in.iter().filter(|(server, _)| name.is_none_or(|name| server.name() == name));
    let named: Vec<_> = named.cloned().collect();
    if named.is_empty() {
        let known: Vec<&str> = with_sign_in.iter().map(|(server, _)| server.name()).collect();
        let all = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        return Err(UsageError(match name {
            Some(name) => format!("unknown server `{name}`; servers with `oauth`: {all}"),
            None => "no MCP server of the agent has `oauth`".to_owned(),
        }));
    }
    Ok(named)
}

/// Splits `SERVER:NAME` into the server and the name.
pub(crate) fn split_name(named: &str) -> Result<(McpServer, &str), UsageError> {
    let known = all_servers();
    let found = named.split_once(':').and_then(|(name, rest)| {
        let server = known.iter().find(|server| server.name() == name)?;
        Some((server.clone(), rest))
    });
    found.ok_or_else(|| {
        let servers: Vec<&str> = known.iter().map(McpServer::name).collect();
        UsageError(format!(
            "unknown server in `{named}`: must be SERVER:NAME; servers: {}",
            servers.join(", ")
        ))
    })
}

/// Reads the resource `SERVER:URI` into parts of a message.
pub(crate) async fn read_resource(named: &str) -> anyhow::Result<Vec<Part>> {
    let (server, uri) = split_name(named)?;
    Ok(Box::pin(server.read_resource(uri)).await?)
}

/// Held while a file of approved definitions is written: two servers may have the same.
static WRITING: Mutex<()> = Mutex::new(());

/// Stores the approved definitions of a server that is not only checked: whole, or not at all.
fn keep_approved(file: &Path, approved: &ApprovedTools) {
    if servers().iter().all(|known| known.approved.as_deref() != Some(file)) {
        return;
    }
    // Serialization of definitions cannot fail.
    let text = serde_json::to_string_pretty(approved).unwrap_or_default();
    let _writing = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    let new = PathBuf::from(format!("{}.{}.new", file.display(), std::process::id()));
    let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, file));
    if let Err(error) = written {
        show::bad("warning", &format!("{} cannot be written: {error}", file.display()));
    }
}

/// Stops the servers of this process.
pub(crate) async fn stop_servers() {
    let known = std::mem::take(&mut *servers());
    for KnownServer { server, .. } in known {
        server.stop().await;
    }
}
