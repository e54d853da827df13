//! An argument of a type for which no JSON Schema can be made.
#![allow(unused)]

use stepfold_tools::tool;

#[derive(serde::Deserialize)]
struct Query(String);

/// Searches.
#[tool]
fn search(limit: u32, query: Query) -> String {
    query.0
}

fn main() {}
