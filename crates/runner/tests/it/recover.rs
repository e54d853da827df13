//! Recovery: runs that no worker has are completed by another worker.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};
use stepfold_runner::agent_loop::{Agent, AgentBuilder, Decision, Exit};
use stepfold_runner::session_scopes::{
    EventRange, ListUnattended, ReadInbox, SessionKey, SessionStore, Timestamp, Unattended,
};
use stepfold_runner::{
    RecoverOptions, Runner, RunnerError, RunnerErrorKind, SessionChange, WatchScope, WhenChanged,
    is_left_to_person,
};
use stepfold_state_core::chat::{ChatModel, ChatRequest, ModelError, ModelErrorKind, ReplyStream};
use stepfold_tools::{Approval, Effect};
use tokio::time::Instant;

use crate::world::{Echo, Fault, ManualClock, World, each_store, exit_of_last_run, id_at, process, schema};

const SCRIPT: &str = "\
assistant: > c1 look()
assistant: > c2 pay()
assistant: done
";

const CLAIM: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(100);

fn runner(world: &World, worker: &str, agent: AgentBuilder, clock: &ManualClock) -> Runner {
    let runner = world.runner(agent.build().unwrap()).worker(worker).unwrap();
    runner.when_changed(WhenChanged::Refuse).clock(clock.clone()).claim_for(CLAIM).build()
}

async fn unattended(runner: &Runner) -> Vec<Unattended> {
    let app = runner.key("ada", "s1").unwrap().app;
    let far = Timestamp::from_micros(i64::MAX);
    runner.store().unattended(ListUnattended::new(app, far)).await.unwrap()
}

/// Processes that die at each append; another one finds what they left, when the claim has expired and not before.
#[test]
fn what_a_dead_worker_left_is_brought_to_its_end() {
    each_store(|world| {
        for append in 0..6 {
            for fault in [Fault::DiesBefore, Fault::DiesAfter] {
                let (clock, id) = (ManualClock::new(), format!("s-{append}-{fault:?}"));
                world.wire.faults([(append, fault)]);
                let has_died = world
                    .wire
                    .process(async {
                        let runner = runner(world, "first", world.agent(SCRIPT), &clock);
                        let session = runner.session("ada", &*id).await.unwrap();
                        session.send_once("m1", "go on").await.unwrap().await.unwrap();
                    })
                    .is_none();
                assert!(has_died, "there are at least {append} appends");
                world.wire.faults([]);
                world.trace.take();
                process(async {
                    let runner = runner(world, "second", world.agent(SCRIPT), &clock);
                    let session = runner.session("ada", &*id).await.unwrap();
                    let is_claimed = session.read(EventRange::None).await.unwrap().claim.is_some();
                    runner.recover(RecoverOptions::new().once()).await.unwrap();
                    assert_eq!(is_claimed, exit_of_last_run(&session).await.is_none(), "{append} {fault:?}");
                    clock.advance(CLAIM);
                    runner.recover(RecoverOptions::new().once()).await.unwrap();
                    assert_eq!(exit_of_last_run(&session).await, Some(Exit::Text));
                    assert_eq!(session.state().await.unwrap().messages().len(), 6);
                    assert!(unattended(&runner).await.is_empty());
                });
                world.trace.take();
            }
        }
    });
}

/// Sessions of many users, in the order in which they were left, so many at once.
#[test]
fn the_longest_waiting_session_comes_first() {
    each_store(|world| {
        process(async {
            let clock = ManualClock::new();
            let first = runner(world, "first", world.overloaded(), &clock);
            for user in ["eve", "ada", "bob"] {
                let session = first.session(user, "s1").await.unwrap();
                session.run("hello").await.unwrap_err();
                clock.advance(Duration::from_secs(1));
            }
            let agent = stepfold_runner::agent_loop::Agent::builder(Echo).name("clerk").schema(schema());
            let second = runner(world, "second", agent, &clock);
            // Another agent: nothing is touched.
            second.recover(RecoverOptions::new().once()).await.unwrap();
            assert_eq!(unattended(&second).await.len(), 3);
            let third =
                runner(world, "third", world.agent("assistant: hi\nassistant: hi\nassistant: hi"), &clock);
            let mut changes = third.watch(WatchScope::All).await;
            third.recover(RecoverOptions::new().parallel(1).once()).await.unwrap();
            let mut users = Vec::new();
            while let Some(Some(SessionChange::Changed { key, is_running: false, .. })) =
                futures_util::FutureExt::now_or_never(async {
                    loop {
                        match changes.next().await {
                            Some(SessionChange::Changed { is_running: true, .. }) => {}
                            other => return other,
                        }
                    }
                })
            {
                users.push(key.user.to_string());
            }
            assert_eq!(users, ["eve", "ada", "bob"]);
            let listed = third.users(None, 10).await.unwrap();
            assert_eq!(listed.iter().map(ToString::to_string).collect::<Vec<_>>(), ["ada", "bob", "eve"]);
        });
    });
}

/// A model that never answers.
struct Hanging;

impl ChatModel for Hanging {
    fn id(&self) -> &'static str {
        // That of the script whose runs it continues with.
        "test-kit/script"
    }

    fn respond(&self, _: ChatRequest) -> ReplyStream {
        ReplyStream::new(futures_util::stream::pending())
    }
}

/// A user with many runs that take long leaves places for others; and one with many that are short has no more turns.
#[test]
fn no_user_takes_all_places() {
    process(async {
        let (world, clock) = (World::in_memory(), ManualClock::new());
        let first = runner(&world, "first", world.overloaded(), &clock);
        let leave = async |user: &str, id: &str| {
            first.session(user, id).await.unwrap().run("hello").await.unwrap_err();
            clock.advance(Duration::from_secs(1));
        };
        for id in ["s1", "s2", "s3", "s4", "s5"] {
            leave("ada", id).await;
        }
        let second = runner(&world, "second", world.agent("").model(Hanging), &clock);
        let mut changes = second.watch(WatchScope::All).await;
        let recovery = tokio::spawn(second.recover(RecoverOptions::new().parallel(4)));
        let mut started = HashSet::new();
        let mut until_idle = async || {
            let pause = Duration::from_secs(60);
            while let Ok(Some(change)) = tokio::time::timeout(pause, changes.next()).await {
                if let SessionChange::Changed { key, is_running: true, .. } = change {
                    started.insert(key);
                }
            }
            let of =
                |user: &str| started.iter().filter(|key: &&SessionKey| key.user.as_str() == user).count();
            (of("ada"), of("bob"))
        };
        assert_eq!(until_idle().await, (3, 0), "one place is for others");
        leave("bob", "s1").await;
        assert_eq!(until_idle().await, (3, 1), "and bob has it");
        second.shutdown(Duration::ZERO).await;
        recovery.await.unwrap().unwrap();

        // One at a time: users take turns.
        clock.advance(CLAIM);
        let third = runner(&world, "third", world.agent(&"assistant: hi\n".repeat(6)), &clock);
        let mut changes = third.watch(WatchScope::All).await;
        third.recover(RecoverOptions::new().parallel(1).once()).await.unwrap();
        let mut ended = Vec::new();
        while let Some(Some(change)) = futures_util::FutureExt::now_or_never(changes.next()) {
            if let SessionChange::Changed { key, is_running: false, .. } = change {
                ended.push(key.user.to_string());
            }
        }
        assert!(ended.iter().position(|user| user == "bob").is_some_and(|place| place < 2), "{ended:?}");
        assert_eq!(ended.len(), 6);
    });
}

/// Users with more due sessions than a page has do not hide those that came later.
#[test]
fn many_sessions_of_two_users_hide_no_other_one() {
    process(async {
        let (world, clock) = (World::in_memory(), ManualClock::new());
        let first = runner(&world, "first", world.overloaded(), &clock);
        let leave = async |user: &str, number: usize| {
            let session = first.session(user, format!("s{number}")).await.unwrap();
            session.run("hello").await.unwrap_err();
            clock.advance(Duration::from_secs(1));
        };
        for number in 0..60 {
            leave("ada", number).await;
            leave("bob", number).await;
        }
        leave("cyd", 0).await;
        clock.advance(CLAIM);
        let second = runner(&world, "second", world.agent(&"assistant: hi\n".repeat(121)), &clock);
        let mut changes = second.watch(WatchScope::All).await;
        let recovery = tokio::spawn(second.recover(RecoverOptions::new().parallel(2)));
        let mut ended: Vec<SessionKey> = Vec::new();
        while ended.len() < 121 {
            match changes.next().await.unwrap() {
                SessionChange::Changed { key, is_running: false, .. } if !ended.contains(&key) => {
                    ended.push(key);
                }
                _ => {}
            }
        }
        let place = ended.iter().position(|key| key.user.as_str() == "cyd").unwrap();
        assert!(place < 30, "{place} of 121");
        second.shutdown(Duration::ZERO).await;
        recovery.await.unwrap().unwrap();
    });
}

type Asked = Arc<Mutex<Vec<Instant>>>;

/// A model that fails, and notes when it was asked.
struct Failing(Asked, ModelErrorKind);

impl ChatModel for Failing {
    fn id(&self) -> &'static str {
        "test/failing"
    }

    fn respond(&self, _: ChatRequest) -> ReplyStream {
        self.0.lock().unwrap().push(Instant::now());
        ReplyStream::failed(ModelError::new(self.1.clone(), "it fails"))
    }
}

/// The pauses between the attempts of a run whose model fails in this way, in milliseconds, within this time.
fn pauses_of(kind: ModelErrorKind, within: Duration) -> Vec<u128> {
    process(async {
        let (world, clock, asked) = (World::in_memory(), ManualClock::new(), Asked::default());
        let agent = stepfold_runner::agent_loop::Agent::builder(Failing(Arc::clone(&asked), kind));
        let runner = runner(&world, "first", agent.name("clerk"), &clock);
        let session = runner.session("ada", "s1").await.unwrap();
        session.run("hello").await.unwrap_err();
        let options = RecoverOptions::new().pauses(Duration::from_secs(1), Duration::from_secs(4));
        let recovery = tokio::spawn(runner.recover(options.poll(LOOK)));
        // tidy: allow sleep, because the clock is paused, and this is how its time continues.
        tokio::time::sleep(within).await;
        assert!(runner.shutdown(Duration::from_secs(1)).await);
        recovery.await.unwrap().unwrap();
        let asked = asked.lock().unwrap();
        asked.windows(2).map(|pair| pair[1].duration_since(pair[0]).as_millis()).collect()
    })
}

/// Checks pauses, in milliseconds, the first of which follows the failure that no recovery saw. A look may come a
/// tenth of a second after its time, and timers are late by a millisecond each.
#[track_caller]
fn check_pauses(pauses: &[u128], least: &[u128]) {
    assert_eq!(pauses.len(), 1 + least.len(), "{pauses:?}");
    assert!(pauses[0] <= 10, "recovery tries at its first look: {pauses:?}");
    for (pause, least) in pauses[1..].iter().zip(least) {
        assert!((*least..=least + 110).contains(pause), "{pauses:?}");
    }
}

#[test]
fn a_run_that_fails_again_and_again_is_tried_more_and_more_rarely() {
    let pauses = pauses_of(ModelErrorKind::Overloaded, Duration::from_millis(12_500));
    check_pauses(&pauses, &[1_000, 2_000, 4_000, 4_000]);
}

/// What its own attempts leave in the store is no change that is worth another one at once.
#[test]
fn a_run_that_needs_a_repair_outside_is_tried_after_the_longest_pause() {
    for kind in [ModelErrorKind::Authentication, ModelErrorKind::NotFound, ModelErrorKind::Untrusted] {
        check_pauses(&pauses_of(kind, Duration::from_secs(16)), &[4_000, 8_000]);
    }
}

/// Each request costs, and fails in the same way: the run waits for a person, in any process.
#[test]
fn a_run_that_would_fail_again_is_left_to_a_person() {
    let kinds = [
        ModelErrorKind::InvalidRequest,
        ModelErrorKind::TooLong { limit: None, used: None },
        ModelErrorKind::Refused,
        ModelErrorKind::ReplyTooLarge { limit: 1 },
        ModelErrorKind::ToolChoiceIgnored,
        ModelErrorKind::Unsupported,
    ];
    for kind in kinds {
        let pauses = pauses_of(kind.clone(), Duration::from_secs(40));
        assert!(pauses.len() <= 1, "{kind:?}: {pauses:?}");
        each_store(|world| {
            let (clock, asked) = (ManualClock::new(), Asked::default());
            let failing = || {
                let model = Failing(Arc::clone(&asked), kind.clone());
                runner(world, "first", Agent::builder(model).name("clerk").schema(schema()), &clock)
            };
            process(async {
                let session = failing().session("ada", "s1").await.unwrap();
                let message = session.send_once("m1", "one").await.unwrap();
                assert!(matches!(message.await, Err(RunnerError { kind: RunnerErrorKind::Run { .. }, .. })));
                // A person asks again, by a message, which waits behind the run.
                let message = session.send_once("m2", "two").await.unwrap();
                assert!(matches!(
                    message.await,
                    Err(RunnerError { kind: RunnerErrorKind::EarlierRunFailed { times: 2, .. }, .. })
                ));
                assert_eq!(asked.lock().unwrap().len(), 2);
            });
            // Processes that come and go, and time that passes, ask nothing.
            for _ in 0..3 {
                clock.advance(CLAIM * 100);
                process(async {
                    let runner = failing();
                    runner.recover(RecoverOptions::new().once()).await.unwrap();
                    let session = runner.session("ada", "s1").await.unwrap();
                    let stored = session.read(EventRange::All).await.unwrap();
                    assert_eq!(
                        (stored.version, stored.claim.clone()),
                        (3, None),
                        "one beginning and two failures"
                    );
                    assert!(is_left_to_person(&stored.events.last().unwrap().event));
                    assert_eq!(asked.lock().unwrap().len(), 2);
                });
            }
            // It continues once it is resumed, and what waited comes after it.
            process(async {
                let mended = Agent::builder(Echo).name("clerk").schema(schema());
                let session = runner(world, "third", mended, &clock).session("ada", "s1").await.unwrap();
                session.resume().with_changed_agent().await.unwrap();
                let two = session.send_once("m2", "two").await.unwrap().await.unwrap();
                assert_eq!(two.text(), "re: two");
            });
        });
    }
}

/// Workers whose processes were killed are known to be dead on their host: what they left waits for no claim to expire.
#[test]
fn what_a_worker_left_that_is_known_to_be_dead_is_taken_at_the_start() {
    each_store(|world| {
        let clock = ManualClock::new();
        for (user, worker) in [("ada", "dead"), ("bob", "alive")] {
            world.wire.faults([(2, Fault::DiesBefore)]);
            let has_died = world
                .wire
                .process(async {
                    let session =
                        runner(world, worker, world.agent(SCRIPT), &clock).session(user, "s1").await.unwrap();
                    session.run("go on").await.unwrap();
                })
                .is_none();
            assert!(has_died);
            world.wire.faults([]);
        }
        process(async {
            let agent = world.agent(SCRIPT).build().unwrap();
            let next = world.runner(agent).worker("next").unwrap().clock(clock.clone()).claim_for(CLAIM);
            let next = next.worker_is_dead(|worker| worker.as_str() == "dead").build();
            next.recover(RecoverOptions::new().once()).await.unwrap();
            let ended = async |user| exit_of_last_run(&next.session(user, "s1").await.unwrap()).await;
            assert_eq!(ended("ada").await, Some(Exit::Text));
            assert_eq!(ended("bob").await, None, "its worker may be at work");
        });
        world.trace.take();
    });
}

#[test]
fn a_run_that_waits_for_decisions_is_left_alone() {
    each_store(|world| {
        let asking = || {
            let pay = world.tool("pay", Effect::AtMostOnce).approval(Approval::Always).build().unwrap();
            world.agent(SCRIPT).tools(vec![world.tool("look", Effect::Pure).build().unwrap(), pay])
        };
        process(async {
            let clock = ManualClock::new();
            let runner = runner(world, "first", asking(), &clock);
            let session = runner.session("ada", "s1").await.unwrap();
            session.run("go on").await.unwrap();
            // A message waits behind it.
            session.send_once("m2", "thanks").await.unwrap().await.unwrap_err();
            let version = session.read(EventRange::None).await.unwrap().version;
            clock.advance(CLAIM);
            runner.recover(RecoverOptions::new().once()).await.unwrap();
            assert_eq!(session.read(EventRange::None).await.unwrap().version, version);
            let id = id_at(&session, "c2").await;
            session.resume().decide(id, Decision::reject("no")).await.unwrap();
        });
    });
}

/// A message that was accepted, whose process died before it was taken.
#[test]
fn an_accepted_message_that_no_worker_took_is_taken() {
    each_store(|world| {
        let clock = ManualClock::new();
        world.wire.faults([(0, Fault::DiesBefore)]);
        let died = world.wire.process(async {
            let first = runner(world, "first", world.agent(SCRIPT), &clock);
            let session = first.session("ada", "s1").await.unwrap();
            session.send_once("m1", "go on").await.unwrap().await
        });
        assert!(died.is_none());
        world.wire.faults([]);
        process(async {
            let second = runner(world, "second", world.agent(SCRIPT), &clock);
            second.recover(RecoverOptions::new().once()).await.unwrap();
            let session = second.session("ada", "s1").await.unwrap();
            assert_eq!(exit_of_last_run(&session).await, Some(Exit::Text));
            let inbox = second.store().inbox(ReadInbox::new(session.key().clone())).await.unwrap();
            assert!(inbox.is_empty());
            // It is known by its key.
            assert_eq!(session.run_as("m1", "go on").await.unwrap().text, "done");
        });
    });
}

/// What is suspended continues elsewhere at once, and a follower sees each commit once, in order.
#[test]
fn a_follower_sees_the_commits_of_all_workers() {
    each_store(|world| {
        process(async {
            let clock = ManualClock::new();
            let first = runner(world, "first", world.agent(SCRIPT), &clock);
            let session = first.session("ada", "s1").await.unwrap();
            let commits =
                tokio::spawn(first.follow(session.key().clone(), 1).take(6).try_collect::<Vec<_>>());
            session.run_as("k1", "go on").stop_after(Duration::ZERO).await.unwrap();
            let second = runner(world, "second", world.agent(SCRIPT), &clock);
            second.recover(RecoverOptions::new().once()).await.unwrap();
            let report = session.run_as("k1", "go on").await.unwrap();
            assert_eq!(report.text, "done");
            let commits = commits.await.unwrap().unwrap();
            let versions: Vec<u64> = commits.iter().map(|commit| commit.version).collect();
            assert_eq!(versions, [2, 3, 4, 5, 6, 7]);
            session.delete(false).await.unwrap();
            let end: Vec<_> = first.follow(session.key().clone(), 0).collect().await;
            assert!(
                matches!(&end[..], [Err(RunnerError { kind: RunnerErrorKind::Store { .. }, .. })]),
                "{end:?}"
            );
        });
    });
}
