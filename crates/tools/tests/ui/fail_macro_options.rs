//! What stands in `#[tool(..)]`.
#![allow(unused)]

use stepfold_tools::tool;

/// An option that there is not.
#[tool(effect = "pure", timeout = "2s")]
fn unknown() {}

/// An option twice.
#[tool(effect = "pure", effect = "idempotent")]
fn twice() {}

/// Not an effect.
#[tool(effect = "impure")]
fn effect() {}

/// Not an approval.
#[tool(approval = "sometimes")]
fn approval() {}

/// Not a time.
#[tool(time_out = "2 sec")]
fn time_out() {}

/// Not a text.
#[tool(name = 7)]
fn name() {}

/// No number of times.
#[tool(retry(after = "1s"))]
fn retry() {}

/// Not in parentheses.
#[tool(writes = "key")]
fn writes() {}

/// Not a source.
#[tool(outputs_to_state(key = field))]
fn source() {}

/// No source.
#[tool(outputs_to_state(key))]
fn no_source() {}

/// Not a handler.
#[tool(outputs_to_state(key("field", handler = "append")))]
fn handler() {}

/// A key twice.
#[tool(outputs_to_state(key = "field", "key" = whole))]
fn key() {}

/// It waits, so it does not compute.
#[tool(cpu)]
async fn cpu() {}

fn main() {}
