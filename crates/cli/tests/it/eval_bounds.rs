//! `stepfold eval` at its bounds: of losses, of time, of files, and of what a report may hold.

use crate::eval::paying_room;
use crate::room::Room;

const MARKERS: [&str; 2] = ["ada@example.org", "T-17"];

const LETTERS: &str = r#"
[tools.send]
description = "Sends a letter."
parameters = { properties = { to = { type = "string" } }, required = ["to"] }
command = { argv = ["sh", "-c", "echo sent >> ledger; echo sent"] }
"#;

const RULES: &str = "\n[redact]\ndata = ['email']\n\n[redact.patterns]\nticket = 'T-[0-9]+'\n";

const LETTER: &str =
    "assistant: > c1 send(to=\"ada@example.org\")\nassistant: I wrote to ada@example.org about T-17.\n";

fn assert_clean(what: &str, text: &str) {
    for marker in MARKERS {
        assert!(!text.contains(marker), "{what} has {marker}: {text}");
    }
}

/// Each file of the room but those that have the markers as their input.
fn files(room: &Room) -> String {
    let entries = std::fs::read_dir(room.folder()).unwrap().map(|entry| entry.unwrap().path());
    let is_input = |path: &std::path::Path| {
        path.extension().is_some_and(|ending| ending == "script" || ending == "toml")
    };
    let written = entries.filter(|path| path.is_file() && !is_input(path));
    written.map(|path| String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned()).collect()
}

/// A law: with the rules of the file an unchanged agent passes its own record, whether they are older than the session or not, and no
/// output has what they find.
#[test]
fn the_redaction_of_a_file_holds_in_its_evaluation() {
    for (is_older, view) in [(true, "redacted"), (true, "keep"), (false, "redacted"), (false, "keep")] {
        let rules = RULES.replace("data =", &format!("model = '{view}'\ndata ="));
        let room = Room::new(&format!("{LETTERS}{}", if is_older { &*rules } else { "" }), LETTER);
        for session in ["s1", "s2"] {
            room.say(&format!("run a.toml -s {session} 'write to ada@example.org about T-17'"), "");
        }
        room.write("a.toml", &format!("model = \"script:a.script\"\n{LETTERS}{rules}"));
        let added = room.say("eval add a.toml cases.jsonl --newest 5 --expect-text", "");
        assert!(added.contains("2 cases added"), "{added}");
        let run = "eval run a.toml cases.jsonl --model script:a.script";
        for mode in ["replay", "next", "roll"] {
            let said = room.say(&format!("{run} --mode {mode} --timelines --report {mode}.report"), "");
            assert!(said.contains("2 passed") && !said.contains("exit"), "{is_older} {view} {mode}: {said}");
        }
        // A candidate that says something else, in each form of a report.
        room.write(
            "worse.script",
            "assistant: > c1 send(to=\"ada@example.org\")\nassistant: T-17 is for ada@example.org.\n",
        );
        room.write(
            "left.script",
            "assistant: > c1 send(to=\"bob@example.org, ada@example.org\")\nassistant: T-17\n",
        );
        for script in ["worse", "left"] {
            for format in ["table", "markdown", "junit", "json"] {
                let run = format!(
                    "eval run a.toml cases.jsonl --model script:{script}.script --timelines --format {format}"
                );
                let said = room.say(&format!("{run} --baseline roll.report --report {script}.report"), "");
                assert!(said.contains("[email]") && said.ends_with("exit 1\n"), "{said}");
                assert_clean(format, &said);
            }
        }
        // Written by hand, with a program and a judge.
        let case = "[[case]]\nname = 'a'\nsay = 'write to ada@example.org about T-17'\nexpect = [{ text_equals = 'no' }, { program = { command = ['sh', '-c', 'cat >> seen; echo \"{\\\"passed\\\": true}\"'] } }, { judge = { rubric = 'It names an address.' } }]\n";
        room.write("written.toml", case);
        room.write("judge.toml", "instructions = 'You judge.'\n");
        room.write(
            "judge.script",
            "assistant: {\"reason\": \"It names ada@example.org.\", \"score\": 0.9, \"passed\": false}\n",
        );
        let judge = "--judge judge.toml --judge-model script:judge.script --max-requests 90";
        let judged = room.say(&format!("eval run a.toml written.toml --model script:a.script --mode live --allow send {judge} --report w.report"), "");
        assert!(judged.contains("judge: It names [email].") && judged.contains("[ticket]"), "{judged}");
        assert_clean("output", &judged);
        if is_older {
            for (text, words) in [
                // Each redacted turn would lack it, or have its mark.
                ("ada@example.org", "`text_equals` has a text that the rules of `[redact]` replace"),
                ("[email]", "expected `[email]`, found `I wrote to [email]"),
            ] {
                room.write("expect.toml", &format!("expect = [{{ text_equals = '{text}' }}]\n"));
                let watched = room.say("eval watch a.toml expect.toml", "");
                assert!(watched.contains(words), "{watched}");
                assert_clean("watch", &watched);
            }
        }
        assert_clean("files", &files(&room));
    }
}

/// A limit on losses holds only if each case shows that it was not lost.
#[test]
fn a_candidate_that_leaves_the_record_is_within_no_limit_of_losses() {
    let room = paying_room();
    room.say("eval add a.toml cases.jsonl --newest 5", "");
    room.say("eval run a.toml cases.jsonl --model script:a.script --report base.jsonl", "");
    let base = std::fs::read_to_string(room.path("base.jsonl")).unwrap();
    let (head, result) = (base.lines().next().unwrap(), base.lines().nth(1).unwrap());
    let with = |status: &dyn Fn(u64) -> &'static str| {
        let line = |number| {
            let name = format!("\"case\":\"c{number}\"");
            result
                .replace("\"case\":\"local/s3/1\"", &name)
                .replace("\"status\":\"passed\"", &format!("\"status\":\"{}\"", status(number)))
        };
        format!("{head}\n{}", (0..10).map(|number| line(number) + "\n").collect::<String>())
    };
    room.write("ten.jsonl", &with(&|_| "passed"));
    for (status, words) in [
        ("left_record", "0 lost, 2 that the baseline passed and the candidate could not answer"),
        ("error", "0 lost, 2 that the baseline passed and the candidate could not answer"),
        ("failed", "2 lost"),
    ] {
        room.write("now.jsonl", &with(&|number| if number < 2 { status } else { "passed" }));
        for (most, is_within) in [(0, false), (1, false), (2, true)] {
            let said = room.say(&format!("eval compare ten.jsonl now.jsonl --max-losses {most}"), "");
            assert_eq!(said.contains("exit 1"), !is_within, "{status} {most}: {said}");
            let why = format!("| more cases than --max-losses are lost, or may be: {words}\n");
            assert_eq!(said.contains(&why), !is_within, "{status} {most}: {said}");
        }
    }
    // The baseline has not passed them: they are no losses.
    room.write("half.jsonl", &with(&|number| if number < 2 { "failed" } else { "passed" }));
    room.write("now.jsonl", &with(&|number| if number < 2 { "left_record" } else { "passed" }));
    let said = room.say("eval compare half.jsonl now.jsonl --max-losses 0", "");
    assert!(!said.contains("exit"), "{said}");
    // A replay that differs is not worse.
    for (name, status) in [("before", "passed"), ("after", "failed")] {
        let text = with(&|_| status).replace("\"mode\":\"roll\"", "\"mode\":\"replay\"");
        room.write(&format!("{name}.jsonl"), &text);
    }
    let said = room.say("eval compare before.jsonl after.jsonl", "");
    assert!(said.starts_with("verdict: differs: ") && said.ends_with("exit 1\n"), "{said}");
    assert!(!said.contains("worse\n") && !said.contains("lost") && said.contains("differs c9: "), "{said}");
}

/// The fault of the last case is found before anything is spent for the first.
#[test]
fn faults_of_a_data_set_cost_nothing() {
    let room = paying_room();
    let case =
        |number| format!("{{\"name\":\"c{number}\",\"say\":\"pay the bill\",\"expect\":[\"answered\"]}}\n");
    let paid = || std::fs::read_to_string(room.path("ledger")).unwrap().lines().count();
    let good: String = (1..900).map(case).collect();
    for (bad, why) in [
        ("{\"name\":", "invalid case at line 900"),
        (&*case(1), "duplicate case `c1`"),
        (
            "{\"name\":\"x\",\"say\":\"a\",\"expect\":[{\"text_matches\":\"(\"}]}",
            "invalid regular expression",
        ),
    ] {
        room.write("cases.jsonl", &format!("{good}{bad}"));
        for mode in ["live --allow pay --max-requests 5000", "roll", "next"] {
            let run = format!(
                "eval run a.toml cases.jsonl --model script:a.script --mode {mode} --report new.report"
            );
            let said = room.say(&run, "");
            assert!(said.contains(why) && said.ends_with("exit 2\n"), "{mode}: {said}");
            assert!(!room.path("new.report.partial").exists(), "{mode}");
        }
        assert_eq!(paid(), 3);
    }
}

/// A law: after the timeout of a case no process of it runs, whether it is of a tool, of an evaluator or of a judge.
#[cfg(target_os = "linux")]
#[test]
fn no_process_outlives_the_timeout_of_its_case() {
    let endless =
        "command = { argv = [\"sh\", \"-c\", \"echo $$ >> pids; sleep 300 & echo $! >> pids; wait\"] }\n";
    let tool = format!("\n[tools.pay]\ndescription = \"Pays.\"\ntimeout = \"250s\"\n{endless}");
    let room = Room::new(&tool, "assistant: > c1 pay()\nassistant: paid\n");
    let answering = Room::new("", "assistant: hello\n");
    let case = |room: &Room, expect: &str| {
        room.write("cases.toml", &format!("[[case]]\nname = 'a'\nsay = 'hello'\nexpect = [{expect}]\n"));
    };
    let run = "eval run a.toml cases.toml --model script:a.script --timeout 2";
    case(&room, "'answered'");
    check_gone(&room, &format!("{run} --mode live --allow pay --max-requests 9"), "timeout after 2s");
    let program =
        "{ program = { command = ['sh', '-c', 'echo $$ >> pids; sleep 300 & echo $! >> pids; wait'] } }";
    case(&answering, &format!("'answered', {program}"));
    check_gone(&answering, run, "timeout after 2s, before all was evaluated");
    case(&answering, "'answered', { judge = { rubric = 'It is kind.' } }");
    answering.write("judge.toml", &tool);
    answering.write(
        "judge.script",
        "assistant: > c1 pay()\nassistant: {\"reason\": \"a\", \"score\": 1, \"passed\": true}\n",
    );
    let judge = "--judge judge.toml --judge-model script:judge.script --max-requests 9";
    check_gone(&answering, &format!("{run} {judge}"), "timeout after 2s, before all was evaluated");
}

#[cfg(target_os = "linux")]
fn check_gone(room: &Room, line: &str, why: &str) {
    let _ = std::fs::remove_file(room.path("pids"));
    let before = tokio::time::Instant::now();
    let said = room.say(line, "");
    assert!(said.contains(why) && said.ends_with("exit 1\n"), "{said}");
    assert!(before.elapsed().as_secs() < 20, "{line}: {:?}", before.elapsed());
    let pids = std::fs::read_to_string(room.path("pids")).unwrap();
    assert_eq!(pids.lines().count(), 2, "{line}: {pids}");
    // A process without a parent that waits for it is a zombie for a moment.
    let runs = |pid: &str| {
        let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        !state.is_empty() && !state.contains(") Z ")
    };
    for _ in 0..500 {
        if !pids.lines().any(runs) {
            return;
        }
        // tidy: allow sleep, because other processes are waited for, which the kernel ends.
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("{line}: a process of {pids} runs");
}

/// A law: status 1 is a verdict; a file or an argument that is wrong has status 2, and nothing waits for a pipe, or reads a device.
#[cfg(unix)]
#[test]
fn faults_of_files_and_arguments_have_status_2() {
    let room = paying_room();
    room.say("eval add a.toml cases.jsonl --newest 5", "");
    room.write("expect.toml", "expect = ['answered']\n");
    room.say("eval run a.toml cases.jsonl --model script:a.script --report base.jsonl", "");
    rustix::fs::mkfifoat(rustix::fs::CWD, room.path("pipe"), rustix::fs::Mode::RWXU).unwrap();
    std::fs::create_dir(room.path("folder")).unwrap();
    let run = "eval run a.toml cases.jsonl --model script:a.script";
    let mut lines = Vec::new();
    for file in ["/dev/zero", "pipe", "folder", "missing"] {
        lines.extend([
            format!("eval run a.toml {file} --model script:a.script"),
            format!("eval run {file} cases.jsonl --model script:a.script"),
            format!("eval run a.toml cases.jsonl --model script:{file}"),
            format!("{run} --baseline {file}"),
            format!("{run} --instructions {file}"),
            format!("{run} --judge {file} --max-requests 9"),
            format!("{run} --cassette {file} --cassette-mode replay"),
            format!("eval report {file}"),
            format!("eval compare {file} base.jsonl"),
            format!("eval compare base.jsonl {file}"),
            format!("eval export {file} new.yaml"),
            format!("eval import {file} new.jsonl"),
            format!("eval watch a.toml {file}"),
        ]);
        if file != "missing" {
            lines.push(format!("{run} --report {file}"));
            lines.push(format!("eval add a.toml {file} -s s1"));
        }
    }
    lines.push("eval add a.toml cases.jsonl -s nobody".to_owned());
    lines.push("eval add a.toml cases.jsonl -s s1 --at 99".to_owned());
    lines.push("eval report cases.jsonl".to_owned());
    lines.push(format!("{run} --report no/such/folder.report"));
    for line in lines {
        let said = room.say(&line, "");
        assert!(said.ends_with("exit 2\n"), "{line}: {said}");
    }
    for (option, words) in [
        ("--min-pass-rate -0.1", "must be a number from 0 to 1"),
        ("--min-coverage -1", "must be a number from 0 to 1"),
        ("--min-coverage 1.5", "must be a number from 0 to 1"),
        ("--max-errors -1", "must be a whole number from 0"),
        ("--baseline base.jsonl --max-losses -1", "must be a whole number from 0"),
        ("--max-requests -5", "must be a whole number from 0"),
        ("--max-usd -1", "must be from 0 to a billion"),
    ] {
        let said = room.say(&format!("{run} {option}"), "");
        assert!(said.contains(words) && said.ends_with("exit 2\n"), "{option}: {said}");
    }
    let said = room.say("eval compare base.jsonl base.jsonl --max-losses -1", "");
    assert!(said.contains("must be a whole number from 0") && said.ends_with("exit 2\n"), "{said}");
    let said = room.say("eval watch a.toml expect.toml --sample -0.5", "");
    assert!(said.contains("must be a number from 0 to 1") && said.ends_with("exit 2\n"), "{said}");
}

/// Of several sessions the turns that people have marked become cases.
#[test]
fn turns_with_a_label_become_cases() {
    let room = paying_room();
    room.say("run a.toml -s s1 'and the next bill'", "");
    room.say("label set a.toml good --at 2 -s s1", "");
    room.say("label set a.toml good -s s3", "");
    let labelled = room.say("eval add a.toml cases.jsonl --label good", "");
    assert!(labelled.contains("2 cases added"), "{labelled}");
    let cases = std::fs::read_to_string(room.path("cases.jsonl")).unwrap();
    let names = ["local/s1/1", "local/s2/1", "local/s3/1"]
        .map(|name| cases.contains(&format!("{{\"name\":\"{name}\"")));
    assert_eq!(names, [true, false, true]);
    let none = room.say("eval add a.toml cases.jsonl --label other", "");
    assert!(none.contains("0 cases added"), "{none}");
    let newest = room.say("eval add a.toml new.jsonl --label good --newest 1", "");
    assert!(newest.contains("1 case added"), "{newest}");
}

/// A cassette of the other prompt says what is to be done.
#[test]
fn a_cassette_of_another_prompt_is_to_be_recorded_again() {
    let room = paying_room();
    room.say("eval add a.toml cases.jsonl -s s1", "");
    let run = "eval run a.toml cases.jsonl --model script:a.script --cassette own.tape --cassette-mode";
    assert!(room.say(&format!("{run} record"), "").contains("1 passed"));
    assert!(room.say(&format!("{run} replay"), "").contains("1 passed"));
    let changed = room.say(&format!("{run} replay --set 'instructions=Be brief.'"), "");
    assert!(
        changed.contains("record it again if the instructions") && changed.ends_with("exit 1\n"),
        "{changed}"
    );
    room.say(&format!("{run} record --set 'instructions=Be brief.'"), "");
    assert!(room.say(&format!("{run} replay --set 'instructions=Be brief.'"), "").contains("1 passed"));
}
