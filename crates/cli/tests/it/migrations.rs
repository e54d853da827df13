//! The type of a key changes: the file says how stored values are migrated, and reading works in any case.

use expect_test::expect;

use crate::room::Room;

const COUNTER: &str =
    "[state.count]\ntype = \"integer\"\nhandler = \"sum\"\ndefault = 0\n[state.topic]\ntype = \"string\"\n";
const SCRIPT: &str = "assistant: One.\nassistant: Two.\nassistant: Three.\nassistant: Four.";

/// A session in which `count` is 3, and an agent that declares it like this.
fn changed(count: &str) -> Room {
    let room = Room::new(COUNTER, SCRIPT);
    room.say("run a.toml -s s1 --set count=3 --set topic=markets go", "");
    rewritten(&room, count);
    room
}

fn rewritten(room: &Room, count: &str) {
    let agent =
        format!("model = \"script:a.script\"\n[state.topic]\ntype = \"string\"\n[state.count]\n{count}");
    room.write("a.toml", &agent);
}

#[test]
fn reading_works_whatever_is_stored() {
    let room = changed("type = \"string\"");
    room.check("state get a.toml count", expect![[r#"
        3
        | invalid stored value of count: stored as integer, declared as string: expected string, found integer at $; see `migrate` of the agent file
    "#]]);
    room.check("state get a.toml", expect![[r#"
        count = 3
        topic = "markets"
        | invalid stored value of count: stored as integer, declared as string: expected string, found integer at $; see `migrate` of the agent file
    "#]]);
    room.check("inspect a.toml", expect![[r#"
        session s1 of a/local, version 2
        head 2:DIGEST

            1  began     user:      go
                         ~ count: 0 -> 3
                         ~ topic: unset -> "markets"
            2  replied   assistant: One.

        count = 3  (version 1, sum; stored as integer, declared as string: expected string, found integer at $; see `migrate` of the agent file)
        topic = "markets"  (version 1, replace_values)
    "#]]);
    room.check("inspect a.toml --at 1", expect![[r#"
        session s1 of a/local, version 1
        head 1:DIGEST

            1  began     user:      go
                         ~ count: 0 -> 3
                         ~ topic: unset -> "markets"

        count = 3  (version 1, sum; stored as integer, declared as string: expected string, found integer at $; see `migrate` of the agent file)
        topic = "markets"  (version 1, replace_values)
    "#]]);
    let said = room.say("sessions a.toml", "");
    assert!(said.starts_with("s1 "), "{said}");
    // What stands in the way of a run is said, with what can be done about it in the file.
    room.check("run a.toml -s s1 more", expect![[r#"
        | session s1
        | the message is not stored: send it again once the session continues
        | error: session a/local/s1: the store failed: incompatible stored value of key "count": stored as integer, opened as string: expected string, found integer at $; set its migration in the agent file: `migrate = ["text"]` under [state.count], for example, or `["drop"]`
        exit 1
    "#]]);
    // A value of the new type can be written in place of it, too.
    room.check(
        "state set a.toml count=three",
        expect![[r#"
        session s1 is at version 3
    "#]],
    );
    room.check(
        "run a.toml -s s1 more",
        expect![[r#"
        Two.
        | session s1
        | continue: stepfold chat a.toml --session s1
    "#]],
    );
}

#[test]
fn the_file_says_how_stored_values_are_migrated() {
    #[track_caller]
    fn check(count: &str, expected: &str) {
        let room = changed(count);
        assert_eq!(room.say("state get a.toml count", ""), expected, "{count}");
        let said = room.say("run a.toml -s s1 more", "");
        assert!(said.starts_with("Two.\n"), "{count}: {said}");
    }
    check("type = \"string\"\nmigrate = [\"text\"]", "\"3\"\n");
    check("type = \"array\"\nmigrate = [\"list\"]", "[3]\n");
    check("type = \"string\"\ndefault = \"none\"\nmigrate = [\"number\", \"default\"]", "\"none\"\n");
    check("type = \"string\"\ndefault = \"none\"\nmigrate = [\"drop\"]", "\"none\"\n");
    check("type = \"string\"\nmigrate = [\"drop\"]", "| count is not set\nexit 1\n");
}

#[test]
fn a_migrated_value_is_shown_with_what_is_stored() {
    let room = changed("type = \"string\"\nmigrate = [\"json\", \"text\"]");
    room.check(
        "inspect a.toml",
        expect![[r#"
            session s1 of a/local, version 2
            head 2:DIGEST

                1  began     user:      go
                             ~ count: 0 -> 3
                             ~ topic: unset -> "markets"
                2  replied   assistant: One.

            count = 3  (version 1, sum; the agent sees "3")
            topic = "markets"  (version 1, replace_values)
        "#]],
    );
    room.say("run a.toml -s s1 --set count=four more", "");
    room.check(
        "state get a.toml count",
        expect![[r#"
        "four"
    "#]],
    );
    // And back again: the first conversion whose result fits.
    rewritten(&room, "type = \"integer\"\nmigrate = [\"number\", \"first\"]");
    let said = room.say("run a.toml -s s1 more", "");
    assert!(
        said.contains(
            "no conversion of number, first fits the stored value; add \"drop\" or \"default\" to its `migrate`"
        ),
        "{said}"
    );
}

#[test]
fn what_is_wrong_with_a_migration_has_its_line() {
    let room = Room::new("", "");
    room.write("f.toml", "[state.a]\ntype = \"string\"\nmigrate = [\"default\", \"words\"]\n");
    room.write("g.toml", "[state.a]\ntype = \"string\"\nmigrate = [\"default\"]\n");
    room.check(
        "check f.toml g.toml",
        expect![[r#"
            f.toml:3:1: conversion `default` requires a default: add `default` to the key
            f.toml:3:23: expected one of text, number, json, list, first, default, drop
            g.toml:3:1: conversion `default` requires a default: add `default` to the key
            exit 2
        "#]],
    );
}
