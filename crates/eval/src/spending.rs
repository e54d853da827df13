//! The limit on what an experiment spends: its candidates and its judge together.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use stepfold_agent_loop::{MeterError, MeteredRequest, RequestEnd, RequestMeter};
use stepfold_runner::{OutsideRequests, estimated_cost};
use stepfold_state_core::chat::{ChatRequest, Cost, Prices, Usage};

/// A limit on requests to models and on their cost, shared by all cases of an experiment and its judge.
///
/// A request beyond it is not sent, and its case is an [error](crate::CaseStatus::Error), which is tried again when the
/// experiment [continues](crate::Experiment::continuing). The bound on requests is exact. The one on the cost is checked before
/// each request, so the requests under way at that moment can exceed it. A cost cannot be held without prices: a reply of
/// a model that has none ends the spending.
///
/// An experiment that continues in a [`ReportFile`](crate::ReportFile) continues with what was spent before: each request is noted there
/// before it is sent, so that the bound on requests is exact over kills too. A request whose reply did not come, at a kill or a timeout,
/// costs its [estimate](estimated_cost), as in the budgets of a runner, and so does one of whose reply no usage is known.
///
/// # Examples
/// ```
/// use stepfold_agent_loop::{Agent, test_kit::Script};
/// use stepfold_eval::{Case, CaseStatus, DataSet, Expectation, Experiment, Spending};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let agent = Agent::builder(Script::parse("assistant: hello")?.whole()).build()?;
/// let cases = ["a", "b", "c"].map(|name| Case::new(name, "hello").expect(Expectation::Answered));
/// let limited = Experiment::new(&agent).spending(Spending::new().max_requests(2));
/// let summary = limited.run(DataSet::of(cases)).await?.summary();
/// assert_eq!((summary.passed, summary.errors), (2, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Spending {
    max_requests: Option<u64>,
    max_nanodollars: Option<u64>,
    prices: Vec<Prices>,
    spent: Arc<Spent>,
    /// The file in which it is noted.
    notes: Option<Arc<Mutex<File>>>,
}

/// The spending so far, as a line beside the results of an experiment.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct SpentNote {
    requests: u64,
    nanodollars: u64,
    has_no_price: bool,
}

/// A line that is no result, among those of an experiment under way.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum NoteLine {
    /// The spending so far.
    Spent(SpentNote),
    /// The id of the experiment.
    Id(String),
    /// A case that is tried once only, before it is: its [key](crate::report::result_key), since a name would have to be erased.
    Begun(u64),
}

impl NoteLine {
    pub(crate) fn to_text(&self) -> serde_json::Result<String> {
        serde_json::to_string(self).map(|line| line + "\n")
    }
}

#[derive(Debug, Default)]
struct Spent {
    requests: AtomicU64,
    /// The cost of the requests that have ended.
    nanodollars: AtomicU64,
    /// The estimate of those under way.
    reserved: AtomicU64,
    has_no_price: AtomicBool,
}

impl Spending {
    /// Without a limit.
    pub fn new() -> Self {
        Spending::default()
    }

    /// Limits the requests.
    pub const fn max_requests(mut self, requests: u64) -> Self {
        self.max_requests = Some(requests);
        self
    }

    /// Limits the cost, in billionths of a dollar, by these prices.
    pub fn max_nanodollars(mut self, nanodollars: u64, prices: Prices) -> Self {
        self.max_nanodollars = Some(nanodollars);
        self.prices.push(prices);
        self
    }

    /// Adds prices, of the judge's models for example. The first table with a price of a model holds.
    pub fn also_priced(mut self, prices: Prices) -> Self {
        self.prices.push(prices);
        self
    }

    /// Notes it in a file from now on, where an interrupted experiment has noted it before.
    pub(crate) fn noted_in(mut self, file: Arc<Mutex<File>>, before: Option<SpentNote>) -> Self {
        if let Some(before) = before {
            self.spent.requests.fetch_add(before.requests, Ordering::SeqCst);
            self.spent.nanodollars.fetch_add(before.nanodollars, Ordering::SeqCst);
            self.spent.has_no_price.fetch_or(before.has_no_price, Ordering::SeqCst);
        }
        self.notes = Some(file);
        self
    }

    /// Changes what is spent, and notes it: the last line is the newest.
    fn change(&self, change: impl FnOnce(&Spent) -> Result<(), String>) -> Result<(), String> {
        let Some(file) = &self.notes else { return change(&self.spent) };
        let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
        change(&self.spent)?;
        let spent = SpentNote {
            requests: self.spent.requests.load(Ordering::SeqCst),
            // After a kill, those under way have no reply.
            nanodollars: self.spent.nanodollars.load(Ordering::SeqCst)
                + self.spent.reserved.load(Ordering::SeqCst),
            has_no_price: self.spent.has_no_price.load(Ordering::SeqCst),
        };
        write_line(&mut file, &NoteLine::Spent(spent))
            .map_err(|error| format!("the spending could not be noted: {error}"))
    }

    /// Notes that a case has begun that is tried once only.
    pub(crate) fn note_begun(&self, begun: u64) -> std::io::Result<()> {
        let Some(file) = &self.notes else { return Ok(()) };
        write_line(&mut file.lock().unwrap_or_else(PoisonError::into_inner), &NoteLine::Begun(begun))
    }

    /// The requests that were sent so far, those of the judge included, and those before an interruption.
    pub fn requests(&self) -> u64 {
        self.spent.requests.load(Ordering::SeqCst)
    }

    /// Takes one request from what is left.
    ///
    /// # Errors
    /// Why it must not be sent.
    pub(crate) fn take(&self, model: &str, request: &ChatRequest) -> Result<OpenRequest, String> {
        if self.max_nanodollars.is_some() && self.spent.has_no_price.load(Ordering::SeqCst) {
            return Err("the limit of costs cannot be held: a model has no price".to_owned());
        }
        if self.max_nanodollars.is_some_and(|most| self.spent.nanodollars.load(Ordering::SeqCst) >= most) {
            return Err("the limit of costs is reached".to_owned());
        }
        // Prices are known where there is a limit of costs.
        let estimate = self.max_nanodollars.and_then(|_| {
            self.prices
                .iter()
                .find_map(|prices| estimated_cost(prices, model, request))
                .map(Cost::nanodollars)
        });
        self.change(|spent| {
            let taken = spent.requests.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |sent| {
                self.max_requests.is_none_or(|most| sent < most).then_some(sent + 1)
            });
            let limit = self.max_requests.unwrap_or_default();
            taken.map_err(|_| format!("the limit of {limit} requests is reached"))?;
            spent.reserved.fetch_add(estimate.unwrap_or_default(), Ordering::SeqCst);
            Ok(())
        })?;
        Ok(OpenRequest { spending: self.clone(), model: model.to_owned(), estimate, is_open: true })
    }

    /// The cost of a reply by the first price that is known: of the model that answered, or of the one that was asked.
    fn cost(&self, answered: Option<&str>, asked: &str, usage: &Usage) -> Option<u64> {
        let cost = |model: &str| self.prices.iter().find_map(|prices| prices.cost(model, usage));
        answered.and_then(cost).or_else(|| cost(asked)).map(Cost::nanodollars)
    }
}

/// A request under way. Until its end is known it counts with its estimate; dropped before, it is lost, and keeps it.
#[derive(Debug)]
pub(crate) struct OpenRequest {
    spending: Spending,
    /// The model that was asked.
    model: String,
    /// The estimate of its cost; `None` without a limit of costs, or a price.
    estimate: Option<u64>,
    is_open: bool,
}

impl OpenRequest {
    /// A reply has come, perhaps of another model. One of which no usage is known costs the estimate.
    pub(crate) fn replied(mut self, answered: Option<&str>, usage: &Usage) {
        let is_known = usage.total_tokens() > 0;
        let cost = self.spending.cost(answered, &self.model, usage);
        self.end(if is_known { cost } else { self.estimate.or(cost) });
    }

    /// The reply broke off after this usage was reported: the whole has cost as much, or more.
    pub(crate) fn broken(mut self, usage: &Usage) {
        let cost = self.spending.cost(None, &self.model, usage);
        self.end(cost.max(self.estimate));
    }

    /// The provider refused it, and charges nothing.
    pub(crate) fn refused(mut self) {
        self.end(Some(0));
    }

    /// It was not sent.
    fn give_back(mut self) {
        self.spending.spent.requests.fetch_sub(1, Ordering::SeqCst);
        self.end(Some(0));
    }

    /// Ends it with its cost; `None` where no price is known.
    fn end(&mut self, cost: Option<u64>) {
        if !std::mem::take(&mut self.is_open) {
            return;
        }
        let has_limit = self.spending.max_nanodollars.is_some();
        let noted = self.spending.change(|spent| {
            spent.reserved.fetch_sub(self.estimate.unwrap_or_default(), Ordering::SeqCst);
            match cost {
                Some(cost) if has_limit => drop(spent.nanodollars.fetch_add(cost, Ordering::SeqCst)),
                None if has_limit => spent.has_no_price.store(true, Ordering::SeqCst),
                _ => {}
            }
            Ok(())
        });
        // NOTE: the next request is not sent, since it cannot be noted either.
        if let Err(error) = noted {
            tracing::warn!(error, "the end of a request is not noted");
        }
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.end(self.estimate);
    }
}

/// Writes a line at once: a kill tears at most one.
fn write_line(file: &mut File, line: &NoteLine) -> std::io::Result<()> {
    file.write_all(line.to_text()?.as_bytes())
}

/// A request that was taken and is not sent yet: it is given back when this is dropped.
struct TakenRequest(Option<OpenRequest>);

impl TakenRequest {
    fn sent(mut self) -> Option<OpenRequest> {
        self.0.take()
    }
}

impl Drop for TakenRequest {
    fn drop(&mut self) {
        if let Some(request) = self.0.take() {
            request.give_back();
        }
    }
}

/// The meter of one run. What is open when it is dropped is lost.
pub(crate) struct RunMeter {
    spending: Spending,
    /// The budgets of a runner, which the requests count in as well.
    budgets: Option<Arc<dyn RequestMeter>>,
    /// The requests under way, by their places.
    open: Mutex<BTreeMap<Vec<usize>, OpenRequest>>,
}

impl RunMeter {
    /// # Errors
    /// In words, when the budgets have no meter.
    pub(crate) fn new(spending: &Spending, budgets: Option<&OutsideRequests>) -> Result<Self, String> {
        let budgets = budgets.map(OutsideRequests::meter).transpose().map_err(|error| error.to_string())?;
        Ok(RunMeter { spending: spending.clone(), budgets, open: Mutex::default() })
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<Vec<usize>, OpenRequest>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RequestMeter for RunMeter {
    fn admit<'a>(&'a self, request: MeteredRequest<'a>) -> BoxFuture<'a, Result<(), MeterError>> {
        Box::pin(async move {
            let taken = self.spending.take(request.model, request.request);
            // Also if the run is dropped while it waits for a rate limit.
            let taken = TakenRequest(Some(taken.map_err(|why| MeterError::Failed(why.into()))?));
            if let Some(budgets) = &self.budgets {
                budgets.admit(request).await?;
            }
            self.open().extend(taken.sent().map(|sent| (request.place.to_vec(), sent)));
            Ok(())
        })
    }

    fn end<'a>(&'a self, place: &'a [usize], end: RequestEnd<'a>) -> BoxFuture<'a, ()> {
        let ended = self.open().remove(place);
        match (ended, end) {
            (Some(open), RequestEnd::Recorded { model, usage } | RequestEnd::Unrecorded { model, usage }) => {
                open.replied(model, usage);
            }
            (Some(open), RequestEnd::Refused) => open.refused(),
            // It is lost.
            (open, _) => drop(open),
        }
        match &self.budgets {
            Some(budgets) => budgets.end(place, end),
            None => Box::pin(std::future::ready(())),
        }
    }
}
