//! Damage to closed SQLite files: reading by key returns the written value or an error, and a check of the file
//! names what a list no longer shows.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use stepfold_session_scopes::{
    AnyStore, AppendEvent, ClaimSession, ContentSalt, CreateSession, DeleteSession, DequeueInput, Digest,
    EnqueueInput, ErrorKind, EventId, EventRange, FaultPlace, ForkSession, GetSession, IdempotencyKey,
    InboxEntry, InboxKind, InvocationId, Label, LabelVersion, ListForks, ListSessions, PostgresOptions,
    PostgresStore, PruneBound, PruneSession, ReadInbox, ReadLabels, RewindSession, ScopeKey, ScopeVersions,
    SeenVersions, Session, SessionError, SessionId, SessionKey, SessionStore, SqliteOptions, SqliteStore,
    StoreFaultKind, Verified, VerifySessions, WorkerId,
};
use stepfold_state_core::chat::Message;

use crate::scenario::{append, at, create, get, key, schema, writing};
use crate::server::server;

/// How many bits are flipped, and the luck that chooses them: `STEPFOLD_FLIPS=10000`, `STEPFOLD_SEED=7`.
fn wanted(name: &str, default: u64) -> u64 {
    #[expect(clippy::disallowed_methods, reason = "a longer run of a test is asked for")]
    let value = std::env::var(name);
    value.map_or(default, |value| value.parse().unwrap())
}

/// A store with sessions of many shapes: plain, forked, rewound, pruned, of other users, with large values.
async fn fill(store: &impl SessionStore) -> Vec<SessionKey> {
    let mut keys = Vec::new();
    for number in 0..12u64 {
        let key = filled(number);
        create(store, &key).await;
        for version in 0..number * 3 {
            let item = json!([format!("item {version} of {number}")]);
            let mut writes =
                vec![("list", item.clone()), ("n", json!(1)), ("app:n", json!(1)), ("app:list", item)];
            if version % 5 == 0 {
                writes.push(("large", json!("x".repeat(3_000))));
                writes.push(("user:list", json!([version])));
            }
            let event = writing(version, &writes).with_message(Message::user(format!("message {version}")));
            append(store, &key, version, event).await.unwrap();
        }
        keys.push(key);
    }
    for (from, version) in [(11, 20), (11, 33), (7, 0)] {
        let fork = ForkSession::new(keys[from].clone(), at(9)).at_version(version);
        let fork = store.fork(fork).await.unwrap().key;
        append(store, &fork, version, writing("fork", &[("n", json!(5))])).await.unwrap();
        keys.push(fork);
    }
    rewind(store, &keys[9], 27, 13).await;
    append(store, &keys[9], 28, writing("after", &[("list", json!(["more"]))])).await.unwrap();
    let prune = PruneSession::new(keys[10].clone(), PruneBound::Version(12));
    store.prune(prune).await.unwrap();
    for key in &keys[2..5] {
        work(store, key).await;
    }
    for (from, name, version) in [(11, "first", 4), (11, "second", 20), (9, "before", 13), (10, "kept", 14)] {
        label(store, &keys[from], name, version).await;
    }
    keys
}

async fn label(store: &impl SessionStore, key: &SessionKey, name: &str, version: u64) -> Option<u64> {
    let label = Label::new(name).unwrap();
    store.set_label(LabelVersion::new(key.clone(), label, version)).await.unwrap()
}

/// Leaves a claim on a session, entries that wait in its inbox, and some that were taken.
async fn work(store: &impl SessionStore, key: &SessionKey) {
    let claim =
        ClaimSession::new(key.clone(), WorkerId::new("worker-1").unwrap(), Duration::from_secs(60), at(9));
    store.claim(claim).await.unwrap();
    for number in 0..4 {
        let idempotency_key = IdempotencyKey::new(format!("key-{number}")).unwrap();
        let body = json!(format!("please do {number}"));
        let input = EnqueueInput::new(key.clone(), InboxKind::Steer, idempotency_key, body, at(9));
        store.enqueue(input).await.unwrap();
    }
    assert_eq!(store.dequeue(DequeueInput::new(key.clone(), [2])).await.unwrap(), [2]);
}

fn rewinding(key: &SessionKey, version: u64, to: u64) -> RewindSession {
    RewindSession::new(
        key.clone(),
        version,
        to,
        EventId::new("rewind").unwrap(),
        InvocationId::new("i").unwrap(),
        stepfold_session_scopes::Author::new("user").unwrap(),
        at(8),
    )
}

async fn rewind(store: &impl SessionStore, key: &SessionKey, version: u64, to: u64) {
    store.rewind(rewinding(key, version, to)).await.unwrap();
}

/// All that a session shows.
fn shown(session: &Session) -> (Value, String) {
    let Session {
        key, version, created, updated, parent, oldest, visible, events, head, claim, inbox, ..
    } = session;
    (
        session.to_json(),
        format!(
            "{key} {version} {created:?} {updated:?} {parent:?} {oldest} {visible:?} {head:?} {events:?} {claim:?} {inbox}"
        ),
    )
}

/// What else can be asked about a session: each answer, with all that it shows.
async fn asked(
    store: &impl SessionStore,
    key: &SessionKey,
) -> Vec<(&'static str, Result<String, SessionError>)> {
    let get = || GetSession::new(key.clone());
    let seen = SeenVersions::new(2, ScopeVersions { app: 5, user: 1 });
    let of_user = ScopeKey::User(key.app.clone(), key.user.clone());
    let session = |read: Result<Session, SessionError>| read.map(|read| format!("{:?}", shown(&read)));
    vec![
        ("labels", store.labels(ReadLabels::new(key.clone())).await.map(|all| format!("{all:?}"))),
        ("forks", store.forks(ListForks::new(key.clone())).await.map(|all| format!("{all:?}"))),
        ("the last events", session(store.get(get().events(EventRange::Last(3))).await)),
        ("what has changed", session(store.get(get().changed_since(seen)).await)),
        ("an earlier version", session(store.get(get().at_version(14)).await)),
        ("the app", store.read_scope(ScopeKey::App(key.app.clone())).await.map(|all| format!("{all:?}"))),
        ("the user", store.read_scope(of_user).await.map(|all| format!("{all:?}"))),
    ]
}

async fn listed(store: &impl SessionStore, user: &str) -> Result<Vec<SessionKey>, SessionError> {
    let page = store.list(ListSessions::new("app", user).unwrap().limit(1_000)).await?;
    Ok(page.sessions.into_iter().map(|session| session.key).collect())
}

const PAGE_BYTES: usize = 4_096;

/// A closed file, and what was written to it.
struct Written {
    bytes: Vec<u8>,
    /// Where the page of the list of sessions is.
    list: Range<usize>,
    sessions: BTreeMap<SessionKey, (Value, String)>,
    inboxes: BTreeMap<SessionKey, Vec<InboxEntry>>,
    asked: BTreeMap<SessionKey, Vec<(&'static str, Option<String>)>>,
}

async fn written(path: &Path) -> Written {
    let store = SqliteStore::open(path).unwrap();
    let keys = fill(&store).await;
    let (mut sessions, mut inboxes, mut answers) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    for key in keys {
        let told = asked(&store, &key).await.into_iter().map(|(what, answer)| (what, answer.ok()));
        answers.insert(key.clone(), told.collect());
        inboxes.insert(key.clone(), store.inbox(ReadInbox::new(key.clone())).await.unwrap());
        sessions.insert(key.clone(), shown(&get(&store, &key).await));
    }
    drop(store);
    let root = "SELECT rootpage FROM sqlite_schema WHERE name = 'stepfold_recent'";
    let connection = rusqlite::Connection::open(path).unwrap();
    let page: u32 = connection.query_row(root, [], |row| row.get(0)).unwrap();
    let page = usize::try_from(page).unwrap();
    drop(connection);
    let list = (page - 1) * PAGE_BYTES..page * PAGE_BYTES;
    Written { bytes: fs::read(path).unwrap(), list, sessions, inboxes, asked: answers }
}

fn names(report: &Verified, key: &SessionKey) -> bool {
    report.faults.iter().any(|fault| match &fault.place {
        FaultPlace::Session(of) | FaultPlace::Versions(of, _) | FaultPlace::Key(of, _) => of == key,
        _ => false,
    })
}

/// The result of a flipped bit.
#[derive(Default, Debug)]
struct Tally {
    flips: u64,
    refused: u64,
    errors: u64,
    missing_in_lists: u64,
}

async fn check_flip(path: &Path, written: &Written, place: &str, tally: &mut Tally) {
    tally.flips += 1;
    let Ok(store) = SqliteOptions::new(path).read_only().readers(1).open() else {
        tally.refused += 1;
        return;
    };
    let report = store.verify(VerifySessions::all()).await;
    let is_known = |key| report.as_ref().map_or(true, |report| names(report, key));
    for (key, expected) in &written.sessions {
        match store.get(GetSession::new(key.clone())).await {
            Ok(session) => assert_eq!(shown(&session), *expected, "{place}: session {key}"),
            Err(error) => {
                tally.errors += 1;
                assert!(
                    report.as_ref().map_or(true, |report| !report.is_whole()),
                    "{place}: {key}: {error:?}"
                );
            }
        }
    }
    for (key, expected) in &written.inboxes {
        match store.inbox(ReadInbox::new(key.clone())).await {
            Ok(entries) => assert_eq!(entries, *expected, "{place}: inbox of {key}"),
            Err(error) => assert!(
                report.as_ref().map_or(true, |report| !report.is_whole()),
                "{place}: inbox of {key}: {error:?}"
            ),
        }
    }
    // A third of them, which are others at each flip.
    for (place_of, (key, expected)) in written.asked.iter().enumerate() {
        if place_of as u64 % 3 != tally.flips % 3 {
            continue;
        }
        for ((what, answer), (_, expected)) in asked(&store, key).await.into_iter().zip(expected) {
            match (answer, expected) {
                (Ok(answer), expected) => {
                    assert_eq!(Some(&answer), expected.as_ref(), "{place}: {what} of {key}");
                }
                // It has no such version.
                (Err(_), None) => {}
                (Err(error), Some(_)) => assert!(
                    report.as_ref().map_or(true, |report| !report.is_whole()),
                    "{place}: {what} of {key}: {error:?}"
                ),
            }
        }
    }
    for user in ["alice", "bob"] {
        let Ok(listed) = listed(&store, user).await else { continue };
        let of_user = written.sessions.keys().filter(|key| key.user.as_str() == user);
        for key in of_user.filter(|key| !listed.contains(key)) {
            tally.missing_in_lists += 1;
            assert!(is_known(key), "{place}: {key} is missing from its list; {report:#?}");
        }
    }
}

#[tokio::test]
async fn flipped_bits_give_the_same_data_or_an_error_and_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sessions.db");
    let written = written(&path).await;
    let seed = wanted("STEPFOLD_SEED", 0xda_3a6e);
    let mut luck = fastrand::Rng::with_seed(seed);
    let mut tally = Tally::default();
    for flip in 0..wanted("STEPFOLD_FLIPS", 125) {
        let mut bytes = written.bytes.clone();
        let place = match flip % 4 {
            // It says how all others are read.
            0 => 0..PAGE_BYTES,
            // What is out of its order there hides others.
            1 => written.list.clone(),
            _ => 0..bytes.len(),
        };
        let (byte, bit) = (luck.usize(place), luck.u32(..8));
        bytes[byte] ^= 1 << bit;
        fs::write(&path, &bytes).unwrap();
        check_flip(&path, &written, &format!("seed {seed}, byte {byte}, bit {bit}"), &mut tally).await;
        assert_eq!(fs::read(&path).unwrap(), bytes, "reading changed the file");
    }
    eprintln!("{tally:?} in {} bytes", written.bytes.len());
    assert!(tally.errors > 0 && tally.flips > tally.refused, "{tally:?}");
}

/// Damages a closed file by a statement.
fn damage(path: &Path, sql: &str) {
    let connection = rusqlite::Connection::open(path).unwrap();
    connection.execute_batch(sql).unwrap();
}

async fn verified(path: &Path) -> Verified {
    let store = SqliteOptions::new(path).read_only().open().unwrap();
    store.verify(VerifySessions::all()).await.unwrap()
}

#[tokio::test]
async fn a_whole_file_has_no_faults() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sessions.db");
    let written = written(&path).await;
    let report = verified(&path).await;
    assert_eq!(report.faults, []);
    assert_eq!(report.sessions, written.sessions.len() as u64);
    assert!(report.events > 100 && report.values > 20, "{report:?}");
}

/// What is done by hand to a file, and what a check names then. The numbers of sessions begin with 1.
fn damages_of_a_file() -> Vec<(&'static str, FaultPlace, StoreFaultKind)> {
    let of = filled;
    let app = |key: Option<&str>| FaultPlace::Scope {
        app: "app".to_owned(),
        user: None,
        key: key.map(str::to_owned),
    };
    vec![
        (
            "UPDATE stepfold_events SET body = replace(body, 'message 4', 'massage 4') WHERE number = (4 << 32) + 5",
            FaultPlace::Versions(of(3), 5..=5),
            StoreFaultKind::Damaged,
        ),
        (
            "DELETE FROM stepfold_events WHERE number = (4 << 32) + 5",
            FaultPlace::Versions(of(3), 5..=5),
            StoreFaultKind::Missing,
        ),
        (
            "UPDATE stepfold_events SET trail = replace(trail, 'item 4', 'item 5') WHERE number = (4 << 32) + 5",
            FaultPlace::Versions(of(3), 5..=5),
            StoreFaultKind::Damaged,
        ),
        (
            "UPDATE stepfold_cells SET value = '41' WHERE stream = 4 AND key = 'n'",
            FaultPlace::Key(of(3), "n".to_owned()),
            StoreFaultKind::Damaged,
        ),
        (
            "DELETE FROM stepfold_cells WHERE stream = 4 AND key = 'n'",
            FaultPlace::Key(of(3), "n".to_owned()),
            StoreFaultKind::Missing,
        ),
        (
            "DELETE FROM stepfold_sessions WHERE number = 4",
            FaultPlace::UnknownSession { number: 4 },
            StoreFaultKind::Missing,
        ),
        ("DELETE FROM stepfold_recent WHERE number = 4", FaultPlace::Session(of(3)), StoreFaultKind::Missing),
        (
            "DELETE FROM stepfold_lineage WHERE number = 4",
            FaultPlace::Session(of(3)),
            StoreFaultKind::Missing,
        ),
        (
            "UPDATE stepfold_sessions SET oldest = 2 WHERE number = 4",
            FaultPlace::Session(of(3)),
            StoreFaultKind::Damaged,
        ),
        ("DELETE FROM stepfold_rewinds", FaultPlace::Session(of(9)), StoreFaultKind::Damaged),
        ("UPDATE stepfold_rewinds SET visible = 7", FaultPlace::Session(of(9)), StoreFaultKind::Damaged),
        (
            "UPDATE stepfold_sessions SET claims = claims + 1 WHERE number = 4",
            FaultPlace::Session(of(3)),
            StoreFaultKind::Damaged,
        ),
        (
            "UPDATE stepfold_sessions SET claim_expires = claim_expires + 1 WHERE number = 4",
            FaultPlace::Session(of(3)),
            StoreFaultKind::Damaged,
        ),
        (
            "UPDATE stepfold_inbox SET body = replace(body, 'do 2', 'do 3') WHERE number = 4",
            FaultPlace::Session(of(3)),
            StoreFaultKind::Damaged,
        ),
        (
            "DELETE FROM stepfold_inbox WHERE number = 4 AND position = 3",
            FaultPlace::Session(of(3)),
            StoreFaultKind::Damaged,
        ),
        (
            "UPDATE stepfold_taken SET position = 7 WHERE number = 4",
            FaultPlace::Session(of(3)),
            StoreFaultKind::Damaged,
        ),
        (
            "UPDATE stepfold_shared SET value = '7' WHERE key = 'app:n'",
            app(Some("app:n")),
            StoreFaultKind::Damaged,
        ),
        ("DELETE FROM stepfold_shared WHERE key = 'app:n'", app(None), StoreFaultKind::Damaged),
        (
            "DELETE FROM stepfold_shared_items WHERE key = 'app:list' AND place = 3",
            app(Some("app:list")),
            StoreFaultKind::Damaged,
        ),
        (
            "UPDATE stepfold_shared_items SET version = 1 WHERE key = 'app:list' AND place = 4",
            app(Some("app:list")),
            StoreFaultKind::Damaged,
        ),
        (
            "UPDATE stepfold_shared SET changed = changed - 1 WHERE key = 'app:n'",
            app(Some("app:n")),
            StoreFaultKind::Damaged,
        ),
        ("DELETE FROM stepfold_scopes WHERE user = ''", app(None), StoreFaultKind::Missing),
        ("UPDATE stepfold_schemas SET text = text || ' '", FaultPlace::Store, StoreFaultKind::Damaged),
    ]
}

#[tokio::test]
async fn each_kind_of_damage_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sessions.db");
    let written = written(&path).await;
    for (sql, place, kind) in damages_of_a_file() {
        fs::write(&path, &written.bytes).unwrap();
        damage(&path, sql);
        let report = verified(&path).await;
        let is_named = report.faults.iter().any(|fault| fault.place == place && fault.kind == kind);
        assert!(is_named, "{sql}: {place:?} is not in {:#?}", report.faults);
    }
}

/// What is done by hand to the claim and the inbox of session 4, and whether the claim is meant.
const WORK_DAMAGES: [(&str, bool); 7] = [
    ("UPDATE stepfold_sessions SET claims = claims - 1 WHERE number = 4", true),
    ("UPDATE stepfold_sessions SET claim_owner = 'worker-3' WHERE number = 4", true),
    ("UPDATE stepfold_sessions SET claim_expires = claim_expires - 1 WHERE number = 4", true),
    ("UPDATE stepfold_sessions SET inbox = 0 WHERE number = 4", true),
    ("DELETE FROM stepfold_inbox WHERE number = 4 AND position = 4", false),
    ("UPDATE stepfold_inbox SET position = 9 WHERE number = 4 AND position = 4", false),
    ("UPDATE stepfold_inbox SET body = replace(body, 'do 2', 'do 3') WHERE number = 4", false),
];

/// Reading the damaged inbox of a session is an error; so is claiming it if its row is damaged.
async fn check_work_told(store: &impl SessionStore, key: &SessionKey, sql: &str, is_claim: bool) {
    let read = store.inbox(ReadInbox::new(key.clone())).await.unwrap_err();
    assert_eq!(read.kind(), ErrorKind::Broken, "{sql}");
    assert!(read.to_string().contains(&key.to_string()), "{sql}: {read}");
    let claim =
        ClaimSession::new(key.clone(), WorkerId::new("worker-2").unwrap(), Duration::from_secs(60), at(9))
            .take_over();
    let claimed = store.claim(claim).await;
    assert_eq!(claimed.is_err(), is_claim, "{sql}: {claimed:?}");
}

/// Damage never causes a wrong token or an empty inbox.
#[tokio::test]
async fn damaged_claims_and_inboxes_of_a_file_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sessions.db");
    let written = written(&path).await;
    let key = SessionKey::new("app", "bob", "session-3").unwrap();
    for (sql, is_claim) in WORK_DAMAGES {
        fs::write(&path, &written.bytes).unwrap();
        damage(&path, sql);
        let store = AnyStore::new(SqliteStore::open(&path).unwrap());
        check_work_told(&store, &key, sql, is_claim).await;
    }
}

#[tokio::test]
async fn damaged_claims_and_inboxes_of_a_database_are_named_and_told() {
    let Some(server) = server() else { return };
    let store = AnyStore::new(PostgresStore::open(server.database("damaged_work").await).await.unwrap());
    let damages = WORK_DAMAGES.into_iter().map(|(sql, is_claim)| (sql, Some(is_claim)));
    // A used idempotency key is read only by a check of the store or by a repeat.
    let taken = "UPDATE stepfold_taken SET position = 7 WHERE number = 4";
    let damages: Vec<(&str, Option<bool>)> = damages.chain([(taken, None)]).collect();
    for (place, (sql, is_claim)) in damages.into_iter().enumerate() {
        let key = key(format!("worked-{place}"));
        create(&store, &key).await;
        work(&store, &key).await;
        assert_eq!(store.verify(VerifySessions::session(key.clone())).await.unwrap().faults, [], "{sql}");
        let sql = sql.replace("number = 4", &format!("number = {}", place + 1));
        server.run("damaged_work", &sql).await;
        let report = store.verify(VerifySessions::session(key.clone())).await.unwrap();
        assert!(names(&report, &key), "{sql}: {report:#?}");
        if let Some(is_claim) = is_claim {
            check_work_told(&store, &key, &sql, is_claim).await;
        }
    }
}

#[tokio::test]
async fn one_session_and_one_app_are_verified_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sessions.db");
    let written = written(&path).await;
    damage(&path, "UPDATE stepfold_cells SET value = '41' WHERE stream = 4 AND key = 'n'");
    let store = SqliteOptions::new(&path).read_only().open().unwrap();
    let damaged = SessionKey::new("app", "bob", "session-3").unwrap();
    for key in written.sessions.keys() {
        let report = store.verify(VerifySessions::session(key.clone())).await.unwrap();
        assert_eq!((report.is_whole(), report.sessions), (*key != damaged, 1), "{report:?}");
    }
    let app = |name: &str| VerifySessions::app(stepfold_session_scopes::AppId::new(name).unwrap());
    assert!(!store.verify(app("app")).await.unwrap().is_whole());
    assert_eq!(store.verify(app("other")).await.unwrap(), Verified::default());
    let error = store.verify(VerifySessions::session(key("nobody's"))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    // And reading it is an error that requires a person.
    let error = store.get(GetSession::new(damaged)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Broken);
    assert!(error.to_string().contains(" damaged: "), "{error}");
}

/// The digest of the newest event stands for the history: noted elsewhere, it shows any change to that. It is the same
/// in every store.
#[tokio::test]
async fn the_head_stands_for_the_history() {
    let folder = tempfile::tempdir().unwrap();
    let open = |name: &str| SqliteStore::open(folder.path().join(name)).unwrap();
    let (one, two) = (heads(&open("one"), "same").await, heads(&open("two"), "other").await);
    let same = one.iter().zip(&two).filter(|(one, two)| one == two).count();
    assert_eq!((same, one.len()), (4, 8), "they differ from the event on that differs");
    let Some(server) = server() else { return };
    let store = PostgresStore::open(server.database("heads").await).await.unwrap();
    assert_eq!(heads(&store, "same").await, one);
}

/// The digests of all versions of a session whose fourth event has this text.
async fn heads(store: &impl SessionStore, fourth: &str) -> Vec<Digest> {
    let key = key("s");
    let mut chain = vec![create(store, &key).await.head.unwrap()];
    for version in 0..6 {
        let text = if version == 3 { fourth } else { "same" };
        let event = writing(version, &[("n", json!(1))]).with_message(Message::user(text));
        // With the same salts, equal histories have equal digests.
        let salt = ContentSalt::from_bytes([u8::try_from(version).unwrap(); ContentSalt::LENGTH]);
        store.append(AppendEvent::new(key.clone(), version, event, &schema()).with_salt(salt)).await.unwrap();
        chain.push(get(store, &key).await.head.unwrap());
    }
    // A fork begins with the digest of the version that it was made at, and goes its own way.
    let fork = store.fork(ForkSession::new(key.clone(), at(2)).at_version(4)).await.unwrap();
    assert_eq!(fork.head, Some(chain[4]));
    append(store, &fork.key, 4, writing("fork", &[])).await.unwrap();
    assert!(!chain.contains(&get(store, &fork.key).await.head.unwrap()));
    // A rewind adds an event; retention takes events and leaves the chain of the others.
    let salt = ContentSalt::from_bytes([7; ContentSalt::LENGTH]);
    store.rewind(rewinding(&key, 6, 2).with_salt(salt)).await.unwrap();
    chain.push(get(store, &key).await.head.unwrap());
    store.prune(PruneSession::new(key.clone(), PruneBound::Version(5))).await.unwrap();
    assert_eq!(get(store, &key).await.head, chain.last().copied());
    assert!(store.verify(VerifySessions::all()).await.unwrap().is_whole());
    chain
}

/// The session that [`fill`] makes under a number, which a database gives the number after it.
fn filled(number: u64) -> SessionKey {
    let user = ["alice", "bob"][usize::try_from(number).unwrap() % 2];
    SessionKey::new("app", user, format!("session-{number}")).unwrap()
}

/// Changes by hand, each to a session of its own.
fn damages() -> Vec<(&'static str, FaultPlace, StoreFaultKind)> {
    let versions = |number, version| FaultPlace::Versions(filled(number), version..=version);
    let of_key = |number, key: &str| FaultPlace::Key(filled(number), key.to_owned());
    let session = |number| FaultPlace::Session(filled(number));
    vec![
        ("DELETE FROM stepfold_lineage WHERE number = 2", session(1), StoreFaultKind::Damaged),
        (
            "DELETE FROM stepfold_sessions WHERE number = 3",
            FaultPlace::UnknownSession { number: 3 },
            StoreFaultKind::Missing,
        ),
        (
            "UPDATE stepfold_events SET body = replace(body, 'message 4', 'massage 4') \
             WHERE stream = 4 AND version = 5",
            versions(3, 5),
            StoreFaultKind::Damaged,
        ),
        (
            "DELETE FROM stepfold_events WHERE stream = 5 AND version = 5",
            versions(4, 5),
            StoreFaultKind::Missing,
        ),
        (
            "UPDATE stepfold_cells SET value = '41' WHERE stream = 6 AND key = 'n'",
            of_key(5, "n"),
            StoreFaultKind::Damaged,
        ),
        ("DELETE FROM stepfold_cells WHERE stream = 7 AND key = 'n'", session(6), StoreFaultKind::Damaged),
        (
            "UPDATE stepfold_items SET items = replace(items, 'item 4', 'item 5') WHERE stream = 8 AND version = 5",
            of_key(7, "list"),
            StoreFaultKind::Damaged,
        ),
        (
            "DELETE FROM stepfold_items WHERE stream = 9 AND version = 3",
            of_key(8, "list"),
            StoreFaultKind::Damaged,
        ),
        ("DELETE FROM stepfold_rewinds WHERE stream = 10", session(9), StoreFaultKind::Damaged),
        ("UPDATE stepfold_sessions SET oldest = 13 WHERE number = 11", session(10), StoreFaultKind::Damaged),
    ]
}

fn check_named(report: &Verified, (sql, place, kind): &(&str, FaultPlace, StoreFaultKind)) {
    let is_named = report.faults.iter().any(|fault| fault.place == *place && fault.kind == *kind);
    assert!(is_named, "{sql}: {place:?} is not in {:#?}", report.faults);
}

/// A session (the first of its store) with two labels and two forks.
async fn branched(store: &impl SessionStore) -> SessionKey {
    let key = key("s");
    create(store, &key).await;
    for version in 0..4 {
        append(store, &key, version, writing(version, &[("n", json!(1))])).await.unwrap();
    }
    for version in 1..3u64 {
        label(store, &key, &format!("label-{version}"), version).await;
        let id = SessionId::new(format!("fork-{version}")).unwrap();
        store.fork(ForkSession::new(key.clone(), at(5)).at_version(version).with_id(id)).await.unwrap();
    }
    key
}

/// What is done to labels and forks by hand, and whether labels are meant.
const BRANCH_DAMAGES: [(&str, bool); 8] = [
    ("UPDATE stepfold_labels SET version = 3 WHERE label = 'label-1'", true),
    ("UPDATE stepfold_labels SET label = 'label-3' WHERE label = 'label-1'", true),
    ("DELETE FROM stepfold_labels WHERE label = 'label-2'", true),
    ("DELETE FROM stepfold_labels", true),
    ("DELETE FROM stepfold_forks WHERE number = 2", false),
    ("UPDATE stepfold_forks SET parent = 3 WHERE number = 2", false),
    ("UPDATE stepfold_sessions SET parent_version = 2 WHERE number = 2", false),
    ("UPDATE stepfold_sessions SET created = created + 1 WHERE number = 2", false),
];

/// Reading damaged data is an error, and a check of the store names its session.
async fn check_branches_told(store: &impl SessionStore, key: &SessionKey, sql: &str, of_labels: bool) {
    let labels = store.labels(ReadLabels::new(key.clone())).await;
    let forks = store.forks(ListForks::new(key.clone())).await;
    let kinds = (labels.err().map(|error| error.kind()), forks.err().map(|error| error.kind()));
    let broken = Some(ErrorKind::Broken);
    assert_eq!(kinds, if of_labels { (broken, None) } else { (None, broken) }, "{sql}");
    for wanted in [VerifySessions::all(), VerifySessions::session(key.clone())] {
        let report = store.verify(wanted).await.unwrap();
        assert!(names(&report, key), "{sql}: {report:#?}");
    }
    // The session itself is whole.
    assert_eq!(get(store, key).await.version, 4, "{sql}");
}

#[tokio::test]
async fn damaged_labels_and_forks_of_a_file_are_reported_and_named() {
    let folder = tempfile::tempdir().unwrap();
    for (place, (sql, of_labels)) in BRANCH_DAMAGES.into_iter().enumerate() {
        let path = folder.path().join(format!("{place}.db"));
        let key = branched(&SqliteStore::open(&path).unwrap()).await;
        damage(&path, sql);
        check_branches_told(&SqliteStore::open(&path).unwrap(), &key, sql, of_labels).await;
    }
}

#[tokio::test]
async fn damaged_labels_and_forks_of_a_database_are_reported_and_named() {
    let Some(server) = server() else { return };
    for (place, (sql, of_labels)) in BRANCH_DAMAGES.into_iter().enumerate() {
        let name = format!("branches_{place}");
        let options = PostgresOptions::new(server.database(&name).await).connections(1);
        let store = options.open().await.unwrap();
        let key = branched(&store).await;
        server.run(&name, sql).await;
        check_branches_told(&store, &key, sql, of_labels).await;
    }
}

/// Whatever is done with labels and forks, what they add up to goes with them.
async fn branches_are_whole(store: impl SessionStore) {
    let key = branched(&store).await;
    let fork = |name: &str| SessionKey { id: SessionId::new(name).unwrap(), ..key.clone() };
    let check = async |labels: &[(&str, u64)], forks: &[&str]| {
        let found = store.labels(ReadLabels::new(key.clone())).await.unwrap();
        let found: Vec<(&str, u64)> =
            found.iter().map(|(label, version)| (label.as_str(), *version)).collect();
        assert_eq!(found, labels);
        let found = store.forks(ListForks::new(key.clone())).await.unwrap();
        assert_eq!(found.iter().map(|fork| fork.id.as_str()).collect::<Vec<_>>(), forks);
        assert_eq!(store.verify(VerifySessions::all()).await.unwrap().faults, []);
    };
    check(&[("label-1", 1), ("label-2", 2)], &["fork-1", "fork-2"]).await;
    assert_eq!(label(&store, &key, "label-2", 4).await, Some(2));
    append(&store, &key, 4, writing("after", &[])).await.unwrap();
    assert_eq!(label(&store, &key, "label-2", 4).await, Some(4));
    check(&[("label-1", 1), ("label-2", 4)], &["fork-1", "fork-2"]).await;
    // A fork of the same name, and what is not a fork any more.
    store.delete(DeleteSession::new(fork("fork-1"))).await.unwrap();
    check(&[("label-1", 1), ("label-2", 4)], &["fork-2"]).await;
    let again = ForkSession::new(key.clone(), at(6)).with_id(fork("fork-1").id);
    store.fork(again).await.unwrap();
    store.prune(PruneSession::new(key.clone(), PruneBound::Version(2))).await.unwrap();
    check(&[("label-2", 4)], &["fork-2", "fork-1"]).await;
    append(&store, &key, 5, writing("pruned", &[])).await.unwrap();
    let label = Label::new("label-2").unwrap();
    assert_eq!(store.set_label(LabelVersion::removal(key.clone(), label)).await.unwrap(), Some(4));
    check(&[], &["fork-2", "fork-1"]).await;
    // Another session of the name that the forks were made from has no forks.
    store.delete(DeleteSession::new(key.clone())).await.unwrap();
    create(&store, &key).await;
    check(&[], &[]).await;
    store.delete(DeleteSession::new(fork("fork-2"))).await.unwrap();
    check(&[], &[]).await;
}

#[tokio::test]
async fn labels_and_forks_stay_whole_over_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    branches_are_whole(SqliteStore::open(folder.path().join("sessions.db")).unwrap()).await;
}

#[tokio::test]
async fn labels_and_forks_stay_whole_over_postgres() {
    let Some(server) = server() else { return };
    let options = PostgresOptions::new(server.database("whole_branches").await).connections(2);
    branches_are_whole(options.open().await.unwrap()).await;
}

/// A change made directly in the database is reported by a check, and reading it is an error.
#[tokio::test]
async fn changes_to_a_database_are_named_and_told() {
    let Some(server) = server() else { return };
    let url = server.database("damaged").await;
    let store = PostgresStore::open(url.clone()).await.unwrap();
    let keys = fill(&store).await;
    let report = store.verify(VerifySessions::all()).await.unwrap();
    assert_eq!((report.faults.as_slice(), report.sessions), (&[][..], keys.len() as u64));
    let damages = damages();
    for (sql, ..) in &damages {
        server.run("damaged", sql).await;
    }
    let report = store.verify(VerifySessions::all()).await.unwrap();
    for damage in &damages {
        check_named(&report, damage);
    }
    for (place, key) in keys.iter().enumerate() {
        let is_damaged = (1..=10).contains(&place);
        let read = store.get(GetSession::new(key.clone())).await;
        let kinds = if is_damaged { vec![ErrorKind::Broken, ErrorKind::NotFound] } else { Vec::new() };
        let kind = read.as_ref().err().map(SessionError::kind);
        assert_eq!(kind.is_some_and(|kind| kinds.contains(&kind)), is_damaged, "{key}: {read:?}");
        assert_eq!(read.is_err(), is_damaged, "{key}: {read:?}");
        let alone = store.verify(VerifySessions::session(key.clone())).await;
        assert_eq!(alone.is_ok_and(|report| report.is_whole()), !is_damaged, "{key}");
    }
}

/// A fork of values that are not all there would be whole, and so would a session that was rewound to them.
#[tokio::test]
async fn a_database_that_lost_values_makes_no_whole_sessions_of_them() {
    let Some(server) = server() else { return };
    let store = PostgresStore::open(server.database("lost").await).await.unwrap();
    let keys: Vec<SessionKey> = (0..3).map(|number| key(format!("lost-{number}"))).collect();
    for key in &keys {
        create(&store, key).await;
        for version in 0..4 {
            let kept = ("list", json!([version]));
            append(&store, key, version, writing(version, &[("n", json!(version)), kept])).await.unwrap();
        }
    }
    // A value as it is, one as it was, and the checksum of one.
    for sql in [
        "DELETE FROM stepfold_cells WHERE stream = 1 AND key = 'n'",
        "DELETE FROM stepfold_past WHERE stream = 2 AND key = 'n' AND version = 2",
        "UPDATE stepfold_past SET checksum = checksum + 1 WHERE stream = 3 AND key = 'n' AND version = 2",
    ] {
        server.run("lost", sql).await;
    }
    let forks = async |place: usize, version: u64| {
        let fork = ForkSession::new(keys[place].clone(), at(9)).at_version(version);
        store.fork(fork).await.map(|fork| fork.key).map_err(|error| error.kind())
    };
    let rewinds = async |place: usize, to: u64| {
        let rewound = store.rewind(rewinding(&keys[place], 4, to)).await;
        rewound.map(|receipt| receipt.version).map_err(|error| error.kind())
    };
    // Of the version that it began with, no event tells.
    for version in [0, 4] {
        assert_eq!(forks(0, version).await, Err(ErrorKind::Broken), "{version}");
        assert_eq!(rewinds(0, version).await, Err(ErrorKind::Broken), "{version}");
    }
    for place in [1, 2] {
        assert_eq!(forks(place, 2).await, Err(ErrorKind::Broken), "{place}");
        assert_eq!(rewinds(place, 2).await, Err(ErrorKind::Broken), "{place}");
        // Nothing was written, and what is whole is forked and rewound to.
        assert_eq!(get(&store, &keys[place]).await.version, 4);
        let fork = forks(place, 3).await.unwrap();
        assert_eq!(get(&store, &fork).await.version, 3);
        assert_eq!(rewinds(place, 3).await, Ok(5));
        assert_eq!(get(&store, &keys[place]).await.version, 5);
    }
}

#[tokio::test]
async fn changes_to_shared_values_of_a_database_are_named_and_told() {
    let Some(server) = server() else { return };
    let store = PostgresStore::open(server.database("damaged_scopes").await).await.unwrap();
    let keys = fill(&store).await;
    let scope = |user: Option<&str>, key: Option<&str>| FaultPlace::Scope {
        app: "app".to_owned(),
        user: user.map(str::to_owned),
        key: key.map(str::to_owned),
    };
    let of_alice = "scope = (SELECT scope FROM stepfold_scopes WHERE owner = 'alice')";
    let last_of_alice = format!("DELETE FROM stepfold_shared WHERE {of_alice}");
    let damages: [(&str, FaultPlace, StoreFaultKind); 5] = [
        (
            "UPDATE stepfold_shared SET value = '7' WHERE key = 'app:n'",
            scope(None, Some("app:n")),
            StoreFaultKind::Damaged,
        ),
        (
            "DELETE FROM stepfold_shared_items WHERE key = 'app:list' AND place = 3",
            scope(None, Some("app:list")),
            StoreFaultKind::Damaged,
        ),
        (
            "UPDATE stepfold_shared_items SET version = 1 WHERE key = 'app:list' AND place = 4",
            scope(None, Some("app:list")),
            StoreFaultKind::Damaged,
        ),
        (last_of_alice.as_str(), scope(Some("alice"), None), StoreFaultKind::Damaged),
        ("UPDATE stepfold_schemas SET text = text || ' '", FaultPlace::Store, StoreFaultKind::Damaged),
    ];
    for (sql, ..) in &damages {
        server.run("damaged_scopes", sql).await;
    }
    let report = store.verify(VerifySessions::all()).await.unwrap();
    for damage in &damages {
        check_named(&report, damage);
    }
    for wanted in [vec!["app:n"], vec!["app:list"], vec!["user:list"]] {
        let get = GetSession::new(keys[2].clone()).keys(wanted.clone());
        assert_eq!(store.get(get).await.unwrap_err().kind(), ErrorKind::Broken, "{wanted:?}");
    }
}

/// Two workers that never read: each finds out what the other has written, and the chain is one.
#[tokio::test]
async fn workers_that_do_not_read_make_one_chain() {
    let Some(server) = server() else { return };
    let url = server.database("one_chain").await;
    let stores = [PostgresStore::open(url.clone()).await.unwrap(), PostgresStore::open(url).await.unwrap()];
    create(&stores[0], &key("s")).await;
    for version in 0..20 {
        let store = &stores[usize::from(version % 7 > 2)];
        append(store, &key("s"), version, writing(version, &[])).await.unwrap();
    }
    let session = get(&stores[0], &key("s")).await;
    assert_eq!((session.version, session.events.len()), (20, 20));
    assert_eq!(stores[1].verify(VerifySessions::all()).await.unwrap().faults, []);
}

/// Reading the new items of a shared list detects damage to them, and to the one before them.
async fn damaged_new_items_are_errors<S: SessionStore>(store: S, damage: impl AsyncFn(&str)) {
    let (mine, other) = (key("mine"), key("other"));
    create(&store, &other).await;
    append(&store, &other, 0, writing("e0", &[("user:list", json!([0, 1, 2]))])).await.unwrap();
    let before = create(&store, &mine).await;
    append(&store, &other, 1, writing("e1", &[("user:list", json!([3, 4]))])).await.unwrap();
    let get = GetSession::new(mine).changed_since(before.seen()).incremental(&schema());
    let appended = async || {
        let values = store.get(get.clone()).await.map_err(|error| error.kind())?.values.unwrap();
        let lists: Vec<usize> = values.user.appended().map(|(_, list)| list.items.len()).collect();
        Ok::<_, ErrorKind>(lists)
    };
    assert_eq!(appended().await, Ok(vec![2]));
    // What stands before them is not read.
    damage("UPDATE stepfold_shared_items SET item = '7' WHERE place = 1").await;
    assert_eq!(appended().await, Ok(vec![2]));
    for (sql, undo) in [
        ("SET item = '7' WHERE place = 3", "SET item = '3' WHERE place = 3"),
        ("SET version = 1 WHERE place = 4", "SET version = 2 WHERE place = 4"),
        ("SET version = 2 WHERE place = 2", "SET version = 1 WHERE place = 2"),
        ("SET place = 9 WHERE place = 2", "SET place = 2 WHERE place = 9"),
        ("SET place = 9 WHERE place = 4", "SET place = 4 WHERE place = 9"),
    ] {
        damage(&format!("UPDATE stepfold_shared_items {sql}")).await;
        assert_eq!(appended().await, Err(ErrorKind::Broken), "{sql}");
        damage(&format!("UPDATE stepfold_shared_items {undo}")).await;
        assert_eq!(appended().await, Ok(vec![2]), "{sql}");
    }
}

#[tokio::test]
async fn damaged_new_items_of_a_file_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sessions.db");
    let store = SqliteStore::open(&path).unwrap();
    damaged_new_items_are_errors(store, async |sql: &str| damage(&path, sql)).await;
}

#[tokio::test]
async fn damaged_new_items_of_a_database_are_errors() {
    let Some(server) = server() else { return };
    let options = PostgresOptions::new(server.database("damaged_items").await).connections(1);
    damaged_new_items_are_errors(options.open().await.unwrap(), async |sql: &str| {
        server.run("damaged_items", sql).await;
    })
    .await;
}

/// A long history is opened by several threads, a share of 32 KiB at a time: it is whole and in order, and what is damaged
/// is named as in a short one.
#[tokio::test]
async fn a_long_history_is_read_whole_and_its_damage_named() {
    const EVENTS: u64 = 4_500;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sessions.db");
    let key = key("long");
    let event =
        |version: u64| writing(version, &[]).with_message(Message::user(format!("message {version}.")));
    let store = SqliteStore::open(&path).unwrap();
    let session = CreateSession::with_key(key.clone(), &schema(), at(0));
    store.create(session.with_events((0..EVENTS).map(|version| event(version).into()))).await.unwrap();
    let session = get(&store, &key).await;
    assert_eq!(session.events.len() as u64, EVENTS);
    for (number, committed) in (0..).zip(&session.events) {
        assert_eq!((committed.version, &*committed.event), (number + 1, &event(number)));
    }
    drop(store);
    for version in [1, 404, 405, 2_000, EVENTS] {
        let set = |from: &str, to: &str| {
            let number = (1_u64 << 32) + version;
            let body = format!("replace(body, '{from} {}.', '{to} {}.')", version - 1, version - 1);
            damage(&path, &format!("UPDATE stepfold_events SET body = {body} WHERE number = {number}"));
        };
        set("message", "passage");
        let store = SqliteStore::open(&path).unwrap();
        let error = store.get(GetSession::new(key.clone())).await.unwrap_err();
        let named = format!("event of version {version}");
        assert!(error.kind() == ErrorKind::Broken && error.to_string().contains(&named), "{error}");
        drop(store);
        set("passage", "message");
    }
    get(&SqliteStore::open(&path).unwrap(), &key).await;
}

/// What counts of a session is read without the rewinds that a later one went back behind.
async fn hidden_rewinds_are_not_read<S: SessionStore>(store: S, damage: impl AsyncFn(&str)) {
    let key = key("s");
    create(&store, &key).await;
    let mut version = 0;
    for to in [1, 1, 3] {
        for _ in 0..3 {
            append(&store, &key, version, writing(version, &[("n", json!(1))])).await.unwrap();
            version += 1;
        }
        let event = EventId::new(format!("back-{version}")).unwrap();
        let mut rewind = rewinding(&key, version, to);
        rewind.event = event;
        store.rewind(rewind).await.unwrap();
        version += 1;
    }
    let before = get(&store, &key).await;
    assert_eq!(before.visible_events().map(|event| event.version).collect::<Vec<_>>(), [1, 2, 3, 12]);
    let broken = async |get: GetSession| {
        let read = store.get(get).await;
        read.as_ref().err().map(SessionError::kind) == Some(ErrorKind::Broken)
    };
    let whole = || GetSession::new(key.clone());
    damage("DELETE FROM stepfold_rewinds WHERE version = 4").await;
    assert_eq!(shown(&get(&store, &key).await), shown(&before));
    // The second one went back behind the first one, and a version in between counts that.
    assert!(broken(whole().at_version(7)).await);
    assert!(!broken(whole().at_version(8)).await);
    let report = store.verify(VerifySessions::session(key.clone())).await.unwrap();
    assert!(names(&report, &key), "{report:#?}");
    damage("DELETE FROM stepfold_rewinds WHERE version = 12").await;
    assert!(broken(whole()).await);
}

#[tokio::test]
async fn hidden_rewinds_of_a_file_are_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sessions.db");
    let store = SqliteStore::open(&path).unwrap();
    hidden_rewinds_are_not_read(store, async |sql: &str| damage(&path, sql)).await;
}

#[tokio::test]
async fn hidden_rewinds_of_a_database_are_not_read() {
    let Some(server) = server() else { return };
    let options = PostgresOptions::new(server.database("hidden_rewinds").await).connections(1);
    hidden_rewinds_are_not_read(options.open().await.unwrap(), async |sql: &str| {
        server.run("hidden_rewinds", sql).await;
    })
    .await;
}
