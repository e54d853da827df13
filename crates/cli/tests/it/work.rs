//! A worker: brings runs of all users to their end, but for those that would fail again.

use expect_test::expect;

use crate::room::Room;

#[test]
fn a_run_that_would_fail_again_is_left_to_a_person() {
    // The model refuses the request.
    let room = Room::new("", "");
    for user in ["ada", "bob"] {
        assert!(room.say(&format!("run a.toml --user {user} -s s1 hello"), "").contains("exit 1"));
    }
    room.write("a.script", "assistant: hi");
    room.check("work a.toml --once --parallel 1", expect![""]);
    assert!(!room.say("inspect a.toml --user bob -s s1", "").contains("assistant: hi"));
    // Resumed by hand, it continues.
    room.say("resume a.toml --user bob -s s1", "");
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
