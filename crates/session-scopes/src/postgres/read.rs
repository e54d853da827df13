//! The operations that change nothing. What one of them sees is of one moment, in one round trip.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use deadpool_postgres::Object;
use futures_util::future::try_join_all;
use tokio::try_join;
use tokio_postgres::Row;

use super::rows::{
    History, Schemas, ScopeRow, Scopes, SessionRow, events, heads, session_items, shared_items, values,
};
use super::statements::{
    CHANGED_CELLS, CHANGED_SHARED, EVENTS, FIND_CELLS, FIND_ITEMS, FIND_SHARED, FIND_SHARED_ITEMS,
    LAST_BEFORE, LIST_SESSIONS, LISTED_REWINDS, READ_CELLS, READ_ITEMS, READ_LINEAGE, READ_REWINDS,
    READ_SCOPES, READ_SESSION, READ_SHARED, READ_SHARED_ITEMS,
};
use super::transaction::{Transaction, begin_reading, commit, query};
use crate::changes::ScopeVersions;
use crate::error::SessionError;
use crate::event::CommittedEvent;
use crate::ids::{SessionId, SessionKey};
use crate::rows::{from_db, to_db};
use crate::scope::{ByScope, Scope};
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
    let key = &request.key;
    let (app, user, id) = (key.app.as_str(), key.user.as_str(), key.id.as_str());
    let ask = |sql| async move { query(connection, sql, &[&app, &user, &id]).await };
    let is_whole = request.state && request.since.is_none() && request.keys.is_none();
    let (row, lineage, rewinds, scopes, whole, changed) = try_join!(biased;
        ask(READ_SESSION),
        ask(READ_LINEAGE),
        ask(READ_REWINDS),
        async { query(connection, READ_SCOPES, &[&app, &user]).await },
        async { if is_whole { Whole::read(connection, key).await.map(Some) } else { Ok(None) } },
        Changed::read(connection, request),
    )?;
    let row = SessionRow::of(&row, key)?;
    let scopes = Scopes::of(&scopes);
    let history = History::read(&lineage, &rewinds);
    let visible = Visible::at(row.version, &history.rewinds);
    let events = read_events(connection, row.number, row.oldest, request.events).await?;
    let values = match (request.state, whole) {
        (false, _) => None,
        (true, Some(whole)) => Some(whole.values(connection, schemas, &history, &visible).await?),
        (true, None) => {
            let asked = changed.asked(request, &row, &history, &scopes);
            Some(some_values(connection, schemas, key, &history, &visible, asked).await?)
        }
    };
    Ok(Session { values, events, ..row.session(key.clone(), visible, scopes.versions())? })
}

/// The rows of a scope's values, and of the items of its lists.
struct Part {
    cells: Vec<Row>,
    items: Vec<Row>,
}

/// The rows of all values of a session.
struct Whole(ByScope<Part>);

impl Whole {
    async fn read(connection: &Object, key: &SessionKey) -> Result<Self, SessionError> {
        let (own, app, user) = try_join!(biased;
            Part::own(connection, key, None),
            Part::shared(connection, (key.app.as_str(), ""), None),
            Part::shared(connection, (key.app.as_str(), key.user.as_str()), None),
        )?;
        Ok(Whole(ByScope { app, user, session: own }))
    }

    async fn values(
        self,
        connection: &Object,
        schemas: &Schemas,
        history: &History,
        visible: &Visible,
    ) -> Result<ByScope<Values>, SessionError> {
        let Whole(ByScope { app, user, session }) = self;
        Ok(ByScope {
            app: app.shared_values(connection, schemas).await?,
            user: user.shared_values(connection, schemas).await?,
            session: session.own_values(connection, schemas, history, visible).await?,
        })
    }
}

impl Part {
    /// The rows of a session's own values: all, or those of these keys.
    async fn own(
        connection: &Object,
        key: &SessionKey,
        keys: Option<&[String]>,
    ) -> Result<Self, SessionError> {
        let (app, user, id) = (key.app.as_str(), key.user.as_str(), key.id.as_str());
        let ask = |all, some| async move {
            match keys {
                None => query(connection, all, &[&app, &user, &id]).await,
                Some([]) => Ok(Vec::new()),
                Some(keys) => query(connection, some, &[&app, &user, &id, &keys]).await,
            }
        };
        let (cells, items) = try_join!(biased; ask(READ_CELLS, FIND_CELLS), ask(READ_ITEMS, FIND_ITEMS))?;
        Ok(Part { cells, items })
    }

    /// The rows of a shared scope's values: all, or those of these keys.
    async fn shared(
        connection: &Object,
        (app, owner): (&str, &str),
        keys: Option<&[String]>,
    ) -> Result<Self, SessionError> {
        let ask = |all, some| async move {
            match keys {
                None => query(connection, all, &[&app, &owner]).await,
                Some([]) => Ok(Vec::new()),
                Some(keys) => query(connection, some, &[&app, &owner, &keys]).await,
            }
        };
        let (cells, items) =
            try_join!(biased; ask(READ_SHARED, FIND_SHARED), ask(READ_SHARED_ITEMS, FIND_SHARED_ITEMS))?;
        Ok(Part { cells, items })
    }

    async fn own_values(
        self,
        connection: &Object,
        schemas: &Schemas,
        history: &History,
        visible: &Visible,
    ) -> Result<Values, SessionError> {
        let heads = heads(&self.cells)?;
        let items = session_items(&heads, &self.items, history, visible)?;
        values(connection, schemas, heads, items).await
    }

    async fn shared_values(self, connection: &Object, schemas: &Schemas) -> Result<Values, SessionError> {
        values(connection, schemas, heads(&self.cells)?, shared_items(&self.items)?).await
    }
}

/// The keys of each scope whose values are read; none: all of them.
type Asked = ByScope<Option<BTreeSet<Arc<str>>>>;

/// The values of some keys.
async fn some_values(
    connection: &Object,
    schemas: &Schemas,
    key: &SessionKey,
    history: &History,
    visible: &Visible,
    asked: Asked,
) -> Result<ByScope<Values>, SessionError> {
    let texts = |keys: &Option<BTreeSet<Arc<str>>>| -> Option<Vec<String>> {
        keys.as_ref().map(|keys| keys.iter().map(ToString::to_string).collect())
    };
    let (own, app, user) = (texts(&asked.session), texts(&asked.app), texts(&asked.user));
    let (own, app, user) = try_join!(biased;
        Part::own(connection, key, own.as_deref()),
        Part::shared(connection, (key.app.as_str(), ""), app.as_deref()),
        Part::shared(connection, (key.app.as_str(), key.user.as_str()), user.as_deref()),
    )?;
    let read = Whole(ByScope { app, user, session: own });
    let read = read.values(connection, schemas, history, visible).await?;
    let restricted = |values: Values, keys: Option<BTreeSet<Arc<str>>>| match keys {
        Some(keys) => values.restricted_to(keys),
        None => values,
    };
    Ok(ByScope {
        app: restricted(read.app, asked.app),
        user: restricted(read.user, asked.user),
        session: restricted(read.session, asked.session),
    })
}

/// The keys that were written since a version, as far as that can be told of the rows alone.
struct Changed(ByScope<Vec<Row>>);

impl Changed {
    async fn read(connection: &Object, request: &GetSession) -> Result<Self, SessionError> {
        let Some(seen) = request.since.filter(|_| request.state) else {
            return Ok(Changed(ByScope::default()));
        };
        let key = &request.key;
        let (app, user, id) = (key.app.as_str(), key.user.as_str(), key.id.as_str());
        let [own, of_app, of_user] = [seen.version, seen.scopes.app, seen.scopes.user].map(to_db);
        let (session, app, user) = try_join!(biased;
            async { query(connection, CHANGED_CELLS, &[&app, &user, &id, &own]).await },
            async { query(connection, CHANGED_SHARED, &[&app, &"", &of_app]).await },
            async { query(connection, CHANGED_SHARED, &[&app, &user, &of_user]).await },
        )?;
        Ok(Changed(ByScope { app, user, session }))
    }

    fn asked(&self, request: &GetSession, row: &SessionRow, history: &History, scopes: &Scopes) -> Asked {
        let keys = |rows: &[Row]| rows.iter().map(|row| Arc::from(row.get::<_, &str>(0))).collect();
        let since = request.since;
        let own = since.filter(|seen| is_known(seen.version, row, history)).map(|_| keys(&self.0.session));
        let shared = |seen: Option<u64>, scope: ScopeRow, rows: &[Row]| {
            seen.filter(|version| (scope.known..=scope.version).contains(version)).map(|_| keys(rows))
        };
        let app = shared(since.map(|seen| seen.scopes.app), scopes.app, &self.0.app);
        let user = shared(since.map(|seen| seen.scopes.user), scopes.user, &self.0.user);
        ByScope {
            app: request.looked_up(Scope::App, app),
            user: request.looked_up(Scope::User, user),
            session: request.looked_up(Scope::Session, own),
        }
    }
}

/// Whether the rows tell what has changed of a session since a version of it.
fn is_known(version: u64, row: &SessionRow, history: &History) -> bool {
    let first = history.lineage.first().map_or(0, |own| own.after);
    (first.max(row.oldest)..=row.version).contains(&version)
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
    Part { cells, items }.shared_values(connection, schemas).await
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
    let ((), rows, scopes) = try_join!(biased;
        begin_reading(connection),
        query(connection, LIST_SESSIONS, given),
        async { query(connection, READ_SCOPES, &[&app, &user]).await },
    )?;
    let is_last = rows.len() <= request.limit;
    let mut found = Vec::new();
    for row in rows.iter().take(request.limit) {
        let id = SessionId::new(row.get::<_, String>(7))?;
        let key = SessionKey { app: request.app.clone(), user: request.user.clone(), id };
        found.push((key, SessionRow::read(row)?));
    }
    let next = found.last().map(|(_, row)| Cursor::behind(row.updated, row.number)).filter(|_| !is_last);
    let sessions = if request.state || request.events != EventRange::None {
        let gets: Vec<GetSession> = found.into_iter().map(|(key, _)| request.get(key)).collect();
        try_join_all(gets.iter().map(|get| session(connection, schemas, get))).await?
    } else {
        metadata(connection, found, Scopes::of(&scopes).versions()).await?
    };
    commit(connection).await?;
    transaction.end();
    Ok(SessionPage { sessions, next })
}

/// Sessions without values and events.
async fn metadata(
    connection: &Object,
    found: Vec<(SessionKey, SessionRow)>,
    scopes: ScopeVersions,
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
        row.session(key, visible, scopes)
    });
    sessions.collect()
}
