//! A recorded run goes through the machine again, without model and tools.

use expect_test::{Expect, expect};
use serde_json::{Value, json};
use stepfold_agent_loop::state_core::state::{Handler, Schema, State};
use stepfold_agent_loop::tools::{Approval, Source};
use stepfold_agent_loop::{
    Agent, AgentBuilder, Decision, Divergence, HookAction, HookContext, Input, LoadError, Recording, Run,
    RunLimits,
};

use super::kit::*;

const SCRIPT: &str =
    "assistant: > c1 visit(n=1)   > c2 visit(n=2)\nassistant: > c3 visit(n=1)\nassistant: done";

fn visiting(notes: &Notes) -> AgentBuilder {
    let schema = Schema::builder().key::<i64>("visits").handler(Handler::sum()).build().unwrap();
    let notes = notes.clone();
    let visit = tool("visit", move |arguments: &Value| {
        notes.add("visit");
        Ok(arguments["n"].clone())
    });
    let visit = visit.output_to_state("visits", Source::Whole).build().unwrap();
    Agent::builder(script(SCRIPT))
        .schema(schema)
        .tools([visit])
        .approval(Approval::when(|arguments| arguments["n"] == 2))
}

/// A run with approvals and hooks, recorded.
async fn recorded(agent: &Agent) -> (Recording, Run) {
    let run = Run::new(agent, "go", "run").unwrap();
    let mut recording = Recording::of(&run);
    let approve = |requests: Vec<stepfold_agent_loop::ApprovalRequest>| async move {
        requests.into_iter().map(|request| (request.id, Decision::modify(json!({"n": 5})))).collect()
    };
    let outcome = run.resume().approve_with(approve).observe(&mut recording).await.unwrap();
    (recording, outcome.into_run())
}

#[tokio::test]
async fn replay_gives_the_same_digest() {
    let notes = Notes::default();
    let agent = visiting(&notes)
        .before_model(
            |context: HookContext| async move { HookAction::proceed().write(&context, "visits", 100) },
        )
        .build()
        .unwrap();
    let (recording, run) = recorded(&agent).await;
    assert_eq!(notes.count("visit"), 3);
    let stored = serde_json::to_string(&recording).unwrap();
    let silent = agent.to_builder().model(Silent).build().unwrap();
    let replayed = Recording::from_json(&stored).unwrap().replay(&silent).unwrap();
    assert_eq!(notes.count("visit"), 3, "no tool runs");
    assert_eq!((replayed.digest(), replayed.exit()), (run.digest(), run.exit()));
    assert_eq!(replayed.transcript().to_string(), run.transcript().to_string());
    assert_eq!(replayed.state(), run.state());
    assert_eq!(replayed.state().get("visits").unwrap(), json!(307));
    assert_eq!(replayed.usage(), run.usage());
    // Byte for byte, but for the model's name.
    let same = recording.replay(&agent).unwrap();
    assert_eq!(same.to_json(), run.to_json());
}

async fn diverges(change: impl FnOnce(AgentBuilder) -> AgentBuilder, expected: Expect) {
    let agent = visiting(&Notes::default()).build().unwrap();
    let (recording, _) = recorded(&agent).await;
    let changed = change(agent.to_builder()).build().unwrap();
    expected.assert_eq(&chain(&recording.replay(&changed).unwrap_err()));
}

/// The first divergence is reported, with its step and the difference.
#[tokio::test]
async fn replay_diverges() {
    diverges(|agent| agent.instructions("Be brief."), expect![[r#"event 0 (began, step 0) differs at $.kind.began.instructions: recorded nothing, replayed "Be brief.""#]]).await;
    diverges(
        |agent| agent.max_steps(1),
        expect!["event 6 (replied, step 2) does not come: the run would need Nothing(MaxSteps)"],
    )
    .await;
    diverges(|agent| agent.approval(Approval::Never), expect![[r#"event 1 (replied, step 1) differs at $.kind.replied.fates: recorded [[1,{"ask":"rule"}]], replayed nothing"#]]).await;
    diverges(
        |agent| agent.approval(Approval::Always),
        expect!["event 1 (replied, step 1) differs at $.kind.replied.fates[0][0]: recorded 1, replayed 0"],
    )
    .await;
    diverges(|agent| agent.limits(RunLimits::default().with_calls_per_reply(1)), expect![[r#"event 1 (replied, step 1) differs at $.kind.replied.fates[0][1].ask: recorded "rule", replayed nothing"#]]).await;
    diverges(
        |agent| agent.exit_on(["visit"]),
        expect![[r#"event 6 (replied, step 2) does not come: the run would need Nothing(Tool("visit"))"#]],
    )
    .await;
    diverges(
        |agent| agent.on_exit(|_| async { Ok(HookAction::proceed()) }),
        expect!["the recorded run ended here, because the model answered; the run would need Hook(OnExit)"],
    )
    .await;
    diverges(|agent| agent.tools(tools()), expect![[r#"event 1 (replied, step 1) differs at $.kind.replied.fates: recorded [[1,{"ask":"rule"}]], replayed nothing"#]]).await;
}

#[tokio::test]
async fn replay_of_another_schema() {
    let agent = visiting(&Notes::default()).build().unwrap();
    let (recording, _) = recorded(&agent).await;
    // The key sums no more; but what was written says how it was merged.
    let schema = Schema::builder().key::<i64>("visits").build().unwrap();
    let changed = agent.to_builder().schema(schema).build().unwrap();
    let replayed = recording.replay(&changed);
    expect![[r#"{"visits": Number(7)}"#]].assert_eq(&match replayed {
        Ok(run) => format!("{:?}", values(run.state())),
        Err(divergence) => chain(&divergence),
    });
}

/// All events are the same, but the run would not end there.
#[tokio::test]
async fn replay_diverges_at_the_end() {
    let agent = visiting(&Notes::default()).max_steps(2).build().unwrap();
    let (recording, run) = recorded(&agent).await;
    assert_eq!(run.exit(), Some(&stepfold_agent_loop::Exit::MaxSteps));
    let stored = serde_json::to_string(&recording).unwrap();
    let changed = agent.to_builder().max_steps(3).build().unwrap();
    let divergence = Recording::from_json(&stored).unwrap().replay(&changed).unwrap_err();
    expect!["the recorded run ended here, because the limit of steps was reached; the run would need Model"]
        .assert_eq(&chain(&divergence));
}

/// An event that was taken out or changed is noticed.
#[tokio::test]
async fn replay_of_a_record_that_was_tampered_with() {
    let agent = visiting(&Notes::default()).build().unwrap();
    let (recording, _) = recorded(&agent).await;
    let tampered = |change: &dyn Fn(&mut Vec<Value>)| {
        let mut json = serde_json::to_value(&recording).unwrap();
        change(json["events"].as_array_mut().unwrap());
        match Recording::from_json(&json.to_string()).unwrap().replay(&agent) {
            Ok(run) => format!("{run:?}"),
            Err(divergence) => chain(&divergence),
        }
    };
    expect!["event 1 (decided, step 1) is refused: the run does not need decisions now; it needs: Model"]
        .assert_eq(&tampered(&|events| drop(events.remove(1))));
    expect![[
        r#"event 0 (began, step 0) differs at $.messages[0].parts[0].text: recorded "stop", replayed "go""#
    ]]
    .assert_eq(&tampered(&|events| {
        events[0]["messages"][0] = json!({"parts": [{"text": "stop"}], "role": "user"});
    }));
    let folded = tampered(&|events| {
        let last = events.iter_mut().rfind(|event| event.get("delta").is_some()).unwrap();
        last["delta"] = json!([]);
    });
    assert!(
        folded.starts_with("event 8 (answered, step 2) differs at $.delta: recorded nothing, replayed ["),
        "{folded}"
    );
    expect!["event 10 (began, step 0) does not come: the run would need Nothing(Text)"]
        .assert_eq(&tampered(&|events| events.push(events[0].clone())));
}

#[tokio::test]
async fn replay_of_a_newer_format() {
    let error = Recording::from_json(r#"{"version": 2}"#).unwrap_err();
    assert!(
        matches!(error, LoadError::NewerFormat { what: "recording", found: 2, supported: 1 }),
        "{error:?}"
    );
}

/// A record of a run that has not come to its end replays to where it came.
#[tokio::test]
async fn replay_of_a_part() {
    let agent = visiting(&Notes::default()).build().unwrap();
    let (recording, _) = recorded(&agent).await;
    for events in 0..recording.events().len() {
        let mut json = serde_json::to_value(&recording).unwrap();
        json["events"].as_array_mut().unwrap().truncate(events);
        json.as_object_mut().unwrap().remove("ended");
        let run = Recording::from_json(&json.to_string()).unwrap().replay(&agent).unwrap();
        assert_eq!(run.events(), events as u64);
    }
}

#[tokio::test]
async fn replay_divergence_has_its_parts() {
    let agent = visiting(&Notes::default()).build().unwrap();
    let (recording, _) = recorded(&agent).await;
    let changed = agent.to_builder().max_steps(1).build().unwrap();
    let Err(Divergence::At { event, name, step, .. }) = recording.replay(&changed) else {
        panic!("it diverges")
    };
    assert_eq!((name, step, recording.events()[event].step), ("replied", 2, 2));
}

/// A runner begins again with the state before the run and the first event of the record, also if that
/// repaired the conversation.
#[tokio::test]
async fn replay_of_a_run_that_was_repaired() {
    let mut state = State::new(&Schema::default());
    state.replace_messages(conversation("user: where?\nassistant: > c1 fetch(id=1)\nuser: hello?"));
    let agent = Agent::builder(script("assistant: sorry").after(1)).tools(tools()).build().unwrap();
    let run = Run::new(&agent, Input::on(state.clone()).say("go on"), "run").unwrap();
    let mut recording = Recording::of(&run);
    let outcome = run.resume().observe(&mut recording).await.unwrap();
    let again = Run::new(&agent, Input::recorded(state, &recording.events()[0]), "run").unwrap();
    let replayed = again.replay(recording.events(), |_| true).unwrap();
    assert_eq!(replayed.digest(), outcome.run().digest());
}
