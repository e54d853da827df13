//! YAML: a reader, and a writer whose texts mean the same to readers of YAML 1.1, such as PyYAML, and of YAML 1.2.

use std::fmt::Write as _;

use serde_json::{Number, Value};
use serde_saphyr::Budget;

use crate::error::EvalError;

/// Reads one document.
pub(super) fn value_of(text: &str) -> Result<Value, EvalError> {
    let budget = Budget::default();
    // As much as the text has by itself; aliases are bounded by the other limits.
    let options = serde_saphyr::options! {
        with_snippet: false,
        budget: serde_saphyr::budget! {
            max_events: budget.max_events.max(text.len()),
            max_nodes: budget.max_nodes.max(text.len()),
            max_total_scalar_bytes: budget.max_total_scalar_bytes.max(text.len()),
        },
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let location = error.location();
        let text = error.to_string();
        let number = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let (line, column) = match location {
            Some(location) => (number(location.line()), Some(number(location.column()))),
            None => (1, None),
        };
        // The position stands in front.
        let position = format!(" at line {line}, column {}", column.unwrap_or_default());
        EvalError::Line { what: "data set", line, column, why: text.replace(&position, "") }
    })
}

/// Writes an object in block style. All texts are quoted: `no`, `12:30` and `1e3` are texts to some readers and not to others.
pub(super) fn text_of(value: &Value) -> String {
    let mut text = String::new();
    block(&mut text, value, 0);
    text
}

/// Writes the lines of a value that has any.
fn block(text: &mut String, value: &Value, depth: usize) {
    match value {
        Value::Object(fields) => {
            // The name comes first: people read it.
            let (first, others): (Vec<_>, Vec<_>) = fields.iter().partition(|(name, _)| *name == "name");
            for (name, field) in first.into_iter().chain(others) {
                indent(text, depth);
                text.push_str(&key(name));
                text.push(':');
                nested(text, field, depth + 1);
            }
        }
        Value::Array(items) => {
            for item in items {
                indent(text, depth);
                text.push('-');
                nested(text, item, depth + 1);
            }
        }
        _ => nested(text, value, depth),
    }
}

/// Writes what follows a key or a dash.
fn nested(text: &mut String, value: &Value, depth: usize) {
    let inline = match value {
        Value::Object(fields) if fields.is_empty() => "{}".to_owned(),
        Value::Array(items) if items.is_empty() => "[]".to_owned(),
        Value::Object(_) | Value::Array(_) => {
            text.push('\n');
            return block(text, value, depth);
        }
        Value::String(value) => quoted(value),
        Value::Number(value) => number(value),
        Value::Bool(_) | Value::Null => value.to_string(),
    };
    let _ = writeln!(text, " {inline}");
}

fn indent(text: &mut String, depth: usize) {
    text.extend(std::iter::repeat_n("  ", depth));
}

/// A key, which needs no quotes if it is a name that no reader takes for another kind of value.
fn key(name: &str) -> String {
    let is_name = name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
    let lower = name.to_ascii_lowercase();
    let is_value = ["y", "n", "yes", "no", "on", "off", "true", "false", "null"].contains(&lower.as_str());
    if is_name && !is_value { name.to_owned() } else { quoted(name) }
}

/// A text in double quotes, in one line.
fn quoted(value: &str) -> String {
    let mut text = String::from("\"");
    for letter in value.chars() {
        match letter {
            '"' | '\\' => text.extend(['\\', letter]),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            ' '..='~'
            | '\u{a0}'..='\u{2027}'
            | '\u{202a}'..='\u{d7ff}'
            | '\u{e000}'..='\u{fefe}'
            | '\u{ff00}'..='\u{fffd}'
            | '\u{10000}'.. => text.push(letter),
            // Line breaks of YAML, and letters that it does not allow.
            _ => {
                let _ = write!(text, "\\u{:04x}", u32::from(letter));
            }
        }
    }
    text.push('"');
    text
}

/// A number; one with an exponent has a point and a sign, or it is a text in YAML 1.1.
fn number(number: &Number) -> String {
    let text = number.to_string();
    let Some((digits, exponent)) = text.split_once(['e', 'E']) else { return text };
    let point = if digits.contains('.') { "" } else { ".0" };
    let sign = if exponent.starts_with(['-', '+']) { "" } else { "+" };
    format!("{digits}{point}e{sign}{exponent}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

    use serde_json::{Value, json};

    use super::{text_of, value_of};

    #[test]
    fn written_values_are_read_again() {
        let value = json!({
            "name": "yes", "no": ["12:30", "1e3", "~", "", "a\u{85}b\u{2028}\u{7f}\u{feff}\u{1f600}\\\"\n"],
            "numbers": [0, -3, 1.5, 1e100, 1e-9, u64::MAX], "empty": {}, "none": [null, true, []],
            "deep": [[1, [2]], [{"a": {"b": "c"}}]], "a b": {"": 1}, "0": "x: #y",
        });
        assert_eq!(value_of(&text_of(&value)).unwrap(), value);
    }

    #[test]
    fn numbers_with_exponents_are_numbers_of_older_readers_also() {
        assert_eq!(text_of(&json!([1e100])), "- 1.0e+100\n");
        assert_eq!(text_of(&json!({"on": "off"})), "\"on\": \"off\"\n");
    }

    #[test]
    fn faults_name_the_line() {
        let error = value_of("a: 1\nb: [1\n").unwrap_err().to_string();
        assert!(error.starts_with("invalid data set at line "), "{error}");
        assert_eq!(value_of("a: &x [1]\nb: *x\n").unwrap(), json!({"a": [1], "b": [1]}));
        let bomb: String = (0..30).fold("a0: &a0 [x, x]\n".to_owned(), |text, level| {
            text + &format!("a{0}: &a{0} [*a{1}, *a{1}]\n", level + 1, level)
        });
        assert!(value_of(&bomb).is_err(), "aliases are bounded");
        let _: Value = value_of("just a text").unwrap();
    }
}
