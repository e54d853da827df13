//! Golden files: what version 1 of the record wrote is read for ever. A change of format adds files; it never
//! changes one.

use expect_test::expect;
use serde_json::{Value, json};
use stepfold_runner::RECORD_FORMAT;
use stepfold_runner::agent_loop::{AgentBuilder, Decision, RandomIds};
use stepfold_runner::session_scopes::{AppendEvent, Event, EventRange, SessionSchema, SessionStore};
use stepfold_runner::{RunnerError, RunnerErrorKind, SessionHandle};
use stepfold_tools::{Approval, Effect};

use crate::world::{Fault, World, each_store, id_at, process, schema, shown, without_digests, without_life};

const GOLDEN: &str = include_str!("../golden/session-v1.jsonl");

const SCRIPT: &str = "\
assistant: > c1 look()  > c2 send(to=\"Bob\")
assistant: done
assistant: > c3 look()  > c4 pay()
assistant: paid
assistant: fine
";

fn agent(world: &World) -> AgentBuilder {
    let look = world.tool("look", Effect::Pure).build().unwrap();
    let send = world.tool("send", Effect::AtMostOnce).approval(Approval::Always).build().unwrap();
    let pay = world.tool("pay", Effect::AtMostOnce).build().unwrap();
    world.agent(SCRIPT).tools(vec![look, send, pay]).instructions("Look at {topic}.")
}

/// Two turns: one with a decision, and one that was interrupted after a payment had started.
async fn written(world: &World) -> Vec<Event> {
    let runner = world.runner(agent(world).build().unwrap()).build();
    let session = runner.create("ada", "s1", json!({"topic": "stalls"})).await.unwrap();
    session.run("look, and write to Bob").await.unwrap();
    session
        .resume()
        .decide(id_at(&session, "c2").await, Decision::modify(json!({"to": "Rob"})))
        .await
        .unwrap();
    world.wire.faults([(4, Fault::Broken)]);
    session.run("pay").await.unwrap_err();
    world.wire.faults([]);
    let events = session.read(EventRange::All).await.unwrap().events;
    events.into_iter().map(|committed| (*committed.event).clone()).collect()
}

/// Without tags, and without the time that a run has taken: a paused clock jumps to the next heartbeat while a store has the word.
fn without_time(mut event: Value) -> Value {
    if let Some(record) = event.pointer_mut("/record/2").and_then(Value::as_object_mut) {
        record.remove("us");
    }
    // Came later: the tags of an event that has none are those that it would have.
    if let Some(event) = event.as_object_mut() {
        event.remove("tags");
    }
    event
}

/// The golden session in a store.
async fn golden(world: &World) -> SessionHandle {
    let runner = world.runner(agent(world).build().unwrap()).ids(RandomIds).build();
    let session = runner.create("ada", "s1", json!({"topic": "stalls"})).await.unwrap();
    let schema = SessionSchema::new(schema());
    for (version, line) in (0..).zip(GOLDEN.lines()) {
        let event = Event::from_stored(line).unwrap();
        let append = AppendEvent::new(session.key().clone(), version, event, &schema);
        world.store().append(append).await.unwrap();
    }
    session
}

#[test]
fn what_is_written_today_is_what_the_file_has() {
    each_store(|world| {
        process(async {
            let lines: Vec<String> =
                written(world).await.iter().map(|event| without_life(&event.to_stored().unwrap())).collect();
            let parsed = |text: &str| {
                let text = without_digests(text);
                text.lines()
                    .map(|line| without_agents(without_time(serde_json::from_str(line).unwrap())))
                    .collect::<Vec<Value>>()
            };
            assert_eq!(parsed(&lines.join("\n")), parsed(GOLDEN));
        });
    });
}

#[test]
fn a_session_of_version_1_continues() {
    each_store(|world| {
        process(async {
            let session = golden(world).await;
            assert_eq!(session.replay(&agent(world).build().unwrap()).await.unwrap(), 2);
            let outcome = session.resume().await.unwrap();
            assert_eq!(outcome.text(), "paid");
            expect![[r#"
                user:      look, and write to Bob
                assistant: > c1 look()   > c2 send(to="Bob")
                tool c1:   look is done
                tool:      @{"tool_result": {"call_id": "c2", "name": "send", "parts": [{"text": "send is done"}, {"text": "\n[The arguments were changed before the call ran, to {\"to\":\"Rob\"}]"}]}}
                assistant: done
                user:      pay
                assistant: > c3 look()   > c4 pay()
                tool c3:   look is done
                tool c4!:  tool 'pay' had started when the process was interrupted: its outcome is unknown, and it was not run again
                assistant: paid
                app:n = 3
                log = ["look","send","look"]
                n = 3
                topic = "stalls"
                user:n = 3
            "#]].assert_eq(&shown(&session).await);
            assert_eq!(session.run("thanks").await.unwrap().text(), "fine");
        });
    });
}

#[test]
fn a_newer_record_is_an_error_that_says_so() {
    each_store(|world| {
        process(async {
            let session = golden(world).await;
            let version = GOLDEN.lines().count() as u64;
            let mut event = Event::from_stored(GOLDEN.lines().last().unwrap()).unwrap();
            event.id = stepfold_runner::session_scopes::EventId::new("next").unwrap();
            let record = event.record.as_mut().unwrap();
            assert_eq!(record.format, RECORD_FORMAT);
            record.version = 3;
            let schema = SessionSchema::new(schema());
            let append = AppendEvent::new(session.key().clone(), version, event, &schema);
            world.store().append(append).await.unwrap();
            let error = session.resume().await.unwrap_err();
            assert!(
                matches!(error, RunnerError { kind: RunnerErrorKind::NewerRecord { found: 3, .. }, .. }),
                "{error:?}"
            );
            expect!["session stalls/ada/s1: unsupported format 3 at version 12: written by a newer stepfold; update"].assert_eq(&error.to_string());
        });
    });
}

/// A stored value without the fingerprints of agents, whose form is another one today.
fn without_agents(value: Value) -> Value {
    match value {
        Value::Object(members) => {
            let is_agent =
                |(name, value): &(String, Value)| name == "agent" && value.get("exit conditions").is_some();
            let members = members.into_iter().filter(|member| !is_agent(member));
            Value::Object(members.map(|(name, value)| (name, without_agents(value))).collect())
        }
        Value::Array(items) => items.into_iter().map(without_agents).collect(),
        value => value,
    }
}
