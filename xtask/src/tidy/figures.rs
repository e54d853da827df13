//! `cargo xtask tidy --figures`: how the source reads, in numbers, by crate.
//!
//! The names of types, the openings of documentation, reasons beside the code, and the rooms that ARCHITECTURE.md names.
//! Tests are left out. The openings have a limit, which `tidy` checks.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::rust::{is_sign, is_test_attribute};
use super::words::prose_of;
use super::{File, Problem};

/// Words that open a paragraph with a clause in place of its subject.
const CLAUSES: &[&str] = &["What", "Where", "Who", "Whose", "How", "That", "Those"];

/// Of 1,000 paragraphs of a crate's documentation, as many may open with a clause.
const OPENINGS_OF_1000: usize = 10;

/// The page that names the rooms of each crate.
const ROOMS: &str = "ARCHITECTURE.md";

/// The figures of one crate.
#[derive(Clone, Debug, Default)]
pub(super) struct CrateFigures {
    /// The names of its types: structs, enums, unions, traits and aliases, without associated types.
    types: Vec<String>,
    /// Paragraphs of its documentation, without lists, tables and code.
    paragraphs: usize,
    /// The paragraphs that open with a clause, each with its file and line.
    openings: Vec<Problem>,
    /// Lines of comments that are no documentation.
    reasons: usize,
    /// Lines of code.
    code: usize,
    /// Lines of each source file, by its path below `src`, without its extension.
    rooms: BTreeMap<String, usize>,
}

/// The figures of the workspace, by crate, and the rooms that are named.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    crates: BTreeMap<String, CrateFigures>,
    named: BTreeMap<String, BTreeSet<String>>,
}

impl Figures {
    /// Adds a file, if it is a source of a crate or the page that names the rooms.
    pub(super) fn add(&mut self, file: &File) {
        if file.path == ROOMS {
            self.named = named_rooms(&file.text);
        }
        if let Some((name, room)) = place_of(&file.path) {
            self.crates.entry(name.to_owned()).or_default().add(file, room);
        }
    }

    /// Crates whose documentation opens too often with a clause: each opening is one problem.
    pub(super) fn check(&self) -> Vec<Problem> {
        let is_too_many =
            |figures: &&CrateFigures| figures.openings.len() * 1000 > figures.paragraphs * OPENINGS_OF_1000;
        self.crates.values().filter(is_too_many).flat_map(|figures| figures.openings.clone()).collect()
    }

    /// Of how many types each name is.
    fn uses(&self) -> BTreeMap<&str, usize> {
        let mut uses = BTreeMap::new();
        for name in self.crates.values().flat_map(|figures| &figures.types) {
            *uses.entry(name.as_str()).or_default() += 1;
        }
        uses
    }
}

impl CrateFigures {
    fn add(&mut self, file: &File, room: &str) {
        let tokens = TokenStream::from_str(&file.text).unwrap_or_default();
        collect_types(tokens, false, &mut self.types);
        let is_code = |line: &&str| !line.is_empty() && !line.starts_with("//");
        let is_reason =
            |line: &&str| line.starts_with("//") && !line.starts_with("///") && !line.starts_with("//!");
        let lines: Vec<&str> = without_tests(&file.text).map(str::trim).collect();
        self.reasons += lines.iter().filter(|line| is_reason(line)).count();
        self.code += lines.iter().filter(|line| is_code(line)).count();
        self.rooms.insert(room.to_owned(), file.text.lines().count());
        for (line, paragraph) in paragraphs(&lines) {
            self.paragraphs += 1;
            if opens_with_a_clause(paragraph) {
                let message = "a paragraph opens with a clause; put its subject first";
                self.openings.push(Problem::new(file, line, message));
            }
        }
    }

    /// Lines of the rooms that are named, and of all.
    fn named_lines(&self, named: &BTreeSet<String>) -> (usize, usize) {
        let of_named =
            self.rooms.iter().filter(|(room, _)| self.is_named(room, named)).map(|(_, lines)| lines).sum();
        (of_named, self.rooms.values().sum())
    }

    /// Whether a row names this file, or its folder if that holds files only.
    fn is_named(&self, room: &str, named: &BTreeSet<String>) -> bool {
        let Some((folder, file)) = room.rsplit_once('/') else {
            return matches!(room, "lib" | "main") || named.contains(room);
        };
        let below =
            |room: &str| room.strip_prefix(folder).and_then(|rest| rest.strip_prefix('/')).map(str::to_owned);
        let holds_folders = self.rooms.keys().filter_map(|room| below(room)).any(|rest| rest.contains('/'));
        let name = folder.rsplit('/').next().unwrap_or_default();
        named.contains(file) || (named.contains(name) && (!holds_folders || file == "mod"))
    }
}

/// The crate of a source file, and its path below `src` without its extension. Files of tests have none.
fn place_of(path: &str) -> Option<(&str, &str)> {
    let (name, room) = path.strip_prefix("crates/")?.strip_suffix(".rs")?.split_once("/src/")?;
    let is_of_tests = room.split('/').any(|part| part == "tests");
    (!is_of_tests).then_some((name, room))
}

/// Names of types, those inside of functions and modules included, without those of tests.
fn collect_types(tokens: TokenStream, is_associated: bool, types: &mut Vec<String>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let (mut is_test, mut is_impl) = (false, false);
    for (index, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Group(group) => {
                is_test |= is_test_attribute(&tokens[..index], group);
                if !is_test {
                    collect_types(group.stream(), is_impl, types);
                }
                if group.delimiter() == Delimiter::Brace {
                    (is_test, is_impl) = (false, false);
                }
            }
            TokenTree::Ident(word) => {
                let word = word.to_string();
                let is_type = match word.as_str() {
                    "struct" | "enum" | "union" | "trait" => true,
                    "type" => !is_associated,
                    _ => false,
                };
                if let (true, false, Some(TokenTree::Ident(name))) = (is_type, is_test, tokens.get(index + 1))
                {
                    types.push(name.to_string());
                }
                is_impl |= matches!(word.as_str(), "impl" | "trait");
            }
            token if is_sign(token, ';') => (is_test, is_impl) = (false, false),
            _ => {}
        }
    }
}

/// The lines of a source up to its module of tests, which stands last.
fn without_tests(text: &str) -> impl Iterator<Item = &str> {
    let lines: Vec<&str> = text.lines().collect();
    let is_test_module =
        |pair: &[&str]| pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod ") && pair[1].ends_with('{');
    let end = lines.windows(2).position(is_test_module).unwrap_or(lines.len());
    lines.into_iter().take(end)
}

/// The first line of each paragraph of documentation, counted from 1, without lists, tables, headings and code.
fn paragraphs<'l>(lines: &[&'l str]) -> Vec<(usize, &'l str)> {
    let is_doc = |line: &str| line.starts_with("///") || line.starts_with("//!");
    let (mut found, mut is_begun, mut is_code) = (Vec::new(), false, false);
    for (index, line) in lines.iter().enumerate() {
        let text = prose_of(if is_doc(line) { line } else { "" }, true, &mut is_code);
        if !is_begun && text.starts_with(char::is_alphabetic) {
            found.push((index + 1, text));
        }
        is_begun = !text.is_empty();
    }
    found
}

fn opens_with_a_clause(paragraph: &str) -> bool {
    let word: &str =
        paragraph.split(|character: char| !character.is_alphanumeric()).next().unwrap_or_default();
    CLAUSES.contains(&word)
}

/// The names in backquotes in each row below the heading of a crate, `### crates/NAME`.
fn named_rooms(page: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut named: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut name = None;
    for line in page.lines() {
        if line.starts_with('#') {
            name = line.strip_prefix("### crates/");
        }
        if let (Some(name), true) = (name, line.starts_with("| `")) {
            let quoted = line.split('`').skip(1).step_by(2).flat_map(|text| text.split('/'));
            let rooms = quoted.map(|word| word.trim_end_matches(".rs").to_owned());
            named.entry(name.to_owned()).or_default().extend(rooms);
        }
    }
    named
}

/// Whether the name is one word: `State`, not `StateWriter`.
fn is_one_word(name: &str) -> bool {
    name.chars().filter(|character| character.is_uppercase()).count() < 2
}

#[expect(clippy::cast_precision_loss, reason = "counts of lines are small")]
fn percent(part: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let uses = self.uses();
        let is_shared = |name: &&String| uses.get(name.as_str()).is_some_and(|count| *count > 1);
        let (mut types, mut shared, mut one_word) = (0, 0, 0);
        writeln!(f, "crate             types  shared  one word  openings  reasons/100  rooms named")?;
        for (name, figures) in &self.crates {
            let count = figures.types.len();
            let of_crate = figures.types.iter().filter(is_shared).count();
            let of_one_word = figures.types.iter().filter(|name| is_one_word(name)).count();
            let (of_named, of_all) = figures.named_lines(self.named.get(name).unwrap_or(&BTreeSet::new()));
            writeln!(
                f,
                "{name:16}  {count:5}  {:4.0} %  {:6.0} %  {:6.1} %  {:11.1}  {:9.0} %",
                percent(of_crate, count),
                percent(of_one_word, count),
                percent(figures.openings.len(), figures.paragraphs),
                percent(figures.reasons, figures.code),
                percent(of_named, of_all),
            )?;
            (types, shared, one_word) = (types + count, shared + of_crate, one_word + of_one_word);
        }
        write!(
            f,
            "workspace         {types:5}  {:4.1} %  {:6.1} %",
            percent(shared, types),
            percent(one_word, types)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{file, lines};
    use super::Figures;

    fn figures(files: &[(&str, &str)]) -> Figures {
        let mut figures = Figures::default();
        for (path, text) in files {
            figures.add(&file(path, text));
        }
        figures
    }

    #[test]
    fn types_are_counted_without_tests_and_associated_ones() {
        let text = "struct State; enum Row {} trait Reads { type Item; }\n\
                    impl Reads for Row { type Item = u8; } type Rows = Vec<Row>;\n\
                    fn f() { struct StateRow; }\n#[cfg(test)] mod tests { struct Fake; }\n";
        let figures = figures(&[("crates/a/src/lib.rs", text), ("crates/a/src/tests.rs", "struct Fake;")]);
        assert_eq!(figures.crates["a"].types, ["State", "Row", "Reads", "Rows", "StateRow"]);
    }

    #[test]
    fn names_that_two_types_have_are_told() {
        let (a, b) = ("struct Row; struct StateRow;", "struct Row; struct Key;");
        let text = figures(&[("crates/a/src/lib.rs", a), ("crates/b/src/lib.rs", b)]).to_string();
        assert!(text.ends_with("workspace             4  50.0 %    75.0 %"), "{text}");
    }

    #[test]
    fn openings_are_found_once_in_a_paragraph_and_not_in_code() {
        let text = "//! What a store is.\n//! What else.\n//!\n//! ```\n//! What\n//! ```\n/// That thing.\nfn a() {}\n\
                    /// Whatever.\nfn b() {}\n// What is no documentation.\n";
        let problems = figures(&[("crates/a/src/lib.rs", text)]).check();
        let message = "a paragraph opens with a clause; put its subject first";
        assert_eq!(lines(&problems), [format!("1: {message}"), format!("7: {message}")]);
    }

    #[test]
    fn one_opening_in_a_hundred_paragraphs_passes() {
        let one = format!("/// What.\nfn a() {{}}\n{}", "/// A name.\nfn b() {}\n".repeat(99));
        assert_eq!(lines(&figures(&[("crates/a/src/lib.rs", &one)]).check()), [""; 0]);
        let two = format!("{one}/// Who.\nfn c() {{}}\n");
        assert_eq!(figures(&[("crates/a/src/lib.rs", &two)]).check().len(), 2);
    }

    #[test]
    fn rooms_are_named_by_rows_of_their_crate() {
        let page = "### crates/a\n| `run` | the run: `feed.rs` |\n### crates/b\n| `other` | another |\n";
        let sources = ["run/mod.rs", "run/commit.rs", "feed.rs", "other.rs", "lib.rs"];
        let mut figures = figures(&[("ARCHITECTURE.md", page)]);
        let mut add = |room: &str| figures.add(&file(&format!("crates/a/src/{room}"), "//! A.\n"));
        sources.into_iter().for_each(&mut add);
        add("run/parts/mod.rs");
        // `commit` has no row, and the row of its folder names that of a folder of folders.
        assert_eq!(figures.crates["a"].named_lines(&figures.named["a"]), (3, 6));
    }
}
