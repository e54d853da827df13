//! How the parameters of a `#[tool]` function are written.
#![allow(unused)]

use stepfold_tools::{Args, ToolContext, tool};

/// All faults at once.
#[tool]
fn form(
    (left, right): (u32, u32),
    anything: impl ToString,
    borrowed: &str,
    context: &mut ToolContext,
    #[default(1)] extractor: ToolContext,
    #[default] #[default(2)] twice: u32,
    #[from_state] no_key: u32,
    #[extract(now)] extract: u32,
    all: Args<u32>,
) {
}

/// More than the function API takes.
#[tool]
fn many(
    argument: u32,
    c1: ToolContext,
    c2: ToolContext,
    c3: ToolContext,
    c4: ToolContext,
    c5: ToolContext,
    c6: ToolContext,
    c7: ToolContext,
    c8: ToolContext,
) {
}

fn main() {}
