//! Two hundred sessions of seven versions of an agent, through one deployment.

use std::collections::BTreeMap;

use expect_test::expect;
use stepfold_runner::agent_loop::{Agent, AgentBuilder, Decision, Exit};
use stepfold_runner::{RunnerErrorKind, WhenChanged};
use stepfold_tools::{Approval, Effect};

use crate::world::{World, each_store, process};

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
