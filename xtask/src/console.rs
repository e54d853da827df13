//! The messages of xtask itself, on standard output; the programs that it starts have their own.

use std::fmt::Display;

/// Prints one line.
#[expect(clippy::print_stdout, reason = "a command line tool speaks on standard output")]
pub(crate) fn say(line: impl Display) {
    println!("{line}");
}
