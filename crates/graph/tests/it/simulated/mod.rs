//! Generated graphs, ended everywhere; and what holds for all of them. The agents inside are those that the loop's own
//! simulations generate.

#[path = "../../../../agent-loop/tests/it/simulated/agents.rs"]
#[allow(dead_code, reason = "the loop's own tests use the rest")]
mod agents;
#[path = "../../../../agent-loop/tests/it/simulated/common.rs"]
mod common;
#[path = "../../../../agent-loop/tests/it/simulated/edited.rs"]
mod edited;
mod graph_laws;
mod graph_plans;
mod graph_regressions;
mod graphs;
#[path = "../../../../agent-loop/tests/it/simulated/scenarios.rs"]
#[allow(dead_code, reason = "the loop's own tests use the rest")]
mod scenarios;

use common::{block_on, config, kind};
