//! The tables of a SQLite file, and how any number of processes set them up together.

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
        return Ok(());
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
