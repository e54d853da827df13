//! Wording: phrases of documentation and of messages that have a plainer word.

use std::path::Path;

use proc_macro2::TokenTree;

use super::{File, Problem};

/// The crates and pages whose texts are checked.
const CHECKED: &[&str] = &[
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "README.md",
    "changes/",
    "crates/agent-loop/",
    "crates/cli/",
    "crates/eval/",
    "crates/exam/",
    "crates/graph/",
    "crates/mcp/",
    "crates/otel/",
    "crates/providers/",
    "crates/restate/",
    "crates/runner/",
    "crates/server/",
    "crates/session-scopes/",
    "crates/state-core/",
    "crates/stepfold/",
    "crates/tools-macros/",
    "crates/tools/",
    "crates/terminal/",
    "crates/trim/",
    "docs/",
    "examples/",
    "xtask/",
];

/// Texts that are data: documents for a search, a report that an agent wrote, and the phrases themselves.
const NOT_CHECKED: &[&str] =
    &["examples/deep_research/report.md", "examples/deep_research/rust/", "xtask/src/tidy/words.rs"];

/// A phrase, and the words to use instead.
struct Phrase {
    words: &'static str,
    better: &'static str,
    /// After this word the phrase is plain English.
    except_after: &'static str,
}

const fn phrase(words: &'static str, better: &'static str) -> Phrase {
    Phrase { words, better, except_after: "" }
}

const PHRASES: &[Phrase] = &[
    phrase("all the same", "`anyway`, or `force`"),
    phrase("anew", "`again`"),
    phrase("came of", "the result, or the outcome"),
    phrase("comes to", "the result itself (`the text of a reply`)"),
    phrase("cut off", "`truncated` or `interrupted`"),
    phrase("given up on", "`abandoned`"),
    // What a model reads at the end of a summary stays as it is.
    Phrase { words: "goes on", better: "`continues`", except_after: "conversation" },
    phrase("goes another way", "`diverges`"),
    phrase("has to be told", "what is sent, or shown"),
    phrase("holds it up", "`blocks`"),
    phrase("holds up", "`blocks`"),
    phrase("is given up", "`is abandoned`, or `is released`"),
    Phrase { words: "is none", better: "`is missing`, or `None`", except_after: "there" },
    phrase("nobody", "who it is (`no worker`, `no caller`)"),
    phrase("put together", "`built` or `assembled`"),
    phrase("somebody", "who it is (`an approver`, `another worker`)"),
    phrase("time-out", "`timeout`"),
    phrase("unless said", "`by default`"),
    phrase("unless told", "`by default`"),
    phrase("what became of", "the result, or the outcome"),
    phrase("what becomes of", "the result, or the outcome"),
    phrase("went another way", "`diverged`"),
    phrase("went on", "`continued`"),
    phrase("which this value is not", "`expected X, found Y`"),
    phrase("who comes next", "`the next caller`"),
    phrase("whoever", "who it is (`the caller`, `the worker`)"),
];

/// The phrases in a text, each with the line that it begins in, counted from 0. It may go on in the next line.
fn found(lines: &[&str]) -> Vec<(usize, &'static Phrase)> {
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let next = lines.get(index + 1).copied().unwrap_or_default();
        let text = format!("{line} {next}").to_lowercase();
        let begins = |at: usize| at < line.len();
        for phrase in PHRASES {
            let mut places = text.match_indices(phrase.words).map(|(at, _)| at);
            if places.any(|at| begins(at) && is_whole(&text, at, phrase)) {
                found.push((index, phrase));
            }
        }
    }
    found
}

/// Whether the phrase stands at this byte as whole words, and not after its exception.
fn is_whole(text: &str, at: usize, phrase: &Phrase) -> bool {
    let is_letter = |character: Option<char>| character.is_some_and(char::is_alphanumeric);
    let (before, after) = (&text[..at], &text[at + phrase.words.len()..]);
    let is_excepted = !phrase.except_after.is_empty() && before.trim_end().ends_with(phrase.except_after);
    !is_letter(before.chars().next_back()) && !is_letter(after.chars().next()) && !is_excepted
}

fn is_rust(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|extension| extension == "rs")
}

fn is_checked(path: &str) -> bool {
    let is_prose = is_rust(path) || Path::new(path).extension().is_some_and(|extension| extension == "md");
    let is_below = |prefixes: &[&str]| prefixes.iter().any(|prefix| path.starts_with(prefix));
    is_prose && is_below(CHECKED) && !is_below(NOT_CHECKED)
}

/// Whether the literals of a file are those of tests, which are data.
fn is_of_tests(path: &str) -> bool {
    path.contains("/tests/") || path.contains("/benches/")
}

fn problem(file: &File, line: usize, phrase: &Phrase) -> Problem {
    Problem::new(file, line, format!("the phrase \"{}\"; write {}", phrase.words, phrase.better))
}

/// Comments of Rust sources, without the examples of documentation, and Markdown without its code.
pub(super) fn check(file: &File) -> Vec<Problem> {
    if !is_checked(&file.path) {
        return Vec::new();
    }
    let is_rust = is_rust(&file.path);
    let mut is_code = false;
    let prose: Vec<&str> = file.text.lines().map(|line| prose_of(line, is_rust, &mut is_code)).collect();
    found(&prose).into_iter().map(|(index, phrase)| problem(file, index + 1, phrase)).collect()
}

/// The prose of a line; nothing for code.
pub(super) fn prose_of<'l>(line: &'l str, is_rust: bool, is_code: &mut bool) -> &'l str {
    let line = line.trim_start();
    let text = match is_rust {
        true => line.strip_prefix("//").map(|text| text.strip_prefix(['/', '!']).unwrap_or(text)),
        false => Some(line),
    };
    let Some(text) = text else {
        *is_code = false;
        return "";
    };
    if text.trim_start().starts_with("```") {
        *is_code = !*is_code;
        return "";
    }
    if *is_code { "" } else { text.trim() }
}

/// A string literal outside of tests, which may be a message.
pub(super) fn check_literal(file: &File, token: &TokenTree, is_test: bool) -> Vec<Problem> {
    let TokenTree::Literal(literal) = token else { return Vec::new() };
    if is_test || is_of_tests(&file.path) || !is_checked(&file.path) {
        return Vec::new();
    }
    let (text, first) = (literal.to_string(), literal.span().start().line);
    let is_sentence =
        text.contains(' ') && (text.starts_with('"') || text.starts_with("r\"") || text.starts_with("r#"));
    let lines: Vec<&str> = if is_sentence {
        text.lines().map(|line| line.trim_end_matches('\\').trim()).collect()
    } else {
        Vec::new()
    };
    found(&lines).into_iter().map(|(index, phrase)| problem(file, first + index, phrase)).collect()
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::tidy::testing::{file, lines};

    #[track_caller]
    fn expect(path: &str, text: &str, expected: &[&str]) {
        let file = file(path, text);
        let mut problems = check(&file);
        if super::is_rust(path) {
            problems.extend(crate::tidy::rust::check(&file));
        }
        assert_eq!(lines(&problems), expected, "{text}");
    }

    const NOBODY: &str = "the phrase \"nobody\"; write who it is (`no worker`, `no caller`)";
    const UNLESS_SAID: &str = "the phrase \"unless said\"; write `by default`";

    #[test]
    fn phrases_are_found_in_documentation() {
        expect("crates/trim/src/a.rs", "//! Nobody waits.\nfn a() {}\n", &[&format!("1: {NOBODY}")]);
        expect(
            "crates/trim/src/a.rs",
            "//! A.\n/// 5 unless\n/// said.\nfn a() {}\n",
            &[&format!("2: {UNLESS_SAID}")],
        );
        expect("crates/trim/README.md", "# A\n\n5 unless said.\n", &[&format!("3: {UNLESS_SAID}")]);
        expect("crates/trim/src/a.rs", "//! A.\n// Nobody waits.\nfn a() {}\n", &[&format!("2: {NOBODY}")]);
        expect("crates/trim/tests/it/a.rs", "//! Nobody.\n", &[&format!("1: {NOBODY}")]);
    }

    #[test]
    fn phrases_are_found_in_messages() {
        let body = "//! A.\nfn a() {\n    b(\"one \\\n      nobody\");\n}\n";
        expect("crates/trim/src/a.rs", body, &[&format!("4: {NOBODY}")]);
        expect(
            "crates/trim/src/a.rs",
            "//! A.\n#[error(\"nobody waits\")]\nstruct A;\n",
            &[&format!("2: {NOBODY}")],
        );
    }

    #[test]
    fn other_text_passes() {
        for text in [
            "//! A busybody; the outcomes to store; if there is none.\n",
            "//! A.\n/// ```\n/// nobody();\n/// ```\nfn a() {}\n",
            "//! A.\nfn nobody() {} // nobody\n",
            "//! A.\n#[cfg(test)]\nmod tests { const A: &str = \"nobody\"; }\n",
        ] {
            expect("crates/trim/src/a.rs", text, &[]);
        }
        expect("crates/trim/README.md", "```text\nnobody\n```\n", &[]);
        expect("crates/trim/tests/it/a.rs", "//! A.\nconst A: &str = \"nobody is here\";\n", &[]);
        expect("CHANGELOG.md", "Nobody.\n", &[]);
    }
}
