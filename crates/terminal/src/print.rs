//! The thin layer around the view: writes text, measures the terminal, and reads the clock.

use std::fmt;
use std::io::{self, IsTerminal as _, Write};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use stepfold_agent_loop::{Exit, Outcome, RunEvent};
use stepfold_runner::{Invocation, InvocationEvent, RunnerError};
use stepfold_state_core::state::State;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::form::DisplayForm;
use crate::markdown::Markdown;
use crate::text::{StyledText, TextStyle};
use crate::view::{RunView, ViewItem};

/// The interval between two frames of the spinner.
const SPINNER_INTERVAL: Duration = Duration::from_millis(120);

/// The columns of a terminal whose width is unknown.
const COLUMNS: usize = 80;

/// The maximum columns: longer lines of prose and calls are hard to read.
const WIDEST: usize = 120;

/// When to show colors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Color {
    /// At a terminal, unless `NO_COLOR` is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl Color {
    /// Makes this the choice of the process.
    pub fn choose(self) {
        let choice = match self {
            Color::Auto => anstream::ColorChoice::Auto,
            Color::Always => anstream::ColorChoice::Always,
            Color::Never => anstream::ColorChoice::Never,
        };
        choice.write_global();
    }
}

/// The form of standard output: that of a terminal if it is one.
pub fn stdout_form() -> DisplayForm {
    form(io::stdout().is_terminal(), terminal_size::terminal_size_of(io::stdout()))
}

/// The form of standard error: that of a terminal if it is one.
pub fn stderr_form() -> DisplayForm {
    form(io::stderr().is_terminal(), terminal_size::terminal_size_of(io::stderr()))
}

fn form(is_terminal: bool, size: Option<(terminal_size::Width, terminal_size::Height)>) -> DisplayForm {
    let columns = size.map(|(width, _)| usize::from(width.0)).filter(|columns| *columns > 0);
    match is_terminal {
        false => DisplayForm::Log,
        // NOTE: The last column stays free: some terminals wrap when it is written.
        true => DisplayForm::Terminal { width: columns.unwrap_or(COLUMNS).saturating_sub(1).min(WIDEST) },
    }
}

/// Shows runs on standard output.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use stepfold_agent_loop::Agent;
/// use stepfold_providers::Scripted;
/// use stepfold_runner::Runner;
/// use stepfold_session_scopes::MemoryStore;
/// use stepfold_terminal::Printer;
///
/// let agent = Agent::builder(Scripted::conversation("assistant: It is **open**.")?).build()?;
/// let session = Runner::builder(agent, MemoryStore::new()).build().session("ada", "monday").await?;
/// let outcome = Printer::new().follow(&session.send("is it open?").await?).await?;
/// assert_eq!(outcome.text(), "It is **open**.");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own about what was printed")]
pub struct Printer {
    view: RunView,
    name: String,
    reply: Option<Markdown>,
    is_in_log_reply: bool,
    to: PrinterOutput,
    /// Whether nothing was shown yet.
    is_first: bool,
    has_live: bool,
    is_live: bool,
    began: Instant,
    /// A counted time instead of the clock, for reproducible recordings.
    steady: Option<(Duration, Duration)>,
}

impl Default for Printer {
    fn default() -> Self {
        Printer::new()
    }
}

impl Printer {
    /// Shows runs in the form that standard output asks for.
    pub fn new() -> Self {
        Printer::in_form(stdout_form()).with_live_line(io::stdout().is_terminal())
    }

    /// Shows runs in this form on standard output, without a live line.
    pub fn in_form(form: DisplayForm) -> Self {
        Printer::on(form, PrinterOutput::Stdout)
    }

    /// Shows runs in this form on a writer: in the form of a terminal with colors and a live line.
    ///
    /// # Examples
    /// ```
    /// use stepfold_terminal::{DisplayForm, Printer};
    ///
    /// let mut printer = Printer::to_writer(DisplayForm::Log, std::io::stderr());
    /// printer.line("ready");
    /// ```
    pub fn to_writer(form: DisplayForm, writer: impl Write + Send + 'static) -> Self {
        Printer::on(form, PrinterOutput::Writer(Box::new(writer))).with_live_line(form.is_terminal())
    }

    fn on(form: DisplayForm, to: PrinterOutput) -> Self {
        Printer {
            view: RunView::new(form),
            name: "assistant".to_owned(),
            reply: None,
            is_in_log_reply: false,
            to,
            is_first: true,
            has_live: false,
            is_live: false,
            began: Instant::now(),
            steady: None,
        }
    }

    fn with_live_line(mut self, has_live: bool) -> Self {
        self.has_live = has_live;
        self
    }

    /// The name of the assistant, which stands before its answers in a log.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// With calls and results in full.
    #[must_use]
    pub fn verbose(mut self, is_verbose: bool) -> Self {
        self.view = self.view.verbose(is_verbose);
        self
    }

    /// Advances the time by this much for each event, instead of reading the clock: for reproducible recordings.
    #[must_use]
    pub fn steady(mut self, tick: Duration) -> Self {
        self.steady = Some((tick, Duration::ZERO));
        self
    }

    /// The form of the output.
    pub fn form(&self) -> DisplayForm {
        self.view.form()
    }

    /// Sets the state that changes of the next run are compared with.
    pub fn set_state(&mut self, state: Option<State>) {
        self.view.set_state(state);
    }

    /// Shows a line, wrapped.
    pub fn line(&mut self, text: impl Into<StyledText>) {
        self.end_reply();
        let text = text.into();
        let text = match self.form() {
            DisplayForm::Log => text,
            DisplayForm::Terminal { width } => text.wrapped(width, 0, hang(text.as_str())),
        };
        self.write(&text, "\n");
    }

    /// Shows a dimmed line.
    pub fn aside(&mut self, text: &str) {
        self.line(StyledText::new(TextStyle::DIM, text));
    }

    /// Shows a message of the user.
    pub fn user(&mut self, text: &str) {
        let above = StyledText::from(if self.is_first { "" } else { "\n" });
        match self.form() {
            DisplayForm::Log => self.line(above.and(format!("you: {text}"))),
            DisplayForm::Terminal { .. } => {
                self.line(above.with(TextStyle::USER, "❯ ").with(TextStyle::STRONG, text));
            }
        }
    }

    /// Shows an invocation until it ends, and returns its outcome.
    ///
    /// # Errors
    /// When the run fails.
    pub async fn follow(&mut self, invocation: &Invocation) -> Result<Arc<Outcome>, RunnerError> {
        self.follow_with(invocation, async |_, _| ()).await
    }

    /// Shows an invocation until it ends, and returns its outcome. Each event is passed to the function after it was
    /// shown; the function may use the printer.
    ///
    /// # Errors
    /// When the run fails.
    pub async fn follow_with(
        &mut self,
        invocation: &Invocation,
        mut each: impl AsyncFnMut(&mut Printer, &RunEvent),
    ) -> Result<Arc<Outcome>, RunnerError> {
        // NOTE: From the first event: a fast run may have started already.
        let mut events = invocation.subscribe(0);
        let mut turns = interval(SPINNER_INTERVAL);
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                // NOTE: Events first: a frame that is drawn before a waiting event would be erased immediately.
                biased;
                seen = events.next() => match seen {
                    Some(seen) => {
                        self.see(&seen);
                        if let InvocationEvent::Event { event, .. } = &seen {
                            each(self, event).await;
                        }
                    }
                    None => break,
                },
                _ = turns.tick(), if self.has_live => self.turn(),
            }
        }
        let rest = self.view.end();
        self.show(rest);
        self.end_reply();
        let outcome = match invocation.outcome().await {
            Ok(outcome) => outcome,
            Err(error) => {
                self.line(StyledText::new(TextStyle::BAD, "  ✗ ").and(error.to_string()));
                return Err(error);
            }
        };
        let unknown = self.view.unknown(&outcome.unknown_calls());
        self.show(unknown.into_iter().map(ViewItem::Line).collect());
        if !matches!(outcome.exit(), Exit::Text | Exit::Output | Exit::End) {
            self.aside(&format!("  ({})", outcome.exit()));
        }
        Ok(outcome)
    }

    fn see(&mut self, seen: &InvocationEvent) {
        let shown = match seen {
            InvocationEvent::Event { event, .. } => {
                let now = self.now();
                self.view.see(event, now)
            }
            InvocationEvent::Missed { events } => {
                vec![ViewItem::Line(StyledText::new(
                    TextStyle::DIM,
                    format!("  ({events} events went by unseen)"),
                ))]
            }
            _ => Vec::new(),
        };
        self.show(shown);
    }

    fn show(&mut self, shown: Vec<ViewItem>) {
        for shown in shown {
            match shown {
                ViewItem::Reply(text) => self.reply(&text),
                ViewItem::ReplyEnd => self.end_reply(),
                ViewItem::Line(line) => {
                    self.end_reply();
                    self.write(&line, "\n");
                }
            }
        }
    }

    fn now(&mut self) -> Duration {
        match &mut self.steady {
            Some((tick, now)) => {
                *now += *tick;
                *now
            }
            None => self.began.elapsed(),
        }
    }

    fn turn(&mut self) {
        let now = self.began.elapsed();
        // NOTE: Frames depend on the clock, so a reproducible recording has none.
        if let Some(line) = self.view.live(now).filter(|_| self.steady.is_none()) {
            self.is_live = true;
            self.to.on_this_line(&line);
        }
    }

    /// Shows more of an answer: Markdown as it comes at a terminal, text after the assistant's name in a log. The next line
    /// ends it.
    ///
    /// # Examples
    /// ```
    /// use stepfold_terminal::{DisplayForm, Printer};
    ///
    /// let mut printer = Printer::to_writer(DisplayForm::Log, std::io::stderr()).name("writer");
    /// printer.reply("It is ");
    /// printer.reply("**open**.");
    /// printer.end_reply();
    /// ```
    pub fn reply(&mut self, text: &str) {
        self.end_live();
        match self.form() {
            DisplayForm::Log => {
                if !std::mem::replace(&mut self.is_in_log_reply, true) {
                    self.write(&StyledText::from(format!("{}: ", self.name)), "");
                }
                self.write(&StyledText::from(text), "");
            }
            DisplayForm::Terminal { width } => {
                let reply = self
                    .reply
                    .get_or_insert_with(|| Markdown::new(width, StyledText::new(TextStyle::GOOD, "● ")));
                let shown = reply.push(text);
                self.write(&shown, "");
            }
        }
    }

    /// Ends the current answer, if there is one.
    pub fn end_reply(&mut self) {
        self.end_live();
        if let Some(mut reply) = self.reply.take() {
            self.write(&reply.end(), "");
        }
        if std::mem::take(&mut self.is_in_log_reply) {
            self.write(&StyledText::from("\n"), "");
        }
    }

    fn write(&mut self, text: &StyledText, end: &str) {
        self.is_first = false;
        let form = self.form();
        self.to.write(text, end, form);
    }

    fn end_live(&mut self) {
        if std::mem::take(&mut self.is_live) {
            self.to.on_this_line(&StyledText::default());
        }
    }
}

/// The indentation of lines after a wrap: that of the first line, its sign included.
fn hang(text: &str) -> usize {
    let line = text.trim_start_matches('\n');
    let mut signs = line.chars();
    match (signs.next(), signs.next()) {
        (Some(sign), Some(' ')) if !sign.is_alphanumeric() && sign != ' ' => 2,
        _ => line.len() - line.trim_start_matches(' ').len(),
    }
}

/// Replaces the line of the cursor with a text.
pub fn on_this_line(terminal: &mut impl Write, text: &StyledText) {
    // NOTE: The cursor moves even where colors are left out. A closed terminal is not a failure.
    let _ = write!(terminal, "\r{}\x1b[K", text.to_ansi()).and_then(|()| terminal.flush());
}

/// The destination of a printer.
enum PrinterOutput {
    Stdout,
    Writer(Box<dyn Write + Send>),
}

impl PrinterOutput {
    fn write(&mut self, text: &StyledText, end: &str, form: DisplayForm) {
        // A reader that has closed the output is not a failure.
        let _ = match (self, form) {
            // NOTE: anstream drops the colors that standard output does not show; a writer gets those of its form.
            (PrinterOutput::Stdout, _) => {
                let mut out = anstream::stdout().lock();
                write!(out, "{}{end}", text.to_ansi()).and_then(|()| out.flush())
            }
            (PrinterOutput::Writer(out), DisplayForm::Log) => {
                write!(out, "{}{end}", text.to_plain()).and_then(|()| out.flush())
            }
            (PrinterOutput::Writer(out), DisplayForm::Terminal { .. }) => {
                write!(out, "{}{end}", text.to_ansi()).and_then(|()| out.flush())
            }
        };
    }

    fn on_this_line(&mut self, text: &StyledText) {
        match self {
            PrinterOutput::Stdout => on_this_line(&mut anstream::stdout().lock(), text),
            PrinterOutput::Writer(out) => on_this_line(out, text),
        }
    }
}

impl fmt::Debug for PrinterOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PrinterOutput::Stdout => "Stdout",
            PrinterOutput::Writer(_) => "Writer",
        })
    }
}
