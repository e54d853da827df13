//! Statements that both databases read, in PostgreSQL.

use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::connection::Object;
use super::statements::SqlStatement;
use super::transaction::{execute, query};
use crate::error::SessionError;
use crate::rows::sql::{RunSql, SharedSql, SqlRow, SqlValue};

pub(super) struct PostgresRows<'a>(pub(super) &'a Object);

impl RunSql for PostgresRows<'_> {
    async fn rows(&mut self, sql: SharedSql, values: &[SqlValue<'_>]) -> Result<Vec<SqlRow>, SessionError> {
        let given: Vec<&(dyn ToSql + Sync)> = values.iter().map(parameter).collect();
        let rows = query(self.0, SqlStatement::of_both(sql), &given).await?;
        Ok(rows.iter().map(read).collect())
    }

    async fn changed(&mut self, sql: SharedSql, values: &[SqlValue<'_>]) -> Result<u64, SessionError> {
        let given: Vec<&(dyn ToSql + Sync)> = values.iter().map(parameter).collect();
        execute(self.0, SqlStatement::of_both(sql), &given).await
    }
}

fn parameter<'a>(value: &'a SqlValue<'_>) -> &'a (dyn ToSql + Sync) {
    match value {
        SqlValue::Int(number) => number,
        SqlValue::OptionalInt(number) => number,
        SqlValue::Text(text) => text,
        SqlValue::OptionalText(text) => text,
        SqlValue::Bytes(bytes) => bytes,
    }
}

fn read(row: &Row) -> SqlRow {
    let (mut texts, mut ints, mut blobs) = (Vec::new(), Vec::new(), Vec::new());
    for (index, column) in row.columns().iter().enumerate() {
        match *column.type_() {
            Type::TEXT => texts.push(row.get(index)),
            Type::BYTEA => blobs.push(row.get(index)),
            _ => ints.push(row.get(index)),
        }
    }
    SqlRow { texts, ints, blobs }
}
