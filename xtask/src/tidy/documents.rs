//! Markdown: links lead somewhere, the README's commands exist, and the status page knows every crate.

use clap::Parser;
use pulldown_cmark::{CodeBlockKind, CowStr, Event, Parser as Markdown, Tag, TagEnd};

use super::rust::{IGNORED_EXAMPLE, is_ignored};
use super::{Facts, File, Problem};
use crate::cli::Cli;
use crate::workspace::Kind;

const README: &str = "README.md";
const STATUS: &str = "docs/status.md";
/// Fences that hold commands.
const SHELL: &[&str] = &["sh", "bash", "console"];
/// What cargo can do by itself, and the tools that CONTRIBUTING.md tells people to install.
const CARGO_COMMANDS: &[&str] = &[
    // The aliases of this repository, in `.cargo/config.toml`.
    "analyst", "research", "add", "bench", "build", "check", "clippy", "deny", "doc", "fmt", "install",
    "nextest", "run", "test", "tree", "update",
];

pub(super) fn check(file: &File, facts: &Facts) -> Vec<Problem> {
    let mut problems = links(file, facts);
    problems.extend(ignored_fences(file));
    if file.path == README {
        problems.extend(commands(file, facts));
    }
    if file.path == STATUS {
        problems.extend(unlisted_crates(file, facts));
    }
    problems
}

/// The pages that other checks read; without them those checks would find nothing.
pub(super) fn missing_pages(facts: &Facts) -> Vec<Problem> {
    let missing = [README, STATUS].into_iter().filter(|&page| !facts.files.contains(page));
    missing
        .map(|page| Problem { path: page.to_owned(), line: 1, message: "the page is not there".to_owned() })
        .collect()
}

/// The line of a byte, counted from 1.
fn line_of(file: &File, offset: usize) -> usize {
    file.text[..offset].matches('\n').count() + 1
}

fn links(file: &File, facts: &Facts) -> Vec<Problem> {
    let events = Markdown::new(&file.text).into_offset_iter();
    let broken = events.filter_map(|(event, range)| {
        let Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) = event else {
            return None;
        };
        let target = local_target(&file.path, &dest_url)?;
        (!exists(&target, facts)).then(|| {
            let message = format!("a link to `{dest_url}`, which is not there");
            Problem::new(file, line_of(file, range.start), message)
        })
    });
    broken.collect()
}

/// The path from the root that a relative link means; none if it leads elsewhere or into its own page.
fn local_target(from: &str, url: &str) -> Option<String> {
    let path = url.split(['#', '?']).next().unwrap_or_default();
    // A scheme, or an item of rustdoc.
    if path.is_empty() || path.contains(':') {
        return None;
    }
    let folder = from.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut parts: Vec<&str> = Vec::new();
    for part in folder.split('/').chain(path.split('/')) {
        match part {
            "" | "." => {}
            // What leads out of the repository stays, so that it is not found.
            ".." if parts.last().is_some_and(|last| *last != "..") => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// Whether this is a file or a folder of the repository, or its root.
fn exists(path: &str, facts: &Facts) -> bool {
    let folder = format!("{path}/");
    path.is_empty()
        || facts.files.contains(path)
        || facts.files.range(folder.clone()..).next().is_some_and(|file| file.starts_with(&folder))
}

/// A fenced block: the words after its backticks, what is in it, and the line of its first line.
struct Fence<'t> {
    info: CowStr<'t>,
    text: String,
    first_line: usize,
}

fn fences(file: &File) -> Vec<Fence<'_>> {
    let mut fences = Vec::new();
    let mut open: Option<Fence<'_>> = None;
    for (event, range) in Markdown::new(&file.text).into_offset_iter() {
        match event {
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(info))) => {
                open = Some(Fence { info, text: String::new(), first_line: line_of(file, range.start) + 1 });
            }
            Event::Text(text) => {
                if let Some(fence) = &mut open {
                    fence.text.push_str(&text);
                }
            }
            Event::End(TagEnd::CodeBlock) => fences.extend(open.take()),
            _ => {}
        }
    }
    fences
}

fn ignored_fences(file: &File) -> Vec<Problem> {
    let fences = fences(file).into_iter();
    fences
        .filter(|fence| is_ignored(&fence.info))
        .map(|fence| Problem::new(file, fence.first_line - 1, IGNORED_EXAMPLE))
        .collect()
}

fn commands(file: &File, facts: &Facts) -> Vec<Problem> {
    let fences = fences(file);
    let shell = fences.iter().filter(|fence| SHELL.contains(&&*fence.info));
    let lines = shell.flat_map(|fence| {
        let lines = fence.text.lines().enumerate();
        lines.map(|(index, line)| (fence.first_line + index, line))
    });
    lines
        .filter_map(|(number, line)| {
            let fault = fault_of_command(line, facts)?;
            Some(Problem::new(file, number, fault))
        })
        .collect()
}

/// What is wrong with a line of a shell block; none if it is fine or no command of ours.
fn fault_of_command(line: &str, facts: &Facts) -> Option<String> {
    let line = line.trim().trim_start_matches("$ ");
    let line = line.split(" #").next().unwrap_or_default();
    let words = line.split_whitespace();
    // `NAME=value` before a command sets a variable for it.
    let words: Vec<&str> = words.skip_while(|word| word.contains('=')).collect();
    match words.as_slice() {
        ["cargo", "xtask", arguments @ ..] => fault_of_xtask(arguments),
        ["cargo", command, arguments @ ..] => fault_of_cargo(command, arguments, facts),
        [script, ..] if script.starts_with("./") => fault_of_script(script, facts),
        _ => None,
    }
}

fn fault_of_xtask(arguments: &[&str]) -> Option<String> {
    let words = ["xtask"].iter().chain(arguments);
    let error = Cli::try_parse_from(words).err()?;
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default();
    Some(format!("`cargo xtask {}` does not exist: {first}", arguments.join(" ")))
}

fn fault_of_cargo(command: &str, arguments: &[&str], facts: &Facts) -> Option<String> {
    if !CARGO_COMMANDS.contains(&command) {
        return Some(format!("`cargo {command}` is no command that cargo has"));
    }
    // What follows `--` is for the program.
    let ours = arguments.split(|word| *word == "--").next().unwrap_or_default();
    let package = value_of(ours, &["-p", "--package"]);
    if let Some(package) = package.filter(|package| !facts.packages.contains(*package)) {
        return Some(format!("there is no package `{package}`"));
    }
    let kinds = [
        ("--example", Kind::Example, "example"),
        ("--bin", Kind::Binary, "binary"),
        ("--bench", Kind::Bench, "bench"),
        ("--test", Kind::Test, "integration test"),
    ];
    kinds.into_iter().find_map(|(flag, kind, what)| {
        let name = value_of(ours, &[flag])?;
        let found = facts.targets.iter().any(|target| {
            target.kind == kind
                && target.name == name
                && package.is_none_or(|package| target.package == package)
        });
        (!found).then(|| match package {
            Some(package) => format!("package `{package}` has no {what} `{name}`"),
            None => format!("there is no {what} `{name}`"),
        })
    })
}

/// The value of an option, written `--name value` or `--name=value`.
fn value_of<'w>(words: &[&'w str], names: &[&str]) -> Option<&'w str> {
    words.iter().enumerate().find_map(|(index, word)| {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (*word, words.get(index + 1).copied()),
        };
        names.contains(&name).then_some(value).flatten()
    })
}

fn fault_of_script(script: &str, facts: &Facts) -> Option<String> {
    let is_there = facts.files.contains(script.trim_start_matches("./"));
    (!is_there).then(|| format!("there is no file `{script}`"))
}

fn unlisted_crates(file: &File, facts: &Facts) -> Vec<Problem> {
    let rows = file.text.lines().filter_map(|line| line.trim().strip_prefix('|'));
    let first_cells = rows.filter_map(|row| row.split('|').next());
    let listed: Vec<&str> = first_cells.map(|cell| cell.trim().trim_matches('`')).collect();
    let missing = facts.packages.iter().filter(|package| !listed.contains(&package.as_str()));
    missing.map(|package| Problem::new(file, 1, format!("no row for the crate `{package}`"))).collect()
}

#[cfg(test)]
mod tests {
    use super::{check, missing_pages};
    use crate::tidy::Facts;
    use crate::tidy::testing::{file, lines};
    use crate::workspace::{Kind, Target};

    fn facts() -> Facts {
        let target =
            |kind, name: &str| Target { package: "stepfold".to_owned(), kind, name: name.to_owned() };
        let owned = |name: &str| name.to_owned();
        Facts {
            files: ["README.md", "docs/status.md", "docs/guide/start.md", ".ci/run"].map(owned).into(),
            packages: ["stepfold", "stepfold-tools"].map(owned).into(),
            targets: vec![target(Kind::Example, "tour"), target(Kind::Bench, "state")],
        }
    }

    #[track_caller]
    fn expect(path: &str, text: &str, expected: &[&str]) {
        assert_eq!(lines(&check(&file(path, text), &facts())), expected, "{text}");
    }

    #[track_caller]
    fn expect_command(command: &str, expected: &[&str]) {
        expect("README.md", &format!("# Title\n\n```sh\n{command}\n```\n"), expected);
    }

    #[test]
    fn links_that_lead_somewhere_pass() {
        expect(
            "docs/guide/start.md",
            "[up](../../README.md) [there](../status.md#row) [folder](../guide) [root](../..)\n\
             [page](#part) [web](https://example.org/none.md) [item](crate::State)\n\n\
             `[code](none.md)`\n\n```text\n[code](none.md)\n```\n",
            &[],
        );
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        expect(
            "docs/status.md",
            "| stepfold |\n| stepfold-tools |\n[a](none.md)\n\n[b][ref] ![c](../../out.png)\n\n[ref]: ./gone.md#x\n",
            &[
                "3: a link to `none.md`, which is not there",
                "5: a link to `./gone.md#x`, which is not there",
                "5: a link to `../../out.png`, which is not there",
            ],
        );
    }

    #[test]
    fn ignored_fences_are_found() {
        let message = format!("3: {}", super::IGNORED_EXAMPLE);
        expect("docs/a.md", "# Title\n\n```rust,ignore\na();\n```\n", &[&message]);
        expect("docs/a.md", "# Title\n\n```rust\na();\n```\n", &[]);
    }

    #[test]
    fn commands_that_exist_pass() {
        expect_command("cargo xtask ci --long   # the whole truth", &[]);
        expect_command("$ cargo run --example tour -p stepfold -- --example none", &[]);
        expect_command("PROPTEST_CASES=1 cargo test --package=stepfold-tools", &[]);
        expect_command("./.ci/run\ngit clone somewhere\n# a comment", &[]);
        // Another page may show commands of other repositories.
        expect("docs/a.md", "```sh\ncargo xtask nothing\n```\n", &[]);
    }

    #[test]
    fn commands_that_xtask_does_not_have_are_found() {
        expect_command(
            "cargo xtask lint",
            &["4: `cargo xtask lint` does not exist: error: unrecognized subcommand 'lint'"],
        );
        expect_command(
            "cargo xtask ci --slow",
            &["4: `cargo xtask ci --slow` does not exist: error: unexpected argument '--slow' found"],
        );
    }

    #[test]
    fn commands_that_name_what_is_not_there_are_found() {
        expect_command("cargo frobnicate", &["4: `cargo frobnicate` is no command that cargo has"]);
        expect_command("cargo test -p stepfold-tool", &["4: there is no package `stepfold-tool`"]);
        expect_command("cargo run --example tours", &["4: there is no example `tours`"]);
        expect_command(
            "cargo run --example tour -p stepfold-tools",
            &["4: package `stepfold-tools` has no example `tour`"],
        );
        expect_command("cargo run --bin stepfolder", &["4: there is no binary `stepfolder`"]);
        expect_command("cargo bench --bench=chat", &["4: there is no bench `chat`"]);
        expect_command("cargo test --test it", &["4: there is no integration test `it`"]);
        expect_command("./run", &["4: there is no file `./run`"]);
    }

    #[test]
    fn the_pages_that_are_checked_have_to_be_there() {
        assert_eq!(missing_pages(&facts()), []);
        assert_eq!(
            lines(&missing_pages(&Facts::default())),
            ["1: the page is not there", "1: the page is not there"]
        );
    }

    #[test]
    fn a_crate_without_a_row_is_found() {
        expect(
            "docs/status.md",
            "| crate | works |\n|---|---|\n| `stepfold` | all |\n| stepfold-tools | |\n",
            &[],
        );
        expect(
            "docs/status.md",
            "| crate | works |\n|---|---|\n| `stepfold-tools` | stepfold |\n",
            &["1: no row for the crate `stepfold`"],
        );
    }
}
