//! A state that is kept and brought up to date is the state that is read afresh, whatever was done in between.

use proptest::test_runner::Config;
use serde_json::{Value, json};
use stepfold_session_scopes::{
    DeleteSession, Durability, GetSession, MemoryStore, PostgresOptions, ScopeKey, ScopeValues, SeenVersions,
    Session, SessionKey, SessionStore, SqliteOptions, SqliteStore, VerifySessions, WriteScope,
};
use stepfold_state_core::state::State;

use crate::random::{Random, prune};
use crate::scenario::{append, create, key, schema, writing};

/// A reader that keeps the state of a session, and updates it from time to time.
struct Reader {
    key: SessionKey,
    seen: SeenVersions,
    state: State,
}

impl Reader {
    fn new(session: &Session) -> Self {
        let state = session.state(&schema()).unwrap();
        Reader { key: session.key.clone(), seen: session.seen(), state }
    }

    async fn catch_up(&mut self, store: &impl SessionStore) {
        let get = GetSession::new(self.key.clone());
        let changed = store.get(get.clone().changed_since(self.seen)).await.unwrap();
        let incremental = get.clone().changed_since(self.seen).incremental(&schema());
        let incremental = store.get(incremental).await.unwrap();
        let fresh = store.get(get).await.unwrap();
        let expected = values_of(&fresh.state(&schema()).unwrap());
        let before = self.state.clone();
        for session in [changed, incremental] {
            self.state = session.update(before.clone(), &schema()).unwrap();
            assert_eq!(values_of(&self.state), expected);
            self.seen = session.seen();
            assert_eq!(self.seen, fresh.seen());
        }
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
    random: Random,
}

impl<S: SessionStore> World<S> {
    fn any(&mut self) -> SessionKey {
        self.random.one_of(&self.sessions).clone()
    }

    /// One of the versions that a session can go back to.
    async fn version_of(&mut self, key: &SessionKey) -> u64 {
        let session = self.store.get(GetSession::new(key.clone()).without_state()).await.unwrap();
        self.random.luck.u64(session.oldest..=session.version)
    }

    async fn append(&mut self) {
        let key = self.any();
        self.random.append(&self.store, key, &["", "", "user:", "app:"], 4).await;
    }

    async fn write_scope(&mut self) {
        let (scope, prefix) = match self.random.luck.bool() {
            true => (ScopeKey::app("app").unwrap(), "app:"),
            false => (ScopeKey::user("app", "alice").unwrap(), "user:"),
        };
        let delta = [self.random.write(prefix)].into_iter().collect();
        let _ = self.store.write_scope(WriteScope::new(scope, delta, &schema())).await;
    }

    async fn rewind(&mut self) {
        let key = self.any();
        let to = self.version_of(&key).await;
        self.random.rewind(&self.store, key, to).await;
    }

    async fn prune(&mut self) {
        let key = self.any();
        let before = self.version_of(&key).await;
        prune(&self.store, key, before).await;
    }

    async fn fork(&mut self) {
        let from = self.any();
        let version = self.version_of(&from).await;
        let key = self.random.fork(&self.store, from, version).await;
        let session = self.store.get(GetSession::new(key.clone())).await.unwrap();
        self.readers.push(Reader::new(&session));
        self.sessions.push(key);
    }

    /// Another session of the user is deleted together with all values of the user.
    async fn erase_user(&mut self) {
        let other = key(format!("other {}", self.random.now));
        create(&self.store, &other).await;
        self.store.delete(DeleteSession::new(other).with_user_state()).await.unwrap();
    }

    async fn step(&mut self) {
        self.random.now += 1;
        match self.random.luck.u8(..40) {
            0..=3 => self.write_scope().await,
            4 | 5 => self.rewind().await,
            6 => self.prune().await,
            7 if self.sessions.len() < 4 => self.fork().await,
            8 => self.erase_user().await,
            9..=22 => {
                let reader = self.random.luck.usize(..self.readers.len());
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
    let mut world = World { store, sessions, readers, random: Random::new(seed) };
    for _ in 0..steps {
        world.step().await;
    }
    for reader in &mut world.readers {
        reader.catch_up(&world.store).await;
    }
    assert_eq!(world.store.verify(VerifySessions::all()).await.unwrap().faults, []);
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
        let options = SqliteOptions::new(folder.path().join("sessions.db"));
        let store = options.durability(Durability::Process).open().unwrap();
        kept_states_are_read_states(store, seed, 120).await;
    }
}

#[tokio::test]
async fn a_state_that_is_kept_is_the_state_that_is_read_over_postgres() {
    let Some(server) = crate::server::server() else { return };
    for seed in seeds(64) {
        let url = server.database(&format!("changes_{seed}")).await;
        let options = PostgresOptions::new(url).connections(1);
        kept_states_are_read_states(options.open().await.unwrap(), seed, 120).await;
    }
}

/// Another session of the user appends to lists that have many items already.
async fn new_items_alone_are_read(store: impl SessionStore) {
    let (mine, other) = (key("mine"), key("other"));
    create(&store, &other).await;
    let many: Vec<usize> = (0..500).collect();
    let writes = [("user:list", json!(many)), ("app:union", json!(many)), ("app:list", json!([1]))];
    append(&store, &other, 0, writing("many", &writes)).await.unwrap();
    let before = create(&store, &mine).await;
    append(&store, &other, 1, writing("one", &[("user:list", json!(["a"]))])).await.unwrap();
    let writes = [("user:list", json!(["b", "c"])), ("app:union", json!([7, 500, 8]))];
    append(&store, &other, 2, writing("two", &writes)).await.unwrap();
    let get = GetSession::new(mine).changed_since(before.seen()).incremental(&schema());
    let session = store.get(get).await.unwrap();
    let values = session.values.unwrap();
    let appended = |values: &ScopeValues| -> Vec<(String, usize, Value)> {
        assert_eq!((values.len(), values.removed().count()), (0, 0));
        let lists = values.appended();
        lists.map(|(key, list)| (key.to_owned(), list.length, json!(list.items))).collect()
    };
    assert_eq!(appended(&values.user), [("user:list".to_owned(), 503, json!(["a", "b", "c"]))]);
    assert_eq!(appended(&values.app), [("app:union".to_owned(), 501, json!([500]))]);
    assert_eq!(appended(&values.session), []);
}

#[tokio::test]
async fn of_lists_that_others_append_to_new_items_alone_are_read_over_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    new_items_alone_are_read(SqliteStore::open(folder.path().join("sessions.db")).unwrap()).await;
}

#[tokio::test]
async fn of_lists_that_others_append_to_new_items_alone_are_read_over_postgres() {
    let Some(server) = crate::server::server() else { return };
    let options = PostgresOptions::new(server.database("appended").await).connections(1);
    new_items_alone_are_read(options.open().await.unwrap()).await;
}
