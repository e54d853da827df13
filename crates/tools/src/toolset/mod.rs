//! Toolsets: the tools that the model may use at a step.
//!
//! An author declares a [`Toolset`]; [`Tools`] are its tools at one step. One pure function concatenates the
//! tools of all parts and rejects duplicate names.

mod parts;
#[cfg(feature = "search")]
mod search;
#[cfg(feature = "search")]
mod search_index;
mod source;
mod tools;
#[expect(clippy::module_inception, reason = "the main type of the module has the module's name")]
mod toolset;

#[cfg(feature = "search")]
pub use self::search::{FOUND_TOOLS, SearchableToolset};
pub use self::source::{RefusedTool, ToolSource};
pub use self::tools::Tools;
pub use self::toolset::Toolset;
