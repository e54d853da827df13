//! What stands in `#[tool(..)]`.
#![allow(unused)]

use std::time::Duration;

use stepfold_tools::{Approval, Effect, Retry, tool};

/// A call that the builder does not have.
#[tool(effect(Effect::Pure), timeut(Duration::from_secs(2)))]
fn unknown() {}

/// A name twice.
#[tool(name = "one", name = "two")]
fn twice() {}

/// Not an effect.
#[tool(effect(Effect::Impure))]
fn effect() {}

/// Not an approval.
#[tool(approval("sometimes"))]
fn approval() {}

/// Not a time.
#[tool(timeout("2 sec"))]
fn timeout() {}

/// Not a text.
#[tool(name = 7)]
fn name() {}

/// No number of times.
#[tool(retry(Retry::times()))]
fn retry() {}

/// Not a call.
#[tool(writes = "key")]
fn writes() {}

/// Not a list.
#[tool(writes("key"))]
fn one_key() {}

/// No source.
#[tool(output_to_state("key"))]
fn no_source() {}

/// Not an expression.
#[tool(output_to_state("key", ?))]
fn expression() {}

/// It waits, so it does not compute.
#[tool(cpu)]
async fn cpu() {}

fn main() {}
