//! The function API: a parameter that is not an extractor.
use stepfold_tools::{Tool, ToolContext, ToolError};

async fn search(query: String, _context: ToolContext) -> Result<String, ToolError> {
    Ok(query)
}

fn main() {
    let _ = Tool::new("search", "Searches.", search);
}
