//! Servers that others wrote. `cargo xtask interop` installs them and says where they are.

use std::path::Path;

use serde_json::{Value, json};
use stepfold_mcp::McpServer;
use stepfold_state_core::chat::{Content, ToolContent};
use stepfold_tools::{CallEvent, CallOutcome, Effect};

use crate::installed::installed;
use crate::kit::{call, invocation, line, offered};

/// A reference server from npm.
fn npm(name: &str, arguments: &[&Path]) -> Option<McpServer> {
    let everything = installed("STEPFOLD_INTEROP_MCP")?;
    let program = Path::new(&everything).with_file_name(format!("mcp-server-{name}"));
    let argv = std::iter::once(program.as_path()).chain(arguments.iter().copied());
    Some(McpServer::command(name, argv.map(Path::as_os_str)).prefix("").build().unwrap())
}

fn value(outcome: &CallOutcome) -> &Value {
    match outcome.result.content() {
        ToolContent::Value(value) => value,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn server_everything() {
    let Some(server) = npm("everything", &[]) else { return };
    assert_eq!(line(&server, "echo", json!({"message": "hi"})).await, "Succeeded: Echo: hi");
    assert_eq!(
        line(&server, "get-sum", json!({"a": 2, "b": 3})).await,
        "Succeeded: The sum of 2 and 3 is 5."
    );
    let weather = call(&server, "get-structured-content", json!({"location": "Chicago"})).await;
    assert_eq!(value(&weather)["temperature"], 36, "{weather:?}");
    let picture = call(&server, "get-tiny-image", json!({})).await;
    let ToolContent::Parts(parts) = picture.result.content() else { panic!("{picture:?}") };
    assert!(parts.iter().any(|part| matches!(part.content, Content::Image(_))), "{parts:?}");
    let links = line(&server, "get-resource-links", json!({"count": 2})).await;
    assert!(links.contains("[resource ") && links.contains("demo://resource/"), "{links}");

    let tools = offered(&server).await;
    let mut long = invocation(&tools, "trigger-long-running-operation", json!({"duration": 0.2, "steps": 4}));
    let mut reports = 0;
    while let Some(event) = long.next().await {
        reports += usize::from(matches!(event, CallEvent::Progress { .. }));
    }
    assert!(reports >= 3, "{reports} reports");
    // What it claims of its tools counts for nothing.
    assert_eq!(tools.get("echo").unwrap().effect(), Effect::AtMostOnce);

    let resources = server.resources().await.unwrap();
    let parts = server.read_resource(&resources[0].uri).await.unwrap();
    assert!(!parts.is_empty());
    let prompts = server.prompts().await.unwrap();
    assert!(prompts.iter().any(|prompt| prompt.name == "args-prompt"), "{prompts:?}");
    let arguments = json!({"city": "Ghent"}).as_object().cloned().unwrap();
    let messages = server.prompt("args-prompt", arguments).await.unwrap();
    assert!(messages[0].text().contains("Ghent"), "{messages:?}");
    server.stop().await;
}

#[tokio::test]
async fn server_filesystem() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    let Some(server) = npm("filesystem", &[root.as_path()]) else { return };
    let file = root.join("note.txt");
    let written = call(&server, "write_file", json!({"path": file, "content": "two\nlines\n"})).await;
    assert!(written.succeeded(), "{written:?}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "two\nlines\n");
    let read = call(&server, "read_text_file", json!({"path": file, "head": 1})).await;
    assert_eq!(value(&read)["content"], "two", "{read:?}");
    let outside = line(&server, "read_text_file", json!({"path": "/etc/hosts"})).await;
    assert!(outside.starts_with("Failed(Error): ") && outside.contains("outside"), "{outside}");
}

#[tokio::test]
async fn server_memory() {
    let folder = tempfile::tempdir().unwrap();
    let Some(everything) = installed("STEPFOLD_INTEROP_MCP") else { return };
    let program = Path::new(&everything).with_file_name("mcp-server-memory");
    let file = folder.path().join("memory.jsonl");
    let server = McpServer::command("memory", [program]).env("MEMORY_FILE_PATH", &file).build().unwrap();
    let entity = json!({"name": "Ada", "entityType": "person", "observations": ["likes tea"]});
    let created = call(&server, "memory_create_entities", json!({"entities": [entity]})).await;
    assert!(created.succeeded(), "{created:?}");
    let found = call(&server, "memory_search_nodes", json!({"query": "tea"})).await;
    assert_eq!(value(&found)["entities"][0]["name"], "Ada", "{found:?}");
    server.stop().await;
    // Another process of it has what the first one wrote.
    let graph = call(&server, "memory_read_graph", json!({})).await;
    assert_eq!(value(&graph)["entities"][0]["observations"], json!(["likes tea"]), "{graph:?}");
}

/// A server of the Python SDK, which speaks the revision without `initialize`.
const PYTHON: &str = r#"
from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("python")


@server.tool()
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool()
async def count(to: int, context: Context) -> str:
    """Counts, and tells how far it is."""
    for number in range(1, to + 1):
        await context.report_progress(number, to)
    return f"counted to {to}"


@server.resource("note://one")
def note() -> str:
    """A note."""
    return "hello"


server.run("stdio")
"#;

#[tokio::test]
async fn python_sdk() {
    let Some(python) = installed("STEPFOLD_INTEROP_MCP_PYTHON") else { return };
    let server =
        McpServer::command("py", [python.as_os_str(), "-c".as_ref(), PYTHON.as_ref()]).build().unwrap();
    let sum = call(&server, "py_add", json!({"a": 2, "b": 3})).await;
    assert_eq!(value(&sum)["result"], 5, "{sum:?}");
    let tools = offered(&server).await;
    let mut counting = invocation(&tools, "py_count", json!({"to": 3}));
    assert_eq!(crate::kit::until_progress(&mut counting).await["total"], 3.0);
    assert!(counting.finish().await.outcomes[0].succeeded());
    let wrong = line(&server, "py_add", json!({"a": "two", "b": 3})).await;
    assert!(wrong.starts_with("Failed(InvalidArguments): "), "{wrong}");
    let note = server.read_resource("note://one").await.unwrap();
    assert!(matches!(&note[0].content, Content::Text(text) if text.ends_with("hello")), "{note:?}");
}
