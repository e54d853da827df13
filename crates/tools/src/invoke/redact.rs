//! Errors are for the model, and values of the state are not: they are taken out of every error text.
//!
//! A call that succeeds costs nothing. The values are looked up when there is an error text, in the state keys that the
//! call was fed or declares to read, at most `MAX_WORK` of them: a tool that reads a list of a million items fails as
//! fast as any other. (Haystack put the whole arguments, injected ones included, into its error message.)

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use serde_json::Value;
use stepfold_state_core::state::ValueRef;

/// Shorter texts are not looked for: they would be found everywhere, and tell nothing.
const SHORTEST: usize = 4;

/// The maximum of values and positions compared for one text.
const MAX_WORK: usize = 100_000;

/// Replaces a text for which the maximum was exceeded.
const WITHHELD: &str =
    "[the text is withheld: it may repeat values of the state, of which the tool reads too many to look for]";

/// A text from which values of the state are to be taken out.
#[derive(Debug)]
pub(super) struct Redaction<'a> {
    text: &'a str,
    /// Where in the text each beginning of a value is.
    starts: HashMap<&'a [u8], Vec<usize>>,
    /// What was found: by its place, the length and the name of its source.
    found: BTreeMap<usize, (usize, &'a str)>,
    work: usize,
}

impl<'a> Redaction<'a> {
    pub(super) fn of(text: &'a str) -> Self {
        let mut starts: HashMap<&[u8], Vec<usize>> = HashMap::new();
        for (place, _) in text.char_indices() {
            if let Some(start) = text.as_bytes().get(place..place + SHORTEST) {
                starts.entry(start).or_default().push(place);
            }
        }
        Redaction { text, starts, found: BTreeMap::new(), work: 0 }
    }

    /// Takes out all values of a state value, to be called by `name`.
    pub(super) fn take_out(&mut self, name: &'a str, value: ValueRef<'_>) {
        match value.as_json() {
            Some(value) => self.value(name, value),
            None => self.all(name, value.items()),
        }
    }

    /// The text with the name of its source in place of each value of the state: the first one first, and of those
    /// that begin at one place the longest.
    pub(super) fn shown(&self) -> Cow<'a, str> {
        if self.is_exhausted() {
            return WITHHELD.into();
        }
        if self.found.is_empty() {
            return self.text.into();
        }
        let (mut shown, mut after) = (String::with_capacity(self.text.len()), 0);
        for (place, (length, name)) in &self.found {
            if *place >= after {
                shown.extend([&self.text[after..*place], "<", name, ">"]);
                after = place + length;
            }
        }
        shown.push_str(&self.text[after..]);
        shown.into()
    }

    fn is_exhausted(&self) -> bool {
        self.work > MAX_WORK
    }

    fn all<'v>(&mut self, name: &'a str, mut values: impl Iterator<Item = &'v Value>) {
        while !self.is_exhausted()
            && let Some(value) = values.next()
        {
            self.value(name, value);
        }
    }

    fn value(&mut self, name: &'a str, value: &Value) {
        self.work += 1;
        match value {
            Value::String(text) => self.words(name, text),
            Value::Number(number) => {
                // Most numbers are too short to be looked for, and need not be written down for it.
                if number.as_i64().is_none_or(|number| !(-99..=999).contains(&number)) {
                    self.find(name, &number.to_string());
                }
            }
            Value::Array(items) => self.all(name, items.iter()),
            Value::Object(fields) => {
                for (key, field) in fields {
                    if self.is_exhausted() {
                        return;
                    }
                    if !is_field_name(key) {
                        self.words(name, key);
                    }
                    self.value(name, field);
                }
            }
            Value::Null | Value::Bool(_) => {}
        }
    }

    /// Finds a text as it is, escaped as in debug output or JSON, and escaped twice. Its first characters decide whether
    /// the rest is compared.
    fn words(&mut self, name: &'a str, words: &str) {
        if words.len() < SHORTEST || words.len() > self.text.len() {
            return;
        }
        let head = words.char_indices().nth(SHORTEST).map_or(words, |(end, _)| &words[..end]);
        let begins =
            |form: &str| self.starts.contains_key(form.as_bytes().get(..SHORTEST).unwrap_or_default());
        if !begins(head) && !escaped(head).iter().any(|form| begins(form)) {
            return;
        }
        self.work += words.len() / 256;
        self.find(name, words);
        for form in escaped(words) {
            self.find(name, &form);
        }
    }

    fn find(&mut self, name: &'a str, form: &str) {
        let Some(start) = form.as_bytes().get(..SHORTEST) else { return };
        let Some(places) = self.starts.get(start) else { return };
        self.work += places.len();
        for place in places {
            if self.text[*place..].starts_with(form) {
                let found = self.found.entry(*place).or_insert((0, name));
                *found = (*found).max((form.len(), name));
            }
        }
    }
}

/// The forms that debug output and JSON give a text, and those that they give each other's; none if it stands there as
/// it is.
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
    let (as_debug, as_json) = (debug(text), json(text));
    let mut forms =
        vec![debug(&as_debug), json(&as_debug), debug(&as_json), json(&as_json), as_debug, as_json];
    forms.sort_unstable();
    forms.dedup();
    forms
}

/// Whether a key of an object has the form of a field name, which is not a value. Other keys, such as addresses, are
/// values used as keys.
fn is_field_name(key: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    key.bytes().all(is_word) && key.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The secrets of a `token`, an error text in, what is left of it out.
    fn check(token: &Value, text: &str, expected: &str) {
        let mut redaction = Redaction::of(text);
        redaction.take_out("token", token.into());
        assert_eq!(redaction.shown(), expected);
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

    /// As a snapshot shows itself that is shown by something else.
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

    /// What is bounded is the work, and not what is kept back.
    #[test]
    fn withholds_a_text_that_cannot_be_looked_through() {
        let most: Vec<Value> =
            (0..MAX_WORK - 10).map(|_| json!("password")).chain([json!("s3cret")]).collect();
        check(&json!(most), "bad: s3cret", "bad: <token>");
        let many: Vec<Value> = (0..2 * MAX_WORK).map(|_| json!("password")).collect();
        check(&json!(many), "bad: s3cret", WITHHELD);
        // Places count as well: each value is in the text a thousand times.
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
