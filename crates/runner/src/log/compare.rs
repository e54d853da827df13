//! Compares two sessions: common events, different events, and the first difference.

use std::fmt;

use stepfold_agent_loop::Difference;
use stepfold_session_scopes::{CommittedEvent, Session, SessionId, SessionKey, SessionSchema};
use stepfold_state_core::state::{Diff, MESSAGES};

use crate::error::RunnerError;
use crate::log::{ActiveBranches, event_lines};
use crate::record::events::{loop_event, read_record};
use crate::record::history::SessionHistory;

/// The differences between two sessions, or two forks of one. Created by
/// [`SessionHandle::compare`](crate::SessionHandle::compare) and [`compare`]. It displays as `stepfold compare` shows it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Comparison {
    /// The left session.
    pub left_key: SessionKey,
    /// The right session.
    pub right_key: SessionKey,
    /// The newest common version: up to it, both have the same visible events. 0 if they share no event.
    pub common: u64,
    /// The later events of the left session, in order, without those hidden by a rewind.
    pub left: Vec<CommittedEvent>,
    /// The later events of the right session.
    pub right: Vec<CommittedEvent>,
    /// The first difference, if any: the first of these events.
    pub first: Option<FirstDifference>,
    /// The state changes from left to right, including the conversation.
    pub state: Diff,
    /// The active branches at the common version.
    active: ActiveBranches,
}

/// The first difference between two sessions.
#[derive(Debug)]
#[non_exhaustive]
pub struct FirstDifference {
    /// The version and the kind of the left session's event; `None` if it ends before.
    pub left: Option<(u64, String)>,
    /// The version and the kind of the right session's event.
    pub right: Option<(u64, String)>,
    /// The first different field, if both are events of runs that differ in more than run ids and durations.
    pub difference: Option<Difference>,
}

impl Comparison {
    /// Whether both sessions have the same events and the same state.
    pub fn is_same(&self) -> bool {
        self.left.is_empty() && self.right.is_empty() && self.state.is_empty()
    }
}

impl fmt::Display for Comparison {
    /// The events that only one session has, the first difference, and the changes of the state, in lines.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (left, right) = (&self.left_key.id, &self.right_key.id);
        let common = self.common;
        if self.is_same() {
            return writeln!(f, "{left} and {right} are the same, up to version {common}");
        }
        match common {
            0 => writeln!(f, "{left} and {right} have no event in common")?,
            common => writeln!(f, "{left} and {right} are the same up to version {common}")?,
        }
        self.write_events(f, left, &self.left)?;
        self.write_events(f, right, &self.right)?;
        if let Some(difference) = self.first.as_ref().and_then(|first| first.difference.as_ref()) {
            let between = difference.between(left.as_str(), right.as_str());
            writeln!(f, "the first event after that {between}")?;
        }
        let mut changes = self.state.iter().filter(|change| change.key != MESSAGES).peekable();
        if changes.peek().is_some() {
            writeln!(f, "state, from {left} to {right}:")?;
        }
        changes.try_for_each(|change| writeln!(f, "  ~ {change}"))
    }
}

impl Comparison {
    /// The events that only this session has.
    fn write_events(
        &self,
        f: &mut fmt::Formatter<'_>,
        id: &SessionId,
        only: &[CommittedEvent],
    ) -> fmt::Result {
        match only.len() {
            0 => return writeln!(f, "only in {id}: nothing"),
            1 => writeln!(f, "only in {id}, 1 event:")?,
            count => writeln!(f, "only in {id}, {count} events:")?,
        }
        let mut active = self.active.clone();
        let lines = only.iter().flat_map(|committed| event_lines(committed, true, &mut active));
        lines.into_iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

impl fmt::Display for FirstDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = |event: &Option<(u64, String)>| match event {
            Some((version, kind)) => format!("version {version} ({kind})"),
            None => "no event".to_owned(),
        };
        write!(f, "{} on the left, {} on the right", words(&self.left), words(&self.right))?;
        match &self.difference {
            Some(difference) => write!(f, "; it {}", difference.between("left", "right")),
            None => Ok(()),
        }
    }
}

/// Compares two sessions that were read with all events and values, with one schema.
///
/// # Errors
/// When a state does not match the schema, or a record is invalid.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use stepfold_agent_loop::test_kit::Script;
/// use stepfold_agent_loop::Agent;
/// use stepfold_runner::{Runner, compare};
/// use stepfold_session_scopes::{EventRange, MemoryStore};
///
/// # let model = Script::parse("assistant: area 3\nassistant: area 7")?;
/// let runner = Runner::builder(Agent::builder(model).build()?, MemoryStore::new()).build();
/// let session = runner.session("ada", "s1").await?;
/// session.run("which area has most stalls?").await?;
/// let fork = session.fork("s2", None).await?;
/// fork.run("and fewest?").await?;
///
/// let (left, right) = (session.read(EventRange::All).await?, fork.read(EventRange::All).await?);
/// let comparison = compare(&left, &right, runner.schema())?;
/// assert_eq!((comparison.common, comparison.left.len(), comparison.right.len()), (2, 0, 2));
/// let first = comparison.first.as_ref().expect("the fork went on");
/// assert_eq!(first.to_string(), "no event on the left, version 3 (began) on the right");
/// assert!(comparison.to_string().starts_with("s1 and s2 are the same up to version 2\nonly in s1: nothing\n"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
pub fn compare(left: &Session, right: &Session, schema: &SessionSchema) -> Result<Comparison, RunnerError> {
    let (only_left, only_right) = (kept(left, right), kept(right, left));
    let shared = only_left.iter().zip(&only_right).take_while(|(one, other)| is_same(one, other)).count();
    let last = shared.checked_sub(1).and_then(|last| only_left.get(last));
    let common = last.map_or_else(|| forked_at(left, right), |committed| committed.version);
    let (only_left, only_right) = (only_left[shared..].to_vec(), only_right[shared..].to_vec());
    let first = first_difference(left, right, only_left.first(), only_right.first())?;
    let state = |session: &Session| {
        let mut history = SessionHistory::default();
        history.extend(session)?;
        history.state(session, schema)
    };
    let state = state(right)?.diff(&state(left)?);
    // NOTE: Events name branches by place: the events before them tell which nodes those are.
    let mut active = ActiveBranches::default();
    let before = left.visible_events().take_while(|committed| committed.version <= common);
    before.filter_map(|committed| read_record(&committed.event)).for_each(|event| active.commit(&event));
    let (left_key, right_key) = (left.key.clone(), right.key.clone());
    Ok(Comparison { left_key, right_key, common, left: only_left, right: only_right, first, state, active })
}

/// The visible events of a session, as far as the other one may still have them.
fn kept(session: &Session, other: &Session) -> Vec<CommittedEvent> {
    let oldest = session.oldest.max(other.oldest);
    session.visible_events().filter(|committed| committed.version > oldest).cloned().collect()
}

/// Forks keep the versions and ids of events.
fn is_same(one: &CommittedEvent, other: &CommittedEvent) -> bool {
    one.version == other.version && one.event == other.event
}

/// The common version if no event shows it: one was forked from the other, or both from a third.
fn forked_at(left: &Session, right: &Session) -> u64 {
    let of_other = |session: &Session, other: &Session| {
        let parent = session.parent.as_ref().filter(|parent| parent.id == other.key.id)?;
        Some(parent.version)
    };
    let of_third = || {
        let (left, right) = (left.parent.as_ref()?, right.parent.as_ref()?);
        (left.id == right.id).then(|| left.version.min(right.version))
    };
    of_other(left, right).or_else(|| of_other(right, left)).or_else(of_third).unwrap_or(0)
}

fn first_difference(
    left: &Session,
    right: &Session,
    first_left: Option<&CommittedEvent>,
    first_right: Option<&CommittedEvent>,
) -> Result<Option<FirstDifference>, RunnerError> {
    let named = |committed: &CommittedEvent| (committed.version, committed.event.kind.to_string());
    let difference = match (first_left, first_right) {
        (None, None) => return Ok(None),
        (Some(one), Some(other)) => match (loop_event(&left.key, one)?, loop_event(&right.key, other)?) {
            (Some(one), Some(other)) => one.difference(&other),
            _ => None,
        },
        _ => None,
    };
    Ok(Some(FirstDifference { left: first_left.map(named), right: first_right.map(named), difference }))
}
