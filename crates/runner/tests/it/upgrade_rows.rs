//! The table of the guide about changed agents, row by row: what a check says, and whether the run continues.

use std::collections::BTreeMap;

use expect_test::expect;
use serde_json::{Value, json};
use stepfold_graph::{AgentNode, END, Graph, Node, NodeContext, NodeError, START, Update};
use stepfold_runner::agent_loop::{Agent, AgentBuilder, ApprovalRequest, Decision, Exit, RunLimits};
use stepfold_runner::session_scopes::{EventRange, SessionSchema};
use stepfold_runner::{ResumeRun, RunnerBuilder, RunnerErrorKind, UpgradeStatus};
use stepfold_state_core::state::{Handler, Schema, SchemaBuilder};
use stepfold_tools::{Approval, Effect, RawArgs, Tool, ToolBuilder, ToolError, Toolset};

use crate::world::{World, process};

const SCRIPT: &str = "assistant: > c1 save()\nassistant: > c2 pay()\nassistant: done\n";

/// The keys that tools write, but for `log`.
fn counters() -> SchemaBuilder {
    let counters = ["app:n", "n", "user:n"];
    counters.into_iter().fold(Schema::builder(), |schema, key| schema.key::<u64>(key).handler(Handler::sum()))
}

fn schema() -> SchemaBuilder {
    counters().key::<Vec<String>>("log").key::<String>("topic")
}

fn pay(world: &World) -> ToolBuilder {
    let parameters = json!({"properties": {"topic": {"type": "string"}}, "type": "object"});
    world.tool("pay", Effect::AtMostOnce).parameters(parameters).approval(Approval::Always)
}

fn with_pay(world: &World, pay: ToolBuilder) -> AgentBuilder {
    let tools = [world.tool("save", Effect::Idempotent), pay];
    let schema = schema().build().unwrap();
    world.agent(SCRIPT).schema(schema).tools(tools.map(|tool| tool.build().unwrap()).to_vec())
}

/// An agent that has saved, and waits for the approval of a payment.
fn clerk(world: &World) -> AgentBuilder {
    with_pay(world, pay(world))
}

/// A change, and the agent of today.
type Row = (&'static str, fn(&World) -> AgentBuilder);

const ROWS: [Row; 20] = [
    ("nothing", clerk),
    ("instructions", |world| clerk(world).instructions("Be brief.")),
    ("limits", |world| clerk(world).limits(RunLimits::default().with_tool_calls(9))),
    ("a new tool", |world| {
        let tools = [world.tool("save", Effect::Idempotent), pay(world), world.tool("look", Effect::Pure)];
        clerk(world).tools(tools.map(|tool| tool.build().unwrap()).to_vec())
    }),
    ("a tool's description", |world| {
        clerk(world).tools(vec![
            Tool::new("save", "Saves it all.", |RawArgs(_): RawArgs| async { Ok::<_, ToolError>("") })
                .parameters(json!({"additionalProperties": true, "type": "object"}))
                .writes(["log", "n", "app:n", "user:n"])
                .effect(Effect::Idempotent)
                .build()
                .unwrap(),
            pay(world).build().unwrap(),
        ])
    }),
    ("a new key", |world| clerk(world).schema(schema().key::<u64>("more").build().unwrap())),
    ("a tool that is gone, without an open call", |world| {
        clerk(world).tools(vec![pay(world).build().unwrap()])
    }),
    ("the effect of a tool without an open call", |world| {
        let tools = [world.tool("save", Effect::AtMostOnce), pay(world)];
        clerk(world).tools(tools.map(|tool| tool.build().unwrap()).to_vec())
    }),
    ("a tool that is gone, with an open call", |world| {
        clerk(world).tools(vec![world.tool("save", Effect::Idempotent).build().unwrap()])
    }),
    ("the effect of a tool with an open call", |world| {
        with_pay(world, pay(world).effect(Effect::Idempotent))
    }),
    ("the rule of approval of a tool with an open call", |world| {
        with_pay(world, pay(world).approval(Approval::Never))
    }),
    ("the binding of a tool with an open call", |world| {
        with_pay(world, pay(world).input_from_state("topic", "topic"))
    }),
    ("the rule of approval of the agent", |world| clerk(world).approval(Approval::Always)),
    ("tools that are asked for at each step", |world| {
        let tools = [world.tool("save", Effect::Idempotent), pay(world)];
        let tools: Vec<Tool> = tools.map(|tool| tool.build().unwrap()).to_vec();
        clerk(world).tools(Toolset::dynamic_with("shop", move |_| std::future::ready(Ok(tools.clone()))))
    }),
    ("the schema of a key with a value", |world| {
        clerk(world).schema(counters().key::<Vec<Value>>("log").key::<String>("topic").build().unwrap())
    }),
    ("another type of a key with a value", |world| {
        clerk(world).schema(counters().key::<u64>("log").key::<String>("topic").build().unwrap())
    }),
    ("the handler of a key with a value", |world| {
        let log = counters().key::<Vec<String>>("log").handler(Handler::replace_values());
        clerk(world).schema(log.key::<String>("topic").build().unwrap())
    }),
    ("the schema of a key without a value", |world| {
        clerk(world).schema(counters().key::<Vec<String>>("log").key::<u64>("topic").build().unwrap())
    }),
    ("a key that is gone, without a value", |world| {
        clerk(world).schema(counters().key::<Vec<String>>("log").build().unwrap())
    }),
    ("the name of the agent", |world| clerk(world).name("cashier")),
];

/// A row of the table: the status and the reasons of the check. The run continues if the check says so.
async fn row(change: &str, before: Agent, today: RunnerBuilder, world: &World) -> String {
    let session = world.runner(before).build().session("ada", "s1").await.unwrap();
    let waiting = session.run("pay the bill").await.unwrap();
    assert_eq!(waiting.pending().len(), 1, "{change}: {:?}", waiting.exit());
    let today = today.build();
    let checked = today.check_upgrade().next().await.unwrap().unwrap();
    let session = today.session("ada", "s1").await.unwrap();
    let pending = session.pending().await.unwrap();
    let approve =
        |resume: ResumeRun, request: &ApprovalRequest| resume.decide(&*request.id, Decision::Approve);
    let resumed = pending.iter().fold(session.resume(), approve).await;
    match resumed {
        Ok(outcome) => {
            assert!(checked.continues(), "{change}: {checked:?}");
            assert!(matches!(outcome.exit(), Exit::Text | Exit::End), "{change}: {:?}", outcome.exit());
            let stored = session.read(EventRange::All).await.unwrap();
            let kinds = stored.visible_events().map(|committed| committed.event.kind.as_str());
            let upgraded = kinds.filter(|kind| *kind == "upgraded").count();
            assert_eq!(upgraded, usize::from(checked.status() != UpgradeStatus::Unchanged), "{change}");
        }
        Err(error) => {
            assert!(!checked.continues(), "{change}: {error}");
            let is_expected = match checked.status() {
                UpgradeStatus::Unreadable => matches!(error.kind, RunnerErrorKind::Store { .. }),
                _ => matches!(error.kind, RunnerErrorKind::AgentChanged { .. }),
            };
            assert!(is_expected, "{change}: {error:?}");
        }
    }
    let reasons = checked.reasons().join("; ");
    format!("{change}: {} {reasons}", checked.status()).trim_end().to_owned() + "\n"
}

#[test]
fn an_open_call() {
    let mut table = String::new();
    for (change, today) in ROWS {
        let world = World::in_memory();
        let before = clerk(&world).build().unwrap();
        let today = world.runner(today(&world).build().unwrap());
        table += &process(row(change, before, today, &world));
    }
    expect![[r#"
        nothing: unchanged
        instructions: compatible instructions is new
        limits: compatible limits changed
        a new tool: compatible tool look is new
        a tool's description: compatible tool save: description changed
        a new key: compatible state key more is new
        a tool that is gone, without an open call: compatible tool save is gone
        the effect of a tool without an open call: compatible tool save: effect changed
        a tool that is gone, with an open call: touched tool pay is gone, and call `c2` is open
        the effect of a tool with an open call: touched tool pay: effect changed, and call `c2` is open
        the rule of approval of a tool with an open call: touched tool pay: approval changed, and call `c2` is open
        the binding of a tool with an open call: touched tool pay: bindings changed, and call `c2` is open; tool pay: schema changed, and call `c2` is open
        the rule of approval of the agent: touched approval changed, and call `c2` is open
        tools that are asked for at each step: touched tool pay is gone, and call `c2` is open
        the schema of a key with a value: touched state key log changed, and key `log` has a value
        another type of a key with a value: cannot be read incompatible stored value of key "log": stored as list of string, opened as integer: expected integer, found list at $; register a migration
        the handler of a key with a value: touched state key log changed, and key `log` has a value
        the schema of a key without a value: compatible state key topic changed
        a key that is gone, without a value: compatible state key topic is gone
        the name of the agent: touched name changed, and the run is that of another agent
    "#]].assert_eq(&table);
}

#[test]
fn a_key_with_a_migration() {
    let world = World::in_memory();
    let list = || counters().key::<Value>("log");
    let today = clerk(&world).schema(list().build().unwrap()).build().unwrap();
    let schema = SessionSchema::new(list().build().unwrap()).migration("log", |old| Ok(json!({"old": old})));
    let today = world.runner(today).schema(schema);
    let row = process(row("a migration", clerk(&world).build().unwrap(), today, &world));
    expect![[r#"
        a migration: compatible state key log changed; state key topic is gone
    "#]]
    .assert_eq(&row);
}

async fn ship(_: NodeContext) -> Result<Update, NodeError> {
    Ok(Update::new().say("shipped"))
}

fn graph(nodes: &[&str], effect: Effect, worker: AgentBuilder) -> Agent {
    let mut worker = Some(AgentNode::new(worker.build().unwrap()).asks("do it"));
    let mut graph = Graph::builder("clerk").schema(schema().build().unwrap());
    for name in nodes {
        graph = match *name {
            "work" => graph.node("work", worker.take().unwrap()),
            name => graph.node(name, Node::new(ship).effect(effect)),
        };
    }
    let all = std::iter::once(START).chain(nodes.iter().copied()).chain([END]);
    graph.chain(all.collect::<Vec<_>>()).build().unwrap().into()
}

/// The branch of `work` waits for the approval of a payment; `ship` is ahead.
#[test]
fn an_open_branch() {
    type GraphRow = (&'static str, fn(&World) -> Agent);
    const NODES: [&str; 2] = ["work", "ship"];
    const ROWS: [GraphRow; 7] = [
        ("nothing", |world| graph(&NODES, Effect::Idempotent, clerk(world))),
        ("a node that is ahead", |world| graph(&NODES, Effect::AtMostOnce, clerk(world))),
        ("the edges", |world| graph(&["work", "ship", "tell"], Effect::Idempotent, clerk(world))),
        ("a node that is gone, with an open branch", |world| {
            graph(&["ship"], Effect::Idempotent, clerk(world))
        }),
        ("instructions of the agent of an open branch", |world| {
            graph(&NODES, Effect::Idempotent, clerk(world).instructions("Be brief."))
        }),
        ("an open call of the agent of an open branch", |world| {
            graph(&NODES, Effect::Idempotent, with_pay(world, pay(world).effect(Effect::Idempotent)))
        }),
        ("a tool without an open call, of the agent of an open branch", |world| {
            graph(&NODES, Effect::Idempotent, clerk(world).tools(vec![pay(world).build().unwrap()]))
        }),
    ];
    let mut table = String::new();
    for (change, today) in ROWS {
        let world = World::in_memory();
        let before = graph(&NODES, Effect::Idempotent, clerk(&world));
        let today = world.runner(today(&world));
        table += &process(row(change, before, today, &world));
    }
    expect![[r#"
        nothing: unchanged
        a node that is ahead: compatible node ship: rules changed
        the edges: touched edges changed, and branch `work` is open
        a node that is gone, with an open branch: touched edges changed, and branch `work` is open; node work is gone, and branch `work` is open
        instructions of the agent of an open branch: compatible node work: agent: instructions is new
        an open call of the agent of an open branch: touched node work: agent: tool pay: effect changed, and call `work/c2` is open
        a tool without an open call, of the agent of an open branch: compatible node work: agent: tool save is gone
    "#]].assert_eq(&table);
}

/// A graph with a value that was stored as a list of texts, whose agent waits with a call that reads it.
async fn graph_with_value(world: &World, is_migrated: bool) -> String {
    const READS: &str = "assistant: > c1 show()\nassistant: done\n";
    let of = |schema: &Schema| {
        let show = Tool::new("show", "Shows the log.", |_: RawArgs| async { Ok::<_, ToolError>("") });
        let parameters = json!({"properties": {"log": {}}, "type": "object"});
        let show = show.parameters(parameters).input_from_state("log", "log").approval(Approval::Always);
        let worker = world.agent(READS).schema(schema.clone()).tools(vec![show.build().unwrap()]);
        let work = AgentNode::new(worker.build().unwrap()).asks("do it");
        let graph = Graph::builder("clerk").schema(schema.clone()).node("work", work);
        Agent::from(graph.chain([START, "work", END]).build().unwrap())
    };
    let before = world.runner(of(&schema().build().unwrap())).build();
    let session = before.create("ada", "s1", json!({"log": ["saved"]})).await.unwrap();
    let waiting = session.run("show it").await.unwrap();
    assert_eq!(waiting.pending()[0].inputs_from_state[0].value.to_string(), r#"["saved"]"#);

    // The list does not fit.
    let later = counters().key::<BTreeMap<String, Value>>("log").build().unwrap();
    let mut today = world.runner(of(&later));
    if is_migrated {
        today = today.schema(SessionSchema::new(later).migration("log", |old| Ok(json!({"old": old}))));
    }
    let today = today.build();
    let checked = today.check_upgrade().next().await.unwrap().unwrap();
    let session = today.session("ada", "s1").await.unwrap();
    let mut shown = Vec::new();
    // An approval of the first value does not hold for another one.
    while let Some(request) = session.pending().await.unwrap().pop() {
        shown.push(request.inputs_from_state[0].value.to_string());
        let resumed = session.resume().decide(request.id, Decision::Approve).await;
        assert_eq!(resumed.is_ok(), checked.continues(), "{checked:?}: {resumed:?}");
        if resumed.is_err() {
            break;
        }
    }
    format!("{} {}: {}", checked.status(), checked.reasons().join("; "), shown.join(", "))
}

/// A migration of a graph converts what the agents of its open branches read.
#[test]
fn a_key_of_a_graph_with_a_migration() {
    let row = |is_migrated| process(graph_with_value(&World::in_memory(), is_migrated));
    expect![[r#"compatible node work: agent: state key log changed; node work: agent: state key topic is gone; state key log changed; state key topic is gone: ["saved"], {"old":["saved"]}"#]].assert_eq(&row(true));
    expect![[r#"cannot be read incompatible stored value of key "log": stored as list of string, opened as object: expected object, found list at $; register a migration: ["saved"]"#]].assert_eq(&row(false));
}
