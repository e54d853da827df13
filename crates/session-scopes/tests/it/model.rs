//! SQLite against memory: whatever is done to sessions, both tell the same.

use serde_json::json;
use stepfold_session_scopes::{
    Author, CreateSession, DeleteSession, Durability, EraseData, EraseTarget, ErasureId, EventId, Expected,
    ForkSession, GetSession, InvocationId, Label, LabelVersion, LifeId, ListErasures, ListForks,
    ListSessions, MemoryStore, PruneBound, PruneSession, ReadLabels, RewindSession, SessionKey, SessionStore,
    SqliteOptions, VerifySessions,
};
use stepfold_state_core::state::{Handler, Write};

use crate::scenario::{at, event, key, schema};

/// Two stores that are asked the same.
struct Pair<S> {
    memory: MemoryStore,
    other: S,
    sessions: Vec<SessionKey>,
    luck: fastrand::Rng,
    /// Counts what is done: ids and times.
    now: i64,
}

macro_rules! both {
    ($pair:ident, $method:ident, $request:expr) => {{
        let request = $request;
        let told = $pair.memory.$method(request.clone()).await.map_err(|error| error.to_string());
        let other = $pair.other.$method(request).await.map_err(|error| error.to_string());
        assert_eq!(without_head(&format!("{told:?}")), without_head(&format!("{other:?}")));
        told
    }};
}

/// A text without the digests of sessions, which a store in memory does not keep.
fn without_head(text: &str) -> String {
    let mut parts = text.split("head: Some(");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + "head: None" + part.split_once(')').unwrap().1)
}

impl<S: SessionStore> Pair<S> {
    fn any(&mut self) -> SessionKey {
        self.sessions[self.luck.usize(..self.sessions.len())].clone()
    }

    async fn version(&self, key: &SessionKey) -> (u64, u64) {
        let session = self.memory.get(GetSession::new(key.clone()).without_state()).await.unwrap();
        (session.oldest, session.version)
    }

    /// A version of the session, now and then one that it does not have.
    async fn some_version(&mut self, key: &SessionKey) -> u64 {
        let (oldest, version) = self.version(key).await;
        self.luck.u64(oldest.saturating_sub(1)..=version + 1)
    }

    fn write(&mut self) -> Write {
        let schema = schema();
        let (schema, item) = (schema.schema(), self.luck.u8(..9));
        match self.luck.u8(..10) {
            0 => schema.removal("list"),
            1 => schema.write_with("list", json!([item]), &Handler::replace_values()),
            2 => schema.write_with("list", json!([item, item]), &Handler::keep_last(3)),
            3 => schema.write_with("list", json!([item]), &Handler::union()),
            4 => schema.write("n", json!(item)),
            5 => schema.removal("n"),
            6 => schema.write("free", json!({"item": item})),
            7 => schema.write("app:list", json!([item])),
            _ => schema.write("list", json!([item])),
        }
        .unwrap()
    }

    async fn append(&mut self) {
        let key = self.any();
        let writes = (0..self.luck.usize(..4)).map(|_| self.write()).collect();
        let (now, version) = (self.now, self.version(&key).await.1);
        let mut event = event(format!("e{now}")).with_delta(writes);
        event.at = at(now);
        let request = stepfold_session_scopes::AppendEvent::new(key, version, event, &schema());
        both!(self, append, request).unwrap();
        if self.luck.u8(..8) == 0 {
            // Lost on the way back, and asked again.
            let key = self.any();
            let mut again = stepfold_state_core::state::Delta::new();
            again.extend([self.write()]);
            let request = stepfold_session_scopes::AppendEvent::new(
                key,
                Expected::Any,
                crate::scenario::event(format!("e{now}")).with_delta(again),
                &schema(),
            );
            let _ = both!(self, append, request);
        }
    }

    async fn step(&mut self) {
        self.now += 1;
        match self.luck.u8(..20) {
            0 | 1 => {
                let from = self.any();
                let version = self.some_version(&from).await;
                let id = key(format!("fork {}", self.now)).id;
                let life = LifeId::new(id.as_str()).unwrap();
                let fork =
                    ForkSession::new(from, at(self.now)).at_version(version).with_id(id).with_life(life);
                self.sessions.extend(both!(self, fork, fork).map(|session| session.key));
            }
            2 | 3 => {
                let key = self.any();
                let to = self.some_version(&key).await;
                let request = RewindSession::new(
                    key,
                    Expected::Any,
                    to,
                    EventId::new(format!("r{}", self.now)).unwrap(),
                    InvocationId::new("i").unwrap(),
                    Author::new("user").unwrap(),
                    at(self.now),
                );
                let _ = both!(self, rewind, request);
            }
            6 => {
                let key = self.any();
                let version = Some(self.some_version(&key).await).filter(|version| version % 5 > 0);
                let label = Label::new(format!("label {}", self.luck.u8(..3))).unwrap();
                let request = match version {
                    Some(version) => LabelVersion::new(key, label, version),
                    None => LabelVersion::removal(key, label),
                };
                let _ = both!(self, set_label, request);
            }
            4 => {
                let key = self.any();
                let before = PruneBound::Version(self.some_version(&key).await);
                let _ = both!(self, prune, PruneSession::new(key, before));
            }
            5 if self.sessions.len() > 1 => {
                let place = self.luck.usize(..self.sessions.len());
                let key = self.sessions.swap_remove(place);
                both!(self, delete, DeleteSession::new(key)).unwrap();
            }
            7 | 8 => {
                let key = self.any();
                let versions = (0..self.luck.usize(1..3)).map(|_| self.luck.u64(0..12)).collect();
                let target = EraseTarget::Events { key, versions };
                let _ = both!(self, erase, self.erasing(target));
            }
            9 if self.sessions.len() > 3 => {
                let place = self.luck.usize(1..self.sessions.len());
                let target = EraseTarget::Session { key: self.sessions[place].clone() };
                let erased = both!(self, erase, self.erasing(target)).unwrap();
                self.sessions.retain(|key| !erased.sessions.contains(key));
                if self.sessions.is_empty() {
                    // The last ones shared their events.
                    let create =
                        CreateSession::with_key(key(format!("s{}", self.now)), &schema(), at(self.now));
                    let create = create.with_life(LifeId::new(format!("s{}", self.now)).unwrap());
                    self.sessions.push(both!(self, create, create).unwrap().key);
                }
            }
            _ => self.append().await,
        }
    }

    fn erasing(&self, target: EraseTarget) -> EraseData {
        let id = ErasureId::new(format!("erasure {}", self.now)).unwrap();
        EraseData::new(id, target, at(self.now), Author::new("admin").unwrap(), "luck")
    }

    async fn compare(&self) {
        for key in &self.sessions {
            both!(self, get, GetSession::new(key.clone())).unwrap();
            both!(self, get, GetSession::new(key.clone()).visible().without_state()).unwrap();
            both!(self, forks, ListForks::new(key.clone())).unwrap();
            both!(self, labels, ReadLabels::new(key.clone())).unwrap();
        }
        let list = ListSessions::new("app", "alice").unwrap().limit(3);
        let page = both!(self, list, list.clone()).unwrap();
        both!(self, list, list.after(page.next)).unwrap();
        both!(self, erasures, ListErasures::new("app".parse().unwrap())).unwrap();
    }
}

#[tokio::test]
async fn sqlite_tells_what_memory_tells() {
    for seed in 0..24 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sessions.db");
        let store = SqliteOptions::new(&path).durability(Durability::Process).open().unwrap();
        let (memory, luck) = (MemoryStore::new(), fastrand::Rng::with_seed(seed));
        let mut pair = Pair { memory, other: store, sessions: vec![key("s")], luck, now: 1 };
        let life = LifeId::new("s").unwrap();
        let create = CreateSession::with_key(key("s"), &schema(), at(0)).with_life(life);
        both!(pair, create, create).unwrap();
        for _ in 0..80 {
            pair.step().await;
            pair.compare().await;
        }
        let report = pair.other.verify(VerifySessions::all()).await.unwrap();
        assert_eq!(report.faults, [], "seed {seed}");
        let mut erased = pair.memory.verify(VerifySessions::all()).await.unwrap().erasures;
        erased.sort_by(|one, other| (&one.key, one.version).cmp(&(&other.key, other.version)));
        let mut told = report.erasures;
        told.sort_by(|one, other| (&one.key, one.version).cmp(&(&other.key, other.version)));
        assert_eq!(told, erased, "seed {seed}");
        for key in std::mem::take(&mut pair.sessions) {
            both!(pair, delete, DeleteSession::new(key)).unwrap();
        }
        // Nothing is left of what was deleted.
        let file = rusqlite::Connection::open(&path).unwrap();
        for table in ["sessions", "recent", "lineage", "events", "rewinds", "cells", "forks", "labels"] {
            let count = format!("SELECT COUNT(*) FROM stepfold_{table}");
            let rows: i64 = file.query_row(&count, [], |row| row.get(0)).unwrap();
            assert_eq!(rows, 0, "{table}, seed {seed}");
        }
    }
}
