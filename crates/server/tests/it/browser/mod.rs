//! Chromium, driven by playwright-core, which `cargo xtask interop` installs. Its tests begin with `interop`.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::process::Command;

use crate::installed::installed;

/// Runs a script of `tests/it/browser` in node, with this configuration as its argument. It finds playwright-core and
/// Chromium in its environment, and prints JSON. `None` without a browser.
pub(crate) async fn play(script: &str, configuration: &Value) -> Option<Value> {
    let playwright = installed("STEPFOLD_INTEROP_PLAYWRIGHT")?;
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/browser").join(script);
    let chromium = on_path("chromium").expect("`chromium` is on the path wherever the peer is installed");
    let mut command = Command::new("node");
    command.arg(script).arg(configuration.to_string());
    command.env("STEPFOLD_INTEROP_PLAYWRIGHT", playwright).env("CHROMIUM", chromium).kill_on_drop(true);
    let output = command.output().await.expect("node starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    Some(serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}")))
}

/// What a script of `tests/it/browser` makes of a list in node, without a browser, with this path as its argument. `None`
/// without node.
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
pub(crate) fn in_node<T: DeserializeOwned>(
    script: &str,
    path: &Path,
    list: &[impl Serialize],
) -> Option<Vec<T>> {
    let mut node = std::process::Command::new("node");
    node.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/browser").join(script)).arg(path);
    let Ok(mut node) = node.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() else {
        eprintln!("skipped: there is no node");
        return None;
    };
    let list = serde_json::to_vec(list).unwrap();
    let mut input = node.stdin.take().unwrap();
    // It may answer before it has read all.
    let writes = std::thread::spawn(move || input.write_all(&list));
    let output = node.wait_with_output().unwrap();
    writes.join().unwrap().unwrap();
    assert!(output.status.success());
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

#[expect(clippy::disallowed_methods, reason = "the browser is where the system has it")]
fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}
