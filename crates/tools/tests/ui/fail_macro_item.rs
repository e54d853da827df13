//! What `#[tool]` stands on.
#![allow(unused)]

use stepfold_tools::tool;

/// Not a function.
#[tool]
struct Search;

struct Store;

impl Store {
    /// A method.
    #[tool]
    fn search(&self, query: String) -> String {
        query
    }
}

/// Any query.
#[tool]
fn any<T: ToString>(query: T) -> String {
    query.to_string()
}

#[tool]
fn undocumented(query: String) -> String {
    query
}

/// Unsafe.
#[tool]
unsafe fn dangerous() {}

fn main() {
    undocumented(String::new());
}
