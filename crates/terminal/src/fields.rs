//! Shows a structured answer field by field.

use serde_json::{Map, Value};

use crate::text::{StyledText, TextStyle};

/// Values below this depth are shown as JSON.
const DEEPEST: usize = 4;

/// Shows a complete object, a line for each field, nested fields indented, in lines of at most `width` columns after a
/// sign of two columns.
pub(crate) fn fields(object: &Map<String, Value>, sign: &StyledText, width: usize) -> StyledText {
    let mut lines = Vec::new();
    of_object(object, 1, &mut lines);
    let mut shown = StyledText::default();
    for (number, FieldLine { depth, head, value }) in lines.into_iter().enumerate() {
        let margin = "  ".repeat(depth);
        match number {
            0 => shown.append(sign),
            _ => shown.push(TextStyle::PLAIN, &format!("\n{margin}")),
        }
        let line =
            StyledText::from(&margin).with(TextStyle::DIM, head).and(&value).wrapped(width, 0, 2 * depth + 2);
        // Lines of a text are indented like the lines after a wrap.
        shown.append(&line.slice(margin.len()..line.len()));
    }
    shown
}

struct FieldLine {
    depth: usize,
    head: String,
    value: String,
}

fn of_object(object: &Map<String, Value>, depth: usize, lines: &mut Vec<FieldLine>) {
    for (key, value) in object {
        add(format!("{key}:"), value, depth, lines);
    }
}

fn add(head: String, value: &Value, depth: usize, lines: &mut Vec<FieldLine>) {
    let is_deep = depth > DEEPEST;
    match value {
        Value::Object(object) if !object.is_empty() && !is_deep => {
            lines.push(FieldLine { depth, head, value: String::new() });
            of_object(object, depth + 1, lines);
        }
        Value::Array(list) if !list.is_empty() && !is_deep => {
            lines.push(FieldLine { depth, head, value: String::new() });
            for item in list {
                add("•".to_owned(), item, depth + 1, lines);
            }
        }
        Value::String(text) => {
            let indent = format!("\n{}", "  ".repeat(depth + 1));
            lines.push(FieldLine {
                depth,
                head,
                value: format!(" {}", text.trim_end().replace('\n', &indent)),
            });
        }
        value => lines.push(FieldLine { depth, head, value: format!(" {value}") }),
    }
}
