//! Tool calls that a model wrote as text. Small local models do that; the call is recovered, opt-in.
//!
//! Only what cannot be meant otherwise is taken: the whole text, but for a fence or a tag around it, is one
//! JSON object or a list of them, each of which names a declared tool and has arguments that are an
//! object. Anything else stays text.

use serde_json::{Map, Value};
use stepfold_state_core::chat::{Content, Message, Part, ToolCall};
use stepfold_tools::Tools;

use super::output::fenced_block;

/// The reply with its leaked calls as calls, or none if there are none. Ids are given later.
pub(crate) fn recovered(reply: &Message, tools: &Tools) -> Option<Message> {
    if reply.has_tool_calls() || tools.is_empty() {
        return None;
    }
    let text = reply.text();
    let calls = calls_in(&text, tools)?;
    let kept = reply.parts().iter().filter(|part| !matches!(part.content, Content::Text(_))).cloned();
    let parts = kept.chain(calls.into_iter().map(Part::from)).collect();
    Some(Message::from_parts(reply.role(), parts).with_extras(reply.extras().clone()))
}

fn calls_in(text: &str, tools: &Tools) -> Option<Vec<ToolCall>> {
    let text = text.trim();
    let text = match text.starts_with("```") && text.ends_with("```") {
        true => fenced_block(text)?.trim(),
        false => text,
    };
    let values = match text.strip_prefix("<tool_call>") {
        Some(_) => tagged_values(text)?,
        None => match serde_json::from_str(text).ok()? {
            Value::Array(items) => items,
            value => vec![value],
        },
    };
    let calls: Option<Vec<ToolCall>> = values.into_iter().map(|value| call(value, tools)).collect();
    calls.filter(|calls| !calls.is_empty())
}

/// The values between `<tool_call>` and `</tool_call>`, with nothing else around them.
fn tagged_values(text: &str) -> Option<Vec<Value>> {
    let mut values = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (body, behind) = rest.strip_prefix("<tool_call>")?.split_once("</tool_call>")?;
        values.push(serde_json::from_str(body.trim()).ok()?);
        rest = behind.trim();
    }
    Some(values)
}

/// `{"name", "arguments"}`, as most models were taught; or with `parameters` or `args`, or inside `function`.
fn call(value: Value, tools: &Tools) -> Option<ToolCall> {
    let Value::Object(mut fields) = value else { return None };
    if let Some(Value::Object(function)) = fields.remove("function") {
        fields = function;
    }
    let name = ["name", "tool", "tool_name"].iter().find_map(|key| fields.get(*key)?.as_str())?;
    let tool = tools.get(name)?;
    let arguments = ["arguments", "parameters", "args"].iter().find_map(|key| fields.get(*key));
    let arguments: Map<String, Value> = match arguments {
        None => Map::new(),
        Some(Value::Object(arguments)) => arguments.clone(),
        // Some write the arguments as a string of JSON, as the wire does.
        Some(Value::String(text)) => serde_json::from_str(text).ok()?,
        Some(_) => return None,
    };
    Some(ToolCall::new("", tool.name(), arguments))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use stepfold_tools::{RawArgs, Tool, ToolError};

    use super::*;

    fn tools() -> Tools {
        let function = |RawArgs(_): RawArgs| async { Ok::<_, ToolError>(json!(1)) };
        let parameters = json!({"properties": {}, "type": "object"});
        let tool = Tool::new("search", "Finds.", function).parameters(parameters).build().unwrap();
        Tools::of([tool]).unwrap()
    }

    fn names(text: &str) -> Option<Vec<String>> {
        let message = recovered(&Message::assistant(text), &tools())?;
        Some(
            message.tool_calls().map(|call| format!("{}({})", call.name, call.arguments.to_text())).collect(),
        )
    }

    #[test]
    fn recovers_what_can_only_be_a_call() {
        let one = Some(vec![r#"search({"q":"x"})"#.to_owned()]);
        for text in [
            r#"{"name": "search", "arguments": {"q": "x"}}"#,
            "```json\n{\"name\": \"search\", \"parameters\": {\"q\": \"x\"}}\n```",
            r#"[{"function": {"name": "search", "arguments": "{\"q\": \"x\"}"}}]"#,
            "<tool_call>\n{\"name\": \"search\", \"arguments\": {\"q\": \"x\"}}\n</tool_call>",
        ] {
            assert_eq!(names(text), one, "{text}");
        }
        let two = r#"<tool_call>{"name": "search"}</tool_call><tool_call>{"name": "search"}</tool_call>"#;
        assert_eq!(names(two).unwrap().len(), 2);
    }

    #[test]
    fn leaves_everything_else_as_text() {
        for text in [
            "I would call search now.",
            r#"{"name": "other", "arguments": {}}"#,
            r#"{"name": "search", "arguments": [1]}"#,
            r#"For example: {"name": "search", "arguments": {}}"#,
            r#"[{"name": "search"}, {"name": "other"}]"#,
            "[]",
            "",
        ] {
            assert_eq!(names(text), None, "{text}");
        }
    }
}
