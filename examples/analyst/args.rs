//! The command line.

use std::path::PathBuf;

use clap::Parser;
use stepfold_examples::Options;

/// A data analyst over a SQLite database of the world's time zones.
///
/// Without a model it plays a written conversation over the real tools. A session that was cut off, by a crash
/// for instance, is brought to its end first.
#[derive(Debug, Parser)]
#[command(name = "analyst")]
pub(crate) struct Arguments {
    /// What to ask, each in a turn of its own; without any, a live model is asked what you type.
    pub(crate) questions: Vec<String>,
    #[command(flatten)]
    pub(crate) options: Options,
    /// Where the database and the sessions are kept.
    #[arg(long, value_name = "FOLDER", default_value = "target/analyst")]
    pub(crate) folder: PathBuf,
    /// Print the conversation of the session, in the notation of transcripts.
    #[arg(long, requires = "session")]
    pub(crate) transcript: bool,
}
