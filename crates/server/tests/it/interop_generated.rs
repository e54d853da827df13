//! Clients that generators of others make of the OpenAPI document, and requests that others make up from it. `cargo xtask
//! interop` installs them and says where they are.

use std::path::{Path, PathBuf};
use std::process::Output;

use http::Method;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};
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
    visit_at(command, site, &site.address, folder).await;
}

/// The same, at an address that leads to it.
async fn visit_at(command: &mut Command, site: &Site, address: &str, folder: &Path) {
    let token = site.bearer("ada").trim_start_matches("Bearer ").to_owned();
    let url = format!("http://{address}");
    let output = run(command.env("SITE", url).env("TOKEN", token).env("GENERATED", folder)).await;
    assert!(String::from_utf8_lossy(&output.stdout).contains("done"), "{output:?}");
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/generated").join(name)
}

/// An address that leads to a server, and cuts the answer of each of the first streams after so many bytes.
async fn cutting(site: &Site) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, server) = (listener.local_addr().unwrap().to_string(), site.address.clone());
    tokio::spawn(async move {
        let mut cuts = [40, 900, 1_700, 2_500].into_iter();
        while let Ok((mut client, _)) = listener.accept().await {
            let mut server = TcpStream::connect(&server).await.unwrap();
            let mut start = [0; 512];
            let read = client.peek(&mut start).await.unwrap_or(0);
            let is_stream = String::from_utf8_lossy(&start[..read]).contains("/live");
            let most = if is_stream { cuts.next().unwrap_or(u64::MAX) } else { u64::MAX };
            tokio::spawn(async move {
                let ((mut from_client, mut to_client), (from_server, mut to_server)) =
                    (client.split(), server.split());
                let mut answer = from_server.take(most);
                tokio::select! {
                    _ = tokio::io::copy(&mut from_client, &mut to_server) => {}
                    _ = tokio::io::copy(&mut answer, &mut to_client) => {}
                }
            });
        }
    });
    address
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/clients").join(name)
}

#[tokio::test]
async fn interop_python_client() {
    let Some(python) = installed("STEPFOLD_INTEROP_OPENAPI") else { return };
    let (site, _folder) = begin().await;
    let address = cutting(&site).await;
    let mut command = Command::new(&python);
    visit_at(command.arg(script("python_client.py")), &site, &address, &example("python")).await;
}

#[tokio::test]
async fn interop_typescript_client() {
    let Some(packages) = installed("STEPFOLD_INTEROP_TYPESCRIPT") else { return };
    let (site, folder) = begin().await;
    let client = example("typescript/stepfold_client.ts");
    std::fs::copy(client, folder.path().join("stepfold_client.ts")).unwrap();
    compile(&packages, folder.path(), "typescript_client.ts").await;
    let address = cutting(&site).await;
    let mut command = Command::new("node");
    visit_at(command.arg(folder.path().join("visit.js")), &site, &address, folder.path()).await;
}

/// Checks the types of a script, as `visit.ts`, and makes `visit.js` of it.
async fn compile(packages: &Path, folder: &Path, name: &str) {
    std::fs::write(folder.join("package.json"), r#"{"type": "module"}"#).unwrap();
    std::fs::copy(script(name), folder.join("visit.ts")).unwrap();
    let options = ["--strict", "--target", "es2022", "--module", "esnext", "--moduleResolution", "bundler"];
    let rest = ["--skipLibCheck", "--lib", "es2022,dom,dom.iterable", "visit.ts"];
    run(program(packages, "tsc").current_dir(folder).args(options).args(rest)).await;
}

fn program(packages: &Path, name: &str) -> Command {
    Command::new(packages.join(".bin").join(name))
}

#[tokio::test]
async fn interop_openapi_python_client() {
    let Some(python) = installed("STEPFOLD_INTEROP_OPENAPI") else { return };
    let (site, folder) = begin().await;
    let mut generate = Command::new(python.with_file_name("openapi-python-client"));
    generate.current_dir(folder.path()).args(["generate", "--path", "openapi.json", "--meta", "none"]);
    let output = run(generate.args(["--output-path", "generated"])).await;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
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
    let mut types = program(&packages, "openapi-typescript");
    run(types.current_dir(folder.path()).args(["openapi.json", "-o", "schema.d.ts"])).await;
    compile(&packages, folder.path(), "fetch.ts").await;
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
    command.current_dir(folder.path()).args(["run", "openapi.json", "--seed", "1", "--max-examples", "20"]);
    command.args(["--url", &format!("http://{}", site.address)]);
    command.args(["--header", &format!("Authorization: {}", site.bearer("ada"))]);
    command.args(["--checks", checks, "--request-timeout", "20", "--no-color"]);
    // Streams have no end, and JSON-RPC answers what is invalid with 200.
    run(command.args(["--exclude-path-regex", "/(live|stream)$|^/a2a/"])).await;
}
