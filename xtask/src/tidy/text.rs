//! White space, and paths that mean something on one machine only.

use super::{File, Problem};

/// Kinds of file that people write by hand; others (data, snapshots) may hold whatever they have to.
const WRITTEN_BY_HAND: &[&str] = &["rs", "md", "toml", "yml", "yaml", "sh"];
const WITHOUT_TABS: &[&str] = &["rs", "md", "toml"];

/// Folders that exist on a developer's machine. In halves, so that this file passes.
const MACHINE_FOLDERS: &[&str] =
    &[concat!("/", "home/"), concat!("/", "work/"), concat!("/", "root/"), concat!("/", "Users/")];

pub(super) fn check(file: &File) -> Vec<Problem> {
    let mut problems = machine_paths(file);
    if WRITTEN_BY_HAND.iter().any(|extension| file.has_extension(extension)) {
        problems.extend(trailing_white_space(file));
        problems.extend(final_newline(file));
    }
    if WITHOUT_TABS.iter().any(|extension| file.has_extension(extension)) {
        problems.extend(tabs(file));
        problems.extend(hidden_imports(file));
    }
    problems
}

/// One problem for each line that `is_wrong` says is.
fn each_line(file: &File, message: &str, is_wrong: impl Fn(&str) -> bool) -> Vec<Problem> {
    let lines = file.text.split('\n').enumerate();
    lines
        .filter(|(_, line)| is_wrong(line))
        .map(|(index, _)| Problem::new(file, index + 1, message))
        .collect()
}

fn trailing_white_space(file: &File) -> Vec<Problem> {
    each_line(file, "white space at the end of the line", |line| line.ends_with(char::is_whitespace))
}

fn tabs(file: &File) -> Vec<Problem> {
    each_line(file, "a tab; indent with spaces", |line| line.contains('\t'))
}

/// A reader who copies an example needs what it imports.
fn hidden_imports(file: &File) -> Vec<Problem> {
    each_line(file, "an import that rustdoc hides; remove the `# ` before it", |line| {
        let line = line.trim_start();
        let text = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")).unwrap_or(line);
        text.trim_start().starts_with(concat!("# ", "use ")) && text.ends_with(';')
    })
}

fn final_newline(file: &File) -> Option<Problem> {
    let text = &file.text;
    let is_right = text.is_empty() || (text.ends_with('\n') && !text.ends_with("\n\n") && text != "\n");
    (!is_right).then(|| {
        let message = "the file does not end in exactly one newline";
        Problem::new(file, text.lines().count().max(1), message)
    })
}

fn machine_paths(file: &File) -> Vec<Problem> {
    each_line(file, "a path of a developer's machine", |line| {
        MACHINE_FOLDERS.iter().any(|folder| has_absolute(line, folder))
    })
}

/// Whether `folder` stands in `line` as the beginning of a path, not as the middle of a longer one.
fn has_absolute(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(index, _)| {
        let before = line[..index].chars().next_back();
        !before.is_some_and(|before| before.is_alphanumeric() || "._-~}*".contains(before))
    })
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::tidy::testing::{file, lines};

    #[test]
    fn clean_text_passes() {
        assert!(check(&file("a.md", "# Title\n\nhttps://example.org/work/of/art\n")).is_empty());
        assert!(check(&file("a.rs", "")).is_empty());
        // Data is not prose: only machine paths count there.
        assert!(check(&file("a.snap", "x \t\n\n")).is_empty());
    }

    #[test]
    fn trailing_white_space_is_found() {
        let problems = check(&file("a.yml", "a:\n  b: 1 \n"));
        assert_eq!(lines(&problems), ["2: white space at the end of the line"]);
    }

    #[test]
    fn a_carriage_return_is_white_space() {
        let problems = check(&file("a.md", "a\r\nb\n"));
        assert_eq!(lines(&problems), ["1: white space at the end of the line"]);
    }

    #[test]
    fn a_tab_is_found() {
        let problems = check(&file("a.rs", "//! a\n\tb\n"));
        assert_eq!(lines(&problems), ["2: a tab; indent with spaces"]);
    }

    #[test]
    fn a_hidden_import_is_found() {
        let expected = "2: an import that rustdoc hides; remove the `# ` before it";
        let import = concat!("# ", "use std::fmt;");
        for text in [format!("//! ```\n//! {import}\n"), format!("```\n{import}\n")] {
            assert_eq!(lines(&check(&file("a.md", &text))), [expected]);
        }
        assert!(check(&file("a.md", "# use it well\n")).is_empty());
    }

    #[test]
    fn a_file_ends_in_exactly_one_newline() {
        for (text, line) in [("a", 1), ("a\n\n", 2), ("\n", 1)] {
            let problems = check(&file("a.toml", text));
            assert_eq!(
                lines(&problems),
                [format!("{line}: the file does not end in exactly one newline")],
                "{text:?}"
            );
        }
    }

    #[test]
    fn a_path_of_a_machine_is_found_in_any_file() {
        for path in ["a.rs", "a.json", ".ci/run"] {
            for folder in super::MACHINE_FOLDERS {
                let problems = check(&file(path, &format!("first\nsee {folder}x\n")));
                assert_eq!(lines(&problems), ["2: a path of a developer's machine"]);
            }
        }
    }
}
