//! Runs the calls of a reply: starts them when they are ready, and reports events.
//!
//! Nothing starts without the caller: a call is announced by [`CallEvent::Starting`] and runs only after the
//! next call of [`Invocation::next`], so that a marker can be committed before an effect can happen. All
//! async tools run in the caller's own task: dropping the invocation stops them.
//!
//! The phases of a call:
//!
//! | phase | event | next phase |
//! |---|---|---|
//! | waiting | all calls that it waits for are settled | ready |
//! | ready | [`Invocation::next`], within the limit of concurrency | announced ([`CallEvent::Starting`]) |
//! | ready | [`Invocation::next`], and the tool is unknown or the arguments are invalid | finished |
//! | announced | [`Invocation::next`] or [`Invocation::complete`] | running, or hosted if the host runs it |
//! | announced | [`Invocation::withdraw`] | without an outcome, until a resume |
//! | running | the last attempt ends | finished ([`CallEvent::Finished`]) |
//! | running | the tool asks the user, and the host takes questions | held ([`CallEvent::InputRequired`]) |
//! | hosted | [`Invocation::complete`] | finished, or held as above |
//! | hosted | cancellation | hosted: its host ends it |
//! | hosted, finished | [`Invocation::hold`] | held: without an outcome, until a resume |
//! | finished | the following [`Invocation::next`] | settled: calls that wait for it may start |
//! | waiting, ready, announced | cancellation | finished, as not started |
//! | running | cancellation | finished, as cancelled |
//! | waiting, ready | [`Invocation::drain`] | without an outcome, until a resume |

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::FutureExt;
use serde_json::Value;
use stepfold_state_core::chat::ToolCall;
use stepfold_state_core::state::{Delta, Handler, KeySchema, Schema, State};

use super::call_futures::CallFutures;
use super::outcome::{CallFailure, CallOutcome, CallOutcomes, CallStatus, FatalCause, FatalError};
use super::prepare::{self, PreparedCall};
use super::running::{FinishedCall, RunningCall};
use super::schedule::{CallAccess, CallSchedule};
use super::settle::fold;
use crate::context::{CallContext, InvocationContext};
use crate::error::ToolError;
use crate::input::{AnsweredRequest, InputRequest};
use crate::options::InvokeOptions;
use crate::progress::{MAX_UNREAD_REPORTS, ProgressQueue};
use crate::tool::Tool;
use crate::toolset::Tools;
use tokio_util::sync::CancellationToken;

/// An event of an invocation.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum CallEvent {
    /// These calls start when [`Invocation::next`] is called again.
    Starting {
        /// Their indexes in the reply.
        calls: Vec<usize>,
    },
    /// A tool reported progress.
    Progress {
        /// The index of its call in the reply.
        call: usize,
        /// The report.
        report: Value,
    },
    /// A call asks the user, and has no outcome: it is [held](Invocation::hold). Only if the caller
    /// [hosts](InvokeOptions::hosts_calls) calls.
    InputRequired {
        /// The index of the call in the reply.
        call: usize,
        /// The questions.
        requests: Vec<InputRequest>,
    },
    /// A call has its [outcome](Invocation::outcome).
    Finished {
        /// Its index in the reply.
        call: usize,
    },
}

/// The running calls of one reply.
///
/// Each ends with exactly one outcome: a value, an error, cancelled, or not started. Dropping the invocation
/// stops all async tools; blocking ones are asked to stop.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use serde_json::json;
/// use stepfold_state_core::chat::ToolCall;
/// use stepfold_state_core::state::{Schema, State};
/// use stepfold_tools::{CallEvent, Invocation, InvokeOptions, Tool, ToolError, Tools};
///
/// async fn clock() -> Result<&'static str, ToolError> {
///     Ok("noon")
/// }
/// let tools = Tools::of([Tool::new("clock", "Tells the time.", clock).build().unwrap()]).unwrap();
/// let state = State::new(&Schema::builder().build().unwrap());
/// let calls = vec![ToolCall::new("c1", "clock", json!({})), ToolCall::new("c2", "cloak", json!({}))];
///
/// let mut invocation = Invocation::new(&tools, state.clone(), calls, InvokeOptions::default());
/// while let Some(event) = invocation.next().await {
///     if let CallEvent::Finished { call } = event {
///         println!("{:?}", invocation.outcome(call));
///     }
/// }
/// let done = invocation.finish().await;
/// assert_eq!(done.outcomes[0].result.text(), "noon");
/// assert_eq!(done.outcomes[1].result.text(), "unknown tool 'cloak'; available: clock");
/// # });
/// ```
pub struct Invocation {
    tools: Tools,
    calls: Arc<[ToolCall]>,
    base: State,
    shared: Arc<InvocationContext>,
    schedule: CallSchedule,
    announced: Vec<(usize, Tool, PreparedCall, State)>,
    // NOTE: In the caller's task and not in tasks of their own: dropping the invocation stops them, at a
    // fraction of the cost (docs/decisions/tools.md).
    running: CallFutures<(usize, FinishedCall)>,
    /// Calls that the host runs.
    hosted: BTreeMap<usize, RunningCall>,
    events: VecDeque<CallEvent>,
    outcomes: Vec<Option<CallOutcome>>,
    /// The answers to earlier questions, by call.
    answered: BTreeMap<usize, Vec<AnsweredRequest>>,
    /// Calls whose arguments a person has given.
    given: BTreeSet<usize>,
    /// Calls that ended since the last announcement.
    ended: Vec<usize>,
    errors: BTreeMap<usize, FatalCause>,
    /// No further calls are announced.
    is_draining: bool,
}

impl Invocation {
    /// Creates an invocation of the calls of a reply, in order, with the state before the step. Nothing runs
    /// yet.
    ///
    /// Their ids must be unique: see
    /// [`with_unique_call_ids`](stepfold_state_core::chat::with_unique_call_ids).
    pub fn new(
        tools: &Tools,
        state: State,
        calls: impl Into<Arc<[ToolCall]>>,
        options: InvokeOptions,
    ) -> Self {
        let calls = calls.into();
        let access = || calls.iter().map(|call| access_of(tools, call, state.schema())).collect();
        let schedule = CallSchedule::of(calls.len(), access);
        Invocation {
            tools: tools.clone(),
            base: state,
            schedule,
            announced: Vec::new(),
            running: CallFutures::new(),
            hosted: BTreeMap::new(),
            events: VecDeque::new(),
            outcomes: vec![None; calls.len()],
            answered: BTreeMap::new(),
            given: BTreeSet::new(),
            ended: Vec::new(),
            errors: BTreeMap::new(),
            calls,
            shared: Arc::new(InvocationContext {
                // NOTE: A child: a dropped invocation stops its own calls, and not the other work under the caller's
                // token.
                cancellation: options.cancellation.child_token(),
                progress: ProgressQueue::default(),
                options,
            }),
            is_draining: false,
        }
    }

    /// Creates an invocation in which some calls have their outcome: after a crash or a pause, or for calls
    /// that were answered without running, such as rejected ones.
    ///
    /// `finished` has the outcomes in call order, `None` for each call that is still to run; calls beyond its
    /// end are to run. The other calls see the writes of finished calls as if all had run here; finished
    /// calls have no events.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use serde_json::json;
    /// use stepfold_state_core::chat::ToolCall;
    /// use stepfold_state_core::state::{Schema, State};
    /// use stepfold_tools::{FromState, Invocation, InvokeOptions, Tool, ToolError, Tools, state_key};
    ///
    /// state_key! { Limit: i64 = "limit"; }
    ///
    /// async fn set() -> Result<i64, ToolError> {
    ///     Ok(7)
    /// }
    /// async fn show(FromState(limit): FromState<Limit>) -> Result<Option<i64>, ToolError> {
    ///     Ok(limit)
    /// }
    /// let tools = Tools::of([
    ///     Tool::new("set", "Sets the limit.", set)
    ///         .output_to_state("limit", stepfold_tools::ResultSource::Whole)
    ///         .build()
    ///         .unwrap(),
    ///     Tool::new("show", "Shows the limit.", show).build().unwrap(),
    /// ]).unwrap();
    /// let state = State::new(&Schema::builder().key::<i64>("limit").build().unwrap()).clone();
    /// let calls = vec![ToolCall::new("c1", "set", json!({})), ToolCall::new("c2", "show", json!({}))];
    ///
    /// // `set` ran, then the process crashed.
    /// let first = vec![calls[0].clone()];
    /// let before = Invocation::new(&tools, state.clone(), first, InvokeOptions::default()).finish().await;
    ///
    /// let finished = before.outcomes.into_iter().map(Some).collect();
    /// let resumed = Invocation::resume(&tools, state, calls, finished, InvokeOptions::default()).finish().await;
    /// assert_eq!(resumed.outcomes[1].result.text(), "7");
    /// # });
    /// ```
    pub fn resume(
        tools: &Tools,
        state: State,
        calls: impl Into<Arc<[ToolCall]>>,
        finished: Vec<Option<CallOutcome>>,
        options: InvokeOptions,
    ) -> Self {
        let mut invocation = Invocation::new(tools, state, calls, options);
        for (call, (slot, outcome)) in invocation.outcomes.iter_mut().zip(finished).enumerate() {
            if outcome.is_some() {
                *slot = outcome;
                invocation.schedule.skip(call);
            }
        }
        invocation
    }

    /// Gives a call the answers to what it [asked](CallEvent::InputRequired) before: its tool finds them in
    /// [`ToolContext::answered`](crate::ToolContext::answered).
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use serde_json::json;
    /// use stepfold_state_core::chat::ToolCall;
    /// use stepfold_state_core::state::{Schema, State};
    /// use stepfold_tools::{AnsweredRequest, CallEvent, InputRequest, InputResponse, Invocation, InvokeOptions};
    /// use stepfold_tools::{Tool, ToolContext, ToolError, Tools};
    ///
    /// async fn greet(context: ToolContext) -> Result<String, ToolError> {
    ///     match context.ask(InputRequest::new("name", "Who are you?"))? {
    ///         InputResponse::Accept(answer) => Ok(format!("hello {}", answer["name"].as_str().unwrap_or("you"))),
    ///         _ => Ok("hello".to_owned()),
    ///     }
    /// }
    /// let tools = Tools::of([Tool::new("greet", "Greets.", greet).build().unwrap()]).unwrap();
    /// let state = State::new(&Schema::builder().build().unwrap());
    /// let calls = vec![ToolCall::new("c1", "greet", json!({}))];
    /// let options = || InvokeOptions::default().hosting_calls();
    ///
    /// let mut invocation = Invocation::new(&tools, state.clone(), calls.clone(), options());
    /// assert!(matches!(invocation.next().await, Some(CallEvent::Starting { .. })));
    /// let Some(CallEvent::InputRequired { requests, .. }) = invocation.next().await else { panic!() };
    ///
    /// // In another process, perhaps.
    /// let answer = InputResponse::Accept(json!({"name": "Ada"}));
    /// let mut invocation = Invocation::new(&tools, state, calls, options());
    /// invocation.answer(0, vec![AnsweredRequest::new(requests[0].clone(), answer)]);
    /// assert_eq!(invocation.finish().await.outcomes[0].result.text(), "hello Ada");
    /// # });
    /// ```
    pub fn answer(&mut self, call: usize, answered: Vec<AnsweredRequest>) {
        self.answered.insert(call, answered);
    }

    /// Marks a call with arguments from a person in place of the model's. If they set a parameter that only the state
    /// sets, the call fails, since it would run with another value. See
    /// [`Tool::check_given`](crate::Tool::check_given).
    pub fn mark_given(&mut self, call: usize) {
        self.given.insert(call);
    }

    /// Waits for the next event; `None` when every call has its outcome.
    ///
    /// Cancel-safe: a dropped future loses no event and no outcome. Started calls only make progress while
    /// this future is polled.
    ///
    /// # Panics
    /// Outside of a tokio runtime, or in one without its timer (`enable_time`).
    pub async fn next(&mut self) -> Option<CallEvent> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            if self.shared.cancellation.is_cancelled() {
                self.abandon_unstarted();
            }
            // NOTE: Only the next call starts what was announced, so that the caller can commit a marker in between.
            self.launch();
            if self.announce() {
                continue;
            }
            if self.running.len() + self.hosted.len() == 0 {
                return None;
            }
            // Calls are polled first: a tool that reports continuously must not delay the others, the
            // timeouts and the cancellation. Reports made before an end are still returned before it.
            tokio::select! {
                biased;
                Some((call, finished)) = self.running.next() => self.finish_call(call, finished),
                (call, report) = self.shared.progress.next() => self.push_progress(call, report),
            }
        }
    }

    /// The other calls that have also ended, directly after one [finished](CallEvent::Finished): for a host that commits
    /// simultaneous ends together. Does not wait, and starts nothing.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use serde_json::json;
    /// use stepfold_state_core::chat::ToolCall;
    /// use stepfold_state_core::state::{Schema, State};
    /// use stepfold_tools::{CallEvent, Invocation, InvokeOptions, Tool, ToolError, Tools};
    ///
    /// async fn work() -> Result<(), ToolError> {
    ///     Ok(())
    /// }
    /// let tools = Tools::of([Tool::new("work", "Works.", work).build().unwrap()]).unwrap();
    /// let state = State::new(&Schema::builder().build().unwrap());
    /// let calls = ["c1", "c2"].map(|id| ToolCall::new(id, "work", json!({}))).to_vec();
    ///
    /// let mut invocation = Invocation::new(&tools, state, calls, InvokeOptions::default());
    /// assert_eq!(invocation.next().await, Some(CallEvent::Starting { calls: vec![0, 1] }));
    /// assert_eq!(invocation.next().await, Some(CallEvent::Finished { call: 0 }));
    /// assert_eq!(invocation.also_finished(), [1]);
    /// # });
    /// ```
    pub fn also_finished(&mut self) -> Vec<usize> {
        let mut calls = Vec::new();
        loop {
            while let Some(CallEvent::Finished { call }) = self.events.front() {
                calls.push(*call);
                self.events.pop_front();
            }
            // NOTE: Reports of a tool precede its end.
            if !self.events.is_empty() {
                return calls;
            }
            match self.running.next().now_or_never() {
                Some(Some((call, finished))) => self.finish_call(call, finished),
                Some(None) | None => return calls,
            }
        }
    }

    /// The token that stops its calls: a child of the token in the [options](InvokeOptions::cancellation), also cancelled
    /// when the invocation is dropped.
    pub fn cancellation(&self) -> &CancellationToken {
        &self.shared.cancellation
    }

    /// The outcome of a call, if it has ended.
    pub fn outcome(&self, call: usize) -> Option<&CallOutcome> {
        self.outcomes.get(call)?.as_ref()
    }

    /// Replaces the outcome of a call: with additional writes of a host, for example. Must be called directly
    /// after the call [finished](CallEvent::Finished): the calls that wait for it then see its writes, as
    /// they do after a [resume](Invocation::resume).
    pub fn amend(&mut self, call: usize, outcome: CallOutcome) {
        if let Some(slot) = self.outcomes.get_mut(call).filter(|slot| slot.is_some()) {
            *slot = Some(outcome);
        }
    }

    /// Ends a call of a [hosted](Tool::hosted) tool that was [announced](CallEvent::Starting): with its
    /// result and writes, or an error. Its [end](CallEvent::Finished) is the next event, as for any other
    /// call.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use serde_json::json;
    /// use stepfold_state_core::chat::ToolCall;
    /// use stepfold_state_core::state::{Delta, Schema, State};
    /// use stepfold_tools::{CallEvent, Invocation, InvokeOptions, Tool, Tools};
    ///
    /// let count = Tool::hosted("count", "Counts.", ()).parameters(json!({"type": "object"})).build().unwrap();
    /// let tools = Tools::of([count]).unwrap();
    /// let state = State::new(&Schema::builder().build().unwrap());
    /// let calls = vec![ToolCall::new("c1", "count", json!({}))];
    ///
    /// let mut invocation = Invocation::new(&tools, state, calls, InvokeOptions::default().hosting_calls());
    /// assert_eq!(invocation.next().await, Some(CallEvent::Starting { calls: vec![0] }));
    /// invocation.complete(0, Ok((json!(12), Delta::new())));
    /// assert_eq!(invocation.next().await, Some(CallEvent::Finished { call: 0 }));
    /// assert_eq!(invocation.outcome(0).unwrap().result.text(), "12");
    /// # });
    /// ```
    pub fn complete(&mut self, call: usize, result: Result<(Value, Delta), ToolError>) {
        self.launch();
        if let Some(running) = self.hosted.remove(&call) {
            self.finish_call(call, running.hosted(result));
        }
    }

    /// Ends a call that was [announced](CallEvent::Starting) with an outcome from elsewhere, in place of its function: where
    /// the caller [answers](InvokeOptions::answering_calls) all calls, or for one of a hosted tool. Its
    /// [end](CallEvent::Finished) is the next event. The outcome is taken as it is, with its writes.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use serde_json::json;
    /// use stepfold_state_core::chat::{ToolCall, ToolResult};
    /// use stepfold_state_core::state::{Schema, State};
    /// use stepfold_tools::{
    ///     CallEvent, CallOutcome, CallStatus, Invocation, InvokeOptions, Tool, ToolError, Tools,
    /// };
    ///
    /// async fn pay() -> Result<(), ToolError> {
    ///     unreachable!("no function starts")
    /// }
    /// let tools = Tools::of([Tool::new("pay", "Pays.", pay).build().unwrap()]).unwrap();
    /// let state = State::new(&Schema::builder().build().unwrap());
    /// let calls = vec![ToolCall::new("c1", "pay", json!({}))];
    ///
    /// let options = InvokeOptions::default().answering_calls();
    /// let mut invocation = Invocation::new(&tools, state, calls, options);
    /// assert_eq!(invocation.next().await, Some(CallEvent::Starting { calls: vec![0] }));
    /// let recorded = CallOutcome::new(CallStatus::Succeeded, ToolResult::value("c1", "pay", "paid"));
    /// invocation.conclude(0, recorded);
    /// assert_eq!(invocation.next().await, Some(CallEvent::Finished { call: 0 }));
    /// assert_eq!(invocation.outcome(0).unwrap().result.text(), "paid");
    /// # });
    /// ```
    pub fn conclude(&mut self, call: usize, outcome: CallOutcome) {
        self.launch();
        if self.hosted.remove(&call).is_some() {
            self.finish_call(call, outcome.into());
        }
    }

    /// The state that a call sees: that before the step, with the writes of the calls that it waited for.
    pub fn state_seen_by(&self, call: usize) -> State {
        let predecessors = self.schedule.predecessors(call);
        let mut state = self.base.clone();
        for outcome in predecessors.into_iter().filter_map(|earlier| self.outcomes[earlier].as_ref()) {
            // Writes that cannot be merged are skipped here, as at the end of the step.
            let _ = fold(&mut state, &outcome.delta);
        }
        state
    }

    /// Removes the outcome of a call that has not completed: it waits, for a decision for example. Must be
    /// called directly after the call [finished](CallEvent::Finished), or was announced, or while its host runs it. Calls that
    /// wait for it do not start; none of them has an outcome until the invocation is
    /// [resumed](Invocation::resume), so that the order of the calls does not depend on when that happens.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use serde_json::json;
    /// use stepfold_state_core::chat::ToolCall;
    /// use stepfold_state_core::state::{Schema, State};
    /// use stepfold_tools::{CallEvent, Invocation, InvokeOptions, Tool, ToolError, Tools};
    ///
    /// async fn work() -> Result<(), ToolError> {
    ///     Ok(())
    /// }
    /// let tools = Tools::of([
    ///     Tool::new("set", "Sets the limit.", work).writes(["limit"]).build().unwrap(),
    ///     Tool::new("show", "Shows the limit.", work).reads(["limit"]).build().unwrap(),
    /// ]).unwrap();
    /// let state = State::new(&Schema::builder().key::<i64>("limit").build().unwrap()).clone();
    /// let calls = ["set", "show"].map(|name| ToolCall::new(name, name, json!({}))).to_vec();
    ///
    /// let mut invocation = Invocation::new(&tools, state, calls, InvokeOptions::default());
    /// while let Some(event) = invocation.next().await {
    ///     if let CallEvent::Finished { call } = event {
    ///         invocation.hold(call);
    ///     }
    /// }
    /// // `show` waits for `set`.
    /// assert!(invocation.finish().await.outcomes.is_empty());
    /// # });
    /// ```
    pub fn hold(&mut self, call: usize) {
        self.ended.retain(|ended| *ended != call);
        self.errors.remove(&call);
        self.hosted.remove(&call);
        self.announced.retain(|(announced, ..)| *announced != call);
        if let Some(slot) = self.outcomes.get_mut(call) {
            *slot = None;
        }
    }

    /// Stops starting calls: those that run, and those that were announced, end normally. The others have no
    /// outcome, and start when the invocation is [resumed](Invocation::resume).
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use serde_json::json;
    /// use stepfold_state_core::chat::ToolCall;
    /// use stepfold_state_core::state::{Schema, State};
    /// use stepfold_tools::{CallEvent, Invocation, InvokeOptions, CallLimits, Tool, ToolError, Tools};
    ///
    /// async fn work() -> Result<(), ToolError> {
    ///     Ok(())
    /// }
    /// let tools = Tools::of([Tool::new("work", "Works.", work).build().unwrap()]).unwrap();
    /// let state = State::new(&Schema::builder().build().unwrap()).clone();
    /// let calls = ["c1", "c2"].map(|id| ToolCall::new(id, "work", json!({}))).to_vec();
    /// let options = InvokeOptions::default().with_limits(CallLimits::default().with_concurrency(1));
    ///
    /// let mut invocation = Invocation::new(&tools, state, calls, options);
    /// assert_eq!(invocation.next().await, Some(CallEvent::Starting { calls: vec![0] }));
    /// invocation.drain();
    /// assert_eq!(invocation.finish().await.outcomes.len(), 1);
    /// # });
    /// ```
    pub fn drain(&mut self) {
        self.is_draining = true;
    }

    /// Revokes the last [announcement](CallEvent::Starting): these calls do not start, and no others do. For
    /// a host that failed to record it. Otherwise like [`drain`](Invocation::drain).
    pub fn withdraw(&mut self) {
        self.announced.clear();
        self.drain();
    }

    /// Runs the remaining calls and returns all outcomes, in call order. [Held](Invocation::hold) calls, and
    /// those that wait for them, have none.
    pub async fn finish(mut self) -> CallOutcomes {
        while self.next().await.is_some() {}
        let error = self.take_error();
        CallOutcomes { outcomes: self.outcomes.drain(..).flatten().collect(), error }
    }

    /// Takes the error of the first finished call, in call order, that ends the run: for a host that has already taken the
    /// outcomes.
    pub fn take_error(&mut self) -> Option<FatalError> {
        first_fatal_error(&self.outcomes, &mut self.errors, self.shared.options.raise_on_failure)
    }

    /// Prepares the ready calls and announces those that can run. Returns whether there are events.
    fn announce(&mut self) -> bool {
        // NOTE: Not earlier: their outcomes may still have been amended or held.
        for call in self.ended.drain(..) {
            self.schedule.finish(call);
        }
        if self.is_draining {
            return !self.events.is_empty();
        }
        let running = self.running.len() + self.hosted.len();
        let free = self.shared.options.limits.concurrency.max(1).saturating_sub(running);
        let mut starting = self.schedule.take_ready(free);
        self.announced.reserve_exact(starting.len());
        starting.retain(|&call| {
            let state = self.state_seen_by(call);
            let (sent_call, is_given) = (&self.calls[call], self.given.contains(&call));
            let prepared = prepare::find_tool(&self.tools, sent_call)
                .and_then(|tool| Ok((tool.clone(), prepare::prepare(tool, sent_call, is_given, &state)?)));
            match prepared {
                Ok((tool, prepared)) => self.announced.push((call, tool, prepared, state)),
                Err(outcome) => {
                    self.finish_call(call, (*outcome).into());
                    return false;
                }
            }
            true
        });
        if !starting.is_empty() {
            self.events.push_front(CallEvent::Starting { calls: starting });
        }
        !self.events.is_empty()
    }

    /// Starts the announced calls.
    fn launch(&mut self) {
        for (index, tool, PreparedCall { arguments, bound }, state) in self.announced.drain(..) {
            let calls = Arc::clone(&self.calls);
            let invocation = Arc::clone(&self.shared);
            let answered = self.answered.get(&index).cloned().unwrap_or_default();
            let definition = tool.definition();
            let context = CallContext {
                tool_name: Arc::clone(&definition.name),
                effect: definition.effect,
                access: Arc::clone(&definition.access),
                calls,
                index,
                arguments,
                bound,
                state,
                answered,
                invocation,
            };
            let running = RunningCall::new(tool, context);
            let options = &self.shared.options;
            match options.answers_calls || (options.hosts_calls && running.is_hosted()) {
                true => drop(self.hosted.insert(index, running)),
                false => {
                    self.running.push(running.run_caught().map(move |finished| (index, finished)).boxed());
                }
            }
        }
    }

    fn finish_call(&mut self, call: usize, finished: FinishedCall) {
        // A tool's reports precede its end. The queue bounds their number; others may report as fast as they
        // are read.
        for _ in 0..MAX_UNREAD_REPORTS {
            let Some((call, report)) = self.shared.progress.pop() else { break };
            self.push_progress(call, report);
        }
        // NOTE: Without an outcome it has not ended: calls that wait for it must not start.
        if !finished.requests.is_empty() {
            self.events.push_back(CallEvent::InputRequired { call, requests: finished.requests });
            return;
        }
        self.ended.push(call);
        self.errors.extend(finished.error.map(|error| (call, error)));
        self.outcomes[call] = Some(finished.outcome);
        self.events.push_back(CallEvent::Finished { call });
    }

    /// A blocking tool may continue after its timeout; its reports are then dropped.
    fn push_progress(&mut self, call: usize, report: Value) {
        if self.outcomes[call].is_none() {
            self.events.push_back(CallEvent::Progress { call, report });
        }
    }

    /// After a cancellation, no further call starts.
    fn abandon_unstarted(&mut self) {
        let announced = self.announced.drain(..).map(|(call, ..)| call).collect::<Vec<_>>();
        for call in announced.into_iter().chain(self.schedule.take_rest()) {
            let text = format!("tool '{}' not started: the run was cancelled", self.calls[call].name);
            let outcome = CallOutcome::without_result(&self.calls[call], CallStatus::NotStarted, text);
            self.finish_call(call, outcome.into());
        }
    }
}

impl Drop for Invocation {
    fn drop(&mut self) {
        self.shared.cancellation.cancel();
    }
}

impl std::fmt::Debug for Invocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let calls: Vec<&str> = self.calls.iter().map(|call| call.name.as_str()).collect();
        f.debug_struct("Invocation")
            .field("calls", &calls)
            .field("running", &self.running.len())
            .finish_non_exhaustive()
    }
}

fn access_of<'a>(tools: &'a Tools, call: &ToolCall, schema: &Schema) -> CallAccess<'a> {
    // NOTE: A call of an unknown tool writes nothing and waits for no call.
    let Some(tool) = tools.get(&call.name) else { return CallAccess::default() };
    let access = &tool.definition().access;
    let replaces = |key: &str, handler: Option<&Handler>| {
        let own = schema.key(key).map(KeySchema::handler);
        // NOTE: An open schema replaces the values of undeclared keys.
        handler.or(own).is_none_or(|handler| *handler == Handler::replace_values())
    };
    CallAccess {
        reads: access.reads.iter().map(|key| &**key).collect(),
        writes: access
            .writes
            .iter()
            .map(|(key, handler)| (&**key, replaces(key, handler.as_ref())))
            .collect(),
    }
}

/// A call that was prevented from running is not a failure.
fn first_fatal_error(
    outcomes: &[Option<CallOutcome>],
    errors: &mut BTreeMap<usize, FatalCause>,
    raise_on_failure: bool,
) -> Option<FatalError> {
    let raises = |status: CallStatus| match status {
        CallStatus::Failed(CallFailure::Fatal) => true,
        CallStatus::Failed(CallFailure::Rejected | CallFailure::NotRun) => false,
        status => raise_on_failure && matches!(status, CallStatus::Failed(_)),
    };
    let (index, outcome) = outcomes.iter().enumerate().find_map(|(index, outcome)| {
        let outcome = outcome.as_ref()?;
        (errors.contains_key(&index) || raises(outcome.status)).then_some((index, outcome))
    })?;
    let cause = errors.remove(&index).unwrap_or_else(|| {
        let shown = outcome.result.text().into_owned();
        FatalCause { error: shown.clone().into(), shown }
    });
    Some(FatalError { call_id: outcome.call_id().to_owned(), tool: outcome.tool().to_owned(), index, cause })
}
