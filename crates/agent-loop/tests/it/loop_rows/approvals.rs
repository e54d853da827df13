//! Who has to agree before a call runs.

use std::sync::{Arc, Mutex};

use expect_test::expect;
use serde_json::json;
use stepfold_agent_loop::state_core::state::{Handler, Schema};
use stepfold_agent_loop::tools::{Approval, Effect, ToolListing, Toolset};
use stepfold_agent_loop::{
    Agent, AgentBuilder, ApprovalRequest, AskReason, CallDisposition, Decision, DecisionError, Decisions,
    Exit, HookAction, HookContext, LoadError, Pause, Run, RunAnswer, RunEvent, RunFault,
};

use super::check;
use super::kit::*;

const PAUSED: Exit = Exit::Paused(Pause::Approval);

/// `pay` and `look` note that they ran; `pay` needs agreement of this kind.
fn paying(notes: &Notes, script: &str, approval: Approval) -> AgentBuilder {
    let amount =
        json!({"properties": {"amount": {"type": "integer"}}, "required": ["amount"], "type": "object"});
    let pay = notes.tool("pay").parameters(amount).approval(approval).build().unwrap();
    Agent::builder(self::script(script)).tools([pay, notes.tool("look").build().unwrap()])
}

/// No call of the reply runs before all decisions are there.
#[tokio::test]
async fn approval_always() {
    let notes = Notes::default();
    let script = "assistant: I pay.   > c1 pay(amount=3)   > c2 look()   > c3 pay(amount=3)\nassistant: paid";
    let agent = paying(&notes, script, Approval::Always).build().unwrap();
    let paused = play(&agent, "pay!", |run| run).await;
    expect![[r#"
        user:      pay!
        assistant: I pay.   > c1 pay(amount=3)   > c2 look()   > c3 pay(amount=3)
        --
        exit: the run waits for decisions
        steps: 1
        pending c1#3e1bd81d8d0ce678: pay({"amount":3}), Rule
        pending c3#6e66bd8c9e1b830a: pay({"amount":3}), Rule
    "#]]
    .assert_eq(&shown(&paused));
    assert_eq!(notes.text(), "");
    let ended =
        decide(reloaded(outcome_of(&paused)), [("c1", Decision::Approve), ("c3", Decision::Approve)]).await;
    expect![[r#"
        user:      pay!
        assistant: I pay.   > c1 pay(amount=3)   > c2 look()   > c3 pay(amount=3)
        tool c1:   {"amount": 3}
        tool c2:   {}
        tool c3:   {"amount": 3}
        assistant: paid
        --
        exit: the model answered
        steps: 2, calls: look 1, pay 2
    "#]]
    .assert_eq(&shown(&ended));
}

#[tokio::test]
async fn approval_never() {
    let notes = Notes::default();
    let script = "assistant: > c1 pay(amount=3)\nassistant: paid";
    check(
        paying(&notes, script, Approval::Never),
        "pay!",
        expect![[r#"
        user:      pay!
        assistant: > c1 pay(amount=3)
        tool c1:   {"amount": 3}
        assistant: paid
        --
        exit: the model answered
        steps: 2, calls: pay 1
    "#]],
    )
    .await;
}

/// Once for the same arguments; not carried to another run.
#[tokio::test]
async fn approval_once() {
    let notes = Notes::default();
    let script = r"
assistant: > c1 pay(amount=3)
assistant: > c2 pay(amount=3)
assistant: > c3 pay(amount=4)
assistant: paid
";
    let agent = paying(&notes, script, Approval::Once).build().unwrap();
    let first = play(&agent, "pay!", |run| run).await.unwrap();
    let second = decide(reloaded(&first), [("c1", Decision::Approve)]).await.unwrap();
    assert_eq!((second.exit(), paths(&second)), (&PAUSED, vec!["c3".to_owned()]));
    let outcome = decide(reloaded(&second), [("c3", Decision::Approve)]).await.unwrap();
    assert_eq!((outcome.exit(), notes.count("pay")), (&Exit::Text, 3));
    let model = self::script(script).after(4);
    let again = agent.to_builder().model(model).build().unwrap();
    let input = stepfold_agent_loop::Input::on(outcome.state().clone()).say("again!");
    assert_eq!(play(&again, input, |run| run).await.unwrap().exit(), &PAUSED);
}

/// What was rejected is asked about again.
#[tokio::test]
async fn approval_once_after_a_rejection() {
    let notes = Notes::default();
    let script = "assistant: > c1 pay(amount=3)\nassistant: > c2 pay(amount=3)\nassistant: paid";
    let agent = paying(&notes, script, Approval::Once).build().unwrap();
    let first = play(&agent, "pay!", |run| run).await.unwrap();
    let second = decide(reloaded(&first), [("c1", Decision::reject("no"))]).await.unwrap();
    assert_eq!((second.exit(), paths(&second)), (&PAUSED, vec!["c2".to_owned()]));
}

#[tokio::test]
async fn approval_by_predicate() {
    let notes = Notes::default();
    let large = Approval::when(|arguments| arguments["amount"].as_u64() > Some(100));
    let script = "assistant: > c1 pay(amount=3)\nassistant: > c2 pay(amount=300)\nassistant: paid";
    check(
        paying(&notes, script, large),
        "pay!",
        expect![[r#"
            user:      pay!
            assistant: > c1 pay(amount=3)
            tool c1:   {"amount": 3}
            assistant: > c2 pay(amount=300)
            --
            exit: the run waits for decisions
            steps: 2, calls: pay 1
            pending c2#678369a6a03b445a: pay({"amount":300}), Rule
        "#]],
    )
    .await;
}

/// It fails closed.
#[tokio::test]
async fn approval_by_predicate_that_panics() {
    let notes = Notes::default();
    let broken = Approval::when(|arguments| arguments["currency"] == "EUR");
    let agent = paying(&notes, "assistant: > c1 pay(amount=3)", broken).build().unwrap();
    let paused = play(&agent, "pay!", |run| run).await.unwrap();
    assert_eq!((paused.exit(), notes.text()), (&PAUSED, String::new()));
}

/// The stricter of the tool's rule and the agent's holds.
#[tokio::test]
async fn approval_for_the_whole_agent() {
    let notes = Notes::default();
    let script = "assistant: > c1 look()   > c2 pay(amount=3)";
    let pending = |agent: AgentBuilder| async {
        let paused = play(&agent.build().unwrap(), "pay!", |run| run).await.unwrap();
        paths(&paused)
    };
    assert_eq!(
        pending(paying(&notes, script, Approval::Never).approval(Approval::Always)).await,
        ["c1", "c2"]
    );
    assert_eq!(pending(paying(&notes, script, Approval::Always).approval(Approval::Never)).await, ["c2"]);
}

/// What cannot run needs no approval: there are no requests for calls that the model got wrong.
#[tokio::test]
async fn approval_of_what_cannot_run() {
    let notes = Notes::default();
    let script = r#"assistant: > c1 pay()   > c2 nowhere()   > c3 pay!("{")
assistant: sorry"#;
    check(
        paying(&notes, script, Approval::Always),
        "pay!",
        expect![[r#"
        user:      pay!
        assistant: > c1 pay()   > c2 nowhere()   > c3 pay!("{")
        tool c1!:  invalid arguments for tool 'pay': "amount" is a required property at $
        tool c2!:  unknown tool 'nowhere'; available: pay, look
        tool c3!:  malformed arguments for tool 'pay': EOF while parsing an object at line 1 column 1
        assistant: sorry
        --
        exit: the model answered
        steps: 2, calls: nowhere 1, pay 2
    "#]],
    )
    .await;
}

/// Some are answered now and the rest later, each in another process; no approver is asked twice.
#[tokio::test]
async fn approval_partial_and_late() {
    let notes = Notes::default();
    let script = "assistant: > c1 pay(amount=1)   > c2 pay(amount=2)   > c3 pay(amount=3)\nassistant: done";
    let agent = paying(&notes, script, Approval::Always).build().unwrap();
    let mut outcome = play(&agent, "pay!", |run| run).await.unwrap();
    for (id, decision, left) in [
        ("c2", Decision::Approve, vec!["c1", "c3"]),
        ("c3", Decision::reject("too much"), vec!["c1"]),
        ("c1", Decision::Approve, vec![]),
    ] {
        assert_eq!(notes.text(), "", "nothing runs before all is decided");
        outcome = decide(reloaded(&outcome), [(id, decision)]).await.unwrap();
        assert_eq!(paths(&outcome), left);
    }
    expect![[r#"
        user:      pay!
        assistant: > c1 pay(amount=1)   > c2 pay(amount=2)   > c3 pay(amount=3)
        tool c1:   {"amount": 1}
        tool c2:   {"amount": 2}
        tool c3!:  tool 'pay' not run: the call was rejected: too much
        assistant: done
        --
        exit: the model answered
        steps: 2, calls: pay 2
    "#]]
    .assert_eq(&shown(&Ok(outcome)));
}

/// Those without a decision wait; the approver is asked again as long as it makes new decisions.
#[tokio::test]
async fn approval_by_an_approver() {
    let notes = Notes::default();
    let script = "assistant: > c1 pay(amount=1)   > c2 pay(amount=2)   > c3 pay(amount=300)\nassistant: done";
    let agent = paying(&notes, script, Approval::Always).build().unwrap();
    let asked = notes.clone();
    let one_by_one = move |requests: Vec<ApprovalRequest>| {
        asked.add(format!(
            "asked: {}",
            requests.iter().map(|request| path_of(&request.id)).collect::<Vec<_>>().join(", ")
        ));
        let small = requests
            .into_iter()
            .find(|request| request.call.arguments.as_object().unwrap()["amount"].as_u64() < Some(100));
        async move { small.into_iter().map(|request| (request.id, Decision::Approve)).collect() }
    };
    let paused = play(&agent, "pay!", |run| run.approve_with(one_by_one)).await;
    expect![[r#"
        user:      pay!
        assistant: > c1 pay(amount=1)   > c2 pay(amount=2)   > c3 pay(amount=300)
        --
        exit: the run waits for decisions
        steps: 1
        pending c3#ae0f834f4dea99e2: pay({"amount":300}), Rule
    "#]]
    .assert_eq(&shown(&paused));
    expect![[r#"
        asked: c1, c2, c3
        asked: c2, c3
        asked: c3
    "#]]
    .assert_eq(&notes.text());
}

/// One assistant message stays one message; the results are in place.
#[tokio::test]
async fn approval_reject() {
    let notes = Notes::default();
    let script = "assistant: Both.   > c1 look()   > c2 pay(amount=2)   > c3 look()\nassistant: done";
    let agent = paying(&notes, script, Approval::Always).build().unwrap();
    let paused = play(&agent, "pay!", |run| run).await.unwrap();
    for (reason, expected) in [
        (
            "too much",
            expect![[r#"
        user:      pay!
        assistant: Both.   > c1 look()   > c2 pay(amount=2)   > c3 look()
        tool c1:   {}
        tool c2!:  tool 'pay' not run: the call was rejected: too much
        tool c3:   {}
        assistant: done
        --
        exit: the model answered
        steps: 2, calls: look 2
    "#]],
        ),
        (
            " ",
            expect![[r#"
        user:      pay!
        assistant: Both.   > c1 look()   > c2 pay(amount=2)   > c3 look()
        tool c1:   {}
        tool c2!:  tool 'pay' not run: the call was rejected
        tool c3:   {}
        assistant: done
        --
        exit: the model answered
        steps: 2, calls: look 2
    "#]],
        ),
    ] {
        let ended = decide(reloaded(&paused), [("c2", Decision::reject(reason))]).await;
        expected.assert_eq(&shown(&ended));
    }
}

/// The model's message stays as it is, and the model is told.
#[tokio::test]
async fn approval_modify() {
    let notes = Notes::default();
    let script = "assistant: > c1 pay(amount=300)\nassistant: done";
    let agent = paying(&notes, script, Approval::Always).build().unwrap();
    let paused = play(&agent, "pay!", |run| run).await.unwrap();
    let decision = Decision::modify(json!({"amount": 3}));
    let ended = decide(reloaded(&paused), [("c1", decision)]).await;
    expect![[r#"
        user:      pay!
        assistant: > c1 pay(amount=300)
        tool:      @{"tool_result": {"call_id": "c1", "name": "pay", "parts": [{"text": "{\"amount\":3}"}, {"text": "\n[The arguments were changed before the call ran, to {\"amount\":3}]"}]}}
        assistant: done
        --
        exit: the model answered
        steps: 2, calls: pay 1
    "#]].assert_eq(&shown(&ended));
}

/// Arguments that do not fit are refused, and the call waits for better ones.
#[tokio::test]
async fn approval_modify_is_validated() {
    let notes = Notes::default();
    let agent =
        paying(&notes, "assistant: > c1 pay(amount=300)\nassistant: done", Approval::Always).build().unwrap();
    let paused = play(&agent, "pay!", |run| run).await.unwrap();
    for (arguments, expected) in [
        (
            json!({"amount": "much"}),
            expect![
                "run 'run' waits after step 1: invalid decision: invalid arguments for approval `c1#5e20a432d33a7fd5`: expected integer, found string at $.amount; the request stays pending"
            ],
        ),
        (
            json!([3]),
            expect![
                "run 'run' waits after step 1: invalid decision: invalid arguments for approval `c1#5e20a432d33a7fd5`: expected a JSON object; the request stays pending"
            ],
        ),
    ] {
        let ended = decide(reloaded(&paused), [("c1", Decision::modify(arguments))]).await;
        let error = ended.unwrap_err();
        expected.assert_eq(&chain(&error));
        assert_eq!((error.outcome().pending().len(), notes.text()), (1, String::new()));
    }
}

/// The tools of a step are asked for again in the process that takes the decision.
#[tokio::test]
async fn approval_modify_of_a_dynamic_tool() {
    let notes = Notes::default();
    let ran = notes.clone();
    let tools = Toolset::dynamic_with("remote", move |_| {
        let tool = ran.tool("pay").approval(Approval::Always).build().unwrap();
        async move { Ok(vec![tool]) }
    });
    let agent = Agent::builder(script("assistant: > c1 pay(amount=300)\nassistant: done"))
        .tools(tools)
        .build()
        .unwrap();
    let paused = play(&agent, "pay!", |run| run).await.unwrap();
    let ended = decide(reloaded(&paused), [("c1", Decision::modify(json!({"amount": 3})))]).await;
    assert_eq!(ended.unwrap().exit(), &Exit::Text);
}

fn nothing_to_decide(ended: Ended) -> String {
    let error = ended.unwrap_err();
    assert!(
        matches!(
            error.fault(),
            RunFault::Decision(DecisionError::NotPending { .. } | DecisionError::AlreadyDecided { .. })
        ),
        "{error:?}"
    );
    chain(&error)
}

/// A decision about a call that was not made, or not yet, does not count: it does not wait for a call of that id.
#[tokio::test]
async fn approval_of_an_unknown_id() {
    let notes = Notes::default();
    let script = "assistant: > c1 pay(amount=1)\nassistant: > c2 pay(amount=2)\nassistant: done";
    let agent = paying(&notes, script, Approval::Always).build().unwrap();
    let paused = play(&agent, "pay!", |run| run).await.unwrap();
    let decided = |run: Run| decide(run, [("c1", Decision::Approve), ("c2", Decision::Approve)]);
    expect!["run 'run' waits after step 1: invalid decision: no pending approval with id `c2`; pending: c1#043680dbb1c8794e"].assert_eq(&nothing_to_decide(decided(reloaded(&paused)).await));
    assert_eq!(notes.text(), "");
    let early = play(&agent, "pay!", |run| run.decide(id_at(paused.run(), "c1"), Decision::Approve)).await;
    nothing_to_decide(early);
}

#[tokio::test]
async fn approval_that_was_decided_already() {
    let notes = Notes::default();
    let script = "assistant: > c1 pay(amount=1)   > c2 pay(amount=2)\nassistant: done";
    let agent = paying(&notes, script, Approval::Always).build().unwrap();
    let paused = play(&agent, "pay!", |run| run).await.unwrap();
    let approved = decide(reloaded(&paused), [("c1", Decision::Approve)]).await.unwrap();
    let id = id_at(paused.run(), "c1");
    let late = go_on(reloaded(&approved), |run| run.decide(id, Decision::reject("stop"))).await;
    expect!["run 'run' waits after step 1: invalid decision: approval `c1#043680dbb1c8794e` is already decided: approved"].assert_eq(&nothing_to_decide(late));
    assert_eq!(notes.text(), "");
}

/// Two decisions about one call are none, also if they say the same.
#[tokio::test]
async fn approval_that_is_decided_twice() {
    let notes = Notes::default();
    let agent =
        paying(&notes, "assistant: > c1 pay(amount=1)\nassistant: done", Approval::Always).build().unwrap();
    let paused = play(&agent, "pay!", |run| run).await.unwrap();
    let ended = decide(reloaded(&paused), [("c1", Decision::Approve), ("c1", Decision::Approve)]).await;
    expect!["run 'run' waits after step 1: invalid decision: duplicate decision about approval `c1#043680dbb1c8794e`; expected one"].assert_eq(&chain(&ended.unwrap_err()));
    assert_eq!(notes.text(), "");
}

/// All are taken or none, and a host of one's own gets no further.
/// A server that gives a call the id of an earlier request, or of one inside of another, gets another name for it.
#[tokio::test]
async fn approval_of_calls_that_are_named_like_requests() {
    let script = "assistant: > \"c1#3e1bd81d8d0ce678\" pay(amount=3)   > \"a/c1\" pay(amount=3)   > \"é=%\" pay(amount=3)";
    let agent = paying(&Notes::default(), script, Approval::Always).build().unwrap();
    let paused = play(&agent, "pay!", |run| run).await;
    assert_eq!(paths(outcome_of(&paused)), ["c1%233e1bd81d8d0ce678", "a%2Fc1", "%C3%A9%3D%25"]);
    let called: Vec<String> =
        outcome_of(&paused).pending().into_iter().map(|request| request.call.id).collect();
    assert_eq!(called, ["c1#3e1bd81d8d0ce678", "a/c1", "é=%"]);
}

#[tokio::test]
async fn approval_fails_closed() {
    let notes = Notes::default();
    let script = "assistant: > c1 pay(amount=1)   > c2 pay(amount=2)\nassistant: done";
    let agent = paying(&notes, script, Approval::Always).build().unwrap();
    let paused = play(&agent, "pay!", |run| run).await.unwrap();
    let run = reloaded(&paused);
    let decisions = at_paths(&run, [("c1", Decision::Approve), ("c9", Decision::Approve)]);
    let bad = run.feed(RunAnswer::Decisions(decisions), run.elapsed());
    expect!["no pending approval with id `c9`; pending: c1#043680dbb1c8794e, c2#4b19268358aea3ea"]
        .assert_eq(&bad.unwrap_err().to_string());
    let outcome = stepfold_agent_loop::tools::CallOutcome::without_result(
        &paused.pending()[0].call,
        stepfold_agent_loop::tools::CallStatus::Succeeded,
        "paid",
    );
    let early = run.feed(RunAnswer::outcome(0, outcome), run.elapsed());
    assert!(early.is_err(), "a call that waits for a decision has no outcome");
    for decision in [json!("yes"), json!({"approve": true}), json!({"modify": {}}), json!(null)] {
        assert!(serde_json::from_value::<Decision>(decision).is_err());
    }
}

/// An approver that decides about something else decides nothing.
#[tokio::test]
async fn approval_by_an_approver_of_an_unknown_id() {
    let notes = Notes::default();
    let agent = paying(&notes, "assistant: > c1 pay(amount=1)", Approval::Always).build().unwrap();
    let wrong = |_: Vec<ApprovalRequest>| async { vec![("c7".to_owned(), Decision::Approve)] };
    nothing_to_decide(play(&agent, "pay!", |run| run.approve_with(wrong)).await);
    assert_eq!(notes.text(), "");
}

/// The record says who changed what.
#[tokio::test]
async fn approval_is_recorded() {
    let notes = Notes::default();
    let agent =
        paying(&notes, "assistant: > c1 pay(amount=300)\nassistant: done", Approval::Always).build().unwrap();
    let paused = play(&agent, "pay!", |run| run).await.unwrap();
    let mut seen = Vec::new();
    let decision = Decision::modify(json!({"amount": 3}));
    let id = id_at(paused.run(), "c1");
    let decisions = Decisions::from([(&*id, decision)]).by("ada").with_idempotency_key("click-1");
    go_on(reloaded(&paused), |run| run.decide_all(decisions).observe(&mut seen)).await.unwrap();
    let event = seen.iter().find_map(RunEvent::committed).unwrap();
    assert_eq!(
        serde_json::to_value(&event.kind).unwrap(),
        json!({"decided": {
            "by": "ada",
            "decisions": [[id, {"modify": {"arguments": {"amount": 3}}}]],
            "idempotency_key": "click-1",
        }}),
    );
}

/// Changed arguments are those that may be used again without being asked, not the model's.
#[tokio::test]
async fn approval_once_of_modified_arguments() {
    let notes = Notes::default();
    let script =
        "assistant: > c1 pay(amount=300)\nassistant: > c2 pay(amount=3)\nassistant: > c3 pay(amount=300)";
    let agent = paying(&notes, script, Approval::Once).build().unwrap();
    let first = play(&agent, "pay!", |run| run).await.unwrap();
    let decision = Decision::modify(json!({"amount": 3}));
    let second = decide(reloaded(&first), [("c1", decision)]).await.unwrap();
    assert_eq!((second.exit(), paths(&second), notes.count("pay")), (&PAUSED, vec!["c3".to_owned()], 2));
}

/// Equal calls of one reply are one question and one decision, whatever the order of the fields.
#[tokio::test]
async fn approval_once_of_equal_calls_in_one_reply() {
    let notes = Notes::default();
    let script = "assistant: > c1 order(a=1, b=2)   > c2 order(b=2, a=1)   > c3 order(a=1, b=3)   > c4 order(a=1, b=2)\n\
                  assistant: > d1 order(b=2, a=1)\nassistant: done";
    let order = notes.tool("order").approval(Approval::Once).build().unwrap();
    let agent = Agent::builder(self::script(script)).tools([order]).build().unwrap();
    let paused = play(&agent, "order!", |run| run).await.unwrap();
    let asked: Vec<_> =
        paused.pending().iter().map(|request| (path_of(&request.id).to_owned(), request.times)).collect();
    assert_eq!(asked, [("c1".to_owned(), 3), ("c3".to_owned(), 1)]);
    let partly = decide(reloaded(&paused), [("c3", Decision::reject("no"))]).await.unwrap();
    let statuses = |outcome: &stepfold_agent_loop::Outcome| {
        let results = outcome
            .transcript()
            .iter()
            .filter_map(|message| Some(message.tool_result()?.text().into_owned()));
        results.collect::<Vec<_>>()
    };
    // One decision for all: they run, do not run, or run with the same arguments.
    let ended = decide(reloaded(&partly), [("c1", Decision::Approve)]).await.unwrap();
    assert_eq!((ended.exit(), notes.count("order")), (&Exit::Text, 4));
    let ended = decide(reloaded(&partly), [("c1", Decision::reject("not three"))]).await.unwrap();
    assert_eq!((ended.exit(), notes.count("order")), (&PAUSED, 4));
    let not_run = |why: &str| format!("tool 'order' not run: the call was rejected: {why}");
    assert_eq!(
        statuses(&ended),
        [not_run("not three"), not_run("not three"), not_run("no"), not_run("not three")]
    );
    let ended = decide(reloaded(&partly), [("c1", Decision::modify(json!({"a": 7})))]).await.unwrap();
    assert_eq!(notes.count("order"), 7);
    assert!(
        [0, 1, 3].iter().all(|place| statuses(&ended)[*place].starts_with(r#"{"a":7}"#)),
        "{:?}",
        statuses(&ended)
    );
}

/// Calls that are asked about each time are asked about each by itself.
#[tokio::test]
async fn approval_always_of_equal_calls_in_one_reply() {
    let notes = Notes::default();
    let script = "assistant: > c1 pay(amount=1)   > c2 pay(amount=1)";
    let agent = paying(&notes, script, Approval::Once).approval(Approval::Always).build().unwrap();
    assert_eq!(paths(&play(&agent, "pay!", |run| run).await.unwrap()), ["c1", "c2"]);
}

/// A process that dies when the reply is there.
struct Dies;

impl stepfold_agent_loop::Observer for Dies {
    async fn observe(&mut self, event: &RunEvent) -> Result<(), stepfold_agent_loop::ObserverError> {
        match event.committed().map(stepfold_agent_loop::Event::name) {
            Some("started" | "answered") => Err("the power is out".into()),
            _ => Ok(()),
        }
    }
}

/// A call without a request when the reply came is asked about, if the source offers its tool otherwise by
/// the time it is to run.
#[tokio::test]
async fn approval_that_a_dynamic_source_wants_after_a_restart() {
    let notes = Notes::default();
    let script = "assistant: > c1 pay(amount=300)   > c2 look()   > c3 pay(amount=300)\nassistant: done";
    let offering = |approval: Approval| {
        let ran = notes.clone();
        let tools = Toolset::dynamic_with("remote", move |_| {
            let pay = ran.tool("pay").approval(approval.clone()).build().unwrap();
            let look = ran.tool("look").build().unwrap();
            async move { Ok(vec![pay, look]) }
        });
        Agent::builder(self::script(script)).tools(tools).build().unwrap()
    };
    let error = play(&offering(Approval::Never), "pay!", |run| run.observe(Dies)).await.unwrap_err();
    let stored = error.into_run().to_json();
    notes.clear();

    let load = |approval| Run::load(&offering(approval), &stored).unwrap();
    let asked = [(Approval::Always, vec![("c1", 1), ("c3", 1)]), (Approval::Once, vec![("c1", 2)])];
    for (approval, expected) in asked {
        let paused = go_on(load(approval), |run| run).await.unwrap();
        let pending = paused.pending();
        let asked: Vec<_> = pending.iter().map(|request| (path_of(&request.id), request.times)).collect();
        assert_eq!((paused.exit(), asked, notes.text()), (&PAUSED, expected, String::new()));
        let all = |decision: Decision| -> Decisions {
            pending.iter().map(|request| (request.id.clone(), decision.clone())).collect()
        };
        let rejected =
            go_on(reloaded(&paused), |run| run.decide_all(all(Decision::reject("no")))).await.unwrap();
        assert_eq!((rejected.exit(), notes.count("pay")), (&Exit::Text, 0));
        notes.clear();
        // Approved, they are not asked about again.
        let approved = go_on(reloaded(&paused), |run| run.decide_all(all(Decision::Approve))).await.unwrap();
        assert_eq!((approved.exit(), notes.count("pay"), notes.count("look")), (&Exit::Text, 2, 1));
        notes.clear();
    }
    let ended = go_on(load(Approval::Never), |run| run).await.unwrap();
    assert_eq!((ended.exit(), notes.count("pay")), (&Exit::Text, 2));
}

/// The question is in the record, which replays with the agent that asked.
#[tokio::test]
async fn approval_that_an_agent_wants_after_a_restart() {
    let notes = Notes::default();
    let script = "assistant: > c1 pay(amount=300)   > c2 look()\nassistant: done";
    let lax = paying(&notes, script, Approval::Never).build().unwrap();
    let error = play(&lax, "pay!", |run| run.observe(Dies)).await.unwrap_err();
    notes.clear();
    let strict = paying(&notes, script, Approval::Always).build().unwrap();
    let (run, changes) = Run::load_changed(&strict, &error.into_run().to_json()).unwrap();
    assert!(!changes.is_empty());
    let mut seen = Vec::new();
    let paused = go_on(run, |run| run.observe(&mut seen)).await.unwrap();
    assert_eq!(
        (committed(&seen), paths(&paused), notes.text()),
        (vec!["upgraded", "asked"], vec!["c1".to_owned()], String::new())
    );
    let ended = decide(reloaded(&paused), [("c1", Decision::Approve)]).await.unwrap();
    assert_eq!((ended.exit(), notes.count("pay")), (&Exit::Text, 1));
}

/// A hook is shown the arguments that a call runs with, also if they are modified after it has seen the call. It is
/// shown no other call again, and what it wrote for the call as it was is not written.
#[tokio::test]
async fn approval_that_modifies_a_call_which_hooks_have_seen() {
    let (notes, seen) = (Notes::default(), Notes::default());
    let script = "assistant: > c1 pay(amount=300)   > c2 look()   > c3 pay(amount=400)\nassistant: done";
    let hooked = |approval: Approval| {
        let seen = seen.clone();
        let schema = Schema::builder().key::<i64>("paid").handler(Handler::sum()).build().unwrap();
        let agent =
            paying(&notes, script, approval).schema(schema).before_tool(move |context: HookContext| {
                let call = context.call.clone().unwrap();
                seen.add(format!("{} {}", call.id, call.arguments.to_text()));
                let amount =
                    call.arguments.as_object().and_then(|arguments| arguments.get("amount").cloned());
                async move { HookAction::proceed().write(&context, "paid", amount.unwrap_or(json!(0))) }
            });
        agent.build().unwrap()
    };
    let error = play(&hooked(Approval::Never), "pay!", |run| run.observe(Dies)).await.unwrap_err();
    assert_eq!(seen.text(), "c1 {\"amount\":300}\nc2 {}\nc3 {\"amount\":400}\n");
    notes.clear();
    seen.clear();

    let (run, _) = Run::load_changed(&hooked(Approval::Always), &error.into_run().to_json()).unwrap();
    let paused = go_on(run, |run| run).await.unwrap();
    assert_eq!((paths(&paused), seen.text()), (vec!["c1".to_owned(), "c3".to_owned()], String::new()));
    // One by one: the hooks run when nothing waits any more, and see both.
    let decision = |amount: i64| Decision::modify(json!({ "amount": amount }));
    let half = decide(reloaded(&paused), [("c1", decision(3))]).await.unwrap();
    assert_eq!((half.exit(), seen.text()), (&PAUSED, String::new()));
    let ended = decide(reloaded(&half), [("c3", decision(4))]).await.unwrap();
    assert_eq!(seen.text(), "c1 {\"amount\":3}\nc3 {\"amount\":4}\n");
    assert_eq!((ended.exit(), notes.count("pay"), notes.count("look")), (&Exit::Text, 2, 1));
    assert_eq!(values(ended.state())["paid"], json!(7));
}

/// A stored run in which a call is decided with one that needs no decision is damaged.
#[tokio::test]
async fn approval_of_equal_calls_in_a_damaged_run() {
    let notes = Notes::default();
    let script = "assistant: > c1 pay(amount=1)   > c2 pay(amount=1)   > c3 look()";
    let agent = paying(&notes, script, Approval::Once).build().unwrap();
    let stored = play(&agent, "pay!", |run| run).await.unwrap().into_run().to_json();
    assert!(stored.contains(r#""same":0"#), "{stored}");
    for bad in [1, 2, 99] {
        let damaged = stored.replace(r#""same":0"#, &format!(r#""same":{bad}"#));
        let error = Run::load(&agent, &damaged).unwrap_err();
        assert!(matches!(error, LoadError::Json { .. }), "{error}");
        let text = error.to_string();
        let expected = format!(
            "invalid `same` of call 1: expected the place of an earlier call that waits for a decision, found {bad}"
        );
        assert!(text.contains(&expected), "{text}");
    }
    assert_eq!(Run::load(&agent, &stored).unwrap().pending().len(), 1);
}

/// Only calls that may run, and that had no request, are asked about again.
#[tokio::test]
async fn approval_that_is_asked_about_again_only_where_it_was_not() {
    let notes = Notes::default();
    let script = "assistant: > c1 pay(amount=300)   > c2 look()   > c3 look()\nassistant: done";
    let agent = paying(&notes, script, Approval::Always).build().unwrap();
    let paused = play(&agent, "pay!", |run| run).await.unwrap();
    let ask = CallDisposition::Ask(AskReason::Rule.into());
    let refuses = |run: &Run, fates: Vec<(usize, CallDisposition)>| {
        assert!(run.feed(RunAnswer::Ask(fates), run.elapsed()).is_err());
    };
    refuses(paused.run(), vec![(0, ask.clone())]);
    let decision = Decision::modify(json!({"amount": 3}));
    let decided = reloaded(&paused);
    let decisions = at_paths(&decided, [("c1", decision)]);
    let mut run = decided;
    run.commit(run.feed(RunAnswer::Decisions(decisions), run.elapsed()).unwrap()).unwrap();
    assert!(run.calls_to_ask().is_empty());
    for fates in [
        vec![],
        vec![(0, ask.clone())],
        vec![(7, ask.clone())],
        vec![(1, CallDisposition::Ask(AskReason::MayHaveHappened.into()))],
        vec![(2, CallDisposition::Same(1))],
        vec![(2, ask.clone()), (1, CallDisposition::Same(2))],
    ] {
        refuses(&run, fates);
    }
    let asked =
        run.feed(RunAnswer::Ask(vec![(1, ask), (2, CallDisposition::Same(1))]), run.elapsed()).unwrap();
    run.commit(asked).unwrap();
    assert_eq!(run.pending().iter().map(|request| request.times).collect::<Vec<_>>(), [2]);
}

/// A process that continues with a record under other idempotency keys asks again: what was decided for the one does not
/// count for the other. What is in the record was decided.
#[tokio::test]
async fn approval_under_another_key_prefix() {
    let notes = Notes::default();
    let script = "assistant: > c1 pay(amount=300)   > c2 pay(amount=3)\nassistant: done";
    let agent = paying(&notes, script, Approval::Always).build().unwrap();
    let paused = play(&agent, "pay!", |run| run).await.unwrap();
    let fork =
        |outcome: &stepfold_agent_loop::Outcome, prefix: &str| reloaded(outcome).with_key_prefix(prefix);
    let one = fork(&paused, "one");
    let ids = |run: &Run| run.pending().into_iter().map(|request| request.id).collect::<Vec<_>>();
    assert_eq!(ids(&one).iter().map(|id| path_of(id)).collect::<Vec<_>>(), ["c1", "c2"]);
    let all = [ids(paused.run()), ids(&one), ids(&fork(&paused, "two"))].concat();
    assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), 6, "{all:?}");
    assert_eq!(ids(&one), ids(&fork(&paused, "one")));
    nothing_to_decide(go_on(one.clone(), |run| run.decide(&*all[0], Decision::Approve)).await);

    let mut events = Vec::new();
    let decided =
        go_on(one, |run| run.decide(&*all[2], Decision::Approve).observe(&mut events)).await.unwrap();
    assert_eq!(ids(decided.run()), [all[3].clone()]);
    // The fork of a fork has what was decided before it, by its record as well.
    let mut again = fork(&paused, "three");
    for event in events.iter().filter_map(RunEvent::committed) {
        again.commit(event.clone()).unwrap();
    }
    assert_eq!((paths(&decided), again.pending().len()), (vec!["c2".to_owned()], 1));
    assert_ne!(ids(&again), ids(decided.run()));
    let ended = decide(again, [("c2", Decision::reject("no"))]).await.unwrap();
    assert_eq!((ended.exit(), notes.count("pay")), (&Exit::Text, 1));
}

/// Notes what is committed.
struct Noted(Notes);
impl stepfold_agent_loop::Observer for Noted {
    async fn observe(&mut self, event: &RunEvent) -> Result<(), stepfold_agent_loop::ObserverError> {
        self.0.add(event.committed().map_or("", stepfold_agent_loop::Event::name));
        Ok(())
    }
}

/// A decision is stored before tools are listed again, which may take as long as a server takes to start.
#[tokio::test]
async fn a_decision_is_stored_before_tools_are_listed() {
    for (decision, expected) in [
        (Decision::Approve, "decided\nlisted\n"),
        (Decision::reject("no"), "decided\n"),
        // New arguments are checked against the tool as it was shown.
        (Decision::modify(json!({"amount": 3})), "decided\nlisted\n"),
    ] {
        let notes = Notes::default();
        let seen = notes.clone();
        let listed = stepfold_agent_loop::tools::Toolset::dynamic_with("bank", move |_| {
            seen.add("listed");
            let pay = Notes::default().tool("pay").approval(Approval::Always).build().unwrap();
            async move { Ok(vec![pay]) }
        });
        let agent = Agent::builder(script("assistant: > c1 pay(amount=3)\nassistant: done")).tools(listed);
        let paused = play(&agent.build().unwrap(), "pay!", |run| run).await.unwrap();
        notes.clear();
        let id = id_at(paused.run(), "c1");
        let ended = go_on(reloaded(&paused), |run| run.decide(id, decision).observe(Noted(notes.clone())));
        assert_eq!(ended.await.unwrap().exit(), &Exit::Text);
        assert!(notes.text().starts_with(expected), "{}", notes.text());
    }
}

/// Other arguments are stored while a server hangs, if they fit the tool as it was shown, also after a crash and inside of an
/// agent; others are refused at once. When the call is about to run, the tool as it is listed then counts.
#[tokio::test(start_paused = true)]
async fn other_arguments_are_stored_while_a_server_hangs() {
    use std::time::Duration;

    #[derive(Clone, Copy, PartialEq)]
    enum Server {
        Well,
        Hangs,
        Other,
    }
    let server = Arc::new(Mutex::new(Server::Well));
    let notes = Notes::default();
    let listed = |ran: Notes, effect, rule: Approval| {
        let server = Arc::clone(&server);
        Toolset::dynamic_with("bank", move |_| {
            let (state, ran, rule) = (*server.lock().unwrap(), ran.clone(), rule.clone());
            let kind = if state == Server::Other { "string" } else { "integer" };
            let schema =
                json!({"properties": {"euro": {"type": kind}}, "required": ["euro"], "type": "object"});
            let pay = ran.tool("pay").parameters(schema).effect(effect).approval(rule).build().unwrap();
            async move {
                if state == Server::Hangs {
                    std::future::pending::<()>().await;
                }
                Ok(vec![pay])
            }
        })
    };
    let bank = |rule: Approval| {
        let tools = listed(notes.clone(), Effect::AtMostOnce, rule);
        let own = notes.tool("pay_here").approval(Approval::Always).build().unwrap();
        let model = script("assistant: > c1 pay(euro=3)   > c2 pay_here()\nassistant: done");
        Agent::builder(model).name("bank").tools(tools).tool(own).ask_when_uncertain()
    };
    let outer = |inner: Agent| {
        let ask = inner.as_tool("ask", "Asks the bank.").build().unwrap();
        Agent::builder(script("assistant: > c0 ask(task=\"pay\")\nassistant: done"))
            .tools([ask])
            .build()
            .unwrap()
    };
    for (is_inside, is_lost) in [(false, false), (false, true), (true, false)] {
        *server.lock().unwrap() = Server::Well;
        let rule = if is_lost { Approval::Never } else { Approval::Always };
        let agent = bank(rule).build().unwrap();
        let agent = if is_inside { outer(agent) } else { agent };
        let path = if is_inside { "c0/c1" } else { "c1" };
        let mut paused = play(&agent, "pay!", |run| run).await.unwrap();
        if is_lost {
            let decided = at_paths(paused.run(), [("c2", Decision::Approve)]);
            let lost =
                go_on(reloaded(&paused), |run| run.decide_all(decided).observe(Lost)).await.unwrap_err();
            paused = go_on(reloaded(lost.outcome()), |run| run).await.unwrap();
        }
        *server.lock().unwrap() = Server::Hangs;
        let wrong = [(id_at(paused.run(), path), Decision::modify(json!({"euro": "x"})))];
        let error = go_on(reloaded(&paused), |run| run.decide_all(wrong)).await.unwrap_err();
        let stepfold_agent_loop::RunFault::Decision(DecisionError::InvalidArguments { faults, .. }) =
            error.fault()
        else {
            panic!("{error}")
        };
        assert!(faults.contains("expected integer"), "{faults}");
        // A tool of the program itself needs no server.
        let own = [(path.replace("c1", "c2"), Decision::modify(json!({"euro": "any"})))];
        let given = own.into_iter().chain([(path.to_owned(), Decision::modify(json!({"euro": 5})))]);
        let given = given.map(|(path, decision)| (id_at(paused.run(), &path), decision));
        let pending: Vec<_> = paused.pending().into_iter().map(|request| request.id).collect();
        let given: Vec<_> = given.filter(|(id, _)| pending.contains(id)).collect();
        let mut recording = stepfold_agent_loop::Recording::of(paused.run());
        let hanging = reloaded(&paused).resume().decide_all(given).observe(&mut recording);
        tokio::time::timeout(Duration::from_secs(1), hanging).await.unwrap_err();
        let names: Vec<_> = recording.events().iter().map(stepfold_agent_loop::Event::name).collect();
        assert_eq!(names, ["decided"], "inside: {is_inside}, lost: {is_lost}");

        // The tool is another one by now: a person sees it before it runs.
        *server.lock().unwrap() = Server::Other;
        let mut run = reloaded(&paused);
        for event in recording.events() {
            run.catch_up(event.clone()).unwrap();
        }
        notes.clear();
        let again = go_on(run.clone(), |run| run).await.unwrap();
        assert_eq!((again.pending().is_empty(), notes.count("pay")), (false, 0));
        *server.lock().unwrap() = Server::Well;
        let ended = go_on(run, |run| run).await.unwrap();
        assert_eq!((ended.exit(), notes.count("pay")), (&Exit::Text, 1));
    }
}

/// Loses the outcome of a call.
struct Lost;
impl stepfold_agent_loop::Observer for Lost {
    async fn observe(&mut self, event: &RunEvent) -> Result<(), stepfold_agent_loop::ObserverError> {
        match event.committed().map(stepfold_agent_loop::Event::name) {
            Some("answered") => Err("the power is out".into()),
            _ => Ok(()),
        }
    }
}

/// After a crash an approver is asked about what would run again: the arguments of the decision, not the model's.
#[tokio::test]
async fn approval_of_what_may_have_happened_shows_what_runs() {
    let notes = Notes::default();
    let agent = paying(&notes, "assistant: > c1 pay(amount=300)\nassistant: done", Approval::Always);
    let agent = agent.ask_when_uncertain().build().unwrap();
    let paused = play(&agent, "pay!", |run| run).await.unwrap();
    let id = id_at(paused.run(), "c1");
    let decision = Decision::modify(json!({"amount": 3}));
    let error = go_on(reloaded(&paused), |run| run.decide(id, decision).observe(Lost)).await.unwrap_err();
    let again = go_on(reloaded(error.outcome()), |run| run).await.unwrap();
    let [request] = &*again.pending() else { panic!("{:?}", again.pending()) };
    assert_eq!(request.reason, AskReason::MayHaveHappened);
    assert_eq!(request.call.arguments.to_text(), r#"{"amount":3}"#);
    let ended = decide(reloaded(&again), [("c1", Decision::Approve)]).await.unwrap();
    assert!(ended.transcript().to_string().contains(r#"{\"amount\":3}"#), "{}", ended.transcript());
}

/// A server changes a tool whose call waits: the decision is about the tool that was shown, so the call is asked about again,
/// and it does not run by the old one. The process that has listed it still has the tool that was shown.
#[tokio::test]
async fn a_listed_tool_that_changes_is_asked_about_again() {
    for rule in [Approval::Always, Approval::Once] {
        let notes = Notes::default();
        let words = Arc::new(Mutex::new("The number of the file."));
        let (shown, ran) = (Arc::clone(&words), notes.clone());
        let tools = Toolset::dynamic_with("remote", {
            let rule = rule.clone();
            move |_| {
                let id = json!({"description": *shown.lock().unwrap(), "type": "integer"});
                let schema = json!({"properties": {"id": id}, "required": ["id"], "type": "object"});
                let tool = ran.tool("delete").parameters(schema).approval(rule.clone()).build().unwrap();
                async move { Ok(vec![tool]) }
            }
        });
        let script = script("assistant: > c1 delete(id=1)\nassistant: done");
        let agent = Agent::builder(script).tools(tools).build().unwrap();
        let paused = play(&agent, "clean up", |run| run).await.unwrap();
        let first = paused.pending()[0].id.clone();
        *words.lock().unwrap() = "The number of the folder.";
        let asked = reloaded(&paused).resume().decide(&*first, Decision::Approve).await.unwrap();
        assert_eq!((asked.exit(), &*notes.text()), (&PAUSED, ""), "it ran as another tool");
        let second = asked.pending()[0].id.clone();
        assert_ne!(first, second);
        let text = asked.pending()[0].to_text();
        assert!(text.ends_with("or as another tool."), "{text}");
        let outcome = reloaded(&asked).resume().decide(&*second, Decision::Approve).await.unwrap();
        assert_eq!(&*outcome.text(), "done");
        assert_eq!(notes.count("delete"), 1);
    }
}

/// After a crash the question is about the tool as it is listed then. A tool without a rule is asked about for the first time.
#[tokio::test]
async fn a_listed_tool_that_changes_after_a_crash_is_asked_about_again() {
    let notes = Notes::default();
    let words = Arc::new(Mutex::new("The number of the file."));
    let (shown, ran) = (Arc::clone(&words), notes.clone());
    let tools = Toolset::dynamic_with("remote", move |_| {
        let id = json!({"description": *shown.lock().unwrap(), "type": "integer"});
        let schema = json!({"properties": {"id": id}, "required": ["id"], "type": "object"});
        let tool = ran.tool("delete").effect(Effect::AtMostOnce).parameters(schema).build().unwrap();
        async move { Ok(vec![tool]) }
    });
    let script = script("assistant: > c1 delete(id=1)\nassistant: done");
    let agent = Agent::builder(script).tools(tools).ask_when_uncertain().build().unwrap();
    let lost = play(&agent, "clean up", |run| run.observe(Lost)).await.unwrap_err();
    *words.lock().unwrap() = "The number of the folder.";
    let paused = go_on(reloaded(lost.outcome()), |run| run).await.unwrap();
    let first = paused.pending()[0].id.clone();
    *words.lock().unwrap() = "The number of the disk.";
    let asked = reloaded(&paused).resume().decide(&*first, Decision::Approve).await.unwrap();
    assert_eq!((asked.exit(), notes.count("delete")), (&PAUSED, 1), "it ran as another tool");
    let [again] = &*asked.pending() else { panic!("{:?}", asked.pending()) };
    assert_eq!((again.reason, again.id == first), (AskReason::MayHaveHappened, false));
    let outcome = reloaded(&asked).resume().decide(&*again.id, Decision::Approve).await.unwrap();
    assert_eq!((&*outcome.text(), notes.count("delete")), ("done", 2));
}

/// An approval covers what a server says of its tool and models are not shown, and each request shows the difference. A decision
/// is stored though the server is gone.
#[tokio::test]
async fn an_approval_covers_the_whole_definition_of_a_listed_tool() {
    let notes = Notes::default();
    let listed = Arc::new(Mutex::new(Some(ToolListing::new("1"))));
    let (shown, ran) = (Arc::clone(&listed), notes.clone());
    let tools = Toolset::dynamic_with("remote", move |_| {
        let listing = shown.lock().unwrap().clone();
        let tool =
            listing.map(|listing| ran.tool("delete").approval(Approval::Always).listing(listing).build());
        async move { tool.map(|tool| vec![tool.unwrap()]).ok_or_else(|| "it is down".into()) }
    });
    let script = script("assistant: > c1 delete(id=1)\nassistant: done");
    let agent = Agent::builder(script).tools(tools).build().unwrap();
    let paused = play(&agent, "clean up", |run| run).await.unwrap();
    assert_eq!(paused.pending()[0].change, None);
    let first = paused.pending()[0].id.clone();
    *listed.lock().unwrap() = Some(ToolListing::new("2").changed("+  \"destructiveHint\": true"));
    let asked = reloaded(&paused).resume().decide(&*first, Decision::Approve).await.unwrap();
    assert_eq!((asked.exit(), notes.count("delete")), (&PAUSED, 0), "it ran as another tool");
    let second = asked.pending().remove(0);
    assert_eq!(second.change.as_deref(), Some("+  \"destructiveHint\": true"));
    let expected = "This tool is not as it was approved:\n+  \"destructiveHint\": true";
    assert!(second.to_text().contains(expected), "{}", second.to_text());

    *listed.lock().unwrap() = None;
    let down = reloaded(&asked).resume().decide(&*second.id, Decision::Approve).await.unwrap_err();
    assert!(down.outcome().pending().is_empty(), "{:?}", down.outcome().pending());
    *listed.lock().unwrap() = Some(ToolListing::new("2"));
    let outcome = go_on(reloaded(down.outcome()), |run| run).await.unwrap();
    assert_eq!((&*outcome.text(), notes.count("delete")), ("done", 1));
}

/// One approval for all equal calls holds for the tool that was shown: another one of the name is asked about.
#[tokio::test]
async fn an_approval_of_equal_calls_does_not_cover_a_changed_tool() {
    for is_changed in [false, true] {
        let notes = Notes::default();
        let ran = notes.clone();
        let tools = Toolset::dynamic_with("remote", move |_| {
            let words = if is_changed && ran.count("delete") > 0 { "Of a folder." } else { "Of a file." };
            let id = json!({"description": words, "type": "integer"});
            let schema = json!({"properties": {"id": id}, "required": ["id"], "type": "object"});
            let tool = ran.tool("delete").parameters(schema).approval(Approval::Once).build().unwrap();
            async move { Ok(vec![tool]) }
        });
        let script = script("assistant: > c1 delete(id=1)\nassistant: > c2 delete(id=1)\nassistant: done");
        let agent = Agent::builder(script).tools(tools).build().unwrap();
        let paused = play(&agent, "clean up", |run| run).await.unwrap();
        let ended = decide(reloaded(&paused), [("c1", Decision::Approve)]).await.unwrap();
        let expected = if is_changed { (&PAUSED, 1) } else { (&Exit::Text, 2) };
        assert_eq!((ended.exit(), notes.count("delete")), expected);
    }
}
