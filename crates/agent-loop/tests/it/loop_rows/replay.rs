//! A recorded run goes through the machine again, without model and tools.

use expect_test::{Expect, expect};
use serde_json::{Value, json};
use stepfold_agent_loop::state_core::chat::Transcript;
use stepfold_agent_loop::state_core::state::{Handler, Schema, State};
use stepfold_agent_loop::test_kit::Script;
use stepfold_agent_loop::tools::{Approval, Effect, ResultSource, ResultText, Tool, ToolBuilder, Toolset};
use stepfold_agent_loop::{
    Agent, AgentBuilder, Decision, Difference, Divergence, HookAction, HookContext, Input, LoadError,
    Recording, Run, RunLimits,
};
use stepfold_trim::{Pins, Trim, View};

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
    let visit = visit.output_to_state("visits", ResultSource::Whole).build().unwrap();
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
        expect!["event 5 (replied, step 2) is missing: the run would need nothing more, since the limit of steps was reached"],
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
        expect![[r#"event 5 (replied, step 2) is missing: the run would need nothing more, since tool 'visit' was called"#]],
    )
    .await;
    diverges(
        |agent| agent.on_exit(|_| async { Ok(HookAction::proceed()) }),
        expect!["diverged at the end: the recorded run ended because the model answered; the replay would need its hooks at the exit"],
    )
    .await;
    diverges(|agent| agent.tools(tools()), expect![[r#"event 1 (replied, step 1) differs at $.kind.replied.fates: recorded [[1,{"ask":"rule"}]], replayed nothing"#]]).await;
}

#[tokio::test]
async fn replay_of_another_schema() {
    let agent = visiting(&Notes::default()).build().unwrap();
    let (recording, _) = recorded(&agent).await;
    // The key sums no more: a live run would have written something else.
    let schema = Schema::builder().key::<i64>("visits").build().unwrap();
    let changed = agent.to_builder().schema(schema).build().unwrap();
    expect!["state schema changed since the run was recorded: state key visits changed"]
        .assert_eq(&chain(&recording.replay(&changed).unwrap_err()));
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
    expect!["diverged at the end: the recorded run ended because the limit of steps was reached; the replay would need a reply of the model"]
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
    expect!["event 1 (decided, step 1) is refused: unexpected event \"decided\": the run needs a reply of the model"]
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
    expect![[r#"event 7 (answered, step 2) is refused: invalid event "answered": the result or the writes of a call are missing"#]]
        .assert_eq(&folded);
    expect!["event 9 (began, step 0) is missing: the run would need nothing more, since the model answered"]
        .assert_eq(&tampered(&|events| events.push(events[0].clone())));
}

#[tokio::test]
async fn replay_of_a_newer_format() {
    let error = Recording::from_json(r#"{"version": 3}"#).unwrap_err();
    assert!(
        matches!(error, LoadError::NewerFormat { what: "recording", found: 3, supported: 2 }),
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

/// Conversations before a run: short, with turns of several steps, and with large results.
fn conversations_before() -> Vec<String> {
    let large = "stall ".repeat(60);
    let step = |call: usize| format!("assistant: > c{call} visit(n={call})\ntool c{call}: {large}\n");
    vec![
        "user: one\nassistant: 1\n".to_owned(),
        "user: one\nassistant: 1\nuser: two\nassistant: 2\nuser: three\nassistant: 3\n".to_owned(),
        format!("user: one\n{}{}assistant: 2\nuser: three\nassistant: 3\n", step(1), step(2)),
        format!("user: one\n{}assistant: 1\nuser: two\n{}{}assistant: 3\n", step(1), step(2), step(3)),
    ]
}

/// The words for a view, from its transcript alone.
fn view_in_words(log: &Transcript, view: &View) -> String {
    let hidden: Vec<usize> = (0..log.len()).filter(|index| !view.kept().contains(*index)).collect();
    let ranges: Vec<String> = hidden
        .chunk_by(|one, next| one + 1 == *next)
        .map(|range| format!("{}..{}", range[0], range[0] + range.len()))
        .collect();
    let cleared: Vec<&str> = view
        .cleared()
        .indexes()
        .map(|index| log.get(index).unwrap().tool_result().unwrap().call_id())
        .collect();
    let left_out =
        if ranges.is_empty() { "no message".to_owned() } else { format!("messages {}", ranges.join(", ")) };
    match cleared.as_slice() {
        [] => format!("{left_out} left out"),
        cleared => format!("{left_out} left out, results of {} cleared", cleared.join(", ")),
    }
}

/// A replay under another trim is the same where that shows the same, and else differs first where the run began, by the
/// messages and results that each shows.
#[tokio::test]
async fn replay_with_another_trim() {
    let pins = || Pins::messages(10).results_of(["visit"]);
    let trims = [
        Trim::none(),
        Trim::keep_last(2),
        Trim::keep_last(3).when_over(6),
        Trim::keep_last(1).with_pins(pins()),
        Trim::max_tokens(60),
        Trim::cap_messages(3),
        Trim::clear_results(0, 10),
        Trim::clear_results(1, 10),
        Trim::clear_results(0, 10).with_pins(pins()),
        Trim::clear_results(0, 10).then(Trim::keep_last(4)),
    ];
    let mut differing = 0;
    for before in conversations_before() {
        let before = conversation(&before);
        let log: Transcript = before.iter().cloned().chain([message("user: go").into()]).collect();
        for trim in &trims {
            let agent = agent("").model(Counting::new("assistant: done")).trim(trim.clone()).build().unwrap();
            let mut input = before.clone();
            input.push(message("user: go"));
            let run = Run::new(&agent, input, "run").unwrap();
            let mut recording = Recording::of(&run);
            run.resume().observe(&mut recording).await.unwrap();
            let stored = Recording::from_json(&serde_json::to_string(&recording).unwrap()).unwrap();
            for other in &trims {
                let (shown, otherwise) = (trim.view(&log), other.view(&log));
                let changed = agent.to_builder().trim(other.clone()).build().unwrap();
                let replayed = stored.replay(&changed);
                if (shown.kept(), shown.cleared()) == (otherwise.kept(), otherwise.cleared()) {
                    assert!(replayed.is_ok(), "{trim} and {other}: {replayed:?}");
                    continue;
                }
                differing += 1;
                let Err(Divergence::At { event: 0, name: "began", difference, .. }) = replayed else {
                    panic!("{trim} and {other}: {replayed:?}")
                };
                let Difference::View { recorded, replayed } = *difference else { panic!("{difference}") };
                assert_eq!(recorded, view_in_words(&log, &shown), "{trim} and {other}");
                assert_eq!(replayed, view_in_words(&log, &otherwise), "{trim} and {other}");
            }
        }
    }
    assert!(differing > 150, "{differing} pairs of trims differ");
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
    let mut events = recording.events().to_vec();
    let texts: Vec<_> = events[0].messages.iter().map(|message| message.text()).collect();
    assert_eq!(texts, ["go on"], "the new message is that of its event");
    assert!(!events[0].rewrite.as_ref().unwrap().to_string().contains("go on"));
    for _ in 0..2 {
        let again = Run::new(&agent, Input::recorded(state.clone(), &events[0]), "run").unwrap();
        let replayed = again.replay(&events, |_| true).unwrap();
        assert_eq!(replayed.digest(), outcome.run().digest());
        // Records of earlier versions have it within the conversation.
        let new = std::mem::take(&mut events[0].messages);
        events[0].rewrite.as_mut().unwrap().extend(new);
    }
    // Other words of a user are a difference in both.
    let other = Run::new(&agent, Input::on(state).say("stop"), "run").unwrap();
    for events in [recording.events(), &events] {
        assert!(matches!(other.clone().replay(events, |_| true), Err(Divergence::At { event: 0, .. })));
    }
}

fn visit(name: &str) -> ToolBuilder {
    tool(name, |arguments: &Value| Ok(arguments["n"].clone())).output_to_state("visits", ResultSource::Whole)
}

fn with(tool: ToolBuilder) -> impl FnOnce(AgentBuilder) -> AgentBuilder {
    |agent| agent.tools(vec![tool.build().unwrap()])
}

/// The same for a run without requests for approval.
async fn diverges_undecided(change: impl FnOnce(AgentBuilder) -> AgentBuilder, expected: Expect) {
    let agent = visiting(&Notes::default()).approval(Approval::Never).build().unwrap();
    let (recording, _) = recorded(&agent).await;
    let changed = change(agent.to_builder()).build().unwrap();
    expected.assert_eq(&chain(&recording.replay(&changed).unwrap_err()));
}

/// A live run would tell the model that there is no such tool.
#[tokio::test]
async fn replay_of_a_call_whose_tool_is_gone_or_renamed() {
    diverges_undecided(with(visit("go")), expect!["event 2 (started, step 1) differs for 'c1': recorded that it ran, replayed unknown tool 'visit'; available: go"]).await;
    diverges_undecided(|agent| agent.tools(Toolset::default()), expect!["event 2 (started, step 1) differs for 'c1': recorded that it ran, replayed unknown tool 'visit'; available: none"]).await;
    diverges(with(visit("go")), expect![[r#"event 1 (replied, step 1) differs at $.kind.replied.fates: recorded [[1,{"ask":"rule"}]], replayed nothing"#]]).await;
}

#[tokio::test]
async fn replay_of_a_call_whose_arguments_do_not_fit_any_more() {
    let stricter = json!({
        "type": "object",
        "properties": {"n": {}, "why": {"type": "string"}},
        "required": ["why"],
    });
    diverges_undecided(with(visit("visit").parameters(stricter)), expect![[r#"event 2 (started, step 1) differs for 'c1': recorded that it ran, replayed invalid arguments for tool 'visit': "why" is a required property at $"#]]).await;
    let typed = json!({"type": "object", "properties": {"n": {"type": "string"}}});
    diverges_undecided(with(visit("visit").parameters(typed)), expect!["event 2 (started, step 1) differs for 'c1': recorded that it ran, replayed invalid arguments for tool 'visit': expected string, found integer at $.n"]).await;
}

/// What could not run then, and could now.
#[tokio::test]
async fn replay_of_a_call_that_was_refused() {
    let script = script("assistant: > c1 go(n=1)   > c2 visit(n=\"x\")\nassistant: so");
    let typed = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
    let visit = || visit("visit").parameters(typed.clone());
    let schema = Schema::builder().key::<i64>("visits").build().unwrap();
    let agent = Agent::builder(script).schema(schema).tools([visit().build().unwrap()]).build().unwrap();
    let (recording, run) = recorded(&agent).await;
    assert_eq!(recording.replay(&agent).unwrap().digest(), run.digest());
    let replayed = |tools: Vec<Tool>| {
        let changed = agent.to_builder().tools(tools).build().unwrap();
        chain(&recording.replay(&changed).unwrap_err())
    };
    let go = || self::visit("go").build().unwrap();
    expect!["event 2 (answered, step 1) differs for 'c1': recorded unknown tool 'go'; available: visit, replayed that it runs"].assert_eq(&replayed(vec![visit().build().unwrap(), go()]));
    expect!["event 2 (answered, step 1) differs for 'c2': recorded invalid arguments for tool 'visit': expected integer, found string at $.n, replayed that it runs"].assert_eq(&replayed(vec![self::visit("visit").build().unwrap()]));
}

/// A live run would not mark the calls, or would.
#[tokio::test]
async fn replay_of_a_call_whose_effect_is_another_one() {
    diverges(with(visit("visit").effect(Effect::Pure)), expect!["event 3 (started, step 1) differs for 'c1': recorded that it is marked before it runs, replayed that it runs unmarked"]).await;
    let pure = visiting(&Notes::default()).tools(vec![visit("visit").effect(Effect::Pure).build().unwrap()]);
    let pure = pure.build().unwrap();
    let (recording, _) = recorded(&pure).await;
    let changed = pure.to_builder().tools(vec![visit("visit").build().unwrap()]).build().unwrap();
    expect!["event 3 (answered, step 1) differs for 'c1': recorded that it runs unmarked, replayed that it is marked before it runs"].assert_eq(&chain(&recording.replay(&changed).unwrap_err()));
}

#[tokio::test]
async fn replay_of_a_call_that_is_asked_about() {
    diverges(
        with(visit("visit").approval(Approval::Always)),
        expect!["event 1 (replied, step 1) differs at $.kind.replied.fates[0][0]: recorded 1, replayed 0"],
    )
    .await;
    let free = visiting(&Notes::default()).approval(Approval::Never).build().unwrap();
    let (recording, _) = recorded(&free).await;
    let changed = free.to_builder().approval(Approval::Always).build().unwrap();
    expect![[r#"event 1 (replied, step 1) differs at $.kind.replied.fates: recorded nothing, replayed [[0,{"ask":"rule"}],[1,{"ask":"rule"}]]"#]].assert_eq(&chain(&recording.replay(&changed).unwrap_err()));
}

/// What a tool takes from the state and what it writes there.
#[tokio::test]
async fn replay_with_other_bindings() {
    let bound = |change: &dyn Fn(ToolBuilder) -> ToolBuilder| {
        let base = tool("visit", |arguments: &Value| Ok(arguments["n"].clone()));
        let parameters = json!({"type": "object", "properties": {"n": {}, "seen": {}}});
        change(base.parameters(parameters))
    };
    let agent = visiting(&Notes::default());
    let before =
        bound(&|tool| tool.input_from_state("visits", "seen").output_to_state("visits", ResultSource::Whole));
    let agent = agent.tools(vec![before.build().unwrap()]).build().unwrap();
    let (recording, run) = recorded(&agent).await;
    assert_eq!(recording.replay(&agent).unwrap().digest(), run.digest());
    let replayed = |change: &dyn Fn(ToolBuilder) -> ToolBuilder| {
        let changed = agent.to_builder().tools(vec![bound(change).build().unwrap()]).build().unwrap();
        chain(&recording.replay(&changed).unwrap_err())
    };
    let words = "event 0 (began, step 0) offers other tools: tool visit: bindings changed";
    let no_output = replayed(&|tool| tool.input_from_state("visits", "seen"));
    let other_field =
        replayed(&|tool| tool.input_from_state("visits", "seen").output_to_state("visits", "n"));
    let reads = replayed(&|tool| {
        tool.input_from_state("visits", "seen")
            .output_to_state("visits", ResultSource::Whole)
            .reads(["messages"])
    });
    let other_text = replayed(&|tool| {
        let tool = tool.input_from_state("visits", "seen").output_to_state("visits", ResultSource::Whole);
        tool.output_to_string(ResultText::of("n"))
    });
    assert_eq!([other_field, reads, other_text], [words, words, words]);
    // The first call wrote what the second one takes, so that an approver was asked about that again.
    expect![[r#"event 5 (asked, step 1) differs for 'c2': recorded that it is asked about with [{"key":"visits","parameter":"seen","value":1}], replayed that it runs"#]].assert_eq(&no_output);
}

/// Tools that were not called: the request to the model would have differed.
#[tokio::test]
async fn replay_with_other_tools_offered() {
    let visit = || visit("visit").build().unwrap();
    let agent = visiting(&Notes::default()).tools(vec![visit()]).build().unwrap();
    let (recording, _) = recorded(&agent).await;
    let other = tool("other", |_| Ok(json!(1))).build().unwrap();
    let changed = agent.to_builder().tools(vec![visit(), other]).build().unwrap();
    expect!["event 0 (began, step 0) offers other tools: tool other is new"]
        .assert_eq(&chain(&recording.replay(&changed).unwrap_err()));
}

#[tokio::test]
async fn replay_with_another_state_schema() {
    let schema = Schema::builder().key::<String>("visits").build().unwrap();
    let other = visit("visit");
    diverges(
        |agent| with(other)(agent).schema(schema),
        expect!["state schema changed since the run was recorded: state key visits changed"],
    )
    .await;
    let schema = Schema::builder().key::<i64>("visits").handler(Handler::sum()).key::<i64>("more");
    diverges(
        |agent| agent.schema(schema.build().unwrap()),
        expect!["state schema changed since the run was recorded: state key more is new"],
    )
    .await;
}

fn shared() -> AgentBuilder {
    let schema =
        Schema::builder().key::<String>("app:motto").key::<Vec<String>>("user:notes").key::<u64>("app:n");
    agent("assistant: > c1 fetch(id=1)\nassistant: done")
        .schema(schema.build().unwrap())
        .instructions("Be {app:motto}. {user:notes?}")
}

fn with_values(motto: &str, notes: usize) -> State {
    let mut state = State::new(shared().build().unwrap().schema());
    state.set("app:motto", motto).unwrap();
    if notes > 0 {
        state.set("user:notes", vec!["a note".to_owned(); notes]).unwrap();
    }
    state
}

/// What a run reads of shared scopes is in its record, so that it replays whatever they hold by then.
#[tokio::test]
async fn replay_with_other_values_in_shared_scopes() {
    let agent = shared().build().unwrap();
    for notes in [0, 1, 5000] {
        let run = Run::new(&agent, Input::on(with_values("brief", notes)).say("go"), "run").unwrap();
        let mut recording = Recording::of(&run);
        run.resume().observe(&mut recording).await.unwrap();
        let began = &recording.events()[0];
        for today in [State::new(agent.schema()), with_values("kind", 0), with_values("kind", 7)] {
            let again = Run::new(&agent, Input::recorded(today, began), "run").unwrap();
            again.replay(recording.events(), |_| true).unwrap();
            let text = "Be {app:motto}! {user:notes?}";
            let changed = agent.to_builder().instructions(text).build().unwrap();
            let again = Run::new(&changed, Input::recorded(with_values("kind", 7), began), "run").unwrap();
            let divergence = again.replay(recording.events(), |_| true).unwrap_err().to_string();
            assert!(divergence.contains("differs at $.kind.began.instructions"), "{divergence}");
        }
    }
}

/// Only what is read, and nothing large.
#[tokio::test]
async fn values_of_shared_scopes_are_recorded() {
    let agent = shared().model(Script::parse("assistant: a").unwrap()).build().unwrap();
    for (notes, expected) in [
        (5000, r#"{"app:motto":{"is":"brief"},"user:notes":"large"}"#),
        (1, r#"{"app:motto":{"is":"brief"},"user:notes":{"is":["a note"]}}"#),
        (0, r#"{"app:motto":{"is":"brief"},"user:notes":"unset"}"#),
    ] {
        let mut state = with_values("brief", notes);
        state.set("app:n", 7).unwrap();
        let mut seen = Vec::new();
        agent.run(Input::on(state).say("go")).observe(&mut seen).await.unwrap();
        let began = seen.iter().find_map(stepfold_agent_loop::RunEvent::committed).unwrap();
        let mut shared = serde_json::to_value(began).unwrap()["shared"].clone();
        shared.sort_all_objects();
        assert_eq!(shared.to_string(), expected);
    }
}
