//! The programs as a person runs them: whole, killed at any moment, forked, and asked for what they have not.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod analyst;
#[cfg(feature = "server")]
#[path = "../../../crates/cli/tests/it/chromium.rs"]
mod chromium;
mod deep_research;
#[cfg(feature = "server")]
#[path = "../../../crates/providers/tests/it/installed.rs"]
mod installed;
#[cfg(feature = "server")]
mod interop;
mod new;
mod small;

use std::process::{Command, Stdio};

/// A program that reads nothing, and finds no key of a model in its environment.
fn without_keys(program: &str) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null());
    for variable in ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "STEPFOLD_MODEL"] {
        command.env_remove(variable);
    }
    command
}

/// What a program prints, or how it fails.
fn printed(mut program: Command) -> Result<String, String> {
    let output = program.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}
