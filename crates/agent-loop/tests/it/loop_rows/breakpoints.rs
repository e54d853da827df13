//! Breakpoints, snapshots, and going on from them.

use expect_test::expect;
use serde_json::json;
use stepfold_agent_loop::state_core::state::{Handler, Schema};
use stepfold_agent_loop::tools::ResultSource;
use stepfold_agent_loop::{Agent, AgentBuilder, Breakpoint, Exit, LoadError, Pause, Run};

use super::kit::*;

const SCRIPT: &str = r#"
assistant: > c1 search()
assistant: > c2 fetch(id=3)   > c3 search()
assistant: > c4 fetch(id=4)
assistant: area 4
"#;

/// Every tool counts itself in the state, and notes that it ran.
fn counting(notes: &Notes) -> AgentBuilder {
    let schema = Schema::builder().key::<i64>("visits").handler(Handler::sum()).build().unwrap();
    let counts = |name: &'static str| {
        let notes = notes.clone();
        let ran = move |_: &serde_json::Value| {
            notes.add(name);
            Ok(json!(1))
        };
        tool(name, ran).output_to_state("visits", ResultSource::Whole).build().unwrap()
    };
    Agent::builder(script(SCRIPT)).schema(schema).tools([counts("search"), counts("fetch")])
}

fn at(breakpoint: Breakpoint) -> Exit {
    Exit::Paused(Pause::Breakpoint(breakpoint))
}

async fn uninterrupted() -> (String, String) {
    let outcome = play(&counting(&Notes::default()).build().unwrap(), "where?", |run| run).await.unwrap();
    (outcome.run().digest(), outcome.transcript().to_string())
}

#[tokio::test]
async fn breakpoint_before_the_model() {
    let agent = counting(&Notes::default()).build().unwrap();
    for visit in 1..=4 {
        let breakpoint = Breakpoint::model().visit(visit);
        let paused = play(&agent, "where?", |run| run.break_at(breakpoint.clone())).await.unwrap();
        assert_eq!((paused.exit(), paused.steps()), (&at(breakpoint.clone()), visit - 1));
        // The same breakpoint does not stop it again.
        let outcome = go_on(reloaded(&paused), |run| run.break_at(breakpoint)).await.unwrap();
        assert_eq!((outcome.run().digest(), outcome.transcript().to_string()), uninterrupted().await);
    }
}

/// Nothing of the reply has run then; to continue does not ask the model again.
#[tokio::test]
async fn breakpoint_before_a_tool() {
    for (tool, visit, steps, ran) in
        [("search", 1, 1, 0), ("search", 2, 2, 1), ("fetch", 1, 2, 1), ("fetch", 2, 3, 3)]
    {
        let notes = Notes::default();
        let agent = counting(&notes).build().unwrap();
        let breakpoint = Breakpoint::tool(tool).visit(visit);
        let paused = play(&agent, "where?", |run| run.break_at(breakpoint.clone())).await.unwrap();
        assert_eq!((paused.exit(), paused.steps()), (&at(breakpoint.clone()), steps));
        assert_eq!(notes.text().lines().count(), ran, "{breakpoint}");
        let stored = paused.run().to_json();
        let asked = Asked::new(script(SCRIPT));
        let watched = agent.to_builder().model(asked.clone()).build().unwrap();
        let outcome = go_on(Run::load(&watched, &stored).unwrap(), |run| run).await.unwrap();
        assert_eq!((outcome.run().digest(), outcome.transcript().to_string()), uninterrupted().await);
        assert_eq!(asked.requests().len() as u64, 4 - steps);
        assert_eq!(notes.text().lines().count(), 4, "{breakpoint}");
    }
}

#[tokio::test]
async fn breakpoint_that_is_never_reached() {
    let agent = counting(&Notes::default()).build().unwrap();
    for breakpoint in
        [Breakpoint::tool("search").visit(3), Breakpoint::model().visit(5), Breakpoint::tool("x")]
    {
        let outcome = play(&agent, "where?", |run| run.break_at(breakpoint)).await.unwrap();
        assert_eq!(outcome.exit(), &Exit::Text);
    }
}

/// Stepping: over a store, from the beginning to the end.
#[tokio::test]
async fn breakpoint_at_every_visit() {
    let notes = Notes::default();
    let agent = counting(&notes).build().unwrap();
    let stops = Notes::default();
    let mut run = Run::new(&agent, "where?", "run").unwrap();
    let outcome = loop {
        let outcome = go_on(run, |run| {
            run.break_at(Breakpoint::model().every()).break_at(Breakpoint::tool("fetch").every())
        })
        .await
        .unwrap();
        stops.add(format!("{} ({} messages)", outcome.exit(), outcome.transcript().len()));
        if !outcome.exit().is_resumable() {
            break outcome;
        }
        run = reloaded(&outcome);
    };
    expect![[r#"
        the run stopped before the model, every visit (1 messages)
        the run stopped before the model, every visit (3 messages)
        the run stopped before tool 'fetch', every visit (4 messages)
        the run stopped before the model, every visit (6 messages)
        the run stopped before tool 'fetch', every visit (7 messages)
        the run stopped before the model, every visit (8 messages)
        the model answered (9 messages)
    "#]]
    .assert_eq(&stops.text());
    assert_eq!((outcome.run().digest(), outcome.transcript().to_string()), uninterrupted().await);
    assert_eq!(notes.text().lines().count(), 4);
}

/// Each continues by itself.
#[tokio::test]
async fn snapshot_is_resumed_several_times() {
    let notes = Notes::default();
    let agent = counting(&notes).build().unwrap();
    let paused = play(&agent, "where?", |run| run.break_at(Breakpoint::tool("fetch"))).await.unwrap();
    let stored = paused.run().to_json();
    for _ in 0..3 {
        let outcome = go_on(Run::load(&agent, &stored).unwrap(), |run| run).await.unwrap();
        assert_eq!(outcome.run().digest(), uninterrupted().await.0);
    }
    assert_eq!(notes.count("search") + notes.count("fetch"), 1 + 3 * 3);
}

#[tokio::test]
async fn snapshot_of_a_changed_agent() {
    let agent = counting(&Notes::default()).build().unwrap();
    let paused = play(&agent, "where?", |run| run.break_at(Breakpoint::model().visit(2))).await.unwrap();
    let stored = paused.run().to_json();
    let changed =
        agent.to_builder().instructions("Be brief.").max_steps(7).only_tools(["search"]).build().unwrap();
    let error = Run::load(&changed, &stored).unwrap_err();
    expect!["agent changed since the run was stored: limits changed; tool fetch is gone; instructions is new; force it with `load_changed`"].assert_eq(&error.to_string());
    let (run, differences) = Run::load_changed(&changed, &stored).unwrap();
    assert_eq!(differences.len(), 3);
    let ended = go_on(run, |run| run).await;
    expect![[r#"
        user:      where?
        assistant: > c1 search()
        tool c1:   1
        assistant: > c2 fetch(id=3)   > c3 search()
        tool c2!:  unknown tool 'fetch'; available: search
        tool c3:   1
        assistant: > c4 fetch(id=4)
        tool c4!:  unknown tool 'fetch'; available: search
        assistant: area 4
        --
        exit: the model answered
        steps: 4, calls: fetch 2, search 2
        state: {"visits":2}
    "#]]
    .assert_eq(&shown(&ended));
}

#[tokio::test]
async fn snapshot_of_another_schema() {
    let agent = counting(&Notes::default()).build().unwrap();
    let paused = play(&agent, "where?", |run| run.break_at(Breakpoint::model().visit(2))).await.unwrap();
    let schema = Schema::builder().key::<String>("visits").build().unwrap();
    let changed = Agent::builder(script(SCRIPT)).schema(schema).build().unwrap();
    let error = Run::load_changed(&changed, &paused.run().to_json()).unwrap_err();
    assert!(matches!(error, LoadError::State(_)), "{error:?}");
    expect![[r#"invalid state of the stored run: invalid value for key "visits": expected string, found integer at $"#]].assert_eq(&chain(&error));
}

#[tokio::test]
async fn snapshot_of_a_newer_version_or_of_nothing() {
    let agent = counting(&Notes::default()).build().unwrap();
    for (json, expected) in [
        (
            r#"{"version": 3, "what": "ever"}"#,
            expect!["unsupported format 3 of the stored run: this version reads up to 2; update stepfold"],
        ),
        (r#"{"version": 1}"#, expect!["invalid stored run: missing field `id` at line 1 column 14"]),
        ("", expect!["invalid stored run: EOF while parsing a value at line 1 column 0"]),
    ] {
        expected.assert_eq(&chain(&Run::load(&agent, json).unwrap_err()));
    }
}

/// Under names that cannot collide, whole or not at all.
#[tokio::test]
async fn snapshot_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let agent = counting(&Notes::default()).build().unwrap();
    let paused = play(&agent, "where?", |run| run.break_at(Breakpoint::tool("fetch"))).await.unwrap();
    let paths = [(); 2].map(|()| paused.run().save_in(folder.path()).unwrap());
    assert_ne!(paths[0], paths[1]);
    for path in &paths {
        let outcome = go_on(Run::load_file(&agent, path).unwrap(), |run| run).await.unwrap();
        assert_eq!(outcome.run().digest(), uninterrupted().await.0);
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "no temporary file is left");
    let error = Run::load_file(&agent, folder.path().join("none.json")).unwrap_err();
    assert!(error.to_string().contains("none.json could not be read: "), "{error}");
}
