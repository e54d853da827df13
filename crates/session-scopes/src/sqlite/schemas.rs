//! Schemas by number: a row says under which it was written, and the text is stored once.

use std::collections::HashMap;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, params};

use super::error::failed;
use crate::error::SessionError;

/// What a connection remembers of the table of schemas.
#[derive(Default)]
pub(super) struct Schemas {
    numbers: HashMap<Arc<str>, i64>,
    texts: HashMap<i64, Arc<str>>,
}

impl Schemas {
    /// The number of a schema, which is stored if it is new.
    pub(super) fn number(&mut self, connection: &Connection, text: &Arc<str>) -> Result<i64, SessionError> {
        if let Some(number) = self.numbers.get(text) {
            return Ok(*number);
        }
        let failed = failed("store a schema");
        let found: Option<i64> = connection
            .prepare_cached("SELECT id FROM stepfold_schemas WHERE text = ?1")
            .and_then(|mut query| query.query_row(params![&**text], |row| row.get(0)).optional())
            .map_err(failed)?;
        let number = match found {
            Some(number) => number,
            // Nobody else writes meanwhile, so it is there once.
            None => connection
                .prepare_cached("INSERT INTO stepfold_schemas (text) VALUES (?1)")
                .and_then(|mut insert| insert.insert(params![&**text]))
                .map_err(failed)?,
        };
        self.numbers.insert(Arc::clone(text), number);
        self.texts.insert(number, Arc::clone(text));
        Ok(number)
    }

    /// The schema of a number.
    pub(super) fn text(&mut self, connection: &Connection, number: i64) -> Result<Arc<str>, SessionError> {
        if let Some(text) = self.texts.get(&number) {
            return Ok(Arc::clone(text));
        }
        let text: Option<String> = connection
            .prepare_cached("SELECT text FROM stepfold_schemas WHERE id = ?1")
            .and_then(|mut query| query.query_row([number], |row| row.get(0)).optional())
            .map_err(failed("read a schema"))?;
        let text: Arc<str> = text.unwrap_or_default().into();
        self.texts.insert(number, Arc::clone(&text));
        Ok(text)
    }

    /// Forgets what may have been rolled back.
    pub(super) fn forget(&mut self) {
        self.numbers.clear();
        self.texts.clear();
    }
}
