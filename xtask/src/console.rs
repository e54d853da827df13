//! What xtask itself says, on standard output; the programs it starts write to their own.

use std::fmt::Display;

/// Prints one line.
#[expect(clippy::print_stdout, reason = "a command line tool speaks on standard output")]
pub(crate) fn say(line: impl Display) {
    println!("{line}");
}
