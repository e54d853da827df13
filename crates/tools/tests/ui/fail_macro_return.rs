//! A function whose result has no JSON form, or whose future may not leave its thread.
#![allow(unused)]

use std::rc::Rc;

use stepfold_tools::{ToolError, tool};

struct Report;
struct Failure;

/// Gives what cannot be serialised.
#[tool]
fn plain() -> Report {
    Report
}

/// The same in a `Result`.
#[tool]
async fn wrapped() -> Result<Report, ToolError> {
    Ok(Report)
}

/// Fails with what is not an error.
#[tool]
fn failing() -> Result<u32, Failure> {
    Err(Failure)
}

/// Holds an `Rc` while it waits.
#[tool]
async fn waiting() -> u32 {
    let shared = Rc::new(1);
    std::future::ready(()).await;
    *shared
}

fn main() {}
