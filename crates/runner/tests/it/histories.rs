//! Forks, rewinds, replays, and histories that have to be repaired or were condensed.

use expect_test::expect;
use serde_json::json;
use stepfold_runner::agent_loop::test_kit::Script;
use stepfold_runner::agent_loop::trim::{Summarize, Trim};
use stepfold_runner::agent_loop::{Agent, AgentBuilder, Exit, Input, RunLimits};
use stepfold_runner::session_scopes::{
    AppendEvent, Author, DeleteSession, Event, EventId, EventRange, InvocationId, SearchSessions,
    SessionStore,
};
use stepfold_runner::{RunnerError, RunnerErrorKind, SessionHandle, WallClock as _};
use stepfold_state_core::chat::Transcript;
use stepfold_tools::{Effect, Toolset};

use crate::world::{Fault, Still, World, each_store, process, shown};

const SCRIPT: &str = "\
assistant: > c1 look()
assistant: > c2 look()
assistant: done
assistant: > c3 look()
assistant: done again
";

fn calls(world: &World) -> Vec<String> {
    world.trace.take().into_iter().filter(|line| !line.starts_with("the ")).collect()
}

#[test]
fn a_fork_in_the_middle_of_a_run_continues_with_keys_of_its_own() {
    each_store(|world| {
        process(async {
            let session = world.session(world.agent(SCRIPT)).await;
            session.run("look").await.unwrap();
            calls(world);
            // began, replied, answered, replied: the second call is open.
            let fork = session.fork("other", Some(4)).await.unwrap();
            let outcome = fork.resume().await.unwrap();
            assert_eq!(outcome.text(), "done");
            assert_eq!(calls(world), ["look stalls/ada/other/i1/2/c2"]);
            let own = |text: String| text.lines().filter(|line| !line.contains(":n")).count();
            assert_eq!(own(shown(&fork).await), own(shown(&session).await));
            let first = session.fork("first", Some(0)).await.unwrap();
            assert!(matches!(
                first.resume().await,
                Err(RunnerError { kind: RunnerErrorKind::NothingToResume, .. })
            ));
            assert_eq!(first.run("look").await.unwrap().text(), "done");
        });
    });
}

#[test]
fn a_rewind_is_seen_by_whoever_had_the_session() {
    each_store(|world| {
        process(async {
            let session = world.session(world.agent(SCRIPT)).await;
            let other = world.session(world.agent(SCRIPT)).await;
            session.run("look").await.unwrap();
            let version = session.read(EventRange::None).await.unwrap().version;
            session.run("again").await.unwrap();
            other.run("the script is at its end").await.unwrap_err();
            other.abandon().await.unwrap();
            other.rewind(version).await.unwrap();
            // Another look, by the one that had seen more.
            session.run("once more").await.unwrap();
            expect![[r#"
                user:      look
                assistant: > c1 look()
                tool c1:   look is done
                assistant: > c2 look()
                tool c2:   look is done
                assistant: done
                user:      once more
                assistant: > c3 look()
                tool c3:   look is done
                assistant: done again
                app:n = 4
                log = ["look","look","look"]
                n = 3
                user:n = 4
            "#]]
            .assert_eq(&shown(&session).await);
            session.replay(&world.agent(SCRIPT).build().unwrap()).await.unwrap();
        });
    });
}

/// A rewind into the middle of a run leaves that run where it is: the call that was open then is answered.
#[test]
fn a_rewind_into_the_middle_of_a_run() {
    each_store(|world| {
        process(async {
            let session = world.session(world.agent(SCRIPT)).await;
            session.run("look").await.unwrap();
            session.rewind(4).await.unwrap();
            assert!(session.pending().await.unwrap().is_empty());
            assert!(matches!(
                session.resume().await,
                Err(RunnerError { kind: RunnerErrorKind::NothingToResume, .. })
            ));
            calls(world);
            let outcome = session.run("what now?").await.unwrap();
            expect![[r#"
                user:      look
                assistant: > c1 look()
                tool c1:   look is done
                assistant: > c2 look()
                tool c2!:  interrupted: no result of this call was recorded; whether it took effect is unknown
                user:      what now?
                assistant: done
            "#]]
            .assert_eq(&outcome.transcript().to_string());
            assert!(calls(world).is_empty());
            assert_eq!(session.replay(&world.agent(SCRIPT).build().unwrap()).await.unwrap(), 2);
        });
        process(async {
            let session = world.session(world.agent(SCRIPT)).await;
            assert_eq!(session.run("and now?").await.unwrap().text(), "done again");
        });
    });
}

/// A session that was deleted and created again has nothing of the old one, also in a process that had it in memory.
#[test]
fn a_session_that_was_made_again() {
    each_store(|world| {
        process(async {
            let session = world.session(world.agent(SCRIPT)).await;
            session.run("look").await.unwrap();
            let other = world.runner(world.agent(SCRIPT).build().unwrap()).build();
            other.store().delete(DeleteSession::new(session.key().clone())).await.unwrap();
            let made = other.session("ada", "s1").await.unwrap();
            let outcome = session.run("hello").await.unwrap();
            expect![[r#"
                user:      hello
                assistant: > c1 look()
                tool c1:   look is done
                assistant: > c2 look()
                tool c2:   look is done
                assistant: done
            "#]]
            .assert_eq(&outcome.transcript().to_string());
            assert_eq!(shown(&made).await, shown(&session).await);
        });
    });
}

async fn diverges(session: &SessionHandle, agent: AgentBuilder) -> String {
    let error = session.replay(&agent.build().unwrap()).await.unwrap_err();
    error.to_string()
}

#[test]
fn a_session_is_replayed() {
    each_store(|world| {
        let agent = || world.agent(SCRIPT).instructions("Look at {topic}. {temp:note?}").max_steps(9);
        process(async {
            let runner = world.runner(agent().build().unwrap()).build();
            let session = runner.create("ada", "s1", json!({"topic": "stalls"})).await.unwrap();
            let input = Input::new().say("look").with_values(json!({"temp:note": "soon", "topic": "rows"}));
            session.run(input).await.unwrap();
            session.run("again").await.unwrap();
        });
        process(async {
            let session = world.session(agent()).await;
            world.trace.take();
            assert_eq!(session.replay(&agent().build().unwrap()).await.unwrap(), 2);
            assert!(world.trace.take().is_empty(), "neither model nor tools are asked");
            let fork = session.fork("fork", Some(5)).await.unwrap();
            assert_eq!(fork.resume().await.unwrap().text(), "done");
            assert_eq!(fork.replay(&agent().build().unwrap()).await.unwrap(), 1);
            let shorter = agent().limits(RunLimits::default().with_steps(2));
            let said = [
                diverges(&session, agent().instructions("Be brief.")).await,
                diverges(&session, agent().tools(Toolset::default())).await,
                diverges(&session, shorter).await,
                diverges(&session, agent().tools(vec![gone(world)]).exit_on(["look"])).await,
            ];
            expect![[r#"
                session stalls/ada/s1: invocation i1 diverged at version 1: event 0 (began, step 0) differs at $.kind.began.instructions: recorded "Look at rows. ", replayed "Be brief."
                session stalls/ada/s1: invocation i1 diverged at version 3: event 2 (answered, step 1) differs for 'c1': recorded that it ran, replayed unknown tool 'look'; available: none
                session stalls/ada/s1: invocation i1 diverged at version 6: event 5 (replied, step 3) is missing: the run would need nothing more, since the limit of steps was reached
                session stalls/ada/s1: invocation i1 diverged at version 4: event 3 (replied, step 2) is missing: the run would need nothing more, since tool 'look' was called"#]].assert_eq(&said.join("\n"));
            // A replay leaves nothing behind.
            let list = stepfold_runner::session_scopes::ListSessions::new("stalls", "ada").unwrap();
            assert_eq!(world.store().list(list).await.unwrap().sessions.len(), 2);
        });
    });
}

fn gone(world: &World) -> stepfold_tools::Tool {
    world.tool("look", Effect::Pure).build().unwrap()
}

/// Another program has left a call without an answer, and an answer without a call.
#[test]
fn a_broken_history_is_repaired_on_entry() {
    each_store(|world| {
        let script = "assistant: never\nassistant: fine\nassistant: thanks";
        process(async {
            let session = world.session(world.agent(script)).await;
            let broken: Transcript = "user:      look\nassistant: > x1 look()\n".parse().unwrap();
            let event = broken.iter().fold(
                Event::new(
                    EventId::new("e1").unwrap(),
                    InvocationId::new("other").unwrap(),
                    Author::new("importer").unwrap(),
                    Still.now(),
                ),
                |event, message| event.with_message(message.clone()),
            );
            let schema = stepfold_runner::session_scopes::SessionSchema::new(crate::world::schema());
            let append = AppendEvent::new(session.key().clone(), 0, event, &schema);
            world.store().append(append).await.unwrap();
            let outcome = session.run("and now?").await.unwrap();
            expect![[r#"
                user:      look
                assistant: > x1 look()
                tool x1!:  interrupted: no result of this call was recorded; whether it took effect is unknown
                user:      and now?
                assistant: fine
            "#]]
            .assert_eq(&outcome.transcript().to_string());
            // The message is one of the session: found, and shown with its event.
            let search = SearchSessions::in_session(session.key().clone(), "and now");
            let found = world.store().search(search).await.unwrap();
            assert_eq!(found.len(), 1, "{found:?}");
        });
        process(async {
            let session = world.session(world.agent(script)).await;
            let outcome = session.run("good").await.unwrap();
            outcome.transcript().check().unwrap();
            assert_eq!(outcome.transcript().len(), 7);
            assert_eq!(session.replay(&world.agent(script).build().unwrap()).await.unwrap(), 2);
        });
    });
}

fn condensing(world: &World) -> AgentBuilder {
    let writer = Script::parse("assistant: All areas have stalls.").unwrap();
    world
        .agent("assistant: area 3\nassistant: area 7\nassistant: > c1 look()\nassistant: area 9\nassistant: area 1")
        .model(ByTurn)
        .summarize(Summarize::beyond(Trim::keep_last(1)).once(Trim::cap_messages(4)))
        .summary_model(writer)
}

/// Calls `look` once in a turn, and then says what it was shown.
struct ByTurn;

impl stepfold_state_core::chat::ChatModel for ByTurn {
    fn id(&self) -> &'static str {
        "test/by-turn"
    }

    fn respond(
        &self,
        request: stepfold_state_core::chat::ChatRequest,
    ) -> stepfold_state_core::chat::ReplyStream {
        use stepfold_state_core::chat::{Chunk, FinishReason, Message, ReplyStream, Role, ToolCall};

        let has_looked = request.messages.last().is_some_and(|message| message.role() == Role::Tool);
        let message = match has_looked {
            true => Message::assistant(format!("I was shown {} messages", request.messages.len())),
            false => Message::assistant("").with_part(ToolCall::new("c1", "look", json!({}))),
        };
        let reason = if has_looked { FinishReason::Stop } else { FinishReason::ToolCalls };
        let mut chunks = Chunk::of(&message);
        chunks.push(Chunk::Finished(reason));
        ReplyStream::from_chunks(chunks)
    }
}

#[test]
fn a_summary_outlives_the_process() {
    each_store(|world| {
        let kinds = async |session: &SessionHandle, after: u64| {
            let events = session.read(EventRange::AfterVersion(after)).await.unwrap().events;
            events.iter().map(|event| event.event.kind.to_string()).collect::<Vec<_>>().join(" ")
        };
        let version = process(async {
            let session = world.session(condensing(world)).await;
            session.run("one").await.unwrap();
            let outcome = session.run("two").await.unwrap();
            assert_eq!(outcome.text(), "I was shown 4 messages");
            assert_eq!(
                kinds(&session, 0).await,
                "began replied answered replied began summarized replied answered replied"
            );
            session.read(EventRange::None).await.unwrap().version
        });
        // Interrupted in a turn with an earlier summary, and without a new one.
        world.wire.faults([(1, Fault::DiesAfter)]);
        world.wire.process(async { world.session(condensing(world)).await.run("three").await });
        world.wire.faults([]);
        process(async {
            let session = world.session(condensing(world)).await;
            let outcome = session.resume().await.unwrap();
            outcome.transcript().check().unwrap();
            assert_eq!(outcome.exit(), &Exit::Text);
            expect!["began summarized replied answered replied"].assert_eq(&kinds(&session, version).await);
            assert_eq!(session.replay(&condensing(world).build().unwrap()).await.unwrap(), 3);
        });
    });
}

/// A fork and what it was forked from share no effect and no event.
#[test]
fn a_fork_leaves_its_parent_alone() {
    each_store(|world| {
        process(async {
            let agent: Agent = world.agent(SCRIPT).build().unwrap();
            let session = world.runner(agent).build().session("ada", "s1").await.unwrap();
            session.run("look").await.unwrap();
            let before = shown(&session).await;
            let fork = session.fork("other", None).await.unwrap();
            fork.run("again").await.unwrap();
            let own = |text: String| {
                text.lines().filter(|line| !line.contains(":n")).collect::<Vec<_>>().join("\n")
            };
            assert_eq!(own(shown(&session).await), own(before));
        });
    });
}
