//! Earlier values of a session, found without reading all events since.
//!
//! An event that replaces a value keeps the old one in its undo log, with the version that had written it.
//! So each key has a chain of versions into the past. A ladder is what its row remembers of the chain, so that each
//! new event can also keep a version far back: with that, any place of a chain is some twice the logarithm
//! of its length away. (E. W. Myers, "An applicative random-access stack", 1983.)

use rusqlite::types::{FromSqlError, FromSqlResult};
use rusqlite::{Connection, OptionalExtension};
use serde::Deserialize;

use super::error::failed;
use super::history::SqliteHistory;
use super::undo_log::{self, ReplacedRow, ValueRow};
use crate::error::SessionError;
use crate::rows::lineage::from_db;

/// A version of a key's chain, with the distance to the next rung below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LadderRung {
    version: u32,
    /// There are 2^(rank + 1) - 1 versions from this one down to above the next rung.
    rank: u8,
}

/// The rungs from a key's newest version down, of which there are as many as the chain's length has bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VersionLadder {
    /// The newest is the last.
    rungs: Vec<LadderRung>,
}

/// The bytes of a rung.
const RUNG: usize = 5;

impl VersionLadder {
    /// The ladder of a value of which only the version is known.
    pub(super) fn at(version: u32) -> Self {
        VersionLadder { rungs: vec![LadderRung { version, rank: 0 }] }
    }

    /// Adds the next version; returns the far version that its event stores beside that of the replaced value, or 0.
    pub(super) fn push(&mut self, version: u32) -> u32 {
        let rank = match self.rungs.as_slice() {
            [.., below, newest] if below.rank == newest.rank => Some(newest.rank + 1),
            _ => None,
        };
        // NOTE: two rungs of the same rank and the new version form one rung of the next rank, as digits carry.
        if rank.is_some() {
            self.rungs.truncate(self.rungs.len() - 2);
        }
        let far = self.rungs.last().filter(|_| rank.is_some()).map_or(0, |rung| rung.version);
        self.rungs.push(LadderRung { version, rank: rank.unwrap_or(0) });
        far
    }

    /// The form in which it is stored.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.rungs.len() * RUNG);
        for rung in &self.rungs {
            bytes.extend(rung.version.to_le_bytes());
            bytes.push(rung.rank);
        }
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> FromSqlResult<Self> {
        let (rungs, []) = bytes.as_chunks::<RUNG>() else { return Err(FromSqlError::InvalidType) };
        let rung =
            |&[a, b, c, d, rank]: &[u8; RUNG]| LadderRung { version: u32::from_le_bytes([a, b, c, d]), rank };
        Ok(VersionLadder { rungs: rungs.iter().map(rung).collect() })
    }
}

/// The earlier row of a key at a version before its current row; `None` if the key had no row then: it never had a value.
pub(super) fn row_at(
    connection: &Connection,
    history: &SqliteHistory,
    now: &ValueRow,
    version: u64,
) -> Result<Option<ValueRow>, SessionError> {
    let mut newer = from_db(now.version);
    loop {
        let Some(ReplacedRow { row, far }) = replaced_by(connection, history, newer, &now.key)? else {
            return Ok(None);
        };
        let before = from_db(row.version);
        if before <= version {
            return Ok(Some(row));
        }
        let far = u64::from(far);
        // NOTE: the far version skips most of the chain if the target is older still; otherwise the step is to the version
        // before.
        let next = if far > version { far } else { before };
        if next >= newer {
            return Err(broken(&now.key, "a value was replaced before it was written"));
        }
        newer = next;
    }
}

/// The row of a key that an event replaced; `None` if the event wrote its first value.
fn replaced_by(
    connection: &Connection,
    history: &SqliteHistory,
    version: u64,
    key: &str,
) -> Result<Option<ReplacedRow>, SessionError> {
    /// The replaced rows of an undo log.
    #[derive(Default, Deserialize)]
    struct ReplacedValues {
        #[serde(default)]
        replaced: Vec<ReplacedRow>,
    }

    let failed = failed("read past values");
    let number = history.row_of(version);
    let text: Option<Option<String>> = connection
        .prepare_cached("SELECT trail FROM stepfold_events WHERE number = ?1")
        .and_then(|mut query| query.query_row([number], |row| row.get(0)).optional())
        .map_err(failed)?;
    let (Some(number), Some(text)) = (number, text) else {
        return Err(broken(key, "the event that wrote a value is missing"));
    };
    let values: ReplacedValues =
        text.map(|text| undo_log::parse(number, &text)).transpose()?.unwrap_or_default();
    Ok(values.replaced.into_iter().find(|replaced| replaced.row.key == key))
}

fn broken(key: &str, fault: &str) -> SessionError {
    SessionError::Stored { what: format!("past of key \"{key}\""), source: serde::de::Error::custom(fault) }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// A chain of so many versions, with gaps: what each version's event keeps, and the ladder.
    fn chain(length: u32) -> (HashMap<u32, (u32, u32)>, VersionLadder) {
        let mut ladder = VersionLadder::at(1);
        let kept = (2..=length).map(|place| (place * 3 - 2, (place * 3 - 5, ladder.push(place * 3 - 2))));
        (kept.collect(), ladder)
    }

    #[test]
    fn any_place_of_a_chain_is_found_in_logarithmic_time() {
        let length = 10_000;
        let (kept, ladder) = chain(length);
        assert!(ladder.rungs.len() <= 14, "{ladder:?}");
        for version in 1..length * 3 - 2 {
            let (mut newer, mut steps) = (length * 3 - 2, 0);
            let found = loop {
                let (before, far) = kept[&newer];
                steps += 1;
                if before <= version {
                    break before;
                }
                newer = if far > version { far } else { before };
            };
            assert_eq!(found, (version - 1) / 3 * 3 + 1);
            assert!(steps <= 32, "{steps} steps to {version}");
        }
    }

    #[test]
    fn a_ladder_is_stored_whole() {
        for length in [1, 2, 3, 7, 100] {
            let (_, ladder) = chain(length);
            assert_eq!(VersionLadder::from_bytes(&ladder.to_bytes()).unwrap(), ladder);
        }
        assert!(VersionLadder::from_bytes(&[1, 2, 3]).is_err());
    }
}
