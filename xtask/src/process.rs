//! Starting programs. The only place that does.
//!
//! Plain `std::process`: a stage is one cargo call with inherited output, and the newest xshell
//! is a pre-release.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use crate::console::say;

/// One call of a program: its arguments in order, and what is added to its environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// None for cargo: the one that started us.
    program: Option<String>,
    /// The arguments.
    pub arguments: Vec<String>,
    /// Variables set for this call only.
    pub environment: Vec<(&'static str, String)>,
}

impl Call {
    /// A call of cargo with these arguments and an untouched environment.
    pub fn cargo<A: Into<String>>(arguments: impl IntoIterator<Item = A>) -> Self {
        let arguments = arguments.into_iter().map(Into::into).collect();
        Call { program: None, arguments, environment: Vec::new() }
    }

    /// A call of another program.
    pub fn program<A: Into<String>>(program: &str, arguments: impl IntoIterator<Item = A>) -> Self {
        Call { program: Some(program.to_owned()), ..Call::cargo(arguments) }
    }

    /// Sets a variable for this call only.
    #[must_use]
    pub fn env(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    /// Runs the call in `folder`, its output shown as it comes, with nothing to read from standard input.
    ///
    /// # Errors
    /// When the program cannot be started or fails.
    pub fn run(&self, folder: &Path) -> Result<(), ProcessError> {
        let status = self.command(folder).status().map_err(|source| self.not_started(source))?;
        self.checked(status)
    }

    /// Runs the call as [`run`](Call::run) does, and gives what it printed on standard output.
    ///
    /// # Errors
    /// When the program cannot be started or fails.
    pub fn run_and_read(&self, folder: &Path) -> Result<String, ProcessError> {
        let mut child =
            self.command(folder).stdout(Stdio::piped()).spawn().map_err(|source| self.not_started(source))?;
        let mut printed = String::new();
        for line in child.stdout.take().into_iter().flat_map(|output| BufReader::new(output).lines()) {
            let line = line.map_err(|source| self.not_started(source))?;
            say(&line);
            printed += &line;
            printed.push('\n');
        }
        let status = child.wait().map_err(|source| self.not_started(source))?;
        self.checked(status).map(|()| printed)
    }

    /// Runs the call, and gives what it printed on standard output, which is not shown.
    ///
    /// # Errors
    /// As [`run`](Call::run).
    pub fn run_and_read_silently(&self, folder: &Path) -> Result<String, ProcessError> {
        let output = self.command(folder).stderr(Stdio::inherit()).output();
        let output = output.map_err(|source| self.not_started(source))?;
        self.checked(output.status)?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs the call as [`run`](Call::run) does, without showing its output.
    ///
    /// # Errors
    /// When the program cannot be started or fails.
    pub fn run_silently(&self, folder: &Path) -> Result<(), ProcessError> {
        let mut command = self.command(folder);
        let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        self.checked(status.map_err(|source| self.not_started(source))?)
    }

    fn not_started(&self, source: io::Error) -> ProcessError {
        ProcessError::Start { call: self.to_string(), source }
    }

    fn checked(&self, status: ExitStatus) -> Result<(), ProcessError> {
        if status.success() { Ok(()) } else { Err(ProcessError::Failed { call: self.to_string(), status }) }
    }

    fn command(&self, folder: &Path) -> Command {
        let mut command = Command::new(self.program.as_ref().map_or_else(cargo, OsString::from));
        command
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .current_dir(folder)
            .stdin(Stdio::null());
        if is_ci() {
            command.env("CARGO_TERM_PROGRESS_WHEN", "never");
        }
        command
    }
}

/// The command line, as one would type it.
impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.environment {
            write!(f, "{name}='{value}' ")?;
        }
        let program = self.program.as_deref().unwrap_or("cargo");
        f.write_str(program)?;
        self.arguments.iter().try_for_each(|argument| write!(f, " {argument}"))
    }
}

/// The reason why a program failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// It could not be started.
    #[error("could not start `{call}`")]
    Start {
        /// The command line.
        call: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// It ran and failed.
    #[error("`{call}` ended with {status}")]
    Failed {
        /// The command line.
        call: String,
        /// The exit status.
        status: ExitStatus,
    },
}

/// The variable that has this program stand in for rustdoc; see [`stand_in_for_rustdoc`].
pub(crate) const RUSTDOC_WITH_JSON: &str = "XTASK_RUSTDOC_WITH_JSON";

/// If cargo started this program as its rustdoc, runs rustdoc in its place, with unstable options allowed for it alone.
/// `None` if it did not.
#[expect(clippy::disallowed_methods, reason = "cargo gives its rustdoc nothing but the environment")]
pub fn stand_in_for_rustdoc() -> Option<io::Result<ExitStatus>> {
    std::env::var_os(RUSTDOC_WITH_JSON)?;
    let mut rustdoc = Command::new("rustdoc");
    Some(rustdoc.args(std::env::args_os().skip(1)).env("RUSTC_BOOTSTRAP", "1").status())
}

/// The path of this program.
///
/// A build of the whole workspace, as stages of `ci` make it, replaces our file while we run. Linux then adds a word to
/// the path of the running program; without that word it is the path of the new file, which can do the same.
pub(crate) fn this_program() -> String {
    let path = std::env::current_exe().map_or_else(|_| "xtask".to_owned(), |path| path.display().to_string());
    without_deleted(&path).to_owned()
}

fn without_deleted(path: &str) -> &str {
    path.strip_suffix(" (deleted)").unwrap_or(path)
}

/// Returns whether `cargo NAME` exists: built in or installed.
pub fn has_cargo_command(name: &str) -> bool {
    Command::new(cargo())
        .args([name, "--version"])
        .stdin(Stdio::null())
        .output()
        .is_ok_and(|output| output.status.success())
}

/// Standard output of a program that succeeded; none if it is absent or failed.
pub(crate) fn output_of(program: &str, arguments: &[&str], folder: &Path) -> Option<Vec<u8>> {
    let output =
        Command::new(program).args(arguments).current_dir(folder).stdin(Stdio::null()).output().ok()?;
    output.status.success().then_some(output.stdout)
}

/// The cargo that started us, or the one on the path.
#[expect(clippy::disallowed_methods, reason = "cargo says in the environment which cargo it is")]
fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Returns whether this is a CI machine, whose progress bars no person watches.
#[expect(clippy::disallowed_methods, reason = "the environment variable `CI` is how CI machines say so")]
pub(crate) fn is_ci() -> bool {
    std::env::var_os("CI").is_some()
}

#[cfg(test)]
mod tests {
    use super::{Call, without_deleted};

    #[test]
    fn a_program_whose_file_was_replaced_is_found_at_its_path() {
        assert_eq!(without_deleted("/target/debug/xtask (deleted)"), "/target/debug/xtask");
        assert_eq!(without_deleted("/target/debug/xtask"), "/target/debug/xtask");
    }

    #[test]
    fn a_call_prints_as_one_would_type_it() {
        let call = Call::cargo(["doc", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings");
        assert_eq!(call.to_string(), "RUSTDOCFLAGS='-D warnings' cargo doc --no-deps");
    }
}
