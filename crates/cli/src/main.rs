//! The command line of stepfold: agents from files, in durable sessions.
//!
//! Each command is a function in `command`; they share one way to open an agent with its store (`desk`), one to
//! follow a run (`turn`), and one to show things (`show`). Answers go to standard output, everything else to
//! standard error.

mod agent_file;
mod args;
mod command;
mod desk;
mod error;
mod head;
mod log;
mod migrate;
mod model;
mod other;
mod prompt;
mod show;
mod signals;
mod tool;
mod turn;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser as _;
use stepfold::otel::Guard;

use crate::args::Args;
use crate::error::{Ending, Misuse, Stop};

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return refuse(&error).into(),
    };
    stepfold::terminal::Color::from(args.color).choose();
    show::choose_verbose(args.verbose > 0);
    let spans = match log::start(args.verbose, args.otlp.as_deref()) {
        Ok(spans) => spans,
        Err(error) => return tell(&args, &Misuse(error::chain(&error)).into()).into(),
    };
    let ending = run(&args).unwrap_or_else(|error| tell(&args, &error));
    // What was done is done, whether or not it could be printed.
    if let Some(Err(error)) = spans.map(Guard::shutdown) {
        show::bad("warning", &error::chain(&error));
    }
    if let Some(error) = show::end_of_output() {
        show::bad(
            "error",
            &format!("standard output could not be written: {error}; `inspect` shows what was said"),
        );
        return Ending::Failed.into();
    }
    ending.into()
}

fn run(args: &Args) -> anyhow::Result<Ending> {
    // What is shown is written by this thread, and runs are driven by others: who reads slowly, or does not read, holds
    // no heartbeat up.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let ended = runtime.block_on(async {
        let ended = command::run(args).await;
        tool::mcp::end().await;
        ended
    });
    // A thread that still waits for a line of standard input would block the exit.
    runtime.shutdown_background();
    ended
}

/// Says what is wrong with the command line, or what was asked about it.
fn refuse(error: &clap::Error) -> Ending {
    let is_json = std::env::args_os().any(|word| word == "--json");
    if is_json && error.use_stderr() {
        show::line(serde_json::json!({"error": error.to_string().trim_end()}).to_string());
    } else {
        // An error that cannot be printed is dropped.
        let _ = error.print();
    }
    if error.use_stderr() { Ending::Usage } else { Ending::Done }
}

/// Says what went wrong: in words, or with `--json` as an object.
fn tell(args: &Args, error: &anyhow::Error) -> Ending {
    if let Some(Stop(ending)) = error.downcast_ref() {
        return *ending;
    }
    let mut text = error::told(error);
    if let Some(path) = args.command.place().and_then(|place| desk::store_path(place).ok())
        && error::is_of_store(error)
    {
        let path = path.display().to_string();
        if !text.contains(&path) {
            text = format!("{text} (the sessions are in {path})");
        }
    }
    if args.json {
        let mut told = serde_json::json!({"error": text});
        if let Some(faults) = error.downcast_ref::<agent_file::FileFaults>() {
            told["faults"] = serde_json::json!(faults.faults);
        }
        show::line(told.to_string());
    } else {
        show::bad("error", &text);
    }
    if error::is_misuse(error) { Ending::Usage } else { Ending::Failed }
}

/// A variable of the environment. This is the one place that asks for it.
#[expect(clippy::disallowed_methods, reason = "a program is where the environment comes in")]
fn environment(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}
