//! Runs by hand: what the generated ones do not have, and that the simulator finds what is wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use stepfold_agent_loop::test_kit::Script;
use stepfold_agent_loop::{Agent, AskReason, Decision, Exit, HookAction, HookContext};
use stepfold_exam::{Executions, SimulationError, SimulationReport, Simulator};
use stepfold_state_core::chat::Message;
use stepfold_state_core::state::Schema;
use stepfold_tools::{Approval, Effect, Tool, ToolContext, ToolError};

use super::block_on;

fn script(text: &str) -> Script {
    Script::parse(text).unwrap()
}

fn pay(executions: &Executions, effect: Effect) -> Tool {
    let executions = executions.clone();
    let function = move |context: ToolContext| {
        executions.note(&context);
        async { Ok::<_, ToolError>("paid") }
    };
    Tool::new("pay", "Pays.", function).effect(effect).approval(Approval::Always).build().unwrap()
}

/// An agent that is a tool, and whose own call waits for an approver.
#[test]
fn an_agent_inside_an_agent() {
    for (effect, is_interrupted) in [(Effect::Pure, false), (Effect::AtMostOnce, true)] {
        let executions = Executions::new();
        let clerk = Agent::builder(script("assistant: > p1 pay()\nassistant: paid it"))
            .tools([pay(&executions, effect)])
            .build()
            .unwrap();
        let tool = clerk.as_tool("clerk", "Does things.").build().unwrap();
        let model = script("assistant: > c1 clerk(task=\"pay\") > c2 clerk(task=\"pay\")\nassistant: done");
        let agent = Agent::builder(model).tools([tool]).build().unwrap();
        let simulated = block_on(Simulator::new(&agent).counting(&executions).check("pay")).unwrap();
        assert_eq!(simulated.outcome().exit(), &Exit::Text);
        assert_eq!(simulated.interrupted() > 0, is_interrupted);
    }
}

/// Two calls of an agent in one reply, which share what its hook writes for each of its payments, and show it to the model:
/// so the second call comes after the first one.
fn ledgers(
    is_written: bool,
    before_model: impl Fn(&HookContext) -> HookAction + Send + Sync + 'static,
) -> Result<SimulationReport, SimulationError> {
    let executions = Executions::new();
    let schema = Schema::builder().key::<Vec<String>>("paid").build().unwrap();
    let clerk = Agent::builder(script("assistant: > p1 pay()\nassistant: paid it"))
        .schema(schema.clone())
        .instructions("Paid so far: {paid?}.")
        .before_model(move |context: HookContext| std::future::ready(Ok(before_model(&context))))
        .before_tool(move |context: HookContext| {
            std::future::ready(match is_written {
                true => HookAction::proceed().write(&context, "paid", vec!["p1"]),
                false => Ok(HookAction::proceed()),
            })
        })
        .tools([pay(&executions, Effect::AtMostOnce)]);
    let clerk = clerk.build().unwrap().as_tool("clerk", "Pays.").share(["paid"]);
    let model = script("assistant: > c1 clerk(task=\"a\") > c2 clerk(task=\"b\")\nassistant: done");
    let agent = Agent::builder(model).schema(schema).tools([clerk.build().unwrap()]).build().unwrap();
    block_on(Simulator::new(&agent).counting(&executions).check("pay"))
}

/// What hooks write for a call is not written if its outcome is unknown. The agent that comes after that one in the same
/// reply is shown as much as was written.
#[test]
fn an_agent_after_one_that_was_interrupted() {
    let simulated = ledgers(true, |_| HookAction::proceed()).unwrap();
    assert_eq!(simulated.outcome().state().get("paid").unwrap(), serde_json::json!(["p1", "p1"]));
    assert!(simulated.interrupted() > 0);
}

/// An agent that comes after one that was interrupted begins with the same values, and is asked something else: the one
/// before it has told it past the state.
#[test]
fn what_passes_by_the_state_is_found() {
    let is_lost = Arc::new(AtomicBool::new(false));
    let error = ledgers(false, move |context| {
        if context.state.messages().to_string().contains("its outcome is unknown") {
            is_lost.store(true, Ordering::Relaxed);
        }
        match is_lost.load(Ordering::Relaxed) {
            true => HookAction::proceed().with_message(Message::user("one was lost")),
            false => HookAction::proceed(),
        }
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("the requests before the interruption differs"), "{error}");
}

/// An approver has a call run again that may have happened; nothing else does.
#[test]
fn a_call_that_may_have_happened() {
    let executions = Executions::new();
    let agent = Agent::builder(script("assistant: > c1 pay()\nassistant: done"))
        .tools([pay(&executions, Effect::AtMostOnce)])
        .ask_when_uncertain()
        .build()
        .unwrap();
    for allows in [false, true] {
        let decide = move |request: &stepfold_agent_loop::ApprovalRequest| match request.reason {
            AskReason::MayHaveHappened if !allows => Decision::reject("no"),
            _ => Decision::Approve,
        };
        let simulator = Simulator::new(&agent).counting(&executions).deciding(decide);
        assert!(block_on(simulator.check("pay")).unwrap().interrupted() > 0);
    }
}

#[test]
fn a_tool_with_a_memory_is_found() {
    let calls = Arc::new(AtomicU64::new(0));
    let function = move || {
        let number = calls.fetch_add(1, Ordering::Relaxed);
        async move { Ok::<_, ToolError>(number) }
    };
    let tool = Tool::new("next", "Counts.", function).effect(Effect::Pure).build().unwrap();
    let agent =
        Agent::builder(script("assistant: > c1 next()\nassistant: done")).tools([tool]).build().unwrap();
    let error = block_on(Simulator::new(&agent).seed(7).check("go")).unwrap_err().to_string();
    assert!(error.starts_with("seed 7, stopped after event 0: the run differs"), "{error}");
}

/// A tool that says that it must not run twice, and notes more than it does, is taken at its word.
#[test]
fn a_second_execution_is_found() {
    let executions = Executions::new();
    let counter = executions.clone();
    let function = move |context: ToolContext| {
        counter.note(&context);
        counter.note(&context);
        async { Ok::<_, ToolError>("twice") }
    };
    let tool = Tool::new("twice", "Runs twice.", function).build().unwrap();
    let agent =
        Agent::builder(script("assistant: > c1 twice()\nassistant: done")).tools([tool]).build().unwrap();
    let simulator = Simulator::new(&agent).counting(&executions);
    let error = block_on(simulator.check("go")).unwrap_err().to_string();
    assert!(error.ends_with("must not run twice"), "{error}");
}
