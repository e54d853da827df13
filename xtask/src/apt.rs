//! Packages of Debian: may we install them, and one at a time.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use crate::process::output_of;

/// Returns whether this is a Debian on which packages may be installed.
pub(crate) fn can_install() -> bool {
    let run = |program, argument: &str| output_of(program, &[argument], Path::new("."));
    let is_root = run("id", "-u").is_some_and(|user| user.trim_ascii() == b"0");
    is_root && run("apt-get", "--version").is_some()
}

/// Installs a package, without a word. False if it cannot be had.
pub(crate) fn install(package: &str) -> bool {
    /// Stages install beside each other, and apt-get refuses to run twice.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let apt = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        command
            .args(arguments)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let install = ["install", "--yes", "--quiet", "--no-install-recommends", package];
    apt(&install) || apt(&["update", "--quiet"]) && apt(&install)
}
