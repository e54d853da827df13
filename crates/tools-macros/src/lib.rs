//! The attribute macro `#[tool]`: a documented function becomes a tool.
//!
//! Use it through `stepfold-tools`, which re-exports it with its documentation and its examples. This crate
//! only reads tokens and writes tokens: it has no opinion about tools that is not already in the builder of
//! `stepfold-tools`, and what it writes could be written by hand.
//!
//! In the order of reading: `expand` (the whole), `options` (what stands in `#[tool(..)]`), `parameter`
//! (what each parameter is), `docs` (the description), `host` (under which path `stepfold-tools` is found).

mod docs;
mod expand;
mod faults;
mod host;
mod options;
mod parameter;

use proc_macro::TokenStream;

/// Makes a tool of a documented function.
#[proc_macro_attribute]
pub fn tool(options: TokenStream, item: TokenStream) -> TokenStream {
    expand::tool(options.into(), &item.into()).into()
}
