//! A graph as a drawing, in the languages of Mermaid and Graphviz.

use std::fmt::Write;

use super::graph_shape::{EdgeKind, GraphEdge, GraphShape};
use stepfold_agent_loop::plan::{END, START};

/// The drawing's name of a node, of the start or of the end.
fn id(shape: &GraphShape, name: &str) -> String {
    match name {
        START => "start".to_owned(),
        // NOTE: In lower case `end` is a keyword of Mermaid.
        END => "end_".to_owned(),
        name => {
            let index = shape.nodes.iter().position(|node| node.name == name);
            index.map(|index| format!("n{index}")).unwrap_or_default()
        }
    }
}

/// The label of an edge, if it has one.
fn label(edge: &GraphEdge) -> Option<String> {
    match &edge.kind {
        EdgeKind::Always | EdgeKind::Choice => None,
        EdgeKind::Each { of } => Some(format!("each of {of}")),
        EdgeKind::Join => Some("all".to_owned()),
        EdgeKind::OnError => Some("on error".to_owned()),
        EdgeKind::AtLimit => Some("at its limit".to_owned()),
    }
}

/// Whether an edge is dashed: where it depends on what happens.
fn is_dashed(edge: &GraphEdge) -> bool {
    matches!(edge.kind, EdgeKind::Choice | EdgeKind::OnError | EdgeKind::AtLimit)
}

fn has_end(shape: &GraphShape) -> bool {
    shape.edges.iter().any(|edge| edge.to == END)
}

pub(super) fn mermaid(shape: &GraphShape) -> String {
    let mut text = "flowchart TD\n    start([START])\n".to_owned();
    for (index, node) in shape.nodes.iter().enumerate() {
        let _ = writeln!(text, "    n{index}[\"{}\"]", escaped_for_mermaid(&node.name));
    }
    if has_end(shape) {
        text.push_str("    end_([END])\n");
    }
    for edge in &shape.edges {
        let line = if is_dashed(edge) { "-.->" } else { "-->" };
        let label =
            label(edge).map(|label| format!("|\"{}\"|", escaped_for_mermaid(&label))).unwrap_or_default();
        let _ = writeln!(text, "    {} {line}{label} {}", id(shape, &edge.from), id(shape, &edge.to));
    }
    text
}

/// Escapes characters that would end the text, or be taken for codes, HTML or Markdown: as Mermaid's own codes.
fn escaped_for_mermaid(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '"' | '&' | '<' | '>' | '#' | '`' | '\\' => {
                let _ = write!(escaped, "#{};", u32::from(character));
            }
            character => escaped.push(character),
        }
    }
    escaped
}

pub(super) fn dot(shape: &GraphShape) -> String {
    let mut text = format!(
        "digraph \"{}\" {{\n    start [label=\"START\", shape=oval];\n",
        escaped_for_dot(&shape.name)
    );
    for (index, node) in shape.nodes.iter().enumerate() {
        let _ = writeln!(text, "    n{index} [label=\"{}\", shape=box];", escaped_for_dot(&node.name));
    }
    if has_end(shape) {
        text.push_str("    end_ [label=\"END\", shape=oval];\n");
    }
    for edge in &shape.edges {
        let mut attributes = Vec::new();
        attributes.extend(label(edge).map(|label| format!("label=\"{}\"", escaped_for_dot(&label))));
        attributes.extend(is_dashed(edge).then(|| "style=dashed".to_owned()));
        let attributes = match attributes.is_empty() {
            true => String::new(),
            false => format!(" [{}]", attributes.join(", ")),
        };
        let _ = writeln!(text, "    {} -> {}{attributes};", id(shape, &edge.from), id(shape, &edge.to));
    }
    text.push_str("}\n");
    text
}

fn escaped_for_dot(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}
