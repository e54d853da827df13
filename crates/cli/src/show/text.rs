//! The one place where text is written. Models, tools and files may say things that a terminal obeys (`ESC[8m` hides
//! what follows): a [`Text`] is escaped when it is made, and what is not text is escaped here.

use std::io::{self, IsTerminal as _, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use stepfold::state_core::escape_invisible;
pub(crate) use stepfold::terminal::Text;
use stepfold::terminal::{Form, Look, stderr_form};

pub(crate) const DIM: Look = Look::DIM;
pub(crate) const NAME: Look = Look::STRONG;

/// The columns that lines after a wrap are moved in.
const INDENT: usize = 4;

/// Whether calls are shown in full.
static IS_VERBOSE: AtomicBool = AtomicBool::new(false);

/// How standard output failed, if it did. Nothing more is written to it then; the work itself continues.
static OUTPUT_FAILURE: OnceLock<io::Error> = OnceLock::new();

/// Makes it the choice of the process whether calls are shown in full.
pub(crate) fn choose_verbose(is_verbose: bool) {
    IS_VERBOSE.store(is_verbose, Ordering::Relaxed);
}

/// Whether calls are shown in full.
pub(crate) fn is_verbose() -> bool {
    IS_VERBOSE.load(Ordering::Relaxed)
}

/// Whether standard error is a terminal, where a person reads what is told beside the reply.
pub(crate) fn is_at_terminal() -> bool {
    stderr_form().is_terminal()
}

/// Text in a look.
pub(crate) fn styled(look: Look, text: impl AsRef<str>) -> Text {
    Text::new(look, text)
}

fn write(text: &Text, out: &mut impl Write, end: &str) -> io::Result<()> {
    write!(out, "{}{end}", text.to_ansi())?;
    out.flush()
}

/// A line on standard output.
pub(crate) fn line(text: impl Into<Text>) {
    to_output(|| write(&text.into(), &mut anstream::stdout().lock(), "\n"));
}

/// A text on standard output that ends its last line itself.
pub(crate) fn print(text: impl Into<Text>) {
    to_output(|| write(&text.into(), &mut anstream::stdout().lock(), ""));
}

/// More of a reply on standard output, at once: to a program or a file byte for byte, to a terminal escaped.
pub(crate) fn reply(text: &str) {
    if io::stdout().is_terminal() {
        return print(text);
    }
    to_output(|| {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    });
}

fn to_output(write: impl FnOnce() -> io::Result<()>) {
    if OUTPUT_FAILURE.get().is_none()
        && let Err(error) = write()
    {
        // The first one says why.
        let _ = OUTPUT_FAILURE.set(error);
    }
}

/// Writes the rest of standard output. Why something of it could not be written, as on a full disk; a reader that has
/// closed it, as `head` does, has seen what it wanted.
pub(crate) fn end_of_output() -> Option<&'static io::Error> {
    to_output(|| io::stdout().flush());
    OUTPUT_FAILURE.get().filter(|error| error.kind() != io::ErrorKind::BrokenPipe)
}

/// A line on standard error.
pub(crate) fn note(text: impl Into<Text>) {
    // An error that cannot be printed is dropped.
    let text = text.into();
    let text = match stderr_form() {
        Form::Terminal { width } => text.wrapped(width, 0, INDENT),
        Form::Log => text,
    };
    let _ = write(&text, &mut anstream::stderr().lock(), "\n");
}

/// A text on standard error as it is: not wrapped, which would drop spaces.
pub(crate) fn note_exactly(text: &Text) {
    // A reader that is gone is not a failure.
    let _ = write(text, &mut anstream::stderr().lock(), "\n");
}

/// A line on standard error that is not in the foreground.
pub(crate) fn aside(text: &str) {
    note(styled(DIM, text));
}

/// A line on standard error that says what is wrong.
pub(crate) fn bad(what: &str, text: &str) {
    note(styled(Look::BAD, what).and(format!(": {text}")));
}

/// Shows a text in place of the line that the cursor is in, on standard error.
pub(crate) fn on_this_line(text: &str) {
    stepfold::terminal::on_this_line(&mut anstream::stderr().lock(), &styled(DIM, text));
}

/// Standard error for traces, which escape what they are given, but for invisible characters.
#[derive(Debug)]
pub(crate) struct TraceWriter;

impl Write for TraceWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        // The only escape sequences in it are colours of the traces' own.
        let parts: Vec<_> = text.split('\x1b').map(escape_invisible).collect();
        io::stderr().lock().write_all(parts.join("\x1b").as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().lock().flush()
    }
}
