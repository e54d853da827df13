//! A session that is kept open continues like one that is opened again for each turn: what a runner remembers of it
//! saves work and changes nothing.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use serde_json::json;
use stepfold_runner::agent_loop::trim::Trim;
use stepfold_runner::agent_loop::{Agent, Input};
use stepfold_runner::session_scopes::{
    AppendEvent, Author, DeleteSession, Event, EventId, EventRange, InvocationId, PruneBound, PruneSession,
    SessionStore, Timestamp,
};
use stepfold_runner::{Runner, SessionHandle, WallClock};
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Chunk, FinishReason, Message, ReplyStream, Role, ToolCall, Transcript,
};
use stepfold_tools::Effect;

use crate::world::{Echo, Still, World, each_store, one_of, process, schema, shown};

/// What happens to a session, one after the other.
#[derive(Clone, Debug)]
enum Next {
    /// A turn of so many calls, with or without another topic of the instructions.
    Turn { calls: usize, topic: Option<bool> },
    /// Another program appends a message, complete or with a call without a result.
    Others { is_whole: bool },
    /// Back by so many events.
    Rewind(u64),
    /// The session is deleted and created again, with turns of so many calls.
    Anew(Vec<usize>),
}

fn next() -> impl Strategy<Value = Next> {
    prop_oneof![
        12 => (0..3_usize, prop::option::weighted(0.2, any::<bool>()))
            .prop_map(|(calls, topic)| Next::Turn { calls, topic }),
        2 => any::<bool>().prop_map(|is_whole| Next::Others { is_whole }),
        1 => (1..8_u64).prop_map(Next::Rewind),
        1 => prop::collection::vec(0..3_usize, 1..4).prop_map(Next::Anew),
    ]
}

/// Makes as many calls in a turn as the user says, always under the same id, and notes what it is shown.
#[derive(Clone, Default)]
struct Noting(Arc<Mutex<Vec<String>>>);

impl ChatModel for Noting {
    fn id(&self) -> &'static str {
        "test/noting"
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        let log = &request.messages;
        log.check().unwrap();
        self.0.lock().unwrap().push(log.to_string());
        let turn = log.iter_from(log.turn_start(log.len()).unwrap());
        let said = turn.clone().next().unwrap().text().into_owned();
        let made = turn.filter(|message| message.role() == Role::Assistant).count();
        let (message, finish) = match said.parse::<usize>().is_ok_and(|calls| made < calls) {
            true => {
                let call = ToolCall::new("c1", "look", json!({}));
                (Message::new(Role::Assistant).with_part(call), FinishReason::ToolCalls)
            }
            false => (Message::assistant("done"), FinishReason::Stop),
        };
        ReplyStream::from_chunks(Chunk::of(&message).into_iter().chain([Chunk::Finished(finish)]))
    }
}

/// Every look at it is another microsecond, so that a session that was created again is known by its time.
#[derive(Clone, Default)]
struct Ticking(Arc<AtomicI64>);

impl WallClock for Ticking {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.fetch_add(1, Ordering::SeqCst))
    }
}

struct Setting<'a> {
    world: &'a World,
    trim: &'a Trim,
    model: Noting,
    clock: Ticking,
}

impl Setting<'_> {
    /// A runner as a process of its own has it.
    fn runner(&self) -> Runner {
        let tool = self.world.tool("look", Effect::Pure).build().unwrap();
        let agent = Agent::builder(self.model.clone())
            .name("clerk")
            .schema(crate::world::schema())
            .instructions("You know about {topic?}.")
            .trim(self.trim.clone())
            .repeat_guard(None)
            .tools([tool])
            .build()
            .unwrap();
        self.world.runner(agent).clock(self.clock.clone()).build()
    }

    async fn open(&self) -> SessionHandle {
        self.runner().session("ada", "s1").await.unwrap()
    }
}

async fn others(session: &SessionHandle, runner: &Runner, is_whole: bool) {
    let version = session.read(EventRange::None).await.unwrap().version;
    let id = EventId::new(format!("other-{version}")).unwrap();
    let invocation = InvocationId::new("other").unwrap();
    let mut event = Event::new(id, invocation, Author::new("other").unwrap(), Still.now());
    let text = match is_whole {
        true => "user:      and this\nassistant: > c7 look()\ntool c7:   1\nassistant: seen\n",
        false => "user:      and this\nassistant: > c8 look()\n",
    };
    for message in &text.parse::<Transcript>().unwrap() {
        event = event.with_message(Arc::clone(message));
    }
    let append = AppendEvent::new(session.key().clone(), version, event, runner.schema());
    runner.store().append(append).await.unwrap();
}

/// Goes through it; gives what the model was shown, and what the session has in the end.
fn gone_through(world: &World, trim: &Trim, all: &[Next], is_kept: bool) -> (Vec<String>, String) {
    let setting = Setting { world, trim, model: Noting::default(), clock: Ticking::default() };
    let shown = process(async {
        let mut session = setting.open().await;
        session.run("0").await.unwrap();
        for next in all {
            if !is_kept {
                session = setting.open().await;
            }
            match next {
                Next::Turn { calls, topic } => {
                    let mut input = Input::from(calls.to_string());
                    if let Some(topic) = topic {
                        input = input.with_values(json!({"topic": if *topic { "stalls" } else { "areas" }}));
                    }
                    session.run(input).await.unwrap();
                }
                Next::Others { is_whole } => others(&session, &setting.runner(), *is_whole).await,
                Next::Rewind(events) => {
                    let version = session.read(EventRange::None).await.unwrap().version;
                    // By another process: the open session must detect it.
                    setting.open().await.rewind(version.saturating_sub(*events)).await.unwrap();
                }
                Next::Anew(turns) => {
                    let other = setting.runner();
                    other.store().delete(DeleteSession::new(session.key().clone())).await.unwrap();
                    let made = other.session("ada", "s1").await.unwrap();
                    for calls in turns {
                        made.run(calls.to_string()).await.unwrap();
                    }
                }
            }
        }
        session.run("1").await.unwrap();
        shown(&session).await
    });
    let seen = setting.model.0.lock().unwrap().clone();
    (seen, shown)
}

/// Goes through it both ways, over each store: it is the same.
fn check(trim: &Trim, all: &[Next]) {
    let gone = Mutex::new(Vec::new());
    for is_kept in [true, false] {
        each_store(|world| gone.lock().unwrap().push(gone_through(world, trim, all, is_kept)));
    }
    let gone = gone.into_inner().unwrap();
    for other in &gone[1..] {
        assert_eq!(&gone[0], other);
    }
}

/// Of as many events and messages as the one before, but with other calls.
#[test]
fn a_session_that_was_made_again_is_another_one() {
    check(&Trim::none(), &[Next::Turn { calls: 1, topic: None }, Next::Anew(vec![0, 0, 0])]);
}

proptest! {
    #![proptest_config(one_of(16))]

    #[test]
    fn a_session_that_is_kept_open_continues_like_one_that_is_opened_again(
        all in prop::collection::vec(next(), 1..8),
        trims in any::<bool>(),
    ) {
        let trim = if trims { Trim::keep_last(4) } else { Trim::none() };
        check(&trim, &all);
    }
}

/// What others have said, or rewound, and retention has pruned since is not there to be read any more.
#[test]
fn a_session_that_was_pruned_past_what_is_known_of_it_is_read_again() {
    each_store(|world| {
        process(async {
            let agent = || Agent::builder(Echo).name("clerk").schema(schema());
            let one = world.session(agent()).await;
            one.run("one").await.unwrap();
            let two = world.session(agent()).await;
            two.rewind(0).await.unwrap();
            two.run("two").await.unwrap();
            let before = two.read(EventRange::None).await.unwrap().version;
            two.run("three").await.unwrap();
            let prune = PruneSession::new(two.key().clone(), PruneBound::Version(before));
            world.store().prune(prune).await.unwrap();
            let kept_open = one.run("four").await.unwrap().transcript().to_string();
            let anew = world.session(agent()).await.last_run().await.unwrap().unwrap();
            assert_eq!(kept_open, anew.transcript().to_string());
            assert!(!kept_open.contains("one"), "{kept_open}");
        });
    });
}
