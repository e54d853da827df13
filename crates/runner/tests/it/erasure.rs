//! Erasure: what was said is gone from the record and from each later request, runs that need it end, and other workers read
//! the session again.

use std::collections::BTreeSet;

use serde_json::json;
use stepfold_runner::agent_loop::test_kit::Script;
use stepfold_runner::agent_loop::trim::{Summarize, Trim};
use stepfold_runner::agent_loop::{Agent, AgentBuilder, Decision, Exit, Pause};
use stepfold_runner::session_scopes::{
    AnyStore, Author, ErasureId, Event, EventRange, ListErasures, MemoryStore, ReadInbox, SessionId,
    SessionStore, SqliteStore, UserId, VerifySessions,
};
use stepfold_runner::{
    Budget, BudgetScope, EraseRequest, ErasureReport, ErasureSubject, Runner, RunnerError, RunnerErrorKind,
    SessionHandle,
};
use stepfold_tools::{Approval, Effect, RawArgs, Tool, ToolError};

use crate::world::process;

/// The text that must be gone.
const MARKER: &str = "555-0199";

fn each_store(test: impl AsyncFn(AnyStore)) {
    process(test(AnyStore::new(MemoryStore::new())));
    let folder = tempfile::tempdir().unwrap();
    process(test(AnyStore::new(SqliteStore::open(folder.path().join("sessions.db")).unwrap())));
}

/// An agent with a tool that asks, and that gives its argument back.
fn agent(script: &str) -> AgentBuilder {
    let echo = |RawArgs(arguments): RawArgs| async move { Ok::<_, ToolError>(json!(arguments.to_string())) };
    let tool =
        Tool::new("dial", "Dials.", echo).parameters(json!({"additionalProperties": true, "type": "object"}));
    let tool = tool.effect(Effect::AtMostOnce).approval(Approval::Always).build().unwrap();
    Agent::builder(Script::parse(script).unwrap()).tools([tool])
}

fn runner(agent: AgentBuilder, store: &AnyStore) -> Runner {
    Runner::builder(agent.build().unwrap(), store.clone()).app("phone").unwrap().build()
}

fn events(versions: impl IntoIterator<Item = u64>) -> ErasureSubject {
    let (user, session) = (UserId::new("ada").unwrap(), SessionId::new("s").unwrap());
    ErasureSubject::Events { user, session, versions: versions.into_iter().collect() }
}

async fn erase(runner: &Runner, subject: ErasureSubject) -> Result<ErasureReport, RunnerError> {
    runner.erase(EraseRequest::new(subject, Author::new("admin").unwrap(), "asked for by mail")).await
}

/// The stored text of all events of a session, those that a rewind has hidden as well.
async fn stored(session: &SessionHandle) -> String {
    let read = session.read(EventRange::All).await.unwrap();
    read.events.iter().map(|committed| committed.event.to_stored().unwrap() + "\n").collect()
}

async fn check(store: &AnyStore) {
    assert_eq!(store.verify(VerifySessions::all()).await.unwrap().faults, []);
}

#[test]
fn a_message_is_gone_from_the_next_request_of_each_worker() {
    each_store(async |store| {
        let one = runner(agent("assistant: noted\nassistant: hello\n"), &store);
        let session = one.session("ada", "s").await.unwrap();
        session.run(format!("my number is {MARKER}")).await.unwrap();
        // Another worker has the session in its memory.
        let two = runner(agent("assistant: unused\nassistant: hello\nassistant: yes\n"), &store);
        let known = two.session("ada", "s").await.unwrap();
        assert!(known.read(EventRange::All).await.unwrap().transcript().to_string().contains(MARKER));
        assert!(known.resume().await.is_err());
        let report = erase(&one, events([1])).await.unwrap();
        assert_eq!((report.events, report.versions.len()), (1, 1));
        assert!(!stored(&session).await.contains(MARKER));
        for session in [&session, &known] {
            let outcome = session.run("hi").await.unwrap();
            let text = outcome.transcript().to_string();
            assert!(!text.contains(MARKER) && text.contains(Event::ERASED), "{text}");
        }
        check(&store).await;
    });
}

const ASKS: &str = "\
assistant: > c1 dial(number=\"555-0199\")
assistant: done
assistant: hello
";

#[test]
fn a_call_is_gone_with_its_request_its_arguments_and_its_result() {
    each_store(async |store| {
        let runner = runner(agent(ASKS), &store);
        let session = runner.session("ada", "s").await.unwrap();
        let asked = session.run("call her").await.unwrap();
        let id = asked.pending()[0].id.clone();
        session.resume().decide(id, Decision::Approve).await.unwrap();
        assert!(stored(&session).await.matches(MARKER).count() > 1);
        let (user, id) = (UserId::new("ada").unwrap(), SessionId::new("s").unwrap());
        let call = |call: &str| ErasureSubject::Call {
            user: user.clone(),
            session: id.clone(),
            call: call.to_owned(),
        };
        let error = erase(&runner, call("c7")).await.unwrap_err();
        assert!(matches!(error.kind, RunnerErrorKind::UnknownCall { .. }), "{error}");
        let dry = EraseRequest::new(call("c1"), Author::new("admin").unwrap(), "why").dry_run();
        let dry = runner.erase(dry).await.unwrap();
        assert!(stored(&session).await.contains(MARKER));
        let report = erase(&runner, call("c1")).await.unwrap();
        assert_eq!((report.events, &report.versions), (dry.events, &dry.versions));
        let text = stored(&session).await;
        assert!(!text.contains(MARKER), "{text}");
        // The conversation has its form, and continues.
        let transcript = session.run("thanks").await.unwrap().transcript().to_string();
        assert!(
            transcript.contains("> c1 dial()") && transcript.ends_with("assistant: hello\n"),
            "{transcript}"
        );
        check(&store).await;
    });
}

#[test]
fn a_call_of_an_agent_is_gone_with_the_run_inside_of_it() {
    each_store(async |store| {
        let clerk = agent("assistant: 555-0199 is hers\n").build().unwrap();
        let clerk = clerk.as_tool("clerk", "Asks.").build().unwrap();
        let script = "assistant: > c1 clerk(task=\"555-0199\")\nassistant: done\nassistant: > c2 clerk(task=\"b\")\n\
            assistant: yes\n";
        let outer = Agent::builder(Script::parse(script).unwrap()).tools([clerk]);
        let runner = runner(outer, &store);
        let session = runner.session("ada", "s").await.unwrap();
        session.run("ask").await.unwrap();
        let before = stored(&session).await;
        let has_task = |line: &&str| line.contains("\"inner\"") && line.contains(MARKER);
        assert!(before.lines().filter(has_task).count() >= 2, "{before}");
        session.run("and the other").await.unwrap();
        let (user, id) = (UserId::new("ada").unwrap(), SessionId::new("s").unwrap());
        let call = ErasureSubject::Call { user, session: id, call: "c1".to_owned() };
        erase(&runner, call).await.unwrap();
        let text = stored(&session).await;
        // The second call has the same place in its step, and stays.
        let (first, second) = text.split_at(text.find("and the other").unwrap());
        assert!(!first.contains(MARKER), "{text}");
        assert!(second.contains(MARKER), "{text}");
        check(&store).await;
    });
}

#[test]
fn a_run_that_needs_what_was_erased_ends_with_that_reason() {
    each_store(async |store| {
        let first = runner(agent(ASKS), &store);
        let session = first.session("ada", "s").await.unwrap();
        session.run("call her").await.unwrap();
        erase(&first, events([2])).await.unwrap();
        for runner in [&first, &runner(agent("assistant: unused\nassistant: hello\n"), &store)] {
            let session = runner.session("ada", "s").await.unwrap();
            let error = session.resume().await.unwrap_err();
            assert!(matches!(error.kind, RunnerErrorKind::Erased { version: 2 }), "{error}");
        }
        // No recovery waits for it, and the session continues.
        crate::world::recover(&first).await;
        let later = runner(agent("assistant: unused\nassistant: unused\nassistant: hello\n"), &store);
        let session = later.session("ada", "s").await.unwrap();
        assert_eq!(*session.run("never mind").await.unwrap().exit(), Exit::Text);
        check(&store).await;
    });
}

#[test]
fn a_run_that_waits_with_the_erased_message_in_its_conversation_ends() {
    each_store(async |store| {
        let script = format!("assistant: noted\n{ASKS}");
        let first = runner(agent(&script), &store);
        let session = first.session("ada", "s").await.unwrap();
        session.run(format!("my number is {MARKER}")).await.unwrap();
        let asked = session.run("call me").await.unwrap();
        assert_eq!(*asked.exit(), Exit::Paused(Pause::Approval));
        erase(&first, events([1])).await.unwrap();
        for runner in [&runner(agent(&script), &store), &first] {
            let session = runner.session("ada", "s").await.unwrap();
            assert_eq!(session.pending().await.unwrap(), []);
            let error = session.resume().await.unwrap_err();
            assert!(matches!(error.kind, RunnerErrorKind::Erased { version: 1 }), "{error}");
        }
        let text = session.run("hi").await.unwrap().transcript().to_string();
        assert!(!text.contains("my number"), "{text}");
        check(&store).await;
    });
}

#[test]
fn summaries_and_forks_repeat_nothing() {
    each_store(async |store| {
        // The first reply is that of the summarizing requests as well.
        let script = "assistant: noted 555-0199\nassistant: two\nassistant: three\n";
        let trim = || Summarize::beyond(Trim::keep_last(2)).once(Trim::cap_messages(3));
        let first = runner(Agent::builder(Script::parse(script).unwrap()).summarize(trim()), &store);
        let session = first.session("ada", "s").await.unwrap();
        session.run(format!("my number is {MARKER}")).await.unwrap();
        session.run("two").await.unwrap();
        let fork = session.fork("fork", None).await.unwrap();
        for (session, said) in [(&session, "three"), (&fork, "four")] {
            session.run(said).await.unwrap();
        }
        let both = [stored(&session).await, stored(&fork).await];
        assert!(both.iter().all(|text| text.matches(MARKER).count() > 2), "{both:?}");
        // By the fork, which shares the message with its origin.
        let (user, id) = (UserId::new("ada").unwrap(), SessionId::new("fork").unwrap());
        let subject = ErasureSubject::Events { user, session: id, versions: BTreeSet::from([1, 2]) };
        let request = EraseRequest::new(subject, Author::new("admin").unwrap(), "asked for by mail");
        let dry = first.erase(request.clone().dry_run()).await.unwrap();
        let report = first.erase(request).await.unwrap();
        // Two that they share, and a summary of each.
        let of = |id: &str| report.versions.iter().filter(|(key, _)| key.id.as_str() == id).count();
        assert_eq!((report.events, report.sessions.len(), of("s"), of("fork")), (4, 2, 3, 3), "{report:?}");
        assert_eq!(report, dry);
        for session in [&session, &fork] {
            let text = stored(session).await;
            assert!(!text.contains(MARKER), "{text}");
        }
        check(&store).await;
    });
}

/// A law: a repeated request that has nothing more to erase leaves a run that has begun since.
#[test]
fn a_repeated_erasure_ends_no_later_run() {
    each_store(async |store| {
        let runner =
            runner(agent("assistant: noted\nassistant: > c1 dial(number=\"1\")\nassistant: done\n"), &store);
        let session = runner.session("ada", "s").await.unwrap();
        session.run("hello").await.unwrap();
        let request = EraseRequest::new(events([1]), Author::new("admin").unwrap(), "mail");
        let request = request.with_id(ErasureId::new("ticket 17").unwrap());
        let first = runner.erase(request.clone()).await.unwrap();
        let asked = session.run("call her").await.unwrap();
        let id = asked.pending()[0].id.clone();
        let version = session.read(EventRange::None).await.unwrap().version;
        assert_eq!(runner.erase(request).await.unwrap(), first);
        assert_eq!(session.read(EventRange::None).await.unwrap().version, version);
        session.resume().decide(id, Decision::Approve).await.unwrap();
        check(&store).await;
    });
}

/// A law: a request that is repeated under its id after the conversation went further erases what may repeat the content since, under
/// an id of its own, and nothing else.
#[test]
fn a_repeated_erasure_looks_for_later_repeats() {
    each_store(async |store| {
        let script = "assistant: noted\nassistant: two\nassistant: three\nassistant: four\nassistant: five\n";
        let trim = || Summarize::beyond(Trim::keep_last(2)).once(Trim::cap_messages(3));
        let runner = runner(Agent::builder(Script::parse(script).unwrap()).summarize(trim()), &store);
        let session = runner.session("ada", "s").await.unwrap();
        for said in [MARKER, "two", "three"] {
            session.run(said).await.unwrap();
        }
        let request = |subject| {
            let request = EraseRequest::new(subject, Author::new("admin").unwrap(), "mail");
            request.with_id(ErasureId::new("ticket 17").unwrap())
        };
        let first = runner.erase(request(events([1]))).await.unwrap();
        assert!(first.versions.len() > 1, "no summary was erased: {first:?}");
        for said in ["four", "five"] {
            session.run(said).await.unwrap();
        }
        let again = runner.erase(request(events([1]))).await.unwrap();
        assert!(again.versions.len() > first.versions.len(), "{again:?}");
        assert!(first.versions.iter().all(|version| again.versions.contains(version)), "{again:?}");
        assert_eq!(again.events, again.versions.len() as u64);
        let key = runner.key("ada", "s").unwrap();
        let records = store.erasures(ListErasures::new(key.app)).await.unwrap();
        let records: BTreeSet<_> =
            records.iter().map(|record| (record.id.to_string(), record.events)).collect();
        let expected = [("ticket 17", 1), ("ticket 17 1", 1), ("ticket 17 2", again.events - 2)];
        assert_eq!(records, expected.map(|(id, events)| (id.to_owned(), events)).into());
        // Another event under the id is refused.
        let refused = runner.erase(request(events([2]))).await.unwrap_err().to_string();
        assert!(refused.contains("`ticket 17` reused"), "{refused}");
        check(&store).await;
    });
}

#[test]
fn what_was_recalled_is_gone_with_what_it_repeats() {
    each_store(async |store| {
        let script = "\
            assistant: noted\n\
            assistant: > c1 recall_read(message=0)   > c2 recall_search(query=\"number\")   > c3 look()\n\
            assistant: done\n\
            assistant: hello\n";
        let tool = |name: &'static str| {
            let found =
                move |RawArgs(_): RawArgs| async move { Ok::<_, ToolError>(format!("{name}: {MARKER}")) };
            let tool = Tool::new(name, "Looks back.", found);
            let any = json!({"additionalProperties": true, "type": "object"});
            tool.parameters(any).effect(Effect::Pure).build().unwrap()
        };
        let look = Tool::new("look", "Looks.", || async { Ok::<_, ToolError>("stalls") });
        let tools = [tool("recall_read"), tool("recall_search"), look.effect(Effect::Pure).build().unwrap()];
        let one = runner(Agent::builder(Script::parse(script).unwrap()).tools(tools), &store);
        let called = 4;
        // The call is erased with the message, before it, after it, or not at all; what was recalled is hidden by a rewind, or in a fork.
        let orders: [&[&[u64]]; 4] = [&[&[1]], &[&[1, called]], &[&[called], &[1]], &[&[1], &[called]]];
        for (number, order) in orders.into_iter().enumerate() {
            let id = SessionId::new(format!("copy{number}")).unwrap();
            let session = one.session("ada", id.as_str()).await.unwrap();
            session.run(format!("my number is {MARKER}")).await.unwrap();
            session.run("what is it?").await.unwrap();
            let all = session.read(EventRange::All).await.unwrap().events;
            let is_call = |event: &Event| event.messages.iter().any(|message| message.has_tool_calls());
            assert_eq!(all.iter().find(|committed| is_call(&committed.event)).unwrap().version, called);
            let fork = session.fork(format!("fork{number}"), None).await.unwrap();
            session.rewind(2).await.unwrap();
            assert!(stored(&session).await.matches(MARKER).count() > 2);
            for versions in order {
                let versions = versions.iter().copied().collect();
                let user = UserId::new("ada").unwrap();
                let subject = ErasureSubject::Events { user, session: id.clone(), versions };
                let request = EraseRequest::new(subject, Author::new("admin").unwrap(), "mail");
                let dry = one.erase(request.clone().dry_run()).await.unwrap();
                assert_eq!(one.erase(request).await.unwrap(), dry, "{order:?}");
            }
            for session in [&session, &fork] {
                let text = stored(session).await;
                assert!(!text.contains(MARKER) && text.contains("recall_read"), "{order:?}: {text}");
            }
            let transcript = fork.run("thanks").await.unwrap().transcript().to_string();
            assert!(transcript.ends_with("assistant: hello\n"), "{transcript}");
        }
        check(&store).await;
    });
}

#[test]
fn a_user_is_gone_whatever_runs() {
    each_store(async |store| {
        let runner = runner(agent(ASKS), &store);
        for id in ["s", "t"] {
            runner.session("ada", id).await.unwrap();
        }
        let other = runner.session("bob", "s").await.unwrap();
        let session = runner.session("ada", "s").await.unwrap();
        session.run("call her").await.unwrap();
        let request = EraseRequest::new(
            ErasureSubject::User(UserId::new("ada").unwrap()),
            Author::new("admin").unwrap(),
            "asked for by mail",
        );
        let request = request.with_id(ErasureId::new("ticket 17").unwrap());
        let report = runner.erase(request.clone()).await.unwrap();
        assert_eq!(report.sessions.len(), 2);
        assert!(runner.find_session("ada", "s").await.unwrap().is_none());
        assert!(session.resume().await.is_err());
        // Once more, after a lost answer: nothing is left, and the record has the number of events.
        let again = runner.erase(request).await.unwrap();
        assert_eq!((again.sessions.len(), again.events), (0, report.events));
        let records = store.erasures(ListErasures::new("phone".parse().unwrap())).await.unwrap();
        assert_eq!(records.len(), 1);
        assert_eq!((records[0].id.as_str(), records[0].sessions), ("ticket 17", 2));
        assert_eq!(other.read(EventRange::All).await.unwrap().version, 0);
        check(&store).await;
    });
}

#[test]
fn the_budget_of_an_erased_user_with_a_long_name_is_gone() {
    each_store(async |store| {
        // The id of its budget is bounded, since it would be longer than ids may be.
        let name = "a".repeat(250);
        let script = "assistant: noted\n";
        let budget = Budget::requests("each", 1).of(BudgetScope::User);
        let builder = Runner::builder(agent(script).build().unwrap(), store.clone());
        let runner = builder.app("phone").unwrap().budget(budget).build();
        let exit = async |user: &str| {
            let session = runner.session(user, "s").await.unwrap();
            session.run("hi").await.unwrap().exit().clone()
        };
        let other = format!("{}b", "a".repeat(20));
        assert_eq!((exit(&name).await, exit(&other).await), (Exit::Text, Exit::Text));
        erase(&runner, ErasureSubject::User(UserId::new(name.as_str()).unwrap())).await.unwrap();
        assert_eq!(exit(&name).await, Exit::Text);
        // Values of other users stay.
        let session = runner.session(other.as_str(), "t").await.unwrap();
        assert!(matches!(session.run("hi").await.unwrap().exit(), Exit::Paused(Pause::Budget(_))));
    });
}

#[test]
fn an_erased_message_is_not_sent_again_under_its_key() {
    each_store(async |store| {
        let runner = runner(agent("assistant: noted\nassistant: hello\n"), &store);
        let session = runner.session("ada", "s").await.unwrap();
        let text = format!("my number is {MARKER}");
        session.send_once("mail 1", text.clone()).await.unwrap().outcome().await.unwrap();
        erase(&runner, events([1])).await.unwrap();
        let repeated = session.send_once("mail 1", text).await;
        let failed = match repeated {
            Ok(invocation) => invocation.outcome().await.err(),
            Err(error) => Some(error),
        };
        let error = failed.expect("the message was accepted again");
        assert!(matches!(error.kind, RunnerErrorKind::Erased { version: 1 }), "{error}");
        assert!(!stored(&session).await.contains(MARKER));
        assert_eq!(store.inbox(ReadInbox::new(session.key().clone())).await.unwrap(), []);
    });
}

#[test]
fn a_replay_says_what_it_lacks() {
    each_store(async |store| {
        let runner = runner(agent("assistant: noted\nassistant: hello\n"), &store);
        let session = runner.session("ada", "s").await.unwrap();
        session.run(format!("my number is {MARKER}")).await.unwrap();
        session.run("hi").await.unwrap();
        assert_eq!(session.replay(runner.agent()).await.unwrap(), 2);
        erase(&runner, events([1])).await.unwrap();
        let error = session.replay(runner.agent()).await.unwrap_err();
        assert!(matches!(error.kind, RunnerErrorKind::Erased { version: 1 }), "{error}");
        // Both runs say what they lack: the second one had it in its conversation.
        let runs = session.recorded_runs().await.unwrap();
        let lacking: Vec<_> =
            runs.iter().map(|run| (run.first_version, run.last_version, run.erased)).collect();
        assert_eq!(lacking, [(1, 2, Some(1)), (3, 4, Some(1))]);
        let log = session.log().await.unwrap().to_string();
        assert!(log.contains("[erased]") && !log.contains(MARKER), "{log}");
    });
}

/// A law: a request that is repeated under its id, whose first answer was lost, has the events of that answer, also where the session is
/// gone; another request under the id has not.
#[test]
fn a_repeated_erasure_has_the_answer_of_the_first() {
    each_store(async |store| {
        let (user, session) = (UserId::new("ada").unwrap(), SessionId::new("s").unwrap());
        let subjects = [
            ("events", events([1])),
            ("session", ErasureSubject::Session { user: user.clone(), session: session.clone() }),
            ("user", ErasureSubject::User(user.clone())),
        ];
        for (id, subject) in subjects {
            let runner = runner(agent("assistant: noted\nassistant: again\n"), &store);
            runner.session("ada", "s").await.unwrap().run("hello").await.unwrap();
            let request = |reason: &str| {
                let request = EraseRequest::new(subject.clone(), Author::new("admin").unwrap(), reason);
                request.with_id(ErasureId::new(id).unwrap())
            };
            let first = runner.erase(request("mail")).await.unwrap();
            assert!(first.events > 0, "{id}");
            for _ in 0..2 {
                let again = runner.erase(request("mail")).await.unwrap();
                // The names of a user's sessions are in no record.
                if id != "user" {
                    assert_eq!(again, first, "{id}");
                }
                assert_eq!(again.events, first.events, "{id}");
            }
            if id == "session" {
                let other = runner.erase(request("another one")).await.unwrap_err();
                assert!(matches!(other.kind, RunnerErrorKind::Store { .. }), "{other}");
            }
        }
        let list =
            ListErasures::new(runner(agent("assistant: noted\n"), &store).key("ada", "s").unwrap().app);
        assert_eq!(store.erasures(list).await.unwrap().len(), 3);
        check(&store).await;
    });
}
