//! The tables of a SQLite file, and how any number of processes set them up together.

use std::collections::BTreeSet;

use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};

use super::error::failed;
use super::list_entry::update_all_entries;
use super::tags;
use crate::digest::ChecksumEncoder;
use crate::error::SessionError;
use crate::keys::sealer::is_new_ring;

/// The version of the tables that this crate makes.
const FORMAT: u64 = 9;

/// The migrations of the tables, from one version to the next. A released version never changes.
const MIGRATIONS: &[&str] = &[
    include_str!("v1.sql"),
    include_str!("v2.sql"),
    include_str!("v3.sql"),
    include_str!("../rows/v4.sql"),
    include_str!("../rows/v5.sql"),
    include_str!("../rows/v6.sql"),
    include_str!("../rows/v7.sql"),
    include_str!("../rows/v8.sql"),
    include_str!("../rows/v9.sql"),
];

/// All names of ours begin with this.
const META: &str = "stepfold_meta";

/// The tables whose new rows have content. In a store with a ring, a trigger calls a function before each, which only the
/// connections of a store that was opened with the ring have: so no other process adds content that is not sealed.
const CONTENT: [&str; 5] =
    ["stepfold_events", "stepfold_cells", "stepfold_shared", "stepfold_inbox", "stepfold_operations"];

/// The name of the function.
pub(super) const RING_FUNCTION: &str = "stepfold_ring";

/// Makes or upgrades the tables, and remembers the name of the key ring. One process does it, the others wait.
pub(super) fn set_up(connection: &mut Connection, ring: Option<&str>) -> Result<(), SessionError> {
    let failed = failed("set up its tables");
    // NOTE: takes the write lock before the format is read, so that of several processes one makes the tables and the
    // others find them.
    let transaction =
        connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(&failed)?;
    let found = format_of(&transaction)?;
    if found > FORMAT {
        return Err(SessionError::NewerFormat { what: "session tables", found, supported: FORMAT });
    }
    for migration in MIGRATIONS.iter().skip(usize::try_from(found).unwrap_or(usize::MAX)) {
        transaction.execute_batch(migration).map_err(&failed)?;
    }
    if found == 1 {
        tags::add_all(&transaction)?;
    }
    if (1..3).contains(&found) {
        update_all_entries(&transaction)?;
    }
    if found < FORMAT {
        let newest = newest_number(&transaction)?;
        MetaRow { format: crate::rows::lineage::to_db(FORMAT), newest, ring: None }.write(&transaction)?;
    }
    let meta = MetaRow::read(&transaction)?;
    if meta.accepts(ring)? {
        for table in CONTENT {
            let trigger = format!(
                "CREATE TRIGGER {table}_sealed BEFORE INSERT ON {table} BEGIN SELECT {RING_FUNCTION}(); END"
            );
            transaction.execute_batch(&trigger).map_err(&failed)?;
        }
        MetaRow { ring: ring.map(str::to_owned), ..meta }.write(&transaction)?;
    }
    // NOTE: the process that had set the mark has ended, or sets it again.
    transaction.execute("UPDATE stepfold_meta SET logged = 0 WHERE logged <> 0", []).map_err(&failed)?;
    transaction.commit().map_err(&failed)
}

/// Checks the tables of a database without changing any; returns whether they are ours.
pub(super) fn check(connection: &Connection) -> Result<bool, SessionError> {
    match format_of(connection)? {
        0 => Ok(false),
        found if found > FORMAT => {
            Err(SessionError::NewerFormat { what: "session tables", found, supported: FORMAT })
        }
        FORMAT => check_layout(connection).and_then(|()| MetaRow::read(connection)).map(|_| true),
        _ => Ok(true),
    }
}

/// The number of the newest session, by the row about the tables.
fn newest_number(connection: &Connection) -> Result<i64, SessionError> {
    let newest = connection.query_row("SELECT newest FROM stepfold_meta", [], |row| row.get(0));
    newest.map_err(failed("inspect its tables"))
}

/// The row about the tables.
pub(super) struct MetaRow {
    format: i64,
    /// The number of the newest session.
    pub(super) newest: i64,
    /// The name of the key ring of the store, if it was ever opened with one.
    pub(super) ring: Option<String>,
}

impl MetaRow {
    pub(super) fn read(connection: &Connection) -> Result<Self, SessionError> {
        let read = |row: &rusqlite::Row<'_>| {
            let (format, newest, checksum) = (row.get(0)?, row.get(1)?, row.get(2)?);
            Ok((MetaRow { format, newest, ring: row.get(3)? }, checksum))
        };
        let run = |query| connection.prepare_cached(query).and_then(|mut query| query.query_row([], read));
        let found = match run("SELECT format, newest, checksum, ring FROM stepfold_meta") {
            // NOTE: a file that is only read may have the tables of an earlier version.
            Err(rusqlite::Error::SqlInputError { .. }) => {
                run("SELECT format, newest, checksum, NULL FROM stepfold_meta")
            }
            found => found,
        };
        let (meta, checksum): (_, i64) = found.map_err(failed("inspect its tables"))?;
        if meta.checksum() != checksum {
            return Err(SessionError::damaged("row about the tables", "checksum mismatch"));
        }
        Ok(meta)
    }

    /// With another newest session.
    pub(super) fn set_newest(self, connection: &Connection, newest: i64) -> Result<(), SessionError> {
        let checksum = MetaRow { newest, ..self }.checksum();
        connection
            .prepare_cached("UPDATE stepfold_meta SET newest = ?1, checksum = ?2")
            .and_then(|mut update| update.execute([newest, checksum]))
            .map(drop)
            .map_err(failed("write"))
    }

    fn write(&self, connection: &Connection) -> Result<(), SessionError> {
        let update = "UPDATE stepfold_meta SET format = ?1, newest = ?2, ring = ?3, checksum = ?4";
        let values = params![self.format, self.newest, self.ring, self.checksum()];
        connection.execute(update, values).map(drop).map_err(failed("set up its tables"))
    }

    /// Rejects a ring that is another than that of the store; whether the store gets its ring now.
    pub(super) fn accepts(&self, ring: Option<&str>) -> Result<bool, SessionError> {
        is_new_ring(self.ring.as_deref(), ring)
    }

    fn checksum(&self) -> i64 {
        let mut check = ChecksumEncoder::new(META);
        check.int(self.format).int(self.newest);
        if let Some(ring) = &self.ring {
            check.text(ring);
        }
        check.sum()
    }
}

/// The error of a read that needs tables which only later versions have, said as such.
pub(super) fn of_older_format(connection: &Connection, error: SessionError) -> SessionError {
    let SessionError::Store { source, .. } = &error else { return error };
    let is_missing =
        ["no such table", "no such column"].iter().any(|words| source.to_string().contains(words));
    match format_of(connection) {
        Ok(found) if is_missing && found < FORMAT => {
            SessionError::OlderFormat { what: "session tables", found, current: FORMAT }
        }
        _ => error,
    }
}

/// The version of the existing tables; 0 without tables.
fn format_of(connection: &Connection) -> Result<u64, SessionError> {
    let failed = failed("inspect its tables");
    let mut query = connection
        .prepare("SELECT name FROM sqlite_schema WHERE name LIKE 'stepfold\\_%' ESCAPE '\\' AND type IN ('table', 'view') ORDER BY name")
        .map_err(&failed)?;
    let names = query.query_map([], |row| row.get::<_, String>(0)).map_err(&failed)?;
    let names: Vec<String> = names.collect::<Result<_, _>>().map_err(&failed)?;
    let Some(first) = names.first() else { return Ok(0) };
    if !names.iter().any(|name| name == META) {
        return Err(SessionError::ForeignTable { table: first.clone() });
    }
    let format = connection
        .query_row("SELECT format FROM stepfold_meta WHERE made_by = 'stepfold-session-scopes'", [], |row| {
            row.get(0)
        })
        .optional();
    match format {
        Ok(Some(format)) => Ok(crate::rows::lineage::from_db(format)),
        Ok(None) => Err(SessionError::ForeignTable { table: META.to_owned() }),
        // NOTE: no such column: a table of another program with this name.
        Err(rusqlite::Error::SqlInputError { .. }) => {
            Err(SessionError::ForeignTable { table: META.to_owned() })
        }
        Err(error) => Err(failed(error)),
    }
}

/// Rejects tables with the number of our version and another layout: those of another line of development, or a damaged
/// description. Additional tables do no harm.
fn check_layout(connection: &Connection) -> Result<(), SessionError> {
    // NOTE: compared with tables that are made now: a file of another line of development may have the same format number
    // (docs/decisions/sessions.md).
    let ours = Connection::open_in_memory().map_err(failed("inspect its tables"))?;
    for migration in MIGRATIONS {
        ours.execute_batch(migration).map_err(failed("inspect its tables"))?;
    }
    let missing = match missing(layout(&ours)?, &layout(connection)?) {
        Some(part) => part,
        None => match missing(made_by(&ours)?, &made_by(connection)?) {
            Some(statement) => format!("`{statement}`"),
            None => return Ok(()),
        },
    };
    Err(SessionError::OtherLayout { what: "session tables", format: FORMAT, missing })
}

fn missing(ours: BTreeSet<String>, found: &BTreeSet<String>) -> Option<String> {
    ours.into_iter().find(|part| !found.contains(part))
}

/// The statements that made our tables and indexes.
fn made_by(connection: &Connection) -> Result<BTreeSet<String>, SessionError> {
    let failed = failed("inspect its tables");
    let mut query = connection
        .prepare(
            "SELECT sql FROM sqlite_schema WHERE name LIKE 'stepfold\\_%' ESCAPE '\\' AND sql IS NOT NULL",
        )
        .map_err(failed)?;
    let statements = query.query_map([], |row| row.get(0));
    statements.and_then(Iterator::collect).map_err(failed)
}

/// The columns of our tables, and our indexes, by name.
fn layout(connection: &Connection) -> Result<BTreeSet<String>, SessionError> {
    let failed = failed("inspect its tables");
    let mut query = connection
        .prepare(
            "SELECT t.name || '.' || c.name FROM sqlite_schema t JOIN pragma_table_info(t.name) c \
             WHERE t.type = 'table' AND t.name LIKE 'stepfold\\_%' ESCAPE '\\' \
             UNION ALL SELECT name FROM sqlite_schema \
             WHERE type = 'index' AND name LIKE 'stepfold\\_%' ESCAPE '\\'",
        )
        .map_err(failed)?;
    let parts = query.query_map([], |row| row.get(0));
    parts.and_then(Iterator::collect).map_err(failed)
}
