//! What models and tools say is shown, and never obeyed; what is long is cut, and can be had whole.

use expect_test::expect;

use crate::room::Room;
use crate::terminal::Terminal;

/// A model that hides what it asks for, and says things that a terminal would obey.
const SCRIPT: &str = "assistant: I tidy\u{1b}[8m up\u{202e}.   > p1 run(command=\"ls\\u001b[8m; rm -rf /\\u001b[0m\", note=\"a\\u202eb\\u200d\\nc\")\n\
                      assistant: Done\u{9b}8m.";

const AGENT: &str = "[tools.run]\ndescription = \"Runs.\"\napproval = \"always\"\n\
                     parameters = { properties = { command = { type = \"string\" }, note = { type = \"string\" } } }\n\
                     command = { argv = [\"printf\", \"\\\\033[2Jgone\"] }";

#[test]
fn nothing_hides_what_is_approved() {
    let room = Room::new(AGENT, SCRIPT);
    let run = Terminal::open(&room, "run a.toml -s s1 'tidy up'");
    run.until("[l]ater:").enter("y");
    run.check(
        0,
        expect![[r#"
            session s1
            ● I tidy\u001b[8m up\u202e.
            ? decide about p1#DIGEST: run {"command":"ls\u001b[8m; rm -rf /\u001b[0m","note":"a\u202eb\u200d\nc"}
              warning: 3 characters that hide or reorder text are shown as escapes
            run it? [y]es, [n]o, [m]odify, [l]ater: y
              ✓ run(command="ls\u001b[8m; rm -rf /\u001b[0m", note="a\u202eb‍\nc") → \u001b[2Jgone · TIME
            ● Done\u009b8m.
              1 step · 1 call · TIME
            continue: stepfold chat a.toml -c
        "#]],
    );
    // Nor later, in the log.
    Terminal::open(&room, "inspect a.toml").check(0, expect![[r#"
        session s1 of a/local, version 6
        head 6:DIGEST

            1  began     user:      tidy up
            2  replied   assistant: "I tidy\u001b[8m up\u202e."   > p1 run(command="ls\u001b[8m; rm -rf /\u001b[0m",
                         note="a\u202eb‍\nc")
            3  decided   p1#DIGEST approved
            4  started   starts p1
            5  answered  tool p1 run: "\u001b[2Jgone"
            6  replied   assistant: "Done\u009b8m."
    "#]]);
}

#[test]
fn a_program_gets_a_reply_byte_for_byte() {
    let room = Room::new("", "assistant: a\u{1b}[8mb\u{202e}c");
    let said = room.say("run a.toml -s s1 go", "");
    assert!(said.starts_with("a\u{1b}[8mb\u{202e}c\n| session s1\n"), "{said:?}");
    // Everything else is shown.
    let said = room.say("inspect a.toml", "");
    assert!(said.contains("assistant: \"a\\u001b[8mb\\u202ec\""), "{said:?}");
}

#[test]
fn long_arguments_are_shown_whole() {
    let text = "x".repeat(3000);
    let room = Room::new(AGENT, &format!("assistant: > p1 run(command=\"{text}\")\nassistant: Done."));
    let said = room.say("run a.toml -s s1 go", "");
    assert!(
        said.contains(&format!(
            "| decide about p1#DIGEST: run\n|   {{\n|     \"command\": \"{text}\"\n|   }}\n"
        )),
        "{said}"
    );
}

#[test]
fn long_values_are_cut_in_inspect_and_can_be_had_whole() {
    let text = "word ".repeat(1000);
    let room = Room::new("[state.note]\ntype = \"string\"", "assistant: Noted.");
    room.say(&format!("run a.toml -s s1 --set 'note={text}' go"), "");
    let said = room.say("inspect a.toml", "");
    assert!(said.lines().all(|line| line.chars().count() < 500), "{said}");
    assert!(said.contains(" ... (5009 characters)  (version 1, replace_values)"), "{said}");
    assert!(said.ends_with("| 2 lines are cut; --full shows all\n"), "{said}");
    let whole = room.say("inspect a.toml --full", "");
    assert!(whole.contains(&format!("note = \"{text}\"")) && !whole.contains("--full"), "{whole}");
    let value = room.say("state get a.toml note", "");
    assert_eq!(value, format!("\"{text}\"\n"));
}

#[test]
fn a_line_that_is_not_text_does_not_end_a_chat() {
    let room = Room::new("", "assistant: One.\nassistant: Two.");
    let mut child = room.command("chat a.toml -s s1").spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"first\ncaf\xe9\nsecond\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "One.\nTwo.\n");
    let notes = String::from_utf8(output.stderr).unwrap();
    assert_eq!(notes, "session s1\nerror: line 2 was not taken: it is not UTF-8\n");
    assert_eq!(output.status.code(), Some(1));
}

/// What the provider ran itself is not a call of ours: it is told while it happens, and when the session is looked at.
#[test]
fn tools_that_the_provider_runs_are_shown() {
    let agent = "[[params.server_tools]]\ndialect = \"anthropic\"\n\
                 tool = { type = \"web_search_20250305\", name = \"web_search\", max_uses = 3 }";
    let script = r#"assistant: @{"anthropic": {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "stalls"}}}   "area 3""#;
    let room = Room::new(agent, script);
    expect![[r#"
        area 3
        | session s1
        |   run by the provider: web_search {"query":"stalls"}
        | continue: stepfold chat a.toml --session s1
    "#]]
    .assert_eq(&room.say("run a.toml -s s1 'which area?'", ""));
    let shown = room.say("inspect a.toml", "");
    assert!(shown.contains(r#"(run by the provider: web_search {"query":"stalls"})"#), "{shown}");
    // A provider that cannot run it says so before anything is sent.
    room.write("b.toml", &format!("model = \"http://127.0.0.1:1/v1#m\"\n{agent}"));
    let refused = room.say("run b.toml -s s2 hi", "");
    assert!(refused.contains("unsupported server tool of `anthropic`"), "{refused}");
    room.write("c.toml", &format!("model = \"script:a.script\"\n{agent}\nx = 1"));
    let fault = room.say("check c.toml", "");
    assert!(fault.contains("unknown") && fault.contains('x'), "{fault}");
}

/// What the server of another model would read, and what it does not take of what was said.
#[test]
fn the_request_is_shown_as_its_server_reads_it() {
    let agent = "[tools.note]\ndescription = \"Notes.\"\nparameters = {}\ncommand = { argv = [\"cat\"] }";
    let room = Room::new(agent, "assistant: \"\\n\\n\"   > \"c 1\" note()\nassistant: done");
    room.say("run a.toml -s s1 go", "");
    let wired = room.json("inspect a.toml --wire --model http://127.0.0.1:9/v1#m --json");
    assert_eq!(wired["model"], "openai-compatible/m");
    assert_eq!(wired["changes"][0]["change"], "blank text is left out", "{wired}");
    let call = &wired["body"]["messages"][1];
    assert_eq!((&call["content"], &call["tool_calls"][0]["function"]["name"]), (&().into(), &"note".into()));
    let said = room.say("inspect a.toml --wire --model http://127.0.0.1:9/v1#m", "");
    assert!(said.contains("~ message 1: blank text is left out"), "{said}");
    room.check(
        "inspect a.toml --wire",
        expect![[r#"
            | error: model `scripted` has no server: its requests have no wire form; name a model of a provider with --model
            exit 2
        "#]],
    );
}
