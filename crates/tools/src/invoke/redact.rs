//! Errors are for the model, and values of the state are not: they are taken out of every error text.
//!
//! Nothing is collected while all goes well. What a text must not show is looked up when there is a text.
//! (Haystack put the whole arguments, injected ones included, into its error message.)

use std::borrow::Cow;
use std::collections::HashMap;

use serde_json::Value;
use stepfold_state_core::state::ValueRef;

/// Shorter texts are not looked for: they would be found everywhere, and tell nothing.
const SHORTEST: usize = 4;

/// Texts that came from the state, each with what to write in its place.
#[derive(Debug, Default)]
pub(super) struct Secrets<'a>(Vec<(&'a str, Cow<'a, str>)>);

impl<'a> Secrets<'a> {
    /// Adds all texts of a state value, to be called by `name`.
    pub(super) fn add_state(&mut self, name: &'a str, value: ValueRef<'a>) {
        match value.as_json() {
            Some(value) => self.add(name, value),
            None => value.items().for_each(|item| self.add(name, item)),
        }
    }

    fn add(&mut self, name: &'a str, value: &'a Value) {
        match value {
            Value::String(text) => self.note(name, text),
            Value::Number(number) => self.note_form(name, number.to_string().into()),
            Value::Array(items) => items.iter().for_each(|item| self.add(name, item)),
            Value::Object(fields) => fields.iter().for_each(|(key, field)| {
                self.note(name, key);
                self.add(name, field);
            }),
            Value::Null | Value::Bool(_) => {}
        }
    }

    /// A text may stand in an error as it is, as debug output shows it, or as JSON does.
    fn note(&mut self, name: &'a str, text: &'a str) {
        self.note_form(name, text.into());
        if text.chars().any(|character| matches!(character, '"' | '\\') || !(' '..='~').contains(&character))
        {
            let forms = [format!("{text:?}"), Value::from(text).to_string()];
            for form in forms {
                self.note_form(name, form[1..form.len() - 1].to_owned().into());
            }
        }
    }

    fn note_form(&mut self, name: &'a str, form: Cow<'a, str>) {
        if form.len() >= SHORTEST {
            self.0.push((name, form));
        }
    }

    /// The text with the name of its source in place of each value of the state, the longest first.
    pub(super) fn redact(&self, text: &str) -> String {
        let mut by_start: HashMap<&[u8], Vec<&(&str, Cow<'_, str>)>> = HashMap::new();
        for secret in &self.0 {
            by_start.entry(&secret.1.as_bytes()[..SHORTEST]).or_default().push(secret);
        }
        let found_in = |rest: &str| {
            let candidates = by_start.get(rest.as_bytes().get(..SHORTEST)?)?;
            candidates
                .iter()
                .filter(|(_, secret)| rest.starts_with(&**secret))
                .max_by_key(|(_, secret)| secret.len())
        };
        let mut shown = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(character) = rest.chars().next() {
            if let Some((name, secret)) = found_in(rest) {
                shown.extend(["<", name, ">"]);
                rest = &rest[secret.len()..];
            } else {
                shown.push(character);
                rest = &rest[character.len_utf8()..];
            }
        }
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The secrets of a `token`, an error text in, what is left of it out.
    fn check(token: &Value, text: &str, expected: &str) {
        let mut secrets = Secrets::default();
        secrets.add("token", token);
        assert_eq!(secrets.redact(text), expected);
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
