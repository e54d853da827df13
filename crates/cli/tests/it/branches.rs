//! Forks, labels and comparisons: finding one's way among versions.

use expect_test::expect;

use crate::room::Room;
use crate::terminal::Terminal;

const AGENT: &str = "[state.seen]\ntype = { type = \"array\", items = { type = \"integer\" } }\n\
                     [tools.see]\ndescription = \"Sees a number.\"\neffect = \"pure\"\n\
                     parameters = { properties = { number = { type = \"integer\" } }, required = [\"number\"] }\n\
                     outputs_to_state = { seen = { source = \"number\" } }\n\
                     command = { argv = [\"cat\"], output = \"json\" }";

const SCRIPT: &str = "assistant: > c1 see(number=1)\nassistant: Seen.\nassistant: Seen too.";

fn room() -> Room {
    let room = Room::new(AGENT, SCRIPT);
    room.say("run a.toml -s s1 look", "");
    room
}

#[test]
fn forks_are_listed_with_the_version_that_they_begin_with() {
    let room = room();
    room.check(
        "forks a.toml",
        expect![[r#"
        | session s1 has no forks
    "#]],
    );
    room.say("fork a.toml -s s1 --at 2 --to early", "");
    room.say("fork a.toml -s s1 --to late", "");
    room.say("fork a.toml -s late --to later", "");
    let said = room.say("forks a.toml -s s1", "");
    let lines: Vec<Vec<&str>> = said.lines().map(|line| line.split("  ").map(str::trim).collect()).collect();
    let [early, late] = lines.as_slice() else { panic!("{said}") };
    assert_eq!((early[0], early.last().unwrap()), ("early", &"from version 2"));
    assert_eq!((late[0], late.last().unwrap()), ("late", &"from version 4"));
    let json = room.json("forks a.toml -s late --json");
    assert_eq!((&json[0]["session"], &json[0]["version"]), (&"later".into(), &4.into()));
    assert!(json[0]["created"].is_string() && json.as_array().unwrap().len() == 1, "{json}");
    room.check(
        "forks a.toml -s nobody",
        expect![[r#"
        | error: session a/local/nobody not found; `stepfold sessions a.toml` lists the existing ones
        exit 2
    "#]],
    );
}

#[test]
fn a_label_is_set_moved_listed_and_removed() {
    let room = room();
    room.check(
        "label list a.toml",
        expect![[r#"
        | session s1 has no labels
    "#]],
    );
    room.check(
        "label set a.toml 'before the answer' --at 3",
        expect![[r#"
        label before the answer of session s1: version 3
    "#]],
    );
    room.check(
        "label set a.toml answered",
        expect![[r#"
        label answered of session s1: version 4
    "#]],
    );
    room.check(
        "label set a.toml first --at 1",
        expect![[r#"
        label first of session s1: version 1
    "#]],
    );
    room.check(
        "label set a.toml first --at 'before the answer'",
        expect![[r#"
        label first of session s1: version 3 (was version 1)
    "#]],
    );
    room.check(
        "label list a.toml",
        expect![[r#"
        before the answer  version 3
        first              version 3
        answered           version 4
    "#]],
    );
    room.check("label list a.toml --json", expect![[r#"
        [{"label":"before the answer","version":3},{"label":"first","version":3},{"label":"answered","version":4}]
    "#]]);
    room.check(
        "label set a.toml first --at 4 --json",
        expect![[r#"
        {"label":"first","session":"s1","version":4,"was":3}
    "#]],
    );
    room.check(
        "label remove a.toml first",
        expect![[r#"
        label first of session s1 is removed (was version 4)
    "#]],
    );
    room.check(
        "label remove a.toml answered --json",
        expect![[r#"
        {"label":"answered","session":"s1","was":4}
    "#]],
    );
    room.check(
        "label remove a.toml first",
        expect![[r#"
        | error: unknown version or label `first` of session s1; labels: before the answer
        exit 2
    "#]],
    );
    for (line, why) in [
        ("label set a.toml 7", "a number names a version"),
        ("label set a.toml a..b", "`..` stands between two versions"),
        ("label set a.toml ' a'", "it begins or ends with a space"),
        ("label set a.toml ''", "label"),
        ("label set a.toml x --at 99", "version 99 of session"),
        ("label set a.toml x --at y", "unknown version or label `y`"),
    ] {
        let said = room.say(line, "");
        assert!(said.contains(why) && said.ends_with("exit 2\n"), "{line}: {said}");
    }
}

#[test]
fn a_label_stands_wherever_a_version_does() {
    let room = room();
    room.say("label set a.toml asked --at 1", "");
    room.say("label set a.toml called --at 2", "");
    room.check(
        "inspect a.toml --at called",
        expect![[r#"
            session s1 of a/local, version 2
            head 2:DIGEST
            label asked: version 1
            label called: version 2

                1  began     user:      look
                2  replied   assistant: > c1 see(number=1)

        "#]],
    );
    room.check(
        "inspect a.toml --diff asked..called",
        expect![[r#"
        messages: + (2 messages)
          assistant: > c1 see(number=1)
    "#]],
    );
    room.check(
        "inspect a.toml --diff asked..",
        expect![[r#"
        | error: invalid range of versions `asked..`: expected FROM..TO, such as 2..5
        exit 2
    "#]],
    );
    room.check(
        "fork a.toml -s s1 --at asked --to f1",
        expect![[r#"
            f1
            | continue: stepfold resume a.toml --session f1
        "#]],
    );
    room.check(
        "rewind a.toml -s s1 called",
        expect![[r#"
        session s1 is as it was at version 2; that is version 5
    "#]],
    );
    let labels = |session: &str| room.say(&format!("label list a.toml -s {session}"), "");
    // They are of the session, and stay with it.
    assert_eq!((labels("s1").lines().count(), labels("f1").as_str()), (2, "| session f1 has no labels\n"));
    room.check(
        "inspect a.toml -s s1 --at done",
        expect![[r#"
        | error: unknown version or label `done` of session s1; labels: asked, called
        exit 2
    "#]],
    );
}

#[test]
fn a_fork_is_compared_with_its_original() {
    let room = room();
    room.say("fork a.toml -s s1 --at 1 --to f1", "");
    room.check(
        "compare a.toml s1 s1",
        expect![[r#"
        s1 and s1 are the same, up to version 4
    "#]],
    );
    room.write("a.script", "assistant: > c1 see(number=7)\nassistant: Seen.");
    room.say("resume a.toml -s f1", "");
    room.check(
        "compare a.toml s1 f1",
        expect![[r#"
        s1 and f1 are the same up to version 1
        only in s1, 3 events:
            2  replied   assistant: > c1 see(number=1)
            3  answered  tool c1 see: {"number": 1}
            4  replied   assistant: Seen.
        only in f1, 3 events:
            2  replied   assistant: > c1 see(number=7)
            3  answered  tool c1 see: {"number": 7}
            4  replied   assistant: Seen.
        the first event after that differs at $.messages[0].parts[0].tool_call.arguments.number: s1 1, f1 7
        state, from s1 to f1:
          ~ seen: [1] -> [7]
    "#]],
    );
    room.check(
        "compare a.toml s1 nobody",
        expect![[r#"
        | error: session a/local/nobody not found; `stepfold sessions a.toml` lists the existing ones
        exit 2
    "#]],
    );
    let said = room.say("compare a.toml s1 f1 --session s1", "");
    assert!(said.ends_with("exit 2\n"), "{said}");
    let json = room.json("compare a.toml s1 f1 --json");
    assert_eq!((&json["common"], &json["same"]), (&1.into(), &false.into()));
    assert_eq!(json["state"], serde_json::json!([{"key": "seen", "left": [1], "right": [7]}]));
    let count = |side: &str| json[side]["events"].as_array().unwrap().len();
    assert_eq!((count("left"), count("right")), (3, 3));
    // As a person sees it.
    Terminal::open(&room, "compare a.toml f1 s1").check(
        0,
        expect![[r#"
        f1 and s1 are the same up to version 1
        only in f1, 3 events:
            2  replied   assistant: > c1 see(number=7)
            3  answered  tool c1 see: {"number": 7}
            4  replied   assistant: Seen.
        only in s1, 3 events:
            2  replied   assistant: > c1 see(number=1)
            3  answered  tool c1 see: {"number": 1}
            4  replied   assistant: Seen.
        the first event after that differs at $.messages[0].parts[0].tool_call.arguments.number: f1 7, s1 1
        state, from f1 to s1:
          ~ seen: [7] -> [1]
    "#]],
    );
}

/// Whatever the agent declares today, and without a file or folder for what does not exist.
#[test]
fn they_read_what_is_stored_and_create_nothing() {
    let room = room();
    room.say("fork a.toml -s s1 --to f1", "");
    room.write("a.toml", "model = \"script:a.script\"\n[state.seen]\ntype = \"string\"");
    room.check(
        "compare a.toml s1 f1",
        expect![[r#"
        s1 and f1 are the same, up to version 4
    "#]],
    );
    for command in ["forks a.toml", "label list a.toml", "label set a.toml x", "compare a.toml s1 f1"] {
        let said = room.say(&format!("{command} --store none/s.db"), "");
        assert!(said.contains("none/s.db") && said.ends_with("exit 2\n"), "{command}: {said}");
    }
    assert!(!room.path("none").exists());
}
