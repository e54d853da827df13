//! Queries that a model may run: they only read, and what they take and give is bounded.
//!
//! A read-only connection is not enough: `ATTACH` would open other files. So SQLite asks an
//! authorizer about everything that a statement does while it is compiled.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::fallible_iterator::FallibleIterator;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags};
use serde::Serialize;
use serde_json::{Value, json};
use stepfold::prelude::*;

/// The maximum rows of a result.
const MAX_ROWS: usize = 30;
/// Bytes of one value.
const MAX_BYTES: i32 = 100_000;
/// The time that a query may take.
const MAX_TIME: Duration = Duration::from_secs(2);
/// SQLite looks at the clock each time it has run this many instructions.
const INSTRUCTIONS: i32 = 10_000;

/// The database, as the tools know it.
#[derive(Clone, Debug)]
pub(crate) struct Database {
    path: PathBuf,
    max_time: Duration,
}

/// The result of a query.
#[derive(Debug, Serialize)]
pub(crate) struct Answer {
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<Vec<Value>>,
    /// True if there are more rows.
    pub(crate) has_more: bool,
}

impl Database {
    pub(crate) fn new(path: &Path) -> Self {
        Database { path: path.to_owned(), max_time: MAX_TIME }
    }

    /// The tables, with how many rows each has.
    pub(crate) fn tables(&self) -> Result<Vec<Value>, ToolError> {
        let connection = self.open()?;
        let mut names =
            connection.prepare("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")?;
        let names = names.query_map([], |row| row.get::<_, String>(0))?.collect::<Result<Vec<_>, _>>()?;
        let count = |table: &String| {
            let sql = format!("SELECT count(*) FROM \"{table}\"");
            let rows: i64 = connection.query_row(&sql, [], |row| row.get(0))?;
            Ok(json!({"table": table, "rows": rows}))
        };
        names.iter().map(count).collect()
    }

    /// The columns of a table as they were declared.
    pub(crate) fn columns(&self, table: &str) -> Result<Vec<String>, ToolError> {
        let connection = self.open()?;
        let mut columns = connection.prepare("SELECT name || ' ' || type FROM pragma_table_info(?1)")?;
        let columns = columns.query_map([table], |row| row.get(0))?.collect::<Result<Vec<String>, _>>()?;
        if columns.is_empty() {
            return Err(ToolError::permanent(format!(
                "there is no table \"{table}\"; list_tables has their names"
            )));
        }
        Ok(columns)
    }

    /// The columns that a query would give. Nothing runs.
    pub(crate) fn validate(&self, sql: &str) -> Result<Vec<String>, ToolError> {
        let connection = self.open_for_queries()?;
        let statement = prepare(&connection, sql)?;
        Ok(statement.column_names().map(str::to_owned).collect())
    }

    /// Runs a query.
    pub(crate) fn run(&self, sql: &str) -> Result<Answer, ToolError> {
        let connection = self.open_for_queries()?;
        let mut statement = prepare(&connection, sql)?;
        let columns: Vec<String> = statement.column_names().map(str::to_owned).collect();
        let mut rows = Vec::new();
        let mut found = statement.query([])?;
        while let Some(row) = found.next().map_err(|error| self.explain(&error))? {
            if rows.len() == MAX_ROWS {
                return Ok(Answer { columns, rows, has_more: true });
            }
            let values = (0..columns.len()).map(|place| row.get_ref(place).map(value));
            rows.push(values.collect::<Result<_, _>>()?);
        }
        Ok(Answer { columns, rows, has_more: false })
    }

    fn open(&self) -> Result<Connection, ToolError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        // Without its database the analyst has nothing to say: nothing that a model could mend.
        Connection::open_with_flags(&self.path, flags).map_err(ToolError::fatal)
    }

    fn open_for_queries(&self) -> Result<Connection, ToolError> {
        let mut connection = self.open()?;
        connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, MAX_BYTES)?;
        connection.authorizer(Some(authorize))?;
        let deadline = now() + self.max_time;
        connection.progress_handler(INSTRUCTIONS, Some(move || now() > deadline))?;
        Ok(connection)
    }

    fn explain(&self, error: &rusqlite::Error) -> ToolError {
        match error.sqlite_error_code() {
            Some(rusqlite::ErrorCode::OperationInterrupted) => ToolError::permanent(format!(
                "the query took longer than {} ms and was stopped; narrow it",
                self.max_time.as_millis()
            )),
            _ => refuse(error),
        }
    }
}

/// Compiles one statement that returns rows.
fn prepare<'c>(connection: &'c Connection, sql: &str) -> Result<rusqlite::Statement<'c>, ToolError> {
    let mut statements = rusqlite::Batch::new(connection, sql);
    let Some(statement) = statements.next().map_err(|error| refuse(&error))? else {
        return Err(ToolError::permanent("there is no statement; write a SELECT"));
    };
    // Another statement, or something that is not a statement.
    match statements.next() {
        Ok(None) if statement.column_count() > 0 => Ok(statement),
        Ok(None) => Err(ToolError::permanent("this gives no rows; write a SELECT")),
        _ => Err(ToolError::permanent("these are several statements; send one")),
    }
}

/// The text of an error for the model. Some statements are refused only when they run.
fn refuse(error: &rusqlite::Error) -> ToolError {
    match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::AuthorizationForStatementDenied) => {
            ToolError::permanent("this is refused: only SELECT on this database is allowed")
        }
        _ => ToolError::permanent(error.to_string()),
    }
}

fn authorize(context: AuthContext<'_>) -> Authorization {
    match context.action {
        AuthAction::Select
        | AuthAction::Read { .. }
        | AuthAction::Function { .. }
        | AuthAction::Recursive => Authorization::Allow,
        _ => Authorization::Deny,
    }
}

fn value(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => json!(number),
        ValueRef::Real(number) => json!(number),
        ValueRef::Text(text) => json!(String::from_utf8_lossy(text)),
        ValueRef::Blob(bytes) => json!(format!("{} bytes", bytes.len())),
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the time that a query takes is the machine's; no run depends on it"
)]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(sql: &str, expected: &str) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.sqlite");
        crate::data::make(&path).unwrap();
        let database = Database { path, max_time: Duration::from_millis(50) };
        let answer = match database.run(sql) {
            Ok(rows) => serde_json::to_string(&rows.rows).unwrap() + if rows.has_more { " ..." } else { "" },
            Err(error) => error.to_string(),
        };
        assert_eq!(answer, expected, "{sql}");
        // What is refused before it runs does not run either.
        assert!(database.validate(sql).is_ok() || database.run(sql).is_err(), "{sql}");
    }

    #[test]
    fn queries_are_answered() {
        check("SELECT name FROM countries WHERE code = 'IS'", r#"[["Iceland"]]"#);
        check("WITH n(x) AS (SELECT 1) SELECT x, 0.5, NULL, x'00ff' FROM n;", r#"[[1,0.5,null,"2 bytes"]]"#);
    }

    #[test]
    fn what_is_no_query_is_refused() {
        const REFUSED: &str = "this is refused: only SELECT on this database is allowed";
        for sql in [
            "DELETE FROM zones",
            "CREATE TABLE a (b)",
            "ATTACH '/tmp/other.sqlite' AS other",
            "PRAGMA query_only = off",
            "SELECT * FROM pragma_database_list",
            "BEGIN",
        ] {
            check(sql, REFUSED);
        }
        check("SELECT 1; DELETE FROM zones", "these are several statements; send one");
        check("-- nothing", "there is no statement; write a SELECT");
        check("SELECT lat FROM zones", "no such column: lat in SELECT lat FROM zones at offset 7");
    }

    #[test]
    fn what_is_too_much_is_stopped() {
        let thousand = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 1000)";
        let rows: Vec<[usize; 1]> = (1..=MAX_ROWS).map(|row| [row]).collect();
        check(
            &format!("{thousand} SELECT x FROM n"),
            &format!("{} ...", serde_json::to_string(&rows).unwrap()),
        );
        check(
            "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n",
            "the query took longer than 50 ms and was stopped; narrow it",
        );
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.sqlite");
        crate::data::make(&path).unwrap();
        let error = Database::new(&path).run("SELECT hex(zeroblob(100000000))").unwrap_err();
        assert_eq!(error.to_string(), "string or blob too big");
    }
}
