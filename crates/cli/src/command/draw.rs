//! `stepfold draw`: the nodes of a graph and the ways between them.

use std::path::Path;

use serde_json::json;

use crate::agent_file::{AgentFile, Built};
use crate::args::Drawing;
use crate::error::{Ending, Misuse};
use crate::model::Models;
use crate::show;

pub(super) fn draw(path: &Path, language: Drawing, json: bool) -> anyhow::Result<Ending> {
    let Built::Graph(built) = AgentFile::read(path)??.build(&Models::None)?? else {
        let words = format!("{} describes an agent; there is nothing to draw without nodes", path.display());
        return Err(Misuse(words).into());
    };
    let drawing = match language {
        Drawing::Mermaid => built.graph.to_mermaid(),
        Drawing::Dot => built.graph.to_dot(),
    };
    show::print(if json { format!("{}\n", json!({"drawing": drawing})) } else { drawing });
    Ok(Ending::Done)
}
