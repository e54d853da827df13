//! What programs that are tools get, and what they may not do.

use expect_test::expect;

use crate::room::Room;

/// Runs an agent with one tool, `t`, which is called once, and says what the model reads.
fn check(tool: &str, call: &str, expect: expect_test::Expect) {
    let room = Room::new(
        &format!("[tools.t]\ndescription = \"A tool.\"\n{tool}"),
        &format!("assistant: > c1 {call}"),
    );
    room.say("run a.toml -s s1 go", "");
    let json = room.json("inspect a.toml --json");
    let events = json["events"].as_array().unwrap();
    let results = events.iter().flat_map(|event| event["messages"].as_array().unwrap());
    let result =
        results.flat_map(|said| said["parts"].as_array().unwrap()).find_map(|part| part.get("tool_result"));
    let result = result.unwrap_or_else(|| panic!("no result: {json}"));
    let text = result.get("value").or(result.get("error")).unwrap().to_string();
    expect.assert_eq(&text.replace(&*room.folder().to_string_lossy(), "ROOM"));
}

const ANY: &str = "parameters = { additionalProperties = true }\n";

#[test]
fn a_program_gets_json_and_no_shell() {
    check(
        &format!("{ANY}command = {{ argv = [\"cat\"] }}"),
        r#"t(a=1, b="x")"#,
        expect![[r#""{\"a\":1,\"b\":\"x\"}""#]],
    );
    check("command = { argv = [\"echo\", \"$PATH;ls\", \"*\"] }", "t()", expect![[r#""$PATH;ls *""#]]);
    check("command = [\"echo\", \"$PATH;ls\", \"*\"]", "t()", expect![[r#""$PATH;ls *""#]]);
    check("command = { argv = [\"cat\"], output = \"json\" }", "t()", expect!["{}"]);
    check(
        "command = { argv = [\"echo\", \"no\"], output = \"json\" }",
        "t()",
        expect![[r#""invalid JSON in the output: expected ident at line 1 column 2""#]],
    );
}

#[test]
fn a_program_sees_only_the_variables_that_it_may() {
    let program =
        r#"argv = ["sh", "-c", "echo ${SECRET:-none} ${SHARED:-none} ${STEPFOLD_IDEMPOTENCY_KEY:+key}"]"#;
    check(&format!("command = {{ {program} }}"), "t()", expect![[r#""none none key""#]]);
    check(
        &format!("command = {{ {program}, environment = [\"SHARED\"] }}"),
        "t()",
        expect![[r#""none shown key""#]],
    );
}

#[test]
fn a_program_that_goes_too_far_is_ended() {
    // It would write for ever.
    check(
        "command = { argv = [\"yes\"], output_bytes = 1000 }",
        "t()",
        expect![[r#""program output too large: more than 1000 bytes; request less""#]],
    );
    // It would wait for ever, and so would what it has started.
    let forever = r#"command = { argv = ["sh", "-c", "tail -f /dev/null & echo $! > child; wait"] }"#;
    let room = Room::new(
        &format!("[tools.t]\ndescription = \"Waits.\"\ntimeout = \"300ms\"\n{forever}"),
        "assistant: > c1 t()\nassistant: Late.",
    );
    room.check(
        "run a.toml -s s1 go",
        expect![[r#"
        Late.
        | session s1
        | > c1 t()
        |   c1!: tool 't' timed out after 300ms; the effect may have happened
        | continue: stepfold chat a.toml --session s1
    "#]],
    );
    let child = std::fs::read_to_string(room.path("child")).unwrap();
    // A zombie has no command line any more; one that runs does.
    let line = std::fs::read(format!("/proc/{}/cmdline", child.trim())).unwrap_or_default();
    assert!(line.is_empty() || !cfg!(target_os = "linux"), "the child of the program still runs");
}

#[test]
fn a_program_that_fails_tells_the_model_why() {
    check(
        "command = { argv = [\"sh\", \"-c\", \"echo no such area >&2; exit 7\"] }",
        "t()",
        expect![[r#""the program failed (exit status: 7): no such area""#]],
    );
    check(
        "command = { argv = [\"no-such-program-here\"] }",
        "t()",
        expect![[
            r#""program no-such-program-here could not be started: No such file or directory (os error 2)""#
        ]],
    );
    check("command = { argv = [\"pwd\"] }", "t()", expect![[r#""ROOM""#]]);
}

#[test]
fn state_feeds_parameters_that_the_model_does_not_see() {
    let agent = r#"
[state.area]
type = "integer"
default = 7
[tools.t]
description = "A tool."
parameters = { properties = { area = { type = "integer" } }, required = ["area"] }
inputs_from_state = { area = "area" }
outputs_to_string = { source = "area" }
command = { argv = ["cat"], output = "json" }
"#;
    let room = Room::new(agent, "assistant: > c1 t()\nassistant: Seven.");
    room.check(
        "run a.toml -s s1 go",
        expect![[r#"
        Seven.
        | session s1
        | > c1 t()
        |   c1: 7
        | continue: stepfold chat a.toml --session s1
    "#]],
    );
}
