//! What a terminal and a pipe show, as text.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod markdown;
mod screen;
mod view;
