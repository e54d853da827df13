//! Sessions: listed, created, read, deleted.

use std::sync::Arc;

use axum::Json;
use axum::response::NoContent;
use futures_util::{FutureExt as _, StreamExt as _, TryStreamExt as _};
use http::StatusCode;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use stepfold_agent_loop::{Ids as _, RandomIds};
use stepfold_runner::{SessionHandle, exhausted_budget};
use stepfold_session_scopes::{
    CommittedEvent, ErrorKind, EventRange, ListForks, ListSessions, Session, SessionCursor,
    SessionStore as _, UserId,
};
use stepfold_state_core::chat::Role;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::shared_values::check_shared;
use crate::http::app::{App, SessionTarget};
use crate::http::guard::limits::MemoryReservation;
use crate::http::guard::problem::Problem;
use crate::http::loading::page_plan::{
    CommitBudget, CommitSizes, PAGE_BYTES, PagePlan, SMALL_BYTES, reserve_newest,
};
use crate::http::operation::reply::CreatedReply;
use crate::http::operation::request::{ApiRequest, AppTarget, JsonBody};
use crate::http::rows::import_mark::ImportedRow;
use crate::http::rows::overview::{Overview, OverviewDepth, RunsOf, overviews};
use crate::http::rows::session_status::{LastRun, Status};
use crate::http::rows::{
    BudgetQuestionRow, RequestRow, SessionDetail, SessionRow, SessionRows, WaitingRow, short,
};

/// The most that a page has.
const MOST: usize = 1_000;

/// A page of a list.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SessionPageQuery {
    /// The cursor of the page, as `next` of the one before.
    after: Option<String>,
    /// The number of sessions; 100 by default, at most 1,000.
    limit: Option<usize>,
    /// Only those whose id or title has this text, in any case. A page may have fewer rows then, or none: the last one has
    /// no `next`.
    q: Option<String>,
    /// Only those with this status.
    status: Option<Status>,
    /// Only those that need a person: that wait for decisions, were interrupted, failed, or are invalid.
    #[serde(default)]
    stopped: bool,
}

pub(super) async fn list(
    request: ApiRequest<AppTarget, SessionPageQuery>,
) -> Result<Json<SessionRows>, Problem> {
    let (app, user) = (&request.target.0, request.principal.user());
    let SessionPageQuery { after, limit, q, status, stopped } = request.query;
    let filter = SessionFilter { text: q.map(|text| text.to_lowercase()), status, is_stopped: stopped };
    let limit = limit.unwrap_or(100).clamp(1, MOST);
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    let (mut sessions, mut looked, mut next) = (Vec::new(), 0, after.map(SessionCursor::new));
    loop {
        let list = ListSessions::new(app.name(), user.as_str())?.after(next).limit(limit - sessions.len());
        let page = app.runner().store().list(filter.narrow(list)).await?;
        next = page.next;
        looked += page.sessions.len();
        // Held until the rows are made.
        let budget = CommitBudget::reserve(&request.memory, PAGE_BYTES / 2);
        let known = known_overviews(app, user, &page.sessions, budget.as_ref()).await?;
        let rows = page.sessions.into_iter().zip(known).map(|(stored, known)| {
            let (app, filter, turns) = (Arc::clone(app), filter.clone(), Arc::clone(&turns));
            let memory = request.memory.new_empty();
            async move {
                if let Some(known) = known {
                    let row = row_of(&known);
                    return Ok(filter.matches(&row).then_some(row));
                }
                let _turn = acquire_turn(&app, &stored, &turns, &memory).await?;
                filtered_row(&app, &stored, &filter).await
            }
            .boxed()
        });
        let rows = futures_util::stream::iter(rows).buffered(AT_ONCE);
        let rows: Vec<Option<SessionRow>> = rows.try_collect().await?;
        sessions.extend(rows.into_iter().flatten());
        // Each page of the store is as long as what is left of this one: half a page is enough to end it.
        let is_full = sessions.len() * 2 >= limit || filter == SessionFilter::default();
        if next.is_none() || is_full || looked >= LOOKED {
            return Ok(Json(SessionRows { sessions, next: next.map(|cursor| cursor.as_str().to_owned()) }));
        }
    }
}

/// The sessions of a page, by one request to the store; `None` for those that have to be read by themselves.
async fn known_overviews(
    app: &App,
    user: &UserId,
    sessions: &[Session],
    budget: Option<&CommitBudget>,
) -> Result<Vec<Option<Overview>>, Problem> {
    let Some(budget) = budget else { return Ok(sessions.iter().map(|_| None).collect()) };
    let ids = sessions.iter().map(|session| session.key.id.clone()).collect();
    let depth = OverviewDepth { first: FIRST, bytes: budget.bytes, runs: RunsOf::Stopped };
    match overviews(app, user, ids, depth).await {
        Err(error) if error.is_sealed() => Ok(sessions.iter().map(|_| None).collect()),
        found => Ok(found?),
    }
}

/// The row of a session.
fn row_of(overview: &Overview) -> SessionRow {
    let mut row = SessionRow::of(&overview.stored);
    row.status = Some(overview.status());
    row.forks = overview.forks;
    row.title = title(&overview.first);
    row.imported = ImportedRow::of(&overview.first);
    row
}

/// The beginning of the first message among commits.
fn title(first: &[CommittedEvent]) -> Option<String> {
    let mut messages = first.iter().flat_map(|committed| &committed.event.messages);
    let first_message = messages.find(|message| message.role() == Role::User);
    first_message.map(|message| short(&message.text())).filter(|title| !title.is_empty())
}

/// The sessions that are looked at for one page of those that are wanted.
const LOOKED: usize = 2_000;

/// Which sessions are listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct SessionFilter {
    /// A part of the id or of the title, in lower case.
    text: Option<String>,
    status: Option<Status>,
    is_stopped: bool,
}

impl SessionFilter {
    /// The list of a store that has all of these, and may have others.
    fn narrow(&self, request: ListSessions) -> ListSessions {
        let request = if self.is_of_unfinished() { request.unfinished() } else { request };
        match &self.text {
            Some(text) => request.containing(text),
            None => request,
        }
    }

    fn matches(&self, row: &SessionRow) -> bool {
        let has = |text: &str, wanted: &str| text.to_lowercase().contains(wanted);
        let has_text = |wanted: &String| {
            has(&row.id, wanted) || row.title.as_ref().is_some_and(|title| has(title, wanted))
        };
        let is_stopped = || row.status.is_some_and(Status::is_stopped);
        self.text.as_ref().is_none_or(has_text)
            && self.status.is_none_or(|wanted| row.status == Some(wanted))
            && (!self.is_stopped || is_stopped())
    }

    /// Whether only a session in the middle of a run can have the status.
    fn is_of_unfinished(&self) -> bool {
        self.is_stopped || self.status.is_some_and(Status::is_stopped)
    }
}

/// Takes the memory of the newest commit of a session, with a turn among those that are described at once: a large one is
/// alone.
async fn acquire_turn<'a>(
    app: &App,
    stored: &Session,
    turns: &'a Semaphore,
    memory: &MemoryReservation,
) -> Result<SemaphorePermit<'a>, Problem> {
    let newest = CommitSizes::after(app.runner(), &stored.key, (stored.version.saturating_sub(1), 1)).await;
    let is_small = newest.as_ref().map_or(true, CommitSizes::are_small);
    let turn = turns.acquire_many(if is_small { 1 } else { ALL_TURNS }).await;
    let turn = turn.map_err(|_| Problem::unavailable("the server stops"))?;
    let taken = async { newest?.reserve(memory, app.runner()).await };
    match taken.await {
        // It may have been deleted meanwhile, or its sizes are sealed with the rest.
        Err(problem) if problem.status() != StatusCode::NOT_FOUND && !problem.is_sealed() => Err(problem),
        _ => Ok(turn),
    }
}

/// The row of a session, if it is wanted.
async fn filtered_row(
    app: &App,
    stored: &Session,
    filter: &SessionFilter,
) -> Result<Option<SessionRow>, Problem> {
    let row = described(app, stored).await?;
    Ok(filter.matches(&row).then_some(row))
}

/// The title of a session, and who imported it; nothing of one that is sealed.
async fn title_and_import(
    app: &App,
    session: &SessionHandle,
) -> Result<(Option<String>, Option<ImportedRow>), Problem> {
    let first = async {
        let page = PagePlan::just_after(app.runner(), session.key(), (0, FIRST)).await?;
        Ok(session.read_events(page.range).await?)
    };
    match first.await {
        Err(problem) if Problem::is_sealed(&problem) => Ok((None, None)),
        first => first.map(|first| (title(&first.events), ImportedRow::of(&first.events))),
    }
}

/// The number of sessions that are described at once.
const AT_ONCE: usize = ALL_TURNS as usize;

const ALL_TURNS: u32 = 8;

/// A row with what a session does, and how it began.
async fn described(app: &App, stored: &Session) -> Result<SessionRow, Problem> {
    let session = app.runner().find_session(stored.key.user.as_str(), stored.key.id.as_str()).await?;
    let mut row = SessionRow::of(stored);
    // It may have been deleted meanwhile.
    let Some(session) = session else { return Ok(row) };
    match describe(app, &session, &mut row).await {
        Err(problem) if problem.status() != StatusCode::NOT_FOUND => Err(problem),
        _ => Ok(row),
    }
}

async fn describe(app: &App, session: &SessionHandle, row: &mut SessionRow) -> Result<(), Problem> {
    row.status = Some(Status::of(session).await?.1);
    row.forks = number_of_forks(app, session).await?;
    (row.title, row.imported) = title_and_import(app, session).await?;
    Ok(())
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
    request: ApiRequest<AppTarget, (), JsonBody<NewSession>>,
) -> Result<CreatedReply<SessionRow>, Problem> {
    let (app, JsonBody(new)) = (request.target.0, request.body);
    check_shared(&request.principal, &new.values)?;
    let id = new.id.unwrap_or_else(|| RandomIds.next());
    let user = request.principal.user().as_str();
    let session = app.runner().create(user, id.as_str(), Value::Object(new.values)).await?;
    let value = SessionRow::of(&session.read_events(EventRange::None).await?);
    Ok(CreatedReply::session(&app, &id, value))
}

pub(super) async fn read(request: ApiRequest<SessionTarget>) -> Result<Json<SessionDetail>, Problem> {
    let session = &request.target.session;
    let Overview { stored, first, forks, run, .. } = overview(&request).await?;
    let inbox = session.inbox().await?;
    let waiting = |message: &stepfold_runner::WaitingMessage| WaitingRow {
        invocation: message.id.to_string(),
        at: message.at.to_string(),
        text: message.input.messages().map(|message| message.text()).collect::<Vec<_>>().join("\n"),
        joins: message.joins,
    };
    let mut row = SessionRow::of(&stored);
    row.status = Some(Status::decide(session, &stored, &run));
    row.forks = forks;
    row.imported = ImportedRow::of(&first);
    let question = stored.events.last().and_then(|newest| exhausted_budget(&newest.event));
    let question = question.filter(|_| row.status == Some(Status::Waiting));
    Ok(Json(SessionDetail {
        session: row,
        running: session.running().map(|running| running.id().to_string()),
        unfinished: !matches!(run, LastRun::Ended),
        pending: run.pending().iter().map(RequestRow::of).collect(),
        budget: question.as_ref().map(BudgetQuestionRow::of),
        invalid: match run {
            LastRun::Invalid(why) => Some(why),
            LastRun::Ended | LastRun::Unfinished(_) => None,
        },
        inbox: inbox.iter().map(waiting).collect(),
    }))
}

/// A session with its newest commit and its first one: by one request to the store, if they are small.
async fn overview(request: &ApiRequest<SessionTarget>) -> Result<Overview, Problem> {
    let SessionTarget { app, session } = &request.target;
    if let Some(budget) = CommitBudget::reserve(&request.memory, SMALL_BYTES) {
        let depth = OverviewDepth { first: 1, bytes: budget.bytes, runs: RunsOf::All };
        let found = overviews(app, &session.key().user, vec![session.key().id.clone()], depth).await?;
        if let Some(found) = found.into_iter().flatten().next() {
            return Ok(found);
        }
    }
    reserve_newest(&request.memory, request.target.runner(), session).await?;
    let stored = session.read_events(EventRange::Last(1)).await?;
    let run = LastRun::of(session).await?;
    let forks = number_of_forks(app, session).await?;
    let first = session.read_events(EventRange::Page { after: 0, limit: 1 }).await?.events;
    Ok(Overview { session: session.clone(), stored, first, forks, run })
}

/// The scope of a deletion.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DeletionQuery {
    /// Also the values of the user (`user:`), which its other sessions share.
    #[serde(default)]
    user_state: bool,
}

pub(super) async fn delete(request: ApiRequest<SessionTarget, DeletionQuery>) -> Result<NoContent, Problem> {
    request.target.session.delete(request.query.user_state).await?;
    Ok(NoContent)
}
