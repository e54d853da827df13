//! What waits for an approver: nodes that ask, agents whose calls are approved, breakpoints.

use expect_test::expect;
use serde_json::json;
use stepfold_agent_loop::tools::{Approval, Effect, Toolset};
use stepfold_agent_loop::{Agent, Breakpoint, Decision, Exit, Run, RunBuilder};
use stepfold_graph::{AgentNode, END, Graph, Node, NodeContext, NodeError, START, Update};

use super::kit::*;
use crate::loop_kit::{Notes, chain, go_on, outcome_of, reloaded, script, shown};

/// Asks whether to publish, and does what was decided.
async fn publish(node: NodeContext) -> Result<Update, NodeError> {
    let decision = node.ask("publish", json!({"item": node.item(), "title": "Stalls"}))?;
    Ok(noted(&node).set(LOG, vec![serde_json::to_string(&decision)?]))
}

/// The process dies while the approver thinks; another one continues with the decision.
async fn decided(walked: &Walked, decisions: &[(&str, Decision)]) -> Walked {
    let decisions: Vec<_> =
        decisions.iter().map(|(id, decision)| ((*id).to_owned(), decision.clone())).collect();
    walk_on(reloaded(outcome_of(&walked.ended)), |run| run.decide_all(decisions)).await
}

fn publishing() -> Graph {
    graph().node("a", publish).node("b", note).edge(START, "a").edge(START, "b").build().unwrap()
}

#[tokio::test]
async fn a_node_asks() {
    let walked = walk(&publishing(), "go").await;
    expect![[r#"
        1: a, b
           0 asks: publish#c840e8eb5f294f56
        --
        user:      go
        --
        exit: the run waits for decisions
        steps: 1
        pending a/publish#c840e8eb5f294f56: a({"item":null,"title":"Stalls"}), Node
    "#]]
    .assert_eq(&walked.text());
    let id = outcome_of(&walked.ended).pending()[0].id.clone();
    let ended = decided(&walked, &[(&id, Decision::Approve)]).await;
    expect![[r#"
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 1
        state: {"log":["a","\"approve\"","b"]}
    "#]]
    .assert_eq(&ended.text());
    let ended = decided(&walked, &[(&id, Decision::reject("too early"))]).await;
    expect![[r#"
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 1
        state: {"log":["a","{\"reject\":{\"reason\":\"too early\"}}","b"]}
    "#]]
    .assert_eq(&ended.text());
    let ended = decided(&walked, &[(&id, Decision::modify(json!({"title": "All stalls"})))]).await;
    expect![[r#"
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 1
        state: {"log":["a","{\"modify\":{\"arguments\":{\"title\":\"All stalls\"}}}","b"]}
    "#]]
    .assert_eq(&ended.text());
}

/// A node that has changed is asked about again, under another id: with another effect as well, which the question does not show.
/// What was decided before the change is decided. In an agent that is a node, and in a graph inside, as well.
#[tokio::test]
async fn the_question_of_a_node_that_has_changed_is_asked_again() {
    /// Asks twice.
    async fn release(node: NodeContext) -> Result<Update, NodeError> {
        node.ask("check", json!([1, {"b": 2, "a": 1}]))?;
        node.ask("publish", json!({"title": "Stalls"}))?;
        Ok(noted(&node))
    }
    let inner = |effect, version: &'static str| {
        graph()
            .node("a", Node::new(release).effect(effect).version(version))
            .edge(START, "a")
            .build()
            .unwrap()
    };
    let (once, many) = (Effect::AtMostOnce, Effect::Idempotent);
    for ((was, before), (is, after), is_asked) in [
        ((many, "1"), (once, "1"), true),
        ((many, "1"), (many, "2"), true),
        ((many, "1"), (many, "1"), false),
    ] {
        for (is_nested, is_first) in [(false, true), (false, false), (true, true)] {
            let graph = |effect, version, words: &str| {
                let inner = inner(effect, version);
                let inner = inner.agent().to_builder().instructions(words).build().unwrap();
                if !is_nested {
                    return inner;
                }
                let outer = Graph::builder("outer").schema(inner.schema().clone());
                let outer = outer.node("inside", AgentNode::new(inner)).edge(START, "inside");
                outer.build().unwrap().agent().clone()
            };
            let (old, new) = (graph(was, before, "Be brief."), graph(is, after, "Be kind."));
            let mut waiting = go_on(Run::new(&old, "go", "run").unwrap(), |run| run).await.unwrap();
            if !is_first {
                let first = waiting.pending()[0].id.clone();
                let decide = |run: RunBuilder<'static>| run.decide(first, Decision::Approve);
                waiting = go_on(reloaded(&waiting), decide).await.unwrap();
            }
            let shown = waiting.pending().remove(0);
            let (run, _) = Run::load_changed(&new, &waiting.run().to_json()).unwrap();
            assert_eq!(run.clone().without_upgrade().pending(), waiting.pending());
            let again = run.pending().remove(0);
            let case = format!("{is:?}, {after}, nested: {is_nested}, first: {is_first}");
            assert_eq!((again.id != shown.id, again.is_asked_again), (is_asked, is_asked), "{case}");
            let old_id = shown.id.clone();
            let refused = go_on(run.clone(), |run| run.decide(old_id, Decision::Approve)).await;
            assert_eq!(refused.is_err(), is_asked, "{case}");
            let mut ended = go_on(run, |run| run.decide(again.id.clone(), Decision::Approve)).await.unwrap();
            if is_first {
                let next = ended.pending().remove(0);
                ended = go_on(reloaded(&ended), |run| run.decide(next.id.clone(), Decision::Approve))
                    .await
                    .unwrap();
            }
            assert_eq!((ended.exit(), ended.pending().len()), (&Exit::End, 0), "{case}");
            assert_eq!(ended.state().get(LOG).unwrap(), Some(vec!["a".to_owned()]), "{case}");
        }
    }
}

/// Decisions about nothing, twice, or with arguments that are none.
#[tokio::test]
async fn decisions_that_do_not_fit() {
    let walked = walk(&publishing(), "go").await;
    let id = outcome_of(&walked.ended).pending()[0].id.clone();
    let mut text = String::new();
    for decisions in [
        vec![("b", Decision::Approve)],
        vec![(&*id, Decision::Approve), (&*id, Decision::reject(""))],
        vec![(&*id, Decision::modify(json!(3)))],
    ] {
        let ended = decided(&walked, &decisions).await;
        text.push_str(&chain(&ended.ended.unwrap_err()));
        text.push('\n');
    }
    expect![[r#"
        run 'run' waits after step 1: invalid decision: no pending approval with id `b`; pending: a/publish#c840e8eb5f294f56
        run 'run' waits after step 1: invalid decision: duplicate decision about approval `a/publish#c840e8eb5f294f56`; expected one
        run 'run' waits after step 1: invalid decision: invalid arguments for approval `a/publish#c840e8eb5f294f56`: expected a JSON object; the request stays pending
    "#]].assert_eq(&text);
}

/// Two questions of one node, one after the other; the first is not asked again.
#[tokio::test]
async fn twice_in_one_node() {
    let graph = graph()
        .node("a", |node: NodeContext| async move {
            let first = node.ask("first", json!({}))?;
            let second = node.ask("second", json!({"first": first}))?;
            Ok::<_, NodeError>(Update::new().set(LOG, vec![format!("{first:?}, {second:?}")]))
        })
        .edge(START, "a")
        .build()
        .unwrap();
    let mut walked = walk(&graph, "go").await;
    let mut text = walked.text();
    for decision in [Decision::Approve, Decision::reject("no")] {
        let id = outcome_of(&walked.ended).pending()[0].id.clone();
        walked = decided(&walked, &[(&id, decision)]).await;
        text.push_str(&walked.text());
    }
    expect![[r#"
        1: a
           0 asks: first#fa336bf66fa04add
        --
        user:      go
        --
        exit: the run waits for decisions
        steps: 1
        pending a/first#fa336bf66fa04add: a({}), Node
           0 asks: second#0bfd551c320d46fb
        --
        user:      go
        --
        exit: the run waits for decisions
        steps: 1
        pending a/second#0bfd551c320d46fb: a({"first":"approve"}), Node
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 1
        state: {"log":["Approve, Reject { reason: \"no\" }"]}
    "#]]
    .assert_eq(&text);
}

/// Several branches ask at once; some are answered now, the rest later, and each knows its own.
#[tokio::test]
async fn several_branches_ask() {
    let graph = graph()
        .node("each", publish)
        .node("behind", note)
        .fan_out(START, "each", "items")
        .edge("each", "behind")
        .build()
        .unwrap();
    let walked = walk(&graph, items(json!(["x", "y", null]))).await;
    expect![[r#"
        1: each("x"), each("y"), each(null)
           0 asks: publish#e15d0c469721fe87
           1 asks: publish#2a558ce1fe545e1a
           2 asks: publish#ed80541cd82625b7
        --
        --
        exit: the run waits for decisions
        steps: 1
        state: {"items":["x","y",null]}
        pending each#0/publish#e15d0c469721fe87: each({"item":"x","title":"Stalls"}), Node
        pending each#1/publish#2a558ce1fe545e1a: each({"item":"y","title":"Stalls"}), Node
        pending each#2/publish#ed80541cd82625b7: each({"item":null,"title":"Stalls"}), Node
    "#]]
    .assert_eq(&walked.text());
    let ids: Vec<String> =
        outcome_of(&walked.ended).pending().into_iter().map(|request| request.id).collect();
    let walked = decided(&walked, &[(&ids[1], Decision::Approve)]).await;
    expect![[r#"
        --
        --
        exit: the run waits for decisions
        steps: 1
        state: {"items":["x","y",null]}
        pending each#0/publish#e15d0c469721fe87: each({"item":"x","title":"Stalls"}), Node
        pending each#2/publish#ed80541cd82625b7: each({"item":null,"title":"Stalls"}), Node
    "#]]
    .assert_eq(&walked.text());
    let walked = decided(&walked, &[(&ids[2], Decision::reject("no")), (&ids[0], Decision::Approve)]).await;
    expect![[r#"
        2: behind
        --
        --
        exit: the graph reached its end
        steps: 2
        state: {"items":["x","y",null],"log":["each(\"x\")","\"approve\"","each(\"y\")","\"approve\"","each(null)","{\"reject\":{\"reason\":\"no\"}}","behind"]}
    "#]].assert_eq(&walked.text());
}

/// An approver decides while the run waits.
#[tokio::test]
async fn an_approver_decides_while_the_run_waits() {
    let run = Run::new(publishing().agent(), "go", "run").unwrap();
    let walked = walk_on(run, |run| {
        run.approve_with(|requests: Vec<stepfold_agent_loop::ApprovalRequest>| {
            let decide = |request: stepfold_agent_loop::ApprovalRequest| (request.id, Decision::Approve);
            std::future::ready(requests.into_iter().map(decide).collect::<Vec<_>>())
        })
    })
    .await;
    expect![[r#"
        1: a, b
           0 asks: publish#c840e8eb5f294f56
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 1
        state: {"log":["a","\"approve\"","b"]}
    "#]]
    .assert_eq(&walked.text());
}

/// A node that must not run twice asks before it does anything: so it has not run.
#[tokio::test]
async fn what_must_not_run_twice_asks() {
    let graph =
        graph().node("a", Node::new(publish).effect(Effect::AtMostOnce)).edge(START, "a").build().unwrap();
    let walked = walk(&graph, "go").await;
    let id = outcome_of(&walked.ended).pending()[0].id.clone();
    let ended = decided(&walked, &[(&id, Decision::Approve)]).await;
    expect![[r#"
        1: a
           started: [0]
           0 asks: publish#c840e8eb5f294f56
        --
           started: [0]
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 1
        state: {"log":["a","\"approve\""]}
    "#]]
    .assert_eq(&(walked.steps() + &ended.text()));
}

/// An agent's call is decided about; what its run has committed is not done again.
#[tokio::test]
async fn calls_of_an_agent() {
    let notes = Notes::default();
    let agent = Agent::builder(script(
        "assistant: > c1 look(q=\"x\")\nassistant: > c2 mail(to=\"us\")   > c3 mail(to=\"them\")\nassistant: sent",
    ))
    .tools([
        notes.tool("look").build().unwrap(),
        notes.tool("mail").approval(Approval::Always).build().unwrap(),
    ])
    .build()
    .unwrap();
    let graph = graph()
        .node("a", note)
        .node("mail", AgentNode::new(agent))
        .edge(START, "a")
        .edge(START, "mail")
        .build()
        .unwrap();
    let walked = walk(&graph, "go").await;
    expect![[r#"
        1: a, mail
        --
        user:      go
        --
        exit: the run waits for decisions
        steps: 1
        pending mail/c2#e9e095681073964a: mail({"to":"us"}), Rule
        pending mail/c3#ed39326ccaa21b05: mail({"to":"them"}), Rule
    "#]]
    .assert_eq(&walked.text());
    let ids: Vec<String> =
        outcome_of(&walked.ended).pending().into_iter().map(|request| request.id).collect();
    let walked = decided(&walked, &[(&ids[0], Decision::reject("not yet"))]).await;
    expect![[r#"
        --
        user:      go
        --
        exit: the run waits for decisions
        steps: 1
        pending mail/c3#ed39326ccaa21b05: mail({"to":"them"}), Rule
    "#]]
    .assert_eq(&walked.text());
    let walked = decided(&walked, &[(&ids[1], Decision::modify(json!({"to": "all"})))]).await;
    expect![[r#"
        --
        user:      go
        assistant: > c1 look(q="x")
        tool c1:   {"q": "x"}
        assistant: > c2 mail(to="us")   > c3 mail(to="them")
        tool c2!:  tool 'mail' not run: the call was rejected: not yet
        tool:      @{"tool_result": {"call_id": "c3", "name": "mail", "parts": [{"text": "{\"to\":\"all\"}"}, {"text": "\n[The arguments were changed before the call ran, to {\"to\":\"all\"}]"}]}}
        assistant: sent
        --
        exit: the graph reached its end
        steps: 1
        state: {"log":["a"]}
    "#]].assert_eq(&walked.text());
    expect![[r#"
        look
        mail
    "#]]
    .assert_eq(&notes.text());
}

/// Arguments that the agent's tool does not take are refused at once, and can be given again.
#[tokio::test]
async fn arguments_that_do_not_fit() {
    let mail = crate::loop_kit::tool("mail", |_| Ok(json!("sent")))
        .parameters(json!({"properties": {"to": {"type": "string"}}, "required": ["to"], "type": "object"}))
        .approval(Approval::Always)
        .build()
        .unwrap();
    let agent = Agent::builder(script("assistant: > c1 mail(to=\"us\")\nassistant: done")).tools([mail]);
    let graph = graph().node("mail", agent.build().unwrap()).edge(START, "mail").build().unwrap();
    let walked = walk(&graph, "go").await;
    let id = outcome_of(&walked.ended).pending()[0].id.clone();
    let wrong = decided(&walked, &[(&id, Decision::modify(json!({"to": 3})))]).await;
    expect![[r#"
        --
        user:      go
        --
        error: run 'run' waits after step 1: invalid decision: invalid arguments for approval `mail/c1#d1844551080d9434`: expected string, found integer at $.to; the request stays pending
        steps: 1
        pending mail/c1#d1844551080d9434: mail({"to":"us"}), Rule
    "#]].assert_eq(&wrong.text());
    let right = decided(&wrong, &[(&id, Decision::modify(json!({"to": "them"})))]).await;
    expect![[r#"
        --
        user:      go
        assistant: > c1 mail(to="us")
        tool:      @{"tool_result": {"call_id": "c1", "name": "mail", "parts": [{"text": "sent"}, {"text": "\n[The arguments were changed before the call ran, to {\"to\":\"them\"}]"}]}}
        assistant: done
        --
        exit: the graph reached its end
        steps: 1
    "#]].assert_eq(&right.text());
}

/// Nor those that do not fit the schema that a function asks with, or where it takes none.
#[tokio::test]
async fn arguments_that_do_not_fit_a_question() {
    async fn pay(node: NodeContext) -> Result<Update, NodeError> {
        let schema =
            json!({"properties": {"euro": {"type": "integer"}}, "required": ["euro"], "type": "object"});
        let paid = node.ask_fitting("pay", json!({"euro": 5}), schema)?;
        let sent = node.ask_fitting("send", json!({}), false)?;
        Ok(Update::new().set(LOG, vec![format!("{paid:?}, {sent:?}")]))
    }
    let graph = graph().node("a", pay).edge(START, "a").build().unwrap();
    let mut walked = walk(&graph, "go").await;
    let mut text = String::new();
    for decision in [
        Decision::modify(json!({"euro": "many"})),
        Decision::modify(json!({"euro": 4})),
        Decision::modify(json!({})),
        Decision::Approve,
    ] {
        let request = outcome_of(&walked.ended).pending().remove(0);
        text.push_str(if request.can_modify() { "may be modified\n" } else { "may not be modified\n" });
        walked = decided(&walked, &[(&request.id, decision)]).await;
        text.push_str(&walked.text());
    }
    expect![[r#"
        may be modified
        --
        user:      go
        --
        error: run 'run' waits after step 1: invalid decision: invalid arguments for approval `a/pay#52d10f7a90f45eec`: expected integer, found string at $.euro; the request stays pending
        steps: 1
        pending a/pay#52d10f7a90f45eec: a({"euro":5}), Node
        may be modified
           0 asks: send#2db56c6d376cb163
        --
        user:      go
        --
        exit: the run waits for decisions
        steps: 1
        pending a/send#2db56c6d376cb163: a({}), Node
        may not be modified
        --
        user:      go
        --
        error: run 'run' waits after step 1: invalid decision: invalid arguments for approval `a/send#2db56c6d376cb163`: nothing of it can be modified; approve or reject; the request stays pending
        steps: 1
        pending a/send#2db56c6d376cb163: a({}), Node
        may not be modified
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 1
        state: {"log":["Modify { arguments: Object {\"euro\": Number(4)} }, Approve"]}
    "#]].assert_eq(&text);
}

/// The same where the agent asks for its tools at each step, in the process that takes the decision.
#[tokio::test]
async fn arguments_that_do_not_fit_a_dynamic_tool() {
    let tools = Toolset::dynamic_with("remote", move |_| {
        let to = json!({"properties": {"to": {"type": "string"}}, "required": ["to"], "type": "object"});
        let mail = crate::loop_kit::tool("mail", |_| Ok(json!("sent"))).parameters(to);
        let mail = mail.approval(Approval::Always).build().unwrap();
        async move { Ok(vec![mail]) }
    });
    let agent = Agent::builder(script("assistant: > c1 mail(to=\"us\")\nassistant: done")).tools(tools);
    let graph = graph().node("mail", agent.build().unwrap()).edge(START, "mail").build().unwrap();
    let walked = walk(&graph, "go").await;
    let id = outcome_of(&walked.ended).pending()[0].id.clone();
    let wrong = decided(&walked, &[(&id, Decision::modify(json!({"to": 3})))]).await;
    let error = wrong.ended.as_ref().unwrap_err();
    assert!(
        chain(error).contains("expected string, found integer at $.to; the request stays pending"),
        "{error}"
    );
    assert_eq!(outcome_of(&wrong.ended).pending(), outcome_of(&walked.ended).pending());
    let right = decided(&wrong, &[(&id, Decision::modify(json!({"to": "them"})))]).await;
    assert_eq!(right.ended.unwrap().exit(), &Exit::End);
}

/// A node of a graph of a graph asks: the id says where.
#[tokio::test]
async fn a_graph_inside_asks() {
    let graph = graph().node("inner", publishing()).edge(START, "inner").build().unwrap();
    let walked = walk(&graph, "go").await;
    expect![[r#"
        1: inner
        --
        user:      go
        --
        exit: the run waits for decisions
        steps: 1
        pending inner/a/publish#40d86c2d54a07686: a({"item":null,"title":"Stalls"}), Node
    "#]]
    .assert_eq(&walked.text());
    let id = outcome_of(&walked.ended).pending()[0].id.clone();
    let ended = decided(&walked, &[(&id, Decision::Approve)]).await;
    expect![[r#"
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 1
        state: {"log":["a","\"approve\"","b"]}
    "#]]
    .assert_eq(&ended.text());
}

/// A prompt asks before its agent costs anything; the agent's calls are decided about as well.
#[tokio::test]
async fn a_prompt_asks() {
    let notes = Notes::default();
    let mail = notes.tool("mail").approval(Approval::Always).build().unwrap();
    let agent = Agent::builder(script("assistant: > c1 mail(to=\"us\")\nassistant: sent")).tools([mail]);
    let node = AgentNode::new(agent.build().unwrap()).asks_with(|node| {
        Ok(match node.ask("spend", json!({"tokens": 1_000}))? {
            Decision::Reject { reason } => format!("cheaply, because {reason}"),
            _ => "write to them".to_owned(),
        })
    });
    let graph = graph().node("write", node.answers("next")).edge(START, "write").build().unwrap();
    let mut walked = walk(&graph, "go").await;
    let mut text = walked.text();
    for decision in [Decision::reject("it is late"), Decision::Approve] {
        let id = outcome_of(&walked.ended).pending()[0].id.clone();
        walked = decided(&walked, &[(&id, decision)]).await;
        text.push_str(&walked.text());
    }
    expect![[r#"
        1: write
           0 asks: spend#08e05be54f23831c
        --
        user:      go
        --
        exit: the run waits for decisions
        steps: 1
        pending write/spend#08e05be54f23831c: write({"tokens":1000}), Node
        --
        user:      go
        --
        exit: the run waits for decisions
        steps: 1
        pending write/c1#d1844551080d9434: mail({"to":"us"}), Rule
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 1
        state: {"next":"sent"}
        mail
    "#]]
    .assert_eq(&(text + &notes.text()));
}

/// A failure beside it: the question stays.
#[tokio::test]
async fn a_failure_beside_a_question() {
    let graph = graph()
        .node("a", publish)
        .node("b", failing("no"))
        .edge(START, "a")
        .edge(START, "b")
        .build()
        .unwrap();
    let walked = walk(&graph, "go").await;
    let again = walk_on(reloaded(outcome_of(&walked.ended)), |run| run).await;
    assert_eq!(shown(&again.ended), shown(&walked.ended));
    expect![[r#"
        1: a, b
           0 asks: publish#c840e8eb5f294f56
        --
        user:      go
        --
        error: run 'run' failed after step 1: node 'b' failed: no
        steps: 1
        pending a/publish#c840e8eb5f294f56: a({"item":null,"title":"Stalls"}), Node
    "#]]
    .assert_eq(&walked.text());
}

/// Runs with these breakpoints until the end: what was done before each stop, and why it is one.
async fn stepped(graph: &Graph, points: &[Breakpoint]) -> String {
    let stopping = |run: Run| {
        let points = points.to_vec();
        walk_on(run, |run| points.into_iter().fold(run, RunBuilder::break_at))
    };
    let mut walked = stopping(Run::new(graph.agent(), items(json!([1, 2])), "run").unwrap()).await;
    let mut text = String::new();
    loop {
        let outcome = outcome_of(&walked.ended);
        text.push_str(&format!("{}{}, [{}]\n", walked.steps(), outcome.exit(), walked.log().join(" ")));
        if !matches!(outcome.exit(), Exit::Paused(_)) {
            return text;
        }
        walked = stopping(reloaded(outcome)).await;
    }
}

fn looping() -> Graph {
    graph()
        .node("a", note)
        .node("each", note)
        .edge(START, "a")
        .fan_out("a", "each", "items")
        .route("each", ["a", END], |state| match state.get(LOG).unwrap().unwrap_or_default().len() {
            3 => "a",
            _ => END,
        })
        .build()
        .unwrap()
}

#[tokio::test]
async fn before_a_node() {
    expect![[r#"
        1: a
        2: each(1), each(2)
        --
        the run stopped before node 'each', visit 1, [a]
           each -> a
        3: a
        4: each(1), each(2)
           each -> __end__
        --
        the graph reached its end, [a each(1) each(2) a each(1) each(2)]
    "#]]
    .assert_eq(&stepped(&looping(), &[Breakpoint::node("each")]).await);
}

#[tokio::test]
async fn before_the_second_visit() {
    expect![[r#"
        1: a
        2: each(1), each(2)
           each -> a
        3: a
        4: each(1), each(2)
        --
        the run stopped before node 'each', visit 2, [a each(1) each(2) a]
           each -> __end__
        --
        the graph reached its end, [a each(1) each(2) a each(1) each(2)]
    "#]]
    .assert_eq(&stepped(&looping(), &[Breakpoint::node("each").visit(2)]).await);
}

#[tokio::test]
async fn step_by_step() {
    let every = [Breakpoint::node("a").every(), Breakpoint::node("each").every()];
    expect![[r#"
        1: a
        --
        the run stopped before node 'a', every visit, []
        2: each(1), each(2)
        --
        the run stopped before node 'each', every visit, [a]
           each -> a
        3: a
        --
        the run stopped before node 'a', every visit, [a each(1) each(2)]
        4: each(1), each(2)
        --
        the run stopped before node 'each', every visit, [a each(1) each(2) a]
           each -> __end__
        --
        the graph reached its end, [a each(1) each(2) a each(1) each(2)]
    "#]]
    .assert_eq(&stepped(&looping(), &every).await);
}

/// Of another node, or of what only agents have: they never stop the run.
#[tokio::test]
async fn breakpoints_elsewhere() {
    let others = [Breakpoint::node("nowhere"), Breakpoint::model().every(), Breakpoint::tool("a").every()];
    expect![[r#"
        1: a
        2: each(1), each(2)
           each -> a
        3: a
        4: each(1), each(2)
           each -> __end__
        --
        the graph reached its end, [a each(1) each(2) a each(1) each(2)]
    "#]]
    .assert_eq(&stepped(&looping(), &others).await);
}

/// A superstep that was stopped before and then waits for an approver is not stopped again.
#[tokio::test]
async fn a_breakpoint_and_a_question() {
    let graph = graph().node("a", publish).edge(START, "a").build().unwrap();
    let every = |run: Run| walk_on(run, |run| run.break_at(Breakpoint::node("a").every()));
    let walked = every(Run::new(graph.agent(), "go", "run").unwrap()).await;
    let mut text = walked.steps();
    let walked = every(reloaded(outcome_of(&walked.ended))).await;
    text.push_str(&walked.text());
    let id = outcome_of(&walked.ended).pending()[0].id.clone();
    let run = reloaded(outcome_of(&walked.ended));
    let walked =
        walk_on(run, |run| run.break_at(Breakpoint::node("a").every()).decide(id, Decision::Approve)).await;
    text.push_str(&walked.text());
    expect![[r#"
        1: a
        --
           0 asks: publish#c840e8eb5f294f56
        --
        user:      go
        --
        exit: the run waits for decisions
        steps: 1
        pending a/publish#c840e8eb5f294f56: a({"item":null,"title":"Stalls"}), Node
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 1
        state: {"log":["a","\"approve\""]}
    "#]]
    .assert_eq(&text);
}
