//! What a run depends on, part by part, so that a stored run can say what of its agent has changed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Agent;
use crate::digest;

/// What a run depends on, part by part, each as a digest or in words.
///
/// # Examples
/// ```
/// # use stepfold_agent_loop::test_kit::Script;
/// use stepfold_agent_loop::Agent;
///
/// let agent = Agent::builder(Script::parse("")?).instructions("Be brief.").build()?;
/// let changed = agent.to_builder().instructions("Be kind.").max_steps(5).build()?;
/// assert_eq!(
///     agent.fingerprint().changes(changed.fingerprint()),
///     ["instructions changed", "limits changed"],
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fingerprint(BTreeMap<String, String>);

impl Fingerprint {
    pub(super) fn of(agent: &Agent) -> Self {
        let config = agent.config();
        let mut parts = BTreeMap::new();
        let mut add = |name: &str, words: String| drop(parts.insert(name.to_owned(), words));
        add("name", config.name.clone());
        add("model", config.model.id().to_owned());
        add("model parameters", digest_of(&(&config.params, &config.model_name)));
        if let Some(template) = &config.instructions {
            add("instructions", digest::of(template.text()));
        }
        add("limits", digest::of(&format!("{:?}", config.limits)));
        add("exit conditions", config.exit_tools.join(", "));
        add("approval", format!("{:?}", config.approval));
        add("hooks", format!("{:?}", config.hooks));
        add("trim", config.trim.to_string());
        if let Some(window) = &config.window {
            add("window", window.to_string());
        }
        if let Some(output) = &config.output {
            add("output", digest_of(&(&output.name, &output.schema, format!("{:?}", output.mode))));
        }
        let rules = (
            config.final_answer,
            config.recover_leaked_calls,
            config.raise_on_failure,
            config.ask_when_uncertain,
            format!("{:?}", config.repeat_guard),
        );
        add("rules", digest::of(&rules));
        for key in config.schema.keys() {
            let words = (key.json_schema(), key.handler().to_string(), key.default());
            add(&format!("state key {}", key.name()), digest_of(&words));
        }
        if let Some(shape) = &config.graph {
            for (part, words) in shape.parts() {
                add(&part, words);
            }
        }
        match agent.static_offer() {
            None => add("tools", "asked at each step".to_owned()),
            Some(offer) => {
                for tool in &offer.tools {
                    let words = (tool.spec(), tool.effect(), format!("{:?}", tool.approval()));
                    add(&format!("tool {}", tool.name()), digest_of(&words));
                }
            }
        }
        Fingerprint(parts)
    }

    /// What is another in `now`, in words: what changed, what is gone, what is new.
    pub fn changes(&self, now: &Fingerprint) -> Vec<String> {
        let mut changes = Vec::new();
        for (part, before) in &self.0 {
            match now.0.get(part) {
                None => changes.push(format!("{part} is gone")),
                Some(after) if after != before => changes.push(format!("{part} changed")),
                Some(_) => {}
            }
        }
        let new = now.0.keys().filter(|part| !self.0.contains_key(*part));
        changes.extend(new.map(|part| format!("{part} is new")));
        changes
    }
}

/// A digest of what a value says, whatever order its objects are in: that order depends on features of the
/// build, and a run must load in the next build as well.
fn digest_of<T: Serialize>(value: &T) -> String {
    digest::of(&sorted(serde_json::to_value(value).unwrap_or_default()))
}

fn sorted(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields: BTreeMap<String, Value> = fields.into_iter().collect();
            Value::Object(fields.into_iter().map(|(name, value)| (name, sorted(value))).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        value => value,
    }
}
