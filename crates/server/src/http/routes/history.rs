//! The history of a session: its commits, its state at any version, forks and rewinds.

use std::collections::{BTreeMap, HashMap};

use axum::Json;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use stepfold_agent_loop::state_core::state::{State, ValueRef, Write};
use stepfold_agent_loop::{Edit, Ids as _, RandomIds};
use stepfold_runner::{RunnerError, RunnerErrorKind, SessionHandle};
use stepfold_session_scopes::{
    CommittedEvent, EventRange, GetSession, Scope, Session, SessionSchema, SessionStore as _,
};

use super::runs::hold_permit;
use super::shared_values::check_shared;
use crate::http::app::{App, SessionTarget};
use crate::http::guard::auth::{Principal, Role};
use crate::http::guard::limits::MemoryReservation;
use crate::http::guard::problem::Problem;
use crate::http::loading::alignment::{AlignedPair, aligned};
use crate::http::loading::page_plan::{
    PAGE_BYTES, PagePlan, reserve_commits, reserve_state, reserve_whole, weight_of_value,
};
use crate::http::loading::write_index::{AtVersion, IndexedWrite, VisibleEntries, WriteIndex};
use crate::http::operation::reply::CreatedReply;
use crate::http::operation::request::{ApiRequest, JsonBody, PathParameter, SessionPart, find_session};
use crate::http::rows::import_mark::check_newest;
use crate::http::rows::row_builder::{RowBuilder, rows};
use crate::http::rows::session_status::LastRun;
use crate::http::rows::upgrade::not_continued;
use crate::http::rows::{
    BlameRow, BlamedWrite, ChangeRow, DiffRow, EventRow, EventRows, OriginRow, SessionRow, StateRow,
    WriteRow, json,
};

/// The most that a page has; of brief rows, which have a few hundred bytes each.
const MOST: usize = 1_000;

const MOST_BRIEF: usize = 10_000;

/// The number of commits that are described between two checks whether the client is still connected.
const AT_ONCE: usize = 256;

/// The largest distance, in versions, of two commits that are read at once.
const NEAR: u64 = 16;

/// A page of commits.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct EventPageQuery {
    /// The version after which it begins; 0 by default.
    after: Option<u64>,
    /// The number of commits; 100 by default, at most 1,000, or 10,000 brief ones. A page of large commits has fewer.
    limit: Option<usize>,
    /// A version in the middle of the page, instead of `after`.
    around: Option<u64>,
    /// Leaves out messages, arguments, results and written values.
    #[serde(default)]
    brief: bool,
}

impl EventPageQuery {
    fn limit(&self) -> usize {
        self.limit.unwrap_or(100).clamp(1, if self.brief { MOST_BRIEF } else { MOST })
    }

    fn after(&self) -> u64 {
        let half = u64::try_from(self.limit() / 2).unwrap_or(0);
        self.after.or_else(|| Some(self.around?.saturating_sub(half + 1))).unwrap_or(0)
    }
}

pub(super) async fn events(
    request: ApiRequest<SessionTarget, EventPageQuery>,
) -> Result<Json<EventRows>, Problem> {
    let (mut after, limit) = (request.query.after(), request.query.limit());
    let held = request.memory.size();
    let mut page = page(&request.target, &request.memory, after, limit).await?;
    if let (None, Some(around)) = (request.query.after, request.query.around)
        && after + (page.limit as u64) < around
    {
        // The commits before it are large: the page begins with it.
        after = around.saturating_sub(1);
        request.memory.resize(held)?;
        page = self::page(&request.target, &request.memory, after, limit).await?;
    }
    let session = commits_of(&request.target, page.range).await?;
    let mut events = rows(&session, after, page.limit, request.target.app.pricing());
    if request.query.brief {
        events = events.into_iter().map(EventRow::into_brief).collect();
    }
    let last = events.last().map(|row| row.version);
    let next = last.filter(|last| *last < session.version);
    Ok(Json(EventRows { events, next, version: session.version, oldest: session.oldest }))
}

async fn page(
    target: &SessionTarget,
    memory: &MemoryReservation,
    after: u64,
    limit: usize,
) -> Result<PagePlan, Problem> {
    let before = memory.size();
    let hold = |weight| memory.resize(before.saturating_add(weight));
    PagePlan::after(target.runner(), target.session.key(), (after, limit), PAGE_BYTES, hold).await
}

/// The version of a commit.
pub(super) struct VersionParameter(u64);

impl PathParameter for VersionParameter {
    const PARAMETER: &'static str = "version";

    fn read(text: &str) -> Result<Self, Problem> {
        text.parse().map(VersionParameter).map_err(|error| Problem::invalid("version", error))
    }
}

pub(super) async fn event(
    request: ApiRequest<SessionPart<VersionParameter>>,
) -> Result<Json<EventRow>, Problem> {
    let SessionPart { session, part: VersionParameter(version) } = request.target;
    let row = event_at(&session, version, &request.memory).await?;
    row.map(Json).ok_or_else(|| Problem::unknown_version(version))
}

/// The commit at a version, if it is there.
pub(super) async fn event_at(
    target: &SessionTarget,
    version: u64,
    memory: &MemoryReservation,
) -> Result<Option<EventRow>, Problem> {
    let before = version.saturating_sub(1);
    let page = page(target, memory, before, 1).await?;
    let stored = commits_of(target, page.range).await?;
    Ok(rows(&stored, before, 1, target.app.pricing()).into_iter().find(|row| row.version == version))
}

/// A version of a session.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct StateQuery {
    /// The version; the newest by default.
    at: Option<u64>,
    /// Also where each value comes from.
    #[serde(default)]
    origin: bool,
}

pub(super) async fn state(request: ApiRequest<SessionTarget, StateQuery>) -> Result<Json<StateRow>, Problem> {
    let (runner, key) = (request.target.runner(), request.target.session.key());
    let is_taken = reserve_state(&request.memory, runner, key, request.query.at).await?;
    let session = session_at(&request.target, request.query.at, EventRange::None).await?;
    let (origin, changed_elsewhere) = match request.query.origin {
        true => {
            let schema = runner.schema();
            let read = |index: &WriteIndex| origin(index, &session, schema);
            let (origin, elsewhere) = request.shared.indexes.read(&request.target, &session, read).await?;
            (Some(origin), elsewhere)
        }
        false => (None, BTreeMap::new()),
    };
    let values = values(&session);
    if !is_taken {
        request.memory.grow(values.values().map(weight_of_value).sum())?;
    }
    Ok(Json(StateRow { version: session.version, values, origin, changed_elsewhere }))
}

pub(super) async fn session_at(
    target: &SessionTarget,
    version: Option<u64>,
    events: EventRange,
) -> Result<Session, Problem> {
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

/// Rows by key.
type OriginRows = BTreeMap<String, OriginRow>;

/// The last write of each key, and the number of writes: of keys with values that are the result of these, and of others.
fn origin(index: &WriteIndex, session: &Session, schema: &SessionSchema) -> (OriginRows, OriginRows) {
    let (mut origin, mut elsewhere) = (BTreeMap::new(), BTreeMap::new());
    for key in index.keys() {
        let writes = index.writes(key, session);
        let Some(last) = writes.iter().next_back() else { continue };
        let row = OriginRow {
            version: last.version,
            handler: last.what.handler.as_deref().map(str::to_owned),
            writes: writes.len() as u64,
            by: last.what.by.as_deref().cloned(),
            kind: last.what.kind.to_string(),
        };
        let is_origin = WriteIndex::is_origin(key, &writes, session, schema);
        let rows = if is_origin { &mut origin } else { &mut elsewhere };
        rows.insert(key.to_string(), row);
    }
    (origin, elsewhere)
}

/// A key.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct BlameQuery {
    /// The key of the state.
    key: String,
    /// The version of the session whose writes are listed; the newest by default.
    at: Option<u64>,
    /// The version before which they are; by default none.
    before: Option<u64>,
    /// The number of writes, the newest ones; at most 1,000, which is the default.
    limit: Option<usize>,
}

pub(super) async fn blame(request: ApiRequest<SessionTarget, BlameQuery>) -> Result<Json<BlameRow>, Problem> {
    let BlameQuery { key, at: version, before, limit } = request.query;
    let (before, limit) = (before.unwrap_or(u64::MAX), limit.unwrap_or(MOST).clamp(1, MOST));
    let head = head(&request.target, version).await?;
    let newest = |index: &WriteIndex| newest_writes(&key, &index.writes(&key, &head), before, limit);
    let mut blame = request.shared.indexes.read(&request.target, &head, newest).await?;
    let state = state_before(&request.target, &request.memory, head.oldest, blame.writes.first()).await?;
    blame.writes =
        with_values(&request.target, &request.memory, std::mem::take(&mut blame.writes), state).await?;
    Ok(Json(blame))
}

/// The newest writes before a version, without what only their commits have. Those of one commit stay together.
fn newest_writes(key: &str, all: &VisibleEntries<'_, IndexedWrite>, before: u64, limit: usize) -> BlameRow {
    let earlier = || all.iter().rev().skip_while(|of| of.version >= before);
    let first = earlier().nth(limit - 1).map_or(0, |of| of.version);
    let row = |of: &AtVersion<IndexedWrite>| BlamedWrite {
        version: of.version,
        kind: of.what.kind.to_string(),
        at: String::new(),
        write: WriteRow {
            key: key.to_owned(),
            handler: of.what.handler.as_deref().map(str::to_owned),
            value: None,
            by: of.what.by.as_deref().cloned(),
        },
        before: None,
        after: None,
    };
    let mut writes: Vec<BlamedWrite> = earlier().take_while(|of| of.version >= first).map(row).collect();
    writes.reverse();
    let has_more = earlier().nth(writes.len()).is_some();
    let earlier = writes.first().map(|write| write.version).filter(|_| has_more);
    BlameRow { key: key.to_owned(), writes, count: all.len(), earlier }
}

/// Writes with the values and times of their commits, and the values of the key before and after them, from the state
/// before the first. One whose commit retention has deleted meanwhile is left out.
async fn with_values(
    target: &SessionTarget,
    memory: &MemoryReservation,
    writes: Vec<BlamedWrite>,
    mut state: Option<State>,
) -> Result<Vec<BlamedWrite>, Problem> {
    let mut commits = HashMap::new();
    let versions: Vec<u64> = writes.iter().map(|write| write.version).collect();
    for (first, last) in version_ranges(&versions) {
        let limit = usize::try_from(last - first + 1).unwrap_or(usize::MAX);
        reserve_commits(memory, target.runner(), target.session.key(), (first - 1, limit)).await?;
        let stored = commits_of(target, EventRange::Page { after: first - 1, limit }).await?;
        commits.extend(stored.events.into_iter().map(|committed| (committed.version, (committed, 0))));
    }
    let filled = writes.into_iter().filter_map(|mut blamed| {
        let (committed, place) = commits.get_mut(&blamed.version)?;
        let mut of_key = committed.event.actions.delta.iter().filter(|write| write.key() == blamed.write.key);
        let write = of_key.nth(*place)?;
        *place += 1;
        blamed.at = committed.event.at.to_string();
        blamed.write.value = write.value().cloned();
        (blamed.before, blamed.after) =
            state.as_mut().map(|state| values_around(state, write)).unwrap_or_default();
        Some(blamed)
    });
    Ok(filled.collect())
}

/// Commits that are near each other are read at once.
fn version_ranges(versions: &[u64]) -> Vec<(u64, u64)> {
    let mut version_ranges: Vec<(u64, u64)> = Vec::new();
    for version in versions {
        match version_ranges.last_mut() {
            Some((first, last)) if version - *last <= NEAR && version - *first < MOST as u64 => {
                *last = *version;
            }
            _ => version_ranges.push((*version, *version)),
        }
    }
    version_ranges
}

/// A session at a version, without state and commits.
pub(super) async fn head(target: &SessionTarget, version: Option<u64>) -> Result<Session, Problem> {
    let mut get = GetSession::new(target.session.key().clone()).events(EventRange::None).without_state();
    get.version = version;
    Ok(target.runner().store().get(get).await?)
}

/// Commits, without the state.
async fn commits_of(target: &SessionTarget, events: EventRange) -> Result<Session, Problem> {
    let get = GetSession::new(target.session.key().clone()).events(events).without_state();
    Ok(target.runner().store().get(get).await?)
}

/// The state that the first of the writes of a key changed; none if it is not kept, or if the session shares the scope of
/// the key, which other sessions write too.
async fn state_before(
    target: &SessionTarget,
    memory: &MemoryReservation,
    oldest: u64,
    first: Option<&BlamedWrite>,
) -> Result<Option<State>, Problem> {
    let is_own =
        |first: &&BlamedWrite| Scope::of(&first.write.key) == Scope::Session && first.version > oldest;
    let Some(first) = first.filter(is_own) else { return Ok(None) };
    reserve_state(memory, target.runner(), target.session.key(), Some(first.version - 1)).await?;
    let session = session_at(target, Some(first.version - 1), EventRange::None).await?;
    Ok(Some(session.state(target.runner().schema())?))
}

/// The value of a key in a state before a write and after it.
fn values_around(state: &mut State, write: &Write) -> (Option<Value>, Option<Value>) {
    let value = |state: &State| state.get(write.key()).map(ValueRef::to_json);
    let before = value(state);
    match state.apply_write(write) {
        Ok(()) => (before, value(state)),
        Err(_) => (None, None),
    }
}

/// Two versions of a session.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DiffQuery {
    /// The earlier one.
    from: u64,
    /// The later one; the newest by default.
    to: Option<u64>,
}

pub(super) async fn diff(request: ApiRequest<SessionTarget, DiffQuery>) -> Result<Json<DiffRow>, Problem> {
    let mut is_taken = true;
    for version in [Some(request.query.from), request.query.to] {
        let (runner, key) = (request.target.runner(), request.target.session.key());
        is_taken &= reserve_state(&request.memory, runner, key, version).await?;
    }
    let before = session_at(&request.target, Some(request.query.from), EventRange::None).await?;
    let mut after = session_at(&request.target, request.query.to, EventRange::None).await?;
    if let Some(first) = first_new(&before, &after) {
        let mut get =
            GetSession::new(after.key.clone()).events(EventRange::AfterVersion(first - 1)).visible();
        get.version = Some(after.version);
        reserve_commits(&request.memory, request.target.runner(), &after.key, (first - 1, usize::MAX))
            .await?;
        after.events = request.target.runner().store().get(get.without_state()).await?.events;
    }
    let new = after.visible_events().filter(|committed| !before.visible.contains(committed.version));
    let messages = new.flat_map(|committed| committed.event.messages.iter().map(|message| json(&**message)));
    let (earlier, later) = (values(&before), values(&after));
    if !is_taken {
        request.memory.grow(earlier.values().chain(later.values()).map(weight_of_value).sum())?;
    }
    Ok(Json(DiffRow {
        from: before.version,
        to: after.version,
        changed: changed_values(&earlier, &later),
        messages: messages.collect(),
    }))
}

/// The first version that counts in a session and did not before.
fn first_new(before: &Session, after: &Session) -> Option<u64> {
    after.visible.ranges().find_map(|(first, last)| {
        let mut first = first;
        // From the end of one visible range to the next.
        while before.visible.contains(first) {
            let (_, end) = before.visible.ranges().find(|(_, end)| *end >= first)?;
            first = end + 1;
        }
        (first <= last).then_some(first)
    })
}

fn changed_values(before: &BTreeMap<String, Value>, after: &BTreeMap<String, Value>) -> Vec<ChangeRow> {
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
pub(super) struct CompareQuery {
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
    /// Both side by side: commits that say the same, whatever the ids of their calls, stand in one row.
    aligned: Vec<PairRow>,
    /// The first difference, in words.
    first: Option<String>,
    /// The changes of the state from this session to the other one.
    changed: Vec<ChangeRow>,
}

/// A row of two sessions side by side.
#[derive(Serialize, JsonSchema)]
pub(super) struct PairRow {
    /// The version in this session, if it has a commit here.
    #[serde(skip_serializing_if = "Option::is_none")]
    left: Option<u64>,
    /// The version in the other one.
    #[serde(skip_serializing_if = "Option::is_none")]
    right: Option<u64>,
    /// Whether both say the same.
    same: bool,
}

/// The text by which a commit is compared: its content without the ids of calls.
fn comparison_key(row: &EventRow) -> String {
    let inside: Vec<&str> = row.path.iter().map(|item| item.name.as_str()).collect();
    let calls: Vec<_> = row.calls.iter().map(|call| (&call.name, &call.arguments)).collect();
    let outcomes = row.outcomes.iter().map(|it| (&it.name, it.status, &it.result, &it.error));
    let outcomes: Vec<_> = outcomes.collect();
    // Messages of calls and results have their ids.
    let messages = if calls.is_empty() && outcomes.is_empty() { row.messages.as_slice() } else { &[] };
    let decisions: Vec<_> = row.decisions.iter().map(|decided| &decided.decision).collect();
    let writes: Vec<_> = row.writes.iter().map(|write| (&write.key, &write.handler, &write.value)).collect();
    let ends = (&row.edited, &row.summary, &row.exit);
    json(&(&row.kind, inside, calls, outcomes, messages, decisions, writes, ends)).to_string()
}

pub(super) async fn compare(
    request: ApiRequest<SessionTarget, CompareQuery>,
) -> Result<Json<CompareRow>, Problem> {
    let SessionTarget { app, session } = request.target;
    let other = find_session(&app, &request.principal, &request.query.with).await?;
    for session in [&session, &other] {
        reserve_whole(&request.memory, app.runner(), session.key()).await?;
    }
    let (left, right) = (session.read(EventRange::All).await?, other.read(EventRange::All).await?);
    let comparison = stepfold_runner::compare(&left, &right, app.runner().schema())?;
    // NOTE: Commits of an open step mention items of the shared commits.
    let shared: Vec<_> =
        left.visible_events().take_while(|committed| committed.version <= comparison.common).collect();
    let (of_left, said_left) = compared(&app, &shared, &comparison.left).await;
    let (of_right, said_right) = compared(&app, &shared, &comparison.right).await;
    let row = |(here, there, same): AlignedPair| PairRow {
        left: here.and_then(|at| of_left.get(at)).map(|row| row.version),
        right: there.and_then(|at| of_right.get(at)).map(|row| row.version),
        same,
    };
    Ok(Json(CompareRow {
        common: comparison.common,
        aligned: aligned(&said_left, &said_right).into_iter().map(row).collect(),
        left: of_left,
        right: of_right,
        first: comparison.first.map(|first| first.to_string()),
        changed: changed_values(&values(&left), &values(&right)),
    }))
}

/// The rows of commits that follow others, and what each says.
async fn compared(
    app: &App,
    before: &[&CommittedEvent],
    events: &[CommittedEvent],
) -> (Vec<EventRow>, Vec<String>) {
    let mut rows = RowBuilder::new(app.pricing());
    for event in before {
        drop(rows.row(event, true));
    }
    let (mut shown, mut says) = (Vec::with_capacity(events.len()), Vec::with_capacity(events.len()));
    for part in events.chunks(AT_ONCE) {
        for event in part {
            let row = rows.row(event, true);
            says.push(comparison_key(&row));
            shown.push(row);
        }
        // NOTE: A handler is cancelled at an await only, if its client has left.
        tokio::task::yield_now().await;
    }
    (shown, says)
}

/// A fork, with or without changes. A run that is open at the version waits in it until it is resumed, or continues at once.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Fork {
    /// The version; the newest by default.
    at: Option<u64>,
    /// The id of the fork; a random one by default.
    id: Option<String>,
    /// Values that are changed in the fork, instead of those at the version.
    #[serde(default)]
    set: Map<String, Value>,
    /// Results of calls that are changed in the fork, by call.
    #[serde(default)]
    results: Map<String, Value>,
    /// Arguments of calls that have not begun at the version, by call: the fork runs these calls with them.
    #[serde(default)]
    arguments: Map<String, Value>,
    /// Continues the run that is open at the version at once, as `/resume` does; by default it waits. Without an effect if
    /// no run is open there, or if it waits for a decision.
    #[serde(default)]
    run: bool,
}

/// Refuses a fork that [`check_newest`] would refuse: it opens a run again that has ended later.
async fn check_fork(
    principal: &Principal,
    target: &SessionTarget,
    version: Option<u64>,
) -> Result<(), Problem> {
    if principal.may(Role::Administer) {
        return Ok(());
    }
    let mut get = GetSession::new(target.session.key().clone()).events(EventRange::Last(1)).without_state();
    (get.version, get.hidden) = (version, false);
    let stored = target.runner().store().get(get).await?;
    check_newest(principal, stored.visible_events().last(), "fork before the run has begun or after its end")
}

/// A session that was forked.
#[derive(Serialize, JsonSchema)]
pub(super) struct ForkedRow {
    #[serde(flatten)]
    session: SessionRow,
    /// Why this version of the agent does not continue the run of the fork, which is to run, in words: the run waits for a version that does, or for
    /// `"with_changed_agent": true` in `POST …/resume`. Absent if it continues.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_continued: Vec<String>,
}

pub(super) async fn fork(
    request: ApiRequest<SessionTarget, (), JsonBody<Fork>>,
) -> Result<CreatedReply<ForkedRow>, Problem> {
    let JsonBody(fork) = request.body;
    check_shared(&request.principal, &fork.set)?;
    check_fork(&request.principal, &request.target, fork.at).await?;
    let SessionTarget { app, session } = request.target;
    // NOTE: Recovery would continue the fork as well, but outside of the limit of runs per user (docs/decisions/server.md).
    let permit = match fork.run {
        true => Some(request.shared.usage.run_permit(request.principal.user(), &request.shared.limits)?),
        false => None,
    };
    let id = fork.id.unwrap_or_else(|| RandomIds.next());
    let edit = build_edit(Edit::new().by(request.principal.name()), fork.set, (fork.results, fork.arguments));
    // NOTE: With its edit in one transaction: a process that died between fork and edit left a session that no client had
    // asked for (docs/decisions/server.md).
    let forked = match fork.run {
        true => session.fork_with(id.as_str(), fork.at, edit).await?,
        false => session.fork_with(id.as_str(), fork.at, edit).waiting().await?,
    };
    let session = SessionRow::of(&forked.read_events(EventRange::None).await?);
    let not_continued = if fork.run { not_continued(&forked, false).await } else { Vec::new() };
    if let Some(permit) = permit.filter(|_| not_continued.is_empty()) {
        // Recovery would continue as well, of all users together. A failure here changes nothing about the fork.
        if let Ok(LastRun::Unfinished(pending)) = LastRun::of(&forked).await
            && pending.is_empty()
            && let Ok(invocation) = forked.resume().start()
        {
            hold_permit(invocation, permit);
        }
    }
    Ok(CreatedReply::session(&app, &id, ForkedRow { session, not_continued }))
}

/// Changes of values.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct StateEdit {
    /// The new values, which replace the current ones.
    #[serde(default)]
    set: Map<String, Value>,
    /// The keys to remove.
    #[serde(default)]
    unset: Vec<String>,
    /// The version that the session has, as the client knows it; another one is a conflict.
    expected: u64,
}

pub(super) async fn edit_state(
    request: ApiRequest<SessionTarget, (), JsonBody<StateEdit>>,
) -> Result<Json<Changed>, Problem> {
    let key = request.idempotency_key()?;
    let JsonBody(StateEdit { set, unset, expected }) = request.body;
    let mut touched = set.clone();
    touched.extend(unset.iter().map(|key| (key.clone(), Value::Null)));
    check_shared(&request.principal, &touched)?;
    let edit = build_edit(Edit::new().by(request.principal.name()), set, (Map::new(), Map::new()));
    let edit = unset.into_iter().fold(edit, Edit::remove);
    apply_edit(&request.target.session, edit, key, expected).await
}

/// Changes of calls.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ResultEdit {
    /// The new results, by call.
    #[serde(default)]
    results: Map<String, Value>,
    /// The new arguments of calls that have not begun, by call.
    #[serde(default)]
    arguments: Map<String, Value>,
    /// The version that the session has, as the client knows it; another one is a conflict.
    expected: u64,
}

pub(super) async fn edit_results(
    request: ApiRequest<SessionTarget, (), JsonBody<ResultEdit>>,
) -> Result<Json<Changed>, Problem> {
    let key = request.idempotency_key()?;
    let JsonBody(ResultEdit { results, arguments, expected }) = request.body;
    let edit = build_edit(Edit::new().by(request.principal.name()), Map::new(), (results, arguments));
    apply_edit(&request.target.session, edit, key, expected).await
}

/// The edit with these values, and these results and arguments of calls.
fn build_edit(
    edit: Edit,
    set: Map<String, Value>,
    (results, arguments): (Map<String, Value>, Map<String, Value>),
) -> Edit {
    let edit = set.into_iter().fold(edit, |edit, (key, value)| edit.set(key, value));
    let edit = results.into_iter().fold(edit, |edit, (call, result)| edit.result(call, result));
    arguments.into_iter().fold(edit, |edit, (call, arguments)| edit.arguments(call, arguments))
}

async fn apply_edit(
    session: &SessionHandle,
    edit: Edit,
    key: Option<String>,
    expected: u64,
) -> Result<Json<Changed>, Problem> {
    let edit = match key {
        Some(key) => edit.with_idempotency_key(key),
        None => edit,
    };
    Ok(Json(Changed { version: session.edit(edit).expected_version(expected).await?.version }))
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

pub(super) async fn rewind(
    request: ApiRequest<SessionTarget, (), JsonBody<Rewind>>,
) -> Result<Json<Changed>, Problem> {
    let JsonBody(Rewind { to, expected }) = request.body;
    let session: &SessionHandle = &request.target.session;
    Ok(Json(Changed { version: session.rewind_from(expected, to).await? }))
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
    /// The invocation whose run diverges.
    invocation: Option<String>,
    /// The version of the commit that differs; the last one of the run if only its end does.
    version: Option<u64>,
}

pub(super) async fn replay(request: ApiRequest<SessionTarget>) -> Result<Json<ReplayRow>, Problem> {
    let runner = request.target.runner();
    reserve_whole(&request.memory, runner, request.target.session.key()).await?;
    let agent = runner.agent();
    match request.target.session.replay(agent).await {
        Ok(runs) => {
            let (first_divergence, invocation, version) = (None, None, None);
            Ok(Json(ReplayRow { same: true, runs: Some(runs), first_divergence, invocation, version }))
        }
        Err(RunnerError { kind: RunnerErrorKind::Diverged { invocation, version, source, .. }, .. }) => {
            Ok(Json(ReplayRow {
                same: false,
                runs: None,
                first_divergence: Some(source.to_string()),
                invocation: Some(invocation),
                version: Some(version),
            }))
        }
        Err(error) => Err(error.into()),
    }
}
