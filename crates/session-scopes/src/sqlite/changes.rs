//! Which keys of a session and of its scopes were written since a version, found without reading their values.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension};
use serde::Deserialize;

use super::error::failed;
use super::history::{History, SessionRow};
use super::trail::row_number;
use crate::changes::ScopeVersions;
use crate::error::SessionError;
use crate::ids::SessionKey;
use crate::rows::{from_db, to_db};
use crate::scope::Scope;
use crate::store::REMEMBERED_REMOVALS;

/// The part of an event's body that is of interest here.
#[derive(Deserialize)]
struct Written<'a> {
    #[serde(borrow, default)]
    delta: Vec<WrittenKey<'a>>,
}

#[derive(Deserialize)]
struct WrittenKey<'a> {
    #[serde(borrow)]
    key: Cow<'a, str>,
}

/// The session's own keys that were written after a version; none if that is not known.
///
/// Its events tell, as long as none of them is a rewind: then the rows of all keys are looked at.
pub(super) fn session_keys(
    connection: &Connection,
    row: &SessionRow,
    history: &History,
    version: u64,
) -> Result<Option<BTreeSet<Arc<str>>>, SessionError> {
    let first = history.lineage.first().map_or(0, |own| own.after);
    if version < first.max(row.oldest) || version > row.version {
        return Ok(None);
    }
    let is_rewound = history.rewinds.last().is_some_and(|rewound| rewound.version > version);
    if is_rewound {
        rewritten(connection, row.number, version)
    } else {
        written(connection, row.number, version)
    }
    .map(Some)
}

fn written(connection: &Connection, stream: i64, version: u64) -> Result<BTreeSet<Arc<str>>, SessionError> {
    let failed = failed("read what events wrote");
    let mut query = connection
        .prepare_cached(
            "SELECT body FROM stepfold_events WHERE number > ?1 AND number <= ?2 AND body IS NOT NULL",
        )
        .map_err(failed)?;
    let bounds = [row_number(stream, version), row_number(stream, u64::MAX)];
    let mut rows = query.query(bounds).map_err(failed)?;
    let mut keys = BTreeSet::new();
    while let Some(row) = rows.next().map_err(failed)? {
        let body = row.get_ref(0).map_err(failed)?;
        let body = body.as_str().map_err(|error| failed(error.into()))?;
        let written: Written<'_> = serde_json::from_str(body)
            .map_err(|source| SessionError::Stored { what: "event".to_owned(), source })?;
        let own = written.delta.into_iter().filter(|write| Scope::of(&write.key) == Scope::Session);
        keys.extend(own.map(|write| Arc::from(write.key)));
    }
    Ok(keys)
}

fn rewritten(connection: &Connection, stream: i64, version: u64) -> Result<BTreeSet<Arc<str>>, SessionError> {
    keys(
        connection,
        "SELECT key FROM stepfold_cells WHERE stream = ?1 AND version > ?2",
        &[stream, to_db(version)],
    )
}

/// What is written of a scope that outlives sessions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ScopeRow {
    pub(super) scope: i64,
    /// How often it was written.
    pub(super) version: u64,
    /// What was removed up to this version is forgotten.
    known: u64,
}

/// The scopes of a session. One that nobody wrote to has no row.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scopes {
    pub(super) app: Option<ScopeRow>,
    pub(super) user: Option<ScopeRow>,
}

impl Scopes {
    pub(super) fn read(connection: &Connection, key: &SessionKey) -> Result<Self, SessionError> {
        let failed = failed("find a scope");
        let mut query = connection
            .prepare_cached(
                "SELECT user = '', scope, version, known FROM stepfold_scopes \
                 WHERE app = ?1 AND user IN ('', ?2)",
            )
            .map_err(failed)?;
        let mut scopes = Scopes::default();
        let mut rows = query.query([key.app.as_str(), key.user.as_str()]).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            let read = || {
                let found = ScopeRow {
                    scope: row.get(1)?,
                    version: from_db(row.get(2)?),
                    known: from_db(row.get(3)?),
                };
                Ok((row.get(0)?, found))
            };
            let (is_app, found) = read().map_err(failed)?;
            let place = if is_app { &mut scopes.app } else { &mut scopes.user };
            *place = Some(found);
        }
        Ok(scopes)
    }

    pub(super) fn versions(&self) -> ScopeVersions {
        let version = |row: Option<ScopeRow>| row.map_or(0, |row| row.version);
        ScopeVersions { app: version(self.app), user: version(self.user) }
    }
}

impl ScopeRow {
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
    let failed = failed("read what has changed");
    let mut query = connection.prepare_cached(query).map_err(failed)?;
    let keys = query.query_map(*of, |row| row.get::<_, Arc<str>>(0));
    keys.and_then(Iterator::collect).map_err(failed)
}

/// Remembers that a write took a key away, and forgets what so many others have made too old.
pub(super) fn remember_removal(
    connection: &Connection,
    scope: i64,
    key: &str,
    version: i64,
) -> Result<(), SessionError> {
    let failed = failed("remember what was removed");
    let run = |statement: &str, values: &[&dyn rusqlite::ToSql]| {
        let statement = connection.prepare_cached(statement);
        statement.and_then(|mut statement| statement.execute(values)).map(drop).map_err(failed)
    };
    run(
        "INSERT INTO stepfold_removed (scope, key, version) VALUES (?1, ?2, ?3) \
         ON CONFLICT (scope, key) DO UPDATE SET version = ?3",
        &[&scope, &key, &version],
    )?;
    let kept = to_db(REMEMBERED_REMOVALS as u64);
    let known: Option<i64> = connection
        .prepare_cached(
            "SELECT version FROM stepfold_removed WHERE scope = ?1 ORDER BY version DESC LIMIT 1 OFFSET ?2",
        )
        .and_then(|mut query| query.query_row([scope, kept], |row| row.get(0)).optional())
        .map_err(failed)?;
    let Some(known) = known else { return Ok(()) };
    run("DELETE FROM stepfold_removed WHERE scope = ?1 AND version <= ?2", &[&scope, &known])?;
    run("UPDATE stepfold_scopes SET known = MAX(known, ?2) WHERE scope = ?1", &[&scope, &known])
}
