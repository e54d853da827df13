//! Redaction of cases: values that rules name are replaced before a case is written, the same everywhere in the case, so that
//! its record still answers the calls.

use std::collections::BTreeMap;

use serde_json::Value;
use stepfold_agent_loop::{Redact as _, Redaction};

use crate::case::Case;
use crate::error::EvalError;

/// The least bytes of a text that is replaced because a key names it; shorter ones match everywhere and reveal little.
const MIN_BYTES: usize = 4;

/// Replaces values that a data set must not hold: those that the rules of a [`Redaction`] find, and those of keys.
///
/// A value is replaced by the name of its rule and a number, wherever it occurs in a case: in messages, arguments, results,
/// values of the state, and the name of the case. Equal values have equal replacements, in all cases that one
/// `CaseRedaction` has seen; so a candidate that repeats what it reads still finds the recorded answers.
///
/// # Examples
/// ```
/// use stepfold_agent_loop::{Redaction, SensitiveData};
/// use stepfold_eval::{Case, CaseRedaction};
///
/// let mut redaction = CaseRedaction::new(Redaction::of([SensitiveData::Email])).key("token");
/// let case = Case::new("greeting", "I am ada@example.org, and s3cret is my token").value("token", "s3cret");
/// let case = redaction.apply(&case)?;
/// assert_eq!(case.say.as_deref(), Some("I am [email 1], and [token 1] is my token"));
/// assert_eq!(case.values["token"], "[token 1]");
/// # Ok::<(), stepfold_eval::EvalError>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct CaseRedaction {
    rules: Redaction,
    keys: Vec<String>,
    /// The replacement of each value, by rule and value.
    replacements: BTreeMap<(String, String), String>,
    counts: BTreeMap<String, u64>,
}

impl CaseRedaction {
    /// With these rules.
    pub fn new(rules: Redaction) -> Self {
        CaseRedaction { rules, ..CaseRedaction::default() }
    }

    /// Whether there are neither rules nor keys.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.keys.is_empty()
    }

    /// Replaces the values of a state key, and of each field with this name in arguments and results. Texts of fewer than four
    /// bytes are replaced there alone; numbers become 0.
    pub fn key(mut self, name: impl Into<String>) -> Self {
        self.keys.push(name.into());
        self
    }

    /// Continues the numbers of a data set that grows: replacements get higher numbers than those that stand in this case of
    /// it. Which values those were is not known, so an equal value gets a number of its own.
    pub fn continue_after(&mut self, case: &Case) {
        let Ok(text) = serde_json::to_string(case) else { return };
        for name in self.rules.names().chain(self.keys.iter().map(String::as_str)) {
            let opening = format!("[{name} ");
            let numbers = text.match_indices(&opening).filter_map(|(place, _)| {
                let rest = &text[place + opening.len()..];
                rest[..rest.find(']')?].parse::<u64>().ok()
            });
            let highest = numbers.max().unwrap_or(0);
            let count = self.counts.entry(name.to_owned()).or_default();
            *count = highest.max(*count);
        }
    }

    /// The case without the values that the rules name.
    ///
    /// # Errors
    /// [`EvalError::Redaction`] when a rule names a part of the form of a case, such as `role`.
    pub fn apply(&mut self, case: &Case) -> Result<Case, EvalError> {
        if self.is_empty() {
            return Ok(case.clone());
        }
        let fault = |error: serde_json::Error| EvalError::Redaction {
            rule: case.name.clone(),
            why: format!("a rule names a part of the form of a case: {error}"),
        };
        let mut value = serde_json::to_value(case).map_err(fault)?;
        let mut named = Vec::new();
        self.collect(&mut value, &mut named);
        // The longest first: a text may be a part of another one.
        named.sort_by(|(_, a), (_, b)| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        named.dedup();
        self.rewrite(&mut value, &named);
        serde_json::from_value(value).map_err(fault)
    }

    /// Collects the texts that keys name, and replaces numbers and short texts where they are.
    fn collect(&mut self, value: &mut Value, named: &mut Vec<(String, String)>) {
        match value {
            Value::Object(fields) => {
                // A write names its key by a value.
                let written = fields.get("key").and_then(Value::as_str).map(str::to_owned);
                let written = written.filter(|key| self.keys.contains(key));
                for (name, field) in fields.iter_mut() {
                    match &written {
                        Some(key) if name == "value" => self.take(key, field, named),
                        _ if self.keys.contains(name) => self.take(&name.clone(), field, named),
                        _ => self.collect(field, named),
                    }
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.collect(item, named)),
            // Results of tools and texts may be JSON themselves.
            Value::String(text) => {
                let Some(mut inner) = json_in(text) else { return };
                let before = inner.clone();
                self.collect(&mut inner, named);
                if inner != before {
                    *text = inner.to_string();
                }
            }
            _ => {}
        }
    }

    fn take(&mut self, key: &str, value: &mut Value, named: &mut Vec<(String, String)>) {
        match value {
            Value::String(text) if text.len() >= MIN_BYTES => named.push((key.to_owned(), text.clone())),
            Value::String(text) => *text = self.replacement(key, text),
            Value::Number(number) => {
                let text = number.to_string();
                if text.len() >= MIN_BYTES {
                    named.push((key.to_owned(), text));
                }
                *value = 0.into();
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.take(key, item, named)),
            Value::Object(fields) => fields.values_mut().for_each(|field| self.take(key, field, named)),
            Value::Bool(_) | Value::Null => {}
        }
    }

    fn rewrite(&mut self, value: &mut Value, named: &[(String, String)]) {
        match value {
            Value::String(text) => {
                // In JSON a value may be escaped.
                if let Some(mut inner) = json_in(text) {
                    let before = inner.clone();
                    self.rewrite(&mut inner, named);
                    if inner != before {
                        *text = inner.to_string();
                    }
                }
                *text = self.redacted(text, named);
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.rewrite(item, named)),
            Value::Object(fields) => {
                let old = std::mem::take(fields);
                for (name, mut field) in old {
                    self.rewrite(&mut field, named);
                    fields.insert(self.redacted(&name, named), field);
                }
            }
            Value::Number(number) => {
                // A number in digits that a rule names, such as a card number.
                let text = number.to_string();
                if text.len() >= MIN_BYTES && self.redacted(&text, named) != text {
                    *value = 0.into();
                }
            }
            Value::Bool(_) | Value::Null => {}
        }
    }

    fn redacted(&mut self, text: &str, named: &[(String, String)]) -> String {
        let mut text = text.to_owned();
        for (rule, found) in named.iter().filter(|(rule, found)| !rule.is_empty() && !found.is_empty()) {
            if text.contains(found.as_str()) {
                let replacement = self.replacement(rule, found);
                text = text.replace(found.as_str(), &replacement);
            }
        }
        // The last first: the places of those before stay.
        for part in self.rules.find(&text).into_iter().rev() {
            let replacement = self.replacement(&part.rule, &text[part.range.clone()]);
            text.replace_range(part.range, &replacement);
        }
        text
    }

    fn replacement(&mut self, rule: &str, found: &str) -> String {
        let known = (rule.to_owned(), found.to_owned());
        if let Some(replacement) = self.replacements.get(&known) {
            return replacement.clone();
        }
        let count = self.counts.entry(rule.to_owned()).or_default();
        *count += 1;
        let replacement = format!("[{rule} {count}]");
        self.replacements.insert(known, replacement.clone());
        replacement
    }
}

/// The object or list that a text is, as results of tools are.
fn json_in(text: &str) -> Option<Value> {
    let is_json = text.trim_start().starts_with(['{', '[']);
    is_json.then(|| serde_json::from_str(text).ok()).flatten()
}
