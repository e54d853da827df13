//! A call through a server on standard input and output, beside a call of a plain tool.
//!
//! The server is this binary, started again: it answers each call at once. What is added is two pipes, two wake-ups of
//! processes, and JSON four times; `round_trip` is that without the client of the protocol.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a benchmark fails")]

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use divan::Bencher;
use serde_json::{Value, json};
use stepfold_mcp::McpServer;
use stepfold_state_core::chat::ToolCall;
use stepfold_state_core::state::{Schema, State};
use stepfold_tools::{Invocation, InvokeOptions, RawArgs, Tool, ToolError, Tools};
use tokio::runtime::Runtime;

/// Tells the binary that it is the server.
const SERVES: &str = "STEPFOLD_BENCH_SERVES";

#[expect(clippy::disallowed_methods, reason = "this is how the benchmark starts its server")]
fn main() {
    match std::env::var_os(SERVES) {
        Some(_) => serve(),
        None => divan::main(),
    }
}

fn serve() {
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let message: Value = serde_json::from_str(&line.expect("the client writes lines")).expect("of JSON");
        if message["id"].is_null() {
            continue;
        }
        let result = match message["method"].as_str() {
            Some("initialize") => json!({
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {"listChanged": true}},
                "serverInfo": {"name": "echo", "version": "1"},
            }),
            Some("tools/list") => json!({"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}),
            _ => json!({"content": [{"type": "text", "text": message["params"]["arguments"]["text"]}]}),
        };
        let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
        if writeln!(out, "{answer}").and_then(|()| out.flush()).is_err() {
            return;
        }
    }
}

fn argv() -> String {
    std::env::current_exe().expect("there is one").to_string_lossy().into_owned()
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn text(bytes: usize) -> Value {
    json!({"text": "x".repeat(bytes)})
}

fn call(runtime: &Runtime, tools: &Tools, state: &State, arguments: &Value) {
    let calls = vec![ToolCall::new("c1", "echo", arguments.clone())];
    let invocation = Invocation::new(tools, state.clone(), calls, InvokeOptions::scoped("bench/1"));
    let done = runtime.block_on(invocation.finish());
    assert!(done.outcomes[0].succeeded());
}

fn state() -> State {
    State::new(&Schema::builder().build().expect("a schema"))
}

/// What a call costs without a server.
#[divan::bench(args = [16, 65_536])]
fn plain(bencher: Bencher<'_, '_>, bytes: usize) {
    let (runtime, state, arguments) = (runtime(), state(), text(bytes));
    let echo = async |RawArgs(arguments): RawArgs| Ok::<_, ToolError>(arguments["text"].clone());
    let echo = Tool::new("echo", "Repeats.", echo)
        .parameters(json!({"type": "object", "additionalProperties": true, "properties": {}}));
    let tools = Tools::of([echo.build().expect("a tool")]).expect("tools");
    bencher.bench_local(|| call(&runtime, &tools, &state, &arguments));
}

/// The same through a server. Goal: 100 us for a short text.
#[divan::bench(args = [16, 65_536])]
fn stdio(bencher: Bencher<'_, '_>, bytes: usize) {
    let (runtime, state, arguments) = (runtime(), state(), text(bytes));
    let server = McpServer::command("bench", [argv()])
        .env(SERVES, "1")
        .prefix("")
        .initialize_only()
        .build()
        .expect("a server");
    let tools = runtime.block_on(server.toolset().resolve(&state)).expect("its tools");
    bencher.bench_local(|| call(&runtime, &tools, &state, &arguments));
    runtime.block_on(server.stop());
}

/// The pipes and the server alone: the same lines, written and read without a client.
#[divan::bench(args = [16, 65_536])]
fn round_trip(bencher: Bencher<'_, '_>, bytes: usize) {
    let mut server = Piped::start();
    let line = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "echo", "arguments": text(bytes)}}).to_string();
    bencher.bench_local(|| server.ask(&line));
}

struct Piped {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    answer: String,
}

impl Piped {
    fn start() -> Self {
        let mut command = Command::new(argv());
        command.env(SERVES, "1").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the server starts");
        let (input, output) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        Piped { child, input, output: BufReader::new(output), answer: String::new() }
    }

    fn ask(&mut self, line: &str) -> usize {
        self.answer.clear();
        writeln!(self.input, "{line}").expect("the server reads");
        self.output.read_line(&mut self.answer).expect("the server answers")
    }
}

impl Drop for Piped {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
