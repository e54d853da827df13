//! The command line of stepfold: agents from files, in durable sessions.
//!
//! Each command is a function in `command`. All of them open an agent with its store by `context`, follow a run by
//! `turn`, and print by `show`. Answers go to standard output, everything else to standard error.

mod agent_file;
mod archive;
mod args;
mod argument_text;
mod command;
mod context;
mod environment;
mod error;
mod form;
mod head;
mod keys;
mod log;
mod migrate;
mod model;
mod other_process;
mod prompt;
mod show;
mod signals;
mod store;
mod tool;
mod turn;

use std::process::ExitCode;

use clap::Parser as _;
use stepfold::otel::ExporterGuard;

use crate::args::{CliCommand, CommandLine};
use crate::error::{CommandEnding, SilentExit, UsageError};

fn main() -> ExitCode {
    let args = match CommandLine::try_parse() {
        Ok(args) => args,
        Err(error) => return report_parse_error(&error).into(),
    };
    stepfold::terminal::Color::from(args.color).choose();
    show::choose_verbose(args.verbose > 0);
    let spans = match log::start(args.verbose, args.otlp.as_deref()) {
        Ok(spans) => spans,
        Err(error) => return report_error(&args, &UsageError(error::chain(&error)).into()).into(),
    };
    let ending = run(&args).unwrap_or_else(|error| report_error(&args, &error));
    // NOTE: Failures of output do not change the ending before this point: the work is stored, printed or not.
    if let Some(Err(error)) = spans.map(ExporterGuard::shutdown) {
        show::bad("warning", &error::chain(&error));
    }
    if let Some(error) = show::end_of_output() {
        show::bad(
            "error",
            &format!("standard output could not be written: {error}; `inspect` shows what was said"),
        );
        return failure_of(&args).into();
    }
    ending.into()
}

fn run(args: &CommandLine) -> anyhow::Result<CommandEnding> {
    // NOTE: This thread writes the output, and two others drive the runs: a slow reader of the output, or none, does not
    // delay the heartbeats of claims.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let ended = runtime.block_on(async {
        let ended = command::run(args).await;
        tool::mcp::stop_servers().await;
        ended
    });
    // NOTE: A thread that waits for a line of standard input cannot be cancelled, and would block the exit.
    runtime.shutdown_background();
    ended
}

/// Prints an error of the command line, or the requested help.
fn report_parse_error(error: &clap::Error) -> CommandEnding {
    // NOTE: Parsing has failed, so `--json` is looked up in the raw arguments.
    let is_json = std::env::args_os().any(|word| word == "--json");
    if is_json && error.use_stderr() {
        show::line(serde_json::json!({"error": error.to_string().trim_end()}).to_string());
    } else {
        // An error that cannot be printed is dropped.
        let _ = error.print();
    }
    if error.use_stderr() { CommandEnding::Usage } else { CommandEnding::Done }
}

/// Reports an error: as text, or with `--json` as an object.
fn report_error(args: &CommandLine, error: &anyhow::Error) -> CommandEnding {
    if let Some(SilentExit(ending)) = error.downcast_ref() {
        return *ending;
    }
    let mut text = error::error_text(error);
    // NOTE: A damaged store is a file that a person has to find: its path is part of the error.
    let store =
        || args.command.target().and_then(|target| store::store_file(target.store.as_deref()).ok()?);
    if error::is_store_fault(error)
        && let Some(path) = store()
    {
        let path = path.display().to_string();
        if !text.contains(&path) {
            text = format!("{text} (the sessions are in {path})");
        }
    }
    // Faults of a form have a line each, and a build server reads the others.
    if matches!(args.command, CliCommand::Eval { .. }) && error.downcast_ref::<form::FileFaults>().is_none() {
        text = show::in_one_line(&text);
    }
    if args.json {
        let mut report = serde_json::json!({"error": text});
        if let Some(faults) = error.downcast_ref::<form::FileFaults>() {
            report["faults"] = serde_json::json!(faults.faults);
        }
        show::line(report.to_string());
    } else {
        show::bad("error", &text);
    }
    if error::is_usage_error(error) { CommandEnding::Usage } else { failure_of(args) }
}

/// The ending of a command that has failed. Status 1 of an evaluation is a verdict, so its failures have the other one.
fn failure_of(args: &CommandLine) -> CommandEnding {
    match args.command {
        CliCommand::Eval { .. } => CommandEnding::Usage,
        _ => CommandEnding::Failed,
    }
}
