//! A worker: brings runs of all users to their end.

use expect_test::expect;

use crate::room::Room;

#[test]
fn what_failed_is_brought_to_its_end() {
    // The model does not answer.
    let room = Room::new("", "");
    for user in ["ada", "bob"] {
        assert!(room.say(&format!("run a.toml --user {user} -s s1 hello"), "").contains("exit 1"));
    }
    room.write("a.script", "assistant: hi");
    room.check(
        "work a.toml --once --parallel 1",
        expect![[r"
            ada/s1 worked in, up to version 3
            bob/s1 worked in, up to version 3
        "]],
    );
    // Nothing is left.
    room.check("work a.toml --once", expect![""]);
    assert!(room.say("inspect a.toml --user bob -s s1", "").contains("assistant: hi"));
}

#[test]
fn it_is_about_all_sessions() {
    let room = Room::new("", "");
    room.check(
        "work a.toml -s s1",
        expect![[r"
            | error: `work` is about all sessions: leave `--session` out
            exit 2
        "]],
    );
}
