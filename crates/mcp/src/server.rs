//! A server as its user sees it: described once, started on first use, shared, restarted, stopped.
//!
//! The phases of its connection:
//!
//! | phase | event | next phase |
//! |---|---|---|
//! | stopped | first use | starting, after a pause that grows with the failures |
//! | starting | started | running |
//! | starting | unauthorized, and a user signs in (twice at most) | starting |
//! | starting | unauthorized otherwise, or the third sign-in | stopped, with an error |
//! | starting | timeout, a program that cannot be run, or the third failed attempt | stopped, with an error |
//! | starting | another failure | starting, after a pause |
//! | running | closed after a minute or more | stopped, with one failure |
//! | running | closed earlier | stopped, with one more failure |
//! | running | [`McpServer::stop`] | stopped |

use std::error::Error;
use std::ffi::OsString;
use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use backon::BackoffBuilder as _;
use serde_json::{Map, Value};
use stepfold_state_core::chat::{Message, Part, Role};
use stepfold_state_core::json_schema::{ValueType, check_bounded};
use stepfold_state_core::state::State;
use stepfold_tools::{
    Approval, Effect, RawArgs, RefusedTool, ResultSource, ResultText, Tool, ToolContext, ToolError,
    ToolListing, ToolSource, Toolset,
};

use crate::connection::{CallError, ConnectionPlan, ServerConnection, ServerLocation, StartFailure};
use crate::content::{self, ProtocolDeviations};
use crate::definition::{ApprovedTools, RefusedDefinition, ServerToolDefinition, ToolChange};
use crate::error::McpError;
use crate::http::{AuthorizationDenied, without_oauth};
use crate::listing::{ServerPrompt, ServerResource};
use crate::name::{NamePattern, is_identifier};
use crate::oauth::ServerAuthorization;
#[cfg(feature = "oauth")]
use crate::oauth::{OAuth, SignIn};
use crate::offer::{OfferRules, ServerOffer, offer};
use crate::process::ServerProgram;
use crate::question::{self, Elicitation, ElicitationAnswer, QuestionHandler};
use crate::remote::RemoteServer;
use crate::schema::{self, OfferedParameters};

/// The longest name of a server, in bytes: it is the prefix of the names of its tools.
const MAX_NAME_BYTES: usize = 32;

/// The number of start attempts before an error is returned.
const ATTEMPTS: usize = 3;

/// The timeout of a start at a URL by default: nothing is downloaded there.
const REMOTE_START: Duration = Duration::from_secs(10);

/// The limit on sign-ins for one request.
const MAX_SIGN_INS: usize = 2;

/// A connection that lasted this long counts as a successful start.
// NOTE: Without it, a server that exits right after each start would be restarted without a pause.
const STABLE_AFTER: Duration = Duration::from_secs(60);

/// The limit on the omissions of a schema in a trace.
const MAX_TRACED: usize = 8;

/// Limits on the resources that a server may use.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerLimits {
    /// Limits the bytes of a message; 16 MiB by default. A server that sends a longer one, or four times as much after one
    /// request, is ended; one at a URL is disconnected.
    pub message_bytes: usize,
    /// Limits the tools, resources or prompts that a server lists; 512 by default.
    pub listed: usize,
    /// The timeout of a start, of a list and of everything that is not a call of a tool; 60 seconds by default, since some
    /// programs are downloaded first, and 10 seconds for a server at a URL without other limits.
    pub start_timeout: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        ServerLimits { message_bytes: 16 * 1024 * 1024, listed: 512, start_timeout: Duration::from_secs(60) }
    }
}

impl ServerLimits {
    /// The same with another bound on the bytes of a message.
    #[must_use]
    pub fn with_message_bytes(mut self, bytes: usize) -> Self {
        self.message_bytes = bytes;
        self
    }

    /// Sets the maximum number of listed items.
    #[must_use]
    pub fn with_listed(mut self, items: usize) -> Self {
        self.listed = items;
        self
    }

    /// The same with another timeout of a start.
    #[must_use]
    pub fn with_start_timeout(mut self, timeout: Duration) -> Self {
        self.start_timeout = timeout;
        self
    }
}

/// A server that speaks the Model Context Protocol. Cheap to clone: clones are one server.
///
/// It is started when its tools are first requested, shared by all runs that use it, and started again, after a growing
/// pause, when it has died. When the last clone is dropped, and the last tool of it, it is ended with all that it has
/// started; [`stop`](McpServer::stop) ends it politely.
#[derive(Clone)]
pub struct McpServer(Arc<McpServerInner>);

struct McpServerInner {
    name: String,
    launch: ServerLocation,
    rules: OfferRules,
    limits: ServerLimits,
    answerer: Option<QuestionHandler>,
    keeper: Option<ApprovalKeeper>,
    initialize_only: bool,
    link: tokio::sync::Mutex<ConnectionSlot>,
    /// Held while the tools are listed: concurrent callers get the new list.
    listing: tokio::sync::Mutex<()>,
    known: Mutex<KnownTools>,
}

/// Keeps the approved definitions.
type ApprovalKeeper = Arc<dyn Fn(&ApprovedTools) + Send + Sync>;

/// The connection, and the number of failed starts before.
#[derive(Default)]
struct ConnectionSlot {
    connection: Option<Arc<ServerConnection>>,
    /// Consecutive failures.
    failures: usize,
}

/// The last list of tools, and the approved definitions.
#[derive(Default)]
struct KnownTools {
    offer: Option<Arc<ServerOffer>>,
    /// None before the first list, which is taken as approved.
    approved: Option<ApprovedTools>,
    /// Incremented with each change of the fields above.
    version: u64,
}

impl McpServer {
    /// Describes a server that is started by a command and uses its standard input and output. The first item of
    /// `argv` is searched in `PATH`.
    pub fn command<S: Into<OsString>>(
        name: impl Into<String>,
        argv: impl IntoIterator<Item = S>,
    ) -> McpServerBuilder {
        let argv = argv.into_iter().map(Into::into).collect();
        McpServerBuilder::new(
            name.into(),
            ServerLocation::Program(ServerProgram { argv, env: Vec::new(), folder: None }),
        )
    }

    /// Describes a server at a URL, which speaks streamable HTTP.
    pub fn http(name: impl Into<String>, url: impl Into<String>) -> McpServerBuilder {
        let location = ServerLocation::Remote(RemoteServer::new(url.into()));
        McpServerBuilder::new(name.into(), location)
            .limits(ServerLimits::default().with_start_timeout(REMOTE_START))
    }

    /// The name, which errors mention.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The server's tools as a dynamic toolset: the list is requested again when the server says that it changed, and
    /// when it was started again.
    pub fn toolset(&self) -> Toolset {
        Toolset::dynamic(
            self.0.name.as_str(),
            ServerToolSource { server: self.clone(), built: Mutex::default() },
        )
    }

    /// Starts the server unless it runs, and lists its tools. Otherwise this happens before the first step.
    ///
    /// # Errors
    /// The server cannot be started or does not list its tools.
    pub async fn start(&self) -> Result<(), McpError> {
        self.offer().await.map(drop)
    }

    /// Ends the server: its input is closed, and what still runs a moment later is killed with its process group. A later
    /// use starts it again.
    pub async fn stop(&self) {
        let connection = self.0.link.lock().await.connection.take();
        if let Some(connection) = connection {
            connection.stop().await;
        }
    }

    /// Signs a user in, even if there are stored credentials, and stores the new ones. A call that waits for the
    /// sign-in may then continue.
    ///
    /// # Errors
    /// [`McpError::Unauthorized`]: why the sign-in failed; or the server has no [OAuth](McpServerBuilder::oauth).
    #[cfg(feature = "oauth")]
    pub async fn sign_in(&self, sign_in: &SignIn) -> Result<(), McpError> {
        let signed_in = match self.authorization() {
            Some(authorization) => authorization.sign_in(sign_in).await,
            None => Err("OAuth is not set".to_owned()),
        };
        signed_in.map_err(|reason| self.unauthorized(reason))
    }

    /// Forgets the credentials that are stored.
    ///
    /// # Errors
    /// [`McpError::Unauthorized`]: the credentials cannot be deleted.
    #[cfg(feature = "oauth")]
    pub async fn sign_out(&self) -> Result<(), McpError> {
        match self.authorization() {
            Some(authorization) => authorization.sign_out().await.map_err(|reason| self.unauthorized(reason)),
            None => Ok(()),
        }
    }

    #[cfg(feature = "oauth")]
    fn unauthorized(&self, reason: String) -> McpError {
        McpError::Unauthorized { server: self.0.name.clone(), challenge: String::new(), reason }
    }

    /// The id of the server's process, while it is one and runs.
    pub async fn process_id(&self) -> Option<u32> {
        let link = self.0.link.lock().await;
        link.connection.as_ref().filter(|connection| !connection.is_closed())?.process_id()
    }

    /// The tools that are offered, each with the name that the model calls it by.
    ///
    /// # Errors
    /// As [`start`](McpServer::start).
    pub async fn offered(&self) -> Result<Vec<(String, ServerToolDefinition)>, McpError> {
        let offer = self.offer().await?;
        Ok(offer.tools.iter().map(|(name, definition)| (name.clone(), (**definition).clone())).collect())
    }

    /// The tools that the rules allow but that cannot be offered, each with the reason: an invalid definition, two with one
    /// name, or a schema that no object fits. The others are offered anyway.
    ///
    /// # Errors
    /// As [`start`](McpServer::start).
    pub async fn refused(&self) -> Result<Vec<RefusedDefinition>, McpError> {
        Ok(self.offer().await?.refused.clone())
    }

    /// The tools that differ from their approved definitions: each call of these requires approval, whatever the
    /// rules say.
    ///
    /// # Errors
    /// As [`start`](McpServer::start).
    pub async fn changes(&self) -> Result<Vec<ToolChange>, McpError> {
        let offer = self.offer().await?;
        let known = self.known();
        let approved = known.approved.as_ref();
        Ok(offer.tools.iter().filter_map(|(_, now)| approved?.change(now)).collect())
    }

    /// The definitions that count as approved: those of the first list, or those that the builder was
    /// [given](McpServerBuilder::approved), and those that were approved since. None before the first list.
    pub fn approved(&self) -> Option<ApprovedTools> {
        self.known().approved.clone()
    }

    /// Approves the current definition of a tool. An approved call does so, too.
    pub fn approve(&self, change: &ToolChange) {
        self.approve_definition(&change.now);
    }

    /// The server's own instructions on its use, for the instructions of an agent. The text is untrusted: read it before a
    /// model does.
    ///
    /// # Errors
    /// As [`start`](McpServer::start).
    pub async fn instructions(&self) -> Result<Option<String>, McpError> {
        Ok(self.connection().await?.instructions())
    }

    /// The server's resources.
    ///
    /// # Errors
    /// As [`start`](McpServer::start); or the server has no resources.
    pub async fn resources(&self) -> Result<Vec<ServerResource>, McpError> {
        let limits = &self.0.limits;
        let list = |connection: Arc<ServerConnection>| async move {
            connection.resources(limits.listed, limits.start_timeout).await
        };
        let resources = Box::pin(self.authorized(list)).await?;
        Ok(resources.into_iter().map(Into::into).collect())
    }

    /// The contents of a resource, as parts of a message.
    ///
    /// # Errors
    /// As [`start`](McpServer::start); or there is no such resource.
    pub async fn read_resource(&self, uri: &str) -> Result<Vec<Part>, McpError> {
        let timeout = self.0.limits.start_timeout;
        let read = |connection: Arc<ServerConnection>| async move { connection.resource(uri, timeout).await };
        let mut read = Box::pin(self.authorized(read)).await?;
        let mut deviations = ProtocolDeviations::default();
        let Some(Value::Array(contents)) = read.get_mut("contents").map(Value::take) else {
            return Err(self.unreadable("resources/read", "contents"));
        };
        let parts =
            contents.into_iter().map(|contents| content::resource(contents, &mut deviations)).collect();
        self.trace_deviations(uri, &deviations);
        Ok(parts)
    }

    /// The server's prompts.
    ///
    /// # Errors
    /// As [`start`](McpServer::start); or the server has no prompts.
    pub async fn prompts(&self) -> Result<Vec<ServerPrompt>, McpError> {
        let limits = &self.0.limits;
        let list = |connection: Arc<ServerConnection>| async move {
            connection.prompts(limits.listed, limits.start_timeout).await
        };
        let prompts = Box::pin(self.authorized(list)).await?;
        Ok(prompts.into_iter().map(Into::into).collect())
    }

    /// The messages of a prompt.
    ///
    /// # Errors
    /// As [`start`](McpServer::start); or there is no such prompt, or an argument is missing.
    pub async fn prompt(&self, name: &str, arguments: Map<String, Value>) -> Result<Vec<Message>, McpError> {
        let timeout = self.0.limits.start_timeout;
        let get = |connection: Arc<ServerConnection>| {
            let arguments = arguments.clone();
            async move { connection.prompt(name, arguments, timeout).await }
        };
        let mut prompt = Box::pin(self.authorized(get)).await?;
        let mut deviations = ProtocolDeviations::default();
        let Some(Value::Array(messages)) = prompt.get_mut("messages").map(Value::take) else {
            return Err(self.unreadable("prompts/get", "messages"));
        };
        let messages = messages.into_iter().map(|message| message_of(message, &mut deviations)).collect();
        self.trace_deviations(name, &deviations);
        Ok(messages)
    }

    fn unreadable(&self, method: &'static str, field: &str) -> McpError {
        let reason = format!("invalid result: missing list of {field}");
        McpError::Request { server: self.0.name.clone(), method, reason }
    }

    /// Logs the deviations of a result from the protocol.
    fn trace_deviations(&self, what: &str, deviations: &ProtocolDeviations) {
        if let Some(deviations) = deviations.text() {
            tracing::warn!(server = self.0.name, what, odd = deviations, "an MCP server sent an odd result");
        }
    }

    fn authorization(&self) -> Option<&ServerAuthorization> {
        match &self.0.launch {
            ServerLocation::Remote(remote) => remote.authorization.as_deref(),
            ServerLocation::Program(_) => None,
        }
    }

    fn sign_ins(&self) -> u64 {
        self.authorization().map_or(0, ServerAuthorization::sign_ins)
    }

    /// Sends a request, and repeats it after each sign-in that the server requires for it.
    async fn authorized<T, F, Fut>(&self, request: F) -> Result<T, McpError>
    where
        F: Fn(Arc<ServerConnection>) -> Fut,
        Fut: Future<Output = Result<T, McpError>>,
    {
        for _ in 0..MAX_SIGN_INS {
            let sign_ins_before = self.sign_ins();
            match request(self.connection().await?).await {
                Err(error @ McpError::Unauthorized { .. }) => self.authorize(error, sign_ins_before).await?,
                answer => return answer,
            }
        }
        request(self.connection().await?).await
    }

    /// Lets the user sign in for the required authorization, if possible.
    async fn authorize(&self, error: McpError, sign_ins_before: u64) -> Result<(), McpError> {
        let (Some(authorization), McpError::Unauthorized { server, challenge, .. }) =
            (self.authorization(), &error)
        else {
            return Err(error);
        };
        let (server, challenge) = (server.clone(), challenge.clone());
        authorization.authorize(&challenge, sign_ins_before).await.map_err(|denied| {
            let (AuthorizationDenied::NoUserToAsk(reason) | AuthorizationDenied::Failed(reason)) = denied;
            McpError::Unauthorized { server, challenge, reason }
        })
    }

    /// Returns the connection; starts one if there is none.
    async fn connection(&self) -> Result<Arc<ServerConnection>, McpError> {
        let mut link = self.0.link.lock().await;
        if let Some(connection) = link.connection.take_if(|connection| connection.is_closed()) {
            link.failures = if connection.since.elapsed() < STABLE_AFTER { link.failures + 1 } else { 1 };
        }
        if let Some(connection) = &link.connection {
            return Ok(Arc::clone(connection));
        }
        let plan = ConnectionPlan {
            server: &self.0.name,
            launch: &self.0.launch,
            answerer: self.0.answerer.as_ref(),
            initialize_only: self.0.initialize_only,
            message_bytes: self.0.limits.message_bytes,
            start_timeout: self.0.limits.start_timeout,
        };
        let (mut attempt, mut sign_ins) = (1, 0);
        loop {
            tokio::time::sleep(pause_after(link.failures)).await;
            let sign_ins_before = self.sign_ins();
            match ServerConnection::start(&plan).await {
                Ok(connection) => {
                    let connection = Arc::new(connection);
                    link.connection = Some(Arc::clone(&connection));
                    return Ok(connection);
                }
                // NOTE: A refused token is no failed start: it does not count for the pauses.
                Err(StartFailure { error: error @ McpError::Unauthorized { .. }, .. }) => {
                    if sign_ins == MAX_SIGN_INS {
                        return Err(error);
                    }
                    sign_ins += 1;
                    self.authorize(error, sign_ins_before).await?;
                }
                Err(StartFailure { error, is_final }) => {
                    link.failures += 1;
                    // NOTE: Not a warning: the last error is the caller's to report, once.
                    tracing::info!(server = self.0.name, %error, attempt, "an MCP server could not be started");
                    if is_final || attempt == ATTEMPTS {
                        return Err(error);
                    }
                    attempt += 1;
                }
            }
        }
    }

    /// Returns the current tools, and lists them if needed. Boxed, so that its large future is not part of each caller's.
    async fn offer(&self) -> Result<Arc<ServerOffer>, McpError> {
        Box::pin(self.load_offer()).await
    }

    async fn load_offer(&self) -> Result<Arc<ServerOffer>, McpError> {
        // NOTE: One list for all concurrent callers, which would otherwise each request it.
        let _listing = self.0.listing.lock().await;
        let mut has_asked_twice = false;
        loop {
            let connection = self.connection().await?;
            let known = self.known().offer.clone();
            if !connection.take_stale()
                && let Some(offer) = known
            {
                return Ok(offer);
            }
            let limits = &self.0.limits;
            let list = |connection: Arc<ServerConnection>| async move {
                connection.tools(limits.listed, limits.start_timeout).await
            };
            match Box::pin(self.authorized(list)).await {
                Ok(listed) => return Ok(self.store_offer(offer(listed, &self.0.rules))),
                Err(error) => {
                    connection.mark_stale();
                    // NOTE: Listing has no effect, so that it is repeated once if the server died meanwhile.
                    if !connection.is_closed() || std::mem::replace(&mut has_asked_twice, true) {
                        return Err(error);
                    }
                }
            }
        }
    }

    fn store_offer(&self, mut offer: ServerOffer) -> Arc<ServerOffer> {
        let refused = &mut offer.refused;
        offer.tools.retain(|(name, definition)| {
            self.trace_omissions(name, definition);
            let built = self.tool(name, definition, Approval::Never, ToolListing::new(definition.digest()));
            let tool = &definition.name;
            built
                .inspect_err(|reason| {
                    refused.push(RefusedDefinition { tool: tool.clone(), reason: reason.clone() });
                })
                .is_ok()
        });
        for refused in &offer.refused {
            let (tool, reason) = (&refused.tool, &refused.reason);
            tracing::warn!(server = self.0.name, tool, reason, "a tool of an MCP server is not offered");
        }
        let definitions: Vec<ServerToolDefinition> =
            offer.tools.iter().map(|(_, definition)| (**definition).clone()).collect();
        let mut known = self.known();
        // NOTE: The first list counts as approved: what matters is that nothing changes unnoticed afterwards. See
        // docs/decisions/mcp.md.
        let approved = known.approved.get_or_insert_with(|| {
            let approved = ApprovedTools::all(&definitions);
            self.keep(&approved);
            approved
        });
        for change in definitions.iter().filter_map(|now| approved.change(now)) {
            let tool = &change.now.name;
            tracing::info!(server = self.0.name, tool, "a tool is not as it was approved");
        }
        let offer = Arc::new(offer);
        known.offer = Some(Arc::clone(&offer));
        known.version += 1;
        offer
    }

    /// Logs the parts of a schema that are not offered to the model.
    fn trace_omissions(&self, name: &str, definition: &ServerToolDefinition) {
        let Ok(OfferedParameters { omissions, .. }) = schema::parameters(&definition.input_schema) else {
            return;
        };
        if !omissions.is_empty() {
            let omissions =
                omissions.iter().take(MAX_TRACED).map(String::as_str).collect::<Vec<_>>().join("; ");
            tracing::info!(
                server = self.0.name,
                tool = name,
                left_out = omissions,
                "not all of an inputSchema is offered"
            );
        }
    }

    fn approve_definition(&self, definition: &ServerToolDefinition) {
        let mut known = self.known();
        let approved = known.approved.get_or_insert_default();
        if approved.change(definition).is_some() {
            approved.insert(definition.clone());
            self.keep(approved);
            known.version += 1;
        }
    }

    /// Gives the approved definitions to the program. While they are locked, so that the last ones are given last.
    fn keep(&self, approved: &ApprovedTools) {
        if let Some(keeper) = &self.0.keeper {
            keeper(approved);
        }
    }

    /// The tools of an offer, all of which can be built.
    fn tools(&self, offer: &ServerOffer) -> Vec<Tool> {
        let approved = self.approved().unwrap_or_default();
        let built = offer.tools.iter().filter_map(|(name, definition)| {
            let listing =
                ToolListing::new(definition.digest()).from_dependency(format!("mcp {}", self.0.name));
            let (approval, listing) = match approved.change(definition) {
                // NOTE: Most changes are harmless: the call asks for approval with the difference beside it, and
                // approves the new definition.
                Some(change) => (Approval::Always, listing.changed(change.to_string())),
                None => (self.0.rules.approval(&definition.name), listing),
            };
            self.tool(name, definition, approval, listing).ok()
        });
        built.collect()
    }

    fn tool(
        &self,
        name: &str,
        definition: &Arc<ServerToolDefinition>,
        approval: Approval,
        listing: ToolListing,
    ) -> Result<Tool, String> {
        let parameters = schema::parameters(&definition.input_schema)?;
        let about =
            definition.description.as_deref().or(definition.title.as_deref()).unwrap_or_default().trim();
        let about = if about.is_empty() {
            format!("The tool {} of the server {}.", definition.name, self.0.name)
        } else {
            about.to_owned()
        };
        let output = definition.output_schema.clone().and_then(|schema| {
            checked(schema)
                .inspect_err(|error| tracing::warn!(tool = name, %error, "an outputSchema is not checked"))
                .ok()
        });
        let (server, called) = (self.clone(), Arc::clone(definition));
        let call = move |RawArgs(arguments): RawArgs, context: ToolContext| {
            let (server, called, output) = (server.clone(), Arc::clone(&called), output.clone());
            async move { Box::pin(server.call(&called, arguments, output.as_deref(), &context)).await }
        };
        Tool::new(name, about, call)
            .parameters(parameters.schema)
            // NOTE: An object that the server left open stays open: closing it made `args: {}` of proxies useless.
            // See docs/decisions/mcp.md.
            .open_parameters()
            .effect(self.0.rules.effect(definition))
            .approval(approval)
            .listing(listing)
            .timeout(self.0.rules.call_timeout)
            .output_to_string(ResultText::content(ResultSource::Whole, content::to_tool_content))
            .build()
            .map_err(|error| error.to_string())
    }

    /// Calls a tool as it was offered. A tool that changed since is not called.
    async fn call(
        &self,
        offered: &ServerToolDefinition,
        arguments: Value,
        output: Option<&ValueType>,
        context: &ToolContext,
    ) -> Result<Value, ToolError> {
        let tool = &offered.name;
        let not_called = |error: McpError| ToolError::new(format!("tool '{tool}' was not called: {error}"));
        let now = self.offer().await.map_err(not_called)?;
        match now.find(tool) {
            // NOTE: A definition that changed after the offer was seen by neither the model nor an approver: it is
            // not called.
            Some(now) if **now == *offered => {}
            Some(_) => {
                let words = format!(
                    "tool '{tool}' was not called: its server has changed it since; look at it again"
                );
                return Err(ToolError::permanent(words));
            }
            None => {
                let words = format!("tool '{tool}' was not called: its server no longer offers it");
                return Err(ToolError::permanent(words));
            }
        }
        // NOTE: A call runs only if its definition is approved or a human approved this call: either approves it.
        self.approve_definition(offered);
        let arguments = if let Value::Object(arguments) = arguments { arguments } else { Map::new() };
        self.check_sign_in(context).await?;
        for sign_ins in 0..=MAX_SIGN_INS {
            let connection = self.connection().await.map_err(not_called)?;
            let sign_ins_before = self.sign_ins();
            match connection.call(tool, arguments.clone(), context).await {
                Ok(result) => {
                    let mut deviations = ProtocolDeviations::default();
                    // NOTE: The call has run: an error for the form of its result would make the model call again.
                    // See docs/decisions/mcp.md.
                    let value = content::value(result, output, &mut deviations);
                    self.trace_deviations(tool, &deviations);
                    return value;
                }
                Err(CallError::Tool(error)) => return Err(error),
                Err(CallError::Unauthorized(_)) if sign_ins == MAX_SIGN_INS => break,
                Err(CallError::Unauthorized(challenge)) => {
                    self.authorize_call(&challenge, sign_ins_before, context).await?;
                }
            }
        }
        let server = &self.0.name;
        let words = format!("MCP server `{server}` refused the call: it wants more authorization each time");
        Err(ToolError::permanent(words))
    }

    /// Reloads the stored credentials for a call that waited for a sign-in.
    async fn check_sign_in(&self, context: &ToolContext) -> Result<(), ToolError> {
        let server = &self.0.name;
        match (question::has_signed_in(context.answered()), self.authorization()) {
            (Some(false), _) => {
                let words = format!("MCP server `{server}` was not called: the user does not authorize it");
                Err(ToolError::permanent(words))
            }
            (Some(true), Some(authorization)) => {
                let not_called =
                    |reason| ToolError::new(format!("MCP server `{server}` was not called: {reason}"));
                authorization.reload().await.map_err(not_called)
            }
            _ => Ok(()),
        }
    }

    /// Lets the user sign in for a call. If no user can be asked here, the run asks, and continues in any process.
    async fn authorize_call(
        &self,
        challenge: &str,
        sign_ins_before: u64,
        context: &ToolContext,
    ) -> Result<(), ToolError> {
        let server = &self.0.name;
        let Some(authorization) = self.authorization() else {
            let reason = without_oauth(challenge);
            let words = format!("MCP server `{server}` refused the call: {reason}");
            return Err(ToolError::permanent(words));
        };
        match authorization.authorize(challenge, sign_ins_before).await {
            Ok(()) => Ok(()),
            Err(AuthorizationDenied::NoUserToAsk(reason)) => {
                let asked = question::sign_in(server, &reason, context.answered());
                Err(ToolError::input_required([asked]))
            }
            Err(AuthorizationDenied::Failed(reason)) => {
                Err(ToolError::new(format!("MCP server `{server}` requires authorization: {reason}")))
            }
        }
    }

    fn known(&self) -> MutexGuard<'_, KnownTools> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Compiles the schema of results, if a check against it takes bounded work.
fn checked(schema: Value) -> Result<Arc<ValueType>, String> {
    // NOTE: A check has no budget and cannot be interrupted: a recursive schema can take exponential time.
    check_bounded(&schema)?;
    ValueType::of_schema(schema).map(Arc::new).map_err(|error| error.to_string())
}

/// A message of a prompt.
fn message_of(mut message: Value, deviations: &mut ProtocolDeviations) -> Message {
    let role = if message["role"] == "assistant" { Role::Assistant } else { Role::User };
    let parts = match message.get_mut("content").map(Value::take) {
        Some(Value::Array(blocks)) => {
            blocks.into_iter().map(|block| content::read(block, deviations)).collect()
        }
        block => vec![content::read(block.unwrap_or_default(), deviations)],
    };
    Message::from_parts(role, parts)
}

/// The pause before a start after so many failures in a row.
fn pause_after(failures: usize) -> Duration {
    let pauses = backon::ExponentialBuilder::new()
        .with_factor(2.0)
        .with_min_delay(Duration::from_millis(100))
        .with_max_delay(Duration::from_secs(30))
        .without_max_times()
        .build();
    failures.checked_sub(1).and_then(|before| pauses.into_iter().nth(before.min(16))).unwrap_or_default()
}

/// A server as the source of a toolset. Tools are built once for each list.
struct ServerToolSource {
    server: McpServer,
    built: Mutex<Option<(u64, Vec<Tool>)>>,
}

impl ToolSource for ServerToolSource {
    async fn tools(&self, _: &State) -> Result<Vec<Tool>, Box<dyn Error + Send + Sync>> {
        let offer = self.server.offer().await?;
        let version = self.server.known().version;
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        match &*built {
            Some((known, tools)) if *known == version => Ok(tools.clone()),
            _ => {
                let tools = self.server.tools(&offer);
                *built = Some((version, tools.clone()));
                Ok(tools)
            }
        }
    }

    fn refused(&self) -> Vec<RefusedTool> {
        let offer = self.server.known().offer.clone();
        let refused = offer.iter().flat_map(|offer| &offer.refused);
        refused.map(|refused| RefusedTool::new(&refused.tool, &refused.reason)).collect()
    }
}

impl From<&McpServer> for Toolset {
    fn from(server: &McpServer) -> Self {
        server.toolset()
    }
}

impl fmt::Debug for McpServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("name", &self.0.name).finish_non_exhaustive()
    }
}

/// Describes a [`McpServer`]; nothing is started before its tools are requested.
#[must_use = "a builder does nothing until it is built"]
pub struct McpServerBuilder {
    name: String,
    launch: ServerLocation,
    rules: OfferRules,
    headers: Vec<(String, String)>,
    limits: ServerLimits,
    approved: Option<ApprovedTools>,
    answerer: Option<QuestionHandler>,
    keeper: Option<ApprovalKeeper>,
    initialize_only: bool,
    faults: Vec<String>,
}

impl McpServerBuilder {
    fn new(name: String, launch: ServerLocation) -> Self {
        let rules = OfferRules {
            prefix: format!("{name}_"),
            allow: Vec::new(),
            deny: Vec::new(),
            effects: Vec::new(),
            approvals: Vec::new(),
            trusts_hints: false,
            call_timeout: Duration::from_secs(60),
        };
        McpServerBuilder {
            name,
            launch,
            rules,
            headers: Vec::new(),
            limits: ServerLimits::default(),
            approved: None,
            answerer: None,
            keeper: None,
            initialize_only: false,
            faults: Vec::new(),
        }
    }

    /// Sets a variable of the program's environment. Beside those set here it has only `PATH`, `HOME` and a few like them.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        match &mut self.launch {
            ServerLocation::Program(program) => program.env.push((name.into(), value.into())),
            ServerLocation::Remote(_) => {
                self.faults.push("`env` is for a command, and the server is at a URL".to_owned());
            }
        }
        self
    }

    /// Sets the folder in which the program runs; that of this process by default.
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        match &mut self.launch {
            ServerLocation::Program(program) => program.folder = Some(folder.into()),
            ServerLocation::Remote(_) => {
                self.faults.push("`folder` is for a command, and the server is at a URL".to_owned());
            }
        }
        self
    }

    /// Sets a header of each request.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Sets the bearer token of each request.
    pub fn bearer_token(mut self, token: impl Into<String>) -> Self {
        match &mut self.launch {
            ServerLocation::Remote(remote) => remote.token = Some(token.into()),
            ServerLocation::Program(_) => {
                self.faults.push("a token is for a server at a URL, and this is a command".to_owned());
            }
        }
        self
    }

    /// Sets the OAuth client, which authorizes requests when the server requires it.
    #[cfg(feature = "oauth")]
    pub fn oauth(mut self, oauth: OAuth) -> Self {
        match &mut self.launch {
            ServerLocation::Remote(remote) => {
                remote.authorization = Some(Arc::new(ServerAuthorization::new(oauth, remote.url.clone())));
            }
            ServerLocation::Program(_) => {
                self.faults.push("OAuth is for a server at a URL, and this is a command".to_owned());
            }
        }
        self
    }

    /// Sets the prefix of the names of the tools; the server's name and `_` by default, so that the tools of two servers
    /// have different names.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.rules.prefix = prefix.into();
        self
    }

    /// Offers the tools with these names, and no others. Names are the server's own; `*` stands for any characters.
    pub fn allow<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.rules.allow.extend(names.into_iter().map(NamePattern::new));
        self
    }

    /// Does not offer the tools with these names, even if they are allowed.
    pub fn deny<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.rules.deny.extend(names.into_iter().map(NamePattern::new));
        self
    }

    /// Declares the effect of all tools. Undeclared, each counts as [`Effect::AtMostOnce`].
    pub fn effect(self, effect: Effect) -> Self {
        self.effect_of("*", effect)
    }

    /// Declares the effect of the tools with this name. The last declaration that matches holds.
    pub fn effect_of(mut self, name: impl Into<String>, effect: Effect) -> Self {
        self.rules.effects.push((NamePattern::new(name), effect));
        self
    }

    /// Sets the approval rule of all tools.
    pub fn approval(self, approval: Approval) -> Self {
        self.approval_of("*", approval)
    }

    /// Sets the approval rule of the tools with this name, which may have `*`. The last matching rule applies.
    pub fn approval_of(mut self, name: impl Into<String>, approval: Approval) -> Self {
        self.rules.approvals.push((NamePattern::new(name), approval));
        self
    }

    /// Trusts the claims of the server about its tools: `readOnlyHint` makes one [pure](Effect::Pure), `idempotentHint`
    /// [idempotent](Effect::Idempotent). Only for a server whose author is trusted: a wrong hint makes an interrupted
    /// call run again. What is declared with [`effect`](McpServerBuilder::effect) is stronger.
    pub fn trust_hints(mut self) -> Self {
        self.rules.trusts_hints = true;
        self
    }

    /// Sets the timeout of a call; a minute by default. The server is asked to cancel the call then.
    pub fn call_timeout(mut self, timeout: Duration) -> Self {
        self.rules.call_timeout = timeout;
        self
    }

    /// Sets the limits on the resources that the server may use.
    pub fn limits(mut self, limits: ServerLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets the definitions that were approved before, in another process for instance. By default those of the first list
    /// count as approved.
    pub fn approved(mut self, approved: ApprovedTools) -> Self {
        self.approved = Some(approved);
        self
    }

    /// Is called with the [approved](McpServer::approved) definitions whenever they change: after the first list, unless they were
    /// given, and after each approval, before the call runs. For a program that stores them at once, so that a crash approves nothing. It
    /// must return soon, and call no method of the server, which waits for it.
    pub fn on_approved(mut self, keep: impl Fn(&ApprovedTools) + Send + Sync + 'static) -> Self {
        self.keeper = Some(Arc::new(keep));
        self
    }

    /// Answers questions of the server during a call (elicitation); the call waits for the answer, within its
    /// timeout. By default a question of the revision 2026-07-28 becomes a question [of the run](ToolContext::ask),
    /// which is stored with the state of the server, and the call continues with the answer, in any process. A
    /// question of an older revision cannot outlive its process, and is declined by default.
    pub fn on_question<F, Fut>(mut self, answer: F) -> Self
    where
        F: Fn(Elicitation) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ElicitationAnswer> + Send + 'static,
    {
        self.answerer = Some(QuestionHandler::new(answer));
        self
    }

    /// Skips the probe for a newer protocol revision: for servers that never answer unknown requests (saves ten seconds per
    /// start).
    pub fn initialize_only(mut self) -> Self {
        self.initialize_only = true;
        self
    }

    /// Builds the server; checks everything that needs no connection.
    ///
    /// # Errors
    /// [`McpError::Invalid`] for a name or a prefix that cannot stand before a tool's name, an empty command, an
    /// invalid URL, header or token, a timeout of zero.
    pub fn build(mut self) -> Result<McpServer, McpError> {
        let fault = self.faults.pop().or_else(|| self.fault());
        if let Some(reason) = fault {
            return Err(McpError::Invalid { server: self.name, reason });
        }
        Ok(McpServer(Arc::new(McpServerInner {
            name: self.name,
            launch: self.launch,
            rules: self.rules,
            limits: self.limits,
            answerer: self.answerer,
            keeper: self.keeper,
            initialize_only: self.initialize_only,
            link: tokio::sync::Mutex::default(),
            listing: tokio::sync::Mutex::default(),
            known: Mutex::new(KnownTools { approved: self.approved, ..KnownTools::default() }),
        })))
    }

    fn fault(&mut self) -> Option<String> {
        let is_name = |name: &str| is_identifier(name) && name.len() <= MAX_NAME_BYTES;
        if self.name.is_empty() || !is_name(&self.name) {
            return Some("the name must be 1 to 32 letters, digits, `_` or `-`".to_owned());
        }
        if !is_name(self.rules.prefix.trim_end_matches('_')) {
            return Some(format!(
                "invalid prefix `{}`: must be at most 32 letters, digits, `_` or `-`",
                self.rules.prefix
            ));
        }
        if self.rules.call_timeout.is_zero() || self.limits.start_timeout.is_zero() {
            return Some("a timeout must be more than zero".to_owned());
        }
        let empty =
            self.rules.allow.iter().chain(&self.rules.deny).any(|pattern| pattern.as_str().is_empty());
        if empty {
            return Some("a name in `allow` or `deny` is empty".to_owned());
        }
        match &mut self.launch {
            ServerLocation::Program(program) => {
                if !self.headers.is_empty() {
                    return Some("headers are for a server at a URL, and this is a command".to_owned());
                }
                let is_empty = program.argv.first().is_none_or(|first| first.is_empty());
                is_empty.then(|| "the command names no program".to_owned())
            }
            ServerLocation::Remote(remote) => {
                for (name, value) in self.headers.drain(..) {
                    let header = (http::HeaderName::try_from(&name), http::HeaderValue::try_from(value));
                    let (Ok(known), Ok(mut value)) = header else {
                        return Some(format!("invalid header `{name}`"));
                    };
                    // NOTE: Hides the value in `Debug` texts: headers hold tokens.
                    value.set_sensitive(true);
                    remote.headers.insert(known, value);
                }
                remote.check().err()
            }
        }
    }
}

impl fmt::Debug for McpServerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerBuilder").field("name", &self.name).finish_non_exhaustive()
    }
}
