//! What a key ring costs: appends and reads of a session in a store that seals content, against one that does not.

use std::sync::Arc;
use std::time::Duration;

use stepfold_session_scopes::{
    AppendEvent, Durability, EventRange, GetSession, MemoryKeyRing, SessionStore, SqliteOptions, SqliteStore,
};
use stepfold_state_core::chat::Message;

use crate::{Bench, Sqlite, cpu_time, create, event, key, runtime, schema};

/// The events of a session: fewer than those that several threads read.
const EVENTS: u32 = 1_000;
/// Each figure is the fastest of so many.
const ROUNDS: usize = 15;

fn open(is_sealed: bool) -> Sqlite {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let options = SqliteOptions::new(folder.path().join("sessions.db")).durability(Durability::Process);
    let ring = || {
        Arc::new(MemoryKeyRing::new("bench", |bytes: &mut [u8]| {
            bytes.fill(7);
            Ok(())
        }))
    };
    let options = if is_sealed { options.key_ring(ring()) } else { options };
    Sqlite { store: options.open().expect("the file is new"), runtime: runtime(), folder }
}

/// The kinds of texts: one without anything to escape is the cheapest to read, so a seal weighs most on it.
const TEXTS: [(&str, &str); 2] = [
    ("letters", "x"),
    (
        "Markdown",
        "## Stall 7\n\n- \"fish\": 3 crates, *paid*\n- `bread`: 12 loaves, due on Friday; see the note of Ada\n\n",
    ),
];

async fn append(store: &SqliteStore, session: usize, (text, bytes): (&str, usize)) {
    let (key, schema) = (key(session), schema());
    create(store, key.clone(), &schema).await;
    for version in 0..u64::from(EVENTS) {
        let event = event().with_message(Message::assistant(&text.repeat(bytes / text.len() + 1)[..bytes]));
        let request = AppendEvent::new(key.clone(), version, event, &schema);
        store.append(request).await.expect("nobody else writes");
    }
}

async fn get(store: &SqliteStore, session: usize) {
    let get = GetSession::new(key(session)).events(EventRange::All);
    assert_eq!(store.get(get).await.expect("it is there").events.len() as u64, u64::from(EVENTS));
}

/// The CPU time for each event of an operation: in a store without a ring, and in one with it.
fn cpu(stores: &[Sqlite; 2], operation: impl AsyncFn(&SqliteStore, usize)) -> [f64; 2] {
    let mut fastest = [Duration::MAX; 2];
    for round in 0..ROUNDS {
        // In turns, so that both see the same moods of the machine.
        for (bench, fastest) in stores.iter().zip(&mut fastest) {
            let before = cpu_time();
            bench.wait(operation(bench.store(), round));
            *fastest = (*fastest).min(cpu_time().saturating_sub(before));
        }
    }
    fastest.map(|time| time.as_secs_f64() * 1e6 / f64::from(EVENTS))
}

/// Prints what sealing costs. Goal: 1.2 times the CPU time of an append, and 1.3 times that of reading a session.
pub(crate) fn ratios() {
    println!("CPU time of an event in a store without a key ring, and with one (SQLite, all threads)");
    for (name, text) in TEXTS {
        for bytes in [200, 2_000, 20_000] {
            let stores = [open(false), open(true)];
            let appended = cpu(&stores, async |store, session| append(store, session, (text, bytes)).await);
            let read = cpu(&stores, async |store, session| get(store, session).await);
            for (what, [plain, sealed]) in [("append", appended), ("read", read)] {
                let ratio = sealed / plain;
                println!(
                    "  {what:6} {bytes:6} bytes of {name:8}  {plain:7.2} us, {sealed:7.2} us: {ratio:.2} times"
                );
            }
        }
    }
}

/// Reads a session of events with so many bytes so often, for a tool that counts instructions.
pub(crate) fn counted(what: &str, times: usize) {
    let (kind, bytes) = what.split_once('-').expect("`plain-200` or `sealed-200`");
    let (bench, bytes) = (open(kind == "sealed"), bytes.parse().expect("a number of bytes"));
    bench.wait(async {
        append(bench.store(), 0, (TEXTS[0].1, bytes)).await;
        for _ in 0..times {
            get(bench.store(), 0).await;
        }
    });
}
