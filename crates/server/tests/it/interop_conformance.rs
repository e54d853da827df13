//! The server in the conformance suites of the protocol. `cargo xtask interop` installs them and says where they are.

use stepfold_server::mcp::{AgentServer, HttpOptions};

use crate::conformance::{Scenarios, Suite};
use crate::mcp::runner;
use crate::mcp_http::listen;

const TOOL: &str = "it calls a tool of its own; the server has one, which takes a message to the agent";
const DIAGNOSTIC: &str = "it calls diagnostic tools of its own; all else passes";
const RESOURCE: &str = "it reads a resource of its own; those of the server are its sessions";
const SUBSCRIPTION: &str = "the server does not tell of changed resources";
const PROMPT: &str = "the server has no prompts";
const LOGGING: &str = "the server sends no logs; they are deprecated";
const COMPLETION: &str = "the server completes nothing";

/// Those of 0.1.16.
const FIRST: Scenarios = &[
    ("server-initialize", None),
    ("logging-set-level", Some(LOGGING)),
    ("ping", None),
    ("completion-complete", Some(COMPLETION)),
    ("tools-list", None),
    ("tools-call-simple-text", Some(TOOL)),
    ("tools-call-image", Some(TOOL)),
    ("tools-call-audio", Some(TOOL)),
    ("tools-call-embedded-resource", Some(TOOL)),
    ("tools-call-mixed-content", Some(TOOL)),
    ("tools-call-with-logging", Some(LOGGING)),
    ("tools-call-error", Some(TOOL)),
    ("tools-call-with-progress", Some(TOOL)),
    ("tools-call-sampling", Some(TOOL)),
    ("tools-call-elicitation", Some(TOOL)),
    ("json-schema-2020-12", Some(TOOL)),
    ("elicitation-sep1034-defaults", Some(TOOL)),
    ("server-sse-polling", None),
    ("server-sse-multiple-streams", None),
    ("elicitation-sep1330-enums", Some(TOOL)),
    ("resources-list", None),
    ("resources-read-text", Some(RESOURCE)),
    ("resources-read-binary", Some(RESOURCE)),
    ("resources-templates-read", Some(RESOURCE)),
    ("resources-subscribe", Some(SUBSCRIPTION)),
    ("resources-unsubscribe", Some(SUBSCRIPTION)),
    ("prompts-list", Some(PROMPT)),
    ("prompts-get-simple", Some(PROMPT)),
    ("prompts-get-with-args", Some(PROMPT)),
    ("prompts-get-embedded-resource", Some(PROMPT)),
    ("prompts-get-with-image", Some(PROMPT)),
    ("dns-rebinding-protection", None),
];

/// Those of 0.2.0-alpha.12.
const NEXT: Scenarios = &[
    ("server-initialize", None),
    ("server-session-lifecycle", None),
    ("server-stateless", Some(DIAGNOSTIC)),
    ("logging-set-level", Some(LOGGING)),
    ("ping", None),
    ("completion-complete", Some(COMPLETION)),
    ("tools-list", None),
    ("tools-call-simple-text", Some(TOOL)),
    ("tools-call-image", Some(TOOL)),
    ("tools-call-audio", Some(TOOL)),
    ("tools-call-embedded-resource", Some(TOOL)),
    ("tools-call-mixed-content", Some(TOOL)),
    ("tools-call-with-logging", Some(LOGGING)),
    ("tools-call-error", Some(TOOL)),
    ("tools-call-with-progress", Some(TOOL)),
    ("tools-call-sampling", Some(TOOL)),
    ("tools-call-elicitation", Some(TOOL)),
    ("json-schema-2020-12", Some(TOOL)),
    ("elicitation-sep1034-defaults", Some(TOOL)),
    ("server-sse-polling", None),
    ("server-sse-multiple-streams", None),
    ("elicitation-sep1330-enums", Some(TOOL)),
    ("resources-list", None),
    ("resources-read-text", Some(RESOURCE)),
    ("resources-read-binary", Some(RESOURCE)),
    ("resources-templates-read", Some(RESOURCE)),
    ("resources-subscribe", Some(SUBSCRIPTION)),
    ("resources-unsubscribe", Some(SUBSCRIPTION)),
    ("sep-2164-resource-not-found", None),
    ("sep-2640-skills-directory", None),
    ("sep-2640-skills-enumeration", None),
    ("sep-2640-skills-manifest", None),
    ("prompts-list", Some(PROMPT)),
    ("prompts-get-simple", Some(PROMPT)),
    ("prompts-get-with-args", Some(PROMPT)),
    ("prompts-get-embedded-resource", Some(PROMPT)),
    ("prompts-get-with-image", Some(PROMPT)),
    ("dns-rebinding-protection", None),
    ("caching", Some(PROMPT)),
    ("http-header-validation", None),
    ("http-custom-header-server-validation", Some(TOOL)),
    ("tasks-lifecycle", Some(TOOL)),
    ("tasks-capability-negotiation", Some(TOOL)),
    ("tasks-wire-fields", Some(TOOL)),
    ("tasks-request-state-removal", Some(TOOL)),
    ("tasks-mrtr-input", Some(TOOL)),
    ("tasks-request-headers", Some(TOOL)),
    ("tasks-dispatch-and-envelope", Some(TOOL)),
    ("tasks-status-notifications", None),
    ("tasks-required-task-error", Some(TOOL)),
    ("tasks-mrtr-composition", Some(TOOL)),
    ("input-required-result-basic-elicitation", Some(TOOL)),
    ("input-required-result-basic-sampling", Some(TOOL)),
    ("input-required-result-basic-list-roots", Some(TOOL)),
    ("input-required-result-request-state", Some(TOOL)),
    ("input-required-result-multiple-input-requests", Some(TOOL)),
    ("input-required-result-multi-round", Some(TOOL)),
    ("input-required-result-missing-input-response", None),
    ("input-required-result-non-tool-request", Some(PROMPT)),
    ("input-required-result-result-type", Some(TOOL)),
    ("input-required-result-unsupported-methods", None),
    ("input-required-result-tampered-state", Some(TOOL)),
    ("input-required-result-capability-check", Some(TOOL)),
    ("input-required-result-ignore-extra-params", None),
    ("input-required-result-validate-input", None),
];

async fn check(variable: &str, version: &'static str, scenarios: Scenarios) {
    let Some(suite) = Suite::installed(variable, version, scenarios) else { return };
    let script = "assistant: hello\n".repeat(100);
    let server = AgentServer::new(runner(&script), "ada").into_http(HttpOptions::new());
    let url = format!("http://{}/mcp", listen(server).await);
    tokio::task::spawn_blocking(move || suite.check("server", &["--url", &url])).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interop_conformance_of_the_server() {
    check("STEPFOLD_INTEROP_MCP_CONFORMANCE", "0.1.16", FIRST).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interop_conformance_of_the_server_by_the_next_suite() {
    check("STEPFOLD_INTEROP_MCP_CONFORMANCE_NEXT", "0.2.0-alpha.12", NEXT).await;
}
