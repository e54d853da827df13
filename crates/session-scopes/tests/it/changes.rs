//! A state that is kept and brought up to date is the state that is read afresh, whatever was done in between.

use proptest::test_runner::Config;
use serde_json::{Value, json};
use stepfold_session_scopes::{
    Author, Before, DeleteSession, EventId, Expected, ForkSession, GetSession, InvocationId, MemoryStore,
    PruneSession, RewindSession, ScopeKey, Seen, Session, SessionKey, SessionStore, SqliteStore, WriteScope,
};
use stepfold_state_core::state::{Delta, Handler, State, Write};

use crate::scenario::{at, create, event, key, schema};

/// Somebody who keeps the state of a session, and looks now and then.
struct Reader {
    key: SessionKey,
    seen: Seen,
    state: State,
}

impl Reader {
    fn new(session: &Session) -> Self {
        let state = session.state(&schema()).unwrap();
        Reader { key: session.key.clone(), seen: session.seen(), state }
    }

    async fn catch_up(&mut self, store: &impl SessionStore) {
        let get = GetSession::new(self.key.clone());
        let session = store.get(get.clone().changed_since(self.seen)).await.unwrap();
        let fresh = store.get(get).await.unwrap();
        self.state = session.update(self.state.clone(), &schema()).unwrap();
        self.seen = session.seen();
        assert_eq!(values_of(&self.state), values_of(&fresh.state(&schema()).unwrap()));
        assert_eq!(self.seen, fresh.seen());
    }
}

fn values_of(state: &State) -> Value {
    let values = state.iter().filter(|(key, _)| *key != "messages");
    Value::Object(values.map(|(key, value)| (key.to_owned(), value.to_json())).collect())
}

struct World<S> {
    store: S,
    sessions: Vec<SessionKey>,
    readers: Vec<Reader>,
    luck: fastrand::Rng,
    now: i64,
}

impl<S: SessionStore> World<S> {
    fn any(&mut self) -> SessionKey {
        self.sessions[self.luck.usize(..self.sessions.len())].clone()
    }

    fn write(&mut self, scope: &str) -> Write {
        let schema = schema();
        let (schema, item) = (schema.schema(), self.luck.u8(..4));
        let (list, other) = (format!("{scope}list"), format!("{scope}key {item}"));
        match self.luck.u8(..12) {
            0 => schema.removal(&list),
            1 => schema.write_with(&*list, json!([item]), &Handler::replace_values()),
            2 | 3 => schema.write_with(&*list, json!([item, item]), &Handler::keep_last(3)),
            4 => schema.write_with(&*list, json!([{"id": item}]), &Handler::upsert_by("id")),
            5 => schema.write_with(&*list, json!([item]), &Handler::union()),
            6 => schema.removal(&other),
            7 | 8 => schema.write(&*other, json!({"item": self.now})),
            _ => schema.write(&*list, json!([item])),
        }
        .unwrap()
    }

    fn writes(&mut self) -> Delta {
        let scopes = ["", "", "user:", "app:"];
        let count = self.luck.usize(1..4);
        let mut write = || {
            let scope = scopes[self.luck.usize(..4)];
            self.write(scope)
        };
        (0..count).map(|_| write()).collect()
    }

    async fn append(&mut self) {
        let (key, writes) = (self.any(), self.writes());
        let request = stepfold_session_scopes::AppendEvent::new(
            key,
            Expected::Any,
            event(format!("e{}", self.now)).with_delta(writes),
            &schema(),
        );
        // A list of mixed items cannot take every write.
        let _ = self.store.append(request).await;
    }

    async fn write_scope(&mut self) {
        let (scope, prefix) = match self.luck.bool() {
            true => (ScopeKey::app("app").unwrap(), "app:"),
            false => (ScopeKey::user("app", "alice").unwrap(), "user:"),
        };
        let delta = [self.write(prefix)].into_iter().collect();
        let _ = self.store.write_scope(WriteScope::new(scope, delta, &schema())).await;
    }

    async fn rewind(&mut self) {
        let key = self.any();
        let session = self.store.get(GetSession::new(key.clone()).without_state()).await.unwrap();
        let request = RewindSession {
            key,
            expected: Expected::Any,
            to: self.luck.u64(session.oldest..=session.version),
            event: EventId::new(format!("r{}", self.now)).unwrap(),
            invocation: InvocationId::new("i").unwrap(),
            author: Author::new("user").unwrap(),
            at: at(self.now),
            claim: None,
            taken: Vec::new(),
        };
        self.store.rewind(request).await.unwrap();
    }

    async fn prune(&mut self) {
        let key = self.any();
        let session = self.store.get(GetSession::new(key.clone()).without_state()).await.unwrap();
        let before = Before::Version(self.luck.u64(session.oldest..=session.version));
        self.store.prune(PruneSession { key, before }).await.unwrap();
    }

    async fn fork(&mut self) {
        let from = self.any();
        let session = self.store.get(GetSession::new(from.clone()).without_state()).await.unwrap();
        let version = self.luck.u64(session.oldest..=session.version);
        let id = key(format!("fork {}", self.now)).id;
        let fork = ForkSession::new(from, at(self.now)).at_version(version).with_id(id);
        let key = self.store.fork(fork).await.unwrap().key;
        let session = self.store.get(GetSession::new(key.clone())).await.unwrap();
        self.readers.push(Reader::new(&session));
        self.sessions.push(key);
    }

    /// Somebody else of the user goes, and all that the user had goes as well.
    async fn erase_user(&mut self) {
        let other = key(format!("other {}", self.now));
        create(&self.store, &other).await;
        self.store.delete(DeleteSession::new(other).with_user_state()).await.unwrap();
    }

    async fn step(&mut self) {
        self.now += 1;
        match self.luck.u8(..40) {
            0..=3 => self.write_scope().await,
            4 | 5 => self.rewind().await,
            6 => self.prune().await,
            7 if self.sessions.len() < 4 => self.fork().await,
            8 => self.erase_user().await,
            9..=22 => {
                let reader = self.luck.usize(..self.readers.len());
                self.readers[reader].catch_up(&self.store).await;
            }
            _ => self.append().await,
        }
    }
}

async fn kept_states_are_read_states(store: impl SessionStore, seed: u64, steps: usize) {
    let sessions = vec![key("s"), key("t")];
    let mut readers = Vec::new();
    for key in &sessions {
        let session = create(&store, key).await;
        // One that looks often, and two that look seldom.
        readers.extend([Reader::new(&session), Reader::new(&session), Reader::new(&session)]);
    }
    let luck = fastrand::Rng::with_seed(seed);
    let mut world = World { store, sessions, readers, luck, now: 1 };
    for _ in 0..steps {
        world.step().await;
    }
    for reader in &mut world.readers {
        reader.catch_up(&world.store).await;
    }
}

/// The seeds that a store is tried with: one for so many of the cases that `PROPTEST_CASES` asks for.
fn seeds(cases: u32) -> impl Iterator<Item = u64> {
    0..u64::from(Config::default().cases.div_ceil(cases))
}

#[tokio::test]
async fn a_state_that_is_kept_is_the_state_that_is_read_in_memory() {
    for seed in seeds(4) {
        kept_states_are_read_states(MemoryStore::new(), seed, 120).await;
    }
}

#[tokio::test]
async fn a_state_that_is_kept_is_the_state_that_is_read_over_sqlite() {
    for seed in seeds(16) {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(folder.path().join("sessions.db")).unwrap();
        kept_states_are_read_states(store, seed, 120).await;
    }
}

#[tokio::test]
async fn a_state_that_is_kept_is_the_state_that_is_read_over_postgres() {
    let Some(server) = crate::server::server() else { return };
    for seed in seeds(64) {
        let url = server.database(&format!("changes_{seed}")).await;
        let options = stepfold_session_scopes::PostgresOptions::new(url).connections(1);
        kept_states_are_read_states(options.open().await.unwrap(), seed, 120).await;
    }
}
