//! The expansion reaches nothing by a name that a user may have taken.
#![deny(warnings)]
#![allow(dead_code)]

mod core {}
mod stepfold_tools {}
type Result<T> = std::result::Result<T, std::fmt::Error>;
struct Option;
struct Ok;
struct Args;
struct ToolBuilder;
#[allow(non_upper_case_globals)]
const arguments: u8 = 1;
#[allow(non_upper_case_globals)]
const extracted0: u8 = 1;

mod facade {
    pub use ::stepfold_tools as tools;
}

/// Serialises nothing and derives nothing: the user's crate may know neither serde nor schemars.
mod tools {
    use ::stepfold_tools::{ResultSource, ToolContext, tool};

    /// Adds.
    #[tool(output_to_state("sum", ResultSource::Whole))]
    pub async fn add(
        /// The first.
        left: i64,
        #[default(2)] right: i64,
        context: ToolContext,
    ) -> super::Result<i64> {
        drop(context);
        std::result::Result::Ok(left + right)
    }

    /// Borrows its context for as long as it runs.
    #[tool]
    pub(crate) async fn lend(name: String, context: &ToolContext) -> String {
        std::future::ready(()).await;
        format!("{name} {}", context.tool_name())
    }

    /// Gives the path of the crate itself, as one would for the facade under another name.
    #[tool(crate = "crate::facade::tools")]
    pub(super) fn at(r#where: String, mut many: usize, _ignored: bool) -> usize {
        many += r#where.len();
        many
    }
}

fn main() {
    for builder in [tools::add_tool(), tools::lend_tool(), tools::at_tool()] {
        builder.build().unwrap();
    }
}
