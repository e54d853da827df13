//! What an author reads when a tool's function has the wrong form.
//!
//! The expected messages in `tests/ui/*.stderr` are those of one version of rustc, since every version
//! words its errors again. Under another version only the passing cases are compiled. Who moves to a new
//! toolchain changes the constant, runs `TRYBUILD=overwrite cargo test -p stepfold-tools --test it ui`, and
//! *reads* what changed: a message that does not help its reader is a bug.

use std::process::Command;

use trybuild::TestCases;

/// The version that wrote the expected messages.
const WRITTEN_BY: &str = "rustc 1.95.";

#[test]
fn messages_are_readable() {
    let cases = TestCases::new();
    cases.pass("tests/ui/pass_*.rs");
    let version = Command::new("rustc").arg("--version").output().expect("Cargo runs tests beside rustc");
    if version.stdout.starts_with(WRITTEN_BY.as_bytes()) {
        cases.compile_fail("tests/ui/fail_*.rs");
    }
}
