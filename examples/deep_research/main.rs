//! Deep research over a folder of documents: a graph of agents, in a session that outlives the program.
//!
//! `cargo run -p stepfold-examples --bin deep_research`, with `-- --help` for what else it can do. Read it in this
//! order: [`graph`] is the whole of it, [`tools`] what its agents may do with the [`corpus`], [`report`] how citations
//! are checked; here is how a research goes on wherever it stopped.

mod args;
mod ask;
mod corpus;
mod graph;
mod pdf;
mod report;
mod show;
mod tools;

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use serde_json::Value;
use stepfold::agent_loop::graph::progress::{Mode, OutputFormat, ResearchDepth, ResearchState, keys};
use stepfold::prelude::*;
use stepfold::runner::Invocation;
use stepfold::session_scopes::{EventRange, ListSessions, SessionStore, SqliteStore};
use stepfold::state_core::ErrorChain;
use stepfold_examples::{Recording, live, say, tell, write as write_text};

use crate::args::Arguments;
use crate::ask::Person;
use crate::corpus::Corpus;
use crate::graph::{REPORT, bounds, deep_research};
use crate::show::Screen;

const APP: &str = "deep_research";
/// What is said without a model.
const CONVERSATION: &str = include_str!("conversation.txt");
/// The model of that name is the written conversation.
const WRITTEN: &str = "written";

type Failure = Box<dyn Error>;

#[tokio::main]
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell(format!("error: {}", ErrorChain(&*error)));
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> Result<(), Failure> {
    let corpus = match &arguments.docs {
        Some(folder) => Corpus::of_folder(folder)?,
        None => Corpus::of_repository()?,
    };
    let recording: Arc<dyn ChatModel> = Arc::new(Recording::new(CONVERSATION, delay(&arguments))?);
    let model = match arguments.model_name() {
        Some(name) => live(&name)?,
        None => Arc::clone(&recording),
    };
    // A research goes on with the model with which it began, whatever the command line says now.
    let models = move |id: &str| if id == WRITTEN { Some(Arc::clone(&recording)) } else { live(id).ok() };
    let graph = deep_research(&model, models, &corpus)?;
    if arguments.graph {
        write_text(&graph.to_mermaid());
        return Ok(());
    }
    if let Some(folder) = arguments.store.parent() {
        fs::create_dir_all(folder)?;
    }
    let store = SqliteStore::open(&arguments.store)?;
    // Killed, it goes on at once where it was; a second one in the same folder waits while the first is at work.
    let runner = Runner::builder(graph, store).app(APP)?.process_worker().build();
    if arguments.list {
        return list(&runner, &arguments).await;
    }
    if let (Some(session), true) = (&arguments.session, arguments.inspect || arguments.fork.is_some()) {
        return look(&runner, &arguments, session).await;
    }
    research(&runner, &arguments, &corpus).await
}

fn delay(arguments: &Arguments) -> Duration {
    let usual = if io::stdout().is_terminal() && !arguments.json { 15 } else { 0 };
    Duration::from_millis(arguments.delay.unwrap_or(usual))
}

/// Begins a research, or goes on with the one that the session has, and writes its report.
async fn research(runner: &Runner, arguments: &Arguments, corpus: &Corpus) -> Result<(), Failure> {
    let session = match &arguments.session {
        Some(id) => runner.session(arguments.user.as_str(), id.as_str()).await?,
        None => unfinished(runner, arguments).await?,
    };
    let last = session.last_run().await?;
    let is_cut_off = last.as_ref().is_some_and(is_unfinished);
    let mut screen = Screen::new(arguments.json, last.as_ref().filter(|_| is_cut_off));
    let mut person = Person::default();
    let is_asked = last.is_none() || arguments.question.is_some();
    if is_cut_off {
        let id = &session.key().id;
        let waits = last.as_ref().is_some_and(|run| !run.pending().is_empty());
        let why = if waits { "waits for you" } else { "was cut off; it goes on where it stopped" };
        screen.line(&format!("The research {id} {why}."));
        let first = go_on(&session, &mut person).await?;
        follow(&session, first, &mut screen, &mut person).await?;
    } else if is_asked {
        let question = question(arguments)?;
        let name = arguments.model_name();
        screen.line(&preface(name.as_deref(), corpus));
        screen.line(&format!("\nyou: {question}"));
        let input = Input::from(question.as_str()).with_values(values(arguments, &session, &question)?);
        let first = Some(session.send(input).await?);
        follow(&session, first, &mut screen, &mut person).await?;
    }
    finish(&session, runner, arguments).await
}

/// Follows a research to its end, or until nobody answers what it asks.
async fn follow(
    session: &SessionHandle,
    first: Option<Invocation>,
    screen: &mut Screen,
    person: &mut Person,
) -> Result<(), Failure> {
    let mut next = first;
    while let Some(invocation) = next {
        screen.follow(&invocation).await?;
        let outcome = invocation.outcome().await?;
        next = match outcome.exit() {
            Exit::Paused(Pause::Approval) => go_on(session, person).await?,
            _ => None,
        };
    }
    Ok(())
}

/// Goes on with what waits or was cut off; with nothing if somebody was asked and did not answer.
async fn go_on(session: &SessionHandle, person: &mut Person) -> Result<Option<Invocation>, Failure> {
    let pending = session.pending().await?;
    let decisions = person.decide(&pending)?;
    if decisions.is_empty() && !pending.is_empty() {
        return Ok(None);
    }
    // Whoever changed the program meanwhile wants the research to go on with the changed one.
    Ok(Some(session.resume().decide_all(decisions).with_changed_agent().start()?))
}

fn is_unfinished(run: &Run) -> bool {
    run.exit().is_none_or(Exit::is_resumable)
}

/// What is asked: what the user says, or the first question of the written conversation.
fn question(arguments: &Arguments) -> Result<String, Failure> {
    if let Some(question) = &arguments.question {
        return Ok(question.clone());
    }
    let written = Recording::new(CONVERSATION, Duration::ZERO)?.questions();
    let first = written.iter().find_map(|question| question.strip_prefix("Plan the research on: "));
    Ok(first.ok_or("the written conversation plans nothing")?.to_owned())
}

/// The state that a research begins with: the fields of spec/004 that are the user's.
fn values(arguments: &Arguments, session: &SessionHandle, question: &str) -> Result<Value, Failure> {
    let depth = ResearchDepth::from(arguments.depth);
    let state = ResearchState {
        query: Some(question.to_owned()),
        session_id: Some(session.key().id.to_string()),
        user_id: Some(arguments.user.clone()),
        model_id: Some(arguments.model_name().unwrap_or_else(|| WRITTEN.to_owned())),
        mode: Some(Mode::from(arguments.mode)),
        auto: Some(!arguments.interactive),
        max_executions: Some(BTreeMap::from([("judge".to_owned(), bounds(depth).1)])),
        output_format: Some(arguments.format.map_or(OutputFormat::Markdown, OutputFormat::from)),
        research_depth: Some(depth),
        ..ResearchState::new(APP)
    };
    let mut values = serde_json::to_value(state)?;
    // The conversation of the session is its own.
    if let Some(fields) = values.as_object_mut() {
        fields.remove("messages");
    }
    Ok(values)
}

fn preface(model: Option<&str>, corpus: &Corpus) -> String {
    let documents = format!(
        "{} sections of {} documents ({})",
        corpus.sections().len(),
        corpus.documents().len(),
        corpus.name()
    );
    match model {
        Some(model) => format!("Asking {model} about {documents}."),
        None => format!(
            "There is no model here: what the agents say was written beforehand \
             (examples/deep_research/conversation.txt).\nThe graph, the tools, the {documents},\nthe state and the \
             session are real. To ask a real model, set ANTHROPIC_API_KEY or OPENAI_API_KEY, or give\n--model \
             PROVIDER:MODEL."
        ),
    }
}

/// The first of the sessions `research-1`, `research-2`, ... that is not at its end.
async fn unfinished(runner: &Runner, arguments: &Arguments) -> Result<SessionHandle, Failure> {
    let mut number = 1_u64;
    loop {
        let session = runner.session(arguments.user.as_str(), format!("research-{number}")).await?;
        if session.last_run().await?.as_ref().is_none_or(is_unfinished) {
            return Ok(session);
        }
        number += 1;
    }
}

/// Writes the report, if there is one, and says what can be done with the session.
async fn finish(session: &SessionHandle, runner: &Runner, arguments: &Arguments) -> Result<(), Failure> {
    let stored = session.read(EventRange::None).await?;
    let state = stored.state(runner.schema())?;
    let mut lines = Vec::new();
    match state.get(REPORT)? {
        Some(report) => {
            lines
                .push(format!("The report is in {}.", write(&report, &state, session, arguments)?.display()));
        }
        None => lines.push("There is no report yet.".to_owned()),
    }
    let errors = state.get(keys::ERRORS)?.unwrap_or_default();
    lines.extend(errors.iter().map(|error| format!("  ! {}: {}", error.node, error.message)));
    lines.extend(farewell(session, stored.version, arguments));
    if !arguments.json {
        say("");
        say(lines.join("\n"));
    }
    Ok(())
}

fn write(
    report: &str,
    state: &State,
    session: &SessionHandle,
    arguments: &Arguments,
) -> Result<PathBuf, Failure> {
    let asked = state.get(keys::OUTPUT_FORMAT)?.unwrap_or(OutputFormat::Markdown);
    let format = arguments.format.map_or(asked, OutputFormat::from);
    let path = arguments.out.clone().unwrap_or_else(|| {
        let folder = arguments.store.parent().unwrap_or(Path::new("."));
        folder.join(format!("{}.{}", session.key().id, report::extension(format)))
    });
    fs::write(&path, report::render(report, format)?)
        .map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}

/// Where the session is, and what can be done with it.
fn farewell(session: &SessionHandle, version: u64, arguments: &Arguments) -> Vec<String> {
    let id = &session.key().id;
    let program = format!(
        "cargo run -q -p stepfold-examples --bin deep_research -- --store {} --user {} --session {id}",
        arguments.store.display(),
        arguments.user
    );
    vec![
        format!(
            "The session {id} is in {}, at version {version}; another process may go on with it.",
            arguments.store.display()
        ),
        format!("Look at it:\n  {program} --inspect"),
        format!(
            "Make another one that shares its past up to a version, and go on from there:\n  {program} --fork {}",
            version / 2
        ),
        format!("The report in another form:\n  {program} --format html"),
        "A program that was killed goes on where it stopped: run it again.".to_owned(),
    ]
}

async fn look(runner: &Runner, arguments: &Arguments, id: &str) -> Result<(), Failure> {
    let session = runner.session(arguments.user.as_str(), id).await?;
    if let Some(version) = arguments.fork {
        let fork = session.fork(format!("{id}-from-{version}"), Some(version)).await?;
        let name = &fork.key().id;
        say(format!("The session {name} shares the past of {id} up to version {version}."));
        say(farewell(&fork, version, arguments).join("\n"));
        return Ok(());
    }
    show::inspect(&session.read(EventRange::All).await?, runner.schema())
}

async fn list(runner: &Runner, arguments: &Arguments) -> Result<(), Failure> {
    let mut cursor = None;
    loop {
        let request = ListSessions::new(APP, arguments.user.as_str())?.after(cursor);
        let page = runner.store().list(request).await?;
        for session in &page.sessions {
            say(format!("{} (version {})", session.key.id, session.version));
        }
        cursor = page.next;
        if cursor.is_none() {
            return Ok(());
        }
    }
}
