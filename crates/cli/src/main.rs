//! The command line of stepfold: agents from files, in sessions that outlive the process.
//!
//! Each command is a function in `command`; they share one way to open an agent with its store (`desk`), one to
//! follow a run (`turn`), and one to show things (`show`). Answers go to standard output, everything else to
//! standard error.

mod agent_file;
mod args;
mod command;
mod desk;
mod error;
mod log;
mod model;
mod prompt;
mod show;
mod tool;
mod turn;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser as _;
use stepfold::otel::Guard;

use crate::args::Args;
use crate::error::{Ending, Misuse};

fn main() -> ExitCode {
    let args = Args::parse();
    let spans = match log::start(args.verbose, args.otlp.as_deref()) {
        Ok(spans) => spans,
        Err(error) => return tell(&args, &Misuse(error::chain(&error)).into()).into(),
    };
    let ending = run(&args).unwrap_or_else(|error| tell(&args, &error));
    // What was done is done, whether or not somebody could be told of it.
    if let Some(Err(error)) = spans.map(Guard::shutdown) {
        anstream::eprintln!("{}warning{:#}: {}", show::BAD, show::BAD, error::chain(&error));
    }
    ending.into()
}

fn run(args: &Args) -> anyhow::Result<Ending> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(command::run(args));
    // Whoever still waits for a line of standard input would hold the process up.
    runtime.shutdown_background();
    ended
}

/// Says what went wrong: in words, or with `--json` as an object.
fn tell(args: &Args, error: &anyhow::Error) -> Ending {
    let is_misuse = error.is::<Misuse>() || error.is::<agent_file::FileFaults>();
    let text = error::chain(error.as_ref());
    if args.json {
        let mut told = serde_json::json!({"error": text});
        if let Some(faults) = error.downcast_ref::<agent_file::FileFaults>() {
            told["faults"] = serde_json::json!(faults.faults);
        }
        show::line(&told.to_string());
    } else {
        anstream::eprintln!("{}error{:#}: {text}", show::BAD, show::BAD);
    }
    if is_misuse { Ending::Usage } else { Ending::Failed }
}

/// A variable of the environment. This is the one place that asks for it.
#[expect(clippy::disallowed_methods, reason = "a program is where the environment comes in")]
fn environment(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}
