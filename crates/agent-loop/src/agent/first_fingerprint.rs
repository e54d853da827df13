//! Fingerprints as they were stored before they had parts of parts: without a number of their form. A run that was stored
//! with one is compared with the same form of the agent of today.

use stepfold_tools::{Approval, Tool};

use super::fingerprint::{Fingerprint, digest_of, json_of, list};
use super::{Agent, HostedAgent, OutputMode};
use crate::agent::HookPoint;
use crate::digest;

impl Fingerprint {
    /// The first form of the fingerprint of an agent. It had the debug texts of some types, which stay here.
    pub(super) fn first_of(agent: &Agent) -> Self {
        let config = agent.config();
        let mut parts = Fingerprint::common_parts(agent);
        let hooks: Vec<&str> = config.hooks.points().into_iter().map(first_name_of_hook).collect();
        parts.set("hooks", format!("[{}]", hooks.join(", ")));
        parts.set("approval", first_name_of_approval(&config.approval).to_owned());
        if let Some(output) = &config.output {
            let mode = match output.mode {
                OutputMode::Schema => "Schema",
                OutputMode::Tool => "Tool",
                OutputMode::Prompt => "Prompt",
            };
            parts.set("output", digest_of(&(&output.name, &output.schema, mode)));
        }
        if let Some(planner) = &config.planner {
            for (part, value) in planner.first_parts() {
                parts.set(&part, digest_of(&value));
            }
        }
        for tool in agent.static_offer().iter().flat_map(|offer| &offer.tools) {
            parts.set(&format!("tool {}", tool.name()), first_digest_of_tool(tool));
        }
        parts
    }
}

fn first_digest_of_tool(tool: &Tool) -> String {
    let (effect, approval) = (json_of(&tool.effect()), json_of(&first_name_of_approval(tool.approval())));
    let words = list([tool.canonical_spec(), &effect, &approval]);
    let inside = tool.hosted_as::<HostedAgent>().map(|call| call.agent.first_fingerprint());
    let words = match inside {
        Some(inside) => list([&words, &json_of(&inside)]),
        None => words,
    };
    digest::of_text(&words)
}

const fn first_name_of_approval(approval: &Approval) -> &'static str {
    match approval {
        Approval::Never => "Never",
        Approval::Always => "Always",
        Approval::Once => "Once",
        _ => "When",
    }
}

const fn first_name_of_hook(point: HookPoint) -> &'static str {
    match point {
        HookPoint::BeforeRun => "BeforeRun",
        HookPoint::BeforeModel => "BeforeModel",
        HookPoint::BeforeTool => "BeforeTool",
        HookPoint::AfterTool => "AfterTool",
        HookPoint::OnExit => "OnExit",
        HookPoint::AfterRun => "AfterRun",
    }
}
