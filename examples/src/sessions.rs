//! What every program does with its sessions: to list them, to look into one, to fork one, and to say how to go on.

use std::error::Error;
use std::io::{self, IsTerminal as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use stepfold::prelude::*;
use stepfold::session_scopes::{EventRange, ListSessions, SessionStore as _};
use stepfold::state_core::ErrorChain;
use stepfold::state_core::chat::Transcript;
use stepfold::state_core::state::Write;

use crate::model::named_by_environment;
use crate::show::{cut, say, tell};

/// Why a program failed.
pub type Failure = Box<dyn Error>;

/// The options of every program.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// The model, as PROVIDER:MODEL or URL#MODEL; else one for which the environment has a key.
    #[arg(long)]
    pub model: Option<String>,
    /// Play the written conversation, whatever keys there are.
    #[arg(long, conflicts_with = "model")]
    pub replay: bool,
    /// The session to go on with; it is made if it is not there.
    #[arg(long, value_name = "NAME")]
    pub session: Option<String>,
    /// Whose sessions: what belongs to a user is the same in all of them.
    #[arg(long, value_name = "NAME", default_value = "you")]
    pub user: String,
    /// Milliseconds between two words of the written conversation; 15 on a terminal, else none.
    #[arg(long, value_name = "MS")]
    pub delay: Option<u64>,
    /// List the sessions, and ask nothing.
    #[arg(long)]
    pub list: bool,
    /// Show what is stored of the session: every event, then the state.
    #[arg(long, requires = "session")]
    pub inspect: bool,
    /// Make another session that shares the session's past up to this version.
    #[arg(long, value_name = "VERSION", requires = "session")]
    pub fork: Option<u64>,
}

impl Options {
    /// The name of the model to ask; none to play the written conversation.
    pub fn model_name(&self) -> Option<String> {
        if self.replay {
            return None;
        }
        self.model.clone().or_else(named_by_environment)
    }

    /// The pause after each word of the written conversation, if somebody reads it as it comes.
    pub fn delay(&self, is_read: bool) -> Duration {
        let usual = if is_read && io::stdout().is_terminal() { 15 } else { 0 };
        Duration::from_millis(self.delay.unwrap_or(usual))
    }
}

/// Says why a program failed, if it did.
pub fn ended(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell(format!("error: {}", ErrorChain(&*error)));
            ExitCode::FAILURE
        }
    }
}

/// Whether a run can go on: it waits, was interrupted or failed.
pub fn is_unfinished(run: &Run) -> bool {
    run.exit().is_none_or(Exit::is_resumable)
}

/// Lists the sessions of a user.
///
/// # Errors
/// When the store fails.
pub async fn list(runner: &Runner, user: &str) -> Result<(), Failure> {
    let app = runner.key(user, "-")?.app;
    let mut cursor = None;
    loop {
        let request = ListSessions::new(app.as_str(), user)?.after(cursor);
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

/// Makes another session that shares the past of this one up to a version.
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
            say(format!("  + {}", change_in_words(change)));
        }
    }
    say("state:");
    for (key, value) in session.state(runner.schema())?.iter().filter(|(key, _)| *key != "messages") {
        say(format!("  {key} = {}", cut(&value.to_string())));
    }
    Ok(())
}

/// A write to the state: the key, the merge handler, and the value.
pub fn change_in_words(write: &Write) -> String {
    let handler = write.handler().map(Handler::name).unwrap_or_default();
    let value = write.value().map(ToString::to_string).unwrap_or_default();
    format!("{} ({handler}) {}", write.key(), cut(&value))
}

/// Says where the session is, and what can be done with it by this command. `more` are further things to do.
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
    say(format!("The session {id} is in {file}, at version {version}; another process may go on with it."));
    let fork = format!("--fork {}", version / 2);
    let things = [
        ("Look at it", "--inspect"),
        ("Make another one that shares its past up to a version", fork.as_str()),
    ];
    for (what, option) in things.iter().chain(more) {
        say(format!("{what}:\n  {command} --session {id} {option}"));
    }
    say("A program that was killed goes on where it stopped: run it again.");
    Ok(())
}
