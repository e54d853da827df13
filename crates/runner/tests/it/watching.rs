//! Those who watch an invocation, and what panics.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use expect_test::expect;
use futures_util::StreamExt;
use stepfold_runner::agent_loop::{HookAction, Observer, ObserverError, RunEvent};
use stepfold_runner::session_scopes::{EventRange, SessionKey};
use stepfold_runner::{Invocation, InvocationEvent, RunnerErrorKind};
use stepfold_state_core::chat::{ChatModel, ChatRequest, Chunk, FinishReason, ReplyStream};
use stepfold_tools::{Tool, ToolContext, ToolError};
use tokio::sync::Semaphore;

use crate::world::{Echo, Trace, World, each_store, process, shown};

const SCRIPT: &str = "assistant: > c1 look()\nassistant: done";

async fn seen(run: &Invocation, from: u64) -> Vec<String> {
    let word = |seen: InvocationEvent| match seen {
        InvocationEvent::Event { number, event, .. } => {
            let word = match &event {
                RunEvent::Committed(event) => event.name().to_owned(),
                event => format!("{event:?}").split([' ', '(']).next().unwrap().to_lowercase(),
            };
            format!("{number} {word}")
        }
        InvocationEvent::Missed { events } => format!("{events} missed"),
        _ => unreachable!(),
    };
    run.subscribe(from).map(word).collect().await
}

#[test]
fn several_watch_each_from_where_it_likes() {
    each_store(|world: &World| {
        process(async {
            let session = world.session(world.agent(SCRIPT)).await;
            let run = session.send("look").await.unwrap();
            let (all, some) = tokio::join!(seen(&run, 0), seen(&run, 4));
            expect![[r#"
                0 began
                1 asking
                2 toolcalldelta
                3 toolcalldelta
                4 replied
                5 toolstarted
                6 toolfinished
                7 answered
                8 asking
                9 text
                10 text
                11 replied
                12 ended"#]]
            .assert_eq(&all.join("\n"));
            assert_eq!(some, all[4..]);
            // It is over: a late subscriber sees the same, and one that has seen all events gets none.
            assert_eq!(seen(&run, 0).await, all);
            assert!(seen(&run, all.len() as u64).await.is_empty());
            assert_eq!(run.await.unwrap().text(), "done");
        });
    });
}

/// The run never waits for a slow subscriber: events that are not kept are counted.
#[test]
fn whoever_is_slow_is_told_what_was_missed() {
    each_store(|world| {
        process(async {
            let gate = Arc::new(Semaphore::new(0));
            let held = Arc::clone(&gate);
            let agent = world.agent("").model(Talks).before_model(move |_| {
                let held = Arc::clone(&held);
                async move {
                    held.acquire().await.unwrap().forget();
                    Ok(HookAction::proceed())
                }
            });
            let session = world.session(agent).await;
            let run = session.send("talk").await.unwrap();
            let mut slow = run.subscribe(0);
            let first = slow.next().await.unwrap();
            assert!(matches!(first, InvocationEvent::Event { number: 0, .. }), "{first:?}");
            gate.add_permits(1);
            run.outcome().await.unwrap();
            let Some(InvocationEvent::Missed { events }) = slow.next().await else {
                panic!("nothing was missed")
            };
            let rest = slow.collect::<Vec<_>>().await;
            assert!(rest.iter().all(|seen| matches!(seen, InvocationEvent::Event { .. })));
            let all = seen(&run, 0).await;
            assert_eq!(all[0], format!("{} missed", events + 1));
            assert_eq!(all.len(), rest.len() + 1);
        });
    });
}

/// Says five thousand words, each by itself.
struct Talks;

impl ChatModel for Talks {
    fn id(&self) -> &'static str {
        "test/talks"
    }

    fn respond(&self, _: ChatRequest) -> ReplyStream {
        let words = (0..5_000).map(|word| Chunk::Text(format!("{word} ")));
        ReplyStream::from_chunks(words.chain([Chunk::Finished(FinishReason::Stop)]))
    }
}

/// Panics once.
fn once() -> impl Fn() + Send + Sync + Clone {
    let is_first = Arc::new(AtomicBool::new(true));
    move || assert!(!is_first.swap(false, Ordering::SeqCst), "a fault of the application")
}

struct Panics<F>(F);

impl<F: Fn() + Send + Sync> ChatModel for Panics<F> {
    fn id(&self) -> &'static str {
        "test/panics"
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        (self.0)();
        Echo.respond(request)
    }
}

#[test]
fn a_panic_leaves_a_session_that_continues() {
    each_store(|world| {
        process(async {
            let (hook, after) = (once(), once());
            let agents = [
                ("model", world.agent(SCRIPT).model(Panics(once()))),
                (
                    "hook",
                    world.agent(SCRIPT).before_tool(move |_| {
                        hook();
                        async { Ok(HookAction::proceed()) }
                    }),
                ),
                (
                    "after",
                    world.agent(SCRIPT).after_tool(move |_| {
                        after();
                        async { Ok(HookAction::proceed()) }
                    }),
                ),
            ];
            for (id, agent) in agents {
                let session = world.runner(agent.build().unwrap()).build().session("ada", id).await.unwrap();
                let run = session.send("look").await.unwrap();
                let error = run.outcome().await.unwrap_err();
                // After a tool it is a failure like any other, since the call has happened.
                let is_expected = match id {
                    "after" => matches!(error.kind, RunnerErrorKind::Run { .. }),
                    _ => matches!(error.kind, RunnerErrorKind::Panicked),
                };
                assert!(is_expected, "{id}: {error:?}");
                assert!(session.running().is_none());
                // Those who watch are not left waiting.
                seen(&run, 0).await;
                let outcome = session.resume().await.unwrap();
                assert!(["done", "re: look"].contains(&&*outcome.text()), "{}", outcome.text());
            }
        });
    });
}

#[test]
fn a_tool_that_panics_is_a_message() {
    each_store(|world| {
        process(async {
            let look = |_: ToolContext| async move {
                assert!(std::hint::black_box(false), "a fault of the tool");
                Ok::<_, ToolError>("")
            };
            let look = Tool::new("look", "Looks.", look).build().unwrap();
            let session = world.session(world.agent(SCRIPT).tools(vec![look])).await;
            session.run("look").await.unwrap();
            expect![[r#"
                user:      look
                assistant: > c1 look()
                tool c1!:  tool 'look' panicked: a fault of the tool
                assistant: done
            "#]]
            .assert_eq(&shown(&session).await);
        });
    });
}

/// Notes what it is told, or fails at the first commit of this name.
struct Noting {
    trace: Trace,
    session: String,
    fails_at: Option<&'static str>,
}

impl Observer for Noting {
    async fn observe(&mut self, event: &RunEvent) -> Result<(), ObserverError> {
        let Some(event) = event.committed() else { return Ok(()) };
        self.trace.note(format!("{} sees {}", self.session, event.name()));
        match self.fails_at == Some(event.name()) {
            true => Err("it is tired".into()),
            false => Ok(()),
        }
    }
}

#[test]
fn every_invocation_has_an_observer_of_its_own_which_may_stop_it() {
    each_store(|world| {
        let runner = |fails_at: Option<&'static str>| {
            let trace = world.trace.clone();
            let agent = world.agent("assistant: > c1 look()\nassistant: done").build().unwrap();
            let observer = move |key: &SessionKey| Noting {
                trace: trace.clone(),
                session: key.id.to_string(),
                fails_at,
            };
            world.runner(agent).observe(observer).build()
        };
        process(async {
            let session = runner(Some("answered")).session("ada", "s1").await.unwrap();
            let error = session.run("look").await.unwrap_err();
            assert!(matches!(error.kind, RunnerErrorKind::Run { .. }), "{error:?}");
            // The event was stored before the watcher failed, so that the run continues after it.
            let session = runner(None).session("ada", "s1").await.unwrap();
            assert_eq!(session.resume().await.unwrap().text(), "done");
        });
        let trace = world.trace.take();
        let seen: Vec<&str> = trace.iter().filter_map(|line| line.strip_prefix("s1 sees ")).collect();
        assert_eq!(seen, ["began", "replied", "answered", "replied"]);
        assert_eq!(trace.iter().filter(|line| line.starts_with("look")).count(), 1, "{trace:?}");
    });
}

/// A commit has the version that it gave the session, and what is between has that of the commit before.
#[test]
fn events_have_the_version_of_the_session() {
    each_store(|world: &World| {
        process(async {
            let session = world.session(world.agent(SCRIPT)).await;
            let run = session.send("look").await.unwrap();
            run.outcome().await.unwrap();
            let mut commits = 0;
            let mut events = run.subscribe(0);
            while let Some(seen) = events.next().await {
                let InvocationEvent::Event { version, event, .. } = seen else { panic!("{seen:?}") };
                commits += u64::from(event.committed().is_some());
                assert_eq!(version, commits, "{event:?}");
            }
            assert_eq!(commits, session.read(EventRange::None).await.unwrap().version);
        });
    });
}
