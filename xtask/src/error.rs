//! The errors of xtask.

use std::io;
use std::path::PathBuf;

use crate::ci::Stage;
use crate::process::ProcessError;

/// The reason why a command of xtask failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `cargo metadata` failed.
    #[error("could not read the workspace with `cargo metadata`")]
    Metadata(#[from] cargo_metadata::Error),
    /// `cargo metadata` answered without the part that says who depends on whom.
    #[error("`cargo metadata` gave no resolved dependency graph")]
    NoResolve,
    /// A file of the repository could not be read.
    #[error("could not read {path}")]
    ReadFile {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A file could not be written or removed.
    #[error("could not write {path}")]
    WriteFile {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The documentation of a crate, as JSON, could not be read.
    #[error("could not list the public items in {json}")]
    Api {
        /// The file.
        json: PathBuf,
        /// The reason.
        source: public_api::Error,
    },
    /// The repository could not be walked.
    #[error("could not list the files of the repository")]
    ListFiles(#[from] walkdir::Error),
    /// A check found something; it has been printed.
    #[error("`{check}` found {count} problem(s), listed above")]
    Problems {
        /// `layers`, `tidy`, `api` or `picture`.
        check: &'static str,
        /// The number of printed violations.
        count: usize,
    },
    /// A stage of `ci` failed.
    #[error("stage `{stage}` failed (alone again: `{again}`)")]
    Stage {
        /// The stage.
        stage: Stage,
        /// The command that runs only this stage.
        again: String,
        /// The cause.
        source: Box<Error>,
    },
    /// The binary to pack is too large.
    #[error("the binary has {bytes} bytes, more than {limit}: see what a dependency has added")]
    LargeBinary {
        /// Its size.
        bytes: u64,
        /// The largest size.
        limit: u64,
    },
    /// There is no bench target of this name.
    #[error("no bench target is named `{name}`; there are: {known}")]
    UnknownBench {
        /// The requested name.
        name: String,
        /// The known names.
        known: String,
    },
    /// A peer of `interop` could not be installed, on a machine where it has to be there.
    #[error("the peer `{peer}` is not there: {reason}")]
    NoPeer {
        /// The peer.
        peer: &'static str,
        /// The reason.
        reason: String,
    },
    /// The crates need each other in a circle, or one that is not published.
    #[error("there is no order in which these can be published, each needs another one first: {crates}")]
    NoOrder {
        /// The crates.
        crates: String,
    },
    /// A program could not be started, or failed.
    #[error(transparent)]
    Process(#[from] ProcessError),
}

impl Error {
    /// The error of reading this file.
    pub(crate) fn read(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        |source| Error::ReadFile { path, source }
    }

    /// The error of writing or removing this file.
    pub(crate) fn write(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        |source| Error::WriteFile { path, source }
    }
}
