//! `stepfold resources`: the resources and prompts of an agent's MCP servers.

use std::path::Path;

use serde_json::{Map, Value, json};
use stepfold::mcp::{McpError, McpServer, ServerPrompt, ServerResource};
use stepfold::state_core::chat::{Message, Role, Transcript};

use crate::agent_file::AgentFile;
use crate::error::{CommandEnding, UsageError};
use crate::model::ModelSource;
use crate::show;
use crate::tool::mcp;

pub(super) async fn resources(
    path: &Path,
    read: Option<&str>,
    arguments: &[String],
    json: bool,
) -> anyhow::Result<CommandEnding> {
    // NOTE: Building the agent registers its MCP servers.
    AgentFile::read(path)??.build(&ModelSource::placeholder())??;
    match read {
        None => Box::pin(list(json)).await?,
        Some(named) => {
            let said = Box::pin(messages(named, arguments)).await?;
            match json {
                true => show::line(json!({"messages": said}).to_string()),
                false => show::print(Transcript::from_iter(said).to_string()),
            }
        }
    }
    Ok(CommandEnding::Done)
}

async fn list(json: bool) -> anyhow::Result<()> {
    for server in mcp::all_servers() {
        let (resources, prompts) = (or_empty(server.resources().await)?, or_empty(server.prompts().await)?);
        if json {
            let object = json!({
                "prompts": prompts.iter().map(prompt_json).collect::<Vec<_>>(),
                "resources": resources.iter().map(resource_json).collect::<Vec<_>>(),
                "server": server.name(),
            });
            show::line(object.to_string());
            continue;
        }
        for resource in &resources {
            show::line(resource_line(&server, resource));
        }
        for prompt in &prompts {
            show::line(prompt_line(&server, prompt));
        }
    }
    Ok(())
}

/// An empty list for a server that refuses the request: it has no resources, or no prompts.
fn or_empty<T>(or_empty: Result<Vec<T>, McpError>) -> Result<Vec<T>, McpError> {
    match or_empty {
        Err(McpError::Request { .. }) => Ok(Vec::new()),
        or_empty => or_empty,
    }
}

fn resource_line(server: &McpServer, resource: &ServerResource) -> String {
    let about = resource.description.as_deref().map(|about| format!(": {about}")).unwrap_or_default();
    let kind = resource.media_type.as_deref().map(|kind| format!(" ({kind})")).unwrap_or_default();
    show::short(&format!("{}:{} {}{kind}{about}", server.name(), resource.uri, resource.name))
}

fn prompt_line(server: &McpServer, prompt: &ServerPrompt) -> String {
    let about = prompt.description.as_deref().map(|about| format!(": {about}")).unwrap_or_default();
    let arguments =
        prompt.arguments.iter().map(|(name, required)| format!("{name}{}", if *required { "" } else { "?" }));
    let arguments = arguments.collect::<Vec<_>>().join(", ");
    show::short(&format!("{}:{} prompt({arguments}){about}", server.name(), prompt.name))
}

fn resource_json(resource: &ServerResource) -> Value {
    json!({
        "description": resource.description,
        "media_type": resource.media_type,
        "name": resource.name,
        "size": resource.size,
        "uri": resource.uri,
    })
}

fn prompt_json(prompt: &ServerPrompt) -> Value {
    let arguments =
        prompt.arguments.iter().map(|(name, required)| json!({"name": name, "required": required}));
    json!({"arguments": arguments.collect::<Vec<_>>(), "description": prompt.description, "name": prompt.name})
}

/// The messages of the prompt with this name, otherwise of the resource at this URI.
async fn messages(named: &str, arguments: &[String]) -> anyhow::Result<Vec<Message>> {
    let (server, name) = mcp::split_name(named)?;
    let is_prompt = or_empty(server.prompts().await)?.iter().any(|prompt| prompt.name == name);
    if !is_prompt {
        return Ok(vec![Message::from_parts(Role::User, mcp::read_resource(named).await?)]);
    }
    let mut given = Map::new();
    for pair in arguments {
        let Some((argument, text)) = pair.split_once('=') else {
            return Err(UsageError(format!("invalid argument `{pair}`: must be NAME=TEXT")).into());
        };
        given.insert(argument.to_owned(), json!(text));
    }
    Ok(Box::pin(server.prompt(name, given)).await?)
}
