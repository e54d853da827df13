//! Rust sources: the first line, tests that do not run or that sleep, work left undone, and who may ask the
//! world.
//!
//! The checks look at tokens, not at text, so that strings and comments may say anything, and calls inside
//! macros such as `proptest!` are seen.

use std::str::FromStr;

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

use super::{File, Problem, words};

/// Macros that stand for work left undone.
const UNFINISHED: &[&str] = &["todo", "unimplemented", "dbg"];
const SLEEPS: &[&str] = &["sleep", "sleep_ms", "sleep_until"];
const SLEEP_ALLOWED: &str = "// tidy: allow sleep, because ";
/// Where clocks, random ids and the environment may be asked, beside tests, benches and examples.
/// A macro works inside the compiler, and is told by the environment for which crate. The loop's ports have
/// defaults in one file, and tests replace them. A program that is a server of tools is found by `PATH`.
const WORLDLY: &[&str] = &[
    "crates/agent-loop/src/ports.rs",
    "crates/mcp/src/process.rs",
    "crates/restate/",
    "crates/exam/",
    "crates/runner/",
    "crates/server/src/http/",
    "crates/providers/",
    "crates/cli/",
    "crates/tools-macros/",
    "examples/",
    "xtask/",
];

pub(super) fn check(file: &File) -> Vec<Problem> {
    let mut problems = Vec::new();
    problems.extend(first_line(file));
    problems.extend(ignored_examples(file));
    match TokenStream::from_str(&file.text) {
        Ok(tokens) => {
            // Tests and benches, which cargo keeps beside `src`.
            let is_test = is_in("tests", &file.path) || is_in("benches", &file.path);
            walk(tokens, is_test, &mut |place| {
                problems.extend(check_place(file, place));
                problems.extend(words::check_literal(file, place.token, place.is_test || is_doc(place)));
            });
        }
        Err(error) => {
            let line = error.span().start().line;
            problems.push(Problem::new(file, line, "this is not Rust"));
        }
    }
    problems
}

/// Whether this is the text of a documentation comment, which is checked as prose.
fn is_doc(place: &Place<'_>) -> bool {
    matches!(place.before, [TokenTree::Ident(name), sign] if *name == "doc" && is_sign(sign, '='))
}

fn first_line(file: &File) -> Option<Problem> {
    (!file.text.starts_with("//!"))
        .then(|| Problem::new(file, 1, "the file does not open with `//!`: say what it is for"))
}

/// Fences in documentation that rustdoc skips.
fn ignored_examples(file: &File) -> Vec<Problem> {
    let lines = file.text.lines().enumerate();
    let ignored = lines.filter(|(_, line)| {
        let line = line.trim_start();
        let doc = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        let fence = doc.and_then(|doc| doc.trim_start().strip_prefix("```"));
        fence.is_some_and(is_ignored)
    });
    ignored.map(|(index, _)| Problem::new(file, index + 1, IGNORED_EXAMPLE)).collect()
}

pub(super) const IGNORED_EXAMPLE: &str =
    "an ignored example; make it run, or mark it `no_run`, or `text` if it is no Rust";

/// Whether the words after a fence's backticks say that rustdoc skips it.
pub(super) fn is_ignored(info: &str) -> bool {
    info.split([',', ' ']).any(|word| word == "ignore" || word.starts_with("ignore-"))
}

/// Whether the path leads through a folder of this name.
fn is_in(folder: &str, path: &str) -> bool {
    path.split('/').any(|part| part == folder)
}

/// One token, with its neighbours.
struct Place<'t> {
    before: &'t [TokenTree],
    token: &'t TokenTree,
    after: &'t [TokenTree],
    /// Whether only tests see this token.
    is_test: bool,
}

impl Place<'_> {
    fn line(&self) -> usize {
        self.token.span().start().line
    }

    fn follows(&self, sign: char) -> bool {
        self.before.last().is_some_and(|token| is_sign(token, sign))
    }
}

/// Calls `visit` for every token, those inside groups included.
fn walk(tokens: TokenStream, is_test: bool, visit: &mut impl FnMut(&Place<'_>)) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    // Set by a test attribute, until the item that carries it is over.
    let mut item_is_test = false;
    for (index, token) in tokens.iter().enumerate() {
        let (before, rest) = tokens.split_at(index);
        visit(&Place { before, token, after: &rest[1..], is_test: is_test || item_is_test });
        match token {
            TokenTree::Group(group) => {
                walk(group.stream(), is_test || item_is_test, visit);
                item_is_test |= is_test_attribute(before, group);
                if group.delimiter() == Delimiter::Brace {
                    item_is_test = false;
                }
            }
            token if is_sign(token, ';') => item_is_test = false,
            _ => {}
        }
    }
}

/// `#[test]`, `#[tokio::test]`, `#[cfg(test)]`, but not `#[cfg(not(test))]`.
pub(super) fn is_test_attribute(before: &[TokenTree], group: &Group) -> bool {
    is_attribute(before, group) && {
        let words = words(group.stream());
        let is_condition = words.first().is_some_and(|word| word == "cfg");
        let names_test = words.iter().any(|word| word == "test");
        if is_condition { names_test && !words.iter().any(|word| word == "not") } else { names_test }
    }
}

fn is_attribute(before: &[TokenTree], group: &Group) -> bool {
    let inner = before.last().is_some_and(|token| is_sign(token, '!'));
    let sign = before.len().checked_sub(if inner { 2 } else { 1 });
    group.delimiter() == Delimiter::Bracket && sign.is_some_and(|index| is_sign(&before[index], '#'))
}

pub(super) fn is_sign(token: &TokenTree, sign: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == sign)
}

/// Every identifier of the stream, those inside groups included.
fn words(tokens: TokenStream) -> Vec<String> {
    let mut words = Vec::new();
    walk(tokens, false, &mut |place| {
        if let TokenTree::Ident(word) = place.token {
            words.push(word.to_string());
        }
    });
    words
}

fn check_place(file: &File, place: &Place<'_>) -> Option<Problem> {
    match place.token {
        TokenTree::Group(group) => ignored_test(file, place, group),
        TokenTree::Ident(word) => {
            let word = word.to_string();
            unfinished(file, place, &word)
                .or_else(|| sleep(file, place, &word))
                .or_else(|| worldly(file, place, &word))
        }
        _ => None,
    }
}

fn ignored_test(file: &File, place: &Place<'_>, group: &Group) -> Option<Problem> {
    if !is_attribute(place.before, group) {
        return None;
    }
    let words = words(group.stream());
    let is_ignored = match words.first()?.as_str() {
        "ignore" => true,
        "cfg_attr" => words.iter().any(|word| word == "ignore"),
        _ => false,
    };
    is_ignored.then(|| {
        let message = "an ignored test; assert what happens today and say why it is wrong";
        Problem::new(file, place.line(), message)
    })
}

fn unfinished(file: &File, place: &Place<'_>, word: &str) -> Option<Problem> {
    let is_macro = matches!(place.after, [sign, TokenTree::Group(_), ..] if is_sign(sign, '!'));
    (is_macro && UNFINISHED.contains(&word))
        .then(|| Problem::new(file, place.line(), format!("`{word}!` left in the code")))
}

fn sleep(file: &File, place: &Place<'_>, word: &str) -> Option<Problem> {
    let is_call = matches!(place.after.first(), Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Parenthesis);
    let is_declared = matches!(place.before.last(), Some(TokenTree::Ident(before)) if *before == "fn");
    let is_function = is_call && !is_declared && !place.follows('.');
    let is_allowed = || {
        let mut lines = file.text.lines().skip(place.line().saturating_sub(2));
        let reason = lines.next().and_then(|line| line.trim_start().strip_prefix(SLEEP_ALLOWED));
        reason.is_some_and(|reason| !reason.is_empty())
    };
    (place.is_test && SLEEPS.contains(&word) && is_function && !is_allowed()).then(|| {
        let message = "a test that sleeps; wait for the event itself, or write on the line before: \
                       `// tidy: allow sleep, because ...`";
        Problem::new(file, place.line(), message)
    })
}

fn worldly(file: &File, place: &Place<'_>, word: &str) -> Option<Problem> {
    let is_permitted = place.is_test
        || is_in("examples", &file.path)
        || WORLDLY.iter().any(|folder| file.path.starts_with(folder));
    (word == "disallowed_methods" && !is_permitted).then(|| {
        let message =
            "below the runner no code reads clocks, luck or the environment: take the value as an argument";
        Problem::new(file, place.line(), message)
    })
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::tidy::testing::{file, lines};

    fn expect_at(path: &str, body: &str, expected: &[&str]) {
        let problems = check(&file(path, &format!("//! A file.\n{body}\n")));
        assert_eq!(lines(&problems), expected, "{path}: {body}");
    }

    const SLEEPING: &str = "a test that sleeps; wait for the event itself, or write on the line before: \
                            `// tidy: allow sleep, because ...`";

    #[test]
    fn every_source_file_opens_with_what_it_is_for() {
        for path in ["src/a.rs", "tests/it/main.rs", "benches/b.rs", "examples/e.rs", "build.rs"] {
            let problems = check(&file(path, "// A file.\nfn main() {}\n"));
            assert_eq!(lines(&problems), ["1: the file does not open with `//!`: say what it is for"]);
            expect_at(path, "fn main() {}", &[]);
        }
    }

    #[test]
    fn ignored_tests_are_found() {
        let message = "an ignored test; assert what happens today and say why it is wrong";
        for attribute in ["#[ignore]", "#[ignore = \"slow\"]", "#[cfg_attr(miri, ignore)]"] {
            let body = format!("#[test]\n{attribute}\nfn a() {{}}");
            expect_at("src/a.rs", &body, &[&format!("3: {message}")]);
        }
        expect_at("src/a.rs", "proptest! { #[ignore] fn a() {} }", &[&format!("2: {message}")]);
        expect_at("src/a.rs", "#[serde(ignore)] struct A; const B: &str = \"#[ignore]\";", &[]);
    }

    #[test]
    fn ignored_examples_are_found() {
        for fence in ["ignore", "rust,ignore", "ignore-windows"] {
            let body = format!("/// ```{fence}\n/// a();\n/// ```\nfn a() {{}}");
            expect_at("src/a.rs", &body, &[&format!("2: {}", super::IGNORED_EXAMPLE)]);
        }
        expect_at("src/a.rs", "/// ```no_run\n/// a();\n/// ```\nfn a() {}", &[]);
    }

    #[test]
    fn sleeping_tests_are_found_in_test_folders_and_test_modules() {
        let call = "fn a() { std::thread::sleep(second()); }";
        expect_at("tests/it/main.rs", call, &[&format!("2: {SLEEPING}")]);
        expect_at(
            "crates/a/tests/it.rs",
            "async fn a() { tokio::time::sleep(x).await }",
            &[&format!("2: {SLEEPING}")],
        );
        expect_at("src/a.rs", &format!("#[cfg(test)]\nmod tests {{ {call} }}"), &[&format!("3: {SLEEPING}")]);
        expect_at(
            "src/a.rs",
            "#[tokio::test]\nasync fn a() { select!(sleep(x)); }",
            &[&format!("3: {SLEEPING}")],
        );
    }

    #[test]
    fn sleeping_is_allowed_with_a_reason_and_outside_tests() {
        let call = "    std::thread::sleep(x);\n}";
        let allowed =
            format!("fn a() {{\n    // tidy: allow sleep, because the server has no other sign.\n{call}");
        expect_at("tests/a.rs", &allowed, &[]);
        let without_reason = format!("fn a() {{\n    // tidy: allow sleep, because \n{call}");
        expect_at("tests/a.rs", &without_reason, &[&format!("4: {SLEEPING}")]);
        expect_at("src/a.rs", &format!("fn a() {{\n{call}"), &[]);
        expect_at("src/a.rs", &format!("#[cfg(not(test))]\nfn a() {{\n{call}"), &[]);
        // A test module before it does not make the next item a test.
        expect_at("src/a.rs", &format!("#[cfg(test)]\nmod tests {{}}\nfn a() {{\n{call}"), &[]);
        // A fake clock has a method of this name.
        expect_at("tests/a.rs", "fn a() { clock.sleep(x); } fn sleep(x: u8) {}", &[]);
    }

    #[test]
    fn unfinished_work_is_found() {
        for name in super::UNFINISHED {
            let body = format!("fn a() {{\n    {name}!();\n}}");
            expect_at("src/a.rs", &body, &[&format!("3: `{name}!` left in the code")]);
        }
        expect_at("src/a.rs", "/// No todo!() here.\nfn a(todo: u8) -> bool { todo != 1 }", &[]);
    }

    #[test]
    fn the_world_is_not_asked_below_the_runner() {
        let body = "#[expect(clippy::disallowed_methods, reason = \"now\")]\nfn a() {}";
        expect_at(
            "crates/state-core/src/a.rs",
            body,
            &[
                "2: below the runner no code reads clocks, luck or the environment: take the value as an argument",
            ],
        );
        expect_at("crates/runner/src/clock.rs", body, &[]);
        expect_at("crates/state-core/benches/a.rs", body, &[]);
        expect_at("crates/stepfold/examples/tour.rs", body, &[]);
        expect_at("crates/state-core/src/a.rs", &format!("#[cfg(test)]\nmod tests {{ {body} }}"), &[]);
    }

    #[test]
    fn what_is_not_rust_is_said_so() {
        expect_at("src/a.rs", "fn a() {", &["2: this is not Rust"]);
    }
}
