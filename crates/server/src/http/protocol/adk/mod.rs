//! The routes of the Agent Development Kit that its page and its client use.
//!
//! The user in a path means the principal, whatever it is: the page always sends `user`. The title that a client gives a
//! new session is echoed, and not stored: afterwards a session has the text of its first message as title.

mod events;

use std::sync::Arc;

use axum::Json;
use axum::response::{IntoResponse as _, Response};
use futures_util::StreamExt as _;
use http::Method;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use stepfold_agent_loop::{Decision, Edit, Ids as _, Input, RandomIds};
use stepfold_runner::{Runner, SessionHandle};
use stepfold_session_scopes::{
    CommittedEvent, EventRange, GetSession, ListSessions, Scope, Session, SessionStore as _,
};
use stepfold_state_core::chat::Role as Speaker;
use stepfold_state_core::state::{State, ValueRef, Write};

pub(super) use self::events::AdkEncoder;
use super::run_updates::{RunReader, RunUpdate, StreamEnd};
use crate::http::app::{App, SessionTarget};
use crate::http::guard::auth::{Principal, Role};
use crate::http::guard::limits::MemoryReservation;
use crate::http::guard::problem::Problem;
use crate::http::loading::page_plan::{PagePlan, reserve_state, reserve_whole, weight_of_value};
use crate::http::operation::ApiOperation;

use crate::http::operation::request::{
    ApiRequest, AppTarget, JsonBody, NamedPath, PathTarget, WholeServer, find_session,
};
use crate::http::protocol::adk::events::{CONFIRMATION, METADATA, WrittenValues};
use crate::http::protocol::{
    AnyQuery, ClientRequest, ProtocolFrame, UpdateEncoder as _, accept, run_permit, stream, with_words,
};
use crate::http::routes::check_shared;
use crate::http::rows::session_status::LastRun;
use crate::http::state::ServerState;

/// The version of the kit that clients are told.
const VERSION: &str = "2.13.0";

/// The number of sessions in a list: the newest.
const LISTED: usize = 100;

const SESSIONS: &str = "/apps/{app}/users/{user}/sessions";

const SESSION: &str = "/apps/{app}/users/{user}/sessions/{session}";

/// The operations.
pub(super) fn operations() -> Vec<ApiOperation> {
    let (read_role, act) = (Role::Read, Role::Act);
    let create_words = "Creates a session, in the form of ADK.";
    vec![
        ApiOperation::new(
            Method::GET,
            "/list-apps",
            read_role,
            "adk_apps",
            "Lists the apps, in the form of ADK.",
            list_apps,
        ),
        ApiOperation::new(
            Method::GET,
            "/config/telemetry",
            read_role,
            "adk_telemetry",
            "Says that the page of ADK sends no data to its makers.",
            telemetry,
        ),
        ApiOperation::new(
            Method::GET,
            "/version",
            read_role,
            "adk_version",
            "Says which version of ADK is spoken.",
            version,
        ),
        ApiOperation::new(
            Method::GET,
            SESSIONS,
            read_role,
            "adk_sessions",
            "Lists the newest sessions, in the form of ADK.",
            list,
        ),
        ApiOperation::new(Method::POST, SESSIONS, act, "adk_create", create_words, create),
        ApiOperation::new(
            Method::GET,
            SESSION,
            read_role,
            "adk_session",
            "Reads a session with its events, in the form of ADK.",
            read,
        )
        .whole(),
        ApiOperation::new(Method::POST, SESSION, act, "adk_create_named", create_words, create),
        ApiOperation::new(
            Method::PATCH,
            SESSION,
            act,
            "adk_update",
            "Replaces values of a session, in the form of ADK.",
            update,
        ),
        ApiOperation::new(
            Method::DELETE,
            SESSION,
            Role::Administer,
            "adk_delete",
            "Deletes a session, in the form of ADK.",
            delete,
        ),
        ApiOperation::new(
            Method::POST,
            "/run",
            act,
            "adk_run",
            "Sends a message or confirmations of an ADK client, and answers with all events.",
            run,
        ),
        ApiOperation::new(
            Method::POST,
            "/run_sse",
            act,
            "adk_run_sse",
            "Sends a message or confirmations of an ADK client, and streams the events.",
            run_sse,
        ),
    ]
}

/// The sessions of an app, or one that may be new. The user of the path is echoed.
struct UserTarget {
    app: Arc<App>,
    user: String,
    session: Option<String>,
}

/// A session. The user of the path is echoed.
struct UserSessionTarget {
    within: SessionTarget,
    user: String,
}

impl PathTarget for UserTarget {
    async fn find(path: NamedPath<'_>) -> Result<Self, Problem> {
        let AppTarget(app) = AppTarget::find(path).await?;
        let session = Some(path.get("session")).filter(|id| !id.is_empty());
        Ok(UserTarget { app, user: path.get("user").to_owned(), session: session.map(str::to_owned) })
    }
}

impl PathTarget for UserSessionTarget {
    async fn find(path: NamedPath<'_>) -> Result<Self, Problem> {
        let within = SessionTarget::find(path).await?;
        Ok(UserSessionTarget { within, user: path.get("user").to_owned() })
    }
}

async fn list_apps(request: ApiRequest<WholeServer, AnyQuery>) -> Result<Json<Vec<String>>, Problem> {
    Ok(Json(request.shared.apps.keys().cloned().collect()))
}

async fn version(_: ApiRequest<WholeServer, AnyQuery>) -> Result<Json<Value>, Problem> {
    let language = env!("CARGO_PKG_RUST_VERSION");
    Ok(Json(json!({"version": VERSION, "language": "rust", "language_version": language})))
}

/// The page asks its user to send data to its makers, unless that is off.
async fn telemetry(_: ApiRequest<WholeServer, AnyQuery>) -> Result<Json<Value>, Problem> {
    Ok(Json(json!({"telemetry": false})))
}

async fn list(request: ApiRequest<UserTarget, AnyQuery>) -> Result<Json<Vec<Value>>, Problem> {
    let UserTarget { app, user, .. } = &request.target;
    let sessions = ListSessions::new(app.name(), request.principal.user().as_str())?.limit(LISTED);
    let page = app.runner().store().list(sessions).await?;
    let mut rows = Vec::new();
    for listed in page.sessions {
        let (runner, before) = (app.runner(), request.memory.size());
        // It may have been deleted meanwhile.
        let Ok(first) = PagePlan::just_after(runner, &listed.key, (0, 1)).await else { continue };
        reserve_state(&request.memory, runner, &listed.key, None).await?;
        request.memory.grow(first.weight)?;
        if let Ok(stored) = runner.store().get(GetSession::new(listed.key).events(first.range)).await {
            let row = session_json(user, &stored, title(&stored).as_ref());
            // Only its row stays.
            request.memory.resize(before.saturating_add(weight_of_value(&row)))?;
            rows.push(row);
        }
    }
    Ok(Json(rows))
}

/// A session as it is now, with its values.
async fn read_session(
    runner: &Runner,
    session: &SessionHandle,
    events: EventRange,
) -> Result<Session, Problem> {
    Ok(runner.store().get(GetSession::new(session.key().clone()).events(events)).await?)
}

/// The title of a session: its first message.
fn title(stored: &Session) -> Option<Value> {
    let mut messages = stored.events.iter().flat_map(|committed| &committed.event.messages);
    let first = messages.find(|message| message.role() == Speaker::User)?;
    let text: String = first.text().chars().take(80).collect();
    Some(json!({"displayName": text}))
}

fn session_json(user: &str, stored: &Session, title: Option<&Value>) -> Value {
    let state = match stored.to_json() {
        Value::Object(state) => state,
        _ => Map::new(),
    };
    let key = &stored.key;
    events::session(key.app.as_str(), user, key.id.as_str(), state, title, stored.updated)
}

/// A new session of an ADK client.
#[derive(Deserialize, JsonSchema)]
struct AdkSession {
    #[serde(default, alias = "session_id")]
    #[serde(rename = "sessionId")]
    session_id: Option<String>,
    state: Option<Map<String, Value>>,
}

async fn create(
    request: ApiRequest<UserTarget, AnyQuery, JsonBody<AdkSession>>,
) -> Result<Json<Value>, Problem> {
    let (UserTarget { app, user, session }, JsonBody(new)) = (request.target, request.body);
    let mut values = new.state.unwrap_or_default();
    let title = values.remove(METADATA);
    check_shared(&request.principal, &values)?;
    let id = session.or(new.session_id).unwrap_or_else(|| RandomIds.next());
    let created = app.runner().create(request.principal.user().as_str(), id, Value::Object(values)).await?;
    let stored = read_session(app.runner(), &created, EventRange::None).await?;
    Ok(Json(session_json(&user, &stored, title.as_ref())))
}

async fn read(request: ApiRequest<UserSessionTarget, AnyQuery>) -> Result<Json<Value>, Problem> {
    with_events(&request.target, &request.memory).await.map(Json)
}

async fn with_events(target: &UserSessionTarget, memory: &MemoryReservation) -> Result<Value, Problem> {
    let UserSessionTarget { within, user } = target;
    let (runner, session) = (within.runner(), &within.session);
    reserve_whole(memory, runner, session.key()).await?;
    let stored = read_session(runner, session, EventRange::All).await?;
    let mut fold = StateFold::begin(runner, session, stored.oldest).await?;
    let name = within.app.name();
    let mut all = Vec::new();
    for commit in stored.visible_events() {
        all.extend(events::of_commit(name, commit, &fold.written(commit)));
    }
    if let Some(last) = stored.visible_events().last() {
        let (invocation, at) = (last.event.invocation.as_str(), last.event.at);
        all.extend(events::confirmations(name, invocation, LastRun::of(session).await?.pending(), at));
    }
    let mut shown = session_json(user, &stored, title(&stored).as_ref());
    shown["events"] = Value::Array(all);
    Ok(shown)
}

/// New values of a session, of an ADK client.
#[derive(Deserialize, JsonSchema)]
struct AdkValues {
    #[serde(alias = "stateDelta")]
    state_delta: Map<String, Value>,
}

async fn update(
    request: ApiRequest<UserSessionTarget, AnyQuery, JsonBody<AdkValues>>,
) -> Result<Json<Value>, Problem> {
    let JsonBody(AdkValues { state_delta: mut values }) = request.body;
    values.remove(METADATA);
    check_shared(&request.principal, &values)?;
    if !values.is_empty() {
        let edit = Edit::new().by(request.principal.name());
        let edit = values.into_iter().fold(edit, |edit, (key, value)| edit.set(key, value));
        request.target.within.session.edit(edit).await?;
    }
    with_events(&request.target, &request.memory).await.map(Json)
}

async fn delete(request: ApiRequest<UserSessionTarget, AnyQuery>) -> Result<Json<Value>, Problem> {
    request.target.within.session.delete(false).await?;
    Ok(Json(Value::Null))
}

/// A message of an ADK client, or answers to confirmations.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct AdkRun {
    #[serde(alias = "app_name")]
    app_name: String,
    #[serde(alias = "session_id")]
    session_id: String,
    #[serde(alias = "new_message")]
    new_message: Option<AdkMessage>,
    /// Whether unfinished text is sent.
    #[serde(default)]
    streaming: bool,
    #[serde(alias = "state_delta")]
    state_delta: Option<Map<String, Value>>,
}

/// A message of an ADK client.
#[derive(Deserialize, JsonSchema)]
struct AdkMessage {
    #[serde(default)]
    parts: Vec<AdkPart>,
}

/// A part of a message of an ADK client.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct AdkPart {
    text: Option<String>,
    #[serde(alias = "function_response")]
    function_response: Option<AdkAnswer>,
}

/// The answer to a confirmation.
#[derive(Deserialize, JsonSchema)]
struct AdkAnswer {
    #[serde(default)]
    id: String,
    name: String,
    #[serde(default)]
    response: Value,
}

async fn run(request: ApiRequest<WholeServer, AnyQuery, JsonBody<AdkRun>>) -> Result<Response, Problem> {
    let (reader, mut encoder) = begin(&request.shared, &request.principal, request.body.0).await?;
    let (mut updates, mut events) = (reader.into_stream().boxed(), Vec::new());
    while let Some(update) = updates.next().await {
        if let RunUpdate::Ended { end: StreamEnd::Failed(problem), .. } = update {
            return Err(problem);
        }
        events.extend(encoder.push(&update).into_iter().filter_map(ProtocolFrame::into_json));
    }
    Ok(Json(events).into_response())
}

async fn run_sse(request: ApiRequest<WholeServer, AnyQuery, JsonBody<AdkRun>>) -> Result<Response, Problem> {
    let stream_permit = request.shared.stream_permit(&request.principal)?;
    let (reader, encoder) = begin(&request.shared, &request.principal, request.body.0).await?;
    Ok(stream(stream_permit, reader, encoder))
}

/// Accepts a message or decisions.
async fn begin(
    shared: &Arc<ServerState>,
    principal: &Principal,
    new: AdkRun,
) -> Result<(RunReader, AdkEncoder), Problem> {
    let app = shared.apps.get(&new.app_name).ok_or_else(|| Problem::unknown_app(&new.app_name))?;
    let session = find_session(app, principal, &new.session_id).await?;
    let mut parts = new.new_message.map(|message| message.parts).unwrap_or_default();
    let answers: Vec<_> = parts.iter_mut().filter_map(|part| part.function_response.take()).collect();
    let order = if answers.is_empty() {
        ClientRequest::Send(Box::new(input(principal, &parts, new.state_delta)?), None)
    } else {
        ClientRequest::Decide(decisions(&session, answers).await?, None)
    };
    let reader =
        accept::<Problem>(run_permit(shared, principal)?, principal, app.runner(), session, order).await?;
    Ok((reader, AdkEncoder::new(app.name().to_owned(), new.streaming)))
}

/// The input of a message: its text, and the values that the client writes with it.
fn input(
    principal: &Principal,
    parts: &[AdkPart],
    values: Option<Map<String, Value>>,
) -> Result<Input, Problem> {
    let mut values = values.unwrap_or_default();
    values.remove(METADATA);
    check_shared(principal, &values)?;
    let texts: Vec<&str> = parts.iter().filter_map(|part| part.text.as_deref()).collect();
    if texts.is_empty() {
        return Err(Problem::invalid(
            "newMessage",
            "expected a part with text, or an answer to a confirmation",
        ));
    }
    let input = Input::new().say(with_words("newMessage", texts.join("\n"))?);
    Ok(if values.is_empty() { input } else { input.with_values(Value::Object(values)) })
}

async fn decisions(
    session: &SessionHandle,
    answers: Vec<AdkAnswer>,
) -> Result<Vec<(String, Decision)>, Problem> {
    let pending = session.pending().await?;
    let mut decisions = Vec::new();
    for answer in answers {
        if answer.name != CONFIRMATION {
            let why =
                format!("unknown function `{}`: only {CONFIRMATION} is answered by clients", answer.name);
            return Err(Problem::invalid("newMessage", why));
        }
        let request = pending.iter().find(|request| request.id == answer.id);
        // The runner refuses a decision about a request that is not pending. The request may be pending by then: a
        // confirmation that came before it is not an approval.
        let decision = match request {
            Some(request) => events::decision(request, &answer.response),
            None => Decision::reject("confirmed before it was asked"),
        };
        decisions.push((answer.id, decision));
    }
    Ok(decisions)
}

/// The values of a session, folded commit by commit.
struct StateFold(State);

impl StateFold {
    /// Begins at a version.
    async fn begin(runner: &Runner, session: &SessionHandle, version: u64) -> Result<Self, Problem> {
        let mut get = GetSession::new(session.key().clone()).events(EventRange::None);
        get.version = Some(version);
        Ok(StateFold(runner.store().get(get).await?.state(runner.schema())?))
    }

    /// The values after a commit, of the keys that it writes. Values that sessions share are as they are now.
    fn written(&mut self, commit: &CommittedEvent) -> WrittenValues {
        let delta = &commit.event.actions.delta;
        for write in delta.iter().filter(|write| Scope::of(write.key()) == Scope::Session) {
            // A value of a schema that has changed since is told as the last one that could be read.
            let _ = self.0.apply_write(write);
        }
        let written = delta.iter().map(Write::key);
        written.map(|key| (key.to_owned(), self.value(key))).collect()
    }

    fn value(&self, key: &str) -> Value {
        self.0.get(key).map(ValueRef::to_json).unwrap_or_default()
    }
}
