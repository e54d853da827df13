//! The workspace: its crates, targets and files.
//!
//! Everything is read from the current folder upwards, as cargo does it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use cargo_metadata::{CargoOpt, Metadata, MetadataCommand, TargetKind};
use walkdir::{DirEntry, WalkDir};

use crate::Error;
use crate::process::output_of;

/// The workspace with every feature on.
///
/// # Errors
/// When `cargo metadata` fails.
pub fn metadata() -> Result<Metadata, Error> {
    Ok(MetadataCommand::new().features(CargoOpt::AllFeatures).exec()?)
}

/// Something that cargo can build: a library, a binary, an example, ...
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The package it belongs to.
    pub package: String,
    /// The kind of target.
    pub kind: Kind,
    /// Its own name.
    pub name: String,
}

/// The kind of a target, as far as xtask needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A program.
    Binary,
    /// A program that shows something.
    Example,
    /// A benchmark.
    Bench,
    /// An integration test.
    Test,
    /// Anything else.
    Other,
}

/// Every target of every crate of the workspace.
pub fn targets(metadata: &Metadata) -> Vec<Target> {
    metadata
        .workspace_packages()
        .into_iter()
        .flat_map(|package| {
            package.targets.iter().map(|target| Target {
                package: package.name.to_string(),
                kind: kind_of(&target.kind),
                name: target.name.clone(),
            })
        })
        .collect()
}

fn kind_of(kinds: &[TargetKind]) -> Kind {
    match kinds.first() {
        Some(TargetKind::Bin) => Kind::Binary,
        Some(TargetKind::Example) => Kind::Example,
        Some(TargetKind::Bench) => Kind::Bench,
        Some(TargetKind::Test) => Kind::Test,
        _ => Kind::Other,
    }
}

/// The names of the crates of the workspace.
pub fn package_names(metadata: &Metadata) -> BTreeSet<String> {
    metadata.workspace_packages().into_iter().map(|package| package.name.to_string()).collect()
}

/// The files that are or would be committed, relative to `root`, in order.
///
/// # Errors
/// When git is absent and the folder cannot be walked.
pub fn files(root: &Path) -> Result<Vec<String>, Error> {
    let mut files = match files_from_git(root) {
        Some(files) => files,
        None => files_from_walk(root)?,
    };
    files.sort();
    files.dedup();
    Ok(files)
}

fn files_from_git(root: &Path) -> Option<Vec<String>> {
    let arguments = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let output = output_of("git", &arguments, root)?;
    let listed = String::from_utf8(output).ok()?;
    let existing = listed
        .split_terminator('\0')
        // A file that is deleted but not yet committed is still listed.
        .filter(|file| root.join(file).is_file())
        .map(str::to_owned);
    Some(existing.collect())
}

fn files_from_walk(root: &Path) -> Result<Vec<String>, Error> {
    let is_ours = |entry: &DirEntry| entry.file_name() != "target" && entry.file_name() != ".git";
    let mut files = Vec::new();
    for entry in WalkDir::new(root).into_iter().filter_entry(is_ours) {
        let entry = entry?;
        if entry.file_type().is_file() {
            files.push(relative(root, entry.path()));
        }
    }
    Ok(files)
}

/// `path` below `root`, with forward slashes on every system.
pub(crate) fn relative(root: &Path, path: &Path) -> String {
    let below = path.strip_prefix(root).unwrap_or(path);
    let parts = below.components().map(|part| part.as_os_str().to_string_lossy());
    parts.collect::<Vec<_>>().join("/")
}

/// The text of a file; none if it is not text.
///
/// # Errors
/// When it cannot be read.
pub(crate) fn read_text(path: PathBuf) -> Result<Option<String>, Error> {
    let bytes = std::fs::read(&path).map_err(Error::read(path))?;
    Ok(String::from_utf8(bytes).ok())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{files_from_git, files_from_walk};

    #[test]
    fn a_walk_without_git_finds_what_git_finds() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut walked = files_from_walk(root).unwrap();
        walked.sort();
        assert!(walked.contains(&"src/workspace.rs".to_owned()));
        if let Some(mut listed) = files_from_git(root) {
            listed.sort();
            assert_eq!(walked, listed);
        }
    }
}
