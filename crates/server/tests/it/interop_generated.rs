//! Clients that generators of others make of the OpenAPI document, and requests that others make up from it. `cargo xtask interop`
//! installs them and says where they are.

use std::path::{Path, PathBuf};
use std::process::Output;

use http::Method;
use tokio::process::Command;

use crate::http::site::Site;
use crate::installed::installed;

const PAY: &str = "assistant: > c1 pay()\nassistant: paid\nassistant: welcome";

/// A server, with its document in a folder.
async fn begin() -> (Site, tempfile::TempDir) {
    let site = Site::new(PAY).await;
    let document = site.raw(Method::GET, "/api/v1/openapi.json", &[], "").await.text;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("openapi.json"), document).unwrap();
    (site, folder)
}

async fn run(command: &mut Command) -> Output {
    let output = command.output().await.unwrap();
    let (said, failed) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}\n{said}{failed}");
    output
}

/// Visits the server with a script of `generated/`.
async fn visit(command: &mut Command, site: &Site, folder: &Path) {
    let token = site.bearer("ada").trim_start_matches("Bearer ").to_owned();
    let url = format!("http://{}", site.address);
    let output = run(command.env("SITE", url).env("TOKEN", token).env("GENERATED", folder)).await;
    assert!(String::from_utf8_lossy(&output.stdout).contains("done"), "{output:?}");
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/generated").join(name)
}

#[tokio::test]
async fn interop_openapi_python_client() {
    let Some(python) = installed("STEPFOLD_INTEROP_OPENAPI") else { return };
    let (site, folder) = begin().await;
    let mut generate = Command::new(python.with_file_name("openapi-python-client"));
    generate.current_dir(folder.path()).args(["generate", "--path", "openapi.json", "--meta", "none"]);
    let output = run(generate.args(["--output-path", "generated"])).await;
    let said = String::from_utf8_lossy(&output.stdout);
    // Of what it cannot read, it says so and leaves it out: text in OpenMetrics.
    let left_out: Vec<&str> = said.lines().filter(|line| line.starts_with("WARNING parsing")).collect();
    assert_eq!(left_out, ["WARNING parsing GET /api/v1/metrics within server."], "{said}");
    assert!(!said.contains("Unable to process"), "{said}");
    visit(Command::new(&python).arg(script("openapi_python_client.py")), &site, folder.path()).await;
}

#[tokio::test]
async fn interop_openapi_generator() {
    let Some(python) = installed("STEPFOLD_INTEROP_OPENAPI") else { return };
    let (site, folder) = begin().await;
    let mut generate = Command::new(python.with_file_name("openapi-generator-cli"));
    generate.current_dir(folder.path()).args(["generate", "-g", "python", "-i", "openapi.json", "-o", "."]);
    run(&mut generate).await;
    visit(Command::new(&python).arg(script("openapi_generator.py")), &site, folder.path()).await;
}

#[tokio::test]
async fn interop_openapi_fetch() {
    let Some(packages) = installed("STEPFOLD_INTEROP_TYPESCRIPT") else { return };
    let (site, folder) = begin().await;
    // Programs are looked for beside what uses them.
    std::os::unix::fs::symlink(&packages, folder.path().join("node_modules")).unwrap();
    std::fs::write(folder.path().join("package.json"), r#"{"type": "module"}"#).unwrap();
    std::fs::copy(script("fetch.ts"), folder.path().join("visit.ts")).unwrap();
    let in_folder = |program: &str| {
        let mut command = Command::new(packages.join(".bin").join(program));
        command.current_dir(folder.path());
        command
    };
    run(in_folder("openapi-typescript").args(["openapi.json", "-o", "schema.d.ts"])).await;
    let options = ["--strict", "--target", "es2022", "--module", "esnext", "--moduleResolution", "bundler"];
    let rest = ["--skipLibCheck", "--lib", "es2022,dom,dom.iterable", "visit.ts"];
    run(in_folder("tsc").args(options).args(rest)).await;
    visit(Command::new("node").arg(folder.path().join("visit.js")), &site, folder.path()).await;
}

/// Requests that are made up from the document are answered as it says, and those that it forbids are refused.
#[tokio::test]
async fn interop_schemathesis() {
    let Some(python) = installed("STEPFOLD_INTEROP_SCHEMATHESIS") else { return };
    let (site, folder) = begin().await;
    site.post("ada", "/sessions", serde_json::json!({"id": "monday"})).await;
    let checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,\
                  negative_data_rejection,unsupported_method,ignored_auth";
    let mut command = Command::new(python.with_file_name("schemathesis"));
    command.current_dir(folder.path()).args(["run", "openapi.json", "--seed", "1", "--max-examples", "40"]);
    command.args(["--url", &format!("http://{}", site.address)]);
    command.args(["--header", &format!("Authorization: {}", site.bearer("ada"))]);
    command.args(["--checks", checks, "--request-timeout", "20", "--no-color"]);
    // Streams have no end.
    run(command.args(["--exclude-path-regex", "/(live|stream)$"])).await;
}
