//! A data analyst over a real database, in a session that outlives the program.
//!
//! `cargo run -p stepfold-examples --bin analyst`, with `-- --help` for what else it can do. Read it in this
//! order: [`agent`] is the analyst, [`sql`] what it may do with the database that [`data`] makes, [`Recording`] the
//! model that needs no key, and here is how a session goes on wherever it stopped.

mod agent;
mod args;
mod data;
mod show;
mod sql;

use std::error::Error;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use stepfold::prelude::*;
use stepfold::session_scopes::{EventRange, ListSessions, SessionStore, SqliteStore};
use stepfold::state_core::ErrorChain;
use stepfold::state_core::chat::Role;
use stepfold_examples::{Recording, ask as ask_for, live, say, tell, write};

use crate::agent::analyst;
use crate::args::Arguments;
use crate::sql::Database;

const APP: &str = "analyst";
/// What is said without a model.
const CONVERSATION: &str = include_str!("conversation.txt");

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

async fn run(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let database = arguments.folder.join("time_zones.sqlite");
    data::make(&database)?;
    let store = SqliteStore::open(arguments.folder.join("sessions.sqlite"))?;
    let recording = Recording::new(CONVERSATION, delay(&arguments))?;
    let name = arguments.model_name();
    let model: Arc<dyn ChatModel> = match &name {
        Some(name) => live(name)?,
        None => Arc::new(recording.clone()),
    };
    // Killed, it goes on at once where it was; a second one in the same folder waits while the first is at work.
    let runner =
        Runner::builder(analyst(model, Database::new(&database))?, store).app(APP)?.process_worker().build();
    if arguments.list {
        return list(&runner, &arguments).await;
    }
    if let (Some(session), true) = (&arguments.session, looks_only(&arguments)) {
        return look(&runner, &arguments, session).await;
    }
    let session = match &name {
        Some(name) => ask(&runner, &arguments, name).await?,
        None => replay(&runner, &arguments, &recording).await?,
    };
    farewell(&arguments, &session).await
}

fn delay(arguments: &Arguments) -> Duration {
    let usual = if io::stdout().is_terminal() { 15 } else { 0 };
    Duration::from_millis(arguments.delay.unwrap_or(usual))
}

/// Plays the written conversation, from where the session stopped.
async fn replay(
    runner: &Runner,
    arguments: &Arguments,
    recording: &Recording,
) -> Result<SessionHandle, Box<dyn Error>> {
    say(
        "There is no model here: what the analyst says was written beforehand (examples/analyst/conversation.txt).\n\
         The tools, the database, the state and the session are real. To ask a real model, set ANTHROPIC_API_KEY or\n\
         OPENAI_API_KEY, or give --model PROVIDER:MODEL.\n",
    );
    let questions = match arguments.questions.as_slice() {
        [] => recording.questions(),
        given => given.to_vec(),
    };
    let (session, asked) = match &arguments.session {
        Some(id) => open(runner, arguments, id).await?,
        None => unfinished(runner, arguments, questions.len()).await?,
    };
    go_on(&session).await?;
    let asked = if arguments.questions.is_empty() { asked } else { 0 };
    for question in questions.iter().skip(asked) {
        turn(&session, question).await?;
    }
    Ok(session)
}

/// Asks a real model.
async fn ask(runner: &Runner, arguments: &Arguments, model: &str) -> Result<SessionHandle, Box<dyn Error>> {
    say(format!("Asking {model}.\n"));
    let (session, _) = open(runner, arguments, arguments.session.as_deref().unwrap_or("live")).await?;
    go_on(&session).await?;
    if !arguments.questions.is_empty() {
        for question in &arguments.questions {
            turn(&session, question).await?;
        }
        return Ok(session);
    }
    loop {
        let Some(line) = ask_for("you: ")? else {
            say("");
            return Ok(session);
        };
        if !line.trim().is_empty() {
            show::follow(session.send(line.trim()).await?).await?;
        }
    }
}

async fn turn(session: &SessionHandle, question: &str) -> Result<(), Box<dyn Error>> {
    say(format!("\nyou: {question}"));
    show::follow(session.send(question).await?).await
}

/// Brings to its end what was cut off, if anything was.
async fn go_on(session: &SessionHandle) -> Result<(), Box<dyn Error>> {
    let Some(run) = session.last_run().await? else { return Ok(()) };
    if run.exit().is_some_and(|exit| !exit.is_resumable()) {
        return Ok(());
    }
    let said: Vec<_> = run.transcript().iter().collect();
    let question = said.iter().rev().find(|message| message.role() == Role::User);
    let question = question.map(|question| question.text().into_owned()).unwrap_or_default();
    let open: Vec<String> = run.open_calls().into_iter().map(|(_, call)| call.name).collect();
    // Of a step whose calls are open the reply is there already.
    let (step, what) = match open.is_empty() {
        true => (run.steps() + 1, "before the model had answered".to_owned()),
        false => (run.steps(), format!("while {} ran", open.join(", "))),
    };
    say(format!(
        "The session {} goes on with \"{question}\", interrupted in step {step} {what}.",
        session.key().id
    ));
    // Whoever chose another model meanwhile wants the run to go on with that one.
    show::follow(session.resume().with_changed_agent().start()?).await
}

/// A session, and how often the user has asked there.
async fn open(
    runner: &Runner,
    arguments: &Arguments,
    id: &str,
) -> Result<(SessionHandle, usize), Box<dyn Error>> {
    let session = runner.session(arguments.user.as_str(), id).await?;
    let said = session.read(EventRange::All).await?.transcript();
    let asked = said.iter().filter(|message| message.role() == Role::User).count();
    Ok((session, asked))
}

/// The first of the sessions `replay-1`, `replay-2`, ... that is not at its end.
async fn unfinished(
    runner: &Runner,
    arguments: &Arguments,
    questions: usize,
) -> Result<(SessionHandle, usize), Box<dyn Error>> {
    let mut number = 1_u64;
    loop {
        let (session, asked) = open(runner, arguments, &format!("replay-{number}")).await?;
        let run = session.last_run().await?;
        let has_ended = run.is_some_and(|run| run.exit().is_some_and(|exit| !exit.is_resumable()));
        if asked < questions || !has_ended {
            return Ok((session, asked));
        }
        number += 1;
    }
}

fn looks_only(arguments: &Arguments) -> bool {
    arguments.inspect || arguments.transcript || arguments.fork.is_some()
}

async fn look(runner: &Runner, arguments: &Arguments, id: &str) -> Result<(), Box<dyn Error>> {
    let (session, _) = open(runner, arguments, id).await?;
    if let Some(version) = arguments.fork {
        let fork = session.fork(format!("{id}-from-{version}"), Some(version)).await?;
        say(format!("The session {} shares the past of {id} up to version {version}.", fork.key().id));
        return farewell(arguments, &fork).await;
    }
    let stored = session.read(EventRange::All).await?;
    if arguments.transcript {
        write(&stored.transcript().to_string());
    } else {
        show::inspect(&stored, runner.schema())?;
    }
    Ok(())
}

async fn list(runner: &Runner, arguments: &Arguments) -> Result<(), Box<dyn Error>> {
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

/// Where the session is, and what can be done with it.
async fn farewell(arguments: &Arguments, session: &SessionHandle) -> Result<(), Box<dyn Error>> {
    let stored = session.read(EventRange::None).await?;
    let file = arguments.folder.join("sessions.sqlite");
    let (id, version) = (&stored.key.id, stored.version);
    let analyst = format!(
        "cargo run -q -p stepfold-examples --bin analyst -- --folder {} --user {} --session {id}",
        arguments.folder.display(),
        arguments.user,
    );
    let model = arguments.model_name().unwrap_or_else(|| "PROVIDER:MODEL".to_owned());
    say(format!(
        "\nThe session {id} is in {}, at version {version}; another process may go on with it.",
        file.display()
    ));
    say(format!("Look at it:\n  {analyst} --inspect"));
    say(format!(
        "Make another one that shares its past up to a version:\n  {analyst} --fork {}",
        version / 2
    ));
    say(format!("Go on with it:\n  {analyst} --model {model}"));
    say("A program that was killed goes on where it stopped: run it again.");
    Ok(())
}
