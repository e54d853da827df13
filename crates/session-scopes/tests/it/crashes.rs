//! Processes that are killed while they write: what was acknowledged is there, and nothing is half there.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Child;

use serde_json::json;
use stepfold_session_scopes::{
    AnyStore, Author, EraseData, EraseTarget, ErasureId, ListForks, ListSessions, ReadLabels, ScopeKey,
    Session, SessionKey, SessionStore, VerifySessions,
};

use crate::children::{EVENTS, FORKED_AT, start};
use crate::keys::files_with;
use crate::scenario::{address_in, append, at, create, get, key, open, writing};
use crate::sealed::Database;
use crate::server::server;

/// Kills the child some time after it has committed so often; the last version that it told of.
fn kill_after(mut child: Child, commits: u64, luck: &mut fastrand::Rng) -> u64 {
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut told = 0;
    let version = |line: String| line.split_once("committed ").and_then(|(_, version)| version.parse().ok());
    for version in lines.by_ref().filter_map(version).take(usize::try_from(commits).unwrap()) {
        told = version;
    }
    assert!(told > 0, "the child did not write");
    // Somewhere within the next commits: in a statement, before a flush, after it.
    for _ in 0..luck.u32(0..200_000) {
        std::hint::spin_loop();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // What it had told before it died counts as well.
    lines.filter_map(version).last().unwrap_or(told).max(told)
}

async fn killed_again_and_again(address: &str, rounds: usize, seed: u64) {
    let mut luck = fastrand::Rng::with_seed(seed);
    let store = open(address).await;
    for number in 0..2 {
        create(&store, &key(number)).await;
    }
    for round in 0..rounds {
        // Two writers, one of which is killed in each round.
        let other = start("append", address, (round + 1) % 2);
        let victim = start("append", address, round % 2);
        let told = kill_after(victim, luck.u64(1..20), &mut luck);
        check(&store, round % 2, told, seed).await;
        let told = kill_after(other, 1, &mut luck);
        check(&store, (round + 1) % 2, told, seed).await;
    }
    let versions = || async { [get(&store, &key(0)).await.version, get(&store, &key(1)).await.version] };
    loop {
        let before = versions().await;
        let app = store.read_scope(ScopeKey::app("app").unwrap()).await.unwrap();
        // A server may commit what it had got from a process that is gone.
        if versions().await == before {
            let sum: u64 = before.iter().sum();
            return assert_eq!(app.get("app:n").unwrap(), json!(sum), "seed {seed}");
        }
    }
}

/// What was told is there; events, state and version are of one commit.
async fn check(store: &AnyStore, number: usize, told: u64, seed: u64) {
    let session = get(store, &key(number)).await;
    assert!(session.version >= told, "{told} was acknowledged, {} is there; seed {seed}", session.version);
    let versions: Vec<u64> = session.events.iter().map(|committed| committed.version).collect();
    assert_eq!(versions, (1..=session.version).collect::<Vec<_>>(), "seed {seed}");
    let items: Vec<u64> = (0..session.version).collect();
    if session.version > 0 {
        assert_eq!(session.get("n").unwrap(), json!(session.version), "seed {seed}");
        assert_eq!(session.get("list").unwrap(), json!(items), "seed {seed}");
    }
}

#[tokio::test]
async fn sigkill_loses_nothing_over_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    killed_again_and_again(&address_in(folder.path()), 30, 0x5e55).await;
}

#[tokio::test]
async fn sigkill_loses_nothing_over_postgres() {
    let Some(server) = server() else { return };
    killed_again_and_again(&server.database("crashes").await, 8, 0x5e56).await;
}

/// Nothing that was acknowledged is lost with a ring, whose keys are wrapped again meanwhile, by processes that are killed too.
#[tokio::test]
async fn sigkill_loses_nothing_of_a_sealed_store() {
    for (database, rounds) in Database::all().await.into_iter().zip([12, 4]) {
        let folder = tempfile::tempdir().unwrap();
        let ring = folder.path().join("ring.json").display().to_string();
        let address = format!("{}|{ring}", database.address());
        Box::pin(killed_again_and_again(&address, rounds, 0x5e59)).await;
        Box::pin(killed_while_it_rotates(&address, &ring, 10, 0x5e60)).await;
    }
}

async fn killed_while_it_rotates(address: &str, ring: &str, rounds: u64, seed: u64) {
    let mut luck = fastrand::Rng::with_seed(seed);
    let store = open(address).await;
    let mut made = Vec::new();
    for round in 0..rounds {
        let mut child = start("rotate", ring, 0);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let rotated = lines.by_ref().filter(|line| line.contains("rotated"));
        assert!(rotated.take(luck.usize(1..6)).count() > 0, "the child did not rotate");
        // New users get their keys while those of the others are wrapped again.
        for number in 0..3 {
            let key = SessionKey::new("app", format!("user {round} {number}"), "s").unwrap();
            create(&store, &key).await;
            let event = writing("e1", &[("list", json!([key.user.as_str()]))]);
            append(&store, &key, 0, event).await.unwrap();
            made.push(key);
        }
        for _ in 0..luck.u32(0..200_000) {
            std::hint::spin_loop();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let reopened = open(address).await;
        // One of them is erased: no file that the killed process has left has its key.
        let erased: SessionKey = made.pop().unwrap();
        let (app, user) = (erased.app.clone(), erased.user.clone());
        let (id, admin) = (ErasureId::new(user.as_str()).unwrap(), Author::new("admin").unwrap());
        let target = EraseTarget::User { app, user: user.clone() };
        reopened.erase(EraseData::new(id, target, at(9), admin, "by mail")).await.unwrap();
        assert_eq!(files_with(Path::new(ring).parent().unwrap(), user.as_str()), Vec::<String>::new());
        for key in &made {
            let session = get(&reopened, key).await;
            assert_eq!(
                session.get("list").unwrap(),
                json!([key.user.as_str()]),
                "seed {seed}, round {round}"
            );
        }
    }
}

/// Killed while it makes sessions with events and labels, and forks with an event: each is there whole, or not at all.
async fn made_whole_or_not_at_all(address: &str, rounds: usize, seed: u64) {
    let mut luck = fastrand::Rng::with_seed(seed);
    let store = open(address).await;
    for _ in 0..rounds {
        let victim = start("branch", address, 0);
        let process = victim.id();
        let told = kill_after(victim, luck.u64(1..12), &mut luck);
        let list = ListSessions::new("app", "alice").unwrap().limit(10_000);
        let sessions = store.list(list).await.unwrap().sessions;
        let of_process = format!("{process}-");
        let made = sessions.iter().filter(|session| session.key.id.as_str().starts_with(&of_process));
        assert!(made.count() as u64 >= told, "seed {seed}");
        for session in &sessions {
            check_made(&store, session, seed).await;
        }
    }
    let report = store.verify(VerifySessions::all()).await.unwrap();
    assert!(report.faults.is_empty(), "seed {seed}: {:?}", report.faults);
}

async fn check_made(store: &AnyStore, listed: &Session, seed: u64) {
    let key = listed.key.clone();
    let session = get(store, &key).await;
    let versions: Vec<u64> = session.events.iter().map(|committed| committed.version).collect();
    assert_eq!(versions, (1..=session.version).collect::<Vec<_>>(), "{key}, seed {seed}");
    let forks = store.forks(ListForks::new(key.clone())).await.unwrap();
    let labels = store.labels(ReadLabels::new(key.clone())).await.unwrap();
    let labels: Vec<_> = labels.iter().map(|(label, version)| (label.as_str(), *version)).collect();
    let Some(parent) = &session.parent else {
        assert_eq!((session.version, labels), (EVENTS, vec![("end", EVENTS)]), "{key}, seed {seed}");
        assert_eq!(session.get("n").unwrap(), json!(EVENTS), "{key}, seed {seed}");
        assert_eq!(session.get("list").unwrap(), json!((0..EVENTS).collect::<Vec<_>>()));
        for fork in forks {
            get(store, &crate::scenario::key(fork.id)).await;
        }
        return;
    };
    assert_eq!((session.version, forks.len(), labels.len()), (FORKED_AT + 1, 0, 0), "{key}, seed {seed}");
    assert_eq!(session.get("n").unwrap(), json!(FORKED_AT + 100), "{key}, seed {seed}");
    assert_eq!(session.get("list").unwrap(), json!([0, 1, "own"]), "{key}, seed {seed}");
    let of_parent = store.forks(ListForks::new(crate::scenario::key(&parent.id))).await.unwrap();
    assert_eq!(of_parent.iter().filter(|fork| fork.id == key.id).count(), 1, "{key}, seed {seed}");
}

#[tokio::test]
async fn sigkill_leaves_no_half_of_a_fork_or_an_import_over_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    made_whole_or_not_at_all(&address_in(folder.path()), 30, 0x5e57).await;
}

#[tokio::test]
async fn sigkill_leaves_no_half_of_a_fork_or_an_import_over_postgres() {
    let Some(server) = server() else { return };
    made_whole_or_not_at_all(&server.database("branches").await, 30, 0x5e58).await;
}
