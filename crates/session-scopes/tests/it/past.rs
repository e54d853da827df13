//! Every version that a session can go back to is read as it was seen when it was written.

use std::collections::BTreeMap;

use serde_json::Value;
use stepfold_session_scopes::{
    DeleteSession, GetSession, MemoryStore, Session, SessionError, SessionKey, SessionStore, SqliteStore,
    VerifySessions,
};

use crate::random::{Random, prune};
use crate::scenario::{create, key};

/// A session's own values, and its visible events by version and id.
type Told = (Value, Vec<(u64, String)>);

/// What was seen of a session, by version.
type Seen = BTreeMap<u64, Told>;

struct World<S> {
    store: S,
    sessions: Vec<(SessionKey, Seen)>,
    random: Random,
}

fn told(session: &Session) -> Told {
    let own = &session.values.as_ref().unwrap().session;
    let values = own.iter().map(|(key, value)| (key.to_owned(), value.to_json())).collect();
    let events = session.visible_events();
    let events = events.map(|committed| (committed.version, committed.event.id.to_string()));
    (Value::Object(values), events.collect())
}

impl<S: SessionStore> World<S> {
    async fn look(&mut self, place: usize) {
        let (key, seen) = &mut self.sessions[place];
        let session = self.store.get(GetSession::new(key.clone())).await.unwrap();
        seen.insert(session.version, told(&session));
    }

    async fn append(&mut self, place: usize) {
        let key = self.sessions[place].0.clone();
        self.random.append(&self.store, key, &[""], 3).await;
    }

    /// One of the versions that were seen of a session.
    fn version_of(&mut self, place: usize) -> u64 {
        let versions: Vec<u64> = self.sessions[place].1.keys().copied().collect();
        *self.random.one_of(&versions)
    }

    async fn rewind(&mut self, place: usize) {
        let (key, to) = (self.sessions[place].0.clone(), self.version_of(place));
        self.random.rewind(&self.store, key, to).await;
    }

    /// What was seen of pruned versions is of no more use: the events up to `oldest` are gone from all of it.
    async fn prune(&mut self, place: usize) {
        let (key, seen) = &mut self.sessions[place];
        let (first, last) = (*seen.keys().next().unwrap(), *seen.keys().next_back().unwrap());
        let oldest = self.random.luck.u64(first..=last);
        prune(&self.store, key.clone(), oldest).await;
        *seen = seen.split_off(&oldest);
        for (_, events) in seen.values_mut() {
            events.retain(|(version, _)| *version > oldest);
        }
    }

    async fn fork(&mut self, place: usize) {
        let version = self.version_of(place);
        let (from, seen) = self.sessions[place].clone();
        let key = self.random.fork(&self.store, from, version).await;
        self.sessions.push((key, seen.into_iter().filter(|(known, _)| *known <= version).collect()));
    }

    async fn step(&mut self) {
        self.random.now += 1;
        let place = self.random.luck.usize(..self.sessions.len());
        match self.random.luck.u8(..30) {
            0 | 1 => self.rewind(place).await,
            2 => self.prune(place).await,
            3 if self.sessions.len() < 5 => return self.fork(place).await,
            4 if self.sessions.len() > 1 => {
                let (key, _) = self.sessions.swap_remove(place);
                self.store.delete(DeleteSession::new(key)).await.unwrap();
                return;
            }
            _ => self.append(place).await,
        }
        self.look(place).await;
    }

    /// All versions, or some of them.
    async fn compare(&mut self, share: f64) {
        for (key, seen) in &self.sessions {
            for (version, expected) in seen {
                if self.random.luck.f64() < share {
                    let get = GetSession::new(key.clone()).at_version(*version);
                    let session = self.store.get(get).await.unwrap();
                    assert_eq!(told(&session), *expected, "{key} at {version}");
                    assert_eq!(
                        (session.version, session.newest),
                        (*version, *seen.keys().next_back().unwrap())
                    );
                }
            }
            let outside =
                [seen.keys().next().unwrap().checked_sub(1), Some(seen.keys().next_back().unwrap() + 1)];
            for version in outside.into_iter().flatten() {
                if self.random.luck.f64() >= share {
                    continue;
                }
                let refused = self.store.get(GetSession::new(key.clone()).at_version(version)).await;
                assert!(matches!(refused, Err(SessionError::NoSuchVersion { .. })), "{refused:?}");
            }
        }
    }
}

async fn versions_are_read_as_they_were(store: impl SessionStore, seed: u64, steps: usize) {
    let sessions = vec![(key("s"), Seen::new()), (key("t"), Seen::new())];
    let mut world = World { store, sessions, random: Random::new(seed) };
    for place in 0..2 {
        create(&world.store, &world.sessions[place].0).await;
        world.look(place).await;
    }
    for _ in 0..steps {
        world.step().await;
        world.compare(0.03).await;
    }
    world.compare(1.0).await;
    assert_eq!(world.store.verify(VerifySessions::all()).await.unwrap().faults, []);
}

#[tokio::test]
async fn every_version_is_read_as_it_was_in_memory() {
    for seed in 0..100 {
        versions_are_read_as_they_were(MemoryStore::new(), seed, 100).await;
    }
}

#[tokio::test]
async fn every_version_is_read_as_it_was_over_sqlite() {
    for seed in 0..12 {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(folder.path().join("sessions.db")).unwrap();
        versions_are_read_as_they_were(store, seed, 100).await;
    }
}

#[tokio::test]
async fn every_version_is_read_as_it_was_over_postgres() {
    let Some(server) = crate::server::server() else { return };
    for seed in 0..4 {
        let url = server.database(&format!("past_{seed}")).await;
        let options = stepfold_session_scopes::PostgresOptions::new(url).connections(1);
        versions_are_read_as_they_were(options.open().await.unwrap(), seed, 100).await;
    }
}
