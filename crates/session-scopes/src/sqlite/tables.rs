//! The tables of a SQLite file, and how any number of processes set them up together.

use std::collections::BTreeSet;

use rusqlite::{Connection, OptionalExtension, TransactionBehavior};

use super::error::failed;
use crate::error::SessionError;

/// The version of the tables that this crate makes.
const FORMAT: u64 = 1;

/// What takes the tables from one version to the next. A version that was released is never changed.
const MIGRATIONS: &[&str] = &[include_str!("v1.sql")];

/// All names of ours begin with this.
const META: &str = "stepfold_meta";

/// Makes or upgrades the tables. One process does it, the others wait.
pub(super) fn set_up(connection: &mut Connection) -> Result<(), SessionError> {
    let failed = failed("set up its tables");
    let transaction =
        connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(&failed)?;
    let found = format_of(&transaction)?;
    if found > FORMAT {
        return Err(SessionError::NewerFormat { what: "session tables", found, supported: FORMAT });
    }
    if found == FORMAT {
        return check_layout(&transaction);
    }
    for migration in MIGRATIONS.iter().skip(usize::try_from(found).unwrap_or(usize::MAX)) {
        transaction.execute_batch(migration).map_err(&failed)?;
    }
    transaction
        .execute("UPDATE stepfold_meta SET format = ?1", [crate::rows::to_db(FORMAT)])
        .map_err(&failed)?;
    transaction.commit().map_err(&failed)
}

/// The version of the tables that are there; 0 if none are.
fn format_of(connection: &Connection) -> Result<u64, SessionError> {
    let failed = failed("look at its tables");
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
        Ok(Some(format)) => Ok(crate::rows::from_db(format)),
        Ok(None) => Err(SessionError::ForeignTable { table: META.to_owned() }),
        // No such column.
        Err(rusqlite::Error::SqlInputError { .. }) => {
            Err(SessionError::ForeignTable { table: META.to_owned() })
        }
        Err(error) => Err(failed(error)),
    }
}

/// Refuses tables that have the number of our version and another layout: those of another line of development.
/// What is there beside ours does no harm.
fn check_layout(connection: &Connection) -> Result<(), SessionError> {
    let ours = Connection::open_in_memory().map_err(failed("look at its tables"))?;
    for migration in MIGRATIONS {
        ours.execute_batch(migration).map_err(failed("look at its tables"))?;
    }
    let (ours, found) = (layout(&ours)?, layout(connection)?);
    match ours.into_iter().find(|part| !found.contains(part)) {
        None => Ok(()),
        Some(missing) => Err(SessionError::OtherLayout { what: "session tables", format: FORMAT, missing }),
    }
}

/// The columns of our tables, and our indexes, by name.
fn layout(connection: &Connection) -> Result<BTreeSet<String>, SessionError> {
    let failed = failed("look at its tables");
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
