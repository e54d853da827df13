//! Searches over generated sessions: all stores find the same, and only what a reader of the history sees.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use stepfold_session_scopes::{
    AppId, AppendEvent, Author, DeleteSession, EraseData, EraseTarget, ErasureId, Event, EventRange,
    Expected, ForkSession, FoundMessage, GetSession, MemoryStore, PostgresStore, PruneBound, PruneSession,
    SearchSessions, SessionError, SessionKey, SessionStore, SqliteOptions, SqliteStore, UserId,
};
use stepfold_state_core::chat::{Message, Role, ToolCall, ToolResult};
use stepfold_state_core::{search_word_hash, search_words};
use tokio_postgres::NoTls;

use crate::random::Random;
use crate::scenario::{at, create, event, key, schema};
use crate::server::server;

/// Words of several kinds: with plurals, in identifiers, numbers, of scripts without spaces, rare and common ones.
const WORDS: [&str; 22] = [
    "bakery",
    "Bakeries",
    "fee",
    "fees",
    "getUserInfo",
    "user",
    "4711",
    "v2",
    "搜索用户",
    "用户",
    "the",
    "of",
    "Größe",
    "Gro\u{308}ße",
    "\u{1112}\u{1161}\u{11ab}\u{1100}\u{1173}\u{11af}",
    "한글",
    "हिन्दी",
    "HTTPServer",
    "stall",
    "stall",
    "stall",
    "\"'*:()-- OR NOT NEAR",
];

struct World<A, B, C> {
    memory: A,
    file: B,
    server: Option<C>,
    sessions: Vec<SessionKey>,
    random: Random,
}

/// A result, as it is compared.
fn told(found: &[FoundMessage]) -> Vec<(String, u64, usize, u64, String)> {
    let tell = |found: &FoundMessage| {
        let text = found.message.to_string();
        (found.session.to_string(), found.version, found.place, found.score.to_bits(), text)
    };
    found.iter().map(tell).collect()
}

/// The searched text of a message.
fn text_of(message: &Message) -> String {
    message.tool_result().map_or_else(|| message.text().into_owned(), |result| result.text().into_owned())
}

/// The places of the messages that have a word of the query, read from the history.
async fn oracle(store: &impl SessionStore, key: &SessionKey, query: &str) -> BTreeSet<(String, u64, usize)> {
    let session = store.get(GetSession::new(key.clone()).without_state()).await.unwrap();
    let sought: BTreeSet<String> = search_words(query).into_iter().collect();
    let mut found = BTreeSet::new();
    for committed in session.visible_events() {
        for (place, message) in committed.event.messages.iter().enumerate() {
            if search_words(&text_of(message)).iter().any(|word| sought.contains(word)) {
                found.insert((key.id.to_string(), committed.version, place));
            }
        }
    }
    found
}

impl<A: SessionStore, B: SessionStore, C: SessionStore> World<A, B, C> {
    fn text(&mut self, words: usize) -> String {
        let count = self.random.luck.usize(1..=words);
        (0..count).map(|_| *self.random.one_of(&WORDS)).collect::<Vec<_>>().join(" ")
    }

    fn event(&mut self) -> Event {
        self.random.now += 1;
        let now = self.random.now;
        let mut event = event(format!("e{now}"));
        event.at = at(now);
        for _ in 0..self.random.luck.usize(..4) {
            let text = self.text(12);
            let message = match self.random.luck.u8(..4) {
                0 => Message::user(text),
                1 => Message::assistant(text),
                2 => Message::new(Role::Assistant).with_part(ToolCall::new(
                    "c1",
                    "read",
                    serde_json::json!({}),
                )),
                _ => Message::tool(ToolResult::value("c1", "read", text)),
            };
            event = event.with_message(message);
        }
        event
    }

    /// Does one thing in each store.
    async fn step(&mut self) {
        let key = self.random.one_of(&self.sessions).clone();
        let session = self.memory.get(GetSession::new(key.clone()).without_state()).await.unwrap();
        let version = self.random.luck.u64(session.oldest..=session.version);
        match self.random.luck.u8(..16) {
            0 => {
                self.random.now += 1;
                self.random.rewind(&self.memory, key.clone(), version).await;
                self.random.rewind(&self.file, key.clone(), version).await;
                if let Some(server) = &self.server {
                    self.random.rewind(server, key, version).await;
                }
            }
            1 if self.sessions.len() < 6 => self.fork(&key, version).await,
            2 => {
                let prune = PruneSession::new(key, PruneBound::Version(version));
                self.memory.prune(prune.clone()).await.unwrap();
                self.file.prune(prune.clone()).await.unwrap();
                if let Some(server) = &self.server {
                    server.prune(prune).await.unwrap();
                }
            }
            3 if version > session.oldest => self.erase(&key, version).await,
            4 if self.sessions.len() > 2 => {
                self.sessions.retain(|one| *one != key);
                let delete = DeleteSession::new(key);
                self.memory.delete(delete.clone()).await.unwrap();
                self.file.delete(delete.clone()).await.unwrap();
                if let Some(server) = &self.server {
                    server.delete(delete).await.unwrap();
                }
            }
            5..8 => self.append(&key, 60).await,
            _ => self.append(&key, 6).await,
        }
    }

    async fn append(&mut self, key: &SessionKey, most: usize) {
        for _ in 0..self.random.luck.usize(1..=most) {
            let event = self.event();
            let append = AppendEvent::new(key.clone(), Expected::Any, event, &schema());
            self.memory.append(append.clone()).await.unwrap();
            self.file.append(append.clone()).await.unwrap();
            if let Some(server) = &self.server {
                server.append(append).await.unwrap();
            }
        }
    }

    async fn fork(&mut self, from: &SessionKey, version: u64) {
        self.random.now += 1;
        let id = key(format!("fork {}", self.random.now)).id;
        let fork = ForkSession::new(from.clone(), at(self.random.now)).at_version(version).with_id(id);
        self.sessions.push(self.memory.fork(fork.clone()).await.unwrap().key);
        self.file.fork(fork.clone()).await.unwrap();
        if let Some(server) = &self.server {
            server.fork(fork).await.unwrap();
        }
    }

    async fn erase(&mut self, key: &SessionKey, version: u64) {
        self.random.now += 1;
        let erase = erasing(key, [version], self.random.now);
        self.memory.erase(erase.clone()).await.unwrap();
        self.file.erase(erase.clone()).await.unwrap();
        if let Some(server) = &self.server {
            server.erase(erase).await.unwrap();
        }
    }

    /// Searches in all stores and compares with each other, and with what a reader of the history sees.
    async fn compare(&mut self) {
        let query = self.text(4);
        let mut all = BTreeSet::new();
        for key in self.sessions.clone() {
            let request = SearchSessions::in_session(key.clone(), query.as_str()).limit(100);
            let found = self.search(request).await;
            let expected = oracle(&self.memory, &key, &query).await;
            compare_with(&found, &expected, &query);
            all.extend(expected);
        }
        let (app, user) = (AppId::new("app").unwrap(), UserId::new("alice").unwrap());
        let request = SearchSessions::of_user(app, user, query.as_str()).limit(100);
        let found = self.search(request).await;
        compare_with(&found, &all, &query);
    }

    async fn search(&self, request: SearchSessions) -> Vec<FoundMessage> {
        let found = self.memory.search(request.clone()).await.unwrap();
        assert_eq!(told(&self.file.search(request.clone()).await.unwrap()), told(&found), "{request:?}");
        if let Some(server) = &self.server {
            assert_eq!(told(&server.search(request.clone()).await.unwrap()), told(&found), "{request:?}");
        }
        found
    }
}

fn erasing(key: &SessionKey, versions: impl IntoIterator<Item = u64>, now: i64) -> EraseData {
    let target = EraseTarget::Events { key: key.clone(), versions: versions.into_iter().collect() };
    let id = ErasureId::new(format!("{}/{now}", key.id)).unwrap();
    EraseData::new(id, target, at(now), Author::new("admin").unwrap(), "asked for")
}

/// All that were expected are found, as far as a search finds them, and no others.
fn compare_with(found: &[FoundMessage], expected: &BTreeSet<(String, u64, usize)>, query: &str) {
    let places: BTreeSet<_> =
        found.iter().map(|found| (found.session.to_string(), found.version, found.place)).collect();
    assert!(places.is_subset(expected), "{query}: {:?}", places.difference(expected));
    assert_eq!(places.len(), expected.len().min(100), "{query}");
    assert!(found.is_sorted_by(|one, other| one.score >= other.score), "{query}");
}

async fn all_find_the_same(seeds: std::ops::Range<u64>, steps: usize) {
    for seed in seeds {
        let folder = tempfile::tempdir().unwrap();
        let file = SqliteStore::open(folder.path().join("sessions.db")).unwrap();
        let server = match server() {
            Some(server) => {
                let address = server.database(&format!("search_{seed}")).await;
                Some(PostgresStore::open(address).await.unwrap())
            }
            None => None,
        };
        let mut world = World {
            memory: MemoryStore::new(),
            file,
            server,
            sessions: vec![key("s"), key("t")],
            random: Random::new(seed),
        };
        for session in world.sessions.clone() {
            create(&world.memory, &session).await;
            create(&world.file, &session).await;
            if let Some(server) = &world.server {
                create(server, &session).await;
            }
        }
        for _ in 0..steps {
            world.step().await;
            if world.random.luck.u8(..3) == 0 {
                world.compare().await;
            }
        }
        world.compare().await;
        world.compare().await;
    }
}

#[tokio::test]
async fn all_stores_find_what_a_reader_sees() {
    all_find_the_same(0..4, 40).await;
}

/// As many messages as several blocks have, in one session: indexed at once, and bit by bit.
#[tokio::test]
async fn long_sessions_are_found_whole() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("sessions.db")).unwrap();
    let session = key("s");
    create(&store, &session).await;
    let said = |number: u64| format!("word{number} every word{}", number % 7);
    let append = async |numbers: std::ops::Range<u64>| {
        for number in numbers {
            let event = event(format!("e{number}")).with_message(Message::user(said(number)));
            store.append(AppendEvent::new(session.clone(), Expected::Any, event, &schema())).await.unwrap();
        }
    };
    let find = async |query: String| {
        let request = SearchSessions::in_session(session.clone(), query.as_str()).limit(3);
        store.search(request).await.unwrap().into_iter().map(|found| found.version).collect::<Vec<_>>()
    };
    append(0..3_000).await;
    assert_eq!(find("WORD2900".into()).await, [2_901]);
    for step in 0..40 {
        append(3_000 + step * 70..3_000 + (step + 1) * 70).await;
        assert_eq!(find(format!("word{}", 3_000 + step * 70)).await, [3_001 + step * 70]);
    }
    for number in [8, 511, 512, 513, 2_999, 3_000, 5_799] {
        assert_eq!(find(format!("word{number}")).await, [number + 1]);
    }
    assert_eq!(find("every".into()).await.len(), 3);
    let connection = rusqlite::Connection::open(folder.path().join("sessions.db")).unwrap();
    let count = "SELECT COUNT(*), MAX(last) FROM stepfold_search_parts WHERE shard = 0";
    let (blocks, last): (i64, i64) =
        connection.query_row(count, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    assert!(blocks <= 16, "{blocks} blocks");
    assert_eq!(last, 5_800, "all are indexed");
}

/// A word is found however it and the query were typed, from the index and from events, by all stores.
#[tokio::test]
async fn canonical_forms_of_a_word_find_each_other() {
    async fn found(store: &impl SessionStore, events: u64) -> Vec<Vec<u64>> {
        let session = key(format!("s{events}"));
        create(store, &session).await;
        let texts = [
            "café",
            "cafe\u{301}",
            "한글",
            "\u{1112}\u{1161}\u{11ab}\u{1100}\u{1173}\u{11af}",
            "हिन्दी",
            "हिन",
        ];
        for number in 0..events {
            let text = texts.get(usize::try_from(number).unwrap()).copied().unwrap_or("other");
            let event = event(format!("e{number}")).with_message(Message::user(format!("the {text}, said")));
            store.append(AppendEvent::new(session.clone(), Expected::Any, event, &schema())).await.unwrap();
        }
        let mut found = Vec::new();
        for word in texts {
            let request = SearchSessions::in_session(session.clone(), word);
            let mut versions: Vec<u64> =
                store.search(request).await.unwrap().iter().map(|found| found.version).collect();
            versions.sort_unstable();
            found.push(versions);
        }
        found
    }
    let folder = tempfile::tempdir().unwrap();
    let file = SqliteStore::open(folder.path().join("sessions.db")).unwrap();
    for events in [6, 100] {
        let expected: [&[u64]; 6] = [&[1, 2], &[1, 2], &[3, 4], &[3, 4], &[5], &[6]];
        assert_eq!(found(&MemoryStore::new(), events).await, expected);
        assert_eq!(found(&file, events).await, expected);
        if let Some(server) = server() {
            let address = server.database(&format!("search_forms_{events}")).await;
            assert_eq!(found(&PostgresStore::open(address).await.unwrap(), events).await, expected);
        }
    }
}

/// Some events have thousands of messages, as imported ones may.
#[tokio::test]
async fn every_message_of_a_large_event_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let file = SqliteStore::open(folder.path().join("sessions.db")).unwrap();
    let memory = MemoryStore::new();
    create(&file, &key("s")).await;
    create(&memory, &key("s")).await;
    for number in 0..20_u64 {
        let messages = if number == 7 { 5_000 } else { 1 };
        let said = |place: u64| Message::user(format!("word{number}x{place} every"));
        let event = (0..messages).map(said).fold(event(format!("e{number}")), Event::with_message);
        let append = AppendEvent::new(key("s"), Expected::Any, event, &schema());
        file.append(append.clone()).await.unwrap();
        memory.append(append).await.unwrap();
    }
    for word in ["word7x0", "word7x1023", "word7x1024", "word7x4999", "word19x0", "every"] {
        let request = || SearchSessions::in_session(key("s"), word);
        let found = told(&file.search(request()).await.unwrap());
        assert_eq!(found.len(), if word == "every" { 10 } else { 1 }, "{word}");
        assert_eq!(told(&memory.search(request()).await.unwrap()), found, "{word}");
    }
}

/// Damage to an index is no loss: it is built again.
#[tokio::test]
async fn a_damaged_index_is_built_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sessions.db");
    let store = SqliteStore::open(&path).unwrap();
    let session = key("s");
    create(&store, &session).await;
    for number in 0..200 {
        let event = event(number).with_message(Message::user(format!("word{number} other")));
        store.append(AppendEvent::new(session.clone(), Expected::Any, event, &schema())).await.unwrap();
    }
    let find = async || {
        let request = SearchSessions::in_session(session.clone(), "word77 word150").limit(5);
        told(&store.search(request).await.unwrap())
    };
    let found = find().await;
    assert_eq!(found.len(), 2);
    let connection = rusqlite::Connection::open(&path).unwrap();
    let damages = [
        "UPDATE stepfold_search_parts SET body = x'00' WHERE shard = 0",
        "UPDATE stepfold_search_parts SET body = x'' WHERE shard > 0",
        // A block of an earlier form has no number of it.
        "UPDATE stepfold_search_parts SET body = substr(body, 3) WHERE shard = 0",
        "UPDATE stepfold_search_parts SET after = 7",
        "UPDATE stepfold_search_parts SET last = last - 1",
        "DELETE FROM stepfold_search_parts WHERE shard > 20",
        "DELETE FROM stepfold_search_parts WHERE shard = 0",
    ];
    for damage in damages {
        assert!(connection.execute(damage, []).unwrap() > 0);
        assert_eq!(find().await, found, "{damage}");
        assert_eq!(find().await, found, "{damage}");
    }
}

/// A store that cannot write its index answers the same.
#[tokio::test]
async fn a_file_that_is_only_read_is_searched() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sessions.db");
    let store = SqliteStore::open(&path).unwrap();
    create(&store, &key("s")).await;
    for number in 0..100 {
        let event = event(number).with_message(Message::user(format!("word{number} other")));
        store.append(AppendEvent::new(key("s"), Expected::Any, event, &schema())).await.unwrap();
    }
    let request = || SearchSessions::in_session(key("s"), "word7 word70");
    let reader = SqliteOptions::new(&path).read_only().open().unwrap();
    let found = told(&reader.search(request()).await.unwrap());
    assert_eq!(found.len(), 2);
    assert_eq!(told(&store.search(request()).await.unwrap()), found);
    assert_eq!(told(&reader.search(request()).await.unwrap()), found);
}

/// Searches index while erasures, retention and deletions take content away: afterwards nothing of it is found, and no
/// index has it.
async fn races(store: impl SessionStore, other: impl SessionStore) {
    for round in 0..12 {
        let session = key(format!("race {round}"));
        create(&store, &session).await;
        for number in 0..90 {
            let event = event(number).with_message(Message::user(format!("marker{round} word{number}")));
            store.append(AppendEvent::new(session.clone(), Expected::Any, event, &schema())).await.unwrap();
        }
        let request = |query: &str| SearchSessions::in_session(session.clone(), query).limit(100);
        let erase = async {
            match round % 3 {
                0 => other.erase(erasing(&session, 1..=90, round)).await.map(drop),
                1 => {
                    let bound = PruneBound::Version(90);
                    other.prune(PruneSession::new(session.clone(), bound)).await.map(drop)
                }
                _ => other.delete(DeleteSession::new(session.clone())).await.map(drop),
            }
        };
        let marker = format!("marker{round}");
        let searches = join_all((0..4).map(|_| store.search(request(&marker))));
        let (erased, searched) = tokio::join!(erase, searches);
        erased.unwrap();
        for found in searched {
            assert!(found.is_ok() || round % 3 == 2, "{found:?}");
        }
        if round % 3 == 2 {
            let gone = store.search(request(&marker)).await;
            assert!(matches!(gone, Err(SessionError::NotFound { .. })), "{gone:?}");
            create(&store, &session).await;
        }
        for searcher in [0, 1] {
            let found = match searcher {
                0 => store.search(request(&marker)).await,
                _ => other.search(request(&marker)).await,
            };
            assert_eq!(found.unwrap(), [], "round {round}");
        }
        let events = GetSession::new(session.clone()).events(EventRange::None).without_state();
        assert_eq!(store.get(events).await.unwrap().oldest, if round % 3 == 1 { 90 } else { 0 });
    }
}

/// No part of an index has a word that was taken away, read from the bytes of the tables.
fn has_no_marker(bodies: &[Vec<u8>]) {
    for round in 0..12 {
        let hash = search_word_hash(&format!("marker{round}")).to_be_bytes();
        let has_it = |body: &Vec<u8>| body.windows(6).any(|bytes| *bytes == hash[2..]);
        assert!(!bodies.iter().any(has_it), "round {round}");
    }
    // Others are there, so that the bytes of a word are known.
    let hash = search_word_hash("left").to_be_bytes();
    assert!(bodies.iter().any(|body| body.windows(6).any(|bytes| *bytes == hash[2..])));
}

/// A session whose words stay in an index.
async fn keep_one(store: &impl SessionStore) {
    create(store, &key("kept")).await;
    for number in 0..90 {
        let event = event(number).with_message(Message::user(format!("left {number}")));
        store.append(AppendEvent::new(key("kept"), Expected::Any, event, &schema())).await.unwrap();
    }
    assert_eq!(store.search(SearchSessions::in_session(key("kept"), "left")).await.unwrap().len(), 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_indexed_that_was_taken_away() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sessions.db");
    races(SqliteStore::open(&path).unwrap(), SqliteStore::open(&path).unwrap()).await;
    keep_one(&SqliteStore::open(&path).unwrap()).await;
    let connection = rusqlite::Connection::open(&path).unwrap();
    let mut bodies = connection.prepare("SELECT body FROM stepfold_search_parts").unwrap();
    let bodies = bodies.query_map([], |row| row.get(0)).unwrap().collect::<Result<Vec<_>, _>>().unwrap();
    has_no_marker(&bodies);
    let left = "SELECT COUNT(*) FROM stepfold_search_parts WHERE number NOT IN (SELECT number FROM stepfold_sessions)";
    assert_eq!(connection.query_row(left, [], |row| row.get::<_, i64>(0)).unwrap(), 0);
    let Some(server) = server() else { return };
    let address = server.database("search_races").await;
    let (one, other) = (PostgresStore::open(&*address), PostgresStore::open(&*address));
    races(one.await.unwrap(), other.await.unwrap()).await;
    keep_one(&PostgresStore::open(&*address).await.unwrap()).await;
    let (client, connection) = tokio_postgres::connect(&address, NoTls).await.unwrap();
    tokio::spawn(connection);
    let rows = client.query("SELECT body FROM stepfold_search_parts", &[]).await.unwrap();
    has_no_marker(&rows.iter().map(|row| row.get(0)).collect::<Vec<Vec<u8>>>());
}

/// One damaged session of a user does not hide the others.
#[tokio::test]
async fn a_damaged_session_is_left_out_of_a_search_of_its_user() {
    // The long one is read from its index.
    for events in [1, 100] {
        leaves_out_a_damaged_session(events).await;
    }
}

async fn leaves_out_a_damaged_session(events: usize) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sessions.db");
    let store = SqliteStore::open(&path).unwrap();
    for session in ["whole", "damaged"] {
        create(&store, &key(session)).await;
        for number in 1..=events {
            let text = if number == events { "the fee of the bakery" } else { "rhubarb" };
            let event = event(format!("{session} {number}")).with_message(Message::user(text));
            store.append(AppendEvent::new(key(session), Expected::Any, event, &schema())).await.unwrap();
        }
    }
    let of_user = || SearchSessions::of_user(key("-").app, key("-").user, "bakery");
    assert_eq!(store.search(of_user()).await.unwrap().len(), 2);
    let connection = rusqlite::Connection::open(&path).unwrap();
    let damage =
        "UPDATE stepfold_events SET body = 'x' WHERE number = (SELECT MAX(number) FROM stepfold_events)";
    assert_eq!(connection.execute(damage, []).unwrap(), 1);
    let found = store.search(of_user()).await.unwrap();
    assert_eq!(found.iter().map(|found| found.session.as_str()).collect::<Vec<_>>(), ["whole"]);
    let alone = store.search(SearchSessions::in_session(key("damaged"), "bakery")).await;
    assert!(alone.is_err(), "{alone:?}");
}
