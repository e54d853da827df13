//! Which sessions a list has that asks for unfinished runs, or for a text: the law over each store, for any order of
//! events, rewinds, forks and retention; and what `verify` says of a list that tells something else.

use proptest::prelude::*;
use stepfold_session_scopes::{
    AnyStore, Author, CreateSession, Durability, Event, EventId, EventRange, FaultPlace, ForkSession,
    GetSession, InvocationId, ListSessions, MemoryStore, PostgresStore, PruneBound, PruneSession,
    RewindSession, RunRecord, SessionId, SessionKey, SessionStore, SqliteOptions, SqliteStore,
    StoreFaultKind, VerifySessions,
};
use stepfold_state_core::chat::Message;

use crate::scenario::{append, at, create, event, key, schema};
use crate::server::server;

/// A change of one of the sessions.
#[derive(Clone, Debug)]
enum Deed {
    /// An event of a run, which may end it, with a message or none.
    Append {
        ends: bool,
        says: Option<&'static str>,
    },
    /// An event without a record: of a failure, or of something else.
    Note {
        has_failed: bool,
    },
    Rewind {
        to: u64,
    },
    Fork {
        at: u64,
        says: Option<&'static str>,
    },
    Prune {
        before: u64,
    },
    /// Made again from its events, as an import makes it.
    Copy,
}

const SAID: [&str; 5] = ["Which area?", "ÄRGER mit İstanbul", "ὈΔΥΣΣΕΎΣ sails", "line\none", " \n"];

fn said() -> impl Strategy<Value = Option<&'static str>> {
    prop_oneof![2 => Just(None), 3 => proptest::sample::select(&SAID[..]).prop_map(Some)]
}

fn deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        6 => (any::<bool>(), said()).prop_map(|(ends, says)| Deed::Append { ends, says }),
        2 => any::<bool>().prop_map(|has_failed| Deed::Note { has_failed }),
        3 => (0..8_u64).prop_map(|to| Deed::Rewind { to }),
        3 => (0..8_u64, said()).prop_map(|(at, says)| Deed::Fork { at, says }),
        1 => (0..8_u64).prop_map(|before| Deed::Prune { before }),
        1 => Just(Deed::Copy),
    ]
}

fn step(id: impl ToString, ends: bool, says: Option<&str>) -> Event {
    let event = event(id).with_record(RunRecord::new("run", 1, &"a step").unwrap());
    let event = if ends { event.with_metadata(Event::EXIT, "final") } else { event };
    match says {
        Some(text) => event.with_message(Message::user(text)),
        None => event.with_message(Message::assistant("area 3 of all")),
    }
}

fn note(id: impl ToString, has_failed: bool) -> Event {
    let kind = if has_failed { Event::FAILED } else { "state" };
    event(id).with_kind(stepfold_session_scopes::EventKind::new(kind)).with_metadata(Event::FAILED, "why")
}

/// Does it, as far as the session is old enough for it.
async fn make(store: &AnyStore, number: usize, of: &SessionKey, deed: &Deed) {
    let session = store.get(GetSession::new(of.clone())).await.unwrap();
    let (oldest, version) = (session.oldest, session.version);
    let place = |wanted: u64| (wanted.max(oldest) <= version).then_some(wanted.max(oldest));
    let fresh = SessionId::new(format!("Session {number}")).unwrap();
    match deed {
        Deed::Append { ends, says } => {
            append(store, of, version, step(format!("e{number}"), *ends, *says)).await.unwrap();
        }
        Deed::Note { has_failed } => {
            append(store, of, version, note(format!("e{number}"), *has_failed)).await.unwrap();
        }
        Deed::Rewind { to } => {
            let Some(to) = place(*to) else { return };
            let (id, run) = (EventId::new(format!("e{number}")).unwrap(), InvocationId::new("i").unwrap());
            let author = Author::new("user").unwrap();
            store.rewind(RewindSession::new(of.clone(), version, to, id, run, author, at(1))).await.unwrap();
        }
        Deed::Fork { at: version, says } => {
            let Some(version) = place(*version) else { return };
            let mut fork = ForkSession::new(of.clone(), at(2)).with_id(fresh);
            fork.version = Some(version);
            if says.is_some() {
                fork = fork.with_event(step(format!("e{number}"), false, *says), &schema(), None);
            }
            store.fork(fork).await.unwrap();
        }
        Deed::Prune { before } => {
            let Some(before) = place(*before) else { return };
            store.prune(PruneSession::new(of.clone(), PruneBound::Version(before))).await.unwrap();
        }
        Deed::Copy => {
            if oldest > 0 {
                return;
            }
            let copy = SessionKey { id: fresh, ..of.clone() };
            let events = session.events.into_iter().map(|committed| committed.event);
            store.create(CreateSession::with_key(copy, &schema(), at(3)).with_events(events)).await.unwrap();
        }
    }
}

async fn listed(store: &AnyStore, list: ListSessions) -> Vec<String> {
    let (mut ids, mut list) = (Vec::new(), list.limit(3));
    loop {
        let page = store.list(list.clone()).await.unwrap();
        ids.extend(page.sessions.iter().map(|session| session.key.id.to_string()));
        let Some(next) = page.next else { return ids };
        list.after = Some(next);
    }
}

/// The lists have what the visible events of each session say, in the order of all sessions.
async fn check(store: &AnyStore) {
    let all = || ListSessions::new("app", "alice").unwrap();
    let (mut unfinished, mut with) = (Vec::new(), vec![Vec::new(); SAID.len()]);
    for id in listed(store, all()).await {
        let mut get = GetSession::new(key(&id)).events(EventRange::All);
        get.hidden = false;
        let session = store.get(get).await.unwrap();
        if session.events.last().is_some_and(|newest| newest.event.is_unfinished()) {
            unfinished.push(id.clone());
        }
        let users = session.events.iter().flat_map(|committed| &committed.event.messages);
        let users: Vec<String> = users
            .filter(|message| message.role() == stepfold_state_core::chat::Role::User)
            .map(|message| message.text().trim().to_owned())
            .filter(|text| !text.is_empty())
            .collect();
        for (said, with) in SAID.iter().zip(&mut with) {
            // Retention takes first messages, by which a session may still be found.
            if users.first().is_some_and(|first| first == said.trim()) {
                with.push((id.clone(), session.oldest));
            }
        }
    }
    assert_eq!(listed(store, all().unfinished()).await, unfinished);
    for (said, with) in SAID.iter().zip(with) {
        let wanted = said.replace('\n', " ").trim().to_uppercase();
        if wanted.is_empty() {
            continue;
        }
        let found = listed(store, all().containing(&wanted)).await;
        let missing: Vec<_> = with.iter().filter(|(id, _)| !found.contains(id)).collect();
        assert!(missing.is_empty(), "{said:?}: {missing:?} of {found:?}");
    }
    assert_eq!(listed(store, all().containing("SESSION ")).await.len(), listed(store, all()).await.len());
    assert_eq!(listed(store, all().containing("no such text")).await, [""; 0]);
    let faults = store.verify(VerifySessions::all()).await.unwrap().faults;
    assert_eq!(faults, [], "{faults:?}");
}

async fn hold(store: AnyStore, deeds: Vec<(usize, Deed)>) {
    create(&store, &key("session first")).await;
    for (number, (of, deed)) in deeds.iter().enumerate() {
        let ids = listed(&store, ListSessions::new("app", "alice").unwrap()).await;
        make(&store, number, &key(&ids[of % ids.len()]), deed).await;
    }
    check(&store).await;
}

fn deeds() -> impl Strategy<Value = Vec<(usize, Deed)>> {
    proptest::collection::vec((0..100_usize, deed()), 1..24)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

proptest! {
    #[test]
    fn lists_have_what_events_say_in_memory(deeds in deeds()) {
        runtime().block_on(hold(AnyStore::new(MemoryStore::new()), deeds));
    }

    #[test]
    fn lists_have_what_events_say_over_sqlite(deeds in deeds()) {
        let folder = tempfile::tempdir().unwrap();
        let options = SqliteOptions::new(folder.path().join("sessions.db")).durability(Durability::Process);
        runtime().block_on(hold(AnyStore::new(options.open().unwrap()), deeds));
    }
}

#[test]
fn lists_have_what_events_say_over_postgres() {
    let Some(server) = server() else { return };
    let runtime = runtime();
    let number = std::cell::Cell::new(0);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(24));
    runner
        .run(&deeds(), |deeds| {
            number.set(number.get() + 1);
            runtime.block_on(async {
                let database = server.database(&format!("listed{}", number.get())).await;
                hold(AnyStore::new(PostgresStore::open(database).await.unwrap()), deeds).await;
            });
            Ok(())
        })
        .unwrap();
}

/// One that waits is not listed, one that is idle is, and one is found by another text.
const DAMAGE: [&str; 3] = ["unfinished = NOT unfinished", "searched = 'session\nanother'", "searched = ''"];

async fn written(store: &impl SessionStore) {
    create(store, &key("Session")).await;
    append(store, &key("Session"), 0, step("e1", false, Some("which area?"))).await.unwrap();
    assert_eq!(store.verify(VerifySessions::all()).await.unwrap().faults, []);
}

async fn is_told(store: &impl SessionStore) {
    let faults = store.verify(VerifySessions::session(key("Session"))).await.unwrap().faults;
    let found: Vec<_> = faults.iter().map(|fault| (fault.place.clone(), fault.kind)).collect();
    assert_eq!(found, [(FaultPlace::Session(key("Session")), StoreFaultKind::Damaged)], "{faults:?}");
}

#[tokio::test]
async fn verify_compares_the_list_of_a_file_with_the_events() {
    for damage in DAMAGE {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sessions.db");
        let store = SqliteStore::open(&path).unwrap();
        written(&store).await;
        let damage = format!("UPDATE stepfold_recent SET {damage}");
        rusqlite::Connection::open(&path).unwrap().execute_batch(&damage).unwrap();
        is_told(&store).await;
    }
}

#[tokio::test]
async fn verify_compares_the_list_of_a_database_with_the_events() {
    let Some(server) = server() else { return };
    for (number, damage) in DAMAGE.iter().enumerate() {
        let name = format!("damaged{number}");
        let store = PostgresStore::open(server.database(&name).await).await.unwrap();
        written(&store).await;
        server.run(&name, &format!("UPDATE stepfold_sessions SET {damage}")).await;
        is_told(&store).await;
    }
}
