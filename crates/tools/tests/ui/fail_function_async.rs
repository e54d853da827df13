//! The function API: `Tool::new` is for async functions, `Tool::blocking` for the others.
use stepfold_tools::{Tool, ToolError};

fn compute() -> Result<u32, ToolError> {
    Ok(1)
}

async fn wait() -> Result<u32, ToolError> {
    Ok(1)
}

fn main() {
    let _ = Tool::new("compute", "Computes.", compute);
    let _ = Tool::blocking("wait", "Waits.", wait);
}
