//! What happens in a session from an accepted message or decision on, for protocols that answer with it.

use futures_util::{Stream, StreamExt as _};
use stepfold_agent_loop::{ApprovalRequest, RunEvent};
use stepfold_runner::{Ended, Invocation, Seen, SessionHandle};
use stepfold_session_scopes::{CommittedEvent, EventRange};
use tokio::sync::mpsc;

use super::limits::Place;

/// How many happenings wait for a client that is slow.
const WAITING: usize = 64;

/// The number of commits that are read from the store at once.
const PAGE: usize = 64;

/// A happening.
pub(super) enum Happened {
    /// Text of the reply that is under way.
    Text(String),
    /// A commit.
    Commit(CommittedEvent),
    /// The run has ended, or waits.
    End(End),
}

/// How a run has ended.
pub(super) enum End {
    /// It is over.
    Over(Ended),
    /// It waits for decisions.
    Waits(Vec<ApprovalRequest>),
}

/// A run that is followed.
pub(super) struct Followed {
    pub(super) session: SessionHandle,
    pub(super) invocation: Invocation,
    /// Commits after this version are told.
    pub(super) after: u64,
    /// The place among the runs of the user: it is taken until the end of the run, with or without readers.
    pub(super) place: Option<Place>,
}

impl Followed {
    /// Tells what happens. Without a reader the run goes on.
    pub(super) fn start(self) -> impl Stream<Item = Happened> + Send + 'static {
        let (tell, told) = mpsc::channel(WAITING);
        tokio::spawn(async move {
            let told = self.tell(&tell).await;
            if told.is_none() {
                // The client is gone.
                let _ = self.invocation.outcome().await;
            }
            drop(self.place);
        });
        futures_util::stream::unfold(told, |mut told| async { Some((told.recv().await?, told)) })
    }

    /// Tells all; `None` when the reader is gone.
    async fn tell(&self, tell: &mpsc::Sender<Happened>) -> Option<()> {
        let (mut seen, mut after) = (self.invocation.subscribe(0), self.after);
        loop {
            let seen = tokio::select! {
                seen = seen.next() => seen,
                () = tell.closed() => return None,
            };
            match seen {
                // Text belongs to the commit before it. What is of an earlier one is told with the commit that followed.
                Some(Seen::Event { version, event, .. }) => {
                    after = self.tell_commits(tell, after, version).await?;
                    if let (RunEvent::Text(text), true) = (event, version == after) {
                        tell.send(Happened::Text(text)).await.ok()?;
                    }
                }
                // What was missed is told with the next commit.
                Some(_) => {}
                None => break,
            }
        }
        let ended = self.invocation.outcome().await;
        self.tell_commits(tell, after, u64::MAX).await?;
        tell.send(Happened::End(end(ended))).await.ok()
    }

    /// Tells the commits after a version, up to another. Returns the version of the last.
    async fn tell_commits(&self, tell: &mpsc::Sender<Happened>, mut after: u64, until: u64) -> Option<u64> {
        while after < until
            && let Ok(stored) = self.session.read(EventRange::Page { after, limit: PAGE }).await
            && let Some(last) = stored.events.last()
        {
            let newest = last.version.min(until);
            for commit in stored.visible_events().filter(|commit| commit.version <= until) {
                tell.send(Happened::Commit(commit.clone())).await.ok()?;
            }
            if newest <= after {
                break;
            }
            after = newest;
        }
        Some(after)
    }
}

fn end(ended: Ended) -> End {
    match &ended {
        Ok(outcome) if !outcome.pending().is_empty() => End::Waits(outcome.pending()),
        _ => End::Over(ended),
    }
}
