//! What rows of commits say, which call gave a value, and changes from outside.

use http::Method;
use serde_json::{Value, json};
use stepfold_agent_loop::{HookAction, HookContext};
use stepfold_runner::Runner;
use stepfold_server::http::Limits;
use stepfold_session_scopes::MemoryStore;
use stepfold_tools::{Tool, ToolError};

use super::site::{Site, agent};

const TWO: &str = "assistant: > c1 pay() > c2 pay()\nassistant: > c3 pay()\nassistant: It is paid.\n";

/// A session with two paid bills, and a third that waits.
async fn site_with_bills() -> Site {
    let site = Site::new(TWO).await;
    site.post("ada", "/sessions", json!({"id": "s1", "values": {"spent": 2}})).await;
    let run = site.post("ada", "/sessions/s1/run", json!({"text": "pay the bills"})).await.json();
    let mut live = site.live("ada", "s1", None).await;
    let decisions: serde_json::Map<String, Value> = run["pending"]
        .as_array()
        .unwrap()
        .iter()
        .map(|request| (request["id"].as_str().unwrap().to_owned(), json!("approve")))
        .collect();
    assert_eq!(decisions.len(), 2, "{run}");
    let decided = site.post("ada", "/sessions/s1/decisions", json!({"decisions": decisions})).await;
    assert_eq!(decided.status, 202, "{}", decided.text);
    live.until("waiting").await;
    site
}

async fn rows(site: &Site, query: &str) -> Vec<Value> {
    let page = site.get("reader", &format!("/sessions/s1/events{query}")).await.json();
    page["events"].as_array().unwrap_or_else(|| panic!("{page}")).clone()
}

fn of_kind<'a>(rows: &'a [Value], kind: &str) -> Vec<&'a Value> {
    rows.iter().filter(|row| row["kind"] == kind).collect()
}

#[tokio::test]
async fn a_commit_says_what_it_is_about() {
    let site = site_with_bills().await;
    let all = rows(&site, "").await;
    let replied = of_kind(&all, "replied");
    assert_eq!(replied[0]["calls"][1], json!({"id": "c2", "name": "pay", "arguments": {}}));
    assert_eq!(replied[0]["asked"][0]["call"]["id"], "c1", "{}", replied[0]);
    let decided = of_kind(&all, "decided")[0];
    assert_eq!(
        (&decided["decided_by"], &decided["decisions"][1]["decision"]),
        (&json!("ada"), &json!("approve"))
    );
    let mut outcomes: Vec<&Value> =
        of_kind(&all, "answered").iter().flat_map(|row| row["outcomes"].as_array().unwrap()).collect();
    outcomes.sort_by_key(|outcome| outcome["call_id"].to_string());
    assert_eq!(
        outcomes[1],
        &json!({
            "call_id": "c2", "name": "pay", "kind": "tool", "status": "done", "result": {"euro": 5},
            "attempts": 1, "wrote": ["spent"],
        })
    );
}

#[tokio::test]
async fn pages_name_what_stands_before_them_and_brief_ones_leave_out_what_is_long() {
    let site = site_with_bills().await;
    let all = rows(&site, "").await;
    for row in &all {
        let version = row["version"].as_u64().unwrap();
        // Of whatever page, a row is the same; only the time since the one before is unknown for the first.
        let single = site.get("reader", &format!("/sessions/s1/events/{version}")).await.json();
        assert_eq!(single, *row);
        let page = rows(&site, &format!("?after={}&limit=1", version - 1)).await;
        assert_eq!(page, std::slice::from_ref(row));
        let around = rows(&site, &format!("?around={version}&limit=3")).await;
        assert!(around.contains(row), "{around:?}");
        let brief = rows(&site, &format!("?after={}&limit=1&brief=true", version - 1)).await.remove(0);
        for field in ["version", "kind", "step", "usage", "visible", "decided_by", "path", "latency_us"] {
            assert_eq!(brief[field], row[field], "{field}");
        }
        assert_eq!(brief["messages"], json!([]));
        assert!(
            brief["asked"].as_array().is_none_or(|asked| asked.iter().all(|it| it.get("message").is_none()))
        );
        for (short, long) in [("calls", "arguments"), ("outcomes", "result")] {
            let (short, full) = (brief[short].as_array(), row[short].as_array());
            let mut full = full.cloned();
            full.iter_mut().flatten().for_each(|item| drop(item.as_object_mut().unwrap().remove(long)));
            let mut short = short.cloned();
            short.iter_mut().flatten().for_each(|item| drop(item.as_object_mut().unwrap().remove(long)));
            assert_eq!(short, full);
        }
    }
    let unknown = site.get("reader", "/sessions/s1/events/99").await;
    assert_eq!(unknown.problem(), (404, "unknown_version".to_owned()));
}

async fn spent_at(site: &Site, version: u64) -> Value {
    site.get("reader", &format!("/sessions/s1/state?at={version}")).await.json()["values"]["spent"].clone()
}

#[tokio::test]
async fn each_value_names_the_call_that_gave_it() {
    let site = site_with_bills().await;
    let all = rows(&site, "").await;
    let newest = all.last().unwrap()["version"].as_u64().unwrap();
    // The fold of the written values is the state, at each version.
    let created = site.get("reader", "/sessions/s1/state?at=0").await.json();
    let mut spent = created["values"]["spent"].as_u64().unwrap();
    for row in &all {
        for write in row["writes"].as_array().unwrap().iter().filter(|write| write["key"] == "spent") {
            let value = write["value"].as_u64().unwrap();
            spent = if write["handler"] == "sum" { spent + value } else { value };
        }
        let state = site.get("reader", &format!("/sessions/s1/state?at={}", row["version"])).await.json();
        assert_eq!(state["values"]["spent"].as_u64().unwrap_or(0), spent, "{row}");
    }
    assert_eq!(spent, 12);
    let blame = site.get("reader", "/sessions/s1/blame?key=spent").await.json();
    let writes = blame["writes"].as_array().unwrap();
    let by: Vec<&Value> = writes.iter().map(|write| &write["call_id"]).collect();
    assert_eq!(by, [&json!("c1"), &json!("c2")], "{blame}");
    // The values before and after are those of the state before the commit and at it; a commit may have several writes.
    for (place, write) in writes.iter().enumerate() {
        let version = write["version"].as_u64().unwrap();
        let is_of = |write: Option<&Value>| write.is_some_and(|write| write["version"] == version);
        let earlier = place.checked_sub(1).and_then(|place| writes.get(place));
        match is_of(earlier) {
            true => assert_eq!(write["before"], earlier.unwrap()["after"]),
            false => assert_eq!(write["before"], spent_at(&site, version - 1).await),
        }
        if !is_of(writes.get(place + 1)) {
            assert_eq!(write["after"], spent_at(&site, version).await);
        }
    }
    let origin = site.get("reader", "/sessions/s1/state?origin=true").await.json();
    let last = &origin["origin"]["spent"];
    assert_eq!((&last["writes"], &last["call_id"], &last["tool"]), (&json!(2), &json!("c2"), &json!("pay")));
    assert_eq!(last["version"], writes[1]["version"]);
    let before = format!("/sessions/s1/blame?key=spent&at={}", writes[0]["version"].as_u64().unwrap() - 1);
    assert_eq!(site.get("reader", &before).await.json()["writes"], json!([]));
    assert!(newest > 4);
}

#[tokio::test]
async fn a_paused_run_is_edited_once_at_the_version_that_was_seen() {
    let site = site_with_bills().await;
    let version = site.get("ada", "/sessions/s1").await.json()["version"].as_u64().unwrap();
    let edit = |path: &'static str, body: Value, key: &'static str| {
        let site = &site;
        let headers = [("idempotency-key", key)];
        async move {
            site.ask("ada", Method::PATCH, &format!("/sessions/s1/{path}"), &headers, &body.to_string()).await
        }
    };
    let set = json!({"set": {"spent": 1}, "expected": version});
    let first = edit("state", set.clone(), "e1").await;
    assert_eq!(
        (first.status.as_u16(), first.json()["version"].as_u64()),
        (200, Some(version + 1)),
        "{}",
        first.text
    );
    // The answer was lost.
    assert_eq!(edit("state", set, "e1").await.json(), first.json());
    let late = edit("state", json!({"set": {"spent": 9}, "expected": version}), "e2").await;
    assert_eq!(late.problem(), (409, "conflict".to_owned()));
    let results =
        edit("results", json!({"results": {"c1": {"euro": 4}}, "expected": version + 1}), "e3").await;
    assert_eq!(results.status, 200, "{}", results.text);
    let all = rows(&site, "").await;
    let edited = of_kind(&all, "edited");
    assert_eq!(edited[0]["decided_by"], "ada");
    assert_eq!(edited[1]["edited"]["results"], json!({"c1": {"euro": 4}}));
    assert_eq!(site.get("ada", "/sessions/s1/state").await.json()["values"]["spent"], 1);
    let shared = edit("state", json!({"set": {"app:motto": "x"}, "expected": version + 2}), "e4").await;
    assert_eq!(shared.status, 403);
}

#[tokio::test]
async fn a_fork_with_changes_has_them_or_is_not_there() {
    let site = site_with_bills().await;
    let fork = json!({"id": "s2", "set": {"spent": 40}, "results": {"c1": "refused"}});
    let forked = site.post("ada", "/sessions/s1/fork", fork).await;
    assert_eq!(forked.status, 201, "{}", forked.text);
    assert_eq!(site.get("ada", "/sessions/s2/state").await.json()["values"]["spent"], 40);
    assert_eq!(site.get("ada", "/sessions/s1/state").await.json()["values"]["spent"], 12);
    let wrong = site.post("ada", "/sessions/s1/fork", json!({"id": "s3", "set": {"spent": "many"}})).await;
    assert!(wrong.status.is_client_error(), "{}", wrong.text);
    // A call that waits for a decision is decided about with other arguments.
    let decided =
        site.post("ada", "/sessions/s1/fork", json!({"id": "s3", "arguments": {"c3": {"euro": 1}}}));
    assert_eq!(decided.await.problem(), (422, "edit".to_owned()));
    assert_eq!(site.get("ada", "/sessions/s3").await.status, 404);
}

#[tokio::test]
async fn sessions_are_found_by_what_they_do_and_how_they_began() {
    let site = site_with_bills().await;
    site.post("ada", "/sessions", json!({"id": "quiet"})).await;
    let list = |query: &'static str| {
        let site = &site;
        async move {
            let page = site.get("reader", &format!("/sessions{query}")).await.json();
            let row = |row: &Value| (row["id"].clone(), row["status"].clone(), row["title"].clone());
            page["sessions"].as_array().unwrap().iter().map(row).collect::<Vec<_>>()
        }
    };
    let bills = (json!("s1"), json!("waiting"), json!("pay the bills"));
    assert_eq!(list("?q=BILLS").await, std::slice::from_ref(&bills));
    assert_eq!(list("?status=waiting").await, [bills]);
    assert_eq!(list("?status=idle").await, [(json!("quiet"), json!("idle"), Value::Null)]);
    let me =
        site.raw(Method::GET, "/api/v1/me", &[("authorization", &site.bearer("reader"))], "").await.json();
    assert_eq!(me, json!({"user": "ada", "name": "reader", "role": "read"}));
}

#[tokio::test]
async fn what_two_sessions_share_stands_side_by_side() {
    let site = Site::new("assistant: Yes.\nassistant: Yes.\nassistant: Yes.\n").await;
    site.post("ada", "/sessions", json!({"id": "s1"})).await;
    site.post("ada", "/sessions/s1/run", json!({"text": "one?"})).await;
    assert_eq!(site.post("ada", "/sessions/s1/fork", json!({"id": "s2"})).await.status, 201);
    site.post("ada", "/sessions/s1/run", json!({"text": "two?"})).await;
    site.post("ada", "/sessions/s2/run", json!({"text": "three?"})).await;
    site.post("ada", "/sessions/s2/run", json!({"text": "two?"})).await;
    let found = site.get("reader", "/sessions/s1/compare?with=s2").await.json();
    let row = |left: Option<u64>, right: u64, same: bool| match left {
        Some(left) => json!({"left": left, "right": right, "same": same}),
        None => json!({"right": right, "same": same}),
    };
    let common = found["common"].as_u64().unwrap();
    let expected = json!([
        row(None, common + 1, false),
        row(None, common + 2, false),
        row(Some(common + 1), common + 3, true),
        row(Some(common + 2), common + 4, true),
    ]);
    assert_eq!(found["aligned"], expected, "{found}");
}

/// A fork inside of a step, and a rewind into one: what is open there has its names.
#[tokio::test]
async fn an_open_step_has_its_names_after_a_fork_and_after_a_rewind() {
    let site = site_with_bills().await;
    let all = rows(&site, "").await;
    let decided = of_kind(&all, "decided")[0]["version"].as_u64().unwrap();
    // Inside of the step, before its outcomes.
    site.post("ada", "/sessions/s1/fork", json!({"id": "s2", "at": decided})).await;
    let compared = site.get("reader", "/sessions/s1/compare?with=s2").await.json();
    let left = compared["left"].as_array().unwrap();
    let named: Vec<&Value> =
        of_kind(left, "answered").iter().flat_map(|row| row["outcomes"].as_array().unwrap()).collect();
    assert!(named.len() == 2 && named.iter().all(|outcome| outcome["name"] == "pay"), "{compared}");

    // Back into the first step: what is written then is not that of the rewound call.
    let version = all.last().unwrap()["version"].as_u64().unwrap();
    let rewound = site.post("ada", "/sessions/s1/rewind", json!({"to": decided, "expected": version})).await;
    assert_eq!(rewound.status, 200, "{}", rewound.text);
    let edited = json!({"set": {"spent": 3}, "expected": version + 1}).to_string();
    site.ask("ada", Method::PATCH, "/sessions/s1/state", &[], &edited).await;
    let blame = site.get("reader", "/sessions/s1/blame?key=spent").await.json();
    assert!(
        blame["writes"].as_array().unwrap().iter().all(|write| write.get("call_id").is_none()),
        "{blame}"
    );
    let origin = site.get("reader", "/sessions/s1/state?origin=true").await.json();
    assert!(origin["origin"]["spent"].get("call_id").is_none(), "{origin}");
    // The lane that was rewound keeps its own names.
    let after = rows(&site, "").await;
    for (before, after) in all.iter().zip(&after) {
        assert_eq!((&before["outcomes"], &before["calls"]), (&after["outcomes"], &after["calls"]));
    }
}

/// A hook that writes, and one that answers a call in its place.
#[tokio::test]
async fn a_commit_says_what_hooks_did() {
    let hooked = agent("assistant: > c1 pay()\nassistant: I may not.\n", Vec::new())
        .to_builder()
        .before_run(
            |context: HookContext| async move { HookAction::proceed().write(&context, "spent", 1_u64) },
        )
        .before_tool(|_| async { Ok(HookAction::proceed().with_answer("no payments today")) })
        .build()
        .unwrap();
    let site = Site::over(Runner::builder(hooked, MemoryStore::new()).build(), Limits::default()).await;
    site.post("ada", "/sessions", json!({"id": "s1"})).await;
    let run = site.post("ada", "/sessions/s1/run", json!({"text": "pay"})).await.json();
    if let Some(request) = run["pending"][0]["id"].as_str() {
        let mut live = site.live("ada", "s1", None).await;
        site.post("ada", "/sessions/s1/decisions", json!({"decisions": {request: "approve"}})).await;
        live.until("ended").await;
    }
    let all = rows(&site, "").await;
    let hooks: Vec<&Value> = all.iter().filter(|row| row["hook"].is_object()).collect();
    assert_eq!(hooks[0]["hook"], json!({"point": "before the run", "verdict": "proceed"}), "{hooks:?}");
    assert_eq!(hooks[0]["writes"][0]["key"], "spent");
    let item =
        json!({"call_id": "c1", "name": "pay", "kind": "tool", "place": 0, "result": "no payments today"});
    let expected = json!({"point": "before a tool", "verdict": "proceed", "answers": [item]});
    assert_eq!(hooks[1]["hook"], expected);
}

/// The cause is in the row that records the failure, in brief rows too.
#[tokio::test]
async fn a_run_that_failed_says_why() {
    let site = Site::new("").await;
    site.post("ada", "/sessions", json!({"id": "s1"})).await;
    site.post("ada", "/sessions/s1/run", json!({"text": "go"})).await;
    for query in ["", "?brief=true"] {
        let all = rows(&site, query).await;
        let why = of_kind(&all, "failed")[0]["failure"].as_str().unwrap();
        assert!(why.contains("script"), "{why}");
    }
}

/// With another agent, a call has another outcome: the replay names the commit.
#[tokio::test]
async fn a_replay_says_which_commit_differs() {
    let site = Site::new("assistant: > c1 look()\nassistant: I cannot.\n").await;
    site.post("ada", "/sessions", json!({"id": "s1"})).await;
    site.post("ada", "/sessions/s1/run", json!({"text": "look"})).await;
    let same = site.post("ada", "/sessions/s1/replay", json!({})).await.json();
    assert_eq!((&same["same"], &same["version"]), (&json!(true), &Value::Null), "{same}");

    let look = Tool::new("look", "Looks.", async || Ok::<_, ToolError>(json!({}))).build().unwrap();
    let runner = Runner::builder(agent("", vec![look]), site.runner.store().clone()).build();
    let other = Site::over(runner, Limits::default()).await;
    let replayed = other.post("ada", "/sessions/s1/replay", json!({})).await.json();
    let all = rows(&site, "").await;
    let answered = of_kind(&all, "answered")[0];
    assert_eq!(replayed["same"], false, "{replayed}");
    assert_eq!(
        (&replayed["version"], &replayed["invocation"]),
        (&answered["version"], &answered["invocation"]),
        "{replayed}"
    );
}
