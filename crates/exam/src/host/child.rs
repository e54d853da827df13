//! Workers of the exam, in processes of their own, and the agent that they run.

#![expect(clippy::expect_used, reason = "a worker of an exam that cannot work ends, and the exam fails")]

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use stepfold_agent_loop::test_kit::Script;
use stepfold_agent_loop::{Agent, Decision};
use stepfold_session_scopes::SessionKey;
use stepfold_state_core::chat::{ChatModel, ChatRequest, ModelError, ModelErrorKind, ReplyStream, Role};
use stepfold_tools::{Approval, Effect, Tool, ToolBuilder, ToolContext, ToolError};

use super::run_host::{ExamEffects, RunHost, WorkerReady};

/// The variable by which a parent tells its child the kind of the worker, the address of its host, and the file of the
/// world.
pub(super) const ROLE: &str = "STEPFOLD_HOST_EXAM";

/// The duration of a claim: a worker that is silent for longer is replaced.
pub(super) const CLAIM: Duration = Duration::from_millis(900);

/// The kind of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkerKind {
    Usual,
    /// The first call waits until it is told to continue.
    Slow,
    /// Its agent is another one, by a change that touches an open call.
    Changed,
    /// Its agent is another one, by a change that is ahead of every run.
    Newer,
    /// Its agent is the graph of the host.
    Graph,
    /// The same, and the first node waits.
    SlowGraph,
}

impl WorkerKind {
    pub(super) const fn word(self) -> &'static str {
        match self {
            WorkerKind::Usual => "usual",
            WorkerKind::Slow => "slow",
            WorkerKind::Changed => "changed",
            WorkerKind::Newer => "newer",
            WorkerKind::Graph => "graph",
            WorkerKind::SlowGraph => "slow-graph",
        }
    }

    fn of(word: &str) -> Self {
        match word {
            "slow" => WorkerKind::Slow,
            "changed" => WorkerKind::Changed,
            "newer" => WorkerKind::Newer,
            "graph" => WorkerKind::Graph,
            "slow-graph" => WorkerKind::SlowGraph,
            _ => WorkerKind::Usual,
        }
    }

    /// The effects of its agent on a file.
    fn effects(self, world: PathBuf) -> ExamEffects {
        ExamEffects::on(world, matches!(self, WorkerKind::Slow | WorkerKind::SlowGraph))
    }
}

/// A client in a process of its own, which decides and may begin the call.
#[derive(Serialize, Deserialize)]
pub(super) struct ExamClient {
    pub(super) key: (String, String, String),
    pub(super) decisions: Vec<(String, Decision)>,
}

/// Works in a process that the exam has started, until that is killed; does nothing in any other one.
///
/// # Panics
/// When the host cannot work.
#[expect(clippy::disallowed_methods, reason = "this is how a parent says what it wants")]
pub fn child<H: RunHost, F: Future<Output = H>>(open: impl FnOnce(String) -> F) {
    let Ok(role) = std::env::var(ROLE) else { return };
    let mut lines = role.lines();
    let mut line = || lines.next().expect("the exam says three things").to_owned();
    let (kind, address, world) = (WorkerKind::of(&line()), line(), PathBuf::from(line()));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime can be built");
    let client = lines
        .next()
        .filter(|client| !client.is_empty())
        .map(|client| serde_json::from_str::<ExamClient>(client).expect("the exam says it right"));
    runtime.block_on(async {
        let host = open(address).await;
        let effects = kind.effects(world);
        let agent = match kind {
            WorkerKind::Graph | WorkerKind::SlowGraph => host.graph(effects).expect("the host has a graph"),
            _ => agent(&effects, kind),
        };
        if let Some(ExamClient { key: (app, user, id), decisions }) = client {
            let key = SessionKey::new(app, user, id).expect("the key of a session");
            host.decide(&agent, &key, "k1", decisions).await.expect("the host takes decisions");
            // It stays until it is killed.
            return std::future::pending().await;
        }
        host.work(agent, CLAIM, WorkerReady(())).await.expect("the host works");
    });
}

/// The agent of the exam: its model says what the input says, and its tools have an effect on a file.
pub(super) fn agent(effects: &ExamEffects, kind: WorkerKind) -> Agent {
    let tool = |name, effect| tool(effects, name, effect);
    let look = tool("look", Effect::Pure);
    // A change that touches an open call of it.
    let saves = if kind == WorkerKind::Changed { Effect::AtMostOnce } else { Effect::Idempotent };
    let save = tool("save", saves);
    let pay = tool("pay", Effect::AtMostOnce);
    let send = tool("send", Effect::AtMostOnce).approval(Approval::Always);
    let tools = [look, save, pay, send].map(|tool| tool.build().expect("the tools of the exam are valid"));
    let told = if kind == WorkerKind::Newer { "You are examined again." } else { "You are examined." };
    let agent = Agent::builder(EchoModel).name("examinee").instructions(told);
    let agent = agent.tools(tools.to_vec());
    agent.build().expect("the agent of the exam is valid")
}

fn tool(effects: &ExamEffects, name: &'static str, effect: Effect) -> ToolBuilder {
    let effects = effects.clone();
    let call = move |context: ToolContext| {
        let effects = effects.clone();
        async move {
            let had = effects.have(name, context.idempotency_key()).await;
            had.map(|()| "done").map_err(ToolError::fatal)
        }
    };
    Tool::new(name, "Has an effect.", call).effect(effect)
}

/// Says what the message of the user says, in the notation of transcripts.
struct EchoModel;

impl ChatModel for EchoModel {
    fn id(&self) -> &'static str {
        "exam/says"
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        let said = request.messages.iter().find(|message| message.role() == Role::User);
        let script = said.map(|message| message.text().into_owned()).unwrap_or_default();
        match Script::parse(&script) {
            Ok(script) => script.respond(request),
            Err(error) => {
                let error = ModelError::new(ModelErrorKind::Refused, error.to_string());
                ReplyStream::new(futures_util::stream::iter([Err(error)]))
            }
        }
    }
}
