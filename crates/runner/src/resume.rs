//! Going on with a run: after decisions, an interruption or a failure.

use std::future::IntoFuture;

use futures_util::future::BoxFuture;
use stepfold_agent_loop::{Decision, Decisions};

use crate::error::RunnerError;
use crate::handle::SessionHandle;
use crate::invocation::{Ended, Invocation};
use crate::turn::Order;

/// Goes on with a run; awaiting it does so. See [`SessionHandle::resume`].
#[must_use = "nothing is resumed until it is awaited or started"]
#[derive(Debug)]
pub struct Resume {
    session: SessionHandle,
    decisions: Decisions,
    with_changed_agent: bool,
}

impl Resume {
    pub(crate) fn new(session: SessionHandle) -> Self {
        Resume { session, decisions: Decisions::new(), with_changed_agent: false }
    }

    /// With a decision about a pending call, by the id of the request. All decisions are one commit.
    pub fn decide(mut self, id: impl Into<String>, decision: Decision) -> Self {
        self.decisions = self.decisions.decide(id, decision);
        self
    }

    /// With decisions about pending calls.
    pub fn decide_all(mut self, decisions: impl Into<Decisions>) -> Self {
        self.decisions = self.decisions.and(decisions);
        self
    }

    /// Although the agent is another one than when the run began.
    pub fn with_changed_agent(mut self) -> Self {
        self.with_changed_agent = true;
        self
    }

    /// Starts it in a task of its own.
    ///
    /// # Errors
    /// [`RunnerError::Busy`] when too many wait already.
    pub fn start(self) -> Result<Invocation, RunnerError> {
        let Resume { session, decisions, with_changed_agent } = self;
        session.order(Order::Resume { decisions, with_changed_agent })
    }
}

impl IntoFuture for Resume {
    type Output = Ended;
    type IntoFuture = BoxFuture<'static, Ended>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.start()?.outcome().await })
    }
}
