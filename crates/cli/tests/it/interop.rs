//! `stepfold mcp` for clients that others wrote. `cargo xtask interop` installs them and says where they are.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::room::Room;

/// Where the command says that a peer is.
#[expect(clippy::disallowed_methods, reason = "cargo xtask interop says it in the environment")]
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
fn installed(variable: &str) -> Option<PathBuf> {
    let found = std::env::var_os(variable).map(PathBuf::from);
    if found.is_none() {
        eprintln!("skipped: {variable} is not set; run `cargo xtask interop`");
    }
    found
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
    client.env("XDG_DATA_HOME", room.path("data")).stdin(Stdio::null());
    let output = client.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"))
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
