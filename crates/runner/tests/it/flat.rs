//! A turn of a session that is kept open reads what changed, and begins with the same values as one of a session that
//! is opened for it.

use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use serde_json::{Value, json};
use stepfold_runner::agent_loop::{Agent, Decision, Input};
use stepfold_runner::session_scopes::{
    EventRange, GetSession, ScopeKey, SessionSchema, SessionStore, WriteScope,
};
use stepfold_runner::{Runner, RunnerError, RunnerErrorKind, SessionHandle};
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Chunk, FinishReason, Message, ReplyStream, Role, ToolCall,
};
use stepfold_state_core::state::{Handler, Schema, Template};
use stepfold_tools::{Approval, Effect, RawArgs, Tool, ToolContext, ToolError};

use crate::world::{World, each_store, one_of, process};

const KEYS: [&str; 9] = ["app:log", "app:n", "last", "log", "n", "temp:note", "topic", "user:log", "user:n"];

const INSTRUCTIONS: &str =
    "{app:log?} {app:n?} {last?} {log?} {n?} {temp:note?} {topic?} {user:log?} {user:n?}";

fn schema() -> Schema {
    let mut schema = Schema::builder();
    for key in KEYS {
        schema = match key.rsplit([':', '_']).next() {
            Some("n") => schema.key::<u64>(key).handler(Handler::sum()),
            Some("log") => schema.key::<Vec<String>>(key),
            _ => schema.key::<String>(key),
        };
    }
    schema.build().unwrap()
}

/// Makes a call with what the user says, an object of values to write, and notes the instructions of each turn.
#[derive(Clone, Default)]
struct Noting(Arc<Mutex<Vec<String>>>);

impl ChatModel for Noting {
    fn id(&self) -> &'static str {
        "test/noting"
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        let log = &request.messages;
        let last = log.last().unwrap();
        let arguments = serde_json::from_str::<Value>(&last.text()).ok();
        let (message, finish) = match arguments.filter(|_| last.role() == Role::User) {
            Some(arguments) => {
                self.0.lock().unwrap().push(log.iter().next().unwrap().text().into_owned());
                let tool = if arguments.get("asks").is_some() { "pay" } else { "set" };
                let call = ToolCall::new("c1", tool, arguments);
                (Message::new(Role::Assistant).with_part(call), FinishReason::ToolCalls)
            }
            None => (Message::assistant("done"), FinishReason::Stop),
        };
        ReplyStream::from_chunks(Chunk::of(&message).into_iter().chain([Chunk::Finished(finish)]))
    }
}

/// A tool that writes its arguments to the state, and one that asks first. Both fail once they have written `fails`.
fn tool(name: &str) -> Tool {
    let function = async |RawArgs(arguments): RawArgs, context: ToolContext| {
        for (key, value) in arguments.as_object().into_iter().flatten() {
            match key.as_str() {
                "asks" => {}
                "fails" => return Err(ToolError::new("it failed")),
                key => context.writer().set(key, value.clone())?,
            }
        }
        Ok::<_, ToolError>(json!("it is done"))
    };
    Tool::new(name, "Writes to the state.", function)
        .parameters(json!({"additionalProperties": true, "type": "object"}))
        .writes(KEYS)
        .effect(Effect::Pure)
        .approval(if name == "pay" { Approval::Always } else { Approval::Never })
        .build()
        .unwrap()
}

fn runner(world: &World, model: &Noting) -> Runner {
    let agent = Agent::builder(model.clone())
        .name("clerk")
        .schema(schema())
        .instructions(INSTRUCTIONS)
        .tools([tool("set"), tool("pay")])
        .build()
        .unwrap();
    world.runner(agent).build()
}

/// The instructions as they are with the values that the store has now.
async fn fresh(world: &World, session: &SessionHandle) -> String {
    let stored = world.store().store.get(GetSession::new(session.key().clone())).await.unwrap();
    Template::parse(INSTRUCTIONS).render(&stored.state(&schema().into()).unwrap()).unwrap()
}

/// Another program writes a shared value.
async fn others_write(world: &World, key: &str, value: Value) {
    let schema = SessionSchema::new(schema());
    let delta = [schema.schema().write(key, value).unwrap()].into_iter().collect();
    let scope = match key.starts_with("app:") {
        true => ScopeKey::app("stalls"),
        false => ScopeKey::user("stalls", "ada"),
    };
    world.store().write_scope(WriteScope::new(scope.unwrap(), delta, &schema)).await.unwrap();
}

#[test]
fn a_turn_of_a_session_kept_open_reads_no_value_that_did_not_change() {
    each_store(|world| {
        process(async {
            let runner = runner(world, &Noting::default());
            let values = json!({"topic": "a large value", "user:log": ["a"], "log": ["a"], "app:n": 1});
            let session = runner.create("ada", "s1", values).await.unwrap();
            session.run(r#"{"n": 1}"#).await.unwrap();
            assert_eq!(world.wire.take_values(), ["app:n", "log", "topic", "user:log"]);

            // Its own writes are not read, not even those of lists that grow.
            for _ in 0..3 {
                session.run(r#"{"log": ["b"], "user:log": ["b"], "app:n": 1, "n": 1}"#).await.unwrap();
                assert!(world.wire.take_values().is_empty());
            }
            assert_eq!(session.last_run().await.unwrap().unwrap().state().get("log").unwrap().len(), Some(4));
            assert!(world.wire.take_values().is_empty());

            // What others wrote is read once.
            others_write(world, "user:n", json!(1)).await;
            session.run(r#"{"user:log": ["c"]}"#).await.unwrap();
            assert_eq!(world.wire.take_values(), ["user:n"]);
            session.run("{}").await.unwrap();
            assert!(world.wire.take_values().is_empty());
        });
    });
}

/// Of a list that others append to, the new items are read, and in memory, where that costs nothing, the list.
#[test]
fn a_turn_reads_the_items_that_others_have_appended_and_no_others() {
    each_store(|world| {
        process(async {
            let model = Noting::default();
            let runner = runner(world, &model);
            let values = json!({"user:log": ["a", "b", "c"], "app:log": ["a"]});
            let session = runner.create("ada", "s1", values).await.unwrap();
            let other = runner.session("ada", "s2").await.unwrap();
            session.run("{}").await.unwrap();
            for turn in 1..4 {
                other.run(r#"{"user:log": ["d", "e"]}"#).await.unwrap();
                others_write(world, "app:log", json!(["f"])).await;
                world.wire.take_values();
                let expected = fresh(world, &session).await;
                world.wire.take_values();
                // Its own items come behind them.
                session.run(r#"{"user:log": ["mine"]}"#).await.unwrap();
                assert_eq!(model.0.lock().unwrap().last(), Some(&expected), "turn {turn}");
                let read = world.wire.take_values();
                match world.is_in_memory() {
                    true => assert_eq!(read, ["app:log", "user:log"]),
                    false => assert_eq!(read, ["app:log +1", "user:log +2"]),
                }
            }
            // An item in its place is another list.
            let replaced = [schema().write_with("user:log", json!(["anew"]), &Handler::replace_values())];
            let delta = replaced.into_iter().collect::<Result<_, _>>().unwrap();
            let user = ScopeKey::user("stalls", "ada").unwrap();
            world.store().write_scope(WriteScope::new(user, delta, &schema().into())).await.unwrap();
            session.run("{}").await.unwrap();
            assert_eq!(world.wire.take_values(), ["user:log"]);
        });
    });
}

/// While a run waits, others write: when it has ended, the next turn knows both.
#[test]
fn a_run_that_waited_leaves_no_old_values() {
    each_store(|world| {
        process(async {
            let model = Noting::default();
            let session = runner(world, &model).session("ada", "s1").await.unwrap();
            session.run(r#"{"asks": 1, "user:n": 1, "temp:note": "mine"}"#).await.unwrap();
            others_write(world, "user:log", json!(["theirs"])).await;
            approve(&session).await;
            let expected = fresh(world, &session).await;
            assert!(expected.contains("theirs"), "{expected}");
            session.run("{}").await.unwrap();
            assert_eq!(model.0.lock().unwrap().last(), Some(&expected));
        });
    });
}

async fn approve(session: &SessionHandle) {
    let pending = session.pending().await.unwrap();
    if !pending.is_empty() {
        let approve = pending.into_iter().map(|request| (request.id, Decision::Approve));
        session.resume().decide_all(approve.collect::<Vec<_>>()).await.unwrap();
    }
}

/// What happens to the sessions of a user.
#[derive(Clone, Debug)]
enum Next {
    /// A turn that writes these values.
    Turn(Value),
    /// A turn whose input has a value.
    Input,
    /// What waits is approved.
    Approve,
    /// A reader of the session.
    Look,
    /// Another program writes a shared value.
    Others(&'static str),
    /// Back by so many events.
    Rewind(u64),
    /// The other session is a fork of this one from now on.
    Fork,
}

fn values() -> impl Strategy<Value = Value> {
    let value = prop::sample::select(KEYS.to_vec()).prop_map(|key| match key {
        key if key.ends_with("log") => (key, json!(["x"])),
        key if key.ends_with('n') => (key, json!(1)),
        key => (key, json!("some")),
    });
    let flag = prop_oneof![6 => Just(None), 2 => Just(Some("asks")), 1 => Just(Some("fails"))];
    (prop::collection::vec(value, 0..4), flag).prop_map(|(values, flag)| {
        let flag = flag.map(|flag| (flag, json!(1)));
        Value::Object(values.into_iter().chain(flag).map(|(key, value)| (key.to_owned(), value)).collect())
    })
}

fn next() -> impl Strategy<Value = Next> {
    prop_oneof![
        12 => values().prop_map(Next::Turn),
        1 => Just(Next::Input),
        4 => Just(Next::Approve),
        1 => Just(Next::Look),
        2 => prop::sample::select(vec!["app:n", "user:n", "user:log"]).prop_map(Next::Others),
        1 => (1..12_u64).prop_map(Next::Rewind),
        1 => Just(Next::Fork),
    ]
}

/// Two workers, each with two sessions of a user.
struct Sessions {
    model: Noting,
    open: [[SessionHandle; 2]; 2],
    runners: [Runner; 2],
    forks: usize,
}

impl Sessions {
    async fn go(&mut self, world: &World, worker: usize, place: usize, next: &Next) {
        let session = &self.open[worker][place];
        match next {
            Next::Turn(values) => {
                let expected = fresh(world, session).await;
                self.model.0.lock().unwrap().clear();
                match session.run(values.to_string()).await {
                    Ok(_) => assert_eq!(*self.model.0.lock().unwrap(), [expected]),
                    Err(RunnerError { kind: RunnerErrorKind::Pending { .. }, .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            Next::Input => {
                let input = Input::from("and this").with_values(json!({"topic": "stalls", "user:n": 1}));
                match session.run(input).await {
                    Ok(_) | Err(RunnerError { kind: RunnerErrorKind::Pending { .. }, .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            Next::Approve => approve(session).await,
            Next::Look => drop(session.last_run().await.unwrap()),
            Next::Others(key) => {
                let value = if key.ends_with("log") { json!(["y"]) } else { json!(1) };
                others_write(world, key, value).await;
            }
            Next::Rewind(events) => {
                let version = session.read(EventRange::None).await.unwrap().version;
                session.rewind(version.saturating_sub(*events)).await.unwrap();
            }
            Next::Fork => {
                self.forks += 1;
                let id = format!("f{}", self.forks);
                session.fork(id.clone(), None).await.unwrap();
                for (worker, runner) in self.runners.iter().enumerate() {
                    self.open[worker][1 - place] = runner.session("ada", id.clone()).await.unwrap();
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(one_of(16))]

    #[test]
    fn a_turn_begins_with_the_values_of_the_store(
        all in prop::collection::vec((0..2_usize, 0..2_usize, next()), 1..24),
    ) {
        each_store(|world| {
            process(async {
                let model = Noting::default();
                let runners = [runner(world, &model), runner(world, &model)];
                let mut open = Vec::new();
                for runner in &runners {
                    open.push([
                        runner.session("ada", "s1").await.unwrap(),
                        runner.session("ada", "s2").await.unwrap(),
                    ]);
                }
                let mut sessions = Sessions { model, open: open.try_into().unwrap(), runners, forks: 0 };
                for (worker, place, next) in &all {
                    sessions.go(world, *worker, *place, next).await;
                }
                for worker in 0..2 {
                    for place in 0..2 {
                        sessions.go(world, worker, place, &Next::Approve).await;
                        sessions.go(world, worker, place, &Next::Turn(json!({}))).await;
                    }
                }
            });
        });
    }
}
