//! A research from its question to the report, killed at any moment, asked about, and in every form. What the models say
//! is written in `conversation.txt`; graph, tools, documents and sessions are real.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use expect_test::expect;
use serde_json::Value;

use crate::{printed, without_keys};

/// What comes of the written conversation.
const REPORT: &str = include_str!("../../deep_research/report.md");

fn program(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = without_keys(env!("CARGO_BIN_EXE_deep_research"));
    command.arg("--store").arg(folder.join("sessions.sqlite")).args(arguments);
    command
}

fn run(folder: &Path, arguments: &[&str]) -> Result<String, String> {
    printed(program(folder, arguments))
}

/// The same, with an approver who answers.
fn run_with(folder: &Path, arguments: &[&str], answers: &str) -> String {
    let mut command = program(folder, arguments);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(answers.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn report(folder: &Path, name: &str) -> String {
    fs::read_to_string(folder.join(name)).unwrap()
}

#[track_caller]
fn assert_prints(printed: &str, expected: &[&str]) {
    for line in expected {
        assert!(printed.contains(line), "{line:?} is not in:\n{printed}");
    }
}

/// What is stored of a session under a key, as it is inspected: the first hundred characters.
fn value(folder: &Path, session: &str, key: &str) -> String {
    let inspected = run(folder, &["--session", session, "--inspect"]).unwrap();
    let start = format!("  {key} = ");
    let line = inspected.lines().filter_map(|line| line.strip_prefix(&start)).next_back();
    line.unwrap_or("nothing").to_owned()
}

#[test]
fn it_researches_in_parallel_and_writes_a_cited_report() {
    let folder = tempfile::tempdir().unwrap();
    let printed = run(folder.path(), &[]).unwrap();
    assert!(printed.starts_with("There is no model here"), "{printed}");
    assert_prints(
        &printed,
        &[
            "  * plan of plan: What is committed; Calls that were cut off; What Rust gives",
            "  0 % task 3 is running: What Rust gives",
            "    task 2 | ✗ read_document(document=\"guide/durability.md\", section=\"after-a-crash\") → guide/durability.md has no section",
            " 33 % task",
            " 66 % task",
            "  * verdict of judge: not enough: Both questions are answered",
            " 75 % task 4 is running: What is weak",
            "100 % task 4 completed: What is weak",
            "  * faults of check: [\"[[docs/durability.md#durability]] is in no document\"]",
            "Rust rules out much on the way, but not this.",
            " --inspect",
        ],
    );
    assert_eq!(report(folder.path(), "research-1.md"), REPORT);
    for (key, expected) in [
        ("overall_progress", "100"),
        ("mode", "\"deep\""),
        ("model_id", "\"written\""),
        ("errors", "[]"),
        ("faults", "[]"),
        ("current_node", "\"publish\""),
    ] {
        assert_eq!(value(folder.path(), "research-1", key), expected, "{key}");
    }
    // It is done: the next one is another research.
    run(folder.path(), &[]).unwrap();
    assert!(folder.path().join("research-2.md").exists());
}

/// Every citation names a document that is there, and a heading in it.
#[test]
fn what_is_cited_is_there() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), &[]).unwrap();
    let report = report(folder.path(), "research-1.md");
    let (text, sources) = report.split_once("## Sources").unwrap();
    let sources: Vec<&str> = sources.lines().filter(|line| !line.is_empty()).collect();
    assert!(sources.len() > 5, "{sources:?}");
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for (number, source) in (1..).zip(&sources) {
        assert!(text.contains(&format!("[^{number}]")), "{source}");
        let parts: Vec<&str> = source.split(['"', '`']).collect();
        let (title, document) = (parts[1], parts[3]);
        let path = match document.split_once('/') {
            Some(("guide", file)) => format!("crates/stepfold/guide/{file}"),
            Some(("rust", file)) => format!("examples/deep_research/rust/{file}"),
            _ => document.to_owned(),
        };
        let text = fs::read_to_string(repository.join(&path)).unwrap();
        let is_heading = |line: &str| line.starts_with('#') && line.trim_start_matches(['#', ' ']) == title;
        assert!(text.lines().any(is_heading), "{path} has no heading {title}");
    }
    assert!(!text.contains(&format!("[^{}]", sources.len() + 1)));
}

/// Starts it and kills it (SIGKILL) when it has printed so many lines. Whether it was still at work.
fn run_and_kill(folder: &Path, lines: usize) -> bool {
    let mut command = program(folder, &["--session", "s", "--delay", "3"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut printed = BufReader::new(child.stdout.take().unwrap()).lines();
    let is_at_work = printed.by_ref().take(lines).all(|line| !line.unwrap().starts_with("The report is in"));
    child.kill().unwrap();
    child.wait().unwrap();
    is_at_work
}

#[test]
fn killed_again_and_again_it_gives_the_same_report() {
    let folder = tempfile::tempdir().unwrap();
    // Each time a little later: who is killed while the report is written writes it again from its beginning.
    let kills = (0..60).take_while(|kill| run_and_kill(folder.path(), 8 + kill)).count();
    assert!((5..60).contains(&kills), "it was killed {kills} times");
    let printed = run(folder.path(), &["--session", "s"]).unwrap();
    assert_prints(&printed, &["The report is in"]);
    assert_eq!(report(folder.path(), "s.md"), REPORT);
    // Each output is there once, however often its node was interrupted.
    let undisturbed = tempfile::tempdir().unwrap();
    run(undisturbed.path(), &["--session", "s"]).unwrap();
    for key in ["outputs", "tasks", "sources", "execution_counts", "overall_progress", "errors"] {
        assert_eq!(value(folder.path(), "s", key), value(undisturbed.path(), "s", key), "{key}");
    }
    // How many commits there are depends on which branches end by the same poll.
    assert!(run(folder.path(), &["--list"]).unwrap().starts_with("s (version "));
}

#[test]
fn a_fork_from_the_middle_gives_the_same_report() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), &["--session", "s"]).unwrap();
    let printed = run(folder.path(), &["--session", "s", "--fork", "30"]).unwrap();
    assert_prints(
        &printed,
        &["The session s-from-30 shares the past of s up to version 30.", "# continue where it stopped"],
    );
    // The newest unfinished session is the fork.
    let printed = run(folder.path(), &[]).unwrap();
    assert_prints(&printed, &["The research s-from-30 was interrupted; it continues where it stopped."]);
    assert!(!printed.contains("▸ plan"), "{printed}");
    assert_eq!(report(folder.path(), "s-from-30.md"), REPORT);
}

#[test]
fn a_plan_waits_for_an_approver_and_so_does_each_call() {
    let folder = tempfile::tempdir().unwrap();
    // Without an answer it waits, and says what for.
    let printed = run(folder.path(), &["--session", "s", "--interactive"]).unwrap();
    assert_prints(
        &printed,
        &["The plan:", "  3. What Rust gives", "Is it right?", "There is no report yet."],
    );
    // Another process, later: the same question, and no model was asked again.
    let printed = run(folder.path(), &["--session", "s"]).unwrap();
    assert_prints(&printed, &["The research s waits for you.", "The plan:", "There is no report yet."]);
    assert!(!printed.contains("▸ plan"), "{printed}");
    let printed = run_with(folder.path(), &["--session", "s"], "perhaps\nno too broad\n");
    assert_prints(
        &printed,
        &["That is not one of the answers.", "  * plan of plan: What is committed; Calls that"],
    );
    // The first plan had three tasks, the second has two.
    assert_eq!(printed.matches("3. What Rust gives").count(), 1, "{printed}");
    // One task of the new plan; one call is refused, the others are not.
    let printed = run_with(folder.path(), &["--session", "s"], "keep 2\nno not now\nall\n");
    assert_prints(&printed, &["May it?", "task 1 completed: Calls that were cut off", "The report is in"]);
    assert!(!printed.contains("What is committed; "), "{printed}");
    assert!(value(folder.path(), "s", "feedback").contains("too broad"));
    let report = report(folder.path(), "s.md");
    // Sections that were not read now cannot be cited any more.
    assert_prints(&report, &["> Citations that do not hold were taken out: ", "rust/ownership.md\\#drop"]);
}

#[test]
fn a_task_that_fails_is_noted_and_the_others_continue() {
    let folder = tempfile::tempdir().unwrap();
    // Of other documents: what is read there is not to be found, and nothing holds that is cited.
    let docs = folder.path().join("docs");
    fs::create_dir(&docs).unwrap();
    fs::write(docs.join("crash.md"), "# Crash\nA crash, committed.\n").unwrap();
    let docs = docs.to_str().unwrap();
    let printed = run(folder.path(), &["--docs", docs, "--depth", "shallow"]).unwrap();
    assert_prints(
        &printed,
        &[
            "1 sections of 1 documents",
            "there is no document \"guide/durability.md\"; there are: crash.md",
            "100 % task 2",
        ],
    );
    // A shallow research has no judge and fewer tasks.
    assert!(!printed.contains("- judge") && !printed.contains("task 3"), "{printed}");
    let report = report(folder.path(), "research-1.md");
    assert_prints(&report, &["were taken out: docs/status.md", "## Sources"]);
    assert!(!report.contains("[^1]"), "{report}");
}

#[test]
fn the_plain_loop_answers_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let printed = run(folder.path(), &["--mode", "react"]).unwrap();
    assert_prints(&printed, &["  ▸ answer", "    answer | ✓ search", "  ▸ publish"]);
    assert!(!printed.contains("▸ plan"), "{printed}");
    expect![[r##"
        # After a crash

        A process may be killed at any moment: what happens is committed before anything else happens, and the next process goes on from there[^1]. Rust itself does not run `drop` in a killed process[^2].

        ## Sources

        [^1]: "Durability", in `guide/durability.md`

        [^2]: "Drop", in `rust/ownership.md`
    "##]].assert_eq(&report(folder.path(), "research-1.md"));
}

#[test]
fn the_report_has_the_form_that_was_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), &["--session", "s", "--format", "html"]).unwrap();
    let html = report(folder.path(), "s.html");
    assert!(html.starts_with("<!doctype html>") && html.trim_end().ends_with("</html>"), "{html}");
    assert_prints(
        &html,
        &[
            "<title>Going on after a crash</title>",
            "<strong>In short:</strong>",
            "<table>",
            "<sup class=\"footnote-reference\"><a href=\"#7\">7</a></sup>",
            "<code>docs/status.md</code>",
        ],
    );
    // The same report in another form, without another research.
    let pdf = folder.path().join("other.pdf");
    let printed =
        run(folder.path(), &["--session", "s", "--format", "pdf", "--out", pdf.to_str().unwrap()]).unwrap();
    assert!(!printed.contains("▸ plan"), "{printed}");
    let pdf = fs::read(pdf).unwrap();
    assert!(pdf.starts_with(b"%PDF-1.") && pdf.trim_ascii_end().ends_with(b"%%EOF"));
    let text = String::from_utf8_lossy(&pdf);
    assert_prints(
        &text,
        &["/Courier-Bold", "(Going on after a crash)", "Sources)", "/MediaBox [0 0 595 842]"],
    );
    let pages = text.matches("/Type /Page\n").count();
    assert!(text.contains(&format!("/Count {pages}")) && pages >= 1, "{pages}");
}

#[test]
fn its_events_are_lines_of_json() {
    let folder = tempfile::tempdir().unwrap();
    let printed = run(folder.path(), &["--json"]).unwrap();
    let events: Vec<Value> = printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds = events.iter().filter_map(|line| line["event"]["output"]["kind"].as_str());
    let kinds: Vec<&str> = kinds.filter(|kind| *kind != "finding").collect();
    assert_eq!(kinds, ["question", "plan", "verdict", "faults"]);
    assert_eq!(events.last().unwrap()["event"]["ended"], "end");
}

#[test]
fn the_graph_can_be_drawn() {
    let folder = tempfile::tempdir().unwrap();
    expect![[r#"
        flowchart TD
            start([START])
            n0["begin"]
            n1["plan"]
            n2["accept"]
            n3["research"]
            n4["judge"]
            n5["weigh"]
            n6["write"]
            n7["answer"]
            n8["check"]
            n9["publish"]
            end_([END])
            start --> n0
            n0 -.-> n1
            n0 -.-> n7
            n1 --> n2
            n2 -->|"each of items"| n3
            n2 -.-> n1
            n3 --> n4
            n4 --> n5
            n4 -.->|"at its limit"| n6
            n5 -.-> n3
            n5 -.-> n6
            n6 --> n8
            n6 -.->|"at its limit"| n9
            n7 --> n8
            n7 -.->|"at its limit"| n9
            n8 -.-> n6
            n8 -.-> n7
            n8 -.-> n9
            n9 --> end_
    "#]]
    .assert_eq(&run(folder.path(), &["--graph"]).unwrap());
}

#[test]
fn what_cannot_be_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let error = run(folder.path(), &["What is the meaning of life?"]).unwrap_err();
    assert_prints(
        &error,
        &["this is not in the written conversation", "Plan the research on: What is the meaning"],
    );
    let error = run(folder.path(), &["--docs", "nowhere"]).unwrap_err();
    assert_prints(&error, &["nowhere: "]);
    let error = run(folder.path(), &["--model", "nobody:x"]).unwrap_err();
    let expected = if cfg!(feature = "live") { "provider `nobody`" } else { "the feature `live`" };
    assert_prints(&error, &[expected]);
}
