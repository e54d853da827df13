//! Servers of tools in agent files: a small one is this binary, started again.

use std::fs;
use std::io::{self, BufRead as _, Write as _};
use std::process::Command;

use expect_test::expect;
use serde_json::{Value, json};

use crate::room::Room;

/// What the tool of the server says of itself.
const DESCRIPTION: &str = "STEPFOLD_TEST_DESCRIPTION";
/// A description beside which there are tools that cannot be offered.
const ODD: &str = "Orders oddly.";
/// The file that the server writes to when its input ends.
const ENDED: &str = "STEPFOLD_TEST_ENDED";

/// An agent with one server, whose model calls `shop_order` once.
fn room(more: &str, description: &str) -> Room {
    let room = Room::new("", "user: tea\nassistant: > c1 shop_order(what=\"tea\")\nassistant: Ordered.\n");
    write_agent(&room, more, description);
    room
}

fn write_agent(room: &Room, more: &str, description: &str) {
    let this = std::env::current_exe().unwrap();
    let ended = room.path("ended");
    room.write(
        "a.toml",
        &format!(
            r#"model = "script:a.script"

[mcp.shop]
{more}

[mcp.shop.command]
argv = ["{}", "--exact", "mcp::serves", "--nocapture"]
env = {{ {DESCRIPTION} = "{description}", {ENDED} = "{}" }}
"#,
            this.display(),
            ended.display()
        ),
    );
}

/// The server, where this binary is started as one. Otherwise there is nothing to see.
#[test]
#[expect(clippy::disallowed_methods, reason = "this is how a parent says what it wants")]
fn serves() {
    let Ok(description) = std::env::var(DESCRIPTION) else { return };
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let message: Value = serde_json::from_str(&line.unwrap()).unwrap();
        let id = &message["id"];
        let answer = match message["method"].as_str().unwrap_or_default() {
            "initialize" => json!({"result": {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}, "resources": {}, "prompts": {}},
                "serverInfo": {"name": "shop", "version": "1"},
            }}),
            "resources/list" => json!({"result": {"resources": [
                {"uri": "shop://prices", "name": "prices", "description": "What tea costs.", "mimeType": "text/plain"},
            ]}}),
            "resources/read" => json!({"result": {"contents": [{"uri": "shop://prices", "text": "tea: 3"}]}}),
            "prompts/list" => json!({"result": {"prompts": [
                {"name": "greet", "arguments": [{"name": "who", "required": true}, {"name": "how"}]},
            ]}}),
            "prompts/get" => json!({"result": {"messages": [
                {"role": "user", "content": {"type": "text", "text": message["params"]["arguments"]["who"]}},
            ]}}),
            "tools/list" => {
                let mut tools = json!([{
                    "name": "order",
                    "description": description,
                    "inputSchema": {"type": "object", "properties": {"what": {"type": "string"}}},
                }]);
                if description == ODD {
                    let odd =
                        json!([{"name": "list", "inputSchema": {"type": "array"}}, {"inputSchema": {}}]);
                    tools.as_array_mut().unwrap().extend(odd.as_array().unwrap().iter().cloned());
                }
                json!({"result": {"tools": tools}})
            }
            "tools/call" => {
                wait_at_the_gate();
                json!({"result": {"content": [{"type": "text", "text": "one tea"}]}})
            }
            _ => json!({"error": {"code": -32601, "message": "unknown method"}}),
        };
        if !id.is_null() {
            let mut answer = answer;
            answer["jsonrpc"] = json!("2.0");
            answer["id"] = id.clone();
            writeln!(out, "{answer}").unwrap();
            out.flush().unwrap();
        }
    }
    fs::write(std::env::var(ENDED).unwrap(), "politely").unwrap();
    std::process::exit(0);
}

/// Where a test has made a gate, a call is noted, and waits until the test opens it.
#[expect(clippy::disallowed_methods, reason = "this is how a parent says what it wants")]
fn wait_at_the_gate() {
    let ended = std::path::PathBuf::from(std::env::var(ENDED).unwrap());
    let (gate, calls) = (ended.with_file_name("gate"), ended.with_file_name("calls"));
    if gate.exists() {
        let mut calls = fs::OpenOptions::new().append(true).create(true).open(calls).unwrap();
        writeln!(calls, "x").unwrap();
        if !ended.with_file_name("go").exists() {
            fs::read_to_string(gate).unwrap();
        }
    }
}

/// Killed in the middle of a call: the call is made again where it may be, and else its outcome is unknown.
#[test]
fn a_command_that_is_killed_in_a_call() {
    for (effect, said, calls) in [
        ("at_most_once", "outcome unknown: c1 shop_order(what=\"tea\")", "x\n"),
        ("idempotent", "c1: one tea", "x\nx\n"),
        ("pure", "c1: one tea", "x\nx\n"),
    ] {
        let room = room(&format!("effect = \"{effect}\""), "Orders.");
        assert!(Command::new("mkfifo").arg(room.path("gate")).status().unwrap().success());
        let mut child = room.command("run a.toml tea --session s").spawn().unwrap();
        // It opens when the server does: the call is under way then.
        let gate = fs::OpenOptions::new().write(true).open(room.path("gate")).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        room.write("go", "");
        drop(gate);
        let resumed = room.say("resume a.toml --session s", "");
        assert!(resumed.starts_with("Ordered.\n") && resumed.contains(said), "{effect}: {resumed}");
        assert_eq!(fs::read_to_string(room.path("calls")).unwrap(), calls, "{effect}");
    }
}

/// What a command says without its traces.
fn said_out(room: &Room, line: &str) -> String {
    let said = room.say(line, "");
    said.split_inclusive('\n').filter(|line| !line.starts_with('|')).collect()
}

#[test]
fn tools_that_cannot_be_offered_are_named_where_servers_are_checked() {
    let room = room("approved = \"shop.json\"", ODD);
    assert_eq!(
        room.say("check a.toml", ""),
        "a.toml: ok; `--servers` starts its MCP servers and checks their tools\n"
    );
    assert!(!room.path("ended").exists());
    expect![[r#"
        a.toml: ok
        a.toml: server `shop`: 1 tools are offered
        a.toml: server `shop`: tool `#3` is not offered: invalid definition: missing field `name`
        a.toml: server `shop`: tool `list` is not offered: invalid inputSchema: expected type "object", found "array"
    "#]]
    .assert_eq(&said_out(&room, "check a.toml --servers"));
    // It is ended, and nothing was approved.
    assert_eq!(fs::read_to_string(room.path("ended")).unwrap(), "politely");
    assert!(!room.path("shop.json").exists());
    let told = room.json("check a.toml --servers --json");
    assert_eq!(told["servers"][0]["not_offered"][1]["tool"], "list");
    // The others are offered.
    assert!(room.say("run a.toml tea --session s", "").starts_with("Ordered."));
    room.write(
        "b.toml",
        "model = \"script:a.script\"\n[mcp.gone]\ncommand = { argv = [\"no-such-program-here\"] }\n",
    );
    let said = room.say("check b.toml --servers", "");
    assert!(said.contains("MCP server `gone` could not be started"), "{said}");
}

#[test]
fn a_server_of_the_file_is_started_for_the_run_and_ended_with_the_command() {
    let room = room("effect = \"pure\"", "Orders.");
    let said = room.say("run a.toml tea --session s", "");
    expect![[r#"
        Ordered.
        | session s
        | > c1 shop_order(what="tea")
        |   c1: one tea
        | continue: stepfold chat a.toml --session s
    "#]]
    .assert_eq(&said);
    assert_eq!(fs::read_to_string(room.path("ended")).unwrap(), "politely");
}

#[test]
fn a_tool_that_changed_since_it_was_approved_is_asked_about_with_the_difference() {
    let room = room("approved = \"shop.json\"", "Orders.");
    let said = room.say("run a.toml tea --session s", "");
    assert!(said.contains("Ordered."), "{said}");
    let stored: Value = serde_json::from_str(&fs::read_to_string(room.path("shop.json")).unwrap()).unwrap();
    assert_eq!(stored["order"]["description"], "Orders.");

    write_agent(&room, "approved = \"shop.json\"", "Orders. Ask for the card first.");
    let said = room.say("run a.toml tea --session t", "");
    expect![[r#"
        | session t
        | decide about c1#DIGEST: shop_order {"what":"tea"}
        | this tool is not as it was approved:
        |   --- approved
        |   +++ now
        |   @@ -1,4 +1,4 @@
        |    {
        |   -  "description": "Orders.",
        |   +  "description": "Orders. Ask for the card first.",
        |      "inputSchema": {
        |        "properties": {
        | the run waits for a decision, and is stored; decide with
        |   stepfold resume a.toml --session t --approve c1#DIGEST
        |   stepfold resume a.toml --session t --reject c1#DIGEST=REASON
        |   stepfold resume a.toml --session t --modify c1#DIGEST=JSON
        exit 3
    "#]]
    .assert_eq(&said);
    let said = room.say("resume a.toml --session t --approve c1", "");
    assert!(said.contains("Ordered."), "{said}");
    // It is approved as it is now.
    let said = room.say("run a.toml tea --session u", "");
    assert!(said.contains("Ordered."), "{said}");
}

#[test]
fn check_finds_what_is_wrong_with_a_server() {
    let room = Room::new("", "");
    room.write("bad.json", "[]");
    room.write(
        "f.toml",
        r#"model = "script:a.script"
exit_on = ["files_done", "fils_done"]

[tools.clock]
builtin = { name = "clock" }

[mcp.both]
command = { argv = ["true"] }
url = "http://localhost:1/mcp"

[mcp.none]
allow = ["x"]

[mcp."bad name"]
command = { argv = ["true"] }

[mcp.files]
command = { argv = ["./server.sh"], folder = "gone" }
effect = "harmless"
timeout = "soon"
aprove = true

[mcp.remote]
url = "localhost:1"

[mcp.headers]
command = { argv = ["true"] }
headers = { a = "b" }
approved = "bad.json"
"#,
    );
    room.check("check f.toml", expect![[r#"
            f.toml:2:26: unknown tool `fils_done`; available: clock
            f.toml:7:6: invalid server: expected `command` or `url`, found both
            f.toml:11:6: invalid server: expected `command` or `url`
            f.toml:14:6: the name must be 1 to 32 letters, digits, `_` or `-`
            f.toml:18:13: program ./server.sh not found, relative to the folder of this file
            f.toml:18:37: folder ./gone not found
            f.toml:19:1: expected one of pure, idempotent, at_most_once
            f.toml:20:1: invalid duration: expected one such as 500ms, 30s or 2m
            f.toml:21:1: unknown field `aprove`; did you mean `approved`?
            f.toml:23:6: invalid URL `localhost:1`: must begin with http:// or https://
            f.toml:28:1: `headers` requires a `url`
            f.toml:29:1: invalid file of approved tools ./bad.json: invalid type: sequence, expected a map at line 1 column 0; delete it to start over
            exit 2
        "#]]);
}

#[test]
fn resources_and_prompts_are_listed_read_and_sent() {
    let room = room("", "Orders.");
    room.check(
        "resources a.toml",
        expect![[r#"
            shop:shop://prices prices (text/plain): What tea costs.
            shop:greet prompt(who, how?)
        "#]],
    );
    room.check(
        "resources a.toml shop:shop://prices",
        expect![[r#"
            user:      [resource shop://prices]
                       tea: 3
        "#]],
    );
    room.check(
        "resources a.toml shop:greet --argument who=Ada",
        expect![[r#"
            user:      Ada
        "#]],
    );
    let unknown = room.say("resources a.toml files:x", "");
    assert!(unknown.contains("unknown server in `files:x`: must be SERVER:NAME; servers: shop"), "{unknown}");
    let said = room.say("run a.toml tea --session s --resource shop:shop://prices", "");
    assert!(said.starts_with("Ordered."), "{said}");
    let said = room.say("inspect a.toml --session s", "");
    assert!(said.contains("tea: 3"), "{said}");
}

/// A server that does not start is one line: its name, the reason, and what to do.
#[test]
fn a_server_that_does_not_start_is_one_line() {
    // Connections are accepted, and never answered.
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mute = format!("url = \"http://{}/mcp\"\nstart_timeout = \"300ms\"", mute.local_addr().unwrap());
    let check = |server: &str, expect: expect_test::Expect| {
        let room = Room::new(&format!("[mcp.shop]\n{server}"), "assistant: Well.");
        let said = room.say("run a.toml go --session s", "");
        let rest =
            "| what was done is stored; continue with\n|   stepfold resume a.toml --session s\nexit 1\n";
        let line = said.strip_prefix("| session s\n").and_then(|said| said.strip_suffix(rest));
        expect.assert_eq(line.unwrap_or(&said));
    };
    check(
        "command = [\"no-such-program-here\"]",
        expect![[r#"
        | error: the run failed after 0 steps: tools of the step could not be listed: toolset "shop" failed to list its tools: MCP server `shop` could not be started: program no-such-program-here not found in PATH; install it, or write its path
    "#]],
    );
    check(
        "command = { argv = [\"/\"] }",
        expect![[r#"
        | error: the run failed after 0 steps: tools of the step could not be listed: toolset "shop" failed to list its tools: MCP server `shop` could not be started: program / could not be run: Permission denied (os error 13)
    "#]],
    );
    check(
        "command = [\"false\"]",
        expect![[r#"
        | error: the run failed after 0 steps: tools of the step could not be listed: toolset "shop" failed to list its tools: MCP server `shop` could not be started: the process ended (exit status: 1)
    "#]],
    );
    check(
        "command = [\"sleep\", \"60\"]\nstart_timeout = \"300ms\"",
        expect![[r#"
        | error: the run failed after 0 steps: tools of the step could not be listed: toolset "shop" failed to list its tools: MCP server `shop` did not answer `initialize` within 300ms; raise `start_timeout`, or check what delays the server
    "#]],
    );
    check(
        "url = \"http://127.0.0.1:1/mcp\"",
        expect![[r#"
        | error: the run failed after 0 steps: tools of the step could not be listed: toolset "shop" failed to list its tools: MCP server `shop` could not be started: no connection to http://127.0.0.1:1/mcp: Connection refused (os error 111); check the URL, and that the server runs
    "#]],
    );
    check(
        &mute,
        expect![[r#"
        | error: the run failed after 0 steps: tools of the step could not be listed: toolset "shop" failed to list its tools: MCP server `shop` did not answer `initialize` within 300ms; raise `start_timeout`, or check what delays the server
    "#]],
    );
}

/// A program without more is a list, as it is for a tool.
#[test]
fn a_command_may_be_a_list() {
    let room = room("", "Orders.");
    let this = std::env::current_exe().unwrap();
    let words = format!(
        "[\"env\", \"{DESCRIPTION}=Orders.\", \"{ENDED}={}\", \"{}\", \"--exact\", \"mcp::serves\", \"--nocapture\"]",
        room.path("ended").display(),
        this.display()
    );
    room.write("a.toml", &format!("model = \"script:a.script\"\n[mcp.shop]\ncommand = {words}\n"));
    let said = room.say("run a.toml tea --session s", "");
    assert!(said.starts_with("Ordered.\n"), "{said}");
    room.write(
        "b.toml",
        "model = \"script:a.script\"\n[mcp.shop]\ncommand = \"x\"\n[mcp.none]\ncommand = []\n",
    );
    room.check(
        "check b.toml",
        expect![[r#"
        b.toml:3:1: expected list or object, found string
        b.toml:4:6: the command names no program
        exit 2
    "#]],
    );
}
