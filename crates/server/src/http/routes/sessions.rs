//! Sessions: listed, created, read, deleted.

use http::HeaderMap;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use stepfold_agent_loop::{Ids as _, RandomIds};
use stepfold_session_scopes::{Cursor, EventRange, ListSessions, Scope, SessionStore as _};

use crate::http::auth::{Principal, Role};
use crate::http::operation::{Asked, Created, Done, Found, InApp, InSession, Json};
use crate::http::problem::Problem;
use crate::http::rows::{RequestRow, SessionDetail, SessionRow, SessionRows, WaitingRow};

/// The most that a page has.
const MOST: usize = 1_000;

/// A page of a list.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PageOfSessions {
    /// The cursor of the page, as `next` of the one before.
    after: Option<String>,
    /// The number of sessions; 100 by default, at most 1,000.
    limit: Option<usize>,
}

pub(super) async fn list(asked: Asked<InApp, PageOfSessions>) -> Result<Found<SessionRows>, Problem> {
    let app = &asked.target.0;
    let limit = asked.query.limit.unwrap_or(100).clamp(1, MOST);
    let request = ListSessions::new(app.name(), asked.principal.user().as_str())?
        .after(asked.query.after.map(Cursor::new))
        .limit(limit);
    let page = app.runner().store().list(request).await?;
    let next = page.next.map(|cursor| cursor.as_str().to_owned());
    Ok(Found(SessionRows { sessions: page.sessions.iter().map(SessionRow::of).collect(), next }))
}

/// A new session.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewSession {
    /// The id; a random one by default.
    id: Option<String>,
    /// Initial values of the state, by key.
    #[serde(default)]
    values: Map<String, Value>,
}

pub(super) async fn create(
    asked: Asked<InApp, (), Json<NewSession>>,
) -> Result<Created<SessionRow>, Problem> {
    let (app, Json(new)) = (asked.target.0, asked.body);
    check_shared(&asked.principal, &new.values)?;
    let id = new.id.unwrap_or_else(|| RandomIds.next());
    let user = asked.principal.user().as_str();
    let session = app.runner().create(user, id.as_str(), Value::Object(new.values)).await?;
    let value = SessionRow::of(&session.read(EventRange::None).await?);
    Ok(Created::session(&app, &id, value))
}

/// Values that all users share are written by administrators only.
pub(super) fn check_shared(principal: &Principal, values: &Map<String, Value>) -> Result<(), Problem> {
    match values.keys().any(|key| Scope::of(key) == Scope::App) && !principal.may(Role::Administer) {
        true => Err(Problem::forbidden(Role::Administer)),
        false => Ok(()),
    }
}

pub(super) async fn read(asked: Asked<InSession>) -> Result<Found<SessionDetail>, Problem> {
    let session = &asked.target.session;
    let stored = session.read(EventRange::None).await?;
    let run = session.unfinished().await?;
    let pending = run.as_ref().map(stepfold_agent_loop::Run::pending).unwrap_or_default();
    let inbox = session.inbox().await?;
    let waiting = |message: &stepfold_runner::WaitingMessage| WaitingRow {
        invocation: message.id.to_string(),
        at: message.at.to_string(),
    };
    Ok(Found(SessionDetail {
        session: SessionRow::of(&stored),
        running: session.running().map(|running| running.id().to_string()),
        unfinished: run.is_some(),
        pending: pending.iter().map(RequestRow::of).collect(),
        inbox: inbox.iter().map(waiting).collect(),
    }))
}

/// What is deleted.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Deletion {
    /// Also the values of the user (`user:`), which its other sessions share.
    #[serde(default)]
    user_state: bool,
}

pub(super) async fn delete(asked: Asked<InSession, Deletion>) -> Result<Done, Problem> {
    asked.target.session.delete(asked.query.user_state).await?;
    Ok(Done(HeaderMap::new()))
}
