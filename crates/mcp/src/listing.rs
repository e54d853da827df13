//! Resources and prompts as a server lists them.

use rmcp::model as wire;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Parses a page as a server sent it, without invalid entries. Returns the entries and the cursor of the next page;
/// `None` if it is no list.
pub(crate) fn entries<T: DeserializeOwned>(mut page: Value, field: &str) -> Option<(Vec<T>, Option<String>)> {
    let fields = page.as_object_mut()?;
    let next = fields.remove("nextCursor").and_then(|next| next.as_str().map(str::to_owned));
    let listed = match fields.remove(field) {
        Some(Value::Array(listed)) => listed,
        None | Some(Value::Null) => Vec::new(),
        Some(_) => return None,
    };
    let entry = |(place, entry): (usize, Value)| {
        let read = serde_json::from_value(entry);
        read.inspect_err(
            |error| tracing::warn!(list = field, entry = place + 1, %error, "an invalid entry is left out"),
        )
        .ok()
    };
    Some((listed.into_iter().enumerate().filter_map(entry).collect(), next.filter(|next| !next.is_empty())))
}

/// A resource of a server: something that can be [read](crate::McpServer::read_resource).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerResource {
    /// The address, in the server's own scheme.
    pub uri: String,
    /// The name.
    pub name: String,
    /// The description, if there is one.
    pub description: Option<String>,
    /// The media type, if it is known.
    pub media_type: Option<String>,
    /// The size in bytes, if it is known.
    pub size: Option<u64>,
}

impl From<wire::Resource> for ServerResource {
    fn from(resource: wire::Resource) -> Self {
        let wire::Resource { uri, name, description, mime_type, size, .. } = resource;
        ServerResource { uri, name, description, media_type: mime_type, size }
    }
}

/// A prompt of a server: messages with places to be filled, for people to choose from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerPrompt {
    /// The name, which is used to [get](crate::McpServer::prompt) it.
    pub name: String,
    /// The description, if there is one.
    pub description: Option<String>,
    /// The arguments, each with whether it is required.
    pub arguments: Vec<(String, bool)>,
}

impl From<wire::Prompt> for ServerPrompt {
    fn from(prompt: wire::Prompt) -> Self {
        let arguments = prompt.arguments.unwrap_or_default();
        let arguments =
            arguments.into_iter().map(|argument| (argument.name, argument.required == Some(true)));
        ServerPrompt { name: prompt.name, description: prompt.description, arguments: arguments.collect() }
    }
}
