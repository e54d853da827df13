//! `stepfold keys`: the rotation of a key ring's wrapping key.

use std::path::Path;

use serde_json::json;

use crate::error::CommandEnding;
use crate::{keys, show};

pub(super) async fn rotate(path: &Path, json: bool) -> anyhow::Result<CommandEnding> {
    let count = keys::rotate(path).await?;
    match json {
        true => show::line(json!({"keys": count}).to_string()),
        false => show::line(format!(
            "the first wrapping key wraps the keys of {}",
            show::counted(count as u64, "user")
        )),
    }
    Ok(CommandEnding::Done)
}
