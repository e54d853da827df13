//! The checks and chores of this repository, as a library so that `cargo test` runs them as well.
//!
//! Read in this order: [`cli`] says which commands there are, [`ci`] strings the checks together,
//! [`layers`] guards the arrows between crates, [`tidy`] guards what no compiler looks at,
//! [`api`] lists the public items, [`interop`] brings peers that others wrote, [`sim`] simulates runs by the thousand, [`bench`](mod@bench) measures,
//! [`release`] packages, [`dist`] packs the command, [`picture`] shows the first program.
//! Every check is a pure function of data; reading files and starting programs happens in
//! [`workspace`] and [`process`] only. Nothing here is published, and no other crate may use it.

pub mod api;
mod apt;
pub mod bench;
pub mod ci;
pub mod cli;
mod console;
pub mod dist;
mod error;
pub mod interop;
pub mod layers;
pub mod picture;
mod postgres;
pub mod process;
pub mod release;
pub mod sim;
pub mod tidy;
pub mod workspace;

pub use crate::cli::Cli;
pub use crate::error::Error;

use crate::cli::Command;

/// Does what the command line says.
///
/// # Errors
/// When a check found something, a program could not be started, or the workspace cannot be read.
pub fn run(cli: &Cli) -> Result<(), Error> {
    match &cli.command {
        Command::Ci(options) => ci::run(options),
        Command::Layers => layers::run(),
        Command::Tidy(options) => tidy::run(*options),
        Command::Api(options) => api::run(*options),
        Command::Interop => interop::run(),
        Command::Bench { name } => bench::run(name.as_deref()),
        Command::Sim(options) => sim::run(*options),
        Command::Clients => clients(),
        Command::Picture(options) => picture::run(options),
        Command::Release(options) => release::run(*options),
        Command::Dist => dist::run(),
    }
}

/// Writes the clients of the API: the test that compares them does so if it is told to.
fn clients() -> Result<(), Error> {
    let arguments =
        ["test", "-p", "stepfold-server", "--all-features", "--test", "it", "the_clients_are_current"];
    let call = process::Call::cargo(arguments).env("UPDATE_EXPECT", "1");
    Ok(call.run(workspace::metadata()?.workspace_root.as_std_path())?)
}
