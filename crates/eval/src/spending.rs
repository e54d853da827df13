//! The limit on what an experiment spends: its candidates and its judge together.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use stepfold_agent_loop::{MeterError, MeteredRequest, RequestEnd, RequestMeter};
use stepfold_runner::OutsideRequests;
use stepfold_state_core::chat::{Prices, Usage};

/// A limit on requests to models and on their cost, shared by all cases of an experiment and its judge.
///
/// A request beyond it is not sent, and its case is an [error](crate::CaseStatus::Error), which is tried again when the
/// experiment [continues](crate::Experiment::continuing). The bound on requests is exact. The one on the cost is checked before
/// each request, so the requests under way at that moment can exceed it. A cost cannot be held without prices: a reply of
/// a model that has none ends the spending.
///
/// An experiment that continues in a [`ReportFile`](crate::ReportFile) continues with what was spent before: each request is noted there
/// before it is sent, so that the bound on requests is exact over kills too. The cost of a request
/// whose reply did not come, at a kill or a timeout, is unknown and does not count: budgets of a runner count its estimate.
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
    /// A case that is tried once only, before it is: its [key](crate::report::result_key), since a name would have to be erased.
    Begun(u64),
}

#[derive(Debug, Default)]
struct Spent {
    requests: AtomicU64,
    nanodollars: AtomicU64,
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
            nanodollars: self.spent.nanodollars.load(Ordering::SeqCst),
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
    pub(crate) fn take(&self) -> Result<(), String> {
        if self.max_nanodollars.is_some() && self.spent.has_no_price.load(Ordering::SeqCst) {
            return Err("the limit of costs cannot be held: a model has no price".to_owned());
        }
        if self.max_nanodollars.is_some_and(|most| self.spent.nanodollars.load(Ordering::SeqCst) >= most) {
            return Err("the limit of costs is reached".to_owned());
        }
        self.change(|spent| {
            let taken = spent.requests.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |sent| {
                self.max_requests.is_none_or(|most| sent < most).then_some(sent + 1)
            });
            taken.map(drop).map_err(|_| {
                format!("the limit of {} requests is reached", self.max_requests.unwrap_or_default())
            })
        })
    }

    /// Gives back one that was not sent.
    fn give_back(&self) {
        // NOTE: one that could not be noted counts as sent, after a kill.
        let _ = self.change(|spent| {
            spent.requests.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        });
    }

    /// Adds the usage of a reply, if there is a limit of costs: prices are known then.
    pub(crate) fn add(&self, model: &str, usage: &Usage) {
        if self.max_nanodollars.is_none() {
            return;
        }
        let cost = self.prices.iter().find_map(|prices| prices.cost(model, usage));
        let noted = self.change(|spent| {
            match cost {
                Some(cost) => {
                    spent.nanodollars.fetch_add(cost.nanodollars(), Ordering::SeqCst);
                }
                None => spent.has_no_price.store(true, Ordering::SeqCst),
            }
            Ok(())
        });
        // NOTE: the next request is not sent, since it cannot be noted either.
        if let Err(error) = noted {
            tracing::warn!(error, "the cost of a reply is not noted");
        }
    }
}

/// Writes a line at once: a kill tears at most one.
fn write_line(file: &mut File, line: &NoteLine) -> std::io::Result<()> {
    let line = serde_json::to_string(line)?;
    file.write_all(format!("{line}\n").as_bytes())
}

/// A request that was taken and is not sent yet: it is given back when this is dropped.
struct TakenRequest<'a>(Option<&'a Spending>);

impl TakenRequest<'_> {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for TakenRequest<'_> {
    fn drop(&mut self) {
        if let Some(spending) = self.0 {
            spending.give_back();
        }
    }
}

/// The meter of one run.
pub(crate) struct RunMeter {
    spending: Spending,
    /// The budgets of a runner, which the requests count in as well.
    budgets: Option<Arc<dyn RequestMeter>>,
    /// The model that was asked, by the place of the request.
    asked: Mutex<BTreeMap<Vec<usize>, String>>,
}

impl RunMeter {
    /// # Errors
    /// In words, when the budgets have no meter.
    pub(crate) fn new(spending: &Spending, budgets: Option<&OutsideRequests>) -> Result<Self, String> {
        let budgets = budgets.map(OutsideRequests::meter).transpose().map_err(|error| error.to_string())?;
        Ok(RunMeter { spending: spending.clone(), budgets, asked: Mutex::default() })
    }
}

impl RequestMeter for RunMeter {
    fn admit<'a>(&'a self, request: MeteredRequest<'a>) -> BoxFuture<'a, Result<(), MeterError>> {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.insert(request.place.to_vec(), request.model.to_owned());
        let taken = self.spending.take().map_err(|why| MeterError::Failed(why.into()));
        let Some(budgets) = self.budgets.as_ref().filter(|_| taken.is_ok()) else {
            return Box::pin(std::future::ready(taken));
        };
        Box::pin(async move {
            // Also if the run is dropped while it waits for a rate limit.
            let taken = TakenRequest(Some(&self.spending));
            let admitted = budgets.admit(request).await;
            if admitted.is_ok() {
                taken.keep();
            }
            admitted
        })
    }

    fn end<'a>(&'a self, place: &'a [usize], end: RequestEnd<'a>) -> BoxFuture<'a, ()> {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner).remove(place);
        if let RequestEnd::Recorded { model, usage } | RequestEnd::Unrecorded { model, usage } = end {
            self.spending.add(model.or(asked.as_deref()).unwrap_or_default(), usage);
        }
        match &self.budgets {
            Some(budgets) => budgets.end(place, end),
            None => Box::pin(std::future::ready(())),
        }
    }
}
