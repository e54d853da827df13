//! The analyst as a person runs it: whole, killed at any moment, forked, and asked for what it has not.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod analyst;
