//! Converts commits of the loop to session events, and back.
//!
//! Name, messages and writes are fields of the session event, visible to stores, lists and other programs;
//! the data that only the machine needs is an additional record. An event contains nothing twice, and `temp:`
//! is never stored.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, LazyLock, OnceLock};

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use stepfold_agent_loop::{self as agent_loop, EventKind, ExhaustedBudget, Exit, NEWEST_FORMAT_VERSION};
use stepfold_session_scopes::{
    Author, CommittedEvent, Event, EventId, EventKind as SessionEventKind, InvocationId, RunRecord, Scope,
    SessionError, SessionKey, Timestamp, WorkerId, bounded_id,
};
use stepfold_state_core::state::Write;
use stepfold_trim::Summary;

use crate::error::{RunnerError, RunnerErrorKind};
use crate::record::run_failure::RunFailure;

/// The format of a run's records: version 2 has calls that must not run from the record, and version 1 is an [event](agent_loop::Event) without its messages and writes, which
/// are those of the session's event; its [name](agent_loop::Event::name) is the kind of that.
pub const RECORD_FORMAT: &str = "stepfold.run";

/// The metadata entry with the agent's fingerprint, at the beginning of an invocation.
const AGENT: &str = "agent";

/// The metadata entry with the exit reason of a run, at its last event.
const EXIT: &str = Event::EXIT;

/// The metadata entry with the ids of the messages that an event took from the inbox, for their senders.
const TAKEN: &str = "taken";

/// The metadata entry with the worker that took a message from the inbox.
const WORKER: &str = "worker";

/// The metadata entry with the `temp:` keys that an event has written: their values are not stored.
const TEMP: &str = "temp";

/// The kind of an event for a failed run, and its metadata entry with the cause.
const FAILED: &str = Event::FAILED;

/// The metadata entry of a failed run that waits for a person.
const LEFT_TO_PERSON: &str = "left_to_person";

/// The metadata entry of a run that waits for a budget.
const BUDGET: &str = "budget";

/// The maximum number of stored characters of a cause.
const CAUSE: usize = 2_000;

/// Whether a write is stored.
pub(crate) fn is_stored(write: &Write) -> bool {
    Scope::of(write.key()) != Scope::Temp
}

/// The identity and time of an event.
pub(crate) struct EventStamp<'a> {
    pub(crate) invocation: &'a InvocationId,
    /// The index of the event in the invocation.
    pub(crate) place: u64,
    /// A unique id for each resumption of a run.
    pub(crate) attempt: Option<&'a str>,
    /// The author of the events that no user causes.
    pub(crate) author: &'a AgentAuthor,
    pub(crate) agent: &'a agent_loop::Agent,
    pub(crate) at: Timestamp,
}

impl EventStamp<'_> {
    /// The id distinguishes a retried append from a new one, even from that of another worker at the same index.
    fn event_id(&self) -> Result<EventId, SessionError> {
        match self.attempt {
            None => event_id(self.invocation, self.place),
            Some(attempt) => {
                event_id(self.invocation, format_args!("{}.{}", self.place, attempt_name(attempt)))
            }
        }
    }
}

/// The name of an attempt, by whatever [`Ids`](agent_loop::Ids): never one of a place, as in the id of an event of another
/// invocation, whose own id may end with a number.
fn attempt_name(attempt: &str) -> Cow<'_, str> {
    let is_place = attempt == FAILED || attempt.bytes().all(|byte| byte.is_ascii_digit());
    match is_place || attempt.contains('.') {
        true => Cow::Owned(format!("r{}", attempt.replace('.', "-"))),
        false => Cow::Borrowed(attempt),
    }
}

/// The id of an event of an invocation, whose own id may be as long as one can be.
pub(crate) fn event_id(invocation: &InvocationId, place: impl fmt::Display) -> Result<EventId, SessionError> {
    EventId::new(bounded_id(format!("{invocation}.{place}")))
}

/// The author of an agent's events: its name, once that has been checked.
#[derive(Debug, Default)]
pub(crate) struct AgentAuthor(OnceLock<Author>);

impl AgentAuthor {
    pub(crate) fn get(&self, agent: &agent_loop::Agent) -> Result<&Author, SessionError> {
        match self.0.get() {
            Some(author) => Ok(author),
            None => Author::new(agent.name()).map(|author| self.0.get_or_init(|| author)),
        }
    }
}

/// The author of what users do.
static USER: LazyLock<Author> =
    LazyLock::new(|| Author::new("user").unwrap_or_else(|_| unreachable!("letters are a valid id")));

/// The session event that stores a commit of the loop.
pub(crate) fn session_event(
    mut event: agent_loop::Event,
    stamp: &EventStamp<'_>,
    started: Vec<String>,
) -> Result<Event, SessionError> {
    let temp = temp_keys(&event);
    event.retain_writes(is_stored);
    let author = match &event.kind {
        EventKind::Began { .. }
        | EventKind::Steered
        | EventKind::Decided { .. }
        | EventKind::Edited { .. } => LazyLock::force(&USER),
        _ => stamp.author.get(stamp.agent)?,
    };
    let kind = match event.name() {
        "started" => SessionEventKind::STARTED,
        name => SessionEventKind::new(name),
    };
    let id = stamp.event_id()?;
    let tags = tags_of(&event.kind);
    // NOTE: the record leaves out messages and writes: the event of the store has them, and nothing is stored twice.
    let (messages, delta) = event.take_content();
    let record = RunRecord::new(RECORD_FORMAT, event.format_version(), &event)?;
    let mut stored = Event::new(id, stamp.invocation.clone(), author.clone(), stamp.at)
        .with_kind(kind)
        .with_delta(delta)
        .with_started(started);
    stored.messages = messages;
    stored = tags.into_iter().fold(stored, Event::with_tag);
    if !temp.is_empty() {
        stored = stored.with_metadata(TEMP, serde_json::json!(temp));
    }
    Ok(stored.with_record(record))
}

fn temp_keys(event: &agent_loop::Event) -> BTreeSet<String> {
    event.delta.iter().filter(|write| !is_stored(write)).map(|write| write.key().to_owned()).collect()
}

/// The `temp:` keys that these events have written.
pub(crate) fn temp_keys_of<'a>(events: impl IntoIterator<Item = &'a CommittedEvent>) -> BTreeSet<String> {
    events.into_iter().flat_map(|committed| names_in(&committed.event, TEMP)).collect()
}

/// Adds the agent's fingerprint.
pub(crate) fn with_agent(event: Event, agent: &agent_loop::Agent) -> Event {
    event.with_shared_metadata(AGENT, Arc::clone(agent.fingerprint_json()))
}

/// Marks the last event of a run with its exit reason.
pub(crate) fn with_exit(event: Event, exit: &Exit) -> Event {
    match serde_json::to_value(exit) {
        Ok(exit) => event.with_metadata(EXIT, exit),
        Err(_) => event,
    }
}

/// Adds the ids of the messages that it took, except that of its own invocation, and tags by which it is found for each.
pub(crate) fn with_taken(event: Event, taken: &[InvocationId]) -> Event {
    let others: Vec<&str> =
        (taken.iter()).filter(|id| **id != event.invocation).map(InvocationId::as_str).collect();
    match others.as_slice() {
        [] => event,
        others => {
            let tags = others.iter().map(|id| message_tag(id));
            tags.fold(event, Event::with_tag).with_metadata(TAKEN, serde_json::json!(others))
        }
    }
}

/// The tag of an event that took the message with this id, of a run that another one began.
pub(crate) fn message_tag(id: &str) -> String {
    format!("message {id}")
}

/// Marks the beginning of a run with a message from the inbox. Two workers that take one message at once
/// create different events: if they were equal, the store would treat the second as a retry of the first.
pub(crate) fn with_worker(event: Event, worker: &WorkerId) -> Event {
    event.with_metadata(WORKER, Value::String(worker.as_str().to_owned()))
}

/// The tags of an event by its kind: what a repeat of it would be known by.
fn tags_of(kind: &EventKind) -> Vec<String> {
    match kind {
        EventKind::Decided { decisions, idempotency_key, .. } => {
            let key = idempotency_key.as_deref().map(decision_tag);
            key.into_iter().chain(decisions.iter().map(|(id, _)| request_tag(id))).collect()
        }
        EventKind::Edited { idempotency_key, .. } => {
            idempotency_key.as_deref().map(edit_tag).into_iter().collect()
        }
        _ => Vec::new(),
    }
}

/// The tag of decisions under an idempotency key.
pub(crate) fn decision_tag(idempotency_key: &str) -> String {
    format!("decision {idempotency_key}")
}

/// The tag of the decision about a request.
pub(crate) fn request_tag(id: &str) -> String {
    format!("request {id}")
}

/// The tag of an edit under an idempotency key.
pub(crate) fn edit_tag(idempotency_key: &str) -> String {
    format!("edit {idempotency_key}")
}

/// The event for a failed run, so that later processes know the number of failures.
pub(crate) fn failed_event(
    invocation: &InvocationId,
    version: u64,
    agent: &str,
    failed: &RunFailure,
    at: Timestamp,
) -> Result<Event, SessionError> {
    // An id that ends in a number is that of a commit, also of an invocation with another id.
    let id = event_id(invocation, format_args!("{version}.failed"))?;
    let cause: String = failed.cause.chars().take(CAUSE).collect();
    let event = Event::new(id, invocation.clone(), Author::new(agent)?, at)
        .with_kind(SessionEventKind::new(FAILED))
        .with_metadata(FAILED, Value::String(cause));
    Ok(match failed.is_left_to_person {
        true => event.with_metadata(LEFT_TO_PERSON, Value::Bool(true)),
        false => event,
    })
}

/// The event for a run that waits for a budget, so that other processes see its question.
///
/// Its kind is that of failures: versions that do not know it read that the run has stopped, why, and that it can be resumed.
pub(crate) fn waiting_event(
    invocation: &InvocationId,
    version: u64,
    agent: &str,
    budget: &ExhaustedBudget,
    at: Timestamp,
) -> Result<Event, SessionError> {
    // Without another window only a higher limit helps.
    let is_left_to_person = budget.until.is_none() && !budget.waits_for_reservations();
    let stopped = RunFailure { cause: format!("the run waits: {budget}"), times: 0, is_left_to_person };
    let event = failed_event(invocation, version, agent, &stopped, at)?;
    let question = serde_json::to_value(budget)
        .map_err(|source| SessionError::Stored { what: "question about a budget".to_owned(), source })?;
    Ok(event.with_metadata(BUDGET, question))
}

/// The budget that a run waits for, if the event reports that it does. A newer event of the run answers the question; so does
/// the end of its [window](ExhaustedBudget::until).
pub fn exhausted_budget(event: &Event) -> Option<ExhaustedBudget> {
    event.failure()?;
    event.metadata.read(BUDGET)
}

/// Whether an event is that of a failed run that recovery leaves to a person, since it would fail again: it continues
/// when it is resumed, and ends when it is abandoned.
pub fn is_left_to_person(event: &Event) -> bool {
    failure(event).is_some() && event.metadata.contains(LEFT_TO_PERSON)
}

/// The cause, if the event is that of a failed run. It is not the end of the run: a failed run can be
/// resumed.
pub fn failure(event: &Event) -> Option<String> {
    event.failure()
}

/// Whether an event took the message with this id.
pub(crate) fn takes(event: &Event, id: &InvocationId) -> bool {
    event.invocation == *id || others_taken(event).any(|other| other == id.as_str())
}

/// The ids of the messages that an event took: that of its own invocation, if it begins it, and those of others.
pub(crate) fn taken_by(event: &Event) -> impl Iterator<Item = InvocationId> {
    let own = begins(event).then(|| event.invocation.clone());
    own.into_iter().chain(others_taken(event).filter_map(|id| InvocationId::new(id).ok()))
}

/// The ids of the messages of other invocations that an event took.
fn others_taken(event: &Event) -> impl Iterator<Item = String> {
    names_in(event, TAKEN).into_iter()
}

/// The strings of an array in the metadata.
fn names_in(event: &Event, entry: &str) -> Vec<String> {
    let Some(Value::Array(names)) = event.metadata.get(entry) else { return Vec::new() };
    let text = |name| if let Value::String(text) = name { Some(text) } else { None };
    names.into_iter().filter_map(text).collect()
}

/// Whether a session with this newest event is in the middle of a run: the run waits for a decision, was
/// interrupted, failed, or is running. Determined by the record, independent of the current agent.
pub fn is_unfinished(event: &Event) -> bool {
    event.is_unfinished() && (event.record.is_none() || is_of_run(event))
}

/// Whether an event is the last one of a run, independent of the current agent.
pub(crate) fn ends(event: &Event) -> bool {
    is_of_run(event) && event.metadata.contains(EXIT)
}

/// The exit reason of a run, if the event is its last one. Determined by the record, independent of the current agent.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use stepfold_runner::agent_loop::test_kit::Script;
/// use stepfold_runner::agent_loop::{Agent, Exit};
/// use stepfold_runner::session_scopes::{EventRange, MemoryStore};
/// use stepfold_runner::{Runner, exit_of};
///
/// # let model = Script::parse("assistant: Hello.")?;
/// let runner = Runner::builder(Agent::builder(model).build()?, MemoryStore::new()).build();
/// let session = runner.session("ada", "s1").await?;
/// session.run("hi").await?;
///
/// let stored = session.read(EventRange::All).await?;
/// let exits: Vec<_> = stored.events.iter().filter_map(|committed| exit_of(&committed.event)).collect();
/// assert_eq!(exits, [Exit::Text]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
pub fn exit_of(event: &Event) -> Option<Exit> {
    if is_of_run(event) { event.metadata.read(EXIT) } else { None }
}

/// The commit of the loop that a session event stores; `None` if it does not belong to a run.
pub(crate) fn loop_event(
    key: &SessionKey,
    committed: &CommittedEvent,
) -> Result<Option<agent_loop::Event>, RunnerError> {
    let Some(record) = run_record(&committed.event) else { return Ok(None) };
    let version = committed.version;
    if record.version > NEWEST_FORMAT_VERSION {
        return Err(RunnerError::new(key, RunnerErrorKind::NewerRecord { version, found: record.version }));
    }
    commit_in(&committed.event, record)
        .map(Some)
        .map_err(|source| RunnerError::new(key, RunnerErrorKind::Record { version, source: source.into() }))
}

/// The commit of the loop that an event stores, if this version can read it.
pub(crate) fn read_record(event: &Event) -> Option<agent_loop::Event> {
    let record = run_record(event).filter(|record| record.version <= NEWEST_FORMAT_VERSION)?;
    commit_in(event, record).ok()
}

/// The commit in the record of an event, with the contents that the event has.
fn commit_in(event: &Event, record: &RunRecord) -> Result<agent_loop::Event, serde_json::Error> {
    let commit: agent_loop::Event = record.read()?;
    Ok(commit.with_content(event.messages.clone(), event.actions.delta.clone()))
}

fn run_record(event: &Event) -> Option<&RunRecord> {
    event.record.as_ref().filter(|record| record.format == RECORD_FORMAT)
}

/// Whether an event says that something waits with a deadline, or that nothing before it does; `None` if neither.
pub(crate) fn has_deadline(event: &Event) -> Option<bool> {
    let Some(record) = run_record(event) else {
        // The record of a failure or a rewind leaves the run as it was.
        let is_of_others = failure(event).is_none() && event.actions.rewound_to().is_none();
        return is_of_others.then_some(false);
    };
    match event.kind.as_str() {
        // A step begins when the one before has ended.
        "began" | "replied" | "planned" => Some(false),
        _ if ends(event) => Some(false),
        "asks" | "inner" => record.text().contains("\"deadline\"").then_some(true),
        _ => None,
    }
}

/// Whether an event belongs to a run.
pub(crate) fn is_of_run(event: &Event) -> bool {
    run_record(event).is_some()
}

/// Whether an event begins an invocation.
pub(crate) fn begins(event: &Event) -> bool {
    is_of_run(event) && event.kind.as_str() == "began"
}

/// The conversation that an event replaces the current one with, if any.
pub(crate) fn rewrite(event: &Event) -> Option<&RawValue> {
    #[derive(Deserialize)]
    struct RewriteField<'a> {
        #[serde(borrow)]
        rewrite: Option<&'a RawValue>,
    }

    // Few have one, and each event of a session is looked at.
    let record = run_record(event).filter(|record| record.text().contains("\"rewrite\""))?;
    record.read::<RewriteField<'_>>().ok()?.rewrite
}

/// The agent's fingerprint at the beginning of the invocation.
pub(crate) fn agent_of(event: &Event) -> Option<agent_loop::Fingerprint> {
    event.metadata.read(AGENT)
}

/// The summary of an event, if any.
pub(crate) fn summary(event: &Event) -> Option<Summary> {
    #[derive(Deserialize)]
    struct SummarizedRecord {
        kind: SummarizedKind,
    }
    #[derive(Deserialize)]
    struct SummarizedKind {
        summarized: SummarizedFields,
    }
    #[derive(Deserialize)]
    struct SummarizedFields {
        summary: Summary,
    }

    let record = run_record(event).filter(|_| event.kind.as_str() == "summarized")?;
    Some(record.read::<SummarizedRecord>().ok()?.kind.summarized.summary)
}
