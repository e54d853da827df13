//! PostgreSQL for the tests that start a server of their own: is it there, and if not, can we get it?

use std::fs;
use std::path::Path;

use crate::apt;
use crate::console::say;

/// Debian's folder of the programs, with a subfolder for each version.
const DEBIAN: &str = "/usr/lib/postgresql";
const OTHERS: &[&str] =
    &["/usr/local/bin/initdb", "/usr/local/pgsql/bin/initdb", "/usr/bin/initdb", "/opt/homebrew/bin/initdb"];

/// Returns whether a server can be started here.
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
        if apt::can_install() { Postgres::Installable } else { Postgres::Missing }
    }
}

/// Installs Debian's packages: the server, and a pooler. That it cannot be had is not a failure: the tests say that they were skipped.
pub(crate) fn install() {
    if !apt::install("postgresql") {
        say("   `apt-get install postgresql` failed: the tests over PostgreSQL are skipped, and say so");
    }
    if !apt::install("pgbouncer") {
        say("   `apt-get install pgbouncer` failed: the tests through a pooler are skipped, and say so");
    }
}
