//! Idempotency keys: no two calls share one, in whatever life of whatever fork they are made.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use stepfold_graph::{AgentNode, END, Graph, NodeContext, NodeError, START, Update};
use stepfold_runner::SessionHandle;
use stepfold_runner::agent_loop::test_kit::Script;
use stepfold_runner::agent_loop::{Agent, Decision, Decisions, Exit, Pause};
use stepfold_runner::session_scopes::{DeleteSession, EventRange, SessionStore};
use stepfold_tools::{Approval, Effect, Tool, ToolContext, ToolError};

use crate::world::{World, each_store, process};

/// The keys that were handed out.
#[derive(Clone, Default)]
struct Keys(Arc<Mutex<Vec<String>>>);

impl Keys {
    fn note(&self, key: &str) {
        self.0.lock().unwrap().push(key.to_owned());
    }

    /// How many there are, if each was handed out once.
    fn distinct(&self) -> usize {
        let keys = self.0.lock().unwrap();
        let mut seen = HashSet::new();
        for key in &*keys {
            assert!(seen.insert(key), "two calls share the key {key}");
        }
        keys.len()
    }

    /// A tool that takes its key, and one more for an effect of its own.
    fn tool(&self, name: &str) -> Tool {
        let keys = self.clone();
        let function = move |context: ToolContext| {
            keys.note(context.idempotency_key());
            keys.note(&context.key_for("mail"));
            async { Ok::<_, ToolError>(json!("done")) }
        };
        Tool::new(name, "Does what its name says.", function).effect(Effect::Pure).build().unwrap()
    }

    /// An agent that makes two steps with a call each.
    fn worker(&self) -> Agent {
        let model = Script::parse("assistant: > c1 look()\nassistant: > c2 look()\nassistant: done").unwrap();
        Agent::builder(model).name("worker").tools([self.tool("look")]).build().unwrap()
    }
}

async fn session(world: &World, agent: impl Into<Agent>) -> SessionHandle {
    let runner = world.runner(agent.into()).build();
    runner.session("ada", "s1").await.unwrap()
}

async fn version(session: &SessionHandle) -> u64 {
    session.read(EventRange::None).await.unwrap().version
}

/// Approves until nothing is pending; an invocation that has ended is left alone.
async fn finish(session: &SessionHandle) {
    while let Ok(pending) = session.pending().await
        && session.last_run().await.unwrap().is_some_and(|run| run.exit().is_none())
    {
        let approve: Decisions = pending.into_iter().map(|request| (request.id, Decision::Approve)).collect();
        session.resume().decide_all(approve).await.unwrap();
    }
}

/// Forks the session at each of its versions, continues with each fork, and gives them.
async fn fork_everywhere(session: &SessionHandle, name: &str) -> Vec<SessionHandle> {
    let mut forks = Vec::new();
    for at in 0..=version(session).await {
        let fork = session.fork(format!("{name}-{at}"), Some(at)).await.unwrap();
        finish(&fork).await;
        forks.push(fork);
    }
    forks
}

/// A node with a key, an agent beside another one, and a graph with an agent inside.
fn graph(keys: &Keys) -> Graph {
    let plan = {
        let keys = keys.clone();
        move |node: NodeContext| {
            keys.note(node.idempotency_key());
            async { Ok::<_, NodeError>(Update::new()) }
        }
    };
    let inner = Graph::builder("inner")
        .node("work", AgentNode::new(keys.worker()).asks("do the rest"))
        .chain([START, "work", END])
        .build()
        .unwrap();
    Graph::builder("clerk")
        .node("plan", plan)
        .node("work", AgentNode::new(keys.worker()).asks("do {item}"))
        .node("rest", AgentNode::new(inner))
        .edge(START, "plan")
        .fan_out_with("plan", "work", |_| vec![json!("this"), json!("that")])
        .chain(["work", "rest", END])
        .build()
        .unwrap()
}

#[test]
fn forks_of_a_graph_have_keys_of_their_own_in_their_agents_too() {
    each_store(|world| {
        process(async {
            let keys = Keys::default();
            let session = session(world, graph(&keys)).await;
            session.run("go").await.unwrap();
            assert_eq!(keys.distinct(), 1 + 3 * 4);
            for fork in fork_everywhere(&session, "fork").await {
                assert!(fork.last_run().await.unwrap().is_none_or(|run| run.exit().is_some()));
            }
            assert!(keys.distinct() > 100, "{}", keys.distinct());
        });
    });
}

#[test]
fn forks_of_forks_have_keys_of_their_own() {
    each_store(|world| {
        process(async {
            let keys = Keys::default();
            let session = session(world, graph(&keys)).await;
            session.run("go").await.unwrap();
            // In the middle of an agent's run, so that the fork and its fork both continue with it.
            for at in [4, 8, 15] {
                let fork = session.fork(format!("fork-{at}"), Some(at)).await.unwrap();
                let again = fork.fork(format!("fork-{at}-again"), None).await.unwrap();
                finish(&fork).await;
                finish(&again).await;
                fork_everywhere(&fork, &format!("of-{at}")).await;
            }
            assert!(keys.distinct() > 100, "{}", keys.distinct());
        });
    });
}

/// An agent whose tool is an agent, which asks before it does anything.
fn boss(keys: &Keys) -> Agent {
    let tools = [keys.tool("look"), keys.tool("pay")];
    let model = Script::parse("assistant: > c1 look()  > c2 pay()\nassistant: paid").unwrap();
    let asks = Approval::when(|_| true);
    let clerk = Agent::builder(model).name("clerk").tools(tools).approval(asks).build().unwrap();
    let model = Script::parse("assistant: > c1 clerk(task=\"pay\")\nassistant: done").unwrap();
    let clerk = clerk.as_tool("clerk", "Pays.").build().unwrap();
    Agent::builder(model).name("boss").tools([clerk]).build().unwrap()
}

#[test]
fn forks_of_a_suspended_tool_have_keys_of_their_own() {
    each_store(|world| {
        process(async {
            let keys = Keys::default();
            let session = session(world, boss(&keys)).await;
            let outcome = session.run("pay the bill").await.unwrap();
            assert_eq!(outcome.exit(), &Exit::Paused(Pause::Approval));
            fork_everywhere(&session, "before").await;
            finish(&session).await;
            fork_everywhere(&session, "after").await;
            assert!(keys.distinct() >= 20, "{}", keys.distinct());
        });
    });
}

/// The same where the agent with the suspended tool is a node of a graph.
#[test]
fn forks_of_a_suspended_tool_inside_a_graph_have_keys_of_their_own() {
    each_store(|world| {
        process(async {
            let keys = Keys::default();
            let graph = Graph::builder("office")
                .node("pay", AgentNode::new(boss(&keys)).asks("pay {item}"))
                .fan_out_with(START, "pay", |_| vec![json!("this"), json!("that")])
                .edge("pay", END)
                .build()
                .unwrap();
            let session = session(world, graph).await;
            session.run("pay").await.unwrap();
            finish(&session).await;
            fork_everywhere(&session, "fork").await;
            assert!(keys.distinct() >= 40, "{}", keys.distinct());
        });
    });
}

#[test]
fn a_fork_made_again_under_a_deleted_id_has_keys_of_its_own() {
    each_store(|world| {
        for agent in [|keys: &Keys| graph(keys).into(), |keys: &Keys| boss(keys), |keys: &Keys| keys.worker()]
        {
            let keys = Keys::default();
            process(async {
                let runner = world.runner(agent(&keys)).build();
                let original = runner.session("ada", "original").await.unwrap();
                original.run("go").await.unwrap();
                finish(&original).await;
                for at in 0..=version(&original).await {
                    for _ in 0..2 {
                        let fork = original.fork("fork", Some(at)).await.unwrap();
                        finish(&fork).await;
                        runner.store().delete(DeleteSession::new(fork.key().clone())).await.unwrap();
                    }
                }
                runner.store().delete(DeleteSession::new(original.key().clone())).await.unwrap();
                assert!(keys.distinct() > 20, "{}", keys.distinct());
            });
        }
    });
}

/// What a run is called is the same in a fork, wherever the fork begins: its agents' runs, too.
#[test]
fn a_fork_made_before_its_agent_node_began_replays() {
    each_store(|world| {
        process(async {
            let keys = Keys::default();
            let session = session(world, graph(&keys)).await;
            session.run("go").await.unwrap();
            for fork in fork_everywhere(&session, "fork").await {
                let runs = fork.replay(graph(&keys).agent()).await.unwrap();
                let began = !fork.read(EventRange::All).await.unwrap().events.is_empty();
                assert_eq!(runs, usize::from(began));
                let again = fork.fork(format!("{}-again", fork.key().id), None).await.unwrap();
                assert_eq!(again.replay(graph(&keys).agent()).await.unwrap(), runs);
            }
        });
    });
}

/// A snapshot that a fork has of a child's run says nothing about whose keys it has.
#[test]
fn a_stored_run_keeps_its_keys() {
    let keys = Keys::default();
    process(async {
        let agent = boss(&keys);
        let paused = agent.run("pay").id("run-1").key_prefix("life-1").await.unwrap();
        let stored = paused.run().to_json();
        assert_eq!(serde_json::from_str::<Value>(&stored).unwrap()["key_prefix"], "life-1");
        for life in ["life-1", "life-2"] {
            let run = stepfold_runner::agent_loop::Run::load(&agent, &stored).unwrap();
            let run = if life == "life-2" { run.with_key_prefix(life) } else { run };
            let pending = run.pending().into_iter().map(|request| (request.id, Decision::Approve));
            let decisions: Vec<_> = pending.collect();
            run.resume().decide_all(decisions).await.unwrap();
        }
    });
    assert_eq!(keys.distinct(), 2 * 4);
    assert!(keys.0.lock().unwrap().iter().all(|key| key.starts_with("life-")));
}
