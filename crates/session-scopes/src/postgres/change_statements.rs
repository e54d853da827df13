//! From writes to statements: current rows are read once, changes are computed by pure functions, and the
//! changes of all keys of a scope are sent as arrays, so their number does not matter.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;
use stepfold_state_core::state::Write;
use tokio::try_join;
use tokio_postgres::types::ToSql;

use super::connection::Object;
use super::parts::Columns;
use super::rows::{
    HeadRow, ListItems, PostgresHistory, PostgresSchemas, RowOwner, heads, session_lists, shared_lists,
};
use super::statements::{
    ADD_ITEMS, ADD_REMOVED, DELETE_SHARED, DROP_SHARED_ITEMS, FIND_ITEMS, FIND_SHARED_ITEMS, FORGET_REMOVED,
    MOVE_SCOPE, PUT_CELLS, PUT_SHARED, PUT_SHARED_ITEMS, READ_LINEAGE, READ_REWINDS,
};
use super::sums;
use super::transaction::{SentStatement, SqlParameters, execute, query};
use crate::error::SessionError;
use crate::ids::{AppId, SessionKey, UserId};
use crate::keys::sealer::{ContentKey, Place};
use crate::rows::lineage::{from_db, to_db};
use crate::rows::seal::SessionRecord;
use crate::rows::shared::{ScopeOperation, ScopeRow};
use crate::rows::values::{ChangePlan, ChangePlanner, ListExtent, RowChange, StoredHead, ValueHead, by_key};
use crate::store::REMEMBERED_REMOVALS;

/// The keys that are written, in the form that statements take.
pub(super) fn keys(writes: &[&Write]) -> Vec<String> {
    by_key(writes).into_iter().map(|(key, _)| key.to_owned()).collect()
}

/// The source of a list's items, in case they are needed.
pub(super) enum ItemSource<'a> {
    /// The session.
    Session(&'a SessionKey, &'a SessionRecord),
    /// The scope of an app, or of a user, and its number.
    Shared(&'a AppId, Option<&'a UserId>, i64),
}

impl ItemSource<'_> {
    /// The owner of the rows that are read.
    pub(super) fn rows_of(&self) -> RowOwner {
        match self {
            ItemSource::Session(..) => RowOwner::Session,
            ItemSource::Shared(_, _, scope) => RowOwner::Shared(*scope),
        }
    }

    async fn items(
        &self,
        connection: &Object,
        heads: &[HeadRow],
        keys: &[String],
    ) -> Result<ListItems, SessionError> {
        match self {
            ItemSource::Session(key, record) => {
                let (app, user, id) = (key.app.as_str(), key.user.as_str(), key.id.as_str());
                let ask = |sql| async move { query(connection, sql, &[&app, &user, &id]).await };
                let items = async { query(connection, FIND_ITEMS, &[&app, &user, &id, &keys]).await };
                let rewinds = async { query(connection, READ_REWINDS, &[&app, &user, &id, &i64::MAX]).await };
                let (lineage, rewinds, items) = try_join!(biased; ask(READ_LINEAGE), rewinds, items)?;
                let history = PostgresHistory::read(&lineage, &rewinds, record, None)?;
                let lists = session_lists(heads, &items, &history, connection.key());
                let wanted = lists.into_iter().filter(|(head, _)| keys.contains(&head.key));
                wanted.map(|(head, list)| Ok((head.key.clone(), list?))).collect()
            }
            ItemSource::Shared(app, user, scope) => {
                let (app, user) = (app.as_str(), user.map_or("", UserId::as_str));
                let items = query(connection, FIND_SHARED_ITEMS, &[&app, &user, &keys]).await?;
                let lists = shared_lists(heads, &items, (*scope, connection.key()));
                let wanted = lists.into_iter().filter(|(head, _)| keys.contains(&head.key));
                wanted.map(|(head, list)| Ok((head.key.clone(), list?))).collect()
            }
        }
    }
}

/// A key, its row before, and its change.
pub(super) struct PlannedChange {
    key: String,
    found: Option<HeadRow>,
    change: RowChange,
}

/// Folds writes into the stored values of their keys.
pub(super) async fn plan<C: Columns>(
    connection: &Object,
    schemas: &PostgresSchemas,
    planner: &ChangePlanner<'_>,
    rows: &[C],
    writes: &[&Write],
    source: ItemSource<'_>,
) -> Result<Vec<PlannedChange>, SessionError> {
    let heads = heads(rows, source.rows_of(), connection.key())?;
    let FoldedWrites { mut changes, waiting } = fold(connection, schemas, planner, &heads, writes).await?;
    // NOTE: only lists whose handlers need their items are read, all in one further round trip.
    if !waiting.is_empty() {
        let keys: Vec<String> = waiting.iter().map(|(key, ..)| (*key).to_owned()).collect();
        let mut items = source.items(connection, &heads, &keys).await?;
        for (key, list, writes) in waiting {
            let items = items.remove(key).unwrap_or_default();
            changes.push((key, planner.plan_list(list, items, &writes)?));
        }
    }
    Ok(with_rows(changes, heads))
}

/// The same with rows that are known; `None` if the items of a list are needed.
pub(super) async fn plan_known(
    connection: &Object,
    schemas: &PostgresSchemas,
    planner: &ChangePlanner<'_>,
    heads: Vec<HeadRow>,
    writes: &[&Write],
) -> Result<Option<Vec<PlannedChange>>, SessionError> {
    let FoldedWrites { changes, waiting } = fold(connection, schemas, planner, &heads, writes).await?;
    Ok(waiting.is_empty().then(|| with_rows(changes, heads)))
}

/// Writes that are folded as far as that is possible without the items of lists.
struct FoldedWrites<'w> {
    changes: Vec<(&'w str, RowChange)>,
    waiting: Vec<WaitingList<'w>>,
}

/// A list whose items are needed, with the schema that it has, and its writes.
type WaitingList<'w> = (&'w str, (ListExtent, Arc<str>), Vec<&'w Write>);

async fn fold<'w>(
    connection: &Object,
    schemas: &PostgresSchemas,
    planner: &ChangePlanner<'_>,
    heads: &[HeadRow],
    writes: &[&'w Write],
) -> Result<FoldedWrites<'w>, SessionError> {
    let mut found = HashMap::new();
    for row in heads {
        let schema = schemas.text(connection, row.schema).await?;
        found.insert(row.key.as_str(), StoredHead { head: row.head.clone(), schema });
    }
    let mut folded = FoldedWrites { changes: Vec::new(), waiting: Vec::new() };
    for (key, writes) in by_key(writes) {
        match planner.plan(found.get(key), &writes)? {
            ChangePlan::Change(change) => folded.changes.push((key, change)),
            ChangePlan::NeedsItems(extent, schema) => folded.waiting.push((key, (extent, schema), writes)),
        }
    }
    Ok(folded)
}

/// Changes with the rows that their keys had before.
fn with_rows(changes: Vec<(&str, RowChange)>, heads: Vec<HeadRow>) -> Vec<PlannedChange> {
    let mut heads: HashMap<String, HeadRow> =
        heads.into_iter().map(|head| (head.key.clone(), head)).collect();
    let with_row = |(key, change): (&str, RowChange)| {
        let found = heads.remove(key);
        PlannedChange { key: key.to_owned(), found, change }
    };
    changes.into_iter().map(with_row).collect()
}

/// The changes of a session, as columns.
#[derive(Default)]
struct SessionChanges {
    /// Keys that had a row before, each with its version and checksum.
    past: Vec<(String, i64, i64)>,
    removed: Vec<String>,
    put: CellColumns,
    items: ItemColumns,
}

#[derive(Default)]
struct CellColumns {
    keys: Vec<String>,
    values: Vec<Option<String>>,
    generations: Vec<Option<i64>>,
    starts: Vec<Option<i64>>,
    lengths: Vec<Option<i64>>,
    /// The combined checksums of the rows of items that a list has already.
    items: Vec<Option<i64>>,
}

#[derive(Default)]
struct ItemColumns {
    keys: Vec<String>,
    generations: Vec<i64>,
    places: Vec<i64>,
    /// As arrays of items, and where each begins.
    items: Vec<Vec<Value>>,
}

impl SessionChanges {
    /// The changes by the event of a version in a stream.
    fn of(
        planned: Vec<PlannedChange>,
        turn: [i64; 2],
        content: ContentKey<'_>,
    ) -> Result<Self, SessionError> {
        let mut changes = SessionChanges::default();
        for PlannedChange { key, found, change } in planned {
            changes.add(&key, found.as_ref(), change, (turn, content))?;
        }
        Ok(changes)
    }

    fn add(
        &mut self,
        key: &str,
        found: Option<&HeadRow>,
        change: RowChange,
        (turn, content): ([i64; 2], ContentKey<'_>),
    ) -> Result<(), SessionError> {
        if change == RowChange::Nothing {
            return Ok(());
        }
        if let Some(found) = found {
            self.past.push((key.to_owned(), found.version, found.checksum));
        }
        match change {
            RowChange::Nothing => {}
            RowChange::Remove => self.removed.push(key.to_owned()),
            RowChange::Json(value) => {
                let value = content.seal(Place::value(key), &turn, value.to_string())?;
                self.put.add(key, Some(value), None);
            }
            RowChange::List(extent, rows) => {
                // NOTE: a list that was replaced begins with an empty sum; its old items stay for past values.
                let is_same = |found: &&HeadRow| matches!(&found.head, ValueHead::List(had) if had.generation == extent.generation);
                let items = found.filter(is_same).map_or(0, |found| found.items);
                self.put.add(key, None, Some((extent, items)));
                for (place, items) in rows {
                    self.items.keys.push(key.to_owned());
                    self.items.generations.push(to_db(extent.generation));
                    self.items.places.push(to_db(place));
                    self.items.items.push(items);
                }
            }
        }
        Ok(())
    }
}

/// What an event writes to the values of a session, which then are those of its version.
pub(super) struct SessionWrite {
    stream: i64,
    version: i64,
    schema: i64,
    past: Vec<String>,
    removed: Vec<String>,
    put: SummedCells,
    items: ItemTexts,
    /// The change of the combined checksums of the values.
    pub(super) sums: i64,
    /// The rows of the written keys then; `None` for a key without one.
    pub(super) heads: Vec<(String, Option<HeadRow>)>,
}

impl SessionWrite {
    /// Values and items are sealed, if the store has a ring.
    pub(super) fn new(
        planned: Vec<PlannedChange>,
        (stream, version): (i64, u64),
        schema: i64,
        content: ContentKey<'_>,
    ) -> Result<Self, SessionError> {
        let version = to_db(version);
        let heads: Vec<KnownHead> = planned.iter().map(KnownHead::of).collect();
        let SessionChanges { past, removed, put, items } =
            SessionChanges::of(planned, [stream, version], content)?;
        let gone =
            past.iter().fold(0, |sum, (key, version, content)| sum ^ sums::of_cell(key, *version, *content));
        let past: Vec<String> = past.into_iter().map(|(key, ..)| key).collect();
        let items = items.summed([stream, version], content)?;
        let put = put.summed(schema, &items);
        let cells = put.contents.iter().zip(&put.put.keys);
        let sums = cells.fold(gone, |sum, (content, key)| sum ^ sums::of_cell(key, version, *content));
        let heads = heads.into_iter().map(|head| head.after(&put, version, schema)).collect();
        Ok(SessionWrite { stream, version, schema, past, removed, put, items, sums, heads })
    }

    /// As [parameters](super::statements) of an event's statement, from the keys of earlier values on.
    pub(super) fn parameters(&self) -> [&(dyn ToSql + Sync); 15] {
        let CellColumns { keys, values, generations, starts, lengths, .. } = &self.put.put;
        let ItemTexts { keys: item_keys, generations: item_generations, places, items, sums } = &self.items;
        [
            &self.past,
            &self.removed,
            &self.schema,
            keys,
            values,
            generations,
            starts,
            lengths,
            &self.put.items,
            &self.put.contents,
            item_keys,
            item_generations,
            places,
            items,
            sums,
        ]
    }

    /// The statements that write the values of a new session, which replace none.
    pub(super) fn statements(self, connection: &Object) -> Vec<SentStatement<'_>> {
        let SessionWrite { stream, version, schema, put, items, .. } = self;
        let mut sent: Vec<SentStatement<'_>> = Vec::new();
        if !put.put.keys.is_empty() {
            sent.push(Box::pin(async move { put.execute(connection, [stream, version, schema]).await }));
        }
        if !items.keys.is_empty() {
            sent.push(Box::pin(async move {
                let ItemTexts { keys, generations, places, items, sums } = &items;
                let given: SqlParameters<'_> = &[&stream, &version, keys, generations, places, items, sums];
                execute(connection, ADD_ITEMS, given).await
            }));
        }
        sent
    }
}

/// The row that a written key has then.
enum KnownHead {
    Same(String, Option<HeadRow>),
    Put(String, ValueHead),
}

impl KnownHead {
    fn of(planned: &PlannedChange) -> Self {
        let PlannedChange { key, found, change } = planned;
        match change {
            RowChange::Nothing => KnownHead::Same(key.clone(), found.clone()),
            RowChange::Remove => KnownHead::Same(key.clone(), None),
            RowChange::Json(value) => KnownHead::Put(key.clone(), ValueHead::Json(value.clone())),
            RowChange::List(extent, _) => KnownHead::Put(key.clone(), ValueHead::List(*extent)),
        }
    }

    fn after(self, put: &SummedCells, version: i64, schema: i64) -> (String, Option<HeadRow>) {
        match self {
            KnownHead::Same(key, head) => (key, head),
            KnownHead::Put(key, head) => {
                let row = put.put.keys.iter().position(|put| *put == key);
                let head = row.map(|row| {
                    let (items, checksum) = (put.items[row].unwrap_or_default(), put.contents[row]);
                    HeadRow::written(&key, schema, head, items, (version, checksum))
                });
                (key, head)
            }
        }
    }
}

/// The changes of a scope, as columns.
#[derive(Default)]
struct ScopeChanges {
    /// Lists that lose items, and the index of the first one that stays.
    shrunk: (Vec<String>, Vec<i64>),
    removed: Vec<String>,
    put: SharedColumns,
    items: SharedItemColumns,
}

#[derive(Default)]
struct SharedColumns {
    keys: Vec<String>,
    values: Vec<Option<String>>,
    starts: Vec<Option<i64>>,
    lengths: Vec<Option<i64>>,
    changed: Vec<i64>,
    sums: Vec<i64>,
}

#[derive(Default)]
struct SharedItemColumns {
    keys: Vec<String>,
    places: Vec<i64>,
    items: Vec<String>,
    sums: Vec<i64>,
}

impl ScopeChanges {
    fn add(&mut self, operation: ScopeOperation) {
        match operation {
            ScopeOperation::DropItems { key, before } => {
                self.shrunk.0.push(key);
                self.shrunk.1.push(before);
            }
            ScopeOperation::Remove { key } => self.removed.push(key),
            ScopeOperation::Put { row, checksum } => {
                let list = row.list();
                self.put.keys.push(row.key);
                self.put.values.push(row.value);
                self.put.starts.push(list.map(|(start, _)| start));
                self.put.lengths.push(list.map(|(_, length)| length));
                self.put.changed.push(row.changed);
                self.put.sums.push(checksum);
            }
            ScopeOperation::PutItem { key, place, checksum, item } => {
                self.items.keys.push(key);
                self.items.places.push(place);
                self.items.items.push(item);
                self.items.sums.push(checksum);
            }
        }
    }
}

/// The statements that write the values of a shared scope, which gets its next version.
pub(super) async fn scope_changes<'a>(
    connection: &'a Object,
    planned: Vec<PlannedChange>,
    mut row: ScopeRow,
    schema: i64,
) -> Result<Vec<SentStatement<'a>>, SessionError> {
    row.version += 1;
    let mut changes = ScopeChanges::default();
    for PlannedChange { key, found, change } in planned {
        let before = found.map(|found| found.before());
        let operations = row.change(schema, &key, before, change, connection.key())?;
        for operation in operations {
            changes.add(operation);
        }
    }
    let ScopeChanges { shrunk, removed, put, items } = changes;
    let (scope, version) = (row.scope, to_db(row.version));
    if !removed.is_empty() {
        row.known = row.known.max(remember_removed(connection, scope, &removed, version).await?);
    }
    let (known, seal) = (to_db(row.known), row.seal().to_bytes());
    let mut sent: Vec<SentStatement<'a>> = Vec::new();
    if !shrunk.0.is_empty() {
        sent.push(Box::pin(async move {
            execute(connection, DROP_SHARED_ITEMS, &[&scope, &shrunk.0, &shrunk.1]).await
        }));
    }
    sent.push(Box::pin(
        async move { execute(connection, MOVE_SCOPE, &[&scope, &version, &known, &seal]).await },
    ));
    if !removed.is_empty() {
        sent.push(Box::pin(async move { execute(connection, DELETE_SHARED, &[&scope, &removed]).await }));
    }
    if !put.keys.is_empty() {
        sent.push(Box::pin(async move {
            let SharedColumns { keys, values, starts, lengths, changed, sums } = &put;
            let given: SqlParameters<'_> =
                &[&scope, &schema, keys, values, starts, lengths, &version, changed, sums];
            execute(connection, PUT_SHARED, given).await
        }));
    }
    if !items.keys.is_empty() {
        sent.push(Box::pin(async move {
            let SharedItemColumns { keys, places, items, sums } = &items;
            execute(connection, PUT_SHARED_ITEMS, &[&scope, keys, places, items, sums, &version]).await
        }));
    }
    Ok(sent)
}

/// Rows of items of a session's lists, as they are stored.
struct ItemTexts {
    keys: Vec<String>,
    generations: Vec<i64>,
    places: Vec<i64>,
    items: Vec<String>,
    sums: Vec<i64>,
}

/// Rows of a session's values, with the checksums of their lists' items and of their contents.
struct SummedCells {
    put: CellColumns,
    items: Vec<Option<i64>>,
    contents: Vec<i64>,
}

impl SummedCells {
    async fn execute(
        &self,
        connection: &Object,
        [stream, version, schema]: [i64; 3],
    ) -> Result<u64, SessionError> {
        let SummedCells {
            put: CellColumns { keys, values, generations, starts, lengths, .. },
            items,
            contents,
        } = self;
        let given: SqlParameters<'_> =
            &[&stream, &version, &schema, keys, values, generations, starts, lengths, items, contents];
        execute(connection, PUT_CELLS, given).await
    }
}

/// Remembers which keys a write to a scope removes; the version up to which removals are forgotten by that.
async fn remember_removed(
    connection: &Object,
    scope: i64,
    removed: &[String],
    version: i64,
) -> Result<u64, SessionError> {
    let kept = to_db(REMEMBERED_REMOVALS as u64);
    let (_, forgotten) = try_join!(biased;
        async { execute(connection, ADD_REMOVED, &[&scope, &removed, &version]).await },
        async { query(connection, FORGET_REMOVED, &[&scope, &kept]).await },
    )?;
    Ok(forgotten.first().map_or(0, |row| from_db(row.get(0))))
}

impl ItemColumns {
    /// The rows that the event of a version adds in a stream. The items of a row are sealed as one: retention deletes
    /// rows as wholes.
    fn summed(self, [stream, version]: [i64; 2], content: ContentKey<'_>) -> Result<ItemTexts, SessionError> {
        let ItemColumns { keys, generations, places, items } = self;
        let text = |(row, items): (usize, Vec<Value>)| {
            let turn = [stream, version, generations[row], places[row]];
            content.seal(Place::item(&keys[row]), &turn, Value::Array(items).to_string())
        };
        let items: Vec<String> = items.into_iter().enumerate().map(text).collect::<Result<_, _>>()?;
        let sum = |row: usize| {
            let place = (generations[row], places[row]);
            sums::of_items((stream, version), &keys[row], place, &items[row])
        };
        let sums = (0..keys.len()).map(sum).collect();
        Ok(ItemTexts { keys, generations, places, items, sums })
    }
}

impl CellColumns {
    fn add(&mut self, key: &str, value: Option<String>, list: Option<(ListExtent, i64)>) {
        self.keys.push(key.to_owned());
        self.values.push(value);
        let number = |of: fn(ListExtent) -> u64| list.map(|(extent, _)| to_db(of(extent)));
        self.generations.push(number(|extent| extent.generation));
        self.starts.push(number(|extent| extent.start));
        self.lengths.push(number(|extent| extent.length));
        self.items.push(list.map(|(_, items)| items));
    }

    fn summed(self, schema: i64, added: &ItemTexts) -> SummedCells {
        let added = sums::by_key(added.keys.iter().map(String::as_str).zip(added.sums.iter().copied()));
        let with = |(key, items): (&String, &Option<i64>)| {
            items.map(|items| items ^ added.get(key.as_str()).copied().unwrap_or_default())
        };
        let items: Vec<Option<i64>> = self.keys.iter().zip(&self.items).map(with).collect();
        let contents = self.contents(schema, &items);
        SummedCells { put: self, items, contents }
    }

    fn extent(&self, row: usize) -> Option<ListExtent> {
        let (generation, start) = self.generations[row].zip(self.starts[row])?;
        let length = from_db(self.lengths[row]?);
        Some(ListExtent { generation: from_db(generation), start: from_db(start), length })
    }

    /// The checksums of the contents of a session's rows.
    fn contents(&self, schema: i64, items: &[Option<i64>]) -> Vec<i64> {
        let content = |row: usize| {
            let list = self.extent(row).zip(items[row]);
            sums::of_content(&self.keys[row], schema, self.values[row].as_deref(), list)
        };
        (0..self.keys.len()).map(content).collect()
    }
}
