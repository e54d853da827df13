//! Runs a program, as a tool or as a node: arguments as JSON on its standard input, without a shell, with few environment
//! variables, and within bounds.
//!
//! A program that times out, is cancelled or writes too much is killed with all its child processes.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;

use serde_json::Value;
use stepfold::prelude::*;
use stepfold::tools::ToolBuilder;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};

use super::read_output;
use crate::form::FaultCollector;
use crate::form::agent::CommandForm;

/// The bytes of standard error in the message of a failed program.
const ERROR_BYTES: usize = 4 * 1024;

/// The variable in which a program finds the idempotency key of its call.
const IDEMPOTENCY_KEY_VARIABLE: &str = "STEPFOLD_IDEMPOTENCY_KEY";

/// A program of the agent file, ready to run.
pub(crate) struct ExternalProgram {
    form: CommandForm,
    path: PathBuf,
    folder: PathBuf,
}

pub(super) fn builder(
    name: &str,
    description: String,
    form: &CommandForm,
    folder: &Path,
    faults: &mut FaultCollector,
) -> Option<ToolBuilder> {
    let program = Arc::new(ExternalProgram::new(form, folder, faults)?);
    let call = move |context: ToolContext| {
        let program = Arc::clone(&program);
        async move {
            let output = program.run(&context.arguments().to_string(), context.idempotency_key()).await?;
            program.read(&output)
        }
    };
    Some(Tool::new(name, description, call))
}

impl ExternalProgram {
    /// Checks a command and prepares its program. Faults are recorded relative to the table that contains `command`.
    pub(crate) fn new(form: &CommandForm, folder: &Path, faults: &mut FaultCollector) -> Option<Self> {
        let Some(first) = form.argv.first().filter(|first| !first.trim().is_empty()) else {
            faults.add(&["command", "argv"], "missing program");
            return None;
        };
        // A bare name is searched in PATH; a path is relative to the folder of the file.
        let has_slash = Path::new(first).components().count() > 1;
        let program = if has_slash { folder.join(first) } else { PathBuf::from(first) };
        if has_slash && !program.is_file() {
            let words = format!("program {first} not found, relative to the folder of this file");
            faults.add(&["command", "argv"], words);
        }
        let inside = form.folder.as_ref().map_or_else(|| folder.to_owned(), |inner| folder.join(inner));
        if !inside.is_dir() {
            let words = format!("folder {} not found", inside.display());
            faults.add(&["command", "folder"], words);
        }
        if form.output_bytes == 0 {
            let words = "must be positive: no output could be read";
            faults.add(&["command", "output_bytes"], words);
        }
        let path = std::path::absolute(&program).ok().filter(|_| has_slash).unwrap_or(program);
        Some(ExternalProgram { form: form.clone(), path, folder: inside })
    }

    /// Runs the program with this standard input, and returns its output.
    pub(crate) async fn run(&self, input: &str, key: &str) -> Result<String, ToolError> {
        let mut child = self.start(key)?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        // NOTE: The guard kills the program however this future ends: a timeout drops it.
        let mut child = RunningProgram::new(child);
        let feed_input = async {
            if let Some(mut stdin) = stdin {
                // NOTE: A program that does not read its input closes the pipe: that is not a failure.
                let _ = stdin.write_all(input.as_bytes()).await;
            }
            Ok::<(), ToolError>(())
        };
        let errors = async { Ok(read_start(stderr, ERROR_BYTES).await) };
        // NOTE: Too much output fails immediately: waiting for the end of the program could take forever.
        let ((), output, errors) =
            tokio::try_join!(feed_input, read_bounded(stdout, self.form.output_bytes), errors)?;
        let status = child.wait().await?;
        if !status.success() {
            return Err(ToolError::new(failure(status, &errors)));
        }
        // NOTE: Permanent, since the same program would write the same bytes again.
        String::from_utf8(output).map_err(|_| ToolError::permanent("invalid program output: expected UTF-8"))
    }

    /// Reads the output in the format of the file.
    pub(crate) fn read(&self, output: &str) -> Result<Value, ToolError> {
        read_output(self.form.output, output)
    }

    fn start(&self, key: &str) -> Result<Child, ToolError> {
        let mut command = Command::new(&self.path);
        // NOTE: No shell, and a cleared environment: arguments of a model must not become a command line, and variables may
        // hold keys (`docs/decisions/command.md`).
        command
            .args(&self.form.argv[1..])
            .current_dir(&self.folder)
            .env_clear()
            .env(IDEMPOTENCY_KEY_VARIABLE, key)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let names = self.form.environment.iter().map(String::as_str).chain(["PATH"]);
        command.envs(names.filter_map(|name| Some((name, crate::environment::variable(name)?))));
        // NOTE: A process group of its own can be killed with all its children, and Ctrl-C at the terminal does not
        // reach it.
        #[cfg(unix)]
        command.process_group(0);
        command.spawn().map_err(|error| {
            ToolError::permanent(format!("program {} could not be started: {error}", self.path.display()))
        })
    }
}

/// A running program: dropping it kills the program with all its child processes.
struct RunningProgram {
    child: Child,
    has_ended: bool,
}

impl RunningProgram {
    fn new(child: Child) -> Self {
        RunningProgram { child, has_ended: false }
    }

    async fn wait(&mut self) -> std::io::Result<ExitStatus> {
        let status = self.child.wait().await?;
        self.has_ended = true;
        Ok(status)
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        #[cfg(unix)]
        if let Some(group) =
            self.child.id().and_then(|id| rustix::process::Pid::from_raw(id.try_into().ok()?))
        {
            // A group that has ended already is not an error.
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = self.child.start_kill();
    }
}

/// Reads all of the output; an error if it is longer than `limit`.
async fn read_bounded(source: Option<impl AsyncRead + Unpin>, limit: usize) -> Result<Vec<u8>, ToolError> {
    let mut bytes = Vec::new();
    let Some(source) = source else { return Ok(bytes) };
    source.take(limit as u64 + 1).read_to_end(&mut bytes).await?;
    if bytes.len() > limit {
        let words = format!("program output too large: more than {limit} bytes; request less");
        return Err(ToolError::permanent(words));
    }
    Ok(bytes)
}

/// Reads the beginning of the output, and drops the rest.
async fn read_start(source: Option<impl AsyncRead + Unpin>, limit: usize) -> String {
    let mut bytes = Vec::new();
    if let Some(mut source) = source {
        // Unreadable output is left out of the message.
        let _ = (&mut source).take(limit as u64).read_to_end(&mut bytes).await;
        // NOTE: The rest is read as well: a full pipe would block the program.
        let _ = tokio::io::copy(&mut source, &mut tokio::io::sink()).await;
    }
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

fn failure(status: ExitStatus, errors: &str) -> String {
    match errors {
        "" => format!("the program failed ({status})"),
        errors => format!("the program failed ({status}): {errors}"),
    }
}
