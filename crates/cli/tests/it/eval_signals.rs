//! `stepfold eval` that is stopped: it leaves no program, no tool and no claim behind.

use std::fs::File;
use std::io::Write as _;
use std::process::{Child, Command};

use crate::room::Room;

/// The words of a program that works until its gate opens.
const WORK: &str = "[\"sh\", \"-c\", \"test -e go || read line < gate; echo '{\\\"passed\\\": true}'\"]";

const VERDICT: &str = r#"assistant: {"reason": "It is fine.", "score": 0.9, "passed": true}"#;

/// A room with a gate, and an agent whose tool works until it opens.
fn room() -> Room {
    let agent =
        format!("[tools.work]\ndescription = 'Works.'\neffect = 'pure'\ncommand = {{ argv = {WORK} }}\n");
    let room = Room::new(&agent, "assistant: > c1 work()\nassistant: done\n");
    assert!(Command::new("mkfifo").arg(room.path("gate")).status().unwrap().success());
    let graded = format!("expect = [{{ program = {{ command = {WORK} }} }}]\n");
    room.write("graded.toml", &format!("[[case]]\nname = 'a'\nsay = 'go'\n{graded}"));
    room.write("plain.toml", "[[case]]\nname = 'a'\nsay = 'go'\nexpect = ['answered']\n");
    room.write("expect.toml", &graded);
    room.write("judge.toml", &agent);
    room.write("judge.script", &format!("assistant: > c1 work()\n{VERDICT}\n"));
    room.write(
        "judged.toml",
        "[[case]]\nname = 'a'\nsay = 'go'\nexpect = [{ judge = { rubric = 'Fine.' } }]\n",
    );
    room
}

/// Starts a command, and waits until its program is at work.
fn at_work(room: &Room, line: &str) -> (Child, File) {
    let child = room.command(line).spawn().unwrap();
    // It opens when the program opens it to read.
    let gate = File::options().write(true).open(room.path("gate")).unwrap();
    (child, gate)
}

fn send(signal: &str, child: &Child) {
    assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
}

/// Whether no process reads from a gate any more, soon: a killed program closes it.
fn is_left(mut gate: File) -> bool {
    (0..500).any(|_| {
        // tidy: allow sleep, because another process ends.
        std::thread::sleep(std::time::Duration::from_millis(10));
        gate.write_all(b" ").is_err()
    })
}

const JUDGED: &str = "eval run a.toml judged.toml --model script:hello.script --judge judge.toml --judge-model script:judge.script \
                      --max-requests 9";

/// A law: a signal to an experiment ends its tools, its programs and those of its judge.
#[test]
fn a_signal_ends_what_an_experiment_has_started() {
    let room = room();
    room.write("hello.script", "assistant: hello\n");
    let live = "eval run a.toml plain.toml --model script:a.script --mode live --max-requests 9";
    let graded = "eval run a.toml graded.toml --model script:hello.script --report own.report";
    for (signal, status) in [("-TERM", 143), ("-INT", 130)] {
        for line in [live, graded, JUDGED] {
            let (mut child, gate) = at_work(&room, line);
            send(signal, &child);
            assert_eq!(child.wait().unwrap().code(), Some(status), "{signal} {line}");
            assert!(is_left(gate), "{signal} {line}: a program is left");
        }
    }
    // What was stopped continues.
    room.write("go", "");
    for line in [live, graded, JUDGED] {
        let said = room.say(line, "");
        assert!(said.contains("1 passed"), "{line}: {said}");
    }
    // It is the judgement that was stopped, and no further one.
    let judged = room.say("sessions judge.toml --store judged.toml.judge.db --user judge", "");
    assert_eq!(judged.lines().filter(|line| line.contains('-')).count(), 1, "{judged}");
}

/// A judgement that a kill has interrupted is continued at once, also where a case has little time. Its session replays.
#[cfg(target_os = "linux")]
#[test]
fn a_killed_judgement_is_continued_at_once() {
    let room = room();
    room.write("hello.script", "assistant: hello\n");
    let (mut child, gate) = at_work(&room, JUDGED);
    child.kill().unwrap();
    child.wait().unwrap();
    room.write("go", "");
    drop(gate);
    let said = room.say(&format!("{JUDGED} --timeout 10"), "");
    assert!(said.contains("1 passed"), "{said}");
    let replay = "replay judge.toml --store judged.toml.judge.db --user judge";
    let same = room.say(replay, "");
    assert!(same.contains(": the same again, 1 run\n") && !same.contains("exit"), "{same}");
    // A change of the file is found, and the output is not called one.
    let judge = std::fs::read_to_string(room.path("judge.toml")).unwrap();
    room.write("judge.toml", &format!("instructions = 'Be strict.'\n{judge}"));
    let changed = room.say(replay, "");
    assert!(changed.contains("instructions") && !changed.contains("output is"), "{changed}");
    assert!(changed.ends_with("exit 1\n"), "{changed}");
}

/// A watcher that is stopped gives its turn back: the next one evaluates it at once.
#[test]
fn a_stopped_watch_gives_its_turn_back() {
    let room = room();
    room.write("a.script", "assistant: hello\n");
    room.say("run a.toml -s s1 hello", "");
    for (signal, status) in [("-TERM", 143), ("-HUP", 129), ("-INT", 130)] {
        let (mut child, gate) = at_work(&room, "eval watch a.toml expect.toml");
        send(signal, &child);
        assert_eq!(child.wait().unwrap().code(), Some(status), "{signal}");
        assert!(is_left(gate), "{signal}: a program is left");
        assert_eq!(room.say("label list a.toml -s s1", ""), "| session s1 has no labels\n", "{signal}");
    }
    room.write("go", "");
    let said = room.say("eval watch a.toml expect.toml", "");
    assert!(said.contains("1 evaluated"), "{said}");
}
