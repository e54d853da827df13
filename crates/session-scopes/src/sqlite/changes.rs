//! Which keys of a session and of its scopes were written since a version, found without reading their values.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::Deserialize;

use super::error::failed;
use super::history::{SqliteHistory, SqliteSessionRow};
use super::seal::ScopeSeal;
use super::threads::SqliteConnection;
use crate::error::SessionError;
use crate::ids::{AppId, SessionKey, UserId};
use crate::rows::lineage::{from_db, to_db};
use crate::rows::shared::{ScopeRow, SharedScopes};
use crate::scope::Scope;
use crate::store::REMEMBERED_REMOVALS;

/// The written keys of an event's body.
#[derive(Deserialize)]
struct WrittenKeys<'a> {
    #[serde(borrow, default)]
    delta: Vec<WrittenKey<'a>>,
}

#[derive(Deserialize)]
struct WrittenKey<'a> {
    #[serde(borrow)]
    key: Cow<'a, str>,
}

/// The session's own keys that were written after a version; `None` if they are unknown.
///
/// Its events name them, as long as none of them is a rewind; after one, the rows of all keys are examined.
pub(super) fn session_keys(
    sqlite: &SqliteConnection,
    row: &SqliteSessionRow,
    history: &SqliteHistory,
    version: u64,
) -> Result<Option<BTreeSet<Arc<str>>>, SessionError> {
    let first = history.lineage.first().map_or(0, |own| own.after);
    if version < first.max(row.oldest) || version > row.version {
        return Ok(None);
    }
    if row.state.rewound > version {
        rewritten(&sqlite.connection, row.number, version)
    } else {
        written(sqlite, row, history, version)
    }
    .map(Some)
}

fn written(
    sqlite: &SqliteConnection,
    row: &SqliteSessionRow,
    history: &SqliteHistory,
    version: u64,
) -> Result<BTreeSet<Arc<str>>, SessionError> {
    let mut keys = BTreeSet::new();
    history.bodies((&sqlite.connection, sqlite.key()), row, version, |body| {
        let written: WrittenKeys<'_> = serde_json::from_str(body)
            .map_err(|source| SessionError::Stored { what: "event".to_owned(), source })?;
        let own = written.delta.into_iter().filter(|write| Scope::of(&write.key) == Scope::Session);
        keys.extend(own.map(|write| Arc::from(write.key)));
        Ok(())
    })?;
    Ok(keys)
}

fn rewritten(connection: &Connection, stream: i64, version: u64) -> Result<BTreeSet<Arc<str>>, SessionError> {
    keys(
        connection,
        "SELECT key FROM stepfold_cells WHERE stream = ?1 AND version > ?2",
        &[stream, to_db(version)],
    )
}

/// Reads `scope, version, known, seal` of the app and of the user, from a column on. Both rows exist as long as a session
/// does.
pub(super) fn read_scopes(
    row: &Row<'_>,
    first: usize,
    key: &SessionKey,
) -> rusqlite::Result<Result<SharedScopes, SessionError>> {
    let scope = |first: usize, user: Option<&UserId>| match row.get::<_, Option<i64>>(first)? {
        Some(_) => ScopeRow::read(row, first, &key.app, user),
        None => Ok(Err(missing_scope(&key.app, user))),
    };
    let (app, user) = (scope(first, None)?, scope(first + 4, Some(&key.user))?);
    Ok(app.and_then(|app| Ok(SharedScopes { app, user: user? })))
}

/// The scopes of the sessions of a user who has some.
pub(super) fn scopes_of(
    connection: &Connection,
    app: &AppId,
    user: &UserId,
) -> Result<SharedScopes, SessionError> {
    let scope = |user| ScopeRow::find(connection, app, user)?.ok_or_else(|| missing_scope(app, user));
    Ok(SharedScopes { app: scope(None)?, user: scope(Some(user))? })
}

/// The error for a scope whose row is missing.
pub(super) fn missing_scope(app: &AppId, user: Option<&UserId>) -> SessionError {
    ScopeRow::new(0, app, user).damaged("missing row")
}

impl ScopeRow {
    /// The scope, if it was ever made.
    pub(super) fn find(
        connection: &Connection,
        app: &AppId,
        user: Option<&UserId>,
    ) -> Result<Option<Self>, SessionError> {
        let failed = failed("find a scope");
        let name = user.map_or("", UserId::as_str);
        let found = connection
            .prepare_cached(
                "SELECT scope, version, known, seal FROM stepfold_scopes WHERE app = ?1 AND user = ?2",
            )
            .and_then(|mut query| {
                query.query_row([app.as_str(), name], |row| ScopeRow::read(row, 0, app, user)).optional()
            })
            .map_err(failed)?;
        found.transpose()
    }

    /// Reads `scope, version, known, seal` from a column on, and checks that they are those of this scope.
    fn read(
        row: &Row<'_>,
        first: usize,
        app: &AppId,
        user: Option<&UserId>,
    ) -> rusqlite::Result<Result<Self, SessionError>> {
        let (version, known) = (from_db(row.get(first + 1)?), from_db(row.get(first + 2)?));
        let seal: ScopeSeal = row.get(first + 3)?;
        Ok(ScopeRow::new(row.get(first)?, app, user).opened((version, known), Some(seal)))
    }

    /// Finds the scope, or creates it.
    pub(super) fn find_or_make(
        connection: &Connection,
        app: &AppId,
        user: Option<&UserId>,
    ) -> Result<Self, SessionError> {
        if let Some(scope) = ScopeRow::find(connection, app, user)? {
            return Ok(scope);
        }
        let failed = failed("create a scope");
        let scope: i64 = connection
            .prepare_cached("SELECT COALESCE(MAX(scope), 0) + 1 FROM stepfold_scopes")
            .and_then(|mut query| query.query_row([], |row| row.get(0)))
            .map_err(failed)?;
        let row = ScopeRow::new(scope, app, user);
        connection
            .prepare_cached(
                "INSERT INTO stepfold_scopes (scope, app, user, version, known, seal) \
                 VALUES (?1, ?2, ?3, 0, 0, ?4)",
            )
            .and_then(|mut insert| insert.execute(params![scope, app.as_str(), row.user(), row.seal()]))
            .map_err(failed)?;
        Ok(row)
    }

    /// Stores the changed columns.
    pub(super) fn store(&self, connection: &Connection) -> Result<(), SessionError> {
        let (version, known) = (to_db(self.version), to_db(self.known));
        connection
            .prepare_cached("UPDATE stepfold_scopes SET version = ?2, known = ?3, seal = ?4 WHERE scope = ?1")
            .and_then(|mut update| update.execute(params![self.scope, version, known, self.seal()]))
            .map(drop)
            .map_err(failed("write to a scope"))
    }

    /// Checks that all rows of keys exist, without reading their values.
    pub(super) fn check_keys(&self, sqlite: &SqliteConnection) -> Result<(), SessionError> {
        let sums = sqlite.connection.prepare_cached("SELECT checksum FROM stepfold_shared WHERE scope = ?1");
        let sum = sums.and_then(|mut sums| {
            let mut sums = sums.query_map([self.scope], |row| row.get::<_, i64>(0))?;
            sums.try_fold(0, |sum, next| Ok(sum ^ next?))
        });
        self.check_cells(sum.map_err(failed("read shared values"))?)
    }

    /// The keys that were written after a version; none if that is not known.
    pub(super) fn keys(
        &self,
        connection: &Connection,
        version: u64,
    ) -> Result<Option<BTreeSet<Arc<str>>>, SessionError> {
        if version < self.known || version > self.version {
            return Ok(None);
        }
        if version == self.version {
            return Ok(Some(BTreeSet::new()));
        }
        keys(
            connection,
            "SELECT key FROM stepfold_shared WHERE scope = ?1 AND version > ?2 \
             UNION ALL SELECT key FROM stepfold_removed WHERE scope = ?1 AND version > ?2",
            &[self.scope, to_db(version)],
        )
        .map(Some)
    }
}

fn keys(connection: &Connection, query: &str, of: &[i64; 2]) -> Result<BTreeSet<Arc<str>>, SessionError> {
    let failed = failed("read changes");
    let mut query = connection.prepare_cached(query).map_err(failed)?;
    let keys = query.query_map(*of, |row| row.get::<_, Arc<str>>(0));
    keys.and_then(Iterator::collect).map_err(failed)
}

/// Records that the newest write of a scope removed a key, and forgets the oldest removals above the limit.
pub(super) fn remember_removal(
    connection: &Connection,
    row: &mut ScopeRow,
    key: &str,
) -> Result<(), SessionError> {
    let failed = failed("record a removal");
    let run = |statement: &str, values: &[&dyn rusqlite::ToSql]| {
        let statement = connection.prepare_cached(statement);
        statement.and_then(|mut statement| statement.execute(values)).map(drop).map_err(failed)
    };
    run(
        "INSERT INTO stepfold_removed (scope, key, version) VALUES (?1, ?2, ?3) \
         ON CONFLICT (scope, key) DO UPDATE SET version = ?3",
        &[&row.scope, &key, &to_db(row.version)],
    )?;
    let kept = to_db(REMEMBERED_REMOVALS as u64);
    let known: Option<i64> = connection
        .prepare_cached(
            "SELECT version FROM stepfold_removed WHERE scope = ?1 ORDER BY version DESC LIMIT 1 OFFSET ?2",
        )
        .and_then(|mut query| query.query_row([row.scope, kept], |row| row.get(0)).optional())
        .map_err(failed)?;
    let Some(known) = known else { return Ok(()) };
    run("DELETE FROM stepfold_removed WHERE scope = ?1 AND version <= ?2", &[&row.scope, &known])?;
    row.known = row.known.max(from_db(known));
    Ok(())
}
