//! The server with clients that others wrote. `cargo xtask interop` installs them and says where they are.

use std::path::{Path, PathBuf};
use std::process::Output;

use http::Method;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::http::site::Site;
use crate::installed::installed;

/// Runs a script of `protocols/` with a client, if it is there, against a server whose model says this.
async fn with_client(script: &str, client: &str, model: &str) {
    with_client_in(PathBuf::from("node"), script, client, model).await;
}

/// The same, in this node.
async fn with_client_in(node: PathBuf, script: &str, client: &str, model: &str) {
    let Some(peers) = installed("STEPFOLD_INTEROP_CLIENTS") else { return };
    let site = Site::new(model).await;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/protocols").join(script);
    let output = Command::new(node)
        .arg(script)
        .env("PEERS", peers)
        .env("CLIENT", client)
        .env("SITE", format!("http://{}", site.address))
        .env("TOKEN", token(&site))
        .output();
    assert_done(client, &output.await.unwrap());
    // Temporary sessions are gone.
    let sessions = site.get("ada", "/sessions").await.json();
    let ids: Vec<&str> =
        sessions["sessions"].as_array().unwrap().iter().filter_map(|row| row["id"].as_str()).collect();
    assert_eq!(ids, ["monday"]);
}

fn token(site: &Site) -> String {
    site.bearer("ada").trim_start_matches("Bearer ").to_owned()
}

fn assert_done(client: &str, output: &Output) {
    let (said, failed) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("done"), "{client}: {said}{failed}");
}

const CHAT: &str = "assistant: area 3\nassistant: area 4";
const PAY: &str = "assistant: > c1 pay()\nassistant: paid\nassistant: welcome";

#[tokio::test]
async fn interop_openai() {
    with_client("openai.cjs", "openai6", CHAT).await;
    with_client("openai.cjs", "openai7", CHAT).await;
}

#[tokio::test]
async fn interop_agui() {
    with_client("agui.cjs", "agui1", PAY).await;
    with_client("agui.cjs", "agui0", PAY).await;
}

#[tokio::test]
async fn interop_ai() {
    with_client("ai.cjs", "ai", PAY).await;
}

#[tokio::test]
async fn interop_ai_of_the_next_generation() {
    let Some(node) = installed("STEPFOLD_INTEROP_MCP_CLIENTS") else { return };
    with_client_in(node, "ai.cjs", "ai7", PAY).await;
}

#[tokio::test]
async fn interop_ag_ui_validate() {
    let Some(program) = installed("STEPFOLD_INTEROP_AG_UI_VALIDATE") else { return };
    for model in ["assistant: area 3", PAY] {
        let site = Site::new(model).await;
        let header = format!("Authorization: {}", site.bearer("ada"));
        let url = format!("http://{}/agui/clerk", site.address);
        let output = Command::new(&program)
            .args([url.as_str(), "--json", "--max-warnings", "0", "--header", &header])
            .output();
        let output = output.await.unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
        let report: Value = serde_json::from_str(&said).unwrap();
        assert_eq!(
            (&report["summary"]["errors"], &report["summary"]["warnings"]),
            (&json!(0), &json!(0)),
            "{said}"
        );
        assert!(report["eventCount"].as_u64() > Some(5), "{said}");
    }
}

/// The document keeps the rules of OpenAPI, and has what generators of clients ask for.
#[tokio::test]
async fn interop_openapi_lint() {
    let Some(redocly) = installed("STEPFOLD_INTEROP_REDOCLY") else { return };
    let Some(node) = installed("STEPFOLD_INTEROP_MCP_CLIENTS") else { return };
    let site = Site::new(CHAT).await;
    let document = site.raw(Method::GET, "/api/v1/openapi.json", &[], "").await.text;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("openapi.json"), document).unwrap();
    let output = Command::new(node)
        .arg(redocly)
        .args(["lint", "--extends=recommended", "--max-problems=1000", "openapi.json"])
        .env("REDOCLY_TELEMETRY", "off")
        .env("REDOCLY_SUPPRESS_UPDATE_NOTICE", "true")
        .current_dir(folder.path())
        .output();
    let output = output.await.unwrap();
    let (said, failed) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && !failed.contains("warning"), "{said}{failed}");
}
