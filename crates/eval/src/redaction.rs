//! Redaction of cases: values that rules name are replaced before a case is written, the same everywhere in the case, so that
//! its record still answers the calls.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Number, Value};
use stepfold_agent_loop::{ContentRedactor, Fingerprint, Redact, Redaction, SensitivePart};
use stepfold_runner::Runner;

use crate::case::Case;
use crate::error::EvalError;

/// The least bytes of a text that is replaced because a key names it; shorter ones match everywhere and reveal little.
const MIN_BYTES: usize = 4;

/// The fields of a case whose numbers are content. Others count: steps and tokens, for example.
const CONTENT: [&str; 9] = ["arguments", "is", "result", "say", "shared", "state", "text", "value", "values"];

/// Replaces values that a data set must not hold: those that the rules of a [`Redaction`] find, and those of keys.
///
/// A value is replaced by the name of its rule and a number, wherever it occurs in a case: in messages, arguments, results and
/// values of the state. A number is replaced by a number, so that it stays one. Equal values have equal replacements, and
/// unequal values unequal ones, in all cases that one `CaseRedaction` has seen; so a candidate that repeats what it reads still
/// finds the recorded answers.
///
/// The ids of a case stay, for an erasure finds the case by them, and a replay needs them: its [source](Case::source), the name
/// of a case that has one, the id of the recorded run, and the digests of the recorded agent. They hold the ids of user and
/// session. The name of a case without a source is replaced like other texts.
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
    rules: Rules,
    keys: Vec<String>,
    /// The number of each value, by rule and value.
    numbers: BTreeMap<(String, String), u64>,
    counts: BTreeMap<String, u64>,
}

/// The rules of a redaction, with the form of its replacements.
#[derive(Clone)]
enum Rules {
    /// A replacement has the name of its rule and a number.
    Numbered(Redaction),
    /// A replacement is that of a session before storing.
    Stored(Arc<dyn Redact>),
}

impl Default for Rules {
    fn default() -> Self {
        Rules::Numbered(Redaction::default())
    }
}

impl std::fmt::Debug for Rules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Rules::Numbered(rules) => rules.fmt(f),
            Rules::Stored(_) => f.write_str("Stored"),
        }
    }
}

impl Rules {
    fn find(&self, text: &str) -> Vec<SensitivePart> {
        match self {
            Rules::Numbered(rules) => rules.find(text),
            Rules::Stored(rules) => rules.find(text),
        }
    }

    /// The names of numbered rules.
    fn names(&self) -> impl Iterator<Item = &str> {
        let numbered = match self {
            Rules::Numbered(rules) => Some(rules.names()),
            Rules::Stored(_) => None,
        };
        numbered.into_iter().flatten()
    }
}

impl CaseRedaction {
    /// With these rules.
    pub fn new(rules: Redaction) -> Self {
        CaseRedaction { rules: Rules::Numbered(rules), ..CaseRedaction::default() }
    }

    /// With the rules by which sessions are redacted before storing: replacements are the same, without numbers.
    pub(crate) fn stored(rules: Arc<dyn Redact>) -> Self {
        CaseRedaction { rules: Rules::Stored(rules), ..CaseRedaction::default() }
    }

    /// With the rules of a runner, if it has any.
    pub(crate) fn of_runner(runner: &Runner) -> Self {
        runner.redaction().map(|(rules, _)| CaseRedaction::stored(rules)).unwrap_or_default()
    }

    /// Whether there are neither rules nor keys.
    pub fn is_empty(&self) -> bool {
        matches!(&self.rules, Rules::Numbered(rules) if rules.is_empty()) && self.keys.is_empty()
    }

    /// Replaces the values of a state key, and of each field with this name in arguments and results. Texts and numbers of fewer
    /// than four characters are replaced there alone; `true`, `false` and `null` stay.
    pub fn key(mut self, name: impl Into<String>) -> Self {
        self.keys.push(name.into());
        self
    }

    /// Continues the numbers of a data set that grows: replacements get higher numbers than those that stand in this case of
    /// it. Which values those were is not known, so an equal value gets a number of its own.
    pub fn continue_after(&mut self, case: &Case) {
        let Ok(value) = serde_json::to_value(case) else { return };
        let text = value.to_string();
        let mut found: Vec<(String, u64)> = Vec::new();
        for name in self.rules.names().chain(self.keys.iter().map(String::as_str)) {
            let opening = format!("[{name} ");
            let numbers = text.match_indices(&opening).filter_map(|(place, _)| {
                let rest = &text[place + opening.len()..];
                rest[..rest.find(']')?].parse::<u64>().ok()
            });
            found.extend(numbers.max().map(|number| (name.to_owned(), number)));
        }
        self.visit(&value, None, &mut |key, leaf| {
            // A number that was replaced is one of these; a count never comes near the bound.
            let number = leaf.as_u64().filter(|number| *number < 1 << 48);
            found.extend(number.map(|number| (key.to_owned(), number)));
        });
        for (name, highest) in found {
            let count = self.counts.entry(name).or_default();
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
        let (mut bare, agent) = (Case { source: None, ..case.clone() }, &mut None);
        if let Some(record) = &mut bare.record {
            *agent = record.agent.take();
        }
        let before = serde_json::to_value(&bare).map_err(fault)?;
        let mut named = Vec::new();
        self.visit(&before, None, &mut |key, leaf| {
            let text = leaf.as_str().map(str::to_owned).or_else(|| leaf.as_number().map(Number::to_string));
            named.extend(text.filter(|text| text.len() >= MIN_BYTES).map(|text| (key.to_owned(), text)));
        });
        // The longest first: a text may be a part of another one.
        named.sort_by(|(_, a), (_, b)| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        named.dedup();
        let mut value = before.clone();
        self.rewrite(&mut value, RewriteContext { key: None, is_content: false }, &named);
        for (place, event) in case.events().iter().enumerate() {
            let before = serde_json::to_value(event).map_err(fault)?;
            if let Some(after) = value.pointer_mut(&format!("/record/events/{place}")) {
                restore_ids(&before, after);
            }
        }
        let mut redacted: Case = serde_json::from_value(value).map_err(fault)?;
        if let (Some(record), Some(agent)) = (&mut redacted.record, agent.take()) {
            record.agent = Some(self.fingerprint(&agent, &named).map_err(fault)?);
        }
        if case.source.is_some() {
            (redacted.name, redacted.source) = (case.name.clone(), case.source.clone());
        }
        Ok(redacted)
    }

    pub(crate) fn fingerprint(
        &mut self,
        agent: &Fingerprint,
        named: &[(String, String)],
    ) -> Result<Fingerprint, serde_json::Error> {
        let redacted = self.agent(serde_json::to_value(agent)?, false, named);
        serde_json::from_value(redacted)
    }

    /// The recorded agent without what the rules find in its texts: the words of programs, and what nodes ask. Its digests stay:
    /// they tell nothing, and a replay compares them.
    fn agent(&mut self, value: Value, is_text: bool, named: &[(String, String)]) -> Value {
        let is_digest = |text: &str| text.len() >= 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        match value {
            Value::Object(parts) => {
                let redacted = parts.into_iter().map(|(name, part)| {
                    let has_texts = is_text || matches!(&*name, "dependencies" | "settings");
                    let name = if is_text { self.redacted(&name, named) } else { name };
                    (name, self.agent(part, has_texts, named))
                });
                redacted.collect()
            }
            Value::Array(items) => items.into_iter().map(|item| self.agent(item, is_text, named)).collect(),
            Value::String(text) if is_text && !is_digest(&text) => self.redacted(&text, named).into(),
            other => other,
        }
    }

    /// Whether a rule finds something in a text.
    pub fn finds(&self, text: &str) -> bool {
        !self.rules.find(text).is_empty()
    }

    /// The key by which a field of an object is replaced: its name, or that of a write, which has its key as a value.
    fn key_of<'a>(&'a self, name: &str, write: Option<&str>) -> Option<&'a str> {
        let known = |name: &str| self.keys.iter().find(|key| *key == name).map(String::as_str);
        write.filter(|_| name == "value").and_then(known).or_else(|| known(name))
    }

    /// Shows each text and number that a key names.
    fn visit(&self, value: &Value, key: Option<&str>, seen: &mut impl FnMut(&str, &Value)) {
        match (value, key) {
            (Value::Object(fields), _) => {
                let write = fields.get("key").and_then(Value::as_str);
                for (name, field) in fields {
                    self.visit(field, key.or_else(|| self.key_of(name, write)), seen);
                }
            }
            (Value::Array(items), _) => items.iter().for_each(|item| self.visit(item, key, seen)),
            (Value::String(_) | Value::Number(_), Some(key)) => seen(key, value),
            // Results of tools and texts may be JSON themselves.
            (Value::String(text), None) => {
                if let Some(inner) = json_in(text) {
                    self.visit(&inner, None, seen);
                }
            }
            _ => {}
        }
    }

    fn rewrite(&mut self, value: &mut Value, context: RewriteContext<'_>, named: &[(String, String)]) {
        match (&mut *value, context.key) {
            (Value::Array(items), _) => items.iter_mut().for_each(|item| self.rewrite(item, context, named)),
            (Value::Object(fields), _) => {
                let old = std::mem::take(fields);
                let write = old.get("key").and_then(Value::as_str).map(str::to_owned);
                for (name, mut field) in old {
                    let key = self.key_of(&name, write.as_deref()).map(str::to_owned);
                    let is_content = context.is_content || CONTENT.contains(&name.as_str());
                    let inner = RewriteContext { key: context.key.or(key.as_deref()), is_content };
                    self.rewrite(&mut field, inner, named);
                    fields.insert(self.redacted(&name, named), field);
                }
            }
            (Value::String(text), Some(key)) => *text = self.replacement(key, text),
            (Value::String(_) | Value::Number(_), None) if self.is_stored_form() => {
                self.rewrite_as_stored(value, context);
            }
            (Value::String(text), None) => {
                // In JSON a value may be escaped.
                if let Some(mut inner) = json_in(text) {
                    let before = inner.clone();
                    self.rewrite(&mut inner, RewriteContext { key: None, is_content: true }, named);
                    // NOTE: What is replaced is not replaced again: a rule may find its own replacements.
                    if inner != before {
                        *text = inner.to_string();
                        return;
                    }
                }
                *text = self.redacted(text, named);
            }
            (Value::Number(number), Some(key)) => *value = self.number(key, &number.to_string()).into(),
            (Value::Number(number), None) if context.is_content => {
                let text = number.to_string();
                // Of a rule: a number in digits, such as that of a card.
                let same = named.iter().find(|(_, found)| *found == text).map(|(rule, _)| rule.clone());
                let rule = same.or_else(|| self.rules.find(&text).into_iter().next().map(|part| part.rule));
                if let Some(rule) = rule {
                    *value = self.number(&rule, &text).into();
                }
            }
            _ => {}
        }
    }

    const fn is_stored_form(&self) -> bool {
        matches!(self.rules, Rules::Stored(_))
    }

    /// Replaces what is found in a text, or in a number that is content, as a session does before storing.
    fn rewrite_as_stored(&self, value: &mut Value, context: RewriteContext<'_>) {
        if let Rules::Stored(rules) = &self.rules
            && (value.is_string() || context.is_content)
        {
            ContentRedactor::new(&**rules).value(value);
        }
    }

    /// The text without the named values, and without what the rules find in the rest.
    fn redacted(&mut self, text: &str, named: &[(String, String)]) -> String {
        let mut parts = vec![(text.to_owned(), false)];
        for (rule, found) in named.iter().filter(|(_, found)| text.contains(found.as_str())) {
            let replacement = self.replacement(rule, found);
            let split = |(part, is_replaced): (String, bool)| {
                let rest = if is_replaced { vec![&*part] } else { part.split(found.as_str()).collect() };
                let mut split: Vec<(String, bool)> = Vec::new();
                for (place, text) in rest.into_iter().enumerate() {
                    split.extend((place > 0).then(|| (replacement.clone(), true)));
                    split.push((text.to_owned(), is_replaced));
                }
                split
            };
            parts = parts.into_iter().flat_map(split).collect();
        }
        let rest = parts.into_iter().map(|(part, is_replaced)| match is_replaced {
            true => part,
            false => self.redacted_by_rules(part),
        });
        rest.collect()
    }

    fn redacted_by_rules(&mut self, mut text: String) -> String {
        // The last first: the places of those before stay.
        for part in self.rules.find(&text).into_iter().rev() {
            let replacement = self.replacement(&part.rule, &text[part.range.clone()]);
            text.replace_range(part.range, &replacement);
        }
        text
    }

    fn replacement(&mut self, rule: &str, found: &str) -> String {
        match self.rules {
            Rules::Numbered(_) => format!("[{rule} {}]", self.number(rule, found)),
            Rules::Stored(_) => format!("[{rule}]"),
        }
    }

    fn number(&mut self, rule: &str, found: &str) -> u64 {
        let known = (rule.to_owned(), found.to_owned());
        if let Some(number) = self.numbers.get(&known) {
            return *number;
        }
        let count = self.counts.entry(rule.to_owned()).or_default();
        *count += 1;
        self.numbers.insert(known, *count);
        *count
    }
}

/// The place of a value that is rewritten.
#[derive(Clone, Copy)]
struct RewriteContext<'a> {
    /// The key that names it.
    key: Option<&'a str>,
    /// Whether its numbers are content.
    is_content: bool,
}

/// Restores the ids and digests of an event: they are compared with those that a candidate computes.
fn restore_ids(before: &Value, after: &mut Value) {
    for (kind, fields) in before["kind"].as_object().into_iter().flatten() {
        let Some(now) = after.pointer_mut(&format!("/kind/{kind}")) else { continue };
        for field in ["id", "tools", "idempotency_key", "key_prefix"] {
            if let (Some(id), Some(now)) = (fields.get(field), now.get_mut(field)) {
                *now = id.clone();
            }
        }
        if let (Some(inner), Some(now)) = (fields.get("event"), now.get_mut("event")) {
            restore_ids(inner, now);
        }
        // The id of a request is that of its call, with a digest.
        for (place, decision) in fields["decisions"].as_array().into_iter().flatten().enumerate() {
            let digest = decision[0].as_str().and_then(|id| id.rsplit_once('#'));
            let now = now.pointer_mut(&format!("/decisions/{place}/0"));
            if let (Some((_, digest)), Some(Value::String(now))) = (digest, now)
                && let Some((call, _)) = now.rsplit_once('#')
            {
                *now = format!("{call}#{digest}");
            }
        }
    }
}

/// The object or list that a text is, as results of tools are.
fn json_in(text: &str) -> Option<Value> {
    let is_json = text.trim_start().starts_with(['{', '[']);
    is_json.then(|| serde_json::from_str(text).ok()).flatten()
}
