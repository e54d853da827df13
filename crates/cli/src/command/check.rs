//! `stepfold check`: all faults of agent and graph files, and of their MCP servers with `--servers`.

use std::path::PathBuf;

use serde::Serialize;
use serde_json::{Value, json};
use stepfold::prelude::*;
use stepfold::tools::Tools;

use crate::agent_file::AgentFile;
use crate::error::{CommandEnding, chain};
use crate::show;
use crate::tool::mcp::{self, ServerCheck};

/// The hint that tools of MCP servers are unchecked: only the running server can list them.
const UNCHECKED_HINT: &str = "; `--servers` starts its MCP servers and checks their tools";

pub(super) async fn check(paths: &[PathBuf], with_servers: bool, json: bool) -> CommandEnding {
    let mut ending = CommandEnding::Done;
    for path in paths {
        let name = path.display().to_string();
        // NOTE: Servers are registered for the whole process: the difference belongs to this file.
        let servers_before = mcp::all_servers().len();
        let checked = match AgentFile::read(path) {
            Ok(read) => read.and_then(AgentFile::check),
            // An unreadable file does not stop the check of the others.
            Err(error) => {
                let words = chain(error.as_ref());
                let unread = json!({"error": words, "file": name}).to_string();
                show::line(if json { unread } else { words });
                ending = CommandEnding::Usage;
                continue;
            }
        };
        let (omitted, faults) = match checked {
            Ok(built) => (omitted_tools(&built.into()), None),
            Err(faults) => (Vec::new(), Some(faults)),
        };
        let servers = match faults {
            None if with_servers => mcp::check_servers().await,
            _ => Vec::new(),
        };
        if json {
            let faults = faults.as_ref().map_or(&[][..], |faults| &faults.faults);
            let mut shown = json!({"faults": faults, "file": name});
            if !omitted.is_empty() {
                shown["omitted_tools"] = json!(omitted);
            }
            if with_servers {
                shown["servers"] = servers.iter().map(server_json).collect();
            }
            show::line(shown.to_string());
        } else {
            let has_unchecked = !with_servers && mcp::all_servers().len() > servers_before;
            let ok = || format!("{name}: ok{}", if has_unchecked { UNCHECKED_HINT } else { "" });
            show::line(faults.as_ref().map_or_else(ok, ToString::to_string));
            for OmittedToolRow { agent, tool, model, reason } in &omitted {
                show::line(format!(
                    "{name}: agent {agent}: {model} is not offered the tool {tool}: {reason}"
                ));
            }
            servers.iter().flat_map(server_lines).for_each(|line| show::line(format!("{name}: {line}")));
        }
        if faults.is_some() || servers.iter().any(|server| server.tools.is_err()) {
            ending = CommandEnding::Usage;
        }
    }
    ending
}

/// A tool of an agent that its model leaves out of requests. The agent works without it, so it is not a fault.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct OmittedToolRow {
    agent: String,
    model: String,
    reason: String,
    tool: String,
}

/// The omitted tools of an agent and of the agents inside it.
fn omitted_tools(agent: &Agent) -> Vec<OmittedToolRow> {
    let (mut found, mut open) = (Vec::new(), vec![agent]);
    while let Some(agent) = open.pop() {
        let specs = agent.tools().map(Tools::specs).unwrap_or_default();
        let of_agent = agent.model().omitted_tools(&specs).into_iter().map(|omitted| OmittedToolRow {
            agent: agent.name().to_owned(),
            model: agent.model().id().to_owned(),
            reason: omitted.reason,
            tool: omitted.name,
        });
        let of_agent: Vec<OmittedToolRow> = of_agent.filter(|omitted| !found.contains(omitted)).collect();
        found.extend(of_agent);
        open.extend(agent.inside().into_iter().map(|(_, agent)| agent));
    }
    found
}

fn server_lines(ServerCheck { server, tools }: &ServerCheck) -> Vec<String> {
    match tools {
        Err(error) => vec![error.clone()],
        Ok((offered, refused)) => {
            let mut lines = vec![format!("server `{server}`: {offered} tools are offered")];
            lines.extend(refused.iter().map(|refused| {
                format!("server `{server}`: tool `{}` is not offered: {}", refused.tool, refused.reason)
            }));
            lines
        }
    }
}

fn server_json(ServerCheck { server, tools }: &ServerCheck) -> Value {
    match tools {
        Err(error) => json!({"error": error, "server": server}),
        Ok((offered, refused)) => {
            let refused =
                refused.iter().map(|refused| json!({"reason": refused.reason, "tool": refused.tool}));
            json!({"not_offered": refused.collect::<Vec<_>>(), "offered": offered, "server": server})
        }
    }
}
