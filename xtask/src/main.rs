//! The thin end of xtask: parse the command line, do what it says, print what went wrong.
//!
//! Errors are printed by hand: a check that found something needs no backtrace.

use std::error::Error;
use std::iter::successors;
use std::process::ExitCode;

use clap::Parser;
use xtask::Cli;

fn main() -> ExitCode {
    if let Some(status) = xtask::process::stand_in_for_rustdoc() {
        let is_success = status.is_ok_and(|status| status.success());
        return if is_success { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    match xtask::run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::print_stderr, reason = "a program says on standard error why it failed")]
fn complain(error: &dyn Error) {
    let chain = successors(Some(error), |error| (*error).source());
    let chain: Vec<String> = chain.map(ToString::to_string).collect();
    eprintln!("error: {}", chain.join(": "));
}
