//! `stepfold mcp` and `stepfold serve` for clients that others wrote. `cargo xtask interop` installs them and says where they are.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use expect_test::expect_file;
use serde_json::{Value, json};

use crate::chromium::{in_chromium, seen_in_chromium, told};
use crate::installed::installed;
use crate::room::Room;

/// `stepfold serve`, until it is dropped.
struct Served {
    process: Child,
    /// The address, with a slash at its end.
    url: String,
    token: String,
}

impl Served {
    fn start(room: &Room, options: &str) -> Self {
        let mut command =
            room.command(format!("--json serve a.toml --bind 127.0.0.1:0 {options}").trim_end());
        let mut process = command.stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let told: Value = serde_json::from_str(&line).unwrap();
        let url = format!("http://{}/", told["address"].as_str().unwrap());
        Served { process, url, token: told["token"].as_str().unwrap().to_owned() }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// An agent that wants an approval for what it does.
fn clerk() -> Room {
    let agent = r#"
name = "clerk"

[tools.pay]
description = "Pays the bill."
command = { argv = ["echo", "paid"] }
approval = "always"
"#;
    Room::new(agent, "assistant: > c1 pay()\nassistant: It is paid.\nassistant: You are welcome.\n")
}

/// What a client saw of the agent.
fn seen(room: &Room, client: &mut Command) -> Value {
    let server = room.command("mcp a.toml");
    client.arg(server.get_program()).args(server.get_args()).current_dir(room.folder());
    client.env("XDG_DATA_HOME", room.path("data"));
    told(client)
}

fn check(seen: &Value) {
    assert_eq!(seen["tools"], json!(["clerk"]), "{seen}");
    assert_eq!(
        (seen["text"].as_str(), seen["again"].as_str()),
        (Some("It is paid."), Some("You are welcome."))
    );
    let transcript = seen["transcript"].as_str().unwrap();
    assert!(
        transcript.contains("tool c1:   paid") && transcript.ends_with("You are welcome.\n"),
        "{transcript}"
    );
    let progress = seen["progress"].as_array().unwrap();
    assert!(progress.iter().any(|message| message == "calls pay"), "{progress:?}");
    assert!(seen["unknown"].as_str().unwrap().contains("unknown tool `nobody`"), "{seen}");
}

/// A client of the SDK from npm, `v1` or `v2`. Modules are looked for beside the script.
fn npm(version: &str) {
    let Some(node) = installed("STEPFOLD_INTEROP_MCP_CLIENTS") else { return };
    let folder = node.ancestors().nth(4).unwrap();
    let script = folder.join(format!("client-{version}.mjs"));
    std::fs::copy(script_of("client.mjs"), &script).unwrap();
    check(&seen(&clerk(), Command::new(&node).arg(&script).arg(version)));
}

/// The same clients, of `/mcp` of `stepfold serve`.
fn npm_over_http(version: &str) {
    let Some(node) = installed("STEPFOLD_INTEROP_MCP_CLIENTS") else { return };
    let (room, folder) = (clerk(), node.ancestors().nth(4).unwrap());
    let server = Served::start(&room, "");
    let script = folder.join(format!("client-{version}-http.mjs"));
    std::fs::copy(script_of("client.mjs"), &script).unwrap();
    let url = format!("{}mcp", server.url);
    check(&told(Command::new(&node).arg(&script).args([version, &url, &server.token])));
}

fn script_of(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop").join(name)
}

#[test]
fn the_first_sdk_from_npm() {
    npm("v1");
}

#[test]
fn the_second_sdk_from_npm() {
    npm("v2");
}

#[test]
fn the_python_sdk() {
    let Some(python) = installed("STEPFOLD_INTEROP_MCP_PYTHON") else { return };
    let script = script_of("client.py");
    check(&seen(&clerk(), Command::new(&python).arg(OsStr::new(&script))));
}

#[test]
fn the_first_sdk_from_npm_over_http() {
    npm_over_http("v1");
}

#[test]
fn the_second_sdk_from_npm_over_http() {
    npm_over_http("v2");
}

#[test]
fn the_python_sdk_over_http() {
    let Some(python) = installed("STEPFOLD_INTEROP_MCP_PYTHON") else { return };
    let room = clerk();
    let server = Served::start(&room, "");
    let url = format!("{}mcp", server.url);
    check(&told(Command::new(&python).arg(script_of("client.py")).args([&url, &server.token])));
}

#[test]
fn a_client_of_agent2agent() {
    let Some(package) = installed("STEPFOLD_INTEROP_A2A") else { return };
    let room = clerk();
    let server = Served::start(&room, "");
    let script = package.ancestors().nth(3).unwrap().join("a2a.mjs");
    std::fs::copy(script_of("a2a.mjs"), &script).unwrap();
    let seen = told(Command::new("node").arg(&script).args([&server.url, &server.token]));
    let expected = json!({
        "card": "clerk",
        "asked": "TASK_STATE_INPUT_REQUIRED",
        "again": true,
        "question": "pay",
        "approved": ["task", "artifactUpdate It is paid.", "statusUpdate TASK_STATE_COMPLETED"],
        "thanks": ["task", "artifactUpdate You are welcome.", "statusUpdate TASK_STATE_COMPLETED"],
        "got": ["TASK_STATE_COMPLETED", ["It is paid."]],
        "listed": ["TASK_STATE_COMPLETED", "TASK_STATE_COMPLETED"],
        "cancel": "TaskNotCancelableError",
        "unknown": "TaskNotFoundError",
        "push": "PushNotificationNotSupportedError",
    });
    assert_eq!(seen, expected, "{seen}");
}

/// An agent with state, for pages and clients that show it.
fn counter(script: &str) -> Room {
    let agent = r#"
name = "clerk"

[state.paid]
type = "integer"

[state.note]
type = "string"

[tools.pay]
description = "Pays the bill."
command = { argv = ["cat"], output = "json" }
approval = "always"
parameters = { properties = { euro = { type = "integer" } } }
outputs_to_state = { paid = { source = "euro" } }
"#;
    Room::new(agent, script)
}

#[test]
fn the_python_client_of_adk() {
    let Some(python) = installed("STEPFOLD_INTEROP_ADK") else { return };
    let room = counter(
        "assistant: > c1 pay(euro=5)\nassistant: It is paid.\nassistant: > c2 pay(euro=6)\nassistant: As you wish.\n\
         assistant: > c3 pay(euro=7)\nassistant: Less.\n",
    );
    let server = Served::start(&room, "");
    let seen = told(Command::new(&python).arg(script_of("adk.py")).args([&server.url, &server.token]));
    let expected = json!({
        "version": "2.13.0",
        "title": "the bill",
        "calls": ["pay", "adk_request_confirmation"],
        "waits": true,
        "responses": [{"euro": 5}],
        "text": "It is paid.",
        "state": {"paid": 5},
        "rejected": "As you wish.",
        "modified": {"paid": 1},
        "authors": ["user", "clerk", "clerk", "clerk", "user", "clerk", "clerk", "clerk", "user", "clerk", "clerk", "clerk"],
        "ids": true,
        "stored": {"__session_metadata__": {"displayName": "pay the bill"}, "paid": 1},
        "written": "late",
        "gone": 404,
    });
    assert_eq!(seen, expected, "{seen}");
}

/// An address of images that must never be requested, and the number of its requests.
fn spy() -> (String, Arc<AtomicUsize>) {
    let spy = TcpListener::bind("127.0.0.1:0").unwrap();
    let leak = format!("http://{}/?leak", spy.local_addr().unwrap());
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    std::thread::spawn(move || {
        for _ in spy.incoming() {
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    (leak, asked)
}

/// An agent that asks for two approvals, and whose last reply has markup with the addresses of images.
fn leaking(leak: &str) -> Room {
    counter(&format!(
        "assistant: > c1 pay(euro=5)\nassistant: It is paid.\nassistant: > c2 pay(euro=6)\nassistant: As you wish.\n\
         assistant: Look here. ![]({leak}=1) <img src=\"{leak}=2\">\n"
    ))
}

/// The page of the wheel in Chromium. Text of the model names an address of images: none is requested.
#[test]
fn the_page_of_adk() {
    let (Some(python), Some(mut page)) =
        (installed("STEPFOLD_INTEROP_ADK"), in_chromium(&script_of("adk_web.cjs")))
    else {
        return;
    };
    let (leak, asked) = spy();
    let room = leaking(&leak);
    let wheel = "import google.adk.cli as cli; print(cli.__path__[0] + '/browser')";
    let folder = Command::new(&python).args(["-c", wheel]).output().unwrap();
    let folder = String::from_utf8(folder.stdout).unwrap();
    let server = Served::start(&room, &format!("--adk-web '{}'", folder.trim()));
    let seen = told(page.args([&server.url, &server.token]));
    let images = seen["images"].as_u64().unwrap();
    assert!(images > 0, "the page shows images, so that the policy has something to stop: {seen}");
    let expected = json!({
        "login": 204,
        "state": "paid: 5",
        "images": images,
        "dialog": 0,
        "sessions": ["pay the bill"],
    });
    assert_eq!(seen, expected, "{seen}");
    assert_eq!(asked.load(Ordering::Relaxed), 0, "requests to another host");
}

/// assistant-ui over AG-UI, in a page of its own.
#[test]
fn the_page_of_assistant_ui() {
    let (Some(modules), Some(mut page)) =
        (installed("STEPFOLD_INTEROP_REACT_AG_UI"), in_chromium(&script_of("react_ag_ui.cjs")))
    else {
        return;
    };
    let (leak, asked) = spy();
    let room = leaking(&leak);
    let server = Served::start(&room, "");
    let seen = told(page.args([&server.url, &server.token]).arg(&modules));
    let expected = json!({
        "foreign": [],
        "errors": [],
        "asked": [r#"pay {"euro":5} open"#],
        "paid": [r#"pay {"euro":5} {"euro":5}"#],
        "state": r#"{"paid":5}"#,
        "rejected": r#"pay {"euro":6} "tool 'pay' not run: the call was rejected: too dear""#,
        "interrupts": 0,
        "images": 0,
        "texts": ["pay the bill", "It is paid.", "and once more", "As you wish.", "show me", "Look here. !["],
        "title": "chat",
    });
    assert_eq!(seen, expected, "{seen}");
    assert_eq!(asked.load(Ordering::Relaxed), 0, "requests to another host");
}

/// What a script saw of the studio in Chromium; none if it cannot be run here.
fn studio(script: &str) -> Option<Value> {
    let mut page = in_chromium(&script_of(script))?;
    let room = Room::new("", "");
    Some(seen_in_chromium(page.current_dir(room.folder()).arg(env!("CARGO_BIN_EXE_stepfold"))))
}

/// Each thing that the studio can do, done once, as a person would. Text of the model that names images fetches none.
#[test]
fn the_studio() {
    let Some(seen) = studio("studio.cjs") else { return };
    expect_file!["../interop/studio.json"].assert_eq(&format!("{seen:#}\n"));
}

/// A new session, and a graph that is lit while it runs.
#[test]
fn the_studio_with_a_graph() {
    let Some(seen) = studio("studio_graph.cjs") else { return };
    assert_eq!(seen, json!({"state": "open"}), "{seen:#}");
}

/// Drawings fit: graphs with long names, runs inside of runs, many calls at once, failures with their reason first, a phone.
#[test]
fn the_studio_where_much_is_drawn() {
    let Some(seen) = studio("studio_drawn.cjs") else { return };
    expect_file!["../interop/studio_drawn.json"].assert_eq(&format!("{seen:#}\n"));
}

/// Focus after decisions, dialogs and menus; addresses that cannot be read, and those of nothing.
#[test]
fn the_studio_keeps_the_focus_and_reads_any_address() {
    let Some(seen) = studio("studio_focus.cjs") else { return };
    expect_file!["../interop/studio_focus.json"].assert_eq(&format!("{seen:#}\n"));
}

/// Forks that wait or run, names of forks, addresses back and forth, origins of shared values, words for people.
#[test]
fn the_studio_with_forks_and_ways_back() {
    let Some(seen) = studio("studio_ways.cjs") else { return };
    expect_file!["../interop/studio_ways.json"].assert_eq(&format!("{seen:#}\n"));
}

/// Markdown; scripts from right to left; a message, a value and a result of a megabyte, read whole; a model's view of 20,000 messages.
#[test]
fn the_studio_with_long_and_foreign_texts() {
    let Some(seen) = studio("studio_texts.cjs") else { return };
    expect_file!["../interop/studio_texts.json"].assert_eq(&format!("{seen:#}\n"));
}

/// Calls that were tried more than once, in the timeline, in the tab of a step, and as the model was told.
#[test]
fn the_studio_with_attempts() {
    let Some(seen) = studio("studio_rows.cjs") else { return };
    expect_file!["../interop/studio_rows.json"].assert_eq(&format!("{seen:#}\n"));
}

/// Experiments of more cases than are shown at once: how many are left is said, and a click shows them.
#[test]
fn the_studio_with_many_cases() {
    let Some(seen) = studio("studio_experiments.cjs") else { return };
    let steps = [
        "500 rows: 350 more cases. 400 more results, of cases that are not read yet. Show more",
        "1000 rows: 50 more cases. Show more",
        "1050 rows: all",
    ];
    assert_eq!((&seen["steps"], &seen["names"]), (&json!(steps), &json!(1050)), "{seen:#}");
}

/// A turn becomes a case of a data set, once and by its name, and who may only read has no button for it.
#[test]
fn the_studio_with_a_turn_for_a_data_set() {
    let Some(seen) = studio("studio_cases.cjs") else { return };
    expect_file!["../interop/studio_cases.json"].assert_eq(&format!("{seen:#}\n"));
}

/// A session as a file, as a test, and from a file; one whose record is invalid; two notes at once.
#[test]
fn the_studio_with_files() {
    let Some(seen) = studio("studio_files.cjs") else { return };
    assert_eq!(
        seen,
        json!({"test": true, "same_version": true, "replay": "row-5 true", "barriers": []}),
        "{seen:#}"
    );
}

/// Numbers that JavaScript changes: shown, approved, edited, written, forked, imported, each digit as it was.
#[test]
fn the_studio_with_numbers() {
    let Some(seen) = studio("studio_numbers.cjs") else { return };
    expect_file!["../interop/studio_numbers.json"].assert_eq(&format!("{seen:#}\n"));
}

/// Hostile calls, alone and together: every field, nothing that hides, nothing approved unread.
#[test]
fn the_studio_with_hostile_approvals() {
    let Some(seen) = studio("studio_approvals.cjs") else { return };
    expect_file!["../interop/studio_approvals.json"].assert_eq(&format!("{seen:#}\n"));
}

/// Seven tabs with one stream of sessions and one of their list; no network for a while; a server that is killed while the page is open: nothing is lost.
#[test]
fn the_studio_while_things_go_wrong() {
    let Some(seen) = studio("studio_live.cjs") else { return };
    let expected = json!({
        "streams_of_two": 2,
        "streams_of_seven": 2,
        "streams_of_six": 2,
        "questions": 2,
        "questions_then": 3,
        "deleted": 204,
        "is_back": false,
        "rows_are_all": true,
    });
    assert_eq!(seen, expected, "{seen:#}");
}

/// No barriers on any view; by keys alone; over a slow link; of many commits those in sight; what a screen reader is told.
#[test]
fn the_studio_for_everybody() {
    let Some(seen) = studio("studio_access.cjs") else { return };
    expect_file!["../interop/studio_access.json"].assert_eq(&format!("{seen:#}\n"));
}

/// The types of its modules, and its shapes of the API against the document of the server.
#[test]
fn the_types_of_the_studio() {
    let Some(packages) = installed("STEPFOLD_INTEROP_TYPESCRIPT") else { return };
    let room = clerk();
    let server = Served::start(&room, "");
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../server/page");
    let mut check = Command::new("node");
    check.current_dir(room.folder()).arg(script_of("studio_types.cjs")).arg(&packages).arg(page);
    let seen = told(check.arg(script_of("")).args([&server.url, &server.token]));
    assert_eq!(seen, json!({"wrong": []}), "{seen:#}");
}

/// The analyst of the examples, with the server where it is installed in place of the one that `uvx` would fetch.
#[test]
fn the_analyst_with_a_server_that_others_wrote() {
    let Some(python) = installed("STEPFOLD_INTEROP_MCP_SQLITE") else { return };
    let agents = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/agents");
    let file = std::fs::read_to_string(agents.join("analyst_mcp.toml")).unwrap();
    let fetched = r#""uvx", "--with", "mcp<2", "mcp-server-sqlite==2025.4.25""#;
    assert!(file.contains(fetched), "{file}");
    let there = format!("{:?}", python.with_file_name("mcp-server-sqlite").display().to_string());
    let room = Room::new("", &std::fs::read_to_string(agents.join("analyst_mcp.script")).unwrap());
    room.write("a.toml", &file.replace(fetched, &there));
    let make = "import sqlite3; base = sqlite3.connect('time_zones.sqlite'); base.execute('create table zones (name)'); \
                base.execute(\"insert into zones values ('Europe/Rome')\"); base.commit()";
    assert!(Command::new(&python).args(["-c", make]).current_dir(room.folder()).status().unwrap().success());
    let said = room.say("run a.toml --model script:a.script 'How many zones are there?' --json", "");
    assert!(said.contains("[{'zones': 1}]") && said.contains("I have counted them."), "{said}");
}
