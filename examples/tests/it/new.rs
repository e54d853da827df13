//! The program that `stepfold new --rust` writes is compiled here, and its test runs.

#[allow(dead_code, reason = "the program starts with `main`, and this one does not")]
#[path = "../../../crates/cli/templates/rust/main.rs"]
mod program;
