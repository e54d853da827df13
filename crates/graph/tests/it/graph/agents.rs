//! Agents as nodes: in the graph's conversation or in one of their own, and what they share with the graph.

use std::sync::Arc;

use expect_test::expect;
use serde_json::json;
use stepfold_agent_loop::state_core::chat::{ChatModel, Message};
use stepfold_agent_loop::state_core::state::{Handler, Key, Schema};
use stepfold_agent_loop::tools::{Args, StateWriter, Tool, ToolError};
use stepfold_agent_loop::trim::Trim;
use stepfold_agent_loop::{Agent, Decision, Input, Output, OutputMode};
use stepfold_graph::progress::ResearchState;
use stepfold_graph::{AgentNode, END, Graph, Node, NodeContext, NodeError, START, Update, per_run};

use super::check;
use super::kit::*;
use crate::loop_kit::{Asked, agent, conversation, outcome_of, script, shown, tool};

/// Without a question of its own it continues with the graph's conversation.
#[tokio::test]
async fn in_the_conversation() {
    let graph = graph()
        .node("a", agent("assistant: > c1 search(q=\"x\")\nassistant: area 3").build().unwrap())
        .node("say", |_: NodeContext| async { Ok::<_, NodeError>(Update::new().say("and area 4")) })
        .chain([START, "a", "say"]);
    check(
        graph,
        "where?",
        expect![[r#"
        1: a
        2: say
        --
        user:      where?
        assistant: > c1 search(q="x")
        tool c1:   [3, 4]
        assistant: area 3
        assistant: and area 4
        --
        exit: the graph reached its end
        steps: 2
    "#]],
    )
    .await;
}

/// One after the other: the second sees what the first has said.
#[tokio::test]
async fn one_after_the_other() {
    let model = Asked::new(script("assistant: never\nassistant: and 4"));
    let second = Agent::builder(model.clone()).instructions("Add to it.").build().unwrap();
    let graph = graph()
        .node("a", agent("assistant: area 3").build().unwrap())
        .node("b", second)
        .chain([START, "a", "b"]);
    check(
        graph,
        "where?",
        expect![[r#"
        1: a
        2: b
        --
        user:      where?
        assistant: area 3
        assistant: and 4
        --
        exit: the graph reached its end
        steps: 2
    "#]],
    )
    .await;
    expect![[r#"
        --
        system:    Add to it.
        user:      where?
        assistant: area 3
    "#]]
    .assert_eq(&model.shown());
}

/// Side by side: both continue with the same conversation; it is well-formed, and each call has an id of its own.
#[tokio::test]
async fn side_by_side() {
    let graph = graph()
        .node("a", agent("assistant: > c1 search(q=\"x\")\nassistant: area 3").build().unwrap())
        .node("b", agent("assistant: > c1 fetch(id=7)\nassistant: area 7").build().unwrap())
        .edge(START, "a")
        .edge(START, "b");
    check(
        graph,
        "where?",
        expect![[r#"
            1: a, b
            --
            user:      where?
            assistant: > c1 search(q="x")
            tool c1:   [3, 4]
            assistant: area 3
            assistant: > c1-2 fetch(id=7)
            tool c1-2: area 7
            assistant: area 7
            --
            exit: the graph reached its end
            steps: 1
        "#]],
    )
    .await;
}

/// Asked something of its own: nothing of it is in the graph's conversation.
#[tokio::test]
async fn asked() {
    let schema = Schema::builder().key(LOG).key(NEXT).key::<String>("answer").build().unwrap();
    let graph =
        |node: AgentNode| Graph::builder("tested").schema(schema.clone()).node("a", node).edge(START, "a");
    let model = Asked::new(script("assistant: 12 stalls"));
    let counter = Agent::builder(model.clone()).build().unwrap();
    let input = || Input::from("where?").with_values(json!({"next": "x"}));
    let node = AgentNode::new(counter.clone()).asks("how many in {next}, {answer?}?").answers("answer");
    check(
        graph(node),
        input(),
        expect![[r#"
        1: a
        --
        user:      where?
        --
        exit: the graph reached its end
        steps: 1
        state: {"answer":"12 stalls","next":"x"}
    "#]],
    )
    .await;
    let node = AgentNode::new(counter.clone())
        .asks_with(|node| Ok(format!("how many, {}?", node.get(NEXT)?.unwrap_or_default())))
        .answers("answer");
    check(
        graph(node),
        input(),
        expect![[r#"
        1: a
        --
        user:      where?
        --
        exit: the graph reached its end
        steps: 1
        state: {"answer":"12 stalls","next":"x"}
    "#]],
    )
    .await;
    expect![[r#"
        --
        user:      how many in x, ?
        --
        user:      how many, x?
    "#]]
    .assert_eq(&model.shown());
}

/// An item is what it is asked, or stands in what it is asked.
#[tokio::test]
async fn asked_an_item() {
    let model = Asked::new(script("assistant: 12 stalls"));
    let counter = Agent::builder(model.clone()).build().unwrap();
    let graph = |node: AgentNode| {
        graph().node("each", node.answers("log")).fan_out(START, "each", "items").max_parallel(1)
    };
    check(
        graph(AgentNode::new(counter.clone())),
        items(json!(["area 3", {"area": 4}])),
        expect![[r#"
        1: each("area 3"), each({"area":4})
        --
        --
        exit: the graph reached its end
        steps: 1
        state: {"items":["area 3",{"area":4}],"log":["12 stalls","12 stalls"]}
    "#]],
    )
    .await;
    let node = AgentNode::new(counter.clone()).asks("how many in {item.area}?");
    check(
        graph(node),
        items(json!([{"area": 4}])),
        expect![[r#"
        1: each({"area":4})
        --
        --
        exit: the graph reached its end
        steps: 1
        state: {"items":[{"area":4}],"log":["12 stalls"]}
    "#]],
    )
    .await;
    expect![[r#"
        --
        user:      area 3
        --
        user:      {"area":4}
        --
        user:      how many in 4?
    "#]]
    .assert_eq(&model.shown());
    let node = AgentNode::new(counter).asks("how many in {item}?");
    let without = super::kit::graph().node("a", Node::agent(node).continue_after_error()).edge(START, "a");
    check(without, "go", expect![[r#"
        1: a
           0 Failed (1): missing key "item" for the template at line 1, column 13; write {item?} if it is optional; known keys: messages
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 1
    "#]]).await;
}

/// An agent with an output answers with that.
#[tokio::test]
async fn answers_with_its_output() {
    #[derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
    struct Areas {
        areas: Vec<u64>,
    }
    let model = script("assistant: > c1 submit_output(areas=[3, 4])");
    let output = Output::of::<Areas>().mode(OutputMode::Tool);
    let finder = Agent::builder(model).output_with(output).build().unwrap();
    let graph = Graph::builder("tested")
        .schema(Schema::builder().key::<Areas>("answer").build().unwrap())
        .node("find", AgentNode::new(finder).asks("which?").answers("answer"))
        .edge(START, "find");
    check(
        graph,
        "go",
        expect![[r#"
        1: find
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 1
        state: {"answer":{"areas":[3,4]}}
    "#]],
    )
    .await;
}

/// What a tool of the agent writes to a key that both declare is merged into the graph's state, by its handler; what
/// it writes to others is its own.
#[tokio::test]
async fn shared_keys() {
    const FOUND: Key<Vec<u64>> = Key::new("found");
    const OWN: Key<Vec<u64>> = Key::new("own");
    const COUNT: Key<i64> = Key::new("count");
    async fn find(state: StateWriter) -> Result<&'static str, ToolError> {
        state.set(FOUND, vec![7])?;
        state.set(OWN, vec![8])?;
        state.set(COUNT, 1)?;
        Ok("found")
    }
    let schema = || Schema::builder().key(FOUND).key(COUNT).handler(Handler::sum());
    let finder = || {
        Agent::builder(script("assistant: > c1 find()\nassistant: done"))
            .schema(schema().key(OWN).build().unwrap())
            .instructions("Known: {found?}, own: {own?}.")
            .tools([Tool::new("find", "Finds.", find).writes(["found", "own", "count"]).build().unwrap()])
            .build()
            .unwrap()
    };
    let graph = |node: AgentNode| {
        Graph::builder("tested")
            .schema(schema().key::<Vec<String>>("own").build().unwrap())
            .node("a", node.clone().asks("find"))
            .node("b", node.asks("find"))
            .edge(START, "a")
            .edge(START, "b")
    };
    let input = || values(json!({"count": 10, "found": [1], "own": ["x"]}));
    check(
        graph(AgentNode::new(finder())),
        input(),
        expect![[r#"
        1: a, b
        --
        --
        exit: the graph reached its end
        steps: 1
        state: {"count":12,"found":[1,7,7],"own":["x"]}
    "#]],
    )
    .await;
    check(
        graph(AgentNode::new(finder()).shares(["count"])),
        input(),
        expect![[r#"
        1: a, b
        --
        --
        exit: the graph reached its end
        steps: 1
        state: {"count":12,"found":[1],"own":["x"]}
    "#]],
    )
    .await;
}

/// spec/003: START -> trim -> agent -> tools. The model sees the window, the log stays whole.
#[tokio::test]
async fn trim_agent_tools() {
    let history = "user: one\nassistant: 1\nuser: two\nassistant: 2\nuser: three\nassistant: 3\n";
    let model = Asked::new(Windowed);
    let looking = Agent::builder(model.clone())
        .tools(crate::loop_kit::tools())
        .trim(Trim::keep_last(2))
        .build()
        .unwrap();
    let graph = graph().node("agent", looking).chain([START, "agent", END]);
    check(
        graph,
        Input::from(conversation(history)).say("where?"),
        expect![[r#"
        1: agent
        --
        user:      one
        assistant: 1
        user:      two
        assistant: 2
        user:      three
        assistant: 3
        user:      where?
        assistant: > c1 search(q="x")
        tool c1:   [3, 4]
        assistant: area 3
        --
        exit: the graph reached its end
        steps: 1
    "#]],
    )
    .await;
    expect![[r#"
        --
        user:      three
        assistant: 3
        user:      where?
        --
        user:      three
        assistant: 3
        user:      where?
        assistant: > c1 search(q="x")
        tool c1:   [3, 4]
    "#]]
    .assert_eq(&model.shown());
}

/// Searches, then answers, whatever came before.
#[derive(Clone)]
struct Windowed;

impl ChatModel for Windowed {
    fn id(&self) -> &'static str {
        "windowed"
    }

    fn respond(
        &self,
        request: stepfold_agent_loop::state_core::chat::ChatRequest,
    ) -> stepfold_agent_loop::state_core::chat::ReplyStream {
        use stepfold_agent_loop::state_core::chat::{ChatRequest, Role, Transcript};
        let is_told = request.messages.last().is_some_and(|last| last.role() == Role::Tool);
        let reply = if is_told { "assistant: area 3" } else { "assistant: > c1 search(q=\"x\")" };
        script(reply).respond(ChatRequest::new(Transcript::new()))
    }
}

/// `model_id`, `params` and `auto` of the state, for each run.
#[tokio::test]
async fn per_run_of_the_state() {
    let models: Vec<Asked<_>> = ["small", "large"]
        .map(|size| Asked::new(script(&format!("assistant: > c1 search(q=\"x\")\nassistant: {size}"))))
        .into();
    let agent = Agent::builder(models[0].clone()).tools(crate::loop_kit::tools()).build().unwrap();
    let known = models.clone();
    let lookup = move |id: &str| -> Option<Arc<dyn ChatModel>> {
        let place = ["small", "large"].iter().position(|known| *known == id)?;
        Some(Arc::new(known[place].clone()))
    };
    let graph = Graph::builder("tested")
        .schema(ResearchState::schema().unwrap())
        .node("write", AgentNode::new(agent).adjust(per_run(lookup)))
        .edge(START, "write")
        .build()
        .unwrap();
    let said = |values: serde_json::Value| {
        let graph = graph.clone();
        async move {
            let walked = walk(&graph, Input::from("where?").with_values(values)).await;
            let outcome = outcome_of(&walked.ended);
            let pending = outcome.pending().len();
            match &walked.ended {
                Ok(outcome) => format!("{} ({pending} pending)", outcome.text()),
                Err(error) => error.to_string(),
            }
        }
    };
    let mut text = String::new();
    for values in [
        json!({}),
        json!({"model_id": "large", "params": {"reasoning_effort": "low", "temperature": 0.5}}),
        json!({"auto": true}),
        json!({"auto": false}),
        json!({"model_id": "huge"}),
        json!({"params": {"temperature": "hot"}}),
    ] {
        text.push_str(&format!("{values}: {}\n", said(values.clone()).await));
    }
    let params: Vec<String> =
        models[1].requests().iter().map(|request| serde_json::to_string(&request.params).unwrap()).collect();
    text.push_str(&params.join("\n"));
    expect![[r#"
        {}: small (0 pending)
        {"model_id":"large","params":{"reasoning_effort":"low","temperature":0.5}}: large (0 pending)
        {"auto":true}: small (0 pending)
        {"auto":false}:  (1 pending)
        {"model_id":"huge"}: run 'run' failed after step 1: node 'write' failed: unknown model "huge" in the state
        {"params":{"temperature":"hot"}}: run 'run' failed after step 1: node 'write' failed: invalid params in the state: expected f64, found string at $.temperature
        {"temperature":0.5,"extras":{"reasoning_effort":"low"}}
        {"temperature":0.5,"extras":{"reasoning_effort":"low"}}"#]].assert_eq(&text);
}

/// `auto: false`, and then an approval, in another process: the same model gets the next request.
#[tokio::test]
async fn interactive() {
    let agent = agent("assistant: > c1 search(q=\"x\")\nassistant: area 3").build().unwrap();
    let graph = Graph::builder("tested")
        .schema(ResearchState::schema().unwrap())
        .node("write", AgentNode::new(agent).adjust(per_run(|_| None)))
        .edge(START, "write")
        .build()
        .unwrap();
    let walked = walk(&graph, Input::from("where?").with_values(json!({"auto": false}))).await;
    expect![[r#"
        1: write
        --
        user:      where?
        --
        exit: the run waits for decisions
        steps: 1
        state: {"auto":false,"current_node":"write","errors":[],"execution_counts":{"write":1},"history":[],"outputs":[]}
        pending write/c1#65a1224f465d5237: search({"q":"x"}), Rule
    "#]].assert_eq(&walked.text());
    let run = crate::loop_kit::reloaded(outcome_of(&walked.ended));
    let id = run.pending()[0].id.clone();
    let ended = walk_on(run, |run| run.decide(id, Decision::Approve)).await;
    expect![[r#"
        user:      where?
        assistant: > c1 search(q="x")
        tool c1:   [3, 4]
        assistant: area 3
        --
        exit: the graph reached its end
        steps: 1
        state: {"auto":false,"current_node":"write","errors":[],"execution_counts":{"write":1},"history":[],"outputs":[]}
    "#]].assert_eq(&shown(&ended.ended));
}

/// An agent that says nothing has no answer, whatever was said before it.
#[tokio::test]
async fn nothing_said() {
    let silent = super::kit::graph().node("x", note).edge(START, "x").build().unwrap();
    let schema = Schema::builder().key(LOG).key::<String>("answer").build().unwrap();
    let graph = Graph::builder("tested")
        .schema(schema)
        .node("before", |_: NodeContext| async {
            Ok::<_, NodeError>(Update::new().message(Message::assistant("old")))
        })
        .node("a", AgentNode::new(silent).answers("answer"))
        .chain([START, "before", "a"]);
    check(
        graph,
        "go",
        expect![[r#"
        1: before
        2: a
        --
        user:      go
        assistant: old
        --
        exit: the graph reached its end
        steps: 2
        state: {"log":["x"]}
    "#]],
    )
    .await;
}

/// An agent that is given as its builder reads and writes keys of the graph's schema without declaring them again.
#[tokio::test]
async fn a_node_reads_the_graphs_keys() {
    const FOUND: Key<Vec<u64>> = Key::new("found");
    #[derive(serde::Deserialize, schemars::JsonSchema)]
    struct Bound {
        at_least: u64,
    }
    async fn find(Args(bound): Args<Bound>, state: StateWriter) -> Result<&'static str, ToolError> {
        state.set(FOUND, vec![bound.at_least + 1])?;
        Ok("found")
    }
    let schema =
        Schema::builder().key::<u64>("area").key(FOUND).key::<String>("notes").key::<String>("unread");
    let find = Tool::new("find", "Finds.", find).input_from_state("area", "at_least").writes(["found"]);
    let model = Asked::new(script("assistant: > c1 find()\nassistant: done"));
    let finder = Agent::builder(model.clone())
        .schema(Schema::builder().key::<u64>("own").build().unwrap())
        .instructions("Notes: {notes}. More: {found?}, {own?}.")
        .tools([find.build().unwrap()]);
    let graph =
        Graph::builder("tested").schema(schema.build().unwrap()).node("a", finder.clone()).edge(START, "a");
    check(
        graph,
        Input::from("go").with_values(json!({"notes": "three stalls", "area": 3, "found": [1]})),
        expect![[r#"
            1: a
            --
            user:      go
            assistant: > c1 find()
            tool c1:   found
            assistant: done
            --
            exit: the graph reached its end
            steps: 1
            state: {"area":3,"found":[1,4],"notes":"three stalls"}
        "#]],
    )
    .await;
    let shown = model.shown();
    assert!(shown.contains("Notes: three stalls. More: [1], ."), "{shown}");
    // What is not shared is not there, and neither is it for the agent alone.
    let alone = finder.clone().build().unwrap_err().to_string();
    assert!(
        alone.contains("unknown state key \"notes\"") && alone.contains("unknown state key \"found\""),
        "{alone}"
    );
    let schema = Schema::builder().key::<u64>("area").key(FOUND).key::<String>("notes").build().unwrap();
    let unshared = Graph::builder("tested")
        .schema(schema)
        .node("a", AgentNode::new(finder).shares(["area", "found"]))
        .edge(START, "a");
    expect![[r#"invalid agent 'tested': node 'a': invalid agent: instructions: unknown state key "notes": declare it in the agent's schema, or in that of the graph around it, or double the braces if it is text"#]].assert_eq(&unshared.build().unwrap_err().to_string());
}

/// A placeholder that may be absent, of a key that no schema has, could never be filled.
#[test]
fn a_placeholder_of_a_key_that_no_schema_has() {
    let writer = || agent("").instructions("Notes: {nots?}.");
    expect![[r#"invalid agent 'agent': instructions: unknown state key "nots": declare it in the agent's schema, or in that of the graph around it, or double the braces if it is text"#]].assert_eq(&writer().build().unwrap_err().to_string());
    let graph = graph().node("write", writer()).edge(START, "write");
    expect![[r#"invalid agent 'tested': node 'write': invalid agent: instructions: unknown state key "nots": declare it in the agent's schema, or in that of the graph around it, or double the braces if it is text"#]].assert_eq(&graph.build().unwrap_err().to_string());
    let open = Schema::builder().open().build().unwrap();
    assert!(writer().schema(open).build().is_ok());
}

/// The answer is the agent's words, else what its exit tool says, else none, and then the key stays as it was: also of a
/// graph as a node, and never the result of another call.
#[tokio::test]
async fn the_answer_of_an_exit_tool() {
    for (answer, expected) in [("\"42\"", "42"), ("null", "before"), ("\"\"", "before"), ("{}", "before")] {
        for (text, expected) in [("", expected), ("Done.   ", "Done.")] {
            let finish = tool("finish", |arguments| Ok(arguments["answer"].clone())).build().unwrap();
            let look = tool("look", |_| Ok(json!("a stall"))).build().unwrap();
            let reply = format!("assistant: {text}> c1 finish(answer={answer})   > c2 look()");
            let agent =
                Agent::builder(script(&reply)).tools([finish, look]).exit_on(["finish"]).build().unwrap();
            let inner = graph().node("a", agent.clone()).chain([START, "a"]).build().unwrap();
            let nodes = [AgentNode::new(agent), AgentNode::new(inner)];
            for node in nodes {
                let graph = graph().node("ask", node.asks("where?").answers("next")).chain([START, "ask"]);
                let walked = walk(&graph.build().unwrap(), values(json!({"next": "before"}))).await;
                let next = outcome_of(&walked.ended).state().get(NEXT).unwrap();
                assert_eq!(next, Some(expected.to_owned()), "{reply}");
            }
        }
    }
}
