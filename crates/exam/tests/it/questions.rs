//! Tools that ask the user while they run, in runs that are ended everywhere.

use stepfold_agent_loop::tools::{Effect, InputRequest, Tool, ToolContext, ToolError};
use stepfold_agent_loop::{Agent, AskReason, Decision};
use stepfold_exam::{Executions, Simulator};

use crate::loop_kit::*;

/// A process ends at any event, whatever the effect: the tool goes past the last question once, or says that it is unknown.
#[tokio::test]
async fn a_call_that_asks_is_interrupted_anywhere() {
    for effect in [Effect::Pure, Effect::Idempotent, Effect::AtMostOnce] {
        let (notes, executions) = (Notes::default(), Executions::new());
        let counter = executions.clone();
        let (ask, booked) = (book(&notes).effect(effect).build().unwrap(), notes.clone());
        let look = Tool::new("look", "Looks.", move |context: ToolContext| {
            counter.note(&context);
            let booked = booked.clone();
            async move {
                context.ask(InputRequest::new("sure", "Sure?"))?;
                booked.add("looked");
                Ok::<_, ToolError>("seen")
            }
        });
        let model = script("assistant: > c1 book()   > c2 look()\nassistant: > c3 look()\nassistant: done");
        let agent = Agent::builder(model).tools([ask, look.effect(effect).build().unwrap()]).build().unwrap();
        let decide = |request: &stepfold_agent_loop::ApprovalRequest| match request.reason {
            AskReason::Input if request.schema().is_some() => seat("aisle"),
            _ => Decision::Approve,
        };
        let simulator = Simulator::new(&agent).counting(&executions).deciding(decide);
        let simulated = simulator.check("go").await.unwrap();
        assert!(simulated.runs() > 10);
    }
}
