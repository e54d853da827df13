//! Redacts values of the state in error texts, which the model reads.
//!
//! A call that succeeds costs nothing. For an error text, the values of the state keys that the call was
//! given or declares to read are looked up, at most `MAX_WORK` of them: a tool that reads a list of a million
//! items fails as fast as any other. (Haystack's error message contains all arguments, injected ones
//! included.)

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use serde_json::Value;
use stepfold_state_core::state::ValueRef;

/// The minimum length of a redacted text; shorter ones match everywhere and reveal little.
const MIN_BYTES: usize = 4;

/// The maximum of values and positions compared for one text.
const MAX_WORK: usize = 100_000;

/// Replaces a text when the maximum is exceeded.
const WITHHELD: &str = "[the text is withheld: it may contain values of the state, and the tool reads too many of them to check]";

/// A text to redact.
#[derive(Debug)]
pub(super) struct TextRedaction<'a> {
    text: &'a str,
    /// The positions in the text of each prefix of a value.
    starts: HashMap<&'a [u8], Vec<usize>>,
    /// The matches: by position, the length and the name of the source.
    found: BTreeMap<usize, (usize, &'a str)>,
    work: usize,
}

impl<'a> TextRedaction<'a> {
    pub(super) fn of(text: &'a str) -> Self {
        // NOTE: The text is indexed and not the values: it is short, and there may be a million of them.
        let mut starts: HashMap<&[u8], Vec<usize>> = HashMap::new();
        for (position, _) in text.char_indices() {
            if let Some(start) = text.as_bytes().get(position..position + MIN_BYTES) {
                starts.entry(start).or_default().push(position);
            }
        }
        TextRedaction { text, starts, found: BTreeMap::new(), work: 0 }
    }

    /// Redacts all strings of a state value, replaced by `name`.
    pub(super) fn redact(&mut self, name: &'a str, value: ValueRef<'_>) {
        match value.as_json() {
            Some(value) => self.redact_json(name, value),
            None => self.redact_all(name, value.items()),
        }
    }

    /// The text with each value of the state replaced by the name of its source: the first match first, and
    /// the longest of those at one position.
    pub(super) fn text(&self) -> Cow<'a, str> {
        if self.is_exhausted() {
            return WITHHELD.into();
        }
        if self.found.is_empty() {
            return self.text.into();
        }
        let (mut shown, mut after) = (String::with_capacity(self.text.len()), 0);
        for (position, (length, name)) in &self.found {
            if *position >= after {
                shown.extend([&self.text[after..*position], "<", name, ">"]);
                after = position + length;
            }
        }
        shown.push_str(&self.text[after..]);
        shown.into()
    }

    fn is_exhausted(&self) -> bool {
        self.work > MAX_WORK
    }

    fn redact_all<'v>(&mut self, name: &'a str, mut values: impl Iterator<Item = &'v Value>) {
        while !self.is_exhausted()
            && let Some(value) = values.next()
        {
            self.redact_json(name, value);
        }
    }

    fn redact_json(&mut self, name: &'a str, value: &Value) {
        self.work += 1;
        match value {
            Value::String(text) => self.redact_string(name, text),
            Value::Number(number) => {
                // NOTE: Most numbers are too short, and need not be formatted.
                if number.as_i64().is_none_or(|number| !(-99..=999).contains(&number)) {
                    self.mark(name, &number.to_string());
                }
            }
            Value::Array(items) => self.redact_all(name, items.iter()),
            Value::Object(fields) => {
                for (key, field) in fields {
                    if self.is_exhausted() {
                        return;
                    }
                    if !is_field_name(key) {
                        self.redact_string(name, key);
                    }
                    self.redact_json(name, field);
                }
            }
            Value::Null | Value::Bool(_) => {}
        }
    }

    /// Finds a text unescaped, escaped as in debug output or JSON, and escaped twice. The rest is compared
    /// only after its first characters match.
    fn redact_string(&mut self, name: &'a str, string: &str) {
        if string.len() < MIN_BYTES || string.len() > self.text.len() {
            return;
        }
        let head = string.char_indices().nth(MIN_BYTES).map_or(string, |(end, _)| &string[..end]);
        let begins =
            |form: &str| self.starts.contains_key(form.as_bytes().get(..MIN_BYTES).unwrap_or_default());
        if !begins(head) && !escaped(head).iter().any(|form| begins(form)) {
            return;
        }
        // NOTE: Comparing a long string costs more than looking up its prefix.
        self.work += string.len() / 256;
        self.mark(name, string);
        for form in escaped(string) {
            self.mark(name, &form);
        }
    }

    fn mark(&mut self, name: &'a str, form: &str) {
        let Some(start) = form.as_bytes().get(..MIN_BYTES) else { return };
        let Some(positions) = self.starts.get(start) else { return };
        self.work += positions.len();
        for position in positions {
            // NOTE: Values may begin alike: the longest one is replaced, or the rest of it would stay in the text.
            if self.text[*position..].starts_with(form) {
                let found = self.found.entry(*position).or_insert((0, name));
                *found = (*found).max((form.len(), name));
            }
        }
    }
}

/// The escaped forms of a text in debug output and JSON, once and twice; `None` if it occurs unescaped.
fn escaped(text: &str) -> Vec<String> {
    let is_plain =
        |text: &str| text.bytes().all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\'));
    if is_plain(text) {
        return Vec::new();
    }
    let inside = |quoted: String| quoted[1..quoted.len() - 1].to_owned();
    let debug = |text: &str| {
        let mut quoted = String::new();
        // Writing to a string does not fail.
        let _ = write!(quoted, "{text:?}");
        inside(quoted)
    };
    let json = |text: &str| inside(Value::from(text).to_string());
    // NOTE: Twice, since an error that quotes a value is often quoted by the error around it.
    let (as_debug, as_json) = (debug(text), json(text));
    let mut forms =
        vec![debug(&as_debug), json(&as_debug), debug(&as_json), json(&as_json), as_debug, as_json];
    forms.sort_unstable();
    forms.dedup();
    forms
}

/// Whether a key of an object looks like a field name, which is not a value. Other keys, such as addresses,
/// are values.
fn is_field_name(key: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    key.bytes().all(is_word) && key.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Redacts the strings of a `token` in an error text.
    fn check(token: &Value, text: &str, expected: &str) {
        let mut redaction = TextRedaction::of(text);
        redaction.redact("token", token.into());
        assert_eq!(redaction.text(), expected);
    }

    #[test]
    fn takes_values_out_and_leaves_the_rest() {
        check(
            &json!({"key": "s3cret-s3cret", "short": "abc", "list": ["s3cret", 123_456]}),
            "login with s3cret-s3cret failed (abc), code 123456, not s3cret",
            "login with <token> failed (abc), code <token>, not <token>",
        );
    }

    #[test]
    fn takes_escaped_values_out() {
        let note = "it's\n\"quoted\" \u{301}\u{7f}";
        let text = format!("raw {note}, debug {note:?}, json {}", json!({"note": note}));
        check(&json!(note), &text, "raw <token>, debug \"<token>\", json {\"note\":\"<token>\"}");
    }

    /// Debug output nested in debug output.
    #[test]
    fn takes_values_out_that_were_escaped_twice() {
        let note = "it's\n\"quoted\"";
        let (debug, json) = (format!("{note:?}"), json!(note).to_string());
        let text = format!("{debug:?} {json:?} {} {}", json!(debug), json!(json));
        let shown = r#""\"<token>\"" "\"<token>\"" "\"<token>\"" "\"<token>\"""#;
        check(&json!({"note": note}), &text, shown);
    }

    #[test]
    fn names_of_fields_stay() {
        let profile = json!({"type": "premium", "first-name": "Alice", "alice@example.com": "555-0100"});
        check(
            &profile,
            "wrong type of first-name for alice@example.com: premium",
            "wrong type of first-name for <token>: <token>",
        );
    }

    /// The limit bounds the work, not the redacted values.
    #[test]
    fn withholds_a_text_that_cannot_be_looked_through() {
        let most: Vec<Value> =
            (0..MAX_WORK - 10).map(|_| json!("password")).chain([json!("s3cret")]).collect();
        check(&json!(most), "bad: s3cret", "bad: <token>");
        let many: Vec<Value> = (0..2 * MAX_WORK).map(|_| json!("password")).collect();
        check(&json!(many), "bad: s3cret", WITHHELD);
        // Positions count as well: each value occurs a thousand times.
        let value = json!(vec!["password"; 1_000]);
        check(&value, &"password ".repeat(1_000), WITHHELD);
    }

    #[test]
    fn does_not_look_into_what_it_wrote() {
        check(&json!(["token", "secret"]), "secret token", "<token> <token>");
    }

    #[test]
    fn finds_the_last_of_very_many_values() {
        let many: Vec<String> = (0..20_000).map(|n| format!("value {n}")).collect();
        check(&json!(many), "bad: value 19999", "bad: <token>");
    }
}
