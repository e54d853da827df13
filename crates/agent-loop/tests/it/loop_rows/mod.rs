//! The contract of the loop row by row (semantics.md, section 3): each test is named after its row.
//!
//! A script of the model in the transcript notation and what the user says go in; out come the transcript,
//! why the run ended, the state and what is open. Whatever a test is about, [`play`] checks on the way what
//! holds of every run. Nothing here sleeps: time is paused.

pub(crate) mod kit;

mod steps;

mod exits;
mod limits;
mod streams;

mod hooks;

mod approval_law;
mod approvals;
mod approved_inputs;
mod breakpoints;
mod finished_work;
mod interruptions;
mod questions;

mod build;
mod decision_times;
mod edits;
mod golden;
mod history;
mod nested;
mod observers;
mod output;
mod recorded;
mod replay;
mod spans;
mod too_long;
mod upgrades;

use expect_test::Expect;
use stepfold_agent_loop::{AgentBuilder, Input};

use self::kit::{play, shown};

/// Runs an agent on an input and compares the complete result.
async fn check(agent: AgentBuilder, input: impl Into<Input>, expected: Expect) {
    let agent = agent.build().unwrap();
    let ended = play(&agent, input, |run| run).await;
    expected.assert_eq(&shown(&ended));
}
