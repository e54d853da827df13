//! The form of a budget in an agent file, and the budget that it describes.

use schemars::JsonSchema;
use serde::Deserialize;
use stepfold::runner::{Budget, BudgetError, BudgetScope, BudgetWindow, WhenExhausted};

use super::agent::PriceForm;
use super::faults::FaultCollector;

/// A file of budgets that hold beside those of agents.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct BudgetFileForm {
    pub(crate) budgets: Vec<BudgetForm>,
}

/// A limit on what runs spend on models, over all processes. One of `usd`, `tokens` and `requests`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct BudgetForm {
    /// Its name, in questions and reports.
    pub(crate) name: String,
    /// The limit in US dollars, at the `prices` of the file.
    pub(crate) usd: Option<f64>,
    /// The limit in tokens of input and output.
    pub(crate) tokens: Option<u64>,
    /// The limit in requests.
    pub(crate) requests: Option<u64>,
    /// The sessions that share it: those of the app by default.
    pub(crate) scope: Option<BudgetScopeForm>,
    /// The name of a group that shares it, over the apps of a store: in place of `scope`.
    pub(crate) group: Option<String>,
    /// The time for which it counts: for ever by default.
    pub(crate) window: BudgetWindowForm,
    /// The hours until now for which it counts, a rolling window: in place of `window`.
    pub(crate) hours: Option<u32>,
    /// The time zone of the window, such as `Europe/Berlin`; UTC by default.
    pub(crate) time_zone: Option<String>,
    /// The share of the limit from which a warning is logged, as in `0.8`.
    pub(crate) warn_at: Option<f64>,
    /// The reaction of a run that does not fit: it waits by default.
    pub(crate) when_exhausted: WhenExhaustedForm,
    /// The tokens of output that count for a request without a maximum; 4096 by default.
    pub(crate) output_estimate: Option<u64>,
    /// The price of models that are not in `prices`. Without it, a budget in dollars refuses them.
    pub(crate) unknown_price: Option<PriceForm>,
}

/// The sessions that share a budget.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum BudgetScopeForm {
    /// Each run has its own.
    Run,
    /// Each session has its own.
    Session,
    /// The sessions of a user.
    User,
    /// The sessions of a user in all agents of the store that have this budget.
    Principal,
    /// All sessions of the agent.
    App,
}

/// The time for which a budget counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum BudgetWindowForm {
    /// For ever.
    #[default]
    Ever,
    /// From midnight to midnight.
    Day,
    /// A month of the calendar.
    Month,
}

/// The reaction of a run to an exhausted budget.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WhenExhaustedForm {
    /// It waits: for a higher limit, or for the next window.
    #[default]
    Pause,
    /// It fails, and can be resumed.
    Fail,
}

/// The budgets of a file, of this scope unless they name one; faults are those of its forms.
pub(crate) fn budgets(
    forms: &[BudgetForm],
    default_scope: &BudgetScope,
    faults: &mut FaultCollector,
) -> Vec<Budget> {
    let mut budgets: Vec<Budget> = Vec::new();
    for (at, form) in forms.iter().enumerate() {
        faults.within(&["budgets", &at.to_string()], |faults| {
            let budget = form.budget(default_scope, faults);
            if budgets.iter().any(|other| other.name == budget.name) {
                faults.add(
                    &["name"],
                    format!("duplicate budget `{}`: each needs a name of its own", form.name),
                );
            }
            budgets.push(budget);
        });
    }
    budgets
}

/// Reports budgets of an agent inside of a graph: its requests are those of the graph's runs, so that they would hold nothing.
pub(crate) fn report_misplaced(forms: &[BudgetForm], faults: &mut FaultCollector) {
    if !forms.is_empty() {
        let words = "unsupported budgets: a graph's budgets count the requests of its agents; declare them in the graph file";
        faults.add(&["budgets"], words);
    }
}

/// A limit of zero is a fault: every run would wait for ever.
pub(super) fn more_than_zero(field: &str, limit: u64, faults: &mut FaultCollector) -> u64 {
    if limit == 0 {
        faults.add(&[field], "invalid limit: must be more than zero");
    }
    limit
}

impl BudgetForm {
    fn budget(&self, default_scope: &BudgetScope, faults: &mut FaultCollector) -> Budget {
        if self.name.is_empty() {
            faults.add_to_whole("missing `name` of a budget");
        }
        let mut budget = self.with_limit(faults);
        budget = budget.of(self.scope(default_scope, faults)).each(self.window(faults));
        budget = budget.when_exhausted(match self.when_exhausted {
            WhenExhaustedForm::Pause => WhenExhausted::Pause,
            WhenExhaustedForm::Fail => WhenExhausted::Fail,
        });
        if let Some(share) = self.warn_at {
            if !(share > 0.0 && share <= 1.0) {
                faults.add(&["warn_at"], "invalid share: must be more than 0 and at most 1, as in `0.8`");
            }
            budget = budget.warn_at(share);
        }
        if let Some(tokens) = self.output_estimate {
            budget = budget.output_estimate(tokens);
        }
        if let Some(price) = self.unknown_price {
            for field in price.faults() {
                faults.add(&["unknown_price", field], "invalid price: must be zero or more");
            }
            budget = budget.unknown_price(price.into());
        }
        budget
    }

    fn with_limit(&self, faults: &mut FaultCollector) -> Budget {
        let name = self.name.as_str();
        match (self.usd, self.tokens, self.requests) {
            (Some(dollars), None, None) => {
                if !(dollars.is_finite() && dollars > 0.0) {
                    faults.add(&["usd"], "invalid limit: must be more than zero dollars");
                }
                Budget::usd(name, dollars)
            }
            (None, Some(tokens), None) => Budget::tokens(name, more_than_zero("tokens", tokens, faults)),
            (None, None, Some(requests)) => {
                Budget::requests(name, more_than_zero("requests", requests, faults))
            }
            _ => {
                faults.add_to_whole(format!(
                    "invalid budget `{name}`: expected one limit, `usd`, `tokens` or `requests`"
                ));
                Budget::requests(name, 0)
            }
        }
    }

    fn scope(&self, default_scope: &BudgetScope, faults: &mut FaultCollector) -> BudgetScope {
        match (self.scope, &self.group) {
            (None, Some(group)) => BudgetScope::Group(group.clone()),
            (scope, group) => {
                if group.is_some() {
                    faults.add(&["group"], "`group` takes the place of `scope`: remove one of them");
                }
                match scope {
                    Some(BudgetScopeForm::Run) => BudgetScope::Run,
                    Some(BudgetScopeForm::Session) => BudgetScope::Session,
                    Some(BudgetScopeForm::User) => BudgetScope::User,
                    Some(BudgetScopeForm::Principal) => BudgetScope::Principal,
                    Some(BudgetScopeForm::App) => BudgetScope::App,
                    None => default_scope.clone(),
                }
            }
        }
    }

    fn window(&self, faults: &mut FaultCollector) -> BudgetWindow {
        if let Some(hours) = self.hours {
            if self.window != BudgetWindowForm::Ever || self.time_zone.is_some() {
                faults.add(
                    &["hours"],
                    "`hours` takes the place of `window` and `time_zone`: remove one of them",
                );
            }
            if hours == 0 {
                faults.add(&["hours"], "invalid window: must be at least one hour");
            }
            return BudgetWindow::hours(hours);
        }
        let zone = self.time_zone.as_deref().unwrap_or("UTC");
        let window = match self.window {
            BudgetWindowForm::Ever => {
                if self.time_zone.is_some() {
                    faults.add(
                        &["time_zone"],
                        "`time_zone` has no effect without `window`: set `day` or `month`",
                    );
                }
                Ok(BudgetWindow::ever())
            }
            BudgetWindowForm::Day => BudgetWindow::day(zone),
            BudgetWindowForm::Month => BudgetWindow::month(zone),
        };
        window.unwrap_or_else(|error: BudgetError| {
            faults.add(&["time_zone"], error.to_string());
            BudgetWindow::ever()
        })
    }
}
