//! Sessions: listed, created, read, deleted.

use std::sync::Arc;

use futures_util::{FutureExt as _, StreamExt as _, TryStreamExt as _};
use http::HeaderMap;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use stepfold_agent_loop::{Ids as _, RandomIds};
use stepfold_runner::SessionHandle;
use stepfold_session_scopes::{
    Cursor, ErrorKind, EventRange, ListForks, ListSessions, Scope, Session, SessionStore as _,
};
use stepfold_state_core::chat::Role;

use crate::http::auth::{self, Principal};
use crate::http::changes::{LastRun, Status};
use crate::http::imported::ImportedRow;
use crate::http::operation::{Asked, Created, Done, Found, InApp, InSession, Json};
use crate::http::problem::Problem;
use crate::http::rows::{RequestRow, SessionDetail, SessionRow, SessionRows, WaitingRow};
use crate::http::server::App;
use crate::http::steps::short;

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
    /// Only those whose id or title has this text, in any case. A page may have fewer rows then, or none.
    q: Option<String>,
    /// Only those with this status.
    status: Option<Status>,
}

pub(super) async fn list(asked: Asked<InApp, PageOfSessions>) -> Result<Found<SessionRows>, Problem> {
    let app = &asked.target.0;
    let limit = asked.query.limit.unwrap_or(100).clamp(1, MOST);
    let request = ListSessions::new(app.name(), asked.principal.user().as_str())?
        .after(asked.query.after.map(Cursor::new))
        .limit(limit);
    let page = app.runner().store().list(request).await?;
    let next = page.next.map(|cursor| cursor.as_str().to_owned());
    let described = page.sessions.into_iter().map(|stored| {
        let app = Arc::clone(app);
        async move { described(&app, &stored).await }.boxed()
    });
    let mut sessions: Vec<SessionRow> =
        futures_util::stream::iter(described).buffered(AT_ONCE).try_collect().await?;
    let (text, status) = (asked.query.q.map(|text| text.to_lowercase()), asked.query.status);
    sessions.retain(|row| {
        let said = || format!("{} {}", row.id, row.title.as_deref().unwrap_or_default()).to_lowercase();
        text.as_ref().is_none_or(|text| said().contains(text)) && status.is_none_or(|_| row.status == status)
    });
    Ok(Found(SessionRows { sessions, next }))
}

/// The number of sessions that are described at once.
const AT_ONCE: usize = 8;

/// A row with what a session does, and how it began.
async fn described(app: &App, stored: &Session) -> Result<SessionRow, Problem> {
    let session = app.runner().find_session(stored.key.user.as_str(), stored.key.id.as_str()).await?;
    let mut row = SessionRow::of(stored);
    // It may have been deleted meanwhile.
    let Some(session) = session else { return Ok(row) };
    row.status = Some(Status::of(&session).await?.1);
    row.forks = number_of_forks(app, &session).await?;
    let first = session.read(EventRange::Page { after: 0, limit: FIRST }).await?;
    row.imported = ImportedRow::of(&first);
    let mut messages = first.events.iter().flat_map(|committed| &committed.event.messages);
    let asked = messages.find(|message| message.role() == Role::User);
    row.title = asked.map(|message| short(&message.text())).filter(|title| !title.is_empty());
    Ok(row)
}

/// The number of its forks that are there; `None` if the store does not list them.
async fn number_of_forks(app: &App, session: &SessionHandle) -> Result<Option<usize>, Problem> {
    match app.runner().store().forks(ListForks::new(session.key().clone())).await {
        Ok(forks) => Ok(Some(forks.len())),
        // It may have been deleted meanwhile.
        Err(error) if matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::NotFound) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The number of commits among which the first message is looked for.
const FIRST: usize = 3;

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
pub(in crate::http) fn check_shared(
    principal: &Principal,
    values: &Map<String, Value>,
) -> Result<(), Problem> {
    match values.keys().any(|key| Scope::of(key) == Scope::App) && !principal.may(auth::Role::Administer) {
        true => Err(Problem::forbidden(auth::Role::Administer)),
        false => Ok(()),
    }
}

pub(super) async fn read(asked: Asked<InSession>) -> Result<Found<SessionDetail>, Problem> {
    let session = &asked.target.session;
    let stored = session.read(EventRange::Last(1)).await?;
    let run = LastRun::of(session).await?;
    let inbox = session.inbox().await?;
    let waiting = |message: &stepfold_runner::WaitingMessage| WaitingRow {
        invocation: message.id.to_string(),
        at: message.at.to_string(),
        text: message.input.messages().map(|message| message.text()).collect::<Vec<_>>().join("\n"),
        joins: message.joins,
    };
    let mut row = SessionRow::of(&stored);
    row.status = Some(Status::decide(session, &stored, &run));
    row.forks = number_of_forks(&asked.target.app, session).await?;
    row.imported = ImportedRow::read(session).await?;
    Ok(Found(SessionDetail {
        session: row,
        running: session.running().map(|running| running.id().to_string()),
        unfinished: !matches!(run, LastRun::Ended),
        pending: run.pending().iter().map(RequestRow::of).collect(),
        invalid: match run {
            LastRun::Invalid(why) => Some(why),
            LastRun::Ended | LastRun::Unfinished(_) => None,
        },
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
