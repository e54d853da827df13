//! A server as a child process: a process group of its own, few variables, and bounds on what it writes.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, ReadBuf};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::meter::ByteMeter;
use crate::repair::repaired;

/// The bytes at the end of standard error that are kept, for the message when the server fails.
const ERROR_BYTES: usize = 4 * 1024;

/// The bytes of the output that are read at once.
const CHUNK: usize = 8 * 1024;

/// The variables that a server inherits. No others: the environment of a program may hold keys.
const INHERITED: [&str; 9] =
    ["HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER", "SYSTEMROOT"];

/// The command of a server.
#[derive(Clone, Debug)]
pub(crate) struct ServerProgram {
    pub(crate) argv: Vec<OsString>,
    pub(crate) env: Vec<(OsString, OsString)>,
    pub(crate) folder: Option<PathBuf>,
}

/// The two ends of a server's standard input and output.
pub(crate) struct ServerPipes {
    pub(crate) stdout: MeteredLines<ChildStdout>,
    pub(crate) stdin: ChildStdin,
}

impl ServerProgram {
    /// Describes why the program was not started, with the remedy.
    pub(crate) fn refusal(&self, error: &io::Error) -> String {
        let program = self.argv.first().map(|program| program.to_string_lossy()).unwrap_or_default();
        match (error.kind(), &self.folder) {
            (io::ErrorKind::NotFound, Some(folder)) if !folder.is_dir() => {
                format!("folder {} not found", folder.display())
            }
            (io::ErrorKind::NotFound, _) if Path::new(program.as_ref()).components().count() > 1 => {
                format!("program {program} not found; install it, or correct its path")
            }
            (io::ErrorKind::NotFound, _) => {
                format!("program {program} not found in PATH; install it, or write its path")
            }
            _ => format!("program {program} could not be run: {error}"),
        }
    }

    /// Starts it.
    pub(crate) fn start(&self, meter: &Arc<ByteMeter>) -> io::Result<(ServerProcess, ServerPipes)> {
        let (program, arguments) =
            self.argv.split_first().ok_or_else(|| io::Error::other("the command names no program"))?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            // NOTE: A server is a program of others: the environment may hold keys of providers. See
            // docs/decisions/mcp.md.
            .env_clear()
            .envs(inherited())
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // NOTE: Ends the process if this function fails before `ServerProcess` owns it.
            .kill_on_drop(true);
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        // NOTE: A group of its own: it can be killed as a whole, and Ctrl-C in a terminal does not reach it.
        #[cfg(unix)]
        command.process_group(0);
        let mut child = command.spawn()?;
        let missing = || io::Error::other("it has no standard input and output");
        let (stdin, stdout) = child.stdin.take().zip(child.stdout.take()).ok_or_else(missing)?;
        let meter = Arc::clone(meter);
        let errors = Arc::new(StderrTail::default());
        if let Some(stderr) = child.stderr.take() {
            tokio::spawn(Arc::clone(&errors).fill(stderr));
        }
        let group = ProcessGroup::of(&child);
        let stdout = MeteredLines::new(stdout, Arc::clone(&meter), group);
        let process = ServerProcess { child, group, errors, meter };
        Ok((process, ServerPipes { stdout, stdin }))
    }
}

#[expect(clippy::disallowed_methods, reason = "a program is found by PATH, and most want a home")]
fn inherited() -> impl Iterator<Item = (&'static str, OsString)> {
    INHERITED.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?)))
}

/// The process group of a server: its process and all that it started.
#[derive(Clone, Copy, Debug)]
struct ProcessGroup {
    /// Read at the start: after the exit of the child its id is unknown, while other processes of its group may run.
    #[cfg(unix)]
    id: Option<rustix::process::Pid>,
}

impl ProcessGroup {
    #[cfg_attr(not(unix), expect(unused_variables, reason = "there are no process groups"))]
    fn of(child: &Child) -> Self {
        ProcessGroup {
            #[cfg(unix)]
            id: child.id().and_then(|id| rustix::process::Pid::from_raw(id.try_into().ok()?)),
        }
    }

    fn kill(self) {
        #[cfg(unix)]
        if let Some(id) = self.id {
            // NOTE: Fails if all of its processes have ended, which is fine.
            let _ = rustix::process::kill_process_group(id, rustix::process::Signal::KILL);
        }
    }
}

/// A running server. Dropping it ends its whole process group.
#[derive(Debug)]
pub(crate) struct ServerProcess {
    child: Child,
    group: ProcessGroup,
    errors: Arc<StderrTail>,
    meter: Arc<ByteMeter>,
}

impl ServerProcess {
    /// The id of the process, if it still runs.
    pub(crate) fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Waits for the exit of the process, at most this long.
    pub(crate) async fn wait(&mut self, timeout: Duration) {
        let _ = tokio::time::timeout(timeout, self.child.wait()).await;
    }

    /// Describes why the server is unusable: the limit that it exceeded, its exit status, and the end of its standard
    /// error.
    pub(crate) async fn failure_reason(&mut self) -> String {
        let broken = self.meter.broken();
        // NOTE: A process that closed its output usually exits at once. One that does not is unusable, and is killed.
        let status = tokio::time::timeout(Duration::from_millis(500), self.child.wait()).await;
        if status.is_err() {
            self.group.kill();
        }
        let ended = match (broken, status) {
            (Some(broken), _) => broken,
            (None, Ok(Ok(status))) => format!("the process ended ({status})"),
            (None, _) => "the process closed its standard output".to_owned(),
        };
        match self.errors.text().await {
            errors if errors.is_empty() => ended,
            errors => format!("{ended}; its standard error ends: {errors}"),
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.group.kill();
        let _ = self.child.start_kill();
    }
}

/// A stream of lines, each [repaired]. It fails at a line that is too long, and when the server sends too much.
#[derive(Debug)]
pub(crate) struct MeteredLines<R> {
    source: R,
    /// The bytes since the last line break.
    line: Vec<u8>,
    /// Whole lines that are not read yet, from `read` on.
    lines: Vec<u8>,
    read: usize,
    meter: Arc<ByteMeter>,
    group: ProcessGroup,
}

impl<R> MeteredLines<R> {
    fn new(source: R, meter: Arc<ByteMeter>, group: ProcessGroup) -> Self {
        MeteredLines { source, line: Vec::new(), lines: Vec::new(), read: 0, meter, group }
    }

    /// Adds received bytes.
    fn add(&mut self, bytes: &[u8]) -> io::Result<()> {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend(piece);
            let (limit, ends) = (self.meter.limit(), piece.ends_with(b"\n"));
            if self.line.len() - usize::from(ends) > limit {
                let reason = format!("it sent a message of more than {limit} bytes and was ended");
                // NOTE: The SDK would drop such a line and wait, so that the call hangs until its timeout.
                return Err(self.stop(reason));
            }
            if ends {
                self.end_line();
            }
        }
        self.meter.count(bytes.len()).map_err(|reason| self.stop(format!("{reason} and was ended")))
    }

    fn end_line(&mut self) {
        match self.line.strip_suffix(b"\n").and_then(repaired) {
            Some(repaired) => self.lines.extend(repaired.iter().chain(b"\n")),
            None => self.lines.extend(&self.line),
        }
        self.line.clear();
    }

    /// Kills the server, whose output is no longer read.
    fn stop(&self, reason: String) -> io::Error {
        self.group.kill();
        io::Error::other(self.meter.mark_broken(reason))
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for MeteredLines<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.read == self.lines.len() {
            self.lines.clear();
            self.read = 0;
            let mut bytes = [0; CHUNK];
            let mut chunk = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut self.source).poll_read(context, &mut chunk))?;
            if chunk.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            self.add(chunk.filled())?;
        }
        let length = buffer.remaining().min(self.lines.len() - self.read);
        buffer.put_slice(&self.lines[self.read..self.read + length]);
        self.read += length;
        Poll::Ready(Ok(()))
    }
}

/// The end of what a server writes to its standard error.
#[derive(Debug, Default)]
struct StderrTail {
    bytes: Mutex<VecDeque<u8>>,
    /// Locked until the stream ends.
    open: tokio::sync::Mutex<()>,
}

impl StderrTail {
    async fn fill(self: Arc<Self>, mut source: impl AsyncRead + Unpin) {
        // NOTE: `text` waits for this lock, and so for the end of the stream.
        let _open = self.open.lock().await;
        let mut buffer = [0; 1024];
        // NOTE: A read error only shortens the message.
        while let Ok(read @ 1..) = source.read(&mut buffer).await {
            let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
            bytes.extend(&buffer[..read]);
            let excess = bytes.len().saturating_sub(ERROR_BYTES);
            bytes.drain(..excess);
        }
    }

    /// Returns the text at the end of the stream, or after a short timeout.
    async fn text(&self) -> String {
        let _ = tokio::time::timeout(Duration::from_millis(200), self.open.lock()).await;
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(bytes.make_contiguous()).trim().to_owned()
    }
}
