//! Rows as they come from the server, read into what they mean.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use deadpool_postgres::Object;
use serde_json::Value;
use stepfold_state_core::List;
use stepfold_state_core::state::Cell;
use tokio_postgres::Row;

use super::statements::{ADD_SCHEMA, FIND_SCHEMA, READ_SCHEMA};
use super::transaction::{execute, query};
use crate::changes::ScopeVersions;
use crate::error::SessionError;
use crate::event::{CommittedEvent, Event};
use crate::ids::{EventId, LifeId, SessionId, SessionKey, WorkerId};
use crate::rows::{Assembly, Extent, Head, Segment, from_db, in_lineage, read_json};
use crate::session::{Held, Parent, Rewound, Session, Values, Visible};
use crate::store::Fence;
use crate::time::Timestamp;

/// Schemas by number: a row says under which it was written, and the text is stored once.
#[derive(Default)]
pub(super) struct Schemas(Mutex<Known>);

#[derive(Default)]
struct Known {
    numbers: HashMap<Arc<str>, i64>,
    texts: HashMap<i64, Arc<str>>,
}

impl Schemas {
    fn known<T>(&self, look: impl FnOnce(&mut Known) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The number of a schema, which is stored if it is new. Not for use inside a transaction, which might
    /// take it back.
    pub(super) async fn number(&self, connection: &Object, text: &Arc<str>) -> Result<i64, SessionError> {
        if let Some(number) = self.known(|known| known.numbers.get(text).copied()) {
            return Ok(number);
        }
        execute(connection, ADD_SCHEMA, &[&&**text]).await?;
        let found = query(connection, FIND_SCHEMA, &[&&**text]).await?;
        let number: Option<i64> = found.first().and_then(|row| row.get(0));
        let number = number.ok_or_else(|| SessionError::Store {
            what: "store a schema",
            source: "it is not there after it was stored".into(),
        })?;
        self.known(|known| {
            known.numbers.insert(Arc::clone(text), number);
            known.texts.insert(number, Arc::clone(text));
        });
        Ok(number)
    }

    /// The schema of a number.
    pub(super) async fn text(&self, connection: &Object, number: i64) -> Result<Arc<str>, SessionError> {
        if let Some(text) = self.known(|known| known.texts.get(&number).cloned()) {
            return Ok(text);
        }
        let rows = query(connection, READ_SCHEMA, &[&number]).await?;
        let text: Arc<str> = rows.first().map_or("", |row| row.get(0)).into();
        self.known(|known| known.texts.insert(number, Arc::clone(&text)));
        Ok(text)
    }
}

/// The row of a session.
pub(super) struct SessionRow {
    pub(super) number: i64,
    pub(super) version: u64,
    pub(super) oldest: u64,
    created: Timestamp,
    pub(super) updated: Timestamp,
    parent: Option<(String, u64)>,
    life: String,
    pub(super) fence: Fence,
    /// The position of the newest entry that waits in the inbox.
    pub(super) inbox: u64,
    /// When the row was read, by the server's clock.
    pub(super) now: Timestamp,
}

impl SessionRow {
    pub(super) fn read(row: &Row) -> Result<Self, SessionError> {
        let (parent, parent_version): (Option<String>, Option<i64>) = (row.get(5), row.get(6));
        Ok(SessionRow {
            number: row.get(0),
            version: from_db(row.get(1)),
            oldest: from_db(row.get(2)),
            created: Timestamp::from_micros(row.get(3)),
            updated: Timestamp::from_micros(row.get(4)),
            parent: parent.zip(parent_version.map(from_db)),
            life: row.get(8),
            fence: fence_of(row.get(0), row, 9)?,
            inbox: from_db(row.get(12)),
            now: Timestamp::from_micros(row.get(13)),
        })
    }

    /// The row of a session that has to be there.
    pub(super) fn of(rows: &[Row], key: &SessionKey) -> Result<Self, SessionError> {
        rows.first().map(SessionRow::read).transpose()?.ok_or_else(|| SessionError::not_found(key))
    }

    pub(super) fn session(
        self,
        key: SessionKey,
        visible: Visible,
        scopes: ScopeVersions,
    ) -> Result<Session, SessionError> {
        let parent = self
            .parent
            .map(|(id, version)| Ok::<_, SessionError>(Parent { id: SessionId::new(id)?, version }));
        Ok(Session {
            key,
            life: LifeId::new(self.life)?,
            version: self.version,
            created: self.created,
            updated: self.updated,
            claim: self.fence.unexpired(self.now),
            inbox: self.inbox,
            parent: parent.transpose()?,
            oldest: self.oldest,
            visible,
            scopes,
            head: None,
            values: None,
            events: Vec::new(),
        })
    }
}

/// The claim of a session, from its columns `number, claims, claim_owner, claim_expires` that begin here.
pub(super) fn fence(row: &Row, number: usize) -> Result<Fence, SessionError> {
    fence_of(row.get(number), row, number + 1)
}

/// The claim of a session, from its number and its columns `claims, claim_owner, claim_expires` that begin here.
fn fence_of(number: i64, row: &Row, claims: usize) -> Result<Fence, SessionError> {
    let holder = match row.get::<_, Option<&str>>(claims + 1) {
        Some(owner) => Some((WorkerId::new(owner)?, Timestamp::from_micros(row.get(claims + 2)))),
        None => None,
    };
    Ok(Fence::stored(number, row.get(claims), holder))
}

/// The history of a session.
pub(super) struct History {
    /// Newest first.
    pub(super) lineage: Vec<Segment>,
    pub(super) rewinds: Vec<Rewound>,
}

impl History {
    pub(super) fn read(lineage: &[Row], rewinds: &[Row]) -> Self {
        let lineage: Vec<Segment> = lineage
            .iter()
            .map(|row| Segment { stream: row.get(0), after: from_db(row.get(1)), upto: from_db(row.get(2)) })
            .collect();
        let rewinds = rewinds
            .iter()
            .filter(|row| in_lineage(&lineage, row.get(0), from_db(row.get(1))))
            .map(|row| Rewound { version: from_db(row.get(1)), to: from_db(row.get(2)) })
            .collect();
        History { lineage, rewinds }
    }

    /// Where the state of a version is written down.
    pub(super) fn stream_of(&self, version: u64) -> Option<i64> {
        self.lineage.iter().find(|segment| segment.after <= version).map(|segment| segment.stream)
    }
}

/// Events, which come newest first.
pub(super) fn events(rows: &[Row]) -> Result<Vec<CommittedEvent>, SessionError> {
    let read = |row: &Row| {
        let (id, at) = (EventId::new(row.get::<_, &str>(1))?, Timestamp::from_micros(row.get(2)));
        let event = Event::from_body(id, at, row.get(3))?;
        Ok(CommittedEvent { version: from_db(row.get(0)), event: event.into() })
    };
    rows.iter().rev().map(read).collect()
}

/// The row of a value: `key, schema, value, generation, start, length`.
pub(super) struct HeadRow {
    pub(super) key: String,
    pub(super) schema: i64,
    pub(super) head: Head,
}

pub(super) fn heads(rows: &[Row]) -> Result<Vec<HeadRow>, SessionError> {
    let read = |row: &Row| {
        let value: Option<&str> = row.get(2);
        let head = match value {
            Some(text) => Head::Json(read_json("value", text)?),
            None => Head::List(Extent {
                generation: from_db(row.get(3)),
                start: from_db(row.get(4)),
                length: from_db(row.get(5)),
            }),
        };
        Ok(HeadRow { key: row.get(0), schema: row.get(1), head })
    };
    rows.iter().map(read).collect()
}

/// Items of lists by key.
pub(super) type Items = HashMap<String, List<Arc<Value>>>;

/// The items of a session's lists, from rows in the order of their versions.
pub(super) fn session_items(
    heads: &[HeadRow],
    rows: &[Row],
    history: &History,
    visible: &Visible,
) -> Result<Items, SessionError> {
    let mut lists: HashMap<&str, Assembly> = heads
        .iter()
        .filter_map(|row| match row.head {
            Head::List(extent) => Some((row.key.as_str(), Assembly::new(extent))),
            Head::Json(_) => None,
        })
        .collect();
    for row in rows {
        let (key, stream, version): (&str, i64, i64) = (row.get(0), row.get(1), row.get(2));
        let version = from_db(version);
        if let Some(list) = lists.get_mut(key)
            && visible.contains(version)
            && in_lineage(&history.lineage, stream, version)
        {
            list.add(from_db(row.get(3)), row.get(4))?;
        }
    }
    lists.into_iter().map(|(key, list)| Ok((key.to_owned(), list.finish(key)?))).collect()
}

/// The items of shared lists, from rows in the order of their places.
pub(super) fn shared_items(rows: &[Row]) -> Result<Items, SessionError> {
    let mut items = Items::new();
    for row in rows {
        let (key, text): (&str, &str) = (row.get(0), row.get(1));
        let item: Value = read_json("item of a list", text)?;
        match items.get_mut(key) {
            Some(list) => list.push(Arc::new(item)),
            None => {
                items.insert(key.to_owned(), std::iter::once(Arc::new(item)).collect());
            }
        }
    }
    Ok(items)
}

/// Values from their rows and items.
pub(super) async fn values(
    connection: &Object,
    schemas: &Schemas,
    heads: Vec<HeadRow>,
    mut items: Items,
) -> Result<Values, SessionError> {
    let mut values = Vec::with_capacity(heads.len());
    for HeadRow { key, schema, head } in heads {
        let cell = match head {
            Head::Json(value) => Cell::from(value),
            Head::List(_) => Cell::list(items.remove(&key).unwrap_or_default()),
        };
        let schema = schemas.text(connection, schema).await?;
        values.push((Arc::from(key), Held { cell, schema }));
    }
    Ok(values.into_iter().collect())
}

/// The row of a scope that outlives sessions; zeros, if nobody wrote to it.
#[derive(Clone, Copy, Default)]
pub(super) struct ScopeRow {
    /// How often it was written.
    pub(super) version: u64,
    /// What was removed up to this version is forgotten.
    pub(super) known: u64,
}

/// The scopes that a session shares.
#[derive(Clone, Copy, Default)]
pub(super) struct Scopes {
    pub(super) app: ScopeRow,
    pub(super) user: ScopeRow,
}

impl Scopes {
    /// Reads `is_app, version, known`.
    pub(super) fn of(rows: &[Row]) -> Self {
        let mut scopes = Scopes::default();
        for row in rows {
            let place = if row.get(0) { &mut scopes.app } else { &mut scopes.user };
            *place = ScopeRow { version: from_db(row.get(1)), known: from_db(row.get(2)) };
        }
        scopes
    }

    pub(super) fn versions(&self) -> ScopeVersions {
        ScopeVersions { app: self.app.version, user: self.user.version }
    }
}
