//! The keys of the state that an agent names, and those of shared scopes among them.

use std::collections::BTreeSet;

use stepfold_state_core::state::{KeySchema, Template};
use stepfold_tools::Tools;

use super::{Agent, AgentConfig};
use crate::state_input::is_shared;

/// The keys that a name in a template may mean: a dotted one is a key, or leads into the value of one.
pub(super) fn key_candidates(name: &str) -> impl Iterator<Item = &str> {
    name.match_indices('.').map(|(dot, _)| &name[..dot]).chain([name])
}

/// The keys that the instructions show, that these tools are fed from, and that they merge into.
pub(super) fn named_keys<'a>(config: &'a AgentConfig, tools: Option<&'a Tools>) -> BTreeSet<&'a str> {
    let shown = config
        .instructions
        .iter()
        .flat_map(Template::placeholders)
        .flat_map(|(name, _)| key_candidates(name));
    let tools = tools.into_iter().flat_map(Tools::iter);
    shown.chain(tools.flat_map(|tool| tool.reads().chain(tool.writes()))).collect()
}

/// The keys of shared scopes whose values decide what a run of this agent does, so that it records them: those that it
/// names. Of a graph, and of tools that are not known before they are asked for, all that the schema declares.
pub(super) fn shared_keys(agent: &Agent) -> BTreeSet<String> {
    let config = agent.config();
    let tools = agent.tools().filter(|_| config.planner.is_none());
    let mut keys = named_keys(config, tools);
    if tools.is_none() {
        keys.extend(config.schema.keys().map(KeySchema::name));
    }
    keys.into_iter().filter(|key| is_shared(key)).map(str::to_owned).collect()
}
