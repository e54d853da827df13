//! The command line.

use std::path::PathBuf;

use clap::Parser;
use stepfold_examples::Options;

/// The default folder of the database and the sessions.
pub(crate) const FOLDER: &str = "target/analyst";

/// A data analyst over a SQLite database of the world's time zones.
///
/// Without a model it plays a written conversation over the real tools. A session that was interrupted, by a
/// crash for instance, is brought to its end first.
#[derive(Debug, Parser)]
#[command(name = "analyst")]
pub(crate) struct Arguments {
    /// The questions, each in its own turn; without any, a live model is asked what you type.
    pub(crate) questions: Vec<String>,
    #[command(flatten)]
    pub(crate) options: Options,
    /// The folder of the database and the sessions.
    #[arg(long, value_name = "FOLDER", default_value = FOLDER)]
    pub(crate) folder: PathBuf,
    /// Print the conversation of the session, in the notation of transcripts.
    #[arg(long)]
    pub(crate) transcript: bool,
}
