//! A run that fails each time it is driven, and paused runs among many sessions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use stepfold_runner::agent_loop::{Agent, AgentBuilder, Decision, HookAction};
use stepfold_runner::session_scopes::EventRange;
use stepfold_runner::{RunnerError, SessionHandle};
use stepfold_tools::{Approval, Effect, Tool, ToolContext, ToolError};

use crate::world::{Echo, World, each_store, process, schema};

/// An agent that fails before it asks its model, until it is mended.
fn failing(is_mended: &Arc<AtomicBool>) -> AgentBuilder {
    let is_mended = Arc::clone(is_mended);
    Agent::builder(Echo).name("clerk").schema(schema()).before_model(move |_| {
        let is_mended = is_mended.load(Ordering::SeqCst);
        async move {
            match is_mended {
                true => Ok(HookAction::proceed()),
                false => Err(std::io::Error::other("the licence has run out").into()),
            }
        }
    })
}

async fn said(session: &SessionHandle) -> String {
    session.read(EventRange::All).await.unwrap().transcript().to_string()
}

#[test]
fn after_the_same_failure_twice_the_error_says_how_to_go_on() {
    each_store(|world| {
        process(async {
            let is_mended = Arc::new(AtomicBool::new(false));
            let session = world.session(failing(&is_mended)).await;
            assert!(matches!(session.run("one").await, Err(RunnerError::Run { .. })));
            for times in 2..4 {
                let error = session.run(format!("number {times}")).await.unwrap_err();
                let RunnerError::FailsAgain { times: counted, cause, .. } = &error else {
                    panic!("{error:?}")
                };
                assert_eq!(*counted, times);
                assert!(cause.contains("the licence has run out"), "{cause}");
                let text = error.to_string();
                assert!(text.contains("`resume()`") && text.contains("`abandon()`"), "{text}");
            }
            // What was accepted meanwhile is taken once the cause is gone.
            is_mended.store(true, Ordering::SeqCst);
            assert_eq!(session.run("four").await.unwrap().text(), "re: four");
            let said = said(&session).await;
            let users: Vec<&str> = said.lines().filter(|line| line.starts_with("user")).collect();
            assert_eq!(
                users,
                ["user:      one", "user:      number 2", "user:      number 3", "user:      four"]
            );
        });
    });
}

#[test]
fn a_run_that_failed_too_often_is_abandoned_by_itself() {
    each_store(|world| {
        process(async {
            let is_mended = Arc::new(AtomicBool::new(false));
            let (mended, agent) = (Arc::clone(&is_mended), failing(&is_mended).build().unwrap());
            let runner = world.runner(agent).abandon_after(2).build();
            let session = runner.session("ada", "s1").await.unwrap();
            session.run("one").await.unwrap_err();
            // The run of the first message is given up; that of the second fails by itself.
            let error = session.run("two").await.unwrap_err();
            assert!(matches!(error, RunnerError::Run { .. }), "{error:?}");
            mended.store(true, Ordering::SeqCst);
            session.run("three").await.unwrap();
            let said = said(&session).await;
            assert!(said.contains("user:      one\nuser:      two\nassistant: re: "), "{said}");
        });
    });
}

/// A paused run's `temp:` values are nowhere but in memory: other sessions do not push them out.
#[test]
fn temp_values_of_a_paused_run_stay_whatever_other_sessions_do() {
    each_store(|world| {
        process(async {
            let note = |context: ToolContext| async move {
                context.set("temp:note", "kept")?;
                Ok::<_, ToolError>("noted")
            };
            let read = |context: ToolContext| async move {
                let note = context.get("temp:note").map(|note| note.to_string());
                Ok::<_, ToolError>(note.unwrap_or_else(|| "gone".to_owned()))
            };
            let tools = [
                Tool::new("note", "Notes.", note).writes(["temp:note"]).effect(Effect::Pure).build().unwrap(),
                Tool::new("read", "Reads.", read).approval(Approval::Always).build().unwrap(),
            ];
            let agent = paused(world).tools(tools).build().unwrap();
            let runner = world.runner(agent).build();
            {
                let session = runner.session("ada", "s1").await.unwrap();
                session.run("note, then read").await.unwrap();
            }
            for number in 0..300 {
                runner.session("ada", format!("other{number}")).await.unwrap();
            }
            let session = runner.session("ada", "s1").await.unwrap();
            let id = session.pending().await.unwrap()[0].id.clone();
            session.resume().decide(id, Decision::Approve).await.unwrap();
            let said = said(&session).await;
            assert!(said.contains("kept"), "{said}");
        });
    });
}

fn paused(world: &World) -> AgentBuilder {
    world.agent("assistant: > c1 note()\nassistant: > c2 read()\nassistant: done")
}

/// Nobody reads a long session to learn what waits in it.
#[test]
fn what_is_pending_is_told_without_reading_the_whole_session() {
    each_store(|world| {
        let script = format!("{}assistant: > c1 ask()\nassistant: done", "assistant: hello\n".repeat(200));
        let ask = world.tool("ask", Effect::Pure).approval(Approval::Always).build().unwrap();
        let agent = || world.agent(&script).tools([ask.clone()]);
        let id = process(async {
            let session = world.session(agent()).await;
            for number in 0..=200 {
                session.run(format!("{number}")).await.unwrap();
            }
            world.wire.take_reads();
            let id = session.pending().await.unwrap()[0].id.clone();
            // What this process knows is not read again.
            let (reads, events) = world.wire.take_reads();
            assert!(reads <= 1 && events <= 4, "{reads} reads, {events} events");
            id
        });
        process(async {
            let session = world.session(agent()).await;
            world.wire.take_reads();
            assert_eq!(session.pending().await.unwrap()[0].id, id);
            let (_, events) = world.wire.take_reads();
            assert!(events <= 64, "{events} events");
        });
    });
}

#[test]
fn an_error_shows_its_causes_in_one_line() {
    each_store(|world| {
        process(async {
            let session = world.session(failing(&Arc::default())).await;
            let error = session.run("one").await.unwrap_err();
            let text = error.to_string();
            assert!(
                text.starts_with(&format!("the run in session {} failed: run '", session.key())),
                "{text}"
            );
            assert!(
                text.ends_with("failed after step 0: a hook failed (BeforeModel): the licence has run out"),
                "{text}"
            );
            // What the text shows is not shown again by those who follow the sources.
            assert!(std::error::Error::source(&error).is_none(), "{text}");
        });
    });
}
