//! Budgets of runs: what they allow, their windows, and the meter that reserves before each request to a model.

mod meter;
mod policy;
mod rate;
mod report;
mod window;

pub(crate) use self::meter::RunMeter;
pub(crate) use self::policy::BudgetPolicies;
pub use self::policy::{Budget, BudgetScope, WhenExhausted};
pub use self::rate::SharedRateLimit;
pub use self::report::{SpendGroup, SpendQuery, SpendReport, SpendSum};
pub use self::window::{BudgetError, BudgetWindow};
