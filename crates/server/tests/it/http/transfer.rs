//! Sessions as files: exported, imported, and as tests that pass.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use stepfold_runner::{RecoverOptions, Runner};
use stepfold_server::http::Limits;
use stepfold_session_scopes::{MemoryStore, SessionSchema};
use stepfold_state_core::state::{Schema, SchemaBuilder};
use stepfold_tools::{Effect, Tool, ToolContext, ToolError, Toolset};

use super::site::{Site, agent};

const BILL: &str = "assistant: > c1 pay()\nassistant: It is paid.\nassistant: Five euro.\n";

/// A session with a paid bill, a turn that was rewound, another one after it, and a label.
async fn site() -> Site {
    let site = Site::new(BILL).await;
    let values = json!({"spent": 2, "user:name": "Ada"});
    site.post("ada", "/sessions", json!({"id": "s1", "values": values})).await;
    let run = site.post("ada", "/sessions/s1/run", json!({"text": "pay the \"bill\""})).await.json();
    let request = run["pending"][0]["id"].as_str().unwrap_or_else(|| panic!("{run}"));
    let mut live = site.live("ada", "s1", None).await;
    site.post("ada", "/sessions/s1/decisions", json!({"decisions": {request: "approve"}})).await;
    live.until("ended").await;
    let version = site.get("ada", "/sessions/s1").await.json()["version"].as_u64().unwrap();
    site.post("ada", "/sessions/s1/run", json!({"text": "how mush?"})).await;
    let newest = site.get("ada", "/sessions/s1").await.json()["version"].as_u64().unwrap();
    let back = site.post("ada", "/sessions/s1/rewind", json!({"to": version, "expected": newest})).await;
    assert_eq!(back.status, 200, "{}", back.text);
    site.post("ada", "/sessions/s1/run", json!({"text": "how much?"})).await;
    let label = json!({"version": version}).to_string();
    site.ask("ada", Method::PUT, "/sessions/s1/labels/paid", &[], &label).await;
    site
}

async fn export(site: &Site, session: &str) -> Value {
    let reply = site.get("reader", &format!("/sessions/{session}/export")).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    assert_eq!(reply.headers["content-disposition"], format!("attachment; filename=\"{session}.json\""));
    reply.json()
}

#[tokio::test]
async fn an_import_is_the_session_with_a_life_of_its_own() {
    let site = site().await;
    let exported = export(&site, "s1").await;
    // Another server with the same agent.
    let other = Site::new(BILL).await;
    let imported = other.post("ada", "/import?id=s2", exported.clone()).await;
    assert_eq!(imported.status, 201, "{}", imported.text);
    assert_eq!(imported.headers["location"], "/api/v1/apps/clerk/sessions/s2");
    let again = export(&other, "s2").await;
    for field in ["app", "version", "first", "values", "events", "labels"] {
        assert_eq!(again[field], exported[field], "{field}");
    }
    assert_eq!((&exported["shared"]["user:name"], &again["shared"]), (&json!("Ada"), &json!({})));
    let replay = other.post("ada", "/sessions/s2/replay", json!({})).await.json();
    assert_eq!(replay["same"], true, "{replay}");
    // It continues, and back, by itself.
    let version = exported["version"].as_u64().unwrap();
    let forked = other.post("root", "/sessions/s2/fork", json!({"id": "s3", "at": version - 1})).await;
    assert_eq!(forked.status, 201, "{}", forked.text);
    assert_eq!(other.post("ada", "/import?id=s2", exported).await.problem(), (409, "exists".to_owned()));
}

#[tokio::test]
async fn what_does_not_add_up_is_refused_and_nothing_is_stored() {
    let site = site().await;
    let good = export(&site, "s1").await;
    let with = |change: fn(&mut Value)| {
        let mut changed = good.clone();
        change(&mut changed);
        changed
    };
    let wrong = [
        with(|export| export["format"] = json!("other")),
        with(|export| export["format_version"] = json!(2)),
        with(|export| export["oldest"] = json!(1)),
        with(|export| export["version"] = json!(3)),
        with(|export| export["values"]["spent"] = json!(8)),
        with(|export| export["first"]["spent"] = json!("many")),
        with(|export| export["first"]["user:name"] = json!("Eve")),
        with(|export| export["events"][1]["version"] = json!(1)),
        with(|export| export["events"][1]["id"] = export["events"][0]["id"].clone()),
        with(|export| export["events"][1]["body"] = json!("nothing")),
        with(|export| drop(export["events"].as_array_mut().unwrap().remove(2))),
        with(|export| export["labels"][0]["version"] = json!(99)),
        with(|export| {
            let label = export["labels"][0].clone();
            export["labels"].as_array_mut().unwrap().push(label);
        }),
        with(|export| export["unknown"] = json!(1)),
        json!({}),
    ];
    let other = Site::new(BILL).await;
    for (place, export) in wrong.into_iter().enumerate() {
        let refused = other.post("ada", "/import?id=s2", export).await;
        assert_eq!(refused.problem(), (400, "invalid".to_owned()), "{place}: {}", refused.text);
        assert_eq!(other.get("ada", "/sessions/s2").await.status, 404, "{place}");
    }
    let mut limits = Limits::default();
    limits.import = 1_000;
    let runner = Runner::builder(agent(BILL, Vec::new()), MemoryStore::new()).build();
    let small = Site::over(runner, limits).await;
    assert_eq!(small.post("ada", "/import", good).await.problem(), (413, "too_large".to_owned()));
}

/// Another version of the agent reads an export as it reads the stored session: by migrations, and with the defaults of later
/// keys. Without a migration it reads neither.
#[tokio::test]
async fn an_export_of_an_earlier_schema_is_imported_where_the_session_is_read() {
    let exported = export(&site().await, "s1").await;
    let spent = exported["values"]["spent"].as_u64().unwrap();
    assert_eq!((&exported["first"]["spent"], spent), (&json!(2), 7));
    let declared = |builder: SchemaBuilder| builder.key::<String>("user:name").key::<String>("app:motto");
    let as_text = declared(Schema::builder().key::<String>("spent"));
    let with_default = as_text.key::<Vec<u64>>("areas").default(json!([3])).build().unwrap();
    let stored = |schema: &Schema| SessionSchema::new(schema.clone());
    let migrated = stored(&with_default).migration("spent", |old| Ok(json!(format!("{old} euro"))));
    for (schema, is_read) in [(migrated, true), (stored(&with_default), false)] {
        let agent =
            agent(&format!("{BILL}assistant: Fine.\n"), Vec::new()).to_builder().tools(Toolset::default());
        let agent = agent.schema(schema.schema().clone()).build().unwrap();
        let runner = Runner::builder(agent, MemoryStore::new()).schema(schema).build();
        let other = Site::over(runner, Limits::default()).await;
        let imported = other.post("ada", "/import?id=s2", exported.clone()).await;
        if is_read {
            assert_eq!(imported.status, 201, "{}", imported.text);
            let state = other.runner.find_session("ada", "s2").await.unwrap().unwrap().state().await.unwrap();
            assert_eq!(state.get("spent").unwrap(), json!(format!("{spent} euro")));
            assert_eq!(state.get("areas").unwrap(), json!([3]));
            let run = other.post("ada", "/sessions/s2/run", json!({"text": "more"})).await;
            assert_eq!(run.status, 200, "{}", run.text);
        } else {
            assert_eq!(imported.problem(), (400, "invalid".to_owned()));
            assert!(imported.text.contains("spent"), "{}", imported.text);
            assert_eq!(other.get("ada", "/sessions/s2").await.status, 404);
        }
    }
}

/// A note says that the content is gone: an import with both keeps the note only, or nothing could erase the content.
#[tokio::test]
async fn content_beside_a_note_of_erasure_is_not_imported() {
    let site = site().await;
    let mut export = export(&site, "s1").await;
    let note = json!({"id": "e1", "at": 0, "by": "admin", "reason": "asked for by mail"});
    export["events"][0]["body"]["erased"] = note.clone();
    assert!(export["events"][0].to_string().contains("the \\\"bill"), "{}", export["events"][0]);
    let other = Site::new(BILL).await;
    let imported = other.post("ada", "/import?id=s2", export).await;
    assert_eq!(imported.status, 201, "{}", imported.text);
    let again = self::export(&other, "s2").await;
    let first = &again["events"][0];
    assert_eq!(first["body"]["erased"], note);
    assert!(!first.to_string().contains("bill") && first["body"].get("record").is_none(), "{first}");
}

/// A run that continues does what its record says, and a file may say anything: that calls have ended, what they wrote, and
/// what hooks have said.
#[tokio::test]
async fn a_run_that_has_not_ended_is_imported_by_administrators_only() {
    let site = Site::new(BILL).await;
    site.post("ada", "/sessions", json!({"id": "s1"})).await;
    site.post("ada", "/sessions/s1/run", json!({"text": "pay"})).await;
    let good = export(&site, "s1").await;
    let forged = |key: &str, kind: &str| {
        let delta = json!([{"key": key, "handler": "replace_values", "value": "mine"}]);
        let result = json!({"call_id": "c1", "name": "pay", "value": {"euro": 5}});
        let outcome = json!({"result": result, "delta": delta});
        let answered = json!({"answered": [{"place": 0, "outcome": outcome}]});
        let kind_of_run = match kind {
            "answered" => answered,
            "replied" => json!({"replied": {"fates": [[0, {"answer": outcome}]]}}),
            "hooked" => json!({"hooked": {"point": "before_tool", "writes": [[0, delta]]}}),
            "failed" => json!({"unknown": {}}),
            _ => json!({"inner": {"place": 0, "event": {"step": 1, "kind": answered}}}),
        };
        let mut export = good.clone();
        let last = export["events"][1].clone();
        let invocation = last["id"].as_str().unwrap().split('.').next().unwrap();
        let record = json!(["stepfold.run", 1, {"step": 1, "kind": kind_of_run}]);
        let body = json!({"v": 1, "author": "clerk", "kind": kind, "record": record});
        let added = json!({"version": 3, "id": format!("{invocation}.x"), "at": last["at"], "body": body});
        export["events"].as_array_mut().unwrap().push(added);
        export["version"] = json!(3);
        export
    };
    for kind in ["answered", "replied", "hooked", "inner", "failed"] {
        for key in ["app:motto", "spent"] {
            let id = format!("{kind}-{key}");
            let import =
                async |user: &str| site.post(user, &format!("/import?id={id}"), forged(key, kind)).await;
            let refused = import("ada").await;
            assert_eq!(refused.problem(), (403, "forbidden".to_owned()), "{id}: {}", refused.text);
            assert!(refused.text.contains("end or abandon the run"), "{}", refused.text);
            assert_eq!(site.get("ada", &format!("/sessions/{id}")).await.status, 404, "{id}");
            assert_eq!(import("root").await.status, 201, "{id}");
        }
    }
    assert_eq!(site.post("ada", "/import", good).await.problem().0, 403, "one that waits");
}

/// A run that waits for an outcome is continued when its deadline has passed, though no worker has driven it in this store.
#[tokio::test]
async fn the_deadline_of_an_imported_run_passes() {
    let site = async || {
        let taxi = async |context: ToolContext| {
            let taxi = context.later("taxi").message("a taxi").within(Duration::from_millis(1));
            taxi.outcome()
        };
        let taxi = Tool::new("taxi", "Orders a taxi.", taxi).effect(Effect::Idempotent).build().unwrap();
        let agent = agent("assistant: > c1 taxi()\nassistant: none came\n", vec![taxi]);
        Site::over(Runner::builder(agent, MemoryStore::new()).build(), Limits::default()).await
    };
    let (here, there) = (site().await, site().await);
    here.post("ada", "/sessions", json!({"id": "s1"})).await;
    let waits = here.post("ada", "/sessions/s1/run", json!({"text": "a taxi"})).await;
    assert_eq!(waits.json()["pending"][0]["reason"], "later", "{}", waits.text);
    let imported = there.post("root", "/import?id=s2", export(&here, "s1").await).await;
    assert_eq!(imported.status, 201, "{}", imported.text);
    // tidy: allow sleep, because the deadline is a time.
    tokio::time::sleep(Duration::from_millis(2)).await;
    there.runner.recover(RecoverOptions::new().once()).await.unwrap();
    let session = there.runner.find_session("ada", "s2").await.unwrap().unwrap();
    assert!(session.unfinished().await.unwrap().is_none());
    let said = session.last_run().await.unwrap().unwrap().transcript().to_string();
    assert!(said.contains("its deadline has passed") && said.contains("none came"), "{said}");
}

/// A file says which calls a model has made. A fork would open its run again, so that they are run.
#[tokio::test]
async fn no_file_runs_a_call_that_no_model_has_made() {
    let wiped = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&wiped);
    let wipe = move || {
        let count = Arc::clone(&count);
        async move { Ok::<_, ToolError>(json!(count.fetch_add(1, Ordering::SeqCst))) }
    };
    let wipe = Tool::new("wipe", "Wipes.", wipe).effect(Effect::AtMostOnce).build().unwrap();
    let look = Tool::new("look", "Looks.", async || Ok::<_, ToolError>(json!(1))).build().unwrap();
    let agent = agent("assistant: > c1 look()\nassistant: seen\nassistant: more\n", vec![wipe, look]);
    let site = Site::over(Runner::builder(agent, MemoryStore::new()).build(), Limits::default()).await;
    site.post("ada", "/sessions", json!({"id": "s1"})).await;
    assert_eq!(site.post("ada", "/sessions/s1/run", json!({"text": "look"})).await.status, 200);
    let mut whole = export(&site, "s1").await;
    let events = whole["events"].as_array_mut().unwrap();
    let replied = events.iter().position(|event| event["body"]["kind"] == "replied").unwrap();
    let forged = events[replied]["body"].to_string().replace("look", "wipe");
    events[replied]["body"] = serde_json::from_str(&forged).unwrap();
    let replied = replied + 1;
    let mut cut = whole.clone();
    cut["events"].as_array_mut().unwrap().truncate(replied);
    cut["version"] = json!(replied);
    assert_eq!(site.post("ada", "/import", cut).await.problem(), (403, "forbidden".to_owned()));

    let last = whole["version"].clone();
    assert_eq!(site.post("ada", "/import?id=s2", whole).await.status, 201);
    for (id, changes) in [("f1", json!({})), ("f2", json!({"set": {"spent": 1}}))] {
        let mut body = json!({"id": id, "at": replied});
        body.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        let refused = site.post("ada", "/sessions/s2/fork", body).await;
        assert_eq!(refused.problem(), (403, "forbidden".to_owned()), "{}", refused.text);
        assert!(refused.text.contains("fork before the run has begun"), "{}", refused.text);
    }
    // At its end nothing is open, and a fork of the fork has the same history.
    assert_eq!(site.post("ada", "/sessions/s2/fork", json!({"id": "f3", "at": last})).await.status, 201);
    let again = site.post("ada", "/sessions/f3/fork", json!({"id": "f4", "at": replied})).await;
    assert_eq!(again.problem(), (403, "forbidden".to_owned()));
    // A run that a rewind goes back into does not continue.
    let back = site.post("ada", "/sessions/s2/rewind", json!({"to": replied, "expected": last})).await;
    assert_eq!(back.status, 200, "{}", back.text);
    let resumed = site.post("ada", "/sessions/s2/resume", json!({})).await;
    assert_eq!(resumed.problem(), (409, "nothing_to_resume".to_owned()), "{}", resumed.text);
    assert_eq!(wiped.load(Ordering::SeqCst), 0);
    // An administrator answers for the file; and a session of the server's own is forked as before.
    assert_eq!(site.post("root", "/sessions/f3/fork", json!({"id": "f5", "at": replied})).await.status, 201);
    let mut live = site.live("ada", "f5", None).await;
    assert_eq!(site.post("ada", "/sessions/f5/resume", json!({})).await.status, 202);
    live.until("ended").await;
    assert_eq!(wiped.load(Ordering::SeqCst), 1);
    assert_eq!(site.post("ada", "/sessions/s1/fork", json!({"at": replied})).await.status, 201);
}

/// What a file says of authors and decisions is what the file says.
#[tokio::test]
async fn an_imported_session_says_who_imported_it() {
    let site = site().await;
    let mut exported = export(&site, "s1").await;
    // A mark of its own counts for nothing.
    exported["events"][0]["body"]["metadata"]["imported"] = json!({"by": "root", "at": "then", "version": 1});
    assert_eq!(site.post("ada", "/import?id=s2", exported.clone()).await.json()["imported"]["by"], "ada");
    site.post("ada", "/sessions/s2/rewind", json!({"to": 0, "expected": exported["version"]})).await;
    let whole = json!({"id": "s3", "at": exported["version"]});
    assert_eq!(site.post("ada", "/sessions/s2/fork", whole).await.status, 201);
    let list = site.get("ada", "/sessions").await.json();
    for id in ["s1", "s2", "s3"] {
        let row = list["sessions"].as_array().unwrap().iter().find(|row| row["id"] == id).unwrap();
        let detail = site.get("reader", &format!("/sessions/{id}")).await.json();
        assert_eq!(row["imported"], detail["imported"]);
        match id {
            "s1" => assert_eq!(row.get("imported"), None),
            _ => assert_eq!(
                (&row["imported"]["by"], &row["imported"]["version"]),
                (&json!("ada"), &exported["version"])
            ),
        }
    }
    assert!(!export(&site, "s2").await.to_string().contains("\"imported\""), "a file is as it was");
}

/// What an import does not use is not read: it may nest deeper than a value can.
#[tokio::test]
async fn shared_values_of_a_file_are_passed_over() {
    let site = site().await;
    let exported = export(&site, "s1").await;
    let deep = format!("{{\"x\":{}1{}}}", "[".repeat(500), "]".repeat(500));
    let text =
        exported.to_string().replace("\"shared\":{\"user:name\":\"Ada\"}", &format!("\"shared\":{deep}"));
    assert!(text.contains(&deep));
    let imported = site.ask("ada", Method::POST, "/import?id=s2", &[], &text).await;
    assert_eq!(imported.status, 201, "{}", imported.text);
}

/// The test that a session is exported as, with its agent beside it.
mod exported {
    mod stepfold {
        pub(super) use {
            stepfold_agent_loop as agent_loop, stepfold_runner as runner,
            stepfold_session_scopes as session_scopes,
        };
    }

    fn agent(model: Script) -> stepfold::agent_loop::Agent {
        super::super::site::agent_of(model, Vec::new())
    }

    include!("exported_session.txt");
}

/// The file above is what is exported, so that it passes is tested by itself.
#[tokio::test]
async fn an_exported_test_is_one_that_passes() {
    let site = site().await;
    let reply = site.get("reader", "/sessions/s1/export?as=test").await;
    assert_eq!(
        (reply.status.as_u16(), &reply.headers["content-type"]),
        (200, &"text/x-rust; charset=utf-8".parse().unwrap())
    );
    expect_test::expect_file!["exported_session.txt"].assert_eq(&reply.text);
    site.post("ada", "/sessions", json!({"id": "empty"})).await;
    let refused = site.get("reader", "/sessions/empty/export?as=test").await;
    assert_eq!(refused.problem(), (409, "no_test".to_owned()));
}
