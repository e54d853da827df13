//! Toolsets: which tools the model may use at a step.
//!
//! A [`Toolset`] is what an author declares; [`Tools`] are what it lists at one step. In between stands
//! one pure function that puts the tools of all parts in a row and refuses names that stand twice.

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
pub use self::source::ToolSource;
pub use self::tools::Tools;
pub use self::toolset::Toolset;
