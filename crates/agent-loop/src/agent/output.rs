//! Structured output: a value of a schema instead of free text, validated, with a limited number of repairs.

use std::fmt::Write as _;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use stepfold_state_core::chat::{ResponseFormat, ToolSpec};
use stepfold_state_core::decode;
use stepfold_state_core::json_schema::{ValueType, json_schema_of};
use stepfold_state_core::state::Issue;

/// The tool that takes the output in [`OutputMode::Tool`].
pub const OUTPUT_TOOL: &str = "submit_output";

/// The output with which a run must end.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use stepfold_agent_loop::test_kit::Script;
/// use schemars::JsonSchema;
/// use serde::Deserialize;
/// use stepfold_agent_loop::{Agent, Exit, Output};
///
/// #[derive(Debug, PartialEq, Deserialize, JsonSchema)]
/// struct Area {
///     id: u32,
///     stalls: u32,
/// }
///
/// // The first answer lacks a field: the model is told, and asked again.
/// let model = Script::parse("assistant: {\"id\": 3}\nassistant: {\"id\": 3, \"stalls\": 12}")?;
/// let agent = Agent::builder(model).output::<Area>().build()?;
/// let outcome = agent.run("which area has most stalls?").await?;
/// assert_eq!(outcome.exit(), &Exit::Output);
/// assert_eq!(outcome.output::<Area>()?, Area { id: 3, stalls: 12 });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Output {
    pub(crate) name: String,
    pub(crate) schema: Value,
    pub(crate) mode: OutputMode,
    pub(crate) repairs: u32,
    /// Whether the value can be decoded as the type, which a schema alone does not guarantee.
    decodes: fn(&Value) -> Result<(), String>,
}

/// The way in which the output is requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OutputMode {
    /// By the request's response format: for models that can be held to a schema.
    #[default]
    Schema,
    /// By a tool, [`OUTPUT_TOOL`], whose arguments are the output: for models that know tools only.
    Tool,
    /// By words at the end of the instructions: for models that know neither. JSON is taken from a fenced
    /// block, or from the first brace to the last.
    Prompt,
}

impl OutputMode {
    /// The mode in one word, as stored fingerprints have it.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            OutputMode::Schema => "schema",
            OutputMode::Tool => "tool",
            OutputMode::Prompt => "prompt",
        }
    }
}

impl Output {
    /// A `T`, by its JSON Schema.
    pub fn of<T: JsonSchema + DeserializeOwned>() -> Self {
        let name: String =
            T::schema_name().chars().filter(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        let name = if name.is_empty() { "output".to_owned() } else { name };
        let decodes = |value: &Value| decode::<T>(value).map(drop).map_err(|error| error.to_string());
        Output { decodes, ..Output::schema(name, json_schema_of::<T>()) }
    }

    /// JSON of this schema. Providers see the name.
    pub fn schema(name: impl Into<String>, schema: Value) -> Self {
        Output { name: name.into(), schema, mode: OutputMode::default(), repairs: 2, decodes: |_| Ok(()) }
    }

    /// Sets the way in which the output is requested.
    #[must_use]
    pub const fn mode(mut self, mode: OutputMode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets the number of repairs, requests in which the model gets the fault of its output; 2 by default.
    #[must_use]
    pub const fn repairs(mut self, times: u32) -> Self {
        self.repairs = times;
        self
    }
}

/// An output that was checked when its agent was built.
#[derive(Clone, Debug)]
pub(crate) struct OutputSpec {
    pub(crate) output: Output,
    value_type: Arc<ValueType>,
    /// Whether the value is wrapped: the arguments of a tool must be an object.
    is_wrapped: bool,
}

/// The field that holds an output which is not an object, in the arguments of a tool.
const WRAPPED: &str = "output";

impl OutputSpec {
    pub(crate) fn check(output: Output) -> Result<Self, Issue> {
        let value_type = ValueType::of_schema(output.schema.clone())
            .map_err(|error| Issue::new(format!("output {}", output.name), error.to_string()))?;
        let is_wrapped = output.schema.get("type").and_then(Value::as_str) != Some("object");
        Ok(OutputSpec { output, value_type: Arc::new(value_type), is_wrapped })
    }

    pub(crate) fn mode(&self) -> OutputMode {
        self.output.mode
    }

    /// The response format of each request.
    pub(crate) fn response_format(&self) -> Option<ResponseFormat> {
        (self.mode() == OutputMode::Schema).then(|| ResponseFormat::JsonSchema {
            name: self.output.name.clone(),
            schema: self.output.schema.clone(),
            // NOTE: Providers decide what they need for a strict schema: docs/decisions/providers.md.
            strict: false,
        })
    }

    /// The tool that takes the output, if one does.
    pub(crate) fn tool(&self) -> Option<ToolSpec> {
        (self.mode() == OutputMode::Tool).then(|| {
            let parameters = match self.is_wrapped {
                false => self.output.schema.clone(),
                true => json!({
                    "type": "object",
                    "properties": { WRAPPED: self.output.schema },
                    "required": [WRAPPED],
                }),
            };
            let words = "Gives the final result and ends the task. Call it once, alone, when all is done.";
            ToolSpec::new(OUTPUT_TOOL, words, parameters)
        })
    }

    /// The words that are added to the instructions.
    pub(crate) fn instructions(&self) -> Option<String> {
        (self.mode() == OutputMode::Prompt).then(|| {
            let mut text =
                "When you have the final answer, reply with one JSON value and nothing else, ".to_owned();
            // Writing to a string cannot fail.
            let _ = write!(text, "valid against this JSON Schema:\n{}", self.output.schema);
            text
        })
    }

    /// The output in a text, or what is wrong.
    pub(crate) fn of_text(&self, text: &str) -> Result<Value, String> {
        let candidate = match self.mode() {
            OutputMode::Prompt | OutputMode::Tool => json_in(text),
            OutputMode::Schema => text.trim(),
        };
        let value = serde_json::from_str::<Value>(candidate)
            .map_err(|error| format!("the reply is not JSON: {error}"))?;
        self.checked(value)
    }

    /// The output in the arguments of its tool, or what is wrong.
    pub(crate) fn of_arguments(&self, arguments: &Map<String, Value>) -> Result<Value, String> {
        let value = match self.is_wrapped {
            false => Value::Object(arguments.clone()),
            true => arguments.get(WRAPPED).cloned().ok_or(format!("missing field `{WRAPPED}` at $"))?,
        };
        self.checked(value)
    }

    fn checked(&self, value: Value) -> Result<Value, String> {
        match self.value_type.check(&value) {
            Ok(()) => (self.output.decodes)(&value).map(|()| value),
            Err(faults) => Err(faults.to_string()),
        }
    }

    /// The text for the model about an invalid output.
    pub(crate) fn fault_message(&self, faults: &str) -> String {
        let how = match self.mode() {
            OutputMode::Tool => format!("Call `{OUTPUT_TOOL}` with valid arguments."),
            _ => "Reply with the corrected JSON and nothing else.".to_owned(),
        };
        format!("The output is not valid: {faults}. {how}")
    }
}

/// The part of a text that should be JSON: a fenced block, or from the first bracket to the last.
pub(crate) fn json_in(text: &str) -> &str {
    let text = fenced_block(text).unwrap_or(text).trim();
    let start = text.find(['{', '[']);
    let end = text.rfind(['}', ']']);
    match (start, end) {
        (Some(start), Some(end)) if start < end => &text[start..=end],
        _ => text,
    }
}

/// The content of the first fenced block.
pub(crate) fn fenced_block(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("```")?;
    let (_, body) = rest.split_once('\n')?;
    let (body, _) = body.split_once("```")?;
    Some(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_found_in_prose_and_fences() {
        let cases = [
            (r#"{"a": 1}"#, r#"{"a": 1}"#),
            ("Here:\n```json\n{\"a\": 1}\n```\nDone.", r#"{"a": 1}"#),
            ("The answer is [1, 2].", "[1, 2]"),
            ("42", "42"),
        ];
        for (text, json) in cases {
            assert_eq!(json_in(text), json, "{text}");
        }
    }

    #[test]
    fn what_is_no_object_is_wrapped_in_a_tool() {
        let output = Output::schema("numbers", json!({"items": {"type": "integer"}, "type": "array"}));
        let spec = OutputSpec::check(output.mode(OutputMode::Tool)).unwrap();
        assert_eq!(spec.tool().unwrap().parameters["required"], json!(["output"]));
        let arguments = json!({"output": [1, 2]}).as_object().cloned().unwrap();
        assert_eq!(spec.of_arguments(&arguments), Ok(json!([1, 2])));
        assert!(spec.of_arguments(&Map::new()).unwrap_err().contains("missing"));
    }
}
