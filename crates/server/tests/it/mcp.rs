//! An agent as a server of the Model Context Protocol.

use std::time::Duration;

use serde_json::{Value, json};
use stepfold_agent_loop::Agent;
use stepfold_agent_loop::test_kit::Script;
use stepfold_runner::Runner;
use stepfold_server::mcp::AgentServer;
use stepfold_session_scopes::{AnyStore, MemoryStore};
use stepfold_tools::{Approval, Effect, InputRequest, InputResponse, Tool, ToolContext, ToolError};
use tokio::io::{
    AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf,
};

/// A client that has begun.
struct Client {
    lines: Lines<BufReader<ReadHalf<DuplexStream>>>,
    output: WriteHalf<DuplexStream>,
    /// What the server sent that is not an answer.
    notes: Vec<Value>,
    next: u64,
    /// What goes with each request of the newer revision.
    meta: Option<Value>,
}

async fn pay() -> Result<&'static str, ToolError> {
    Ok("paid")
}

/// Asks where to.
async fn book(context: ToolContext) -> Result<String, ToolError> {
    let schema = json!({"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]});
    match context.ask(InputRequest::new("to", "Where to?").schema(schema))? {
        InputResponse::Accept(answer) => {
            Ok(format!("booked to {}", answer["to"].as_str().unwrap_or_default()))
        }
        _ => Err(ToolError::permanent("nowhere")),
    }
}

pub(crate) fn runner(script: &str) -> Runner {
    runner_over(AnyStore::new(MemoryStore::new()), script, true)
}

/// A runner whose tool `wait` never returns, or does at once.
fn runner_over(store: AnyStore, script: &str, hangs: bool) -> Runner {
    let wait = move || async move {
        if hangs {
            std::future::pending::<()>().await;
        }
        Ok::<_, ToolError>("waited")
    };
    let tools = [
        Tool::new("book", "Books.", book).build().unwrap(),
        Tool::new("pay", "Pays the bill.", pay).approval(Approval::Always).build().unwrap(),
        Tool::new("wait", "Waits.", wait).effect(Effect::Pure).build().unwrap(),
    ];
    let agent = Agent::builder(Script::parse(script).unwrap()).name("clerk").tools(tools).build().unwrap();
    Runner::builder(agent, store).worker("server").unwrap().build()
}

impl Client {
    /// Begins as clients do that know `initialize`.
    async fn legacy(runner: Runner, capabilities: Value) -> Self {
        let mut client = Client::connect(runner);
        let info = json!({"name": "test", "version": "1"});
        let params =
            json!({"protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": info});
        let answer = client.request("initialize", params).await;
        assert_eq!(answer["result"]["serverInfo"]["name"], "clerk", "{answer}");
        client.send(json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
        client
    }

    /// Begins with the revision that has no `initialize`.
    async fn modern(runner: Runner, capabilities: Value) -> Self {
        let mut client = Client::connect(runner);
        client.meta = Some(json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": capabilities,
            "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        }));
        let answer = client.request("server/discover", json!({})).await;
        assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
        client
    }

    fn connect(runner: Runner) -> Self {
        let (here, there) = tokio::io::duplex(1 << 20);
        let (input, output) = tokio::io::split(there);
        let server = AgentServer::new(runner, "ada").describe("Pays bills.").task_after(Duration::ZERO);
        tokio::spawn(server.serve(input, output));
        let (input, output) = tokio::io::split(here);
        Client { lines: BufReader::new(input).lines(), output, notes: Vec::new(), next: 0, meta: None }
    }

    async fn send(&mut self, message: Value) {
        self.output.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }

    async fn receive(&mut self) -> Value {
        let line = self.lines.next_line().await.unwrap().expect("the server is there");
        serde_json::from_str(&line).unwrap()
    }

    async fn begin(&mut self, method: &str, mut params: Value) -> u64 {
        self.next += 1;
        if let Some(meta) = &self.meta {
            let mut meta = meta.clone();
            if let Some(token) = params["_meta"].get("progressToken") {
                meta["progressToken"] = token.clone();
            }
            params["_meta"] = meta;
        }
        self.send(json!({"jsonrpc": "2.0", "id": self.next, "method": method, "params": params})).await;
        self.next
    }

    async fn answer(&mut self, id: u64) -> Value {
        loop {
            let message = self.receive().await;
            if message["id"] == id && message.get("method").is_none() {
                return message;
            }
            self.notes.push(message);
        }
    }

    async fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.begin(method, params).await;
        self.answer(id).await
    }

    async fn call(&mut self, arguments: Value) -> Value {
        let answer = self.request("tools/call", json!({"name": "clerk", "arguments": arguments})).await;
        assert!(answer.get("error").is_none(), "{answer}");
        answer["result"].clone()
    }
}

const TALK: &str = "assistant: hello\nassistant: again\n";
const BILL: &str = "assistant: > c1 pay()\nassistant: It is paid.\n";

#[tokio::test]
async fn the_agent_is_a_tool_and_a_session_continues() {
    let mut client = Client::legacy(runner(TALK), json!({})).await;
    let tools = client.request("tools/list", json!({})).await;
    let tool = &tools["result"]["tools"][0];
    assert_eq!((&tool["name"], &tool["description"]), (&json!("clerk"), &json!("Pays bills.")));
    let first = client.call(json!({"message": "hi"})).await;
    assert_eq!(first["content"][0]["text"], "hello");
    let session = first["structuredContent"]["session"].clone();
    let second = client.call(json!({"message": "and now?", "session": session})).await;
    assert_eq!(second["structuredContent"]["text"], "again");
    assert_eq!(second["structuredContent"]["session"], session);

    let listed = client.request("resources/list", json!({})).await;
    assert_eq!(listed["result"]["resources"].as_array().unwrap().len(), 2, "{listed}");
    let uri = listed["result"]["resources"][1]["uri"].clone();
    let read = client.request("resources/read", json!({"uri": uri})).await;
    let text = read["result"]["contents"][0]["text"].as_str().unwrap();
    assert_eq!(text, "user:      hi\nassistant: hello\nuser:      and now?\nassistant: again\n");
    let unknown = client.request("resources/read", json!({"uri": "stepfold://sessions/nobody/state"})).await;
    assert_eq!(unknown["error"]["message"], "unknown resource `stepfold://sessions/nobody/state`");
    // Reading has made no session.
    let listed = client.request("resources/list", json!({})).await;
    assert_eq!(listed["result"]["resources"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn a_wrong_call_is_an_error() {
    let mut client = Client::legacy(runner(TALK), json!({})).await;
    let other = client.request("tools/call", json!({"name": "nobody", "arguments": {}})).await;
    assert_eq!(other["error"]["message"], "unknown tool `nobody`; available: clerk");
    let empty = client.request("tools/call", json!({"name": "clerk", "arguments": {}})).await;
    assert_eq!(empty["error"]["message"], "missing argument `message`");
    let slash = client.call(json!({"message": "x", "session": "a\nb"})).await;
    assert_eq!(slash["isError"], true, "{slash}");
}

#[tokio::test]
async fn an_approval_is_required_input_and_may_be_answered_to_another_process() {
    let runner = runner(BILL);
    let mut client = Client::modern(runner.clone(), json!({"elicitation": {"form": {}}})).await;
    let asked = client.call(json!({"message": "pay the bill"})).await;
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    let (id, question) = asked["inputRequests"].as_object().unwrap().iter().next().unwrap();
    assert_eq!(question["params"]["message"], "Run pay with {}?");

    let mut later = Client::modern(runner, json!({"elicitation": {"form": {}}})).await;
    let answers = json!({id: {"action": "accept", "content": {"decision": "approve"}}});
    let params = json!({
        "name": "clerk",
        "arguments": {"message": "pay the bill"},
        "inputResponses": answers,
        "requestState": asked["requestState"],
    });
    let answer = later.request("tools/call", params).await;
    assert_eq!(answer["result"]["structuredContent"]["text"], "It is paid.", "{answer}");
}

#[tokio::test]
async fn an_approval_is_elicited_from_an_older_client() {
    for (action, expected) in [("approve", "Succeeded"), ("reject", "Failed")] {
        let mut client = Client::legacy(runner(BILL), json!({"elicitation": {}})).await;
        let params = json!({
            "name": "clerk",
            "arguments": {"message": "pay the bill"},
            "_meta": {"progressToken": "p"},
        });
        let id = client.begin("tools/call", params).await;
        let question = loop {
            let message = client.receive().await;
            if message["method"] == "elicitation/create" {
                break message;
            }
            client.notes.push(message);
        };
        let result = json!({"action": "accept", "content": {"decision": action, "reason": "too much"}});
        client.send(json!({"jsonrpc": "2.0", "id": question["id"], "result": result})).await;
        let answer = client.answer(id).await;
        assert_eq!(answer["result"]["structuredContent"]["text"], "It is paid.", "{answer}");
        let told: Vec<&str> =
            client.notes.iter().filter_map(|note| note["params"]["message"].as_str()).collect();
        assert!(told.contains(&"step 1"), "{told:?}");
        if action == "approve" {
            assert!(told.iter().any(|words| words.contains(expected)), "{told:?}");
        }
    }
}

#[tokio::test]
async fn a_client_that_cannot_be_asked_is_told_what_waits() {
    let mut client = Client::legacy(runner(BILL), json!({})).await;
    let result = client.call(json!({"message": "pay the bill"})).await;
    let session = result["structuredContent"]["session"].as_str().unwrap();
    let text = result["content"][0]["text"].as_str().unwrap();
    assert_eq!(text, format!("[session {session} waits for decisions: Run pay with {{}}?]"));
    assert_eq!(result["structuredContent"]["waits"][0]["tool"], "pay");
    let again = client.call(json!({"message": "hello?", "session": session})).await;
    assert_eq!(again["structuredContent"]["exit"], "waits", "{again}");
}

#[tokio::test]
async fn a_cancelled_call_is_a_cancelled_run() {
    let runner = runner("assistant: > c1 wait()\nassistant: again\n");
    let mut client = Client::legacy(runner.clone(), json!({})).await;
    let params = json!({
        "name": "clerk",
        "arguments": {"message": "wait", "session": "s1"},
        "_meta": {"progressToken": "p"},
    });
    let id = client.begin("tools/call", params).await;
    while client.receive().await["params"]["message"] != "calls wait" {}
    client
        .send(json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}))
        .await;
    // The session can be used at once: the run before is over.
    let result = client.call(json!({"message": "and now?", "session": "s1"})).await;
    assert_eq!(result["structuredContent"]["text"], "again", "{result}");
    let session = runner.session("ada", "s1").await.unwrap();
    let said = session.state().await.unwrap().messages().to_string();
    assert!(said.contains("cancelled"), "{said}");
}

/// A question of a tool has the tool's form, and its answer goes to the tool.
#[tokio::test]
async fn a_question_of_a_tool_is_required_input() {
    let script = "assistant: > c1 book()\nassistant: Have a nice trip.\n";
    let mut client = Client::modern(runner(script), json!({"elicitation": {"form": {}}})).await;
    let asked = client.call(json!({"message": "book"})).await;
    let (id, question) = asked["inputRequests"].as_object().unwrap().iter().next().unwrap();
    assert_eq!(question["params"]["message"], "book asks: Where to? {}");
    assert_eq!(question["params"]["requestedSchema"]["required"], json!(["to"]), "{question}");
    let answer = |content: Value| {
        json!({
            "name": "clerk",
            "arguments": {"message": "book"},
            "inputResponses": {id: {"action": "accept", "content": content}},
            "requestState": asked["requestState"],
        })
    };
    let wrong = client.request("tools/call", answer(json!({"to": 7}))).await;
    assert_eq!(wrong["result"]["isError"], true, "{wrong}");
    let right = client.request("tools/call", answer(json!({"to": "Rome"}))).await;
    assert_eq!(right["result"]["structuredContent"]["text"], "Have a nice trip.", "{right}");
    // A client that did not hear of it asks again, and nothing runs again.
    let again = client.request("tools/call", answer(json!({"to": "Rome"}))).await;
    assert_eq!(again["result"]["structuredContent"]["text"], "Have a nice trip.", "{again}");
    assert_eq!(again["result"]["structuredContent"]["decided_before"], Value::Null, "{again}");
    // One who answered otherwise is told that it does not count.
    let other = client.request("tools/call", answer(json!({"to": "Bari"}))).await;
    let said = other["result"]["content"][0]["text"].as_str().unwrap();
    assert_eq!(said, format!("answer to `{id}` not taken: it was answered with other values before"));
    assert_eq!(other["result"]["structuredContent"]["decided_before"], json!([id]), "{other}");
}

/// An answer that comes after another one changes nothing, and says so; one that is sent twice hears of the end.
#[tokio::test]
async fn a_second_answer_is_told_what_was_decided() {
    let accept = |decision| json!({"action": "accept", "content": {"decision": decision}});
    for (first, second, told) in [
        (accept("approve"), accept("approve"), None),
        (accept("approve"), accept("reject"), Some("approved")),
        (accept("approve"), json!({"action": "decline"}), Some("approved")),
        (accept("approve"), json!({"action": "cancel"}), None),
        (accept("reject"), accept("reject"), None),
        (json!({"action": "decline"}), accept("reject"), None),
        (accept("reject"), accept("approve"), Some("rejected")),
    ] {
        let runner = runner(BILL);
        let mut client = Client::modern(runner.clone(), json!({"elicitation": {"form": {}}})).await;
        let asked = client.call(json!({"message": "pay the bill"})).await;
        let id = asked["inputRequests"].as_object().unwrap().keys().next().unwrap();
        let answer = |answer: &Value| {
            json!({
                "name": "clerk",
                "arguments": {"message": "pay the bill"},
                "inputResponses": {id: answer},
                "requestState": asked["requestState"],
            })
        };
        client.request("tools/call", answer(&first)).await;
        let mut other = Client::modern(runner, json!({"elicitation": {"form": {}}})).await;
        let answered = other.request("tools/call", answer(&second)).await;
        assert_eq!(answered["result"]["structuredContent"]["text"], "It is paid.", "{answered}");
        let said = answered["result"]["content"][0]["text"].as_str().unwrap();
        let expected = told.map(|told| format!("answer to `{id}` not taken: it was {told} before"));
        assert_eq!(said, expected.as_deref().unwrap_or("It is paid."));
    }
}

/// A request with answers to what a result has asked.
fn answering(asked: &Value, answers: &Value) -> Value {
    json!({
        "name": "clerk",
        "arguments": {"message": "pay the bills"},
        "inputResponses": answers,
        "requestState": asked["requestState"],
    })
}

fn approve() -> Value {
    json!({"action": "accept", "content": {"decision": "approve"}})
}

/// The same answer is a repeat, also where the store has other values than were given; another one is not.
#[tokio::test]
async fn an_answer_that_was_redacted_may_be_sent_again() {
    let script = "assistant: > c1 book()\nassistant: Have a nice trip.\n";
    let agent = runner(script).agent().clone();
    let rules = stepfold_agent_loop::Redaction::all();
    let runner =
        Runner::builder(agent, MemoryStore::new()).redact(rules, stepfold_agent_loop::ModelView::Keep);
    let mut client = Client::modern(runner.build(), json!({"elicitation": {"form": {}}})).await;
    let asked = client.call(json!({"message": "book"})).await;
    let id = asked["inputRequests"].as_object().unwrap().keys().next().unwrap();
    let answers = |to: &str| json!({id: {"action": "accept", "content": {"to": to}}});
    let address = "Rome, ada@example.org";
    for (to, is_late) in [(address, false), (address, false), ("Bari, ada@example.org", true)] {
        let answered = client.request("tools/call", answering(&asked, &answers(to))).await;
        let result = &answered["result"];
        assert_eq!(result["structuredContent"]["text"], "Have a nice trip.", "{answered}");
        assert_eq!(result["structuredContent"]["decided_before"].is_array(), is_late, "{answered}");
    }
}

/// An answer that came too late is told also where the run asks more or waits, and in a task.
#[tokio::test]
async fn a_late_answer_is_told_in_each_kind_of_result() {
    let bills = "assistant: > c1 pay()   > c2 pay()\nassistant: They are paid.\n";
    let reject = json!({"action": "accept", "content": {"decision": "reject"}});
    for capabilities in [json!({"elicitation": {"form": {}}}), json!({}), with_tasks()] {
        let runner = runner(bills);
        let mut client = Client::modern(runner.clone(), json!({"elicitation": {"form": {}}})).await;
        let asked = client.call(json!({"message": "pay the bills"})).await;
        let ids: Vec<&String> = asked["inputRequests"].as_object().unwrap().keys().collect();
        let [first, second] = &*ids else { panic!("{asked}") };
        client.request("tools/call", answering(&asked, &json!({*first: approve()}))).await;
        let mut late = Client::modern(runner, capabilities.clone()).await;
        let told = late.request("tools/call", answering(&asked, &json!({*first: reject}))).await;
        let (result, words) =
            (&told["result"], format!("answer to `{first}` not taken: it was approved before"));
        match result["resultType"].as_str().unwrap() {
            "input_required" => {
                assert!(capabilities["elicitation"].is_object(), "{told}");
                assert_eq!(result["_meta"]["stepfold/decided_before"], json!([first]), "{told}");
                let message = result["inputRequests"][*second]["params"]["message"].as_str().unwrap();
                assert!(message.starts_with(&format!("{words}\nRun pay")), "{told}");
            }
            "task" => assert_eq!(result["statusMessage"], words, "{told}"),
            _ => {
                assert_eq!(result["content"][0]["text"], words, "{told}");
                assert_eq!(result["structuredContent"]["exit"], "waits", "{told}");
                assert_eq!(result["structuredContent"]["decided_before"], json!([first]), "{told}");
            }
        }
    }
    let mut client = Client::legacy(runner(TALK), json!({})).await;
    let tools = client.request("tools/list", json!({})).await;
    let properties = &tools["result"]["tools"][0]["outputSchema"]["properties"];
    assert_eq!(properties["decided_before"]["type"], "array", "{tools}");
}

/// A client of the older revision is asked again when the server is another process by now: the run waits, or was left before it
/// has asked.
#[tokio::test]
async fn an_older_client_is_asked_again_after_a_restart() {
    use stepfold_state_core::chat::{ModelError, ModelErrorKind};

    for is_left in [false, true] {
        let store = AnyStore::new(MemoryStore::new());
        let mut before = runner_over(store.clone(), BILL, true);
        if is_left {
            let down = ModelError::new(ModelErrorKind::Overloaded, "come back later");
            let model = Script::parse("").unwrap().then_fail(down);
            let agent = before.agent().to_builder().model(model).build().unwrap();
            before = Runner::builder(agent, store.clone()).worker("server").unwrap().build();
        }
        let session = before.session("ada", "s1").await.unwrap();
        assert_eq!(session.run("pay the bill").await.is_err(), is_left);
        before.shutdown(Duration::ZERO).await;

        let script = format!("{BILL}assistant: You are welcome.\n");
        let runner = runner_over(store, &script, true);
        let mut client = Client::legacy(runner, json!({"elicitation": {}})).await;
        let arguments = json!({"message": "thank you", "session": "s1"});
        let id = client.begin("tools/call", json!({"name": "clerk", "arguments": arguments})).await;
        let question = loop {
            let message = client.receive().await;
            assert_ne!(message["id"], id, "{message}");
            if message["method"] == "elicitation/create" {
                break message;
            }
        };
        assert_eq!(question["params"]["message"], "Run pay with {}?");
        client.send(json!({"jsonrpc": "2.0", "id": question["id"], "result": approve()})).await;
        let answer = client.answer(id).await;
        let content = &answer["result"]["content"];
        assert_eq!(content[1]["text"], "It is paid.", "{answer}");
        let note = if is_left { "[the message is stored: " } else { "[the message was not taken: " };
        assert!(content[0]["text"].as_str().unwrap().starts_with(note), "{answer}");
    }
}

/// What an operator can do about an error is told by commands.
#[tokio::test]
async fn an_error_names_no_method_of_the_library() {
    let store = AnyStore::new(MemoryStore::new());
    let mut before =
        Client::modern(runner_over(store.clone(), BILL, true), json!({"elicitation": {"form": {}}})).await;
    let asked = before.call(json!({"message": "pay the bill"})).await;
    let id = asked["inputRequests"].as_object().unwrap().keys().next().unwrap();
    let without = Agent::builder(Script::parse(BILL).unwrap()).name("clerk").build().unwrap();
    let without = Runner::builder(without, store).worker("other").unwrap().build();
    let mut other = Client::modern(without, json!({"elicitation": {"form": {}}})).await;
    let again = json!({"message": "and now?", "session": asked["requestState"]});
    for told in [
        other.request("tools/call", answering(&asked, &json!({id: approve()}))).await["result"].clone(),
        other.call(again).await,
    ] {
        let words = told["content"][0]["text"].as_str().unwrap();
        assert!(words.contains("`stepfold resume --with-changed-agent`"), "{words}");
        assert!(!words.contains("()"), "{words}");
    }
}

fn with_tasks() -> Value {
    json!({"elicitation": {"form": {}}, "extensions": {"io.modelcontextprotocol/tasks": {}}})
}

/// Asks for a task until it is as said.
async fn until(client: &mut Client, task: &Value, status: &str) -> Value {
    for _ in 0..10_000 {
        let answer = client.request("tasks/get", json!({"taskId": task})).await;
        let result = &answer["result"];
        if result["status"] == status {
            return result.clone();
        }
        assert_eq!(result["status"], "working", "{answer}");
        tokio::task::yield_now().await;
    }
    panic!("the task is not {status}");
}

#[tokio::test]
async fn a_long_call_is_a_task_that_can_be_cancelled() {
    let mut client = Client::modern(runner("assistant: > c1 wait()\nassistant: again\n"), with_tasks()).await;
    let begun = client.call(json!({"message": "wait", "session": "s1"})).await;
    assert_eq!((&begun["resultType"], &begun["status"]), (&json!("task"), &json!("working")), "{begun}");
    let task = begun["taskId"].clone();
    let working = client.request("tasks/get", json!({"taskId": task})).await;
    assert_eq!(working["result"]["status"], "working", "{working}");
    assert_eq!(working["result"]["createdAt"].as_str().unwrap().len(), "2026-01-01T00:00:00.000000Z".len());
    client.request("tasks/cancel", json!({"taskId": task})).await;
    until(&mut client, &task, "cancelled").await;
    let unknown = client.request("tasks/get", json!({"taskId": "x@y"})).await;
    assert_eq!(unknown["error"]["message"], "unknown task `x@y`");
}

#[tokio::test]
async fn a_task_asks_and_continues_with_the_answer() {
    let mut client = Client::modern(runner(BILL), with_tasks()).await;
    let begun = client.call(json!({"message": "pay the bill"})).await;
    let task = begun["taskId"].clone();
    let asks = until(&mut client, &task, "input_required").await;
    let (id, question) = asks["inputRequests"].as_object().unwrap().iter().next().unwrap();
    assert_eq!(question["params"]["message"], "Run pay with {}?");
    let answers =
        json!({id: {"action": "accept", "content": {"decision": "approve"}}, "other": {"action": "accept"}});
    let updated = client.request("tasks/update", json!({"taskId": task, "inputResponses": answers})).await;
    assert!(updated.get("error").is_none(), "{updated}");
    let done = until(&mut client, &task, "completed").await;
    assert_eq!(done["result"]["structuredContent"]["text"], "It is paid.", "{done}");
}

/// A version of the agent that does not continue the run stores the answer, and says that the task continues: the other one ends it.
#[tokio::test]
async fn a_task_of_another_version_of_the_agent_has_not_failed() {
    let store = AnyStore::new(MemoryStore::new());
    let mut before = Client::modern(runner_over(store.clone(), BILL, true), with_tasks()).await;
    let begun = before.call(json!({"message": "pay the bill"})).await;
    let task = begun["taskId"].clone();
    let asks = until(&mut before, &task, "input_required").await;
    let id = asks["inputRequests"].as_object().unwrap().keys().next().unwrap();

    let model = Script::parse(BILL).unwrap();
    let without = Agent::builder(model).name("clerk").build().unwrap();
    let without = Runner::builder(without, store).worker("other").unwrap().build();
    let mut other = Client::modern(without, with_tasks()).await;
    let answers = json!({id: {"action": "accept", "content": {"decision": "approve"}}});
    let updated = other.request("tasks/update", json!({"taskId": task, "inputResponses": answers})).await;
    assert!(updated.get("error").is_none(), "{updated}");
    let refused = loop {
        let answer = other.request("tasks/get", json!({"taskId": task})).await;
        assert_eq!(answer["result"]["status"], "working", "{answer}");
        if answer["result"]["statusMessage"].is_string() {
            break answer["result"]["statusMessage"].as_str().unwrap().to_owned();
        }
        tokio::task::yield_now().await;
    };
    assert!(refused.contains("tool pay is gone") && !refused.contains("()"), "{refused}");
    let done = until(&mut before, &task, "completed").await;
    assert_eq!(done["result"]["structuredContent"]["text"], "It is paid.", "{done}");
}

/// A process is gone when its runtime is.
fn process<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

#[test]
fn a_task_outlives_the_process_of_its_server() {
    let store = AnyStore::new(MemoryStore::new());
    let script = "assistant: > c1 wait()\nassistant: done\n";
    let task = process(async {
        let runner = runner_over(store.clone(), script, true);
        let mut client = Client::modern(runner, with_tasks()).await;
        let begun = client.call(json!({"message": "wait"})).await;
        let task = begun["taskId"].clone();
        until(&mut client, &task, "working").await;
        task
    });
    process(async {
        let mut client = Client::modern(runner_over(store, script, false), with_tasks()).await;
        // The first look finds a run whose process died, and continues with it.
        until(&mut client, &task, "working").await;
        let done = until(&mut client, &task, "completed").await;
        assert_eq!(done["result"]["structuredContent"]["text"], "done", "{done}");
    });
}
