//! Fingerprints of agents: the parts that a run depends on, so that a stored run can name the changes of its agent.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepfold_state_core::canonical_json;
use stepfold_tools::{Approval, Effect, Tool};

use super::{Agent, AgentConfig, HostedAgent, OfferedTools};
use crate::digest;

/// The parts of an agent that a run depends on, each in words, as a digest, or as parts of its own: a tool has its schema,
/// its effect, its rule of approval, and, if it is an agent, that agent's parts.
///
/// The form is stored with each run and stays: what is digested has no names of this program's types in it.
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
pub struct Fingerprint(BTreeMap<String, FingerprintPart>);

/// The part that says which form a fingerprint has. The first one had none.
const FORM: &str = "form";
const SECOND_FORM: &str = "2";

/// The part that says what an agent uses outside of its process. It is left out by an agent that does not say it.
pub(crate) const DEPENDENCIES_PART: &str = "dependencies";

/// The part that says that tools are listed at each step.
pub(crate) const TOOLS_PART: &str = "tools";
const LISTED: &str = "listed at each step";

/// The same in fingerprints without the tools beside them.
const LISTED_ALONE: &str = "asked at each step";

/// The part of a tool or a node that is the agent inside.
pub(crate) const AGENT_PART: &str = "agent";

/// The part of a node that is how often and how long it is attempted: no work depends on it.
pub(crate) const ATTEMPTS_PART: &str = "attempts";

/// The part of a tool or a node that is its effect.
pub(crate) const EFFECT_PART: &str = "effect";

/// The parts of a node that graphs did not always have.
const NEWER_NODE_PARTS: [&str; 2] = [ATTEMPTS_PART, "settings"];

/// The parts of a tool that are left out while they have their defaults.
const OF_DEFAULT: [&str; 3] = ["approval", "bindings", EFFECT_PART];

/// A part of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum FingerprintPart {
    /// In words, or as a digest.
    Words(String),
    /// As parts of its own.
    Parts(Fingerprint),
}

/// A difference between two agents.
///
/// # Examples
/// ```
/// use stepfold_agent_loop::test_kit::Script;
/// use stepfold_agent_loop::{Agent, ChangeKind};
///
/// let agent = Agent::builder(Script::parse("")?).instructions("Be brief.").build()?;
/// let changed = agent.to_builder().instructions("Be kind.").build()?;
/// let changes = agent.fingerprint().differences(changed.fingerprint());
/// assert_eq!((&*changes[0].part, changes[0].kind), ("instructions", ChangeKind::Changed));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AgentChange {
    /// The part of the agent: `instructions`, `limits`, `tool pay`, `state key docs`, `node plan`.
    pub part: String,
    /// The part of that part, such as the `effect` of a tool, and of an agent inside, that agent's part.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inside: Vec<String>,
    /// The kind of change.
    pub kind: ChangeKind,
}

/// The kind of a change of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ChangeKind {
    /// It is not as it was.
    Changed,
    /// It is gone.
    Removed,
    /// It is new.
    Added,
}

impl fmt::Display for AgentChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.part)?;
        for inside in &self.inside {
            write!(f, ": {inside}")?;
        }
        f.write_str(match self.kind {
            ChangeKind::Changed => " changed",
            ChangeKind::Removed => " is gone",
            ChangeKind::Added => " is new",
        })
    }
}

impl From<String> for FingerprintPart {
    fn from(words: String) -> Self {
        FingerprintPart::Words(words)
    }
}

impl From<&Fingerprint> for FingerprintPart {
    fn from(parts: &Fingerprint) -> Self {
        FingerprintPart::Parts(parts.clone())
    }
}

impl Fingerprint {
    pub(super) fn of(agent: &Agent) -> Self {
        let config = agent.config();
        let mut parts = Fingerprint::common_parts(agent);
        parts.set(FORM, SECOND_FORM.to_owned());
        parts.set("approval", config.approval.as_str().to_owned());
        let hooks: Vec<String> = config.hooks.points().iter().map(ToString::to_string).collect();
        parts.set("hooks", hooks.join(", "));
        if let Some(output) = &config.output {
            parts.set("output", digest_of(&(&output.name, &output.schema, output.mode.as_str())));
        }
        if let Some(dependencies) = &config.dependencies {
            let digests = dependencies.iter().map(|(name, digest)| (name.clone(), digest.clone().into()));
            parts
                .0
                .insert(DEPENDENCIES_PART.to_owned(), FingerprintPart::Parts(Fingerprint(digests.collect())));
        }
        if let Some(planner) = &config.planner {
            for (part, value) in planner.parts() {
                parts.0.insert(part, FingerprintPart::of_json(&value));
            }
        }
        // Beside tools that are listed at each step as well.
        for tool in config.toolset.known_tools() {
            let part = FingerprintPart::Parts(Fingerprint::of_tool(tool));
            parts.0.insert(format!("tool {}", tool.name()), part);
        }
        if agent.static_offer().is_none() {
            parts.set(TOOLS_PART, LISTED.to_owned());
        }
        parts
    }

    pub(super) fn set(&mut self, name: &str, words: String) {
        self.0.insert(name.to_owned(), words.into());
    }

    /// Whether it was stored before fingerprints had parts of parts.
    pub(super) fn is_of_first_form(&self) -> bool {
        !self.0.is_empty() && !self.0.contains_key(FORM)
    }

    /// The parts that each form of a fingerprint has alike.
    pub(super) fn common_parts(agent: &Agent) -> Self {
        let config = agent.config();
        let mut parts = BTreeMap::new();
        let mut add = |name: &str, words: String| drop(parts.insert(name.to_owned(), words.into()));
        add("name", config.name.clone());
        add("model", config.model.id().to_owned());
        add("model parameters", digest_of(&(&config.params, &config.model_name)));
        if let Some(template) = &config.instructions {
            add("instructions", digest::of(template.text()));
        }
        add("limits", digest_of(&config.limits));
        add("exit conditions", config.exit_tools.join(", "));
        add("trim", config.trim.to_string());
        if let Some(window) = &config.window {
            add("window", window.to_string());
        }
        add("rules", AgentSwitches::of(config).digest());
        for key in config.schema.declared_keys() {
            let handler = json_of(&key.handler().to_string());
            let default = key.default().map_or_else(|| "null".to_owned(), canonical_json);
            let words = list([&canonical_json(key.json_schema()), &handler, &default]);
            add(&format!("state key {}", key.name()), digest::of_text(&words));
        }
        if agent.static_offer().is_none() {
            add(TOOLS_PART, LISTED_ALONE.to_owned());
        }
        Fingerprint(parts)
    }

    /// The parts of a tool. One that has its default is left out, so that a part that comes later changes no stored
    /// fingerprint.
    fn of_tool(tool: &Tool) -> Self {
        let mut parts = BTreeMap::new();
        let mut add = |name: &str, part: FingerprintPart| drop(parts.insert(name.to_owned(), part));
        add("schema", digest::of_text(tool.canonical_signature()).into());
        add("description", digest::of_text(tool.canonical_words()).into());
        if tool.effect() != Effect::default() {
            add(EFFECT_PART, json_of(&tool.effect()).trim_matches('"').to_owned().into());
        }
        if !matches!(tool.approval(), Approval::Never) {
            add("approval", tool.approval().as_str().to_owned().into());
        }
        if tool.has_bindings() {
            add("bindings", digest::of_text(tool.canonical_bindings()).into());
        }
        // An agent that is a tool continues inside of the run, so that what it depends on, the run does.
        if let Some(call) = tool.hosted_as::<HostedAgent>() {
            add(AGENT_PART, call.agent.fingerprint().into());
        }
        Fingerprint(parts)
    }

    /// The same of some parts.
    pub(crate) fn changes_of(&self, now: &Fingerprint, part: &str) -> Vec<String> {
        let changes = self.differences(now).into_iter();
        changes.filter(|change| change.part.starts_with(part)).map(|change| change.to_string()).collect()
    }

    /// The differences of `now`, in words: what changed, what was removed, what was added.
    pub fn changes(&self, now: &Fingerprint) -> Vec<String> {
        self.differences(now).iter().map(ToString::to_string).collect()
    }

    /// The differences of `now`: what changed and what was removed, then what was added, each in the order of the names.
    pub fn differences(&self, now: &Fingerprint) -> Vec<AgentChange> {
        let change = |part: &String, kind| AgentChange { part: part.clone(), inside: Vec::new(), kind };
        let mut changes = Vec::new();
        let is_listed_as = |parts: &Fingerprint, words: &str| matches!(parts.0.get(TOOLS_PART), Some(FingerprintPart::Words(known)) if known == words);
        // The other tools are not known to have changed.
        let lacks_tools = is_listed_as(self, LISTED_ALONE) && is_listed_as(now, LISTED);
        let is_newer = |part: &str| lacks_tools && (part == TOOLS_PART || part.starts_with("tool "));
        for (part, before) in &self.0 {
            match (before, now.0.get(part)) {
                (_, None) => changes.push(change(part, ChangeKind::Removed)),
                (before, Some(after)) if before == after || is_newer(part) => {}
                (FingerprintPart::Parts(before), Some(FingerprintPart::Parts(after))) => {
                    changes.extend(before.differences(after).into_iter().map(|change| change.within(part)));
                }
                _ => changes.push(change(part, ChangeKind::Changed)),
            }
        }
        let new = now.0.keys().filter(|part| !self.0.contains_key(*part) && !is_newer(part));
        changes.extend(new.map(|part| change(part, ChangeKind::Added)));
        changes
    }

    /// The parts of a part: of a tool, of a node, of the agent inside.
    pub(crate) fn inside(&self, path: &[&str]) -> Option<&Fingerprint> {
        let Some((first, rest)) = path.split_first() else { return Some(self) };
        match self.0.get(*first)? {
            FingerprintPart::Parts(parts) => parts.inside(rest),
            FingerprintPart::Words(_) => None,
        }
    }
}

impl AgentChange {
    /// Whether it is a change of this part of the agent, or of an agent inside of it.
    ///
    /// # Examples
    /// ```
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::Agent;
    ///
    /// # let model = || Script::parse("");
    /// let helper = Agent::builder(model()?).instructions("Be brief.").build()?;
    /// let kinder = helper.to_builder().instructions("Be kind.").build()?;
    /// let agent = Agent::builder(model()?).tools([helper.as_tool("help", "Helps.")]).build()?;
    /// let changed = Agent::builder(model()?).tools([kinder.as_tool("help", "Helps.")]).build()?;
    /// let changes = changed.changes_since(agent.fingerprint());
    /// assert_eq!(changes[0].to_string(), "tool help: agent: instructions changed");
    /// assert!(changes[0].is_of_agent_part("instructions"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_of_agent_part(&self, part: &str) -> bool {
        match self.inside.as_slice() {
            [] => self.part == part,
            [.., agent, last] => agent == AGENT_PART && last == part,
            [_] => false,
        }
    }

    /// Whether a part is new because the fingerprint was stored before there were such parts: not known to have changed.
    pub(super) fn is_of_newer_part(&self) -> bool {
        let path: Vec<&str> = [&self.part].into_iter().chain(&self.inside).map(String::as_str).collect();
        let is_newer_node_part = matches!(*path, [.., around, part]
            if around.starts_with("node ") && NEWER_NODE_PARTS.contains(&part));
        self.kind == ChangeKind::Added && (self.is_of_agent_part(DEPENDENCIES_PART) || is_newer_node_part)
    }

    /// The same as a change of a part around it.
    pub(crate) fn within(self, part: &str) -> Self {
        let AgentChange { part: own, mut inside, kind } = self;
        // What is left out has its default.
        let has_default = inside.is_empty() && OF_DEFAULT.contains(&own.as_str());
        let kind = if has_default { ChangeKind::Changed } else { kind };
        inside.insert(0, own);
        AgentChange { part: part.to_owned(), inside, kind }
    }
}

impl FingerprintPart {
    /// A part as a planner gives it: an object of texts and such objects is one of parts.
    fn of_json(value: &Value) -> Self {
        match FingerprintPart::deserialize(value) {
            Ok(FingerprintPart::Parts(parts)) => FingerprintPart::Parts(parts),
            _ => FingerprintPart::Words(digest_of(value)),
        }
    }
}

/// A digest of a tool: of what is approved with a call of it.
pub(crate) fn of_definition(tool: &Tool) -> String {
    let effect = json_of(&tool.effect());
    let mut parts =
        vec![tool.canonical_signature(), tool.canonical_words(), &effect, tool.canonical_bindings()];
    parts.extend(tool.listing().map(|listing| &*listing.digest));
    digest::of_parts(&parts)
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
pub(super) fn list(items: impl IntoIterator<Item = impl AsRef<str>>) -> String {
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
pub(super) fn digest_of<T: Serialize>(value: &T) -> String {
    digest::of_text(&json_of(value))
}

pub(super) fn json_of<T: Serialize>(value: &T) -> String {
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
