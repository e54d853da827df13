//! Runs and chats, and the decisions that they wait for.

use expect_test::expect;

use crate::room::{Room, json_lines};

const COUNTER: &str = r#"
instructions = "You count for {user:name?}."

[state.counted]
type = "integer"
handler = "sum"
default = 0

[state."user:name"]
type = "string"

[tools.count]
description = "Counts the stalls of an area."
effect = "pure"
parameters = { properties = { area = { type = "integer" } }, required = ["area"] }
outputs_to_state = { counted = { source = "area" } }
command = { argv = ["cat"], output = "json" }

[tools.remember]
builtin = { name = "remember", keys = ["user:name"] }
"#;

const PAYER: &str = r#"
[state.note]
type = "string"

[tools.pay]
description = "Pays a bill."
approval = "always"
parameters = { properties = { euro = { type = "integer" } }, required = ["euro"] }
command = { argv = ["sh", "-c", "cat >> paid; echo paid"] }
"#;

const PAYING: &str = "\
assistant: I pay. > p1 pay(euro=5)
assistant: It is paid.
assistant: > p2 pay(euro=7)
assistant: That was all.
";

#[test]
fn a_run_shows_what_happens_and_is_kept() {
    let script = "assistant: Wait. > c1 count(area=3)\nassistant: Three.\nassistant: Still three.";
    let room = Room::new(COUNTER, script);
    room.check(
        "run a.toml -s s1 'how many?'",
        expect![[r#"
        Wait.
        Three.
        | session s1
        | > c1 count(area=3)
        |   c1: {"area":3}
        |   ~ counted: 0 -> 3
        | continue: stepfold chat a.toml --session s1
    "#]],
    );
    room.check(
        "run a.toml -s s1 --set user:name=Ada 'and now?'",
        expect![[r#"
        Still three.
        | session s1
        |   ~ user:name: unset -> "Ada"
        | continue: stepfold chat a.toml --session s1
    "#]],
    );
    room.check(
        "state get a.toml",
        expect![[r#"
        counted = 3
        user:name = "Ada"
    "#]],
    );
    room.check(
        "state get a.toml nothing",
        expect![[r#"
            | error: unknown key `nothing`; available: counted, user:name, messages
            exit 2
        "#]],
    );
}

#[test]
fn what_is_piped_gets_the_answer_only_and_json_gets_all() {
    let room = Room::new(COUNTER, "assistant: Three.");
    let output = room.command("run a.toml -s s1 -").stdin(std::process::Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "an empty question is refused");

    let said = room.say("--json run a.toml -s s1 -", "how many?\n");
    let lines = json_lines(&said);
    assert_eq!(lines[0]["session"], "s1");
    let told: String = lines.iter().filter_map(|line| line["event"]["text"].as_str()).collect();
    assert_eq!(told, "Three.", "{said}");
    let outcome = &lines.last().unwrap()["outcome"];
    assert_eq!((&outcome["exit"], &outcome["text"]), (&"text".into(), &"Three.".into()));
}

#[test]
fn a_chat_over_a_pipe_goes_line_by_line() {
    let script =
        "assistant: > c1 remember(key=\"user:name\", value=\"Ada\")\nassistant: Hello.\nassistant: Ada.";
    let room = Room::new(COUNTER, script);
    room.check_with(
        "chat a.toml -s s1",
        "I am Ada\n\n/state\nwho am I?\n/quit\nnever\n",
        expect![[r#"
        Hello.
        Ada.
        | session s1
        | > c1 remember(key="user:name", value="Ada")
        |   c1: user:name is written
        |   ~ user:name: unset -> "Ada"
        | counted = 0
        | user:name = "Ada"
    "#]],
    );
    room.check(
        "inspect a.toml",
        expect![[r#"
            session s1 of a/local, version 6
            head 6:DIGEST

                1  began     user:      I am Ada
                2  replied   assistant: > c1 remember(key="user:name", value="Ada")
                3  answered  tool c1 remember: user:name is written
                             ~ user:name: unset -> "Ada"
                4  replied   assistant: Hello.
                5  began     user:      who am I?
                6  replied   assistant: Ada.

            counted = 0  (not written in this session)
            user:name = "Ada"  (version 3, replace_values)
        "#]],
    );
}

#[test]
fn an_approval_pauses_and_another_process_decides() {
    let room = Room::new(PAYER, PAYING);
    room.check(
        "run a.toml -s s1 'pay the bill'",
        expect![[r#"
            I pay.
            | session s1
            | decide about p1#DIGEST: pay {"euro":5}
            | the run waits for a decision, and is stored; decide with
            |   stepfold resume a.toml --session s1 --approve p1#DIGEST
            |   stepfold resume a.toml --session s1 --reject p1#DIGEST=REASON
            |   stepfold resume a.toml --session s1 --modify p1#DIGEST=JSON
            exit 3
        "#]],
    );
    assert!(!room.path("paid").exists());
    room.check(
        "run a.toml -s s1 'what now?'",
        expect![[r#"
            | session s1
            | decide about p1#DIGEST: pay {"euro":5}
            | the run waits for a decision, and is stored; decide with
            |   stepfold resume a.toml --session s1 --approve p1#DIGEST
            |   stepfold resume a.toml --session s1 --reject p1#DIGEST=REASON
            |   stepfold resume a.toml --session s1 --modify p1#DIGEST=JSON
            | the message was not taken: the run before it has not ended; decide and send it again, or give that run up with
            |   stepfold resume a.toml --session s1 --abandon
            exit 3
        "#]],
    );
    room.check(
        "result set a.toml p1 x",
        expect![[r#"
            | error: invalid edit of the result of call `p1`: it waits for a decision; decide about it
            exit 2
        "#]],
    );
    room.check(
        "resume a.toml --approve p9",
        expect![[r#"
            | session s1
            | error: no pending approval with id `p9`; pending: p1#DIGEST
            exit 2
        "#]],
    );
    room.check("resume a.toml --modify 'p1={\"euro\": \"many\"}'", expect![[r#"
        | session s1
        | continues with "pay the bill", which waits in step 1 for a decision about p1#DIGEST
        | error: session a/local/s1: invalid decision: invalid arguments for approval `p1#DIGEST`: expected integer, found string at $.euro; the request stays pending
        exit 2
    "#]]);
    room.check(
        "resume a.toml --modify 'p1={\"euro\": 4}'",
        expect![[r#"
            It is paid.
            | session s1
            | continues with "pay the bill", which waits in step 1 for a decision about p1#DIGEST
            | > p1 pay(euro=4)
            |   p1: paid
        "#]],
    );
    assert_eq!(std::fs::read_to_string(room.path("paid")).unwrap(), "{\"euro\":4}");

    room.say("run a.toml -s s1 'the other one'", "");
    room.check(
        "resume a.toml --reject 'p2=too much'",
        expect![[r#"
            That was all.
            | session s1
            | continues with "the other one", which waits in step 1 for a decision about p2#DIGEST
        "#]],
    );
    room.check(
        "resume a.toml",
        expect![[r#"
            | session s1
            | error: session a/local/s1: nothing to resume: no run is interrupted or paused
            exit 2
        "#]],
    );
    room.check(
        "inspect a.toml",
        expect![[r#"
            session s1 of a/local, version 10
            head 10:DIGEST

                1  began     user:      pay the bill
                2  replied   assistant: I pay.   > p1 pay(euro=5)
                3  decided   p1#DIGEST approved with {"euro":4}
                4  started   starts p1
                5  answered  tool p1 pay: paid
                                        [The arguments were changed before the call ran, to {"euro":4}]
                6  replied   assistant: It is paid.
                7  began     user:      the other one
                8  replied   assistant: > p2 pay(euro=7)
                9  decided   tool p2 pay!: tool 'pay' not run: the call was rejected: too much
               10  replied   assistant: That was all.

        "#]],
    );
}

#[test]
fn an_approver_can_decide_modify_or_wait() {
    let room = Room::new(PAYER, PAYING);
    room.check_with(
        "chat a.toml -s s1 --interactive",
        "pay\nmaybe\nm\nno json\nm\n{\"euro\": 1}\nand the other\nn\ntoo much\n",
        expect![[r#"
            I pay.
            It is paid.
            That was all.
            | session s1
            | decide about p1#DIGEST: pay {"euro":5}
            | answer y, n, m or l
            | invalid JSON: expected ident at line 1 column 2
            | > p1 pay(euro=1)
            |   p1: paid
            | decide about p2#DIGEST: pay {"euro":7}
        "#]],
    );
    let room = Room::new(PAYER, PAYING);
    room.check_with(
        "run a.toml -s s1 --interactive pay",
        "l\n",
        expect![[r#"
            I pay.
            | session s1
            | decide about p1#DIGEST: pay {"euro":5}
            | the run waits for a decision, and is stored; decide with
            |   stepfold resume a.toml --session s1 --approve p1#DIGEST
            |   stepfold resume a.toml --session s1 --reject p1#DIGEST=REASON
            |   stepfold resume a.toml --session s1 --modify p1#DIGEST=JSON
            exit 3
        "#]],
    );
    room.check(
        "resume a.toml --abandon",
        expect![[r#"
            run abandoned after 1 step; the session is ready for the next message
            | session s1
        "#]],
    );
}

/// A message that is sent while a decision waits is not taken, which is said; or it is taken once all is decided.
#[test]
fn a_message_that_is_not_taken_is_reported() {
    let room = Room::new(PAYER, PAYING);
    room.check_with(
        "chat a.toml -s s1",
        "pay\nand the other\n",
        expect![[r#"
            I pay.
            | session s1
            | decide about p1#DIGEST: pay {"euro":5}
            | the run waits for a decision, and is stored; decide with
            |   stepfold resume a.toml --session s1 --approve p1#DIGEST
            |   stepfold resume a.toml --session s1 --reject p1#DIGEST=REASON
            |   stepfold resume a.toml --session s1 --modify p1#DIGEST=JSON
            | the chat ends here: lines after this one are not taken, since the decision comes first
            exit 3
        "#]],
    );
    room.check_with("chat a.toml -s s1", "hello?\n", expect![[r#"
        | session s1
        | decide about p1#DIGEST: pay {"euro":5}
        | the run waits for a decision, and is stored; decide with
        |   stepfold resume a.toml --session s1 --approve p1#DIGEST
        |   stepfold resume a.toml --session s1 --reject p1#DIGEST=REASON
        |   stepfold resume a.toml --session s1 --modify p1#DIGEST=JSON
        | the message was not taken: the run before it has not ended; decide and send it again, or give that run up with
        |   stepfold resume a.toml --session s1 --abandon
        | the chat ends here: lines after this one are not taken, since the decision comes first
        exit 3
    "#]]);
    let said = room.say("run a.toml -s s1 --json hello", "");
    assert!(said.ends_with("{\"stored\":false,\"taken\":false}\nexit 3\n"), "{said}");
    room.check_with(
        "run a.toml -s s1 --interactive 'and the other'",
        "y\nl\n",
        expect![[r#"
            | session s1
            | the message is not taken yet: the session waits for a decision; decide first
            | decide about p1#DIGEST: pay {"euro":5}
            | > p1 pay(euro=5)
            |   p1: paid
            | earlier reply: It is paid.
            | decide about p2#DIGEST: pay {"euro":7}
            | the run waits for a decision, and is stored; decide with
            |   stepfold resume a.toml --session s1 --approve p2#DIGEST
            |   stepfold resume a.toml --session s1 --reject p2#DIGEST=REASON
            |   stepfold resume a.toml --session s1 --modify p2#DIGEST=JSON
            exit 3
        "#]],
    );
    let said = room.say("inspect a.toml", "");
    assert!(!said.contains("hello") && said.contains("user:      and the other"), "{said}");
}

/// No server listens there: that it is asked again is said while it is, and why once.
#[test]
fn a_model_that_cannot_be_reached_is_reported() {
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let room = Room::new("", "");
    room.write("b.toml", &format!("model = \"http://{gone}/v1#x\""));
    let said = room.say("run b.toml -s s1 hello", "");
    for attempt in 2..=4 {
        assert!(
            said.contains(&format!(
                "openai-compatible/x did not answer (transient failure); attempt {attempt} of 4 in "
            )),
            "{said}"
        );
    }
    assert_eq!(said.matches("could not connect").count(), 1, "{said}");
    assert_eq!(said.matches("refused").count(), 1, "{said}");
    assert!(said.contains("(4 attempts in "), "{said}");
}

#[test]
fn limits_and_scripts_at_their_end_are_told_apart() {
    let room = Room::new(
        "[limits]\nsteps = 1\n[tools.now]\nbuiltin = { name = \"clock\" }",
        "assistant: > c1 now()",
    );
    let said = room.say("run a.toml -s s1 go", "");
    assert!(said.ends_with("| the run ended: the limit of steps was reached\nexit 4\n"), "{said}");
    room.check("run a.toml -s s1 again", expect![[r#"
        | session s1
        | error: the run failed after 0 steps: model request failed: invalid request: script ./a.script has ended after 1 replies
        | what was done is stored; continue with
        |   stepfold resume a.toml --session s1
        exit 1
    "#]]);
}

#[test]
fn a_script_answers_a_rejection_and_what_it_does_not_have() {
    let room = Room::new(
        "[tools.pay]\ndescription = \"Pays.\"\napproval = \"always\"\ncommand = { argv = [\"echo\", \"paid\"] }",
        "user: pay\nassistant: > c1 pay()\ntool c1!: rejected\nassistant: Nothing was paid.\n\
         tool c1: paid\nassistant: It is paid.\nuser: *\nassistant: Say pay.\nassistant: Never.\n",
    );
    for (session, decision, answer) in
        [("s1", "--reject c1", "Nothing was paid."), ("s2", "--approve c1", "It is paid.")]
    {
        room.say(&format!("run a.toml -s {session} pay"), "");
        let said = room.say(&format!("resume a.toml -s {session} {decision}"), "");
        assert!(said.contains(answer), "{said}");
        for words in ["what?", "why?"] {
            assert!(room.say(&format!("run a.toml -s {session} {words}"), "").contains("Say pay."));
        }
    }
}

#[test]
fn a_cassette_needs_no_model() {
    let room = Room::new(COUNTER, "assistant: Three.");
    room.say("run a.toml -s s1 --cassette t.cassette --mode record 'how many?'", "");
    std::fs::remove_file(room.path("a.script")).unwrap();
    room.check(
        "run a.toml -s s2 --cassette t.cassette --mode replay 'how many?'",
        expect![[r#"
        Three.
        | session s2
        | continue: stepfold chat a.toml --cassette t.cassette --mode replay --session s2
    "#]],
    );
    let said = room.say("run a.toml -s s3 --cassette t.cassette --mode replay 'how few?'", "");
    assert!(said.contains("how few?") && said.ends_with("exit 1\n"), "{said}");
}

#[test]
fn without_a_model_it_says_what_to_do() {
    let room = Room::new("", "");
    room.write("b.toml", "instructions = \"Be brief.\"");
    room.check("run b.toml hello", expect![[r#"
        | error: missing model: use --model PROVIDER:MODEL, set STEPFOLD_MODEL, give the agent file a `model`, or use --cassette FILE --mode replay; keys that are set: none
        exit 2
    "#]]);
    room.check(
        "run c.toml hello",
        expect![[r#"
            | error: agent file c.toml could not be read: No such file or directory (os error 2)
            exit 2
        "#]],
    );
    room.check(
        "inspect b.toml",
        expect![[r#"
            | error: agent b has no session of user local yet; `stepfold run` begins one
            exit 2
        "#]],
    );
    room.check(
        "inspect b.toml -s nobody",
        expect![[r#"
            | error: session b/local/nobody not found; `stepfold sessions b.toml` lists the existing ones
            exit 2
        "#]],
    );
}
