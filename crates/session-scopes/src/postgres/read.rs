//! The operations that change nothing. What one of them sees is of one moment, in one round trip.

use std::collections::HashMap;

use deadpool_postgres::Object;
use futures_util::future::try_join_all;
use tokio::try_join;
use tokio_postgres::Row;

use super::rows::{History, Schemas, SessionRow, events, heads, session_items, shared_items, values};
use super::statements::{
    EVENTS, LAST_BEFORE, LIST_SESSIONS, LISTED_REWINDS, READ_CELLS, READ_ITEMS, READ_LINEAGE, READ_REWINDS,
    READ_SESSION, READ_SHARED, READ_SHARED_ITEMS,
};
use super::transaction::{Transaction, begin_reading, commit, query};
use crate::error::SessionError;
use crate::event::CommittedEvent;
use crate::ids::{SessionId, SessionKey};
use crate::rows::{from_db, to_db};
use crate::scope::ByScope;
use crate::session::{Rewound, Session, Values, Visible};
use crate::store::{Cursor, EventRange, GetSession, ListSessions, ScopeKey, SessionPage};
use crate::time::Timestamp;

pub(super) async fn get(
    connection: Object,
    schemas: &Schemas,
    request: &GetSession,
) -> Result<Session, SessionError> {
    let transaction = Transaction::new(connection);
    let connection = transaction.connection()?;
    let ((), session) = try_join!(biased; begin_reading(connection), session(connection, schemas, request))?;
    commit(connection).await?;
    transaction.end();
    Ok(session)
}

/// A session, as much of it as is asked for, inside a transaction.
pub(super) async fn session(
    connection: &Object,
    schemas: &Schemas,
    request: &GetSession,
) -> Result<Session, SessionError> {
    let GetSession { key, events, state, .. } = request;
    let (app, user, id) = (key.app.as_str(), key.user.as_str(), key.id.as_str());
    let ask = |sql| async move { query(connection, sql, &[&app, &user, &id]).await };
    let ask_state = |sql| async move { if *state { ask(sql).await } else { Ok(Vec::new()) } };
    let shared = |sql, owner: &'static str, is_app: bool| async move {
        let owner = if is_app { owner } else { user };
        if *state { query(connection, sql, &[&app, &owner]).await } else { Ok(Vec::new()) }
    };
    let (row, lineage, rewinds, cells, items, app_cells, app_items, user_cells, user_items) = try_join!(biased;
        ask(READ_SESSION),
        ask(READ_LINEAGE),
        ask(READ_REWINDS),
        ask_state(READ_CELLS),
        ask_state(READ_ITEMS),
        shared(READ_SHARED, "", true),
        shared(READ_SHARED_ITEMS, "", true),
        shared(READ_SHARED, "", false),
        shared(READ_SHARED_ITEMS, "", false),
    )?;
    let row = SessionRow::of(&row, key)?;
    let history = History::read(&lineage, &rewinds);
    let visible = Visible::at(row.version, &history.rewinds);
    let events = read_events(connection, row.number, row.oldest, *events).await?;
    let scopes = if *state {
        let heads = heads(&cells)?;
        let items = session_items(&heads, &items, &history, &visible)?;
        Some(ByScope {
            app: shared_values(connection, schemas, &app_cells, &app_items).await?,
            user: shared_values(connection, schemas, &user_cells, &user_items).await?,
            session: values(connection, schemas, heads, items).await?,
        })
    } else {
        None
    };
    Ok(Session { values: scopes, events, ..row.session(key.clone(), visible)? })
}

async fn shared_values(
    connection: &Object,
    schemas: &Schemas,
    cells: &[Row],
    items: &[Row],
) -> Result<Values, SessionError> {
    values(connection, schemas, heads(cells)?, shared_items(items)?).await
}

async fn read_events(
    connection: &Object,
    number: i64,
    oldest: u64,
    range: EventRange,
) -> Result<Vec<CommittedEvent>, SessionError> {
    let (after, limit) = match range {
        EventRange::None | EventRange::Last(0) => return Ok(Vec::new()),
        EventRange::All => (oldest, i64::MAX),
        EventRange::Last(count) => (oldest, i64::try_from(count).unwrap_or(i64::MAX)),
        EventRange::AfterVersion(version) => (version.max(oldest), i64::MAX),
        EventRange::Since(time) => {
            let given: &[&(dyn tokio_postgres::types::ToSql + Sync)] =
                &[&number, &to_db(oldest), &time.as_micros()];
            let found = query(connection, LAST_BEFORE, given).await?;
            (found.first().map_or(oldest, |row| from_db(row.get(0))), i64::MAX)
        }
    };
    events(&query(connection, EVENTS, &[&number, &to_db(after), &limit]).await?)
}

pub(super) async fn read_scope(
    connection: Object,
    schemas: &Schemas,
    scope: &ScopeKey,
) -> Result<Values, SessionError> {
    let transaction = Transaction::new(connection);
    let connection = transaction.connection()?;
    let ((), values) =
        try_join!(biased; begin_reading(connection), scope_values(connection, schemas, scope))?;
    commit(connection).await?;
    transaction.end();
    Ok(values)
}

/// The values of a shared scope, inside a transaction.
pub(super) async fn scope_values(
    connection: &Object,
    schemas: &Schemas,
    scope: &ScopeKey,
) -> Result<Values, SessionError> {
    let (app, user) = scope.parts();
    let (app, user) = (app.as_str(), user.map_or("", |user| user.as_str()));
    let ask = |sql| async move { query(connection, sql, &[&app, &user]).await };
    let (cells, items) = try_join!(biased; ask(READ_SHARED), ask(READ_SHARED_ITEMS))?;
    shared_values(connection, schemas, &cells, &items).await
}

pub(super) async fn list(
    connection: Object,
    schemas: &Schemas,
    request: &ListSessions,
) -> Result<SessionPage, SessionError> {
    let after = request.after.as_ref().map(Cursor::position).transpose()?;
    let (updated, number) = after.unwrap_or((Timestamp::from_micros(i64::MAX), i64::MAX));
    let limit = i64::try_from(request.limit).unwrap_or(i64::MAX).saturating_add(1);
    let (app, user, updated) = (request.app.as_str(), request.user.as_str(), updated.as_micros());
    let transaction = Transaction::new(connection);
    let connection = transaction.connection()?;
    let given: &[&(dyn tokio_postgres::types::ToSql + Sync)] = &[&app, &user, &updated, &number, &limit];
    let ((), rows) = try_join!(biased; begin_reading(connection), query(connection, LIST_SESSIONS, given))?;
    let is_last = rows.len() <= request.limit;
    let mut found = Vec::new();
    for row in rows.iter().take(request.limit) {
        let id = SessionId::new(row.get::<_, String>(7))?;
        let key = SessionKey { app: request.app.clone(), user: request.user.clone(), id };
        found.push((key, SessionRow::read(row)?));
    }
    let next = found.last().map(|(_, row)| Cursor::behind(row.updated, row.number)).filter(|_| !is_last);
    let sessions = if request.state || request.events != EventRange::None {
        let gets: Vec<GetSession> = found
            .into_iter()
            .map(|(key, _)| GetSession {
                key,
                events: request.events,
                state: request.state,
                now: request.now,
            })
            .collect();
        try_join_all(gets.iter().map(|get| session(connection, schemas, get))).await?
    } else {
        metadata(connection, found).await?
    };
    commit(connection).await?;
    transaction.end();
    Ok(SessionPage { sessions, next })
}

/// Sessions without values and events.
async fn metadata(
    connection: &Object,
    found: Vec<(SessionKey, SessionRow)>,
) -> Result<Vec<Session>, SessionError> {
    let numbers: Vec<i64> = found.iter().map(|(_, row)| row.number).collect();
    let mut rewinds: HashMap<i64, Vec<Rewound>> = HashMap::new();
    for row in query(connection, LISTED_REWINDS, &[&numbers]).await? {
        let rewound = Rewound { version: from_db(row.get(1)), to: from_db(row.get(2)) };
        rewinds.entry(row.get(0)).or_default().push(rewound);
    }
    let sessions = found.into_iter().map(|(key, row)| {
        let rewinds = rewinds.remove(&row.number).unwrap_or_default();
        let visible = Visible::at(row.version, &rewinds);
        row.session(key, visible)
    });
    sessions.collect()
}
