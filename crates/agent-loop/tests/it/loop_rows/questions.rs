//! Tools that ask the user while they run: the question is stored with the run, and answered once, in any process.

use expect_test::expect;
use serde_json::json;
use stepfold_agent_loop::tools::{Approval, Effect};
use stepfold_agent_loop::{Agent, Decision, DecisionError, Exit, Pause, Run, RunEvent, RunFault};

use super::kit::*;

const PAUSED: Exit = Exit::Paused(Pause::Approval);
const SCRIPT: &str = "assistant: > c1 book(to=\"Rome\")\nassistant: booked";

fn booking(notes: &Notes, effect: Effect) -> Agent {
    let tool = book(notes).effect(effect).build().unwrap();
    Agent::builder(script(SCRIPT)).tools([tool]).build().unwrap()
}

#[tokio::test]
async fn each_question_is_stored_and_the_call_continues_once_with_the_answers() {
    for effect in [Effect::Pure, Effect::Idempotent, Effect::AtMostOnce] {
        let notes = Notes::default();
        let agent = booking(&notes, effect);
        let paused = play(&agent, "to Rome!", |run| run).await;
        expect![[r#"
            user:      to Rome!
            assistant: > c1 book(to="Rome")
            --
            exit: the run waits for decisions
            steps: 1
            pending c1/seat#c8e3a88caaefbb89: book({"flight":"LX 318"}), Input
        "#]]
        .assert_eq(&shown(&paused));
        let asked = paused.unwrap();
        let request = asked.pending().remove(0);
        assert_eq!(
            (request.message.as_deref(), request.schema()),
            (Some("Window or aisle?"), Some(&seats()))
        );

        let second = decide(reloaded(&asked), [("c1/seat", seat("window"))]).await.unwrap();
        assert_eq!((second.exit(), paths(&second)), (&PAUSED, vec!["c1/pay".to_owned()]));
        assert_eq!(second.pending()[0].message.as_deref(), Some("Pay 20 euros for window?"));
        assert!(!second.pending()[0].can_modify());

        let ended = decide(reloaded(&second), [("c1/pay", Decision::Approve)]).await;
        expect![[r#"
            user:      to Rome!
            assistant: > c1 book(to="Rome")
            tool c1:   a seat at the window
            assistant: booked
            --
            exit: the model answered
            steps: 2, calls: book 1
        "#]]
        .assert_eq(&shown(&ended));
        assert_eq!(notes.text(), "began\nbegan\nbegan\nbooked window \"12A\"\n");
    }
}

#[tokio::test]
async fn an_answer_that_does_not_fit_is_refused_and_the_question_stays() {
    let notes = Notes::default();
    let asked = play(&booking(&notes, Effect::AtMostOnce), "to Rome!", |run| run).await.unwrap();
    for answer in [seat("wing"), Decision::modify(json!({})), Decision::Approve] {
        let ended = decide(reloaded(&asked), [("c1/seat", answer)]).await;
        let Err(error) = &ended else { panic!("it was taken") };
        let RunFault::Decision(DecisionError::InvalidArguments { .. }) = error.fault() else {
            panic!("{error}")
        };
        assert_eq!(paths(error.outcome()), ["c1/seat"]);
    }
    assert_eq!(notes.text(), "began\n");
    // A question is answered once.
    let second = decide(reloaded(&asked), [("c1/seat", seat("aisle"))]).await.unwrap();
    let again = [(asked.pending()[0].id.clone(), seat("window"))];
    let error = go_on(reloaded(&second), |run| run.decide_all(again)).await.unwrap_err();
    assert!(matches!(error.fault(), RunFault::Decision(DecisionError::AlreadyDecided { .. })), "{error}");
}

#[tokio::test]
async fn a_declined_question_is_an_answer_for_the_tool() {
    let notes = Notes::default();
    let asked = play(&booking(&notes, Effect::AtMostOnce), "to Rome!", |run| run).await.unwrap();
    let ended = decide(reloaded(&asked), [("c1/seat", Decision::reject("I stand"))]).await.unwrap();
    assert!(ended.transcript().to_string().contains("no seat: I stand"), "{}", ended.transcript());
    assert_eq!(notes.text(), "began\nbegan\n");
}

/// Others of the reply run meanwhile; those that read what the call writes wait with it.
#[tokio::test]
async fn calls_that_wait_for_one_that_asks_wait_with_it() {
    let notes = Notes::default();
    let schema =
        stepfold_agent_loop::state_core::state::Schema::builder().key::<String>("seat").build().unwrap();
    let book = book(&notes)
        .output_to_state("seat", stepfold_agent_loop::tools::ResultSource::Whole)
        .build()
        .unwrap();
    let (look, print) =
        (notes.tool("look").build().unwrap(), notes.tool("print").reads(["seat"]).build().unwrap());
    let model = script("assistant: > c1 book()   > c2 print()   > c3 look()\nassistant: booked");
    let agent = Agent::builder(model).schema(schema).tools([book, look, print]).build().unwrap();
    let asked = play(&agent, "to Rome!", |run| run).await.unwrap();
    assert_eq!(notes.text(), "began\nlook\n");
    let second = decide(reloaded(&asked), [("c1/seat", seat("aisle"))]).await.unwrap();
    let ended = decide(reloaded(&second), [("c1/pay", Decision::Approve)]).await.unwrap();
    assert_eq!(ended.exit(), &Exit::Text);
    assert_eq!(notes.text(), "began\nlook\nbegan\nbegan\nbooked aisle \"12A\"\nprint\n");
}

/// An approval comes first, and is not asked for again when the call continues.
#[tokio::test]
async fn an_approved_call_asks() {
    let notes = Notes::default();
    let tool = book(&notes).approval(Approval::Always).build().unwrap();
    let agent = Agent::builder(script(SCRIPT)).tools([tool]).build().unwrap();
    let first = play(&agent, "to Rome!", |run| run).await.unwrap();
    assert_eq!((paths(&first), notes.text()), (vec!["c1".to_owned()], String::new()));
    let asked = decide(reloaded(&first), [("c1", Decision::modify(json!({"to": "Bari"})))]).await.unwrap();
    let second = decide(reloaded(&asked), [("c1/seat", seat("aisle"))]).await.unwrap();
    let ended = decide(reloaded(&second), [("c1/pay", Decision::Approve)]).await.unwrap();
    assert_eq!(ended.exit(), &Exit::Text);
    assert!(ended.transcript().to_string().contains("changed before the call ran"), "{}", ended.transcript());
}

/// An answer does not go to another tool than the one that has asked: where a server lists another one, a person says whether the
/// call continues with it.
#[tokio::test]
async fn an_answer_goes_to_another_tool_only_when_a_person_says_so() {
    let notes = Notes::default();
    let agent = |argument: &'static str| {
        let parameters = json!({"type": "object", "properties": {"to": {"type": "string"}, argument: {}}});
        let tool = book(&notes).parameters(parameters).build().unwrap();
        let listed = stepfold_agent_loop::tools::Toolset::dynamic_with("bank", move |_| {
            let tools = vec![tool.clone()];
            async move { Ok(tools) }
        });
        Agent::builder(script(SCRIPT)).tools(listed).build().unwrap()
    };
    let (before, now) = (agent("class"), agent("from"));
    let asked = play(&before, "to Rome!", |run| run).await.unwrap();
    let same = decide(reloaded(&asked), [("c1/seat", seat("aisle"))]).await.unwrap();
    assert_eq!(paths(&same), ["c1/pay"]);

    notes.clear();
    let run = Run::load(&now, &asked.run().to_json()).unwrap();
    let held = decide(run, [("c1/seat", seat("aisle"))]).await.unwrap();
    assert_eq!((paths(&held), notes.text()), (vec!["c1".to_owned()], String::new()));
    let second = decide(reloaded(&held), [("c1", Decision::Approve)]).await.unwrap();
    assert_eq!((paths(&second), notes.text()), (vec!["c1/pay".to_owned()], "began\n".to_owned()));
    let ended = decide(reloaded(&second), [("c1/pay", Decision::Approve)]).await.unwrap();
    assert_eq!((ended.exit(), notes.count("booked aisle \"12A\"")), (&Exit::Text, 1));
    let rejected = decide(reloaded(&held), [("c1", Decision::reject("another tool"))]).await.unwrap();
    assert_eq!(rejected.exit(), &Exit::Text);
    assert!(rejected.transcript().to_string().contains("another tool"), "{}", rejected.transcript());
    let change = held.pending()[0].change.clone().unwrap();
    assert_eq!(
        change,
        "the tool is listed otherwise than when it asked, and gets the answer if the call is approved"
    );
}

/// Two servers may list the same tool. An answer, an approval, or one approval of equal calls is for that of the server that was
/// asked about.
#[tokio::test]
async fn an_answer_goes_to_the_tool_of_another_server_only_when_a_person_says_so() {
    use stepfold_agent_loop::tools::{ToolListing, Toolset};

    let listed = |tool: stepfold_agent_loop::tools::ToolBuilder, server: &str| {
        let tool = tool.listing(ToolListing::new("1").from_dependency(server)).build().unwrap();
        Toolset::dynamic_with("servers", move |_| {
            let tools = vec![tool.clone()];
            async move { Ok(tools) }
        })
    };
    let notes = Notes::default();
    let agent = |server| Agent::builder(script(SCRIPT)).tools(listed(book(&notes), server)).build().unwrap();
    let asked = play(&agent("mcp a"), "to Rome!", |run| run).await.unwrap();
    notes.clear();
    let run = Run::load(&agent("mcp b"), &asked.run().to_json()).unwrap();
    let held = decide(run, [("c1/seat", seat("aisle"))]).await.unwrap();
    assert_eq!((paths(&held), notes.text()), (vec!["c1".to_owned()], String::new()));
    let second = decide(reloaded(&held), [("c1", Decision::Approve)]).await.unwrap();
    assert_eq!((paths(&second), notes.text()), (vec!["c1/pay".to_owned()], "began\n".to_owned()));

    for rule in [Approval::Always, Approval::Once] {
        notes.clear();
        let twice = "assistant: > c1 pay()\nassistant: > c2 pay()\nassistant: paid";
        let agent = |server| {
            let pay = notes.tool("pay").approval(rule.clone());
            Agent::builder(script(twice)).tools(listed(pay, server)).build().unwrap()
        };
        let waits = play(&agent("mcp a"), "pay!", |run| run).await.unwrap();
        let run = Run::load(&agent("mcp b"), &waits.run().to_json()).unwrap();
        let held = decide(run, [("c1", Decision::Approve)]).await.unwrap();
        assert_eq!((paths(&held), notes.count("pay")), (vec!["c1".to_owned()], 0), "{rule:?}");
        let next = decide(reloaded(&held), [("c1", Decision::Approve)]).await.unwrap();
        assert_eq!(
            (next.exit() == &Exit::Text, notes.count("pay")),
            match rule {
                Approval::Once => (true, 2),
                _ => (false, 1),
            }
        );
    }
}

/// A call that has asked has not begun, whatever its tool was when it asked: after the answer a person is asked, and the call runs.
#[tokio::test]
async fn an_answer_is_not_lost_when_the_tool_must_not_run_twice_by_now() {
    for was in [Effect::Pure, Effect::Idempotent] {
        let notes = Notes::default();
        let agent = |effect| {
            let tool = book(&notes).effect(effect).build().unwrap();
            let listed = stepfold_agent_loop::tools::Toolset::dynamic_with("bank", move |_| {
                let tools = vec![tool.clone()];
                async move { Ok(tools) }
            });
            Agent::builder(script(SCRIPT)).tools(listed).build().unwrap()
        };
        let asked = play(&agent(was), "to Rome!", |run| run).await.unwrap();
        let run = Run::load(&agent(Effect::AtMostOnce), &asked.run().to_json()).unwrap();
        let held = decide(run, [("c1/seat", seat("aisle"))]).await.unwrap();
        assert_eq!(
            (paths(&held), held.pending()[0].reason),
            (vec!["c1".to_owned()], stepfold_agent_loop::AskReason::Rule)
        );
        let second = decide(reloaded(&held), [("c1", Decision::Approve)]).await.unwrap();
        let ended = decide(reloaded(&second), [("c1/pay", Decision::Approve)]).await.unwrap();
        assert_eq!((ended.exit(), notes.count("booked aisle \"12A\"")), (&Exit::Text, 1), "{was:?}");
    }
}

/// What continues with the record under other idempotency keys (a fork) has questions of its own.
#[tokio::test]
async fn an_answer_is_for_one_continuation_of_the_record() {
    let notes = Notes::default();
    let asked = play(&booking(&notes, Effect::AtMostOnce), "to Rome!", |run| run).await.unwrap();
    let fork = reloaded(&asked).with_key_prefix("fork");
    let (here, there) = (asked.pending().remove(0), fork.pending().remove(0));
    assert_eq!(path_of(&here.id), path_of(&there.id));
    assert_ne!(here.id, there.id);
    let error = go_on(fork.clone(), |run| run.decide_all([(here.id, seat("aisle"))])).await.unwrap_err();
    assert!(matches!(error.fault(), RunFault::Decision(DecisionError::NotPending { .. })), "{error}");
    let second = go_on(fork, |run| run.decide_all([(there.id, seat("aisle"))])).await.unwrap();
    assert_eq!(paths(&second), ["c1/pay"]);
}

#[tokio::test]
async fn a_question_inside_of_an_agent_that_is_a_tool() {
    let notes = Notes::default();
    let clerk = booking(&notes, Effect::AtMostOnce).to_builder().name("clerk").build().unwrap();
    let model = script("assistant: > o1 clerk(task=\"to Rome\")\nassistant: done");
    let agent =
        Agent::builder(model).tools([clerk.as_tool("clerk", "Books.").build().unwrap()]).build().unwrap();
    let asked = play(&agent, "to Rome!", |run| run).await.unwrap();
    assert_eq!(paths(&asked), ["o1/c1/seat"]);
    let second = decide(reloaded(&asked), [("o1/c1/seat", seat("aisle"))]).await.unwrap();
    let ended = decide(reloaded(&second), [("o1/c1/pay", Decision::Approve)]).await.unwrap();
    assert_eq!(ended.text(), "done");
    assert_eq!(notes.count("booked aisle \"12A\""), 1);
}

#[tokio::test]
async fn a_run_that_is_cancelled_while_a_call_asks_says_so() {
    let notes = Notes::default();
    let asked = play(&booking(&notes, Effect::AtMostOnce), "to Rome!", |run| run).await.unwrap();
    let mut run = reloaded(&asked);
    let event = run.feed(stepfold_agent_loop::RunAnswer::Cancelled, run.elapsed()).unwrap();
    run.commit(event).unwrap();
    let said = run.transcript().to_string();
    assert!(said.contains("tool 'book' was stopped while it waited: the run was cancelled"), "{said}");
}

/// Observers are told of each attempt; the question is committed before the run pauses.
#[tokio::test]
async fn the_question_is_an_event_of_the_record() {
    let notes = Notes::default();
    let mut events: Vec<RunEvent> = Vec::new();
    let run = Run::new(&booking(&notes, Effect::AtMostOnce), "to Rome!", "run").unwrap();
    run.resume().observe(&mut events).await.unwrap();
    assert_eq!(committed(&events), ["began", "replied", "started", "asks"]);
}
