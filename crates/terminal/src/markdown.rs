//! Renders the Markdown of an answer while it is streamed.
//!
//! Each source line is laid out by itself, and line breaks stay as the model wrote them. Of an incomplete line only the
//! words are shown that no further text can change: an open `**` holds its words back until it is closed or the line
//! ends. So shown text never changes, and the result does not depend on the pieces of the stream.

use std::mem::discriminant;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::text::{StyledText, TextStyle};

/// The columns before each line of an answer. In the first line they contain its sign.
const MARGIN: usize = 2;

/// The prefix that makes the parser read any line as a paragraph, whatever it begins with.
const PREFIX: &str = ". ";

/// Renders Markdown as it comes.
///
/// # Examples
/// ```
/// use stepfold_terminal::{TextStyle, Markdown, StyledText};
///
/// let mut answer = Markdown::new(24, StyledText::new(TextStyle::GOOD, "● "));
/// let mut shown = String::new();
/// for part in ["It has **12 sta", "lls**, and `count` adds ", "them up.\n- one\n- two\n"] {
///     shown += &answer.push(part).to_plain();
/// }
/// shown += &answer.end().to_plain();
/// assert_eq!(shown, "● It has 12 stalls, and\n  count adds them up.\n  • one\n  • two\n");
/// ```
#[derive(Clone, Debug)]
pub struct Markdown {
    width: usize,
    sign: StyledText,
    /// The incomplete line.
    line: String,
    /// The bytes of its rendering that were shown.
    shown: usize,
    /// Within a code block: the fence that ends it.
    fence: Option<String>,
    table: Vec<String>,
    has_begun: bool,
    is_blank_before: bool,
}

impl Markdown {
    /// Creates a renderer for lines of up to `width` columns; the answer begins with this sign of two columns.
    pub fn new(width: usize, sign: StyledText) -> Self {
        Markdown {
            // NOTE: Below 20 columns wrapping would split nearly every word.
            width: width.max(20),
            sign,
            line: String::new(),
            shown: 0,
            fence: None,
            table: Vec::new(),
            has_begun: false,
            is_blank_before: false,
        }
    }

    /// Adds more of the answer, and returns the text that can be shown now.
    pub fn push(&mut self, text: &str) -> StyledText {
        let mut shown = StyledText::default();
        self.line.push_str(text);
        while let Some(end) = self.line.find('\n') {
            let rest = self.line.split_off(end + 1);
            let line = std::mem::replace(&mut self.line, rest);
            self.complete_line(line.trim_end_matches(['\n', '\r']), &mut shown);
        }
        self.incomplete_line(&mut shown);
        shown
    }

    /// Ends the answer, and returns its rest with the end of its last line. Another answer may follow.
    pub fn end(&mut self) -> StyledText {
        let mut shown = StyledText::default();
        let line = std::mem::take(&mut self.line);
        if !line.is_empty() {
            self.complete_line(&line, &mut shown);
        }
        self.end_table(&mut shown);
        if std::mem::take(&mut self.has_begun) {
            shown.push(TextStyle::PLAIN, "\n");
        }
        // NOTE: A code block that the model left open ends with its answer.
        (self.fence, self.is_blank_before) = (None, false);
        shown
    }

    /// Shows a complete line.
    fn complete_line(&mut self, line: &str, to: &mut StyledText) {
        if let Some(fence) = &self.fence {
            match line.trim_start().starts_with(fence) {
                true => self.fence = None,
                false => self.show(&code(line, self.width), to),
            }
            return;
        }
        if line.trim_start().starts_with('|') {
            return self.table.push(line.to_owned());
        }
        self.end_table(to);
        if let Some(fence) = fence(line) {
            self.fence = Some(fence);
        } else if line.trim().is_empty() {
            self.is_blank_before = self.has_begun;
        } else {
            let rendered = self.rendered(line);
            self.show(&rendered, to);
        }
        self.shown = 0;
    }

    /// Shows the stable part of the incomplete line.
    fn incomplete_line(&mut self, to: &mut StyledText) {
        if self.fence.is_some() || !self.table.is_empty() || !is_decided(&self.line) {
            return;
        }
        let kept = stable_length(&self.line);
        if kept > 0 {
            let rendered = self.rendered(&self.line[..kept]);
            let shown = rendered.len();
            self.show(&rendered, to);
            self.shown = shown;
        }
    }

    /// Shows the rest of a line that was shown in part.
    fn show(&mut self, line: &StyledText, to: &mut StyledText) {
        if self.shown == 0 {
            let margin = StyledText::from(" ".repeat(MARGIN));
            if std::mem::replace(&mut self.has_begun, true) {
                let blank = if std::mem::take(&mut self.is_blank_before) { "\n" } else { "" };
                to.push(TextStyle::PLAIN, &format!("{blank}\n"));
                to.append(&margin);
            } else {
                to.append(&self.sign);
            }
        }
        if line.len() > self.shown {
            to.append(&line.slice(self.shown..line.len()));
        }
    }

    /// Renders and wraps a line.
    fn rendered(&self, line: &str) -> StyledText {
        let line = MarkdownLine::of(line);
        let base = match line.kind {
            LineKind::Heading => TextStyle::STRONG.underline(),
            LineKind::Quote => TextStyle::DIM,
            _ => TextStyle::PLAIN,
        };
        let mut text = StyledText::from(" ".repeat(line.indent));
        let hang = match line.kind {
            LineKind::Rule => {
                text.push(TextStyle::DIM, &"─".repeat(self.width.saturating_sub(MARGIN).min(40)));
                return text;
            }
            LineKind::Item(marker) => {
                text.push(TextStyle::DIM, marker);
                text.push(TextStyle::PLAIN, " ");
                text.width()
            }
            LineKind::Quote => {
                text.push(TextStyle::DIM, "│ ");
                text.width()
            }
            LineKind::Heading | LineKind::Text => text.width(),
        };
        text.append(&inline(line.content, base));
        text.wrapped(self.width, MARGIN, MARGIN + hang)
    }

    fn end_table(&mut self, to: &mut StyledText) {
        let rows = std::mem::take(&mut self.table);
        if rows.is_empty() {
            return;
        }
        self.shown = 0;
        for line in table(&rows, self.width.saturating_sub(MARGIN)) {
            let line = line.wrapped(self.width, MARGIN, MARGIN + 2);
            self.show(&line, to);
        }
    }
}

/// A source line: its indentation, its kind and its content.
struct MarkdownLine<'a> {
    indent: usize,
    kind: LineKind<'a>,
    content: &'a str,
}

enum LineKind<'a> {
    Heading,
    Item(&'a str),
    Quote,
    Rule,
    Text,
}

impl<'a> MarkdownLine<'a> {
    fn of(line: &'a str) -> Self {
        let content = line.trim_start();
        let indent = (line.len() - content.len()).min(12);
        let (kind, content) = Self::kind(content);
        let indent = if matches!(kind, LineKind::Item(_) | LineKind::Text) { indent } else { 0 };
        MarkdownLine { indent, kind, content: content.trim() }
    }

    fn begins_like(&self, other: &MarkdownLine<'_>) -> bool {
        self.indent == other.indent && discriminant(&self.kind) == discriminant(&other.kind)
    }

    fn kind(content: &'a str) -> (LineKind<'a>, &'a str) {
        if is_rule(content) {
            return (LineKind::Rule, "");
        }
        let level = content.bytes().take_while(|byte| *byte == b'#').count();
        if (1..=6).contains(&level) && content[level..].starts_with(' ') {
            return (LineKind::Heading, content[level..].trim().trim_end_matches('#'));
        }
        if let Some(content) = content.strip_prefix('>') {
            return (LineKind::Quote, content);
        }
        if let Some(content) = ["- ", "* ", "+ "].iter().find_map(|marker| content.strip_prefix(marker)) {
            return (LineKind::Item("•"), content);
        }
        let digits = content.bytes().take_while(u8::is_ascii_digit).count();
        let (number, rest) = content.split_at(digits);
        match rest.strip_prefix(". ").or_else(|| rest.strip_prefix(") ")) {
            Some(rest) if (1..10).contains(&digits) => (LineKind::Item(&content[..=number.len()]), rest),
            _ => (LineKind::Text, content),
        }
    }
}

fn is_rule(content: &str) -> bool {
    let marks: Vec<char> = content.chars().filter(|character| *character != ' ').collect();
    marks.len() >= 3 && ['-', '*', '_'].iter().any(|mark| marks.iter().all(|character| character == mark))
}

/// The fence of a code block that begins on this line.
fn fence(line: &str) -> Option<String> {
    let line = line.trim_start();
    let mark = line.chars().next().filter(|mark| matches!(mark, '`' | '~'))?;
    let marks: String = line.chars().take_while(|character| *character == mark).collect();
    // NOTE: By CommonMark a line with further backticks is inline code.
    let is_fence = marks.len() >= 3 && !line[marks.len()..].contains('`');
    is_fence.then_some(marks)
}

/// Whether the kind of the line cannot change with more text.
fn is_decided(line: &str) -> bool {
    let content = line.trim_start();
    let Some(first) = content.chars().next() else { return false };
    match first {
        '|' => false,
        '`' | '~' => {
            !content.starts_with(&String::from(first).repeat(3)) && content.chars().any(|c| c != first)
        }
        '#' => content.chars().any(|character| character != '#'),
        '-' | '*' | '_' | '+' => {
            content.chars().any(|character| !matches!(character, '-' | '*' | '_' | '+' | ' '))
        }
        '0'..='9' => {
            let rest = content.trim_start_matches(|character: char| character.is_ascii_digit());
            rest.len() > 1
        }
        _ => true,
    }
}

/// The bytes of an incomplete line that can be shown: complete words, before anything that could still change.
fn stable_length(line: &str) -> usize {
    let parsed = MarkdownLine::of(line);
    let begin = parsed.content.as_ptr().addr() - line.as_ptr().addr();
    let mut end = line.len();
    loop {
        let Some(space) = line[..end].rfind(' ') else { return 0 };
        let before = &line[..space];
        // The mark of an item is shown together with the first word.
        if space <= begin || !MarkdownLine::of(before).begins_like(&parsed) {
            return 0;
        }
        match open_construct(before) {
            None => return space,
            Some(at) => end = at,
        }
    }
}

/// The byte at which a construct begins whose meaning depends on further text, such as an open `**`.
fn open_construct(line: &str) -> Option<usize> {
    let parsed = MarkdownLine::of(line);
    let offset = parsed.content.as_ptr().addr() - line.as_ptr().addr();
    let source = format!("{PREFIX}{}", parsed.content);
    let mut brackets: Vec<usize> = Vec::new();
    for (event, range) in Parser::new_ext(&source, options()).into_offset_iter() {
        // NOTE: Parsed constructs are complete; only text can still become a part of one.
        if !matches!(event, Event::Text(_)) {
            continue;
        }
        for (at, character) in source[range.clone()].char_indices() {
            let at = range.start + at;
            let before = source[..at].chars().next_back().unwrap_or(' ');
            let after = source[at + character.len_utf8()..].chars().next().unwrap_or(' ');
            let is_open = match character {
                '`' | '~' | '\\' => true,
                '*' => !(before == ' ' && after == ' '),
                '_' => !(before.is_alphanumeric() && after.is_alphanumeric()),
                '<' => after.is_alphabetic() || matches!(after, '/' | '!' | '?'),
                '[' => {
                    brackets.push(at);
                    false
                }
                ']' => {
                    let closes = brackets.pop();
                    closes.is_some() && matches!(after, '(' | '[')
                }
                _ => false,
            };
            if is_open {
                let begin = brackets.first().copied().unwrap_or(at).min(at);
                return Some((begin - PREFIX.len().min(begin)) + offset);
            }
        }
    }
    brackets.first().map(|at| (at - PREFIX.len()) + offset)
}

fn options() -> Options {
    Options::ENABLE_STRIKETHROUGH
}

/// Renders emphasis, code and links.
fn inline(content: &str, base: TextStyle) -> StyledText {
    let source = format!("{PREFIX}{content}");
    let mut text = InlineText::new(base);
    for event in Parser::new_ext(&source, options()) {
        text.apply(event);
    }
    let prefix = PREFIX.trim_end();
    let shown = text.text;
    let begin = if shown.as_str().starts_with(PREFIX) { PREFIX.len() } else { prefix.len() };
    shown.slice(begin.min(shown.len())..shown.len())
}

/// Collects styled text from the events of a parser.
struct InlineText {
    text: StyledText,
    looks: Vec<TextStyle>,
    /// The target of the link that is open, and where its text begins.
    link: Option<(String, usize)>,
}

impl InlineText {
    fn new(base: TextStyle) -> Self {
        InlineText { text: StyledText::default(), looks: vec![base], link: None }
    }

    fn look(&self) -> TextStyle {
        self.looks.last().copied().unwrap_or_default()
    }

    fn apply(&mut self, event: Event<'_>) {
        let look = self.look();
        match event {
            Event::Start(Tag::Strong) => self.looks.push(look.bold()),
            Event::Start(Tag::Emphasis) => self.looks.push(look.italic()),
            Event::Start(Tag::Strikethrough) => self.looks.push(look.strike()),
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                self.looks.push(look.underline());
                self.link = Some((dest_url.into_string(), self.text.len()));
            }
            Event::End(TagEnd::Strong | TagEnd::Emphasis | TagEnd::Strikethrough) => drop(self.looks.pop()),
            Event::End(TagEnd::Link | TagEnd::Image) => {
                self.looks.pop();
                if let Some((url, begin)) = self.link.take()
                    && self.text.as_str()[begin..] != url
                {
                    self.text.push(TextStyle::DIM, &format!(" ({url})"));
                }
            }
            Event::Code(code) => self.text.push(TextStyle::CODE, &code),
            Event::Text(text) | Event::InlineHtml(text) | Event::Html(text) => self.text.push(look, &text),
            Event::SoftBreak | Event::HardBreak => self.text.push(look, " "),
            _ => {}
        }
    }
}

/// Renders a line of a code block, split if it is too long.
fn code(line: &str, width: usize) -> StyledText {
    let mut text = StyledText::from("  ");
    text.push(TextStyle::CODE, &line.replace('\t', "    "));
    text.wrapped(width, MARGIN, MARGIN + 2)
}

/// Renders a table in columns; if they do not fit, a line for each cell with the head of its column.
fn table(rows: &[String], width: usize) -> Vec<StyledText> {
    let source = rows.iter().map(|row| row.trim()).collect::<Vec<_>>().join("\n");
    let rows = cells(&source);
    let Some(head) = rows.first().filter(|_| rows.len() > 1) else {
        return source.lines().map(StyledText::from).collect();
    };
    let widths: Vec<usize> = (0..head.len())
        .map(|column| rows.iter().filter_map(|row| row.get(column)).map(StyledText::width).max().unwrap_or(0))
        .collect();
    let total = widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1);
    if total <= width {
        return rows.iter().map(|row| in_columns(row, &widths)).collect();
    }
    let mut lines = Vec::new();
    for row in &rows[1..] {
        for (number, (name, cell)) in head.iter().zip(row).enumerate() {
            let mut line = StyledText::new(TextStyle::DIM, if number == 0 { "• " } else { "  " });
            line.append(name);
            line.push(TextStyle::PLAIN, ": ");
            line.append(cell);
            lines.push(line);
        }
    }
    lines
}

/// The cells of a table, by rows; empty if the text is not a table.
fn cells(source: &str) -> Vec<Vec<StyledText>> {
    let (mut rows, mut is_head) = (Vec::<Vec<StyledText>>::new(), false);
    let mut cell: Option<InlineText> = None;
    for event in Parser::new_ext(source, options() | Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::TableHead) => {
                is_head = true;
                rows.push(Vec::new());
            }
            Event::End(TagEnd::TableHead) => is_head = false,
            Event::Start(Tag::TableRow) => rows.push(Vec::new()),
            Event::Start(Tag::TableCell) => {
                cell = Some(InlineText::new(if is_head { TextStyle::STRONG } else { TextStyle::PLAIN }));
            }
            Event::End(TagEnd::TableCell) => {
                if let (Some(cell), Some(row)) = (cell.take(), rows.last_mut()) {
                    row.push(cell.text);
                }
            }
            event => {
                if let Some(cell) = &mut cell {
                    cell.apply(event);
                }
            }
        }
    }
    rows
}

fn in_columns(row: &[StyledText], widths: &[usize]) -> StyledText {
    let mut line = StyledText::default();
    for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
        line.append(cell);
        if column + 1 < row.len() {
            line.push(TextStyle::PLAIN, &" ".repeat(width.saturating_sub(cell.width()) + 2));
        }
    }
    line
}
