//! What has happened can be shown, compared, replayed, forked and taken back.

use expect_test::expect;

use crate::room::Room;

/// One call at a time, so that the log is always the same.
const AGENT: &str = r#"
[tool_limits]
concurrency = 1

[state.seen]
type = { type = "array", items = { type = "integer" } }

[state.topic]
type = "string"

[tools.see]
description = "Sees a number."
effect = "pure"
parameters = { properties = { number = { type = "integer" } }, required = ["number"] }
outputs_to_state = { seen = { source = "number" } }
command = { argv = ["cat"], output = "json" }
"#;

const SCRIPT: &str = "\
assistant: > c1 see(number=1)   > c2 see(number=2)
assistant: Seen.
assistant: > c3 see(number=3)
assistant: Seen too.
";

fn room() -> Room {
    let room = Room::new(AGENT, SCRIPT);
    room.say("run a.toml -s s1 look", "");
    room.say("run a.toml -s s1 'look again'", "");
    room
}

#[test]
fn inspect_shows_the_log_and_who_set_what() {
    let room = room();
    room.check(
        "inspect a.toml",
        expect![[r#"
            session s1 of a/local, version 9
            head 9:DIGEST

                1  began     user:      look
                2  replied   assistant: > c1 see(number=1)   > c2 see(number=2)
                3  answered  (c1 see)
                4  answered  tool c1 see: {"number": 1}
                             tool c2 see: {"number": 2}
                             ~ seen: unset -> [1,2]
                5  replied   assistant: Seen.
                6  began     user:      look again
                7  replied   assistant: > c3 see(number=3)
                8  answered  tool c3 see: {"number": 3}
                             ~ seen: + [3] (3 items)
                9  replied   assistant: Seen too.

            seen = [1,2,3]  (version 8, merge_lists, the last of 3 writes)
        "#]],
    );
    room.check(
        "inspect a.toml --at 3",
        expect![[r#"
            session s1 of a/local, version 3
            head 3:DIGEST

                1  began     user:      look
                2  replied   assistant: > c1 see(number=1)   > c2 see(number=2)
                3  answered  (c1 see)

        "#]],
    );
    room.check(
        "inspect a.toml --diff 4..10",
        expect![[r#"
        | error: version 10 of session a/local/s1 not found; available: 0 to 9
        exit 2
    "#]],
    );
    room.check(
        "inspect a.toml --diff 4",
        expect![[r#"
            | error: invalid range of versions `4`: expected FROM..TO, such as 2..5
            exit 2
        "#]],
    );
    room.check(
        "inspect a.toml --at 99",
        expect![[r#"
        | error: version 99 of session a/local/s1 not found; available: 0 to 9
        exit 2
    "#]],
    );
    let json = room.json("inspect a.toml --json");
    assert_eq!(json["state"]["seen"]["value"], serde_json::json!([1, 2, 3]));
    assert_eq!(json["state"]["seen"]["set_by"]["writes"], 3);
    assert_eq!(json["events"][0]["kind"], "began");
}

#[test]
fn looking_makes_no_file() {
    let room = Room::new(AGENT, SCRIPT);
    for line in ["sessions a.toml", "inspect a.toml", "state get a.toml", "inspect a.toml --store new/s.db"] {
        room.say(line, "");
    }
    assert!(!room.path("data").exists() && !room.path("new").exists());
    room.say("run a.toml -s s1 --store s.db look", "");
    let files = || std::fs::read_dir(room.folder()).unwrap().count();
    let (before, stored) = (files(), std::fs::read(room.path("s.db")).unwrap());
    room.say("inspect a.toml --store s.db --at 2", "");
    room.say("state get a.toml --store s.db", "");
    assert!(room.say("sessions a.toml --store s.db", "").starts_with("s1  "));
    assert_eq!((files(), std::fs::read(room.path("s.db")).unwrap()), (before, stored));
}

#[test]
fn verify_lists_what_is_damaged() {
    let room = Room::new(AGENT, SCRIPT);
    let said = room.say("verify a.toml --store s.db", "");
    assert!(said.contains("session store `s.db` not found") && said.ends_with("exit 2\n"), "{said}");
    assert!(!room.path("s.db").exists());
    room.say("run a.toml -s s1 --store s.db look", "");
    let said = room.say("verify a.toml --store s.db", "");
    // One of them is the stored version of the agent file.
    assert!(said.starts_with("| no damage found: 2 sessions, 5 events and "), "{said}");
    let said = room.say("verify a.toml --store s.db --session s1", "");
    assert!(said.starts_with("head 5:DIGEST\n| no damage found: 1 session"), "{said}");
    let said = room.say("verify a.toml --store s.db --session s2", "");
    assert!(said.contains("session a/local/s2 not found") && said.ends_with("exit 2\n"), "{said}");

    let mut stored = std::fs::read(room.path("s.db")).unwrap();
    let reply = stored.windows(5).position(|bytes| bytes == b"Seen.").unwrap();
    stored[reply] = b'L';
    std::fs::write(room.path("s.db"), stored).unwrap();
    let said = room.say("verify a.toml --store s.db", "");
    assert!(said.contains("damaged: session a/local/s1") && said.ends_with("exit 1\n"), "{said}");
    let json = room.json("verify a.toml --store s.db --json");
    assert_eq!((&json["whole"], &json["faults"][0]["kind"]), (&false.into(), &"damaged".into()));
}

/// The head is noted elsewhere: what was there then is found to be there, and any change to it is seen.
#[test]
fn a_head_that_was_noted_shows_any_later_change() {
    let room = Room::new(AGENT, SCRIPT);
    room.say("run a.toml -s s1 look", "");
    // As a program reads it: `say` takes digests out of what it gives.
    let head = |line: &str| {
        let output = room.command(line).stdin(std::process::Stdio::null()).output().unwrap();
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        json["head"].as_str().unwrap().to_owned()
    };
    let noted = head("verify a.toml -s s1 --json");
    assert!(noted.starts_with("5:") && noted.len() == 66, "{noted}");
    assert_eq!(head("inspect a.toml -s s1 --json"), noted);
    let verify = |noted: &str| room.say(&format!("verify a.toml -s s1 --head {noted}"), "");
    let said = verify(&noted);
    assert!(said.starts_with("unchanged: the history ends in the head of version 5\n"), "{said}");
    assert!(said.contains("\nhead 5:DIGEST\n| no damage found") && !said.contains("exit"), "{said}");

    // What comes after it, also a rewind, leaves it there.
    room.say("run a.toml -s s1 'look again'", "");
    room.say("rewind a.toml -s s1 1", "");
    assert_ne!(head("inspect a.toml -s s1 --json"), noted);
    assert_eq!(head("inspect a.toml -s s1 --at 5 --json"), noted);
    let said = verify(&noted);
    let contained = "unchanged up to version 5: the history contains its head, 5 events before the newest\n";
    assert!(said.starts_with(contained) && !said.contains("exit"), "{said}");

    // A history of the same words that was created again is another one.
    room.say("delete a.toml -s s1", "");
    room.say("run a.toml -s s1 look", "");
    let said = verify(&noted);
    assert!(
        said.starts_with("changed: the history up to version 5 has another head than 5:DIGEST\n"),
        "{said}"
    );
    assert!(said.contains("| no damage found") && said.ends_with("exit 1\n"), "{said}");
    let json = room.json(&format!("verify a.toml -s s1 --json --head {noted}"));
    assert_eq!((&json["whole"], &json["expected"]["contained"]), (&true.into(), &false.into()));

    // One that was interrupted has no such version.
    let said = verify(&noted.replacen('5', "9", 1));
    assert!(said.starts_with("missing: the head of version 9 cannot be read: "), "{said}");
    assert!(said.contains("version 9 of session ") && said.ends_with("exit 1\n"), "{said}");
    for line in ["-s s1 --head 5", "-s s1 --head x:y", &format!("--head {noted}")] {
        let said = room.say(&format!("verify a.toml {line}"), "");
        assert!(said.ends_with("exit 2\n"), "{line}: {said}");
    }
}

#[test]
fn a_past_version_holds_what_the_store_says_whatever_the_agent_declares_today() {
    let level = |default: u8| {
        format!(
            "model = \"script:a.script\"\n[state.level]\ntype = \"integer\"\ndefault = {default}\n{AGENT}"
        )
    };
    let room = Room::new(AGENT, SCRIPT);
    room.write("a.toml", &level(1));
    room.say("run a.toml -s s1 --set level=5 look", "");
    room.say("state set a.toml level=6", "");
    room.write("a.toml", &level(2));
    let value = |line: &str| {
        let json = room.json(line);
        json["state"]["level"]["value"].clone()
    };
    assert_eq!(value("inspect a.toml --at 5 --json"), 5);
    assert_eq!(value("inspect a.toml --json"), 6);
    let diff = room.say("inspect a.toml --diff 5..6", "");
    assert!(diff.contains("level: 5 -> 6"), "{diff}");
}

#[test]
fn a_fork_goes_its_own_way_and_a_rewind_takes_back() {
    let room = room();
    room.check(
        "fork a.toml --at 5 --to f1",
        expect![[r#"
        f1
        | continue: stepfold chat a.toml --session f1
    "#]],
    );
    room.check(
        "run a.toml -s f1 'look elsewhere'",
        expect![[r#"
        Seen too.
        | session f1
        | > c3 see(number=3)
        |   c3: {"number":3}
        |   ~ seen: + [3] (3 items)
        | continue: stepfold chat a.toml --session f1
    "#]],
    );
    room.check(
        "rewind a.toml -s s1 5",
        expect![[r#"
        session s1 is as it was at version 5; that is version 10
    "#]],
    );
    room.check(
        "inspect a.toml -s s1",
        expect![[r#"
            session s1 of a/local, version 10
            head 10:DIGEST

                1  began     user:      look
                2  replied   assistant: > c1 see(number=1)   > c2 see(number=2)
                3  answered  (c1 see)
                4  answered  tool c1 see: {"number": 1}
                             tool c2 see: {"number": 2}
                             ~ seen: unset -> [1,2]
                5  replied   assistant: Seen.
               10  rewind    back to version 5

            seen = [1,2]  (version 4, merge_lists, the last of 2 writes)
        "#]],
    );
    room.check(
        "run a.toml -s s1 'once more'",
        expect![[r#"
        Seen too.
        | session s1
        | > c3 see(number=3)
        |   c3: {"number":3}
        |   ~ seen: + [3] (3 items)
        | continue: stepfold chat a.toml --session s1
    "#]],
    );
    let said = room.say("inspect a.toml -s s1 --all", "");
    assert!(said.contains("-   6  began     user:      look again"), "{said}");
    let said = room.say("sessions a.toml", "");
    let sessions: Vec<&str> = said.lines().filter_map(|line| line.split("  ").next()).collect();
    assert_eq!(sessions, ["s1", "f1"]);
    assert!(said.contains("forked from s1 at 5"), "{said}");
    room.check(
        "replay a.toml -s s1",
        expect![[r#"
            session s1: the same again, 2 runs
        "#]],
    );
    room.check(
        "replay a.toml -s f1",
        expect![[r#"
            session f1: the same again, 2 runs
        "#]],
    );
}

#[test]
fn a_replay_finds_where_a_changed_agent_goes_another_way() {
    let room = room();
    room.write("a.toml", &format!("model = \"script:a.script\"\ninstructions = \"Be brief.\"\n{AGENT}"));
    let said = room.say("replay a.toml", "");
    assert!(said.contains("differs at $.kind.began.instructions") && said.ends_with("exit 1\n"), "{said}");
}

/// A fork in the middle of a run is edited, and continues with what it was given.
#[test]
fn a_paused_run_is_edited_and_continues() {
    let room = room();
    room.say("fork a.toml --session s1 --at 4 --to f1", "");
    room.check(
        "state set a.toml --session f1 topic=markets",
        expect![[r#"
        session f1 is at version 5
    "#]],
    );
    room.check(
        "state set a.toml --session f1 --replace seen=[7]",
        expect![[r#"
        session f1 is at version 6
    "#]],
    );
    room.check(
        "result set a.toml --session f1 c1 100",
        expect![[r#"
        session f1 is at version 7
    "#]],
    );
    room.check(
        "result set a.toml --session f1 --error c9 'no such number'",
        expect![[r#"
        | error: unknown call `c9`; calls with a result: c1, c2
        exit 2
    "#]],
    );
    room.say("resume a.toml --session f1", "");
    room.check(
        "inspect a.toml --session f1",
        expect![[r#"
        session f1 of a/local, version 8
        head 8:DIGEST
        forked from s1 at version 4

            1  began     user:      look
            2  replied   assistant: > c1 see(number=1)   > c2 see(number=2)
            3  answered  (c1 see)
            4  answered  tool c1 see: {"number": 1}
                         tool c2 see: {"number": 2}
                         ~ seen: unset -> [1,2]
            5  edited    by local
                         ~ topic: unset -> "markets"
            6  edited    by local
                         ~ seen: [1,2] -> [7]
            7  edited    by local
                         tool c1 see: 100
            8  replied   assistant: Seen.

        seen = [7]  (version 6, replace_values, the last of 3 writes)
        topic = "markets"  (version 5, replace_values)
    "#]],
    );
    room.check(
        "replay a.toml --session f1",
        expect![[r#"
        session f1: the same again, 1 run
    "#]],
    );
    room.check(
        "result set a.toml --session f1 c1 1",
        expect![[r#"
        | error: invalid edit of call `c1`: no run is open; fork the session at a version within the run
        exit 2
    "#]],
    );
}

/// A fork with another result begins where that result was stored, and continues with it.
#[test]
fn a_fork_may_have_other_results() {
    let room = room();
    room.check(
        "fork a.toml -s s1 --to f1 --with c1=100 --with 'c2={\"number\": 200}'",
        expect![[r#"
        f1
        | continue: stepfold resume a.toml --session f1
    "#]],
    );
    room.say("resume a.toml --session f1", "");
    room.check(
        "inspect a.toml --session f1",
        expect![[r#"
        session f1 of a/local, version 6
        head 6:DIGEST
        forked from s1 at version 4

            1  began     user:      look
            2  replied   assistant: > c1 see(number=1)   > c2 see(number=2)
            3  answered  (c1 see)
            4  answered  tool c1 see: {"number": 1}
                         tool c2 see: {"number": 2}
                         ~ seen: unset -> [1,2]
            5  edited    by local
                         tool c1 see: 100
                         tool c2 see: {"number": 200}
            6  replied   assistant: Seen.

        seen = [1,2]  (version 4, merge_lists, the last of 2 writes)
    "#]],
    );
    room.check(
        "fork a.toml -s s1 --to f2 --with c9=1",
        expect![[r#"
        | error: unknown call `c9` of session s1; `stepfold inspect` shows the calls
        exit 2
    "#]],
    );
    // At a version where it cannot be, there is no fork either.
    room.check(
        "fork a.toml -s s1 --to f2 --at 2 --with c1=1",
        expect![[r#"
        | error: invalid edit of the result of call `c1`: it has not run yet; reject it, or let it run
        exit 2
    "#]],
    );
    room.check(
        "fork a.toml -s s1 --to f2 --with c1",
        expect![[r#"
        | error: `c1` is not of the form KEY=VALUE
        exit 2
    "#]],
    );
    let forks = room.say("forks a.toml -s s1", "");
    assert!(forks.starts_with("f1 ") && forks.lines().count() == 1, "{forks}");
}

/// The command that continues a fork depends on where its history ends.
#[test]
fn a_fork_says_how_it_continues() {
    let room = room();
    for (at, command) in [(2, "resume"), (3, "resume"), (5, "chat")] {
        let said = room.say(&format!("fork a.toml -s s1 --at {at} --to f{at}"), "");
        let expected = format!("f{at}\n| continue: stepfold {command} a.toml --session f{at}\n");
        assert_eq!(said, expected);
    }
}

#[test]
fn state_is_written_between_runs_by_its_handlers() {
    let room = room();
    room.check(
        "state set a.toml seen=[9] topic=markets",
        expect![[r#"
        session s1 is at version 10
    "#]],
    );
    room.check(
        "state get a.toml",
        expect![[r#"
        seen = [1,2,3,9]
        topic = "markets"
    "#]],
    );
    room.check(
        "state get a.toml topic",
        expect![[r#"
        "markets"
    "#]],
    );
    room.check(
        "state set a.toml seen=nine",
        expect![[r#"
        | error: invalid value for key "seen": expected integer, found string at $
        exit 2
    "#]],
    );
    room.check(
        "state set a.toml sen=[1]",
        expect![[r#"
        | error: unknown key "sen"; known keys: seen, topic, messages
        exit 2
    "#]],
    );
    room.check(
        "state set a.toml temp:x=1",
        expect![[r#"
        | error: `temp:x` is of one run and never stored; use `run --set` for it
        exit 2
    "#]],
    );
    room.check(
        "replay a.toml",
        expect![[r#"
            session s1: the same again, 2 runs
        "#]],
    );
}

#[test]
fn what_is_deleted_is_gone_and_is_never_guessed() {
    let room = Room::new(
        "[state.\"user:name\"]\ntype = \"string\"\n[tools.remember]\n\
         builtin = { name = \"remember\", keys = [\"user:name\"] }",
        "assistant: > c1 remember(key=\"user:name\", value=\"Ada\")\nassistant: Hello.",
    );
    room.say("run a.toml -s s1 hello", "");
    room.say("fork a.toml -s s1 --to s2", "");
    room.check(
        "delete a.toml",
        expect![[r#"
        | error: say which session is to be deleted, with --session ID
        exit 2
    "#]],
    );
    room.check(
        "delete a.toml -s s1",
        expect![[r#"
        session s1 is deleted, with 4 events
    "#]],
    );
    room.check(
        "delete a.toml -s s1",
        expect![[r#"
        | error: session a/local/s1 not found; `stepfold sessions a.toml` lists the existing ones
        exit 2
    "#]],
    );
    room.check(
        "state get a.toml -s s2",
        expect![[r#"
        user:name = "Ada"
    "#]],
    );
    room.check(
        "delete a.toml -s s2 --user-state",
        expect![[r#"
        session s2 is deleted, with 4 events and the user's values of user:name
    "#]],
    );
    room.check(
        "sessions a.toml",
        expect![[r#"
            | agent a has no session of user local yet; `stepfold run` begins one
        "#]],
    );
    room.say("run a.toml -s s3 --set user:name=Bea hello", "");
    room.check(
        "delete a.toml -s s3 --user-state --json",
        expect![[r#"
        {"events":4,"keys":[],"session":"s3","user_keys":["user:name"]}
    "#]],
    );
}
