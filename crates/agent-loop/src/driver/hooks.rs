//! Calls the hooks of a point, one after the other, each with the actions of those before it.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use stepfold_state_core::chat::ToolResult;
use stepfold_state_core::state::State;
use stepfold_tools::{CallOutcome, panic_message};

use super::RunDriver;
use crate::agent::HookVerdict;
use crate::agent::{HookAction, HookContext, HookError, HookPoint};
use crate::error::FeedError;
use crate::run::{HookReport, ItemOutcome, Run, RunAnswer};
use crate::run_error::RunFault;

impl RunDriver<'_> {
    pub(super) async fn ask_hooks(&mut self, run: &mut Run, point: HookPoint) -> Result<(), RunFault> {
        let cancellation = self.options.cancellation.clone();
        let asking = async {
            match point {
                // NOTE: The actions of all hooks of a point become one event: a resumed run must not ask them again,
                // and a replay has none.
                HookPoint::BeforeTool => before_tools(run).await,
                point => at(run, point).await,
            }
        };
        let report = tokio::select! {
            biased;
            // The driver looks at the token before anything else. The end of a run is not cut short.
            () = cancellation.cancelled(), if point != HookPoint::AfterRun => return Ok(()),
            report = asking => report?,
        };
        self.commit(run, RunAnswer::Hooked(report)).await
    }
}

fn context(run: &Run, state: &State, point: HookPoint) -> HookContext {
    HookContext {
        point,
        state: state.clone(),
        steps: run.steps(),
        usage: run.usage(),
        call: None,
        outcome: None,
        exit: run.pending_exit().cloned(),
    }
}

fn fault(point: HookPoint, source: crate::agent::HookError) -> RunFault {
    RunFault::Hook { point, source: source.into_source() }
}

/// The hooks of a point between steps.
async fn at(run: &Run, point: HookPoint) -> Result<HookReport, RunFault> {
    let mut report = HookReport::new(point);
    let mut state = run.state().clone();
    for hook in run.agent().config().hooks.at(point) {
        let action = hook(context(run, &state, point)).await.map_err(|error| fault(point, error))?;
        let HookAction { delta, rewrite, messages, verdict, .. } = action;
        state.apply(&delta).map_err(|error| RunFault::Feed(error.into()))?;
        if let Some(rewrite) = rewrite {
            state.replace_messages(rewrite.clone());
            // NOTE: The hook saw the messages of earlier hooks in its state: its rewrite has them, or leaves them out.
            report.messages.clear();
            report.rewrite = Some(rewrite);
        }
        for message in messages.into_iter().map(Arc::new) {
            state.push_message(Arc::clone(&message));
            report.messages.push(message);
        }
        report.delta.extend(delta);
        report.verdict = merged(report.verdict, verdict);
        if matches!(report.verdict, HookVerdict::Stop(_)) {
            break;
        }
    }
    Ok(report)
}

/// The hooks before each call that is to run, in call order.
async fn before_tools(run: &Run) -> Result<HookReport, RunFault> {
    let point = HookPoint::BeforeTool;
    let mut report = HookReport::new(point);
    for (place, call) in run.calls_to_hook() {
        for hook in run.agent().config().hooks.at(point) {
            let context = HookContext { call: Some(call.clone()), ..context(run, run.state(), point) };
            let action = hook(context).await.map_err(|error| fault(point, error))?;
            refuse_messages(&action)?;
            if !action.delta.is_empty() {
                report.writes.push((place, action.delta));
            }
            report.verdict = merged(report.verdict, action.verdict);
            let is_answered = action.answer.is_some();
            report.answers.extend(action.answer.map(|text| (place, text)));
            if matches!(report.verdict, HookVerdict::Stop(_)) {
                return Ok(report);
            }
            if is_answered {
                break;
            }
        }
    }
    Ok(report)
}

/// The hooks after a call, from a place on: the outcome as they want it, and the fault of the hook that failed, if one
/// did. It and those after it have not seen the outcome.
pub(super) async fn after_tool(
    run: &Run,
    place: usize,
    mut outcome: CallOutcome,
    from: usize,
) -> (ItemOutcome, Option<RunFault>) {
    let (call, mut stop, mut failed) = (run.shown(place), None, None);
    let hooks = run.agent().config().hooks.at(HookPoint::AfterTool);
    for (number, hook) in hooks.enumerate().skip(from) {
        let context = HookContext {
            call: Some(call.clone()),
            outcome: Some(outcome.clone()),
            ..context(run, run.state(), HookPoint::AfterTool)
        };
        // The call has happened, and its outcome must not go with a panic.
        let asked = AssertUnwindSafe(async { hook(context).await }).catch_unwind().await;
        let action = asked.unwrap_or_else(|panic| {
            let words = format!("the hook panicked: {}", panic_message(&*panic));
            Err(HookError::new(words))
        });
        let action = action.map_err(|error| fault(HookPoint::AfterTool, error));
        let action = match action.and_then(|action| refuse_messages(&action).map(|()| action)) {
            Ok(action) => action,
            Err(fault) => {
                failed = Some((number, fault));
                break;
            }
        };
        outcome.delta.extend(action.delta);
        if let Some(content) = action.result {
            outcome.result = ToolResult::new(outcome.call_id(), outcome.tool(), content);
        }
        if let HookVerdict::Stop(reason) = action.verdict {
            stop = Some(reason);
            break;
        }
    }
    let (pending_hook, fault) = failed.unzip();
    (ItemOutcome { stop, pending_hook, ..ItemOutcome::new(place, outcome) }, fault)
}

/// Within a step, messages have no place: the results of the calls come next.
fn refuse_messages(action: &HookAction) -> Result<(), RunFault> {
    if action.messages.is_empty() && action.rewrite.is_none() {
        return Ok(());
    }
    Err(RunFault::Feed(FeedError::StepIsOpen))
}

fn merged(before: HookVerdict, new: HookVerdict) -> HookVerdict {
    match new {
        HookVerdict::Proceed => before,
        verdict => verdict,
    }
}
