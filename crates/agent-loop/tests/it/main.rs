//! The tests of the whole crate, at its boundaries, in one binary.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::needless_pass_by_value,
    reason = "a helper of a test fails the test, and an `Expect` reads best inline"
)]

mod oracle;
mod regressions;
mod simulated;
mod trim;
