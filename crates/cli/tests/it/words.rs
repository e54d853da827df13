//! What the command says, in one list: every text in its source that is more than a word. Read it aloud when it changes.
//!
//! The command's errors are texts, not types, so the list is taken from the source. Names and formats that no person reads
//! stand in it too; they are few.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use expect_test::expect_file;
use proc_macro2::{TokenStream, TokenTree};

#[test]
fn everything_that_the_command_says() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut list = String::new();
    for file in files(&source) {
        let tokens: TokenStream = std::fs::read_to_string(&file).unwrap().parse().unwrap();
        let mut texts = Vec::new();
        collect(tokens, &mut texts);
        if texts.is_empty() {
            continue;
        }
        let name = file.strip_prefix(&source).unwrap().display();
        writeln!(list, "# {name}").unwrap();
        for text in texts {
            writeln!(list, "{text}").unwrap();
        }
        list.push('\n');
    }
    expect_file!["words.txt"].assert_eq(&list);
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The texts of a source, in order, without those of attributes (documentation, reasons) and of tests.
fn collect(tokens: TokenStream, texts: &mut Vec<String>) {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Punct(mark) if mark.as_char() == '#' => {
                let inner =
                    tokens.next_if(|next| matches!(next, TokenTree::Punct(mark) if mark.as_char() == '!'));
                let attribute = tokens.next_if(|next| matches!(next, TokenTree::Group(_)));
                let is_test = inner.is_none() && attribute.is_some_and(|it| it.to_string() == "[cfg (test)]");
                if is_test {
                    // What it is about: up to its body.
                    let _ = tokens.by_ref().find(|next| matches!(next, TokenTree::Group(_)));
                }
            }
            TokenTree::Group(group) => collect(group.stream(), texts),
            TokenTree::Literal(literal) => texts.extend(text(&literal.to_string())),
            TokenTree::Ident(_) | TokenTree::Punct(_) => {}
        }
    }
}

/// The text of a literal, if it is one that says something.
fn text(literal: &str) -> Option<String> {
    let text = literal.trim_start_matches('r').trim_matches('#').strip_prefix('"')?.strip_suffix('"')?;
    // A text of several lines continues where the next one begins.
    let lines: Vec<&str> = text.lines().map(|line| line.trim().trim_end_matches('\\')).collect();
    let text = lines.join("");
    let is_said = text.trim().contains(' ') && text.chars().any(char::is_alphabetic);
    is_said.then_some(text)
}
