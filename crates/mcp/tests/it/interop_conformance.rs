//! The client in the conformance suites of the protocol. `cargo xtask interop` installs them and says where they are.
//!
//! The client that they test is this binary, started again by the suite.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};
use stepfold_mcp::{Elicitation, ElicitationAnswer, ElicitationRequest, McpServer, OAuth, SignIn};

use crate::authority::browse;
use crate::conformance::{Scenarios, Suite};
use crate::kit::{call, offered};

/// What the suite calls the scenario, for the client.
const SCENARIO: &str = "MCP_CONFORMANCE_SCENARIO";

/// Scenarios whose servers answer what they do not know as if it had succeeded: the client does not ask them for the newer
/// revision first.
const AFTER_INITIALIZE: &[&str] = &["initialize", "sse-retry"];

const NO_USER: &str = "an extension: there is no grant without a user";
const NO_EXTENSION: &str = "an extension that is not implemented";

/// Those of 0.1.16.
const FIRST: Scenarios = &[
    ("initialize", None),
    ("tools_call", None),
    ("elicitation-sep1034-client-defaults", None),
    ("sse-retry", None),
    ("auth/metadata-default", None),
    ("auth/metadata-var1", None),
    ("auth/metadata-var2", None),
    ("auth/metadata-var3", None),
    ("auth/basic-cimd", None),
    ("auth/scope-from-www-authenticate", None),
    ("auth/scope-from-scopes-supported", None),
    ("auth/scope-omitted-when-undefined", None),
    ("auth/scope-step-up", None),
    ("auth/scope-retry-limit", None),
    ("auth/token-endpoint-auth-basic", None),
    ("auth/token-endpoint-auth-post", None),
    ("auth/token-endpoint-auth-none", None),
    ("auth/pre-registration", None),
    (
        "auth/2025-03-26-oauth-metadata-backcompat",
        Some(
            "its document names another issuer than where it is (RFC 8414, 3.3); the next suite has it right",
        ),
    ),
    ("auth/2025-03-26-oauth-endpoint-fallback", None),
    ("auth/resource-mismatch", None),
    ("auth/offline-access-scope", None),
    ("auth/offline-access-not-supported", None),
    ("auth/client-credentials-jwt", Some(NO_USER)),
    ("auth/client-credentials-basic", Some(NO_USER)),
    ("auth/cross-app-access-complete-flow", Some(NO_USER)),
];

/// Those of 0.2.0-alpha.12.
const NEXT: Scenarios = &[
    ("initialize", None),
    ("tools_call", None),
    ("elicitation-sep1034-client-defaults", None),
    ("sse-retry", None),
    ("request-metadata", None),
    ("auth/metadata-default", None),
    ("auth/metadata-var1", None),
    ("auth/metadata-var2", None),
    ("auth/metadata-var3", None),
    ("auth/basic-cimd", None),
    ("auth/scope-from-www-authenticate", None),
    ("auth/scope-from-scopes-supported", None),
    ("auth/scope-omitted-when-undefined", None),
    ("auth/scope-step-up", None),
    ("auth/scope-retry-limit", None),
    ("auth/token-endpoint-auth-basic", None),
    ("auth/token-endpoint-auth-post", None),
    ("auth/token-endpoint-auth-none", None),
    ("auth/pre-registration", None),
    ("auth/2025-03-26-oauth-metadata-backcompat", None),
    ("auth/2025-03-26-oauth-endpoint-fallback", None),
    ("auth/resource-mismatch", None),
    ("auth/offline-access-scope", None),
    ("auth/offline-access-not-supported", None),
    ("auth/authorization-server-migration", None),
    ("auth/iss-supported", None),
    ("auth/iss-not-advertised", None),
    ("auth/iss-supported-missing", None),
    ("auth/iss-wrong-issuer", None),
    ("auth/iss-unexpected", None),
    ("auth/iss-normalized", None),
    ("auth/metadata-issuer-mismatch", None),
    ("auth/client-credentials-jwt", Some(NO_USER)),
    ("auth/client-credentials-basic", Some(NO_USER)),
    ("auth/enterprise-managed-authorization", Some(NO_USER)),
    ("auth/dpop", Some(NO_EXTENSION)),
    ("auth/dpop-nonce", Some(NO_EXTENSION)),
    ("auth/wif-jwt-bearer", Some(NO_USER)),
    ("sep-2322-client-request-state", None),
    ("http-standard-headers", None),
    (
        "http-custom-headers",
        Some(
            "it calls with null where the schema has a boolean: such arguments are refused before they are sent",
        ),
    ),
    ("http-invalid-tool-headers", None),
    ("json-schema-ref-no-deref", None),
    ("json-schema-2020-12-preservation", None),
    ("sep-2640-client-no-prefetch", None),
    ("sep-2640-client-verify-digest", None),
    ("sep-2640-client-verify-size", None),
    ("sep-2640-client-verify-frontmatter", None),
];

/// The client, where the suite starts this binary. It lists the tools, and calls each with what its schema asks for.
#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "this is how the suite says what it wants")]
#[expect(clippy::print_stdout, reason = "a program tells its parent what it did")]
async fn client() {
    let Ok(scenario) = std::env::var(SCENARIO) else { return };
    let url = std::env::args().next_back().unwrap();
    let server = McpServer::http("conformance", url)
        .prefix("")
        .on_question(|question| async move { answer(&question) })
        .oauth(authorization());
    let server = if AFTER_INITIALIZE.contains(&&*scenario) { server.initialize_only() } else { server };
    let server = server.build().unwrap();
    let tools = offered(&server).await;
    let mut lines = String::new();
    let calls: Vec<_> = if let Some(wanted) = context()["toolCalls"].as_array() {
        let call = |call: &Value| (call["name"].as_str().unwrap().to_owned(), call["arguments"].clone());
        wanted.iter().map(call).collect()
    } else {
        let schema = |name: &str| tools.get(name).unwrap().spec().parameters.clone();
        tools.names().map(|name| (name.to_owned(), arguments(&schema(name)))).collect()
    };
    for (name, mut arguments) in calls {
        // It wants to see what arrived of another tool.
        if name == "json_schema_echo" {
            let offered = server.offered().await.unwrap();
            let (_, seen) = offered.iter().find(|(name, _)| name == "json_schema_2020_12_tool").unwrap();
            arguments = json!({"schema": seen.input_schema});
        }
        let outcome = call(&server, &name, arguments).await;
        writeln!(lines, "{name}: {:?} {}", outcome.status, outcome.result.text()).unwrap();
    }
    println!("{scenario}\n{lines}");
    server.stop().await;
}

/// What the suite says of the scenario.
#[expect(clippy::disallowed_methods, reason = "this is how the suite says what it wants")]
fn context() -> Value {
    let context = std::env::var("MCP_CONFORMANCE_CONTEXT").unwrap_or_default();
    serde_json::from_str(&context).unwrap_or_default()
}

/// With what the suite says of the client, if it is to be known before.
fn authorization() -> OAuth {
    let context = context();
    let oauth = OAuth::new()
        .sign_in(SignIn::redirect(
            "http://localhost:3000/callback",
            |page| async move { browse(&page).await.0 },
        ))
        .client_metadata_url("https://conformance-test.local/client-metadata.json");
    match context["client_id"].as_str() {
        Some(id) => oauth.client(id, context["client_secret"].as_str().map(str::to_owned)),
        None => oauth,
    }
}

/// Numbers and words for what a schema requires.
fn arguments(schema: &Value) -> Value {
    let value = |schema: &Value| match schema["type"].as_str() {
        Some("number" | "integer") => json!(3),
        Some("boolean") => json!(true),
        Some("array") => json!([]),
        Some("object") => json!({}),
        _ => json!("words"),
    };
    let properties = schema["properties"].as_object().cloned().unwrap_or_default();
    Value::Object(
        properties.iter().map(|(name, schema)| (name.clone(), value(schema))).collect::<Map<_, _>>(),
    )
}

/// The defaults of a form.
fn answer(question: &Elicitation) -> ElicitationAnswer {
    let ElicitationRequest::Form(schema) = &question.wants else { return ElicitationAnswer::Decline };
    let properties = schema["properties"].as_object().cloned().unwrap_or_default();
    let given = |schema: &Value| {
        schema
            .get("default")
            .cloned()
            .unwrap_or_else(|| arguments(&json!({"properties": {"x": schema}}))["x"].clone())
    };
    ElicitationAnswer::Accept(Value::Object(
        properties.iter().map(|(name, schema)| (name.clone(), given(schema))).collect(),
    ))
}

fn check(variable: &str, version: &'static str, scenarios: Scenarios) {
    let Some(suite) = Suite::installed(variable, version, scenarios) else { return };
    let this = std::env::current_exe().unwrap();
    let command = format!("{} --exact interop_conformance::client --nocapture", this.display());
    suite.check("client", &["--command", &command]);
}

#[test]
fn conformance_of_the_client() {
    check("STEPFOLD_INTEROP_MCP_CONFORMANCE", "0.1.16", FIRST);
}

#[test]
fn conformance_of_the_client_by_the_next_suite() {
    check("STEPFOLD_INTEROP_MCP_CONFORMANCE_NEXT", "0.2.0-alpha.12", NEXT);
}
