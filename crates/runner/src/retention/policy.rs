//! The policy of retention: what goes, decided from what a store tells of a session.

use std::time::Duration;

use stepfold_session_scopes::{PruneBound, ScannedSession, Timestamp};

/// The retention of an application: which sessions, events and messages go by themselves. By default everything is kept.
///
/// A session with an unfinished run, one that waits for a decision for example, is left as it is, unless
/// [included](RetentionPolicy::include_waiting). A session that a worker has claimed is always left as it is, and so are the
/// values at a version with a label, and the events after it; the conversation up to it goes by its age. Forks have their own events and times: what a fork shares
/// with a deleted session stays.
///
/// Ages are those by the clock of the runner. Values of the state go with their session only.
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// use stepfold_runner::RetentionPolicy;
///
/// const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// let policy = RetentionPolicy::new().delete_idle_after(DAY * 365).keep_events_for(DAY * 30);
/// assert!(!policy.is_empty());
/// assert!(RetentionPolicy::new().is_empty());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "a policy does nothing until a runner has it"]
pub struct RetentionPolicy {
    idle: Option<Duration>,
    events: Option<u64>,
    event_age: Option<Duration>,
    inbox_age: Option<Duration>,
    with_waiting: bool,
    interval: Option<Duration>,
}

impl RetentionPolicy {
    /// Keeps everything.
    pub fn new() -> Self {
        RetentionPolicy::default()
    }

    /// Deletes sessions that nothing was written to for longer than this; zero deletes each session without an unfinished run
    /// at the next pass. One with a label, or in whose inbox a message waits, is kept. Values under `user:` stay.
    pub fn delete_idle_after(mut self, age: Duration) -> Self {
        self.idle = Some(age);
        self
    }

    /// Keeps this number of newest events of each session, and deletes those before. The values of the state stay. The
    /// conversation in the deleted events goes: the model is not shown it any more. So do the records of runs in them.
    pub fn keep_events(mut self, newest: u64) -> Self {
        self.events = Some(newest);
        self
    }

    /// Deletes the events of each session before the first one that is at most this old, with their part of the conversation,
    /// as [`keep_events`](RetentionPolicy::keep_events) does; of a session that is idle for longer, only the values of the
    /// state are left.
    pub fn keep_events_for(mut self, age: Duration) -> Self {
        self.event_age = Some(age);
        self
    }

    /// Withdraws messages that wait in an inbox for longer than this. Those of a session with an unfinished run stay, as the
    /// session does: they are answered after it. Requests to cancel a run are never withdrawn.
    pub fn keep_messages_for(mut self, age: Duration) -> Self {
        self.inbox_age = Some(age);
        self
    }

    /// Includes sessions with an unfinished run. A run whose beginning is deleted cannot be resumed.
    pub fn include_waiting(mut self) -> Self {
        self.with_waiting = true;
        self
    }

    /// Sets the time between two passes of [`run_retention`](crate::Runner::run_retention); an hour by default.
    pub fn every(mut self, interval: Duration) -> Self {
        self.interval = Some(interval.max(Duration::from_millis(10)));
        self
    }

    /// Whether it keeps everything.
    pub fn is_empty(&self) -> bool {
        let RetentionPolicy { idle, events, event_age, inbox_age, .. } = self;
        idle.is_none() && events.is_none() && event_age.is_none() && inbox_age.is_none()
    }

    pub(super) fn interval(&self) -> Duration {
        self.interval.unwrap_or(Duration::from_secs(60 * 60))
    }

    /// Whether the times of first events decide.
    pub(super) fn needs_first_event(&self) -> bool {
        self.event_age.is_some()
    }

    /// Whether something of a session may have to go, as a scan tells it.
    pub(super) fn concerns(&self, session: &ScannedSession, now: Timestamp) -> bool {
        let has_old_event = session.first_event.is_some_and(|first| is_older(first, self.event_age, now));
        let has_message = self.messages_before(now).is_some() && session.inbox > 0;
        self.may_touch(session)
            && (has_message || self.is_idle(session, now) || self.has_too_many(session) || has_old_event)
    }

    /// Whether sessions like this are not left as they are: it has no unfinished run, or these are included.
    pub(super) fn may_touch(&self, session: &ScannedSession) -> bool {
        self.with_waiting || !session.is_unfinished
    }

    /// Whether a session goes as a whole, if nothing keeps it.
    pub(super) fn is_idle(&self, session: &ScannedSession, now: Timestamp) -> bool {
        is_older(session.updated, self.idle, now)
    }

    fn has_too_many(&self, session: &ScannedSession) -> bool {
        self.events.is_some_and(|newest| session.version - session.oldest > newest)
    }

    /// The bound of the events of a session that go.
    pub(super) fn bound(&self, session: &ScannedSession, now: Timestamp) -> Option<PruneBound> {
        let version = self.events.map(|newest| session.version.saturating_sub(newest));
        let time = self.event_age.map(|age| now.before(age));
        match (version, time) {
            (None, None) => None,
            (Some(version), None) => Some(PruneBound::Version(version)),
            (None, Some(time)) => Some(PruneBound::Time(time)),
            (Some(version), Some(time)) => Some(PruneBound::Both { version, time }),
        }
    }

    /// The time before which messages were accepted that are withdrawn.
    pub(super) fn messages_before(&self, now: Timestamp) -> Option<Timestamp> {
        self.inbox_age.map(|age| now.before(age))
    }
}

fn is_older(at: Timestamp, age: Option<Duration>, now: Timestamp) -> bool {
    age.is_some_and(|age| at < now.before(age))
}
