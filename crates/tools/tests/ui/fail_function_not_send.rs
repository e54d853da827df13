//! The function API: something that may not leave its thread is held across an `.await`.
use std::rc::Rc;

use stepfold_tools::{Tool, ToolError};

async fn search() -> Result<String, ToolError> {
    let shared = Rc::new(String::new());
    std::future::ready(()).await;
    Ok(shared.to_string())
}

fn main() {
    let _ = Tool::new("search", "Searches.", search);
}
