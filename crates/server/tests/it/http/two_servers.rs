//! Two servers over one PostgreSQL: send here, follow there, decide there.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use futures_util::future::join_all;
use http::Method;
use serde_json::{Value, json};
use stepfold_runner::Runner;
use stepfold_server::http::Limits;
use stepfold_session_scopes::PostgresStore;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::site::{Site, agent, versions};
use crate::postgres::server;

const SCRIPT: &str = "assistant: > c1 pay()\nassistant: It is paid.\n";

/// A server with a store, and connections, of its own.
async fn site(address: &str) -> Site {
    site_of(address, SCRIPT).await
}

async fn site_of(address: &str, script: &str) -> Site {
    let store = PostgresStore::open(address).await.unwrap();
    let runner = Runner::builder(agent(script, Vec::new()), store).build();
    Site::over(runner, Limits::default()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_sent_here_is_followed_and_decided_there() {
    let Some(server) = server() else { return };
    let address = server.database("two_servers").await;
    let (here, there) = (site(&address).await, site(&address).await);
    assert_eq!(here.post("ada", "/sessions", json!({"id": "s1"})).await.status, 201);
    let mut live = there.live("ada", "s1", None).await;
    let mut all = there.live_from("ada", "/live", None).await;
    assert_eq!(here.post("ada", "/sessions/s1/messages", json!({"text": "pay the bill"})).await.status, 202);
    let told = live.until("waiting").await;
    assert_eq!(versions(&told), [1, 2]);
    let request = told.last().unwrap().data["requests"][0]["id"].as_str().unwrap().to_owned();
    while all.until("session").await.last().unwrap().data["status"] != "waiting" {}

    let decided =
        there.post("ada", "/sessions/s1/decisions", json!({"decisions": {request: "approve"}})).await;
    assert_eq!(decided.status, 202, "{}", decided.text);
    let told = live.until("ended").await;
    // A reader of the first server has the same.
    let mut first = here.live_from("ada", "/sessions/s1/live?after=2", None).await;
    assert_eq!(versions(&first.until("ended").await), versions(&told));
    assert_eq!(here.get("ada", "/sessions/s1/state").await.json()["values"]["spent"], 5);
    // One of them stops, and the other one continues.
    assert!(here.stop().await);
    assert_eq!(there.get("ada", "/sessions/s1").await.json()["unfinished"], false);
}

/// What stands between a server and its database: it is there, or not.
async fn network(address: &str) -> (String, watch::Sender<bool>) {
    let host = address.split('@').nth(1).unwrap().split('/').next().unwrap().to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = address.replace(&host, &listener.local_addr().unwrap().to_string());
    let is_there = watch::Sender::new(true);
    let mut state = is_there.subscribe();
    tokio::spawn(async move {
        while let Ok((mut from, _)) = listener.accept().await {
            if !*state.borrow_and_update() {
                continue;
            }
            let (host, mut state) = (host.clone(), state.clone());
            tokio::spawn(async move {
                let mut to = TcpStream::connect(host).await.unwrap();
                tokio::select! {
                    _ = copy_bidirectional(&mut from, &mut to) => {}
                    _ = state.wait_for(|is_there| !is_there) => {}
                }
            });
        }
    });
    (address, is_there)
}

/// Readers wait, and get what was committed meanwhile: none is sent away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_away_for_a_while_ends_no_stream() {
    let Some(server) = server() else { return };
    let address = server.database("away").await;
    let (cut, is_there) = network(&address).await;
    let (here, there) = (site(&cut).await, site(&address).await);
    for id in ["s1", "s2"] {
        assert_eq!(there.post("ada", "/sessions", json!({"id": id})).await.status, 201);
    }
    let mut live = here.live("ada", "s1", None).await;
    let mut both = here.live_from("ada", "/live?sessions=clerk/s1,clerk/s2", None).await;
    let mut all = here.live_from("ada", "/live", None).await;
    is_there.send_replace(false);
    let refused = here.get("ada", "/sessions/s1").await;
    assert_eq!(refused.status, 503, "{}", refused.text);
    assert_eq!(there.post("ada", "/sessions/s1/messages", json!({"text": "pay the bill"})).await.status, 202);
    while there.get("ada", "/sessions/s1").await.json()["status"] != "waiting" {}
    // tidy: allow sleep, because readers ask again at least once meanwhile.
    tokio::time::sleep(Duration::from_secs(1)).await;
    is_there.send_replace(true);
    assert_eq!(versions(&live.until_version(2).await), [1, 2]);
    assert_eq!(versions(&both.until_version(2).await), [1, 2]);
    while all.until("session").await.last().unwrap().data["status"] != "waiting" {}
}

/// A reader of a session that connects again and again, here or there, and what it was told: the commits of each life.
async fn read(
    sites: &[&Site],
    seed: u64,
    mut newest: watch::Receiver<Option<(String, u64)>>,
) -> Vec<Vec<Value>> {
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut last, mut lives) = (None::<String>, vec![Vec::<Value>::new()]);
    let is_whole = |lives: &[Vec<Value>], newest: &watch::Receiver<Option<(String, u64)>>| {
        let newest = newest.borrow();
        let commit = lives.last().unwrap().last();
        newest.as_ref().is_some_and(|(id, version)| {
            commit.map_or(*version == 0, |row| id_of(row) == *id && row["version"] == *version)
        })
    };
    while !is_whole(&lives, &newest) {
        let site = sites[random.usize(0..sites.len())];
        let path = if last.is_some() { "/sessions/s1/live" } else { "/sessions/s1/live?after=0" };
        let mut live = match site.try_live("ada", path, last.as_deref()).await {
            Ok(live) => live,
            Err(status) => {
                assert_eq!(status, 404, "it is deleted, and not created again yet");
                // tidy: allow sleep, because no event reports its creation.
                tokio::time::sleep(Duration::from_millis(5)).await;
                continue;
            }
        };
        for _ in 0..random.usize(1..12) {
            let told = tokio::select! {
                told = live.next() => told,
                _ = newest.changed() => break,
            };
            let Some(told) = told else { break };
            last = told.id.or(last);
            match told.event.as_str() {
                "committed" => lives.last_mut().unwrap().push(told.data),
                "reset" if told.data["after_version"] == 0 => lives.push(Vec::new()),
                _ => {}
            }
            if is_whole(&lives, &newest) {
                break;
            }
        }
    }
    lives
}

/// Identifies a commit.
fn id_of(row: &Value) -> String {
    format!("{} {} {}", row["kind"], row["invocation"], row["at"])
}

/// The things that people do with a session, which all happen in the test.
const ACTS: [&str; 10] =
    ["create", "message", "decide", "rewind", "edit", "fork", "cancel", "abandon", "resume", "delete"];

/// Does one of them, and returns which one if it was taken.
async fn act(site: &Site, random: &mut fastrand::Rng) -> Option<&'static str> {
    let session = site.get("ada", "/sessions/s1").await;
    if session.status == 404 {
        let created = site.post("ada", "/sessions", json!({"id": "s1"})).await;
        return (created.status == 201).then_some("create");
    }
    let session = session.json();
    let version = session["version"].as_u64().unwrap();
    let (act, reply) = match random.usize(0..25) {
        0..7 => {
            let when_busy = ["wait", "steer", "interrupt", "refuse"][random.usize(0..4)];
            let body = json!({"text": "go", "when_busy": when_busy});
            ("message", site.post("ada", "/sessions/s1/messages", body).await)
        }
        7..14 => {
            let request = session["pending"].as_array().unwrap().first()?["id"].as_str().unwrap().to_owned();
            let decision = if random.bool() { json!("approve") } else { json!({"reject": {"reason": "no"}}) };
            let body = json!({"decisions": {request: decision}});
            ("decide", site.post("ada", "/sessions/s1/decisions", body).await)
        }
        14..16 => {
            let body = json!({"to": random.u64(0..=version), "expected": version});
            ("rewind", site.post("ada", "/sessions/s1/rewind", body).await)
        }
        16 => {
            let body = json!({"set": {"spent": 1}, "expected": version}).to_string();
            ("edit", site.ask("ada", Method::PATCH, "/sessions/s1/state", &[], &body).await)
        }
        17 => {
            let body = json!({"at": random.u64(0..=version)});
            ("fork", site.post("ada", "/sessions/s1/fork", body).await)
        }
        18 => ("cancel", site.post("ada", "/sessions/s1/cancel", json!({})).await),
        19..21 => ("abandon", site.post("ada", "/sessions/s1/abandon", json!({})).await),
        21..23 => ("resume", site.post("ada", "/sessions/s1/resume", json!({})).await),
        _ => ("delete", site.ask("root", Method::DELETE, "/sessions/s1", &[], "").await),
    };
    assert!(!reply.status.is_server_error(), "{act}: {}", reply.text);
    assert_ne!(reply.status, 400, "{act}: {}", reply.text);
    reply.status.is_success().then_some(act)
}

/// Ends what runs or waits, and returns the newest commit: its id and version.
async fn settle(site: &Site) -> (String, u64) {
    loop {
        let session = site.get("ada", "/sessions/s1").await;
        let session = session.json();
        // A message may wait for its turn still; after a rewind for a worker, since no recovery runs here.
        let is_empty = session["running"].is_null() && session["inbox"] == json!([]);
        match session["status"].as_str() {
            None => drop(site.post("ada", "/sessions", json!({"id": "s1"})).await),
            Some("idle") if is_empty => {
                let page = site.get("ada", "/sessions/s1/events?limit=10000").await.json();
                let newest = page["events"].as_array().unwrap().last();
                let id = newest.map(id_of).unwrap_or_default();
                return (id, page["version"].as_u64().unwrap());
            }
            Some("idle") => drop(site.post("ada", "/sessions/s1/resume", json!({})).await),
            Some(_) => drop(site.post("ada", "/sessions/s1/abandon", json!({})).await),
        }
        // tidy: allow sleep, because it may end while it is asked about.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Messages, decisions, rewinds, edits, forks, ends and deletions at both servers at once, while readers of both connect
/// again and again: each has each commit of each life once, in order, and all of the last one. Returns what was done.
async fn check_anything_at_once(sites: [&Site; 2], seed: u64) -> BTreeSet<&'static str> {
    assert_eq!(sites[0].post("ada", "/sessions", json!({"id": "s1"})).await.status, 201);
    let newest = watch::Sender::new(None);
    let readers = (0..6).map(|reader| read(&sites, seed * 100 + reader, newest.subscribe()));
    let people = join_all((0..4).map(|person| async move {
        let (mut random, mut done) = (fastrand::Rng::with_seed(seed * 100 + 50 + person), BTreeSet::new());
        for _ in 0..15 {
            done.extend(act(sites[random.usize(0..2)], &mut random).await);
        }
        done
    }));
    let (told, done) = tokio::join!(join_all(readers), async {
        let done = people.await;
        newest.send_replace(Some(settle(sites[0]).await));
        done
    });
    let page = sites[1].get("ada", "/sessions/s1/events?limit=10000").await.json();
    let stored: Vec<String> = page["events"].as_array().unwrap().iter().map(id_of).collect();
    for lives in told {
        for life in &lives {
            let versions: Vec<u64> = life.iter().map(|row| row["version"].as_u64().unwrap()).collect();
            assert_eq!(versions, (1..=versions.len() as u64).collect::<Vec<_>>(), "seed {seed}");
        }
        let ids: Vec<String> = lives.last().unwrap().iter().map(id_of).collect();
        assert_eq!(ids, stored, "seed {seed}");
    }
    done.into_iter().flatten().collect()
}

/// More than the people of a test use.
fn long_script() -> String {
    (0..400).fold(String::new(), |mut script, number| {
        let _ = writeln!(script, "assistant: > c{number} pay()\nassistant: It is paid.");
        script
    })
}

/// Four rounds, and more until everything that people do was taken at least once.
async fn check_rounds(sites: impl AsyncFn(u64) -> (Site, Site)) {
    let mut done = BTreeSet::new();
    for seed in 0..24 {
        let (here, there) = sites(seed).await;
        done.extend(check_anything_at_once([&here, &there], seed).await);
        if seed >= 3 && done.len() == ACTS.len() {
            return;
        }
    }
    assert_eq!(done, BTreeSet::from(ACTS));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn anything_at_once_at_both_servers_is_told_once_and_in_order() {
    let Some(server) = server() else { return };
    check_rounds(async |seed| {
        let address = server.database(&format!("at_once_{seed}")).await;
        (site_of(&address, &long_script()).await, site_of(&address, &long_script()).await)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn anything_at_once_in_memory_is_told_once_and_in_order() {
    check_rounds(async |_| {
        let here = Site::new(&long_script()).await;
        let there = here.again(&long_script()).await;
        (here, there)
    })
    .await;
}
