//! Scripts that others run for a test, in Chromium as well, and what they saw.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::installed::installed;

/// A script that drives Chromium, with its path as the first argument; none where one of them is not installed.
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
pub(crate) fn in_chromium(script: &Path) -> Option<Command> {
    let playwright = installed("STEPFOLD_INTEROP_PLAYWRIGHT")?;
    let Some(chromium) = program("chromium") else {
        eprintln!("skipped: chromium is not installed");
        return None;
    };
    let mut page = Command::new("node");
    page.env("STEPFOLD_INTEROP_PLAYWRIGHT", playwright).arg(script).arg(chromium);
    Some(page)
}

/// What a client tells, as JSON.
pub(crate) fn told(client: &mut Command) -> Value {
    let output = client.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"))
}

/// What a script of the studio saw.
pub(crate) fn seen_in_chromium(page: &mut Command) -> Value {
    let mut seen = told(page);
    // No request to another host, nothing that the policy has refused, no error.
    for what in ["foreign", "refused", "errors"] {
        assert_eq!(seen[what].take(), json!([]), "{what}");
    }
    seen.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    seen
}

/// A program of `PATH`.
#[expect(clippy::disallowed_methods, reason = "where programs are is said in the environment")]
fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|program| program.is_file())
}
