//! `stepfold eval` beside itself, and with files of others.

use std::process::Stdio;

use crate::eval::paying_room;

/// A text that a build server takes as a command.
const COMMAND: &str = "::error::broken";

/// A law: no text of a file, nor its name, begins a line of the output.
#[test]
fn no_text_of_a_file_begins_a_line() {
    let room = paying_room();
    let name = format!("x\\n{COMMAND}");
    let case = |rest: &str| format!("{{\"name\":\"{name}\",\"say\":\"pay\",{rest}}}\n");
    let unknown = format!("\"expect\":[{{\"x\\r\\n{COMMAND}\":1}}]");
    let files = [
        ("duplicate.jsonl", case("\"expect\":[\"answered\"]").repeat(2)),
        ("invalid.jsonl", case("\"expect\":[{\"text_lacks\":[]}]")),
        ("expression.jsonl", case(&format!("\"expect\":[{{\"text_matches\":\"(\\n{COMMAND}\"}}]"))),
        ("unknown.jsonl", case(&unknown)),
        ("failed.jsonl", case(&format!("\"expect\":[{{\"text_equals\":\"a\\n{COMMAND}\"}}]"))),
    ];
    for (file, text) in &files {
        room.write(file, text);
    }
    let odd = format!("odd\n{COMMAND}.toml");
    room.write("expect.toml", &format!("expect = [\n{COMMAND}\n"));
    room.write("pydantic.yaml", &format!("cases:\n- name: \"{name}\"\n  inputs: [1]\n"));
    let run = "eval run a.toml";
    let model = "--model script:a.script";
    let mut lines: Vec<String> = files.iter().map(|(file, _)| format!("{run} {file} {model}")).collect();
    for format in ["markdown", "junit", "json"] {
        lines.push(format!("{run} failed.jsonl {model} --format {format}"));
    }
    lines.extend([
        format!("{run} {odd} {model}"),
        format!("eval report {odd}"),
        format!("eval import {odd} new.jsonl"),
        "eval import pydantic.yaml new.jsonl".to_owned(),
        "eval export failed.jsonl new.yaml".to_owned(),
        format!("eval export failed.jsonl {odd}.yaml"),
        "eval watch a.toml expect.toml".to_owned(),
    ]);
    for line in lines {
        let said = room.say(&line, "");
        let is_command = |line: &str| line.trim_start_matches(['|', ' ']).starts_with("::");
        assert!(!said.split(['\n', '\r']).any(is_command), "{line:?}: {said}");
    }
}

/// A law: whatever watchers look at a store at once, each turn is evaluated once; a claim that a killed one has left is over later.
#[test]
fn watchers_evaluate_each_turn_once() {
    let room = paying_room();
    let program = "echo one >> evaluated; echo '{\\\"passed\\\": true}'";
    room.write(
        "expect.toml",
        &format!("expect = [{{ program = {{ command = [\"sh\", \"-c\", \"{program}\"] }} }}]\n"),
    );
    // A watcher was killed long ago, at any of these turns.
    for version in 1..=5 {
        room.say(&format!("label set a.toml -s s1 eval-claim-{version}-0 --at {version}"), "");
    }
    let watch = || {
        let mut command = room.command("eval watch a.toml expect.toml");
        command.stdin(Stdio::null()).spawn().unwrap()
    };
    for _ in 0..2 {
        let watching: Vec<_> = (0..4).map(|_| watch()).collect();
        for watching in watching {
            assert!(watching.wait_with_output().unwrap().status.success());
        }
    }
    assert_eq!(std::fs::read_to_string(room.path("evaluated")).unwrap(), "one\none\none\n");
    let again = room.say("eval watch a.toml expect.toml", "");
    assert!(again.contains("0 evaluated, 3 labelled before, 0 under way"), "{again}");
}

/// A case that could not be evaluated has not passed, unless a coverage is said to suffice; repeats have one bound.
#[test]
fn a_threshold_holds_for_all_cases() {
    let room = paying_room();
    room.say("eval add a.toml cases.jsonl --newest 5", "");
    let limited =
        "eval run a.toml cases.jsonl --model script:a.script --max-requests 2 --max-errors 9 --parallel 1";
    let said = room.say(&format!("{limited} --min-pass-rate 0.9"), "");
    assert!(said.contains("1 passed, 0 failed, 0 left the record, 2 errors"), "{said}");
    assert!(said.contains("cases that could not be evaluated have not passed"), "{said}");
    assert!(said.ends_with("exit 1\n"), "{said}");
    let allowed = room.say(&format!("{limited} --min-pass-rate 0.9 --min-coverage 0.3"), "");
    assert!(!allowed.contains("exit"), "{allowed}");
    let repeated = room.say("eval run a.toml cases.jsonl --repeats 21", "");
    assert!(
        repeated.contains("must be a whole number from 1 to 20") && repeated.ends_with("exit 2\n"),
        "{repeated}"
    );
}

/// A case of a name that is there is not the one that is there: it is said, and a failed addition leaves no file.
#[test]
fn an_edited_case_is_not_already_there() {
    let room = paying_room();
    let case = |words: &str| format!("cases:\n- name: one\n  inputs: {words}\n");
    room.write("cases.yaml", &case("hello"));
    assert!(room.say("eval import cases.yaml new.jsonl", "").starts_with("1 case added"));
    let again = room.say("eval import cases.yaml new.jsonl", "");
    assert!(again.starts_with("0 cases added to new.jsonl; 1 already there, 0 unsuited"), "{again}");
    room.write("cases.yaml", &case("goodbye"));
    let edited = room.say("eval import cases.yaml new.jsonl", "");
    assert!(edited.starts_with("0 cases added to new.jsonl; 0 already there, 1 unsuited"), "{edited}");
    assert!(edited.contains("case `one` is not added: another case of this name is there"), "{edited}");
    for line in ["eval add a.toml none.jsonl -s s9", "eval add a.toml none.jsonl --label none"] {
        room.say(line, "");
        assert!(!room.path("none.jsonl").exists(), "{line}");
    }
}

/// A session that was rewound to its beginning does not count as one of the newest: nothing is said in it.
#[test]
fn a_session_without_a_turn_is_not_counted() {
    let room = paying_room();
    room.say("rewind a.toml -s s3 0", "");
    let said = room.say("eval add a.toml cases.jsonl --newest 2", "");
    assert!(said.starts_with("2 cases added"), "{said}");
}

/// A report through a link is written to its target, and a report with two results of a case is refused.
#[cfg(unix)]
#[test]
fn a_link_to_a_report_stays() {
    let room = paying_room();
    room.say("eval add a.toml cases.jsonl --newest 5", "");
    std::fs::create_dir(room.path("sub")).unwrap();
    std::os::unix::fs::symlink("sub/own.report", room.path("link")).unwrap();
    let run = "eval run a.toml cases.jsonl --model script:a.script";
    for _ in 0..2 {
        let said = room.say(&format!("{run} --report link"), "");
        assert!(said.contains("3 passed"), "{said}");
        assert!(room.path("link").is_symlink());
        assert_eq!(std::fs::read_dir(room.path("sub")).unwrap().count(), 1);
    }
    // In a row, relative to each folder; and to a folder that is missing, in which nothing can be written.
    std::os::unix::fs::symlink("../far.report", room.path("sub/next")).unwrap();
    std::os::unix::fs::symlink("sub/next", room.path("first")).unwrap();
    std::os::unix::fs::symlink("missing/own.report", room.path("lost")).unwrap();
    assert!(room.say(&format!("{run} --report first"), "").contains("3 passed"));
    assert!(room.path("sub/next").is_symlink() && room.path("far.report").is_file());
    let said = room.say(&format!("{run} --report lost"), "");
    assert!(said.ends_with("exit 2\n") && said.contains("missing/own.report"), "{said}");
    assert!(room.path("lost").is_symlink() && !room.path("own.report").exists());
    let report = std::fs::read_to_string(room.path("sub/own.report")).unwrap();
    let last = report.lines().last().unwrap();
    room.write(
        "twice.report",
        &format!("{report}{}\n", last.replace("\"status\":\"passed\"", "\"status\":\"failed\"")),
    );
    for line in ["eval report twice.report", "eval compare link twice.report"] {
        let said = room.say(line, "");
        assert!(said.contains("report twice.report: duplicate result of case `local/s"), "{said}");
        assert!(said.ends_with("exit 2\n"), "{said}");
    }
}

/// A data set that becomes shorter under an experiment is no whole one: there is no report of a part.
#[test]
fn a_data_set_that_shrinks_is_an_error() {
    let room = paying_room();
    let cut = "head -c 8192 cases.jsonl > cut; cat cut > cases.jsonl; echo '{\\\"passed\\\": true}'";
    let case = |name: &str, more: usize| {
        let expect = format!("[{{\"program\":{{\"command\":[\"sh\",\"-c\",\"{cut}\"]}}}}]");
        let said = "x".repeat(more);
        format!("{{\"name\":\"{name}\",\"say\":\"{said}\",\"expect\":{expect}}}\n")
    };
    // The first line ends where the first block that is read does.
    let first = case("a", 8192 - case("a", 0).len());
    room.write("cases.jsonl", &format!("{first}{}", case("b", 9_000)));
    let run = "eval run a.toml cases.jsonl --model script:hello.script --parallel 1 --report own.report";
    room.write("hello.script", "assistant: hello\n");
    let said = room.say(run, "");
    assert!(
        said.contains("was changed under the experiment: expected 2 results, found 1; run it again"),
        "{said}"
    );
    assert!(said.ends_with("exit 2\n") && !room.path("own.report").exists(), "{said}");
}
