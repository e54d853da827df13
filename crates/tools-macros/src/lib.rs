//! The attribute macro `#[tool]`: turns a documented function into a tool.
//!
//! Use it through `stepfold-tools`, which re-exports it with documentation and examples. This crate only
//! reads and writes tokens: every rule about tools is in the builder of `stepfold-tools`, and the expansion
//! could be written by hand.
//!
//! In the order of reading: `expand` (the expansion), `options` (the arguments of `#[tool(..)]`), `parameter`
//! (the kinds of parameters), `docs` (the description), `host` (the path of `stepfold-tools`).

mod docs;
mod errors;
mod expand;
mod host;
mod options;
mod parameter;

use proc_macro::TokenStream;

/// Turns a documented function into a tool.
#[proc_macro_attribute]
pub fn tool(options: TokenStream, item: TokenStream) -> TokenStream {
    expand::tool(options.into(), &item.into()).into()
}
