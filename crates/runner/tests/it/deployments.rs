//! Two hundred sessions of seven versions of an agent, through one deployment.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use expect_test::expect;
use stepfold_runner::agent_loop::test_kit::Script;
use stepfold_runner::agent_loop::{Agent, AgentBuilder, Decision, Exit};
use stepfold_runner::session_scopes::EventRange;
use stepfold_runner::{RecoverOptions, Runner, RunnerErrorKind, SessionHandle, WhenChanged};
use stepfold_state_core::chat::{ChatModel, ChatRequest, ModelError, ModelErrorKind, ReplyStream};
use stepfold_tools::{Approval, Effect};

use crate::world::{Trace, World, each_store, process, threads};

const SESSIONS: usize = 200;

/// Half of the runs wait in a call of `pay`, the other half in one of `save`.
const PAYS: &str = "assistant: > c1 pay()\nassistant: done";
const SAVES: &str = "assistant: > c1 save()\nassistant: done";

/// The versions by what each has changed; the last one is deployed.
const VERSIONS: [&str; 8] =
    ["the first", "a prompt", "more steps", "a new tool", "pay once", "no look", "save is pure", "the last"];

fn version(world: &World, number: usize, script: &str) -> Agent {
    let mut agent: AgentBuilder = world.agent(script);
    let saves = if number == 6 { Effect::Pure } else { Effect::Idempotent };
    let pays = if number == 4 { Approval::Once } else { Approval::Always };
    let mut tools = vec![
        world.tool("pay", Effect::AtMostOnce).approval(pays),
        world.tool("save", saves).approval(Approval::Always),
    ];
    if number != 5 && number != 7 {
        tools.push(world.tool("look", Effect::Pure));
    }
    if number == 3 {
        tools.push(world.tool("tell", Effect::Pure));
    }
    match number {
        1 => agent = agent.instructions("Be kind."),
        2 => agent = agent.max_steps(90),
        7 => agent = agent.instructions("Be brief."),
        _ => {}
    }
    agent.tools(tools.into_iter().map(|tool| tool.build().unwrap()).collect::<Vec<_>>()).build().unwrap()
}

/// The version and the script of a session.
const fn begun_with(session: usize) -> (usize, &'static str) {
    (session * 31 % 7, if session.is_multiple_of(2) { PAYS } else { SAVES })
}

async fn begin(world: &World) {
    for session in 0..SESSIONS {
        let (number, script) = begun_with(session);
        let runner = world.runner(version(world, number, script)).build();
        let session = runner.session("ada", format!("s{session:03}")).await.unwrap();
        assert_eq!(session.run("go").await.unwrap().pending().len(), 1);
    }
}

/// The statuses of the runs under the last version, by the version that they began with.
async fn table(world: &World, policy: WhenChanged) -> String {
    let runner = world.runner(version(world, 7, PAYS)).when_changed(policy);
    let runner = (0..7).fold(runner, |runner, number| match policy {
        WhenChanged::Pinned => runner.also(version(world, number, PAYS)).also(version(world, number, SAVES)),
        _ => runner,
    });
    let (mut check, mut rows) = (runner.build().check_upgrade(), BTreeMap::new());
    while let Some(run) = check.next().await.unwrap() {
        let session: usize = run.key.id.as_str()[1..].parse().unwrap();
        let continues = if run.continues() { "" } else { ", refused" };
        let key = (begun_with(session).0, format!("{}{continues}", run.status()));
        *rows.entry(key).or_insert(0) += 1;
    }
    rows.iter()
        .map(|((number, status), count)| format!("{:<13}{count:>3} {status}\n", VERSIONS[*number]))
        .collect()
}

#[test]
fn two_hundred_sessions_of_seven_versions_through_a_deployment() {
    each_store(|world| {
        process(begin(world));
        process(async {
            expect![[r#"
                the first     29 compatible
                a prompt      28 compatible
                more steps    29 compatible
                a new tool    29 compatible
                pay once      14 compatible
                pay once      14 touched, refused
                no look       28 compatible
                save is pure  15 compatible
                save is pure  14 touched, refused
            "#]]
            .assert_eq(&table(world, WhenChanged::Compatible).await);
            expect![[r#"
                the first     29 pinned
                a prompt      28 pinned
                more steps    29 pinned
                a new tool    29 pinned
                pay once      28 pinned
                no look       28 pinned
                save is pure  29 pinned
            "#]]
            .assert_eq(&table(world, WhenChanged::Pinned).await);
        });
        // Each run that the check lets continue does, and each other one is refused, and continues pinned.
        process(async {
            let runner = world.runner(version(world, 7, PAYS)).build();
            let (mut check, mut continues) = (runner.check_upgrade(), BTreeMap::new());
            while let Some(run) = check.next().await.unwrap() {
                continues.insert(run.key.id.to_string(), run.continues());
            }
            for number in 0..SESSIONS {
                let (began, script) = begun_with(number);
                let id = format!("s{number:03}");
                let runner = world.runner(version(world, 7, script)).build();
                let session = runner.session("ada", &*id).await.unwrap();
                let asked = session.pending().await.unwrap().remove(0).id;
                let outcome = match (continues[&id], session.resume().decide(asked, Decision::Approve).await)
                {
                    (true, outcome) => outcome.unwrap(),
                    (_, outcome) => {
                        let kind = outcome.unwrap_err().kind;
                        assert!(matches!(kind, RunnerErrorKind::AgentChanged { .. }), "{kind:?}");
                        let old = version(world, began, script);
                        let runner =
                            world.runner(version(world, 7, script)).when_changed(WhenChanged::Pinned);
                        let session = runner.also(old).build().session("ada", &*id).await.unwrap();
                        // The decision is stored.
                        session.resume().await.unwrap()
                    }
                };
                assert_eq!((&*outcome.text(), outcome.exit()), ("done", &Exit::Text), "{id}");
            }
        });
    });
}

/// A model that notes which version has asked it, and may be down.
struct Noting {
    version: &'static str,
    script: Script,
    asked: Trace,
    is_down: Arc<AtomicBool>,
}

impl ChatModel for Noting {
    fn id(&self) -> &'static str {
        "noting"
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        self.asked.note(self.version);
        match self.is_down.load(Ordering::SeqCst) {
            true => {
                let down = ModelError::new(ModelErrorKind::Overloaded, "come back later");
                Script::parse("").unwrap().then_fail(down).respond(request)
            }
            false => self.script.respond(request),
        }
    }
}

/// Two versions of an agent over one store, which are compatible.
struct TwoVersions {
    asked: Trace,
    is_down: Arc<AtomicBool>,
}

impl TwoVersions {
    fn new() -> Self {
        TwoVersions { asked: Trace::default(), is_down: Arc::default() }
    }

    fn runner(&self, world: &World, version: &'static str, policy: WhenChanged) -> Runner {
        let script = Script::parse("assistant: > c1 pay()\nassistant: done").unwrap();
        let (asked, is_down) = (self.asked.clone(), Arc::clone(&self.is_down));
        let pay = world.tool("pay", Effect::AtMostOnce).approval(Approval::Always).build().unwrap();
        let agent = world.agent("").model(Noting { version, script, asked, is_down });
        let agent = agent.instructions(version).tools([pay]).build().unwrap();
        world.runner(agent).when_changed(policy).build()
    }
}

async fn upgrades(session: &SessionHandle) -> usize {
    let stored = session.read(EventRange::All).await.unwrap();
    stored.events.iter().filter(|committed| committed.event.kind.as_str() == "upgraded").count()
}

/// A run that waits is only looked at by a version that brings no decision: it writes nothing. The first one that brings one
/// records that it continues the run.
#[test]
fn two_versions_that_look_at_a_waiting_run_write_nothing() {
    each_store(|world| {
        let versions = TwoVersions::new();
        for policy in [WhenChanged::Compatible, WhenChanged::Always] {
            let in_version = async |version| {
                let runner = versions.runner(world, version, policy);
                let session = runner.session("ada", policy.as_str()).await.unwrap();
                (runner, session)
            };
            process(async { drop(in_version("old").await.1.run("pay").await.unwrap()) });
            // What is forced is recorded at once.
            let is_forced = policy == WhenChanged::Always;
            let looking = if is_forced { vec!["new"; 2] } else { vec!["new", "old", "new", "old", "new"] };
            for version in looking {
                process(async {
                    let (runner, session) = in_version(version).await;
                    let looked = session.resume().await.unwrap();
                    assert_eq!(looked.pending(), session.pending().await.unwrap());
                    runner.recover(RecoverOptions::new().once()).await.unwrap();
                    assert_eq!(
                        (looked.pending().len(), upgrades(&session).await),
                        (1, usize::from(is_forced)),
                        "{version}"
                    );
                });
            }
            process(async {
                let (_, session) = in_version("new").await;
                let id = session.pending().await.unwrap().remove(0).id;
                assert_eq!(session.resume().decide(id, Decision::Approve).await.unwrap().text(), "done");
                assert_eq!(upgrades(&session).await, 1);
                session.replay(versions.runner(world, "new", policy).agent()).await.unwrap();
            });
        }
    });
}

/// Decisions about calls of one run that reach several processes at once, none of which may continue it: each is stored.
#[test]
fn decisions_that_reach_refusing_processes_at_once_are_all_stored() {
    const SCRIPT: &str = "assistant: > c1 pay()   > c2 pay()   > c3 pay()\nassistant: done";
    each_store(|world| {
        threads(async {
            let runner = |number, worker: &str| {
                let runner = world.runner(version(world, number, SCRIPT)).worker(worker).unwrap();
                runner.when_changed(WhenChanged::Refuse).build()
            };
            let (old, one, two) = (runner(0, "old"), runner(1, "one"), runner(1, "two"));
            for round in 0..20 {
                let id = format!("s{round}");
                let waiting = old.session("ada", &*id).await.unwrap();
                let asked: Vec<String> = waiting
                    .run("pay")
                    .await
                    .unwrap()
                    .pending()
                    .iter()
                    .map(|request| request.id.clone())
                    .collect();
                let decided = |runner: &Runner, call: usize| {
                    let (runner, id, asked) = (runner.clone(), id.clone(), asked[call].clone());
                    tokio::spawn(async move {
                        let session = runner.session("ada", id).await.unwrap();
                        session.resume().decide(asked, Decision::Approve).await.unwrap_err().kind
                    })
                };
                for refused in [decided(&one, 0), decided(&two, 1), decided(&one, 2)] {
                    let kind = refused.await.unwrap();
                    assert!(matches!(kind, RunnerErrorKind::AgentChanged { .. }), "round {round}: {kind:?}");
                }
                assert_eq!(waiting.pending().await.unwrap(), [], "round {round}");
                assert_eq!(waiting.resume().await.unwrap().text(), "done");
            }
        });
    });
}

/// A run that was taken over is left to the version that has it: the earlier one does not take it back by a recovery, however often
/// both fail; a caller may still continue the run with it.
#[test]
fn two_versions_do_not_take_a_run_from_each_other() {
    each_store(|world| {
        let versions = TwoVersions::new();
        let old = || versions.runner(world, "old", WhenChanged::Compatible);
        let new = || versions.runner(world, "new", WhenChanged::Compatible);
        versions.is_down.store(true, Ordering::SeqCst);
        for id in ["s1", "s2"] {
            process(async { drop(old().session("ada", id).await.unwrap().run("pay").await.unwrap_err()) });
        }
        versions.asked.take();
        for _ in 0..4 {
            for runner in [&new as &dyn Fn() -> Runner, &old] {
                process(async { runner().recover(RecoverOptions::new().once()).await.unwrap() });
            }
        }
        assert!(versions.asked.take().iter().all(|version| version == "new"));
        process(async {
            let runner = old();
            for id in ["s1", "s2"] {
                let session = runner.session("ada", id).await.unwrap();
                assert_eq!(upgrades(&session).await, 1);
                // A check says what a recovery does, and what a caller can do.
                let checked = session.check_upgrade().await.unwrap().unwrap();
                assert!(checked.is_left && checked.continues(), "{checked:?}");
                let checked = new().session("ada", id).await.unwrap().check_upgrade().await.unwrap().unwrap();
                assert!(!checked.is_left && checked.continues(), "{checked:?}");
            }
            versions.is_down.store(false, Ordering::SeqCst);
            // A caller takes it back.
            let session = runner.session("ada", "s1").await.unwrap();
            assert_eq!(session.resume().await.unwrap().pending().len(), 1);
            assert_eq!(upgrades(&session).await, 2);
        });
        // The newer version continues what it has taken.
        process(async {
            let runner = new();
            runner.recover(RecoverOptions::new().once()).await.unwrap();
            let session = runner.session("ada", "s2").await.unwrap();
            assert_eq!((session.pending().await.unwrap().len(), upgrades(&session).await), (1, 1));
        });
    });
}

/// For any order of what callers and recoveries of two versions do: an upgrade is recorded only by a version that has then asked its
/// model, or brought a decision, after the other one had.
#[test]
fn each_upgrade_is_a_change_of_the_driver() {
    for seed in 0..40_u64 {
        let world = World::in_memory();
        let versions = TwoVersions::new();
        let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut next = |bound: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % bound
        };
        versions.is_down.store(next(2) == 0, Ordering::SeqCst);
        let first = versions.runner(&world, "old", WhenChanged::Compatible);
        let _ = process(async { first.session("ada", "s1").await.unwrap().run("pay").await });
        let mut drivers = versions.asked.take();
        for _ in 0..12 {
            let version = if next(2) == 0 { "old" } else { "new" };
            let (action, decides) = (next(5), next(6) == 0);
            versions.is_down.store(next(3) > 0, Ordering::SeqCst);
            let has_decided = process(async {
                let runner = versions.runner(&world, version, WhenChanged::Compatible);
                let session = runner.session("ada", "s1").await.unwrap();
                match action {
                    0 => drop(session.resume().await),
                    1 if decides => {
                        let Some(request) = session.pending().await.unwrap().pop() else { return false };
                        return session.resume().decide(request.id, Decision::Approve).submit().await.is_ok();
                    }
                    2 => drop(session.check_upgrade().await),
                    _ => runner.recover(RecoverOptions::new().once()).await.unwrap(),
                }
                false
            });
            if has_decided {
                drivers.push(version.to_owned());
            }
            drivers.extend(versions.asked.take());
        }
        let changes = drivers.windows(2).filter(|pair| pair[0] != pair[1]).count();
        let upgraded = process(async { upgrades(&first.session("ada", "s1").await.unwrap()).await });
        assert!(upgraded <= changes, "seed {seed}: {upgraded} upgrades by {drivers:?}");
    }
}
