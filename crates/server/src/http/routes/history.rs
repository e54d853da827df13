//! The history of a session: its commits, its state at any version, forks and rewinds.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepfold_agent_loop::{Ids as _, RandomIds};
use stepfold_runner::{RunnerError, SessionHandle};
use stepfold_session_scopes::{EventRange, GetSession, Session, SessionStore as _};

use crate::http::operation::{Asked, Created, Found, InSession, Json, find_session};
use crate::http::problem::Problem;
use crate::http::rows::{ChangeRow, DiffRow, EventRow, EventRows, OriginRow, SessionRow, StateRow, json};

/// The most that a page has.
const MOST: usize = 1_000;

/// A page of commits.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PageOfEvents {
    /// The version after which it begins; 0 by default.
    #[serde(default)]
    after: u64,
    /// The number of commits; 100 by default, at most 1,000.
    limit: Option<usize>,
}

pub(super) async fn events(asked: Asked<InSession, PageOfEvents>) -> Result<Found<EventRows>, Problem> {
    let limit = asked.query.limit.unwrap_or(100).clamp(1, MOST);
    let page = EventRange::Page { after: asked.query.after, limit };
    let session = asked.target.session.read(page).await?;
    let rows: Vec<EventRow> = session
        .events
        .iter()
        .map(|event| EventRow::of(event, session.visible.contains(event.version)))
        .collect();
    let last = rows.last().map(|row| row.version);
    let next = last.filter(|last| *last < session.version);
    Ok(Found(EventRows { events: rows, next, version: session.version, oldest: session.oldest }))
}

/// A version of a session.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct StateAt {
    /// The version; the newest by default.
    at: Option<u64>,
    /// Also where each value comes from; this reads the whole history.
    #[serde(default)]
    origin: bool,
}

pub(super) async fn state(asked: Asked<InSession, StateAt>) -> Result<Found<StateRow>, Problem> {
    let events = if asked.query.origin { EventRange::All } else { EventRange::None };
    let session = at(&asked.target, asked.query.at, events).await?;
    let origin = asked.query.origin.then(|| origin(&session));
    Ok(Found(StateRow { version: session.version, values: values(&session), origin }))
}

async fn at(target: &InSession, version: Option<u64>, events: EventRange) -> Result<Session, Problem> {
    let mut get = GetSession::new(target.session.key().clone()).events(events);
    get.version = version;
    Ok(target.runner().store().get(get).await?)
}

fn values(session: &Session) -> BTreeMap<String, Value> {
    match session.to_json() {
        Value::Object(values) => values.into_iter().collect(),
        _ => BTreeMap::new(),
    }
}

/// The last write of each key, and the number of writes.
fn origin(session: &Session) -> BTreeMap<String, OriginRow> {
    let mut origin: BTreeMap<String, OriginRow> = BTreeMap::new();
    for committed in session.visible_events() {
        for write in &committed.event.actions.delta {
            let writes = origin.get(write.key()).map_or(0, |before| before.writes);
            let handler = write.handler().map(stepfold_state_core::state::Handler::name);
            let row = OriginRow { version: committed.version, handler, writes: writes + 1 };
            origin.insert(write.key().to_owned(), row);
        }
    }
    origin
}

/// Two versions of a session.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Versions {
    /// The earlier one.
    from: u64,
    /// The later one; the newest by default.
    to: Option<u64>,
}

pub(super) async fn diff(asked: Asked<InSession, Versions>) -> Result<Found<DiffRow>, Problem> {
    let before = at(&asked.target, Some(asked.query.from), EventRange::All).await?;
    let after = at(&asked.target, asked.query.to, EventRange::All).await?;
    let known: Vec<_> = before.visible_events().map(|committed| committed.version).collect();
    let new = after.visible_events().filter(|committed| !known.contains(&committed.version));
    let messages = new.flat_map(|committed| committed.event.messages.iter().map(|message| json(&**message)));
    Ok(Found(DiffRow {
        from: before.version,
        to: after.version,
        changed: changed(&values(&before), &values(&after)),
        messages: messages.collect(),
    }))
}

fn changed(before: &BTreeMap<String, Value>, after: &BTreeMap<String, Value>) -> Vec<ChangeRow> {
    let mut keys: Vec<&String> = before.keys().chain(after.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    let differs = |key: &&String| before.get(*key) != after.get(*key);
    let row = |key: &String| ChangeRow {
        key: key.clone(),
        before: before.get(key).cloned(),
        after: after.get(key).cloned(),
    };
    keys.into_iter().filter(differs).map(row).collect()
}

/// Another session.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct With {
    /// The id of the other session.
    with: String,
}

/// The differences of two sessions.
#[derive(Serialize, JsonSchema)]
pub(super) struct CompareRow {
    /// The newest version that both have; 0 if they share no commit.
    common: u64,
    /// The later commits of this session.
    left: Vec<EventRow>,
    /// The later commits of the other one.
    right: Vec<EventRow>,
    /// The first difference, in words.
    first: Option<String>,
    /// The changes of the state from this session to the other one.
    changed: Vec<ChangeRow>,
}

pub(super) async fn compare(asked: Asked<InSession, With>) -> Result<Found<CompareRow>, Problem> {
    let InSession { app, session } = asked.target;
    let other = find_session(&app, &asked.principal, &asked.query.with).await?;
    let comparison = session.compare(&other).await?;
    let (left, right) = (session.read(EventRange::None).await?, other.read(EventRange::None).await?);
    let rows = |events: &[_]| events.iter().map(|event| EventRow::of(event, true)).collect();
    Ok(Found(CompareRow {
        common: comparison.common,
        left: rows(&comparison.left),
        right: rows(&comparison.right),
        first: comparison.first.map(|first| first.to_string()),
        changed: changed(&values(&left), &values(&right)),
    }))
}

/// A fork.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Fork {
    /// The version; the newest by default.
    at: Option<u64>,
    /// The id of the fork; a random one by default.
    id: Option<String>,
}

pub(super) async fn fork(asked: Asked<InSession, (), Json<Fork>>) -> Result<Created<SessionRow>, Problem> {
    let (InSession { app, session }, Json(fork)) = (asked.target, asked.body);
    let id = fork.id.unwrap_or_else(|| RandomIds.next());
    let forked = session.fork(id.as_str(), fork.at).await?;
    let value = SessionRow::of(&forked.read(EventRange::None).await?);
    Ok(Created::session(&app, &id, value))
}

/// A rewind.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Rewind {
    /// The version to go back to.
    to: u64,
    /// The version that the session has, as the client knows it; another one is a conflict.
    expected: u64,
}

/// A version after a change.
#[derive(Serialize, JsonSchema)]
pub(super) struct Changed {
    /// The version of the session after it.
    version: u64,
}

pub(super) async fn rewind(asked: Asked<InSession, (), Json<Rewind>>) -> Result<Found<Changed>, Problem> {
    let Json(Rewind { to, expected }) = asked.body;
    let session: &SessionHandle = &asked.target.session;
    Ok(Found(Changed { version: session.rewind_from(expected, to).await? }))
}

/// The result of a replay.
#[derive(Serialize, JsonSchema)]
pub(super) struct ReplayRow {
    /// Whether each run is as it was recorded.
    same: bool,
    /// The number of replayed runs, if all are the same.
    runs: Option<usize>,
    /// The first divergence, in words.
    first_divergence: Option<String>,
}

pub(super) async fn replay(asked: Asked<InSession>) -> Result<Found<ReplayRow>, Problem> {
    let agent = asked.target.runner().agent();
    match asked.target.session.replay(agent).await {
        Ok(runs) => Ok(Found(ReplayRow { same: true, runs: Some(runs), first_divergence: None })),
        Err(error @ RunnerError::Diverged { .. }) => {
            Ok(Found(ReplayRow { same: false, runs: None, first_divergence: Some(error.to_string()) }))
        }
        Err(error) => Err(error.into()),
    }
}
