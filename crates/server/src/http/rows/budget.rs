//! Rows of budgets: the question of a run that waits for one.

use schemars::JsonSchema;
use serde::Serialize;
use stepfold_agent_loop::ExhaustedBudget;
use stepfold_session_scopes::Timestamp;

/// The budget that a run waits for: it continues in the next window, or is resumed under a higher limit, or abandoned.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::http) struct BudgetQuestionRow {
    /// The name of the budget.
    name: String,
    /// The sharers of the budget: a run, session, user, app or group.
    scope: String,
    /// The unit of the amounts: `usd` for billionths of a dollar, `tokens` or `requests`.
    unit: String,
    /// The spent amount.
    spent: u64,
    /// The amount that is reserved for requests under way.
    reserved: u64,
    /// The limit.
    limit: u64,
    /// The amount that the request needs, by its estimate.
    requested: u64,
    /// The end of the window (RFC 3339); absent if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<String>,
    /// The question in words.
    text: String,
}

impl BudgetQuestionRow {
    pub(in crate::http) fn of(budget: &ExhaustedBudget) -> Self {
        BudgetQuestionRow {
            name: budget.budget.clone(),
            scope: budget.scope.clone(),
            unit: budget.unit.as_str().to_owned(),
            spent: budget.spent,
            reserved: budget.reserved,
            limit: budget.limit,
            requested: budget.requested,
            until: budget.until.map(|until| Timestamp::from(until).to_string()),
            text: budget.to_string(),
        }
    }
}
