//! The keys of shared scopes that a run of an agent depends on, and so records.

use std::collections::BTreeSet;

use stepfold_state_core::state::{KeySchema, Template};

use super::Agent;
use crate::state_input::is_shared;

/// The keys of shared scopes whose values decide what a run of this agent does: those that its instructions show, that
/// its tools are fed from, and that its tools merge into. Of a graph, and of tools that are not known before they are
/// asked for, all that the schema declares.
pub(super) fn shared_keys(agent: &Agent) -> BTreeSet<String> {
    let config = agent.config();
    let mut keys = BTreeSet::new();
    for (name, _) in config.instructions.iter().flat_map(Template::placeholders) {
        // A dotted name may be a key, or lead into the value of one.
        let dots = name.match_indices('.').map(|(dot, _)| &name[..dot]);
        keys.extend(dots.chain([name]).filter(|key| is_shared(key)).map(str::to_owned));
    }
    match agent.static_offer() {
        Some(offer) if config.planner.is_none() => {
            let used = offer.tools.iter().flat_map(|tool| tool.reads().chain(tool.writes()));
            keys.extend(used.filter(|key| is_shared(key)).map(str::to_owned));
        }
        _ => {
            let declared = config.schema.keys().map(KeySchema::name);
            keys.extend(declared.filter(|key| is_shared(key)).map(str::to_owned));
        }
    }
    keys
}
