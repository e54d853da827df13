//! Budgets as they stand, and raises of their limits: a principal sees those of its own user, and one with the role
//! `raise_budgets` those of all.

use axum::Json;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use stepfold_runner::{BudgetScope, BudgetSpender, BudgetStatus, SessionHandle, exhausted_budget};
use stepfold_session_scopes::{Author, BudgetRaise, EventRange, Timestamp, UserId};

use super::runs::hold_permit;
use crate::http::guard::auth::Role;
use crate::http::guard::problem::Problem;
use crate::http::operation::request::{ApiRequest, AppTarget, JsonBody};
use crate::http::rows::upgrade::not_continued;

/// The user and the session whose budgets are listed.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct BudgetFilter {
    /// The user, for the role `raise_budgets`; that of the principal by default.
    user: Option<String>,
    /// The session, whose own budgets, and those of its waiting run, are listed as well.
    session: Option<String>,
}

/// A raise of a budget's limit.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewLimit {
    /// The name of the budget.
    budget: String,
    /// The limit, in the budget's unit: billionths of a dollar, tokens or requests.
    limit: u64,
    /// The user whose budget it is; that of the principal by default.
    #[serde(default)]
    user: Option<String>,
    /// The session whose budget it is, or whose run waits for it: the run continues then.
    #[serde(default)]
    session: Option<String>,
}

/// Budgets.
#[derive(Serialize, JsonSchema)]
pub(super) struct BudgetRows {
    budgets: Vec<BudgetRow>,
}

/// A budget in its current window.
#[derive(Serialize, JsonSchema)]
pub(super) struct BudgetRow {
    /// The name.
    name: String,
    /// The sharers of the counter: a run, session, user, principal, app or group.
    scope: String,
    /// The unit of the amounts: `usd` for billionths of a dollar, `tokens` or `requests`.
    unit: String,
    /// The window in words: `ever`, `day in Europe/Berlin`.
    window: String,
    /// The spent amount.
    spent: u64,
    /// The amount that is reserved for requests under way.
    reserved: u64,
    /// The limit that holds in this window.
    limit: u64,
    /// The limit as it is declared, and holds in the next window.
    declared: u64,
    /// The end of the window (RFC 3339); absent if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<String>,
}

/// Raises of budgets.
#[derive(Serialize, JsonSchema)]
pub(super) struct RaiseRows {
    /// The raises, newest first; the newest 1,000.
    raises: Vec<RaiseRow>,
}

/// A raise of a budget's limit.
#[derive(Serialize, JsonSchema)]
pub(super) struct RaiseRow {
    /// The name of the budget.
    budget: String,
    /// The sharers of the counter: a run, session, user, principal, app or group.
    scope: String,
    /// The unit of the limits: `usd` for billionths of a dollar, `tokens` or `requests`.
    unit: String,
    /// The limit before.
    from: u64,
    /// The limit after.
    to: u64,
    /// The principal that raised it.
    by: String,
    /// The time (RFC 3339).
    at: String,
    /// The user whose budget it is; absent for one that users share.
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
}

impl RaiseRow {
    fn of(raise: BudgetRaise) -> Self {
        let BudgetRaise { user, budget, shared_by, unit, from, to, by, at, .. } = raise;
        let (budget, scope, unit) = (budget.to_string(), shared_by.to_string(), unit.to_string());
        let user = user.map(|user| user.to_string());
        RaiseRow { budget, scope, unit, from, to, by: by.to_string(), at: at.to_string(), user }
    }
}

/// The raises that are listed.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RaiseFilter {
    /// The user, for the role `raise_budgets`, by default those of all users and of budgets that users share. For others, those
    /// of the principal's user.
    user: Option<String>,
}

/// A raised budget.
#[derive(Serialize, JsonSchema)]
pub(super) struct RaisedRow {
    #[serde(flatten)]
    budget: BudgetRow,
    /// Whether the run of the named session continues at once. Runs of other sessions that wait for the budget are continued by
    /// the recovery of `serve` or `work`, within seconds.
    continues: bool,
    /// Why this version of the agent does not continue the run, in words: the run waits for a version that does, or for
    /// `"with_changed_agent": true` in `POST …/resume`. Absent if it continues.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_continued: Vec<String>,
}

impl BudgetRow {
    fn of(status: &BudgetStatus) -> Self {
        let BudgetStatus { budget, shared_by, spent, reserved, limit, until, .. } = status;
        BudgetRow {
            name: budget.name.to_string(),
            scope: shared_by.clone(),
            unit: budget.unit.as_str().to_owned(),
            window: budget.window.to_string(),
            spent: *spent,
            reserved: *reserved,
            limit: *limit,
            declared: budget.limit,
            until: until.map(|until: Timestamp| until.to_string()),
        }
    }
}

/// The spender of a request, and its session if one is named.
async fn spender<Q, B>(
    request: &ApiRequest<AppTarget, Q, B>,
    user: Option<&str>,
    session: Option<&str>,
) -> Result<(BudgetSpender, Option<SessionHandle>), Problem> {
    let own = request.principal.user();
    let user = user.map_or_else(|| Ok(own.clone()), UserId::new)?;
    if user != *own && !request.principal.may(Role::RaiseBudgets) {
        return Err(Problem::forbidden(Role::RaiseBudgets));
    }
    let spender = BudgetSpender::new().user(user.clone());
    let Some(id) = session else { return Ok((spender, None)) };
    let found = request.target.0.runner().find_session(user.as_str(), id).await?;
    let session = found.ok_or_else(|| Problem::unknown_session(id))?;
    let spender = spender.session(session.key().id.clone());
    let newest = session.read_events(EventRange::Last(1)).await?.events.pop();
    let waiting = newest.filter(|newest| exhausted_budget(&newest.event).is_some());
    let spender = match waiting {
        Some(waiting) => spender.run(waiting.event.invocation.clone()),
        None => spender,
    };
    Ok((spender, Some(session)))
}

pub(super) async fn list(request: ApiRequest<AppTarget, BudgetFilter>) -> Result<Json<BudgetRows>, Problem> {
    let BudgetFilter { user, session } = &request.query;
    let (spender, _) = spender(&request, user.as_deref(), session.as_deref()).await?;
    let mut budgets = request.target.0.runner().budgets(&spender).await?;
    if !request.principal.may(Role::RaiseBudgets) {
        // NOTE: the sums of an app or a group tell what other users have spent.
        budgets.retain(|status| !matches!(status.budget.scope, BudgetScope::App | BudgetScope::Group(_)));
    }
    Ok(Json(BudgetRows { budgets: budgets.iter().map(BudgetRow::of).collect() }))
}

pub(super) async fn raises(request: ApiRequest<AppTarget, RaiseFilter>) -> Result<Json<RaiseRows>, Problem> {
    let own = request.principal.user();
    let user = request.query.user.as_deref().map(UserId::new).transpose()?;
    let user = match (user, request.principal.may(Role::RaiseBudgets)) {
        (user, true) => user,
        (Some(user), false) if user != *own => return Err(Problem::forbidden(Role::RaiseBudgets)),
        (_, false) => Some(own.clone()),
    };
    let raises = request.target.0.runner().budget_raises(user.as_ref()).await?;
    Ok(Json(RaiseRows { raises: raises.into_iter().map(RaiseRow::of).collect() }))
}

pub(super) async fn raise(
    request: ApiRequest<AppTarget, (), JsonBody<NewLimit>>,
) -> Result<Json<RaisedRow>, Problem> {
    let JsonBody(NewLimit { budget, limit, user, session }) = &request.body;
    let (spender, session) = spender(&request, user.as_deref(), session.as_deref()).await?;
    let by = Author::new(request.principal.name())?;
    let raised = request.target.0.runner().raise_budget(&spender, budget, *limit, &by).await?;
    tracing::info!(budget, limit, scope = raised.shared_by, by = request.principal.name(), "budget raised");
    let waiting = session.filter(|_| spender.run.is_some());
    let (mut is_continued, mut reasons) = (false, Vec::new());
    if let Some(session) = waiting {
        reasons = not_continued(&session, false).await;
        is_continued = reasons.is_empty() && continues(&request, &session);
    }
    Ok(Json(RaisedRow { budget: BudgetRow::of(&raised), continues: is_continued, not_continued: reasons }))
}

/// Continues the run that waits; returns whether it does.
fn continues<Q, B>(request: &ApiRequest<AppTarget, Q, B>, session: &SessionHandle) -> bool {
    if session.driving().is_some() {
        return true;
    }
    // NOTE: the raise is stored: a run that cannot continue now is resumed later, and is no error of the raise.
    let Ok(permit) = request.shared.usage.run_permit(&session.key().user, &request.shared.limits) else {
        return false;
    };
    session.resume().start().map(|invocation| drop(hold_permit(invocation, permit))).is_ok()
}
