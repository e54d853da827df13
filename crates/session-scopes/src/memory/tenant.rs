//! What one user has in memory: values, sessions, and their order in a list.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use rpds::RedBlackTreeMapSync;
use stepfold_state_core::List;
use stepfold_state_core::state::{Delta, Write};

use crate::apply::merge_write;
use crate::error::SessionError;
use crate::event::{CommittedEvent, Event};
use crate::ids::{EventId, OperationId, SessionId, SessionKey};
use crate::schema::SessionSchema;
use crate::scope::ByScope;
use crate::session::{Held, Parent, Rewound, Session, Values, Visible};
use crate::store::{Before, EventRange, PruneSession, Pruned, REMEMBERED_OPERATIONS, Receipt, WriteScope};
use crate::time::Timestamp;

type Cells = RedBlackTreeMapSync<Arc<str>, Held>;
/// Sessions by the time of their last write and their number.
pub(super) type Order = BTreeMap<(Timestamp, i64), SessionId>;

/// A user of an app.
#[derive(Debug, Default)]
pub(super) struct Tenant {
    pub(super) user: Shared,
    pub(super) sessions: HashMap<SessionId, Entry>,
    pub(super) order: Order,
}

impl Tenant {
    pub(super) fn insert(&mut self, id: SessionId, entry: Entry) {
        self.order.insert((entry.updated, entry.number), id.clone());
        self.sessions.insert(id, entry);
    }

    pub(super) fn remove(&mut self, id: &SessionId) -> Option<Entry> {
        let entry = self.sessions.remove(id)?;
        self.order.remove(&(entry.updated, entry.number));
        Some(entry)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sessions.is_empty() && self.user.cells.is_empty() && self.user.operations.is_empty()
    }

    pub(super) fn newest_first(
        &self,
        after: Option<(Timestamp, i64)>,
    ) -> impl Iterator<Item = (Timestamp, i64, &SessionId)> {
        let end = after.unwrap_or((Timestamp::from_micros(i64::MAX), i64::MAX));
        self.order.range(..end).rev().map(|(&(updated, number), id)| (updated, number, id))
    }
}

/// A scope that outlives sessions.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) cells: Cells,
    /// The newest operations, oldest first.
    operations: VecDeque<(OperationId, Delta)>,
}

impl Shared {
    pub(super) fn values(&self) -> Values {
        values(&self.cells)
    }

    pub(super) fn keys(&self) -> Vec<String> {
        self.cells.keys().map(ToString::to_string).collect()
    }

    /// The values after these writes.
    pub(super) fn merged(
        shared: Option<&Shared>,
        writes: &[&Write],
        schema: &SessionSchema,
        what: &str,
    ) -> Result<Cells, SessionError> {
        let cells = shared.map(|shared| shared.cells.clone()).unwrap_or_default();
        merged(cells, writes, schema, what)
    }

    pub(super) fn write(&mut self, request: &WriteScope) -> Result<Values, SessionError> {
        let what = format!("what is written to {}", request.scope);
        if let Some(operation) = &request.operation {
            match self.operations.iter().find(|(known, _)| known == operation) {
                Some((_, delta)) if *delta == request.delta => return Ok(self.values()),
                Some(_) => {
                    let (scope, operation) = (request.scope.to_string(), operation.clone());
                    return Err(SessionError::OperationReused { scope, operation });
                }
                None => {}
            }
        }
        let writes: Vec<&Write> = request.delta.iter().collect();
        self.cells = merged(self.cells.clone(), &writes, &request.schema, &what)?;
        if let Some(operation) = &request.operation {
            self.operations.push_back((operation.clone(), request.delta.clone()));
            if self.operations.len() > REMEMBERED_OPERATIONS {
                self.operations.pop_front();
            }
        }
        Ok(self.values())
    }
}

fn values(cells: &Cells) -> Values {
    cells.iter().map(|(key, held)| (Arc::clone(key), held.clone())).collect()
}

fn merged(
    mut cells: Cells,
    writes: &[&Write],
    schema: &SessionSchema,
    what: &str,
) -> Result<Cells, SessionError> {
    for write in writes {
        match merge_write(schema, cells.get(write.key()), write, what)? {
            Some(cell) => {
                let held = Held { cell, schema: Arc::clone(schema.text()) };
                match cells.get_mut(write.key()) {
                    Some(place) => *place = held,
                    None => cells.insert_mut(write.key().into(), held),
                }
            }
            None => {
                cells.remove_mut(write.key());
            }
        }
    }
    Ok(cells)
}

/// A session.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) number: i64,
    pub(super) updated: Timestamp,
    created: Timestamp,
    parent: Option<Parent>,
    /// Events up to this version are gone.
    oldest: u64,
    /// The events behind `oldest`.
    log: List<CommittedEvent>,
    /// The values at each version from `oldest` on.
    cells: List<Cells>,
    rewinds: Vec<Rewound>,
    versions: HashMap<EventId, u64>,
}

impl Entry {
    pub(super) fn new(
        number: i64,
        at: Timestamp,
        writes: &[&Write],
        schema: &SessionSchema,
    ) -> Result<Self, SessionError> {
        let cells = merged(Cells::default(), writes, schema, crate::apply::INITIAL)?;
        Ok(Entry {
            number,
            updated: at,
            created: at,
            parent: None,
            oldest: 0,
            log: List::new(),
            cells: [cells].into_iter().collect(),
            rewinds: Vec::new(),
            versions: HashMap::new(),
        })
    }

    pub(super) fn version(&self) -> u64 {
        self.oldest + self.events()
    }

    /// The number of events that are left.
    pub(super) fn events(&self) -> u64 {
        self.log.len() as u64
    }

    pub(super) fn keys(&self) -> Vec<String> {
        self.now().into_iter().flat_map(Cells::keys).map(ToString::to_string).collect()
    }

    fn now(&self) -> Option<&Cells> {
        self.cells.last()
    }

    /// The first receipt, if the event was committed already.
    pub(super) fn repeated(&self, key: &SessionKey, event: &Event) -> Result<Option<Receipt>, SessionError> {
        let Some(&version) = self.versions.get(&event.id) else { return Ok(None) };
        let committed = self.log.get(index(version - self.oldest - 1));
        if committed.is_some_and(|committed| *committed.event == *event) {
            return Ok(Some(Receipt { event: event.id.clone(), version }));
        }
        Err(SessionError::event_reused(key, &event.id))
    }

    /// The values after these writes.
    pub(super) fn merged(
        &self,
        writes: &[&Write],
        schema: &SessionSchema,
        what: &str,
    ) -> Result<Cells, SessionError> {
        merged(self.now().cloned().unwrap_or_default(), writes, schema, what)
    }

    pub(super) fn commit(&mut self, event: Event, cells: Cells) -> u64 {
        let version = self.version() + 1;
        self.updated = event.at;
        self.versions.insert(event.id.clone(), version);
        self.rewinds.extend(event.actions.rewound_to().map(|to| Rewound { version, to }));
        self.log.push(CommittedEvent { version, event: Arc::new(event) });
        self.cells.push(cells);
        version
    }

    pub(super) fn cells_at(&self, key: &SessionKey, version: u64) -> Result<Cells, SessionError> {
        let cells = version.checked_sub(self.oldest).and_then(|offset| self.cells.get(index(offset)));
        cells.cloned().ok_or_else(|| SessionError::no_such_version(key, version, self.oldest, self.version()))
    }

    pub(super) fn fork(
        &self,
        key: &SessionKey,
        version: u64,
        number: i64,
        at: Timestamp,
    ) -> Result<Self, SessionError> {
        self.cells_at(key, version)?;
        let length = index(version - self.oldest);
        let is_newest = version == self.version();
        Ok(Entry {
            number,
            updated: at,
            created: at,
            parent: Some(Parent { id: key.id.clone(), version }),
            oldest: self.oldest,
            log: if is_newest { self.log.clone() } else { first(&self.log, length) },
            cells: if is_newest { self.cells.clone() } else { first(&self.cells, length + 1) },
            rewinds: self.rewinds.iter().copied().filter(|rewound| rewound.version <= version).collect(),
            versions: HashMap::new(),
        })
    }

    pub(super) fn prune(&mut self, request: &PruneSession) -> Result<Pruned, SessionError> {
        let newest = self.version();
        let oldest = match request.before {
            Before::Version(version) if version > newest => {
                return Err(SessionError::no_such_version(&request.key, version, self.oldest, newest));
            }
            Before::Version(version) => version.max(self.oldest),
            Before::Time(time) => {
                let first = self.log.iter().find(|committed| committed.event.at >= time);
                first.map_or(newest, |first| first.version - 1)
            }
        };
        let events = oldest - self.oldest;
        for committed in self.log.iter().take(index(events)) {
            self.versions.remove(&committed.event.id);
        }
        self.log.keep_last(index(newest - oldest));
        self.cells.keep_last(index(newest - oldest + 1));
        self.oldest = oldest;
        Ok(Pruned { events, oldest })
    }

    pub(super) fn session(
        &self,
        key: &SessionKey,
        events: EventRange,
        shared: Option<(Option<&Shared>, &Shared)>,
    ) -> Session {
        let version = self.version();
        Session {
            key: key.clone(),
            version,
            created: self.created,
            updated: self.updated,
            parent: self.parent.clone(),
            oldest: self.oldest,
            visible: Visible::at(version, &self.rewinds),
            values: shared.map(|(app, user)| ByScope {
                app: app.map(Shared::values).unwrap_or_default(),
                user: user.values(),
                session: self.now().map(values).unwrap_or_default(),
            }),
            events: self.range(events),
        }
    }

    fn range(&self, events: EventRange) -> Vec<CommittedEvent> {
        let length = self.log.len();
        let from = match events {
            EventRange::None => length,
            EventRange::All => 0,
            EventRange::Last(count) => length.saturating_sub(count),
            EventRange::AfterVersion(version) => index(version.saturating_sub(self.oldest)),
            EventRange::Since(time) => {
                let newer = self.log.iter().rev().take_while(|committed| committed.event.at >= time);
                length - newer.count()
            }
        };
        self.log.iter_from(from).cloned().collect()
    }
}

fn first<T: Clone>(list: &List<T>, length: usize) -> List<T> {
    list.iter().take(length).cloned().collect()
}

/// A place in memory; what is counted there fits its addresses.
fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
