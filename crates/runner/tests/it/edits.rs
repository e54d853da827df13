//! Edits from outside: of a paused run, in a fork, between runs; once under a key, whatever happens in between.

use std::sync::{Arc, Mutex};

use expect_test::expect;
use std::fmt::Write as _;
use std::future::IntoFuture as _;

use futures_util::{StreamExt, TryStreamExt};
use serde_json::json;
use stepfold_runner::agent_loop::{
    AgentBuilder, Decision, Edit, EditError, Exit, Input, Observer, ObserverError, Pause, RunEvent,
};
use stepfold_runner::session_scopes::{EventRange, SessionError};
use stepfold_runner::{
    Remedy, RunnerError, RunnerErrorKind, SessionChange, SessionHandle, WatchScope, WhenChanged,
};
use stepfold_tools::{Approval, Effect};

use crate::world::{Fault, World, each_store, id_at, paths, process, shown};

const SCRIPT: &str = "\
assistant: > c1 look()
assistant: > c2 send(to=\"Bob\")  > c3 look()
assistant: done
assistant: you are welcome
";

fn agent(world: &World) -> AgentBuilder {
    let send = world.tool("send", Effect::AtMostOnce).approval(Approval::Always);
    let send = send.parameters(json!({
        "properties": {"to": {"type": "string"}, "topic": {"type": "string"}}, "type": "object",
    }));
    let send = send.default_from_state("topic", "topic").build().unwrap();
    let look = world.tool("look", Effect::Pure).build().unwrap();
    world.agent(SCRIPT).tools(vec![send, look])
}

/// A process that has asked, and is gone.
fn asked(world: &World) {
    process(async {
        let input = Input::new().say("send letters").with_values(json!({"topic": "stalls"}));
        let outcome = world.session(agent(world)).await.run(input).await.unwrap();
        assert_eq!(paths(&outcome.pending()), ["c2"]);
        world.trace.take();
    });
}

async fn approve(session: &SessionHandle) -> Exit {
    let id = id_at(session, "c2").await;
    session.resume().decide(id, Decision::Approve).await.unwrap().exit().clone()
}

/// The kinds of the session's events after a version.
async fn kinds(session: &SessionHandle, after: u64) -> Vec<String> {
    let events = session.read(EventRange::AfterVersion(after)).await.unwrap().events;
    events.iter().map(|event| event.event.kind.to_string()).collect()
}

async fn version(session: &SessionHandle) -> u64 {
    session.read(EventRange::None).await.unwrap().version
}

fn edit() -> Edit {
    Edit::new()
        .set("topic", "rows")
        .set("n", 7)
        .merge("log", json!(["edited"]))
        .result("c1", "nothing there")
        .by("ada")
}

#[test]
fn a_paused_run_is_edited_and_continues_in_another_process() {
    each_store(|world| {
        asked(world);
        process(async {
            let session = world.session(agent(world)).await;
            let before = version(&session).await;
            let receipt = session.edit(edit()).await.unwrap();
            assert_eq!(
                (receipt.version, receipt.by.as_deref(), receipt.is_of_run),
                (before + 1, Some("ada"), true)
            );
            assert_eq!(kinds(&session, before).await, ["edited"]);
            let [recorded] = &*session.edits().await.unwrap() else { panic!("one edit") };
            assert_eq!((&recorded.edit, recorded.version), (&edit(), receipt.version));
        });
        process(async {
            let session = world.session(agent(world)).await;
            assert_eq!(session.state().await.unwrap().get("topic").unwrap(), json!("rows"));
            // What was approved by the old value is asked about again, by the new one.
            let first = id_at(&session, "c2").await;
            let asked = session.resume().decide(&*first, Decision::Approve).await.unwrap();
            assert_eq!(asked.exit(), &Exit::Paused(stepfold_runner::agent_loop::Pause::Approval));
            assert_ne!(asked.pending()[0].id, first);
            let inputs = serde_json::to_value(&asked.pending()[0].inputs_from_state).unwrap();
            assert_eq!(inputs[0]["value"], "rows");
            assert_eq!(approve(&session).await, Exit::Text);
            expect![[r#"
                user:      send letters
                assistant: > c1 look()
                tool c1:   nothing there
                assistant: > c2 send(to="Bob")   > c3 look()
                tool c2:   send is done
                tool c3:   look is done
                assistant: done
                app:n = 3
                log = ["look","edited","send","look"]
                n = 9
                topic = "rows"
                user:n = 3
            "#]]
            .assert_eq(&shown(&session).await);
            assert_eq!(session.replay(&agent(world).build().unwrap()).await.unwrap(), 1);
        });
    });
}

/// In the process that has the run in memory the result is the same, and values that only that process has are kept.
#[test]
fn a_run_in_memory_is_edited_as_one_that_is_restored() {
    each_store(|world| {
        process(async {
            let agent = || agent(world).instructions("About {topic}, {temp:note?}.");
            let session = world.session(agent()).await;
            let values = json!({"topic": "stalls", "temp:note": "soon"});
            session.run(Input::new().say("send letters").with_values(values)).await.unwrap();
            session.edit(edit()).await.unwrap();
            let fork = session.fork("s2", None).await.unwrap();
            let ended = [approve_twice(&session).await, approve_twice(&fork).await];
            assert_eq!(ended[0].0, ended[1].0);
            assert_eq!((&*ended[0].1, &*ended[1].1), ("\"soon\"", "none"));
            for session in [&session, &fork] {
                assert_eq!(session.replay(&agent().build().unwrap()).await.unwrap(), 1);
            }
            let comparison = session.compare(&fork).await.unwrap();
            assert_eq!(comparison.left.first().unwrap().event.kind.as_str(), "decided");
            assert!(comparison.state.is_empty(), "{}", comparison.state);
        });
    });
}

/// The conversation, and a value that does not last.
async fn approve_twice(session: &SessionHandle) -> (String, String) {
    approve(session).await;
    let id = id_at(session, "c2").await;
    let outcome = session.resume().decide(id, Decision::Approve).await.unwrap();
    assert_eq!(outcome.exit(), &Exit::Text);
    let note =
        outcome.state().get("temp:note").map_or_else(|| "none".to_owned(), |note| note.to_json().to_string());
    (outcome.transcript().to_string(), note)
}

/// At every version of a session: where a run is open there the edit is of that run, and the fork continues with it.
#[test]
fn a_fork_is_edited_at_any_version() {
    each_store(|world| {
        asked(world);
        process(async {
            let session = world.session(agent(world)).await;
            approve(&session).await;
            session.run("thanks").await.unwrap();
            let newest = version(&session).await;
            let mut said = String::new();
            for at in 0..=newest {
                let fork = session.fork(format!("f{at}"), Some(at)).await.unwrap();
                let kind = session.read(EventRange::All).await.unwrap().events;
                let kind =
                    kind.iter().find(|event| event.version == at).map(|event| event.event.kind.to_string());
                let both = fork.edit(Edit::new().set("topic", "rows").result("c1", "nothing there")).await;
                let only = fork.edit(Edit::new().set("topic", "rows")).await.unwrap();
                let both = both.map(|receipt| receipt.version).map_err(|error| error.to_string());
                let kind = kind.unwrap_or_default();
                writeln!(said, "{at} {kind}: {both:?}, of a run: {}", only.is_of_run).unwrap();
                assert_eq!(fork.state().await.unwrap().get("topic").unwrap(), json!("rows"));
                if only.is_of_run {
                    while let Some(id) =
                        fork.pending().await.unwrap().first().map(|request| request.id.clone())
                    {
                        fork.resume().decide(id, Decision::Approve).await.unwrap();
                    }
                    if fork.unfinished().await.unwrap().is_some() {
                        let outcome = fork.resume().await.unwrap();
                        if let Some(request) = outcome.pending().first() {
                            fork.resume().decide(&*request.id, Decision::Approve).await.unwrap();
                        }
                    }
                    assert!(fork.unfinished().await.unwrap().is_none());
                }
                fork.replay(&agent(world).build().unwrap()).await.unwrap();
            }
            expect![[r#"
                0 : Err("session stalls/ada/f0: invalid edit of call `c1`: no run is open; fork the session at a version within the run"), of a run: false
                1 began: Err("session stalls/ada/f1: unknown call `c1`; calls with a result: none"), of a run: true
                2 replied: Err("session stalls/ada/f2: invalid edit of the result of call `c1`: it has not run yet; reject it, or let it run"), of a run: true
                3 answered: Ok(4), of a run: true
                4 replied: Ok(5), of a run: true
                5 decided: Ok(6), of a run: true
                6 started: Ok(7), of a run: true
                7 answered: Ok(8), of a run: true
                8 answered: Ok(9), of a run: true
                9 replied: Err("session stalls/ada/f9: invalid edit of call `c1`: no run is open; fork the session at a version within the run"), of a run: false
                10 began: Ok(11), of a run: true
                11 replied: Err("session stalls/ada/f11: invalid edit of call `c1`: no run is open; fork the session at a version within the run"), of a run: false
            "#]].assert_eq(&said);
        });
    });
}

/// From before a call, with other arguments: what ended before is not run again, and the session itself is as it was.
#[test]
fn a_fork_continues_with_other_arguments_of_a_call() {
    each_store(|world| {
        process(async {
            let agent = || {
                let send = world.tool("send", Effect::AtMostOnce).parameters(json!({
                    "properties": {"to": {"type": "string"}}, "type": "object",
                }));
                let send = send.approval(Approval::when(|arguments| arguments["to"] == "Eve"));
                world
                    .agent(SCRIPT)
                    .tools([send.build().unwrap(), world.tool("look", Effect::Pure).build().unwrap()])
            };
            let session = world.session(agent()).await;
            assert_eq!(session.run("send letters").await.unwrap().exit(), &Exit::Text);
            let own = async || {
                let all = shown(&session).await;
                let own = all.lines().filter(|line| !line.starts_with("app:") && !line.starts_with("user:"));
                (version(&session).await, own.collect::<Vec<_>>().join("\n"))
            };
            let before = own().await;
            world.trace.take();

            let to = |name: &str| Edit::new().arguments("c2", json!({"to": name})).by("ada");
            let fork = session.fork_with("s2", Some(4), to("Ann")).await.unwrap();
            let [recorded] = &*fork.edits().await.unwrap() else { panic!("one edit") };
            assert_eq!((&recorded.edit, recorded.version), (&to("Ann"), 5));
            assert_eq!(fork.resume().await.unwrap().exit(), &Exit::Text);
            let trace = world.trace.take().join("\n");
            assert_eq!(trace.matches("send{\"to\":\"Ann\"}").count(), 1, "{trace}");
            assert!(!trace.contains("Bob") && trace.matches("look").count() == 1, "{trace}");
            assert_eq!(fork.replay(&agent().build().unwrap()).await.unwrap(), 1);
            assert_eq!(own().await, before);

            // The rule of the tool sees the new arguments.
            let fork = session.fork_with("s3", Some(4), to("Eve")).await.unwrap();
            assert_eq!(paths(&fork.resume().await.unwrap().pending()), ["c2"]);
            assert_eq!(world.trace.take().join("\n").matches("send").count(), 0);
            assert_eq!(approve(&fork).await, Exit::Text);
            assert_eq!(fork.replay(&agent().build().unwrap()).await.unwrap(), 1);

            // What does not fit makes no fork.
            let wrong = Edit::new().arguments("c2", json!("Ann"));
            let late = Edit::new().arguments("c2", json!({"to": "Ann"}));
            for (at, edit) in [(4, wrong), (before.0, late)] {
                let error = session.fork_with("s4", Some(at), edit).await.unwrap_err();
                assert!(matches!(error.kind, RunnerErrorKind::Edit { .. }), "{error:?}");
                let runner = world.runner(agent().build().unwrap()).build();
                assert!(runner.find_session("ada", "s4").await.unwrap().is_none());
            }
            world.trace.take();
        });
    });
}

#[test]
fn values_are_written_between_runs() {
    each_store(|world| {
        process(async {
            let session = world.session(agent(world)).await;
            let first = session.edit(Edit::new().set("topic", "rows").merge("n", 2)).await.unwrap();
            assert_eq!((first.version, first.is_of_run), (1, false));
            let edit = Edit::new().merge("n", 2).by("ada").with_idempotency_key("click-1");
            let second = session.edit(edit.clone()).await.unwrap();
            assert_eq!(session.edit(edit.clone()).await.unwrap(), second);
            assert_eq!(kinds(&session, 0).await, ["state", "state"]);
            let recorded = session.edits().await.unwrap();
            assert_eq!((&recorded[0].edit, recorded[0].version), (&edit, 2));
            session.run("send letters").await.unwrap();
            assert_eq!(approve(&session).await, Exit::Text);
            session.edit(Edit::new().remove("topic")).await.unwrap();
            assert_eq!(session.state().await.unwrap().get("topic"), None);
            assert_eq!(session.replay(&agent(world).build().unwrap()).await.unwrap(), 1);
            let error = session.edit(Edit::new().result("c1", 1)).await.unwrap_err();
            assert_eq!(
                error.to_string(),
                "session stalls/ada/s1: invalid edit of call `c1`: no run is open; fork \
                 the session at a version within the run",
            );
        });
    });
}

#[test]
fn what_does_not_fit_changes_nothing() {
    each_store(|world| {
        asked(world);
        process(async {
            let session = world.session(agent(world)).await;
            let before = version(&session).await;
            let mut said = Vec::new();
            let edits = [
                Edit::new(),
                Edit::new().set("n", "many"),
                Edit::new().set("temp:note", "x"),
                Edit::new().set("other", 1),
                Edit::new().result("c9", 1),
                Edit::new().set("n", 1).result("c2", 1),
                Edit::new().result("c3", 1),
            ];
            for edit in edits {
                let error = session.edit(edit).await.unwrap_err();
                assert_eq!(error.remedy(), Remedy::Never);
                said.push(error.to_string());
            }
            expect![[r#"
                session stalls/ada/s1: invalid edit: it changes nothing; set a value, a result or arguments
                session stalls/ada/s1: invalid value for key "n": expected integer, found string at $
                session stalls/ada/s1: invalid edit of `temp:note`: values of `temp:` keys are not stored; give them with the input of a run
                session stalls/ada/s1: unknown key "other"; known keys: app:n, log, n, temp:note, topic, user:n, messages
                session stalls/ada/s1: unknown call `c9`; calls with a result: c1
                session stalls/ada/s1: invalid edit of the result of call `c2`: it waits for a decision; decide about it
                session stalls/ada/s1: invalid edit of the result of call `c3`: it has not run yet; reject it, or let it run"#]].assert_eq(&said.join("\n"));
            assert_eq!(version(&session).await, before);
            assert_eq!(approve(&session).await, Exit::Text);
        });
    });
}

/// A version that a person was shown, and that is not the newest any more.
#[test]
fn an_edit_of_an_expected_version_conflicts_with_another() {
    each_store(|world| {
        asked(world);
        process(async {
            let session = world.session(agent(world)).await;
            let seen = version(&session).await;
            let edit = || session.edit(Edit::new().set("topic", "rows").with_idempotency_key("click-1"));
            let first = edit().expected_version(seen).await.unwrap();
            // The same click is a repeat, whatever it expected.
            assert_eq!(edit().expected_version(seen).await.unwrap(), first);
            let late =
                session.edit(Edit::new().set("topic", "areas")).expected_version(seen).await.unwrap_err();
            let RunnerError { kind: RunnerErrorKind::Conflict { source, .. }, .. } = &late else {
                panic!("{late:?}")
            };
            assert!(
                matches!(**source, SessionError::Conflict { expected, actual, .. } if (expected, actual) == (seen, seen + 1)),
                "{source}"
            );
            assert_eq!(late.remedy(), Remedy::Retry);

            // Another worker edits between the look and the append: without a version it is edited after that one.
            let other = world.runner(agent(world).build().unwrap()).worker("other").unwrap().build();
            let other = other.session("ada", "s1").await.unwrap();
            let between = other.clone();
            world.wire.before(0, async move {
                between.edit(Edit::new().set("n", 5)).await.unwrap();
            });
            session.edit(Edit::new().merge("n", 1)).await.unwrap();
            assert_eq!(kinds(&session, seen).await, ["edited", "edited", "edited"]);
            assert_eq!(other.state().await.unwrap().get("n").unwrap(), json!(6));
            let (between, seen) = (other, seen + 3);
            world.wire.before(0, async move {
                between.edit(Edit::new().set("n", 5)).await.unwrap();
            });
            let late = session.edit(Edit::new().merge("n", 1)).expected_version(seen).await.unwrap_err();
            assert!(matches!(late.kind, RunnerErrorKind::Conflict { .. }), "{late:?}");
        });
    });
}

/// Under a key an edit is made once: sent twice, late, by two processes at once; again after a rewind that hid it.
#[test]
fn an_edit_under_a_key_is_made_once() {
    each_store(|world| {
        asked(world);
        process(async {
            let worker =
                |name: &str| world.runner(agent(world).build().unwrap()).worker(name).unwrap().build();
            let session = worker("first").session("ada", "s1").await.unwrap();
            let other = worker("second").session("ada", "s1").await.unwrap();
            let before = version(&session).await;
            let keyed = || edit().with_idempotency_key("click-1");
            let twin = other.clone();
            world.wire.before(0, async move {
                twin.edit(edit().by("bob").with_idempotency_key("click-1")).await.unwrap();
            });
            let receipt = session.edit(keyed()).await.unwrap();
            assert_eq!((receipt.by.as_deref(), receipt.version), (Some("bob"), before + 1));
            assert_eq!(other.edit(keyed()).await.unwrap(), receipt);
            let error = other.edit(keyed().set("n", 8)).await.unwrap_err();
            let RunnerError { kind: RunnerErrorKind::Edit { error, .. }, .. } = error else {
                panic!("{error:?}")
            };
            assert!(matches!(&*error, EditError::KeyReused { .. }), "{error}");
            // Late: the run has gone on and ended.
            approve(&session).await;
            approve(&session).await;
            assert_eq!(other.edit(keyed()).await.unwrap(), receipt);
            assert_eq!(kinds(&session, before).await.iter().filter(|kind| *kind == "edited").count(), 1);
            // It is hidden, and no run is open: what fits there is created again.
            session.rewind(before).await.unwrap();
            let error = session.edit(keyed()).await.unwrap_err();
            assert!(matches!(error.kind, RunnerErrorKind::Edit { .. }), "{error:?}");
            let values = Edit::new().set("topic", "rows").with_idempotency_key("click-1");
            assert!(!session.edit(values).await.unwrap().is_of_run);
        });
    });
}

/// The process dies before or after the append, or hears nothing of it: sent again, it is made once.
#[test]
fn an_edit_is_made_once_wherever_the_process_dies() {
    each_store(|world| {
        for (fault, is_open) in [
            (Fault::Broken, true),
            (Fault::Busy, true),
            (Fault::Lost, true),
            (Fault::DiesBefore, true),
            (Fault::DiesAfter, true),
            (Fault::Lost, false),
            (Fault::DiesAfter, false),
        ] {
            let id = format!("{fault:?}-{is_open}");
            let session = async || {
                let runner = world.runner(agent(world).build().unwrap()).build();
                runner.session("ada", &*id).await.unwrap()
            };
            let edit = || Edit::new().set("topic", "rows").merge("n", 1).with_idempotency_key("click-1");
            let before = process(async {
                let session = session().await;
                session.run("send letters").await.unwrap();
                if !is_open {
                    session.abandon().await.unwrap();
                }
                version(&session).await
            });
            world.wire.faults([(0, fault)]);
            process(async {
                let session = session().await;
                let _ = world.wire.until_it_dies(session.edit(edit()).into_future()).await;
            });
            world.wire.faults([]);
            process(async {
                let session = session().await;
                let receipt = session.edit(edit()).await.unwrap();
                assert_eq!(receipt.version, before + 1, "{id}");
                assert_eq!(kinds(&session, before).await, [if is_open { "edited" } else { "state" }], "{id}");
                if is_open {
                    // What is approved is what was asked about, without the edited value: it is asked about again.
                    assert_eq!(approve(&session).await, Exit::Paused(Pause::Approval), "{id}");
                    assert_eq!(approve(&session).await, Exit::Text, "{id}");
                }
                session.replay(&agent(world).build().unwrap()).await.unwrap();
            });
        }
    });
}

/// Keeps what it is told.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<String>>>);

impl Observer for Told {
    async fn observe(&mut self, event: &RunEvent) -> Result<(), ObserverError> {
        if let Some(event) = event.committed() {
            self.0.lock().unwrap().push(event.name().to_owned());
        }
        Ok(())
    }
}

#[test]
fn observers_watchers_and_followers_are_reported() {
    each_store(|world| {
        process(async {
            let told = Told::default();
            let observer = told.clone();
            let runner =
                world.runner(agent(world).build().unwrap()).observe(move |_| observer.clone()).build();
            let session = runner.session("ada", "s1").await.unwrap();
            session.run("send letters").await.unwrap();
            let before = version(&session).await;
            let mut watch = runner.watch(WatchScope::All).await;
            let follow = runner.follow(session.key().clone(), before).take(1);
            session.edit(Edit::new().set("topic", "rows")).await.unwrap();
            assert_eq!(told.0.lock().unwrap().last().unwrap(), "edited");
            let Some(SessionChange::Changed { version, is_running: false, .. }) = watch.next().await else {
                panic!("a change")
            };
            assert_eq!(version, before + 1);
            let commits: Vec<_> = follow.try_collect().await.unwrap();
            assert_eq!(commits[0].event.kind.as_str(), "edited");
            assert_eq!(commits[0].event.author.as_str(), "user");
        });
    });
}

/// While the agent runs nothing is edited, and with another agent only by force.
#[test]
fn a_running_session_and_a_changed_agent_are_not_edited() {
    each_store(|world| {
        asked(world);
        process(async {
            let session = world.session(agent(world)).await;
            let invocation =
                session.resume().decide(id_at(&session, "c2").await, Decision::Approve).start().unwrap();
            tokio::task::yield_now().await;
            let error = session.edit(Edit::new().set("n", 1)).await.unwrap_err();
            assert!(matches!(error.kind, RunnerErrorKind::Busy { .. }), "{error:?}");
            assert_eq!(invocation.await.unwrap().exit(), &Exit::Text);
        });
        process(async {
            let session = world.session(agent(world)).await;
            let fork = session.fork("s2", Some(5)).await.unwrap();
            let changed = world.session(agent(world).instructions("Be brief.")).await;
            drop(changed);
            let runner = world.runner(agent(world).max_steps(3).build().unwrap());
            let runner = runner.when_changed(WhenChanged::Refuse).build();
            let changed = runner.session("ada", "s2").await.unwrap();
            let error = changed.edit(Edit::new().set("n", 1)).await.unwrap_err();
            assert!(matches!(error.kind, RunnerErrorKind::AgentChanged { .. }), "{error:?}");
            changed.edit(Edit::new().set("n", 1)).with_changed_agent().await.unwrap();
            assert_eq!(fork.state().await.unwrap().get("n").unwrap(), json!(1));
        });
    });
}

/// A fork with an edit is stored with the edit, or not at all: its process dies or its store fails before the commit or after it.
/// Then the fork is made again, or was made; and an edit of the fork under a key is made once.
async fn a_fork_with_an_edit(world: &World) {
    let origin = world.session(agent(world)).await;
    let newest = version(&origin).await;
    let faults = [Fault::Broken, Fault::Busy, Fault::Lost, Fault::DiesBefore, Fault::DiesAfter];
    // In a step that continues by itself, and in one that waits.
    for (at, fault) in [3, newest].into_iter().flat_map(|at| faults.map(|fault| (at, fault))) {
        let (id, is_made) = (format!("f{at}-{fault:?}"), matches!(fault, Fault::Lost | Fault::DiesAfter));
        let dies = matches!(fault, Fault::DiesBefore | Fault::DiesAfter);
        let runner = |name: &str| world.runner(agent(world).build().unwrap()).worker(name).unwrap().build();
        let session = runner("first").session("ada", "s1").await.unwrap();
        world.wire.faults([(0, fault)]);
        let made =
            world.wire.until_it_dies(session.fork_with(id.as_str(), Some(at), edit()).into_future()).await;
        assert_eq!(made.is_none(), dies, "{id}");
        assert!(made.is_none_or(|made| made.is_err()), "{id}");

        // Another process.
        world.wire.faults([]);
        let second = runner("second");
        let found = second.find_session("ada", &*id).await.unwrap();
        assert_eq!(found.is_some(), is_made, "{id}");
        let again = second.session("ada", "s1").await.unwrap().fork_with(id.as_str(), Some(at), edit()).await;
        match &again {
            Ok(_) => assert!(!is_made, "{id}"),
            Err(error) => assert!(is_made && error.remedy() == Remedy::Never, "{id}: {error}"),
        }
        let fork = second.find_session("ada", &*id).await.unwrap().unwrap();
        assert_eq!((version(&fork).await, &*kinds(&fork, at).await), (at + 1, &["edited".to_owned()][..]));
        assert_eq!(fork.state().await.unwrap().get("topic").unwrap(), json!("rows"));

        // Edited once under its key, also by another process.
        world.wire.faults([(0, fault)]);
        let keyed = || Edit::new().merge("n", 1).with_idempotency_key("click");
        let first = runner("third").find_session("ada", &*id).await.unwrap().unwrap();
        let _ = world.wire.until_it_dies(first.edit(keyed()).into_future()).await;
        world.wire.faults([]);
        let fork = runner("fourth").find_session("ada", &*id).await.unwrap().unwrap();
        assert_eq!(fork.edit(keyed()).await.unwrap().version, at + 2, "{id}");
        assert_eq!(kinds(&fork, at).await, ["edited", "edited"], "{id}");
        assert_eq!(fork.state().await.unwrap().get("n").unwrap(), json!(8), "{id}");
        assert_eq!(version(&origin).await, newest, "the session that was forked is as it was");
    }
    world.trace.take();
}

#[test]
fn a_fork_is_made_with_its_edit_or_not_at_all() {
    each_store(|world| {
        asked(world);
        process(a_fork_with_an_edit(world));
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fork_is_made_with_its_edit_or_not_at_all_over_postgresql() {
    let Some(server) = crate::crash::server::server() else { return };
    let store = crate::crash::store::open(&server.database("forks_with_edits").await).await;
    let world = World::over_opened(store);
    let input = Input::new().say("send letters").with_values(json!({"topic": "stalls"}));
    world.session(agent(&world)).await.run(input).await.unwrap();
    a_fork_with_an_edit(&world).await;
}
