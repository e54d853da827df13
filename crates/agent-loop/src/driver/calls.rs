//! Running the calls of a reply: each is announced, marked if it must not run twice, and committed when it
//! has its outcome.

use stepfold_state_core::chat::{ToolCall, Usage};
use stepfold_state_core::state::State;
use stepfold_tools::{
    CallEvent, CancellationToken, FatalError, Invocation, InvokeOptions, Outcome, Outcomes, Resources,
};

use super::Host;
use super::hooks::{SeenOutcome, after_tool};
use super::model::sleep;
use super::nested::{Nested, Scope};
use super::trouble::Trouble;
use crate::agent::HookPoint;
use crate::error::RunFault;
use crate::observe::RunEvent;
use crate::run::{Answer, PendingHook, Run};

impl Host<'_> {
    pub(super) async fn run_calls(&mut self, run: &mut Run) -> Result<(), RunFault> {
        if run.tools().is_none() {
            self.offer_tools(run).await?;
            if self.is_cancelled() {
                return Ok(());
            }
        }
        // The tools of a reply that another driver was given may want approval by now.
        let asked = match self.replied == Some(run.steps()) {
            true => Vec::new(),
            false => run.calls_to_ask(),
        };
        if !asked.is_empty() {
            return self.commit(run, Answer::Ask(asked)).await;
        }
        let calls = run.calls_as_run();
        let (scope, resources) = self.scope.get_or_insert_with(|| Scope::of(run)).clone();
        scope.open(run, self.elapsed());
        let stop = self.cancellation.child_token();
        let mut invocation = invocation(run, calls.clone(), resources, stop.clone());
        let mut up = std::pin::pin!(sleep(self.time_left(run)));
        let mut is_up = false;
        let mut trouble = Trouble::default();
        let hooks = &run.agent().config().hooks;
        let has_hooks = hooks.has(HookPoint::BeforeTool) || hooks.has(HookPoint::AfterTool);
        while !trouble.is_refusal() {
            let event = tokio::select! {
                biased;
                event = invocation.next() => event,
                () = &mut up, if !is_up => {
                    is_up = true;
                    stop.cancel();
                    continue;
                }
            };
            match event {
                None => break,
                Some(CallEvent::Starting { calls: places }) => {
                    if !self.starting(run, &calls, places, &mut trouble).await {
                        invocation.withdraw();
                    }
                }
                Some(CallEvent::Progress { call, report }) => {
                    let call_id = &calls[call].id;
                    let told = self.tell(|| RunEvent::ToolProgress { call_id: call_id.clone(), report });
                    trouble.note(told.await);
                }
                Some(CallEvent::Finished { call }) => {
                    let Some(outcome) = invocation.outcome(call).cloned() else { continue };
                    // Calls that read what it will have written wait with it.
                    if self.finished(run, call, &calls[call], outcome, &scope, &mut trouble).await {
                        invocation.hold(call);
                    }
                    // What hooks wrote with the call is read by those that wait for it.
                    if has_hooks && let Some(outcome) = run.finished_call(call) {
                        invocation.amend(call, outcome);
                    }
                }
                Some(_) => {}
            }
            if trouble.is_there() {
                invocation.drain();
            }
            // Calls that always have something to tell would not let the timeout be looked at.
            if !is_up && self.is_time_up(run) {
                is_up = true;
                stop.cancel();
            }
        }
        trouble.also_lost(ended_calls(run, &invocation));
        trouble.end()?;
        let Outcomes { error, .. } = invocation.finish().await;
        error.map_or(Ok(()), |error| Err(RunFault::Tool(error)))
    }

    /// Calls that must not run twice are marked in the record before they start. Whether the calls may start: once they
    /// are marked, they do.
    async fn starting(
        &mut self,
        run: &mut Run,
        calls: &[ToolCall],
        places: Vec<usize>,
        trouble: &mut Trouble,
    ) -> bool {
        for place in &places {
            let call = &calls[*place];
            let told = self.tell(|| RunEvent::ToolStarted {
                call_id: call.id.clone(),
                tool: call.name.clone(),
                arguments: call.arguments.to_text().into_owned(),
            });
            if trouble.note(told.await).is_none() {
                return false;
            }
        }
        let marked: Vec<usize> =
            places.into_iter().filter(|place| run.must_mark(&calls[*place].name)).collect();
        if !marked.is_empty() {
            trouble.note(self.commit(run, Answer::Started(marked)).await);
        }
        !trouble.is_refusal()
    }

    /// Commits what came of a call, whatever hooks and observers say: it has happened. Whether it is an agent that waits.
    async fn finished(
        &mut self,
        run: &mut Run,
        place: usize,
        call: &ToolCall,
        outcome: Outcome,
        scope: &Scope,
        trouble: &mut Trouble,
    ) -> bool {
        let usage = match scope.take(&call.id) {
            Some(Nested::Suspended { child, requests }) => {
                trouble.note(self.commit(run, Answer::Suspended { call: place, child, requests }).await);
                return true;
            }
            Some(Nested::Used(usage)) => usage,
            None => Usage::default(),
        };
        let seen = match outcome.tries {
            0 => SeenOutcome::of(outcome),
            _ => after_tool(run, call, outcome, 0).await,
        };
        self.conclude(run, place, seen, usage, trouble).await;
        false
    }

    /// Runs the hooks that a call still waits for, because one of them failed.
    pub(super) async fn run_pending_hook(&mut self, run: &mut Run) -> Result<(), RunFault> {
        let Some(PendingHook { place, call, outcome, hook }) = run.pending_hooks().into_iter().next() else {
            return Ok(());
        };
        let seen = after_tool(run, &call, outcome, hook).await;
        match seen.failed {
            // There is nothing new to commit.
            Some((failed, fault)) if failed == hook => Err(fault),
            _ => {
                let mut trouble = Trouble::default();
                self.conclude(run, place, seen, Usage::default(), &mut trouble).await;
                trouble.end()
            }
        }
    }

    /// Commits an outcome as hooks have left it. It is told as finished when all of them have seen it.
    async fn conclude(
        &mut self,
        run: &mut Run,
        place: usize,
        seen: SeenOutcome,
        usage: Usage,
        trouble: &mut Trouble,
    ) {
        let SeenOutcome { outcome, stop, failed } = seen;
        let pending_hook = failed.map(|(hook, fault)| {
            trouble.note::<()>(Err(fault));
            hook
        });
        if pending_hook.is_none() {
            let told = self.tell(|| RunEvent::ToolFinished {
                call_id: outcome.call_id().to_owned(),
                tool: outcome.tool().to_owned(),
                status: outcome.status,
                text: outcome.result.text().into_owned(),
            });
            trouble.note(told.await);
        }
        let answer = Answer::Outcome { call: place, outcome, usage, stop, pending_hook };
        trouble.note(self.commit_outcome(run, answer).await);
    }

    /// Commits an outcome. The error of a write that cannot be merged is for the caller, if failures are.
    async fn commit_outcome(&mut self, run: &mut Run, answer: Answer) -> Result<(), RunFault> {
        let raises = run.agent().config().raise_on_failure;
        let event = run.feed(answer, self.elapsed()).map_err(RunFault::from)?;
        let unmerged = event.step_end.as_ref().and_then(|end| end.unmerged.first().copied());
        let results: Vec<_> =
            event.messages.iter().filter_map(|message| message.tool_result().cloned()).collect();
        self.commit_event(run, event).await?;
        match unmerged.and_then(|place| Some((place, results.get(place)?))) {
            Some((place, result)) if raises => {
                let source = result.text().into_owned();
                Err(RunFault::Tool(FatalError::new(result.call_id(), result.name(), place, source)))
            }
            _ => Ok(()),
        }
    }
}

/// The calls that came to an end which is not committed.
fn ended_calls(run: &Run, invocation: &Invocation) -> Vec<String> {
    let has_ended = |place: usize| invocation.outcome(place).is_some_and(|outcome| outcome.tries > 0);
    let ended = run.open_calls().into_iter().filter(|(place, _)| has_ended(*place));
    ended.map(|(_, call)| call.id).collect()
}

fn invocation(run: &Run, calls: Vec<ToolCall>, resources: Resources, stop: CancellationToken) -> Invocation {
    let config = run.agent().config();
    let mut options = InvokeOptions::scoped(run.key_scope())
        .with_limits(config.tool_limits.clone())
        .with_overflow(config.overflow.clone())
        .with_cancellation(stop)
        .with_resources(resources);
    options.raise_on_failure = config.raise_on_failure;
    let tools = run.tools().cloned().unwrap_or_default();
    let state: State = run.state().clone();
    Invocation::resume(&tools, state, calls, run.finished_calls(), options)
}
