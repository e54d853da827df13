//! The laws of evaluation.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    reason = "a helper of a test fails the test, and counts in tests are small"
)]

mod analyst;
mod clerk;
mod continued;
mod faults;
mod files;
mod interchange;
mod laws;
mod live;
mod losses;
mod planted;
mod redacted;
mod redacted_agents;
mod schema;
mod streamed;
mod taken;
mod timeouts;
mod words;
