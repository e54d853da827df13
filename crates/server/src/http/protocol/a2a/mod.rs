//! Agent2Agent 1.0, as JSON-RPC at `/a2a/{app}`, with the card of each app below it.
//!
//! A context is a session, and a task is one of its runs. What is asked of persons is required input of a task.

mod card;
mod task;
mod updates;

use std::sync::Arc;

use axum::Json;
use axum::response::{IntoResponse as _, Response};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use stepfold_agent_loop::{Ids as _, Input, RandomIds};
use stepfold_runner::{RunnerError, RunnerErrorKind, SessionHandle};
use stepfold_session_scopes::{EventRange, ListSessions, Session, SessionCursor, SessionStore as _};
use stepfold_state_core::check_exact;

pub(in crate::http) use self::card::mount_cards;
pub(super) use self::task::A2aTaskId;
pub(super) use self::updates::A2aEncoder;
use super::run_updates::RunReader;
use crate::http::app::App;
use crate::http::guard::auth::Role;
use crate::http::guard::problem::{Problem, in_routes};
use crate::http::guard::strict;
use crate::http::loading::page_plan::{reserve_commits, weight_of_value};
use crate::http::operation::request::{ApiRequest, AppTarget, RequestBody};
use crate::http::protocol::a2a::task::{TaskState, tasks};
use crate::http::protocol::{
    AnyQuery, ClientRequest, ProtocolFrame, accept, event_stream, run_permit, stream,
};
use crate::http::rows::session_status::LastRun;

pub(super) const CALL: &str = "Calls a method of Agent2Agent 1.0, in JSON-RPC.";

/// The revision of the protocol.
const VERSION: &str = "1.0";

/// The number of sessions whose tasks are in a page of a list.
const PAGE: usize = 20;

/// The number of bytes that the parameters of a method have at most that only reads: names and numbers.
const READ_PARAMS: usize = 64 << 10;

/// An error of the protocol.
struct RpcError {
    code: i32,
    reason: &'static str,
    message: String,
}

impl RpcError {
    fn new(code: i32, reason: &'static str, message: impl Into<String>) -> Self {
        RpcError { code, reason, message: message.into() }
    }

    fn invalid(message: impl Into<String>) -> Self {
        RpcError::new(-32602, "INVALID_PARAMS", message)
    }

    fn unknown_task(id: &str) -> Self {
        RpcError::new(-32001, "TASK_NOT_FOUND", format!("unknown task `{id}`"))
    }

    fn to_json(&self) -> Value {
        let info = json!({
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": self.reason,
            "domain": "a2a-protocol.org",
        });
        json!({"code": self.code, "message": self.message, "data": [info]})
    }
}

/// Why a method is not answered with a result.
enum MethodError {
    Rpc(RpcError),
    Problem(Problem),
}

impl From<RpcError> for MethodError {
    fn from(fault: RpcError) -> Self {
        MethodError::Rpc(fault)
    }
}

impl From<Problem> for MethodError {
    fn from(problem: Problem) -> Self {
        MethodError::Problem(problem)
    }
}

impl From<RunnerError> for MethodError {
    fn from(error: RunnerError) -> Self {
        let words = in_routes(&error.to_string());
        MethodError::Rpc(match error {
            RunnerError {
                kind:
                    RunnerErrorKind::Decision { .. }
                    | RunnerErrorKind::Input { .. }
                    | RunnerErrorKind::InvalidId { .. },
                ..
            } => RpcError::invalid(words),
            RunnerError { kind: RunnerErrorKind::Pending { .. }, .. } => {
                RpcError::new(-32004, "UNSUPPORTED_OPERATION", words)
            }
            error => match Problem::from(error).kind() {
                "key_reused" => RpcError::invalid(
                    "the `messageId` was used for another message of this context: send a new message under a new id",
                ),
                "too_large" | "invalid" | "erased" => RpcError::invalid(words),
                _ => RpcError::new(-32603, "INTERNAL", words),
            },
        })
    }
}

/// A call of a method, in JSON-RPC. What it says is text until the role of its principal is known to suffice.
#[derive(Deserialize, JsonSchema)]
struct RpcCall {
    #[serde(default)]
    #[schemars(with = "Value")]
    id: Option<Box<RawValue>>,
    method: String,
    #[serde(default)]
    #[schemars(with = "Value")]
    params: Option<Box<RawValue>>,
}

impl RpcCall {
    /// The id: a number or a text, which the answer has as well.
    fn id(&self) -> Option<Value> {
        let Some(id) = &self.id else { return Some(Value::Null) };
        (!id.get().starts_with(['[', '{'])).then(|| serde_json::from_str(id.get()).ok())?
    }

    /// The role that the method needs.
    fn needs(&self) -> Role {
        match &*self.method {
            "SendMessage" | "SendStreamingMessage" | "CancelTask" => Role::Act,
            _ => Role::Read,
        }
    }

    fn params(&self) -> Result<Value, RpcError> {
        let text = self.params.as_ref().map_or("null", |params| params.get());
        // NOTE: A method that only reads has short parameters; those with a message have the limit of all bodies.
        if self.needs() == Role::Read && text.len() > READ_PARAMS {
            return Err(RpcError::invalid(format!(
                "`params` of a question have at most {READ_PARAMS} bytes"
            )));
        }
        check_exact(text.as_bytes()).map_err(|error| RpcError::invalid(error.to_string()))?;
        serde_json::from_str(text).map_err(|error| RpcError::invalid(error.to_string()))
    }
}

/// The body of a call. An invalid one is refused in the form of the protocol.
pub(super) struct RpcBody(Option<RpcCall>);

impl RequestBody for RpcBody {
    fn schema(generator: &mut SchemaGenerator) -> Option<Schema> {
        Some(generator.subschema_for::<RpcCall>())
    }

    fn read(bytes: &[u8]) -> Result<Self, Problem> {
        Ok(RpcBody(strict::from_slice(bytes).ok()))
    }
}

type A2aRequest = ApiRequest<AppTarget, AnyQuery, RpcBody>;

pub(super) async fn call(mut call: A2aRequest) -> Result<Response, Problem> {
    let app = Arc::clone(&call.target.0);
    let request = call.body.0.take();
    let Some((request, id)) = request.and_then(|request| request.id().map(|id| (request, id))) else {
        let fault = RpcError::new(-32600, "INVALID_REQUEST", "expected a JSON-RPC request");
        return Ok(error_response(&Value::Null, &fault));
    };
    let version =
        call.headers.get("a2a-version").and_then(|version| version.to_str().ok()).unwrap_or_default();
    if version != VERSION && !version.starts_with("1.0.") {
        let words = format!("unsupported version `{version}`: expected the header `A2A-Version: {VERSION}`");
        return Ok(error_response(&id, &RpcError::new(-32009, "VERSION_NOT_SUPPORTED", words)));
    }
    match dispatch(&call, &app, &request, &id).await {
        Ok(response) => Ok(response),
        Err(MethodError::Rpc(fault)) => Ok(error_response(&id, &fault)),
        Err(MethodError::Problem(problem)) => Err(problem),
    }
}

async fn dispatch(
    call: &A2aRequest,
    app: &App,
    asked: &RpcCall,
    id: &Value,
) -> Result<Response, MethodError> {
    if !call.principal.may(asked.needs()) {
        return Err(Problem::forbidden(asked.needs()).into());
    }
    let params = &asked.params()?;
    let result = match &*asked.method {
        "SendMessage" => send(call, app, params).await?,
        "SendStreamingMessage" => return send_streaming(call, app, id.clone(), params).await,
        "SubscribeToTask" => return subscribe(call, app, id.clone(), params).await,
        "GetTask" => {
            let (_, session) = find_task(call, app, params).await?;
            task_json(call, &session, id_of(params), history(params)).await?
        }
        "ListTasks" => list(call, app, params).await?,
        "CancelTask" => cancel(call, app, params).await?,
        method if method.contains("PushNotificationConfig") => {
            return Err(no_push().into());
        }
        "GetExtendedAgentCard" => {
            return Err(RpcError::new(
                -32007,
                "EXTENDED_AGENT_CARD_NOT_CONFIGURED",
                "there is no extended card",
            )
            .into());
        }
        method => {
            return Err(
                RpcError::new(-32601, "METHOD_NOT_FOUND", format!("unknown method `{method}`")).into()
            );
        }
    };
    Ok(Json(updates::response(id, &result)).into_response())
}

fn error_response(id: &Value, fault: &RpcError) -> Response {
    Json(json!({"jsonrpc": "2.0", "id": id, "error": fault.to_json()})).into_response()
}

fn no_push() -> RpcError {
    let words = "push notifications are not supported: subscribe to the task, or get it";
    RpcError::new(-32003, "PUSH_NOTIFICATION_NOT_SUPPORTED", words)
}

fn id_of(params: &Value) -> &str {
    params["id"].as_str().unwrap_or_default()
}

/// The number of messages that a client requests; all by default.
fn history(params: &Value) -> usize {
    params["historyLength"].as_u64().map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX))
}

/// The session of a task, if it is the principal's.
async fn find_task(
    call: &A2aRequest,
    app: &App,
    params: &Value,
) -> Result<(A2aTaskId, SessionHandle), MethodError> {
    let text = id_of(params);
    let id = A2aTaskId::parse(text).ok_or_else(|| RpcError::unknown_task(text))?;
    let session = session(call, app, &id.session).await?.ok_or_else(|| RpcError::unknown_task(text))?;
    Ok((id, session))
}

async fn session(call: &A2aRequest, app: &App, id: &str) -> Result<Option<SessionHandle>, MethodError> {
    match app.runner().find_session(call.principal.user().as_str(), id).await {
        Ok(found) => Ok(found),
        // No session has such a name.
        Err(RunnerError { kind: RunnerErrorKind::InvalidId { .. }, .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A session with all its commits.
async fn whole_session(call: &A2aRequest, session: &SessionHandle) -> Result<Session, MethodError> {
    let runner = call.target.0.runner();
    reserve_commits(&call.memory, runner, session.key(), (0, usize::MAX)).await?;
    Ok(session.read_events(EventRange::All).await?)
}

/// A task as it is stored. One that was accepted and has not begun is submitted.
async fn task_json(
    call: &A2aRequest,
    session: &SessionHandle,
    id: &str,
    history: usize,
) -> Result<Value, MethodError> {
    let (stored, run) = (whole_session(call, session).await?, LastRun::of(session).await?);
    if let Some(task) = tasks(&stored).iter().find(|task| task.id.to_string() == id) {
        return Ok(task.to_json(&run, history));
    }
    let waits = session.inbox().await?;
    let waiting = waits
        .iter()
        .find(|message| A2aTaskId::parse(id).is_some_and(|id| id.invocation == message.id.as_str()));
    let message = waiting.ok_or_else(|| RpcError::unknown_task(id))?;
    Ok(submitted(id, session, &message.at.to_string()))
}

fn submitted(id: &str, session: &SessionHandle, at: &str) -> Value {
    let status = json!({"state": TaskState::Submitted.name(), "timestamp": at});
    json!({"id": id, "contextId": session.key().id.as_str(), "status": status, "artifacts": [], "history": []})
}

/// The request of a message: a new task, or the continuation of one.
struct TaskRequest {
    session: SessionHandle,
    order: ClientRequest,
    /// The task that continues.
    task: Option<A2aTaskId>,
}

async fn read(call: &A2aRequest, app: &App, params: &Value) -> Result<TaskRequest, MethodError> {
    if !params["configuration"]["taskPushNotificationConfig"].is_null() {
        return Err(no_push().into());
    }
    let message = &params["message"];
    let parts = message["parts"].as_array().cloned().unwrap_or_default();
    if let Some(task) = message["taskId"].as_str().filter(|task| !task.is_empty()) {
        return decide(call, app, task, &parts).await;
    }
    let text = task::text(&parts);
    if text.trim().is_empty() {
        return Err(
            RpcError::new(-32005, "CONTENT_TYPE_NOT_SUPPORTED", "expected a message with text").into()
        );
    }
    let context = message["contextId"].as_str().filter(|context| !context.is_empty());
    let context = context.map_or_else(|| RandomIds.next(), str::to_owned);
    let session = app.runner().session(call.principal.user().as_str(), context.as_str()).await?;
    // A client that sends its message again is told of the same task.
    let key = message["messageId"].as_str().filter(|id| !id.is_empty()).map(str::to_owned);
    Ok(TaskRequest { session, order: ClientRequest::Send(Box::new(Input::new().say(text)), key), task: None })
}

/// A message to a task that waits: its decisions.
async fn decide(
    call: &A2aRequest,
    app: &App,
    task: &str,
    parts: &[Value],
) -> Result<TaskRequest, MethodError> {
    let (id, session) = find_task(call, app, &json!({"id": task})).await?;
    let (stored, run) = (whole_session(call, &session).await?, LastRun::of(&session).await?);
    let tasks = tasks(&stored);
    let found = tasks.iter().find(|found| found.id == id).ok_or_else(|| RpcError::unknown_task(task))?;
    if found.status(&run).0 != TaskState::InputRequired {
        let words = "the task does not wait for input: send the message without its id, for a new one";
        return Err(RpcError::new(-32004, "UNSUPPORTED_OPERATION", words).into());
    }
    let decisions = task::decisions(parts, run.pending()).map_err(RpcError::invalid)?;
    Ok(TaskRequest { session, order: ClientRequest::Decide(decisions, None), task: Some(id) })
}

/// Accepts a message: its task, its session, and what happens from then on.
async fn begin(
    call: &A2aRequest,
    app: &App,
    params: &Value,
) -> Result<(A2aTaskId, SessionHandle, RunReader), MethodError> {
    let permit = run_permit(&call.shared, &call.principal)?;
    let TaskRequest { session, order, task } = read(call, app, params).await?;
    let reader: RunReader =
        accept::<MethodError>(permit, &call.principal, app.runner(), session.clone(), order).await?;
    let task = task.unwrap_or_else(|| A2aTaskId {
        invocation: reader.id().to_owned(),
        session: session.key().id.to_string(),
    });
    Ok((task, session, reader))
}

async fn send(call: &A2aRequest, app: &App, params: &Value) -> Result<Value, MethodError> {
    let (id, session, reader) = begin(call, app, params).await?;
    let configuration = &params["configuration"];
    if let (Some(invocation), false) = (reader.invocation(), configuration["returnImmediately"] == true) {
        // How it failed is in the task.
        let _ = invocation.outcome().await;
    }
    let id = id.to_string();
    let task = match task_json(call, &session, &id, history(configuration)).await {
        Ok(task) => task,
        // Nothing is stored of it yet.
        Err(MethodError::Rpc(_)) => submitted(&id, &session, ""),
        Err(refused) => return Err(refused),
    };
    Ok(json!({"task": task}))
}

async fn send_streaming(
    call: &A2aRequest,
    app: &App,
    id: Value,
    params: &Value,
) -> Result<Response, MethodError> {
    let stream_permit = call.shared.stream_permit(&call.principal)?;
    let (task, session, reader) = begin(call, app, params).await?;
    // What the task had before: after a decision, or when the message was sent again.
    let mut stored = whole_session(call, &session).await?;
    stored.events.retain(|commit| commit.version <= reader.version());
    let mut updates = A2aEncoder::new(id, task.clone());
    if let Some(found) = tasks(&stored).iter().find(|found| found.id == task) {
        updates = updates.after(found.artifacts());
    }
    Ok(stream(stream_permit, reader, updates))
}

async fn subscribe(call: &A2aRequest, app: &App, id: Value, params: &Value) -> Result<Response, MethodError> {
    let stream_permit = call.shared.stream_permit(&call.principal)?;
    let (task, session) = find_task(call, app, params).await?;
    let reader = RunReader::attach(app.runner(), &session).await?;
    let stored: Session = whole_session(call, &session).await?;
    let run = LastRun::of(&session).await?;
    let tasks = tasks(&stored);
    let found =
        tasks.iter().find(|found| found.id == task).ok_or_else(|| RpcError::unknown_task(id_of(params)))?;
    let (state, _) = found.status(&run);
    if state.is_terminal() {
        let words = "the task has ended: get it instead";
        return Err(RpcError::new(-32004, "UNSUPPORTED_OPERATION", words).into());
    }
    let is_of_task = |reader: &RunReader| state == TaskState::Working && reader.run() == task.invocation;
    let Some(reader) = reader.filter(is_of_task) else {
        // It waits, or was interrupted: the client gets it again later.
        let told = updates::response(&id, &json!({"task": found.to_json(&run, history(params))}));
        let told = futures_util::stream::once(async move { ProtocolFrame::Json(told).text() });
        return Ok(event_stream(stream_permit, told));
    };
    let mut before = stored.clone();
    before.events.retain(|commit| commit.version <= reader.version());
    let of_task = |found: &&task::A2aTask<'_>| found.id == task;
    let replies = task::tasks(&before).iter().find(of_task).map(task::A2aTask::artifacts);
    let updates = A2aEncoder::new(id, task.clone()).after(replies.unwrap_or_default());
    Ok(stream(stream_permit, reader, updates))
}

async fn list(call: &A2aRequest, app: &App, params: &Value) -> Result<Value, MethodError> {
    // Clients that want all of them name a state that none has.
    let wanted =
        params["status"].as_str().filter(|wanted| TaskState::ALL.iter().any(|state| state.name() == *wanted));
    let context = params["contextId"].as_str().filter(|context| !context.is_empty());
    let (sessions, next) = match context {
        Some(context) => (session(call, app, context).await?.into_iter().collect(), String::new()),
        None => page(call, app, params).await?,
    };
    let mut found = Vec::new();
    for session in sessions {
        let (before, known) = (call.memory.size(), found.len());
        let Some((stored, run)) = found_session(call, &session).await? else { continue };
        for task in tasks(&stored).iter().rev() {
            if wanted.is_none_or(|wanted| task.status(&run).0.name() == wanted) {
                found.push(task.to_json(&run, history(params)));
            }
        }
        // What stays of the session is its tasks.
        let tasks: usize = found.iter().skip(known).map(weight_of_value).sum();
        call.memory.resize(before.saturating_add(tasks))?;
    }
    Ok(json!({"totalSize": found.len(), "pageSize": found.len(), "tasks": found, "nextPageToken": next}))
}

/// A session with all its commits, and its last run; `None` if it was deleted since it was found.
async fn found_session(
    call: &A2aRequest,
    handle: &SessionHandle,
) -> Result<Option<(Session, LastRun)>, MethodError> {
    let read = async { Ok((whole_session(call, handle).await?, LastRun::of(handle).await?)) };
    match read.await {
        Err(_) if session(call, &call.target.0, handle.key().id.as_str()).await?.is_none() => Ok(None),
        read => read.map(Some),
    }
}

/// A page of sessions: the tasks of a session are in one page.
async fn page(
    call: &A2aRequest,
    app: &App,
    params: &Value,
) -> Result<(Vec<SessionHandle>, String), MethodError> {
    let user = call.principal.user().as_str();
    let token = params["pageToken"].as_str().filter(|token| !token.is_empty());
    let request = ListSessions::new(app.name(), user).map_err(Problem::from)?.limit(PAGE);
    let request = request.after(token.map(SessionCursor::new));
    let page = app.runner().store().list(request).await.map_err(Problem::from)?;
    let mut sessions = Vec::new();
    for listed in page.sessions {
        sessions.extend(session(call, app, listed.key.id.as_str()).await?);
    }
    Ok((sessions, page.next.map_or_else(String::new, |next| next.as_str().to_owned())))
}

async fn cancel(call: &A2aRequest, app: &App, params: &Value) -> Result<Value, MethodError> {
    let (id, session) = find_task(call, app, params).await?;
    let (stored, run) = (whole_session(call, &session).await?, LastRun::of(&session).await?);
    let state = tasks(&stored).iter().find(|task| task.id == id).map(|task| task.status(&run).0);
    match state {
        None => withdraw(&session, &id).await,
        Some(state) if state.is_terminal() => Err(has_ended()),
        Some(_) => {
            if !session.cancel_everywhere().await? {
                return Err(has_ended());
            }
            task_json(call, &session, id_of(params), history(params)).await
        }
    }
}

fn has_ended() -> MethodError {
    RpcError::new(-32002, "TASK_NOT_CANCELABLE", "the task has ended").into()
}

/// Takes back a message that was not taken yet.
async fn withdraw(session: &SessionHandle, id: &A2aTaskId) -> Result<Value, MethodError> {
    let text = id.to_string();
    let waits = session.inbox().await?;
    let message = waits.iter().find(|message| message.id.as_str() == id.invocation);
    let message = message.ok_or_else(|| RpcError::unknown_task(&text))?;
    if !session.withdraw(&message.id).await? {
        let words = "a run has taken the message meanwhile; cancel the task again";
        return Err(RpcError::new(-32002, "TASK_NOT_CANCELABLE", words).into());
    }
    let mut task = submitted(&text, session, &message.at.to_string());
    task["status"]["state"] = json!(TaskState::Canceled.name());
    Ok(task)
}
