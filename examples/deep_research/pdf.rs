//! A PDF of a report, in the font that every reader has and whose letters are all equally wide, so that nothing has to be
//! measured or embedded.
//!
//! A character that the font does not have (most scripts but Latin) is an error, not a box.

use std::mem;

use pdf_writer::{Content, Finish, Name, Pdf, Rect, Ref, Str, TextStr};
use pulldown_cmark::{Event, HeadingLevel, Parser, Tag, TagEnd};

use crate::report::{MARKDOWN, title_of};

/// A4, in points.
const PAGE: (f32, f32) = (595.0, 842.0);
const MARGIN: f32 = 56.0;
/// The width of a letter, relative to its size.
const LETTER: f32 = 0.6;
/// The height of a line, relative to the size of its letters.
const LINE: f32 = 1.35;
const SIZE: f32 = 10.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Font {
    Regular,
    Bold,
    Oblique,
}

impl Font {
    const ALL: [Font; 3] = [Font::Regular, Font::Bold, Font::Oblique];

    /// Its name on a page, and the name of the font.
    fn names(self) -> (Name<'static>, Name<'static>) {
        match self {
            Font::Regular => (Name(b"R"), Name(b"Courier")),
            Font::Bold => (Name(b"B"), Name(b"Courier-Bold")),
            Font::Oblique => (Name(b"O"), Name(b"Courier-Oblique")),
        }
    }
}

/// A line of one size. An empty one is a gap.
#[derive(Clone, Debug, Default, PartialEq)]
struct Line {
    size: f32,
    runs: Vec<(Font, String)>,
}

/// The report as a PDF.
///
/// # Errors
/// When it has letters that the font does not have.
pub(crate) fn of_markdown(report: &str) -> Result<Vec<u8>, String> {
    let lines = Layout::of(report);
    let pages = paginated(&lines);
    let mut ids = (1..).map(Ref::new);
    let mut id = || ids.next().unwrap_or(Ref::new(1));
    let (catalog, tree, info) = (id(), id(), id());
    let fonts = Font::ALL.map(|font| (font, id()));
    let mut pdf = Pdf::new();
    pdf.catalog(catalog).pages(tree);
    pdf.document_info(info).title(TextStr(&title_of(report)));
    for (font, font_id) in fonts {
        pdf.type1_font(font_id).base_font(font.names().1).encoding_predefined(Name(b"WinAnsiEncoding"));
    }
    let mut kids = Vec::new();
    for lines in pages {
        let (page_id, content_id) = (id(), id());
        kids.push(page_id);
        let content = content(&lines)?;
        pdf.stream(content_id, &content.finish());
        let mut page = pdf.page(page_id);
        page.media_box(Rect::new(0.0, 0.0, PAGE.0, PAGE.1)).parent(tree).contents(content_id);
        let mut resources = page.resources();
        let mut known = resources.fonts();
        for (font, font_id) in fonts {
            known.pair(font.names().0, font_id);
        }
        known.finish();
        resources.finish();
    }
    let count = i32::try_from(kids.len()).unwrap_or(i32::MAX);
    pdf.pages(tree).kids(kids).count(count);
    Ok(pdf.finish())
}

/// As many lines on each page as fit.
fn paginated(lines: &[Line]) -> Vec<Vec<&Line>> {
    let mut pages = vec![Vec::new()];
    let mut left = PAGE.1 - 2.0 * MARGIN;
    for line in lines {
        let height = line.size * LINE;
        if height > left {
            pages.push(Vec::new());
            left = PAGE.1 - 2.0 * MARGIN;
        }
        left -= height;
        if let Some(page) = pages.last_mut() {
            page.push(line);
        }
    }
    pages
}

fn content(lines: &[&Line]) -> Result<Content, String> {
    let mut content = Content::new();
    let mut y = PAGE.1 - MARGIN;
    for line in lines {
        y -= line.size * LINE;
        if line.runs.is_empty() {
            continue;
        }
        content.begin_text();
        content.next_line(MARGIN, y);
        for (font, text) in &line.runs {
            content.set_font(font.names().0, line.size);
            content.show(Str(&encoded(text)?));
        }
        content.end_text();
    }
    Ok(content)
}

/// The text in the encoding of the fonts.
fn encoded(text: &str) -> Result<Vec<u8>, String> {
    text.chars()
        .map(|c| match c {
            ' '..='~' | '\u{A0}'..='\u{FF}' => Ok(u8::try_from(u32::from(c)).unwrap_or(b'?')),
            '\u{20AC}' => Ok(0x80),
            '\u{2026}' => Ok(0x85),
            '\u{2018}' => Ok(0x91),
            '\u{2019}' => Ok(0x92),
            '\u{201C}' => Ok(0x93),
            '\u{201D}' => Ok(0x94),
            '\u{2022}' => Ok(0x95),
            '\u{2013}' | '\u{2011}' => Ok(0x96),
            '\u{2014}' => Ok(0x97),
            _ => Err(format!(
                "the report has the character {c:?}, which the fonts of a plain PDF do not have; take --format html"
            )),
        })
        .collect()
}

/// Lines, while the report is read.
struct Layout {
    lines: Vec<Line>,
    runs: Vec<(Font, String)>,
    size: f32,
    bold: usize,
    oblique: usize,
    is_code: bool,
    /// The next number of each open list; none for lists without numbers.
    lists: Vec<Option<u64>>,
    quotes: usize,
    /// The mark of an item, before the next line only.
    mark: String,
}

impl Layout {
    fn of(report: &str) -> Vec<Line> {
        let mut layout = Layout {
            lines: Vec::new(),
            runs: Vec::new(),
            size: SIZE,
            bold: 0,
            oblique: 0,
            is_code: false,
            lists: Vec::new(),
            quotes: 0,
            mark: String::new(),
        };
        for event in Parser::new_ext(report, MARKDOWN) {
            layout.read(event);
        }
        layout.end_block();
        layout.lines
    }

    fn read(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(tag),
            Event::End(tag) => self.end(tag),
            Event::Text(text) if self.is_code => self.code(&text),
            Event::Text(text) | Event::Code(text) | Event::Html(text) | Event::InlineHtml(text) => {
                self.say(&text);
            }
            Event::SoftBreak => self.say(" "),
            Event::HardBreak => self.flush(),
            Event::FootnoteReference(name) => self.say(&format!("[{name}]")),
            Event::Rule => {
                self.say("----");
                self.end_block();
            }
            _ => {}
        }
    }

    fn start(&mut self, tag: Tag<'_>) {
        match tag {
            Tag::Heading { level, .. } => {
                self.end_block();
                self.gap();
                self.size = match level {
                    HeadingLevel::H1 => 15.0,
                    HeadingLevel::H2 => 12.5,
                    _ => SIZE,
                };
                self.bold += 1;
            }
            Tag::Strong => self.bold += 1,
            Tag::Emphasis => self.oblique += 1,
            Tag::CodeBlock(_) => {
                self.end_block();
                self.is_code = true;
            }
            Tag::List(first) => {
                self.flush();
                self.lists.push(first);
            }
            Tag::Item => {
                self.mark = match self.lists.last_mut() {
                    Some(Some(number)) => {
                        *number += 1;
                        format!("{}. ", *number - 1)
                    }
                    _ => "- ".to_owned(),
                };
            }
            Tag::BlockQuote(_) => self.quotes += 1,
            Tag::FootnoteDefinition(name) => self.mark = format!("[{name}] "),
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Heading(_) => {
                self.bold -= 1;
                self.end_block();
                self.size = SIZE;
            }
            TagEnd::Strong => self.bold -= 1,
            TagEnd::Emphasis => self.oblique -= 1,
            TagEnd::CodeBlock => {
                self.is_code = false;
                self.gap();
            }
            TagEnd::List(_) => {
                self.lists.pop();
                if self.lists.is_empty() {
                    self.gap();
                }
            }
            TagEnd::BlockQuote(_) => self.quotes -= 1,
            TagEnd::TableCell => self.say(" | "),
            TagEnd::Paragraph | TagEnd::Table if self.lists.is_empty() => self.end_block(),
            TagEnd::Paragraph
            | TagEnd::Item
            | TagEnd::FootnoteDefinition
            | TagEnd::TableRow
            | TagEnd::TableHead => self.flush(),
            _ => {}
        }
    }

    fn say(&mut self, text: &str) {
        let font = match (self.bold, self.oblique) {
            (1.., _) => Font::Bold,
            (0, 1..) => Font::Oblique,
            (0, 0) => Font::Regular,
        };
        self.runs.push((font, text.to_owned()));
    }

    fn code(&mut self, text: &str) {
        let columns = self.columns() - 4;
        for line in text.lines() {
            let letters: Vec<char> = line.chars().map(|c| if c == '\t' { ' ' } else { c }).collect();
            let mut pieces = letters.chunks(columns);
            let first = pieces.next().unwrap_or_default();
            for piece in std::iter::once(first).chain(pieces) {
                let text = format!("    {}", piece.iter().collect::<String>());
                self.lines.push(Line { size: self.size, runs: vec![(Font::Regular, text)] });
            }
        }
    }

    /// Letters in a line.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some dozens")]
    fn columns(&self) -> usize {
        ((PAGE.0 - 2.0 * MARGIN) / (self.size * LETTER)) as usize
    }

    fn end_block(&mut self) {
        self.flush();
        self.gap();
    }

    /// Half a line, unless there is one.
    fn gap(&mut self) {
        if self.lines.last().is_some_and(|line| !line.runs.is_empty()) {
            self.lines.push(Line { size: SIZE / 2.0, runs: Vec::new() });
        }
    }

    /// Sets the text word by word, in as many lines as it needs.
    fn flush(&mut self) {
        let runs = mem::take(&mut self.runs);
        if runs.iter().all(|(_, text)| text.trim().is_empty()) {
            return;
        }
        let mark = mem::take(&mut self.mark);
        let depth = self.lists.len().saturating_sub(1) * 2;
        let quote = "| ".repeat(self.quotes);
        let first = format!("{quote}{}{mark}", " ".repeat(depth));
        let rest = format!("{quote}{}", " ".repeat(first.chars().count() - quote.chars().count()));
        let columns = self.columns();
        let mut lines = vec![vec![(Font::Regular, first.clone())]];
        let mut used = first.chars().count();
        for (font, word) in words(&runs) {
            for piece in pieces(&word, columns - rest.chars().count()) {
                let length = piece.chars().count();
                if used + piece.trim_end().chars().count() > columns {
                    lines.push(vec![(Font::Regular, rest.clone())]);
                    used = rest.chars().count();
                }
                used += length;
                if let Some(line) = lines.last_mut() {
                    line.push((font, piece));
                }
            }
        }
        self.lines.extend(lines.into_iter().map(|runs| Line { size: self.size, runs: joined(runs) }));
    }
}

/// The words of runs, each with the blanks after it.
fn words(runs: &[(Font, String)]) -> Vec<(Font, String)> {
    let words = runs.iter().flat_map(|(font, text)| {
        text.split_inclusive(' ').map(|word| (*font, word.replace(['\n', '\t', '\r'], " ")))
    });
    words.collect()
}

/// A word that is longer than a line is cut.
fn pieces(word: &str, columns: usize) -> Vec<String> {
    if word.trim_end().chars().count() <= columns {
        return vec![word.to_owned()];
    }
    let letters: Vec<char> = word.chars().collect();
    letters.chunks(columns.max(1)).map(|piece| piece.iter().collect()).collect()
}

/// Neighbours of one font together.
fn joined(runs: Vec<(Font, String)>) -> Vec<(Font, String)> {
    runs.into_iter().filter(|(_, text)| !text.is_empty()).fold(
        Vec::new(),
        |mut joined: Vec<(Font, String)>, run| {
            match joined.last_mut() {
                Some((font, text)) if *font == run.0 => text.push_str(&run.1),
                _ => joined.push(run),
            }
            joined
        },
    )
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn markdown_becomes_lines() {
        let report = "# Title\n\nSome **bold** words and *others* that are many enough to go beyond the end of one line, of course.[^1]\n\n\
            - one\n- two\n  1. deep\n\n> said\n\n```\nlet x = 1;\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n[^1]: `a.md`\n";
        let lines: Vec<String> = Layout::of(report)
            .iter()
            .map(|line| {
                let runs = line.runs.iter().map(|(font, text)| match font {
                    Font::Regular => text.clone(),
                    Font::Bold => format!("*{text}*"),
                    Font::Oblique => format!("/{text}/"),
                });
                format!("{}: {}", line.size, runs.collect::<String>()).trim_end().to_owned()
            })
            .collect();
        expect![[r#"
            15: *Title*
            5:
            10: Some *bold* words and /others/ that are many enough to go beyond the end of one
            10: line, of course.[1]
            5:
            10: - one
            10: - two
            10:   1. deep
            5:
            10: | said
            5:
            10:     let x = 1;
            5:
            10: a | b |
            10: 1 | 2 |
            5:
            10: [1] a.md
            5:"#]]
        .assert_eq(&lines.join("\n"));
    }

    #[test]
    fn no_line_is_too_long_and_no_page_too_full() {
        let long = format!(
            "# {}\n\n{} {}\n\n```\n{}\n```",
            "title ".repeat(40),
            "word ".repeat(3000),
            "x".repeat(500),
            "y".repeat(300)
        );
        let lines = Layout::of(&long);
        for line in &lines {
            let letters: usize = line.runs.iter().map(|(_, text)| text.trim_end().chars().count()).sum();
            let width = f32::from(u16::try_from(letters).unwrap()) * line.size * LETTER;
            assert!(width <= PAGE.0 - 2.0 * MARGIN + 0.01, "{line:?}");
        }
        let pages = paginated(&lines);
        assert!(pages.len() > 2, "{}", pages.len());
        assert_eq!(pages.iter().map(Vec::len).sum::<usize>(), lines.len());
    }

    #[test]
    fn letters_that_the_font_has_not_are_an_error() {
        assert_eq!(encoded("a\u{e9}\u{201d}").unwrap(), [b'a', 0xE9, 0x94]);
        let error = of_markdown("# \u{5d29}").unwrap_err();
        assert!(error.contains("take --format html"), "{error}");
    }
}
