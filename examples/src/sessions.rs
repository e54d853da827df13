//! Sessions of the programs: list them, inspect or fork one, and print how to continue.

use std::error::Error;
use std::io::{self, IsTerminal as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use stepfold::prelude::*;
use stepfold::session_scopes::{EventRange, ListSessions, Session, SessionStore as _};
use stepfold::state_core::ErrorChain;
use stepfold::state_core::chat::Transcript;
use stepfold::terminal::{Color, DisplayForm, Printer, StyledText, TextStyle, brief, stdout_form};

use crate::model::named_by_environment;
use crate::show::{cut, say, tell};

/// The columns of a value that is shown.
const WIDTH: usize = 100;

/// The default user.
pub const USER: &str = "you";

/// The error of a program.
pub type Failure = Box<dyn Error>;

/// A command with those options whose values are not the usual ones: each an option, its value and the usual value.
pub fn command(name: &str, options: &[(&str, String, &str)]) -> String {
    let given = options.iter().filter(|(_, value, usual)| value != usual);
    given.fold(name.to_owned(), |command, (option, value, _)| format!("{command} {option} {value}"))
}

/// The options of every program.
#[derive(Args, Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub struct Options {
    /// The model, as PROVIDER:MODEL or URL#MODEL; else one for which the environment has a key.
    #[arg(long)]
    pub model: Option<String>,
    /// Play the written conversation, whatever keys there are.
    #[arg(long, conflicts_with = "model")]
    pub replay: bool,
    /// The session to continue; it is created if it does not exist. By default the unfinished one; for reading, the one
    /// with the newest write.
    #[arg(long, value_name = "NAME")]
    pub session: Option<String>,
    /// The user: all sessions of a user share the user's values.
    #[arg(long, value_name = "NAME", default_value = USER)]
    pub user: String,
    /// Milliseconds between two words of the written conversation; 15 on a terminal, else none.
    #[arg(long, value_name = "MS")]
    pub delay: Option<u64>,
    /// List the sessions, and ask nothing.
    #[arg(long)]
    pub list: bool,
    /// Show what is stored of the session: every event, then the state.
    #[arg(long)]
    pub inspect: bool,
    /// Make another session that shares the session's past up to this version.
    #[arg(long, value_name = "VERSION")]
    pub fork: Option<u64>,
    /// Show colors: by default at a terminal.
    #[arg(long, value_enum, value_name = "WHEN", default_value_t)]
    pub color: ColorArgument,
    /// Show arguments and results of calls in full.
    #[arg(short, long)]
    pub verbose: bool,
    /// For recordings: show all as at a terminal of so many columns, with counted times, and end at the first stop.
    #[arg(long, value_name = "COLUMNS", hide = true)]
    pub picture: Option<usize>,
}

/// The choice of colors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ColorArgument {
    /// At a terminal, unless `NO_COLOR` is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl Options {
    /// The name of the model to ask; none to play the written conversation.
    pub fn model_name(&self) -> Option<String> {
        if self.replay {
            return None;
        }
        self.model.clone().or_else(named_by_environment)
    }

    /// The printer of runs, with this name of the assistant.
    pub fn printer(&self, name: &str) -> Printer {
        match self.color {
            ColorArgument::Auto => Color::Auto,
            ColorArgument::Always => Color::Always,
            ColorArgument::Never => Color::Never,
        }
        .choose();
        let printer = match self.picture {
            Some(width) => Printer::in_form(DisplayForm::Terminal { width }).steady(Duration::from_millis(7)),
            None => Printer::new(),
        };
        printer.name(name).verbose(self.verbose)
    }

    /// Returns whether a written conversation stops once for a person.
    pub fn stops(&self) -> bool {
        self.picture.is_some() || (io::stdin().is_terminal() && io::stdout().is_terminal())
    }

    /// The pause after each word of the written conversation, if a person reads it as it comes.
    pub fn delay(&self, is_read: bool) -> Duration {
        let usual = if is_read && io::stdout().is_terminal() { 15 } else { 0 };
        Duration::from_millis(self.delay.unwrap_or(usual))
    }
}

/// Prints the error of a program, if it failed.
pub fn ended(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell(format!("error: {}", ErrorChain(&*error)));
            ExitCode::FAILURE
        }
    }
}

/// Returns whether a run can continue: it waits, was interrupted or failed.
pub fn is_unfinished(run: &Run) -> bool {
    run.exit().is_none_or(Exit::is_resumable)
}

/// The command that continues what a program with these options does.
pub fn continuing(command_line: &str, options: &Options) -> String {
    let given = [
        ("--session", options.session.clone().unwrap_or_default(), ""),
        ("--model", options.model.clone().unwrap_or_default(), ""),
    ];
    let continues = command(command_line, &given);
    if options.replay { format!("{continues} --replay") } else { continues }
}

/// Ends the program at Ctrl-C, with the exit status 130, after the command that continues.
pub fn on_interrupt(command: &str) {
    let words = format!("\nStored. Run `{command}` again: it continues here. (exit status 130)");
    // NOTE: A task of its own, since the main one may wait for a line of standard input.
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            tell(words);
            #[expect(clippy::exit, reason = "a thread that waits for a line cannot be cancelled")]
            std::process::exit(130);
        }
    });
}

/// Lists the sessions of a user.
///
/// # Errors
/// When the store fails.
pub async fn list(runner: &Runner, user: &str) -> Result<(), Failure> {
    for session in stored(runner, user).await? {
        say(format!("{} (version {})", session.key.id, session.version));
    }
    Ok(())
}

/// The sessions of a user, newest write first.
async fn stored(runner: &Runner, user: &str) -> Result<Vec<Session>, Failure> {
    let app = runner.key(user, "-")?.app;
    let (mut sessions, mut cursor) = (Vec::new(), None);
    loop {
        let page = runner.store().list(ListSessions::new(app.as_str(), user)?.after(cursor)).await?;
        sessions.extend(page.sessions);
        cursor = page.next;
        if cursor.is_none() {
            return Ok(sessions);
        }
    }
}

/// The session with the newest write that is unfinished; without one a new session, `NAME-1`, `NAME-2` and so on.
///
/// # Errors
/// When the store fails.
pub async fn unfinished(
    runner: &Runner,
    user: &str,
    name: &str,
    is_unfinished: impl AsyncFn(&SessionHandle) -> Result<bool, Failure>,
) -> Result<SessionHandle, Failure> {
    let stored = stored(runner, user).await?;
    for known in &stored {
        let session = runner.session(user, known.key.id.as_str()).await?;
        if is_unfinished(&session).await? {
            return Ok(session);
        }
    }
    let is_new = |id: &String| stored.iter().all(|known| known.key.id.as_str() != id);
    let id = (1..=stored.len() + 1).map(|number| format!("{name}-{number}")).find(is_new);
    Ok(runner.session(user, id.unwrap_or_else(|| name.to_owned())).await?)
}

/// Creates a session that shares the history of this one up to a version.
///
/// # Errors
/// When there is no such version, or the store fails.
pub async fn fork(session: &SessionHandle, version: u64) -> Result<SessionHandle, Failure> {
    let id = &session.key().id;
    let fork = session.fork(format!("{id}-from-{version}"), Some(version)).await?;
    say(format!("The session {} shares the past of {id} up to version {version}.", fork.key().id));
    Ok(fork)
}

/// Shows every event of a session, then its state.
///
/// # Errors
/// When the store fails, or what it has does not fit the agent.
pub async fn inspect(runner: &Runner, session: &SessionHandle) -> Result<(), Failure> {
    let session = session.read(EventRange::All).await?;
    for committed in session.visible_events() {
        let event = &committed.event;
        say(format!("version {}: {} by {}", committed.version, event.kind.as_str(), event.author));
        for message in &event.messages {
            let message: Transcript = [Message::clone(message)].into_iter().collect();
            let lines = message.to_string();
            lines.lines().for_each(|line| say(format!("  {}", cut(line))));
        }
        for change in &event.actions.delta {
            let value = change.value().map(|value| brief(value, WIDTH)).unwrap_or_default();
            say(format!("  ~ {} <- {value}", change.key()));
        }
    }
    say("state:");
    for (key, value) in session.state(runner.schema())?.iter().filter(|(key, _)| *key != "messages") {
        say(format!("  {key} = {}", brief(&value.to_json(), WIDTH)));
    }
    Ok(())
}

/// The session of a user with the newest write.
///
/// # Errors
/// When there is no session, or the store fails.
pub async fn newest(runner: &Runner, user: &str) -> Result<SessionHandle, Failure> {
    let app = runner.key(user, "-")?.app;
    let page = runner.store().list(ListSessions::new(app.as_str(), user)?).await?;
    let newest = page.sessions.first().ok_or("there is no session yet")?;
    Ok(runner.session(user, newest.key.id.as_str()).await?)
}

/// Prints where the session is stored, and the commands that continue it. `more` are further commands, each with its
/// options.
///
/// # Errors
/// When the store fails.
pub async fn farewell(
    session: &SessionHandle,
    file: &Path,
    command: &str,
    more: &[(&str, &str)],
) -> Result<(), Failure> {
    let stored = session.read(EventRange::None).await?;
    let (id, version, file) = (&stored.key.id, stored.version, file.display());
    let mut printer = Printer::in_form(stdout_form());
    printer.line(format!(
        "The session {id} is in {file}, at version {version}; another process may continue it."
    ));
    let fork = format!("--fork {}", version / 2);
    let things = [
        ("every event, and the state", "--inspect"),
        ("another session, with the past up to a version", fork.as_str()),
    ];
    let line = |option: &str| format!("{command} {option}").trim_end().to_owned();
    let things: Vec<(String, &str)> =
        more.iter().chain(&things).map(|(what, option)| (line(option), *what)).collect();
    let width = things.iter().map(|(line, _)| line.len()).max().unwrap_or_default();
    let is_wide = things.iter().all(|(_, what)| width + what.len() + 6 <= printer.form().width());
    for (line, what) in things {
        let comment = StyledText::new(TextStyle::DIM, format!("  # {what}"));
        if is_wide {
            let mut row = StyledText::from(format!("  {line:width$}"));
            row.append(&comment);
            printer.line(row);
        } else {
            printer.line(comment);
            printer.line(format!("  {line}"));
        }
    }
    Ok(())
}
