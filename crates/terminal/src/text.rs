//! Styled text. Everything is escaped when it is added, so that no text can contain escape sequences for the terminal.

use std::fmt::Write as _;
use std::ops::Range;

use anstyle::{AnsiColor, Effects, Style};
use stepfold_state_core::escape_invisible;
use textwrap::WordSeparator;
use textwrap::core::{Word, display_width};
use textwrap::wrap_algorithms::wrap_first_fit;

/// The style of a piece of text: attributes and the 16 colors of the terminal's own theme, which fit a light background
/// and a dark one.
///
/// # Examples
/// ```
/// use stepfold_terminal::{TextStyle, StyledText};
///
/// let text = StyledText::from("paid ").with(TextStyle::STRONG, "5 euro");
/// assert_eq!(text.to_ansi(), "paid \u{1b}[1m5 euro\u{1b}[0m");
/// assert_eq!(text.to_plain(), "paid 5 euro");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
// NOTE: The 16 colors are those of the reader's own theme; a sign repeats each meaning (`docs/decisions/facade.md`).
pub struct TextStyle(Style);

impl TextStyle {
    /// Text without style.
    pub const PLAIN: TextStyle = TextStyle(Style::new());
    /// Bold text.
    pub const STRONG: TextStyle = TextStyle(Style::new().bold());
    /// Dimmed text, for secondary information.
    pub const DIM: TextStyle = TextStyle(Style::new().dimmed());
    /// Messages of the user.
    pub const USER: TextStyle = TextStyle(AnsiColor::Cyan.on_default().effects(Effects::BOLD));
    /// The sign of an assistant's answer, and of success.
    pub const GOOD: TextStyle = TextStyle(AnsiColor::Green.on_default());
    /// Failures.
    pub const BAD: TextStyle = TextStyle(AnsiColor::Red.on_default().effects(Effects::BOLD));
    /// Requests that wait for a decision.
    pub const ASK: TextStyle = TextStyle(AnsiColor::Magenta.on_default().effects(Effects::BOLD));
    /// A key of the state.
    pub const KEY: TextStyle = TextStyle(AnsiColor::Blue.on_default());
    /// Code.
    pub const CODE: TextStyle = TextStyle(AnsiColor::Cyan.on_default());

    /// Adds bold.
    #[must_use]
    pub const fn bold(self) -> Self {
        TextStyle(self.0.bold())
    }

    /// Adds italics.
    #[must_use]
    pub const fn italic(self) -> Self {
        TextStyle(self.0.italic())
    }

    /// Adds an underline.
    #[must_use]
    pub const fn underline(self) -> Self {
        TextStyle(self.0.underline())
    }

    /// Adds a strikethrough.
    #[must_use]
    pub const fn strike(self) -> Self {
        TextStyle(self.0.strikethrough())
    }
}

/// Text in pieces, each with its [`TextStyle`]. Control characters and characters that reorder a line are escaped when
/// they are added.
///
/// # Examples
/// ```
/// use stepfold_terminal::StyledText;
///
/// assert_eq!(StyledText::from("rm \u{1b}[8m-rf").to_plain(), "rm \\u001b[8m-rf");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StyledText {
    text: String,
    /// The end of each piece, and its style.
    pieces: Vec<(usize, TextStyle)>,
}

impl StyledText {
    /// Creates a text in one style.
    pub fn new(look: TextStyle, text: impl AsRef<str>) -> Self {
        StyledText::default().with(look, text)
    }

    /// Appends text.
    #[must_use]
    pub fn and(self, text: impl AsRef<str>) -> Self {
        self.with(TextStyle::PLAIN, text)
    }

    /// Appends text in a style.
    #[must_use]
    pub fn with(mut self, look: TextStyle, text: impl AsRef<str>) -> Self {
        self.push(look, text.as_ref());
        self
    }

    /// Appends text in a style.
    pub fn push(&mut self, look: TextStyle, text: &str) {
        self.push_escaped(look, &escape_invisible(text));
    }

    fn push_escaped(&mut self, look: TextStyle, text: &str) {
        if text.is_empty() {
            return;
        }
        self.text.push_str(text);
        match self.pieces.last_mut() {
            Some((end, last)) if *last == look => *end = self.text.len(),
            _ => self.pieces.push((self.text.len(), look)),
        }
    }

    /// Appends another text.
    pub fn append(&mut self, other: &StyledText) {
        for (look, piece) in other.pieces() {
            self.push_escaped(look, piece);
        }
    }

    /// Whether there is no text.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// The number of columns that the text takes in one line.
    pub fn width(&self) -> usize {
        display_width(&self.text)
    }

    /// The text without styles.
    pub fn to_plain(&self) -> String {
        self.text.clone()
    }

    /// The text with the ANSI escape sequences of its styles.
    pub fn to_ansi(&self) -> String {
        self.pieces().fold(String::new(), |mut ansi, (TextStyle(style), piece)| {
            // Writing to a string cannot fail.
            let _ = write!(ansi, "{style}{piece}{style:#}");
            ansi
        })
    }

    /// Wraps the lines between words, at `width` columns. In the first line `used` columns are taken already; lines after a
    /// wrap begin with `indent` spaces. A word that is longer than a line is split.
    #[must_use]
    pub fn wrapped(&self, width: usize, used: usize, indent: usize) -> Self {
        let mut wrapped = StyledText::default();
        let (mut begin, mut used) = (0, used);
        for line in self.text.split('\n') {
            if begin > 0 {
                wrapped.push_escaped(TextStyle::PLAIN, "\n");
            }
            self.wrap_line(begin..begin + line.len(), width, used, indent, &mut wrapped);
            begin += line.len() + 1;
            used = 0;
        }
        wrapped
    }

    fn wrap_line(&self, line: Range<usize>, width: usize, used: usize, indent: usize, to: &mut StyledText) {
        let text = &self.text[line];
        let at = |part: &str| part.as_ptr().addr() - self.text.as_ptr().addr();
        let (first, rest) = (width.saturating_sub(used).max(1), width.saturating_sub(indent).max(1));
        let words = WordSeparator::AsciiSpace.find_words(text);
        // NOTE: A word must fit in the first line as well, unless that is nearly full.
        let words: Vec<Word<'_>> = words.flat_map(|word| split(word, rest.min(first.max(8)))).collect();
        // NOTE: First fit, not an optimal one: more text must not move words of a line that is shown already.
        #[expect(clippy::cast_precision_loss, reason = "a terminal has fewer columns than 2^52")]
        let lines = wrap_first_fit(&words, &[first as f64, rest as f64]);
        for (number, words) in lines.iter().enumerate() {
            if number > 0 {
                to.push_escaped(TextStyle::PLAIN, &format!("\n{}", " ".repeat(indent)));
            }
            if let (Some(begin), Some(end)) = (words.first(), words.last()) {
                to.append(&self.slice(at(begin.word)..at(end.word) + end.word.len()));
            }
        }
    }

    /// A part of the text, by bytes.
    #[must_use]
    pub(crate) fn slice(&self, range: Range<usize>) -> Self {
        let (mut slice, mut begin) = (StyledText::default(), 0);
        for (end, look) in &self.pieces {
            let (from, to) = (begin.max(range.start), (*end).min(range.end));
            if from < to {
                slice.push_escaped(*look, &self.text[from..to]);
            }
            begin = *end;
        }
        slice
    }

    pub(crate) fn len(&self) -> usize {
        self.text.len()
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    fn pieces(&self) -> impl Iterator<Item = (TextStyle, &str)> {
        let mut begin = 0;
        self.pieces.iter().map(move |(end, look)| {
            let piece = &self.text[begin..*end];
            begin = *end;
            (*look, piece)
        })
    }
}

/// Splits a word that does not fit in a line.
fn split(word: Word<'_>, width: usize) -> Vec<Word<'_>> {
    if display_width(&word) <= width { vec![word] } else { word.break_apart(width).collect() }
}

impl From<&str> for StyledText {
    fn from(text: &str) -> Self {
        StyledText::new(TextStyle::PLAIN, text)
    }
}

impl From<String> for StyledText {
    fn from(text: String) -> Self {
        StyledText::from(text.as_str())
    }
}

impl From<&String> for StyledText {
    fn from(text: &String) -> Self {
        StyledText::from(text.as_str())
    }
}
