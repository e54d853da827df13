//! Faults of cases are errors and not verdicts; texts of others stay texts.

use serde_json::json;
use stepfold_agent_loop::test_kit::Script;
use stepfold_agent_loop::{Agent, EventKind, Redaction, SensitiveData};
use stepfold_eval::{
    Case, CaseRedaction, CaseStatus, Comparison, DEFAULT_SEED, DataSet, EvalError, Expectation, Experiment,
    Mode, Report, Score, Summary, Verdict,
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
        (r#"{"max_steps":0}"#, "invalid `max_steps`: each turn has a reply of the model; set at least 1"),
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
    let mut content = redacted.clone();
    content.source = None;
    content.name.clear();
    for event in content.record.iter_mut().flat_map(|record| &mut record.events) {
        if let EventKind::Began { id, .. } = &mut event.kind {
            id.clear();
        }
    }
    let stored = serde_json::to_string(&content).expect("it has a stored form");
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

/// The words of a program may hold a secret; the digests beside them tell nothing, and are compared.
#[tokio::test]
async fn the_recorded_agent_is_redacted_but_for_its_digests() {
    let executions = Executions::default();
    let words = "curl -H sk-abcdefghijklmnop1234 ada@example.org";
    let agent = clerk(Variation::None, &executions).dependencies([(words, "v1")]).build().expect("an agent");
    let session = session(&agent, "ada", "which area?").await;
    let case = Case::taken_from(&session, None).await.expect("a turn that suits");
    let redacted = CaseRedaction::new(Redaction::all()).key("instructions").apply(&case).expect("it can be");
    let of =
        |case: &Case| serde_json::to_value(&case.record.as_ref().expect("a record").agent).expect("a form");
    let (before, after) = (of(&case), of(&redacted));
    assert!(before.to_string().contains("sk-abc") && !after.to_string().contains("sk-abc"), "{after}");
    assert!(!after.to_string().contains("ada@"), "{after}");
    for (part, digests) in
        before.as_object().expect("parts").iter().filter(|(part, _)| *part != "dependencies")
    {
        assert_eq!(&after[part], digests, "{part}");
    }
}

/// A rule that finds its own replacements replaces each value once, in a text that is JSON as well.
#[test]
fn what_is_replaced_is_not_replaced_again() {
    let say = json!(json!({"pin": 31415, "mail": "a@b.org", "channel": "email"}).to_string());
    let line = format!(r#"{{"name":"a","say":{say},"expect":["answered"]}}"#);
    let case = DataSet::from_json_lines(line.as_bytes()).find_map(Result::ok).expect("a case");
    let rules = Redaction::of([SensitiveData::Email]).pattern("any", "[0-9]+").expect("a pattern");
    let redacted = CaseRedaction::new(rules).key("channel").apply(&case).expect("it can be");
    let said: serde_json::Value =
        serde_json::from_str(redacted.say.as_deref().expect("a text")).expect("JSON still");
    assert_eq!(said, json!({"pin": 1, "mail": "[email 1]", "channel": "[channel 1]"}));
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

/// A law: the ids of a case stay, whatever the rules match, so that an erasure finds it and its record replays.
#[tokio::test]
async fn ids_and_digests_stay_under_every_rule() {
    let executions = Executions::default();
    let agent = clerk(Variation::None, &executions).build().expect("a valid agent");
    for case in cases(&agent, 3).await {
        for pattern in ["[0-9a-f]", "[0-9]+", "[a-z]+[0-9]", "s[0-9]|ada|test", "[0-9a-f]{4}"] {
            let rules = Redaction::of([]).pattern("any", pattern).expect("an expression");
            // A rule may also name a part of the form of a case, which is an error.
            let Ok(redacted) = CaseRedaction::new(rules).apply(&case) else { continue };
            assert_eq!((&redacted.name, &redacted.source), (&case.name, &case.source), "{pattern}");
            let (now, before) = (redacted.record.expect("a record"), case.record.as_ref().expect("a record"));
            assert_eq!(now.agent, before.agent, "{pattern}");
            for (now, before) in now.events.iter().zip(&before.events) {
                if let (EventKind::Began { id, tools, .. }, EventKind::Began { id: own, tools: same, .. }) =
                    (&now.kind, &before.kind)
                {
                    assert_eq!((id, tools), (own, same), "{pattern}");
                }
                assert_eq!(now.step, before.step, "{pattern}");
            }
        }
        let rules = Redaction::of([]).pattern("stalls", "[0-9]{2}").expect("an expression");
        let redacted = CaseRedaction::new(rules).apply(&case).expect("the rules apply");
        let experiment = Experiment::new(&agent).mode(Mode::Replay);
        let [own, again] = [experiment.run_case(&case).await, experiment.run_case(&redacted).await];
        assert_eq!((again.status, again.why()), (own.status, own.why()));
    }
}

/// A law: replacements of a key are equal if and only if the values are, and have the type of their values.
#[test]
fn equal_values_are_equal_afterwards_and_unequal_ones_are_not() {
    let values = [
        json!(0),
        json!(1),
        json!(2),
        json!(7),
        json!(12),
        json!(1234),
        json!(12345),
        json!(-1),
        json!(1.5),
        json!(u64::MAX),
        json!("1"),
        json!("ab"),
        json!("abcd"),
        json!("abcde"),
        json!("[pin 1]"),
        json!(""),
    ];
    let mut redaction = CaseRedaction::default().key("pin");
    let mut replaced = |value: &serde_json::Value| {
        let case = Case::new("a", "hello").value("pin", value.clone()).value("other", value.clone());
        let case = redaction.apply(&case).expect("the rules apply");
        (case.values["pin"].clone(), case.values["other"].clone())
    };
    for one in &values {
        for other in &values {
            let ((found, same), (beside, _)) = (replaced(one), replaced(other));
            // A number and its digits are one value.
            assert_eq!(found.is_number(), one.is_number(), "{one}");
            if one.is_number() == other.is_number() {
                assert_eq!(found == beside, one == other, "{one} and {other}: {found} and {beside}");
            }
            let digits = one.as_str().map_or_else(|| one.to_string(), str::to_owned);
            if digits.len() >= 4 {
                assert_eq!(same, found, "{one} beside the key");
            }
        }
    }
}

/// A rule finds a number by its digits, however few; counts of steps and tokens are no content.
#[test]
fn numbers_in_content_are_found_by_rules() {
    let line = r#"{"name":"a","say":"hello","values":{"n":123,"list":[{"deep":456}],"json":"{\"x\": 789}","rest":1000},
        "expect":[{"state":{"/n":123}},{"max_steps":123},{"calls":{"calls":[{"tool":"t","arguments":{"n":456}}]}}]}"#;
    let case =
        DataSet::from_json_lines(line.replace('\n', " ").as_bytes()).find_map(Result::ok).expect("a case");
    let rules = Redaction::of([]).pattern("digits", r"\b[0-9]{3}\b").expect("an expression");
    let redacted = CaseRedaction::new(rules).apply(&case).expect("the rules apply");
    let stored = serde_json::to_string(&redacted).expect("a form");
    assert!(
        !stored.contains("456") && !stored.contains("789") && stored.matches("123").count() == 1,
        "{stored}"
    );
    assert!(stored.contains(r#"{"max_steps":123}"#) && stored.contains("1000"), "{stored}");
    let number = redacted.values["n"].as_u64().expect("a number");
    assert!(stored.contains(&format!(r#"{{"/n":{number}}}"#)), "{stored}");
}

/// A text that is no UTF-8 is a fault of its line, and not one of the disk.
#[test]
fn a_line_that_is_no_text_is_named() {
    let text = b"{\"name\":\"a\",\"say\":\"hello\"}\n\xff\n";
    let error = DataSet::from_json_lines(text.as_slice()).find_map(Result::err).expect("it is invalid");
    assert!(error.to_string().starts_with("invalid case at line 2: "), "{error}");
}

/// The scores before an expectation that could not be evaluated are in the result.
#[tokio::test]
async fn scores_before_an_error_stay() {
    let agent = Agent::builder(Script::parse("assistant: hello").expect("a script").whole());
    let agent = agent.build().expect("an agent");
    let text = |text: &str| Expectation::TextEquals(text.to_owned());
    let rubric = json!({"judge": {"rubric": "It is kind."}});
    let judge: Expectation = serde_json::from_value(rubric).expect("a rubric");
    let case = Case::new("a", "hello").expect(text("hello")).expect(text("bye")).expect(judge);
    let vague = Agent::builder(Script::parse("assistant: well").expect("a script").whole()).max_steps(1);
    let vague = vague.build().expect("an agent");
    let broken = stepfold_eval::Judge::new(&vague, stepfold_session_scopes::MemoryStore::new());
    let experiment = Experiment::new(&agent).judge(broken.expect("it can judge"));
    let result = experiment.run_case(&case).await;
    let passed: Vec<bool> = result.scores.iter().map(|score| score.passed).collect();
    assert_eq!((result.status, passed, result.steps), (CaseStatus::Error, vec![true, false], 1));
    let why = "text_equals: expected `bye`, found `hello`; no judgement in session ";
    assert!(result.why().starts_with(why), "{}", result.why());
}

/// The replies that were compared before a model failed are in the result.
#[tokio::test]
async fn replies_before_an_error_stay() {
    let executions = Executions::default();
    let agent = clerk(Variation::None, &executions).build().expect("a valid agent");
    let case = cases(&agent, 1).await.remove(0);
    let spending = stepfold_eval::Spending::new().max_requests(1);
    let result = Experiment::new(&agent).mode(Mode::Next).spending(spending).run_case(&case).await;
    assert_eq!((result.status, result.scores.len()), (CaseStatus::Error, 1), "{}", result.why());
}

/// A summary that is older than the count of trials.
#[test]
fn an_old_summary_is_read() {
    let old = json!({"cases": 5, "passed": 1, "failed": 1, "left_record": 1, "errors": 0, "skipped": 2, "steps": 9, "tokens": 9});
    let summary: stepfold_eval::Summary = serde_json::from_value(old).expect("a summary");
    assert_eq!(summary.coverage(), Some(2.0 / 3.0));
    assert!(summary.to_string().starts_with("5 cases: 1 passed, 1 failed"), "{summary}");
}

/// A value of another kind is named with its field and its place.
#[test]
fn a_value_of_another_kind_is_named() {
    for (text, expected) in [
        ("[[case]]\nname = \"a\"\nexpect = \"x\"\n", "invalid data set at line 3, column 10: `expect`: "),
        ("[[case]]\nname = 7\n", "invalid data set at line 2, column 8: `name`: "),
        ("[[case]]\nnames = 7\n", "invalid data set at line 2, column 1: unknown field `names`"),
    ] {
        let error = DataSet::from_toml(text).expect_err("it is invalid").to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

/// A report of a mode with one result of a case of this name.
fn report_of(mode: &str, case: &str, status: &str) -> Report {
    let head =
        json!({"stepfold_eval_report": 1, "mode": mode, "candidate": case, "fingerprint": {"name": case}});
    let result =
        json!({"case": case, "status": status, "steps": 1, "tokens": 1, "answered": 1, "reason": case});
    Report::from_json_lines(format!("{head}\n{result}\n").as_bytes()).expect("a report")
}

/// Mode `next` is a hint where it is another mode, and says more.
#[test]
fn a_comparison_names_another_mode_only() {
    for (mode, is_hinted) in [("roll", true), ("next", false), ("replay", false)] {
        let (baseline, candidate) = (report_of(mode, "a", "passed"), report_of(mode, "a", "left_record"));
        let text = Comparison::of(&baseline, &candidate, DEFAULT_SEED).expect("one mode").to_string();
        assert!(text.contains("unpaired cases may be losses"), "{text}");
        assert_eq!(text.contains("mode `next` compares"), is_hinted, "{text}");
    }
}

/// A law: whatever is in a name, Markdown shows it as it is: it is no table, no heading, no link and no element.
#[test]
fn markdown_shows_names_as_they_are() {
    for name in ["a|b", "`c`", "<img src=x>", "[d](http://x)", "@ada", "e\n# f\n::error::g\n| h |", "**i**"] {
        let (baseline, candidate) =
            (report_of("roll", name, "passed"), report_of("roll", name, "left_record"));
        let texts = [
            candidate.to_markdown(9),
            Comparison::of(&baseline, &candidate, DEFAULT_SEED).expect("one mode").to_markdown(9),
        ];
        for text in texts {
            assert!(text.lines().all(|line| !line.starts_with("# ") && !line.starts_with("::")), "{text}");
            // Outside of code nothing of the name is left.
            let quoted = name.replace('\n', " ").replace('|', "\\|");
            let shown = text.replace("\\n", " ").replace(&quoted, "NAME");
            for part in ["<img", "[d]", "@ada", "**i", "::error"] {
                assert!(!shown.contains(part), "{part}: {text}");
            }
            let is_code = |line: &str| line.split("NAME").count() == 1 || line.contains('`');
            assert!(shown.lines().all(is_code), "{text}");
        }
    }
}

/// What was not evaluated does not meet a threshold.
#[test]
fn an_error_has_not_passed() {
    let mut summary = Summary::default();
    (summary.passed, summary.errors, summary.left_record) = (2, 5, 1);
    let rates =
        [summary.pass_rate(), summary.tried_pass_rate(), summary.sure_pass_rate(), summary.coverage()];
    assert_eq!(rates, [Some(1.0), Some(2.0 / 7.0), Some(0.25), Some(0.25)]);
}
