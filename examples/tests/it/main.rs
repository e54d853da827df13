//! The programs as a person runs them: whole, killed at any moment, forked, and asked for what they have not.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod analyst;
mod deep_research;
mod small;
