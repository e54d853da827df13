//! Runs that wait for a budget whose limit has become higher: by a raise through any process, or by a declaration.

use std::collections::VecDeque;
use std::sync::Arc;

use stepfold_session_scopes::{
    ErrorKind, EventRange, GetSession, ListRaises, ScanSessions, SessionCursor, SessionError, SessionKey,
    SessionStore,
};

use crate::core::runner_core::Runner;
use crate::record::events::exhausted_budget;

/// The number of the newest raises that a poll compares with those of the last one.
const NEWEST: usize = 32;

/// The sessions of a page, and the most pages of a poll.
const PAGE: usize = 1_000;
const MAX_PAGES: usize = 10;

/// The number of unfinished runs after which a poll reads no further page.
const ENOUGH: usize = 200;

/// The progress of a scan of the app's sessions.
enum RaiseScan {
    Ended,
    At(Option<SessionCursor>),
}

/// Finds the sessions whose runs wait for a budget with a limit that is higher than when they were refused. All sessions of
/// the app are scanned at the beginning and after each raise, in pages; otherwise a poll costs one statement.
pub(crate) struct RaisedBudgets {
    /// The newest raises at the last poll; `None` before the first one.
    newest: Option<Vec<Arc<str>>>,
    scan: RaiseScan,
    found: VecDeque<SessionKey>,
    /// Sessions that a worker had at the last poll: they are looked at again.
    claimed: Vec<SessionKey>,
}

impl RaisedBudgets {
    pub(crate) const fn new() -> Self {
        RaisedBudgets { newest: None, scan: RaiseScan::Ended, found: VecDeque::new(), claimed: Vec::new() }
    }

    /// Whether the scan has ended, and its sessions were taken.
    pub(crate) fn is_done(&self) -> bool {
        matches!(self.scan, RaiseScan::Ended) && self.found.is_empty()
    }

    /// Takes the first found session for which this holds.
    pub(crate) fn take(&mut self, may_start: impl Fn(&SessionKey) -> bool) -> Option<SessionKey> {
        let place = self.found.iter().position(may_start)?;
        self.found.remove(place)
    }

    /// The next poll begins again: a run that was found could not be continued.
    pub(crate) fn look_again(&mut self) {
        self.newest = None;
    }

    /// Finds more sessions, if a raise is new or the scan has not ended.
    pub(crate) async fn poll(&mut self, runner: &Runner) {
        if runner.0.budgets.budgets.is_empty() {
            return;
        }
        if let Err(error) = self.find(runner).await {
            // The next poll begins again.
            self.scan = RaiseScan::Ended;
            self.look_again();
            if error.kind() == ErrorKind::Unsupported {
                return;
            }
            tracing::warn!(%error, "runs that wait for a raised budget could not be listed");
        }
    }

    async fn find(&mut self, runner: &Runner) -> Result<(), SessionError> {
        let raises = runner.0.store.raises(ListRaises::new().at_most(NEWEST)).await?;
        let newest = raises.into_iter().map(|raise| raise.id).collect();
        if self.newest.as_ref() != Some(&newest) {
            // NOTE: from the beginning, since a scan under way may have passed sessions of this raise.
            (self.newest, self.scan) = (Some(newest), RaiseScan::At(None));
            self.found.clear();
            self.claimed.clear();
        }
        for key in std::mem::take(&mut self.claimed) {
            self.look_at(runner, key).await?;
        }
        let mut looked_at = 0;
        for _ in 0..MAX_PAGES {
            let RaiseScan::At(after) = &self.scan else { break };
            if looked_at >= ENOUGH || self.found.len() >= ENOUGH {
                break;
            }
            let mut request = ScanSessions::of(runner.0.app.clone());
            (request.limit, request.after) = (PAGE, after.clone());
            let page = runner.0.store.scan(request).await?;
            for session in page.sessions.into_iter().filter(|session| session.is_unfinished) {
                looked_at += 1;
                self.look_at(runner, session.key).await?;
            }
            self.scan = page.next.map_or(RaiseScan::Ended, |next| RaiseScan::At(Some(next)));
        }
        Ok(())
    }

    /// Notes whether a session is to be continued.
    async fn look_at(&mut self, runner: &Runner, key: SessionKey) -> Result<(), SessionError> {
        match higher_limit(runner, &key).await? {
            HigherLimit::No => {}
            HigherLimit::Yes => self.found.push_back(key),
            HigherLimit::Claimed => self.claimed.push(key),
        }
        Ok(())
    }
}

/// Whether the run of a session waits for a budget whose limit is higher than the one that its question names.
enum HigherLimit {
    No,
    Yes,
    /// So it does, and a worker has the session: it is about to release it, or was refused before the raise.
    Claimed,
}

/// The next question names the higher limit, so that each raise wakes a run once, whatever processes find it. A session that
/// cannot be read hides no other. A worker that stores its question after the raise finds the raise itself.
///
/// # Errors
/// When the store is out of reach: the runs are looked for again.
async fn higher_limit(runner: &Runner, key: &SessionKey) -> Result<HigherLimit, SessionError> {
    let get = GetSession::new(key.clone()).events(EventRange::Last(1)).without_state();
    let read = match runner.0.store.get(get.now(runner.0.clock.now())).await {
        Ok(read) => read,
        Err(error) if error.kind() == ErrorKind::Transient => return Err(error),
        Err(_) => return Ok(HigherLimit::No),
    };
    let Some(newest) = read.visible_events().next_back() else { return Ok(HigherLimit::No) };
    let Some(question) = exhausted_budget(&newest.event) else { return Ok(HigherLimit::No) };
    let is_higher = runner.has_higher_limit(&question, key, &newest.event.invocation).await;
    Ok(match (is_higher, &read.claim) {
        (false, _) => HigherLimit::No,
        (true, None) => HigherLimit::Yes,
        (true, Some(_)) => HigherLimit::Claimed,
    })
}
