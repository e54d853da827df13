//! A server of a test's own, and a client that says exactly what it is told to.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use stepfold_agent_loop::Agent;
use stepfold_agent_loop::test_kit::Script;
use stepfold_runner::Runner;
use stepfold_server::http::{App, Limits, Principal, Role, Server, ServerBuilder, Token, Tokens};
use stepfold_session_scopes::{AnyStore, MemoryStore};
use stepfold_state_core::state::{Handler, Schema};
use stepfold_tools::{Approval, Effect, Tool, ToolError};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use super::contract;

/// The longest that a test waits for anything.
const PATIENCE: Duration = Duration::from_secs(20);

/// The users of a test: each with a token of its own.
pub(crate) const USERS: [(&str, &str, Role); 5] = [
    ("ada", "ada", Role::Act),
    ("bob", "bob", Role::Administer),
    ("reader", "ada", Role::Read),
    ("payer", "eve", Role::RaiseBudgets),
    ("root", "ada", Role::Administer),
];

pub(crate) struct Site {
    pub(crate) address: String,
    pub(crate) runner: Runner,
    pub(crate) server: Server,
    tokens: Vec<(&'static str, Token)>,
    pub(crate) stop: Option<oneshot::Sender<()>>,
    served: tokio::task::JoinHandle<bool>,
}

pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// The status, and the kind of the problem.
    pub(crate) fn problem(&self) -> (u16, String) {
        assert_eq!(self.headers["content-type"], "application/problem+json", "{}", self.text);
        let problem = self.json();
        assert_eq!(problem["status"], self.status.as_u16());
        assert_eq!(problem["type"], format!("urn:stepfold:problem:{}", problem["kind"].as_str().unwrap()));
        (self.status.as_u16(), problem["kind"].as_str().unwrap().to_owned())
    }
}

async fn pay() -> Result<Value, ToolError> {
    Ok(json!({"euro": 5}))
}

/// An agent that counts what it pays, and asks before.
pub(crate) fn agent(script: &str, tools: Vec<Tool>) -> Agent {
    agent_of(Script::parse(script).unwrap(), tools)
}

pub(crate) fn agent_of(model: Script, tools: Vec<Tool>) -> Agent {
    let pay = Tool::new("pay", "Pays the bill.", pay)
        .output_to_state("spent", "euro")
        .effect(Effect::Idempotent)
        .approval(Approval::Always)
        .build()
        .unwrap();
    let schema = Schema::builder()
        .key::<u64>("spent")
        .handler(Handler::sum())
        .key::<String>("user:name")
        .key::<String>("app:motto")
        .build()
        .unwrap();
    let mut tools = tools;
    tools.push(pay);
    Agent::builder(model).name("clerk").schema(schema).tools(tools).build().unwrap()
}

impl Site {
    pub(crate) async fn new(script: &str) -> Self {
        let agent = agent(script, Vec::new());
        Site::over(Runner::builder(agent, MemoryStore::new()).build(), Limits::default()).await
    }

    /// Another process over the same store, with its own model.
    pub(crate) async fn again(&self, script: &str) -> Self {
        let store: AnyStore = self.runner.store().clone();
        Site::over(Runner::builder(agent(script, Vec::new()), store).build(), Limits::default()).await
    }

    pub(crate) async fn over(runner: Runner, limits: Limits) -> Self {
        Site::of(App::from(runner).describe("Pays."), limits).await
    }

    pub(crate) async fn of(app: App, limits: Limits) -> Self {
        Site::with(app, limits, |server| server).await
    }

    pub(crate) async fn with(
        app: App,
        limits: Limits,
        more: impl FnOnce(ServerBuilder) -> ServerBuilder,
    ) -> Self {
        let runner = app.runner().clone();
        let (mut tokens, mut known) = (Vec::new(), Tokens::new());
        for (name, user, role) in USERS {
            let token = Token::random().unwrap();
            known = known.with(&token, Principal::new(user, role).unwrap().named(name));
            tokens.push((name, token));
        }
        let server = Server::builder().app(app).auth(known).allow_origin("https://app.example");
        let server = more(server.limits(limits)).build().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (stop, stopped) = oneshot::channel();
        let serving = server.clone().serve_until(listener, async { drop(stopped.await) });
        Site { address, runner, server, tokens, stop: Some(stop), served: tokio::spawn(serving) }
    }

    /// Tells it to stop, and waits for the end. Returns whether all work completed.
    pub(crate) async fn stop(mut self) -> bool {
        drop(self.stop.take());
        tokio::time::timeout(PATIENCE, self.served).await.expect("it ends").unwrap()
    }

    pub(crate) fn bearer(&self, name: &str) -> String {
        let (_, token) = self.tokens.iter().find(|(known, _)| *known == name).unwrap();
        format!("Bearer {}", token.secret())
    }

    pub(crate) async fn get(&self, name: &str, path: &str) -> Reply {
        self.ask(name, Method::GET, path, &[], "").await
    }

    pub(crate) async fn post(&self, name: &str, path: &str, body: Value) -> Reply {
        self.ask(name, Method::POST, path, &[], &body.to_string()).await
    }

    /// Sends a request of a user, as JSON.
    pub(crate) async fn ask(
        &self,
        name: &str,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Reply {
        let bearer = self.bearer(name);
        let mut all = vec![("authorization", bearer.as_str()), ("content-type", "application/json")];
        all.extend(headers);
        self.raw(method, &format!("/api/v1/apps/clerk{path}"), &all, body).await
    }

    /// Sends a request with these headers, and `Host` if they have none.
    pub(crate) async fn raw(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Reply {
        let (status, headers, answer) = self.open(method.clone(), path, headers, body).await;
        let answer = tokio::time::timeout(PATIENCE, answer.collect()).await.expect("an answer").unwrap();
        let text = String::from_utf8(answer.to_bytes().to_vec()).unwrap();
        contract::check(&method, path, body, status, &headers, &text);
        Reply { status, headers, text }
    }

    pub(crate) async fn open(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> (StatusCode, HeaderMap, Incoming) {
        let stream = TcpStream::connect(&self.address).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let mut request = Request::builder().method(method.clone()).uri(path);
        if !headers.iter().any(|(name, _)| *name == "host") {
            request = request.header("host", &self.address);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::from(body.to_owned()))).unwrap();
        let answer = tokio::time::timeout(PATIENCE, sender.send_request(request)).await.expect("an answer");
        let (parts, body) = answer.unwrap().into_parts();
        contract::check_head(&method, path, parts.status, &parts.headers);
        (parts.status, parts.headers, body)
    }

    /// Opens the live stream of a session.
    pub(crate) async fn live(&self, name: &str, session: &str, last: Option<&str>) -> Live {
        self.live_from(name, &format!("/sessions/{session}/live"), last).await
    }

    pub(crate) async fn live_from(&self, name: &str, path: &str, last: Option<&str>) -> Live {
        self.try_live(name, path, last).await.unwrap_or_else(|status| panic!("{status} for {path}"))
    }

    /// Opens a live stream, which may be refused.
    pub(crate) async fn try_live(
        &self,
        name: &str,
        path: &str,
        last: Option<&str>,
    ) -> Result<Live, StatusCode> {
        let bearer = self.bearer(name);
        let mut headers = vec![("authorization", bearer.as_str())];
        headers.extend(last.map(|last| ("last-event-id", last)));
        // The live stream of all sessions is not below an app.
        let app = if path.starts_with("/live") { "" } else { "/apps/clerk" };
        let path = format!("/api/v1{app}{path}");
        let (status, headers, body) = self.open(Method::GET, &path, &headers, "").await;
        if status != StatusCode::OK {
            return Err(status);
        }
        assert_eq!(headers["content-type"], "text/event-stream");
        Ok(Live { body, text: String::new() })
    }
}

/// A reader of server-sent events.
pub(crate) struct Live {
    body: Incoming,
    text: String,
}

/// An event of a stream.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) id: Option<String>,
    pub(crate) event: String,
    pub(crate) data: Value,
}

impl Live {
    /// The next event; `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Option<Told> {
        loop {
            if let Some((block, rest)) = self.text.split_once("\n\n") {
                let told = Told::parse(block);
                let rest = rest.to_owned();
                self.text = rest;
                match told {
                    Some(told) => return Some(told),
                    None => continue,
                }
            }
            let frame = tokio::time::timeout(PATIENCE, self.body.frame()).await.expect("an event")?;
            let data = frame.ok()?.into_data().ok()?;
            self.text.push_str(std::str::from_utf8(&data).unwrap());
        }
    }

    /// The events up to the first of this name.
    pub(crate) async fn until(&mut self, event: &str) -> Vec<Told> {
        self.until_is(|told| told.event == event, event).await
    }

    async fn until_is(&mut self, is_last: impl Fn(&Told) -> bool, what: &str) -> Vec<Told> {
        let mut all = Vec::new();
        let found = tokio::time::timeout(PATIENCE, async {
            while let Some(told) = self.next().await {
                all.push(told);
                if all.last().is_some_and(&is_last) {
                    return true;
                }
            }
            false
        });
        let found = found.await.unwrap_or(false);
        assert!(found, "no {what} after {all:?}");
        all
    }

    /// The events up to the commit of this version.
    pub(crate) async fn until_version(&mut self, version: u64) -> Vec<Told> {
        self.until_is(|told| told.version() == Some(version), "such version").await
    }
}

impl Told {
    fn parse(block: &str) -> Option<Self> {
        let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name));
        Some(Told {
            id: field("id: ").map(str::to_owned),
            event: field("event: ")?.to_owned(),
            data: serde_json::from_str(field("data: ")?).unwrap(),
        })
    }

    /// The version of a commit.
    pub(crate) fn version(&self) -> Option<u64> {
        (self.event == "committed").then(|| self.data["version"].as_u64().unwrap())
    }
}

/// The versions of the commits among these events.
pub(crate) fn versions(all: &[Told]) -> Vec<u64> {
    all.iter().filter_map(Told::version).collect()
}

/// The names of these events.
pub(crate) fn names(all: &[Told]) -> Vec<&str> {
    all.iter().map(|told| told.event.as_str()).collect()
}
