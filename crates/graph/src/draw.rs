//! A graph as a drawing, in the languages of Mermaid and Graphviz.

use std::fmt::Write;

use super::node::OnError;
use super::shape::{Edge, Shape, Target};

/// An arrow of the drawing.
struct Arrow {
    from: Place,
    to: Place,
    label: Option<String>,
    is_dashed: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Place {
    Start,
    Node(usize),
    End,
}

impl From<Target> for Place {
    fn from(target: Target) -> Self {
        match target {
            Target::Node(place) => Place::Node(place),
            Target::End => Place::End,
        }
    }
}

impl Place {
    fn id(self) -> String {
        match self {
            Place::Start => "start".to_owned(),
            Place::Node(place) => format!("n{place}"),
            Place::End => "end_".to_owned(),
        }
    }
}

/// All arrows, in the order in which nodes and edges were declared. Those of choices are dashed.
fn arrows(shape: &Shape) -> Vec<Arrow> {
    let mut arrows = Vec::new();
    add_edges(&mut arrows, Place::Start, &shape.start);
    for (place, edges) in shape.edges.iter().enumerate() {
        add_edges(&mut arrows, Place::Node(place), edges);
        let node = &shape.nodes[place];
        let mut add = |name: &str, label: Option<&str>| {
            let to = shape.place(name).map_or(Place::End, Place::Node);
            let label = label.map(str::to_owned);
            arrows.push(Arrow { from: Place::Node(place), to, label, is_dashed: true });
        };
        node.goes_to.iter().for_each(|name| add(name, None));
        if let OnError::Goto(name) = &node.on_error {
            add(name, Some("on error"));
        }
        if let Some(name) = &node.at_limit {
            add(name, Some("at its limit"));
        }
    }
    for join in &shape.joins {
        arrows.extend(join.from.iter().map(|from| Arrow {
            from: Place::Node(*from),
            to: Place::Node(join.to),
            label: Some("all".to_owned()),
            is_dashed: false,
        }));
    }
    arrows
}

fn add_edges(arrows: &mut Vec<Arrow>, from: Place, edges: &[Edge]) {
    for edge in edges {
        match edge {
            Edge::To(target) => {
                arrows.push(Arrow { from, to: (*target).into(), label: None, is_dashed: false });
            }
            Edge::Route { targets, .. } => arrows.extend(targets.iter().map(|target| Arrow {
                from,
                to: (*target).into(),
                label: None,
                is_dashed: true,
            })),
            Edge::Each { node, of, .. } => {
                let label = Some(format!("each of {of}"));
                arrows.push(Arrow { from, to: Place::Node(*node), label, is_dashed: false });
            }
        }
    }
}

pub(super) fn mermaid(shape: &Shape) -> String {
    let mut text = "flowchart TD\n    start([START])\n".to_owned();
    for (place, name) in shape.names.iter().enumerate() {
        let _ = writeln!(text, "    n{place}[\"{}\"]", escaped_for_mermaid(name));
    }
    let arrows = arrows(shape);
    if arrows.iter().any(|arrow| arrow.to == Place::End) {
        text.push_str("    end_([END])\n");
    }
    for Arrow { from, to, label, is_dashed } in arrows {
        let line = if is_dashed { "-.->" } else { "-->" };
        let label = label.map(|label| format!("|\"{}\"|", escaped_for_mermaid(&label))).unwrap_or_default();
        let _ = writeln!(text, "    {} {line}{label} {}", from.id(), to.id());
    }
    text
}

/// As Mermaid's own codes: what would end the text, or be taken for one of them, for HTML or for Markdown.
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

pub(super) fn dot(name: &str, shape: &Shape) -> String {
    let mut text =
        format!("digraph \"{}\" {{\n    start [label=\"START\", shape=oval];\n", escaped_for_dot(name));
    for (place, name) in shape.names.iter().enumerate() {
        let _ = writeln!(text, "    n{place} [label=\"{}\", shape=box];", escaped_for_dot(name));
    }
    let arrows = arrows(shape);
    if arrows.iter().any(|arrow| arrow.to == Place::End) {
        text.push_str("    end_ [label=\"END\", shape=oval];\n");
    }
    for Arrow { from, to, label, is_dashed } in arrows {
        let mut attributes = Vec::new();
        attributes.extend(label.map(|label| format!("label=\"{}\"", escaped_for_dot(&label))));
        attributes.extend(is_dashed.then(|| "style=dashed".to_owned()));
        let attributes = match attributes.is_empty() {
            true => String::new(),
            false => format!(" [{}]", attributes.join(", ")),
        };
        let _ = writeln!(text, "    {} -> {}{attributes};", from.id(), to.id());
    }
    text.push_str("}\n");
    text
}

fn escaped_for_dot(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}
