//! The routes of the Agent Development Kit that its page and its client use.
//!
//! The user in a path means the principal, whatever it is: the page always sends `user`. The title that a client gives a new
//! session is echoed, and not stored: afterwards a session has the text of its first message as title.

mod bundle;
mod encode;

use std::collections::VecDeque;

use axum::body::Body;
use futures_util::future::BoxFuture;
use futures_util::{Stream, StreamExt as _};
use http::{Method, Response, StatusCode};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use stepfold_agent_loop::{Decision, Decisions, Edit, Ids as _, Input, RandomIds};
use stepfold_runner::{Runner, SessionHandle};
use stepfold_session_scopes::{
    CommittedEvent, EventRange, GetSession, ListSessions, Scope, Session, SessionStore as _, Timestamp,
};
use stepfold_state_core::chat::Role as Speaker;
use stepfold_state_core::state::{State, ValueRef, Write};

pub use self::bundle::BundleError;
pub(super) use self::bundle::{BASE, Bundle};
use self::encode::{CONFIRMATION, METADATA, Written};
use super::auth::Role;
use super::followed::{End, Followed, Happened};
use super::operation::{find_session, json_response};
use super::problem::Problem;
use super::protocols::{Call, Route};
use super::routes::check_shared;
use super::server::App;

/// The version of the kit that clients are told.
const VERSION: &str = "2.13.0";

/// The number of sessions in a list: the newest.
const LISTED: usize = 100;

type Answer = BoxFuture<'static, Result<Response<Body>, Problem>>;

/// The routes.
pub(super) fn routes() -> Vec<Route> {
    let route = |method, path, needs, handle| Route { protocol: "adk", method, path, needs, handle };
    let (sessions, session) =
        ("/apps/{app}/users/{user}/sessions", "/apps/{app}/users/{user}/sessions/{session}");
    vec![
        route(Method::GET, "/list-apps", Role::Read, list_apps),
        route(Method::GET, "/config/telemetry", Role::Read, telemetry),
        route(Method::GET, "/version", Role::Read, version),
        route(Method::GET, sessions, Role::Read, list),
        route(Method::POST, sessions, Role::Act, create),
        route(Method::GET, session, Role::Read, read),
        route(Method::POST, session, Role::Act, create),
        route(Method::PATCH, session, Role::Act, update),
        route(Method::DELETE, session, Role::Administer, delete),
        route(Method::POST, "/run", Role::Act, run),
        route(Method::POST, "/run_sse", Role::Act, run_sse),
    ]
}

fn found(value: &Value) -> Response<Body> {
    json_response(StatusCode::OK, value)
}

fn list_apps(call: Call) -> Answer {
    Box::pin(async move { Ok(found(&json!(call.shared.apps.keys().collect::<Vec<_>>()))) })
}

fn version(_: Call) -> Answer {
    let version =
        json!({"version": VERSION, "language": "rust", "language_version": env!("CARGO_PKG_RUST_VERSION")});
    Box::pin(async move { Ok(found(&version)) })
}

/// The page asks its user to send data to its makers, unless that is off.
fn telemetry(_: Call) -> Answer {
    Box::pin(async move { Ok(found(&json!({"telemetry": false}))) })
}

fn list(call: Call) -> Answer {
    Box::pin(async move {
        let app = call.app()?;
        let request = ListSessions::new(app.name(), call.principal.user().as_str())?.limit(LISTED);
        let page = app.runner().store().list(request).await?;
        let mut rows = Vec::new();
        for listed in page.sessions {
            let get = GetSession::new(listed.key).events(EventRange::Page { after: 0, limit: 1 });
            // It may have been deleted meanwhile.
            if let Ok(stored) = app.runner().store().get(get).await {
                rows.push(shown(&call, &stored, title(&stored).as_ref()));
            }
        }
        Ok(found(&Value::Array(rows)))
    })
}

/// A session as it is now, with its values.
async fn whole(runner: &Runner, session: &SessionHandle, events: EventRange) -> Result<Session, Problem> {
    Ok(runner.store().get(GetSession::new(session.key().clone()).events(events)).await?)
}

/// The title of a session: its first message.
fn title(stored: &Session) -> Option<Value> {
    let mut messages = stored.events.iter().flat_map(|committed| &committed.event.messages);
    let first = messages.find(|message| message.role() == Speaker::User)?;
    let text: String = first.text().chars().take(80).collect();
    Some(json!({"displayName": text}))
}

fn shown(call: &Call, stored: &Session, title: Option<&Value>) -> Value {
    let state = match stored.to_json() {
        Value::Object(state) => state,
        _ => Map::new(),
    };
    let (app, user) = (stored.key.app.as_str(), call.name("user"));
    encode::session(app, user, stored.key.id.as_str(), state, title, stored.updated)
}

/// A new session, or new values of one.
#[derive(Deserialize)]
struct NewSession {
    #[serde(default, alias = "session_id")]
    #[serde(rename = "sessionId")]
    session_id: Option<String>,
    state: Option<Map<String, Value>>,
}

fn create(call: Call) -> Answer {
    Box::pin(async move {
        let app = call.app()?;
        let new: NewSession = call.json()?;
        let mut values = new.state.unwrap_or_default();
        let title = values.remove(METADATA);
        check_shared(&call.principal, &values)?;
        let named = Some(call.name("session").to_owned()).filter(|name| !name.is_empty());
        let id = named.or(new.session_id).unwrap_or_else(|| RandomIds.next());
        let user = call.principal.user().as_str();
        let session = app.runner().create(user, id, Value::Object(values)).await?;
        let stored = whole(app.runner(), &session, EventRange::None).await?;
        Ok(found(&shown(&call, &stored, title.as_ref())))
    })
}

fn read(call: Call) -> Answer {
    Box::pin(async move {
        let app = call.app()?;
        let session = find_session(&app, &call.principal, call.name("session")).await?;
        Ok(found(&with_events(&call, &app, &session).await?))
    })
}

async fn with_events(call: &Call, app: &App, session: &SessionHandle) -> Result<Value, Problem> {
    let runner = app.runner();
    let stored = whole(runner, session, EventRange::All).await?;
    let mut fold = Fold::begin(runner, session, stored.oldest, false).await?;
    let mut events = Vec::new();
    for commit in stored.visible_events() {
        events.extend(encode::events(app.name(), commit, &fold.written(commit)));
    }
    if let Some(last) = stored.visible_events().last() {
        let (invocation, at) = (last.event.invocation.as_str(), last.event.at);
        events.extend(encode::confirmations(app.name(), invocation, &session.pending().await?, at));
    }
    let mut shown = shown(call, &stored, title(&stored).as_ref());
    shown["events"] = Value::Array(events);
    Ok(shown)
}

/// New values of a session.
#[derive(Deserialize)]
struct NewValues {
    #[serde(alias = "stateDelta")]
    state_delta: Map<String, Value>,
}

fn update(call: Call) -> Answer {
    Box::pin(async move {
        let app = call.app()?;
        let session = find_session(&app, &call.principal, call.name("session")).await?;
        let mut values = call.json::<NewValues>()?.state_delta;
        values.remove(METADATA);
        check_shared(&call.principal, &values)?;
        if !values.is_empty() {
            let edit = Edit::new().by(call.principal.name());
            let edit = values.into_iter().fold(edit, |edit, (key, value)| edit.set(key, value));
            session.edit(edit).await?;
        }
        Ok(found(&with_events(&call, &app, &session).await?))
    })
}

fn delete(call: Call) -> Answer {
    Box::pin(async move {
        let session = find_session(&*call.app()?, &call.principal, call.name("session")).await?;
        session.delete(false).await?;
        Ok(found(&Value::Null))
    })
}

/// A message, or an answer to a confirmation.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NewRun {
    #[serde(alias = "app_name")]
    app_name: String,
    #[serde(alias = "session_id")]
    session_id: String,
    #[serde(alias = "new_message")]
    new_message: Option<NewMessage>,
    #[serde(default)]
    streaming: bool,
    #[serde(alias = "state_delta")]
    state_delta: Option<Map<String, Value>>,
}

#[derive(Deserialize)]
struct NewMessage {
    #[serde(default)]
    parts: Vec<NewPart>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NewPart {
    text: Option<String>,
    #[serde(alias = "function_response")]
    function_response: Option<FunctionResponse>,
}

#[derive(Deserialize)]
struct FunctionResponse {
    #[serde(default)]
    id: String,
    name: String,
    #[serde(default)]
    response: Value,
}

fn run(call: Call) -> Answer {
    Box::pin(async move {
        let events: Vec<Value> = begin(&call).await?.collect().await;
        match events.iter().find(|event| event.get("error").is_some()) {
            Some(failed) => Err(Problem::unavailable(failed["error"].as_str().unwrap_or_default())),
            None => Ok(found(&Value::Array(events))),
        }
    })
}

fn run_sse(call: Call) -> Answer {
    Box::pin(async move {
        let events = begin(&call).await?;
        call.stream(events.map(|event| format!("data: {event}\n\n")))
    })
}

/// Accepts a message or decisions. The stream has what happens from then on.
async fn begin(call: &Call) -> Result<impl Stream<Item = Value> + Send + use<>, Problem> {
    let new: NewRun = call.json()?;
    let app = call.app_named(&new.app_name)?;
    let session = find_session(&app, &call.principal, &new.session_id).await?;
    let place = call.shared.usage.run(call.principal.user(), &call.shared.limits)?;
    let after = session.read(EventRange::None).await?.version;
    let fold = Fold::begin(app.runner(), &session, after, true).await?;
    let is_streaming = new.streaming;
    let mut parts = new.new_message.map(|message| message.parts).unwrap_or_default();
    let answers: Vec<_> = parts.iter_mut().filter_map(|part| part.function_response.take()).collect();
    let invocation = if answers.is_empty() {
        session.send(input(call, &parts, new.state_delta)?).await?
    } else {
        let decisions = decisions(&session, answers).await?;
        session.resume().decide_all(decisions).by(call.principal.name()).submit().await?.1
    };
    let id = invocation.id().to_string();
    let happened = Followed { session, invocation, after, place: Some(place) }.start();
    let encoder = Encoder { agent: app.name().to_owned(), invocation: id, is_streaming, fold, partials: 0 };
    let state = (Box::pin(happened), encoder, VecDeque::new());
    Ok(futures_util::stream::unfold(state, |(mut happened, mut encoder, mut ready)| async {
        loop {
            if let Some(event) = ready.pop_front() {
                return Some((event, (happened, encoder, ready)));
            }
            ready.extend(encoder.encode(happened.next().await?));
        }
    }))
}

/// The input of a message: its text, and the values that the client writes with it.
fn input(call: &Call, parts: &[NewPart], values: Option<Map<String, Value>>) -> Result<Input, Problem> {
    let mut values = values.unwrap_or_default();
    values.remove(METADATA);
    check_shared(&call.principal, &values)?;
    let texts: Vec<&str> = parts.iter().filter_map(|part| part.text.as_deref()).collect();
    if texts.is_empty() {
        return Err(Problem::invalid(
            "newMessage",
            "expected a part with text, or an answer to a confirmation",
        ));
    }
    let input = Input::new().say(texts.join("\n"));
    Ok(if values.is_empty() { input } else { input.with_values(Value::Object(values)) })
}

async fn decisions(session: &SessionHandle, answers: Vec<FunctionResponse>) -> Result<Decisions, Problem> {
    let pending = session.pending().await?;
    let mut decisions = Decisions::default();
    for answer in answers {
        if answer.name != CONFIRMATION {
            let why =
                format!("unknown function `{}`: only {CONFIRMATION} is answered by clients", answer.name);
            return Err(Problem::invalid("newMessage", why));
        }
        let request = pending.iter().find(|request| request.id == answer.id);
        // What is not pending is refused by the runner, in its own words.
        let decision =
            request.map_or(Decision::Approve, |request| encode::decision(request, &answer.response));
        decisions = decisions.decide(answer.id, decision);
    }
    Ok(decisions)
}

/// Encodes what happens.
struct Encoder {
    agent: String,
    invocation: String,
    is_streaming: bool,
    fold: Fold,
    partials: usize,
}

impl Encoder {
    fn encode(&mut self, happened: Happened) -> Vec<Value> {
        let (agent, invocation) = (&*self.agent, &*self.invocation);
        match happened {
            Happened::Text(_) if !self.is_streaming => Vec::new(),
            Happened::Text(text) => {
                self.partials += 1;
                vec![encode::partial(agent, invocation, self.partials, &text, self.fold.at)]
            }
            Happened::Commit(commit) => {
                let written = self.fold.written(&commit);
                let mut events = encode::events(agent, &commit, &written);
                // The client shows its own message by itself.
                events.retain(|event| event["author"] != "user" || event["invocationId"] != invocation);
                events
            }
            Happened::End(End::Waits(pending)) => {
                encode::confirmations(agent, invocation, &pending, self.fold.at)
            }
            Happened::End(End::Over(Ok(_))) => Vec::new(),
            Happened::End(End::Over(Err(error))) => vec![json!({"error": error.to_string()})],
        }
    }
}

/// The values of a session, folded commit by commit.
struct Fold {
    state: State,
    /// Whether writes of values that sessions share are merged: not those of the past, which the values have already.
    with_shared: bool,
    /// The time of the last commit.
    at: Timestamp,
}

impl Fold {
    /// Begins at a version.
    async fn begin(
        runner: &Runner,
        session: &SessionHandle,
        version: u64,
        with_shared: bool,
    ) -> Result<Self, Problem> {
        let stored = at_version(runner, session, version).await?;
        Ok(Fold { state: stored.state(runner.schema())?, with_shared, at: stored.updated })
    }

    /// The values after a commit, of the keys that it writes.
    fn written(&mut self, commit: &CommittedEvent) -> Written {
        self.at = commit.event.at;
        let delta = &commit.event.actions.delta;
        let own = delta.iter().filter(|write| self.with_shared || Scope::of(write.key()) == Scope::Session);
        for write in own {
            // A value of a schema that has changed since is told as the last one that could be read.
            let _ = self.state.apply_write(write);
        }
        let written = delta.iter().map(Write::key);
        written.map(|key| (key.to_owned(), self.value(key))).collect()
    }

    fn value(&self, key: &str) -> Value {
        self.state.get(key).map(ValueRef::to_json).unwrap_or_default()
    }
}

async fn at_version(runner: &Runner, session: &SessionHandle, version: u64) -> Result<Session, Problem> {
    let mut get = GetSession::new(session.key().clone()).events(EventRange::None);
    get.version = Some(version);
    Ok(runner.store().get(get).await?)
}
