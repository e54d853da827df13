//! Who sees what: `temp:` for one invocation, `user:` and `app:` for many sessions.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use stepfold_runner::agent_loop::{AgentBuilder, Decision, HookAction, HookContext, Input};
use stepfold_runner::session_scopes::EventRange;
use stepfold_runner::{RunnerError, RunnerErrorKind};
use stepfold_state_core::state::ValueRef;
use stepfold_tools::{Approval, Effect, Tool, ToolContext, ToolError};

use crate::world::{World, each_store, id_at, process, threads};

const SECRET: &str = "the-secret-of-this-invocation";
const SCRIPT: &str = "\
assistant: > c1 peek()
assistant: > c2 send()  > c3 peek()
assistant: done
assistant: > c4 peek()
assistant: done again
";

fn seen(value: Option<ValueRef<'_>>) -> String {
    value.map_or("nothing".to_owned(), |value| value.to_json().to_string())
}

/// What tools, hooks and the instructions see of the key.
fn agent(world: &World) -> AgentBuilder {
    let trace = world.trace.clone();
    let peek = move |context: ToolContext| {
        trace.note(format!("{} sees {}", context.call_id(), seen(context.state().get("temp:note"))));
        async { Ok::<_, ToolError>("looked") }
    };
    let peek = Tool::new("peek", "Looks.", peek).effect(Effect::Pure).build().unwrap();
    let send = world.tool("send", Effect::AtMostOnce).approval(Approval::Always).build().unwrap();
    let trace = world.trace.clone();
    world.agent(SCRIPT).tools(vec![peek, send]).instructions("Mind the note: {temp:note?}").before_model(
        move |context: HookContext| {
            trace.note(format!("the hook sees {}", seen(context.state.get("temp:note"))));
            async { Ok(HookAction::proceed()) }
        },
    )
}

#[test]
fn temporary_values_last_for_one_invocation_and_are_never_stored() {
    each_store(|world| {
        process(async {
            let session = world.session(agent(world)).await;
            let input = || Input::new().say("go").with_values(json!({"temp:note": SECRET}));
            let outcome = session.run(input()).await.unwrap();
            assert_eq!(outcome.run().instructions().unwrap(), format!("Mind the note: {SECRET}"));
            // Neither who looks, nor who is refused, makes it forget.
            assert_eq!(session.pending().await.unwrap().len(), 1);
            assert!(matches!(
                session.run("more").await,
                Err(RunnerError { kind: RunnerErrorKind::Pending { .. }, .. })
            ));
            // Nor does another request of the same process that comes for the decision.
            let runner = session.clone();
            drop(session);
            let outcome =
                runner.resume().decide(id_at(&runner, "c2").await, Decision::Approve).await.unwrap();
            assert_eq!(outcome.text(), "done");
            let sees: Vec<_> = world.trace.take().into_iter().filter(|line| line.contains("sees")).collect();
            let all = ["the hook", "c1", "the hook", "c3", "the hook"];
            assert_eq!(sees, all.map(|who| format!("{who} sees \"{SECRET}\"")));
            let outcome = runner.run("again").await.unwrap();
            assert_eq!(outcome.run().instructions().unwrap(), "Mind the note: ");
            let sees: Vec<_> = world.trace.take().into_iter().filter(|line| line.contains("sees")).collect();
            assert_eq!(sees, ["the hook", "c4", "the hook"].map(|who| format!("{who} sees nothing")));
            let events = runner.read(EventRange::All).await.unwrap().events;
            for event in &events {
                let stored = event.event.to_stored().unwrap();
                assert!(!stored.contains(SECRET), "{stored}");
            }
        });
        let bytes = world.stored_bytes();
        let found = bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes());
        assert!(!found, "the file has it");
    });
}

/// A handle for each request, as a server has it: a pause is the same.
#[test]
fn temporary_values_outlive_the_handle() {
    each_store(|world| {
        process(async {
            let runner = world.runner(agent(world).build().unwrap()).build();
            let input = Input::new().say("go").with_values(json!({"temp:note": SECRET}));
            runner.session("ada", "s1").await.unwrap().run(input).await.unwrap();
            world.trace.take();
            let session = runner.session("ada", "s1").await.unwrap();
            session.resume().decide(id_at(&session, "c2").await, Decision::Approve).await.unwrap();
            assert!(world.trace.take().contains(&format!("c3 sees \"{SECRET}\"")));
        });
    });
}

#[test]
fn sixteen_sessions_count_in_what_they_share() {
    each_store(|world| {
        threads(async {
            let agent = world.agent("assistant: > c1 look()\nassistant: done").build().unwrap();
            let runner = world.runner(agent).build();
            let mut runs = Vec::new();
            for number in 0..16 {
                let user = if number % 2 == 0 { "ada" } else { "bob" };
                let session = runner.session(user, format!("s{number}")).await.unwrap();
                runs.push(session.send("count").await.unwrap());
            }
            for run in runs {
                run.await.unwrap();
            }
            let session = runner.session("ada", "s0").await.unwrap();
            let stored: Value = session.read(EventRange::None).await.unwrap().to_json();
            assert_eq!(stored, json!({"app:n": 16, "log": ["look"], "n": 1, "user:n": 8}));
        });
    });
}

/// What another session has written meanwhile is there in the next turn.
#[test]
fn a_turn_begins_with_the_shared_values_of_its_day() {
    each_store(|world| {
        process(async {
            let seen = Arc::new(Mutex::new(Vec::new()));
            let notes = Arc::clone(&seen);
            let agent = world
                .agent("assistant: > c1 look()\nassistant: done\nassistant: > c2 look()\nassistant: done")
                .instructions("{app:n?}")
                .before_run(move |context: HookContext| {
                    notes.lock().unwrap().push(context.state.get("app:n").map(ValueRef::to_json));
                    async { Ok(HookAction::proceed()) }
                });
            let runner = world.runner(agent.build().unwrap()).build();
            let (one, two) =
                (runner.session("ada", "one").await.unwrap(), runner.session("bob", "two").await.unwrap());
            for session in [&one, &two, &one] {
                session.run("count").await.unwrap();
            }
            assert_eq!(*seen.lock().unwrap(), [None, Some(json!(1)), Some(json!(2))]);
        });
    });
}
