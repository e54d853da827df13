//! `stepfold eval`: from stored sessions to a verdict, without code.

use expect_test::expect;

use crate::room::Room;

const AGENT: &str = r#"
[tools.pay]
description = "Pays a bill."
parameters = { properties = { amount = { type = "integer" } }, required = ["amount"] }
command = { argv = ["sh", "-c", "echo paid >> ledger; echo paid"] }
"#;

const SCRIPT: &str = "\
assistant: > c1 pay(amount=12)
assistant: I have paid 12.
";

/// Three sessions that have paid.
pub(crate) fn paying_room() -> Room {
    let room = Room::new(AGENT, SCRIPT);
    for session in ["s1", "s2", "s3"] {
        room.say(&format!("run a.toml -s {session} 'pay the bill'"), "");
    }
    room
}

#[test]
fn a_worse_candidate_is_found_without_paying_again() {
    let room = paying_room();
    room.check(
        "eval add a.toml cases.jsonl --newest 5",
        expect![[r#"
            3 cases added to cases.jsonl; 0 already there, 0 unsuited
        "#]],
    );
    room.check(
        "eval add a.toml cases.jsonl -s s1 --at 2",
        expect![[r#"
            0 cases added to cases.jsonl; 1 already there, 0 unsuited
        "#]],
    );
    let ran = room.say("eval run a.toml cases.jsonl --report base.jsonl --model script:a.script", "");
    assert!(ran.contains("3 cases: 3 passed, 0 failed"), "{ran}");

    // It pays twice: the second payment is not in the record.
    let twice = "assistant: > c1 pay(amount=12)\nassistant: > c2 pay(amount=12)\nassistant: Paid.\n";
    std::fs::write(room.path("twice.script"), twice).unwrap();
    let left = room.say("eval run a.toml cases.jsonl --model script:twice.script --baseline base.jsonl", "");
    assert!(left.contains("3 left the record") && left.contains("verdict: unknown"), "{left}");
    assert!(left.ends_with("exit 1\n"), "{left}");

    // It pays nothing.
    std::fs::write(room.path("lazy.script"), "assistant: I have paid 12.\n").unwrap();
    let lazy = room.say("eval run a.toml cases.jsonl --model script:lazy.script --min-pass-rate 0.9", "");
    assert!(lazy.contains(r#"recorded_calls: missing call: pay({"amount":12})"#), "{lazy}");
    assert!(lazy.ends_with("| pass rate below --min-pass-rate\nexit 1\n"), "{lazy}");

    assert_eq!(std::fs::read_to_string(room.path("ledger")).unwrap(), "paid\npaid\npaid\n");
}

#[test]
fn reports_have_four_formats_and_are_the_same_again() {
    let room = paying_room();
    room.say("eval add a.toml cases.jsonl --newest 5", "");
    for report in ["one.jsonl", "two.jsonl"] {
        room.say(&format!("eval run a.toml cases.jsonl --report {report} --model script:a.script"), "");
    }
    let read = |name: &str| std::fs::read_to_string(room.path(name)).unwrap();
    assert_eq!(read("one.jsonl"), read("two.jsonl"));
    let formats =
        [("table", "case"), ("markdown", "### Evaluation of `a` (roll)"), ("junit", "<?xml"), ("json", "{")];
    for (format, begins) in formats {
        let text = room.say(&format!("eval report one.jsonl --format {format}"), "");
        assert!(text.starts_with(begins), "{text}");
    }
    let same = room.say("eval compare one.jsonl two.jsonl", "");
    assert!(
        same.starts_with(
            "verdict: no difference that is more than chance\n3 pairs: 0 wins, 0 losses, 3 ties"
        ),
        "{same}"
    );
}

#[test]
fn written_cases_and_programs_need_no_session() {
    let room = Room::new(AGENT, "assistant: area 3\n");
    let cases = r#"
[[case]]
name = "good"
say = "which area?"
expect = [
    { text_matches = "area [0-9]" },
    { program = { command = ["sh", "-c", "echo '{\"passed\": true}'"] } },
]

[[case]]
name = "bad"
say = "which area?"
expect = [
    { text_equals = "area 4" },
    { program = { command = ["sh", "-c", "echo '{\"passed\": false, \"reason\": \"no\"}'"] } },
    { program = { command = ["sh", "-c", "exit 3"] } },
]
"#;
    std::fs::write(room.path("cases.toml"), cases).unwrap();
    let text = room.say("eval run a.toml cases.toml --model script:a.script", "");
    assert!(text.contains("2 cases: 1 passed, 1 failed"), "{text}");
    assert!(
        text.contains(
            "text_equals: expected `area 4`, found `area 3`; program: no; program: program failed: "
        ),
        "{text}"
    );

    let added = room.say("eval add a.toml cases.toml", "");
    assert!(added.contains("cases are added to JSON lines, not to TOML"), "{added}");
    let unknown = room.say("eval run a.toml cases.toml --set temperature=1", "");
    assert!(unknown.contains("a.toml:8:1: ") && unknown.contains("unknown field `temperature`"), "{unknown}");
    assert!(room.say("eval run a.toml cases.toml --set limits.steps", "").contains("expected NAME=VALUE"));
}

#[test]
fn a_setting_changes_the_candidate_alone() {
    let room = paying_room();
    room.say("eval add a.toml cases.jsonl --newest 5", "");
    let limited = room
        .say("eval run a.toml cases.jsonl --model script:a.script --set limits.steps=1 --set name=brief", "");
    assert!(limited.contains("3 cases: 0 passed, 3 failed"), "{limited}");
    assert!(limited.contains("recorded_end: the turn ended without an answer: "), "{limited}");
    let replay = "eval run a.toml cases.jsonl --mode replay --set 'instructions=Pay twice.'";
    let replayed = room.say(replay, "");
    assert!(replayed.contains("instructions") && replayed.contains("3 failed"), "{replayed}");
    let lost =
        "eval run a.toml cases.jsonl --model script:a.script --set limits.steps=1 --baseline base.jsonl";
    room.say("eval run a.toml cases.jsonl --model script:a.script --report base.jsonl", "");
    let (few, none) = (room.say(lost, ""), room.say(&format!("{lost} --max-losses 2"), ""));
    assert!(few.contains("fewer than 6 pairs") && few.contains("verdict: unknown"), "{few}");
    assert!(few.ends_with("exit 1\n"), "{few}");
    assert!(none.contains("more lost cases than --max-losses") && none.ends_with("exit 1\n"), "{none}");

    // A test report stays one document.
    let junit = room.say(&format!("{lost} --format junit"), "");
    let printed: Vec<&str> = junit.lines().filter(|line| !line.starts_with("| ")).collect();
    assert!(printed.first().is_some_and(|line| line.starts_with("<?xml")), "{junit}");
    assert!(junit.contains("| verdict: ") && !printed.iter().any(|line| line.contains("verdict")), "{junit}");
}

#[test]
fn named_values_never_reach_the_data_set() {
    let room = Room::new(AGENT, "assistant: I write to ada@example.org.\n");
    room.say("run a.toml -s s1 'my code is 77-12345, my address ada@example.org'", "");
    // A hand has written here, without a line break at the end.
    std::fs::write(room.path("cases.jsonl"), r#"{"name":"own","say":"hello"}"#).unwrap();
    let rules = "--redact email --redact 'code=[0-9]{2}-[0-9]{5}'";
    let added = room.say(&format!("eval add a.toml cases.jsonl -s s1 {rules}"), "");
    assert!(added.starts_with("1 case added"), "{added}");
    let cases = std::fs::read_to_string(room.path("cases.jsonl")).unwrap();
    assert_eq!(cases.lines().count(), 2);
    assert!(cases.contains("my code is [code 1], my address [email 1]"), "{cases}");
    assert!(!cases.contains("ada@") && !cases.contains("77-"), "{cases}");
    let ran = room.say("eval run a.toml cases.jsonl --model script:a.script", "");
    assert!(ran.contains("1 passed") && ran.contains("1 skipped"), "{ran}");
    let unknown = room.say("eval add a.toml cases.jsonl -s s1 --redact passport", "");
    let available =
        "unknown rule of redaction `passport`; available: key, card, iban, email, phone, key:NAME,";
    assert!(unknown.contains(available), "{unknown}");
}

/// An experiment is killed at twenty moments; the same command continues it, and the report is the same byte by byte.
#[test]
fn a_killed_experiment_has_the_same_report() {
    let room = Room::new(AGENT, "assistant: area 3\n");
    let grade = r#"echo x >> ran; sleep 0.01; echo '{\"passed\": true}'"#;
    let case = |number| {
        format!(
            "[[case]]\nname = \"c{number}\"\nsay = \"which area?\"\nexpect = [{{ program = {{ command = [\"sh\", \"-c\", \"{grade}\"] }} }}]\n"
        )
    };
    std::fs::write(room.path("cases.toml"), (0..16).map(case).collect::<String>()).unwrap();
    let run = |report: &str| {
        format!("eval run a.toml cases.toml --model script:a.script --parallel 2 --report {report}")
    };
    let read = |name: &str| std::fs::read_to_string(room.path(name)).unwrap();
    let tried = || std::fs::read_to_string(room.path("ran")).map_or(0, |ran| ran.lines().count());
    room.say(&run("whole.jsonl"), "");
    assert_eq!((tried(), read("whole.jsonl").lines().count()), (16, 17));

    let mut continued = 0;
    for moment in 0..20 {
        let name = format!("killed{moment}.jsonl");
        let before = tried();
        let mut child = room.command(&run(&name)).spawn().unwrap();
        // Killed as soon as so many lines are kept, of seventeen.
        let kept = || std::fs::read_to_string(room.path(&format!("{name}.partial"))).unwrap_or_default();
        while kept().matches('\n').count() < moment * 17 / 20 && child.try_wait().unwrap().is_none() {
            // tidy: allow sleep, because it is another process whose file is looked at.
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let said = room.say(&run(&name), "");
        assert!(said.contains("16 passed"), "{said}");
        assert_eq!(read(&name), read("whole.jsonl"), "killed after {moment} twentieths");
        assert!(!room.path(&format!("{name}.partial")).exists());
        if said.contains("| continues after ") {
            continued += 1;
            // The kept results are not tried again: only those under way at the kill are.
            assert!(tried() - before < 2 * 16, "{said}");
        }
    }
    assert!(continued > 9, "{continued} of 20 were killed in the middle");

    // Results of another candidate are not continued.
    let kept = read("whole.jsonl");
    let four: Vec<&str> = kept.lines().take(4).collect();
    room.write("other.jsonl.partial", &format!("{}\n", four.join("\n")));
    let other = room.say(&format!("{} --set 'instructions=Be brief.'", run("other.jsonl")), "");
    assert!(
        other.contains(
            "its results are of another one: instructions is new; delete other.jsonl.partial to begin again"
        ),
        "{other}"
    );
    assert!(other.ends_with("exit 2\n"), "{other}");
}

const JUDGE: &str = "instructions = 'Judge.'\n";

/// A judge that accepts everything, and a room with three sessions that have paid.
fn judged_room() -> Room {
    let room = Room::new(AGENT, SCRIPT);
    for session in ["s1", "s2", "s3"] {
        room.say(&format!("run a.toml -s {session} 'pay the bill of {session}'"), "");
    }
    room.write("judge.toml", JUDGE);
    let verdict = r#"assistant: {"reason": "It says how much.", "score": 0.9, "passed": true}"#;
    room.write("judge.script", &format!("{verdict}\n"));
    room.write(
        "expect.toml",
        "expect = ['answered', { judge = { rubric = 'The answer names an amount.' } }]\n",
    );
    room
}

#[test]
fn ended_sessions_are_evaluated_once_and_labelled() {
    let room = judged_room();
    let judge = "--judge judge.toml --judge-model script:judge.script";
    let unbounded = room.say(&format!("eval watch a.toml expect.toml {judge}"), "");
    assert!(
        unbounded.contains("set --max-requests or --max-usd") && unbounded.ends_with("exit 2\n"),
        "{unbounded}"
    );
    // Two judgements are paid for; the third session waits for the next look.
    let watch = format!("eval watch a.toml expect.toml {judge} --max-requests 2");
    let first = room.say(&watch, "");
    assert_eq!(first.matches("  eval-passed-").count(), 2, "{first}");
    assert!(first.contains("could not be evaluated: no judgement in session `judge/"), "{first}");
    assert!(first.ends_with("exit 1\n"), "{first}");
    let second = room.say(&watch, "");
    assert_eq!(second.matches("  eval-passed-").count(), 1, "{second}");
    assert_eq!(room.say(&watch, ""), "");
    let labels = room.say("label list a.toml -s s1", "");
    assert!(labels.starts_with("eval-passed-"), "{labels}");
    // The runs of the judge are stored like any other.
    let judged = room.say("sessions judge.toml --store expect.toml.judge.db --user judge", "");
    assert_eq!(judged.lines().filter(|line| line.contains('-')).count(), 3, "{judged}");
    let none = room.say("eval watch a.toml expect.toml --sample 0", "");
    assert_eq!(none, "");
}

#[test]
fn judges_and_live_tools_are_bounded() {
    let room = judged_room();
    let case = "[[case]]\nname = 'a'\nsay = 'pay the bill'\nexpect = [{ judge = { rubric = 'It says how much.', least = 0.5 } }]\n";
    room.write("cases.toml", case);
    let judge = "--judge judge.toml --judge-model script:judge.script --max-requests 9";
    let live = format!("eval run a.toml cases.toml --model script:a.script --mode live {judge}");
    let unbounded = room.say("eval run a.toml cases.toml --model script:a.script --mode live", "");
    assert!(
        unbounded.contains("set --max-requests or --max-usd") && unbounded.ends_with("exit 2\n"),
        "{unbounded}"
    );
    let paid = || std::fs::read_to_string(room.path("ledger")).unwrap().lines().count();
    let left = room.say(&live, "");
    assert!(left.contains("pay({\"amount\":12}) may run at most once: allow the tool by name"), "{left}");
    assert_eq!(paid(), 3);
    let ran = room.say(&format!("{live} --allow pay"), "");
    assert!(ran.contains("1 cases: 1 passed"), "{ran}");
    assert_eq!(paid(), 4);
}

#[test]
fn a_damaged_session_does_not_end_a_watch() {
    let room = Room::new(AGENT, SCRIPT);
    for session in ["s1", "s2", "s3"] {
        room.say(&format!("run a.toml -s {session} --store s.db 'pay the bill'"), "");
    }
    let mut stored = std::fs::read(room.path("s.db")).unwrap();
    // The last one: the first may be on a page that is no longer used.
    let reply = stored.windows(15).rposition(|bytes| bytes == b"I have paid 12.").unwrap();
    stored[reply..reply + 4].fill(b'"');
    std::fs::write(room.path("s.db"), stored).unwrap();
    room.write("expect.toml", "expect = [\"answered\"]\n");
    let watched = room.say("eval watch a.toml expect.toml --store s.db", "");
    assert_eq!(watched.matches("  eval-passed-").count(), 2, "{watched}");
    assert_eq!(watched.matches(" could not be evaluated: ").count(), 1, "{watched}");
    assert!(watched.ends_with("exit 1\n"), "{watched}");
}

#[test]
fn data_sets_of_other_projects_are_written_and_read() {
    let room = paying_room();
    room.say("eval add a.toml cases.jsonl --newest 5", "");
    let written = "[[case]]\nname = \"w\"\nsay = \"pay\"\nexpect = [{ text_contains = [\"12\"] }, { max_tokens = 9 }]\n";
    std::fs::write(room.path("written.toml"), written).unwrap();
    for file in ["cases.yaml", "cases.json"] {
        room.say(&format!("eval export cases.jsonl {file}"), "");
        let read = room.say(&format!("eval import {file} again.{file}.jsonl"), "");
        assert!(read.starts_with(&format!("3 cases added to again.{file}.jsonl")), "{read}");
        let lines = |name: &str| std::fs::read_to_string(room.path(name)).unwrap();
        assert_eq!(lines(&format!("again.{file}.jsonl")), lines("cases.jsonl"));
        // The record has come with them.
        let ran = room.say(&format!("eval run a.toml again.{file}.jsonl --model script:a.script"), "");
        assert!(ran.contains("3 cases: 3 passed, 0 failed"), "{ran}");
    }
    room.check(
        "eval export written.toml written.yaml",
        expect![[r#"
            1 case written to written.yaml
            | left out: case `w`: max_tokens
        "#]],
    );
    let again = room.say("eval export written.toml written.yaml", "");
    assert!(again.contains("pydantic-evals data set written.yaml could not be written"), "{again}");
    let unknown = room.say("eval export written.toml written.csv", "");
    assert!(unknown.contains("unknown format of written.csv; available: .yaml"), "{unknown}");
    let neither = room.say("eval import a.toml cases.jsonl", "");
    assert!(neither.contains("data set a.toml could not be read: "), "{neither}");
}

/// Faults are told before anything is spent, with the file that has them.
#[test]
fn wrong_files_and_names_are_told_with_their_file() {
    let room = paying_room();
    room.say("eval add a.toml cases.jsonl -s s1 --expect-text", "");
    let cases = std::fs::read_to_string(room.path("cases.jsonl")).unwrap();
    assert!(cases.contains(r#""recorded_text""#) && cases.contains(r#""recorded_calls""#), "{cases}");
    let run = "eval run a.toml cases.jsonl --model script:a.script";
    assert!(room.say(&format!("{run} --report base.jsonl"), "").contains("1 passed"));
    std::fs::write(room.path("other.script"), "assistant: > c1 pay(amount=12)\nassistant: Well.\n").unwrap();
    let other = room.say("eval run a.toml cases.jsonl --model script:other.script", "");
    assert!(other.contains("recorded_text: expected `I have paid 12.`, found `Well.`"), "{other}");
    std::fs::write(room.path("empty.jsonl"), "").unwrap();
    std::fs::write(room.path("dice.yaml"), "cases: []\n").unwrap();
    for (line, words) in [
        (
            format!("{run} --mode next --baseline base.jsonl"),
            "error: baseline is of mode roll: give --mode roll",
        ),
        (format!("{run} --baseline cases.jsonl"), "error: report cases.jsonl: invalid report at line 1"),
        (format!("{run} --allow pray"), "error: unknown tool `pray` is allowed; available: pay"),
        ("eval run a.toml base.jsonl".to_owned(), "error: data set base.jsonl: invalid case at line 1"),
        (
            "eval run a.toml empty.jsonl --mode recorded".to_owned(),
            "error: data set empty.jsonl has no cases",
        ),
        ("eval run a.toml dice.yaml".to_owned(), "`stepfold eval import dice.yaml cases.jsonl`"),
    ] {
        let said = room.say(&line, "");
        assert!(said.contains(words), "{line}: {said}");
        assert!(!said.ends_with("exit 0\n"), "{said}");
    }
}
