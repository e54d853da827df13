//! The reservation of the next request, which the append before it makes: the request costs no transaction of its own.
//!
//! | it is | when | then |
//! |---|---|---|
//! | planned | an event is about to be stored, and the model is asked next | the append carries it |
//! | reserved | the receipt says so | the request is admitted with it, if it [covers](AheadRequest::covers) the request |
//! | released | it does not cover the next request, or there is none | by the next append, before an ordinary reservation, or at the end of the run |
//!
//! A refused one is forgotten: an ordinary reservation asks the store again, and may wait or pause the run.

use stepfold_agent_loop::{MeteredRequest, Run, RunNeed};
use stepfold_session_scopes::{ReservationEnd, ReservationId, ReserveSpend, SettleSpend, Timestamp};
use stepfold_state_core::chat::ChatRequest;

use super::meter::OpenRequest;
use super::policy::{CountedInput, ReservedPart};

/// A reservation for the next request of the outermost run.
pub(super) struct AheadRequest {
    pub(super) open: OpenRequest,
    /// The tokens of input, and the maximum of output.
    input: u64,
    max_output: Option<u64>,
    /// The end of its windows; `None` if no budget has one.
    until: Option<Timestamp>,
    /// Whether the store has answered that it is reserved.
    pub(super) is_reserved: bool,
}

impl AheadRequest {
    /// The reservation of a request with this input, which is not stored yet.
    pub(super) fn new(open: OpenRequest, request: &ChatRequest, input: u64) -> Self {
        let until = open.parts.iter().filter_map(ReservedPart::until).min();
        let max_output = request.params.max_output_tokens;
        AheadRequest { open, input, max_output, until, is_reserved: false }
    }

    /// Whether it is reserved for all that a request needs, in the windows of now. The price is that of the time of the
    /// reservation, as it is for each request.
    pub(super) fn covers(&self, request: MeteredRequest<'_>, input: u64, now: Timestamp) -> bool {
        self.is_reserved
            && *self.open.model == *request.model
            && input <= self.input
            && self.max_output == request.request.params.max_output_tokens
            && self.open.at <= now
            && self.until.is_none_or(|until| now < until)
    }

    /// The end of one that is not used: its request was not sent.
    pub(super) fn released(&self) -> SettleSpend {
        SettleSpend::new(self.open.id.clone(), ReservationEnd::Release)
    }
}

/// The budgets' part in an append.
#[derive(Default)]
pub(crate) struct AppendSpend {
    /// The reservations that end with it.
    pub(crate) settled: Vec<SettleSpend>,
    /// The reservation for the request that follows.
    pub(crate) reserved: Option<ReserveSpend>,
}

impl AppendSpend {
    pub(super) fn ends(&self, id: &ReservationId) -> bool {
        self.settled.iter().any(|settled| settled.id == *id)
    }
}

/// The next request of a run, if the model is asked next.
pub(crate) struct NextRequest {
    pub(super) model: String,
    pub(super) request: ChatRequest,
    /// Whether the tools of the request are listed when it is sent.
    lacks_tools: bool,
}

impl NextRequest {
    pub(crate) fn of(run: &Run) -> Option<Self> {
        if !matches!(run.decide(), RunNeed::Model) {
            return None;
        }
        let request = run.request();
        let model = request.model_id(run.agent().model().id());
        Some(NextRequest { model, request, lacks_tools: run.tools().is_none() })
    }

    /// Assumes the tools of the last request, where they are listed later; `None` if there was no request.
    pub(super) fn with_tools_of(mut self, last: Option<&CountedInput>) -> Option<Self> {
        if self.lacks_tools {
            self.request.tools = last?.tools();
        }
        Some(self)
    }

    pub(super) fn metered(&self) -> MeteredRequest<'_> {
        MeteredRequest::new(&[], &self.model, &self.request)
    }
}
