//! `[retention]` and `stepfold retain`: what they list, what they delete, and what keeps it.

use expect_test::expect;

use crate::room::{Room, json_lines};

/// A store with a session of two turns, and another one, under a policy.
fn room(policy: &str) -> Room {
    let room = Room::new(policy, "assistant: noted\nassistant: hello\n");
    room.say("run a.toml -s s1 --store s.db 555-0199", "");
    room.say("run a.toml -s s1 --store s.db hi", "");
    room.say("run a.toml -s s2 --store s.db hi", "");
    room
}

fn output(room: &Room, line: &str) -> String {
    let output = room.command(&format!("{line} --store s.db --json")).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

fn is_in_file(room: &Room, text: &str) -> bool {
    let bytes = std::fs::read(room.path("s.db")).unwrap();
    bytes.windows(text.len()).any(|part| part == text.as_bytes())
}

#[test]
fn idle_sessions_are_listed_and_then_deleted() {
    let room = room("[retention]\nidle_days = 0\n");
    room.say("label set a.toml mine -s s2 --store s.db", "");
    let planned = output(&room, "retain a.toml --dry-run");
    expect![[r#"
        {"action":"deleted","count":4,"session":"s1","user":"local"}
        {"action":"ended","deleted":1,"dry_run":true,"events":4,"failed":0,"kept":1,"scanned":2,"vacuumed":false,"withdrawn":0}
    "#]]
    .assert_eq(&planned);
    assert!(is_in_file(&room, "555-0199"));
    let done = output(&room, "retain a.toml --vacuum");
    expect![[r#"
        {"action":"deleted","count":4,"session":"s1","user":"local"}
        {"action":"ended","deleted":1,"dry_run":false,"events":4,"failed":0,"kept":1,"scanned":2,"vacuumed":true,"withdrawn":0}
    "#]]
    .assert_eq(&done);
    assert!(!is_in_file(&room, "555-0199"));
    let listed = output(&room, "sessions a.toml");
    assert!(listed.contains("s2") && !listed.contains("s1"), "{listed}");
    assert!(output(&room, "verify a.toml").contains("\"whole\":true"));
}

#[test]
fn old_events_are_listed_by_a_dry_run() {
    for rule in ["events = 2", "event_days = 0"] {
        let room = room(&format!("[retention]\n{rule}\n"));
        let before = std::fs::read(room.path("s.db")).unwrap();
        let planned = output(&room, "retain a.toml --dry-run");
        assert!(planned.contains(r#"{"action":"pruned","count":"#), "{rule}: {planned}");
        assert!(planned.contains(r#""failed":0"#), "{rule}: {planned}");
        assert_eq!(std::fs::read(room.path("s.db")).unwrap(), before, "{rule}");
    }
}

#[test]
fn old_events_go_and_the_conversation_goes_on() {
    let room = room("[retention]\nevents = 2\n");
    let said = room.say("retain a.toml --store s.db", "");
    assert!(said.contains("local/s1: pruned, 2 events"), "{said}");
    let said = room.say("run a.toml -s s1 --store s.db again", "");
    assert!(said.contains("noted") || said.contains("hello"), "{said}");
}

/// An agent that asks before it pays.
const CLERK: &str = "[retention]\nidle_days = 0\n[tools.pay]\ndescription = \"Pays.\"\napproval = \"always\"\n\
                     command = { argv = [\"echo\", \"paid\"] }\n";

/// A store with a run that waits, a session with a label, and two more.
fn clerk() -> Room {
    let room = Room::new(CLERK, "assistant: > c1 pay()\n");
    room.say("run a.toml -s waiting --store s.db go", "");
    room.write("a.script", "assistant: noted\n");
    for id in ["s1", "s2", "labelled"] {
        room.say(&format!("run a.toml -s {id} --store s.db 555-0199"), "");
    }
    room.say("label set a.toml mine -s labelled --store s.db", "");
    room
}

/// The ids of deleted sessions, in order.
fn deleted(lines: &str) -> Vec<String> {
    let lines = json_lines(lines).into_iter().filter(|line| line["action"] == "deleted");
    let mut ids: Vec<String> = lines.filter_map(|line| line["session"].as_str().map(str::to_owned)).collect();
    ids.sort();
    ids
}

/// A worker and a server apply the retention: what a dry run has listed goes, and a run that waits stays.
#[test]
fn workers_and_servers_remove_what_a_dry_run_lists() {
    for line in ["work a.toml", "serve a.toml --bind 127.0.0.1:0"] {
        let room = clerk();
        assert_eq!(deleted(&output(&room, "retain a.toml --dry-run")), ["s1", "s2"]);
        let mut process = room.command(&format!("{line} --store s.db")).spawn().unwrap();
        let mut polls = 0;
        let left = loop {
            let left = output(&room, "sessions a.toml");
            if !["s1", "s2"].iter().any(|id| left.contains(&format!("\"{id}\""))) {
                break left;
            }
            polls += 1;
            assert!(polls < 500, "{line} has removed nothing: {left}");
        };
        process.kill().unwrap();
        process.wait().unwrap();
        assert!(left.contains("\"waiting\"") && left.contains("\"labelled\""), "{line}: {left}");
        assert!(output(&room, "verify a.toml").contains("\"whole\":true"));
    }
}

/// Two passes at once delete each session once. One of them may find that the other is under way.
#[test]
fn two_processes_delete_what_one_would() {
    let room = clerk();
    let started = [(), ()].map(|()| room.command("retain a.toml --store s.db --json").spawn().unwrap());
    let mut gone = Vec::new();
    for process in started {
        let output = process.wait_with_output().unwrap();
        let told = String::from_utf8([&*output.stdout, &*output.stderr].concat()).unwrap();
        assert!(
            output.status.success() || told.contains("another process applies the retention"),
            "{}: {told}",
            output.status
        );
        gone.extend(deleted(&String::from_utf8(output.stdout).unwrap()));
    }
    gone.sort();
    assert_eq!(gone, ["s1", "s2"]);
    assert!(output(&room, "verify a.toml").contains("\"whole\":true"));
}

#[test]
fn a_policy_without_a_rule_is_a_fault_and_a_file_without_a_policy_too() {
    let room = Room::new("[retention]\ninclude_waiting = true\n", "assistant: noted\n");
    let said = room.say("check a.toml", "");
    assert!(said.contains("missing rule: expected `idle_days`"), "{said}");
    for (invalid, fault) in [
        ("idle_days = -1", "invalid value: integer `-1`, expected 0 to 4294967295"),
        ("idle_days = 5000000000", "invalid value: integer `5000000000`, expected 0 to 4294967295"),
        ("event_days = 1.5", "expected integer, found fractional number"),
        ("message_days = \"7\"", "expected integer, found string"),
        ("events = -1", "invalid value: integer `-1`, expected 0 or more"),
    ] {
        let said =
            Room::new(&format!("[retention]\n{invalid}\n"), "assistant: noted\n").say("check a.toml", "");
        assert!(said.contains(fault) && !said.contains("missing rule"), "{invalid}: {said}");
    }
    let room = Room::new("", "assistant: noted\n");
    room.say("run a.toml -s s1 --store s.db hi", "");
    for (line, fault) in [
        ("retain a.toml", "has no `[retention]`"),
        ("retain a.toml -s s1", "leave `--session` out"),
        ("retain a.toml --dry-run --vacuum", "--vacuum"),
    ] {
        let said = room.say(&format!("{line} --store s.db"), "");
        assert!(said.contains(fault), "{line}: {said}");
    }
}
