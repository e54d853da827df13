//! What the tests share: servers, and calls as a run makes them.

use serde_json::Value;
use stepfold_mcp::{McpServer, McpServerBuilder};
use stepfold_state_core::chat::ToolCall;
use stepfold_state_core::state::{Schema, State};
use stepfold_tools::{CallEvent, CallOutcome, Invocation, InvokeOptions, Tools};

use crate::peer::MODE;

/// The hand-written server as a child process.
pub(crate) fn peer(mode: &str) -> McpServerBuilder {
    let this = std::env::current_exe().unwrap();
    // What the test harness writes first is not of the protocol, and has to be overlooked.
    let argv = [this.as_os_str(), "--exact".as_ref(), "peer::serves".as_ref(), "--nocapture".as_ref()];
    McpServer::command("peer", argv).prefix("").env(MODE, mode)
}

/// What a model is offered at a step that begins now.
pub(crate) async fn offered(server: &McpServer) -> Tools {
    server.toolset().resolve(&state()).await.unwrap()
}

pub(crate) fn state() -> State {
    State::new(&Schema::builder().build().unwrap())
}

pub(crate) fn invocation(tools: &Tools, tool: &str, arguments: Value) -> Invocation {
    let calls = vec![ToolCall::new("c1", tool, arguments)];
    Invocation::new(tools, state(), calls, InvokeOptions::scoped("session/1"))
}

/// One call with these tools.
pub(crate) async fn call_with(tools: &Tools, tool: &str, arguments: Value) -> CallOutcome {
    invocation(tools, tool, arguments).finish().await.outcomes.remove(0)
}

/// One call with what the server offers now.
pub(crate) async fn call(server: &McpServer, tool: &str, arguments: Value) -> CallOutcome {
    call_with(&offered(server).await, tool, arguments).await
}

/// What the model reads of a call, after how it ended.
pub(crate) async fn line(server: &McpServer, tool: &str, arguments: Value) -> String {
    line_of(&call(server, tool, arguments).await)
}

pub(crate) fn line_of(outcome: &CallOutcome) -> String {
    format!("{:?}: {}", outcome.status, outcome.result.text())
}

/// Runs until the tool reports progress.
pub(crate) async fn until_progress(invocation: &mut Invocation) -> Value {
    loop {
        match invocation.next().await.expect("the call reports progress before it ends") {
            CallEvent::Progress { report, .. } => return report,
            CallEvent::Finished { call } => panic!("{:?}", invocation.outcome(call)),
            _ => {}
        }
    }
}
