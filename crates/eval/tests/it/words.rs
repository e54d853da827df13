//! Expectations that cannot decide are refused, and texts of reports are one line each, whatever is in them.

use serde_json::{Value, json};
use stepfold_agent_loop::Agent;
use stepfold_agent_loop::test_kit::Script;
use stepfold_eval::{
    Case, CaseStatus, Comparison, DEFAULT_SEED, DataSet, EvalError, Expectation, Experiment, Mode, Report,
    Verdict,
};
use stepfold_tools::{Effect, Tool, ToolError};

fn agent(script: &str) -> Agent {
    Agent::builder(Script::parse(script).expect("a script").whole()).build().expect("an agent")
}

fn fault(expect: &str) -> Option<String> {
    let text = format!("[[case]]\nname = \"a\"\nsay = \"hello\"\nexpect = [{expect}]\n");
    DataSet::from_toml(&text).expect("the form is valid").find_map(Result::err).map(|error| error.to_string())
}

/// A law: each number of an expectation is one that a trial can meet and can miss.
#[test]
fn numbers_and_lists_that_decide_nothing_are_refused() {
    for number in ["nan", "-nan", "inf", "-inf", "-1.0", "-0.001"] {
        for (expectation, name) in [
            (format!("{{ max_cost = {number} }}"), "max_cost"),
            (format!("{{ judge = {{ rubric = \"r\", least = {number} }} }}"), "least"),
        ] {
            let why = fault(&expectation).unwrap_or_else(|| panic!("{expectation} is accepted"));
            assert!(why.contains(&format!("invalid `{name}`")), "{expectation}: {why}");
        }
    }
    for good in ["max_cost = 0.0", "max_cost = 1e9", "max_steps = 1", "text_lacks = [\"x\"]"] {
        assert_eq!(fault(&format!("{{ {good} }}")), None, "{good}");
    }
    for vacuous in [
        "text_contains = []",
        "text_contains = [\"\"]",
        "text_contains = [\"area\", \"\"]",
        "text_lacks = []",
        "text_lacks = [\"\"]",
        "state = {}",
        "max_steps = 0",
        "calls = { calls = [], order = \"in_order\" }",
    ] {
        let why = fault(&format!("{{ {vacuous} }}")).unwrap_or_else(|| panic!("{vacuous} is accepted"));
        let name = vacuous.split(' ').next().expect("a name");
        assert!(why.starts_with(&format!("invalid case `a`: invalid `{name}`: ")), "{vacuous}: {why}");
    }
    // No call is something to expect.
    assert_eq!(fault("{ calls = { calls = [] } }"), None);
}

/// A program that is broken says nothing about the candidate.
#[tokio::test]
async fn a_broken_program_is_an_error_and_no_failure() {
    struct Output(Result<Value, String>);
    impl stepfold_eval::ProgramRunner for Output {
        fn run<'a>(
            &'a self,
            _: &'a [String],
            _: Value,
        ) -> futures_util::future::BoxFuture<'a, Result<Value, String>> {
            Box::pin(std::future::ready(self.0.clone()))
        }
    }
    let agent = agent("assistant: hello");
    let line = r#"{"name":"a","say":"hello","expect":[{"program":{"command":["grade","it"]}}]}"#;
    let case = DataSet::from_json_lines(line.as_bytes()).find_map(Result::ok).expect("a case");
    let result = Experiment::new(&agent).run_case(&case).await;
    assert_eq!(
        (result.status, &*result.why()),
        (CaseStatus::Error, "program `grade it`: no programs are run here")
    );
    for (output, status) in [
        (Ok(json!({"passed": true})), CaseStatus::Passed),
        (Ok(json!({"passed": false})), CaseStatus::Failed),
        (Ok(json!({"passed": "yes"})), CaseStatus::Error),
        (Ok(json!({"passed": null})), CaseStatus::Error),
        (Ok(json!({})), CaseStatus::Error),
        (Ok(json!(true)), CaseStatus::Error),
        (Err("exit 3".to_owned()), CaseStatus::Error),
    ] {
        let result = Experiment::new(&agent).programs(Output(output.clone())).run_case(&case).await;
        assert_eq!(result.status, status, "{output:?}: {}", result.why());
        assert!(
            status != CaseStatus::Error || result.why().starts_with("program `grade it`: "),
            "{}",
            result.why()
        );
    }
}

/// A law: a case that the baseline has not tried is no pair, and failures there are not called harmless.
#[tokio::test]
async fn failures_that_the_baseline_has_not_tried_count() {
    let agent = agent("assistant: hello");
    let run = async |cases: usize, known: usize| {
        let case = |number: usize| {
            let said = if number < known { "hello" } else { "something else" };
            Case::new(format!("c{number}"), "hello").expect(Expectation::TextEquals(said.to_owned()))
        };
        let cases: Vec<Case> = (0..cases).map(case).collect();
        Experiment::new(&agent).run(DataSet::of(cases)).await.expect("valid cases")
    };
    for known in 1..=20_usize {
        let (baseline, candidate) = (run(known, known).await, run(20, known).await);
        let comparison = Comparison::of(&baseline, &candidate, DEFAULT_SEED).expect("same mode");
        let untried = 20 - known as u64;
        assert_eq!((comparison.pairs, comparison.unpaired_count), (known as u64, 0));
        assert_eq!((comparison.untried_count, comparison.untried_failed), (untried, untried));
        // Six losses of six are more than chance.
        let expected = if untried < 6 { Verdict::NoDifference } else { Verdict::Unknown };
        assert_eq!(comparison.verdict(), expected, "{known}: {comparison}");
        assert_eq!(comparison.to_string().contains("has not tried"), untried > 0, "{comparison}");
    }
}

/// A law: two results are a pair if they are of one case, and not of one name alone.
#[tokio::test]
async fn cases_whose_content_differs_are_no_pairs() {
    let agent = agent("assistant: hello");
    let case = |number: usize, say: &str| Case::new(format!("c{number}"), say).expect(Expectation::Answered);
    let run = async |changed: usize| {
        let cases = (0..8).map(|number| case(number, if number < changed { "other" } else { "hello" }));
        Experiment::new(&agent).run(DataSet::of(cases.collect::<Vec<_>>())).await.expect("valid cases")
    };
    let baseline = run(0).await;
    for changed in 0..=8 {
        let comparison = Comparison::of(&baseline, &run(changed).await, DEFAULT_SEED).expect("same mode");
        assert_eq!((comparison.pairs, comparison.changed.len()), (8 - changed as u64, changed));
        assert_eq!(comparison.unpaired, comparison.changed);
        assert_eq!(comparison.verdict() == Verdict::Unknown, changed > 4, "{changed}");
        let text = comparison.to_string();
        assert_eq!(
            text.contains("note: the content of cases has changed since the baseline: c0"),
            changed > 0
        );
    }
    // A report of an earlier version has no digests.
    let mut older = run(3).await;
    older.results.iter_mut().for_each(|result| result.digest.clear());
    assert_eq!(Comparison::of(&baseline, &older, DEFAULT_SEED).expect("same mode").pairs, 8);
}

/// A law: a row is one line without control characters, and two names that differ still do.
#[tokio::test]
async fn names_and_texts_of_any_letters_are_one_line() {
    let agent = agent("assistant: a\u{1b}[31mred");
    let names =
        ["a\nb", "a\rb", "a\tb", "a\u{1b}b", "a\u{7}b", "a\u{85}b", "a\u{2028}b", "a\u{0}b", "ab", "é"];
    let cases =
        names.map(|name| Case::new(name, "hello").expect(Expectation::TextEquals("x\u{1b}\ny".to_owned())));
    let report = Experiment::new(&agent).run(DataSet::of(cases)).await.expect("valid cases");
    let (table, markdown) = (report.to_string(), report.to_markdown(99));
    let junit = report.to_junit().expect("it is written");
    assert_eq!(table.lines().count(), names.len() + 2, "{table}");
    for text in [&table, &markdown, &junit] {
        let control = text.chars().find(|letter| letter.is_control() && *letter != '\n');
        assert_eq!(control, None, "{text}");
        assert!(!text.contains(['\u{85}', '\u{2028}']), "{text}");
        assert!(text.contains("\\u{1b}"), "{text}");
    }
    for (text, mark) in [(&junit, "testcase name="), (&markdown, "| `a")] {
        let rows: std::collections::BTreeSet<&str> =
            text.lines().filter(|line| line.contains(mark)).collect();
        assert!(rows.len() >= names.len() - 1, "{text}");
    }
    let better = Report::new(
        report.head.clone(),
        report
            .results
            .iter()
            .cloned()
            .map(|mut result| {
                result.status = CaseStatus::Passed;
                result
            })
            .collect(),
    );
    let comparison = Comparison::of(&better, &report, DEFAULT_SEED).expect("same mode");
    assert_eq!(comparison.losses, names.len() as u64);
    assert!(comparison.to_markdown(99).lines().all(|line| !line.contains('\u{1b}')));
}

#[tokio::test]
async fn counts_have_their_nouns() {
    let agent = agent("assistant: hello");
    let run = async |cases: usize, repeats: u64| {
        let cases =
            (0..cases).map(|number| Case::new(number.to_string(), "hi").expect(Expectation::Answered));
        let report =
            Experiment::new(&agent).repeats(repeats).run(DataSet::of(cases.collect::<Vec<_>>())).await;
        report.expect("valid cases")
    };
    let words =
        |report: &Report| report.summary().to_string().split(": ").next().unwrap_or_default().to_owned();
    assert_eq!(words(&run(1, 1).await), "1 case");
    assert_eq!(words(&run(20, 1).await), "20 cases");
    assert_eq!(words(&run(20, 3).await), "20 cases, 60 trials");
    assert_eq!(words(&run(1, 3).await), "1 case, 3 trials");
    let summary = run(1, 1).await.summary().to_string();
    assert!(summary.contains("0 errors") && summary.contains("; 1 step, "), "{summary}");

    let baseline = run(40, 1).await;
    let mut worse = baseline.clone();
    worse.results.iter_mut().for_each(|result| result.status = CaseStatus::Failed);
    let text = Comparison::of(&baseline, &worse, DEFAULT_SEED).expect("same mode").to_string();
    assert!(
        text.contains("exact McNemar p < 0.0001") && text.contains("40 pairs: 0 wins, 40 losses"),
        "{text}"
    );
    worse.results.truncate(1);
    let one = Report::new(baseline.head.clone(), baseline.results[..1].to_vec());
    let text = Comparison::of(&one, &worse, DEFAULT_SEED).expect("same mode").to_string();
    assert!(text.contains("\n1 pair: 0 wins, 1 loss, 0 ties; 0 cases unpaired\n"), "{text}");
}

#[test]
fn a_fault_has_one_position() {
    let position = |text: &str| {
        let error = DataSet::from_json_lines(text.as_bytes()).find_map(Result::err).expect("a fault");
        let text = error.to_string();
        assert_eq!(text.matches("line ").count(), 1, "{text}");
        match error {
            EvalError::Line { line, column, .. } => (line, column),
            other => panic!("{other}"),
        }
    };
    assert_eq!(position("\n{\"name\": x}\n"), (2, Some(10)));
    assert_eq!(position("\u{feff}{\"name\": x}\n"), (1, Some(10)));
    assert_eq!(position("{\"name\":\"a\",\"say\":1}\n").0, 1);
    let toml = DataSet::from_toml("[[case]]\nname = 3\n").expect_err("a fault").to_string();
    assert!(toml.starts_with("invalid data set at line 2, column 8: "), "{toml}");
    for text in ["{\"name\":\"a\",\"say\":\"b\"}\n", "[[case]]\nname = \"a\"\nsay = \"b\"\n"] {
        let marked = format!("\u{feff}{text}");
        let cases: Vec<Case> = match text.starts_with('{') {
            true => DataSet::from_json_lines(marked.as_bytes()).collect::<Result<_, _>>().expect("valid"),
            false => DataSet::from_toml(&marked).expect("valid").collect::<Result<_, _>>().expect("valid"),
        };
        assert_eq!(cases, [Case::new("a", "b")]);
    }
}

/// The guide has a row for each expectation that a file may have.
#[test]
fn the_guide_lists_all_expectations() {
    let unknown =
        serde_json::from_value::<Expectation>(json!("none")).expect_err("there is no such one").to_string();
    let names: Vec<&str> = unknown.split('`').skip(3).step_by(2).collect();
    assert!(names.len() >= 20 && names.contains(&"judge"), "{unknown}");
    let guide = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../stepfold/guide/evaluation.md");
    let guide = std::fs::read_to_string(guide).expect("the guide");
    let rows: Vec<&str> =
        guide.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    for name in &names {
        assert_eq!(rows.iter().filter(|row| row == &name).count(), 1, "{name}");
    }
}

#[tokio::test]
async fn only_pure_tools_can_be_allowed_beside_a_record() {
    let tool = |name: &str, effect| {
        let tool = Tool::new(name, "Does.", || async { Ok::<_, ToolError>("done") });
        tool.effect(effect).build().expect("a tool")
    };
    let tools =
        [tool("look", Effect::Pure), tool("retry", Effect::Idempotent), tool("pay", Effect::AtMostOnce)];
    let script = Script::parse("assistant: hello").expect("a script").whole();
    let agent = Agent::builder(script).tools(tools).build().expect("an agent");
    for (name, is_allowed) in [("look", true), ("retry", false), ("pay", false)] {
        let checked = Experiment::new(&agent).allow_pure(name).check_allowed();
        assert_eq!(checked.is_ok(), is_allowed, "{name}");
        let live = Experiment::new(&agent).mode(Mode::Live).allow_live(name).check_allowed();
        assert!(live.is_ok(), "{name}");
    }
}
