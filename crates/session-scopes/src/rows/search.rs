//! The indexes of searches, of both databases: every statement, and the order in which they run, once.
//!
//! An index is written while other workers write to its session. A row of `stepfold_search` and the session's own row order
//! them: what retention or an erasure deletes is never indexed again by a worker that has read it before.

use super::lineage::{from_db, to_db};
use super::sql::{RunSql, SharedSql, SqlRow, SqlValue};
use crate::digest::ChecksumEncoder;
use crate::error::SessionError;
use crate::ids::{LifeId, SessionKey};
#[cfg(feature = "postgres")]
use crate::search::block::Block;
use crate::search::block::PARTS;
use crate::search::{IndexHead, IndexPart, NewBlock};
#[cfg(feature = "postgres")]
use crate::search::{PAGE, add_body};

/// The statements that differ between the databases.
pub(crate) struct SearchSql {
    /// The number, the oldest version and the generation of a session of an incarnation.
    pub(crate) head: SharedSql,
    /// The oldest version of a session. No other transaction deletes the session, or anything of it, until the end.
    pub(crate) lock: SharedSql,
}

macro_rules! head {
    ($user:literal) => {
        concat!(
            "SELECT s.number, s.oldest, g.generation FROM stepfold_sessions s LEFT JOIN stepfold_search g \
             ON g.number = s.number WHERE s.app = $1 AND s.",
            $user,
            " = $2 AND s.id = $3 AND s.life = $4"
        )
    };
}

macro_rules! lock {
    () => {
        "SELECT oldest FROM stepfold_sessions WHERE number = $1"
    };
}

#[cfg(feature = "sqlite")]
pub(crate) const SQLITE: SearchSql = SearchSql { head: SharedSql(head!("user")), lock: SharedSql(lock!()) };

#[cfg(feature = "postgres")]
pub(crate) const POSTGRES: SearchSql =
    SearchSql { head: SharedSql(head!("owner")), lock: SharedSql(concat!(lock!(), " FOR SHARE")) };

/// The most shards of one statement: those of all words of a query, and that of messages.
const MAX_SHARDS: usize = 33;
// NOTE: a list of parameters, since the databases have no form for one of any length in common.
const PARTS_OF: SharedSql = SharedSql(
    "SELECT after, last, shard, checksum, body FROM stepfold_search_parts WHERE number = $1 AND shard IN ($2, $3, $4, $5, \
     $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, \
     $30, $31, $32, $33, $34) ORDER BY after, shard",
);
const BLOCK: SharedSql = SharedSql(
    "SELECT after, last, shard, checksum, body FROM stepfold_search_parts WHERE number = $1 AND after = $2 ORDER BY shard",
);
/// The bodies of the events of a session after a version, up to another.
#[cfg(feature = "postgres")]
const EVENTS: SharedSql = SharedSql(
    "SELECT e.version, e.body FROM stepfold_lineage l JOIN stepfold_events e ON e.stream = l.stream \
     AND e.version > l.after AND e.version <= l.upto WHERE l.number = $1 AND e.version > $2 AND e.version <= $3 \
     ORDER BY e.version",
);
const BEGIN: SharedSql = SharedSql(
    "INSERT INTO stepfold_search (number, generation) VALUES ($1, 0) \
     ON CONFLICT (number) DO UPDATE SET generation = stepfold_search.generation RETURNING generation",
);
const LAST: SharedSql = SharedSql(
    "SELECT g.generation, (SELECT MAX(p.last) FROM stepfold_search_parts p WHERE p.number = g.number AND p.shard = 0) \
     FROM stepfold_search g WHERE g.number = $1",
);
const CUT: SharedSql = SharedSql("DELETE FROM stepfold_search_parts WHERE number = $1 AND last > $2");
const BUMP: SharedSql = SharedSql(
    "UPDATE stepfold_search SET generation = generation + 1 WHERE number = $1 RETURNING generation",
);
/// Locks the index of a session.
const HOLD: SharedSql =
    SharedSql("UPDATE stepfold_search SET generation = generation WHERE number = $1 RETURNING generation");
const END: SharedSql = SharedSql("DELETE FROM stepfold_search WHERE number = $1");
/// The rows of one statement.
const ROWS: usize = 8;
const ADD: SharedSql = SharedSql(
    "INSERT INTO stepfold_search_parts (number, after, last, shard, checksum, body) VALUES ($1, $2, $3, $4, $5, $6), \
     ($1, $2, $3, $7, $8, $9), ($1, $2, $3, $10, $11, $12), ($1, $2, $3, $13, $14, $15), ($1, $2, $3, $16, $17, $18), \
     ($1, $2, $3, $19, $20, $21), ($1, $2, $3, $22, $23, $24), ($1, $2, $3, $25, $26, $27)",
);

/// As [`SearchIndex::head`](crate::search::SearchIndex::head).
pub(crate) async fn head(
    rows: &mut impl RunSql,
    sql: &SearchSql,
    key: &SessionKey,
    life: &LifeId,
    shards: &[usize],
) -> Result<IndexHead, SessionError> {
    let texts = [key.app.as_str(), key.user.as_str(), key.id.as_str(), life.as_str()];
    let found = rows.rows(sql.head, &texts.map(SqlValue::Text)).await?;
    let Some(row) = found.first() else { return Ok(IndexHead::default()) };
    let head = IndexHead {
        number: row.int(0)?,
        oldest: from_db(row.int(1)?),
        generation: row.ints.get(2).copied().flatten(),
        ..IndexHead::default()
    };
    if head.generation.is_none() {
        return Ok(head);
    }
    let mut values = vec![SqlValue::Int(head.number)];
    let last = shards.last().copied().unwrap_or_default();
    let padded = shards.iter().copied().chain(std::iter::repeat(last)).take(MAX_SHARDS);
    values.extend(padded.map(|shard| SqlValue::Int(to_db(shard as u64))));
    let parts = rows.rows(PARTS_OF, &values).await?;
    let parts = parts.into_iter().map(|row| part(head.number, row)).collect::<Result<_, _>>()?;
    Ok(head.with_parts(parts))
}

fn part(number: i64, mut row: SqlRow) -> Result<IndexPart, SessionError> {
    let (after, last, shard, checksum) = (row.int(0)?, row.int(1)?, row.int(2)?, row.int(3)?);
    let body = row.blobs.pop().unwrap_or_default();
    // NOTE: of damaged data there is no error here: a search sees that a part lacks, and builds the index again.
    let is_whole = sum(number, (after, last, shard), &body) == checksum;
    Ok(IndexPart {
        after: from_db(after),
        last: from_db(last),
        shard: usize::try_from(shard).unwrap_or(usize::MAX),
        body: if is_whole { body.into() } else { [u8::MAX].into() },
    })
}

fn sum(number: i64, (after, last, shard): (i64, i64, i64), body: &[u8]) -> i64 {
    let mut check = ChecksumEncoder::new("stepfold_search_parts");
    check.int(number).int(after).int(last).int(shard).bytes(body).sum()
}

/// As [`SearchIndex::begin`](crate::search::SearchIndex::begin).
pub(crate) async fn begin(
    rows: &mut impl RunSql,
    sql: &SearchSql,
    number: i64,
) -> Result<Option<i64>, SessionError> {
    if rows.rows(sql.lock, &[SqlValue::Int(number)]).await?.is_empty() {
        return Ok(None);
    }
    rows.rows(BEGIN, &[SqlValue::Int(number)]).await?.first().map(|row| row.int(0)).transpose()
}

/// As [`SearchIndex::block`](crate::search::SearchIndex::block).
pub(crate) async fn block(
    rows: &mut impl RunSql,
    number: i64,
    after: u64,
) -> Result<Vec<IndexPart>, SessionError> {
    let found = rows.rows(BLOCK, &[SqlValue::Int(number), SqlValue::Int(to_db(after))]).await?;
    found.into_iter().map(|row| part(number, row)).collect()
}

/// As [`SearchIndex::add_events`](crate::search::SearchIndex::add_events).
#[cfg(feature = "postgres")]
pub(crate) async fn add_events(
    rows: &mut impl RunSql,
    number: i64,
    mut block: Block,
    last: u64,
) -> Result<Block, SessionError> {
    let end = last.min(block.last.saturating_add(PAGE as u64));
    let range = [number, to_db(block.last), to_db(end)].map(SqlValue::Int);
    for row in rows.rows(EVENTS, &range).await? {
        // NOTE: one that cannot be read is left to the checked read, which says why.
        if !add_body(&mut block, from_db(row.int(0)?), row.text(0)?) || block.is_full() {
            break;
        }
    }
    Ok(block)
}

/// As [`SearchIndex::put`](crate::search::SearchIndex::put).
pub(crate) async fn put(
    rows: &mut impl RunSql,
    sql: &SearchSql,
    block: &NewBlock,
) -> Result<bool, SessionError> {
    let number = [SqlValue::Int(block.number)];
    let locked = rows.rows(sql.lock, &number).await?;
    // NOTE: two writers of one index: the second waits here, and then reads what the first has written.
    rows.rows(HOLD, &number).await?;
    let known = rows.rows(LAST, &number).await?;
    let (Some(session), Some(index)) = (locked.first(), known.first()) else { return Ok(false) };
    let last = index.ints.get(1).copied().flatten().map(from_db);
    if (from_db(session.int(0)?), index.int(0)?, last) != (block.oldest, block.generation, block.known) {
        return Ok(false);
    }
    let kept = block.kept.map_or(-1, to_db);
    if block.known != block.kept {
        rows.rows(CUT, &[SqlValue::Int(block.number), SqlValue::Int(kept)]).await?;
    }
    let (after, last) = (to_db(block.after), to_db(block.last));
    debug_assert_eq!(block.parts.len(), PARTS);
    for (group, bodies) in block.parts.chunks(ROWS).enumerate() {
        let mut values = vec![SqlValue::Int(block.number), SqlValue::Int(after), SqlValue::Int(last)];
        for (place, body) in bodies.iter().enumerate() {
            let shard = to_db((group * ROWS + place) as u64);
            let checksum = sum(block.number, (after, last, shard), body);
            values.extend([SqlValue::Int(shard), SqlValue::Int(checksum), SqlValue::Bytes(body)]);
        }
        rows.rows(ADD, &values).await?;
    }
    Ok(true)
}

/// Deletes the blocks of a session, inside the transaction that changes what they have, after its row is locked.
pub(crate) async fn forget(rows: &mut impl RunSql, number: i64) -> Result<(), SessionError> {
    // NOTE: most sessions have no index, and a row that is not there ends it here.
    if rows.rows(BUMP, &[SqlValue::Int(number)]).await?.is_empty() {
        return Ok(());
    }
    rows.rows(CUT, &[SqlValue::Int(number), SqlValue::Int(-1)]).await.map(drop)
}

/// Deletes the index of a session that is deleted, inside of that transaction.
pub(crate) async fn end(rows: &mut impl RunSql, number: i64) -> Result<(), SessionError> {
    forget(rows, number).await?;
    rows.rows(END, &[SqlValue::Int(number)]).await.map(drop)
}
