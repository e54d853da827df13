//! The live stream of a session: each commit once, in order, whatever happens to the connection.

use std::sync::Arc;

use http::Method;
use serde_json::json;
use stepfold_agent_loop::Agent;
use stepfold_agent_loop::test_kit::Script;
use stepfold_runner::Runner;
use stepfold_server::http::Limits;
use stepfold_session_scopes::{AnyStore, MemoryStore, PruneBound, PruneSession, SessionStore as _};
use stepfold_tools::{Effect, Tool, ToolContext, ToolError};
use tokio::sync::Semaphore;

use super::site::{Site, Told, agent, agent_of, names, versions};

const TALK: &str = "assistant: one\nassistant: two\nassistant: three\n";

async fn site_with_session(script: &str) -> Site {
    let site = Site::new(script).await;
    assert_eq!(site.post("ada", "/sessions", json!({"id": "s1"})).await.status, 201);
    site
}

async fn run(site: &Site, text: &str) {
    let run = site.post("ada", "/sessions/s1/run", json!({"text": text})).await;
    assert_eq!(run.status, 200, "{}", run.text);
}

#[tokio::test]
async fn a_run_is_reported_as_it_happens() {
    let site = site_with_session("assistant: > c1 pay()\nassistant: It is paid.\n").await;
    let mut live = site.live("ada", "s1", None).await;
    let hello = live.next().await.unwrap();
    assert_eq!((hello.event.as_str(), &hello.data["version"]), ("hello", &json!(0)));
    run(&site, "pay the bill").await;
    let told = live.until("waiting").await;
    assert_eq!(versions(&told), [1, 2]);
    let request = told.last().unwrap().data["requests"][0]["id"].as_str().unwrap().to_owned();
    site.post("ada", "/sessions/s1/decisions", json!({"decisions": {&request: "approve"}})).await;
    let told = live.until("ended").await;
    assert_eq!(told.last().unwrap().data["exit"], "text");
    // A reader that comes now is told what is there.
    let hello = site.live("reader", "s1", None).await.next().await.unwrap();
    assert_eq!(hello.data["version"], told.last().unwrap().data["version"]);
}

/// A refused decision starts nothing: readers get its pending request again.
#[tokio::test]
async fn after_a_refused_decision_the_session_waits() {
    let site = site_with_session("assistant: > c1 pay()\nassistant: It is paid.\n").await;
    let mut live = site.live("ada", "s1", None).await;
    run(&site, "pay the bill").await;
    let told = live.until("waiting").await;
    let request = told.last().unwrap().data["requests"][0]["id"].as_str().unwrap().to_owned();
    let modified = json!({"decisions": {&request: {"modify": {"arguments": [1]}}}});
    let unknown = json!({"decisions": {"c7#unknown": "approve"}});
    for decisions in [modified, unknown].iter().cycle().take(40) {
        let refused = site.post("ada", "/sessions/s1/decisions", decisions.clone()).await;
        assert!([409, 422].contains(&refused.status.as_u16()), "{}", refused.text);
        tokio::task::yield_now().await;
    }
    site.post("ada", "/sessions/s1/decisions", json!({"decisions": {&request: "approve"}})).await;
    let told = live.until("ended").await;
    let steps: Vec<&str> = told.iter().map(|told| told.event.as_str()).collect();
    let steps: Vec<&str> = steps.into_iter().filter(|name| ["running", "waiting"].contains(name)).collect();
    assert!(!steps.windows(2).any(|two| two == ["running", "running"]), "{steps:?}");
}

/// A message says what happens to it while a run is at work.
#[tokio::test]
async fn a_message_joins_a_run_interrupts_it_or_is_refused() {
    let (site, gate) = waiting_site(Limits::default()).await;
    let message = |text: &str, when_busy: &str| json!({"text": text, "when_busy": when_busy});
    let mut live = site.live("ada", "s1", None).await;
    let first = site.post("ada", "/sessions/s1/messages", json!({"text": "wait"})).await.json();
    live.until("tool_started").await;
    let refused = site.post("ada", "/sessions/s1/messages", message("now?", "refuse")).await;
    assert_eq!(refused.problem(), (409, "busy".to_owned()));
    let unknown = site.post("ada", "/sessions/s1/messages", message("now?", "never")).await;
    assert_eq!(unknown.status, 400, "{}", unknown.text);
    for _ in 0..2 {
        let headers = [("idempotency-key", "k1")];
        let body = message("shorter", "steer").to_string();
        let joined = site.ask("ada", Method::POST, "/sessions/s1/messages", &headers, &body).await;
        // It has an invocation of its own, whose outcome is that of the run.
        assert_eq!(joined.json()["invocation"], "k1");
    }
    gate.add_permits(1);
    let told = live.until("ended").await;
    let joined = told.iter().find(|told| told.data["kind"] == "steered").expect("it joins the run");
    assert_eq!(joined.data["invocation"], first["invocation"]);
    let run = site.post("ada", "/sessions/s1/run", message("now?", "steer")).await;
    assert_eq!(run.status, 400, "{}", run.text);
}

#[tokio::test]
async fn unfinished_text_comes_before_its_commit() {
    let (site, gate) = waiting_site(Limits::default()).await;
    let mut live = site.live("ada", "s1", None).await;
    site.post("ada", "/sessions/s1/messages", json!({"text": "wait"})).await;
    live.until("tool_started").await;
    // A reader that comes meanwhile is told what is unfinished too.
    let mut late = site.live("reader", "s1", None).await;
    assert_eq!(late.until("tool_started").await[0].event, "hello");
    gate.add_permits(1);
    for live in [&mut live, &mut late] {
        let told = live.until("ended").await;
        let text = told.iter().position(|told| told.event == "text").expect("text");
        let committed = told.iter().rposition(|told| told.event == "committed").unwrap();
        assert!(text < committed, "{:?}", names(&told));
        let deltas = told.iter().filter(|told| told.event == "text");
        assert_eq!(deltas.filter_map(|told| told.data["delta"].as_str()).collect::<String>(), "done");
    }
}

/// Its next commit is that of a call, which takes long.
#[tokio::test]
async fn a_resumed_run_is_reported_before_its_next_commit() {
    let (site, gate) = waiting_site(Limits::default()).await;
    let mut live = site.live("ada", "s1", None).await;
    site.post("ada", "/sessions/s1/messages", json!({"text": "wait"})).await;
    live.until("tool_started").await;
    site.post("ada", "/sessions/s1/fork", json!({"id": "s2", "at": 2})).await;
    let mut forked = site.live("ada", "s2", None).await;
    assert_eq!(forked.next().await.unwrap().event, "hello");
    site.post("ada", "/sessions/s2/resume", json!({})).await;
    let told = forked.until("tool_started").await;
    assert_eq!(names(&told)[0], "running");
    gate.add_permits(2);
    forked.until("ended").await;
}

#[tokio::test]
async fn it_can_begin_anywhere() {
    let site = site_with_session(TALK).await;
    run(&site, "first").await;
    run(&site, "second").await;
    for after in 0..=4_u64 {
        let mut live = site.live_from("ada", &format!("/sessions/s1/live?after={after}"), None).await;
        assert_eq!(live.next().await.unwrap().data["version"], after);
        let told = if after < 4 { live.until_version(4).await } else { Vec::new() };
        assert_eq!(versions(&told), (after + 1..=4).collect::<Vec<_>>());
    }
}

/// Reads a stream that is cut after each event in turn, and connects again, to the site of `places[n % len]`.
async fn read_cut(sites: &[&Site], cut_after: usize, newest: u64) -> Vec<u64> {
    let (mut last, mut seen, mut place): (Option<String>, Vec<u64>, usize) = (None, Vec::new(), 0);
    while seen.last() != Some(&newest) {
        let site = sites[place % sites.len()];
        place += 1;
        let path = if last.is_some() { "/sessions/s1/live" } else { "/sessions/s1/live?after=0" };
        let mut live = site.live_from("ada", path, last.as_deref()).await;
        for _ in 0..cut_after {
            let Told { id, event, data } = live.next().await.unwrap();
            last = id.or(last);
            if event == "committed" {
                seen.push(data["version"].as_u64().unwrap());
            }
            if seen.last() == Some(&newest) {
                break;
            }
        }
    }
    seen
}

#[tokio::test]
async fn a_stream_that_is_cut_anywhere_has_each_commit_once() {
    let site = site_with_session(TALK).await;
    for text in ["first", "second", "third"] {
        run(&site, text).await;
    }
    let other = site.again("").await;
    let all: Vec<u64> = (1..=6).collect();
    for cut_after in 2..9 {
        assert_eq!(read_cut(&[&site], cut_after, 6).await, all, "cut after {cut_after}");
        assert_eq!(
            read_cut(&[&site, &other], cut_after, 6).await,
            all,
            "two processes, cut after {cut_after}"
        );
    }
}

#[tokio::test]
async fn the_place_is_found_again_after_a_restart() {
    let site = site_with_session(TALK).await;
    let mut live = site.live("ada", "s1", None).await;
    run(&site, "first").await;
    let told = live.until("ended").await;
    let last = told.last().unwrap().id.clone().unwrap();
    let next = site.again(TALK).await;
    assert!(site.stop().await);
    let bye = live.until("bye").await;
    assert_eq!(bye.last().unwrap().data["reason"], "shutdown");
    assert!(live.next().await.is_none());

    let mut live = next.live("ada", "s1", Some(&last)).await;
    // What was unfinished is gone, and said so; nothing that was committed is told again.
    assert_eq!(live.next().await.unwrap().event, "reset");
    run(&next, "second").await;
    assert_eq!(versions(&live.until_version(4).await), [3, 4]);
}

#[tokio::test]
async fn a_reader_that_connects_again_in_time_loses_nothing() {
    let site = site_with_session(TALK).await;
    let mut live = site.live("ada", "s1", None).await;
    run(&site, "first").await;
    let told = live.until("ended").await;
    let middle = told.iter().position(|told| told.event == "committed").unwrap();
    let mut again = site.live("ada", "s1", told[middle].id.as_deref()).await;
    let rest = again.until("ended").await;
    assert_eq!(names(&rest), names(&told[middle + 1..]));
}

#[tokio::test]
async fn commits_of_another_process_are_reported() {
    let here = site_with_session("").await;
    let there = here.again("assistant: > c1 pay()\nassistant: It is paid.\n").await;
    let mut live = here.live("ada", "s1", None).await;
    run(&there, "pay the bill").await;
    // It is followed here, and decided here; the model of this process says nothing.
    let told = live.until("waiting").await;
    assert_eq!(versions(&told), [1, 2]);
    let request = told.last().unwrap().data["requests"][0]["id"].as_str().unwrap();
    let decided =
        there.post("ada", "/sessions/s1/decisions", json!({"decisions": {request: "approve"}})).await;
    assert_eq!(decided.status, 202, "{}", decided.text);
    let newest = decided.json()["version"].as_u64().unwrap() + 2;
    assert_eq!(versions(&live.until_version(newest).await), (3..=newest).collect::<Vec<_>>());
}

/// A site whose tool `wait` returns when it is let.
pub(crate) async fn waiting_site(limits: Limits) -> (Site, Arc<Semaphore>) {
    let (gate, wait) = gated();
    let agent = agent("assistant: > c1 wait()\nassistant: done\n", vec![wait]);
    let store = AnyStore::new(MemoryStore::new());
    let site = Site::over(Runner::builder(agent, store).build(), limits).await;
    site.post("ada", "/sessions", json!({"id": "s1"})).await;
    (site, gate)
}

/// A tool that waits until it is let go.
pub(crate) fn gated() -> (Arc<Semaphore>, Tool) {
    let gate = Arc::new(Semaphore::new(0));
    let let_in = Arc::clone(&gate);
    let wait = move || {
        let gate = Arc::clone(&let_in);
        async move {
            gate.acquire().await.unwrap().forget();
            Ok::<_, ToolError>("waited")
        }
    };
    (gate, Tool::new("wait", "Waits.", wait).effect(Effect::Pure).build().unwrap())
}

#[tokio::test]
async fn a_client_that_leaves_cancels_nothing() {
    let (site, gate) = waiting_site(Limits::default()).await;
    let mut live = site.live("ada", "s1", None).await;
    let request = site.post("ada", "/sessions/s1/run", json!({"text": "wait"}));
    // The client is gone when the tool has begun.
    tokio::select! {
        reply = request => panic!("{}", reply.text),
        _ = live.until("tool_started") => {}
    }
    drop(live);
    gate.add_permits(1);
    let mut live = site.live_from("ada", "/sessions/s1/live?after=0", None).await;
    let told = live.until("ended").await;
    assert_eq!(told.last().unwrap().data["exit"], "text");
}

#[tokio::test]
async fn a_run_is_cancelled_on_request_only() {
    let (site, _gate) = waiting_site(Limits::default()).await;
    let mut live = site.live("ada", "s1", None).await;
    let sent = site.post("ada", "/sessions/s1/messages", json!({"text": "wait"})).await;
    live.until("tool_started").await;
    // A message that comes meanwhile can be withdrawn.
    let waits = site.post("ada", "/sessions/s1/messages", json!({"text": "more"})).await.json();
    let message = waits["invocation"].as_str().unwrap();
    let read = site.get("ada", "/sessions/s1").await.json();
    assert_eq!(
        (&read["running"], &read["inbox"][0]["invocation"]),
        (&sent.json()["invocation"], &json!(message))
    );
    assert_eq!((&read["inbox"][0]["text"], &read["inbox"][0]["joins"]), (&json!("more"), &json!(false)));
    let path = format!("/sessions/s1/messages/{message}");
    assert_eq!(site.ask("ada", Method::DELETE, &path, &[], "").await.status, 204);

    let cancelled = site.post("ada", "/sessions/s1/cancel", json!({})).await;
    assert_eq!((cancelled.status.as_u16(), &cancelled.json()["cancelled"]), (202, &json!(true)));
    assert_eq!(live.until("ended").await.last().unwrap().data["exit"], "cancelled");
}

#[tokio::test]
async fn a_deleted_session_ends_its_streams() {
    let site = site_with_session(TALK).await;
    let mut live = site.live("ada", "s1", None).await;
    live.next().await.unwrap();
    assert_eq!(site.ask("root", Method::DELETE, "/sessions/s1", &[], "").await.status, 204);
    assert_eq!(live.until("bye").await.last().unwrap().data["reason"], "deleted");
    assert!(live.next().await.is_none());
}

/// Its versions say nothing about those of the one before, whichever process deleted it and made it again.
#[tokio::test]
async fn a_session_that_is_created_again_is_reported_from_its_beginning() {
    for (commits_before, cut_at) in [(2, 1), (2, 2), (4, 2), (4, 4)] {
        let here = site_with_session(TALK).await;
        for _ in 0..commits_before / 2 {
            run(&here, "first").await;
        }
        let there = here.again(TALK).await;
        let mut open = here.live_from("ada", "/sessions/s1/live?after=0", None).await;
        let last = open.until_version(cut_at).await.pop().unwrap().id;
        if commits_before > cut_at {
            open.until_version(commits_before).await;
        }
        assert_eq!(there.ask("root", Method::DELETE, "/sessions/s1", &[], "").await.status, 204);
        assert_eq!(there.post("ada", "/sessions", json!({"id": "s1"})).await.status, 201);
        run(&there, "of the second").await;
        let told = open.until("bye").await;
        assert_eq!(
            (told.last().unwrap().data["reason"].as_str(), versions(&told)),
            (Some("deleted"), vec![])
        );
        for site in [&here, &there] {
            let mut again = site.live("ada", "s1", last.as_deref()).await;
            let reset = again.next().await.unwrap();
            assert_eq!((reset.event.as_str(), &reset.data["after_version"]), ("reset", &json!(0)));
            assert_eq!(versions(&again.until_version(2).await), [1, 2], "{commits_before}, cut at {cut_at}");
        }
    }
}

/// Text inside of an agent that is a tool has its path, arguments come while they are written, and progress is told.
#[tokio::test]
async fn what_happens_inside_has_its_path() {
    let gate = Arc::new(Semaphore::new(0));
    let let_in = Arc::clone(&gate);
    let look = move |context: ToolContext| {
        let gate = Arc::clone(&let_in);
        async move {
            gate.acquire().await.unwrap().forget();
            context.report(json!({"half": true}));
            Ok::<_, ToolError>("found")
        }
    };
    let look = Tool::new("look", "Looks.", look).effect(Effect::Pure).build().unwrap();
    let expert = Script::parse("assistant: ~\"hm\"   > c9 look()\nassistant: 12 stalls\n").unwrap().whole();
    let expert = Agent::builder(expert).name("expert").tools([look]).build().unwrap();
    let ask = expert.as_tool("ask", "Asks an expert.").build().unwrap();
    let script = Script::parse("assistant: > c1 ask(task=\"how many?\")\nassistant: twelve\n").unwrap();
    let agent = agent_of(script.whole(), vec![ask]);
    let site = Site::over(Runner::builder(agent, MemoryStore::new()).build(), Limits::default()).await;
    site.post("ada", "/sessions", json!({"id": "s1"})).await;
    let mut live = site.live("ada", "s1", None).await;
    site.post("ada", "/sessions/s1/messages", json!({"text": "how many?"})).await;
    // That of the expert, and that of its tool.
    let mut told = live.until("tool_started").await;
    told.extend(live.until("tool_started").await);
    gate.add_permits(1);
    told.extend(live.until("ended").await);
    let find = |event: &str, is_inside: bool| {
        let is_it = |told: &&Told| told.event == event && told.data.get("path").is_some() == is_inside;
        &told.iter().find(is_it).unwrap_or_else(|| panic!("no {event} among {:?}", names(&told))).data
    };
    let path = json!([{"call_id": "c1", "name": "ask", "kind": "tool", "place": 0}]);
    let call = find("call", false);
    assert_eq!((&call["call_id"], &call["tool"]), (&json!("c1"), &json!("ask")));
    assert_eq!(call["delta"], "{\"task\":\"how many?\"}");
    for (event, field, value) in [
        ("reasoning", "delta", json!("hm")),
        ("call", "tool", json!("look")),
        ("tool_started", "call_id", json!("c9")),
        ("progress", "report", json!({"half": true})),
        ("tool_finished", "text", json!("found")),
        ("text", "delta", json!("12 stalls")),
    ] {
        let data = find(event, true);
        assert_eq!((&data[field], &data["path"]), (&value, &path), "{event}");
    }
    assert_eq!(find("text", false)["delta"], "twelve");
    // Commits are whole rows.
    let replied = told.iter().find(|told| told.data["kind"] == "replied").unwrap();
    let events = site.get("ada", "/sessions/s1/events").await.json();
    assert_eq!(replied.data, events["events"][1]);
}

/// What retention has deleted cannot be told; that it was deleted can.
#[tokio::test]
async fn commits_that_retention_deleted_are_a_reset() {
    let site = Site::new("assistant: one\nassistant: two\n").await;
    site.post("ada", "/sessions", json!({"id": "s1"})).await;
    for _ in 0..2 {
        assert_eq!(site.post("ada", "/sessions/s1/run", json!({"text": "go"})).await.status, 200);
    }
    let key = site.runner.key("ada", "s1").unwrap();
    site.runner.store().prune(PruneSession::new(key, PruneBound::Version(2))).await.unwrap();
    let mut live = site.live_from("ada", "/sessions/s1/live?after=0", None).await;
    let told = live.until_version(4).await;
    assert_eq!((names(&told)[1], &told[1].data["after_version"]), ("reset", &json!(2)), "{told:?}");
    assert_eq!(versions(&told), [3, 4]);
}
