//! Conversations: their stored form, their notation, what makes them well-formed, and the model port.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::needless_pass_by_value,
    reason = "helpers of tests: clippy.toml exempts only what is inside a `#[test]` itself, and an `Expect` \
              reads best inline"
)]

mod arbitrary;

mod call_ids;
mod check;
mod json;
mod model;
mod notation;
mod repair;
mod turns;
