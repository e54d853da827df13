//! The index of the tags of events.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::try_join;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::connection::Object;
use super::error::failed;
use super::pooler;
use super::rows::{PostgresHistory, PostgresSessionRow};
use super::statements::{ADD_TAGS, FIND_TAGGED, READ_LINEAGE, READ_REWINDS, READ_SESSION, READ_TAGS};
use super::transaction::{PooledTransaction, SqlParameters, begin_reading, commit, query, with_timeout};
use crate::error::SessionError;
use crate::event::{MARKS, TAG_BYTES, TagDigest, tag_digest, tags_of_body};
use crate::rows::lineage::{from_db, to_db};
use crate::rows::seal::SessionRecord;
use crate::store::FindTagged;
use crate::time::Timestamp;

/// The number of events per query.
const PAGE: i64 = 500;

/// Adds the tags of all events, which were stored before the index existed; in pages, each with its own timeout.
pub(super) async fn add_all(
    transaction: &tokio_postgres::Transaction<'_>,
    answer_timeout: Duration,
) -> Result<(), SessionError> {
    let failed = failed("set up its tables");
    let marks = MARKS.map(|mark| format!("body LIKE '%{mark}%'")).join(" OR ");
    let page = format!(
        "SELECT stream, version, id, at, body FROM stepfold_events WHERE (stream, version) > ($1, $2) AND ({marks}) \
         ORDER BY stream, version LIMIT {PAGE}"
    );
    let (mut stream, mut version) = (i64::MIN, i64::MIN);
    loop {
        let asked = async {
            transaction
                .query_typed(&page, &[(&stream, Type::INT8), (&version, Type::INT8)])
                .await
                .map_err(failed)
        };
        let rows = with_timeout(answer_timeout, asked).await?;
        let Some(last) = rows.last() else { return Ok(()) };
        (stream, version) = (last.get(0), last.get(1));
        for row in &rows {
            let tags = tags_of_body(row.get(2), Timestamp::from_micros(row.get(3)), row.get(4));
            let tags: Vec<&[u8]> = tags.iter().map(|tag| &tag[..]).collect();
            let given: SqlParameters<'_> = &[&row.get::<_, i64>(0), &row.get::<_, i64>(1), &tags];
            let added = async {
                transaction.execute_typed(ADD_TAGS.text(), &pooler::typed(given)?).await.map_err(failed)
            };
            with_timeout(answer_timeout, added).await?;
        }
    }
}

/// The version of the newest event with each of the tags, in a snapshot.
pub(super) async fn find(connection: Object, request: &FindTagged) -> Result<Vec<Option<u64>>, SessionError> {
    let transaction = PooledTransaction::new(connection);
    let connection = transaction.connection()?;
    let ((), found) = try_join!(biased; begin_reading(connection), newest(connection, request))?;
    commit(connection).await?;
    transaction.end();
    Ok(found)
}

async fn newest(connection: &Object, request: &FindTagged) -> Result<Vec<Option<u64>>, SessionError> {
    let key = &request.key;
    let (app, user, id) = (key.app.as_str(), key.user.as_str(), key.id.as_str());
    let digests: Vec<TagDigest> = request.tags.iter().map(|tag| tag_digest(tag)).collect();
    let tags: Vec<&[u8]> = digests.iter().map(|tag| &tag[..]).collect();
    let ask = |sql| async move { query(connection, sql, &[&app, &user, &id]).await };
    let (row, lineage, rewinds, tagged) = try_join!(biased;
        ask(READ_SESSION),
        ask(READ_LINEAGE),
        async { query(connection, READ_REWINDS, &[&app, &user, &id, &i64::MAX]).await },
        async { query(connection, FIND_TAGGED, &[&app, &user, &id, &tags]).await },
    )?;
    let row = PostgresSessionRow::of(&row, key)?;
    let visible = PostgresHistory::read(&lineage, &rewinds, &row, None)?.visible;
    let newest = |digest: &TagDigest| {
        let versions = tagged.iter().filter(|row| row.get::<_, &[u8]>(0) == digest);
        // NOTE: filtered here and not in the statement: visible versions follow from rewinds that the same round trip
        // reads.
        let versions = versions.map(|row| from_db(row.get(1)));
        versions.filter(|version| *version > row.oldest && visible.contains(*version)).max()
    };
    Ok(digests.iter().map(newest).collect())
}

/// The tags of the events of a session, with their versions.
pub(super) async fn all(
    connection: &Object,
    row: &SessionRecord,
) -> Result<BTreeSet<(u64, TagDigest)>, SessionError> {
    let rows = query(connection, READ_TAGS, &[&row.number, &to_db(row.oldest)]).await?;
    let tag = |row: &Row| {
        let mut tag = TagDigest::default();
        // NOTE: a tag of another length is damaged: padded or truncated, it differs from all tags of events, and is
        // reported.
        let stored = row.get::<_, &[u8]>(1);
        let length = stored.len().min(TAG_BYTES);
        tag[..length].copy_from_slice(&stored[..length]);
        (from_db(row.get(0)), tag)
    };
    Ok(rows.iter().map(tag).collect())
}
