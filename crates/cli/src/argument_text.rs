//! Values in arguments of the command line, and arguments as a shell reads them.

use serde::de::IgnoredAny;
use serde_json::Value;
use stepfold::state_core::{ExactError, read_exact};

use crate::error::UsageError;

/// Parses `KEY=VALUE` pairs into an object. A value that is not JSON is a string.
pub(crate) fn values(pairs: &[String]) -> anyhow::Result<Value> {
    let mut values = serde_json::Map::new();
    for pair in pairs {
        let (key, text) = pair
            .split_once('=')
            .ok_or_else(|| UsageError(format!("`{pair}` is not of the form KEY=VALUE")))?;
        values.insert(
            key.to_owned(),
            json_or_text(text).map_err(|error| UsageError(format!("{key}: {error}")))?,
        );
    }
    Ok(Value::Object(values))
}

/// Parses JSON; text that is not JSON becomes a string. Rejects JSON that the store could not keep exactly.
pub(crate) fn json_or_text(text: &str) -> Result<Value, ExactError> {
    match read_exact(text) {
        // NOTE: An object with a key twice is an error of this kind too, but it is JSON: as a string it would change
        // its type.
        Err(ExactError::Json(_)) if serde_json::from_str::<IgnoredAny>(text).is_err() => Ok(text.into()),
        read => read,
    }
}

/// Quotes a word for a shell, if it needs quotes.
pub(crate) fn shell_quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+#,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) && !word.starts_with('#') {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A text is what it is: JSON is read exactly or refused, and every other text is a string.
    #[test]
    fn only_json_is_refused() {
        let parts = [
            "",
            " ",
            "-",
            "a",
            "x:",
            ",",
            "0",
            "-0",
            "97092768130343894445",
            "1e400",
            "0.1234567890123456789",
            "\"",
            "[",
            "]",
            "{}",
            "null",
        ];
        let count = parts.len();
        for number in 0..count.pow(3) {
            let [first, second, third] = [number / count / count, number / count % count, number % count];
            let (first, second, third) = (parts[first], parts[second], parts[third]);
            let text = format!("{first}{second}{third}");
            let read = json_or_text(&text);
            match serde_json::from_str::<IgnoredAny>(&text) {
                Err(_) => assert_eq!(read.unwrap(), Value::from(text.as_str()), "{text}"),
                Ok(_) => assert!(
                    read.is_err() || read.unwrap() == serde_json::from_str::<Value>(&text).unwrap(),
                    "{text}"
                ),
            }
        }
        for text in ["a -", "x: -y", "DE97092768130343894445", "+49 170 1234567", "2026-11-30", "1,5"] {
            assert_eq!(json_or_text(text).unwrap(), Value::from(text));
        }
        for refused in ["97092768130343894445", " 1e400 ", "-0", "[97092768130343894445]"] {
            assert!(json_or_text(refused).is_err(), "{refused}");
        }
    }
}
