//! Toolsets: the tools that the model may use at a step.
//!
//! An author declares a [`Toolset`]; [`Tools`] are its tools at one step. One pure function concatenates the
//! tools of all parts and rejects duplicate names.

mod parts;
#[cfg(feature = "search")]
mod recall;
#[cfg(feature = "search")]
mod recall_index;
pub mod recall_parts;
#[cfg(feature = "search")]
mod search;
#[cfg(feature = "search")]
mod search_index;
mod source;
mod tools;
#[expect(clippy::module_inception, reason = "the main type of the module has the module's name")]
mod toolset;

#[cfg(feature = "search")]
pub use self::recall::{RECALL_SEARCH, recall_tools};
#[cfg(feature = "search")]
pub use self::search::{FOUND_TOOLS, SearchableToolset};
pub use self::source::{RefusedTool, ToolSource};
pub use self::tools::Tools;
pub use self::toolset::Toolset;

/// The name of the tool that reads what a model is no longer shown, of the tools for recall (feature `search`). Where an
/// agent has a tool of this name, the line that stands for a cleared result names it.
pub const RECALL_READ: &str = "recall_read";
