//! The live streams of several sessions, and that of all.

use std::collections::BTreeMap;

use http::Method;
use serde_json::{Value, json};
use stepfold_server::http::Limits;

use super::live::waiting_site;
use super::site::{Live, Site, Told};

const TALK: &str =
    "assistant: one\nassistant: two\nassistant: three\nassistant: four\nassistant: five\nassistant: six\n";

async fn site(sessions: usize) -> Site {
    let site = Site::new(TALK).await;
    for number in 1..=sessions {
        assert_eq!(site.post("ada", "/sessions", json!({"id": format!("s{number}")})).await.status, 201);
    }
    site
}

async fn run(site: &Site, session: &str) {
    let run = site.post("ada", &format!("/sessions/{session}/run"), json!({"text": "go"})).await;
    assert_eq!(run.status, 200, "{}", run.text);
}

/// The versions of the commits of each session, in the order in which they were told.
fn versions(all: &[Told]) -> BTreeMap<String, Vec<u64>> {
    let mut versions = BTreeMap::<_, Vec<u64>>::new();
    for told in all.iter().filter(|told| told.event == "committed") {
        assert_eq!(told.data["app"], "clerk");
        let session = told.data["session"].as_str().unwrap().to_owned();
        versions.entry(session).or_default().push(told.version().unwrap());
    }
    versions
}

const BOTH: &str = "/live?sessions=clerk/s1,clerk/s2";

#[tokio::test]
async fn several_sessions_share_a_stream() {
    let site = site(3).await;
    let mut live = site.live_from("ada", BOTH, None).await;
    for _ in 0..2 {
        assert_eq!(live.next().await.unwrap().event, "hello");
    }
    for session in ["s3", "s1", "s2"] {
        run(&site, session).await;
    }
    let mut told = live.until("ended").await;
    told.extend(live.until("ended").await);
    let expected = BTreeMap::from([("s1".to_owned(), vec![1, 2]), ("s2".to_owned(), vec![1, 2])]);
    assert_eq!(versions(&told), expected);
}

/// Names are separated by commas, and may contain some.
#[tokio::test]
async fn a_session_whose_name_has_a_comma_is_followed() {
    let site = site(1).await;
    let name = "100%2C,5";
    assert_eq!(site.post("ada", "/sessions", json!({"id": name})).await.status, 201);
    // As it is written within the list, which is then written as a query.
    let path = "/live?sessions=clerk/s1,clerk/100%25252C%252C5";
    let mut live = site.live_from("ada", path, None).await;
    for expected in ["s1", name] {
        assert_eq!(live.next().await.unwrap().data["session"], expected);
    }
}

/// Unfinished text comes with its session.
#[tokio::test]
async fn unfinished_text_names_its_session() {
    let (site, gate) = waiting_site(Limits::default()).await;
    assert_eq!(site.post("ada", "/sessions", json!({"id": "s2"})).await.status, 201);
    let mut live = site.live_from("ada", BOTH, None).await;
    site.post("ada", "/sessions/s1/messages", json!({"text": "wait"})).await;
    let mut told = live.until("tool_started").await;
    // Who connects again continues where it was, in both.
    let last = told.iter().rev().find_map(|told| told.id.clone());
    let mut again = site.live_from("ada", BOTH, last.as_deref()).await;
    gate.add_permits(1);
    for live in [&mut live, &mut again] {
        let new = live.until("ended").await;
        let texts = || new.iter().filter(|told| told.event == "text");
        assert_eq!(texts().filter_map(|told| told.data["delta"].as_str()).collect::<String>(), "done");
        assert!(texts().all(|told| told.data["session"] == "s1"), "{new:?}");
        told.extend(new);
        assert!(told.iter().all(|told| told.event != "reset"), "{told:?}");
    }
}

/// Cut after each number of events, and continued at one of two processes: each commit of each session once, in order.
#[tokio::test]
async fn a_stream_of_several_is_exact_wherever_it_is_cut() {
    let site = site(2).await;
    for session in ["s1", "s2", "s1", "s2", "s1"] {
        run(&site, session).await;
    }
    let other = site.again("").await;
    let expected =
        BTreeMap::from([("s1".to_owned(), (1..=6).collect()), ("s2".to_owned(), (1..=4).collect())]);
    for cut_after in 3..12 {
        let (mut last, mut told): (Option<String>, Vec<Told>) = (None, Vec::new());
        let mut place = 0;
        while told.iter().filter(|told| told.event == "committed").count() < 10 {
            let site = [&site, &other][place % 2];
            place += 1;
            let path = if last.is_some() { BOTH.to_owned() } else { format!("{BOTH}&after=0,0") };
            let mut live = site.live_from("ada", &path, last.as_deref()).await;
            for _ in 0..cut_after {
                let next = live.next().await.unwrap();
                last = next.id.clone().or(last);
                told.push(next);
                if told.iter().filter(|told| told.event == "committed").count() == 10 {
                    break;
                }
            }
        }
        assert_eq!(versions(&told), expected, "cut after {cut_after}");
    }
}

#[tokio::test]
async fn a_deleted_session_leaves_the_others() {
    let site = site(2).await;
    let mut live = site.live_from("ada", BOTH, None).await;
    assert_eq!(site.ask("root", Method::DELETE, "/sessions/s1", &[], "").await.status, 204);
    let gone = live.until("gone").await.pop().unwrap();
    assert_eq!((&gone.data["session"], &gone.data["reason"]), (&json!("s1"), &json!("deleted")));
    run(&site, "s2").await;
    assert_eq!(versions(&live.until("ended").await)["s2"], [1, 2]);
}

/// A connection after a deletion reports the deleted session, and the others continue.
#[tokio::test]
async fn a_session_that_is_gone_leaves_the_others_at_the_next_connection() {
    let site = site(2).await;
    run(&site, "s2").await;
    assert_eq!(site.ask("root", Method::DELETE, "/sessions/s1", &[], "").await.status, 204);
    let mut live = site.live_from("ada", &format!("{BOTH}&after=,0"), None).await;
    let told = live.until("ended").await;
    let gone = told.iter().find(|told| told.event == "gone").unwrap();
    assert_eq!((&gone.data["session"], &gone.data["reason"]), (&json!("s1"), &json!("deleted")));
    assert_eq!(versions(&told), BTreeMap::from([("s2".to_owned(), vec![1, 2])]));
    // Its id has a place for the one that is gone: created again, it is another session.
    let last = told.iter().rev().find_map(|told| told.id.clone()).unwrap();
    assert_eq!(site.post("ada", "/sessions", json!({"id": "s1"})).await.status, 201);
    run(&site, "s1").await;
    let mut live = site.live_from("ada", BOTH, Some(&last)).await;
    let told = live.until("ended").await;
    assert!(told.iter().any(|told| told.event == "reset" && told.data["session"] == "s1"), "{told:?}");
    assert_eq!(versions(&told)["s1"], [1, 2]);
}

/// What the page does when another tab leads: an id in the query knows the life of its session, and a version does not.
#[tokio::test]
async fn an_id_in_the_query_continues_as_a_reconnection_does() {
    let site = site(1).await;
    run(&site, "s1").await;
    let mut live = site.live_from("ada", "/sessions/s1/live?after=0", None).await;
    let told = live.until("ended").await;
    let last = told.iter().rev().find_map(|told| told.id.clone()).unwrap();
    let paths = [format!("/sessions/s1/live?after={last}"), format!("/live?sessions=clerk/s1&after={last}")];
    run(&site, "s1").await;
    for path in &paths {
        let told = site.live_from("ada", path, None).await.until("ended").await;
        assert_eq!(told.iter().filter_map(Told::version).collect::<Vec<_>>(), [3, 4], "{path}");
    }
    assert_eq!(site.ask("root", Method::DELETE, "/sessions/s1", &[], "").await.status, 204);
    assert_eq!(site.post("ada", "/sessions", json!({"id": "s1"})).await.status, 201);
    run(&site, "s1").await;
    run(&site, "s1").await;
    for path in &paths {
        let told = site.live_from("ada", path, None).await.until("ended").await;
        let reset = told.iter().find(|told| told.event == "reset").unwrap();
        assert_eq!(reset.data["after_version"], 0);
        assert_eq!(told.iter().find_map(Told::version), Some(1), "{path}");
    }
}

#[tokio::test]
async fn what_is_asked_for_is_bounded_and_checked() {
    let site = site(1).await;
    let bearer = site.bearer("ada");
    let many = vec!["clerk/s1"; 33].join(",");
    for (query, last, status) in [
        (many.as_str(), "", 429),
        ("clerk/s9", "", 404),
        ("nobody/s1", "", 404),
        ("s1", "", 400),
        ("clerk/s1&after=1,2", "", 400),
        ("clerk/s1&after=x", "", 400),
        ("clerk/s1&after=-1", "", 400),
        ("clerk/s1&after=1.5", "", 400),
        ("clerk/s1&after=18446744073709551616", "", 400),
        ("clerk/s1", "1.a.1~1.b.1", 400),
        ("clerk/s1", "x", 400),
    ] {
        let mut headers = vec![("authorization", bearer.as_str())];
        headers.extend(Some(("last-event-id", last)).filter(|(_, last)| !last.is_empty()));
        let reply = site.raw(Method::GET, &format!("/api/v1/live?sessions={query}"), &headers, "").await;
        assert_eq!(reply.status, status, "{query}: {}", reply.text);
    }
    // Bob has no such session.
    let bearer = site.bearer("bob");
    let headers = [("authorization", bearer.as_str())];
    let reply = site.raw(Method::GET, "/api/v1/live?sessions=clerk/s1", &headers, "").await;
    assert_eq!(reply.problem(), (404, "unknown_session".to_owned()));
}

/// Reads until a session has this status.
async fn until(live: &mut Live, id: &str, status: &str) -> Value {
    loop {
        let told = live.until("session").await.pop().unwrap();
        if told.data["id"] == id && told.data["status"] == status {
            assert_eq!(told.data["app"], "clerk");
            return told.data;
        }
    }
}

#[tokio::test]
async fn all_sessions_of_a_principal_are_reported() {
    let (site, gate) = waiting_site(Limits::default()).await;
    let mut live = site.live_from("ada", "/live", None).await;
    let mut of_bob = site.live_from("bob", "/live", None).await;
    assert_eq!(live.next().await.unwrap().event, "hello");
    // What is there already.
    assert_eq!(until(&mut live, "s1", "idle").await["version"], 0);
    site.post("ada", "/sessions/s1/messages", json!({"text": "wait"})).await;
    until(&mut live, "s1", "running").await;
    gate.add_permits(1);
    let newest = until(&mut live, "s1", "idle").await;
    assert_eq!(newest["version"], site.get("ada", "/sessions/s1").await.json()["version"]);
    assert_eq!(site.post("ada", "/sessions", json!({"id": "s2"})).await.status, 201);
    until(&mut live, "s2", "idle").await;
    assert_eq!(site.ask("root", Method::DELETE, "/sessions/s2", &[], "").await.status, 204);
    until(&mut live, "s2", "deleted").await;
    // Bob is told of his own.
    assert_eq!(site.post("bob", "/sessions", json!({"id": "b1"})).await.status, 201);
    let first = of_bob.until("session").await.pop().unwrap();
    assert_eq!(first.data["id"], "b1");
}

#[tokio::test]
async fn a_session_that_waits_or_failed_says_so() {
    let site = Site::new("assistant: > c1 pay()\n").await;
    let mut live = site.live_from("ada", "/live", None).await;
    assert_eq!(site.post("ada", "/sessions", json!({"id": "s1"})).await.status, 201);
    run(&site, "s1").await;
    until(&mut live, "s1", "waiting").await;
    let request =
        site.get("ada", "/sessions/s1").await.json()["pending"][0]["id"].as_str().unwrap().to_owned();
    site.post("ada", "/sessions/s1/decisions", json!({"decisions": {request: "approve"}})).await;
    // The script has no more replies.
    until(&mut live, "s1", "failed").await;
}

/// Also over a store without notices of other processes.
#[tokio::test]
async fn sessions_of_another_process_are_reported_once_for_each_change() {
    let here = site(1).await;
    let there = here.again(TALK).await;
    let mut live = here.live_from("ada", "/live", None).await;
    until(&mut live, "s1", "idle").await;
    assert_eq!(there.post("ada", "/sessions", json!({"id": "s2"})).await.status, 201);
    until(&mut live, "s2", "idle").await;
    run(&there, "s2").await;
    while until(&mut live, "s2", "idle").await["version"] != 2 {}
    assert_eq!(there.ask("root", Method::DELETE, "/sessions/s1", &[], "").await.status, 204);
    // Of the one that has not changed nothing is told meanwhile.
    let told = live.until("session").await;
    let told: Vec<_> = told.iter().map(|told| (&told.data["id"], &told.data["status"])).collect();
    assert_eq!(told, [(&json!("s1"), &json!("deleted"))]);
    // Created again, it has the versions that it had.
    assert_eq!(there.ask("root", Method::DELETE, "/sessions/s2", &[], "").await.status, 204);
    assert_eq!(there.post("ada", "/sessions", json!({"id": "s2"})).await.status, 201);
    run(&there, "s2").await;
    while until(&mut live, "s2", "idle").await["version"] != 2 {}
}

/// Streams of one user are told the same, in the same order, and one that comes later begins with it.
#[tokio::test]
async fn many_streams_of_a_user_are_told_the_same() {
    let site = Site::new("").await;
    site.post("ada", "/sessions", json!({"id": "first"})).await;
    let mut streams = Vec::new();
    for _ in 0..30 {
        let mut stream = site.live_from("ada", "/live", None).await;
        assert_eq!(stream.until("session").await.last().unwrap().data["id"], "first");
        streams.push(stream);
    }
    let mut of_bob = site.live_from("bob", "/live", None).await;
    of_bob.until("hello").await;
    for id in ["second", "third"] {
        assert_eq!(site.post("ada", "/sessions", json!({"id": id})).await.status, 201);
    }
    site.ask("root", Method::DELETE, "/sessions/first", &[], "").await;
    let told = async |stream: &mut super::site::Live| {
        let mut all = Vec::new();
        while all.last() != Some(&("first".to_owned(), "deleted".to_owned())) {
            let told = stream.until("session").await.pop().unwrap();
            let text = |name: &str| told.data[name].as_str().unwrap().to_owned();
            all.push((text("id"), text("status")));
            all.dedup();
        }
        all
    };
    let expected = [("second", "idle"), ("third", "idle"), ("first", "deleted")];
    let expected: Vec<_> =
        expected.iter().map(|(id, status)| ((*id).to_owned(), (*status).to_owned())).collect();
    for stream in &mut streams {
        assert_eq!(told(stream).await, expected);
    }
    let mut late = site.live_from("ada", "/live", None).await;
    let mut begins = Vec::new();
    for _ in 0..2 {
        begins.push(late.until("session").await.pop().unwrap().data["id"].as_str().unwrap().to_owned());
    }
    assert_eq!(begins, ["second", "third"]);
    // Another user is told nothing of it.
    site.post("bob", "/sessions", json!({"id": "of bob"})).await;
    assert_eq!(of_bob.until("session").await.last().unwrap().data["id"], "of bob");
}
