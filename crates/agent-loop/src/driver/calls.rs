//! Running the calls of a reply: each is announced, marked if it must not run twice, and committed when it
//! has its outcome.

use stepfold_state_core::chat::{ToolCall, Usage};
use stepfold_state_core::state::Snapshot;
use stepfold_tools::{
    CallEvent, CancellationToken, FatalError, Invocation, InvokeOptions, Outcome, Outcomes, Resources,
};

use super::Host;
use super::hooks::after_tool;
use super::model::sleep;
use super::nested::{Nested, Scope};
use crate::agent::HookPoint;
use crate::error::RunFault;
use crate::observe::RunEvent;
use crate::run::{Answer, Run};

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
        let hooks = &run.agent().config().hooks;
        let has_hooks = hooks.has(HookPoint::BeforeTool) || hooks.has(HookPoint::AfterTool);
        loop {
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
                Some(CallEvent::Starting { calls: places }) => self.starting(run, &calls, places).await?,
                Some(CallEvent::Progress { call, report }) => {
                    let call_id = &calls[call].id;
                    self.tell(|| RunEvent::ToolProgress { call_id: call_id.clone(), report }).await?;
                }
                Some(CallEvent::Finished { call }) => {
                    let Some(outcome) = invocation.outcome(call).cloned() else { continue };
                    // Calls that read what it will have written wait with it.
                    if self.finished(run, call, &calls[call], outcome, &scope).await? {
                        invocation.hold(call);
                    }
                    // What hooks wrote with the call is read by those that wait for it.
                    if has_hooks && let Some(outcome) = run.finished_call(call) {
                        invocation.amend(call, outcome);
                    }
                }
                Some(_) => {}
            }
            // Calls that always have something to tell would not let the timeout be looked at.
            if !is_up && self.is_time_up(run) {
                is_up = true;
                stop.cancel();
            }
        }
        let Outcomes { error, .. } = invocation.finish().await;
        error.map_or(Ok(()), |error| Err(RunFault::Tool(error)))
    }

    /// Calls that must not run twice are marked in the record before they start.
    async fn starting(
        &mut self,
        run: &mut Run,
        calls: &[ToolCall],
        places: Vec<usize>,
    ) -> Result<(), RunFault> {
        for place in &places {
            let call = &calls[*place];
            self.tell(|| RunEvent::ToolStarted {
                call_id: call.id.clone(),
                tool: call.name.clone(),
                arguments: call.arguments.to_text().into_owned(),
            })
            .await?;
        }
        let marked: Vec<usize> =
            places.into_iter().filter(|place| run.must_mark(&calls[*place].name)).collect();
        match marked.is_empty() {
            true => Ok(()),
            false => self.commit(run, Answer::Started(marked)).await,
        }
    }

    /// Commits what came of a call. Whether it is an agent that waits.
    async fn finished(
        &mut self,
        run: &mut Run,
        place: usize,
        call: &ToolCall,
        outcome: Outcome,
        scope: &Scope,
    ) -> Result<bool, RunFault> {
        let usage = match scope.take(&call.id) {
            Some(Nested::Suspended { child, requests }) => {
                self.commit(run, Answer::Suspended { call: place, child, requests }).await?;
                return Ok(true);
            }
            Some(Nested::Used(usage)) => usage,
            None => Usage::default(),
        };
        let (outcome, stop) = match outcome.tries {
            0 => (outcome, None),
            _ => after_tool(run, call, outcome).await?,
        };
        self.tell(|| RunEvent::ToolFinished {
            call_id: call.id.clone(),
            tool: call.name.clone(),
            status: outcome.status,
            text: outcome.result.text().into_owned(),
        })
        .await?;
        let raises = run.agent().config().raise_on_failure;
        let answer = Answer::Outcome { call: place, outcome, usage, stop };
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
            _ => Ok(false),
        }
    }
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
    let state: Snapshot = run.state().snapshot();
    Invocation::resume(&tools, state, calls, run.finished_calls(), options)
}
