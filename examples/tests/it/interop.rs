//! The studio of the examples in a browser. `cargo xtask interop` installs what drives it, and says where it is.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use expect_test::expect_file;
use serde_json::{Value, json};

use crate::installed::installed;

/// A stranger looks for the call that wrote a value, sees why a call failed, forks before it, resumes what was killed, and
/// approves what waits.
#[test]
fn the_studio_of_the_examples() {
    let Some(playwright) = installed("STEPFOLD_INTEROP_PLAYWRIGHT") else { return };
    let Some(chromium) = program("chromium") else {
        let _ = writeln!(std::io::stderr(), "skipped: chromium is not installed");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/cli/tests/interop/studio_example.cjs");
    let mut page = Command::new("node");
    page.env("STEPFOLD_INTEROP_PLAYWRIGHT", playwright).current_dir(folder.path());
    let output = page.arg(script).arg(chromium).arg(env!("CARGO_BIN_EXE_studio")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let mut seen: Value = serde_json::from_slice(&output.stdout).unwrap();
    // No request to another host, nothing that the policy has refused, no error.
    for what in ["foreign", "refused", "errors"] {
        assert_eq!(seen[what].take(), json!([]), "{what}");
    }
    seen.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    expect_file!["../../../crates/cli/tests/interop/studio_example.json"].assert_eq(&format!("{seen:#}\n"));
}

/// A program of `PATH`.
#[expect(clippy::disallowed_methods, reason = "where programs are is said in the environment")]
fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|program| program.is_file())
}
