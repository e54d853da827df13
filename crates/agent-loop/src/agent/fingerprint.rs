//! Fingerprints of agents: the parts that a run depends on, so that a stored run can name the changes of its agent.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stepfold_state_core::canonical_json;
use stepfold_tools::Tool;

use super::{Agent, AgentConfig, HostedAgent, OfferedTools};
use crate::digest;

/// The parts of an agent that a run depends on, each as a digest or in words.
///
/// # Examples
/// ```
/// use stepfold_agent_loop::test_kit::Script;
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

/// The number of parts of an agent with a few tools.
const USUAL_PARTS: usize = 20;

impl Fingerprint {
    pub(super) fn of(agent: &Agent) -> Self {
        let config = agent.config();
        let mut parts = Vec::with_capacity(USUAL_PARTS);
        let mut add = |name: &str, words: String| parts.push((name.to_owned(), words));
        add("name", config.name.clone());
        add("model", config.model.id().to_owned());
        add("model parameters", digest_of(&(&config.params, &config.model_name)));
        if let Some(template) = &config.instructions {
            add("instructions", digest::of(template.text()));
        }
        add("limits", digest_of(&config.limits));
        add("exit conditions", config.exit_tools.join(", "));
        // NOTE: These debug texts are digested in stored fingerprints: names of variants and fields must not change, or
        // every stored run would look as if its agent had changed.
        add("approval", format!("{:?}", config.approval));
        add("hooks", format!("{:?}", config.hooks));
        add("trim", config.trim.to_string());
        if let Some(window) = &config.window {
            add("window", window.to_string());
        }
        if let Some(output) = &config.output {
            add("output", digest_of(&(&output.name, &output.schema, format!("{:?}", output.mode))));
        }
        add("rules", AgentSwitches::of(config).digest());
        for key in config.schema.declared_keys() {
            let handler = json_of(&key.handler().to_string());
            let default = key.default().map_or_else(|| "null".to_owned(), canonical_json);
            let words = list([&canonical_json(key.json_schema()), &handler, &default]);
            add(&format!("state key {}", key.name()), digest::of_text(&words));
        }
        if let Some(planner) = &config.planner {
            for (part, value) in planner.parts() {
                add(&part, digest_of(&value));
            }
        }
        match agent.static_offer() {
            None => add("tools", "asked at each step".to_owned()),
            Some(offer) => {
                for tool in &offer.tools {
                    let (effect, approval) = (json_of(&tool.effect()), format!("{:?}", tool.approval()));
                    let words = list([tool.canonical_spec(), &effect, &json_of(&approval)]);
                    // An agent that is a tool continues inside of the run, so that what it depends on, the run does.
                    // NOTE: Its debug text is digested as well.
                    let inside = tool.hosted_as::<HostedAgent>().map(|call| call.agent.fingerprint());
                    let words = match inside {
                        Some(inside) => list([&words, &json_of(inside)]),
                        None => words,
                    };
                    add(&format!("tool {}", tool.name()), digest::of_text(&words));
                }
            }
        }
        Fingerprint(parts.into_iter().collect())
    }

    /// The same of some parts.
    pub(crate) fn changes_of(&self, now: &Fingerprint, part: &str) -> Vec<String> {
        let is_one = |name: &String| name.starts_with(part);
        let some = |of: &Fingerprint| {
            let parts = of.0.iter().filter(|(name, _)| is_one(name));
            Fingerprint(parts.map(|(name, words)| (name.clone(), words.clone())).collect())
        };
        some(self).changes(&some(now))
    }

    /// The differences of `now`, in words: what changed, what was removed, what was added.
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

/// A digest of tools: of what the model sees of them, and of their bindings.
pub(crate) fn of_offer(offer: &OfferedTools) -> String {
    let bindings = offer.tools.iter().map(Tool::canonical_bindings);
    // The tool of an output comes after them.
    let own = offer.specs.iter().skip(offer.tools.len()).map(json_of);
    let own: Vec<String> = own.collect();
    let specs = offer.tools.iter().map(Tool::canonical_spec).chain(own.iter().map(String::as_str));
    let mut text = String::with_capacity(1024);
    text.push('[');
    push_list(&mut text, specs);
    text.push(',');
    push_list(&mut text, bindings);
    text.push(']');
    digest::of_text(&text)
}

/// Texts of JSON as a list of JSON.
fn list(items: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let mut text = String::with_capacity(256);
    push_list(&mut text, items);
    text
}

fn push_list(text: &mut String, items: impl IntoIterator<Item = impl AsRef<str>>) {
    text.push('[');
    for (place, item) in items.into_iter().enumerate() {
        if place > 0 {
            text.push(',');
        }
        text.push_str(item.as_ref());
    }
    text.push(']');
}

/// The switches of an agent as they are digested: by the rule of [`RunLimits`](super::RunLimits), in the order of their
/// names, so that their JSON is canonical as it is.
#[derive(Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
struct AgentSwitches {
    ask_when_uncertain: bool,
    final_answer: bool,
    raise_on_failure: bool,
    recover_leaked_calls: bool,
    repeat_guard: Option<RepeatThresholds>,
}

#[derive(Serialize)]
struct RepeatThresholds {
    stop: u32,
    warn: u32,
}

impl AgentSwitches {
    fn of(config: &AgentConfig) -> Self {
        AgentSwitches {
            ask_when_uncertain: config.ask_when_uncertain,
            final_answer: config.final_answer,
            raise_on_failure: config.raise_on_failure,
            recover_leaked_calls: config.recover_leaked_calls,
            repeat_guard: config
                .repeat_guard
                .map(|guard| RepeatThresholds { stop: guard.stop, warn: guard.warn }),
        }
    }

    fn digest(&self) -> String {
        digest::of_text(&serde_json::to_string(self).unwrap_or_default())
    }
}

/// A digest of what a value says, whatever order its objects are in, so that a run loads in the next build as well.
fn digest_of<T: Serialize>(value: &T) -> String {
    digest::of_text(&json_of(value))
}

fn json_of<T: Serialize>(value: &T) -> String {
    canonical_json(&serde_json::to_value(value).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use expect_test::expect;

    use super::{AgentSwitches, RepeatThresholds, json_of};
    use crate::RunLimits;

    /// What is digested of the default limits: a limit that is added later must not show
    /// here, or else every run that is stored looks as if its agent had changed.
    #[test]
    fn limits_are_digested_without_the_default_ones() {
        let words = |limits: RunLimits| serde_json::to_string(&limits).unwrap();
        expect![[r#"{"steps":100,"calls_per_reply":64}"#]].assert_eq(&words(RunLimits::default()));
        let limits = RunLimits::default().with_tokens(5).with_time(Duration::from_millis(1500));
        expect![[r#"{"steps":100,"calls_per_reply":64,"tokens":5,"time":{"secs":1,"nanos":500000000}}"#]]
            .assert_eq(&words(limits));
    }

    /// Stored digests must stay what they are.
    #[test]
    fn rules_are_canonical_as_they_are() {
        let repeat_guard = Some(RepeatThresholds { stop: 8, warn: 4 });
        let rules = AgentSwitches {
            ask_when_uncertain: false,
            final_answer: true,
            raise_on_failure: false,
            recover_leaked_calls: true,
            repeat_guard,
        };
        let text = serde_json::to_string(&rules).unwrap();
        assert_eq!(text, json_of(&rules));
        expect![[r#"{"ask_when_uncertain":false,"final_answer":true,"raise_on_failure":false,"recover_leaked_calls":true,"repeat_guard":{"stop":8,"warn":4}}"#]].assert_eq(&text);
    }
}
