//! The studio over the analyst and the deep research: sessions that ran, one that waits for an approval, one that was
//! killed.
//!
//! `cargo run -p stepfold-examples --bin studio --features server` prints an address. No key is needed: the models say what
//! was written beforehand. The tools, the database, the documents and the sessions are real; they are created again
//! each time. The analyst has a model for summaries here, so that a long conversation is shown to it in short.

#[path = "../analyst/agent.rs"]
mod agent;
#[expect(dead_code, reason = "here the documents are always those of the repository")]
#[path = "../deep_research/corpus.rs"]
mod corpus;
#[path = "../analyst/data.rs"]
mod data;
#[path = "../deep_research/graph.rs"]
mod graph;
#[path = "../deep_research/pdf.rs"]
mod pdf;
#[expect(dead_code, reason = "the other program writes reports to files")]
#[path = "../deep_research/report.rs"]
mod report;
#[path = "../analyst/sql.rs"]
mod sql;
#[path = "../deep_research/tools.rs"]
mod tools;

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use futures_util::StreamExt as _;
use serde_json::json;
use stepfold::agent_loop::RunEvent;
use stepfold::graph::progress::ResearchDepth;
use stepfold::prelude::*;
use stepfold::runner::InvocationEvent;
use stepfold::server::http::{App, Principal, Role, Server, Token, Tokens};
use stepfold::session_scopes::{AnyStore, EventRange, MemoryStore};
use stepfold::state_core::chat::{
    ChatModel, ChatRequest, Chunk, FinishReason, ModelError, ModelErrorKind, Price, Prices, ReplyStream,
    Usage,
};
use stepfold::trim::{ApproximateTokens, Summarize, Trim};
use stepfold_examples::{Failure, Recording, USER, ended, say, tell};
use tokio::net::TcpListener;

use crate::agent::analyst;
use crate::corpus::Corpus;
use crate::graph::{bounds, deep_research};
use crate::sql::Database;

const ANALYST: &str = include_str!("../analyst/conversation.txt");
const RESEARCH: &str = include_str!("../deep_research/conversation.txt");
/// In the answer to this question the analyst is killed, after so many replies.
const KILLED: (&str, usize) = ("Change the WHERE of that query: only zones south of the equator.", 2);

/// The analyst's view of the conversation from the fourth question on.
const SUMMARY: &str = "The user asked which country has the most time zones: US 29, RU 27, CA 23, BR 16, AU 13 (run_sql over zone_countries and zones). From now on answers are one sentence and name the country codes. South of the equator: BR 15, AU 12, AR 12, AQ 9, ID 4; the column is zones.latitude, there is no zones.lat.";

/// The studio over the analyst and the deep research.
#[derive(Debug, Parser)]
#[command(name = "studio")]
struct Arguments {
    /// The address to listen on.
    #[arg(long, default_value = "127.0.0.1:8477")]
    bind: SocketAddr,
    /// Make the sessions, and end.
    #[arg(long)]
    replay: bool,
    /// Milliseconds between two words of a reply, so that one sees them come.
    #[arg(long, value_name = "MS", default_value_t = 40)]
    delay: u64,
}

#[tokio::main]
async fn main() -> ExitCode {
    ended(run(Arguments::parse()).await)
}

async fn run(arguments: Arguments) -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let database = folder.path().join("time_zones.sqlite");
    data::make(&database)?;
    let store = AnyStore::new(MemoryStore::new());
    let analyst = |recording| analyst_runner(&store, &database, recording);
    let recording = Recording::new(ANALYST, Duration::ZERO)?;
    ask_the_analyst(&analyst(recording.clone())?).await?;
    kill_the_analyst(&analyst(recording.stopping_at(KILLED.0, KILLED.1))?).await?;
    research(&research_runner(&store, Duration::ZERO)?).await?;
    if arguments.replay {
        say("The sessions are made.");
        return Ok(());
    }
    let delay = Duration::from_millis(arguments.delay);
    let research = research_runner(&store, delay)?;
    let graph = deep_research(&written(delay)?, |_: &str| None, &Corpus::of_repository()?)?;
    let price = Price::new(0.5, 2.0);
    let prices = Prices::new().with("recording", price).with("summaries", price);
    let apps = [
        App::from(analyst(Recording::new(ANALYST, delay)?)?)
            .prices(prices.clone())
            .describe("Answers from a database of the world's time zones."),
        App::from(research)
            .prices(prices)
            .describe("Plans, researches documents side by side, judges, and writes a report.")
            .graph(serde_json::to_value(graph.shape())?),
    ];
    serve(apps, arguments.bind).await
}

fn analyst_runner(store: &AnyStore, database: &Path, recording: Recording) -> Result<Runner, Failure> {
    let agent = analyst(Counted(Known(recording)), Database::new(database))?
        .summarize(Summarize::beyond(Trim::keep_last(1)).once(Trim::cap_messages(24)))
        .summary_model(Counted(Summaries))
        .build()?;
    Ok(Runner::builder(agent, store.clone()).app("analyst")?.process_worker().build())
}

fn research_runner(store: &AnyStore, delay: Duration) -> Result<Runner, Failure> {
    let graph = deep_research(&written(delay)?, |_: &str| None, &Corpus::of_repository()?)?;
    Ok(Runner::builder(graph, store.clone()).app("deep_research")?.process_worker().build())
}

fn written(delay: Duration) -> Result<Arc<dyn ChatModel>, Failure> {
    Ok(Arc::new(Counted(Recording::new(RESEARCH, delay)?)))
}

/// A conversation to its end; and a fork from before the query that was wrong, with another question.
async fn ask_the_analyst(runner: &Runner) -> Result<(), Failure> {
    let questions = Recording::new(ANALYST, Duration::ZERO)?.questions();
    let session = runner.create(USER, "a-wrong-query", json!({})).await?;
    let mut before = 0;
    for question in &questions {
        if question == KILLED.0 {
            before = session.read(EventRange::None).await?.version;
        }
        session.run(question.as_str()).await?;
    }
    let fork = session.fork("fork-before-it", Some(before)).await?;
    if let Some(question) = questions.get(3) {
        fork.run(question.as_str()).await?;
    }
    Ok(())
}

/// A run that ends in the middle of an answer, as if the process had been killed.
async fn kill_the_analyst(runner: &Runner) -> Result<(), Failure> {
    let session = runner.create(USER, "killed-in-an-answer", json!({})).await?;
    let run = session.send(KILLED.0).await?;
    let replies = run.subscribe(0).filter(|seen| {
        std::future::ready(matches!(seen, InvocationEvent::Event { event: RunEvent::Asking { .. }, .. }))
    });
    std::pin::pin!(replies.skip(KILLED.1)).next().await;
    runner.shutdown(Duration::ZERO).await;
    Ok(())
}

/// A research to its end, and one whose plan waits for an approval.
async fn research(runner: &Runner) -> Result<(), Failure> {
    let written = Recording::new(RESEARCH, Duration::ZERO)?.questions();
    let question = written.iter().find_map(|question| question.strip_prefix("Plan the research on: "));
    let question = question.ok_or("the written conversation plans nothing")?;
    for (id, auto) in [("a-finished-research", true), ("a-plan-to-approve", false)] {
        let values = json!({
            "query": question, "mode": "deep", "auto": auto, "research_depth": "medium",
            "max_executions": {"judge": bounds(ResearchDepth::Medium).1},
        });
        let session = runner.create(USER, id, json!({})).await?;
        session.run(Input::from(question).with_values(values)).await?;
    }
    Ok(())
}

async fn serve(apps: [App; 2], bind: SocketAddr) -> Result<(), Failure> {
    let token = Token::random()?;
    let tokens = Tokens::new().with(&token, Principal::new(USER, Role::Administer)?);
    let server =
        apps.into_iter().fold(Server::builder().auth(tokens), stepfold::server::http::ServerBuilder::app);
    let listener = TcpListener::bind(bind).await?;
    let address = listener.local_addr()?;
    tell("Open this in a browser; Ctrl-C ends it:");
    say(format!("http://{address}/#token={}", token.secret()));
    server.build()?.serve(listener).await;
    Ok(())
}

/// The written conversation; to any other question it replies with those that it knows.
struct Known(Recording);

impl ChatModel for Known {
    fn id(&self) -> &str {
        self.0.id()
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        let questions: Vec<_> = self.0.questions().iter().map(|question| format!("- {question}")).collect();
        let unknown =
            format!("My replies are written beforehand. I know these questions:\n\n{}", questions.join("\n"));
        ReplyStream::new(self.0.respond(request).flat_map(move |chunk| {
            let chunks = match chunk {
                Err(error) if *error.kind() == ModelErrorKind::InvalidRequest => said(&unknown),
                chunk => vec![chunk],
            };
            futures_util::stream::iter(chunks)
        }))
    }
}

/// Writes the one summary that is needed here.
struct Summaries;

impl ChatModel for Summaries {
    fn id(&self) -> &'static str {
        "summaries"
    }

    fn respond(&self, _: ChatRequest) -> ReplyStream {
        ReplyStream::new(futures_util::stream::iter(said(SUMMARY)))
    }
}

/// A whole reply.
fn said(text: &str) -> Vec<Result<Chunk, ModelError>> {
    vec![Ok(Chunk::Text(text.to_owned())), Ok(Chunk::Finished(FinishReason::Stop))]
}

/// A written model that counts tokens, as a provider does: about as many as one would.
struct Counted<M>(M);

impl<M: ChatModel> ChatModel for Counted<M> {
    fn id(&self) -> &str {
        self.0.id()
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        let tools: usize = request.tools.iter().map(ApproximateTokens::of_tool).sum();
        let input = ApproximateTokens::of_messages(&request.messages) + tools;
        let mut usage = Usage::new(0, 0);
        usage.input_tokens = u64::try_from(input).unwrap_or(u64::MAX);
        let mut text = String::new();
        ReplyStream::new(self.0.respond(request).flat_map(move |chunk| {
            match &chunk {
                Ok(Chunk::Text(more)) => text.push_str(more),
                Ok(Chunk::ToolCall(call)) => text.push_str(&call.arguments),
                _ => {}
            }
            usage.output_tokens = u64::try_from(ApproximateTokens::of_text(&text)).unwrap_or(u64::MAX);
            let counted = matches!(chunk, Ok(Chunk::Finished(_))).then_some(Ok(Chunk::Usage(usage)));
            futures_util::stream::iter(counted.into_iter().chain([chunk]))
        }))
    }
}
