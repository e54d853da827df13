//! `cargo xtask layers`: who may depend on whom, and on which libraries.
//!
//! [`rules`] is the whole policy as data, `crates` holds the facts of cargo, [`check()`] compares
//! the two and is pure. To allow a new edge, change `rules` (in a commit of its own, with its reason) and
//! the table in `ARCHITECTURE.md`; a test holds the two together.

mod check;
mod crates;
pub mod rules;

pub use self::check::{Violation, check};
pub use self::crates::{Crate, Edge, EdgeKind, WorkspaceCrates};

use crate::console::say;
use crate::{Error, workspace};

/// Checks the workspace that the current folder is in, and prints what is wrong.
///
/// # Errors
/// When the workspace cannot be read, or breaks a rule.
pub fn run() -> Result<(), Error> {
    let workspace = WorkspaceCrates::from_metadata(&workspace::metadata()?)?;
    let violations = check(&workspace);
    for violation in &violations {
        say(violation);
    }
    match violations.len() {
        0 => {
            say(format_args!("layers: {} crates, every arrow points down", workspace.crates.len()));
            Ok(())
        }
        count => Err(Error::Problems { check: "layers", count }),
    }
}
