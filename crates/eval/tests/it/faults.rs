//! Faults of cases are errors and not verdicts; texts of others stay texts.

use serde_json::json;
use stepfold_agent_loop::test_kit::Script;
use stepfold_agent_loop::{Agent, EventKind, Redaction, SensitiveData};
use stepfold_eval::{
    Case, CaseRedaction, CaseStatus, Comparison, DEFAULT_SEED, DataSet, EvalError, Expectation, Experiment,
    Mode, Score, Verdict,
};

use crate::clerk::{Executions, Variation, cases, clerk, session};

fn fault_of(line: &str) -> String {
    DataSet::from_json_lines(line.as_bytes()).find_map(Result::err).expect("it is invalid").to_string()
}

#[test]
fn misspelt_expectations_are_faults_of_the_data_set() {
    for (expectation, fault) in [
        (r#"{"state":{"area":3}}"#, "invalid JSON pointer `area`: must begin with `/`"),
        (r#"{"recorded_state":["notes"]}"#, "invalid JSON pointer `notes`"),
        (r#"{"calls":{"calls":[],"ignore":["reason"]}}"#, "invalid JSON pointer `reason`"),
        (r#"{"calls":{"calls":[],"ordr":"exact"}}"#, "unknown field `ordr`"),
        (r#"{"recorded_calls":{"ordr":"exact"}}"#, "unknown field `ordr`"),
        (r#""recorded_text""#, "`recorded_text` needs a recorded turn: the case has no `record`"),
    ] {
        let fault_found = fault_of(&format!(r#"{{"name":"a","say":"hello","expect":[{expectation}]}}"#));
        assert!(fault_found.contains(fault), "{expectation}: {fault_found}");
    }
    let good =
        r#"{"name":"a","say":"hello","expect":[{"calls":{"calls":[],"order":"exact","ignore":["/a"]}}]}"#;
    assert!(DataSet::from_json_lines(good.as_bytes()).all(|case| case.is_ok()));
}

#[tokio::test]
async fn a_version_of_no_turn_is_an_error() {
    let agent = clerk(Variation::None, &Executions::default()).build().expect("a valid agent");
    let session = session(&agent, "s1", "how many stalls has area 3").await;
    let case = Case::taken_from(&session, None).await.expect("a turn that suits");
    let last = case.source.expect("it was taken").last_version;
    assert!(Case::taken_from(&session, Some(last)).await.is_ok());
    let error = Case::taken_from(&session, Some(last + 1)).await.expect_err("there is no such turn");
    assert!(matches!(error, EvalError::NoTurn { version: Some(version), .. } if version == last + 1));
}

#[tokio::test]
async fn a_case_that_expects_nothing_has_not_passed() {
    let agent = Agent::builder(Script::parse("assistant: hello").expect("a script").whole());
    let agent = agent.build().expect("an agent");
    let result = Experiment::new(&agent).run_case(&Case::new("a", "hello")).await;
    assert_eq!((result.status, &*result.why()), (CaseStatus::Skipped, "nothing is expected of it"));
    let evaluator = |_: &Case, _: &stepfold_eval::Trial| Score::passed("own");
    let result = Experiment::new(&agent).evaluator(evaluator).run_case(&Case::new("a", "hello")).await;
    assert_eq!((result.status, result.reason), (CaseStatus::Passed, None));
}

#[tokio::test]
async fn replies_that_could_not_be_asked_for_are_named() {
    let executions = Executions::default();
    let agent = clerk(Variation::None, &executions).build().expect("a valid agent");
    let mut case = cases(&agent, 1).await.remove(0);
    let record = case.record.as_mut().expect("it was taken");
    // A record that is not whole: the calls of its first reply have no outcomes.
    record.events.retain(|event| matches!(event.kind, EventKind::Began { .. } | EventKind::Replied { .. }));
    let result = Experiment::new(&agent).mode(Mode::Next).run_case(&case).await;
    assert_eq!((result.scores.len(), result.status), (1, CaseStatus::Passed));
    assert!(result.why().starts_with("left at step 2: "), "{}", result.why());
    assert_eq!(executions.load(std::sync::atomic::Ordering::Relaxed), 2, "only the recorded calls ran");

    case.record.as_mut().expect("it was taken").events.truncate(1);
    let result = Experiment::new(&agent).mode(Mode::Next).run_case(&case).await;
    assert_eq!((result.status, &*result.why()), (CaseStatus::Skipped, "its record has no reply"));
}

#[tokio::test]
async fn texts_of_models_and_names_of_users_are_literal_in_markdown() {
    let reply = "assistant: `x` | <img> @team";
    let agent = Agent::builder(Script::parse(reply).expect("a script").whole()).build().expect("an agent");
    let case = Case::new("auth0|ada/s1/1", "hello").expect(Expectation::TextEquals("y".to_owned()));
    let report = Experiment::new(&agent).run(DataSet::of([case])).await.expect("a valid case");
    let markdown = report.to_markdown(9);
    let row = markdown.lines().last().expect("a row");
    let wanted =
        r"| `auth0\|ada/s1/1` | failed | ``` text_equals: expected `y`, found ``x` \| <img> @team` ``` |";
    assert_eq!(row, wanted);
}

#[tokio::test]
async fn a_few_pairs_are_said_to_be_too_few() {
    let executions = Executions::default();
    let agent = clerk(Variation::None, &executions).build().expect("a valid agent");
    let cases = cases(&agent, 6).await;
    let worse = clerk(Variation::LostState, &executions).build().expect("a valid agent");
    for (count, verdict) in [(5, Verdict::Unknown), (6, Verdict::Worse)] {
        let of = |agent: &Agent| Experiment::new(agent);
        let some = || DataSet::of(cases[..count].to_vec());
        let before = of(&agent).run(some()).await.expect("valid cases");
        let now = of(&worse).run(some()).await.expect("valid cases");
        let comparison = Comparison::of(&before, &now, DEFAULT_SEED).expect("same mode");
        assert_eq!(comparison.verdict(), verdict);
        let is_noted = comparison.to_string().contains("fewer than 6 pairs are never more than chance");
        assert_eq!(is_noted, count < 6);
    }
}

/// Values that the rules name are nowhere in the data set, and the record still answers.
#[tokio::test]
async fn redacted_cases_hold_no_named_value_and_still_roll() {
    let script = "assistant: > c1 find(owner=\"ada@example.org\")\n  > c2 note(text=\"4111 1111 1111 1111 of ada@example.org\")\nassistant: Ada Lovelace, +49 30 1234567, sk-abcdefghijklmnop1234";
    let executions = Executions::default();
    let find = stepfold_tools::Tool::new("find", "Finds.", |_: stepfold_tools::RawArgs| async {
        Ok::<_, stepfold_tools::ToolError>(
            json!({"token": "s3cret-7", "pin": 31415, "of": "ada@example.org"}),
        )
    });
    let find = find
        .parameters(
            json!({"type": "object", "properties": {"owner": {"type": "string"}}, "required": ["owner"]}),
        )
        .build()
        .expect("a tool");
    let build = |script: &str| {
        clerk(Variation::None, &executions)
            .model(Script::parse(script).expect("a script"))
            .tool(find.clone())
            .build()
    };
    let agent = build(script).expect("an agent");
    let session = session(&agent, "ada@example.org", "who owns it? my token is s3cret-7").await;
    let case = Case::taken_from(&session, None).await.expect("a turn that suits");
    let mut redaction = CaseRedaction::new(Redaction::all()).key("token").key("pin");
    let redacted = redaction.apply(&case).expect("the rules can be applied");
    let stored = serde_json::to_string(&redacted).expect("it has a stored form");
    for named in ["ada@", "4111", "1234567", "sk-abc", "s3cret", "31415"] {
        assert!(serde_json::to_string(&case).expect("a form").contains(named), "{named} was recorded");
        assert!(!stored.contains(named), "{named} in {stored}");
    }
    let spoken = "assistant: > c1 find(owner=\"[email 1]\")\n  > c2 note(text=\"[card 1] of [email 1]\")\nassistant: Ada Lovelace";
    let candidate = build(spoken).expect("an agent");
    let result = Experiment::new(&candidate).run_case(&redacted).await;
    assert_eq!(result.status, CaseStatus::Passed, "{}", result.why());

    let error = CaseRedaction::default().key("role").apply(&case).expect_err("it is a part of each message");
    assert!(error.to_string().contains("a rule names a part of the form of a case"), "{error}");
}

/// A text may be JSON, and JSON has several forms of one value.
#[test]
fn a_named_value_is_found_where_json_escapes_it() {
    let say = json!(" {\"owner\": \"Jos\\u00e9 \\\"Pepe\\\" Arcadio\"}\n").to_string();
    let line = format!(r#"{{"name":"a","say":{say},"expect":["answered"]}}"#);
    let case = DataSet::from_json_lines(line.as_bytes()).find_map(Result::ok).expect("a case");
    let redacted = CaseRedaction::default().key("owner").apply(&case).expect("the rules can be applied");
    let stored = serde_json::to_string(&redacted).expect("it has a stored form");
    assert!(!stored.contains("Arcadio") && !stored.contains("Pepe"), "{stored}");
    assert!(stored.contains("[owner 1]"), "{stored}");
}

#[test]
fn numbers_of_redaction_continue_where_a_data_set_grows() {
    let case = |name: &str, mail: &str| Case::new(name, format!("I am {mail}"));
    let first = CaseRedaction::new(Redaction::of([SensitiveData::Email]))
        .apply(&case("a", "ada@example.org"))
        .expect("the rules apply");
    let mut redaction = CaseRedaction::new(Redaction::of([SensitiveData::Email]));
    redaction.continue_after(&first);
    redaction.continue_after(&case("b", "[email 7] and [email x], [phone 9]"));
    let said = |case: Case| case.say.expect("a text");
    assert_eq!(said(first), "I am [email 1]");
    for (mail, number) in [("bob@example.org", 8), ("eve@example.org", 9), ("bob@example.org", 8)] {
        let next = redaction.apply(&case("c", mail)).expect("the rules apply");
        assert_eq!(said(next), format!("I am [email {number}]"));
    }
}
