//! Data sets of other projects are read and written, and what they cannot say is named.

use serde_json::json;
use stepfold_eval::{Case, Conversation, DataSet, DataSetFormat, Expectation, Rubric};

use crate::clerk::{Executions, Variation, cases, clerk};

const FORMATS: [DataSetFormat; 2] = [DataSetFormat::PydanticEvals, DataSetFormat::AdkEvalSet];

/// Written cases, with an expectation of nearly every kind.
fn written() -> Vec<Case> {
    let text = r#"
[[case]]
name = "plain"
say = "Which area?"

[[case]]
name = "texts: 'all' \"kinds\""
say = "Which area?\nSay: no"
expect = [
    { text_equals = "area 3" }, { text_contains = ["area", "3"] }, { text_contains = ["e"] }, { text_lacks = ["4"] },
    { text_matches = "a.*3" }, { text_schema = { type = "object" } }, "answered", "no_failed_calls",
    { max_steps = 4 }, { max_tokens = 100 }, { max_cost = 0.5 }, { program = { command = ["./grade"] } },
]

[[case]]
name = "calls"
say = "Which area?"
values = { area = 3, "user:name" = "Ada" }
conversation = """
user: hello
assistant: > c1 count(area=3)
tool c1: 12
assistant: Hello, there are 12.
"""
expect = [
    { calls = { order = "exact", calls = [{ tool = "count", arguments = { area = 3 } }, { tool = "note", arguments = {} }] } },
    { calls = { order = "any_order", ignore = ["/area"], calls = [{ tool = "count" }] } },
    { calls = { order = "in_order", calls = [{ tool = "count" }] } },
    { state = { "/area" = 3, "/list/0" = 1 } },
    { judge = { rubric = "It names an area.", least = 0.5 } },
]
"#;
    DataSet::from_toml(text).unwrap().collect::<Result<_, _>>().unwrap()
}

#[tokio::test]
async fn a_case_that_is_written_is_read_again() {
    let agent = clerk(Variation::None, &Executions::default()).build().unwrap();
    let mut all = written();
    all.extend(cases(&agent, 2).await);
    all[4].expect = vec![Expectation::RecordedText];
    for format in FORMATS {
        let file = format.write("stalls", all.clone()).unwrap();
        assert_eq!(DataSetFormat::of_text(&file.content).unwrap(), format);
        let read = format.read(&file.content).unwrap();
        assert_eq!((read.content, read.left_out.count()), (all.clone(), 0), "{format}");
    }
}

/// A file that was written is read again, however many values it has, and however deep they are.
#[test]
fn large_and_deep_files_are_read_again() {
    let deep = (0..40).fold(json!(1), |value, _| json!([value]));
    let wide: Vec<u64> = (0..300_000).collect();
    let mut case = Case::new("a", "hello");
    case.values.insert("deep".to_owned(), deep);
    case.values.insert("wide".to_owned(), json!(wide));
    for format in FORMATS {
        let file = format.write("stalls", [case.clone()]).unwrap().content;
        assert_eq!(format.read(&file).unwrap().content, [case.clone()], "{format}");
        let marked = format!("\u{feff}{file}");
        assert_eq!(DataSetFormat::of_text(&marked).unwrap(), format);
        assert_eq!(format.read(&marked).unwrap().content, [case.clone()], "{format}");
        assert!(format.write("none", []).unwrap().content.lines().count() < 6);
        assert_eq!(format.read(&format.write("none", []).unwrap().content).unwrap().content, []);
    }
}

#[test]
fn expectations_without_a_counterpart_are_named() {
    let left_out =
        |format: DataSetFormat| format.write("stalls", written()).unwrap().left_out.lines().to_vec();
    let name = "case `texts: 'all' \"kinds\"`";
    let of = |names: &[&str]| names.iter().map(|expected| format!("{name}: {expected}")).collect::<Vec<_>>();
    let mut pydantic = of(&[
        "text_lacks",
        "text_matches",
        "text_schema",
        "answered",
        "no_failed_calls",
        "max_tokens",
        "max_cost",
        "program",
    ]);
    pydantic.extend(["calls", "calls", "state", "judge"].map(|expected| format!("case `calls`: {expected}")));
    assert_eq!(left_out(DataSetFormat::PydanticEvals), pydantic);
    let mut adk = of(&[
        "text_contains",
        "text_contains",
        "text_lacks",
        "text_matches",
        "text_schema",
        "answered",
        "no_failed_calls",
        "max_steps",
        "max_tokens",
        "max_cost",
        "program",
    ]);
    adk.extend(["calls", "calls", "state"].map(|expected| format!("case `calls`: {expected}")));
    assert_eq!(left_out(DataSetFormat::AdkEvalSet), adk);
}

#[test]
fn a_data_set_of_pydantic_evals_is_read() {
    // As its own program writes it.
    let text = "\
# yaml-language-server: $schema=stalls_schema.json
name: stalls
cases:
- name: largest
  inputs: Which area has most stalls?
  expected_output: area 3
  evaluators:
  - EqualsExpected
  - Contains: area
  - Contains:
      value: Area 3.
      case_sensitive: false
  - MaxDuration: 2.0
  - LLMJudge: It names one area.
- inputs:
    year: 2026
    areas: [1, 2]
  metadata: {author: ada}
  evaluators:
  - ToolCorrectness:
      expected_tools: [count, note]
  - TrajectoryMatch:
      expected_trajectory: [count]
      order: in_order
evaluators:
- MaxModelRequests: 3
";
    let read = DataSetFormat::of_text(text).unwrap().read(text).unwrap();
    let [largest, second] = &read.content[..] else { panic!("two cases") };
    let expected = json!([
        {"text_equals": "area 3"}, {"text_contains": ["area"]}, {"text_matches": "(?i)Area 3\\."},
        {"max_seconds": 2.0}, {"judge": {"rubric": "It names one area."}}, {"max_steps": 3},
    ]);
    assert_eq!(serde_json::to_value(&largest.expect).unwrap(), expected);
    let said: serde_json::Value = serde_json::from_str(second.say.as_deref().unwrap()).unwrap();
    assert_eq!((second.name.as_str(), said), ("case 2", json!({"areas": [1, 2], "year": 2026})));
    let expected = json!([
        {"calls": {"calls": [{"tool": "count"}, {"tool": "note"}], "order": "any_order"}}, {"max_steps": 3},
    ]);
    assert_eq!(serde_json::to_value(&second.expect).unwrap(), expected);
    assert_eq!(read.left_out.lines(), ["case `case 2`: evaluator TrajectoryMatch"]);
    let bounded = r#"{"name":"a","say":"b","expect":[{"max_seconds":2.5}]}"#;
    let mut written = Vec::new();
    let cases = DataSet::from_json_lines(bounded.as_bytes());
    DataSetFormat::PydanticEvals.write_to(&mut written, "bounded", cases).unwrap();
    let written = String::from_utf8(written).unwrap();
    assert!(written.contains("MaxDuration"), "{written}");
    let again = DataSetFormat::PydanticEvals.read(&written).unwrap();
    assert_eq!(serde_json::to_value(&again.content[0].expect).unwrap(), json!([{"max_seconds": 2.5}]));
}

#[test]
fn an_eval_set_of_adk_is_read_in_both_forms() {
    let newer = json!({"eval_set_id": "dice", "eval_cases": [{
        "evalId": "roll",
        "conversation": [
            {"userContent": {"role": "user", "parts": [{"text": "hello"}]},
             "finalResponse": {"role": "model", "parts": [{"text": "Hello."}]}},
            {"user_content": {"role": "user", "parts": [{"text": "roll a die"}]},
             "intermediate_data": {"tool_uses": [{"id": "x", "name": "roll", "args": {"sides": 6}}]}},
        ],
        "sessionInput": {"appName": "dice", "userId": "ada", "state": {"sides": 6}},
        "finalSessionState": {"rolls/all": [3]},
        "rubrics": [{"rubricId": "1", "rubricContent": {"textProperty": "It is polite."}}],
    }, {"evalId": "free", "conversationScenario": {"startingPrompt": "hi", "conversationPlan": "chat"}}]});
    let read = DataSetFormat::AdkEvalSet.read(&newer.to_string()).unwrap();
    let [first, second] = &read.content[..] else { panic!("a case for each invocation") };
    assert_eq!((first.name.as_str(), first.say.as_deref()), ("roll/1", Some("hello")));
    assert_eq!((second.name.as_str(), second.values["sides"].as_u64()), ("roll/2", Some(6)));
    let Conversation::Messages(before) = &second.conversation else { panic!("messages") };
    let said: Vec<_> = before.iter().map(|message| message.text()).collect();
    assert_eq!(said, ["hello", "Hello."]);
    let expected = json!([
        {"calls": {"calls": [{"tool": "roll", "arguments": {"sides": 6}}], "order": "exact"}},
        {"state": {"/rolls~1all": [3]}}, {"judge": {"rubric": "It is polite."}},
    ]);
    assert_eq!(serde_json::to_value(&second.expect).unwrap(), expected);
    assert_eq!(read.left_out.count(), 2, "{:?}", read.left_out);

    let older = json!([{
        "name": "roll", "initial_session": {"state": {}, "app_name": "dice", "user_id": "ada"},
        "data": [{"query": "roll a die", "expected_tool_use": [{"tool_name": "roll", "tool_input": {"sides": 6}}],
                  "reference": "You rolled 3."}],
    }]);
    let read = DataSetFormat::of_text(&older.to_string()).unwrap().read(&older.to_string()).unwrap();
    let expected =
        json!([{"calls": {"calls": [{"tool": "roll", "arguments": {"sides": 6}}], "order": "exact"}}]);
    assert_eq!((read.content.len(), read.content[0].name.as_str()), (1, "roll"));
    assert_eq!(serde_json::to_value(&read.content[0].expect).unwrap(), expected);
}

#[tokio::test]
async fn an_edit_of_the_other_project_holds() {
    let agent = clerk(Variation::None, &Executions::default()).build().unwrap();
    let recorded = cases(&agent, 1).await.remove(0);
    let edited = |format: DataSetFormat, from: &str, to: &str| {
        let file = format.write("stalls", [recorded.clone()]).unwrap().content;
        assert!(file.contains(from), "{file}");
        format.read(&file.replacen(from, to, 1)).unwrap()
    };
    // Another expectation: the record still answers.
    let read = edited(
        DataSetFormat::PydanticEvals,
        "    inputs:",
        "    evaluators: [{Contains: four}]\n    inputs:",
    );
    let case = &read.content[0];
    assert_eq!(case.expect, [Expectation::TextContains(vec!["four".to_owned()])]);
    assert_eq!(case.record, recorded.record);
    // Another question: the record is of another turn.
    let read = edited(DataSetFormat::PydanticEvals, "inputs: \"how", "inputs: \"HOW");
    assert!(read.content[0].record.is_none());
    assert_eq!(read.left_out.count(), 1, "{:?}", read.left_out);
    let read = edited(DataSetFormat::AdkEvalSet, "how many stalls", "how many shops");
    assert_eq!(read.content[0].say.as_deref(), Some("how many shops has area 1"));
    assert!(read.content[0].record.is_none());
}

#[test]
fn files_that_are_neither_are_refused() {
    let error = |text: &str| DataSetFormat::of_text(text).unwrap_err().to_string();
    assert!(error("a: 1").contains("unknown format; expected `cases`"), "{}", error("a: 1"));
    assert!(error("[1").starts_with("invalid data set at line "), "{}", error("[1"));
    let unknown =
        DataSetFormat::PydanticEvals.read("cases: [{inputs: x, colour: red}]").unwrap_err().to_string();
    assert!(unknown.contains("unknown field `colour`"), "{unknown}");
    let silent = json!({"eval_cases": [{"evalId": "a", "conversation": [{"userContent": {"parts": []}}]}]});
    let silent = DataSetFormat::AdkEvalSet.read(&silent.to_string()).unwrap_err().to_string();
    assert_eq!(silent, "invalid case `a`: missing text of the user in `userContent`");
    let rubric = Expectation::Judge(Rubric::new("kind"));
    let case = Case::new("a", "x").expect(rubric);
    let file = DataSetFormat::PydanticEvals.write("j", [case]).unwrap();
    assert!(file.content.contains("LLMJudge:") && !file.content.contains("stepfold"), "{}", file.content);
}
