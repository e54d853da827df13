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
