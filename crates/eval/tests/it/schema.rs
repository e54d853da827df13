//! Reports fit the JSON Schema that is published for them.

use std::collections::BTreeSet;

use serde_json::Value;
use stepfold_agent_loop::test_kit::Script;
use stepfold_eval::{Case, CaseStatus, DataSet, Expectation, Experiment, Mode, Report};
use stepfold_state_core::chat::{Price, Prices};

use crate::clerk::{Executions, Variation, cases, clerk};

/// Reports with results of every status, with timelines, repeats, options, and measurements.
async fn reports() -> Vec<Report> {
    let executions = Executions::default();
    let agent = clerk(Variation::None, &executions).build().expect("a valid agent");
    let mut cases = cases(&agent, 2).await;
    cases.push(Case::new("own", "how many stalls has area 3"));
    cases.push(
        Case::new("judged", "hello").expect(
            serde_json::from_value::<Expectation>(serde_json::json!({"judge": {"rubric": "It is kind."}}))
                .expect("a rubric"),
        ),
    );
    let mut reports = Vec::new();
    for variation in [Variation::None, Variation::LostState, Variation::WrongArgument] {
        let agent = clerk(variation, &executions).build().expect("a valid agent");
        for mode in [Mode::Replay, Mode::Next, Mode::Roll, Mode::Live, Mode::Recorded] {
            let experiment = Experiment::new(&agent).mode(mode).repeats(2).timelines().measured();
            let experiment = experiment.prices(Prices::new().with("test/clerk", Price::new(1.0, 2.0)));
            reports.push(experiment.run(DataSet::of(cases.clone())).await.expect("valid cases"));
        }
    }
    let broken = agent.to_builder().model(Script::parse("assistant: 3").expect("a script"));
    let broken = broken.build().expect("an agent");
    reports.push(Experiment::new(&broken).run(DataSet::of(cases)).await.expect("valid cases"));
    reports
}

#[tokio::test]
async fn every_line_of_a_report_fits_the_published_schema() {
    let schema: Value = serde_json::from_str(include_str!("../../docs/report.schema.json")).expect("JSON");
    let schema = jsonschema::validator_for(&schema).expect("a schema");
    let mut statuses = BTreeSet::new();
    let mut with_timelines = 0;
    for report in reports().await {
        let mut text = Vec::new();
        report.write_json_lines(&mut text).expect("memory takes it");
        for line in String::from_utf8(text).expect("text").lines() {
            let line: Value = serde_json::from_str(line).expect("JSON");
            let faults: Vec<String> = schema.iter_errors(&line).map(|fault| fault.to_string()).collect();
            assert!(faults.is_empty(), "{line}: {faults:?}");
            // The schema decides: it refuses a line without one of its parts, or with another kind of one.
            for part in ["candidate", "mode", "status", "steps"] {
                if line.get(part).is_some() {
                    let mut other = line.clone();
                    other[part] = Value::from(vec![part]);
                    assert!(!schema.is_valid(&other), "{other}");
                    other.as_object_mut().expect("an object").remove(part);
                    assert!(!schema.is_valid(&other), "{other}");
                }
            }
        }
        statuses.extend(report.results.iter().map(|result| format!("{:?}", result.status)));
        with_timelines += report.results.iter().filter(|result| result.timelines.is_some()).count();
    }
    let all = [
        CaseStatus::Passed,
        CaseStatus::Failed,
        CaseStatus::LeftRecord,
        CaseStatus::Error,
        CaseStatus::Skipped,
    ];
    assert_eq!(statuses, all.map(|status| format!("{status:?}")).into());
    assert!(with_timelines > 0);
}
