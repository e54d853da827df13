//! `stepfold check`: all that is wrong with files of agents and graphs, and with their MCP servers where that is asked.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::agent_file::AgentFile;
use crate::error::{Ending, chain};
use crate::show;
use crate::tool::mcp::{self, Checked};

/// Which tools a server has, only the server says.
const UNASKED: &str = "; `--servers` starts its MCP servers and checks their tools";

pub(super) async fn check(paths: &[PathBuf], with_servers: bool, json: bool) -> Ending {
    let mut ending = Ending::Done;
    for path in paths {
        let name = path.display().to_string();
        let servers_before = mcp::known().len();
        let faults = match AgentFile::read(path) {
            Ok(read) => read.and_then(AgentFile::check).err(),
            // The other files are checked anyway.
            Err(error) => {
                let words = chain(error.as_ref());
                let unread = json!({"error": words, "file": name}).to_string();
                show::line(if json { unread } else { words });
                ending = Ending::Usage;
                continue;
            }
        };
        let servers = match faults {
            None if with_servers => mcp::checked().await,
            _ => Vec::new(),
        };
        if json {
            let faults = faults.as_ref().map_or(&[][..], |faults| &faults.faults);
            let mut told = json!({"faults": faults, "file": name});
            if with_servers {
                told["servers"] = servers.iter().map(server_json).collect();
            }
            show::line(told.to_string());
        } else {
            let is_unasked = !with_servers && mcp::known().len() > servers_before;
            let ok = || format!("{name}: ok{}", if is_unasked { UNASKED } else { "" });
            show::line(faults.as_ref().map_or_else(ok, ToString::to_string));
            servers.iter().flat_map(server_lines).for_each(|line| show::line(format!("{name}: {line}")));
        }
        if faults.is_some() || servers.iter().any(|server| server.tools.is_err()) {
            ending = Ending::Usage;
        }
    }
    ending
}

fn server_lines(Checked { server, tools }: &Checked) -> Vec<String> {
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

fn server_json(Checked { server, tools }: &Checked) -> Value {
    match tools {
        Err(error) => json!({"error": error, "server": server}),
        Ok((offered, refused)) => {
            let refused =
                refused.iter().map(|refused| json!({"reason": refused.reason, "tool": refused.tool}));
            json!({"not_offered": refused.collect::<Vec<_>>(), "offered": offered, "server": server})
        }
    }
}
