//! Cases: a turn of a conversation, what it begins with, and what is expected of it. A case taken from a session carries
//! the recorded steps, so that it needs no store.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use stepfold_agent_loop::{CallDisposition, Event, EventKind, Fingerprint, Input};
use stepfold_runner::{RecordedRun, SessionHandle};
use stepfold_session_scopes::SessionKey;
use stepfold_state_core::chat::{Message, ToolCall, Transcript};
use stepfold_state_core::state::{MESSAGES, Schema, State};
use stepfold_trim::Summary;

use crate::answers::is_about;
use crate::data_set::hash;
use crate::error::EvalError;
use crate::expectation::Expectation;
use crate::redaction::CaseRedaction;

/// A turn to evaluate an agent by.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_eval::{Case, Expectation};
///
/// let case = Case::new("largest area", "Which area has most stalls?")
///     .value("year", 2026)
///     .expect(Expectation::TextContains(vec!["area 3".to_owned()]));
/// let line = serde_json::to_string(&case)?;
/// assert_eq!(serde_json::from_str::<Case>(&line)?, case);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Case {
    /// The name, which no other case of the data set has: results are paired by it.
    pub name: String,
    /// The values of the state before the turn, by key.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub values: Map<String, Value>,
    /// The conversation before the turn.
    #[serde(default, skip_serializing_if = "Conversation::is_empty")]
    pub conversation: Conversation,
    /// The user's message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub say: Option<String>,
    /// The user's messages, where one text does not say them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<Arc<Message>>,
    /// The expectations. For a case with a record and without expectations: [`Expectation::of_record`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expect: Vec<Expectation>,
    /// The session that the case was taken from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<CaseSource>,
    /// The recorded turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<Record>,
}

/// A conversation: in the notation of transcripts, or as stored messages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum Conversation {
    /// In the notation of [`Transcript`].
    Notation(String),
    /// As stored messages.
    Messages(Vec<Arc<Message>>),
}

impl Default for Conversation {
    fn default() -> Self {
        Conversation::Messages(Vec::new())
    }
}

impl Conversation {
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Conversation::Notation(text) => text.is_empty(),
            Conversation::Messages(messages) => messages.is_empty(),
        }
    }

    fn transcript(&self) -> Result<Transcript, String> {
        match self {
            Conversation::Notation(text) => {
                text.parse().map_err(|error| format!("invalid conversation: {error}"))
            }
            Conversation::Messages(messages) => Ok(messages.iter().cloned().collect()),
        }
    }
}

/// The session and the versions that a case was taken from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct CaseSource {
    /// The app.
    pub app: String,
    /// The user.
    pub user: String,
    /// The session.
    pub session: String,
    /// The version with the first event of the turn.
    pub first_version: u64,
    /// The version with its last event.
    pub last_version: u64,
}

impl CaseSource {
    /// The name of a case of this source: the ids of the user and the session and the first version, with `/` between them. In
    /// an id `%25` stands for `%` and `%2F` for `/`, so that no two turns of an app have one name.
    ///
    /// # Examples
    /// ```
    /// use stepfold_eval::CaseSource;
    ///
    /// let parts = CaseSource::parse_case_name("team%2Fada/monday/7");
    /// assert_eq!(parts, Some(("team/ada".to_owned(), "monday".to_owned(), 7)));
    /// assert_eq!(CaseSource::parse_case_name("largest area"), None);
    /// ```
    #[must_use]
    pub fn case_name(&self) -> String {
        let part = |id: &str| id.replace('%', "%25").replace('/', "%2F");
        format!("{}/{}/{}", part(&self.user), part(&self.session), self.first_version)
    }

    /// The user, the session and the first version that a [name](CaseSource::case_name) has; `None` for another name.
    #[must_use]
    pub fn parse_case_name(name: &str) -> Option<(String, String, u64)> {
        let part = |text: &str| text.replace("%2F", "/").replace("%25", "%");
        let mut parts = name.split('/');
        let (user, session, version) = (parts.next()?, parts.next()?, parts.next()?.parse().ok()?);
        parts.next().is_none().then(|| (part(user), part(session), version))
    }
}

/// The recorded turn of a case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Record {
    /// The agent that made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<Fingerprint>,
    /// The summary of the beginning of the conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<Summary>,
    /// The values of the state after the turn, by key.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub values: Map<String, Value>,
    /// The events of the turn, in order.
    pub events: Vec<Event>,
}

impl Case {
    /// A case with a message of the user.
    #[must_use]
    pub fn new(name: impl Into<String>, say: impl Into<String>) -> Self {
        Case { name: name.into(), say: Some(say.into()), ..Case::default() }
    }

    /// Sets a value of the state before the turn.
    #[must_use]
    pub fn value(mut self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        self.values.insert(key.into(), value.into());
        self
    }

    /// Adds an expectation.
    #[must_use]
    pub fn expect(mut self, expectation: Expectation) -> Self {
        self.expect.push(expectation);
        self
    }

    /// The turn of a session that has a version, as a case; the last turn by default.
    ///
    /// Versions between turns, those of edits for example, are no turn's. What the [redaction](stepfold_runner::Runner::redaction) of the session's runner
    /// finds is replaced, as it would be before storing: the session may be older than a rule.
    ///
    /// # Errors
    /// When no turn has the version, when the turn cannot be rolled (see [`Case::of_run`]), or the store fails.
    pub async fn taken_from(session: &SessionHandle, at: Option<u64>) -> Result<Self, EvalError> {
        let runs = session.recorded_runs().await?;
        let key = session.key();
        let found = runs
            .iter()
            .rev()
            .find(|run| at.is_none_or(|at| (run.first_version..=run.last_version).contains(&at)));
        let found = found.ok_or_else(|| EvalError::NoTurn { session: key.id.to_string(), version: at })?;
        CaseRedaction::of_runner(session.runner()).apply(&Case::of_run(key, found)?)
    }

    /// All turns of a session as cases, oldest first, [redacted](Case::taken_from). Those that cannot be rolled are errors of their own.
    ///
    /// # Errors
    /// When the store fails, or the record does not fit the agent's schema.
    pub async fn all_of(session: &SessionHandle) -> Result<Vec<Result<Self, EvalError>>, EvalError> {
        let runs = session.recorded_runs().await?;
        let mut redaction = CaseRedaction::of_runner(session.runner());
        let cases = runs.iter().map(|run| redaction.apply(&Case::of_run(session.key(), run)?));
        Ok(cases.collect())
    }

    /// A recorded run as a case.
    ///
    /// # Errors
    /// [`EvalError::Unsuited`] for a turn that an agent alone does not decide: it was edited, cancelled or timed out, its
    /// agent changed in the middle, it is a graph's, or it had a value that the record does not have; and for one that has not ended, unless it
    /// waits for decisions: it failed at its model, for example, or waits for a budget. An unchanged agent would not stop there. [`EvalError::Erased`] for one of
    /// which a part was erased.
    pub fn of_run(key: &SessionKey, run: &RecordedRun) -> Result<Self, EvalError> {
        let source = CaseSource {
            app: key.app.to_string(),
            user: key.user.to_string(),
            session: key.id.to_string(),
            first_version: run.first_version,
            last_version: run.last_version,
        };
        let name = source.case_name();
        if let Some(version) = run.erased {
            return Err(EvalError::Erased { name, version });
        }
        let why = unsuited(&run.events).or_else(|| {
            let is_open = run.exit.is_none() && !waits_for_decisions(&run.events);
            is_open.then_some("it has not ended: it failed, was interrupted, waits for a budget, or is under way; resume it, and add it then")
        });
        if let Some(why) = why {
            return Err(EvalError::Unsuited { name, why });
        }
        let mut after = run.state.clone();
        for event in &run.events {
            event
                .fold(&mut after)
                .map_err(|error| EvalError::Case { name: name.clone(), why: error.to_string() })?;
        }
        Ok(Case {
            name,
            values: values_of(&run.state),
            conversation: Conversation::Messages(run.state.messages().iter().cloned().collect()),
            source: Some(source),
            record: Some(Record {
                agent: run.agent.clone(),
                summary: run.summary.clone(),
                values: values_of(&after),
                events: run.events.clone(),
            }),
            ..Case::default()
        })
    }

    /// Checks what can be checked before a run.
    ///
    /// # Errors
    /// [`EvalError::Case`] for a case without a name or a message, and for an invalid conversation or expectation.
    pub fn check(&self) -> Result<(), EvalError> {
        let fault = |why: String| EvalError::Case { name: self.name.clone(), why };
        if self.name.is_empty() {
            return Err(fault("missing name".to_owned()));
        }
        self.conversation.transcript().map_err(fault)?;
        if self.record.is_none() && self.say.is_none() && self.messages.is_empty() {
            return Err(fault("missing message: set `say`, `messages` or `record`".to_owned()));
        }
        self.expect.iter().try_for_each(Expectation::check).map_err(fault)?;
        match self.expect.iter().find(|expectation| expectation.needs_record()) {
            Some(expectation) if self.record.is_none() => Err(fault(format!(
                "`{}` needs a recorded turn: the case has no `record`",
                expectation.name()
            ))),
            _ => Ok(()),
        }
    }

    /// The expectations that hold for the case: its own; otherwise those of its record.
    pub(crate) fn expectations(&self) -> Vec<Expectation> {
        match (&self.record, self.expect.is_empty()) {
            (Some(_), true) => Expectation::of_record(),
            _ => self.expect.clone(),
        }
    }

    /// The state before the turn, under the schema of an agent.
    pub(crate) fn state(&self, schema: &Schema) -> Result<State, String> {
        let mut state = State::with_values(schema, Value::Object(self.values.clone()))
            .map_err(|error| format!("values do not fit the agent: {error}"))?;
        state.replace_messages(self.conversation.transcript()?);
        Ok(state)
    }

    /// The input of a run that makes the turn again, on the state before it.
    pub(crate) fn input(&self, state: State) -> Input {
        let (Some(record), Some(began)) = (&self.record, self.began()) else {
            let input = self
                .messages
                .iter()
                .fold(Input::on(state), |input, message| input.with_message((**message).clone()));
            return match &self.say {
                Some(say) => input.say(say.as_str()),
                None => input,
            };
        };
        let recorded = Input::recorded(state.clone(), began);
        let mut input = Input::on(state).with_summary(record.summary.clone());
        for message in recorded.messages() {
            input = input.with_message(message.clone());
        }
        let values: Map<String, Value> = began
            .delta
            .iter()
            .filter_map(|write| Some((write.key().to_owned(), write.value()?.clone())))
            .collect();
        if values.is_empty() { input } else { input.with_values(Value::Object(values)) }
    }

    /// Whether the case is in a sample of this part of all cases, from 0 to 1. It depends on the name alone, so that every
    /// process chooses alike, and a larger sample has the cases of a smaller one.
    #[must_use]
    pub fn is_sampled(&self, part: f64) -> bool {
        // FNV leaves similar names close together; a multiplication spreads them over the upper bits.
        let mixed = hash(&self.name).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11;
        #[expect(clippy::cast_precision_loss, reason = "53 bits are exact")]
        let place = mixed as f64 / (1_u64 << 53) as f64;
        place < part
    }

    /// The messages before the turn.
    pub(crate) fn messages_before(&self) -> Result<Vec<Arc<Message>>, String> {
        Ok(self.conversation.transcript()?.iter().cloned().collect())
    }

    /// The user's words.
    pub(crate) fn question(&self) -> String {
        let recorded = self.began().map(|began| began.messages.as_slice()).unwrap_or_default();
        let texts = recorded.iter().chain(&self.messages).map(|message| message.text().into_owned());
        texts.chain(self.say.clone()).collect::<Vec<_>>().join("\n")
    }

    /// The digest of the case: a result is taken from an interrupted experiment only if the case is the same.
    pub(crate) fn digest(&self) -> String {
        let value = serde_json::to_value(self).unwrap_or_default();
        format!("{:016x}", hash(&stepfold_state_core::canonical_json(&value)))
    }

    /// The first recorded event.
    pub(crate) fn began(&self) -> Option<&Event> {
        self.record.as_ref()?.events.first()
    }

    /// The recorded events; empty for a written case.
    pub(crate) fn events(&self) -> &[Event] {
        self.record.as_ref().map_or(&[], |record| &record.events)
    }
}

/// The values of a state by key, without the conversation.
pub(crate) fn values_of(state: &State) -> Map<String, Value> {
    let own = state.iter().filter(|(key, _)| *key != MESSAGES);
    own.map(|(key, value)| (key.to_owned(), value.to_json())).collect()
}

/// Why an agent alone does not decide a recorded turn.
fn unsuited(events: &[Event]) -> Option<&'static str> {
    let large = events.iter().flat_map(|event| event.shared.values());
    if large.into_iter().any(|value| matches!(value, stepfold_agent_loop::SharedValue::Large)) {
        return Some("a shared value of its beginning is too large to be in the record");
    }
    events.iter().find_map(|event| match &event.kind {
        EventKind::Edited { .. } => Some("it was edited"),
        EventKind::Cancelled => Some("it was cancelled"),
        EventKind::TimedOut => Some("it ran out of time"),
        EventKind::Interrupted { .. } => Some("it was interrupted"),
        EventKind::Planned { .. } => Some("it is a graph's"),
        EventKind::Upgraded { .. } => Some("its agent changed in the middle"),
        _ => None,
    })
}

/// Whether a turn waits for decisions, and for nothing else. Calls of a reply start after all decisions about it; a call that asks while
/// it runs waits for the others.
fn waits_for_decisions(events: &[Event]) -> bool {
    let is_reply = |event: &Event| matches!(event.kind, EventKind::Replied { .. });
    let Some(place) = events.iter().rposition(is_reply) else { return false };
    let step = events.get(place..).unwrap_or_default();
    let reply = step.first().and_then(|event| event.messages.first());
    let calls: Vec<&ToolCall> = reply.into_iter().flat_map(|reply| reply.tool_calls()).collect();
    // Whether each call without an outcome asks.
    let mut open: BTreeMap<usize, bool> = (0..calls.len()).map(|place| (place, false)).collect();
    let mut has_started = false;
    for event in step {
        match &event.kind {
            EventKind::Replied { fates, .. } | EventKind::Asked { fates, .. } => {
                for (place, fate) in fates {
                    open.insert(*place, !matches!(fate, CallDisposition::Answer(_)));
                }
            }
            EventKind::Decided { decisions, .. } => open.iter_mut().for_each(|(place, asks)| {
                let is_decided = |call: &&ToolCall| decisions.iter().any(|(id, _)| is_about(id, &call.id));
                *asks &= !calls.get(*place).is_some_and(is_decided);
            }),
            EventKind::Started { .. } | EventKind::Answered(_) => has_started = true,
            EventKind::Inner { place, .. } | EventKind::Asks { place, .. } => {
                open.insert(*place, matches!(event.kind, EventKind::Asks { .. }));
                has_started = true;
            }
            _ => {}
        }
        for ended in event.outcomes() {
            open.remove(&ended.place);
        }
    }
    open.values().any(|asks| *asks) && (!has_started || open.values().all(|asks| *asks))
}
