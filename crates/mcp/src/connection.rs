//! A running server: requests to it, progress from it, and the outcome of a call when it ends.
//!
//! The outcomes of a call:
//!
//! | response | outcome |
//! |---|---|
//! | a result | the result |
//! | questions, and the program answers them | the call is sent again, ten rounds at most |
//! | questions, and no handler is set | questions of the run, which continues the call with the answers |
//! | an error of the server | the tool failed: nothing was run |
//! | a challenge, or no token to send | unauthorized, or the tool failed: nothing was run |
//! | none: the connection ended | unknown, and never repeated |

use std::collections::HashMap;
use std::error::Error;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rmcp::handler::client::ClientHandler;
use rmcp::model as wire;
use rmcp::service::{
    ClientInitializeError, ClientLifecycleMode, ClientServiceExt as _, NotificationContext, Peer,
    PeerRequestOptions, RequestContext, RoleClient, RunningService, ServiceError,
};
use rmcp::transport::DynamicTransportError;
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::streamable_http_client::{StreamableHttpClient, StreamableHttpError};
use rmcp::transport::worker::WorkerQuitReason;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use stepfold_state_core::ErrorChain;
use stepfold_tools::{ToolContext, ToolError};
use tokio::sync::Mutex;

use crate::definition::{self, RefusedDefinition, ServerToolDefinition};
use crate::error::McpError;
use crate::http;
use crate::listing;
use crate::meter::ByteMeter;
use crate::oauth;
use crate::process::{ServerProcess, ServerProgram};
use crate::question::{AnsweredRound, ElicitationRequests, QuestionHandler, decline, questions};
use crate::remote::RemoteServer;

/// The limit on rounds of questions before a call.
const MAX_ROUNDS: usize = 10;

/// The time after which a start is reported as slow: a server that never answers would look like a hanging program.
const SLOW_START: Duration = Duration::from_secs(5);

/// The time that a server may take to exit after its standard input is closed.
const GRACE: Duration = Duration::from_secs(2);

/// The field of a request's `_meta` that has the idempotency key of a call.
// NOTE: The protocol has no field for it; servers that know the name can recognise a repeated call.
const IDEMPOTENCY_KEY: &str = "stepfold/idempotencyKey";

/// A server as a program to start, or at a URL.
#[derive(Clone)]
pub(crate) enum ServerLocation {
    Program(ServerProgram),
    Remote(RemoteServer),
}

/// The parameters of a connection.
pub(crate) struct ConnectionPlan<'a> {
    pub(crate) server: &'a str,
    pub(crate) launch: &'a ServerLocation,
    pub(crate) answerer: Option<&'a QuestionHandler>,
    pub(crate) initialize_only: bool,
    pub(crate) message_bytes: usize,
    pub(crate) start_timeout: Duration,
}

/// A failed start.
pub(crate) struct StartFailure {
    pub(crate) error: McpError,
    /// Whether another attempt would fail in the same way.
    pub(crate) is_final: bool,
}

impl From<McpError> for StartFailure {
    fn from(error: McpError) -> Self {
        // NOTE: A start that timed out has used all the time that a start may take.
        StartFailure { is_final: matches!(error, McpError::Timeout { .. }), error }
    }
}

/// The reason why a call has no result.
pub(crate) enum CallError {
    /// The server requires another authorization, with this challenge, and did nothing.
    Unauthorized(String),
    Tool(ToolError),
}

impl From<ToolError> for CallError {
    fn from(error: ToolError) -> Self {
        CallError::Tool(error)
    }
}

/// A connection to a running server. Dropping it ends the server, if it is a process.
pub(crate) struct ServerConnection {
    server: String,
    peer: Peer<RoleClient>,
    // NOTE: Before the process, so that its input is closed first when a connection is dropped.
    service: Mutex<Option<RunningService<RoleClient, McpClient>>>,
    process: Option<Mutex<ServerProcess>>,
    process_id: Option<u32>,
    meter: Arc<ByteMeter>,
    client: McpClient,
    remote: Option<RemoteServer>,
    is_unwatched: Arc<AtomicBool>,
    pub(crate) since: tokio::time::Instant,
}

impl ServerConnection {
    /// Starts a server, or reaches it, and agrees on a revision of the protocol.
    pub(crate) async fn start(plan: &ConnectionPlan<'_>) -> Result<Self, StartFailure> {
        let client = McpClient {
            server: plan.server.into(),
            routes: ProgressRoutes::default(),
            // NOTE: Stale from the start: the tools of a new process are unknown.
            is_stale: Arc::new(AtomicBool::new(true)),
            answerer: plan.answerer.cloned(),
        };
        let failed = |reason: String| plan.failed(reason);
        let meter = Arc::new(ByteMeter::new(plan.message_bytes));
        let (service, process) = match plan.launch {
            ServerLocation::Program(program) => {
                let (mut process, pipes) = program.start(&meter).map_err(|error| StartFailure {
                    error: failed(program.refusal(&error)),
                    is_final: true,
                })?;
                // NOTE: `MeteredLines` refuses a long line before it gets there.
                let transport =
                    AsyncRwTransport::new_client(pipes.stdout, pipes.stdin).with_max_line_length(usize::MAX);
                let started = client.clone().serve_with_lifecycle(transport, plan.lifecycle());
                match plan.in_time(started).await? {
                    Ok(service) => (service, Some(process)),
                    Err(
                        ClientInitializeError::ConnectionClosed(_)
                        | ClientInitializeError::TransportError { .. },
                    ) => {
                        return Err(failed(process.failure_reason().await).into());
                    }
                    Err(error) => return Err(failed(connection_reason(&error)).into()),
                }
            }
            ServerLocation::Remote(remote) => {
                let service = start_remote(&client, remote, &meter, plan).await?;
                close_when_broken(&service, &meter);
                (service, None)
            }
        };
        let peer = service.peer().clone();
        let is_unwatched = Arc::default();
        watch_tool_changes(&peer, &client.is_stale, &is_unwatched);
        Ok(ServerConnection {
            server: plan.server.to_owned(),
            peer,
            service: Mutex::new(Some(service)),
            process_id: process.as_ref().and_then(ServerProcess::id),
            meter,
            process: process.map(Mutex::new),
            client,
            remote: match plan.launch {
                ServerLocation::Program(_) => None,
                ServerLocation::Remote(remote) => Some(remote.clone()),
            },
            is_unwatched,
            since: tokio::time::Instant::now(),
        })
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.peer.is_transport_closed()
    }

    pub(crate) fn process_id(&self) -> Option<u32> {
        self.process_id
    }

    /// The instructions of the server for the model.
    pub(crate) fn instructions(&self) -> Option<String> {
        self.peer.peer_info()?.instructions.clone()
    }

    /// Whether the tools may have changed since the last call: the server said so, or it sends no such notifications.
    pub(crate) fn take_stale(&self) -> bool {
        self.client.is_stale.swap(false, Ordering::AcqRel) || self.is_unwatched.load(Ordering::Acquire)
    }

    /// Marks the tools as changed: the list could not be read.
    pub(crate) fn mark_stale(&self) {
        self.client.is_stale.store(true, Ordering::Release);
    }

    /// Closes the input of the server and waits a moment for its exit. Dropping the connection kills the rest.
    pub(crate) async fn stop(&self) {
        if let Some(mut service) = self.service.lock().await.take() {
            let _ = service.close_with_timeout(GRACE).await;
        }
        if let Some(process) = &self.process {
            process.lock().await.wait(GRACE).await;
        }
    }

    /// Lists the tools of the server, with an error for each invalid definition.
    pub(crate) async fn tools(
        &self,
        limit: usize,
        timeout: Duration,
    ) -> Result<Vec<Result<ServerToolDefinition, RefusedDefinition>>, McpError> {
        let has_tools = self.peer.peer_info().is_some_and(|info| info.capabilities.tools.is_some());
        if !has_tools {
            return Ok(Vec::new());
        }
        let page = |params| page_of_tools(&self.peer, params);
        self.in_time("tools/list", timeout, self.pages("tools", "tools/list", limit, page)).await
    }

    /// Lists the resources of the server.
    pub(crate) async fn resources(
        &self,
        limit: usize,
        timeout: Duration,
    ) -> Result<Vec<wire::Resource>, McpError> {
        let peer = &self.peer;
        let page = |params: Option<wire::PaginatedRequestParams>| async move {
            match peer.list_resources(params.clone()).await {
                Err(ServiceError::UnexpectedResponse) => {}
                page => return page.map(|page| (page.resources, page.next_cursor)),
            }
            let request = wire::ListResourcesRequest { params, ..wire::ListResourcesRequest::default() };
            entries(peer, wire::ClientRequest::ListResourcesRequest(request), "resources").await
        };
        self.in_time("resources/list", timeout, self.pages("resources", "resources/list", limit, page)).await
    }

    /// Lists the prompts of the server.
    pub(crate) async fn prompts(
        &self,
        limit: usize,
        timeout: Duration,
    ) -> Result<Vec<wire::Prompt>, McpError> {
        let peer = &self.peer;
        let page = |params: Option<wire::PaginatedRequestParams>| async move {
            match peer.list_prompts(params.clone()).await {
                Err(ServiceError::UnexpectedResponse) => {}
                page => return page.map(|page| (page.prompts, page.next_cursor)),
            }
            let request = wire::ListPromptsRequest { params, ..wire::ListPromptsRequest::default() };
            entries(peer, wire::ClientRequest::ListPromptsRequest(request), "prompts").await
        };
        self.in_time("prompts/list", timeout, self.pages("prompts", "prompts/list", limit, page)).await
    }

    /// Reads a resource.
    pub(crate) async fn resource(&self, uri: &str, timeout: Duration) -> Result<Value, McpError> {
        let params = wire::ReadResourceRequestParams::new(uri);
        let request = wire::ClientRequest::ReadResourceRequest(wire::ReadResourceRequest::new(params));
        self.raw("resources/read", request, timeout).await
    }

    /// Gets the messages of a prompt.
    pub(crate) async fn prompt(
        &self,
        name: &str,
        arguments: Map<String, Value>,
        timeout: Duration,
    ) -> Result<Value, McpError> {
        let params = wire::GetPromptRequestParams::new(name).with_arguments(arguments);
        let request = wire::ClientRequest::GetPromptRequest(wire::GetPromptRequest::new(params));
        self.raw("prompts/get", request, timeout).await
    }

    /// Sends a request and returns the result as the server sent it.
    async fn raw(
        &self,
        method: &'static str,
        request: wire::ClientRequest,
        timeout: Duration,
    ) -> Result<Value, McpError> {
        self.start_request();
        let answer = async { Ok(self.peer.send_request(request).await) };
        let answer = self.in_time(method, timeout, answer).await?;
        Ok(raw(self.check_response(method, answer).await?))
    }

    /// Reads all pages of a list, at most `limit` items and pages.
    async fn pages<T, Page>(
        &self,
        what: &'static str,
        method: &'static str,
        limit: usize,
        page: impl Fn(Option<wire::PaginatedRequestParams>) -> Page,
    ) -> Result<Vec<T>, McpError>
    where
        Page: Future<Output = Result<(Vec<T>, Option<String>), ServiceError>>,
    {
        let mut items = Vec::new();
        let mut cursor = None;
        // NOTE: Bounds empty pages, too: a server may return a next cursor for ever.
        for _ in 0..=limit {
            self.start_request();
            let params = wire::PaginatedRequestParams::default().with_cursor(cursor);
            let (more, next) = self.check_response(method, page(Some(params)).await).await?;
            items.extend(more);
            cursor = next;
            if items.len() > limit {
                break;
            }
            if cursor.is_none() {
                return Ok(items);
            }
        }
        Err(McpError::TooMany { server: self.server.clone(), what, limit })
    }

    async fn in_time<T>(
        &self,
        method: &'static str,
        timeout: Duration,
        answer: impl Future<Output = Result<T, McpError>>,
    ) -> Result<T, McpError> {
        let late = |_| McpError::Timeout { server: self.server.clone(), method, timeout };
        tokio::time::timeout(timeout, answer).await.map_err(late)?
    }

    async fn check_response<T>(
        &self,
        method: &'static str,
        answer: Result<T, ServiceError>,
    ) -> Result<T, McpError> {
        match answer {
            Ok(answer) => Ok(answer),
            Err(error) => {
                if let Some(challenge) = error.auth_challenge() {
                    return Err(unauthorized(&self.server, self.remote.as_ref(), challenge));
                }
                let reason = self.reason(&error).await;
                Err(McpError::Request { server: self.server.clone(), method, reason })
            }
        }
    }

    /// Calls a tool, and reports its progress to the run. Dropping the future cancels the call.
    ///
    /// # Errors
    /// The message of the server if it refuses the call; an unknown outcome if it did not answer.
    pub(crate) async fn call(
        &self,
        tool: &str,
        arguments: Map<String, Value>,
        context: &ToolContext,
    ) -> Result<Value, CallError> {
        let mut params = wire::CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
        // NOTE: A call of the run that continues with answers to earlier questions.
        let before = AnsweredRound::answered(context.answered());
        let first = before.as_ref().map_or(0, |round| round.number);
        if let Some(round) = before {
            params.request_state = round.request_state;
            params.input_responses = Some(round.responses);
        }
        for number in first..MAX_ROUNDS {
            match self.send_call(params.clone(), context).await {
                // NOTE: Servers of the revision 2026-07-28 return their questions, and the call is repeated with the
                // answers.
                Ok(wire::ServerResult::InputRequiredResult(wanted)) => {
                    let requests = self.elicitations(wanted.input_requests.unwrap_or_default())?;
                    if self.client.answerer.is_none() && !requests.is_empty() {
                        let state = wanted.request_state.as_deref();
                        let questions = questions(&self.server, number + 1, state, requests);
                        return Err(ToolError::input_required(questions).into());
                    }
                    params.request_state = wanted.request_state;
                    params.input_responses = Some(self.answer_elicitations(requests).await?);
                }
                Ok(result) => return Ok(raw(result)),
                Err(error) => return Err(self.failure(&error).await),
            }
        }
        let words =
            format!("MCP server `{}` asked for input {MAX_ROUNDS} times and gave no result", self.server);
        Err(ToolError::unknown(words).into())
    }

    async fn send_call(
        &self,
        params: wire::CallToolRequestParams,
        context: &ToolContext,
    ) -> Result<wire::ServerResult, ServiceError> {
        self.start_request();
        let mut meta = wire::RequestMetaObject::new();
        meta.insert(IDEMPOTENCY_KEY.to_owned(), json!(context.idempotency_key()));
        let request = wire::ClientRequest::CallToolRequest(wire::CallToolRequest::new(params));
        let options = PeerRequestOptions::no_options().with_meta(meta);
        // NOTE: Progress may arrive as soon as the request is sent: the lock holds it back until its route is known.
        let mut routes = self.client.routes.lock().await;
        let handle = self.peer.send_cancellable_request(request, options).await?;
        routes.insert(handle.progress_token.clone(), context.clone());
        drop(routes);
        let mut guard = RequestGuard {
            peer: self.peer.clone(),
            id: Some(handle.id.clone()),
            token: handle.progress_token.clone(),
            routes: Arc::clone(&self.client.routes),
        };
        let answer = handle.await_response().await;
        guard.end().await;
        answer
    }

    /// Extracts the questions to the user that a server asks before it continues with a call. Other requests are refused.
    fn elicitations(&self, requests: wire::InputRequests) -> Result<ElicitationRequests, ToolError> {
        let refused = || {
            let server = &self.server;
            let words = format!(
                "MCP server `{server}` asks for the client's model or its folders, which it is not given"
            );
            ToolError::permanent(words)
        };
        let questions = requests.into_iter().map(|(key, request)| match request {
            wire::InputRequest::Elicitation(question) => Ok((key, question.params)),
            _ => Err(refused()),
        });
        questions.collect()
    }

    /// Answers the questions by the handler of the program.
    async fn answer_elicitations(
        &self,
        requests: ElicitationRequests,
    ) -> Result<wire::InputResponses, ToolError> {
        let mut answers = wire::InputResponses::new();
        for (key, question) in requests {
            answers.insert(key, serde_json::to_value(self.client.answer(question).await)?);
        }
        Ok(answers)
    }

    async fn failure(&self, error: &ServiceError) -> CallError {
        let server = &self.server;
        if let ServiceError::McpError(refusal) = error {
            let words = refusal_text(&refusal.message, refusal.data.as_ref());
            return ToolError::new(format!("MCP server `{server}` refused the call: {words}")).into();
        }
        if let Some(challenge) = error.auth_challenge() {
            let challenge =
                self.remote.as_ref().map_or_else(|| challenge.to_owned(), |remote| remote.redact(challenge));
            return CallError::Unauthorized(challenge);
        }
        let reason = self.reason(error).await;
        // NOTE: Without a token the request never left: a failure, not an unknown outcome.
        if oauth::not_sent(error).is_some() {
            return ToolError::new(format!("MCP server `{server}` was not called: {reason}")).into();
        }
        // NOTE: The server may have acted before the connection ended, so the outcome is unknown, and the call is
        // never repeated. See docs/decisions/mcp.md.
        let words = format!("the connection to MCP server `{server}` ended during the call: {reason}");
        ToolError::unknown(words).into()
    }

    async fn reason(&self, error: &ServiceError) -> String {
        match (error, &self.process) {
            (ServiceError::McpError(refusal), _) => refusal.message.to_string(),
            (ServiceError::TransportClosed | ServiceError::TransportSend(_), Some(process)) => {
                process.lock().await.failure_reason().await
            }
            _ if let Some(broken) = self.meter.broken() => broken,
            _ => match &self.remote {
                Some(remote) => remote.redact(&service_reason(error)),
                None => service_reason(error),
            },
        }
    }

    fn start_request(&self) {
        self.meter.start_request();
    }
}

/// Joins the message and the data of a refusal: some servers have the reason in the data only.
fn refusal_text(message: &str, data: Option<&Value>) -> String {
    let data = data.filter(|data| !data.is_null()).map(|data| match data {
        Value::String(words) => words.clone(),
        other => other.to_string(),
    });
    match (message.trim(), data) {
        ("", None) => "it does not say why".to_owned(),
        ("", Some(data)) => data,
        (message, Some(data)) if !message.contains(&data) => format!("{message}: {data}"),
        (message, _) => message.to_owned(),
    }
}

/// Requests a page of tools. The SDK parses a page only if all of its definitions are valid: otherwise it is
/// requested again in raw form, so that an invalid definition does not hide the others.
async fn page_of_tools(
    peer: &Peer<RoleClient>,
    params: Option<wire::PaginatedRequestParams>,
) -> Result<definition::ToolPage, ServiceError> {
    match peer.list_tools(params.clone()).await {
        Err(ServiceError::UnexpectedResponse) => {}
        page => return page.map(definition::page),
    }
    let request = wire::ListToolsRequest { params, ..wire::ListToolsRequest::default() };
    match peer.send_request(wire::ClientRequest::ListToolsRequest(request)).await? {
        wire::ServerResult::ListToolsResult(page) => Ok(definition::page(page)),
        page => definition::read_page(raw(page)).ok_or(ServiceError::UnexpectedResponse),
    }
}

/// Requests a page that the SDK cannot parse, and returns its valid entries.
async fn entries<T: DeserializeOwned>(
    peer: &Peer<RoleClient>,
    request: wire::ClientRequest,
    field: &str,
) -> Result<(Vec<T>, Option<String>), ServiceError> {
    let page = raw(peer.send_request(request).await?);
    listing::entries(page, field).ok_or(ServiceError::UnexpectedResponse)
}

/// Returns a result as the server sent it. The SDK chooses the type of a result by its fields, not by the request,
/// and keeps unknown ones unchanged.
fn raw(result: wire::ServerResult) -> Value {
    match result {
        wire::ServerResult::CustomResult(result) => result.0,
        // NOTE: Cannot fail: results consist of strings and values.
        known => serde_json::to_value(known).unwrap_or_default(),
    }
}

/// Closes a connection whose server exceeds a limit. Otherwise the transport would reopen its streams.
fn close_when_broken(service: &RunningService<RoleClient, McpClient>, meter: &ByteMeter) {
    let (token, broken) = (service.cancellation_token(), meter.watch());
    tokio::spawn(async move {
        if broken.await.is_ok() {
            token.cancel();
        }
    });
}

/// Connects to a server at a URL.
async fn start_remote(
    client: &McpClient,
    remote: &RemoteServer,
    meter: &Arc<ByteMeter>,
    plan: &ConnectionPlan<'_>,
) -> Result<RunningService<RoleClient, McpClient>, McpError> {
    let http = http::client(plan.start_timeout).map_err(|reason| plan.failed(reason))?;
    let Some(authorization) = &remote.authorization else {
        return start_transport(http, client, remote, meter, plan).await;
    };
    let http = plan.in_time(authorization.client(http)).await?.map_err(|reason| plan.failed(reason))?;
    start_transport(http, client, remote, meter, plan).await
}

async fn start_transport<C>(
    http: C,
    client: &McpClient,
    remote: &RemoteServer,
    meter: &Arc<ByteMeter>,
    plan: &ConnectionPlan<'_>,
) -> Result<RunningService<RoleClient, McpClient>, McpError>
where
    C: StreamableHttpClient + Send + Sync + 'static,
{
    let transport = remote.transport(http, meter);
    let started = client.clone().serve_with_lifecycle(transport, plan.lifecycle());
    plan.in_time(started).await?.map_err(|error| match error.auth_challenge() {
        Some(challenge) => unauthorized(plan.server, Some(remote), challenge),
        None => plan.failed(remote.redact(&connection_reason(&error))),
    })
}

/// The reason why no connection was made.
fn connection_reason(error: &ClientInitializeError) -> String {
    match error {
        ClientInitializeError::TransportError { error, .. } => transport_reason(error),
        ClientInitializeError::LegacyFallbackFailed { fallback, .. } => connection_reason(fallback),
        error => ErrorChain(error).to_string(),
    }
}

/// The reason why a request failed.
fn service_reason(error: &ServiceError) -> String {
    match error {
        ServiceError::TransportSend(error) => transport_reason(error),
        error => ErrorChain(error).to_string(),
    }
}

/// The reason of the HTTP client.
// NOTE: The SDK's own text has the names of its Rust types, and not the causes of the client's error.
fn transport_reason(error: &DynamicTransportError) -> String {
    type HttpError = StreamableHttpError<reqwest::Error>;
    let error: &(dyn Error + 'static) = error.error.as_ref();
    let http = match error.downcast_ref::<WorkerQuitReason<HttpError>>() {
        Some(WorkerQuitReason::Fatal { error, .. }) => Some(error),
        _ => error.downcast_ref::<HttpError>(),
    };
    match http {
        Some(StreamableHttpError::Client(error)) => http::failure(error),
        Some(error) => ErrorChain(error).to_string(),
        None => ErrorChain(error).to_string(),
    }
}

/// The error of a server that requires authorization.
fn unauthorized(server: &str, remote: Option<&RemoteServer>, challenge: &str) -> McpError {
    let challenge = remote.map_or_else(|| challenge.to_owned(), |remote| remote.redact(challenge));
    let reason = http::without_oauth(&challenge);
    McpError::Unauthorized { server: server.to_owned(), challenge, reason }
}

impl ConnectionPlan<'_> {
    fn failed(&self, reason: String) -> McpError {
        McpError::Start { server: self.server.to_owned(), reason }
    }

    fn lifecycle(&self) -> ClientLifecycleMode {
        if self.initialize_only {
            return ClientLifecycleMode::Initialize;
        }
        ClientLifecycleMode::Auto {
            preferred_versions: vec![wire::ProtocolVersion::LATEST],
            legacy_version: Some(wire::ProtocolVersion::LATEST_WITH_INITIALIZE),
        }
    }

    async fn in_time<T>(&self, started: impl Future<Output = T>) -> Result<T, McpError> {
        let method = "initialize";
        let (server, timeout) = (self.server.to_owned(), self.start_timeout);
        let started = async {
            // NOTE: The futures of the SDK are large.
            let mut started = Box::pin(started);
            if let Ok(started) = tokio::time::timeout(SLOW_START, &mut started).await {
                return started;
            }
            tracing::warn!(server, ?timeout, "an MCP server has not answered yet: it is waited for");
            started.await
        };
        let late = |_| McpError::Timeout { server: self.server.to_owned(), method, timeout };
        tokio::time::timeout(timeout, started).await.map_err(late)
    }
}

/// Subscribes to changes of the tools: a server of the revision without `initialize` notifies subscribers only.
fn watch_tool_changes(peer: &Peer<RoleClient>, is_stale: &Arc<AtomicBool>, is_unwatched: &Arc<AtomicBool>) {
    let Some(info) = peer.peer_info() else { return };
    let says_it = info.capabilities.tools.as_ref().is_some_and(|tools| tools.list_changed == Some(true));
    if info.protocol_version.has_initialize() || !says_it {
        return;
    }
    let (peer, is_stale, is_unwatched) = (peer.clone(), Arc::clone(is_stale), Arc::clone(is_unwatched));
    tokio::spawn(async move {
        let filter = wire::SubscriptionFilter::builder().tools_list_changed().build();
        if let Ok(mut changes) = peer.listen(filter).await {
            // NOTE: The tools may have changed between the first list and the subscription.
            is_stale.store(true, Ordering::Release);
            while let Ok(Some(_)) = changes.next().await {
                is_stale.store(true, Ordering::Release);
            }
        }
        // NOTE: Without notifications the list is requested before each step.
        is_unwatched.store(true, Ordering::Release);
    });
}

/// The contexts that receive progress, by its token.
type ProgressRoutes = Arc<Mutex<HashMap<wire::ProgressToken, ToolContext>>>;

/// A pending request. Dropped before its response, it cancels the request.
struct RequestGuard {
    peer: Peer<RoleClient>,
    id: Option<wire::RequestId>,
    token: wire::ProgressToken,
    routes: ProgressRoutes,
}

impl RequestGuard {
    async fn end(&mut self) {
        self.id = None;
        self.routes.lock().await.remove(&self.token);
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let (Some(id), Ok(runtime)) = (self.id.take(), tokio::runtime::Handle::try_current()) else { return };
        let (peer, token, routes) = (self.peer.clone(), self.token.clone(), Arc::clone(&self.routes));
        // NOTE: `drop` cannot wait, and the cancellation is a message to the server.
        runtime.spawn(async move {
            routes.lock().await.remove(&token);
            let reason = Some("the caller no longer waits".to_owned());
            let _ = peer.notify_cancelled(wire::CancelledNotificationParam::new(Some(id), reason)).await;
        });
    }
}

/// The client side of the protocol: receives progress and answers questions, and offers nothing else.
#[derive(Clone)]
struct McpClient {
    server: Arc<str>,
    routes: ProgressRoutes,
    is_stale: Arc<AtomicBool>,
    answerer: Option<QuestionHandler>,
}

impl McpClient {
    async fn answer(&self, question: wire::ElicitRequestParams) -> wire::ElicitResult {
        match &self.answerer {
            Some(answerer) => answerer.answer(&self.server, question).await,
            None => decline(),
        }
    }
}

impl ClientHandler for McpClient {
    async fn create_elicitation(
        &self,
        request: wire::ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<wire::ElicitResult, wire::ErrorData> {
        Ok(self.answer(request).await)
    }

    #[expect(
        deprecated,
        reason = "older servers ask for folders, and are told that there are none to be had"
    )]
    async fn list_roots(
        &self,
        _: RequestContext<RoleClient>,
    ) -> Result<wire::ListRootsResult, wire::ErrorData> {
        Err(wire::ErrorData::method_not_found::<wire::ListRootsRequestMethod>())
    }

    async fn on_progress(&self, params: wire::ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        let routes = self.routes.lock().await;
        let Some(context) = routes.get(&params.progress_token) else { return };
        let mut report = json!({"progress": params.progress});
        if let Some(total) = params.total {
            report["total"] = json!(total);
        }
        if let Some(message) = params.message {
            report["message"] = json!(message);
        }
        context.report(report);
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.is_stale.store(true, Ordering::Release);
    }

    fn get_info(&self) -> wire::ClientConfig {
        // NOTE: Offered even without a handler: unanswered questions become questions of the run.
        let capabilities = json!({"elicitation": {"form": {}, "url": {}}});
        let capabilities = serde_json::from_value(capabilities).unwrap_or_default();
        let name = wire::Implementation::new("stepfold", env!("CARGO_PKG_VERSION"));
        // NOTE: This revision is for `initialize`; the newer one is probed by the lifecycle mode.
        wire::ClientConfig::new(capabilities, name)
            .with_protocol_version(wire::ProtocolVersion::LATEST_WITH_INITIALIZE)
    }
}
