//! The law of approvals: each approval runs exactly what its request showed, at most once. Whatever comes between:
//! second decisions, old ids, rewinds, forks, sessions made again, and processes that die.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use serde_json::json;
use stepfold_graph::{END, Graph, NodeContext, NodeError, START, Update};
use stepfold_runner::agent_loop::{Agent, Decision};
use stepfold_runner::session_scopes::{DeleteSession, EventRange, SessionStore, Timestamp};
use stepfold_runner::{DecisionReceipt, Runner, RunnerError, RunnerErrorKind, SessionHandle, WallClock};
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Chunk, FinishReason, Message, ReplyStream, Role, ToolCall,
};
use stepfold_tools::{Approval, Effect, RawArgs, Tool, ToolContext, ToolError};

use crate::world::{Fault, World, path_of};

/// An action in one of two workers over one store. Indices wrap around.
#[derive(Clone, Debug)]
enum Next {
    Turn {
        at: usize,
    },
    /// A decision about a request that waits, and whether it has an idempotency key.
    Decide {
        at: usize,
        which: usize,
        how: How,
        has_key: bool,
    },
    /// Two decisions about one request, at the same time, from two workers or one.
    Both {
        at: usize,
        which: usize,
        how: [How; 2],
        is_one_worker: bool,
    },
    /// A decision that was made before, sent again: the same content and key, to its own session or another one.
    Again {
        nth: usize,
        at: Option<usize>,
    },
    /// A decision about any request that anybody was ever shown, in any session.
    Old {
        nth: usize,
        at: usize,
        how: How,
    },
    Resume {
        at: usize,
    },
    Rewind {
        at: usize,
        by: u64,
    },
    Fork {
        at: usize,
        by: u64,
    },
    /// A fork is deleted, and made again under its id.
    ForkAgain {
        at: usize,
        by: u64,
    },
    /// The session is deleted and made again.
    Anew {
        at: usize,
    },
    /// The processes die, at once or with a fault of the append after so many.
    Crash,
    Fault {
        after: usize,
        fault: Fault,
    },
}

#[derive(Clone, Copy, Debug)]
enum How {
    Approve,
    Reject,
    Modify,
}

fn how() -> impl Strategy<Value = How> {
    prop_oneof![6 => Just(How::Approve), 1 => Just(How::Reject), 1 => Just(How::Modify)]
}

fn next() -> impl Strategy<Value = Next> {
    let fault = prop::sample::select(vec![
        Fault::DiesBefore,
        Fault::DiesAfter,
        Fault::Lost,
        Fault::Busy,
        Fault::Broken,
    ]);
    let at = || 0..4_usize;
    prop_oneof![
        8 => at().prop_map(|at| Next::Turn { at }),
        12 => (at(), 0..2_usize, how(), any::<bool>())
            .prop_map(|(at, which, how, has_key)| Next::Decide { at, which, how, has_key }),
        4 => (at(), 0..2_usize, [how(), how()], any::<bool>())
            .prop_map(|(at, which, how, is_one_worker)| Next::Both { at, which, how, is_one_worker }),
        4 => (0..40_usize, prop::option::weighted(0.5, at())).prop_map(|(nth, at)| Next::Again { nth, at }),
        4 => (0..40_usize, at(), how()).prop_map(|(nth, at, how)| Next::Old { nth, at, how }),
        2 => at().prop_map(|at| Next::Resume { at }),
        3 => (at(), 1..8_u64).prop_map(|(at, by)| Next::Rewind { at, by }),
        3 => (at(), 0..8_u64).prop_map(|(at, by)| Next::Fork { at, by }),
        1 => (at(), 0..8_u64).prop_map(|(at, by)| Next::ForkAgain { at, by }),
        1 => at().prop_map(|at| Next::Anew { at }),
        2 => Just(Next::Crash),
        3 => (0..6_usize, fault).prop_map(|(after, fault)| Next::Fault { after, fault }),
    ]
}

/// What a request shows, or what ran: the tool or node, the id of the call, the arguments.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct What {
    name: String,
    call: String,
    arguments: String,
}

/// Where something is asked or runs: the life of a session, and the invocation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    life: String,
    invocation: String,
}

#[derive(Clone, Debug)]
struct Made {
    session: String,
    place: Place,
    id: String,
    decision: Decision,
    key: Option<String>,
    /// What may run for it, and how often.
    runs: Option<What>,
    times: usize,
    receipt: Option<DecisionReceipt>,
    was_refused: bool,
}

/// What people saw and did, and what ran.
#[derive(Default)]
struct Book {
    /// What each request shows, for how many calls, and in which life.
    shown: BTreeMap<String, (What, usize, String)>,
    /// The invocations that a rewind has ended, and how much had run by then.
    ended: BTreeMap<Place, usize>,
    made: Vec<Made>,
    ran: Vec<(String, What)>,
    forks: Vec<Forked>,
}

/// A session that was forked, or perhaps: the process may have died before anybody heard of it.
struct Forked {
    session: String,
    /// Its life, if it was heard of.
    life: Option<String>,
    /// The session and the life that it was forked from.
    original: (String, String),
    version: u64,
}

impl Book {
    /// Whether a decision is in the record of this life up to a version: it was made there, or in the original before the
    /// fork.
    fn has(&self, (session, life): (&str, &str), up_to: u64, made: &Made) -> bool {
        if made.place.life == life {
            return made.receipt.as_ref().is_none_or(|receipt| receipt.version <= up_to);
        }
        let is_it =
            |fork: &&Forked| fork.session == session && fork.life.as_ref().is_none_or(|known| known == life);
        self.forks.iter().filter(is_it).any(|fork| {
            let (session, life) = &fork.original;
            self.has((session, life), up_to.min(fork.version), made)
        })
    }
}

type Shared = Arc<Mutex<Book>>;

/// Chooses replies, drafts: never the same because the conversation is the same.
#[derive(Clone)]
struct Dice(Arc<Mutex<fastrand::Rng>>);

impl Dice {
    fn throw(&self, sides: usize) -> usize {
        self.0.lock().unwrap().usize(..sides)
    }
}

/// Makes calls under the same ids again and again, with other arguments.
struct Gambler(Dice);

impl ChatModel for Gambler {
    fn id(&self) -> &'static str {
        "test/gambler"
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        request.messages.check().unwrap();
        let calls = self.0.throw(5);
        let mut message = Message::new(Role::Assistant);
        for number in 1..=calls.min(3) {
            let (name, euro) = (["pay", "send", "post", "post"][self.0.throw(4)], [5, 5000][self.0.throw(2)]);
            message = message.with_part(ToolCall::new(format!("c{number}"), name, json!({"euro": euro})));
        }
        let finish = match calls {
            0 => {
                message = Message::assistant("done");
                FinishReason::Stop
            }
            _ => FinishReason::ToolCalls,
        };
        ReplyStream::from_chunks(Chunk::of(&message).into_iter().chain([Chunk::Finished(finish)]))
    }
}

/// A minute goes by between two processes, so that the claims of the first have expired.
#[derive(Clone, Default)]
struct Minutes(Arc<AtomicI64>);

impl WallClock for Minutes {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.fetch_add(1, Ordering::SeqCst))
    }
}

struct Law<'a> {
    world: &'a World,
    is_graph: bool,
    dice: Dice,
    clock: Minutes,
    book: Shared,
    sessions: Mutex<Vec<String>>,
}

/// Two workers that live at the same time.
struct Workers([Runner; 2]);

impl Law<'_> {
    fn tool(&self, name: &str, effect: Effect, approval: Approval) -> Tool {
        let book = Arc::clone(&self.book);
        let run = move |RawArgs(arguments): RawArgs, context: ToolContext| {
            let book = Arc::clone(&book);
            async move {
                let call = context.call_id().to_owned();
                let what =
                    What { name: context.tool_name().to_owned(), call, arguments: arguments.to_string() };
                book.lock().unwrap().ran.push((context.idempotency_key().to_owned(), what));
                tokio::task::yield_now().await;
                Ok::<_, ToolError>("done")
            }
        };
        let schema = json!({"additionalProperties": true, "type": "object"});
        let tool = Tool::new(name, "Moves money.", run).parameters(schema).effect(effect);
        tool.approval(approval).build().unwrap()
    }

    fn agent(&self) -> Agent {
        if self.is_graph {
            return self.graph();
        }
        Agent::builder(Gambler(self.dice.clone()))
            .name("clerk")
            .tools([
                self.tool("pay", Effect::AtMostOnce, Approval::Always),
                self.tool("send", Effect::Idempotent, Approval::Always),
                self.tool("post", Effect::AtMostOnce, Approval::Once),
            ])
            .repeat_guard(None)
            .max_steps(4)
            .build()
            .unwrap()
    }

    /// Nodes that ask about another draft each time they run.
    fn graph(&self) -> Agent {
        let node = || {
            let (book, dice) = (Arc::clone(&self.book), self.dice.clone());
            move |node: NodeContext| {
                let (book, dice) = (Arc::clone(&book), dice.clone());
                async move {
                    let draft = json!({"draft": dice.throw(2)});
                    let arguments = match node.ask("publish", &draft)? {
                        Decision::Approve => draft,
                        Decision::Modify { arguments } => arguments,
                        _ => return Ok(Update::new()),
                    };
                    let (name, call) = (node.node().to_owned(), String::new());
                    let what = What { name, call, arguments: arguments.to_string() };
                    book.lock().unwrap().ran.push((node.idempotency_key().to_owned(), what));
                    tokio::task::yield_now().await;
                    Ok::<_, NodeError>(Update::new())
                }
            }
        };
        let graph = Graph::builder("press").node("first", node()).node("second", node());
        graph.chain([START, "first", "second", END]).build().unwrap().agent().clone()
    }

    fn workers(&self) -> Workers {
        Workers(["left", "right"].map(|name| {
            let runner = self.world.runner(self.agent()).worker(name).unwrap();
            runner.clock(self.clock.clone()).build()
        }))
    }

    fn id_of(&self, at: usize) -> String {
        let sessions = self.sessions.lock().unwrap();
        sessions[at % sessions.len()].clone()
    }

    async fn open(&self, workers: &Workers, at: usize) -> [SessionHandle; 2] {
        let id = self.id_of(at);
        let first = self.dice.throw(2);
        let left = workers.0[first].session("ada", &*id).await.unwrap();
        let right = workers.0[1 - first].session("ada", &*id).await.unwrap();
        [left, right]
    }

    /// Shows what waits, and notes it: no id ever shows two things.
    async fn look(&self, session: &SessionHandle) -> Vec<(String, Place)> {
        let Ok(pending) = session.pending().await else { return Vec::new() };
        let stored = session.read(EventRange::Last(1)).await.unwrap();
        let Some(last) = stored.events.last() else { return Vec::new() };
        let place =
            Place { life: stored.life.to_string(), invocation: last.event.invocation.as_str().to_owned() };
        let mut seen = Vec::new();
        for request in pending {
            let call = if self.is_graph { String::new() } else { path_of(&request.id).to_owned() };
            let what = What {
                name: request.call.name.clone(),
                call,
                arguments: request.call.arguments.to_text().into_owned(),
            };
            let mut book = self.book.lock().unwrap();
            let shown = (what, request.times, place.life.clone());
            let before = book.shown.entry(request.id.clone()).or_insert_with(|| shown.clone());
            assert_eq!(*before, shown, "{} shows two things", request.id);
            seen.push((request.id, place.clone()));
        }
        seen
    }

    /// Decides, and notes it before: the process may die meanwhile.
    async fn decide(&self, session: &SessionHandle, id: &str, place: Place, how: How, key: Option<String>) {
        let decision = match how {
            How::Approve => Decision::Approve,
            How::Reject => Decision::reject("no"),
            How::Modify => Decision::modify(json!({"euro": 1})),
        };
        let (shown, times, life) = self.book.lock().unwrap().shown[id].clone();
        let runs = match &decision {
            Decision::Approve => Some(shown),
            Decision::Modify { arguments } => Some(What { arguments: arguments.to_string(), ..shown }),
            _ => None,
        };
        let number = {
            let made = &mut self.book.lock().unwrap().made;
            let (session, id) = (session.key().id.as_str().to_owned(), id.to_owned());
            let (receipt, was_refused) = (None, false);
            made.push(Made { session, place, id, decision, key, runs, times, receipt, was_refused });
            made.len() - 1
        };
        let sent = self.send(session, number).await;
        let made = &mut self.book.lock().unwrap().made[number];
        made.was_refused = is_refusal(&sent);
        made.receipt = sent.ok();
        assert!(made.receipt.is_none() || made.place.life == life, "{made:?} was shown in life {life}");
    }

    async fn send(&self, session: &SessionHandle, number: usize) -> Result<DecisionReceipt, RunnerError> {
        let made = self.book.lock().unwrap().made[number].clone();
        let mut resume = session.resume().decide(made.id, made.decision).by(number.to_string());
        if let Some(key) = made.key {
            resume = resume.idempotency_key(key);
        }
        let (receipt, invocation) = resume.submit().await?;
        // It may fail by a fault after that.
        let _ = invocation.await;
        Ok(receipt)
    }

    async fn take(&self, workers: &Workers, next: &Next) {
        match *next {
            Next::Turn { at } => {
                let [session, _] = self.open(workers, at).await;
                let _ = session.run("go on").await;
            }
            Next::Resume { at } => {
                let [session, _] = self.open(workers, at).await;
                let _ = session.resume().await;
            }
            Next::Decide { at, which, how, has_key } => {
                let [session, other] = self.open(workers, at).await;
                let seen = self.look(&other).await;
                let Some((id, place)) = seen.get(which % seen.len().max(1)).cloned() else { return };
                let key = has_key.then(|| format!("click-{}", self.book.lock().unwrap().made.len()));
                self.decide(&session, &id, place, how, key).await;
            }
            Next::Both { at, which, how, is_one_worker } => {
                let [left, right] = self.open(workers, at).await;
                let right = if is_one_worker { left.clone() } else { right };
                let seen = self.look(&left).await;
                let Some((id, place)) = seen.get(which % seen.len().max(1)).cloned() else { return };
                tokio::join!(
                    self.decide(&left, &id, place.clone(), how[0], None),
                    self.decide(&right, &id, place.clone(), how[1], None),
                );
            }
            Next::Again { nth, at } => self.again(workers, nth, at).await,
            Next::Old { nth, at, how } => {
                let [session, other] = self.open(workers, at).await;
                // What waits there may be the old one, in a fork.
                let seen = self.look(&other).await;
                let stored = session.read(EventRange::None).await.unwrap();
                let id = self.book.lock().unwrap().shown.keys().cycle().nth(nth).cloned();
                let Some(id) = id else { return };
                let nowhere = Place { life: stored.life.to_string(), invocation: String::new() };
                let place =
                    seen.into_iter().find(|(seen, _)| *seen == id).map_or(nowhere, |(_, place)| place);
                self.decide(&session, &id, place, how, None).await;
            }
            Next::Rewind { at, by } => {
                let [session, _] = self.open(workers, at).await;
                let before = session.read(EventRange::All).await.unwrap();
                if session.rewind(before.version.saturating_sub(by)).await.is_ok() {
                    let mut book = self.book.lock().unwrap();
                    let ran = book.ran.len();
                    for committed in before.events {
                        let invocation = committed.event.invocation.as_str().to_owned();
                        let place = Place { life: before.life.to_string(), invocation };
                        book.ended.entry(place).or_insert(ran);
                    }
                }
            }
            Next::Fork { at, by } => {
                let [session, _] = self.open(workers, at).await;
                let id = format!("s{}", self.sessions.lock().unwrap().len() + 1);
                if self.fork(&session, &id, by).await {
                    self.sessions.lock().unwrap().push(id);
                }
            }
            Next::ForkAgain { at, by } => {
                let (id, first) = (self.id_of(at), self.id_of(0));
                let [session, _] = self.open(workers, 0).await;
                if id != first {
                    let key = workers.0[0].session("ada", &*id).await.unwrap().key().clone();
                    let _ = workers.0[0].store().delete(DeleteSession::new(key)).await;
                    if !self.fork(&session, &id, by).await {
                        workers.0[1].session("ada", &*id).await.unwrap();
                    }
                }
            }
            Next::Anew { at } => {
                let [session, _] = self.open(workers, at).await;
                let _ =
                    workers.0[0].store().delete(DeleteSession::new(session.key().clone()).take_over()).await;
                workers.0[1].session("ada", session.key().id.as_str()).await.unwrap();
            }
            Next::Fault { after, fault } => self.world.wire.faults([(after, fault)]),
            Next::Crash => unreachable!("the process has ended"),
        }
    }

    /// Forks the session at an earlier version. Whether it was heard of.
    async fn fork(&self, session: &SessionHandle, id: &str, by: u64) -> bool {
        let original = session.read(EventRange::None).await.unwrap();
        let version = original.version.saturating_sub(by);
        let number = {
            let forks = &mut self.book.lock().unwrap().forks;
            let original = (session.key().id.as_str().to_owned(), original.life.to_string());
            forks.push(Forked { session: id.to_owned(), life: None, original, version });
            forks.len() - 1
        };
        let Ok(fork) = session.fork(id, Some(version)).await else { return false };
        let life = fork.read(EventRange::None).await.unwrap().life.to_string();
        self.book.lock().unwrap().forks[number].life = Some(life);
        true
    }

    /// The same in its own session gets the first receipt or an error, and elsewhere what it would get there.
    async fn again(&self, workers: &Workers, nth: usize, at: Option<usize>) {
        let Some((number, made)) = ({
            let book = self.book.lock().unwrap();
            let number = nth % book.made.len().max(1);
            book.made.get(number).map(|made| (number, made.clone()))
        }) else {
            return;
        };
        let id = at.map_or(made.session, |at| self.id_of(at));
        let session = workers.0[self.dice.throw(2)].session("ada", &*id).await.unwrap();
        let seen = self.look(&session).await;
        if let Some((_, place)) = seen.into_iter().find(|(id, _)| *id == made.id) {
            // It waits there: in a fork, or since the acknowledgement of the first was lost.
            let copy = Made { session: id, place, receipt: None, was_refused: false, ..made };
            self.book.lock().unwrap().made.push(copy);
            let last = self.book.lock().unwrap().made.len() - 1;
            let sent = self.send(&session, last).await;
            let copy = &mut self.book.lock().unwrap().made[last];
            copy.was_refused = is_refusal(&sent);
            copy.receipt = sent.ok();
            return;
        }
        let life = session.read(EventRange::None).await.unwrap().life.to_string();
        if let (Ok(again), Some(first), true) =
            (self.send(&session, number).await, made.receipt, life == made.place.life)
        {
            assert_eq!(again, first, "another receipt");
            assert!(made.key.is_some(), "taken twice without a key");
            // A run that was interrupted after the first may continue now: calls are counted at the end.
        }
    }

    /// Goes through it in as many processes as it takes.
    fn go_through(&self, all: &[Next]) {
        let mut left = all.iter();
        let mut is_done = false;
        while !is_done {
            self.clock.0.fetch_add(60_000_000, Ordering::SeqCst);
            self.world.wire.faults([]);
            let ended = self.world.wire.process(async {
                let workers = self.workers();
                for next in left.by_ref() {
                    if matches!(next, Next::Crash) {
                        return false;
                    }
                    self.take(&workers, next).await;
                }
                true
            });
            is_done = ended.unwrap_or(false);
        }
    }

    fn check(&self) {
        let book = self.book.lock().unwrap();
        let mut ran: BTreeMap<(String, Place, What), BTreeSet<&str>> = BTreeMap::new();
        let mut times: BTreeMap<(&str, &What), usize> = BTreeMap::new();
        for (number, (key, what)) in book.ran.iter().enumerate() {
            let (session, place) = place_of(key);
            let is_over = book.ended.get(&place).is_some_and(|ran| *ran <= number);
            assert!(!is_over, "{what:?} ran in {place:?}, which a rewind had ended");
            ran.entry((session, place, what.clone())).or_default().insert(key);
            *times.entry((key, what)).or_default() += 1;
        }
        for ((session, place, what), keys) in ran {
            // Asked about once, it stands for equal calls of the run under other ids.
            let is_once = what.name == "post";
            let is_same = |runs: &What| match is_once {
                true => runs.name == what.name && runs.arguments == what.arguments,
                false => *runs == what,
            };
            let approved: BTreeMap<_, _> = book
                .made
                .iter()
                .filter(|made| !made.was_refused && made.runs.as_ref().is_some_and(is_same))
                .filter(|made| {
                    made.place.invocation == place.invocation
                        && book.has((&session, &place.life), u64::MAX, made)
                })
                .map(|made| (&made.id, made.times))
                .collect();
            let may_run = approved.values().sum::<usize>();
            assert!(
                keys.len() <= may_run || (is_once && may_run > 0),
                "{what:?} ran as {keys:?} in {place:?}, approved: {approved:?} of {:#?}",
                book.made
            );
        }
        for ((key, what), times) in times {
            assert!(
                what.name == "send" || times == 1 || self.is_graph,
                "{what:?} ran {times} times as {key}"
            );
        }
        let mut taken: BTreeMap<(&Place, &str), Vec<&Made>> = BTreeMap::new();
        for made in book.made.iter().filter(|made| made.receipt.is_some()) {
            taken.entry((&made.place, &made.id)).or_default().push(made);
        }
        for ((_, id), taken) in taken {
            let first = taken[0];
            let is_repeat =
                |made: &&Made| made.key.is_some() && made.key == first.key && made.decision == first.decision;
            assert!(taken[1..].iter().all(is_repeat), "{id} was decided twice: {taken:#?}");
        }
    }
}

/// Refused for sure: nothing of it is stored.
fn is_refusal(sent: &Result<DecisionReceipt, RunnerError>) -> bool {
    matches!(
        sent,
        Err(RunnerError { kind: RunnerErrorKind::Decision { .. } | RunnerErrorKind::NothingToResume, .. })
    )
}

/// The session, its life and the invocation of `stalls/ada/s1@life/i1/1/c1`.
fn place_of(key: &str) -> (String, Place) {
    let (session, inside) = key.split_once('@').unwrap();
    let mut parts = inside.split('/');
    let mut part = || parts.next().unwrap().to_owned();
    (session.rsplit('/').next().unwrap().to_owned(), Place { life: part(), invocation: part() })
}

fn check(world: &World, is_graph: bool, seed: u64, all: &[Next]) -> (usize, usize) {
    let law = Law {
        world,
        is_graph,
        dice: Dice(Arc::new(Mutex::new(fastrand::Rng::with_seed(seed)))),
        clock: Minutes::default(),
        book: Shared::default(),
        sessions: Mutex::new(vec!["s1".to_owned()]),
    };
    law.go_through(all);
    law.check();
    let book = law.book.lock().unwrap();
    (book.made.iter().filter(|made| made.receipt.is_some()).count(), book.ran.len())
}

/// Goes through generated cases; the law says something only if much is approved and runs.
fn cases(cases: u32, world: impl Fn() -> World) {
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases,
        failure_persistence: None,
        max_shrink_iters: 500,
        ..ProptestConfig::default()
    });
    let seen = std::cell::Cell::new((0, 0));
    let all = prop::collection::vec(next(), 1..40);
    let result = runner.run(&(any::<bool>(), any::<u64>(), all), |(is_graph, seed, all)| {
        let (decided, ran) = check(&world(), is_graph, seed, &all);
        seen.set((seen.get().0 + decided, seen.get().1 + ran));
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let (decided, ran) = seen.get();
    println!("{cases} interleavings: {decided} decisions taken, {ran} runs");
    assert!(cases < 32 || (ran > 0 && decided > 0), "nothing was approved");
}

/// A few unless `PROPTEST_CASES` says how many: each case is a dozen processes.
fn case_count() -> u32 {
    match ProptestConfig::default().cases {
        256 => 32,
        asked => asked,
    }
}

#[test]
fn each_approval_runs_exactly_what_its_request_showed_at_most_once() {
    cases(case_count(), World::in_memory);
}

#[test]
fn each_approval_runs_exactly_what_its_request_showed_at_most_once_over_sqlite() {
    cases((case_count() / 8).clamp(1, 400), World::over_sqlite);
}
