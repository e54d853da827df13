//! Uses of tools that a provider ran itself, as its reply reports them.

use serde_json::{Map, Value};

use super::{Content, Message, Part};

/// A use of a [server tool](super::ServerTool): the provider ran it, and the reply has a part that is sent back
/// unchanged.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_state_core::chat::{Content, Message, Part, Role, UnknownPart};
///
/// let block = json!({"anthropic": {"type": "server_tool_use", "name": "web_search", "input": {"query": "stalls"}}});
/// let part = UnknownPart::new(block.as_object().unwrap().clone()).unwrap();
/// let message = Message::from_parts(Role::Assistant, vec![Content::Unknown(part).into()]);
/// let used = &message.server_tool_uses()[0];
/// assert_eq!(used.to_string(), r#"web_search {"query":"stalls"}"#);
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ServerToolUse<'a> {
    /// The dialect of the provider that ran it.
    pub dialect: &'a str,
    /// The name of the tool: `web_search`, say.
    pub name: &'a str,
    /// The provider's id of the use, if it has one.
    pub id: Option<&'a str>,
    /// The input as the provider reports it; null if it reports none.
    pub input: &'a Value,
}

impl Message {
    /// The uses of tools that the provider ran itself, in order.
    pub fn server_tool_uses(&self) -> Vec<ServerToolUse<'_>> {
        self.parts().iter().filter_map(ServerToolUse::of).collect()
    }
}

impl<'a> ServerToolUse<'a> {
    /// The use of a server tool in a part. `None` for other parts, also for one with the result of a use.
    pub fn of(part: &'a Part) -> Option<Self> {
        let Content::Unknown(unknown) = &part.content else {
            return None;
        };
        let (dialect, item) = unknown.fields().iter().next()?;
        let item = item.as_object()?;
        let text = |name: &str| item.get(name).and_then(Value::as_str);
        let (name, input) = match dialect.as_str() {
            "anthropic" if matches!(text("type"), Some("server_tool_use" | "mcp_tool_use")) => {
                (text("name")?, item.get("input"))
            }
            "openai" => {
                let kind = text("type")?.strip_suffix("_call")?;
                let input =
                    ["action", "queries", "code", "arguments"].iter().find_map(|name| item.get(*name));
                (text("name").unwrap_or(kind), input)
            }
            "gemini" => ("code_execution", Some(field(item, "executableCode")?)),
            _ => return None,
        };
        Some(ServerToolUse { dialect, name, id: text("id"), input: input.unwrap_or(&Value::Null) })
    }
}

fn field<'a>(item: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    item.get(name).filter(|value| !value.is_null())
}

impl std::fmt::Display for ServerToolUse<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)?;
        match self.input {
            Value::Null => Ok(()),
            input => write!(f, " {input}"),
        }
    }
}
