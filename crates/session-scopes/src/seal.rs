//! Seals: what rows say of themselves, so that damage to them is noticed, and to what surrounds them.
//!
//! SQLite checks no page, so each row has a checksum of its own. That finds what was changed, but not what is gone:
//! a page that the index no longer leads to takes its rows with it. So rows tell of each other. The seal of an event
//! has the digest of the history up to it, the combined checksums of the session's values, and how many rewinds there
//! were; the seal of a session the same for the version that it was made with, and a checksum of its lineage. The list
//! of sessions has the version that the newest event must have.

use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef};

use super::trail::CellRow;
use crate::digest::{Check, Digest};
use crate::error::SessionError;
use crate::rows::{Segment, to_db};
use crate::session::Rewound;

/// What is known of a session at a version, beside its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    /// The digest of the history.
    pub(super) head: Digest,
    /// The checksums of the rows of all keys, those of removed ones included, each in exclusive or with the others.
    pub(super) cells: i64,
    /// How many rewinds the history has.
    pub(super) rewinds: i64,
}

impl State {
    const LENGTH: usize = Digest::LENGTH + 8 + 8;

    fn write(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.head.as_bytes());
        bytes.extend(self.cells.to_le_bytes());
        bytes.extend(self.rewinds.to_le_bytes());
    }

    fn read(bytes: &mut Reader<'_>) -> FromSqlResult<Self> {
        Ok(State { head: bytes.digest()?, cells: bytes.int()?, rewinds: bytes.int()? })
    }

    fn check<'c>(&self, check: &'c mut Check) -> &'c mut Check {
        check.bytes(self.head.as_bytes()).int(self.cells).int(self.rewinds)
    }
}

/// The seal of an event's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EventSeal {
    /// What holds after the event.
    pub(super) state: State,
    checksum: i64,
}

impl EventSeal {
    /// The seal of the row of a number and a time.
    pub(super) fn new(number: i64, at: i64, state: State) -> Self {
        EventSeal { state, checksum: EventSeal::checksum(number, at, &state) }
    }

    /// What it seals, if it is the one of this row.
    pub(super) fn open(self, number: i64, at: i64) -> Result<State, SessionError> {
        if EventSeal::checksum(number, at, &self.state) == self.checksum {
            return Ok(self.state);
        }
        let what = format!("event in row {number}");
        Err(SessionError::damaged(what, "the checksum of its seal does not fit"))
    }

    fn checksum(number: i64, at: i64, state: &State) -> i64 {
        state.check(Check::new("stepfold_events").int(number).int(at)).sum()
    }
}

impl ToSql for EventSeal {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        let mut bytes = Vec::with_capacity(State::LENGTH + 8);
        self.state.write(&mut bytes);
        bytes.extend(self.checksum.to_le_bytes());
        Ok(bytes.into())
    }
}

impl FromSql for EventSeal {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let mut bytes = Reader(value.as_blob()?);
        let seal = EventSeal { state: State::read(&mut bytes)?, checksum: bytes.int()? };
        bytes.end(seal)
    }
}

/// The seal of a session's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SessionSeal {
    /// What holds at the version of the row.
    pub(super) state: State,
    /// The digest of the history up to the oldest version that the session can go back to.
    pub(super) anchor: Digest,
    /// The checksum of the session's lineage.
    pub(super) lineage: i64,
    /// The checksum of the row.
    pub(super) checksum: i64,
}

impl SessionSeal {
    /// Begins the checksum of a row with what it seals.
    pub(super) fn begin(&self) -> Check {
        let mut check = Check::new("stepfold_sessions");
        self.state.check(&mut check).bytes(self.anchor.as_bytes()).int(self.lineage);
        check
    }
}

impl ToSql for SessionSeal {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        let mut bytes = Vec::with_capacity(State::LENGTH + Digest::LENGTH + 16);
        self.state.write(&mut bytes);
        bytes.extend(self.anchor.as_bytes());
        bytes.extend(self.lineage.to_le_bytes());
        bytes.extend(self.checksum.to_le_bytes());
        Ok(bytes.into())
    }
}

impl FromSql for SessionSeal {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let mut bytes = Reader(value.as_blob()?);
        let state = State::read(&mut bytes)?;
        let (anchor, lineage, checksum) = (bytes.digest()?, bytes.int()?, bytes.int()?);
        bytes.end(SessionSeal { state, anchor, lineage, checksum })
    }
}

/// The seal of a shared scope's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ScopeSeal {
    /// The checksums of the rows of all keys, each in exclusive or with the others.
    pub(super) cells: i64,
    checksum: i64,
}

impl ScopeSeal {
    /// The seal of the row of a scope, with its version and the one up to which removals are forgotten.
    pub(super) fn new(scope: i64, app: &str, user: &str, (version, known): (u64, u64), cells: i64) -> Self {
        let mut check = Check::new("stepfold_scopes");
        check.int(scope).text(app).text(user).int(to_db(version)).int(to_db(known)).int(cells);
        ScopeSeal { cells, checksum: check.sum() }
    }
}

impl ToSql for ScopeSeal {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        let mut bytes = self.cells.to_le_bytes().to_vec();
        bytes.extend(self.checksum.to_le_bytes());
        Ok(bytes.into())
    }
}

impl FromSql for ScopeSeal {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let mut bytes = Reader(value.as_blob()?);
        let seal = ScopeSeal { cells: bytes.int()?, checksum: bytes.int()? };
        bytes.end(seal)
    }
}

/// A shared scope, for people.
pub(super) fn shared(app: &str, user: &str) -> String {
    if user.is_empty() { format!("scope of app {app}") } else { format!("scope of user {app}/{user}") }
}

/// The checksum of the row of a session's key. It goes with the row into forks, so it does not say whose it is.
pub(super) fn of_cell(row: &CellRow, ladder: Option<&[u8]>) -> i64 {
    let CellRow { key, version, schema, value, list } = row;
    let mut check = Check::new("stepfold_cells");
    check.text(key).int(*version).int(*schema).optional_text(value.as_deref());
    if let Some(list) = list {
        check.int(list.generation).int(list.start).int(list.length).optional_int(list.last);
    }
    check.bytes(ladder.unwrap_or_default()).sum()
}

/// The checksum of the row of a shared key.
pub(super) fn of_shared(
    scope: i64,
    key: &str,
    version: i64,
    schema: i64,
    value: Option<&str>,
    list: Option<(i64, i64)>,
) -> i64 {
    let mut check = Check::new("stepfold_shared");
    check.int(scope).text(key).int(version).int(schema).optional_text(value);
    check.optional_int(list.map(|(start, _)| start)).optional_int(list.map(|(_, length)| length)).sum()
}

/// The checksum of the row of an item of a shared list.
pub(super) fn of_item(scope: i64, key: &str, place: i64, item: &str) -> i64 {
    Check::new("stepfold_shared_items").int(scope).text(key).int(place).text(item).sum()
}

/// The checksum of the row of a schema.
pub(super) fn of_schema(number: i64, text: &str) -> i64 {
    Check::new("stepfold_schemas").int(number).text(text).sum()
}

/// The checksum of a row of the list of sessions.
pub(super) fn of_recent(app: &str, user: &str, updated: i64, number: i64, version: i64) -> i64 {
    Check::new("stepfold_recent").text(app).text(user).int(updated).int(number).int(version).sum()
}

/// The checksum of the row of a rewind.
pub(super) fn of_rewind(stream: i64, rewound: Rewound) -> i64 {
    Check::new("stepfold_rewinds").int(stream).int(to_db(rewound.version)).int(to_db(rewound.to)).sum()
}

/// The checksum of a trail of the row of a number.
pub(super) fn of_trail(number: i64, text: &str) -> i64 {
    Check::new("trail").int(number).text(text).sum()
}

/// The checksum of a lineage, newest segment first.
pub(super) fn of_lineage(lineage: &[Segment]) -> i64 {
    let mut check = Check::new("stepfold_lineage");
    for segment in lineage {
        check.int(segment.stream).int(to_db(segment.after)).int(to_db(segment.upto));
    }
    check.sum()
}

/// Refuses a checksum that is not the one that was stored.
pub(super) fn compare(found: i64, stored: i64, what: impl FnOnce() -> String) -> Result<(), SessionError> {
    if found == stored {
        return Ok(());
    }
    Err(SessionError::damaged(what(), "the checksum of its row does not fit"))
}

/// The bytes of a blob, from its start on.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn digest(&mut self) -> FromSqlResult<Digest> {
        self.take().map(Digest::from_bytes)
    }

    fn int(&mut self) -> FromSqlResult<i64> {
        self.take().map(i64::from_le_bytes)
    }

    fn take<const LENGTH: usize>(&mut self) -> FromSqlResult<[u8; LENGTH]> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(FromSqlError::InvalidType)?;
        self.0 = rest;
        Ok(*bytes)
    }

    fn end<T>(self, read: T) -> FromSqlResult<T> {
        if self.0.is_empty() { Ok(read) } else { Err(FromSqlError::InvalidType) }
    }
}
