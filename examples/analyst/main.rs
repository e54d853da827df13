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

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use stepfold::prelude::*;
use stepfold::session_scopes::{EventRange, SqliteStore};
use stepfold::state_core::chat::Role;
use stepfold_examples::{
    Failure, Recording, ask as ask_for, ended, fork, inspect, is_unfinished, list, live, say, write,
};

use crate::agent::analyst;
use crate::args::Arguments;
use crate::sql::Database;

const APP: &str = "analyst";
/// What is said without a model.
const CONVERSATION: &str = include_str!("conversation.txt");

#[tokio::main]
async fn main() -> ExitCode {
    ended(run(Arguments::parse()).await)
}

async fn run(arguments: Arguments) -> Result<(), Failure> {
    let database = arguments.folder.join("time_zones.sqlite");
    data::make(&database)?;
    let store = SqliteStore::open(arguments.folder.join("sessions.sqlite"))?;
    let recording = Recording::new(CONVERSATION, arguments.options.delay(true))?;
    let name = arguments.options.model_name();
    let model: Arc<dyn ChatModel> = match &name {
        Some(name) => live(name)?,
        None => Arc::new(recording.clone()),
    };
    // Killed, it goes on at once where it was; a second one in the same folder waits while the first is at work.
    let runner =
        Runner::builder(analyst(model, Database::new(&database))?, store).app(APP)?.process_worker().build();
    if arguments.options.list {
        return list(&runner, &arguments.options.user).await;
    }
    if let (Some(session), true) = (&arguments.options.session, looks_only(&arguments)) {
        return look(&runner, &arguments, session).await;
    }
    let session = match &name {
        Some(name) => ask(&runner, &arguments, name).await?,
        None => replay(&runner, &arguments, &recording).await?,
    };
    farewell(&arguments, &session).await
}

/// Plays the written conversation, from where the session stopped.
async fn replay(
    runner: &Runner,
    arguments: &Arguments,
    recording: &Recording,
) -> Result<SessionHandle, Failure> {
    say(
        "There is no model here: what the analyst says was written beforehand (examples/analyst/conversation.txt).\n\
         The tools, the database, the state and the session are real. To ask a real model, set ANTHROPIC_API_KEY or\n\
         OPENAI_API_KEY, or give --model PROVIDER:MODEL.\n",
    );
    let questions = match arguments.questions.as_slice() {
        [] => recording.questions(),
        given => given.to_vec(),
    };
    let (session, asked) = match &arguments.options.session {
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
async fn ask(runner: &Runner, arguments: &Arguments, model: &str) -> Result<SessionHandle, Failure> {
    say(format!("Asking {model}.\n"));
    let (session, _) =
        open(runner, arguments, arguments.options.session.as_deref().unwrap_or("live")).await?;
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

async fn turn(session: &SessionHandle, question: &str) -> Result<(), Failure> {
    say(format!("\nyou: {question}"));
    show::follow(session.send(question).await?).await
}

/// Brings to its end what was cut off, if anything was.
async fn go_on(session: &SessionHandle) -> Result<(), Failure> {
    let Some(run) = session.last_run().await? else { return Ok(()) };
    if !is_unfinished(&run) {
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
async fn open(runner: &Runner, arguments: &Arguments, id: &str) -> Result<(SessionHandle, usize), Failure> {
    let session = runner.session(arguments.options.user.as_str(), id).await?;
    let said = session.read(EventRange::All).await?.transcript();
    let asked = said.iter().filter(|message| message.role() == Role::User).count();
    Ok((session, asked))
}

/// The first of the sessions `replay-1`, `replay-2`, ... that is not at its end.
async fn unfinished(
    runner: &Runner,
    arguments: &Arguments,
    questions: usize,
) -> Result<(SessionHandle, usize), Failure> {
    let mut number = 1_u64;
    loop {
        let (session, asked) = open(runner, arguments, &format!("replay-{number}")).await?;
        if asked < questions || session.last_run().await?.as_ref().is_none_or(is_unfinished) {
            return Ok((session, asked));
        }
        number += 1;
    }
}

fn looks_only(arguments: &Arguments) -> bool {
    arguments.options.inspect || arguments.transcript || arguments.options.fork.is_some()
}

async fn look(runner: &Runner, arguments: &Arguments, id: &str) -> Result<(), Failure> {
    let (session, _) = open(runner, arguments, id).await?;
    if let Some(version) = arguments.options.fork {
        return farewell(arguments, &fork(&session, version).await?).await;
    }
    if !arguments.transcript {
        return inspect(runner, &session).await;
    }
    write(&session.read(EventRange::All).await?.transcript().to_string());
    Ok(())
}

/// Where the session is, and what can be done with it.
async fn farewell(arguments: &Arguments, session: &SessionHandle) -> Result<(), Failure> {
    let (folder, user) = (arguments.folder.display(), &arguments.options.user);
    let command =
        format!("cargo run -q -p stepfold-examples --bin analyst -- --folder {folder} --user {user}");
    let model = arguments.options.model_name().unwrap_or_else(|| "PROVIDER:MODEL".to_owned());
    let go_on = [("Go on with it", &*format!("--model {model}"))];
    say("");
    stepfold_examples::farewell(session, &arguments.folder.join("sessions.sqlite"), &command, &go_on).await
}
