//! The function API: no `Result` is returned.
use stepfold_tools::{Tool, ToolContext};

async fn search(_context: ToolContext) -> String {
    String::new()
}

fn main() {
    let _ = Tool::new("search", "Searches.", search);
}
