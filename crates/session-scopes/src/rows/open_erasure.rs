//! The row that takes the id of an erasure before anything is erased, and is gone at its end.
//!
//! The erasure of a user destroys a key between two transactions. The row is committed with the first one, so that no other
//! erasure gets the id meanwhile, also if this one is killed; the same request finds it and continues. Within a transaction,
//! others wait for it. Its text tells only those apart who know the target.

use super::erasure::stored_id;
use super::seal::compare;
use super::sql::{RunSql, SharedSql, SqlRow, SqlValue};
use crate::digest::{ChecksumEncoder, ContentSalt};
use crate::error::SessionError;
use crate::store::{EraseData, EraseTarget};

// NOTE: at the earliest time, so that those of an app are read without its records.
const TAKE: SharedSql = SharedSql(
    "INSERT INTO stepfold_erasures (id, app, kind, at, author, reason, sessions, events, checksum) \
     VALUES ($1, $2, 'open', $3, '', $4, 0, 0, $5) ON CONFLICT (id) DO NOTHING RETURNING id",
);
const FIND: SharedSql =
    SharedSql("SELECT id, reason, checksum FROM stepfold_erasures WHERE id = $1 AND kind = 'open'");
const ALL: SharedSql = SharedSql(
    "SELECT id, reason, checksum FROM stepfold_erasures WHERE app = $1 AND at = $2 AND kind = 'open'",
);
const REMOVE: SharedSql = SharedSql("DELETE FROM stepfold_erasures WHERE id = $1 RETURNING id");
/// The time of the rows.
const AT: i64 = i64::MIN;
/// The attempts to take an id that others take and leave.
const ATTEMPTS: usize = 10;

/// Takes the id for the target; an error if another erasure has it.
pub(super) async fn take(rows: &mut impl RunSql, request: &EraseData) -> Result<(), SessionError> {
    let (app, id) = (request.target.app().as_str(), open_id(request));
    for _ in 0..ATTEMPTS {
        let text = OpenTarget::new(&request.target, ContentSalt::random()).text();
        let values = [
            SqlValue::Text(&id),
            SqlValue::Text(app),
            SqlValue::Int(AT),
            SqlValue::Text(&text),
            SqlValue::Int(checksum(&id, &text)),
        ];
        // NOTE: waits for a transaction that has the id.
        if !rows.rows(TAKE, &values).await?.is_empty() || check(rows, request).await? {
            return Ok(());
        }
    }
    let source = format!("other erasures begin and end under the id `{}`", request.id).into();
    Err(SessionError::Unavailable { what: "erase", source })
}

/// Whether the id is taken for the target; an error if it is for another one.
pub(super) async fn check(rows: &mut impl RunSql, request: &EraseData) -> Result<bool, SessionError> {
    let found = rows.rows(FIND, &[SqlValue::Text(&open_id(request))]).await?;
    let Some(row) = found.first() else { return Ok(false) };
    match is_of(row, &request.target)? {
        true => Ok(true),
        false => Err(SessionError::ErasureReused { erasure: request.id.clone() }),
    }
}

/// Leaves the id, and those of erasures of the same target that were killed and are not to be repeated any more.
pub(super) async fn end(rows: &mut impl RunSql, request: &EraseData) -> Result<(), SessionError> {
    let of_app = [SqlValue::Text(request.target.app().as_str()), SqlValue::Int(AT)];
    for row in rows.rows(ALL, &of_app).await? {
        if is_of(&row, &request.target)? {
            rows.rows(REMOVE, &[SqlValue::Text(row.text(0)?)]).await?;
        }
    }
    Ok(())
}

/// The id of the row: no record has it, since the id of an erasure has no line breaks.
fn open_id(request: &EraseData) -> String {
    format!("{}\nopen", stored_id(request.target.app().as_str(), &request.id))
}

fn is_of(row: &SqlRow, target: &EraseTarget) -> Result<bool, SessionError> {
    let (id, text) = (row.text(0)?, row.text(1)?);
    compare(checksum(id, text), row.int(0)?, || "row of an open erasure".to_owned())?;
    let salt = text.split_once(' ').and_then(|(salt, _)| u128::from_str_radix(salt, 16).ok());
    let salt = salt.ok_or_else(|| SessionError::damaged("row of an open erasure", "invalid salt"))?;
    Ok(OpenTarget::new(target, ContentSalt::from_bytes(salt.to_be_bytes())).text() == text)
}

fn checksum(id: &str, text: &str) -> i64 {
    ChecksumEncoder::new("stepfold_erasures").text(id).text("open").text(text).sum()
}

/// A target, as the row has it: a digest with a random salt.
struct OpenTarget {
    salt: ContentSalt,
    digest: blake3::Hash,
}

impl OpenTarget {
    fn new(target: &EraseTarget, salt: ContentSalt) -> Self {
        let (app, user) = target.owner();
        let mut digest = blake3::Hasher::new();
        digest.update(salt.as_bytes());
        let mut add = |field: &[u8]| {
            digest.update(&(field.len() as u64).to_le_bytes()).update(field);
        };
        for field in [target.kind().as_str(), app.as_str(), user.as_str()] {
            add(field.as_bytes());
        }
        if let EraseTarget::Session { key } | EraseTarget::Events { key, .. } = target {
            add(key.id.as_str().as_bytes());
        }
        if let EraseTarget::Events { versions, .. } = target {
            for version in versions {
                add(&version.to_le_bytes());
            }
        }
        OpenTarget { salt, digest: digest.finalize() }
    }

    fn text(&self) -> String {
        format!("{:032x} {}", u128::from_be_bytes(*self.salt.as_bytes()), self.digest.to_hex())
    }
}
