//! A data analyst over a real database, in a session that outlives the program.
//!
//! `cargo analyst`, with `--help` for what else it can do. Read it in this
//! order: [`agent`] is the analyst, [`sql`] what it may do with the database that [`data`] makes, [`Recording`] the
//! model that needs no key, and here is how a session continues wherever it stopped.

mod agent;
mod args;
mod data;
mod show;
mod sql;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use stepfold::prelude::*;
use stepfold::session_scopes::{EventRange, SqliteStore};
use stepfold::state_core::chat::Role;
use stepfold::terminal::{StyledText, TextStyle, describe_unfinished};
use stepfold_examples::{
    Failure, Recording, USER, ask as ask_for, command, continuing, ended, fork, inspect, is_unfinished, list,
    live, newest, on_interrupt, say, unfinished, write,
};

use crate::agent::analyst;
use crate::args::Arguments;
use crate::show::Screen;
use crate::sql::Database;

const APP: &str = "analyst";
/// The preface when no model is configured.
const CONVERSATION: &str = include_str!("conversation.txt");
/// The place for an interruption: in the middle of the answer to this question, after so many replies.
const STOP: (&str, usize) = ("Change the WHERE of that query: only zones south of the equator.", 2);

#[tokio::main]
async fn main() -> ExitCode {
    ended(run(Arguments::parse()).await)
}

async fn run(arguments: Arguments) -> Result<(), Failure> {
    let database = arguments.folder.join("time_zones.sqlite");
    data::make(&database)?;
    let store = SqliteStore::open(arguments.folder.join("sessions.sqlite"))?;
    let mut recording = Recording::new(CONVERSATION, arguments.options.delay(true))?;
    if arguments.options.stops() {
        recording = recording.stopping_at(STOP.0, STOP.1);
    }
    let name = arguments.options.model_name();
    let model: Arc<dyn ChatModel> = match &name {
        Some(name) => live(name)?,
        None => Arc::new(recording.clone()),
    };
    // NOTE: A killed process can be followed immediately by another one; a second one in the same folder waits for the
    // first.
    let agent = analyst(model, Database::new(&database))?.build()?;
    let runner = Runner::builder(agent, store).app(APP)?.process_worker().build();
    if arguments.options.list {
        return list(&runner, &arguments.options.user).await;
    }
    if looks_only(&arguments) {
        return look(&runner, &arguments).await;
    }
    let is_picture = arguments.options.picture.is_some();
    // NOTE: A picture shows the command as a reader types it.
    let command = match is_picture {
        true => "cargo analyst".to_owned(),
        false => continuing(&command_line(&arguments), &arguments.options),
    };
    on_interrupt(&command);
    let mut screen = Screen { printer: arguments.options.printer(APP), recording, is_picture, command };
    let session = match &name {
        Some(name) => ask(&runner, &arguments, &mut screen, name).await?,
        None => replay(&runner, &arguments, &mut screen).await?,
    };
    farewell(&arguments, &session).await
}

/// Plays the written conversation, from where the session stopped.
async fn replay(
    runner: &Runner,
    arguments: &Arguments,
    screen: &mut Screen,
) -> Result<SessionHandle, Failure> {
    let questions = match arguments.questions.as_slice() {
        [] => screen.recording.questions(),
        given => given.to_vec(),
    };
    let (session, asked) = if let Some(id) = &arguments.options.session {
        open(runner, arguments, id).await?
    } else {
        let written = screen.recording.questions();
        let is_open = async |session: &SessionHandle| is_open(session, &written).await;
        let session = unfinished(runner, &arguments.options.user, "replay", is_open).await?;
        let asked = questions_of(&session).await?.len();
        (session, asked)
    };
    if asked == 0 {
        screen.printer.aside(
            "There is no model here: what the analyst says was written beforehand (examples/analyst/conversation.txt). \
             The tools, the database, the state and the session are real. To ask a real model, set ANTHROPIC_API_KEY \
             or OPENAI_API_KEY, or give --model PROVIDER:MODEL.",
        );
    }
    go_on(&session, screen).await?;
    let asked = if arguments.questions.is_empty() { asked } else { 0 };
    for question in questions.iter().skip(asked) {
        turn(&session, question, screen).await?;
    }
    Ok(session)
}

/// Asks a real model.
async fn ask(
    runner: &Runner,
    arguments: &Arguments,
    screen: &mut Screen,
    model: &str,
) -> Result<SessionHandle, Failure> {
    screen.printer.aside(&format!("Asking {model}."));
    let (session, _) =
        open(runner, arguments, arguments.options.session.as_deref().unwrap_or("live")).await?;
    go_on(&session, screen).await?;
    if !arguments.questions.is_empty() {
        for question in &arguments.questions {
            turn(&session, question, screen).await?;
        }
        return Ok(session);
    }
    loop {
        let Some(line) = ask_for("❯ ")? else {
            say("");
            return Ok(session);
        };
        if !line.trim().is_empty() {
            screen.printer.set_state(session.state().await.ok());
            screen.follow(session.send(line.trim()).await?).await?;
        }
    }
}

async fn turn(session: &SessionHandle, question: &str, screen: &mut Screen) -> Result<(), Failure> {
    screen.printer.user(question);
    screen.printer.set_state(session.state().await.ok());
    screen.follow(session.send(question).await?).await
}

/// Brings to its end what was interrupted, if anything was.
async fn go_on(session: &SessionHandle, screen: &mut Screen) -> Result<(), Failure> {
    let Some(run) = session.last_run().await? else { return Ok(()) };
    if !is_unfinished(&run) {
        return Ok(());
    }
    let sign = if screen.printer.form().is_terminal() { "↻ " } else { "" };
    let words = format!("The session {} {}.", session.key().id, describe_unfinished(&run));
    screen.printer.line(StyledText::new(TextStyle::ASK, sign).with(TextStyle::DIM, words));
    screen.printer.set_state(session.state().await.ok());
    // A person has stopped here already.
    screen.recording.go_on();
    // A model that was chosen meanwhile continues with the run.
    screen.follow(session.resume().with_changed_agent().start()?).await
}

/// A session, and how often the user has asked there.
async fn open(runner: &Runner, arguments: &Arguments, id: &str) -> Result<(SessionHandle, usize), Failure> {
    let session = runner.session(arguments.options.user.as_str(), id).await?;
    let asked = questions_of(&session).await?.len();
    Ok((session, asked))
}

/// The user's messages in a session.
async fn questions_of(session: &SessionHandle) -> Result<Vec<String>, Failure> {
    let said = session.read(EventRange::All).await?.transcript();
    let users = said.iter().filter(|message| message.role() == Role::User);
    Ok(users.map(|message| message.text().into_owned()).collect())
}

/// Whether a session is in the middle of the written conversation, in a fork or not.
async fn is_open(session: &SessionHandle, written: &[String]) -> Result<bool, Failure> {
    let asked = questions_of(session).await?;
    if !written.starts_with(&asked) {
        return Ok(false);
    }
    Ok(asked.len() < written.len() || session.last_run().await?.as_ref().is_none_or(is_unfinished))
}

fn looks_only(arguments: &Arguments) -> bool {
    arguments.options.inspect || arguments.transcript || arguments.options.fork.is_some()
}

async fn look(runner: &Runner, arguments: &Arguments) -> Result<(), Failure> {
    let session = match &arguments.options.session {
        Some(id) => open(runner, arguments, id).await?.0,
        None => newest(runner, &arguments.options.user).await?,
    };
    if let Some(version) = arguments.options.fork {
        return farewell(arguments, &fork(&session, version).await?).await;
    }
    if !arguments.transcript {
        return inspect(runner, &session).await;
    }
    write(&session.read(EventRange::All).await?.transcript().to_string());
    Ok(())
}

/// The command with the folder and the user of this one.
fn command_line(arguments: &Arguments) -> String {
    let given = [
        ("--folder", arguments.folder.display().to_string(), args::FOLDER),
        ("--user", arguments.options.user.clone(), USER),
    ];
    command("cargo analyst", &given)
}

/// Prints where the session is stored, and the commands that continue it.
async fn farewell(arguments: &Arguments, session: &SessionHandle) -> Result<(), Failure> {
    let command = command_line(arguments);
    let name = arguments.options.model_name();
    let model = name.clone().unwrap_or_else(|| "PROVIDER:MODEL".to_owned());
    let (id, written) = (&session.key().id, Recording::new(CONVERSATION, Duration::ZERO)?.questions());
    let (go_on, script) = (format!("--session {id} --model {model}"), format!("--session {id} --replay"));
    let mut more = Vec::new();
    if is_open(session, &written).await? {
        // NOTE: Without a model, the session with the newest write is the one that continues.
        let option = if name.is_none() { "" } else { script.as_str() };
        more.push(("continue with the written conversation", option));
    }
    more.push(("continue with a model", go_on.as_str()));
    say("");
    stepfold_examples::farewell(session, &arguments.folder.join("sessions.sqlite"), &command, &more).await
}
