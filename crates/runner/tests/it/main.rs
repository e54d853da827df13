//! Tests at the crate's boundary.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::format_collect,
    clippy::items_after_statements,
    clippy::needless_pass_by_value,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::similar_names,
    reason = "a helper of a test fails the test, takes what reads best, and need not be fast"
)]

mod approval_law;
mod approved_inputs;
mod budget_ahead;
mod budget_crashes;
mod budget_law;
mod budget_raises;
mod budget_requests;
mod budgets;
mod busy;
mod changes;
mod claims;
mod closing;
mod crash;
mod cut_off;
mod decisions;
mod deployments;
mod edits;
mod erasure;
mod erasure_at_once;
mod failing;
mod finished_work;
mod flat;
mod golden;
mod graph;
mod heartbeats;
mod histories;
mod hosts;
mod invocation_law;
mod kept_open;
mod keys;
mod lasting;
mod later;
mod marks;
mod messages;
mod notices;
mod old_decisions;
mod old_keys;
mod outages;
mod pinned;
mod questions;
mod rate_limits;
mod recover;
mod redaction;
mod retention;
mod run_as;
mod scopes;
mod session_log;
mod session_recall;
mod shown;
mod sizes;
mod time_travel;
mod twice;
mod upgrade_rows;
mod wakes;
mod watching;
mod who_is_told;
mod world;
