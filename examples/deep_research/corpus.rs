//! The documents: read from folders, cut into sections at their headings, and searched by BM25.
//!
//! A section is the unit of search, reading and citation. Its id is its document and an anchor, as on web pages of
//! Markdown: `docs/status.md#what-is-weak-in-tools`.

use std::collections::HashMap;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bm25::{Document, SearchEngine, SearchEngineBuilder, Tokenizer};
use pulldown_cmark::{Event, HeadingLevel, Parser, Tag, TagEnd};

/// The maximum bytes of a document: larger files are not written for people.
const MAX_BYTES: u64 = 2_000_000;
/// The maximum files: a larger folder was probably not intended.
const MAX_FILES: usize = 5_000;
/// The maximum words of a query; the others are ignored.
const MAX_QUERY_WORDS: usize = 32;
const EXTENSIONS: &[&str] = &["md", "markdown", "txt"];

/// All documents. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Corpus(Arc<Inner>);

struct Inner {
    name: String,
    sections: Vec<Section>,
    by_id: HashMap<String, usize>,
    index: SearchEngine<usize, u64, Words>,
}

/// A part of a document from one heading to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Section {
    pub(crate) document: String,
    pub(crate) anchor: String,
    pub(crate) title: String,
    pub(crate) text: String,
}

impl Section {
    pub(crate) fn id(&self) -> String {
        format!("{}#{}", self.document, self.anchor)
    }
}

impl Corpus {
    /// The documents of this repository: README, `docs`, the guide, and the notes on Rust beside this file.
    pub(crate) fn of_repository() -> Result<Self, Box<dyn Error>> {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let parts = [("README.md", "README.md"), ("docs", "docs"), ("guide", "crates/stepfold/guide")];
        let mut files = Vec::new();
        for (name, path) in parts.into_iter().chain([("rust", "examples/deep_research/rust")]) {
            files.extend(files_under(&repository.join(path), name)?);
        }
        Self::read("stepfold, and notes on Rust", files)
    }

    /// The documents under a folder: Markdown and plain text.
    pub(crate) fn of_folder(folder: &Path) -> Result<Self, Box<dyn Error>> {
        let files = files_under(folder, "").map_err(|error| format!("{}: {error}", folder.display()))?;
        Self::read(&folder.display().to_string(), files)
    }

    fn read(name: &str, files: Vec<(String, PathBuf)>) -> Result<Self, Box<dyn Error>> {
        let mut documents = Vec::new();
        for (document, path) in files {
            let bytes = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            documents.push((document, String::from_utf8_lossy(&bytes).into_owned()));
        }
        if documents.is_empty() {
            return Err(format!("{name} has no documents; looked for: {}", EXTENSIONS.join(", ")).into());
        }
        Ok(Self::new(name, &documents))
    }

    /// These documents, each with its name and its text.
    pub(crate) fn new(name: &str, documents: &[(String, String)]) -> Self {
        let sections: Vec<Section> = documents
            .iter()
            .flat_map(|(document, text)| match has_headings(document) {
                true => sections_of(document, text),
                false => vec![whole(document, text)],
            })
            .collect();
        let by_id = sections.iter().enumerate().map(|(place, section)| (section.id(), place)).collect();
        let texts = sections.iter().enumerate().map(|(place, section)| {
            // What a section is called says more than any line of it.
            let title = &section.title;
            Document::new(place, format!("{title}\n{title}\n{}\n{}", section.document, section.text))
        });
        let index =
            SearchEngineBuilder::with_tokenizer_and_documents(Words, texts.collect::<Vec<_>>()).build();
        Corpus(Arc::new(Inner { name: name.to_owned(), sections, by_id, index }))
    }

    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }

    pub(crate) fn sections(&self) -> &[Section] {
        &self.0.sections
    }

    /// The section of this id.
    pub(crate) fn section(&self, id: &str) -> Option<&Section> {
        self.0.by_id.get(id).map(|place| &self.0.sections[*place])
    }

    /// The sections of a document, in their order; none if there is no such document.
    pub(crate) fn document(&self, name: &str) -> Vec<&Section> {
        self.0.sections.iter().filter(|section| section.document == name).collect()
    }

    /// The names of the documents.
    pub(crate) fn documents(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.0.sections.iter().map(|section| &*section.document).collect();
        names.dedup();
        names
    }

    /// The sections that fit best, best first.
    pub(crate) fn search(&self, query: &str, limit: usize) -> Vec<&Section> {
        let words: Vec<String> = Words.tokenize(query).into_iter().take(MAX_QUERY_WORDS).collect();
        let mut found = self.0.index.search(&words.join(" "), None);
        // Those that fit equally well, in the order of the documents: the same search finds the same.
        found.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.document.id.cmp(&b.document.id)));
        found.into_iter().take(limit).map(|found| &self.0.sections[found.document.id]).collect()
    }
}

fn has_headings(document: &str) -> bool {
    !Path::new(document).extension().is_some_and(|extension| extension.eq_ignore_ascii_case("txt"))
}

/// A document without headings is one section.
fn whole(document: &str, text: &str) -> Section {
    let title = Path::new(document).file_stem().unwrap_or_default().to_string_lossy().into_owned();
    Section { document: document.to_owned(), anchor: "top".to_owned(), title, text: text.trim().to_owned() }
}

/// Cuts a document at its headings. What stands before the first one is a section of its own.
fn sections_of(document: &str, text: &str) -> Vec<Section> {
    let mut starts = headings(text);
    if starts.first().is_none_or(|first| !text[..first.0].trim().is_empty()) {
        starts.insert(0, (0, whole(document, text).title));
    }
    let ends = starts.iter().skip(1).map(|(start, _)| *start).chain([text.len()]);
    let mut anchors = HashMap::new();
    let mut sections = Vec::new();
    for ((start, title), end) in starts.iter().zip(ends) {
        sections.push(Section {
            document: document.to_owned(),
            anchor: anchor(title, &mut anchors),
            title: title.clone(),
            text: text[*start..end].trim().to_owned(),
        });
    }
    sections
}

/// The byte at which each heading begins, and its text. Headings of low levels do not begin a section.
fn headings(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut current: Option<(usize, String)> = None;
    for (event, range) in Parser::new(text).into_offset_iter() {
        match (event, &mut current) {
            (Event::Start(Tag::Heading { level, .. }), _) if level <= HeadingLevel::H3 => {
                current = Some((range.start, String::new()));
            }
            (Event::Text(words) | Event::Code(words), Some((_, title))) => title.push_str(&words),
            (Event::End(TagEnd::Heading(_)), _) => found.extend(current.take()),
            _ => {}
        }
    }
    found
}

/// The words in lower case with dashes between them; the second of the same name has a number.
fn anchor(title: &str, seen: &mut HashMap<String, usize>) -> String {
    let words = title.to_lowercase();
    let kept = words.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
    let anchor = if anchor.is_empty() { "section".to_owned() } else { anchor };
    let count = seen.entry(anchor.clone()).or_default();
    *count += 1;
    if *count == 1 { anchor } else { format!("{anchor}-{}", *count - 1) }
}

/// The documents under a path, each with its name, in the order of their names. Hidden files are left out, and so is
/// what a link leads to.
fn files_under(path: &Path, name: &str) -> Result<Vec<(String, PathBuf)>, Box<dyn Error>> {
    let mut found = Vec::new();
    let mut open = vec![(name.to_owned(), path.to_owned())];
    while let Some((name, path)) = open.pop() {
        let metadata = fs::symlink_metadata(&path)?;
        if metadata.is_dir() {
            for entry in fs::read_dir(&path)? {
                let entry = entry?;
                let child = entry.file_name().to_string_lossy().into_owned();
                if !child.starts_with('.') {
                    let child = if name.is_empty() { child } else { format!("{name}/{child}") };
                    open.push((child, entry.path()));
                }
            }
        } else if metadata.is_file() && metadata.len() <= MAX_BYTES && is_document(&path) {
            found.push((name, path));
        }
        if found.len() > MAX_FILES {
            return Err(format!("there are more than {MAX_FILES} documents; name a smaller folder").into());
        }
    }
    found.sort();
    Ok(found)
}

fn is_document(path: &Path) -> bool {
    let extension = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    EXTENSIONS.contains(&extension.as_str())
}

/// Words of prose in any language: lower case, cut where no letter or digit is; scripts without spaces into pairs.
struct Words;

impl Tokenizer for Words {
    fn tokenize(&self, text: &str) -> Vec<String> {
        let runs = text.split(|c: char| !c.is_alphanumeric()).filter(|run| !run.is_empty());
        runs.flat_map(|run| if run.contains(is_dense) { pairs(run) } else { vec![stem(&run.to_lowercase())] })
            .filter(|word| !STOP_WORDS.contains(&word.as_str()))
            .collect()
    }
}

/// Words that are in every sentence and tell no section from another.
const STOP_WORDS: &[&str] = &[
    "a", "an", "and", "are", "as", "at", "be", "by", "do", "doe", "for", "from", "how", "in", "is", "it",
    "of", "on", "or", "that", "the", "this", "to", "what", "when", "which", "with",
];

/// Without the plural, so that "crash" finds "crashes".
fn stem(word: &str) -> String {
    let is_es = ["sses", "shes", "ches", "xes", "zes"].iter().any(|end| word.ends_with(end));
    match word {
        _ if word.len() > 4 && is_es => word[..word.len() - 2].to_owned(),
        _ if word.len() > 3 && word.ends_with('s') && !word.ends_with("ss") => {
            word[..word.len() - 1].to_owned()
        }
        _ => word.to_owned(),
    }
}

fn pairs(run: &str) -> Vec<String> {
    let characters: Vec<char> = run.chars().collect();
    match characters.len() {
        1 => vec![run.to_owned()],
        _ => characters.windows(2).map(|pair| pair.iter().collect()).collect(),
    }
}

fn is_dense(c: char) -> bool {
    matches!(c, '\u{3040}'..='\u{30FF}' | '\u{3400}'..='\u{4DBF}' | '\u{4E00}'..='\u{9FFF}' | '\u{AC00}'..='\u{D7AF}')
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn corpus() -> Corpus {
        let document = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        Corpus::new(
            "three",
            &[
                document(
                    "a.md",
                    "Before.\n\n# One `thing`\nText.\n```\n# no heading\n```\n## Part\nx\n## Part\ny",
                ),
                document("b/crash.txt", "# no heading here\nWhat crashes is resumed."),
                document(
                    "c.md",
                    "# \u{5d29}\u{6e83}\n\u{5d29}\u{6e83}\u{540e}\u{6062}\u{590d}\u{3002}\n#### small\n\n# Empty",
                ),
            ],
        )
    }

    #[test]
    fn documents_are_cut_at_their_headings() {
        let lines = corpus()
            .sections()
            .iter()
            .map(|section| format!("{} {:?} {:?}\n", section.id(), section.title, section.text))
            .collect::<Vec<_>>()
            .concat();
        expect![[r###"
            a.md#a "a" "Before."
            a.md#one-thing "One thing" "# One `thing`\nText.\n```\n# no heading\n```"
            a.md#part "Part" "## Part\nx"
            a.md#part-1 "Part" "## Part\ny"
            b/crash.txt#top "crash" "# no heading here\nWhat crashes is resumed."
            c.md#崩溃 "崩溃" "# 崩溃\n崩溃后恢复。\n#### small"
            c.md#empty "Empty" "# Empty"
        "###]]
        .assert_eq(&lines);
    }

    #[track_caller]
    fn check(query: &str, expected: &Expect) {
        let corpus = corpus();
        let found: Vec<String> = corpus.search(query, 3).into_iter().map(Section::id).collect();
        expected.assert_eq(&found.join(" "));
    }

    #[test]
    fn sections_are_found() {
        check("what happens at a crash?", &expect!["b/crash.txt#top"]);
        check("part", &expect!["a.md#part a.md#part-1"]);
        check("\u{6062}\u{590d}", &expect!["c.md#崩溃"]);
        check("what is the", &expect![""]);
        check("nothing of that kind", &expect![""]);
    }

    #[test]
    fn the_repository_is_there() {
        let corpus = Corpus::of_repository().unwrap();
        for document in ["README.md", "docs/status.md", "guide/durability.md", "rust/errors.md"] {
            assert!(corpus.documents().contains(&document), "{document}");
        }
        // Each section has an id of its own.
        assert_eq!(corpus.0.by_id.len(), corpus.sections().len());
    }

    #[test]
    fn folders_without_documents_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.rs"), "fn main() {}").unwrap();
        let error = Corpus::of_folder(folder.path()).err().unwrap().to_string();
        assert!(error.ends_with("has no documents; looked for: md, markdown, txt"), "{error}");
        fs::create_dir_all(folder.path().join("b/.hidden")).unwrap();
        fs::write(folder.path().join("b/c.md"), "# C").unwrap();
        fs::write(folder.path().join("b/.hidden/d.md"), "# D").unwrap();
        assert_eq!(Corpus::of_folder(folder.path()).unwrap().documents(), ["b/c.md"]);
        assert!(Corpus::of_folder(&folder.path().join("x")).err().unwrap().to_string().contains("No such"));
    }
}
