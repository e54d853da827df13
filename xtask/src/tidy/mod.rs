//! `cargo xtask tidy`: what no compiler looks at.
//!
//! Each check is a pure function of a file, or of the files' names and what cargo knows; its test feeds it
//! a violation. A check that is wrong about your code is a bug of the check: mend it here.

mod documents;
mod figures;
mod growth;
mod rust;
mod text;
mod words;

use std::collections::BTreeSet;
use std::fmt;

use crate::Error;
use crate::cli::TidyOptions;
use crate::console::say;
use crate::workspace::{self, Target};

/// A file of the repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its path from the root, with forward slashes.
    pub path: String,
    /// What is in it.
    pub text: String,
}

/// What the checks know beside the file they look at.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Every file of the repository.
    pub files: BTreeSet<String>,
    /// Every crate of the workspace.
    pub packages: BTreeSet<String>,
    /// Everything cargo can build.
    pub targets: Vec<Target>,
}

/// Something untidy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file.
    pub path: String,
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong, and what to do about it.
    pub message: String,
}

impl Problem {
    fn new(file: &File, line: usize, message: impl Into<String>) -> Self {
        Problem { path: file.path.clone(), line, message: message.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// Everything untidy about one file.
pub fn check(file: &File, facts: &Facts) -> Vec<Problem> {
    let mut problems = text::check(file);
    problems.extend(words::check(file));
    if file.has_extension("rs") {
        problems.extend(rust::check(file));
    }
    if file.has_extension("md") {
        problems.extend(documents::check(file, facts));
    }
    if file.path.ends_with("/api.txt") {
        problems.extend(growth::check(file));
    }
    problems
}

impl File {
    fn has_extension(&self, extension: &str) -> bool {
        let (_, found) = self.path.rsplit_once('.').unwrap_or_default();
        found == extension
    }
}

/// Checks the workspace that the current folder is in, and prints each problem, or the figures of its source.
///
/// # Errors
/// When the workspace cannot be read, or is untidy.
pub fn run(options: TidyOptions) -> Result<(), Error> {
    let metadata = workspace::metadata()?;
    let root = metadata.workspace_root.as_std_path();
    let facts = Facts {
        files: workspace::files(root)?.into_iter().collect(),
        packages: workspace::package_names(&metadata),
        targets: workspace::targets(&metadata),
    };
    let mut problems = documents::missing_pages(&facts);
    let mut figures = figures::Figures::default();
    for path in &facts.files {
        // Files that are not text have no prose.
        let Some(text) = workspace::read_text(root.join(path))? else {
            continue;
        };
        let file = File { path: path.clone(), text };
        problems.extend(check(&file, &facts));
        figures.add(&file);
    }
    problems.extend(figures.check());
    if options.figures {
        say(&figures);
    }
    for problem in &problems {
        say(problem);
    }
    match problems.len() {
        0 => {
            say(format_args!("tidy: {} files are in order", facts.files.len()));
            Ok(())
        }
        count => Err(Error::Problems { check: "tidy", count }),
    }
}

/// What the tests of every check share.
#[cfg(test)]
mod testing {
    use super::{File, Problem};

    pub(super) fn file(path: &str, text: &str) -> File {
        File { path: path.to_owned(), text: text.to_owned() }
    }

    /// One line for each problem, without the path.
    pub(super) fn lines(problems: &[Problem]) -> Vec<String> {
        let line = |problem: &Problem| format!("{}: {}", problem.line, problem.message);
        problems.iter().map(line).collect()
    }
}
