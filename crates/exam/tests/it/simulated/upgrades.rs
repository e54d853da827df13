//! Generated agents that are changed under a run, at any of its commits: what the class of the changes says is what a
//! continuation and a replay show.

use std::cell::RefCell;
use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use stepfold_agent_loop::{Agent, ApprovalRequest, Decision, Event, Run, RunError, RunEvent, RunNeed};
use stepfold_exam::Executions;
use stepfold_tools::Effect;

use super::scenarios::{self, Asks, Behavior, Scenario};
use super::{agents, block_on, config};

/// Waits for nothing from outside, and ends only as its script and its limits say.
fn plain(mut scenario: Scenario) -> Scenario {
    scenario.options.waits = false;
    scenario.options.raises = false;
    scenario.tools.retain(|tool| !matches!(tool.behavior, Behavior::Fatal | Behavior::Panics));
    scenario
}

/// A change of a scenario, by a number; of its agent where that cannot be generated.
fn changed(scenario: &Scenario, number: u8) -> Agent {
    let mut scenario = scenario.clone();
    let place = usize::from(number) % scenario.tools.len().max(1);
    let tool = scenario.tools.get_mut(place);
    let is_other_way = number / 6 % 2 == 1;
    match (number % 6, tool) {
        (0, Some(tool)) => {
            tool.effect = if tool.effect == Effect::Pure { Effect::AtMostOnce } else { Effect::Pure };
        }
        (1, Some(tool)) => {
            tool.asks = if matches!(tool.asks, Asks::Never) { Asks::Always } else { Asks::Never };
        }
        (2, Some(_)) => drop(scenario.tools.pop()),
        (3, _) if is_other_way => scenario.options.steps = 1,
        (3, _) => scenario.options.steps += 3,
        (5, Some(tool)) if is_other_way => tool.is_exit = !tool.is_exit,
        _ => {}
    }
    let agent = agents::agent(&scenario, &Executions::new());
    match number % 6 {
        4 => agent.to_builder().instructions("Be brief.").build().unwrap(),
        _ => agent,
    }
}

/// Continues a run to its end, or as far as it comes; returns its events.
fn continued(mut run: Run, seed: u64) -> (Run, Vec<Event>) {
    let (mut events, mut is_refused) = (Vec::new(), false);
    for _ in 0..12 {
        // New arguments for a tool that is gone are refused.
        let decide = |request: &ApprovalRequest| match is_refused {
            true => Decision::reject("refused"),
            false => agents::decision(seed, request),
        };
        let pending = run.pending();
        let decisions: Vec<(String, Decision)> =
            pending.iter().map(|request| (request.id.clone(), decide(request))).collect();
        let mut seen = Vec::<RunEvent>::new();
        let outcome = block_on(run.resume().decide_all(decisions).observe(&mut seen).into_future());
        is_refused = outcome.is_err() && seen.is_empty();
        events.extend(seen.iter().filter_map(RunEvent::committed).cloned());
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) => RunError::outcome(&error).clone(),
        };
        run = outcome.into_run();
        if run.exit().is_some() {
            break;
        }
    }
    (run, events)
}

/// The names of tools whose change touches an open call.
fn touching(run: &Run, before: &Agent) -> Vec<String> {
    let upgrade = run.check_upgrade(before.fingerprint(), |_| false);
    let tools = upgrade.touches.iter().filter_map(|touched| touched.change.part.strip_prefix("tool "));
    tools.map(str::to_owned).collect()
}

type Seen = BTreeMap<&'static str, usize>;

fn check(scenario: &Scenario, number: u8, seen: &mut Seen) -> Result<(), TestCaseError> {
    let before = agents::agent(scenario, &Executions::new());
    let after = changed(scenario, number);
    let start = Run::new(&before, agents::input(scenario), "run-1").unwrap();
    let (_, events) = continued(start.clone(), scenario.seed);
    let mut old = start;
    let is_changed = !after.changes_since(before.fingerprint()).is_empty();
    for place in 1..=events.len() {
        let prefix = &events[..place];
        old.follow(&prefix[place - 1]).unwrap();
        if old.exit().is_some() {
            break;
        }
        let mut run = Run::new(&after, agents::input(scenario), "run-1").unwrap();
        if is_changed {
            run.follow_other_agent();
        }
        for event in prefix {
            let followed = run.follow(event);
            prop_assert!(followed.is_ok(), "{} of {}: {:?}", event.name(), place, followed.err());
        }
        run.continue_unended();
        run.upgrade_from(before.fingerprint());
        run.take_over();
        prop_assert_eq!(run.transcript(), old.transcript());
        prop_assert_eq!(run.state(), old.state());
        prop_assert_eq!((run.steps(), run.usage()), (old.steps(), old.usage()));
        // Whatever the other agent would have ended here, the record has no end.
        prop_assert!(!is_changed || run.exit().is_none(), "{:?} after {place}", run.exit());
        prop_assert_eq!(matches!(run.decide(), RunNeed::Upgrade), is_changed);
        // What is touched is a call that is open.
        let open: Vec<String> = run.open_calls().into_iter().map(|(_, call)| call.name).collect();
        let touched = touching(&run, &before);
        prop_assert!(touched.iter().all(|tool| open.contains(tool)), "{touched:?} of {open:?}");
        *seen.entry(if touched.is_empty() { "ahead" } else { "touching" }).or_default() += 1;
        let (ended, more) = continued(run, scenario.seed);
        let record: Vec<Event> = prefix.iter().cloned().chain(more).collect();
        let upgrades = record.iter().filter(|event| event.name() == "upgraded").count();
        prop_assert_eq!(upgrades, usize::from(is_changed));
        // The new record replays against the new agent.
        let again = Run::new(&after, agents::input(scenario), "run-1").unwrap().replay(&record, |_| true);
        prop_assert!(again.is_ok(), "{:?} after {place} of {}", again.err(), events.len());
        prop_assert_eq!(again.unwrap().digest(), ended.digest());
    }
    Ok(())
}

#[test]
fn a_generated_agent_is_changed_at_any_commit() {
    let seen = RefCell::new(Seen::new());
    let cases = (config().cases / 8).max(1);
    let mut runner = TestRunner::new(Config { cases, ..config() });
    let result = runner.run(&(scenarios::scenario(), any::<u8>()), |(scenario, number)| {
        check(&plain(scenario), number, &mut seen.borrow_mut())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let seen = seen.into_inner();
    assert!(cases < 32 || (seen["ahead"] > 0 && seen["touching"] > 0), "{seen:?}");
}
