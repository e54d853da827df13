//! Other processes: this test binary, started again to play a part.

use std::process::{Child, Command, Stdio};

use serde_json::json;
use stepfold_session_scopes::{CreateSession, ForkSession, Label, SessionId, SessionStore as _};

use crate::claims;
use crate::erasure;
use crate::keys;
use crate::scenario::{append, at, create, get, key, open, schema, writing};

const PART: &str = "STEPFOLD_TEST_PART";

/// Starts a process that plays `part` with the store at `address`.
pub(crate) fn start(part: &str, address: &str, number: usize) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "children::child", "--nocapture", "--test-threads=1"])
        .env(PART, format!("{part} {number} {address}"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Does nothing, unless this process was started to play a part.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child() {
    #[expect(clippy::disallowed_methods, reason = "this is how a parent says what it wants")]
    let Ok(part) = std::env::var(PART) else { return };
    let mut words = part.splitn(3, ' ');
    let (part, number, address) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
    match part {
        "count" => count(number, address).await,
        "append" => append_for_ever(number, address).await,
        "branch" => branch_for_ever(address).await,
        "claim" => claims::claim_all(number, address).await,
        "erase" => erasure::erase_for_ever(number, address).await,
        "hold" => claims::append_until_lost(number, address).await,
        "rotate" => keys::rotate_for_ever(address).await,
        other => panic!("nobody plays {other}"),
    }
}

/// Writes to shared values a hundred times, from a session of its own.
async fn count(number: &str, address: &str) {
    let store = open(address).await;
    let key = key(number);
    create(&store, &key).await;
    for version in 0..100u64 {
        let name = format!("{number}-{version}");
        let writes = [
            ("app:n", json!(1)),
            ("app:list", json!([name])),
            ("app:union", json!([version % 10, name])),
            ("app:tasks", json!({"id": version % 10, number: version})),
        ];
        // The heavier ones in every fifth event, or searching the lists is all that is done.
        let writes = if version % 5 == 0 { &writes[..] } else { &writes[..1] };
        append(&store, &key, version, writing(&name, writes)).await.unwrap();
    }
}

/// Continues with a session, and says each version once it was acknowledged.
async fn append_for_ever(number: &str, address: &str) {
    let store = open(address).await;
    let key = key(number);
    let mut version = get(&store, &key).await.version;
    loop {
        let writes = [("n", json!(1)), ("list", json!([version])), ("app:n", json!(1))];
        version = append(&store, &key, version, writing(version, &writes)).await.unwrap().version;
        println!("committed {version}");
    }
}

/// The events that a session is made with, and the version at which it is forked.
pub(crate) const EVENTS: u64 = 20;
pub(crate) const FORKED_AT: u64 = 2;

/// Makes sessions with events and a label, and of each a fork with an event, and says each once it was acknowledged.
async fn branch_for_ever(address: &str) {
    let store = open(address).await;
    let event = |version: u64| writing(version, &[("n", json!(1)), ("list", json!([version]))]);
    for number in 0.. {
        let key = key(format!("{}-{number}", std::process::id()));
        let request = CreateSession::with_key(key.clone(), &schema(), at(0))
            .with_events((0..EVENTS).map(|version| event(version).into()))
            .with_labels([(Label::new("end").unwrap(), EVENTS)]);
        store.create(request).await.unwrap();
        println!("committed {}", 2 * number + 1);
        let request = ForkSession::new(key.clone(), at(1))
            .at_version(FORKED_AT)
            .with_id(SessionId::new(format!("{}-fork", key.id)).unwrap())
            .with_event(writing("own", &[("n", json!(100)), ("list", json!(["own"]))]), &schema(), None);
        store.fork(request).await.unwrap();
        println!("committed {}", 2 * number + 2);
    }
}
