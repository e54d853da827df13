//! A run under an idempotency key: any worker may repeat it, any number of times. It begins once, continues, or reports the
//! result; after crashes, suspensions, steered turns, rewinds and in forks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use serde_json::json;
use stepfold_runner::agent_loop::{Agent, AgentBuilder, Decision, DecisionError, Decisions, Exit, Input};
use stepfold_runner::session_scopes::{EventRange, SessionError, Timestamp};
use stepfold_runner::{
    REPORT_FORMAT, Remedy, RunReport, RunStatus, Runner, RunnerError, RunnerErrorKind, SessionHandle,
    WallClock, WhenBusy, WhenChanged,
};
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Chunk, FinishReason, Message, ReplyStream, Role, ToolCall,
};
use stepfold_tools::{Approval, Effect, Tool, ToolContext, ToolError};

use crate::world::{Fault, World, each_store, process, threads};

const SCRIPT: &str = "\
assistant: > c1 look()
assistant: > c2 pay(euro=5)
assistant: done
assistant: you are welcome
";

/// An agent that asks before it pays.
fn asking(world: &World) -> AgentBuilder {
    let pay = world.tool("pay", Effect::AtMostOnce).approval(Approval::Always).build().unwrap();
    world.agent(SCRIPT).tools(vec![world.tool("look", Effect::Pure).build().unwrap(), pay])
}

fn runner(world: &World, worker: &str) -> Runner {
    world.runner(asking(world).build().unwrap()).worker(worker).unwrap().build()
}

async fn session(world: &World, worker: &str) -> SessionHandle {
    runner(world, worker).session("ada", "s1").await.unwrap()
}

fn approved(report: &RunReport) -> Decisions {
    let RunStatus::Waiting(requests) = &report.status else { panic!("{report:?}") };
    requests.iter().map(|request| (request.id.clone(), Decision::Approve)).collect()
}

/// What the tools and the model were asked since the last look.
fn asked(world: &World) -> Vec<String> {
    world.trace.take().into_iter().map(|line| line.split([' ', '{']).next().unwrap().to_owned()).collect()
}

#[test]
fn it_begins_continues_and_reports_the_result() {
    each_store(|world| {
        let waiting = process(async {
            let report = session(world, "first").await.run_as("k1", "pay").await.unwrap();
            assert_eq!((report.format, report.idempotency_key.as_str()), (REPORT_FORMAT, "k1"));
            assert_eq!(asked(world), ["the", "look", "the"]);
            report
        });
        let decisions = approved(&waiting);
        let done = process(async {
            let session = session(world, "second").await;
            // It waits as before.
            assert_eq!(session.run_as("k1", "pay").await.unwrap(), waiting);
            assert_eq!(asked(world), [""; 0]);
            session.run_as("k1", "pay").decide_all(decisions.clone()).await.unwrap()
        });
        assert_eq!((&done.status, &*done.text), (&RunStatus::Finished(Exit::Text), "done"));
        assert_eq!(asked(world), ["pay", "the"]);
        process(async {
            let session = session(world, "third").await;
            let again = || session.run_as("k1", "pay");
            assert_eq!(again().await.unwrap(), done);
            assert_eq!(again().decide_all(decisions.clone()).await.unwrap(), done);
            // Who decides does not say the message again; who says another one is refused.
            let of = |input: Input| session.run_as("k1", input).decide_all(decisions.clone());
            assert_eq!(of(Input::new()).await.unwrap(), done);
            for refused in [of(Input::new().say("pay it")).await, session.run_as("k1", Input::new()).await] {
                assert!(
                    refused.unwrap_err().to_string().contains("idempotency key `k1` was used for another")
                );
            }
            session.run("thanks").await.unwrap();
            asked(world);
            // A later run changes nothing.
            assert_eq!(again().await.unwrap(), done);
            assert_eq!(again().decide_all(decisions.clone()).await.unwrap(), done);
            assert_eq!(session.run_as("k1", Input::new()).decide_all(decisions.clone()).await.unwrap(), done);
            let id = &decisions.decisions[0].0;
            let error = again().decide(id, Decision::reject("no")).await.unwrap_err();
            let RunnerError { kind: RunnerErrorKind::Decision { error: refused, .. }, .. } = &error else {
                panic!("{error:?}")
            };
            assert!(matches!(**refused, DecisionError::KeyReused { .. }), "{refused:?}");
            assert_eq!(error.remedy(), Remedy::Never);
            assert!(again().decide("c9#0", Decision::Approve).await.is_err());
            assert_eq!(asked(world), [""; 0]);
        });
    });
}

#[test]
fn many_at_once_are_one_run() {
    each_store(|world| {
        threads(async {
            let sessions = [session(world, "left").await, session(world, "right").await];
            let calls = (0..8).map(|number| {
                let session = sessions[number % 2].clone();
                tokio::spawn(async move { session.run_as("k1", "pay").await })
            });
            let reports: Vec<RunReport> = futures_util::future::join_all(calls)
                .await
                .into_iter()
                .map(|it| it.unwrap().unwrap())
                .collect();
            assert!(reports.iter().all(|report| *report == reports[0]), "{reports:?}");
            assert_eq!(asked(world), ["the", "look", "the"]);
        });
    });
}

#[test]
fn it_is_suspended_between_steps_and_each_call_makes_one() {
    each_store(|world| {
        let mut reports = Vec::new();
        for worker in ["first", "second", "third"] {
            reports.push(process(async {
                let session = session(world, worker).await;
                session.run_as("k1", "pay").stop_after(Duration::ZERO).await.unwrap()
            }));
        }
        let [first, second, third] = &reports[..] else { unreachable!() };
        assert_eq!(first.status, RunStatus::Suspended);
        assert!(matches!(second.status, RunStatus::Waiting(_)), "{second:?}");
        assert_eq!(second, third);
        assert_eq!(asked(world), ["the", "look", "the"]);
    });
}

#[test]
fn an_earlier_run_comes_first() {
    each_store(|world| {
        process(async {
            let session = session(world, "first").await;
            let waiting = session.run_as("k1", "pay").await.unwrap();
            let error = session.run_as("k2", "thanks").await.unwrap_err();
            assert!(
                matches!(error, RunnerError { kind: RunnerErrorKind::Pending { is_accepted: true, .. }, .. }),
                "{error:?}"
            );
            assert_eq!(error.remedy(), Remedy::Wait);
            let done = session.run_as("k1", "pay").decide_all(approved(&waiting)).await.unwrap();
            let thanked = session.run_as("k2", "thanks").await.unwrap();
            assert_eq!((&*done.text, &*thanked.text), ("done", "you are welcome"));
            assert!(thanked.version > done.version);
        });
    });
}

#[test]
fn another_input_under_the_key_is_refused() {
    each_store(|world| {
        process(async {
            let session = session(world, "first").await;
            session.run_as("k1", "pay").stop_after(Duration::ZERO).await.unwrap();
        });
        process(async {
            let session = session(world, "first").await;
            let error = session.send_once("k1", "do not pay").await.unwrap_err();
            let RunnerError { kind: RunnerErrorKind::Store { source, .. }, .. } = &error else {
                panic!("{error:?}")
            };
            assert!(matches!(**source, SessionError::IdempotencyKeyReused { .. }), "{source:?}");
            assert_eq!(error.remedy(), Remedy::Never);
        });
    });
}

/// Messages that join the run of a key are part of it; one that came too late has a run of its own.
#[test]
fn a_steered_turn_is_found_by_its_key() {
    each_store(|world| {
        process(async {
            let runner = world.runner(asking(world).build().unwrap()).when_busy(WhenBusy::Steer).build();
            let session = runner.session("ada", "s1").await.unwrap();
            let run = tokio::spawn({
                let session = session.clone();
                async move { session.run_as("k1", "pay").await }
            });
            while session.running().is_none() {
                tokio::task::yield_now().await;
            }
            session.send("quickly").await.unwrap();
            let waiting = run.await.unwrap().unwrap();
            let done = session.run_as("k1", "pay").decide_all(approved(&waiting)).await.unwrap();
            assert_eq!(done.text, "done");
            let said = session.read(EventRange::All).await.unwrap().transcript().to_string();
            assert!(said.contains("quickly"), "{said}");
            assert_eq!(session.run_as("k1", "pay").await.unwrap(), done);
        });
    });
}

#[test]
fn a_fork_and_a_rewind_keep_what_has_ended() {
    each_store(|world| {
        process(async {
            let session = session(world, "first").await;
            let waiting = session.run_as("k1", "pay").await.unwrap();
            let done = session.run_as("k1", "pay").decide_all(approved(&waiting)).await.unwrap();
            asked(world);
            let fork = session.fork("s2", None).await.unwrap();
            assert_eq!(fork.run_as("k1", "pay").await.unwrap(), done);
            // In the middle of the run: it continues there, and asks again.
            let inside = session.fork("s3", Some(waiting.version)).await.unwrap();
            assert!(matches!(inside.run_as("k1", "pay").await.unwrap().status, RunStatus::Waiting(_)));
            assert_eq!(asked(world), [""; 0]);
            session.rewind(0).await.unwrap();
            assert_eq!(session.run_as("k1", "pay").await.unwrap(), done);
            assert_eq!(asked(world), [""; 0]);
            // It had not ended where it was taken back.
            inside.rewind(0).await.unwrap();
            let error = inside.run_as("k1", "pay").await.unwrap_err();
            assert!(matches!(error.kind, RunnerErrorKind::Withdrawn), "{error:?}");
            assert_eq!(error.remedy(), Remedy::Never);
        });
    });
}

/// In a fork with hidden events the whole record is read as well, later: a run that has begun in between is not hidden.
#[test]
fn a_run_that_begins_between_two_reads_is_not_withdrawn() {
    each_store(|world| {
        process(async {
            let origin = session(world, "first").await;
            origin.run_as("k0", "pay").await.unwrap();
            origin.rewind(0).await.unwrap();
            let fork = origin.fork("s2", None).await.unwrap();
            let other = runner(world, "second").session("ada", "s2").await.unwrap();
            asked(world);
            world.wire.before_read(1, async move {
                other.run_as("k1", "pay").await.unwrap();
            });
            let report = fork.run_as("k1", "pay").await.unwrap();
            assert!(matches!(report.status, RunStatus::Waiting(_)), "{report:?}");
            assert_eq!(asked(world), ["the", "look", "the"]);
        });
    });
}

/// A worker looks at the session, then at the inbox. A run that begins in between continues, and none continues unrecorded.
#[test]
fn a_message_that_is_taken_while_the_inbox_is_read_is_not_run_twice() {
    each_store(|world| {
        process(async {
            let first = session(world, "first").await;
            let second = session(world, "second").await;
            let other = second.clone();
            world.wire.before_inbox(async move {
                let report = other.run_as("k1", "pay").stop_after(Duration::ZERO).await.unwrap();
                assert_eq!(report.status, RunStatus::Suspended);
            });
            let report = first.run_as("k1", "pay").await.unwrap();
            assert!(matches!(report.status, RunStatus::Waiting(_)), "{report:?}");
            assert_eq!(second.run_as("k1", "pay").await.unwrap(), report);
            assert_eq!(asked(world), ["the", "look", "the"]);
        });
    });
}

/// Also while a later run waits: a run that was taken back to its middle does not continue.
#[test]
fn a_run_that_was_taken_back_to_its_middle_is_withdrawn() {
    each_store(|world| {
        process(async {
            let session = session(world, "first").await;
            let waiting = session.run_as("k1", "pay").await.unwrap();
            session.rewind(waiting.version - 1).await.unwrap();
            session.run_as("k2", "pay").await.unwrap();
            let error = session.run_as("k1", "pay").await.unwrap_err();
            assert!(matches!(error.kind, RunnerErrorKind::Withdrawn), "{error:?}");
        });
    });
}

#[test]
fn an_agent_that_changed_waits_and_what_ended_is_reported() {
    each_store(|world| {
        let waiting = process(async { session(world, "first").await.run_as("k1", "pay").await.unwrap() });
        let changed = |world: &World| asking(world).instructions("Be quick.").build().unwrap();
        process(async {
            let runner = world.runner(changed(world)).when_changed(WhenChanged::Refuse).build();
            let session = runner.session("ada", "s1").await.unwrap();
            let error = session.run_as("k1", "pay").await.unwrap_err();
            assert!(matches!(error.kind, RunnerErrorKind::AgentChanged { .. }), "{error:?}");
            assert_eq!(error.remedy(), Remedy::Wait);
        });
        let done = process(async {
            let session = session(world, "first").await;
            session.run_as("k1", "pay").decide_all(approved(&waiting)).await.unwrap()
        });
        process(async {
            let session = world.runner(changed(world)).build().session("ada", "s1").await.unwrap();
            assert_eq!(session.run_as("k1", "pay").await.unwrap(), done);
        });
    });
}

#[test]
fn reports_inputs_and_requests_have_a_format() {
    let world = World::in_memory();
    let report = process(async { session(&world, "first").await.run_as("k1", "pay").await.unwrap() });
    let stored = serde_json::to_value(&report).unwrap();
    assert_eq!(serde_json::from_value::<RunReport>(stored.clone()).unwrap(), report);
    let mut newer = stored;
    newer["format"] = json!(REPORT_FORMAT + 1);
    let error = serde_json::from_value::<RunReport>(newer.clone()).unwrap_err().to_string();
    assert!(error.contains("unsupported format 2 of a report"), "{error}");
    newer["format"] = json!(REPORT_FORMAT);
    newer["status"]["waiting"][0]["format"] = json!(2);
    let error = serde_json::from_value::<RunReport>(newer).unwrap_err().to_string();
    assert!(error.contains("unsupported format 2 of an approval request"), "{error}");
    let error = Input::from_json(json!({"format": 2, "messages": []})).unwrap_err().to_string();
    assert!(error.contains("unsupported format 2 of an input"), "{error}");
    assert!(serde_json::to_string(&Input::new()).is_ok());
}

/// An action with one of two workers.
#[derive(Clone, Debug)]
enum Next {
    /// A call of the function under a key, perhaps with what it waits for decided, perhaps suspended.
    Run {
        at: usize,
        key: usize,
        decides: bool,
        is_slice: bool,
    },
    /// Two at once, by two workers.
    Both {
        at: usize,
        key: usize,
    },
    /// A turn without a key.
    Turn {
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
    /// The processes die, at once or with a fault of the append after so many.
    Crash,
    Fault {
        after: usize,
        fault: Fault,
    },
}

fn next() -> impl Strategy<Value = Next> {
    let fault = prop::sample::select(vec![
        Fault::DiesBefore,
        Fault::DiesAfter,
        Fault::Lost,
        Fault::Busy,
        Fault::Broken,
    ]);
    let (at, key) = (|| 0..3_usize, || 0..3_usize);
    prop_oneof![
        12 => (at(), key(), any::<bool>(), any::<bool>())
            .prop_map(|(at, key, decides, is_slice)| Next::Run { at, key, decides, is_slice }),
        4 => (at(), key()).prop_map(|(at, key)| Next::Both { at, key }),
        2 => at().prop_map(|at| Next::Turn { at }),
        2 => (at(), 1..9_u64).prop_map(|(at, by)| Next::Rewind { at, by }),
        2 => (at(), 0..9_u64).prop_map(|(at, by)| Next::Fork { at, by }),
        2 => Just(Next::Crash),
        3 => (0..7_usize, fault).prop_map(|(after, fault)| Next::Fault { after, fault }),
    ]
}

/// Calls, or ends the turn, as the dice say.
struct Gambler(Arc<Mutex<fastrand::Rng>>);

impl ChatModel for Gambler {
    fn id(&self) -> &'static str {
        "test/gambler"
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        request.messages.check().unwrap();
        let throw = self.0.lock().unwrap().usize(..5);
        let call = |name: &str| Message::new(Role::Assistant).with_part(ToolCall::new("c1", name, json!({})));
        let (message, finish) = match throw {
            0 => (call("pay"), FinishReason::ToolCalls),
            1 => (call("look"), FinishReason::ToolCalls),
            _ => (Message::assistant(format!("done {}", self.0.lock().unwrap().u64(..))), FinishReason::Stop),
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

/// A session's life, how often it was rewound by then, and a key.
type Place = (String, u64, String);

struct Law<'a> {
    world: &'a World,
    dice: Arc<Mutex<fastrand::Rng>>,
    clock: Minutes,
    /// The idempotency keys of the payments that were made.
    paid: Arc<Mutex<Vec<String>>>,
    finished: Mutex<BTreeMap<Place, RunReport>>,
    sessions: Mutex<Vec<String>>,
}

impl Law<'_> {
    fn agent(&self) -> Agent {
        let paid = Arc::clone(&self.paid);
        let pay = move |context: ToolContext| {
            let paid = Arc::clone(&paid);
            async move {
                paid.lock().unwrap().push(context.idempotency_key().to_owned());
                tokio::task::yield_now().await;
                Ok::<_, ToolError>("paid")
            }
        };
        let pay = Tool::new("pay", "Pays.", pay).effect(Effect::AtMostOnce).approval(Approval::Always);
        let look = async || Ok::<_, ToolError>("seen");
        let look = Tool::new("look", "Looks.", look).effect(Effect::Pure);
        Agent::builder(Gambler(Arc::clone(&self.dice)))
            .name("clerk")
            .tools([pay.build().unwrap(), look.build().unwrap()])
            .repeat_guard(None)
            .max_steps(4)
            .build()
            .unwrap()
    }

    fn workers(&self) -> [Runner; 2] {
        ["left", "right"].map(|name| {
            let runner = self.world.runner(self.agent()).worker(name).unwrap();
            runner.clock(self.clock.clone()).build()
        })
    }

    async fn open(&self, workers: &[Runner; 2], at: usize) -> [SessionHandle; 2] {
        let id = {
            let sessions = self.sessions.lock().unwrap();
            sessions[at % sessions.len()].clone()
        };
        let first = self.dice.lock().unwrap().usize(..2);
        let left = workers[first].session("ada", &*id).await.unwrap();
        [left, workers[1 - first].session("ada", &*id).await.unwrap()]
    }

    /// Calls the function, and compares what ended with what was told before.
    async fn call(
        &self,
        session: &SessionHandle,
        key: &str,
        decisions: Decisions,
        is_slice: bool,
    ) -> Result<RunReport, RunnerError> {
        let mut call = session.run_as(key, key).decide_all(decisions);
        if is_slice {
            call = call.stop_after(Duration::ZERO);
        }
        let report = call.await?;
        assert_eq!(report.idempotency_key.as_str(), key);
        if report.status.is_finished() {
            let place = self.place(session, key).await;
            let mut finished = self.finished.lock().unwrap();
            let first = finished.entry(place).or_insert_with(|| report.clone());
            assert_eq!(*first, report, "told otherwise before");
        }
        Ok(report)
    }

    async fn place(&self, session: &SessionHandle, key: &str) -> Place {
        let stored = session.read(EventRange::All).await.unwrap();
        let rewinds = stored.events.iter().filter(|it| it.event.actions.rewound_to().is_some()).count();
        (stored.life.to_string(), rewinds as u64, key.to_owned())
    }

    async fn take(&self, workers: &[Runner; 2], next: &Next) {
        match *next {
            Next::Run { at, key, decides, is_slice } => {
                let [session, other] = self.open(workers, at).await;
                let key = format!("k{key}");
                let report = self.call(&session, &key, Decisions::new(), is_slice).await;
                if let (true, Ok(report @ RunReport { status: RunStatus::Waiting(_), .. })) =
                    (decides, &report)
                {
                    let _ = self.call(&other, &key, approved(report), is_slice).await;
                }
            }
            Next::Both { at, key } => {
                let [left, right] = self.open(workers, at).await;
                let key = format!("k{key}");
                let (_, _) = tokio::join!(
                    self.call(&left, &key, Decisions::new(), false),
                    self.call(&right, &key, Decisions::new(), true),
                );
            }
            Next::Turn { at } => {
                let [session, _] = self.open(workers, at).await;
                let _ = session.run("go on").await;
            }
            Next::Rewind { at, by } => {
                let [session, _] = self.open(workers, at).await;
                let version = session.read(EventRange::None).await.unwrap().version;
                let _ = session.rewind(version.saturating_sub(by)).await;
            }
            Next::Fork { at, by } => {
                let [session, _] = self.open(workers, at).await;
                let id = format!("s{}", self.sessions.lock().unwrap().len() + 1);
                let version = session.read(EventRange::None).await.unwrap().version;
                if session.fork(&*id, Some(version.saturating_sub(by))).await.is_ok() {
                    self.sessions.lock().unwrap().push(id);
                }
            }
            Next::Fault { after, fault } => self.world.wire.faults([(after, fault)]),
            Next::Crash => unreachable!("the process has ended"),
        }
    }

    fn go_through(&self, all: &[Next]) {
        let mut left = all.iter();
        let mut is_done = false;
        while !is_done {
            self.a_minute_goes_by();
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

    fn a_minute_goes_by(&self) {
        self.clock.0.fetch_add(60_000_000, Ordering::SeqCst);
        self.world.wire.faults([]);
    }

    /// Any worker brings each key to its end, and every other one is told the same.
    fn finish(&self) {
        let sessions = self.sessions.lock().unwrap().len();
        for (at, key) in (0..sessions).flat_map(|at| (0..3).map(move |key| (at, format!("k{key}")))) {
            self.a_minute_goes_by();
            process(async {
                let [session, other] = self.open(&self.workers(), at).await;
                let ended = self.brought_to_its_end(&session, &key).await;
                let again = self.call(&other, &key, Decisions::new(), false).await;
                match (ended, again) {
                    (Ok(report), Ok(again)) => assert_eq!(report, again),
                    (
                        Err(RunnerError { kind: RunnerErrorKind::Withdrawn, .. }),
                        Err(RunnerError { kind: RunnerErrorKind::Withdrawn, .. }),
                    ) => {
                        let (_, rewinds, _) = self.place(&session, &key).await;
                        assert!(rewinds > 0, "{key} was withdrawn, and nothing was taken back");
                    }
                    other => panic!("{key}: {other:?}"),
                }
                let stored = session.read(EventRange::All).await.unwrap();
                let said = stored.events.iter().flat_map(|it| &it.event.messages);
                let said = said.filter(|it| it.role() == Role::User && it.text() == *key).count();
                assert!(said <= 1, "{key} began {said} times");
            });
        }
        let paid = self.paid.lock().unwrap();
        assert_eq!(paid.iter().collect::<BTreeSet<_>>().len(), paid.len(), "paid twice: {paid:?}");
    }

    async fn brought_to_its_end(&self, session: &SessionHandle, key: &str) -> Result<RunReport, RunnerError> {
        let mut decisions = Decisions::new();
        for _ in 0..40 {
            match self.call(session, key, std::mem::take(&mut decisions), false).await {
                Ok(report) if report.status.is_finished() => return Ok(report),
                Ok(report @ RunReport { status: RunStatus::Waiting(_), .. }) => decisions = approved(&report),
                Ok(_) => {}
                // An earlier run waits, of another key or none.
                Err(RunnerError { kind: RunnerErrorKind::Pending { pending, .. }, .. }) => {
                    let all = pending.into_iter().map(|id| (id, Decision::Approve));
                    session.resume().decide_all(all.collect::<Decisions>()).await.unwrap();
                }
                Err(error) => return Err(error),
            }
        }
        panic!("{key} does not end")
    }
}

fn cases(cases: u32, world: impl Fn() -> World) {
    let config =
        ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 300, ..Default::default() };
    let all = (any::<u64>(), prop::collection::vec(next(), 1..24));
    let result = proptest::test_runner::TestRunner::new(config).run(&all, |(seed, all)| {
        case(world(), seed, &all);
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

fn case(world: World, seed: u64, all: &[Next]) {
    let law = Law {
        world: &world,
        dice: Arc::new(Mutex::new(fastrand::Rng::with_seed(seed))),
        clock: Minutes::default(),
        paid: Arc::default(),
        finished: Mutex::default(),
        sessions: Mutex::new(vec!["s1".to_owned()]),
    };
    law.go_through(all);
    law.finish();
}

fn case_count() -> u32 {
    match ProptestConfig::default().cases {
        256 => 32,
        asked => asked,
    }
}

/// The law: under a key a run begins once in the life of a session, and all callers are told the same of
/// its end.
#[test]
fn under_a_key_a_run_begins_once_and_all_get_the_same_result() {
    cases(case_count(), World::in_memory);
}

#[test]
fn under_a_key_a_run_begins_once_and_all_get_the_same_result_over_sqlite() {
    cases((case_count() / 8).clamp(1, 400), World::over_sqlite);
}

/// A case of the law: the worker that continues takes the message between two reads of the next caller.
#[test]
fn a_message_that_is_taken_between_two_reads_in_a_fork_is_not_withdrawn() {
    let all = [
        Next::Run { at: 0, key: 0, decides: false, is_slice: false },
        Next::Rewind { at: 0, by: 1 },
        Next::Both { at: 0, key: 2 },
        Next::Fork { at: 0, by: 0 },
        Next::Run { at: 0, key: 0, decides: false, is_slice: false },
    ];
    case(World::in_memory(), 3_005_527_441_889_565_916, &all);
}
