//! A server of Restate, on ports of its own.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use stepfold_restate::RestateClient;
use tempfile::TempDir;
use tokio::net::TcpListener;

use crate::installed::installed;

/// The server, until it is dropped.
pub(crate) struct Server {
    child: Child,
    _folder: TempDir,
    http: reqwest::Client,
    ingress: u16,
    admin: u16,
}

/// A port that was free a moment ago.
async fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port()
}

impl Server {
    /// Starts one, if it is installed.
    pub(crate) async fn start() -> Option<Self> {
        let program = installed("STEPFOLD_INTEROP_RESTATE")?;
        let folder = tempfile::tempdir().unwrap();
        let (node, ingress, admin) = (free_port().await, free_port().await, free_port().await);
        let child = spawn(&program, folder.path(), [node, ingress, admin]);
        let http = reqwest::Client::builder().tls_backend_preconfigured(no_tls()).build().unwrap();
        let server = Server { child, _folder: folder, http, ingress, admin };
        // It answers before it can take requests; registering waits for that.
        while server.http.get(server.admin_url("health")).send().await.is_err() {
            // tidy: allow sleep, because the server does not say when it is ready
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Some(server)
    }

    fn admin_url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}/{path}", self.admin)
    }

    pub(crate) fn ingress_url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.ingress)
    }

    #[allow(dead_code, reason = "the bench asks for it")]
    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn client(&self) -> RestateClient {
        RestateClient::connect(&self.ingress_url(""), "clerk").unwrap()
    }

    /// Registers the address of the workers.
    pub(crate) async fn register(&self, address: SocketAddr) {
        let body = json!({"uri": format!("http://{address}"), "force": true});
        loop {
            let answer = self.post("deployments", &body).await;
            match answer {
                Ok(_) => return,
                Err(status) => assert!(status >= 500 || status == 429, "{status}"),
            }
            // tidy: allow sleep, because the server does not say when it is ready
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Asks the server about its invocations.
    pub(crate) async fn query(&self, sql: &str) -> Vec<Value> {
        let answer = self.post("query", &json!({"query": sql})).await.unwrap();
        answer["rows"].as_array().cloned().unwrap_or_default()
    }

    async fn post(&self, path: &str, body: &Value) -> Result<Value, u16> {
        let request = self.http.post(self.admin_url(path)).header("content-type", "application/json");
        let answer =
            request.header("accept", "application/json").body(body.to_string()).send().await.unwrap();
        let status = answer.status();
        let text = answer.text().await.unwrap();
        if !status.is_success() {
            eprintln!("{path}: {status} {text}");
            return Err(status.as_u16());
        }
        Ok(serde_json::from_str(&text).unwrap_or_default())
    }

    /// A request without our client, as anybody sends it.
    pub(crate) async fn call(&self, path: &str, body: String) -> (u16, String) {
        let request = self.http.post(self.ingress_url(path)).header("content-type", "application/json");
        let answer = request.body(body).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }
}

/// Nothing here is encrypted.
fn no_tls() -> rustls::ClientConfig {
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    builder.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth()
}

fn spawn(program: &Path, folder: &Path, [node, ingress, admin]: [u16; 3]) -> Child {
    let mut command = Command::new(program);
    command.args(["--no-logo", "--node-name", "test", "--base-dir"]).arg(folder);
    let options = [
        ("BIND_IP", "127.0.0.1".to_owned()),
        ("LISTEN_MODE", "tcp".to_owned()),
        ("DISABLE_TELEMETRY", "true".to_owned()),
        ("LOG_FILTER", "error".to_owned()),
        ("BIND_PORT", node.to_string()),
        ("INGRESS__BIND_PORT", ingress.to_string()),
        ("ADMIN__BIND_PORT", admin.to_string()),
        ("DEFAULT_NUM_PARTITIONS", "2".to_owned()),
        ("ROCKSDB_TOTAL_MEMORY_SIZE", "128MB".to_owned()),
        // A frozen worker is noticed within two seconds.
        ("WORKER__INVOKER__HTTP2_KEEP_ALIVE_INTERVAL", "1s".to_owned()),
        ("WORKER__INVOKER__HTTP2_KEEP_ALIVE_TIMEOUT", "1s".to_owned()),
    ];
    for (name, value) in options {
        command.env(format!("RESTATE_{name}"), value);
    }
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
