//! Processes that are killed while they write: what was acknowledged is there, and nothing is half there.

use std::io::{BufRead, BufReader};
use std::process::Child;

use serde_json::json;
use stepfold_session_scopes::{AnyStore, ScopeKey, SessionStore};

use crate::children::start;
use crate::scenario::{address_in, create, get, key, open};
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
    let (first, second) = (get(&store, &key(0)).await, get(&store, &key(1)).await);
    let app = store.read_scope(ScopeKey::app("app").unwrap()).await.unwrap();
    assert_eq!(app.get("app:n").unwrap(), json!(first.version + second.version), "seed {seed}");
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
