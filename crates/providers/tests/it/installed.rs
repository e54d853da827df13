//! Peers that `cargo xtask interop` installs.

use std::io::Write as _;
use std::path::PathBuf;

/// The value of a variable that `cargo xtask interop` sets: where a peer is. Without it, says that the test is skipped.
#[expect(clippy::disallowed_methods, reason = "cargo xtask interop passes it in the environment")]
pub(crate) fn installed(variable: &str) -> Option<PathBuf> {
    let found = std::env::var_os(variable).map(PathBuf::from);
    if found.is_none() {
        let _ = writeln!(std::io::stderr(), "skipped: {variable} is not set; run `cargo xtask interop`");
    }
    found
}
