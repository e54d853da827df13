//! The programs of one idea each.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What cargo has built of `examples/examples`: it builds them for the tests of the package.
fn programs() -> Vec<PathBuf> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let built = Path::new(env!("CARGO_BIN_EXE_analyst")).with_file_name("examples");
    let sources = sources.read_dir().unwrap().map(|entry| entry.unwrap().path());
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
