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
            | the texts of these cases are not compared: --expect-text, or expectations of yours, do so
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
]

[[case]]
name = "broken"
say = "which area?"
expect = [{ program = { command = ["sh", "-c", "exit 3"] } }]
"#;
    std::fs::write(room.path("cases.toml"), cases).unwrap();
    let text = room.say("eval run a.toml cases.toml --model script:a.script", "");
    assert!(text.contains("3 cases: 1 passed, 1 failed, 0 left the record, 1 error"), "{text}");
    assert!(text.contains("text_equals: expected `area 4`, found `area 3`; program: no\n"), "{text}");
    assert!(text.contains("program `sh -c exit 3`: the program failed (exit status: 3)"), "{text}");

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
    assert!(
        none.contains("more cases than --max-losses are lost, or may be: 3 lost\n")
            && none.ends_with("exit 1\n"),
        "{none}"
    );

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
    let empty = room.say("eval add a.toml cases.jsonl -s s1 --redact key:", "");
    assert!(empty.contains("invalid rule of redaction `key:`") && empty.ends_with("exit 2\n"), "{empty}");
    let named = room.say("eval add a.toml ids.jsonl -s s1 --redact 'id=s[0-9]'", "");
    assert!(named.contains("| id `s1` stays in names and sources"), "{named}");
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
        let kept = || {
            let text = std::fs::read_to_string(room.path(&format!("{name}.partial"))).unwrap_or_default();
            text.split_inclusive('\n')
                .filter(|line| line.ends_with('\n') && !line.contains(r#""spent""#))
                .count()
        };
        while kept() < moment * 17 / 20 && child.try_wait().unwrap().is_none() {
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
    let labelled = "| looked at 3 sessions: 0 evaluated, 3 labelled before, 0 under way, 0 not in the sample, 0 without a \
                    turn that suits, 0 not evaluated\n";
    assert_eq!(room.say(&watch, ""), labelled);
    let labels = room.say("label list a.toml -s s1", "");
    assert!(labels.starts_with("eval-passed-"), "{labels}");
    // The runs of the judge are stored like any other.
    let judged = room.say("sessions judge.toml --store expect.toml.judge.db --user judge", "");
    assert_eq!(judged.lines().filter(|line| line.contains('-')).count(), 3, "{judged}");
    let none = room.say("eval watch a.toml expect.toml --sample 0", "");
    assert_eq!(none, labelled);
    // Nothing is expected, or what holds of every turn: no session is labelled by that.
    room.say("run a.toml -s s4 'pay the bill of s4'", "");
    for (expect, why) in [
        ("[]", "`expect` is empty"),
        ("['answered', 'recorded_text']", "`recorded_text` compares the recorded turn with itself"),
        ("[{ recorded_calls = {} }]", "`recorded_calls` compares the recorded turn with itself"),
        ("[{ text_contains = [] }]", "invalid `text_contains`"),
    ] {
        room.write("expect.toml", &format!("expect = {expect}\n"));
        let said = room.say("eval watch a.toml expect.toml", "");
        assert!(said.contains(why) && said.ends_with("exit 2\n"), "{expect}: {said}");
    }
    assert_eq!(room.say("label list a.toml -s s4", ""), "| session s4 has no labels\n");
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
    assert!(ran.contains("1 case: 1 passed"), "{ran}");
    assert_eq!(paid(), 4);
}

/// A room whose agent and judge have budgets of requests, with two cases in `cases.toml`.
fn budget_room(expect: &str) -> Room {
    let budget = |name: &str, most: u64| {
        format!("[[budgets]]\nname = \"{name}\"\nrequests = {most}\nscope = \"user\"\n")
    };
    let room = Room::new(&budget("trial", 3), "assistant: area 3\n");
    room.write("judge.toml", &format!("{JUDGE}\n{}", budget("judging", 1)));
    room.write("judge.script", "assistant: {\"reason\": \"fine\", \"score\": 1, \"passed\": true}\n");
    let case = |name| format!("[[case]]\nname = \"{name}\"\nsay = \"{name}?\"\nexpect = [{expect}]\n");
    room.write("cases.toml", &["one", "two"].map(case).concat());
    room
}

const BUDGET_RUN: &str = "eval run a.toml cases.toml --model script:a.script --parallel 1";

/// Requests of live candidates count in the budgets of their file over all experiments, in the user's store.
#[test]
fn budgets_of_a_live_candidate_hold() {
    let room = budget_room("\"answered\"");
    let live = format!("{BUDGET_RUN} --mode live --max-requests 9");
    let first = room.say(&live, "");
    assert!(first.contains("2 cases: 2 passed"), "{first}");
    let second = room.say(&live, "");
    assert!(second.contains("2 cases: 1 passed, 0 failed, 0 left the record, 1 error"), "{second}");
    assert!(second.contains("budget `trial` of user local exhausted: 3 requests spent"), "{second}");
    // Another user has its own, and the other modes count in none.
    for other in [format!("{live} --user eve"), BUDGET_RUN.to_owned()] {
        assert!(room.say(&other, "").contains("2 cases: 2 passed"), "{other}");
    }
    let spent = room.say("spend a.toml --by session", "");
    assert!(spent.contains("eve/experiment-") && spent.matches("local/experiment-").count() == 2, "{spent}");
    // Reports of one name in two folders are of two experiments.
    for folder in ["one", "two"] {
        std::fs::create_dir(room.path(folder)).unwrap();
        room.say(&format!("{live} --user zoe --report {folder}/own.report"), "");
    }
    let spent = room.say("spend a.toml --by session", "");
    assert!(spent.matches("zoe/experiment-").count() == 2, "{spent}");
}

/// Requests of a judge count in the budgets of its file, in its own store.
#[test]
fn budgets_of_a_judge_hold() {
    let room = budget_room("{ judge = { rubric = \"It is kind.\" } }");
    let judged = "--judge judge.toml --judge-model script:judge.script --max-requests 9";
    for _ in 0..2 {
        let judged = room.say(&format!("{BUDGET_RUN} {judged}"), "");
        assert!(judged.contains("2 cases: 1 passed, 0 failed, 0 left the record, 1 error"), "{judged}");
        assert!(judged.contains("budget `judging` of user judge exhausted: 1 requests spent"), "{judged}");
    }
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
    assert!(again.contains("file written.yaml exists") && again.ends_with("exit 2\n"), "{again}");
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
        assert!(said.ends_with("exit 2\n"), "{said}");
    }
    let swapped = room.say("eval run cases.jsonl a.toml --model script:a.script", "");
    assert!(
        swapped.contains("the agent file comes first: stepfold eval run a.toml cases.jsonl"),
        "{swapped}"
    );
    assert!(swapped.ends_with("exit 2\n"), "{swapped}");
}

/// A law: numbers of the command line are within their bounds, or refused with these.
#[test]
fn numbers_out_of_bounds_are_refused() {
    let room = paying_room();
    room.say("eval add a.toml cases.jsonl -s s1", "");
    let run = "eval run a.toml cases.jsonl --model script:a.script";
    for option in ["--min-pass-rate", "--min-coverage"] {
        for number in ["nan", "NaN", "inf", "-inf", "-1", "-0.01", "1.01", "90", "90%", ""] {
            let said = room.say(&format!("{run} {option}={number}"), "");
            assert!(
                said.contains("must be a number from 0 to 1") && said.ends_with("exit 2\n"),
                "{number}: {said}"
            );
        }
        for number in ["0", "1", "0.5", "1.0"] {
            let said = room.say(&format!("{run} {option}={number}"), "");
            assert!(said.contains("1 passed") && !said.contains("exit"), "{number}: {said}");
        }
    }
    for option in ["--timeout", "--repeats", "--parallel"] {
        for number in ["0", "-1", "x", "1.5"] {
            let said = room.say(&format!("{run} {option}={number}"), "");
            let words = match option {
                "--repeats" => "must be a whole number from 1 to 20",
                _ => "must be a whole number of at least 1",
            };
            assert!(said.contains(words), "{option} {number}: {said}");
            assert!(said.ends_with("exit 2\n"), "{said}");
        }
    }
    // Nothing was evaluated, so nothing is known.
    room.write("nothing.toml", "[[case]]\nname = 'a'\nsay = 'pay'\n");
    let nothing = room.say("eval run a.toml nothing.toml --model script:a.script", "");
    assert!(nothing.contains("no case could be evaluated") && nothing.ends_with("exit 1\n"), "{nothing}");
    let impure = room.say(&format!("{run} --allow pay"), "");
    assert!(impure.contains("tool `pay` cannot be allowed") && impure.ends_with("exit 2\n"), "{impure}");
}

/// Many lines of one kind are bounded.
#[test]
fn what_is_left_out_is_told_in_a_few_lines() {
    let room = Room::new(AGENT, "assistant: hello\n");
    let case = |number| format!("[[case]]\nname = 'c{number}'\nsay = 'hello'\nexpect = ['answered']\n");
    room.write("many.toml", &(0..50).map(case).collect::<String>());
    let said = room.say("eval export many.toml many.yaml", "");
    assert_eq!(said.matches("| left out: ").count(), 20, "{said}");
    assert!(said.contains("| and 30 more; --json has them all"), "{said}");
    let json = room.json("--json eval export many.toml again.yaml");
    assert_eq!(json["left_out"].as_array().unwrap().len(), 50);
    // No half of a file is left.
    room.write("torn.jsonl", "{\"name\":\"a\",\"say\":\"b\"}\n{\n");
    let torn = room.say("eval export torn.jsonl torn.yaml", "");
    assert!(
        torn.contains("data set torn.jsonl: invalid case at line 2") && torn.ends_with("exit 2\n"),
        "{torn}"
    );
    assert!(!room.path("torn.yaml").exists());
}

/// The contents of all files of a room, apart from the sessions.
fn contents(room: &Room) -> std::collections::BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(room.folder()).unwrap().map(Result::unwrap);
    let files = entries.filter(|entry| entry.path().is_file());
    files
        .map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap()))
        .collect()
}

/// A law: a command that names one of its files as its output, in whatever spelling, changes no file.
#[test]
fn no_output_is_an_input() {
    let room = judged_room();
    room.say("eval add a.toml cases.jsonl --newest 5", "");
    std::fs::create_dir(room.path("sub")).unwrap();
    room.write("brief.txt", "Be brief.\n");
    room.write("own.script", SCRIPT);
    room.say("eval run a.toml cases.jsonl --model script:own.script --report base.report", "");
    room.say("eval run a.toml cases.jsonl --model script:own.script --cassette own.tape", "");
    let judge =
        "--judge judge.toml --judge-model script:judge.script --judge-store own.judge --max-requests 9";
    let run = "eval run a.toml cases.jsonl --instructions brief.txt --baseline base.report --model script:own.script";
    let all = format!("{run} --cassette own.tape {judge}");
    let mut lines = Vec::new();
    let inputs = [
        "a.toml",
        "cases.jsonl",
        "brief.txt",
        "base.report",
        "own.script",
        "own.tape",
        "judge.toml",
        "judge.script",
        "own.judge",
    ];
    for input in inputs {
        let link = format!("link.{input}");
        #[cfg(unix)]
        std::os::unix::fs::symlink(input, room.path(&link)).unwrap();
        let absolute = room.path(input).display().to_string();
        let mut spellings = vec![input.to_owned(), format!("./{input}"), format!("sub/../{input}"), absolute];
        spellings.extend(cfg!(unix).then_some(link));
        lines.extend(spellings.iter().map(|spelling| format!("{all} --report {spelling}")));
        if input != "own.tape" {
            let modes = ["record", "auto"];
            lines.extend(
                modes.map(|mode| format!("{run} {judge} --cassette ./{input} --cassette-mode {mode}")),
            );
        }
        if !["own.judge", "own.tape"].contains(&input) {
            lines.push(format!("{run} --judge judge.toml --judge-model script:judge.script --judge-store ./{input} --max-requests 9"));
        }
    }
    // The file of the results so far is one of the files of a report.
    for ending in [".partial", ".partial.whole"] {
        let data_set = format!("other{ending}");
        std::fs::copy(room.path("cases.jsonl"), room.path(&data_set)).unwrap();
        let run = format!("eval run a.toml {data_set} --model script:own.script --report other");
        lines.push(run);
        // A file that is not of the command is not replaced either.
        std::fs::copy(room.path("brief.txt"), room.path(&format!("mine{ending}"))).unwrap();
    }
    lines.push(format!("{run} --report mine"));
    lines.push(format!("{run} --report ledger"));
    lines.push(format!("{run} --report sub"));
    // Neither is a file created meanwhile.
    lines.push(format!("{run} {judge} --cassette created --cassette-mode record --report ledger"));
    lines.push(format!("{run} --cassette ledger --cassette-mode record"));
    lines.push(format!("{run} --cassette new.tape --report new.tape"));
    lines.push(format!("{run} --cassette new --report new.new"));
    std::fs::copy(room.path("a.toml"), room.path("agent.jsonl")).unwrap();
    lines.push("eval add agent.jsonl ./agent.jsonl".to_owned());
    lines.push("eval add a.toml own.store --store ./own.store".to_owned());
    lines.push("eval import cases.jsonl sub/../cases.jsonl".to_owned());
    lines.push("eval export cases.jsonl cases.json".to_owned());
    room.write("cases.json", "mine");
    lines.push(
        "eval watch a.toml expect.toml --judge judge.toml --max-requests 9 --judge-store expect.toml"
            .to_owned(),
    );
    let before = contents(&room);
    for line in lines {
        let said = room.say(&line, "");
        assert!(said.ends_with("exit 2\n") && said.contains("name another"), "{line}: {said}");
        assert!(contents(&room) == before, "{line}: {said}");
    }
}

/// A report replaces a report, what a kill has left of one, and an empty file; nothing waits for a pipe.
#[cfg(unix)]
#[test]
fn a_report_replaces_reports_only() {
    let room = Room::new(AGENT, "assistant: hello\n");
    room.write("cases.toml", "[[case]]\nname = 'a'\nsay = 'hello'\nexpect = ['answered']\n");
    let run = "eval run a.toml cases.toml --model script:a.script --report own.report";
    room.say(run, "");
    let report = std::fs::read(room.path("own.report")).unwrap();
    for length in [0, 1, 9, 30, report.len() - 1, report.len()] {
        for ending in ["", ".partial", ".partial.whole"] {
            std::fs::write(room.path(&format!("own.report{ending}")), &report[..length]).unwrap();
        }
        let said = room.say(run, "");
        assert!(said.contains("1 passed") && !said.contains("exit"), "{length}: {said}");
        assert_eq!(std::fs::read(room.path("own.report")).unwrap(), report);
        assert!(!room.path("own.report.partial").exists());
    }
    for ending in ["", ".partial", ".partial.whole"] {
        let path = room.path(&format!("own.report{ending}"));
        let _ = std::fs::remove_file(&path);
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
        let said = room.say(run, "");
        assert!(said.ends_with("exit 2\n") && said.contains("is not a regular file"), "{said}");
        std::fs::remove_file(&path).unwrap();
    }
}

/// The file of an export is there when it is whole: a kill leaves none of its name.
#[cfg(unix)]
#[test]
fn a_killed_export_leaves_no_half_of_a_file() {
    let room = Room::new(AGENT, SCRIPT);
    let case = |number| format!("{{\"name\":\"c{number}\",\"say\":\"b\",\"expect\":[\"answered\"]}}\n");
    room.write("many.jsonl", &(0..200_000).map(case).collect::<String>());
    let mut child = room.command("eval export many.jsonl cases.yaml").spawn().unwrap();
    let has_begun = || {
        let names = std::fs::read_dir(room.folder()).unwrap().map(|file| file.unwrap().file_name());
        names
            .into_iter()
            .any(|name| name == "cases.yaml" || name.to_string_lossy().starts_with(".stepfold-export-"))
    };
    while !has_begun() {
        // tidy: allow sleep, because it is another process whose files are looked at.
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!room.path("cases.yaml").exists());
    room.write("own.jsonl", "{\"name\":\"a\",\"say\":\"b\",\"expect\":[\"answered\"]}\n");
    let said = room.say("eval export own.jsonl cases.yaml", "");
    assert!(said.starts_with("1 case written to cases.yaml"), "{said}");
}

/// Ids that a rule names are told in a few lines.
#[test]
fn ids_that_stay_are_told_in_a_few_lines() {
    let room = Room::new(AGENT, "assistant: hello\n");
    for session in 10..33 {
        room.say(&format!("run a.toml -s s{session} hi"), "");
    }
    let said = room.say("eval add a.toml cases.jsonl --newest 50 --redact 'id=s[0-9]+'", "");
    assert!(said.starts_with("23 cases added"), "{said}");
    assert_eq!(said.matches("| id `s").count(), 20, "{said}");
    assert!(said.contains("| and further ids of 3 cases\n"), "{said}");
}
