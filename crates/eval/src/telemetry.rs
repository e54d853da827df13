//! Results as events of OpenTelemetry: `gen_ai.evaluation.result`, of the semantic conventions for generative AI, in a span for
//! each case. They are `tracing` events: who exports spans, exports them.

use tracing::{info, info_span};

use crate::report::{CaseResult, CaseStatus};

/// Reports the scores of a case, in a span `evaluate CANDIDATE`. A case without scores has none, and its status says why.
pub(crate) fn report(candidate: &str, mode: &str, result: &CaseResult) {
    let span = info_span!(
        "evaluate",
        otel.name = format!("evaluate {candidate}"),
        gen_ai.agent.name = candidate,
        stepfold.eval.case = result.case,
        stepfold.eval.repeat = result.repeat,
        stepfold.eval.mode = mode,
        stepfold.eval.status = result.status.name(),
        gen_ai.usage.total_tokens = result.tokens,
        error.type = (result.status == CaseStatus::Error).then_some("evaluation"),
    );
    span.in_scope(|| {
        for score in &result.scores {
            let label = if score.passed { "pass" } else { "fail" };
            let value = score.value.unwrap_or(if score.passed { 1.0 } else { 0.0 });
            info!(
                gen_ai.evaluation.name = score.evaluator,
                gen_ai.evaluation.score.value = value,
                gen_ai.evaluation.score.label = label,
                gen_ai.evaluation.explanation = score.reason.as_deref(),
                "gen_ai.evaluation.result"
            );
        }
    });
}
