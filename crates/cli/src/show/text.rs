//! The one place where text is written. Models, tools and files may say things that a terminal obeys (`ESC[8m` hides
//! what follows): whatever is shown is escaped here, and styles are put around it afterwards.

use std::io::{self, IsTerminal as _, Write};
use std::sync::OnceLock;

use anstyle::{AnsiColor, Style};
use stepfold::state_core::escape_invisible;

pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();
pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const NAME: Style = Style::new().bold();

/// How standard output failed, if it did. Nothing more is written to it then; what is done is done all the same.
static OUTPUT_FAILURE: OnceLock<io::Error> = OnceLock::new();

/// Text to be shown, each part in its style. What is in it is escaped when it is written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Text(Vec<(Style, String)>);

impl Text {
    /// Appends text.
    pub(crate) fn and(self, text: impl Into<String>) -> Self {
        self.with(Style::new(), text)
    }

    /// Appends text in a style.
    pub(crate) fn with(mut self, style: Style, text: impl Into<String>) -> Self {
        self.0.push((style, text.into()));
        self
    }

    /// Writes the text and this end of it.
    fn write(&self, out: &mut impl Write, end: &str) -> io::Result<()> {
        for (style, text) in &self.0 {
            write!(out, "{style}{}{style:#}", escape_invisible(text))?;
        }
        write!(out, "{end}")?;
        out.flush()
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Text::default().and(text)
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Text::default().and(text)
    }
}

impl From<&String> for Text {
    fn from(text: &String) -> Self {
        Text::from(text.as_str())
    }
}

/// Text in a style.
pub(crate) fn styled(style: Style, text: impl Into<String>) -> Text {
    Text::default().with(style, text)
}

/// A line on standard output.
pub(crate) fn line(text: impl Into<Text>) {
    to_output(|| text.into().write(&mut anstream::stdout().lock(), "\n"));
}

/// A text on standard output that ends its last line itself.
pub(crate) fn print(text: impl Into<Text>) {
    to_output(|| text.into().write(&mut anstream::stdout().lock(), ""));
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
    // When nobody can be told, there is nobody to tell.
    let _ = text.into().write(&mut anstream::stderr().lock(), "\n");
}

/// A line on standard error that is not in the foreground.
pub(crate) fn aside(text: &str) {
    note(styled(DIM, text));
}

/// A line on standard error that says what is wrong.
pub(crate) fn bad(what: &str, text: &str) {
    note(styled(BAD, what).and(format!(": {text}")));
}

/// Shows a text in place of the line that the cursor is in, on standard error.
pub(crate) fn on_this_line(text: &str) {
    let mut terminal = anstream::stderr().lock();
    // When nobody can be told, there is nobody to tell.
    let _ = write!(terminal, "\r{}\x1b[K", escape_invisible(text)).and_then(|()| terminal.flush());
}

/// Standard error for traces, which escape what they are given, but for invisible characters.
#[derive(Debug)]
pub(crate) struct Traces;

impl Write for Traces {
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
