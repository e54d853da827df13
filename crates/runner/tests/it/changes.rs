//! Agents and schemas that are not what they were when something was stored.

use expect_test::expect;
use serde_json::json;
use stepfold_graph::{END, Graph, NodeContext, NodeError, START, Update};
use stepfold_runner::agent_loop::{AgentBuilder, Decision, Exit, HookAction};
use stepfold_runner::session_scopes::{CommittedEvent, EventRange, SessionSchema};
use stepfold_runner::{
    RecoverOptions, RunnerError, RunnerErrorKind, SessionHandle, UpgradeStatus, WhenChanged,
};
use stepfold_state_core::state::Schema;
use stepfold_tools::{Approval, Effect, Toolset};

use crate::world::{Fault, World, each_store, process, schema};

const SCRIPT: &str = "\
assistant: > c1 look()
assistant: > c2 look()
assistant: done
assistant: fine
";

/// A run that is interrupted after its first call has a result.
fn cut_off(world: &World) {
    world.wire.faults([(2, Fault::DiesAfter)]);
    let died = world.wire.process(async { world.session(world.agent(SCRIPT)).await.run("look").await });
    assert!(died.is_none());
    world.wire.faults([]);
}

fn with_hook(agent: AgentBuilder) -> AgentBuilder {
    agent.before_model(|_| async { Ok(HookAction::proceed()) })
}

#[test]
fn a_changed_agent_does_not_continue_unless_it_is_told_to() {
    each_store(|world| {
        cut_off(world);
        process(async {
            let agent = world
                .agent(SCRIPT)
                .instructions("Be brief.")
                .max_steps(7)
                .tools(vec![world.tool("look", Effect::Idempotent).build().unwrap()]);
            let runner = world.runner(agent.build().unwrap()).when_changed(WhenChanged::Refuse).build();
            let session = runner.session("ada", "s1").await.unwrap();
            let error = session.run("thanks").await.unwrap_err();
            assert!(matches!(error.kind, RunnerErrorKind::AgentChanged { .. }), "{error:?}");
            expect!["session stalls/ada/s1: agent changed since the run was interrupted: limits changed; tool look: effect changed; tool pay is gone; tool save is gone; instructions is new; force it with `with_changed_agent()`, or cancel the run with `abandon()`"].assert_eq(&error.to_string());
            assert!(matches!(
                session.resume().await,
                Err(RunnerError { kind: RunnerErrorKind::AgentChanged { .. }, .. })
            ));
            let outcome = session.resume().with_changed_agent().await.unwrap();
            assert_eq!(outcome.text(), "done");
            assert_eq!(session.run("thanks").await.unwrap().text(), "fine");
        });
    });
}

async fn is_usable(session: &SessionHandle) {
    let outcome = session.run("thanks").await.unwrap();
    assert_eq!(outcome.exit(), &Exit::Text);
    outcome.transcript().check().unwrap();
}

/// A graph cannot read the record of an agent. It can give it up, and the session is free.
#[test]
fn what_cannot_be_resumed_can_be_abandoned() {
    each_store(|world| {
        cut_off(world);
        process(async {
            let fine = async |_: NodeContext| Ok::<_, NodeError>(Update::new().say("fine"));
            let graph = Graph::builder("clerk").schema(schema()).node("a", fine).chain([START, "a", END]);
            let runner = world.runner(graph.build().unwrap().into()).build();
            let session = runner.session("ada", "s1").await.unwrap();
            let error = session.run("thanks").await.unwrap_err();
            assert!(matches!(error.kind, RunnerErrorKind::Recover { .. }), "{error:?}");
            let error = session.resume().with_changed_agent().await.unwrap_err();
            assert!(matches!(error.kind, RunnerErrorKind::Recover { .. }), "{error:?}");
            let checked = runner.check_upgrade().next().await.unwrap().unwrap();
            assert!(checked.status() == UpgradeStatus::Unreadable, "{checked:?}");
            let outcome = session.abandon().await.unwrap();
            assert_eq!(outcome.exit(), &Exit::Cancelled);
            outcome.transcript().check().unwrap();
        });
        process(async { is_usable(&world.session(world.agent(SCRIPT)).await).await });
    });
}

/// The kinds and the changes of what a session has recorded of upgrades.
async fn upgrades(session: &SessionHandle) -> Vec<String> {
    let stored = session.read(EventRange::All).await.unwrap();
    let upgraded = stored.visible_events().filter(|committed| committed.event.kind.as_str() == "upgraded");
    let records = upgraded.map(|committed| committed.event.record.as_ref().unwrap().text().to_owned());
    let changes = records.map(|record| {
        let record: serde_json::Value = serde_json::from_str(&record).unwrap();
        let changes = record["kind"]["upgraded"]["changes"].as_array().unwrap().iter();
        changes.map(|change| change["part"].as_str().unwrap().to_owned()).collect::<Vec<_>>().join(", ")
    });
    changes.collect()
}

/// A change that is ahead of a run: it continues, the change is in the record, and what comes later knows it.
#[test]
fn a_compatible_change_continues_and_is_recorded_once() {
    each_store(|world| {
        cut_off(world);
        let changed = |world: &World| with_hook(world.agent(SCRIPT)).instructions("Be brief.").max_steps(40);
        process(async {
            let runner = world.runner(changed(world).build().unwrap()).build();
            let checked = runner.check_upgrade().next().await.unwrap().unwrap();
            let changes: Vec<String> = checked.upgrade.changes.iter().map(ToString::to_string).collect();
            assert_eq!(changes, ["hooks changed", "limits changed", "instructions is new"]);
            assert_eq!(checked.status(), UpgradeStatus::Compatible);
            let session = runner.session("ada", "s1").await.unwrap();
            assert!(upgrades(&session).await.is_empty(), "a check writes nothing");
            assert_eq!(session.resume().await.unwrap().text(), "done");
            assert_eq!(upgrades(&session).await, ["hooks, limits, instructions"]);
            // The part after the upgrade is compared with the agent of today, and the part before is as it was.
            assert_eq!(session.replay(&changed(world).build().unwrap()).await.unwrap(), 1);
            assert_eq!(runner.check_upgrade().next().await.unwrap().map(|run| run.key), None);
        });
        // A fork from before the upgrade is a run of the earlier agent again.
        process(async {
            let session = world.session(changed(world)).await;
            let stored = session.read(EventRange::All).await.unwrap();
            let kind = |committed: &CommittedEvent| committed.event.kind.as_str() == "upgraded";
            let upgraded = stored.events.iter().find(|committed| kind(committed)).unwrap().version;
            let runner = world.runner(world.agent(SCRIPT).build().unwrap()).build();
            let before = runner.session("ada", "s1").await.unwrap().fork("before", Some(upgraded - 1)).await;
            assert_eq!(before.unwrap().resume().await.unwrap().text(), "done");
            let before = runner.session("ada", "before").await.unwrap();
            assert!(upgrades(&before).await.is_empty());
            // One from after it is a run of the new one, so the earlier agent is another upgrade.
            let after =
                runner.session("ada", "s1").await.unwrap().fork("after", Some(upgraded)).await.unwrap();
            assert_eq!(after.resume().await.unwrap().text(), "done");
            assert_eq!(upgrades(&after).await.len(), 2);
        });
    });
}

/// A change that touches an open call is refused, and the error names the call.
#[test]
fn a_touching_change_is_refused_with_the_call() {
    each_store(|world| {
        world.wire.faults([(3, Fault::DiesAfter)]);
        let died = world.wire.process(async { world.session(world.agent(SCRIPT)).await.run("look").await });
        assert!(died.is_none());
        world.wire.faults([]);
        process(async {
            let agent = world.agent(SCRIPT).tools(Toolset::default());
            let runner = world.runner(agent.build().unwrap()).build();
            let session = runner.session("ada", "s1").await.unwrap();
            let error = session.run("thanks").await.unwrap_err();
            expect!["session stalls/ada/s1: agent changed since the run was interrupted: tool look is gone, and call `c2` is open; force it with `with_changed_agent()`, or cancel the run with `abandon()`"].assert_eq(&error.to_string());
            let unattended = runner.unattended(None, 10).await.unwrap();
            assert!(unattended.iter().all(|session| session.blocked.is_some()), "{unattended:?}");
            session.resume().with_changed_agent().await.unwrap();
            assert_eq!(upgrades(&session).await, ["tool look, tool pay, tool save"]);
        });
    });
}

/// A decision that comes twice is refused, and the run that it was about is continued by the next worker.
#[test]
fn a_repeated_decision_leaves_the_run_to_a_worker() {
    each_store(|world| {
        let agent = |effect: Effect| {
            let pay = world.tool("pay", effect).approval(Approval::Always).build().unwrap();
            world.agent("assistant: > c1 pay()\nassistant: done").tools(vec![pay]).build().unwrap()
        };
        let asked = process(async {
            let session = world.runner(agent(Effect::Idempotent)).build().session("ada", "s1").await.unwrap();
            session.run("pay").await.unwrap().pending()[0].id.clone()
        });
        // An agent that may not continue the run stores the decision.
        process(async {
            let session = world.runner(agent(Effect::Pure)).build().session("ada", "s1").await.unwrap();
            let refused = session.resume().decide(&*asked, Decision::Approve).await.unwrap_err();
            assert!(matches!(refused.kind, RunnerErrorKind::AgentChanged { .. }), "{refused:?}");
        });
        process(async {
            let runner = world.runner(agent(Effect::Idempotent)).build();
            let session = runner.session("ada", "s1").await.unwrap();
            let twice = session.resume().decide(&*asked, Decision::Approve).await.unwrap_err();
            assert!(matches!(twice.kind, RunnerErrorKind::Decision { .. }), "{twice:?}");
            assert_eq!(runner.unattended(None, 10).await.unwrap().len(), 1);
            runner.recover(RecoverOptions::new().once()).await.unwrap();
            assert!(session.unfinished().await.unwrap().is_none());
        });
    });
}

/// A run that has ended has ended, whatever the next version of the agent makes of its record.
#[test]
fn a_run_that_has_ended_has_ended() {
    each_store(|world| {
        let versions: [fn(AgentBuilder) -> AgentBuilder; 4] = [
            // Ends by its limit, and the next one has another.
            |agent| agent.max_steps(1),
            |agent| agent,
            with_hook,
            |agent| agent.exit_on(["look"]),
        ];
        for (number, before) in versions.iter().enumerate() {
            for (other, after) in versions.iter().enumerate() {
                process(async {
                    let id = format!("s{number}.{other}");
                    let runner = world.runner(before(world.agent(SCRIPT)).build().unwrap()).build();
                    runner.session("ada", &*id).await.unwrap().run("look").await.unwrap();
                    let runner = world.runner(after(world.agent(SCRIPT)).build().unwrap()).build();
                    let session = runner.session("ada", &*id).await.unwrap();
                    assert!(session.pending().await.unwrap().is_empty());
                    let nothing = session.resume().await.unwrap_err();
                    assert!(matches!(nothing.kind, RunnerErrorKind::NothingToResume), "{nothing:?}");
                    session.run("thanks").await.unwrap();
                    let stored = session.read(EventRange::All).await.unwrap();
                    let began = stored.events.iter().filter(|event| event.event.kind.as_str() == "began");
                    assert_eq!(began.count(), 2);
                });
            }
        }
    });
}

/// What a session with this schema says of a value that was stored as a string.
async fn opened(world: &World, schema: Schema, migrated: bool) -> Result<serde_json::Value, RunnerError> {
    let agent =
        world.agent("assistant: done\nassistant: done").tools(Toolset::default()).schema(schema.clone());
    let mut runner = world.runner(agent.build().unwrap());
    if migrated {
        let schema = SessionSchema::new(schema).migration("topic", |old| Ok(json!([old])));
        runner = runner.schema(schema);
    }
    let session = runner.build().session("ada", "s1").await?;
    Ok(session.run("hello").await?.state().get("topic").unwrap().to_json())
}

#[test]
fn another_schema() {
    each_store(|world| {
        process(async {
            let agent = world.agent("assistant: done").build().unwrap();
            let session = world.runner(agent).build().create("ada", "s1", json!({"topic": "stalls"})).await;
            session.unwrap();
            let list = || Schema::builder().key::<Vec<String>>("topic").build().unwrap();
            let error = opened(world, list(), false).await.unwrap_err();
            expect![[r#"session stalls/ada/s1: the store failed: incompatible stored value of key "topic": stored as string, opened as list of string: expected list, found string at $; register a migration"#]].assert_eq(&error.to_string());
            // A key more, one that is gone, a type that takes more: all that fits.
            let wider =
                Schema::builder().key::<serde_json::Value>("topic").key::<u64>("more").build().unwrap();
            assert_eq!(opened(world, wider, false).await.unwrap(), json!("stalls"));
            assert_eq!(opened(world, list(), true).await.unwrap(), json!(["stalls"]));
        });
    });
}
