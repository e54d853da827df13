//! The root `clippy.toml` does its work: a crate that asks the world fails Clippy, with the reason.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

const MANIFEST: &str = r#"
[package]
name = "violation"
version = "0.0.0"
edition = "2024"

[workspace]
"#;

const SOURCE: &str = "
pub fn world() -> bool {
    let _ = std::time::SystemTime::now();
    let _ = std::time::Instant::now();
    std::env::var(\"HOME\").is_ok() || std::env::var_os(\"HOME\").is_some() || std::env::vars().count() > 0
}
";

#[test]
#[expect(clippy::print_stdout, reason = "who reads the test's output sees that it was skipped")]
fn a_crate_that_asks_the_world_fails_clippy() {
    if !xtask::process::has_cargo_command("clippy") {
        println!("skipped: clippy is not installed");
        return;
    }
    let errors = clippy(&violation().unwrap()).unwrap();
    for (method, reason) in [
        ("std::time::SystemTime::now", "a replay must see the recorded time"),
        ("std::time::Instant::now", "a replay must see the recorded time"),
        ("std::env::var", "a library has no opinion on its host"),
        ("std::env::var_os", "a library has no opinion on its host"),
        ("std::env::vars", "a library has no opinion on its host"),
    ] {
        assert!(
            errors.contains(&format!("use of a disallowed method `{method}`")),
            "{method} passed:\n{errors}"
        );
        assert!(errors.contains(reason), "no reason:\n{errors}");
    }
    assert!(!errors.contains("error reading Clippy's configuration file"), "{errors}");
    // A path that no longer resolves would guard nothing.
    assert!(!errors.contains("does not refer to"), "{errors}");
}

/// A crate of its own that breaks the rules, under the root's `clippy.toml`.
fn violation() -> io::Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("violation");
    fs::create_dir_all(folder.join("src"))?;
    fs::write(folder.join("Cargo.toml"), MANIFEST)?;
    fs::write(folder.join("src/lib.rs"), SOURCE)?;
    fs::copy(root.join("clippy.toml"), folder.join("clippy.toml"))?;
    Ok(folder)
}

/// What Clippy says about the crate, which has to fail.
fn clippy(folder: &Path) -> io::Result<String> {
    let output = Command::new("cargo")
        .args(["clippy", "--offline", "--color", "never", "--", "-D", "warnings"])
        .current_dir(folder)
        .env("CARGO_TARGET_DIR", folder.join("target"))
        .output()?;
    assert!(!output.status.success(), "Clippy found nothing");
    Ok(String::from_utf8_lossy(&output.stderr).into_owned())
}
