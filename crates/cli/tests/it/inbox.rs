//! Messages that are sent while a decision waits, or while another process is at work in the session: they are stored,
//! refused or withdrawn, and it is told which.

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::process::{Child, ChildStderr, ChildStdin, Command, Stdio};

use expect_test::expect;

use crate::room::{Room, without_workers};

/// `slow` works until the gate is closed, and `pay` needs an approval.
const AGENT: &str = r#"
[tools.slow]
description = "Takes long."
effect = "idempotent"
command = { argv = ["sh", "-c", "test -e go || read line < gate; echo ran"] }

[tools.pay]
description = "Pays a bill."
approval = "always"
parameters = { properties = { euro = { type = "integer" } }, required = ["euro"] }
command = { argv = ["echo", "paid"] }
"#;

/// A command that is at work: its tool holds the gate.
struct AtWork {
    room: Room,
    first: Child,
    gate: File,
}

fn at_work(script: &str) -> AtWork {
    at_work_as(AGENT, script)
}

fn at_work_as(agent: &str, script: &str) -> AtWork {
    let room = Room::new(agent, script);
    assert!(Command::new("mkfifo").arg(room.path("gate")).status().unwrap().success());
    let first = room.command("run a.toml -s s1 go").spawn().unwrap();
    let gate = gate_of(&room);
    AtWork { room, first, gate }
}

/// The gate of the tool that is at work: it opens when the tool does.
fn gate_of(room: &Room) -> File {
    OpenOptions::new().write(true).open(room.path("gate")).unwrap()
}

impl AtWork {
    /// Starts a second command, and waits until it says that it waits.
    fn second(&self, line: &str, input: &str) -> Second {
        let (child, mut stdin) = self.start(line);
        stdin.write_all(input.as_bytes()).unwrap();
        drop(stdin);
        Second::that_waits(child)
    }

    /// Starts a second command, and waits until it says that it waits: it reads what is written later.
    fn second_that_reads(&self, line: &str) -> (Second, ChildStdin) {
        let (child, stdin) = self.start(line);
        (Second::that_waits(child), stdin)
    }

    fn start(&self, line: &str) -> (Child, ChildStdin) {
        let mut child = self.room.command(line).spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        (child, stdin)
    }

    /// Waits until a message stands in the inbox.
    fn until_stored(&self) {
        while !self.room.say("sessions a.toml", "").contains(", 1 message in the inbox") {}
    }

    /// Lets the first command end. The room has to be kept as long as another command is at work in it.
    #[must_use]
    fn ends(self) -> (Room, String) {
        let AtWork { room, first, gate } = self;
        drop(gate);
        (room, told(first))
    }
}

struct Second {
    child: Child,
    notes: Lines<BufReader<ChildStderr>>,
}

impl Second {
    fn that_waits(mut child: Child) -> Self {
        let mut notes = BufReader::new(child.stderr.take().unwrap()).lines();
        assert_eq!(notes.next().unwrap().unwrap(), "session s1");
        let waits = notes.next().unwrap().unwrap();
        assert!(waits.contains(" is at work in the session, until "), "{waits}");
        assert!(waits.ends_with(" at least; waiting for it, for two minutes at most"), "{waits}");
        Second { child, notes }
    }

    fn told(self) -> String {
        let output = self.child.wait_with_output().unwrap();
        let notes = marked(self.notes.map(Result::unwrap));
        let text = String::from_utf8(output.stdout).unwrap();
        without_workers(&format!("{text}{notes}exit {}\n", output.status.code().unwrap()))
    }
}

/// What was said on standard error, as [`Room::say`] marks it.
fn marked(notes: impl Iterator<Item = String>) -> String {
    notes.fold(String::new(), |text, line| text + "| " + &line + "\n")
}

fn told(child: Child) -> String {
    let output = child.wait_with_output().unwrap();
    let (text, notes) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    let notes = marked(notes.lines().map(str::to_owned));
    without_workers(&format!("{text}{notes}exit {}\n", output.status.code().unwrap()))
}

const TWO: &str = "assistant: > c1 slow()\nassistant: Done.\nassistant: Done again.";

#[test]
fn a_message_is_stored_and_answered_by_its_own_command_once_the_other_one_has_ended() {
    let work = at_work(TWO);
    let second = work.second("run a.toml -s s1 again", "");
    work.until_stored();
    let shown = work.room.say("inspect a.toml", "");
    assert!(shown.contains("\nstored, not answered yet: again\n"), "{shown}");
    let sessions = work.room.json("sessions a.toml --json");
    let of = |field: &str| sessions[0][field].clone();
    assert_eq!((of("status"), of("inbox")), ("running".into(), 1.into()));
    assert!(of("worker").as_str().unwrap().starts_with("process-"), "{sessions}");
    let (room, first) = work.ends();
    expect![[r#"
        Done.
        | session s1
        | > c1 slow()
        |   c1: ran
        | continue: stepfold chat a.toml --session s1
        exit 0
    "#]]
    .assert_eq(&first);
    expect![[r#"
        Done again.
        | continue: stepfold chat a.toml --session s1
        exit 0
    "#]]
    .assert_eq(&second.told());
    room.check(
        "inspect a.toml",
        expect![[r#"
            session s1 of a/local, version 6
            head 6:DIGEST

                1  began     user:      go
                2  replied   assistant: > c1 slow()
                3  answered  tool c1 slow: ran
                4  replied   assistant: Done.
                5  began     user:      again
                6  replied   assistant: Done again.

        "#]],
    );
    assert!(!room.say("sessions a.toml", "").contains("stored"));
}

#[test]
fn a_message_that_is_stored_stays_so_while_the_other_run_waits_for_a_decision() {
    let work =
        at_work("assistant: > c1 slow()\nassistant: > p1 pay(euro=5)\nassistant: Paid.\nassistant: Yes.");
    let second = work.second("run a.toml -s s1 'is it done?'", "");
    work.until_stored();
    let (room, first) = work.ends();
    assert!(first.ends_with("exit 3\n"), "{first}");
    expect![[r#"
        | decide about p1#DIGEST: pay {"euro":5}
        | the run waits for a decision, and is stored; decide with
        |   stepfold resume a.toml --session s1 --approve p1#DIGEST
        |   stepfold resume a.toml --session s1 --reject p1#DIGEST=REASON
        |   stepfold resume a.toml --session s1 --modify p1#DIGEST=JSON
        | the message is stored, and is answered once the run before it has ended
        exit 3
    "#]]
    .assert_eq(&crate::room::without_digests(&second.told()));
    let said = room.say("sessions a.toml", "");
    assert!(said.contains(", waits for a decision about p1#DIGEST, 1 message in the inbox"), "{said}");
    // The process that decides continues the run.
    room.check(
        "resume a.toml --approve p1",
        expect![[r#"
        Paid.
        Yes.
        | session s1
        | continues with "go", which waits in step 2 for a decision about p1#DIGEST
        | > p1 pay(euro=5)
        |   p1: paid
        | continues with a message that was stored: "is it done?"
    "#]],
    );
    assert!(!room.say("sessions a.toml", "").contains("stored"));
}

#[test]
fn a_message_that_is_stored_is_answered_once_its_sender_has_decided() {
    let work =
        at_work("assistant: > c1 slow()\nassistant: > p1 pay(euro=5)\nassistant: Paid.\nassistant: Yes.");
    let second = work.second("run a.toml -s s1 --interactive 'is it done?'", "y\n");
    work.until_stored();
    let (room, _) = work.ends();
    expect![[r#"
        Yes.
        | the message is not taken yet: the session waits for a decision; decide first
        | decide about p1#DIGEST: pay {"euro":5}
        | > p1 pay(euro=5)
        |   p1: paid
        | earlier reply: Paid.
        | continue: stepfold chat a.toml --session s1
        exit 0
    "#]]
    .assert_eq(&crate::room::without_digests(&second.told()));
    assert!(!room.say("sessions a.toml", "").contains("stored"));
}

/// Another process decides while the sender is prompted, and takes the message too.
#[test]
fn a_message_that_another_process_takes_is_answered_by_its_own_command_as_well() {
    let work =
        at_work("assistant: > c1 slow()\nassistant: > p1 pay(euro=5)\nassistant: Paid.\nassistant: Yes.");
    let (mut second, mut stdin) = work.second_that_reads("run a.toml -s s1 --interactive 'is it done?'");
    work.until_stored();
    let (room, _) = work.ends();
    second.notes.find(|line| line.as_ref().unwrap().starts_with("decide about ")).unwrap().unwrap();
    let said = room.say("resume a.toml --approve p1 --by ada", "");
    assert!(said.starts_with("Paid.\nYes.\n"), "{said}");
    stdin.write_all(b"y\n").unwrap();
    let said = second.told();
    assert!(said.starts_with("Yes.\n") && said.ends_with("exit 0\n"), "{said}");
    assert!(said.contains("is already decided by ada: approved"), "{said}");
    let said = room.say("inspect a.toml", "");
    assert_eq!(said.matches("is it done?").count(), 1, "{said}");
}

#[test]
fn a_message_is_answered_also_if_the_run_before_it_ends_without_an_answer() {
    let agent = format!("{AGENT}\n[limits]\nsteps = 2\n");
    let script = "assistant: > c1 slow()\nassistant: > p1 pay(euro=5)\nassistant: Yes.";
    let work = at_work_as(&agent, script);
    let second = work.second("run a.toml -s s1 --interactive 'is it done?'", "y\n");
    work.until_stored();
    let (room, _) = work.ends();
    expect![[r#"
        Yes.
        | the message is not taken yet: the session waits for a decision; decide first
        | decide about p1#DIGEST: pay {"euro":5}
        | > p1 pay(euro=5)
        |   p1: paid
        | the run ended: the limit of steps was reached
        | continue: stepfold chat a.toml --session s1
        exit 0
    "#]]
    .assert_eq(&crate::room::without_digests(&second.told()));
    assert!(!room.say("sessions a.toml", "").contains("inbox"));
}

#[test]
fn a_message_that_stays_after_an_interrupted_run_is_reported() {
    let work = at_work(
        "assistant: > c1 slow()\nassistant: > p1 pay(euro=5)\nassistant: > c2 slow()\nassistant: Yes.",
    );
    let second = work.second("run a.toml -s s1 --interactive 'is it done?'", "y\n");
    work.until_stored();
    let (room, _) = work.ends();
    let gate = gate_of(&room);
    let id = second.child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    let said = second.told();
    drop(gate);
    assert!(
        said.ends_with(
            "| the message is stored; continue with\n|   stepfold resume a.toml --session s1\nexit 130\n"
        ),
        "{said}"
    );
    let said = room.say("resume a.toml", "");
    assert!(said.starts_with("Yes.\n") && !said.contains("exit"), "{said}");
}

#[test]
fn a_piped_chat_waits_for_another_process_and_ends_at_a_decision() {
    let work =
        at_work("assistant: > c1 slow()\nassistant: Done.\nassistant: One.\nassistant: > p1 pay(euro=5)");
    let second = work.second("chat a.toml -s s1", "one\ntwo\nthree\n");
    work.until_stored();
    let (room, _) = work.ends();
    expect![[r#"
        One.
        | decide about p1#DIGEST: pay {"euro":5}
        | the run waits for a decision, and is stored; decide with
        |   stepfold resume a.toml --session s1 --approve p1#DIGEST
        |   stepfold resume a.toml --session s1 --reject p1#DIGEST=REASON
        |   stepfold resume a.toml --session s1 --modify p1#DIGEST=JSON
        | the chat ends here: lines after this one are not taken, since the decision comes first
        exit 3
    "#]]
    .assert_eq(&crate::room::without_digests(&second.told()));
    let said = room.say("inspect a.toml", "");
    assert!(said.contains("user:      two") && !said.contains("three"), "{said}");
}

#[test]
fn a_message_is_refused_while_another_process_is_at_work_if_that_is_asked_for() {
    let work = at_work(TWO);
    for line in [
        "run a.toml -s s1 --when-claimed refuse again",
        "run a.toml -s s1 --when-claimed refuse --key k1 again",
        "chat a.toml -s s1 --when-claimed refuse",
    ] {
        let said = work.room.say(line, "again\n");
        assert!(
            said.contains("session a/local/s1: claimed by worker process ") && said.ends_with("exit 1\n"),
            "{said}"
        );
        assert!(!said.contains("stored"), "{said}");
    }
    assert!(!work.room.say("sessions a.toml", "").contains("inbox"));
    let (room, _) = work.ends();
    let said = room.say("inspect a.toml", "");
    assert!(!said.contains("again"), "{said}");
}

#[test]
fn an_interrupt_withdraws_a_message_that_waits() {
    let work = at_work(TWO);
    let second = work.second("run a.toml -s s1 again", "");
    work.until_stored();
    let id = second.child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    expect![[r#"
        | the message is withdrawn
        exit 130
    "#]]
    .assert_eq(&second.told());
    assert!(!work.room.say("sessions a.toml", "").contains("stored"));
    let (room, _) = work.ends();
    let said = room.say("inspect a.toml", "");
    assert!(said.contains("assistant: Done.") && !said.contains("again"), "{said}");
}

/// The first command is killed while the second one waits: what the first did is told when the second continues with it.
#[test]
fn what_a_killed_process_did_is_reported_by_the_one_that_waited_for_it() {
    let mut work = at_work("assistant: > c1 slow()\nassistant: Done.\nassistant: Done again.");
    let second = work.second("run a.toml -s s1 again", "");
    work.until_stored();
    work.first.kill().unwrap();
    work.first.wait().unwrap();
    // When the tool runs again, it does not wait.
    work.room.write("go", "");
    drop(work.gate);
    expect![[r#"
        Done again.
        | continues with "go", interrupted in step 1 with c1 slow() open
        | > c1 slow()
        |   c1: ran
        | earlier reply: Done.
        | continue: stepfold chat a.toml --session s1
        exit 0
    "#]]
    .assert_eq(&second.told());
}

/// A message whose sender has gone comes before the next one, and only the answer to the latter goes to standard output.
#[test]
fn a_message_whose_sender_is_gone_is_answered_before_the_next_one() {
    let work = at_work(
        "assistant: > c1 slow()\nassistant: Done.\nassistant: Done again.\nassistant: Done a third time.",
    );
    let mut second = work.second("run a.toml -s s1 again", "");
    work.until_stored();
    second.child.kill().unwrap();
    second.child.wait().unwrap();
    let (room, first) = work.ends();
    assert!(first.starts_with("Done.\n| session s1\n"), "{first}");
    let said = room.say("sessions a.toml", "");
    assert!(said.ends_with("version 4, 1 message in the inbox\n"), "{said}");
    let listed = room.say("work a.toml --list", "");
    assert!(listed.starts_with("local/s1  since 20"), "{listed}");
    assert!(listed.ends_with("\n| 1 session without a worker, 0 of them blocked\n"), "{listed}");
    let listed = room.json("work a.toml --list --json");
    assert_eq!(
        (&listed["session"], &listed["blocked"]),
        (&"s1".into(), &serde_json::Value::Null),
        "{listed}"
    );
    room.check(
        "run a.toml -s s1 'a third time'",
        expect![[r#"
        Done a third time.
        | session s1
        | answers a message that was stored before: "again"
        | earlier reply: Done again.
        | continue: stepfold chat a.toml --session s1
    "#]],
    );
}

/// A stored message that cannot begin is in the way of all that come after it: it is told what to do about it.
#[test]
fn a_message_of_another_that_cannot_begin_is_named_with_what_to_do() {
    let work = at_work(TWO);
    let mut second = work.second("run a.toml -s s1 again --key first", "");
    work.until_stored();
    second.child.kill().unwrap();
    second.child.wait().unwrap();
    let (room, _) = work.ends();
    let needs = "instructions = \"Look at {topic}.\"\n[state.topic]\ntype = \"string\"\n";
    room.write("a.toml", &format!("model = \"script:a.script\"\n{needs}{AGENT}"));
    room.check("resume a.toml", expect![[r#"
        | session s1
        | error: message `first` comes first in the session, and cannot begin: run could not continue: missing key "topic" for the template at line 1, column 9; write {topic?} if it is optional; known keys: messages
        | fix the cause and resume it, or withdraw it:
        |   stepfold resume a.toml --session s1
        |   stepfold inbox a.toml --session s1 --remove first
        exit 1
    "#]]);
    room.check("run a.toml -s s1 'a third time' --key third", expect![[r#"
        | session s1
        | error: message `first` comes first in the session, and cannot begin: run could not continue: missing key "topic" for the template at line 1, column 9; write {topic?} if it is optional; known keys: messages
        | the new message is stored, and taken after it; fix the cause and resume it, or withdraw it:
        |   stepfold resume a.toml --session s1
        |   stepfold inbox a.toml --session s1 --remove first
        exit 1
    "#]]);
    let said = room.say("run a.toml -s s1 'a third time' --key third --json", "");
    assert_eq!(said.matches("{\"stored\":true,\"taken\":false}").count(), 1, "{said}");
    assert!(room.say("inbox a.toml --remove first", "").starts_with("1 message withdrawn"));
    room.say("state set a.toml topic=rows", "");
    let said = room.say("resume a.toml", "");
    assert!(said.starts_with("Done again.\n") && !said.contains("exit"), "{said}");
}

#[test]
fn json_output_reports_it_as_well() {
    let work = at_work(TWO);
    let mut command = work.room.command("run a.toml -s s1 again --json");
    let mut child = command.stdin(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), "{\"session\":\"s1\"}");
    let waits: serde_json::Value = serde_json::from_str(&lines.next().unwrap()).unwrap();
    assert!(waits["running"]["worker"].as_str().unwrap().starts_with("process-"), "{waits}");
    let (_room, _) = work.ends();
    let last: serde_json::Value = serde_json::from_str(&lines.last().unwrap()).unwrap();
    assert_eq!(last["outcome"]["text"], "Done again.", "{last}");
    assert!(child.wait().unwrap().success());
}
