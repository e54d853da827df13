//! Generated agents and graphs, ended everywhere; and what holds for all runs.

mod agents;
mod common;
mod edited;
mod examples;
mod graph_laws;
mod graph_plans;
mod graph_regressions;
mod graphs;
mod laws;
mod scenarios;
mod upgrades;

use std::cell::RefCell;
use std::collections::BTreeMap;

use proptest::test_runner::{Config, TestCaseError, TestRunner};
use stepfold_agent_loop::test_kit::Script;
use stepfold_agent_loop::{Agent, ApprovalRequest};
use stepfold_exam::{Executions, SimulationReport, Simulator};

use common::{block_on, config, kind};
use scenarios::Scenario;

fn simulate(scenario: &Scenario) -> Result<SimulationReport, String> {
    let executions = Executions::new();
    let agent = agents::agent(scenario, &executions);
    let seed = scenario.seed;
    let simulator = Simulator::new(&agent)
        .counting(&executions)
        .deciding(move |request| agents::decision(seed, request))
        .seed(seed);
    block_on(simulator.check(agents::input(scenario))).map_err(|error| error.to_string())
}

#[test]
fn a_run_that_is_ended_anywhere_has_the_same_result() {
    let seen = RefCell::new(BTreeMap::<String, usize>::new());
    // Each case is dozens of runs.
    let cases = (config().cases / 2).min(4_000);
    let mut runner = TestRunner::new(Config { cases, ..config() });
    let result = runner.run(&scenarios::scenario(), |scenario| {
        let simulated = simulate(&scenario).map_err(TestCaseError::fail)?;
        let mut seen = seen.borrow_mut();
        let mut count = |what: String, times| *seen.entry(what).or_default() += times;
        count(format!("exit: {}", kind(&format!("{:?}", simulated.outcome().exit()))), 1);
        count("runs".to_owned(), simulated.runs());
        count("interrupted".to_owned(), simulated.interrupted());
        if let Some(mode) = scenario.options.output {
            count(agents::mode_name(mode), 1);
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let seen = seen.into_inner();
    // In fewer, one of them may be missing by chance.
    if cases >= 1_024 {
        let missing: Vec<&str> = EXITS.iter().copied().filter(|exit| !seen.contains_key(*exit)).collect();
        assert!(missing.is_empty(), "never generated: {missing:?}; of {cases} scenarios: {seen:#?}");
        assert!(seen["interrupted"] > 0);
    }
}

/// The generated agent as a tool of another one: called twice in one reply, side by side or one after the other, and once
/// more after that.
#[test]
fn an_agent_that_is_a_tool_has_the_same_result() {
    let interrupted = std::cell::Cell::new(0);
    // Each is ended at every event of three runs inside of another one.
    let cases = (config().cases / 64).max(1);
    let mut runner = TestRunner::new(Config { cases, ..config() });
    let result = runner.run(&scenarios::scenario(), |mut scenario| {
        // The failure of a call that ends the run inside is reported once; a run that was ended after it continues.
        scenario.options.raises = false;
        scenario.tools.retain(|tool| !matches!(tool.behavior, scenarios::Behavior::Fatal));
        let executions = Executions::new();
        let keys: &[&str] = if scenario.seed.is_multiple_of(2) { &["log", "count"] } else { &[] };
        let clerk = agents::agent(&scenario, &executions).as_tool("clerk", "Works.").share(keys.iter().copied());
        let model = Script::parse(
            "assistant: > c1 clerk(task=\"a\")   > c2 clerk(task=\"b\")\nassistant: > c3 clerk(task=\"c\")\nassistant: done",
        );
        let agent = Agent::builder(model.unwrap()).schema(agents::schema()).tools([clerk.build().unwrap()]);
        let (agent, seed) = (agent.build().unwrap(), scenario.seed);
        let simulator = Simulator::new(&agent)
            .counting(&executions)
            .deciding(move |request| agents::decision(seed, request))
            .seed(seed);
        let simulated = block_on(simulator.check("go")).map_err(|error| TestCaseError::fail(error.to_string()))?;
        interrupted.set(interrupted.get() + simulated.interrupted());
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    assert!(cases < 16 || interrupted.get() > 0);
}

/// Values and results are edited while the run is paused, at any of its events.
#[test]
fn a_run_that_is_edited_anywhere_is_folded_stored_and_replayed() {
    let made = std::cell::Cell::new((0, 0, 0, 0));
    let mut runner = TestRunner::new(config());
    let result = runner.run(&(scenarios::scenario(), edited::pauses()), |(scenario, pauses)| {
        let agent = agents::agent(&scenario, &Executions::new());
        let seed = scenario.seed;
        let decide = move |request: &ApprovalRequest| agents::decision(seed, request);
        let edits = block_on(edited::check(&agent, agents::input(&scenario), decide, &pauses));
        let edits = edits.map_err(TestCaseError::fail)?;
        let (values, results, arguments, refused) = made.get();
        let arguments = arguments + edits.arguments;
        made.set((values + edits.values, results + edits.results, arguments, refused + edits.refused));
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let (values, results, arguments, refused) = made.get();
    assert!(
        values > 10 && results > 10 && arguments > 3 && refused > 10,
        "{values} values, {results} results, {arguments} arguments, {refused} refused"
    );
}

/// The same of an agent that is a tool of another one, with which it shares keys that are edited while it is under way.
#[test]
fn an_agent_around_others_that_is_edited_anywhere_is_folded_stored_and_replayed() {
    let cases = (config().cases / 8).max(1);
    let mut runner = TestRunner::new(Config { cases, ..config() });
    let result = runner.run(&(scenarios::scenario(), edited::pauses()), |(scenario, pauses)| {
        let clerk = agents::agent(&scenario, &Executions::new()).as_tool("clerk", "Works.");
        let clerk = clerk.share(["log", "count", "last"]).build().unwrap();
        let model = Script::parse(
            "assistant: > c1 clerk(task=\"a\")   > c2 clerk(task=\"b\")\nassistant: > c3 clerk(task=\"c\")\nassistant: done",
        );
        let agent = Agent::builder(model.unwrap()).schema(agents::schema()).tools([clerk]).build().unwrap();
        let seed = scenario.seed;
        let decide = move |request: &ApprovalRequest| agents::decision(seed, request);
        block_on(edited::check(&agent, "go".into(), decide, &pauses)).map(drop).map_err(TestCaseError::fail)
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

const EXITS: [&str; 11] = [
    "exit: ContentFilter",
    "exit: Failed",
    "exit: Hook",
    "exit: InvalidOutput",
    "exit: Length",
    "exit: MaxSteps",
    "exit: MaxToolCalls",
    "exit: NoTools",
    "exit: Output",
    "exit: Text",
    "exit: Tool",
];
