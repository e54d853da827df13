//! Spend on models under budgets: a principal sees its own user's, an administrator those of all.

use axum::Json;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use stepfold_runner::{SpendGroup, SpendQuery, SpendSum};
use stepfold_session_scopes::Timestamp;

use crate::http::guard::auth::Role;
use crate::http::guard::problem::Problem;
use crate::http::operation::request::{ApiRequest, AppTarget};
use crate::http::rows::pricing::dollars;

/// The maximum number of groups of a response.
const MAX_GROUPS: usize = 1_000;

/// The requests that are added up.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SpendFilter {
    /// The groups: by session by default.
    #[serde(default)]
    by: GroupRow,
    /// The time of the first request, in microseconds since 1970.
    since_us: Option<i64>,
    /// The time after the last request, in microseconds since 1970.
    until_us: Option<i64>,
    /// Whether the requests of all users are added up, for administrators; by default those of the principal's user.
    #[serde(default)]
    all_users: bool,
}

/// The groups by which requests are added up.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum GroupRow {
    /// By session, with its user: `ada/s1`.
    #[default]
    Session,
    /// By user.
    User,
    /// By the model that answered.
    Model,
    /// By day, in UTC.
    Day,
}

/// Spend on models.
#[derive(Serialize, JsonSchema)]
pub(super) struct SpendRows {
    by: GroupRow,
    /// The groups, in the order of their names; the first 1,000.
    spend: Vec<SpendRow>,
    /// The number of groups that are left out.
    left_out: usize,
    /// The sums over all groups.
    total: SumRow,
}

/// The spend of a group.
#[derive(Serialize, JsonSchema)]
struct SpendRow {
    /// The session, user, model or day.
    group: String,
    #[serde(flatten)]
    sum: SumRow,
}

/// The sums of some requests to models.
#[derive(Serialize, JsonSchema)]
struct SumRow {
    /// Requests, those under way included.
    requests: u64,
    /// Requests that count as their estimates: under way, lost, or without a reported usage.
    estimated: u64,
    /// Tokens of input.
    input_tokens: u64,
    /// Tokens of output.
    output_tokens: u64,
    /// The cost in US dollars, exactly, in decimal, at the prices of then.
    cost: String,
    /// Requests whose price was unknown.
    unpriced: u64,
}

impl From<&SpendSum> for SumRow {
    fn from(sum: &SpendSum) -> Self {
        let SpendSum { requests, estimated, input_tokens, output_tokens, cost, unpriced, .. } = *sum;
        SumRow { requests, estimated, input_tokens, output_tokens, cost: dollars(cost), unpriced }
    }
}

pub(super) async fn spend(request: ApiRequest<AppTarget, SpendFilter>) -> Result<Json<SpendRows>, Problem> {
    let SpendFilter { by, since_us, until_us, all_users } = request.query;
    let group = match by {
        GroupRow::Session => SpendGroup::Session,
        GroupRow::User => SpendGroup::User,
        GroupRow::Model => SpendGroup::Model,
        GroupRow::Day => SpendGroup::Day,
    };
    let mut query = SpendQuery::by(group);
    query.user = match all_users {
        true if !request.principal.may(Role::Administer) => return Err(Problem::forbidden(Role::Administer)),
        true => None,
        false => Some(request.principal.user().clone()),
    };
    query.since = since_us.map(Timestamp::from_micros);
    query.until = until_us.map(Timestamp::from_micros);
    let report = request.target.0.runner().spend(query).await?;
    let row = |(group, sum): (&String, &SpendSum)| SpendRow { group: group.clone(), sum: sum.into() };
    let spend: Vec<SpendRow> = report.groups.iter().take(MAX_GROUPS).map(row).collect();
    let left_out = report.groups.len() - spend.len();
    Ok(Json(SpendRows { by, spend, left_out, total: (&report.total).into() }))
}
