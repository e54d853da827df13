//! The error of a stored run that cannot continue.

use std::path::PathBuf;

use stepfold_state_core::state::StateError;
use thiserror::Error;

use crate::error::FeedError;

/// Why a stored run cannot continue.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// It is not a stored run.
    #[error("invalid stored {what}: {source}")]
    Json {
        /// The kind of record that was read.
        what: &'static str,
        /// Why not.
        r#source: serde_json::Error,
    },
    /// It was written by a newer version.
    #[error(
        "unsupported format {found} of the stored {what}: this version reads up to {supported}; update stepfold"
    )]
    NewerFormat {
        /// The kind of record that was read.
        what: &'static str,
        /// The format that was found.
        found: u64,
        /// The newest format that is understood.
        supported: u64,
    },
    /// The agent is not the one that the run was of.
    #[error(
        "agent changed since the run was stored: {}; force it with `load_changed`",
        changes.join("; ")
    )]
    AgentChanged {
        /// The changes, in words.
        changes: Vec<String>,
    },
    /// The state does not fit the schema of the agent.
    #[error("invalid state of the stored run: {0}")]
    State(StateError),
    /// The record of a run inside, of an agent that is a tool or a node, does not fit that agent.
    #[error("inner run of '{name}' cannot continue: {error}")]
    Inside {
        /// The tool or the node.
        name: String,
        /// Why not.
        error: Box<FeedError>,
    },
    /// A file could not be read or written.
    #[error("file {} could not be {doing}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The failed operation: read or written.
        doing: &'static str,
        /// Why not.
        r#source: std::io::Error,
    },
}

impl From<StateError> for LoadError {
    fn from(error: StateError) -> Self {
        LoadError::State(error)
    }
}
