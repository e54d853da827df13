//! `stepfold login` and `logout`: the user's tokens at MCP servers.

use std::path::Path;

use serde_json::json;
use stepfold::mcp::SignIn;

use crate::agent_file::AgentFile;
use crate::error::CommandEnding;
use crate::model::ModelSource;
use crate::show;
use crate::tool::mcp;

pub(super) async fn login(path: &Path, server: Option<&str>, json: bool) -> anyhow::Result<CommandEnding> {
    // NOTE: Building the agent registers its MCP servers.
    AgentFile::read(path)??.build(&ModelSource::placeholder())??;
    for (server, port) in mcp::with_oauth(server)? {
        let name = server.name().to_owned();
        let page = SignIn::browser(move |page| match json {
            true => show::line(json!({"page": page, "server": name}).to_string()),
            false => show::line(format!("{name}: open this page to sign in\n{page}")),
        });
        server.sign_in(&page.port(port.unwrap_or_default())).await?;
        // The sign-in counts only after the server has accepted the token.
        server.start().await?;
        report(server.name(), "signed in", json);
    }
    Ok(CommandEnding::Done)
}

pub(super) async fn logout(path: &Path, server: Option<&str>, json: bool) -> anyhow::Result<CommandEnding> {
    AgentFile::read(path)??.build(&ModelSource::placeholder())??;
    for (server, _) in mcp::with_oauth(server)? {
        server.sign_out().await?;
        report(server.name(), "signed out", json);
    }
    Ok(CommandEnding::Done)
}

fn report(server: &str, what: &str, json: bool) {
    match json {
        true => show::line(json!({"server": server, "status": what}).to_string()),
        false => show::line(format!("{server}: {what}")),
    }
}
