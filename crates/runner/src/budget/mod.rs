//! Budgets of runs: what they allow, their windows, and the meter that reserves before each request to a model.

mod ahead;
mod meter;
mod policy;
mod rate;
mod report;
mod status;
mod window;

pub(crate) use self::ahead::NextRequest;
pub use self::meter::OutsideRequests;
pub(crate) use self::meter::RunMeter;
pub(crate) use self::policy::BudgetPolicies;
pub use self::policy::{Budget, BudgetScope, WhenExhausted, estimated_cost};
pub use self::rate::SharedRateLimit;
pub use self::report::{SpendGroup, SpendQuery, SpendReport, SpendSum};
pub(crate) use self::status::RefusedRequests;
pub use self::status::{BudgetSpender, BudgetStatus};
pub use self::window::{BudgetError, BudgetWindow};
