//! Deep research over a folder of documents: a graph of agents, in a session that outlives the program.
//!
//! `cargo research`, with `--help` for what else it can do. Read it in this
//! order: [`graph`] is the whole of it, [`tools`] what its agents may do with the [`corpus`], [`report`] how citations
//! are checked; here is how a research continues wherever it stopped.

mod args;
mod ask;
mod corpus;
mod graph;
mod pdf;
mod report;
mod show;
mod tools;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use serde_json::Value;
use stepfold::graph::progress::{Mode, OutputFormat, ResearchDepth, ResearchState, keys};
use stepfold::prelude::*;
use stepfold::runner::Invocation;
use stepfold::session_scopes::{EventRange, SqliteStore};
use stepfold::terminal::{StyledText, TextStyle, stdout_form};
use stepfold_examples::{
    Failure, Recording, USER, command, continuing, ended, fork, inspect, is_unfinished, list, live, newest,
    on_interrupt, say, unfinished, write as write_text,
};

use crate::args::Arguments;
use crate::ask::Person;
use crate::corpus::Corpus;
use crate::graph::{REPORT, bounds, deep_research};
use crate::show::Screen;

const APP: &str = "deep_research";
/// The preface when no model is configured.
const CONVERSATION: &str = include_str!("conversation.txt");
/// The model of that name is the written conversation.
const WRITTEN: &str = "written";

#[tokio::main]
async fn main() -> ExitCode {
    ended(run(Arguments::parse()).await)
}

async fn run(arguments: Arguments) -> Result<(), Failure> {
    let corpus = match &arguments.docs {
        Some(folder) => Corpus::of_folder(folder)?,
        None => Corpus::of_repository()?,
    };
    let recording: Arc<dyn ChatModel> =
        Arc::new(Recording::new(CONVERSATION, arguments.options.delay(!arguments.json))?);
    let model = match arguments.options.model_name() {
        Some(name) => live(&name)?,
        None => Arc::clone(&recording),
    };
    // A research continues with the model with which it began, whatever the command line says now.
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
    // NOTE: A killed process can be followed immediately by another one; a second one in the same folder waits for the
    // first.
    let runner = Runner::builder(graph, store).app(APP)?.process_worker().build();
    let options = &arguments.options;
    if options.list {
        return list(&runner, &options.user).await;
    }
    if options.inspect || options.fork.is_some() {
        return look(&runner, &arguments).await;
    }
    on_interrupt(&continuing(&command_line(&arguments), &arguments.options));
    research(&runner, &arguments, &corpus).await
}

/// Starts a research, or continues that of the session, and writes its report.
async fn research(runner: &Runner, arguments: &Arguments, corpus: &Corpus) -> Result<(), Failure> {
    let session = if let Some(id) = &arguments.options.session {
        runner.session(arguments.options.user.as_str(), id.as_str()).await?
    } else {
        let is_open =
            async |session: &SessionHandle| Ok(session.last_run().await?.as_ref().is_none_or(is_unfinished));
        unfinished(runner, &arguments.options.user, "research", is_open).await?
    };
    let last = session.last_run().await?;
    let is_cut_off = last.as_ref().is_some_and(is_unfinished);
    let mut screen = Screen::new(arguments.json, last.as_ref().filter(|_| is_cut_off));
    let mut person = Person::default();
    let is_asked = last.is_none() || arguments.question.is_some();
    if is_cut_off {
        let id = &session.key().id;
        let waits = last.as_ref().is_some_and(|run| !run.pending().is_empty());
        let why = if waits { "waits for you" } else { "was interrupted; it continues where it stopped" };
        let sign = if stdout_form().is_terminal() { "↻ " } else { "" };
        let words = format!("The research {id} {why}.");
        screen.line(StyledText::new(TextStyle::ASK, sign).with(TextStyle::DIM, words));
        let first = go_on(&session, &mut person).await?;
        follow(&session, first, &mut screen, &mut person).await?;
    } else if is_asked {
        let question = question(arguments)?;
        let name = arguments.options.model_name();
        screen.aside(preface(name.as_deref(), corpus));
        screen.user(&question);
        let input = Input::from(question.as_str()).with_values(values(arguments, &session, &question)?);
        let first = Some(session.send(input).await?);
        follow(&session, first, &mut screen, &mut person).await?;
    }
    finish(&session, runner, arguments).await
}

/// Follows a research to its end, or until its questions are left open.
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

/// Resumes a run that waits or was interrupted; returns none if its questions stay open.
async fn go_on(session: &SessionHandle, person: &mut Person) -> Result<Option<Invocation>, Failure> {
    let pending = session.pending().await?;
    let decisions = person.decide(&pending)?;
    if decisions.is_empty() && !pending.is_empty() {
        return Ok(None);
    }
    // A research continues with the program as it is now.
    Ok(Some(session.resume().decide_all(decisions).with_changed_agent().start()?))
}

/// The question: the user's, or the first one of the written conversation.
fn question(arguments: &Arguments) -> Result<String, Failure> {
    if let Some(question) = &arguments.question {
        return Ok(question.clone());
    }
    let written = Recording::new(CONVERSATION, Duration::ZERO)?.questions();
    let first = written.iter().find_map(|question| question.strip_prefix("Plan the research on: "));
    Ok(first.ok_or("the written conversation plans nothing")?.to_owned())
}

/// The state that a research begins with: the fields of the template that are the user's.
fn values(arguments: &Arguments, session: &SessionHandle, question: &str) -> Result<Value, Failure> {
    let depth = ResearchDepth::from(arguments.depth);
    let state = ResearchState {
        query: Some(question.to_owned()),
        session_id: Some(session.key().id.to_string()),
        user_id: Some(arguments.options.user.clone()),
        model_id: Some(arguments.options.model_name().unwrap_or_else(|| WRITTEN.to_owned())),
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
             (examples/deep_research/conversation.txt). The graph, the tools, the {documents}, the state and the \
             session are real. To ask a real model, set ANTHROPIC_API_KEY or OPENAI_API_KEY, or give --model \
             PROVIDER:MODEL."
        ),
    }
}

/// Writes the report, if there is one, and prints the commands that continue the session.
async fn finish(session: &SessionHandle, runner: &Runner, arguments: &Arguments) -> Result<(), Failure> {
    let stored = session.read(EventRange::None).await?;
    let state = stored.state(runner.schema())?;
    let report = match state.get(REPORT)? {
        Some(report) => {
            format!("The report is in {}.", write(&report, &state, session, arguments)?.display())
        }
        None => "There is no report yet.".to_owned(),
    };
    if arguments.json {
        return Ok(());
    }
    say(format!("\n{report}"));
    for error in state.get(keys::ERRORS)?.unwrap_or_default() {
        say(format!("  ! {}: {}", error.node, error.message));
    }
    farewell(session, arguments).await
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

/// The command with the store and the user of this one.
fn command_line(arguments: &Arguments) -> String {
    let given = [
        ("--store", arguments.store.display().to_string(), args::STORE),
        ("--user", arguments.options.user.clone(), USER),
    ];
    command("cargo research", &given)
}

/// Prints where the session is stored, and the commands that continue it.
async fn farewell(session: &SessionHandle, arguments: &Arguments) -> Result<(), Failure> {
    let format = format!("--session {} --format html", session.key().id);
    let more = if session.last_run().await?.as_ref().is_none_or(is_unfinished) {
        ("continue where it stopped", "")
    } else {
        ("the report in another form", format.as_str())
    };
    stepfold_examples::farewell(session, &arguments.store, &command_line(arguments), &[more]).await
}

async fn look(runner: &Runner, arguments: &Arguments) -> Result<(), Failure> {
    let user = arguments.options.user.as_str();
    let session = match &arguments.options.session {
        Some(id) => runner.session(user, id.as_str()).await?,
        None => newest(runner, user).await?,
    };
    match arguments.options.fork {
        Some(version) => farewell(&fork(&session, version).await?, arguments).await,
        None => inspect(runner, &session).await,
    }
}
