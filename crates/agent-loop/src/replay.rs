//! Replay: computes a recorded run again, without model and tools.
//!
//! Every event is computed again from recorded inputs (the reply, the outcome, the decision, the actions of
//! hooks) and compared with the recorded one. So a replay against a changed agent shows where the run would
//! have diverged, before a deployment.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use stepfold_state_core::chat::{Chunk, Message, Reply, ReplyBuilder, Transcript};
use stepfold_state_core::state::{Delta, Write};
use stepfold_state_core::{shortened, shortened_pair};
use stepfold_tools::ToolsetError;

use crate::agent::HookPoint;
use crate::agent::{Agent, Fingerprint};
use crate::decisions::Decisions;
use crate::edit::Edit;
use crate::error::FeedError;
use crate::exit::Exit;
use crate::observe::{Observer, ObserverError, RunEvent};
use crate::run::{
    CallContradiction, CallDisposition, Event, EventKind, FORMAT_VERSION, HookReport, ItemOutcome, LoadError,
    Run, RunAnswer, RunNeed, SharedValue, StepItem, check_version,
};
use crate::state_input::{StateInput, TEMPORARY, are_recorded, are_recorded_alike};

/// Everything that is needed to go through a run again: where it began, and its events.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use stepfold_agent_loop::test_kit::Script;
/// use stepfold_agent_loop::{Agent, Recording, Run};
///
/// let agent = Agent::builder(Script::parse("assistant: area 3")?).build()?;
/// let run = Run::new(&agent, "which area has most stalls?", "run-1")?;
/// let mut recording = Recording::of(&run);
/// let outcome = run.resume().observe(&mut recording).await?;
///
/// // Next year, without a model:
/// let stored = serde_json::to_string(&recording)?;
/// let replayed = Recording::from_json(&stored)?.replay(&agent)?;
/// assert_eq!(replayed.digest(), outcome.run().digest());
///
/// // With an agent that may not take a step more:
/// let changed = agent.to_builder().instructions("Be brief.").build()?;
/// let divergence = Recording::from_json(&stored)?.replay(&changed).unwrap_err();
/// assert_eq!(divergence.to_string(), "\
/// event 0 (began, step 0) differs at $.kind.began.instructions: recorded nothing, replayed \"Be brief.\"");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, Serialize)]
pub struct Recording {
    version: u64,
    agent: Fingerprint,
    /// The run before its first event.
    start: Box<RawValue>,
    events: Vec<Event>,
    /// The exit of the run, if it was observed.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<Exit>,
}

#[derive(Deserialize)]
struct StoredRecording {
    agent: Fingerprint,
    start: Box<RawValue>,
    events: Vec<Event>,
    #[serde(default)]
    ended: Option<Exit>,
}

impl Recording {
    /// A recording of a run that has not begun; it is an [`Observer`] that takes the events.
    pub fn of(run: &Run) -> Self {
        Recording {
            version: FORMAT_VERSION,
            agent: run.agent().fingerprint().clone(),
            start: RawValue::from_string(run.to_json()).unwrap_or_default(),
            events: Vec::new(),
            ended: None,
        }
    }

    /// A recording that was stored.
    ///
    /// # Errors
    /// [`LoadError`] when it cannot be read or is of a newer format.
    pub fn from_json(json: &str) -> Result<Self, LoadError> {
        check_version(json, "recording")?;
        let StoredRecording { agent, start, events, ended } =
            serde_json::from_str(json).map_err(|source| LoadError::Json { what: "recording", source })?;
        Ok(Recording { version: FORMAT_VERSION, agent, start, events, ended })
    }

    /// Adds the next event: for hosts that are not observers, and for records stored in parts.
    pub fn push(&mut self, event: Event) {
        self.events.push(event);
    }

    /// The events, in order.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The agent's fingerprint when the run was recorded.
    pub fn agent(&self) -> &Fingerprint {
        &self.agent
    }

    /// Replays the run with this agent, without calling its model or its tools.
    ///
    /// The run matches if a live one would have made the same events, given the recorded replies and
    /// outcomes: also the same tools, the same running and marked calls, and a state of the same schema.
    /// Dynamic toolsets are not compared here: see [`Run::replay_with_tools`].
    ///
    /// # Errors
    /// [`Divergence`] for the first event that would be another one, and for a run that ended and would not
    /// end there, or for another reason. A record that stops in the middle replays to where it stops.
    pub fn replay(&self, agent: &Agent) -> Result<Run, Divergence> {
        // NOTE: Before anything else: with another schema every difference after it would only be a consequence.
        Divergence::check_schema(&self.agent, agent.fingerprint())?;
        let (run, _) = Run::load_changed(agent, self.start.get()).map_err(Divergence::Start)?;
        let explained = |divergence: Divergence| divergence.explained(&self.agent, agent.fingerprint());
        let run = run.replay(&self.events, |_| true).map_err(explained)?;
        match &self.ended {
            Some(exit) if !exit.is_resumable() && run.exit() != Some(exit) => {
                Err(Divergence::End { recorded: exit.clone(), need: run.decide().to_string() })
            }
            _ => Ok(run),
        }
    }
}

impl Run {
    /// Replays recorded events, without calling the model or tools: the run is in its state before them.
    ///
    /// Of a run whose agent was [upgraded](EventKind::Upgraded), the part before counts as it is recorded, and the part after is
    /// compared.
    ///
    /// `stored` selects the writes that the record can contain: others are not compared. A run that has not
    /// begun takes the values of `app:` and `user:` keys from the record. For a run whose conversation was
    /// pruned, its view and its summaries are taken from the record.
    ///
    /// # Errors
    /// [`Divergence`] for the first event that differs; otherwise for the first request with other tools.
    pub fn replay(self, events: &[Event], stored: impl Fn(&Write) -> bool) -> Result<Run, Divergence> {
        let rules = ComparisonRules { stored, is_alike: |_: &str, _: &str| false };
        let mut replay = ReplayedRun { run: self, other_tools: None };
        let compared = replay.follow_upgrades(events)?;
        for (place, recorded) in events.iter().enumerate().skip(compared) {
            replay.step(place, recorded, &rules)?;
        }
        replay.end()
    }

    /// As [`replay`](Run::replay), and dynamic toolsets are listed as in a live run and compared like static
    /// ones. Toolsets of inner agents are not listed.
    ///
    /// # Errors
    /// As [`replay`](Run::replay), and [`Divergence::Toolset`] where a set cannot be listed.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::{Agent, Event, Run, RunEvent};
    /// use stepfold_tools::{Effect, Tool, ToolError, Toolset};
    ///
    /// async fn count() -> Result<u32, ToolError> {
    ///     Ok(12)
    /// }
    /// let remote = |name: &'static str| {
    ///     Toolset::dynamic_with("remote", move |_| async move {
    ///         Ok(vec![Tool::new(name, "Counts stalls.", count).effect(Effect::Pure).build()?])
    ///     })
    /// };
    /// # let model = Script::parse("assistant: > c1 count()\nassistant: 12 stalls")?;
    /// let agent = Agent::builder(model).tools(remote("count")).build()?;
    /// let mut seen = Vec::new();
    /// agent.run("how many?").observe(&mut seen).await?;
    /// let events: Vec<Event> = seen.iter().filter_map(RunEvent::committed).cloned().collect();
    ///
    /// // Today the server offers another tool.
    /// let today = agent.to_builder().tools(remote("tally")).build()?;
    /// let run = Run::new(&today, "how many?", "run-1")?;
    /// let divergence = run.replay_with_tools(&events, |_| true).await.unwrap_err();
    /// assert_eq!(
    ///     divergence.to_string(),
    ///     "event 2 (answered, step 1) differs for 'c1': recorded that it ran, replayed unknown tool 'count'; \
    ///      available: tally",
    /// );
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub async fn replay_with_tools(
        self,
        events: &[Event],
        stored: impl Fn(&Write) -> bool,
    ) -> Result<Run, Divergence> {
        self.replay_listing(events, ComparisonRules { stored, is_alike: |_: &str, _: &str| false }).await
    }

    /// As [`replay_with_tools`](Run::replay_with_tools), of a record in which more is replaced than a run
    /// [replaces](crate::Redact) before storing: its instructions, for example. `is_alike` says of a text of the record and one of the
    /// replay that differ whether the record has the text of the replay, with parts replaced.
    ///
    /// # Errors
    /// As [`replay_with_tools`](Run::replay_with_tools).
    pub async fn replay_alike(
        self,
        events: &[Event],
        stored: impl Fn(&Write) -> bool,
        is_alike: impl Fn(&str, &str) -> bool,
    ) -> Result<Run, Divergence> {
        self.replay_listing(events, ComparisonRules { stored, is_alike }).await
    }

    async fn replay_listing(
        self,
        events: &[Event],
        rules: ComparisonRules<impl Fn(&Write) -> bool, impl Fn(&str, &str) -> bool>,
    ) -> Result<Run, Divergence> {
        let mut replay = ReplayedRun { run: self, other_tools: None };
        let compared = replay.follow_upgrades(events)?;
        for (place, recorded) in events.iter().enumerate().skip(compared) {
            if let EventKind::Replied { .. } = recorded.kind {
                replay.list_tools(place, recorded).await?;
            }
            replay.step(place, recorded, &rules)?;
        }
        replay.end()
    }
}

/// The rules by which an event of a replay is compared with the recorded one.
struct ComparisonRules<S, A> {
    /// The writes that the record can contain.
    stored: S,
    /// Whether a text of the record is the other one with parts replaced.
    is_alike: A,
}

/// A run that is replayed from a record.
struct ReplayedRun {
    run: Run,
    /// The first event with other tools on offer. It is reported last: the outcomes of the calls say more.
    other_tools: Option<Divergence>,
}

impl ReplayedRun {
    /// Follows the record up to its last [upgrade](EventKind::Upgraded): what another agent did there is not compared.
    /// Returns the number of events that it followed.
    fn follow_upgrades(&mut self, events: &[Event]) -> Result<usize, Divergence> {
        let upgraded = events.iter().rposition(|event| matches!(event.kind, EventKind::Upgraded { .. }));
        let Some(last) = upgraded else { return Ok(0) };
        for (place, recorded) in events[..=last].iter().enumerate() {
            self.run.follow_other_agent();
            self.run.restore_shared(recorded);
            self.run.follow(recorded).map_err(|error| Divergence::At {
                event: place,
                name: recorded.name(),
                step: recorded.step,
                difference: Box::new(Difference::Refused(error)),
            })?;
        }
        self.run.follow_own_agent();
        Ok(last + 1)
    }

    fn step(
        &mut self,
        place: usize,
        recorded: &Event,
        ComparisonRules { stored, is_alike }: &ComparisonRules<
            impl Fn(&Write) -> bool,
            impl Fn(&str, &str) -> bool,
        >,
    ) -> Result<(), Divergence> {
        let at = |difference| Divergence::At {
            event: place,
            name: recorded.name(),
            step: recorded.step,
            difference: Box::new(difference),
        };
        self.run.restore_shared(recorded);
        let made = recompute_event(&self.run, recorded).map_err(|difference| at(*difference))?;
        let mut compared = made.clone();
        // NOTE: A record cannot have these writes, such as those of `temp:` keys.
        compared.retain_writes(stored);
        // NOTE: Other tools alone are a difference, since the model would have been asked something else; differing
        // calls explain it better, so they come first.
        if adopt_tools(&mut compared.kind, &recorded.kind) && self.other_tools.is_none() {
            self.other_tools = Some(at(Difference::Tools { changes: Vec::new() }));
        }
        adopt_redaction(&mut compared, recorded);
        if compared != *recorded {
            let mut log = recorded.rewrite.as_ref().unwrap_or(self.run.transcript()).clone();
            log.extend(recorded.messages.iter().cloned());
            if let Some(difference) = first_difference(recorded, &compared, &log, is_alike) {
                return Err(at(difference));
            }
        }
        let mut made = Event { redacted: recorded.redacted.clone(), ..made };
        // A question that follows is about the tool of the record.
        adopt_tools(&mut made.kind, &recorded.kind);
        self.run.commit(made).map_err(|error| at(Difference::Refused(error)))
    }

    /// Offers the tools that the run would have at this step, if they are asked for at each.
    async fn list_tools(&mut self, place: usize, recorded: &Event) -> Result<(), Divergence> {
        let agent = self.run.agent().clone();
        if agent.static_offer().is_none() {
            let tools = agent.config().toolset.resolve(self.run.state()).await;
            let failed = |source| Divergence::Toolset { event: place, step: recorded.step, source };
            self.run.offer_tools(tools.map_err(failed)?);
        }
        Ok(())
    }

    fn end(self) -> Result<Run, Divergence> {
        self.other_tools.map_or(Ok(self.run), Err)
    }
}

/// The event that the run makes of the recorded input from outside.
fn recompute_event(run: &Run, recorded: &Event) -> Result<Event, Box<Difference>> {
    let refused = |error| Box::new(Difference::Refused(error));
    // Only the whole conversation shows which part was to be condensed, and which results there were.
    if run.is_pruned()
        && matches!(
            recorded.kind,
            EventKind::Summarized { .. } | EventKind::Edited { .. } | EventKind::Narrowed { .. }
        )
    {
        return Ok(recorded.clone());
    }
    recorded.whole_outcomes().map_err(refused)?;
    if is_decided_by_originals(recorded) && recorded_answer(recorded, run).is_some() {
        return Ok(recorded.clone());
    }
    if let Some(CallContradiction { call, recorded, replayed }) = run.contradiction(recorded) {
        return Err(Box::new(Difference::Call { call, recorded, replayed }));
    }
    let answer = match &recorded.kind {
        // A run inside is replayed by itself. The agents of dynamic toolsets are not known.
        EventKind::Inner { place, event } if run.open_step().is_some() => {
            let Some(mut child) = run.child_of(*place).map_err(refused)? else { return Ok(recorded.clone()) };
            child.restore_shared(event);
            let event = Box::new(recompute_event(&child, event)?);
            Some(RunAnswer::Inner { place: *place, event })
        }
        _ => recorded_answer(recorded, run),
    };
    let answer = answer.ok_or_else(|| {
        let need = run.decide().to_string();
        Box::new(Difference::NotNeeded { need })
    })?;
    let made = match (&recorded.kind, with_recorded_prefix(run, &recorded.kind)) {
        (EventKind::Interrupted { places, .. }, _) => run.feed_interrupted(places, recorded.elapsed),
        (_, Some(run)) => run.feed(answer, recorded.elapsed),
        (_, None) => run.feed(answer, recorded.elapsed),
    };
    let mut made = made.map_err(refused)?;
    adopt_requests(&mut made, recorded, run);
    adopt_inputs(&mut made.kind, &recorded.kind);
    adopt_beginning(&mut made, recorded, run);
    Ok(made)
}

/// Whether the run decided by content that was replaced before it was stored: a reply, decisions, or an edit.
const fn is_decided_by_originals(recorded: &Event) -> bool {
    recorded.redacted.is_some()
        && matches!(
            recorded.kind,
            EventKind::Replied { .. } | EventKind::Decided { .. } | EventKind::Edited { .. }
        )
}

/// Takes the number of replaced parts from the record: a replay is made of what was stored.
fn adopt_redaction(made: &mut Event, recorded: &Event) {
    made.redacted.clone_from(&recorded.redacted);
    if let (EventKind::Inner { event, .. }, EventKind::Inner { event: recorded, .. }) =
        (&mut made.kind, &recorded.kind)
    {
        adopt_redaction(event, recorded);
    }
}

/// The run with the ids of these decisions, if they are those of another run: of the session that this one
/// was forked from, for example.
fn with_recorded_prefix(run: &Run, recorded: &EventKind) -> Option<Run> {
    let EventKind::Decided { key_prefix, .. } = recorded else { return None };
    if run.request_scope() == key_prefix.as_deref() {
        return None;
    }
    let prefix = key_prefix.clone().unwrap_or_else(|| run.id().to_owned());
    Some(run.clone().with_key_prefix(prefix))
}

/// Whether other tools are offered to the model. They are compared last: the outcomes of the calls say more.
fn adopt_tools(made: &mut EventKind, recorded: &EventKind) -> bool {
    match (made, recorded) {
        (EventKind::Began { tools, .. }, EventKind::Began { tools: known, .. }) => {
            let are_others = known.is_some() && tools != known;
            tools.clone_from(known);
            are_others
        }
        (
            EventKind::Replied { tools, fates, listed, .. },
            EventKind::Replied { tools: known, fates: known_fates, listed: known_listed, .. },
        ) => {
            adopt_definitions(fates, known_fates);
            listed.clone_from(known_listed);
            let are_others = known.is_some() && tools.is_some() && tools != known;
            tools.clone_from(known);
            are_others
        }
        (EventKind::Asked { listed, .. }, EventKind::Asked { listed: known, .. }) => {
            listed.clone_from(known);
            false
        }
        (EventKind::Inner { event, .. }, EventKind::Inner { event: recorded, .. }) => {
            adopt_tools(&mut event.kind, &recorded.kind)
        }
        _ => false,
    }
}

/// Takes the digests of the tools that calls are asked about: other tools are a difference of the whole offer.
fn adopt_definitions(made: &mut [(usize, CallDisposition)], recorded: &[(usize, CallDisposition)]) {
    for ((_, made), (_, recorded)) in made.iter_mut().zip(recorded) {
        if let (CallDisposition::Ask(made), CallDisposition::Ask(recorded)) = (made, recorded) {
            made.definition.clone_from(&recorded.definition);
            made.parameters.clone_from(&recorded.parameters);
        }
    }
}

/// Takes the parts of a run's beginning that come from outside: its id, and the values of shared keys. Instructions are
/// those of the record where they differ in values that it cannot contain: those that do not last, and those that were
/// too large, around which the text is compared. A pruned conversation is shown and repaired as the whole one was.
fn adopt_beginning(made: &mut Event, recorded: &Event, run: &Run) {
    made.shared.clone_from(&recorded.shared);
    let (
        EventKind::Began { id, instructions, repairs, shown, messages_before, .. },
        EventKind::Began {
            id: known_id,
            instructions: known,
            repairs: known_repairs,
            shown: known_shown,
            messages_before: known_before,
            ..
        },
    ) = (&mut made.kind, &recorded.kind)
    else {
        return;
    };
    id.clone_from(known_id);
    if instructions != known
        && let Some(text) = known
        && (run.lasting_instructions() == *known || fits_around_large_values(text, recorded, run))
    {
        instructions.clone_from(known);
    }
    if *messages_before < *known_before {
        shown.clone_from(known_shown);
        repairs.clone_from(known_repairs);
        made.rewrite.clone_from(&recorded.rewrite);
        made.messages.clone_from(&recorded.messages);
    }
    // Records of earlier versions have the new messages at the end of a repaired conversation.
    if let (Some(rewrite), Some(whole)) = (&made.rewrite, &recorded.rewrite)
        && recorded.messages.is_empty()
        && whole.len() == rewrite.len() + made.messages.len()
    {
        let messages = std::mem::take(&mut made.messages);
        made.rewrite = Some(rewrite.iter().cloned().chain(messages).collect());
    }
    *messages_before = *known_before;
}

/// Whether these can be the instructions, whatever the values are that were too large to be recorded.
fn fits_around_large_values(instructions: &str, recorded: &Event, run: &Run) -> bool {
    let large = recorded.shared.iter().filter(|(_, value)| **value == SharedValue::Large);
    let large: Vec<&str> = large.map(|(key, _)| key.as_str()).collect();
    let is_large = |name: &str| {
        let mut rests = large.iter().filter_map(|key| name.strip_prefix(*key));
        rests.any(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    !large.is_empty() && run.may_have_instructions(instructions, &is_large)
}

impl Observer for Recording {
    async fn observe(&mut self, event: &RunEvent) -> Result<(), ObserverError> {
        match event {
            RunEvent::Committed(event) => {
                self.ended = None;
                self.events.push((**event).clone());
            }
            RunEvent::Ended(exit) => self.ended = Some(exit.clone()),
            _ => {}
        }
        Ok(())
    }
}

/// The first difference between a replay and its record.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Divergence {
    /// The run cannot begin with this agent.
    #[error("recorded run cannot begin with this agent: {0}")]
    Start(LoadError),
    /// The state has another schema.
    #[error("state schema changed since the run was recorded: {}", changes.join("; "))]
    Schema {
        /// The changes, in words.
        changes: Vec<String>,
    },
    /// An event would be another one.
    #[error("event {event} ({name}, step {step}) {difference}")]
    At {
        /// The index of the event in the recording.
        event: usize,
        /// The recorded event, in one word.
        name: &'static str,
        /// The step it belongs to.
        step: u64,
        /// The difference.
        difference: Box<Difference>,
    },
    /// The tools of a live run cannot be listed.
    #[error("tools of event {event} (replied, step {step}) could not be listed: {source}")]
    Toolset {
        /// The index of the event in the recording.
        event: usize,
        /// The step it belongs to.
        step: u64,
        /// The cause.
        r#source: ToolsetError,
    },
    /// All events are the same, and the end is another.
    #[error("diverged at the end: the recorded run ended because {recorded}; the replay would need {need}")]
    End {
        /// The exit of the recorded run.
        recorded: Exit,
        /// The need of the replay.
        need: String,
    },
}

impl Divergence {
    /// Compares the schema of the state that a run was recorded with and that of the agent now.
    ///
    /// # Errors
    /// [`Divergence::Schema`] with the changes.
    ///
    /// # Examples
    /// ```
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::{Agent, Divergence};
    /// use stepfold_state_core::state::Schema;
    ///
    /// let before = Agent::builder(Script::parse("")?).build()?;
    /// let schema = Schema::builder().key::<u64>("area").build()?;
    /// let now = before.to_builder().schema(schema).build()?;
    /// let divergence = Divergence::check_schema(before.fingerprint(), now.fingerprint()).unwrap_err();
    /// assert_eq!(
    ///     divergence.to_string(),
    ///     "state schema changed since the run was recorded: state key area is new",
    /// );
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn check_schema(recorded: &Fingerprint, now: &Fingerprint) -> Result<(), Self> {
        let changes = recorded.changes_of(now, "state key ");
        match changes.is_empty() {
            true => Ok(()),
            false => Err(Divergence::Schema { changes }),
        }
    }

    /// Adds which of the agent's tools have changed, if it is about tools.
    #[must_use]
    pub fn explained(mut self, recorded: &Fingerprint, now: &Fingerprint) -> Self {
        if let Divergence::At { difference, .. } = &mut self
            && let Difference::Tools { changes } = &mut **difference
        {
            *changes = recorded.changes_of(now, "tool ");
        }
        self
    }
}

/// A difference between two events.
#[derive(Debug)]
#[non_exhaustive]
pub enum Difference {
    /// The run would need something else at this point, or would have ended.
    NotNeeded {
        /// The need of the replay.
        need: String,
    },
    /// The run rejects the recorded event.
    Refused(FeedError),
    /// The run would do something else with a call, or with a node of a graph.
    Call {
        /// The id of the call, or the node.
        call: String,
        /// The recorded part, in words.
        recorded: String,
        /// The replayed part, in words.
        replayed: String,
    },
    /// The model would be offered other tools, or they would take other values from the state or write to other keys.
    Tools {
        /// The changes of tools, in words, as far as known.
        changes: Vec<String>,
    },
    /// The model would be shown another part of the conversation: by another trim or window, or by another rescue of a request
    /// that was too long.
    View {
        /// The recorded view, in words.
        recorded: String,
        /// The replayed view, in words.
        replayed: String,
    },
    /// The event has another value at this path.
    Value {
        /// A JSON path into the event.
        path: String,
        /// The recorded value, if any.
        recorded: Option<Value>,
        /// The replayed value, if any.
        replayed: Option<Value>,
    },
}

impl Difference {
    /// The difference, in words, with these names for the two sides.
    pub fn between(&self, first: &str, second: &str) -> String {
        let words =
            |value: &Option<Value>| value.as_ref().map_or_else(|| "nothing".to_owned(), Value::to_string);
        match self {
            Difference::NotNeeded { need } => {
                format!("is missing: the run would need {}", shortened(need))
            }
            Difference::Refused(error) => format!("is refused: {error}"),
            Difference::Call { call, recorded, replayed } => {
                let (recorded, replayed) = shortened_pair(recorded, replayed);
                format!("differs for '{call}': {first} {recorded}, {second} {replayed}")
            }
            Difference::Tools { changes } if changes.is_empty() => {
                "offers other tools, or with other bindings to the state".to_owned()
            }
            Difference::Tools { changes } => format!("offers other tools: {}", changes.join("; ")),
            Difference::View { recorded, replayed } => format!(
                "shows the model another part of the conversation: {first} {recorded}; {second} {replayed}"
            ),
            Difference::Value { path, recorded, replayed } => {
                let (recorded, replayed) = shortened_pair(&words(recorded), &words(replayed));
                format!("differs at {path}: {first} {recorded}, {second} {replayed}")
            }
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.between("recorded", "replayed"))
    }
}

/// Takes from the record which calls needed an approval, where a replay cannot compute it: for dynamic toolsets, and for
/// inputs from the state that are not recorded.
fn adopt_requests(made: &mut Event, recorded: &Event, run: &Run) {
    let (EventKind::Replied { fates, .. }, EventKind::Replied { fates: known, .. }) =
        (&mut made.kind, &recorded.kind)
    else {
        return;
    };
    let calls: Vec<_> = made.messages.first().into_iter().flat_map(|reply| reply.tool_calls()).collect();
    let is_unrecorded = |place: &usize| {
        let tool = calls.get(*place).map(|call| run.tools().and_then(|tools| tools.get(&call.name)));
        let is_unrecorded = |fate: &CallDisposition| matches!(fate, CallDisposition::Ask(question) if !are_recorded(&question.inputs_from_state));
        let mut asked = fates.iter().chain(known).filter(|(at, _)| at == place);
        run.tools().is_none()
            || tool.flatten().is_some_and(|tool| tool.input_keys().any(|key| key.starts_with(TEMPORARY)))
            || asked.any(|(_, fate)| is_unrecorded(fate))
    };
    let is_asking =
        |fate: &CallDisposition| matches!(fate, CallDisposition::Ask(_) | CallDisposition::Same(_));
    let is_taken = |(place, fate): &(usize, CallDisposition)| is_asking(fate) && is_unrecorded(place);
    let taken: Vec<_> = known.iter().filter(|fate| is_taken(fate)).cloned().collect();
    let left: Vec<_> = fates.iter().filter(|fate| !is_taken(fate)).cloned().collect();
    *fates = left.into_iter().chain(taken).collect();
    fates.sort_by_key(|(place, _)| *place);
}

/// The inputs from the state that are not recorded, and the tools that were listed then.
fn adopt_inputs(made: &mut EventKind, recorded: &EventKind) {
    let (
        EventKind::Interrupted { inputs_from_state: made, shown: listed, .. },
        EventKind::Interrupted { inputs_from_state: known, shown, .. },
    ) = (made, recorded)
    else {
        return;
    };
    listed.clone_from(shown);
    let of = |all: &[(usize, Vec<StateInput>)], place: usize| {
        all.iter().find(|(at, _)| *at == place).map(|(_, inputs)| inputs.clone()).unwrap_or_default()
    };
    let mut places = made.iter().chain(known).map(|(place, _)| *place);
    if places.all(|place| are_recorded_alike(&of(made, place), &of(known, place))) {
        made.clone_from(known);
    }
}

/// The recorded requests, with the values that the state now adds to calls that were approved before.
fn requests_now(fates: &[(usize, CallDisposition)], run: &Run) -> Vec<(usize, CallDisposition)> {
    let again = fates.iter().map(|(place, fate)| match fate {
        CallDisposition::Ask(known)
            if run.tools().is_some() && run.item(*place).is_some_and(StepItem::is_approved) =>
        {
            let inputs = run.inputs_at(&[*place]).pop().map(|(_, inputs)| inputs).unwrap_or_default();
            let mut question = known.clone();
            if !are_recorded_alike(&inputs, &known.inputs_from_state) {
                question.inputs_from_state = inputs;
            }
            (*place, CallDisposition::Ask(question))
        }
        fate => (*place, fate.clone()),
    });
    again.collect()
}

/// The input from outside that the event was made of; `None` if the run needs something else now.
fn recorded_answer(event: &Event, run: &Run) -> Option<RunAnswer> {
    let need = run.decide();
    Some(match (&event.kind, need) {
        (EventKind::Began { .. }, RunNeed::Begin) => RunAnswer::Begin,
        (EventKind::Hooked { point, verdict, answers, writes }, RunNeed::Hook(needed)) if needed == *point => {
            let is_open = event.step_end.is_some();
            let mut report = HookReport::new(*point);
            report.delta = if is_open { Delta::default() } else { event.delta.clone() };
            report.rewrite.clone_from(&event.rewrite);
            report.messages = if is_open { Vec::new() } else { event.messages.clone() };
            report.verdict = verdict.clone();
            report.answers.clone_from(answers);
            report.writes.clone_from(writes);
            RunAnswer::Hooked(report)
        }
        (EventKind::Summarized { summary, error, usage }, RunNeed::Summary(_)) => {
            RunAnswer::Summary(match (summary, error) {
                (Some(summary), _) => Ok((summary.text().to_owned(), *usage)),
                (None, error) => Err((error.clone().unwrap_or_default(), *usage)),
            })
        }
        (EventKind::Narrowed { limit, used, tools, .. }, RunNeed::Model) => {
            RunAnswer::TooLong { limit: *limit, used: *used, tools: *tools }
        }
        (EventKind::Steered, RunNeed::Model | RunNeed::Hook(_)) => {
            RunAnswer::Steer(event.messages.iter().map(|message| (**message).clone()).collect())
        }
        (EventKind::Replied { .. }, RunNeed::Model) => RunAnswer::Reply(recorded_reply(event)?),
        // They are taken at once, whatever else there is to do.
        (EventKind::Decided { decisions, by, idempotency_key, .. }, _) => {
            let (by, idempotency_key) = (by.clone(), idempotency_key.clone());
            RunAnswer::Decisions(Decisions { decisions: decisions.clone(), by, idempotency_key })
        }
        (EventKind::Edited { .. }, _) => RunAnswer::Edit(Edit::of(event)?),
        (EventKind::Cancelled, _) => RunAnswer::Cancelled,
        (EventKind::TimedOut, _) => RunAnswer::TimedOut,
        (EventKind::Planned { .. }, RunNeed::Superstep) => RunAnswer::Plan,
        // Where items run side by side, one may be under way or wait while another gets on.
        (
            _,
            RunNeed::Calls
            | RunNeed::Nodes
            | RunNeed::Interrupted
            | RunNeed::Approval
            // After an edit, hooks look again at calls while others are under way.
            | RunNeed::Hook(HookPoint::AfterTool | HookPoint::BeforeTool),
        ) => {
            return answer_of_item(event, run);
        }
        _ => return None,
    })
}

/// The same of an event that is about items of the open step.
fn answer_of_item(event: &Event, run: &Run) -> Option<RunAnswer> {
    Some(match &event.kind {
        EventKind::Asked { fates, .. } => RunAnswer::Ask(requests_now(fates, run)),
        EventKind::Started { places } => RunAnswer::Started(places.clone()),
        EventKind::Asks { place, requests } => RunAnswer::Asks { place: *place, requests: requests.clone() },
        EventKind::Interrupted { .. } => RunAnswer::Interrupted,
        EventKind::Answered(_) => {
            let mut outcomes = event.outcomes();
            for ItemOutcome { place, outcome, .. } in &mut outcomes {
                // The result of an agent is in its run; the number of attempts is not.
                let is_success = outcome.node().is_some_and(|outcome| outcome.status.is_success());
                if let Some(again) = run.outcome_inside(*place).filter(|_| is_success) {
                    *outcome = again.into();
                }
            }
            RunAnswer::Outcomes(outcomes)
        }
        _ => return None,
    })
}

/// The reply that an event was made from. Its calls have unique ids already, which it keeps.
fn recorded_reply(event: &Event) -> Option<Reply> {
    let EventKind::Replied { finish_reason, usage, id, model, .. } = &event.kind else { return None };
    let message: &Message = event.messages.first()?;
    let mut reply = ReplyBuilder::new();
    reply.push(Chunk::Usage(*usage));
    reply.push(Chunk::Identity { id: id.clone(), model: model.clone() });
    reply.push(Chunk::Finished(finish_reason.clone()));
    let mut reply = reply.finish().ok()?;
    reply.message = message.clone();
    Some(reply)
}

impl Event {
    /// The first place at which another event differs, if it differs in more than what its run is called, how long it
    /// took, and what others had written to shared scopes.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::{Agent, Event, RunEvent};
    ///
    /// # let model = Script::parse("assistant: area 3")?;
    /// let agent = Agent::builder(model).build()?;
    /// let mut events = Vec::new();
    /// for question in ["which area?", "which stall?"] {
    ///     let mut seen = Vec::new();
    ///     agent.run(question).observe(&mut seen).await?;
    ///     events.extend(seen.iter().filter_map(RunEvent::committed).cloned());
    /// }
    /// let [began, replied, other_began, other_replied]: [Event; 4] = events.try_into().unwrap();
    /// assert!(replied.difference(&other_replied).is_none());
    /// let difference = began.difference(&other_began).expect("the questions differ");
    /// assert_eq!(
    ///     difference.between("first", "second"),
    ///     r#"differs at $.messages[0].parts[0].text: first "which area?", second "which stall?""#,
    /// );
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn difference(&self, other: &Event) -> Option<Difference> {
        let (one, other) = (comparable_event(self), comparable_event(other));
        match one == other {
            true => None,
            false => first_difference(&one, &other, &Transcript::new(), &|_, _| false),
        }
    }
}

/// The event without what says nothing about what happened.
fn comparable_event(event: &Event) -> Event {
    let mut event = event.clone();
    event.elapsed = std::time::Duration::ZERO;
    event.shared.clear();
    match &mut event.kind {
        EventKind::Began { id, .. } => id.clear(),
        EventKind::Inner { event, .. } => **event = comparable_event(event),
        // The digests depend on the process that continues with the run.
        EventKind::Decided { decisions, key_prefix, .. } => {
            *key_prefix = None;
            for (id, _) in decisions {
                id.truncate(id.rfind('#').unwrap_or(id.len()));
            }
        }
        _ => {}
    }
    event
}

/// The first place, in the order of the recorded event, where two that are unequal differ; `None` if all texts that do are alike.
/// Calls are named by `log`.
fn first_difference(
    recorded: &Event,
    made: &Event,
    log: &Transcript,
    is_alike: &dyn Fn(&str, &str) -> bool,
) -> Option<Difference> {
    let json = |event: &Event| serde_json::to_value(event).unwrap_or(Value::Null);
    let (recorded_value, mut made_value) = (json(recorded), json(made));
    let has_adopted = adopt_texts(&mut made_value, &recorded_value, is_alike);
    if has_adopted && made_value == recorded_value {
        return None;
    }
    let (path, recorded_at, replayed_at) =
        first_differing_value("$", Some(&recorded_value), Some(&made_value))
            .unwrap_or_else(|| ("$".to_owned(), Some(recorded_value.clone()), Some(made_value.clone())));
    let is_view = VIEW_PATHS.iter().any(|view| path.starts_with(view));
    let views = (recorded.kind.view_in_words(log), made.kind.view_in_words(log));
    Some(match views {
        (Some(recorded), Some(replayed)) if is_view => Difference::View { recorded, replayed },
        _ => Difference::Value { path, recorded: recorded_at, replayed: replayed_at },
    })
}

/// Takes the texts of a record that are alike, and returns whether there were any.
fn adopt_texts(made: &mut Value, recorded: &Value, is_alike: &dyn Fn(&str, &str) -> bool) -> bool {
    match (made, recorded) {
        (Value::String(made), Value::String(recorded)) => {
            let is_adopted = made != recorded && is_alike(recorded, made);
            if is_adopted {
                made.clone_from(recorded);
            }
            is_adopted
        }
        (Value::Array(made), Value::Array(recorded)) => made
            .iter_mut()
            .zip(recorded)
            .fold(false, |adopted, (made, recorded)| adopt_texts(made, recorded, is_alike) | adopted),
        (Value::Object(made), Value::Object(recorded)) => {
            made.iter_mut().fold(false, |adopted, (name, made)| {
                let recorded = recorded.get(name).unwrap_or(&Value::Null);
                adopt_texts(made, recorded, is_alike) | adopted
            })
        }
        _ => false,
    }
}

/// The places of an event that say what the model is shown.
const VIEW_PATHS: [&str; 4] =
    ["$.kind.began.shown", "$.kind.began.cleared", "$.kind.narrowed.shown", "$.kind.narrowed.cleared"];

type DifferingValue = (String, Option<Value>, Option<Value>);

fn first_differing_value(
    path: &str,
    recorded: Option<&Value>,
    made: Option<&Value>,
) -> Option<DifferingValue> {
    match (recorded, made) {
        (Some(Value::Object(left)), Some(Value::Object(right))) => {
            let keys = left.keys().chain(right.keys().filter(|key| !left.contains_key(*key)));
            keys.into_iter().find_map(|key| {
                first_differing_value(&format!("{path}.{key}"), left.get(key), right.get(key))
            })
        }
        (Some(Value::Array(left)), Some(Value::Array(right))) => {
            (0..left.len().max(right.len())).find_map(|index| {
                first_differing_value(&format!("{path}[{index}]"), left.get(index), right.get(index))
            })
        }
        (left, right) if left == right => None,
        (left, right) => Some((path.to_owned(), left.cloned(), right.cloned())),
    }
}
