//! Runs that continue with the agent that they began with, beside another one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use expect_test::expect;
use futures_util::future::BoxFuture;
use serde_json::json;
use stepfold_runner::agent_loop::{Agent, Decision, Edit};
use stepfold_runner::session_scopes::{EventRange, SessionSchema};
use stepfold_runner::{
    AgentArchive, ArchiveError, EarlierAgent, RunnerBuilder, RunnerErrorKind, SessionHandle, UpgradeStatus,
    WhenChanged,
};
use stepfold_state_core::state::Schema;
use stepfold_tools::{Approval, Tool, ToolContext, ToolError, Toolset};

use crate::world::{World, each_store, process};

/// Pays by a call that is asked about, after one that has written a key, whose type the new agent has changed.
fn old(world: &World) -> Agent {
    let schema = Schema::builder().key::<String>("receipt").build().unwrap();
    let book = async |context: ToolContext| {
        context.writer().set("receipt", json!("r1"))?;
        Ok::<_, ToolError>("booked")
    };
    let book = Tool::new("book", "Books it.", book).writes(["receipt"]).build().unwrap();
    let pay = Tool::new("pay", "Pays it.", async || Ok::<_, ToolError>("paid")).approval(Approval::Always);
    let agent =
        world.agent("assistant: > c1 book()\nassistant: > c2 pay()\nassistant: paid\n").schema(schema);
    agent.tools(vec![book, pay.build().unwrap()]).build().unwrap()
}

/// Talks only.
fn new(world: &World) -> Agent {
    let schema = Schema::builder().key::<Vec<String>>("receipt").build().unwrap();
    world
        .agent("assistant: hello\nassistant: again")
        .schema(schema)
        .tools(Toolset::default())
        .build()
        .unwrap()
}

/// Talks only, and takes the values as they are.
fn free(world: &World) -> Agent {
    world.agent("assistant: hello").tools(Toolset::default()).build().unwrap()
}

fn pinned(world: &World) -> RunnerBuilder {
    world.runner(new(world)).when_changed(WhenChanged::Pinned)
}

/// A run of the old agent that waits for a decision, whose id is given.
async fn waits(world: &World, id: &str) -> String {
    let session = world.runner(old(world)).build().session("ada", id).await.unwrap();
    let outcome = session.run("pay").await.unwrap();
    outcome.pending()[0].id.clone()
}

async fn kinds(session: &SessionHandle) -> Vec<String> {
    let stored = session.read(EventRange::All).await.unwrap();
    stored.visible_events().map(|committed| committed.event.kind.as_str().to_owned()).collect()
}

#[test]
fn a_pinned_run_continues_with_its_agent_and_the_next_one_is_of_the_new_agent() {
    each_store(|world| {
        process(async {
            let asked = waits(world, "s1").await;
            let runner = pinned(world).also(old(world)).build();
            let session = runner.session("ada", "s1").await.unwrap();
            // It is read as the agent that it continues with has it.
            let pending = session.pending().await.unwrap();
            assert_eq!(pending.iter().map(|request| &*request.id).collect::<Vec<_>>(), [&*asked]);
            let checked = runner.check_upgrade().next().await.unwrap().unwrap();
            assert_eq!(checked.status(), UpgradeStatus::Pinned, "{checked:?}");
            let outcome = session.resume().decide(&*asked, Decision::Approve).await.unwrap();
            assert_eq!(outcome.text(), "paid");
            assert_eq!(outcome.state().get("receipt").unwrap().to_json(), "r1");
            assert!(!kinds(&session).await.contains(&"upgraded".to_owned()));
            assert_eq!(runner.check_upgrade().next().await.unwrap().map(|run| run.key), None);
        });
    });
}

#[test]
fn a_fork_with_an_edit_of_a_pinned_run_is_stored_with_the_schema_of_its_agent() {
    each_store(|world| {
        process(async {
            waits(world, "s1").await;
            let runner = pinned(world).also(old(world)).build();
            let session = runner.session("ada", "s1").await.unwrap();
            let edit = Edit::new().set("receipt", json!("r2"));
            let fork = session.fork_with("f1", None, edit).await.unwrap();
            let asked = fork.pending().await.unwrap().remove(0).id;
            let outcome = fork.resume().decide(asked, Decision::Approve).await.unwrap();
            assert_eq!(
                (&*outcome.text(), outcome.state().get("receipt").unwrap().to_json()),
                ("paid", json!("r2"))
            );
        });
    });
}

#[test]
fn an_earlier_agent_keeps_its_migrations() {
    each_store(|world| {
        process(async {
            let asked = waits(world, "s1").await;
            // Another version of the old agent, which reads the value as a list.
            let schema = Schema::builder().key::<Vec<String>>("receipt").build().unwrap();
            let lists = old(world).to_builder().schema(schema.clone()).build().unwrap();
            let migrated = SessionSchema::new(schema).migration("receipt", |old| Ok(json!([old])));
            let before =
                world.runner(lists.clone()).schema(migrated.clone()).when_changed(WhenChanged::Always);
            let session = before.build().session("ada", "s1").await.unwrap();
            let asked_again = session.resume().await.unwrap().pending()[0].id.clone();
            assert_eq!(asked, asked_again);
            let earlier = EarlierAgent::new(lists).with_schema(migrated);
            let runner = pinned(world).also(earlier).build();
            let session = runner.session("ada", "s1").await.unwrap();
            let outcome = session.resume().decide(asked, Decision::Approve).await.unwrap();
            assert_eq!(outcome.state().get("receipt").unwrap().to_json(), json!(["r1"]));
        });
    });
}

#[test]
fn a_new_turn_reads_the_values_with_the_schema_of_the_new_agent() {
    each_store(|world| {
        process(async {
            let asked = waits(world, "s1").await;
            let runner = pinned(world).also(old(world)).build();
            let session = runner.session("ada", "s1").await.unwrap();
            session.resume().decide(&*asked, Decision::Approve).await.unwrap();
            let error = session.run("hi").await.unwrap_err();
            expect![[r#"session stalls/ada/s1: the store failed: incompatible stored value of key "receipt": stored as string, opened as list of string: expected list, found string at $; register a migration"#]].assert_eq(&error.to_string());
        });
    });
}

#[test]
fn an_unknown_agent_is_refused_its_decision_is_stored_and_a_caller_may_force_the_new_one() {
    each_store(|world| {
        process(async {
            let asked = waits(world, "s1").await;
            let runner = world.runner(free(world)).when_changed(WhenChanged::Pinned).build();
            let session = runner.session("ada", "s1").await.unwrap();
            let error = session.resume().decide(&*asked, Decision::Approve).await.unwrap_err();
            assert!(matches!(error.kind, RunnerErrorKind::AgentChanged { .. }), "{error:?}");
        });
        // The agent is registered again, and finds the decision.
        process(async {
            let runner = world.runner(free(world)).when_changed(WhenChanged::Pinned).also(old(world)).build();
            let session = runner.session("ada", "s1").await.unwrap();
            let outcome = session.resume().await.unwrap();
            assert_eq!(outcome.text(), "paid");
        });
        process(async {
            waits(world, "s2").await;
            let runner = world.runner(free(world)).when_changed(WhenChanged::Pinned).also(old(world)).build();
            let session = runner.session("ada", "s2").await.unwrap();
            assert!(session.pending().await.is_ok());
            let _ = session.resume().with_changed_agent().await.unwrap();
            assert!(kinds(&session).await.contains(&"upgraded".to_owned()));
        });
    });
}

/// An archive without any agent.
struct EmptyArchive;

impl AgentArchive for EmptyArchive {
    fn load<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Option<EarlierAgent>, ArchiveError>> {
        Box::pin(std::future::ready(Ok(None)))
    }
}

#[test]
fn a_version_that_is_not_stored_is_named_in_the_refusal() {
    each_store(|world| {
        process(async {
            let asked = waits(world, "s1").await;
            let runner = pinned(world).archive(EmptyArchive).build();
            let session = runner.session("ada", "s1").await.unwrap();
            let error = session.resume().decide(&*asked, Decision::Approve).await.unwrap_err();
            assert!(matches!(error.kind, RunnerErrorKind::PinnedAgent { .. }), "{error:?}");
            assert!(error.to_string().contains("no version of it is stored"), "{error}");
            let checked = runner.check_upgrade().next().await.unwrap().unwrap();
            let reasons = checked.reasons().join("; ");
            assert!(!checked.continues() && reasons.contains("no version of it is stored"), "{reasons}");
        });
    });
}

/// An archive of one agent, which counts how often it was asked.
struct Archive {
    agent: Option<Agent>,
    asked: Arc<AtomicUsize>,
}

impl AgentArchive for Archive {
    fn load<'a>(&'a self, digest: &'a str) -> BoxFuture<'a, Result<Option<EarlierAgent>, ArchiveError>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let found = self.agent.as_ref().filter(|agent| agent.fingerprint().digest() == digest);
        Box::pin(async move {
            found.cloned().map(|agent| Some(agent.into())).ok_or_else(|| "program `pay.sh` is gone".into())
        })
    }
}

#[test]
fn an_archive_is_asked_once_while_runs_need_its_agent() {
    each_store(|world| {
        process(async {
            let ids: Vec<String> = (0..5).map(|number| format!("s{number}")).collect();
            let mut asked = Vec::new();
            for id in &ids {
                asked.push(waits(world, id).await);
            }
            let loads = Arc::new(AtomicUsize::new(0));
            let archive = Archive { agent: Some(old(world)), asked: Arc::clone(&loads) };
            let runner = pinned(world).archive(archive).build();
            let mut open = Vec::new();
            for id in &ids {
                let session = runner.session("ada", &**id).await.unwrap();
                assert_eq!(session.pending().await.unwrap().len(), 1);
                open.push(session);
            }
            assert_eq!(loads.load(Ordering::SeqCst), 1);
            for (session, asked) in open.iter().zip(&asked) {
                let outcome = session.resume().decide(&**asked, Decision::Approve).await.unwrap();
                assert_eq!(outcome.text(), "paid");
            }
            assert_eq!(loads.load(Ordering::SeqCst), 1);
        });
    });
}

#[test]
fn an_agent_that_cannot_be_built_is_named_and_the_session_can_be_read() {
    each_store(|world| {
        process(async {
            let asked = waits(world, "s1").await;
            let archive = Archive { agent: None, asked: Arc::default() };
            let runner = pinned(world).archive(archive).build();
            let session = runner.session("ada", "s1").await.unwrap();
            let error = session.resume().decide(&*asked, Decision::Approve).await.unwrap_err();
            let words = error.to_string().replace(&old(world).fingerprint().digest(), "DIGEST");
            expect!["session stalls/ada/s1: agent DIGEST, which the run continues with, cannot be loaded: program `pay.sh` is gone; continue with the agent of today by `with_changed_agent()`, or cancel the run with `abandon()`"].assert_eq(&words);
            assert_eq!(
                session.read(EventRange::All).await.unwrap().version,
                kinds(&session).await.len() as u64
            );
            let blocked = runner.unattended(None, 10).await.unwrap();
            assert!(blocked.iter().all(|session| session.blocked.as_ref().unwrap().contains("pay.sh")));
        });
    });
}
