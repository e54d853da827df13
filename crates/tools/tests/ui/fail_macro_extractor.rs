//! An argument that is not an extractor.
#![allow(unused)]

use stepfold_tools::{FromState, tool};

struct Pool;
struct UserName;

/// Searches.
#[tool]
fn search(#[extract] pool: &Pool) {}

/// Greets.
#[tool]
async fn greet(name: FromState<UserName>) {}

fn main() {}
