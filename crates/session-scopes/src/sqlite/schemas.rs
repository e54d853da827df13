//! Schemas by number: a row refers to its schema, whose text is stored once.

use std::collections::HashMap;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, params};

use super::error::failed;
use super::seal;
use crate::error::SessionError;

/// The rows of the table of schemas that a connection has cached.
#[derive(Default)]
pub(super) struct SqliteSchemas {
    numbers: HashMap<Arc<str>, i64>,
    texts: HashMap<i64, Arc<str>>,
}

impl SqliteSchemas {
    /// The number of a schema, which is stored if it is new.
    pub(super) fn number(&mut self, connection: &Connection, text: &Arc<str>) -> Result<i64, SessionError> {
        if let Some(number) = self.numbers.get(text) {
            return Ok(*number);
        }
        let failed = failed("store a schema");
        // NOTE: a scan without an index: schemas are few, each connection asks once for each, and an index would store
        // every text a second time.
        let found: Option<i64> = connection
            .prepare_cached("SELECT id FROM stepfold_schemas WHERE text = ?1")
            .and_then(|mut query| query.query_row(params![&**text], |row| row.get(0)).optional())
            .map_err(failed)?;
        let number = match found {
            Some(number) => number,
            // NOTE: the writer's transaction excludes other writers, so the schema is stored once.
            None => SqliteSchemas::insert(connection, text).map_err(failed)?,
        };
        self.numbers.insert(Arc::clone(text), number);
        self.texts.insert(number, Arc::clone(text));
        Ok(number)
    }

    fn insert(connection: &Connection, text: &str) -> rusqlite::Result<i64> {
        let number: i64 = connection
            .prepare_cached("SELECT COALESCE(MAX(id), 0) + 1 FROM stepfold_schemas")?
            .query_row([], |row| row.get(0))?;
        connection
            .prepare_cached("INSERT INTO stepfold_schemas (id, text, checksum) VALUES (?1, ?2, ?3)")?
            .execute(params![number, text, seal::of_schema(number, text)])?;
        Ok(number)
    }

    /// The schema of a number.
    pub(super) fn text(&mut self, connection: &Connection, number: i64) -> Result<Arc<str>, SessionError> {
        if let Some(text) = self.texts.get(&number) {
            return Ok(Arc::clone(text));
        }
        let found: Option<(String, i64)> = connection
            .prepare_cached("SELECT text, checksum FROM stepfold_schemas WHERE id = ?1")
            .and_then(|mut query| query.query_row([number], |row| Ok((row.get(0)?, row.get(1)?))).optional())
            .map_err(failed("read a schema"))?;
        let what = || format!("schema {number}");
        let (text, checksum) = found.ok_or_else(|| SessionError::damaged(what(), "missing"))?;
        seal::compare(seal::of_schema(number, &text), checksum, what)?;
        let text: Arc<str> = text.into();
        self.texts.insert(number, Arc::clone(&text));
        Ok(text)
    }

    /// Clears the cache, whose entries may have been rolled back.
    pub(super) fn forget(&mut self) {
        self.numbers.clear();
        self.texts.clear();
    }
}
