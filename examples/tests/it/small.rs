//! The programs of one idea each.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What cargo has built of `examples/examples`: it builds them for the tests of the package.
fn programs() -> Vec<PathBuf> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let built = Path::new(env!("CARGO_BIN_EXE_analyst")).with_file_name("examples");
    let sources = sources.read_dir().unwrap().map(|entry| entry.unwrap().path());
    let sources = sources.filter(|source| cfg!(feature = "restate") || !source.ends_with("many_machines.rs"));
    sources.map(|source| built.join(source.file_stem().unwrap())).collect()
}

/// As in `scopes | head -1`: the work is done anyway.
#[test]
fn a_reader_that_is_gone_is_no_failure() {
    let programs = programs();
    assert!(programs.len() >= 7, "{programs:?}");
    for program in programs {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let run = Command::new(&program).stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped()).output();
        let output = run.unwrap_or_else(|error| panic!("{} does not start: {error}", program.display()));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && errors.is_empty(), "{}: {errors}", program.display());
    }
}

const MANY_MACHINES: &str = include_str!("../../examples/many_machines.rs");

/// The lines of a part of that example between its marks.
fn part(name: &str) -> Vec<&'static str> {
    let from = MANY_MACHINES.split_once(&format!("async fn {name}(")).unwrap().1;
    let part = from.split_once("// begin\n").unwrap().1.split_once("// end").unwrap().0;
    part.lines().map(str::trim).filter(|line| !line.is_empty()).collect()
}

#[test]
fn from_one_machine_to_many_five_lines_change() {
    let (before, after) = (part("over_sqlite"), part("over_restate"));
    let changed = after.iter().filter(|line| !before.contains(line)).count();
    // And two imports.
    assert!(changed > 0 && changed + 2 <= 5, "{changed} lines and two imports");
}
