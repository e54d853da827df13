//! Writes all text of the command. The output of models, tools and files may contain escape sequences, such as `ESC[8m`,
//! which hides the rest: a [`Text`] is escaped when it is created, and everything else is escaped here.

use std::io::{self, IsTerminal as _, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use stepfold::state_core::escape_invisible;
pub(crate) use stepfold::terminal::StyledText;
use stepfold::terminal::{DisplayForm, TextStyle, stderr_form};

pub(crate) const DIM: TextStyle = TextStyle::DIM;
pub(crate) const NAME: TextStyle = TextStyle::STRONG;

/// The indentation of lines after a wrap.
const INDENT: usize = 4;

/// Whether calls are shown in full.
static IS_VERBOSE: AtomicBool = AtomicBool::new(false);

/// The failure of standard output, if it failed. Then nothing more is written to it, and the command continues.
static OUTPUT_FAILURE: OnceLock<io::Error> = OnceLock::new();

/// Sets for the process whether calls are shown in full.
pub(crate) fn choose_verbose(is_verbose: bool) {
    IS_VERBOSE.store(is_verbose, Ordering::Relaxed);
}

/// Whether calls are shown in full.
pub(crate) fn is_verbose() -> bool {
    IS_VERBOSE.load(Ordering::Relaxed)
}

/// Whether standard error is a terminal, so that a person reads the progress.
pub(crate) fn is_at_terminal() -> bool {
    stderr_form().is_terminal()
}

/// Text in a style.
pub(crate) fn styled(look: TextStyle, text: impl AsRef<str>) -> StyledText {
    StyledText::new(look, text)
}

fn write(text: &StyledText, out: &mut impl Write, end: &str) -> io::Result<()> {
    write!(out, "{}{end}", text.to_ansi())?;
    out.flush()
}

/// Prints a line on standard output.
pub(crate) fn line(text: impl Into<StyledText>) {
    to_output(|| write(&text.into(), &mut anstream::stdout().lock(), "\n"));
}

/// Prints a text on standard output; the text ends its last line itself.
pub(crate) fn print(text: impl Into<StyledText>) {
    to_output(|| write(&text.into(), &mut anstream::stdout().lock(), ""));
}

/// Prints more of a reply on standard output immediately: escaped at a terminal, byte for byte to a program or a file.
pub(crate) fn reply(text: &str) {
    // NOTE: Programs get the exact bytes of the reply; only a terminal interprets escape sequences.
    if io::stdout().is_terminal() {
        return print(text);
    }
    to_output(|| {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    });
}

/// Standard output for a text of any length: each line is printed when it is whole.
#[derive(Debug, Default)]
pub(crate) struct OutputLines(Vec<u8>);

impl Write for OutputLines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.0.extend_from_slice(part);
            if part.ends_with(b"\n") {
                print(&*String::from_utf8_lossy(&self.0));
                self.0.clear();
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn to_output(write: impl FnOnce() -> io::Result<()>) {
    if OUTPUT_FAILURE.get().is_none()
        && let Err(error) = write()
    {
        // NOTE: Only the first failure is kept: it has the cause.
        let _ = OUTPUT_FAILURE.set(error);
    }
}

/// Flushes standard output. Returns its failure, such as a full disk. A closed pipe is not one: `head` has read what it
/// wanted.
pub(crate) fn end_of_output() -> Option<&'static io::Error> {
    to_output(|| io::stdout().flush());
    OUTPUT_FAILURE.get().filter(|error| error.kind() != io::ErrorKind::BrokenPipe)
}

/// Prints a line on standard error.
pub(crate) fn note(text: impl Into<StyledText>) {
    // A failure of standard error has no place to be reported.
    let text = text.into();
    let text = match stderr_form() {
        DisplayForm::Terminal { width } => text.wrapped(width, 0, INDENT),
        DisplayForm::Log => text,
    };
    let _ = write(&text, &mut anstream::stderr().lock(), "\n");
}

/// Prints a text on standard error without wrapping, which would drop spaces.
pub(crate) fn note_exactly(text: &StyledText) {
    // A reader that has closed standard error is not a failure.
    let _ = write(text, &mut anstream::stderr().lock(), "\n");
}

/// Prints a dimmed line on standard error.
pub(crate) fn aside(text: &str) {
    note(styled(DIM, text));
}

/// A text with parts of files, of models or of users, in one line: a build server takes what stands at the beginning of a line as a command.
pub(crate) fn in_one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for letter in text.chars() {
        match matches!(letter, '\n' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}') {
            true => line.extend(letter.escape_default()),
            false => line.push(letter),
        }
    }
    line
}

/// Prints a text with parts of files as one line on standard error.
pub(crate) fn note_line(text: &str) {
    note(in_one_line(text));
}

/// Prints such a text as one line on standard output.
pub(crate) fn single_line(text: &str) {
    line(in_one_line(text));
}

/// Prints an error or a warning on standard error.
pub(crate) fn bad(what: &str, text: &str) {
    note(styled(TextStyle::BAD, what).and(format!(": {text}")));
}

/// Replaces the line of the cursor, on standard error.
pub(crate) fn on_this_line(text: &str) {
    stepfold::terminal::on_this_line(&mut anstream::stderr().lock(), &styled(DIM, text));
}

/// Standard error for traces: the subscriber escapes control characters, this writer the invisible ones.
#[derive(Debug)]
pub(crate) struct TraceWriter;

impl Write for TraceWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        // NOTE: The only escape sequences are colours of the subscriber: they are kept.
        let parts: Vec<_> = text.split('\x1b').map(escape_invisible).collect();
        io::stderr().lock().write_all(parts.join("\x1b").as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().lock().flush()
    }
}
