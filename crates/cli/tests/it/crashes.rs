//! The command is killed in the middle, and continues.

use std::io::{BufRead as _, BufReader};
use std::process::Command;

use expect_test::expect;

use crate::room::{Room, json_lines};

const SCRIPT: &str = "assistant: > c1 slow()\nassistant: Done.";

/// Kills a run while its tool works, and lets the tool end.
pub(crate) fn killed(effect: &str) -> Room {
    killed_in(effect, SCRIPT)
}

fn killed_in(effect: &str, script: &str) -> Room {
    ended_by("-KILL", effect, script).0
}

/// Sends a signal to a run while its tool works, and lets the tool end once the command has.
fn ended_by(signal: &str, effect: &str, script: &str) -> (Room, Option<i32>) {
    let agent = format!(
        "[tools.slow]\ndescription = \"Takes long.\"\neffect = \"{effect}\"\n\
         command = {{ argv = [\"sh\", \"-c\", \"echo x >> runs; test -e go || read line < gate; echo ran\"] }}\n\
         [tools.now]\nbuiltin = {{ name = \"clock\" }}\napproval = \"always\""
    );
    let room = Room::new(&agent, script);
    assert!(Command::new("mkfifo").arg(room.path("gate")).status().unwrap().success());
    let mut child = room.command("run a.toml -s s1 go").spawn().unwrap();
    let mut notes = BufReader::new(child.stderr.take().unwrap()).lines();
    notes.find(|line| line.as_ref().unwrap().contains("> c1 slow()")).unwrap().unwrap();
    // It opens when the tool does: the tool is at work then.
    let gate = std::fs::OpenOptions::new().write(true).open(room.path("gate")).unwrap();
    send(signal, &child);
    let status = child.wait().unwrap();
    room.write("go", "");
    drop(gate);
    (room, status.code())
}

fn send(signal: &str, child: &std::process::Child) {
    assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
}

#[test]
fn what_may_run_again_does() {
    let room = killed("idempotent");
    room.check(
        "resume a.toml",
        expect![[r#"
            Done.
            | session s1
            | continues with "go", interrupted in step 1 with c1 slow() open
            | > c1 slow()
            |   c1: ran
        "#]],
    );
    assert_eq!(std::fs::read_to_string(room.path("runs")).unwrap(), "x\nx\n");
    room.check(
        "resume a.toml",
        expect![[r#"
            | session s1
            | error: session a/local/s1: nothing to resume: no run is interrupted or paused
            exit 2
        "#]],
    );
}

#[test]
fn what_must_not_run_twice_does_not() {
    let room = killed("at_most_once");
    room.check("resume a.toml", expect![[r#"
        Done.
        | session s1
        | continues with "go", interrupted in step 1 with c1 slow() open
        | outcome unknown: c1 slow() had started when the process was interrupted, and was not run again; look whether it happened
    "#]]);
    assert_eq!(std::fs::read_to_string(room.path("runs")).unwrap(), "x\n");
    room.check("inspect a.toml", expect![[r#"
        session s1 of a/local, version 5
        head 5:DIGEST

            1  began     user:      go
            2  replied   assistant: > c1 slow()
            3  started   starts c1
            4  interrupted tool c1 slow!: tool 'slow' had started when the process was interrupted: its outcome is unknown, and it was not run again
            5  replied   assistant: Done.

    "#]]);
}

/// The next message finishes the interrupted run first. Its call is not hidden by that, and its reply is not given out
/// as the reply to the message.
#[test]
fn the_next_message_tells_what_is_unknown_of_the_run_before_it() {
    let script = format!("{SCRIPT}\nassistant: You are welcome.");
    let said = killed_in("at_most_once", &script).say("run a.toml -s s1 thanks", "");
    assert!(said.starts_with("You are welcome.\n| session s1\n") && !said.contains("exit"), "{said}");
    assert!(
        said.contains("| earlier reply: Done.\n") && said.contains("| outcome unknown: c1 slow()"),
        "{said}"
    );

    let said = killed_in("at_most_once", &script).say("run a.toml -s s1 thanks --json", "");
    let lines = json_lines(&said);
    let outcome = &lines.last().unwrap()["outcome"];
    assert_eq!((&outcome["text"], &outcome["unknown"][0]["id"]), (&"You are welcome.".into(), &"c1".into()));
    let events = lines.iter().filter(|line| line.get("event").is_some());
    let earlier: Vec<bool> = events.map(|line| line.get("earlier").is_some()).collect();
    assert!(earlier.is_sorted_by(|one, next| one >= next) && earlier[0] && !earlier[earlier.len() - 1]);
}

#[test]
fn what_is_unknown_of_the_run_before_is_reported_also_when_the_message_fails_or_waits() {
    // The script has no reply for the message.
    let said = killed("at_most_once").say("run a.toml -s s1 thanks", "");
    assert!(
        said.contains("| earlier reply: Done.") && said.contains("| outcome unknown: c1 slow()"),
        "{said}"
    );
    assert!(said.contains("| error: the run failed") && said.ends_with("exit 1\n"), "{said}");

    let script = "assistant: > c1 slow()\nassistant: > c2 now()\nassistant: Done.";
    let said = killed_in("at_most_once", script).say("run a.toml -s s1 thanks", "");
    assert!(
        said.contains("| outcome unknown: c1 slow()") && said.contains("decide about c2#DIGEST"),
        "{said}"
    );
    assert!(said.ends_with("exit 3\n"), "{said}");
}

#[test]
fn what_is_unknown_of_the_run_before_is_reported_also_after_a_decision() {
    let script = "assistant: > c1 slow()\nassistant: Done.\nassistant: > c2 now()\nassistant: Thanks.";
    let said = killed_in("at_most_once", script).say("run a.toml -s s1 --interactive thanks", "y\n");
    assert!(said.starts_with("Thanks.\n") && !said.contains("exit"), "{said}");
    assert_eq!(said.matches("| outcome unknown: c1 slow()").count(), 1, "{said}");
    let said = killed_in("at_most_once", script).say("run a.toml -s s1 --interactive --json thanks", "y\n");
    assert_eq!(said.matches("{\"unknown\":[{\"arguments\":{},\"id\":\"c1\"").count(), 1, "{said}");
}

#[test]
fn sessions_say_which_wait_and_which_were_interrupted() {
    let room = killed("at_most_once");
    let said = |line: &str| room.say(line, "");
    let statuses = |said: &str| {
        let sessions: serde_json::Value = serde_json::from_str(said).unwrap();
        let sessions = sessions.as_array().unwrap().iter();
        sessions.map(|session| session["status"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert!(said("sessions a.toml").contains(", interrupted"), "{}", said("sessions a.toml"));
    assert_eq!(statuses(&said("sessions a.toml --json")), ["interrupted"]);
    said("resume a.toml");
    assert_eq!(statuses(&said("sessions a.toml --json")), ["idle"]);

    let room = Room::new(
        "[tools.now]\nbuiltin = { name = \"clock\" }\napproval = \"always\"",
        "assistant: > c1 now()\nassistant: Now.",
    );
    room.say("run a.toml -s s1 go", "");
    let said = room.say("sessions a.toml", "");
    assert!(said.contains(", waits for a decision about c1"), "{said}");
    room.say("resume a.toml --approve c1 --by 'Ada Lovelace'", "");
    assert_eq!(statuses(&room.say("sessions a.toml --json", "")), ["idle"]);
}

#[test]
fn a_decision_is_stored_with_who_made_it() {
    for (words, env, by) in [(" --by Ada", "bea", "Ada"), ("", "bea", "bea"), ("", "", "local")] {
        let room = Room::new(
            "[tools.now]\nbuiltin = { name = \"clock\" }\napproval = \"always\"",
            "assistant: > c1 now()\nassistant: Now.",
        );
        room.say("run a.toml -s s1 go", "");
        let mut command = room.command(&format!("resume a.toml --approve c1{words}"));
        assert!(command.env("USER", env).output().unwrap().status.success());
        let said = room.say("resume a.toml --reject c1=no", "");
        assert!(said.contains(&format!(" is already decided by {by}: approved, at 20")), "{said}");
    }
}

/// A run whose tool waits at a gate: the process, and the gate.
fn at_work(effect: &str) -> (Room, std::process::Child, std::fs::File) {
    let agent = format!(
        "open_state = true\n[tools.slow]\ndescription = \"Takes long.\"\neffect = \"{effect}\"\n\
         command = {{ argv = [\"sh\", \"-c\", \"read line < gate; echo ran\"] }}"
    );
    let room = Room::new(&agent, &format!("{SCRIPT}\nassistant: Done again."));
    assert!(Command::new("mkfifo").arg(room.path("gate")).status().unwrap().success());
    let child = room.command("run a.toml -s s1 go").spawn().unwrap();
    // It opens when the tool does: the tool is at work then.
    let gate = std::fs::OpenOptions::new().write(true).open(room.path("gate")).unwrap();
    (room, child, gate)
}

#[test]
fn a_session_that_another_process_works_in_is_refused_or_taken_over() {
    let (room, child, gate) = at_work("at_most_once");
    let said = room.say("sessions a.toml", "");
    assert!(said.contains(", running"), "{said}");
    let said = room.say("resume a.toml --when-claimed refuse", "");
    assert!(said.contains("session a/local/s1: claimed by worker process "), "{said}");
    assert!(said.contains("`stepfold resume a.toml --session s1 --when-claimed take-over`"), "{said}");
    assert!(said.ends_with("exit 1\n"), "{said}");
    let said = room.say("resume a.toml --when-claimed take-over", "");
    assert!(said.contains("outcome unknown: c1 slow()") && said.starts_with("Done."), "{said}");
    drop(gate);
    let output = child.wait_with_output().unwrap();
    let notes = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{notes}");
    assert!(notes.contains("claim lost: another worker took over"), "{notes}");
}

#[test]
fn a_message_waits_until_the_process_that_is_at_work_has_ended() {
    let (room, first, gate) = at_work("idempotent");
    let mut second = room.command("run a.toml -s s1 again").spawn().unwrap();
    let mut notes = BufReader::new(second.stderr.take().unwrap()).lines();
    assert_eq!(notes.next().unwrap().unwrap(), "session s1");
    drop(gate);
    assert!(first.wait_with_output().unwrap().status.success());
    let output = second.wait_with_output().unwrap();
    let notes: Vec<String> = notes.map(Result::unwrap).collect();
    assert!(output.status.success(), "{notes:?}");
    let log = room.say("inspect a.toml", "");
    let (asked, answered) = (log.find("user:      again"), log.find("assistant: Done again."));
    assert!(asked.is_some() && asked < answered, "{log}");
}

#[test]
fn an_interrupt_answers_open_calls_and_the_session_can_be_used() {
    let agent = "[tools.slow]\ndescription = \"Takes long.\"\n\
                 command = { argv = [\"sh\", \"-c\", \"read line < gate\"] }";
    let room = Room::new(agent, SCRIPT);
    assert!(Command::new("mkfifo").arg(room.path("gate")).status().unwrap().success());
    let child = room.command("run a.toml -s s1 go").spawn().unwrap();
    // It opens when the tool does: the tool is at work then.
    let _gate = std::fs::OpenOptions::new().write(true).open(room.path("gate")).unwrap();
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let notes = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{notes}");
    assert!(notes.contains("the run ended: the run was cancelled"), "{notes}");
    room.check(
        "run a.toml -s s1 again",
        expect![[r#"
        Done.
        | session s1
        | continue: stepfold chat a.toml --session s1
    "#]],
    );
}

/// `/proc` tells whether the process of a claim is dead.
#[cfg(target_os = "linux")]
#[test]
fn what_a_killed_process_left_is_free_at_once() {
    let room = killed("idempotent");
    assert!(room.say("sessions a.toml", "").contains(", interrupted"));
    let said = room.say("resume a.toml --when-claimed refuse", "");
    assert!(said.starts_with("Done.\n"), "{said}");
}

#[test]
fn a_process_that_is_told_to_end_leaves_its_session_to_others() {
    for (signal, status) in [("-TERM", 143), ("-HUP", 129)] {
        if signal == "-HUP" && !cfg!(target_os = "linux") {
            continue;
        }
        let (room, ended) = ended_by(signal, "idempotent", SCRIPT);
        assert_eq!(ended, Some(status));
        let stored = room.say("sessions a.toml --json", "");
        assert!(stored.contains(r#""status":"interrupted""#), "{stored}");
        let said = room.say("resume a.toml --when-claimed refuse", "");
        assert!(said.starts_with("Done.\n"), "{said}");
    }
}

#[test]
fn a_process_that_is_told_to_end_names_the_session_that_continues() {
    let (_room, child, gate) = at_work("idempotent");
    send("-TERM", &child);
    let output = child.wait_with_output().unwrap();
    drop(gate);
    let notes = String::from_utf8(output.stderr).unwrap();
    assert!(notes.ends_with("continue with\n  stepfold resume a.toml --session s1\n"), "{notes}");
}

/// A stopped process is alive: no other process reports the outcome of its call as unknown.
#[test]
fn a_process_that_is_stopped_for_a_while_keeps_its_session() {
    let (room, child, gate) = at_work("at_most_once");
    send("-STOP", &child);
    // tidy: allow sleep, because it is about a process that does nothing for longer than a claim once held.
    std::thread::sleep(std::time::Duration::from_secs(3));
    let said = room.say("resume a.toml --when-claimed refuse", "");
    assert!(said.contains("session a/local/s1: claimed by worker process "), "{said}");
    send("-CONT", &child);
    drop(gate);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let log = room.say("inspect a.toml", "");
    assert!(log.contains("tool c1 slow:") && !log.contains("unknown"), "{log}");
}

/// A blocked output blocks neither the run nor its heartbeat.
#[test]
fn a_pipe_without_a_reader_does_not_block_a_run() {
    let room = Room::new("", &format!("assistant: {}\n", "many words ".repeat(100_000)));
    let mut child = room.command("run a.toml -s s1 go").spawn().unwrap();
    let stored = || room.say("sessions a.toml --json", "");
    let has_ended = |stored: &str| stored.contains(r#""status":"idle""#) && stored.contains(r#""version":2"#);
    while !has_ended(&stored()) {
        assert_eq!(child.try_wait().unwrap(), None, "it ended before it was read");
    }
    let text = child.wait_with_output().unwrap().stdout;
    assert!(text.len() > 1_000_000, "{}", text.len());
}

#[test]
fn a_session_that_another_process_works_in_is_deleted_or_rewound_only_by_taking_it_over() {
    let (room, child, gate) = at_work("at_most_once");
    for line in ["delete a.toml -s s1 --when-claimed refuse", "rewind a.toml --when-claimed refuse 1"] {
        let said = room.say(line, "");
        assert!(said.contains("session a/local/s1: claimed by worker process "), "{line}: {said}");
        assert!(
            said.contains("with `--when-claimed take-over`") && said.ends_with("exit 1\n"),
            "{line}: {said}"
        );
    }
    let said = room.say("state set a.toml k=1", "");
    assert!(
        said.contains("session a/local/s1 is claimed by process ") && said.ends_with("exit 1\n"),
        "{said}"
    );
    let said = room.say("delete a.toml -s s1 --when-claimed take-over", "");
    assert!(said.starts_with("session s1 is deleted"), "{said}");
    drop(gate);
    assert!(!child.wait_with_output().unwrap().status.success());
}
