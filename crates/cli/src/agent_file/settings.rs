//! Settings of a command line, as if they were lines of the file: `limits.steps=4`, `trim.window=8000`.

use toml::de::{DeTable, DeValue};

use crate::error::UsageError;

/// The settings as lines of TOML. A value that is not TOML is a text.
///
/// # Errors
/// For a setting without `=`, or with a name that is no dotted key.
pub(super) fn lines(settings: &[String]) -> Result<Vec<String>, UsageError> {
    settings
        .iter()
        .map(|setting| {
            let words = || UsageError(format!("invalid setting `{setting}`: expected NAME=VALUE"));
            let (name, value) = setting.split_once('=').ok_or_else(words)?;
            let (name, value) = (name.trim(), value.trim());
            if value.contains(['\n', '\r']) || !is_toml(&format!("{name} = 0")) {
                return Err(words());
            }
            let line = format!("{name} = {value}");
            let quoted = || format!("{name} = {}", serde_json::Value::from(value));
            Ok(if is_toml(&line) { line } else { quoted() })
        })
        .collect()
}

fn is_toml(line: &str) -> bool {
    DeTable::parse(line).is_ok()
}

/// Sets a [padded](padded) line in the table of a file.
pub(super) fn set<'a>(table: &mut DeTable<'a>, padded: &'a str) {
    if let Ok(setting) = DeTable::parse(padded) {
        merge(table, setting.into_inner());
    }
}

/// The line at `start` of a text: places of values are unique in the file and its settings together.
pub(super) fn padded(line: &str, start: usize) -> String {
    format!("{}{line}", " ".repeat(start))
}

fn merge<'a>(into: &mut DeTable<'a>, from: DeTable<'a>) {
    for (name, value) in from {
        match (into.get_mut(name.get_ref().as_ref()).map(toml::Spanned::get_mut), value.get_ref()) {
            (Some(DeValue::Table(inner)), DeValue::Table(_)) => {
                if let DeValue::Table(changed) = value.into_inner() {
                    merge(inner, changed);
                }
            }
            _ => {
                into.insert(name, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_lines_of_the_file() {
        let settings =
            ["limits.steps=4", "model=openai:gpt-x", "tools.\"a b\".timeout = \"3s\""].map(String::from);
        let wanted = ["limits.steps = 4", "model = \"openai:gpt-x\"", "tools.\"a b\".timeout = \"3s\""];
        assert_eq!(lines(&settings).unwrap_or_default(), wanted);
        for wrong in ["limits.steps", "=4", "a b=4", "a=1\nb=2"] {
            assert!(lines(&[wrong.to_owned()]).is_err(), "{wrong}");
        }
    }
}
