//! PostgreSQL for the tests that start a server of their own: is it there, and if not, can we get it?

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::console::say;
use crate::process::output_of;

/// Where Debian keeps the programs, below a folder for each version.
const DEBIAN: &str = "/usr/lib/postgresql";
const OTHERS: &[&str] =
    &["/usr/local/bin/initdb", "/usr/local/pgsql/bin/initdb", "/usr/bin/initdb", "/opt/homebrew/bin/initdb"];

/// Whether a server can be started here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Postgres {
    /// The programs are there.
    Installed,
    /// They are not, but this is a Debian and we may install packages.
    Installable,
    /// They are not, and it is not for us to get them.
    Missing,
}

impl Postgres {
    /// Looks.
    pub(crate) fn look() -> Self {
        let versions = fs::read_dir(DEBIAN).into_iter().flatten().flatten();
        let debian = versions.map(|version| version.path().join("bin/initdb")).any(|path| path.exists());
        if debian || OTHERS.iter().any(|path| Path::new(path).exists()) {
            return Postgres::Installed;
        }
        let run = |program, argument: &str| output_of(program, &[argument], Path::new("."));
        let is_root = run("id", "-u").is_some_and(|user| user.trim_ascii() == b"0");
        if is_root && run("apt-get", "--version").is_some() {
            Postgres::Installable
        } else {
            Postgres::Missing
        }
    }
}

/// Installs Debian's package. That it cannot be had is no failure: the tests say that they were skipped.
pub(crate) fn install() {
    let apt = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        command
            .args(arguments)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let install = ["install", "--yes", "--quiet", "--no-install-recommends", "postgresql"];
    let is_there = apt(&install) || apt(&["update", "--quiet"]) && apt(&install);
    if !is_there {
        say("   `apt-get install postgresql` failed: the tests over PostgreSQL are skipped, and say so");
    }
}
