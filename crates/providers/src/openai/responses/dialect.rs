//! Responses: where requests go, and everything in them but the conversation.

use serde_json::{Map, Value, json};
use stepfold_state_core::chat::{ChatRequest, Message, ModelError, ResponseFormat, ToolChoice, ToolSpec};

use super::decode::ResponsesDecoder;
use super::input::{self, ResponsesWriteState};
use crate::conform::MessageChanges;
use crate::dialect::{Dialect, MessagePlan, ModelAddress, ProviderInfo};
use crate::model::{HttpModel, HttpModelBuilder};
use crate::openai::preset::{OpenAiApi, Preset};
use crate::rules::RequestRules;
use crate::secret::Secret;
use crate::{strict, wire};

/// OpenAI's Responses API, the dialect of an [`OpenAiResponses`].
#[derive(Clone, Debug)]
pub struct ResponsesApi {
    preset: Preset,
    rules: RequestRules,
}

/// A model of a server with OpenAI's Responses API.
///
/// Responses are not stored by default, and reasoning is sent back encrypted. To continue from a stored one,
/// set the [extras](stepfold_state_core::chat::ModelParams::extras) `store` and `previous_response_id`, and
/// send only new messages. Extras replace the fields with their name: `reasoning`, for example, sets an
/// effort and a summary, and an empty `include` list disables reasoning.
///
/// # Examples
/// ```
/// use stepfold_providers::openai::OpenAiResponses;
/// use stepfold_state_core::chat::ChatModel;
///
/// let model = OpenAiResponses::new("gpt-5.4", "sk-...")?;
/// assert_eq!(model.id(), "openai/gpt-5.4");
/// # Ok::<(), stepfold_state_core::chat::ModelError>(())
/// ```
pub type OpenAiResponses = HttpModel<ResponsesApi>;

/// Builds an [`OpenAiResponses`] model.
pub type OpenAiResponsesBuilder = HttpModelBuilder<ResponsesApi>;

impl HttpModel<ResponsesApi> {
    /// A model of OpenAI.
    ///
    /// # Errors
    /// As [`HttpModelBuilder::build`].
    pub fn new(model: impl Into<String>, key: impl Into<Secret>) -> Result<Self, ModelError> {
        OpenAiResponses::preset(&Preset::OPENAI, model).key(key).build()
    }

    /// Starts building a model of a known server.
    pub fn preset(preset: &Preset, model: impl Into<String>) -> OpenAiResponsesBuilder {
        // Servers that speak like OpenAI's have reasoning that is not in pairs.
        let pairs_reasoning = preset.api == OpenAiApi::Responses || preset.name == Preset::AZURE.name;
        let RequestRules { tool_names, schemas, .. } = preset.rules;
        let rules = RequestRules { tool_names, schemas, pairs_reasoning, ..RequestRules::OPENAI_RESPONSES };
        HttpModelBuilder::new(ResponsesApi { preset: *preset, rules }, model)
    }

    /// Starts building a model of a server at this base URL, which usually ends with `/v1`.
    pub fn at(base_url: impl Into<String>, model: impl Into<String>) -> OpenAiResponsesBuilder {
        OpenAiResponses::preset(&Preset::COMPATIBLE, model).base_url(base_url)
    }
}

impl HttpModelBuilder<ResponsesApi> {
    /// Sends system messages as those of the developer, which is what OpenAI's reasoning models call that role.
    pub fn developer_messages(mut self) -> Self {
        self.dialect.preset.system_role = "developer";
        self
    }
}

impl Dialect for ResponsesApi {
    type Decoder = ResponsesDecoder;
    type WriteState = ResponsesWriteState;

    const NAME: &'static str = "openai";
    const MESSAGES: &'static str = "input";
    const RESERVED: &'static [&'static str] = &["input", "model", "stream", "tools"];
    const UNKNOWN: Option<&'static str> = Some(input::ITEM);

    fn server(&self) -> ProviderInfo {
        self.preset.server()
    }

    fn rules(&self) -> &RequestRules {
        &self.rules
    }

    fn plan(&self, to: ModelAddress<'_>, _: &ChatRequest) -> MessagePlan {
        // Models without reasoning refuse that of others, and the ids of items that belong to it.
        let bare_from = (!supports_reasoning(to.model)).then_some(0);
        MessagePlan { bare_from, ..MessagePlan::default() }
    }

    fn headers(&self, key: Option<&Secret>) -> Vec<(&'static str, String)> {
        self.preset.headers(key)
    }

    fn url(&self, base: &str, _: &str) -> String {
        format!("{base}/responses")
    }

    fn head(&self, to: ModelAddress<'_>, request: &ChatRequest) -> Result<Map<String, Value>, ModelError> {
        let params = &request.params;
        let missing = [("stop", !params.stop.is_empty()), ("seed", params.seed.is_some())];
        if let Some((name, _)) = missing.iter().find(|(_, is_asked)| *is_asked) {
            let reason = "the Responses API does not have it; use chat completions";
            return Err(wire::unsupported(format!("unsupported parameter `{name}`: {reason}")));
        }
        let thoughts = supports_reasoning(to.model).then_some("reasoning.encrypted_content");
        let logprobs = params.logprobs.map(|_| "message.output_text.logprobs");
        let include: Vec<&str> = thoughts.into_iter().chain(logprobs).collect();
        Ok(wire::fields([
            ("model", Some(to.model.into())),
            ("stream", Some(true.into())),
            // NOTE: The record is ours: a fork or a rewind has no counterpart in a chain of stored responses. See
            // docs/decisions/providers.md.
            ("store", Some(false.into())),
            ("include", (!include.is_empty()).then(|| json!(include))),
            ("tool_choice", tool_choice(wire::tool_choice(request))?),
            ("text", request.response_format.as_ref().map(text_format).transpose()?),
            ("temperature", params.temperature.map(Value::from)),
            ("top_p", params.top_p.map(Value::from)),
            ("max_output_tokens", params.max_output_tokens.map(Value::from)),
            ("top_logprobs", params.logprobs.filter(|count| *count > 0).map(Value::from)),
        ]))
    }

    fn tools(&self, tools: &[ToolSpec]) -> Value {
        tools.iter().map(tool).collect()
    }

    fn write(
        &self,
        message: &Message,
        _: &MessagePlan,
        open: &mut ResponsesWriteState,
        out: &mut Vec<u8>,
        _: &mut MessageChanges,
    ) -> Result<(), ModelError> {
        input::write(self.preset.system_role, message, open, out)
    }

    fn close(&self, _: &ResponsesWriteState, _: &mut Vec<u8>) {}

    fn decoder(&self, request: &ChatRequest) -> ResponsesDecoder {
        ResponsesDecoder::new(request)
    }
}

/// Whether a model supports reasoning. OpenAI's other models reject requests for it.
fn supports_reasoning(model: &str) -> bool {
    let families = ["gpt-3.5", "gpt-4", "chatgpt", "-chat"];
    !families.iter().any(|family| model.contains(family))
}

fn tool(spec: &ToolSpec) -> Value {
    let strict = strict::parameters(&strict::OPENAI, spec);
    let mut tool = json!({
        "type": "function",
        "name": spec.name,
        "description": spec.description,
        "parameters": strict.as_ref().unwrap_or(&spec.parameters),
        // Here a schema is strict by default.
        "strict": strict.is_some(),
    });
    wire::add_extras(&mut tool, ResponsesApi::NAME, spec);
    tool
}

fn tool_choice(choice: &ToolChoice) -> Result<Option<Value>, ModelError> {
    Ok(match choice {
        ToolChoice::Auto => None,
        ToolChoice::None => Some("none".into()),
        ToolChoice::Required => Some("required".into()),
        ToolChoice::Named(name) => Some(json!({"type": "function", "name": name})),
        other => return Err(wire::unsupported_choice(other)),
    })
}

fn text_format(format: &ResponseFormat) -> Result<Value, ModelError> {
    match format {
        ResponseFormat::JsonObject => Ok(json!({"format": {"type": "json_object"}})),
        ResponseFormat::JsonSchema { name, schema, strict } => {
            let form = if *strict { strict::exact_reply_schema(schema) } else { None };
            let (schema, strict) = (form.as_ref().unwrap_or(schema), form.is_some());
            Ok(json!({"format": {"type": "json_schema", "name": name, "schema": schema, "strict": strict}}))
        }
        _ => Err(wire::unsupported("unsupported response format: expected a JSON object or a JSON Schema")),
    }
}
