//! What a long session takes on the disk.

use std::time::Duration;

use serde_json::json;
use stepfold_session_scopes::{
    AppendClaim, AppendEvent, Durability, EventRange, GetSession, SessionStore, SqliteOptions, SqliteStore,
    TakeOver, WorkerId,
};
use stepfold_state_core::chat::{Message, ToolCall, ToolResult};

use crate::scenario::{append, create, key, schema, writing};

/// Bytes that a file's pages in use come to.
fn bytes_of(path: &std::path::Path) -> u64 {
    let connection = rusqlite::Connection::open(path).unwrap();
    connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    let pragma =
        |name: &str| connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, i64>(0)).unwrap();
    u64::try_from((pragma("page_count") - pragma("freelist_count")) * pragma("page_size")).unwrap()
}

/// A step: the model's reply with a call, its outcome, an item for a list.
async fn steps(store: &SqliteStore, from: u64, to: u64) {
    for step in from..to {
        let id = format!("c{step}");
        let call = ToolCall::new(&id, "search", json!({"q": "stalls"}));
        let found = ToolResult::value(&id, "search", json!({"found": format!("document {step}")}));
        let event = writing(step, &[("list", json!([format!("document {step}")])), ("n", json!(1))])
            .with_message(Message::assistant("I look it up.").with_part(call))
            .with_message(Message::tool(found));
        append(store, &key("s"), step, event).await.unwrap();
    }
}

#[tokio::test]
async fn five_hundred_steps_take_linear_space_and_less_than_four_tenths_of_a_megabyte() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sessions.db");
    let store = SqliteStore::open(&path).unwrap();
    let empty = bytes_of(&path);
    create(&store, &key("s")).await;
    let mut sizes = Vec::new();
    for part in 0..5 {
        steps(&store, part * 100, (part + 1) * 100).await;
        sizes.push(bytes_of(&path) - empty);
    }
    let total = sizes[4];
    assert!(total < 400_000, "{sizes:?}");
    // The last hundred steps take what the second hundred took.
    let (second, last) = (sizes[1] - sizes[0], sizes[4] - sizes[3]);
    assert!(last < second * 3 / 2, "{sizes:?}");
    let session = store.get(GetSession::new(key("s")).events(EventRange::Last(1))).await.unwrap();
    assert_eq!(session.get("list").unwrap().len(), Some(500));
}

/// Each page costs two system calls and a checksum, so how many there are is what an append costs.
#[tokio::test]
async fn an_append_writes_four_pages_however_much_there_is() {
    const FRAME: u64 = 4096 + 24;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sessions.db");
    let store = SqliteOptions::new(&path).durability(Durability::Process).open().unwrap();
    create(&store, &key("s")).await;
    let mut before = 0;
    for events in [10, 1_500] {
        for number in 0..events {
            let other = key(format!("{events}-{number}"));
            create(&store, &other).await;
        }
        small_steps(&store, before, before + events).await;
        before += events;
        bytes_of(&path);
        small_steps(&store, before, before + 100).await;
        before += 100;
        let log = std::fs::metadata(folder.path().join("sessions.db-wal")).unwrap().len();
        // Four, and what a page that is full brings now and then.
        let pages = log / FRAME;
        assert!((400..500).contains(&pages), "{pages} pages in 100 appends after {events} events");
    }
}

/// A turn takes the claim on its session with its first event and gives it up with its last, in the transactions of these
/// events: each writes two pages more, that of the claim and that of the index by which a recovery finds sessions at work,
/// and the events between write none.
#[tokio::test]
async fn a_turn_under_a_claim_writes_four_pages_more_than_one_without() {
    const FRAME: u64 = 4096 + 24;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sessions.db");
    let store = SqliteOptions::new(&path).durability(Durability::Process).open().unwrap();
    let (owner, duration) = (WorkerId::new("one").unwrap(), Duration::from_secs(3_600));
    let mut pages = Vec::new();
    for is_claimed in [false, true] {
        let key = key(is_claimed);
        create(&store, &key).await;
        bytes_of(&path);
        let mut token = None;
        // Turns of four events.
        for version in 0..100_u64 {
            let claim = match (token, version % 4) {
                _ if !is_claimed => None,
                (Some(token), 3) => Some(AppendClaim::Release { token }),
                (Some(token), _) => Some(AppendClaim::Hold { token, duration }),
                (None, _) => {
                    Some(AppendClaim::Take { owner: owner.clone(), duration, take_over: TakeOver::Never })
                }
            };
            let event = writing(version, &[("n", json!(1))]);
            let mut request = AppendEvent::new(key.clone(), version, event, &schema());
            request.claim = claim;
            token = store.append(request).await.unwrap().claim.map(|claim| claim.token);
            assert_eq!(token.is_some(), is_claimed && version % 4 != 3);
        }
        let log = std::fs::metadata(folder.path().join("sessions.db-wal")).unwrap().len();
        pages.push(log / FRAME);
    }
    // 25 turns. Where a row is longer for its claim, a page is full a little earlier.
    assert!(pages[1] <= pages[0] + 4 * 25 + 5, "{pages:?}");
}

/// The log keeps the size that it once had for as long as the file is open.
#[tokio::test]
async fn the_log_of_an_open_file_stays_near_four_megabytes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sessions.db");
    let store = SqliteOptions::new(&path).durability(Durability::Process).open().unwrap();
    create(&store, &key("s")).await;
    small_steps(&store, 0, 1_200).await;
    let log = std::fs::metadata(folder.path().join("sessions.db-wal")).unwrap().len();
    assert!((2_000_000..4_300_000).contains(&log), "{log} bytes");
}

/// Steps of a number and an item for a list.
async fn small_steps(store: &SqliteStore, from: u64, to: u64) {
    for step in from..to {
        let event = writing(step, &[("list", json!(["one more"])), ("n", json!(1))]);
        append(store, &key("s"), step, event).await.unwrap();
    }
}
