//! Agent2Agent 1.0, as JSON-RPC at `/a2a/{app}`, with the card of each app below it.
//!
//! A context is a session, and a task is one of its runs. What is asked of persons is required input of a task.

mod task;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::routing::{MethodFilter, on};
use futures_util::{Stream, StreamExt as _};
use http::{HeaderMap, Method, Response, StatusCode, header};
use serde::Deserialize;
use serde_json::{Value, json};
use stepfold_agent_loop::{Ids as _, Input, RandomIds};
use stepfold_runner::{Invocation, RunnerError, SessionHandle};
use stepfold_session_scopes::{Cursor, EventRange, ListSessions, Session, SessionStore as _};

use self::task::{State, Task, TaskId, tasks};
use super::auth::Role;
use super::followed::{End, Followed, Happened};
use super::operation::{json_response, names};
use super::problem::Problem;
use super::protocols::{Call, Route};
use super::server::{App, Shared, admit, finish};

/// The revision of the protocol.
const VERSION: &str = "1.0";

/// The number of sessions whose tasks are in a page of a list.
const PAGE: usize = 20;

/// The routes.
pub(super) fn routes() -> Vec<Route> {
    vec![Route {
        protocol: "a2a",
        method: Method::POST,
        path: "/a2a/{app}",
        needs: Role::Read,
        handle: |call| Box::pin(answer(call)),
    }]
}

/// Adds the cards: `/a2a/{app}/.well-known/agent-card.json`, and at the root, if there is one app.
pub(super) fn mount_cards(mut router: Router, shared: &Arc<Shared>) -> Router {
    for path in ["/.well-known/agent-card.json", "/a2a/{app}/.well-known/agent-card.json"] {
        let shared = Arc::clone(shared);
        let handler = move |request: Request| {
            let shared = Arc::clone(&shared);
            async move {
                let foreign = shared.rules.allowed_origin(request.headers());
                let card = card(&shared, request).await.unwrap_or_else(Problem::into_response);
                finish(card, foreign)
            }
        };
        router = router.route(path, on(MethodFilter::GET, handler));
    }
    router
}

/// The card of an app: for readers, or for anyone, as the server is set.
async fn card(shared: &Shared, request: Request) -> Result<Response<Body>, Problem> {
    let (mut parts, _) = request.into_parts();
    if shared.has_public_cards {
        shared.rules.admit_host(&parts.headers).map_err(Problem::denied)?;
    } else {
        admit(shared, &parts, Role::Read).await?;
    }
    let names = names(&mut parts).await?;
    let mut apps = shared.apps.values();
    let app = match (names.get("app"), apps.next(), apps.next()) {
        (Some(name), ..) => shared.apps.get(name).ok_or_else(|| Problem::unknown_app(name))?,
        (None, Some(only), None) => only,
        (None, ..) => return Err(Problem::unknown_path()),
    };
    let scheme = if shared.has_secure_cookies { "https" } else { "http" };
    Ok(json_response(StatusCode::OK, &card_of(app, scheme, &parts.headers)))
}

fn card_of(app: &App, scheme: &str, headers: &HeaderMap) -> Value {
    let name = app.name();
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let description = app.description().map_or_else(|| format!("The agent {name}."), str::to_owned);
    json!({
        "name": name,
        "description": description,
        "version": env!("CARGO_PKG_VERSION"),
        "supportedInterfaces": [{
            "url": format!("{scheme}://{host}/a2a/{}", super::operation::segment(name)),
            "protocolBinding": "JSONRPC",
            "protocolVersion": VERSION,
        }],
        "capabilities": {"streaming": true, "pushNotifications": false, "extendedAgentCard": false},
        "securitySchemes": {"bearer": {"httpAuthSecurityScheme": {"scheme": "Bearer"}}},
        "securityRequirements": [{"schemes": {"bearer": {"list": []}}}],
        "defaultInputModes": ["text/plain", "application/json"],
        "defaultOutputModes": ["text/plain", "application/json"],
        "skills": [{"id": name, "name": name, "description": description, "tags": ["agent"]}],
    })
}

/// An error of the protocol.
struct Fault {
    code: i32,
    reason: &'static str,
    message: String,
}

impl Fault {
    fn new(code: i32, reason: &'static str, message: impl Into<String>) -> Self {
        Fault { code, reason, message: message.into() }
    }

    fn invalid(message: impl Into<String>) -> Self {
        Fault::new(-32602, "INVALID_PARAMS", message)
    }

    fn unknown_task(id: &str) -> Self {
        Fault::new(-32001, "TASK_NOT_FOUND", format!("unknown task `{id}`"))
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
enum Refused {
    Fault(Fault),
    Problem(Problem),
}

impl From<Fault> for Refused {
    fn from(fault: Fault) -> Self {
        Refused::Fault(fault)
    }
}

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Self {
        Refused::Problem(problem)
    }
}

impl From<RunnerError> for Refused {
    fn from(error: RunnerError) -> Self {
        let words = error.to_string();
        Refused::Fault(match error {
            RunnerError::Decision { .. } | RunnerError::Input { .. } | RunnerError::InvalidId { .. } => {
                Fault::invalid(words)
            }
            RunnerError::Pending { .. } => Fault::new(-32004, "UNSUPPORTED_OPERATION", words),
            _ => Fault::new(-32603, "INTERNAL", words),
        })
    }
}

/// A request of a client.
#[derive(Deserialize)]
struct Asked {
    #[serde(default)]
    id: Value,
    method: String,
    #[serde(default)]
    params: Value,
}

async fn answer(call: Call) -> Result<Response<Body>, Problem> {
    let app = call.app()?;
    let asked: Asked = match call.json() {
        Ok(asked) => asked,
        Err(_) => {
            return Ok(failed(
                &Value::Null,
                &Fault::new(-32600, "INVALID_REQUEST", "expected a JSON-RPC request"),
            ));
        }
    };
    let version =
        call.headers.get("a2a-version").and_then(|version| version.to_str().ok()).unwrap_or_default();
    if version != VERSION && !version.starts_with("1.0.") {
        let words = format!("unsupported version `{version}`: expected the header `A2A-Version: {VERSION}`");
        return Ok(failed(&asked.id, &Fault::new(-32009, "VERSION_NOT_SUPPORTED", words)));
    }
    let id = asked.id.clone();
    match method(&call, &app, asked).await {
        Ok(response) => Ok(response),
        Err(Refused::Fault(fault)) => Ok(failed(&id, &fault)),
        Err(Refused::Problem(problem)) => Err(problem),
    }
}

async fn method(call: &Call, app: &Arc<App>, asked: Asked) -> Result<Response<Body>, Refused> {
    let params = &asked.params;
    let result = match &*asked.method {
        "SendMessage" => send(call, app, params).await?,
        "SendStreamingMessage" => return send_streaming(call, app, asked.id, params).await,
        "SubscribeToTask" => return subscribe(call, app, asked.id, params).await,
        "GetTask" => {
            let (_, session) = find(call, app, params).await?;
            shown(&session, id_of(params), history(params)).await?
        }
        "ListTasks" => list(call, app, params).await?,
        "CancelTask" => cancel(call, app, params).await?,
        method if method.contains("PushNotificationConfig") => {
            return Err(no_push().into());
        }
        "GetExtendedAgentCard" => {
            return Err(Fault::new(
                -32007,
                "EXTENDED_AGENT_CARD_NOT_CONFIGURED",
                "there is no extended card",
            )
            .into());
        }
        method => {
            return Err(Fault::new(-32601, "METHOD_NOT_FOUND", format!("unknown method `{method}`")).into());
        }
    };
    Ok(json_response(StatusCode::OK, &json!({"jsonrpc": "2.0", "id": asked.id, "result": result})))
}

fn failed(id: &Value, fault: &Fault) -> Response<Body> {
    json_response(StatusCode::OK, &json!({"jsonrpc": "2.0", "id": id, "error": fault.to_json()}))
}

fn no_push() -> Fault {
    let words = "push notifications are not supported: subscribe to the task, or get it";
    Fault::new(-32003, "PUSH_NOTIFICATION_NOT_SUPPORTED", words)
}

fn id_of(params: &Value) -> &str {
    params["id"].as_str().unwrap_or_default()
}

/// How many messages a client wants; all by default.
fn history(params: &Value) -> usize {
    params["historyLength"].as_u64().map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX))
}

/// The session of a task, if it is the principal's.
async fn find(call: &Call, app: &App, params: &Value) -> Result<(TaskId, SessionHandle), Refused> {
    let text = id_of(params);
    let id = TaskId::parse(text).ok_or_else(|| Fault::unknown_task(text))?;
    let session = session(call, app, &id.session).await?.ok_or_else(|| Fault::unknown_task(text))?;
    Ok((id, session))
}

async fn session(call: &Call, app: &App, id: &str) -> Result<Option<SessionHandle>, Refused> {
    match app.runner().find_session(call.principal.user().as_str(), id).await {
        Ok(found) => Ok(found),
        // No session has such a name.
        Err(RunnerError::InvalidId { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A task as it is stored. One that was accepted and has not begun is submitted.
async fn shown(session: &SessionHandle, id: &str, history: usize) -> Result<Value, Refused> {
    let (stored, pending) = (session.read(EventRange::All).await?, session.pending().await?);
    if let Some(task) = tasks(&stored).iter().find(|task| task.id.to_string() == id) {
        return Ok(task.to_json(&pending, history));
    }
    let waits = session.inbox().await?;
    let waiting =
        waits.iter().find(|message| TaskId::parse(id).is_some_and(|id| id.invocation == message.id.as_str()));
    let message = waiting.ok_or_else(|| Fault::unknown_task(id))?;
    Ok(submitted(id, session, &message.at.to_string()))
}

fn submitted(id: &str, session: &SessionHandle, at: &str) -> Value {
    let status = json!({"state": State::Submitted.name(), "timestamp": at});
    json!({"id": id, "contextId": session.key().id.as_str(), "status": status, "artifacts": [], "history": []})
}

/// A message that was accepted, or decisions.
struct Sent {
    id: TaskId,
    session: SessionHandle,
    invocation: Invocation,
    /// The version of the session before.
    after: u64,
}

async fn accept(call: &Call, app: &App, params: &Value) -> Result<Sent, Refused> {
    if !call.principal.may(Role::Act) {
        return Err(Problem::forbidden(Role::Act).into());
    }
    if !params["configuration"]["taskPushNotificationConfig"].is_null() {
        return Err(no_push().into());
    }
    let message = &params["message"];
    let parts = message["parts"].as_array().cloned().unwrap_or_default();
    if let Some(task) = message["taskId"].as_str().filter(|task| !task.is_empty()) {
        return decide(call, app, task, &parts).await;
    }
    let text = task::text(&parts);
    if text.is_empty() {
        return Err(Fault::new(-32005, "CONTENT_TYPE_NOT_SUPPORTED", "expected a message with text").into());
    }
    let context = message["contextId"].as_str().filter(|context| !context.is_empty());
    let context = context.map_or_else(|| RandomIds.next(), str::to_owned);
    let session = app.runner().session(call.principal.user().as_str(), context.as_str()).await?;
    let after = session.read(EventRange::None).await?.version;
    // A client that sends its message again is told of the same task.
    let invocation = match message["messageId"].as_str().filter(|id| !id.is_empty()) {
        Some(id) => session.send_once(id, Input::new().say(text)).await?,
        None => session.send(Input::new().say(text)).await?,
    };
    let id = TaskId { invocation: invocation.id().to_string(), session: context };
    Ok(Sent { id, session, invocation, after })
}

/// A message to a task that waits: its decisions.
async fn decide(call: &Call, app: &App, task: &str, parts: &[Value]) -> Result<Sent, Refused> {
    let (id, session) = find(call, app, &json!({"id": task})).await?;
    let (stored, pending) = (session.read(EventRange::All).await?, session.pending().await?);
    let tasks = tasks(&stored);
    let found = tasks.iter().find(|found| found.id == id).ok_or_else(|| Fault::unknown_task(task))?;
    if found.status(&pending).0 != State::InputRequired {
        let words = "the task does not wait for input: send the message without its id, for a new one";
        return Err(Fault::new(-32004, "UNSUPPORTED_OPERATION", words).into());
    }
    let decisions = task::decisions(parts, &pending).map_err(Fault::invalid)?;
    let resumed = session.resume().decide_all(decisions).by(call.principal.name()).submit().await?;
    Ok(Sent { id, invocation: resumed.1, after: stored.version, session })
}

async fn send(call: &Call, app: &App, params: &Value) -> Result<Value, Refused> {
    let place = call.shared.usage.run(call.principal.user(), &call.shared.limits)?;
    let sent = accept(call, app, params).await?;
    let configuration = &params["configuration"];
    let id = sent.id.to_string();
    let invocation = sent.invocation.clone();
    let ended = async move {
        let ended = invocation.outcome().await;
        drop(place);
        ended
    };
    if configuration["returnImmediately"] == true {
        tokio::spawn(ended);
    } else {
        // How it failed is in the task.
        let _ = ended.await;
    }
    let task = match shown(&sent.session, &id, history(configuration)).await {
        Ok(task) => task,
        // Nothing is stored of it yet.
        Err(Refused::Fault(_)) => submitted(&id, &sent.session, ""),
        Err(refused) => return Err(refused),
    };
    Ok(json!({"task": task}))
}

async fn send_streaming(
    call: &Call,
    app: &App,
    id: Value,
    params: &Value,
) -> Result<Response<Body>, Refused> {
    let place = call.shared.usage.run(call.principal.user(), &call.shared.limits)?;
    let Sent { id: task, session, invocation, after } = accept(call, app, params).await?;
    let followed = Followed { session: session.clone(), invocation, after, place: Some(place) };
    // Replies before a decision have numbers already.
    let replies = replies(&session, &task, after).await?;
    let working = json!({"state": State::Working.name()});
    let first = json!({"task": {"id": task.to_string(), "contextId": task.session, "status": working}});
    respond(call, id, first, followed, task, replies)
}

async fn replies(session: &SessionHandle, task: &TaskId, version: u64) -> Result<usize, Refused> {
    let mut stored = session.read(EventRange::All).await?;
    stored.events.retain(|commit| commit.version <= version);
    Ok(tasks(&stored).iter().find(|found| found.id == *task).map_or(0, |found| found.artifacts().len()))
}

async fn subscribe(call: &Call, app: &App, id: Value, params: &Value) -> Result<Response<Body>, Refused> {
    let (task, session) = find(call, app, params).await?;
    let running = session.running();
    let stored: Session = session.read(EventRange::All).await?;
    let pending = session.pending().await?;
    let tasks = tasks(&stored);
    let found =
        tasks.iter().find(|found| found.id == task).ok_or_else(|| Fault::unknown_task(id_of(params)))?;
    let first = json!({"task": found.to_json(&pending, history(params))});
    match (found.status(&pending).0, running) {
        (state, _) if state.is_terminal() => {
            Err(Fault::new(-32004, "UNSUPPORTED_OPERATION", "the task has ended: get it instead").into())
        }
        (State::Working, Some(invocation)) => {
            let replies = found.artifacts().len();
            let after = stored.version;
            let followed = Followed { session: session.clone(), invocation, after, place: None };
            respond(call, id, first, followed, task, replies)
        }
        // It waits; or it runs in another process, or was interrupted: the client gets it again later.
        _ => Ok(call.stream(futures_util::stream::iter([event(&id, &first)]))?),
    }
}

fn respond(
    call: &Call,
    id: Value,
    first: Value,
    followed: Followed,
    task: TaskId,
    replies: usize,
) -> Result<Response<Body>, Refused> {
    let session = followed.session.clone();
    let encoder = Encoder { task, replies, has_part: false };
    let first_of = id.clone();
    let rest = told(followed.start(), encoder, session).map(move |result| event(&id, &result));
    let first = futures_util::stream::once(async move { event(&first_of, &first) });
    Ok(call.stream(first.chain(rest))?)
}

fn event(id: &Value, result: &Value) -> String {
    format!("data: {}\n\n", json!({"jsonrpc": "2.0", "id": id, "result": result}))
}

/// The results of a stream: artifacts as they grow, and the status at the end.
fn told(
    happened: impl Stream<Item = Happened> + Send + 'static,
    encoder: Encoder,
    session: SessionHandle,
) -> impl Stream<Item = Value> + Send + 'static {
    let state = (happened.boxed(), encoder, session);
    let results = futures_util::stream::unfold(state, |(mut happened, mut encoder, session)| async move {
        let results = match happened.next().await? {
            Happened::Text(text) => vec![encoder.text(&text)],
            Happened::Commit(commit) => {
                let messages = commit.event.messages.iter();
                messages.filter_map(|message| task::reply(message)).map(|text| encoder.reply(&text)).collect()
            }
            Happened::End(end) => vec![encoder.end(&session, &end).await],
        };
        Some((futures_util::stream::iter(results), (happened, encoder, session)))
    });
    results.flatten()
}

struct Encoder {
    task: TaskId,
    /// The number of replies that are whole.
    replies: usize,
    /// Whether text of the next one was told.
    has_part: bool,
}

impl Encoder {
    fn text(&mut self, text: &str) -> Value {
        let appends = std::mem::replace(&mut self.has_part, true);
        self.artifact(self.replies + 1, text, appends, false)
    }

    /// The whole reply takes the place of its parts.
    fn reply(&mut self, text: &str) -> Value {
        (self.replies, self.has_part) = (self.replies + 1, false);
        self.artifact(self.replies, text, false, true)
    }

    fn artifact(&self, number: usize, text: &str, appends: bool, is_whole: bool) -> Value {
        json!({"artifactUpdate": {
            "taskId": self.task.to_string(),
            "contextId": self.task.session,
            "artifact": task::artifact(number, text),
            "append": appends,
            "lastChunk": is_whole,
        }})
    }

    async fn end(&self, session: &SessionHandle, end: &End) -> Value {
        let status = self.stored(session).await.unwrap_or_else(|| {
            let state = match end {
                End::Over(Err(_)) => State::Failed,
                End::Over(Ok(_)) => State::Completed,
                End::Waits(_) => State::InputRequired,
            };
            json!({"state": state.name()})
        });
        json!({"statusUpdate": {"taskId": self.task.to_string(), "contextId": self.task.session, "status": status}})
    }

    async fn stored(&self, session: &SessionHandle) -> Option<Value> {
        let stored = session.read(EventRange::All).await.ok()?;
        let pending = session.pending().await.ok()?;
        let tasks: Vec<Task<'_>> = tasks(&stored);
        Some(tasks.iter().find(|task| task.id == self.task)?.status(&pending).1)
    }
}

async fn list(call: &Call, app: &App, params: &Value) -> Result<Value, Refused> {
    // Clients that want all of them name a state that none has.
    let wanted =
        params["status"].as_str().filter(|wanted| State::ALL.iter().any(|state| state.name() == *wanted));
    let context = params["contextId"].as_str().filter(|context| !context.is_empty());
    let (sessions, next) = match context {
        Some(context) => (session(call, app, context).await?.into_iter().collect(), String::new()),
        None => page(call, app, params).await?,
    };
    let mut found = Vec::new();
    for session in sessions {
        let (stored, pending) = (session.read(EventRange::All).await?, session.pending().await?);
        for task in tasks(&stored).iter().rev() {
            if wanted.is_none_or(|wanted| task.status(&pending).0.name() == wanted) {
                found.push(task.to_json(&pending, history(params)));
            }
        }
    }
    Ok(json!({"totalSize": found.len(), "pageSize": found.len(), "tasks": found, "nextPageToken": next}))
}

/// A page of sessions: the tasks of a session are in one page.
async fn page(call: &Call, app: &App, params: &Value) -> Result<(Vec<SessionHandle>, String), Refused> {
    let user = call.principal.user().as_str();
    let token = params["pageToken"].as_str().filter(|token| !token.is_empty());
    let request = ListSessions::new(app.name(), user).map_err(Problem::from)?.limit(PAGE);
    let request = request.after(token.map(Cursor::new));
    let page = app.runner().store().list(request).await.map_err(Problem::from)?;
    let mut sessions = Vec::new();
    for listed in page.sessions {
        sessions.extend(session(call, app, listed.key.id.as_str()).await?);
    }
    Ok((sessions, page.next.map_or_else(String::new, |next| next.as_str().to_owned())))
}

async fn cancel(call: &Call, app: &App, params: &Value) -> Result<Value, Refused> {
    if !call.principal.may(Role::Act) {
        return Err(Problem::forbidden(Role::Act).into());
    }
    let (id, session) = find(call, app, params).await?;
    let (stored, pending) = (session.read(EventRange::All).await?, session.pending().await?);
    let state = tasks(&stored).iter().find(|task| task.id == id).map(|task| task.status(&pending).0);
    match state {
        None => withdraw(&session, &id).await,
        Some(state) if state.is_terminal() => {
            Err(Fault::new(-32002, "TASK_NOT_CANCELABLE", "the task has ended").into())
        }
        Some(_) => {
            let running = session.running();
            if !session.cancel_everywhere().await? {
                // It waits, or was interrupted.
                session.abandon().await?;
            }
            if let Some(running) = running {
                let _ = running.outcome().await;
            }
            shown(&session, id_of(params), history(params)).await
        }
    }
}

/// Takes back a message that was not taken yet.
async fn withdraw(session: &SessionHandle, id: &TaskId) -> Result<Value, Refused> {
    let text = id.to_string();
    let waits = session.inbox().await?;
    let message = waits.iter().find(|message| message.id.as_str() == id.invocation);
    let message = message.ok_or_else(|| Fault::unknown_task(&text))?;
    session.withdraw(&message.id).await?;
    let mut task = submitted(&text, session, &message.at.to_string());
    task["status"]["state"] = json!(State::Canceled.name());
    Ok(task)
}
