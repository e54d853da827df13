//! Values as rows: computes a write's changes to a table, without a database.
//!
//! A value that is not a list is one row. A list is a head (the location and number of its items) and rows of
//! items that are only added: appending writes the new items, and changing an item in the middle writes it
//! again, with a higher version. Readers take the highest version of each index. So an earlier head still
//! describes an earlier value, as rewinds and forks require.

use std::sync::Arc;

use serde_json::Value;
use stepfold_state_core::List;
use stepfold_state_core::state::{Delta, StoredValue, ValueRef, Write};

use super::lineage::to_db;
use super::seal;
use crate::apply::{catch_panics, is_blind, merge_write};
use crate::error::SessionError;
use crate::ids::EventId;
use crate::keys::sealer::{ContentKey, Place};
use crate::schema::SessionSchema;
use crate::session::TypedValue;
use crate::store::WriteOrigin;

/// The extent of a list: its generation, the index of the first item, and the number of items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListExtent {
    /// Distinguishes the lists that a key has had.
    pub(crate) generation: u64,
    pub(crate) start: u64,
    pub(crate) length: u64,
}

/// The content of a key's row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ValueHead {
    Json(Value),
    List(ListExtent),
}

/// The row of a key, with the schema that it was written under.
#[derive(Clone, Debug)]
pub(crate) struct StoredHead {
    pub(crate) head: ValueHead,
    pub(crate) schema: Arc<str>,
}

/// Items to be stored from an index on.
pub(crate) type ItemChunk = (u64, Vec<Value>);

/// The change of a key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum RowChange {
    Nothing,
    Remove,
    Json(Value),
    /// A list: its new extent, and the rows to add. A new generation replaces the list.
    List(ListExtent, Vec<ItemChunk>),
}

impl RowChange {
    /// Whether items are only removed from and added to the ends of the list: a reader of the old list needs
    /// only the new items.
    pub(crate) fn only_appends(&self, before: ListExtent) -> bool {
        let RowChange::List(after, rows) = self else { return false };
        let end = before.start + before.length;
        after.generation == before.generation && rows.iter().all(|(place, _)| *place >= end)
    }
}

/// The plan for a key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ChangePlan {
    /// The items of the list, which was written under this schema, have to be read first.
    NeedsItems(ListExtent, Arc<str>),
    Change(RowChange),
}

/// The writes of one event (or the like) to one scope.
pub(crate) struct ChangePlanner<'a> {
    pub(crate) schema: &'a SessionSchema,
    pub(crate) what: WriteOrigin<'a>,
    /// The generation of lists that begin now.
    pub(crate) generation: u64,
}

impl ChangePlanner<'_> {
    /// Folds writes to one key into the content of its row, as far as possible without the items of a list.
    pub(crate) fn plan(
        &self,
        found: Option<&StoredHead>,
        writes: &[&Write],
    ) -> Result<ChangePlan, SessionError> {
        let begins_blind = writes.first().is_some_and(|write| is_blind(write));
        let before = match found {
            None => None,
            Some(StoredHead { head: ValueHead::Json(value), schema }) => {
                Some(TypedValue { cell: StoredValue::from(value.clone()), schema: Arc::clone(schema) })
            }
            // NOTE: the first write replaces the list, so its items are not read: an empty list stands for it.
            Some(StoredHead { schema, .. }) if begins_blind => {
                Some(TypedValue { cell: StoredValue::list(List::new()), schema: Arc::clone(schema) })
            }
            Some(StoredHead { head: ValueHead::List(extent), schema }) => {
                let grown = self.grown(*extent, schema, writes)?;
                return Ok(match grown {
                    Some(change) => ChangePlan::Change(change),
                    None => ChangePlan::NeedsItems(*extent, Arc::clone(schema)),
                });
            }
        };
        let after = self.folded(before.clone(), writes)?;
        Ok(ChangePlan::Change(self.change(before.as_ref(), None, after.as_ref())))
    }

    /// Folds writes to one key into a list whose items were read.
    pub(crate) fn plan_list(
        &self,
        (extent, schema): (ListExtent, Arc<str>),
        items: List<Arc<Value>>,
        writes: &[&Write],
    ) -> Result<RowChange, SessionError> {
        let before = TypedValue { cell: StoredValue::list(items), schema };
        let after = self.folded(Some(before.clone()), writes)?;
        Ok(self.change(Some(&before), Some(extent), after.as_ref()))
    }

    /// Folds writes to one key into the content of its row; `items` reads those of a list, if they are needed.
    #[cfg(any(test, feature = "sqlite"))]
    pub(crate) fn change_of(
        &self,
        found: Option<&StoredHead>,
        writes: &[&Write],
        items: impl FnOnce(ListExtent) -> Result<List<Arc<Value>>, SessionError>,
    ) -> Result<RowChange, SessionError> {
        match self.plan(found, writes)? {
            ChangePlan::NeedsItems(extent, schema) => {
                self.plan_list((extent, schema), items(extent)?, writes)
            }
            ChangePlan::Change(change) => Ok(change),
        }
    }

    /// The change, if all writes only append.
    fn grown(
        &self,
        extent: ListExtent,
        stored: &str,
        writes: &[&Write],
    ) -> Result<Option<RowChange>, SessionError> {
        let Some(first) = writes.first() else { return Ok(Some(RowChange::Nothing)) };
        // NOTE: items stored under another type may need a migration, so the whole list has to be read and stored again.
        if !self.schema.has_type_of(first.key(), stored) {
            return Ok(None);
        }
        let mut after = extent;
        let mut added = Vec::new();
        for write in writes {
            let length = usize::try_from(after.length).unwrap_or(usize::MAX);
            let growth = catch_panics(|| {
                self.schema.schema().growth(write, length).map_err(SessionError::state(self.what))
            })?;
            let Some(growth) = growth else { return Ok(None) };
            let grown = after.length + growth.items.len() as u64;
            after.length = grown.min(growth.keep as u64);
            after.start += grown - after.length;
            added.extend(growth.items);
        }
        if after == extent && added.is_empty() {
            return Ok(Some(RowChange::Nothing));
        }
        let place = extent.start + extent.length;
        Ok(Some(RowChange::List(after, chunks(place, added))))
    }

    fn folded(
        &self,
        mut held: Option<TypedValue>,
        writes: &[&Write],
    ) -> Result<Option<StoredValue>, SessionError> {
        for write in writes {
            let merged = merge_write(self.schema, held.as_ref(), write, self.what)?;
            held = merged.map(|cell| TypedValue { cell, schema: Arc::clone(self.schema.text()) });
        }
        Ok(held.map(|held| held.cell))
    }

    fn change(
        &self,
        before: Option<&TypedValue>,
        extent: Option<ListExtent>,
        after: Option<&StoredValue>,
    ) -> RowChange {
        let before = before.map(|held| held.cell.view());
        match (before, after.map(StoredValue::view)) {
            (None, None) => RowChange::Nothing,
            (Some(_), None) => RowChange::Remove,
            (Some(ValueRef::Json(before)), Some(ValueRef::Json(after))) if std::ptr::eq(before, after) => {
                RowChange::Nothing
            }
            (before, Some(ValueRef::List(after))) => match (before, extent) {
                (Some(ValueRef::List(before)), Some(extent)) => self.list_change(before, extent, after),
                _ => self.new_list(after),
            },
            (_, Some(after)) => RowChange::Json(after.to_json()),
        }
    }

    /// The rows of new items of a list, or of a new list if more has changed than stayed.
    fn list_change(
        &self,
        before: &List<Arc<Value>>,
        extent: ListExtent,
        after: &List<Arc<Value>>,
    ) -> RowChange {
        if after.ptr_eq(before) {
            return RowChange::Nothing;
        }
        // NOTE: compared by pointer: a handler that keeps an item keeps its `Arc`, and comparing large items would cost
        // their size.
        let changed: Vec<u64> = before
            .iter()
            .zip(after)
            .zip(0..)
            .filter(|((before, after), _)| !Arc::ptr_eq(before, after))
            .map(|(_, index)| index)
            .collect();
        // NOTE: rows that cover more than half of a list cost each later reader more than a new list costs this write.
        if after.len() < before.len() || changed.len() * 2 > before.len() {
            return self.new_list(after);
        }
        let item = |index: u64| usize::try_from(index).ok().and_then(|index| after.get(index));
        let mut rows: Vec<ItemChunk> = changed
            .into_iter()
            .filter_map(|index| Some((extent.start + index, vec![(**item(index)?).clone()])))
            .collect();
        let added = after.iter_from(before.len()).map(|item| (**item).clone()).collect();
        rows.extend(chunks(extent.start + before.len() as u64, added));
        RowChange::List(ListExtent { length: after.len() as u64, ..extent }, rows)
    }

    fn new_list(&self, items: &List<Arc<Value>>) -> RowChange {
        let extent = ListExtent { generation: self.generation, start: 0, length: items.len() as u64 };
        RowChange::List(extent, chunks(0, items.iter().map(|item| (**item).clone()).collect()))
    }
}

fn chunks(place: u64, items: Vec<Value>) -> Vec<ItemChunk> {
    if items.is_empty() { Vec::new() } else { vec![(place, items)] }
}

/// The writes of a scope by key, in the order in which the keys first come.
pub(crate) fn by_key<'w>(writes: &[&'w Write]) -> Vec<(&'w str, Vec<&'w Write>)> {
    let mut grouped: Vec<(&str, Vec<&Write>)> = Vec::new();
    // NOTE: a map from keys to positions, since searching the groups would be quadratic for a write of many keys.
    let mut places = std::collections::HashMap::new();
    for write in writes {
        let place = *places.entry(write.key()).or_insert_with(|| {
            grouped.push((write.key(), Vec::new()));
            grouped.len() - 1
        });
        grouped[place].1.push(write);
    }
    grouped
}

/// Puts the items of a list together from chunks, of which later ones cover earlier ones.
#[derive(Debug)]
pub(crate) struct ListAssembly {
    extent: ListExtent,
    items: Vec<Option<Arc<Value>>>,
    /// The number of indexes without an item.
    missing: usize,
}

impl ListAssembly {
    pub(crate) fn new(extent: ListExtent) -> Self {
        let length = usize::try_from(extent.length).unwrap_or(usize::MAX);
        ListAssembly { extent, items: vec![None; length], missing: length }
    }

    /// Adds a stored chunk, overwritten by those added before.
    #[cfg(any(test, feature = "postgres"))]
    pub(crate) fn add(&mut self, place: u64, text: &str) -> Result<(), SessionError> {
        let items: Vec<Value> = read_json("list items", text)?;
        self.each(place, items, |slot, item| *slot = Some(item));
        Ok(())
    }

    /// Adds a chunk that is overwritten by those added before.
    #[cfg(any(test, feature = "sqlite"))]
    pub(crate) fn add_older(&mut self, place: u64, items: Vec<Value>) {
        self.each(place, items, |slot, item| {
            slot.get_or_insert(item);
        });
    }

    fn each(&mut self, place: u64, items: Vec<Value>, fill: impl Fn(&mut Option<Arc<Value>>, Arc<Value>)) {
        for (place, item) in (place..).zip(items) {
            let index = place.checked_sub(self.extent.start).and_then(|index| usize::try_from(index).ok());
            if let Some(slot) = index.and_then(|index| self.items.get_mut(index)) {
                self.missing -= usize::from(slot.is_none());
                fill(slot, Arc::new(item));
            }
        }
    }

    /// Whether every index has an item, so that older chunks are not needed.
    #[cfg(feature = "sqlite")]
    pub(crate) fn is_whole(&self) -> bool {
        self.missing == 0
    }

    /// The list.
    pub(crate) fn finish(self, key: &str) -> Result<List<Arc<Value>>, SessionError> {
        let items: Option<List<Arc<Value>>> =
            self.items.into_iter().collect::<Option<Vec<_>>>().map(|items| items.into_iter().collect());
        items.ok_or_else(|| SessionError::Stored {
            what: format!("list \"{key}\""),
            source: serde::de::Error::custom("missing item"),
        })
    }
}

/// The row of an item of a shared list.
pub(crate) struct SharedItemRow<'a> {
    pub(crate) place: i64,
    /// The version of the scope in which the item was added.
    pub(crate) version: i64,
    pub(crate) checksum: i64,
    pub(crate) item: &'a str,
}

/// Collects the newest items of a shared list from their rows: from the last one back to the first one added
/// after a version of the scope. Each row is verified, and gaps are detected.
pub(crate) struct NewestItems<'a> {
    scope: i64,
    key: &'a str,
    extent: ListExtent,
    after: i64,
    newest_first: Vec<Arc<Value>>,
    is_complete: bool,
    content: ContentKey<'a>,
}

impl<'a> NewestItems<'a> {
    /// The items that were added after a version; after 0, all items.
    pub(crate) fn after(
        version: u64,
        scope: i64,
        (key, content): (&'a str, ContentKey<'a>),
        extent: ListExtent,
    ) -> Self {
        let (after, newest_first, is_complete) = (to_db(version), Vec::new(), extent.length == 0);
        NewestItems { scope, key, extent, after, newest_first, is_complete, content }
    }

    /// Prepends a row; returns whether another one is needed.
    pub(crate) fn add(&mut self, row: &SharedItemRow<'_>) -> Result<bool, SessionError> {
        let SharedItemRow { place, version, checksum, item } = *row;
        let end = to_db(self.extent.start + self.extent.length);
        let expected = end - 1 - to_db(self.newest_first.len() as u64);
        let sum = seal::of_item(self.scope, self.key, (place, version), item);
        if self.is_complete || place != expected || sum != checksum {
            return Err(self.damaged());
        }
        if version > self.after {
            let item = self.content.open(Place::item(self.key), item)?;
            self.newest_first.push(Arc::new(read_json("list item", &item)?));
        }
        self.is_complete = version <= self.after || place == to_db(self.extent.start);
        Ok(!self.is_complete)
    }

    /// The items in order.
    pub(crate) fn finish(mut self) -> Result<Vec<Arc<Value>>, SessionError> {
        if !self.is_complete {
            return Err(self.damaged());
        }
        self.newest_first.reverse();
        Ok(self.newest_first)
    }

    fn damaged(&self) -> SessionError {
        let missing = self.extent.length.saturating_sub(self.newest_first.len() as u64 + 1);
        let what = format!("list \"{}\"", self.key);
        SessionError::damaged(what, format!("missing or damaged item {missing}"))
    }
}

/// The largest event that is stored.
pub(crate) const MAX_EVENT_BYTES: usize = 128 * 1024 * 1024;

/// Rejects an event above the size limit of databases.
pub(crate) fn check_size(body: String, event: &EventId) -> Result<String, SessionError> {
    let (bytes, limit) = (body.len(), MAX_EVENT_BYTES);
    if bytes > limit {
        return Err(SessionError::TooLarge { what: format!("event {event}"), bytes, limit });
    }
    Ok(body)
}

/// The stored form of a delta, by which a repeated write is known.
pub(crate) fn delta_body(delta: &Delta) -> Result<String, SessionError> {
    serde_json::to_string(delta).map_err(|source| SessionError::Stored { what: "delta".to_owned(), source })
}

pub(crate) fn read_json<T: serde::de::DeserializeOwned>(what: &str, text: &str) -> Result<T, SessionError> {
    serde_json::from_str(text).map_err(|source| SessionError::Stored { what: what.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;
    use stepfold_state_core::state::{Handler, Schema};

    fn schema() -> SessionSchema {
        let builder = Schema::builder().key_schema("list", json!("array")).open();
        SessionSchema::new(builder.build().unwrap())
    }

    /// A key's rows as a table would keep them.
    #[derive(Default)]
    struct Table {
        head: Option<StoredHead>,
        rows: Vec<(u64, ItemChunk)>,
    }

    impl Table {
        fn items(&self) -> Option<List<Arc<Value>>> {
            let Some(StoredHead { head: ValueHead::List(extent), .. }) = &self.head else { return None };
            let mut assembly = ListAssembly::new(*extent);
            for (generation, (place, items)) in &self.rows {
                if *generation == extent.generation {
                    assembly.add(*place, &Value::Array(items.clone()).to_string()).unwrap();
                }
            }
            Some(assembly.finish("list").unwrap())
        }

        fn value(&self) -> Option<Value> {
            match &self.head {
                Some(StoredHead { head: ValueHead::Json(value), .. }) => Some(value.clone()),
                _ => self.items().map(|items| StoredValue::list(items).view().to_json()),
            }
        }

        fn apply(&mut self, schema: &SessionSchema, generation: u64, writes: &[&Write]) {
            let planner = ChangePlanner { schema, what: WriteOrigin::NewSession, generation };
            let items = |_| Ok(self.items().unwrap());
            let change = planner.change_of(self.head.as_ref(), writes, items).unwrap();
            let head = match change {
                RowChange::Nothing => return,
                RowChange::Remove => None,
                RowChange::Json(value) => Some(ValueHead::Json(value)),
                RowChange::List(extent, rows) => {
                    self.rows.extend(rows.into_iter().map(|row| (extent.generation, row)));
                    Some(ValueHead::List(extent))
                }
            };
            self.head = head.map(|head| StoredHead { head, schema: Arc::clone(schema.text()) });
        }
    }

    fn handler() -> impl Strategy<Value = Option<Handler>> {
        prop_oneof![
            Just(Some(Handler::merge_lists())),
            Just(Some(Handler::keep_last(4))),
            Just(Some(Handler::union())),
            Just(Some(Handler::upsert_by("id"))),
            Just(Some(Handler::replace_values())),
            Just(None),
        ]
    }

    proptest! {
        /// Rows agree with a merge in memory, whatever is written.
        #[test]
        fn rows_hold_what_merging_gives(
            events in proptest::collection::vec(proptest::collection::vec((handler(), proptest::collection::vec(0..9u8, 0..4)), 1..4), 1..12),
        ) {
            let schema = schema();
            let (mut table, mut expected) = (Table::default(), None::<StoredValue>);
            for (generation, event) in events.into_iter().enumerate() {
                let writes: Vec<Write> = event.into_iter().map(|(handler, ids)| {
                    let items: Vec<Value> = ids.into_iter().map(|id| json!({"id": id})).collect();
                    match handler {
                        Some(handler) => schema.schema().write_with("list", items, &handler).unwrap(),
                        None => schema.schema().removal("list").unwrap(),
                    }
                }).collect();
                for write in &writes {
                    expected = schema.schema().merge(expected.as_ref(), write).unwrap();
                }
                table.apply(&schema, generation as u64, &writes.iter().collect::<Vec<_>>());
                prop_assert_eq!(table.value(), expected.as_ref().map(|cell| cell.view().to_json()));
            }
        }
    }

    #[test]
    fn appending_reads_nothing_and_writes_what_is_new() {
        let schema = schema();
        let write = schema.schema().write("list", json!([7, 8])).unwrap();
        let extent = ListExtent { generation: 3, start: 2, length: 1_000_000 };
        let found = StoredHead { head: ValueHead::List(extent), schema: Arc::clone(schema.text()) };
        let planner = ChangePlanner { schema: &schema, what: WriteOrigin::NewSession, generation: 9 };
        let grown = ListExtent { length: 1_000_002, ..extent };
        assert_eq!(
            planner.plan(Some(&found), &[&write]).unwrap(),
            ChangePlan::Change(RowChange::List(grown, vec![(1_000_002, vec![json!(7), json!(8)])])),
        );
    }
}
