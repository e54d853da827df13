//! The command line of stepfold.
//!
//! Filled by a later part of the plan; see `docs/status.md`. Until then it says so and fails.
#![allow(clippy::print_stderr, reason = "a command talks to the person who runs it")]

use std::process::ExitCode;

fn main() -> ExitCode {
    eprintln!("stepfold: the command line is not written yet; docs/status.md says what there is");
    ExitCode::FAILURE
}
