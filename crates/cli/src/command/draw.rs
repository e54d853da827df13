//! `stepfold draw`: the nodes and edges of a graph as a diagram.

use std::path::Path;

use serde_json::json;

use crate::agent_file::{AgentFile, BuiltFile};
use crate::args::DrawingLanguage;
use crate::error::{CommandEnding, UsageError};
use crate::model::ModelSource;
use crate::show;

pub(super) fn draw(path: &Path, language: DrawingLanguage, json: bool) -> anyhow::Result<CommandEnding> {
    let BuiltFile::Graph(built) = AgentFile::read(path)??.build(&ModelSource::placeholder())?? else {
        let words = format!("{} describes an agent; there is nothing to draw without nodes", path.display());
        return Err(UsageError(words).into());
    };
    let drawing = match language {
        DrawingLanguage::Mermaid => built.graph.to_mermaid(),
        DrawingLanguage::Dot => built.graph.to_dot(),
    };
    show::print(if json { format!("{}\n", json!({"drawing": drawing})) } else { drawing });
    Ok(CommandEnding::Done)
}
