//! The rows of scopes that sessions share, as databases keep them: computes what a write changes, as a list of operations
//! that each store performs in its way.

use super::lineage::to_db;
use super::seal::{ScopeSeal, of_item, of_shared, scope_name};
use super::values::{ListExtent, RowChange};
use crate::error::SessionError;
use crate::ids::{AppId, UserId};
use crate::keys::sealer::{ContentKey, Place};
use crate::scope::ScopeVersions;

/// The generation of a shared list that starts over. A stored one has generation 0.
pub(crate) const RECREATED: u64 = 1;

/// Whether writes to the scopes that a session shares are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScopeWriteMode {
    All,
    Nothing,
}

/// The row of a scope.
#[derive(Clone, Debug)]
pub(crate) struct ScopeRow {
    pub(crate) scope: i64,
    app: AppId,
    user: Option<UserId>,
    /// The number of writes to it.
    pub(crate) version: u64,
    /// Removals up to this version are forgotten.
    pub(crate) known: u64,
    /// The checksums of the rows of its keys, combined by exclusive or.
    pub(crate) cells: i64,
}

/// The scopes of a session.
#[derive(Clone, Debug)]
pub(crate) struct SharedScopes {
    pub(crate) app: ScopeRow,
    pub(crate) user: ScopeRow,
}

impl SharedScopes {
    pub(crate) fn versions(&self) -> ScopeVersions {
        ScopeVersions { app: self.app.version, user: self.user.version }
    }
}

impl ScopeRow {
    /// A scope without writes.
    pub(crate) fn new(scope: i64, app: &AppId, user: Option<&UserId>) -> Self {
        ScopeRow { scope, app: app.clone(), user: user.cloned(), version: 0, known: 0, cells: 0 }
    }

    /// With the columns of its row, if the seal is valid. Before the first write it may have none.
    pub(crate) fn opened(
        self,
        (version, known): (u64, u64),
        seal: Option<ScopeSeal>,
    ) -> Result<Self, SessionError> {
        let found = ScopeRow { version, known, cells: seal.map_or(0, |seal| seal.cells), ..self };
        match seal {
            Some(seal) if found.seal() != seal => Err(found.damaged("checksum mismatch of its row")),
            None if version > 0 => Err(found.damaged("missing seal of its row")),
            _ => Ok(found),
        }
    }

    /// The user, empty for an app's own scope.
    pub(crate) fn user(&self) -> &str {
        self.user.as_ref().map_or("", UserId::as_str)
    }

    pub(crate) fn seal(&self) -> ScopeSeal {
        ScopeSeal::new(self.scope, self.app.as_str(), self.user(), (self.version, self.known), self.cells)
    }

    pub(crate) fn damaged(&self, why: &str) -> SessionError {
        SessionError::damaged(scope_name(self.app.as_str(), self.user()), why)
    }

    /// Rejects rows of keys that are not all or outdated, by their combined checksums.
    pub(crate) fn check_cells(&self, found: i64) -> Result<(), SessionError> {
        if found == self.cells {
            return Ok(());
        }
        Err(self.damaged("a key is missing or outdated"))
    }

    /// The version after all values are removed, which counts as a write. A scope without writes has no readers that have
    /// cached anything, so it stays without.
    pub(crate) fn version_when_erased(&self) -> u64 {
        if self.version == 0 { 0 } else { self.version + 1 }
    }

    /// Removes all values, at a version.
    pub(crate) fn erase(&mut self, version: u64) {
        (self.version, self.known, self.cells) = (version, version, 0);
    }

    /// The operations of a change of a key in a write that gives the scope its current version and has a schema. Updates
    /// the combined checksums. Values of a user are sealed, if the store has a ring.
    pub(crate) fn change(
        &mut self,
        schema: i64,
        key: &str,
        before: Option<SharedHead>,
        change: RowChange,
        content: ContentKey<'_>,
    ) -> Result<Vec<ScopeOperation>, SessionError> {
        if change == RowChange::Nothing {
            return Ok(Vec::new());
        }
        // NOTE: values of an application belong to no user.
        let content = if self.user.is_some() { content } else { ContentKey::Missing };
        self.cells ^= before.map_or(0, |before| before.checksum);
        let mut operations = Vec::new();
        let list = before.and_then(|before| Some((before.extent?, before.changed)));
        if let Some(place) = list.and_then(|(extent, _)| first_kept(extent, &change)) {
            operations.push(ScopeOperation::DropItems { key: key.to_owned(), before: place });
        }
        let version = to_db(self.version);
        // NOTE: a change at the ends keeps the version of the last other one: a reader that has seen that version needs
        // only the new items (docs/decisions/sessions.md).
        let changed = list.filter(|(extent, _)| change.only_appends(*extent));
        let changed = changed.map_or(version, |(_, changed)| changed);
        let (value, extent, rows) = match change {
            RowChange::Nothing | RowChange::Remove => {
                operations.push(ScopeOperation::Remove { key: key.to_owned() });
                return Ok(operations);
            }
            RowChange::Json(value) => {
                let turn = [self.scope, version];
                (Some(content.seal(Place::value(key), &turn, value.to_string())?), None, Vec::new())
            }
            RowChange::List(extent, rows) => (None, Some(extent), rows),
        };
        let row = SharedRow { key: key.to_owned(), version, changed, schema, value, extent };
        self.cells ^= row.sum(self.scope);
        operations.push(ScopeOperation::Put { checksum: row.sum(self.scope), row });
        let start = extent.map_or(0, |extent| extent.start);
        let items = rows.into_iter().flat_map(|(place, items)| (place..).zip(items));
        // NOTE: `keep_last` may drop items that the same write added; they are not stored at all.
        for (place, item) in items.filter(|(place, _)| *place >= start) {
            let (place, item) = (to_db(place), item.to_string());
            let item = content.seal(Place::item(key), &[self.scope, version, place], item)?;
            let checksum = of_item(self.scope, key, (place, version), &item);
            operations.push(ScopeOperation::PutItem { key: key.to_owned(), place, checksum, item });
        }
        Ok(operations)
    }
}

/// The index of the first item that a list keeps, if a change drops any.
fn first_kept(before: ListExtent, change: &RowChange) -> Option<i64> {
    let kept = match change {
        RowChange::List(extent, _) if extent.generation != RECREATED => extent.start,
        // NOTE: a removed, replaced or recreated list keeps no items, and scopes have no history that could need them.
        _ => return Some(i64::MAX),
    };
    (kept > before.start).then(|| to_db(kept))
}

/// The fields of a key's stored row on which its next change depends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedHead {
    /// The extent, if it is a list.
    pub(crate) extent: Option<ListExtent>,
    pub(crate) changed: i64,
    pub(crate) checksum: i64,
}

/// The row of a shared key.
#[derive(Debug)]
pub(crate) struct SharedRow {
    pub(crate) key: String,
    pub(crate) version: i64,
    /// The version of the last change that was not one at the ends of a list.
    pub(crate) changed: i64,
    pub(crate) schema: i64,
    /// The JSON of a value that is not a list.
    pub(crate) value: Option<String>,
    pub(crate) extent: Option<ListExtent>,
}

impl SharedRow {
    /// The columns of a list: its start and its length.
    pub(crate) fn list(&self) -> Option<(i64, i64)> {
        self.extent.map(|extent| (to_db(extent.start), to_db(extent.length)))
    }

    pub(crate) fn sum(&self, scope: i64) -> i64 {
        let SharedRow { key, version, changed, schema, value, extent: _ } = self;
        of_shared(scope, key, (*version, *changed), *schema, value.as_deref(), self.list())
    }
}

/// An operation on the rows of a scope.
#[derive(Debug)]
pub(crate) enum ScopeOperation {
    /// Deletes the items of a list before an index.
    DropItems { key: String, before: i64 },
    /// Deletes the row of a key, and remembers that.
    Remove { key: String },
    /// Stores the row of a key.
    Put { row: SharedRow, checksum: i64 },
    /// Stores an item of a list, at the version of the scope.
    PutItem { key: String, place: i64, checksum: i64, item: String },
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_shared_list_that_only_grows_drops_no_items() {
        let extent = |start, length| ListExtent { generation: 0, start, length };
        let dropped = |change| first_kept(extent(3, 10), &change);
        let grown = |start| RowChange::List(extent(start, 11), vec![(13, vec![json!("item")])]);
        assert_eq!(dropped(grown(3)), None);
        assert_eq!(dropped(grown(4)), Some(4));
        let recreated =
            RowChange::List(ListExtent { generation: RECREATED, start: 0, length: 0 }, Vec::new());
        assert_eq!([dropped(recreated), dropped(RowChange::Remove)], [Some(i64::MAX); 2]);
    }
}
