//! The stored form of a run: versioned JSON that says which agent it is of.
//!
//! Derived things are not stored: which tools there are, which ids are taken, what the model is shown (but
//! for which messages it was shown, because a window may have left some out).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;
use stepfold_state_core::state::{Schema, State};

use super::call_ids::CallIdSet;
use super::event::{FORMAT_VERSION, NEWEST_FORMAT_VERSION};
use super::input::ConversationCache;
use super::load_error::LoadError;
use super::machine::{ApprovedCall, Run, RunPhase, RunTally};
use super::prompt::{ModelPrompt, first_messages, restored_view};
use super::run_file::save_in;
use super::step::{OpenStep, StepPlan};
use super::unknown_calls::UnknownCall;
use super::upgrade::PendingUpgrade;
use crate::agent::{AGENT_PART, Agent, Fingerprint};
use crate::decisions::SettledDecision;
use stepfold_trim::{MessageRanges, Summary};

/// The stored form of a run, as it is written.
#[derive(Serialize)]
struct WrittenRun<'a> {
    version: u64,
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_prefix: Option<&'a str>,
    agent: &'a Fingerprint,
    schema: &'a Schema,
    state: &'a State,
    phase: &'a RunPhase,
    tally: &'a RunTally,
    shown: WrittenView<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    summary: Option<&'a Summary>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    approved: &'a [ApprovedCall],
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    decided: &'a BTreeMap<String, SettledDecision>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    unknown: &'a [UnknownCall],
    #[serde(skip_serializing_if = "Option::is_none")]
    upgrade: Option<&'a PendingUpgrade>,
}

#[derive(Serialize)]
struct WrittenView<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    instructions: Option<&'a str>,
    kept: &'a MessageRanges,
    #[serde(skip_serializing_if = "MessageRanges::is_empty")]
    cleared: &'a MessageRanges,
    of: usize,
}

/// The same, read back. The schema is for people and other programs; the agent has its own.
#[derive(Deserialize)]
struct LoadedRun {
    id: Arc<str>,
    /// The default id.
    #[serde(default)]
    key_prefix: Option<Arc<str>>,
    agent: Fingerprint,
    state: Box<RawValue>,
    phase: RunPhase,
    tally: RunTally,
    shown: LoadedView,
    #[serde(default)]
    summary: Option<Summary>,
    #[serde(default)]
    approved: Vec<ApprovedCall>,
    #[serde(default)]
    decided: BTreeMap<String, SettledDecision>,
    #[serde(default)]
    unknown: Vec<UnknownCall>,
    #[serde(default)]
    upgrade: Option<Box<PendingUpgrade>>,
}

#[derive(Deserialize)]
struct LoadedView {
    #[serde(default)]
    instructions: Option<String>,
    kept: MessageRanges,
    #[serde(default)]
    cleared: MessageRanges,
    of: usize,
}

#[derive(Deserialize)]
struct StoredVersion {
    version: u64,
}

/// Refuses forms of a newer version.
pub(crate) fn check_version(json: &str, what: &'static str) -> Result<(), LoadError> {
    let stored: StoredVersion =
        serde_json::from_str(json).map_err(|source| LoadError::Json { what, source })?;
    if stored.version > NEWEST_FORMAT_VERSION {
        return Err(LoadError::NewerFormat { what, found: stored.version, supported: NEWEST_FORMAT_VERSION });
    }
    Ok(())
}

/// Versioned JSON: with the agent's fingerprint, the schema, the state, and everything that is open.
impl Serialize for Run {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let view = self.prompt.view();
        WrittenRun {
            version: if self.lacks_parts() { NEWEST_FORMAT_VERSION } else { FORMAT_VERSION },
            id: &self.id,
            key_prefix: (self.key_prefix != self.id).then_some(&*self.key_prefix),
            agent: self.agent.fingerprint(),
            schema: self.agent.schema(),
            state: &self.state,
            phase: &self.phase,
            tally: &self.tally,
            shown: WrittenView {
                instructions: self.prompt.instructions(),
                kept: view.kept(),
                cleared: view.cleared(),
                of: view.kept().len() + view.dropped(),
            },
            summary: self.summary.as_ref(),
            approved: &self.approved,
            decided: &self.decided,
            unknown: &self.unknown,
            upgrade: self.upgrade.as_deref(),
        }
        .serialize(serializer)
    }
}

impl Run {
    /// The run as JSON, to be [loaded](Run::load) in any process.
    ///
    /// # Examples
    /// ```
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::{Agent, Run};
    ///
    /// let agent = Agent::builder(Script::parse("assistant: area 3")?).build()?;
    /// let run = Run::new(&agent, "which area has most stalls?", "run-1")?;
    /// let stored = run.to_json();
    /// let loaded = Run::load(&agent, &stored)?;
    /// assert_eq!(loaded.to_json(), stored);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn to_json(&self) -> String {
        // Whatever is in a run was JSON before, or is made of strings and numbers.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Loads a stored run of this agent. It can be loaded any number of times; the copies are independent.
    ///
    /// # Errors
    /// [`LoadError`] when the JSON is not a run or of a newer format, when the state does not fit the schema, and
    /// when the agent has changed; it says what changed.
    pub fn load(agent: &Agent, json: &str) -> Result<Self, LoadError> {
        let (run, changes) = Run::load_changed(agent, json)?;
        match changes.is_empty() {
            true => Ok(run),
            false => Err(LoadError::AgentChanged { changes }),
        }
    }

    /// Loads a stored run with a possibly changed agent, and returns the changes. If there are any, the run needs to
    /// [record](super::RunNeed::Upgrade) them first: see [`upgrade_from`](Run::upgrade_from).
    ///
    /// # Errors
    /// As [`Run::load`], but for the changes.
    pub fn load_changed(agent: &Agent, json: &str) -> Result<(Self, Vec<String>), LoadError> {
        let (mut run, recorded, changes) = Run::load_recorded(agent, json)?;
        run.upgrade_from(&recorded);
        Ok((run, changes))
    }

    /// Loads a stored run, with the agent that it was stored with and the changes since.
    pub(super) fn load_recorded(
        agent: &Agent,
        json: &str,
    ) -> Result<(Self, Fingerprint, Vec<String>), LoadError> {
        check_version(json, "run")?;
        let stored: LoadedRun =
            serde_json::from_str(json).map_err(|source| LoadError::Json { what: "run", source })?;
        // NOTE: A changed agent is reported rather than refused here: only the caller knows whether the change matters
        // to the run.
        let mut changes: Vec<String> =
            agent.changes_since(&stored.agent).iter().map(ToString::to_string).collect();
        let state = State::from_json(agent.schema(), stored.state.get())?;
        let prompt = prompt_of(agent, &state, &stored);
        let mut phase = stored.phase;
        if let RunPhase::Working(OpenStep { plan: StepPlan::Calls(calls), .. }) = &mut phase {
            // NOTE: While a step of calls is open, its reply is the last message of the log, and is not stored twice.
            calls.reply = state.messages().last().cloned();
        }
        let key_prefix = stored.key_prefix.unwrap_or_else(|| Arc::clone(&stored.id));
        let cache =
            ConversationCache { call_ids: CallIdSet::of(state.messages()), ..ConversationCache::default() };
        let mut run = Run {
            key_prefix,
            tally: stored.tally,
            summary: stored.summary,
            approved: stored.approved,
            decided: stored.decided,
            unknown: stored.unknown,
            upgrade: stored.upgrade,
            prompt,
            cache,
            // NOTE: Another process may have started the running items, so the run needs `Interrupted` first.
            is_lost: true,
            ..Run::at(agent, stored.id, state, phase)
        };
        // Those of agents that are known without the tools of a step are among the changes already.
        let is_new = |(part, _): &(String, String)| stored.agent.inside(&[part, AGENT_PART]).is_none();
        changes.extend(run.attach_agents()?.into_iter().filter(is_new).map(|(_, change)| change));
        Ok((run, stored.agent, changes))
    }

    /// Writes the run into a folder, under a name that no other state of it or of another run has: a file
    /// appears whole or not at all.
    ///
    /// # Errors
    /// [`LoadError::File`] when the folder cannot be written to.
    pub fn save_in(&self, folder: impl AsRef<Path>) -> Result<PathBuf, LoadError> {
        save_in(folder.as_ref(), &self.key_prefix, self.tally.events, self.to_json().as_bytes())
    }

    /// Continues with a run from a file, as [`load`](Run::load) does.
    ///
    /// # Errors
    /// As [`Run::load`], and when the file cannot be read.
    pub fn load_file(agent: &Agent, path: impl AsRef<Path>) -> Result<Self, LoadError> {
        let path = path.as_ref();
        let json = std::fs::read_to_string(path).map_err(|source| LoadError::File {
            path: path.to_owned(),
            doing: "read",
            source,
        })?;
        Run::load(agent, &json)
    }
}

/// The prompt of the model when the run was stored, so that its window continues unchanged.
fn prompt_of(agent: &Agent, state: &State, stored: &LoadedRun) -> ModelPrompt {
    let seen = first_messages(state.messages(), stored.shown.of);
    let LoadedView { instructions, kept, cleared, .. } = &stored.shown;
    let view = restored_view(&seen, kept.clone(), cleared, stored.summary.as_ref());
    ModelPrompt::new(agent, instructions.clone(), view, &seen, stored.tally.turn_start)
}
