//! The undo data stored with an event: the values that it replaced, and the items that it added to lists.
//!
//! It is in the event's own row, in the column `trail`. A list is a chain of such rows, each with the number of the one
//! before: an earlier head of the list still leads to an earlier list, whatever was added since. Rewinds and forks rely
//! on that.

use std::collections::BTreeSet;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::de::value::SeqAccessDeserializer;
use serde::de::{DeserializeOwned, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use stepfold_state_core::List;

use super::error::failed;
use super::seal;
use crate::error::SessionError;
use crate::keys::sealer::{ContentKey, Place};
use crate::memory_size::{self, SizeCounter};
use crate::rows::lineage::{from_db, to_db};
use crate::rows::seal::MAX_VERSION;
use crate::rows::values::{ListAssembly, ListExtent, ValueHead, read_json};

/// Rejects a version that does not fit a row's number.
pub(super) fn check_version_fits(version: u64) -> Result<(), SessionError> {
    if version <= MAX_VERSION {
        return Ok(());
    }
    let source = format!("a session in a SQLite file has at most {MAX_VERSION} events").into();
    Err(SessionError::Store { what: "add an event", source })
}

/// The row of a key, current or earlier. It has a value or a list, or the key was removed.
#[derive(Debug)]
pub(super) struct ValueRow {
    pub(super) key: String,
    /// The event that gave the key this value, or took it away.
    pub(super) version: i64,
    pub(super) schema: i64,
    /// The JSON of a value that is not a list.
    pub(super) value: Option<String>,
    pub(super) list: Option<ListHead>,
}

/// The extent of a list, and the row of its newest items.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListHead {
    pub(super) generation: i64,
    pub(super) start: i64,
    pub(super) length: i64,
    /// The row with the newest items.
    pub(super) last: Option<i64>,
}

impl ListHead {
    pub(super) fn extent(&self) -> ListExtent {
        ListExtent {
            generation: from_db(self.generation),
            start: from_db(self.start),
            length: from_db(self.length),
        }
    }
}

/// The condition for rows of keys that were not removed.
pub(super) const IS_VALUE: &str = "(value IS NOT NULL OR generation IS NOT NULL)";

impl ValueRow {
    /// Reads `key, version, schema, value, generation, start, length, last`.
    pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let generation: Option<i64> = row.get(4)?;
        let list = match generation {
            Some(generation) => {
                let (start, length) = (row.get(5)?, row.get(6)?);
                Some(ListHead { generation, start, length, last: row.get(7)? })
            }
            None => None,
        };
        let (key, version, schema) = (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok(ValueRow { key, version, schema, value: row.get(3)?, list })
    }

    /// The new row of a key, copied from another row, or empty.
    pub(super) fn again(was: Option<ValueRow>, key: String, version: i64) -> Self {
        match was {
            Some(was) => ValueRow { key, version, ..was },
            None => ValueRow { key, version, schema: 0, value: None, list: None },
        }
    }

    /// Whether the key has no value any more.
    pub(super) fn is_removed(&self) -> bool {
        self.value.is_none() && self.list.is_none()
    }

    /// The head of the key's value; `None` if it was removed.
    pub(super) fn head(&self, content: ContentKey<'_>) -> Result<Option<ValueHead>, SessionError> {
        match (&self.value, &self.list) {
            (Some(text), _) => {
                let text = content.open(Place::value(&self.key), text)?;
                read_json("value", &text).map(|value| Some(ValueHead::Json(value)))
            }
            (None, list) => Ok(list.as_ref().map(|list| ValueHead::List(list.extent()))),
        }
    }

    /// Inserts the row as a new one of a stream; returns its checksum.
    pub(super) fn insert(&self, connection: &Connection, stream: i64) -> Result<i64, SessionError> {
        let list = self.list.as_ref();
        let insert = connection.prepare_cached(
            "INSERT INTO stepfold_cells \
             (stream, key, version, schema, value, generation, start, length, last, checksum) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
        );
        let checksum = seal::of_cell(self, None);
        let values = params![
            stream,
            self.key,
            self.version,
            self.schema,
            self.value,
            list.map(|list| list.generation),
            list.map(|list| list.start),
            list.map(|list| list.length),
            list.and_then(|list| list.last),
            checksum,
        ];
        insert.and_then(|mut insert| insert.execute(values)).map_err(failed("write a value"))?;
        Ok(checksum)
    }
}

/// The row of a key that an event replaced. In the stored log it is an array: key, version, schema, value, the four
/// numbers of a list, and a version further back or 0.
#[derive(Debug)]
pub(super) struct ReplacedRow {
    pub(super) row: ValueRow,
    /// A version that also gave the key a value, long before, or 0: see
    /// [`VersionLadder`](super::past_values::VersionLadder).
    pub(super) far: u32,
}

impl Serialize for ReplacedRow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ReplacedRow { row: ValueRow { key, version, schema, value, list }, far } = self;
        let list = list.map(|list| (list.generation, list.start, list.length, list.last));
        (key, version, schema, value, list, far).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ReplacedRow {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        type List = (i64, i64, i64, Option<i64>);
        let (key, version, schema, value, list, far): (_, _, _, _, Option<List>, _) =
            Deserialize::deserialize(deserializer)?;
        let list = list.map(|(generation, start, length, last)| ListHead { generation, start, length, last });
        Ok(ReplacedRow { row: ValueRow { key, version, schema, value, list }, far })
    }
}

/// Items that an event added to a list, or that replaced others. In the stored log it is an array of its fields.
#[derive(Debug)]
pub(super) struct ItemsRow {
    pub(super) key: String,
    pub(super) generation: i64,
    pub(super) place: u64,
    /// The row with the items that the list had before.
    pub(super) before: Option<i64>,
    pub(super) items: StoredItems,
}

/// The items of a row: JSON values, or sealed ones, each by itself, so that retention can take single items without a key. In
/// the stored log it is an array, or an object with the array as `sealed`.
#[derive(Debug)]
pub(super) enum StoredItems<T = Value> {
    Open(Vec<T>),
    /// None is an item that retention has taken.
    Sealed(Vec<Option<String>>),
}

impl<T> StoredItems<T> {
    pub(super) fn len(&self) -> usize {
        match self {
            StoredItems::Open(items) => items.len(),
            StoredItems::Sealed(items) => items.len(),
        }
    }
}

impl StoredItems {
    /// The items that an event adds to a list from a place on.
    pub(super) fn seal(
        content: ContentKey<'_>,
        key: &str,
        ([stream, version], place): ([i64; 2], u64),
        items: Vec<Value>,
    ) -> Result<Self, SessionError> {
        if !content.is_sealing() {
            return Ok(StoredItems::Open(items));
        }
        let seal = |(place, item): (u64, Value)| {
            content.seal(Place::item(key), &[stream, version, to_db(place)], item.to_string()).map(Some)
        };
        (place..).zip(items).map(seal).collect::<Result<_, _>>().map(StoredItems::Sealed)
    }

    fn open(self, content: ContentKey<'_>, key: &str) -> Result<Vec<Value>, SessionError> {
        let open = |item: Option<String>| match item {
            Some(item) => read_json("list item", &content.open(Place::item(key), &item)?),
            None => Ok(Value::Null),
        };
        match self {
            StoredItems::Open(items) => Ok(items),
            StoredItems::Sealed(items) => items.into_iter().map(open).collect(),
        }
    }

    /// Takes the items that are not needed, by their places. The others keep theirs.
    pub(super) fn retain(&mut self, first: u64, is_needed: impl Fn(u64) -> bool) {
        for place in (first..).take(self.len()).filter(|place| !is_needed(*place)) {
            let index = usize::try_from(place - first).unwrap_or(usize::MAX);
            match self {
                StoredItems::Open(items) => items[index] = Value::Null,
                StoredItems::Sealed(items) => items[index] = None,
            }
        }
    }
}

impl Serialize for StoredItems {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            StoredItems::Open(items) => items.serialize(serializer),
            StoredItems::Sealed(items) => serializer.collect_map([("sealed", items)]),
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for StoredItems<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ItemsVisitor(PhantomData))
    }
}

struct ItemsVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ItemsVisitor<T> {
    type Value = StoredItems<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("items of a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Self::Value, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(items)).map(StoredItems::Open)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self::Value, A::Error> {
        match fields.next_key::<String>()?.as_deref() {
            Some("sealed") => fields.next_value().map(StoredItems::Sealed),
            _ => Err(A::Error::missing_field("sealed")),
        }
    }
}

impl Serialize for ItemsRow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (&self.key, self.generation, self.place, self.before, &self.items).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ItemsRow {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (key, generation, place, before, items) = Deserialize::deserialize(deserializer)?;
        Ok(ItemsRow { key, generation, place, before, items })
    }
}

/// The undo data stored with an event.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct UndoLog {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) replaced: Vec<ReplacedRow>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) items: Vec<ItemsRow>,
}

impl UndoLog {
    /// Reads and checks the undo log of the row with this number.
    pub(super) fn parse(number: i64, text: &str) -> Result<Self, SessionError> {
        parse(number, text)
    }

    /// The text to store in the row with this number; `None` for an empty log.
    pub(super) fn to_text(&self, number: i64) -> Result<Option<String>, SessionError> {
        if self.replaced.is_empty() && self.items.is_empty() {
            return Ok(None);
        }
        let text = serde_json::to_string(self)
            .map_err(|source| SessionError::Stored { what: TRAIL.to_owned(), source })?;
        // NOTE: the checksum stands before the text and covers the row's number, so that a log in another row is detected.
        Ok(Some(checksum(number, &text) + &text))
    }
}

/// Reads a part of the undo log of the row with this number, and checks the whole.
pub(super) fn parse<T: DeserializeOwned>(number: i64, text: &str) -> Result<T, SessionError> {
    let damaged = || SessionError::damaged(TRAIL, "checksum mismatch");
    let (sum, text) = text.split_at_checked(SUM).ok_or_else(damaged)?;
    if sum != checksum(number, text) {
        return Err(damaged());
    }
    read_json(TRAIL, text)
}

/// The name of an undo log in errors.
const TRAIL: &str = "trail of an event";
/// The length of the checksum before the JSON of an undo log.
const SUM: usize = 16;

fn checksum(number: i64, text: &str) -> String {
    format!("{:016x}", seal::of_trail(number, text))
}

/// The items of a list: from the newest row back, for as long as items are missing.
pub(super) fn items(
    connection: &Connection,
    content: ContentKey<'_>,
    key: &str,
    head: &ListHead,
) -> Result<List<Arc<Value>>, SessionError> {
    let failed = failed("read the items of a list");
    let mut query =
        connection.prepare_cached("SELECT trail FROM stepfold_events WHERE number = ?1").map_err(failed)?;
    let mut assembly = ListAssembly::new(head.extent());
    let mut next = head.last;
    // NOTE: rows are followed from the newest back only until every index has an item: older rows are covered, or before
    // the list's start.
    while let Some(number) = next.filter(|_| !assembly.is_whole()) {
        let text: Option<String> =
            query.query_row([number], |row| row.get(0)).optional().map_err(failed)?.flatten();
        next = None;
        let trail = text.map(|text| UndoLog::parse(number, &text)).transpose()?.unwrap_or_default();
        // NOTE: an event may write several lists, and the log holds the items of all of them.
        let is_ours = |row: &ItemsRow| row.key == key && row.generation == head.generation;
        for row in trail.items.into_iter().rev().filter(is_ours) {
            next = row.before;
            assembly.add_older(row.place, row.items.open(content, key)?);
        }
    }
    assembly.finish(key)
}

/// Adds the memory of the rows with the items of a list, each row once.
pub(super) fn add_size(
    connection: &Connection,
    key: &str,
    head: &ListHead,
    (weighed, size): (&mut BTreeSet<i64>, &mut SizeCounter),
) -> Result<(), SessionError> {
    /// The part of an undo log that leads to earlier items.
    #[derive(Default, Deserialize)]
    struct ItemChain {
        #[serde(default)]
        items: Vec<(String, i64, u64, Option<i64>, IgnoredAny)>,
    }

    let failed = failed("read sizes of values");
    let mut query =
        connection.prepare_cached("SELECT trail FROM stepfold_events WHERE number = ?1").map_err(failed)?;
    let mut length = connection
        .prepare_cached("SELECT octet_length(trail) FROM stepfold_events WHERE number = ?1")
        .map_err(failed)?;
    let mut next = head.last;
    while let Some(number) = next.filter(|_| !size.is_exceeded()) {
        let stored: Option<Option<i64>> =
            length.query_row([number], |row| row.get(0)).optional().map_err(failed)?;
        if !weighed.contains(&number) && size.is_exceeded_with(stored.flatten().map_or(0, from_db)) {
            return Ok(());
        }
        // NOTE: borrowed, since the text may be large.
        let chain = query.query_row([number], |row| {
            let Some(text) = row.get_ref(0)?.as_str_or_null()? else { return Ok(Ok(ItemChain::default())) };
            if weighed.insert(number) {
                size.add(memory_size::of_json(text));
            }
            Ok(parse(number, text))
        });
        let chain: ItemChain = chain.optional().map_err(failed)?.transpose()?.unwrap_or_default();
        let ours =
            chain.items.iter().find(|(of, generation, ..)| of == key && *generation == head.generation);
        next = ours.and_then(|(.., before, _)| *before);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_that_no_row_number_holds_is_refused() {
        assert!(check_version_fits(MAX_VERSION).is_ok());
        let error = check_version_fits(MAX_VERSION + 1).unwrap_err();
        assert!(error.to_string().contains("at most 4294967295"), "{error}");
    }
}
