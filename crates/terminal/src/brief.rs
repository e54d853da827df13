//! Shortens values. Omissions are marked in their place; apart from these marks the text is JSON.

use std::fmt::Write as _;

use serde_json::Value;
use textwrap::core::display_width;

/// The levels of detail, from everything to little: characters of a text, items of a list or an object, and the depth.
const LEVELS: [(usize, usize, usize); 10] = [
    (usize::MAX, usize::MAX, usize::MAX),
    (60, 8, 4),
    (40, 5, 3),
    (28, 4, 3),
    (20, 3, 3),
    (14, 2, 2),
    (10, 2, 2),
    (8, 1, 2),
    (6, 1, 1),
    (6, 1, 0),
];

/// A value in one line of at most `width` columns: JSON in which long texts end in `…`, and left-out items are counted as
/// `…+3`.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_terminal::brief;
///
/// assert_eq!(brief(&json!([1, 2, 3]), 40), "[1, 2, 3]");
/// assert_eq!(brief(&json!({"sql": "SELECT name FROM zones WHERE latitude < 0"}), 30), r#"{"sql": "SELECT name F…"}"#);
/// assert_eq!(brief(&json!([[1, 2, 3], [4, 5, 6], [7, 8, 9]]), 16), "[[1, …+2], …+2]");
/// ```
pub fn brief(value: &Value, width: usize) -> String {
    fitting(width, |level| shown(value, level, 0))
}

/// The arguments of a call as `key=value, ...`, in at most `width` columns. Arguments that are not an object are shown as
/// text.
pub(crate) fn brief_arguments(arguments: &str, width: usize) -> String {
    match serde_json::from_str(arguments) {
        Ok(Value::Object(fields)) => fitting(width, |level| {
            let mut line = String::new();
            for (number, (key, value)) in fields.iter().enumerate() {
                let comma = if number == 0 { "" } else { ", " };
                // Writing to a string cannot fail.
                let _ = write!(line, "{comma}{key}={}", shown(value, level, 1));
            }
            line
        }),
        Ok(value) => brief(&value, width),
        Err(_) => brief_text(arguments, width),
    }
}

/// The result of a tool in one line: JSON, or other text with its white space collapsed.
pub(crate) fn brief_result(text: &str, width: usize) -> String {
    match serde_json::from_str(text) {
        Ok(value @ (Value::Array(_) | Value::Object(_))) => brief(&value, width),
        _ => brief_text(text, width),
    }
}

/// A text in one line of at most `width` columns, which ends in `…` if it was longer.
pub(crate) fn brief_text(text: &str, width: usize) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if display_width(&line) <= width {
        return line;
    }
    // NOTE: Columns, not characters: East Asian characters take two.
    let mut room = width.saturating_sub(1);
    let mut cut = String::new();
    for character in line.chars() {
        let columns = display_width(character.encode_utf8(&mut [0; 4]));
        if columns > room {
            break;
        }
        room -= columns;
        cut.push(character);
    }
    // Cuts between two words, if that loses only a few characters.
    if let Some(end) = cut.rfind(' ').filter(|end| cut.len() - end < 12 && *end > cut.len() / 2) {
        cut.truncate(end);
    }
    cut.push('…');
    cut
}

/// The first level of detail that fits in the width.
fn fitting(width: usize, shown: impl Fn((usize, usize, usize)) -> String) -> String {
    let mut last = String::new();
    for level in LEVELS {
        last = shown(level);
        if display_width(&last) <= width {
            return last;
        }
    }
    brief_text(&last, width)
}

fn shown(value: &Value, level: (usize, usize, usize), depth: usize) -> String {
    let (texts, items, deepest) = level;
    let more = |count: usize| if count > items { format!(", …+{}", count - items) } else { String::new() };
    match value {
        Value::String(text) if text.chars().count() > texts => {
            let cut: String = text.chars().take(texts.saturating_sub(1)).collect();
            let quoted = Value::from(cut.trim_end()).to_string();
            format!("{}…\"", quoted.strip_suffix('"').unwrap_or(&quoted))
        }
        Value::Array(list) if depth >= deepest && !list.is_empty() => format!("[…+{}]", list.len()),
        Value::Array(list) => {
            let shown: Vec<String> =
                list.iter().take(items).map(|item| shown(item, level, depth + 1)).collect();
            format!("[{}{}]", shown.join(", "), more(list.len()))
        }
        Value::Object(fields) if depth >= deepest && !fields.is_empty() => format!("{{…+{}}}", fields.len()),
        Value::Object(fields) => {
            let field = |(key, value): (&String, &Value)| {
                format!("{}: {}", Value::from(key.as_str()), shown(value, level, depth + 1))
            };
            let shown: Vec<String> = fields.iter().take(items).map(field).collect();
            format!("{{{}{}}}", shown.join(", "), more(fields.len()))
        }
        value => value.to_string(),
    }
}
