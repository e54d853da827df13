//! Recall over the sessions of a user: what was said elsewhere is found, and nothing of others.

use serde_json::{Value, json};
use stepfold_runner::agent_loop::Agent;
use stepfold_runner::agent_loop::test_kit::Script;
use stepfold_runner::session_scopes::{AnyStore, GetSession, MemoryStore, SessionStore as _, SqliteStore};
use stepfold_runner::{Runner, SessionRecall};

const FEE: &str = "The fee of the bakery is 5 euro.";

fn runner(store: &AnyStore, script: &str) -> Runner {
    let recall = SessionRecall::over(store.clone());
    let agent = Agent::builder(Script::parse(script).unwrap()).tools(recall.toolset().unwrap());
    Runner::builder(agent.build().unwrap(), store.clone()).app("notes").unwrap().build()
}

/// The result of the call that a session's only turn makes.
async fn called(store: &AnyStore, user: &str, session: &str, call: &str) -> Value {
    // A script counts the replies that it is shown.
    let before = if session == "monday" { "assistant: noted\n" } else { "" };
    let runner = runner(store, &format!("{before}assistant: > c1 {call}\nassistant: done"));
    let outcome = runner.session(user, session).await.unwrap().run("what was it?").await.unwrap();
    let text = outcome.transcript().iter().rev().find_map(|message| message.tool_result()).unwrap().text();
    serde_json::from_str(&text).unwrap_or_else(|_| json!(text))
}

/// Runs a test in time that passes: a call that waits for a thread of SQLite would run into its timeout otherwise.
fn wait(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}

fn each_store(test: impl AsyncFn(AnyStore)) {
    wait(test(AnyStore::new(MemoryStore::new())));
    let folder = tempfile::tempdir().unwrap();
    wait(test(AnyStore::new(SqliteStore::open(folder.path().join("sessions.db")).unwrap())));
}

#[test]
fn another_session_of_the_user_is_found_and_read() {
    each_store(async |store| {
        runner(&store, "assistant: noted").session("ada", "monday").await.unwrap().run(FEE).await.unwrap();
        let found = called(&store, "ada", "tuesday", "recall_sessions(query=\"bakery fees\")").await;
        let found = &found["found"][0];
        assert_eq!(found["session"], "monday");
        assert_eq!((&found["of"], &found["excerpt"]), (&json!("user"), &json!(FEE)));
        let read = format!(
            "recall_session_read(session=\"monday\", version={}, message={}, from=4, characters=3)",
            found["version"], found["message"]
        );
        let read = called(&store, "ada", "wednesday", &read).await;
        assert_eq!(read, json!({"of": "user", "characters": 32, "text": "fee", "next": 7}));
    });
}

#[test]
fn nothing_of_another_user_or_of_the_session_itself_is_found() {
    each_store(async |store| {
        let monday = runner(&store, "assistant: noted").session("ada", "monday").await.unwrap();
        monday.run(FEE).await.unwrap();
        let version = store.get(GetSession::new(monday.key().clone())).await.unwrap().version;
        assert!(version > 1);
        let search = "recall_sessions(query=\"bakery\")";
        assert_eq!(called(&store, "bob", "tuesday", search).await["found"], json!([]));
        assert_eq!(called(&store, "ada", "monday", search).await["found"], json!([]));
        for version in 1..=version {
            let read = format!("recall_session_read(session=\"monday\", version={version})");
            let read = called(&store, "bob", &format!("read {version}"), &read).await;
            let expected = format!("no message 0 at version {version} of a conversation \"monday\"");
            assert!(read.to_string().contains(&expected.replace('"', "\\\"")), "{read}");
        }
        // Results of searches are not found by searches.
        assert_eq!(called(&store, "ada", "t1", search).await["found"].as_array().unwrap().len(), 1);
        let found = called(&store, "ada", "t2", search).await;
        let sessions: Vec<&Value> =
            found["found"].as_array().unwrap().iter().map(|found| &found["session"]).collect();
        assert_eq!(sessions, ["monday"]);
    });
}

#[test]
fn a_rewound_message_is_not_found_and_a_search_is_replayed_without_a_store() {
    each_store(async |store| {
        let monday = runner(&store, "assistant: noted").session("ada", "monday").await.unwrap();
        monday.run(FEE).await.unwrap();
        let script = "assistant: > c1 recall_sessions(query=\"bakery\")\nassistant: done";
        let asking = runner(&store, script);
        let tuesday = asking.session("ada", "tuesday").await.unwrap();
        let outcome = tuesday.run("what was it?").await.unwrap();
        monday.rewind(0).await.unwrap();
        let gone = called(&store, "ada", "wednesday", "recall_sessions(query=\"bakery\")").await;
        assert_eq!(gone["found"], json!([]));
        // The outcome of the earlier call stays as it was.
        let stored = store.get(GetSession::new(tuesday.key().clone())).await.unwrap().transcript();
        assert_eq!(stored.to_string(), outcome.transcript().to_string());
        assert!(stored.to_string().contains("5 euro"));
    });
}

#[test]
fn without_a_store_or_a_session_a_call_fails() {
    wait(async {
        let store = AnyStore::new(MemoryStore::new());
        let recall = SessionRecall::unconnected();
        let script = "assistant: > c1 recall_sessions(query=\"bakery\")\nassistant: done";
        let agent = || {
            let tools = recall.toolset().unwrap();
            Agent::builder(Script::parse(script).unwrap()).tools(tools).build().unwrap()
        };
        let run = async |session: &str| {
            let runner = Runner::builder(agent(), store.clone()).app("notes").unwrap().build();
            let session = runner.session("ada", session).await.unwrap();
            session.run("what was it?").await.unwrap().transcript().to_string()
        };
        assert!(run("s").await.contains("no store is connected"));
        assert!(recall.connect(store.clone()));
        assert!(!recall.connect(AnyStore::new(MemoryStore::new())));
        assert!(run("t").await.contains("no message of an earlier conversation"));
    });
}
