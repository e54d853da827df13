//! The command line, and which model it asks for.

use std::path::PathBuf;

use clap::Parser;
use stepfold_examples::named_by_environment;

/// A data analyst over a SQLite database of the world's time zones.
///
/// Without a model it plays a written conversation over the real tools. A session that was cut off, by a crash
/// for instance, is brought to its end first.
#[derive(Debug, Parser)]
#[command(name = "analyst")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct Arguments {
    /// What to ask, each in a turn of its own; without any, a live model is asked what you type.
    pub(crate) questions: Vec<String>,
    /// The model, as PROVIDER:MODEL or URL#MODEL; else one for which the environment has a key.
    #[arg(long)]
    pub(crate) model: Option<String>,
    /// Play the written conversation, whatever keys there are.
    #[arg(long, conflicts_with = "model")]
    pub(crate) replay: bool,
    /// The session to go on with; it is made if it is not there.
    #[arg(long, value_name = "NAME")]
    pub(crate) session: Option<String>,
    /// Whose sessions: preferences belong to a user.
    #[arg(long, value_name = "NAME", default_value = "you")]
    pub(crate) user: String,
    /// Where the database and the sessions are kept.
    #[arg(long, value_name = "FOLDER", default_value = "target/analyst")]
    pub(crate) folder: PathBuf,
    /// Milliseconds between two words of the written conversation; 15 on a terminal, else none.
    #[arg(long, value_name = "MS")]
    pub(crate) delay: Option<u64>,
    /// List the sessions, and ask nothing.
    #[arg(long)]
    pub(crate) list: bool,
    /// Show what is stored of the session: every event, then the state.
    #[arg(long, requires = "session")]
    pub(crate) inspect: bool,
    /// Print the conversation of the session, in the notation of transcripts.
    #[arg(long, requires = "session")]
    pub(crate) transcript: bool,
    /// Make another session that shares the session's past up to this version.
    #[arg(long, value_name = "VERSION", requires = "session")]
    pub(crate) fork: Option<u64>,
}

impl Arguments {
    /// The name of the model to ask; none to play the written conversation.
    pub(crate) fn model_name(&self) -> Option<String> {
        if self.replay {
            return None;
        }
        self.model.clone().or_else(named_by_environment)
    }
}
