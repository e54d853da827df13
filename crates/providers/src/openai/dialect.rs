//! Chat completions: URLs and requests, except messages. The shapes are async-openai's types; a preset's
//! deviating names are separate fields.

use async_openai::types::chat::{
    ChatCompletionNamedToolChoice, ChatCompletionStreamOptions, ChatCompletionTool,
    ChatCompletionToolChoiceOption, ChatCompletionTools, FunctionName, FunctionObject,
    ResponseFormat as WiredFormat, ResponseFormatJsonSchema, ToolChoiceOptions,
};
use serde_json::{Map, Value, json};
use stepfold_state_core::chat::{
    ChatRequest, Message, ModelError, ModelErrorKind, ResponseFormat, ToolChoice, ToolSpec,
};

use super::decode::ChatDecoder;
use super::message::{self, ChatWriteState};
use super::{Preset, ReasoningBack};
use crate::conform::MessageChanges;
use crate::dialect::{Dialect, MessagePlan, ModelAddress, ProviderInfo};
use crate::model::{HttpModel, HttpModelBuilder};
use crate::rules::RequestRules;
use crate::secret::Secret;
use crate::{strict, wire};

/// OpenAI's chat completions, the dialect of an [`OpenAi`].
#[derive(Clone, Debug)]
pub struct ChatCompletions {
    preset: Preset,
    /// The version of Azure's interface, if the model is found as a deployment.
    api_version: Option<String>,
}

/// A model of a server with chat completions.
///
/// # Examples
/// ```
/// use stepfold_providers::openai::{OpenAi, Preset};
/// use stepfold_state_core::chat::ChatModel;
///
/// let remote = OpenAi::new("gpt-4.1", "sk-...")?;
/// let local = OpenAi::preset(&Preset::OLLAMA, "qwen3").build()?;
/// let other = OpenAi::at("http://10.0.0.7:9000/v1/", "our-model").key("k-123").build()?;
/// assert_eq!(remote.id(), "openai/gpt-4.1");
/// assert_eq!(local.id(), "ollama/qwen3");
/// # let _ = other;
/// # Ok::<(), stepfold_state_core::chat::ModelError>(())
/// ```
pub type OpenAi = HttpModel<ChatCompletions>;

/// Builds an [`OpenAi`] model.
pub type OpenAiBuilder = HttpModelBuilder<ChatCompletions>;

impl HttpModel<ChatCompletions> {
    /// A model of OpenAI.
    ///
    /// # Errors
    /// As [`HttpModelBuilder::build`].
    pub fn new(model: impl Into<String>, key: impl Into<Secret>) -> Result<Self, ModelError> {
        OpenAi::preset(&Preset::OPENAI, model).key(key).build()
    }

    /// Starts building a model of a known server.
    pub fn preset(preset: &Preset, model: impl Into<String>) -> OpenAiBuilder {
        HttpModelBuilder::new(ChatCompletions { preset: *preset, api_version: None }, model)
    }

    /// Starts building a model of a server at this base URL, which usually ends with `/v1`.
    pub fn at(base_url: impl Into<String>, model: impl Into<String>) -> OpenAiBuilder {
        OpenAi::preset(&Preset::COMPATIBLE, model).base_url(base_url)
    }
}

impl HttpModelBuilder<ChatCompletions> {
    /// Sends reasoning back to the model; by default only to servers whose preset defines how. For a server
    /// at a URL, most support the field `reasoning_content`.
    pub fn reasoning_back(mut self, back: ReasoningBack) -> Self {
        self.dialect.preset.reasoning_back = Some(back);
        self
    }

    /// Sends system messages as those of the developer, which is what OpenAI's reasoning models call that role.
    pub fn developer_messages(mut self) -> Self {
        self.dialect.preset.system_role = "developer";
        self
    }

    /// Asks a deployment of Azure by this version of its interface: the base URL is that of the resource, and the model
    /// is the name of the deployment, as in `/openai/deployments/NAME/chat/completions?api-version=VERSION`.
    ///
    /// # Examples
    /// ```
    /// use stepfold_providers::openai::{OpenAi, Preset};
    ///
    /// let model = OpenAi::preset(&Preset::AZURE, "our-gpt")
    ///     .base_url("https://ours.openai.azure.com")
    ///     .api_version("2024-10-21")
    ///     .key("k-123")
    ///     .build()?;
    /// # let _ = model;
    /// # Ok::<(), stepfold_state_core::chat::ModelError>(())
    /// ```
    pub fn api_version(mut self, version: impl Into<String>) -> Self {
        self.dialect.api_version = Some(version.into());
        self
    }
}

impl Dialect for ChatCompletions {
    type Decoder = ChatDecoder;
    type WriteState = ChatWriteState;

    const NAME: &'static str = "openai-chat";
    const MESSAGES: &'static str = "messages";
    const RESERVED: &'static [&'static str] = &["messages", "model", "stream", "tools"];

    fn server(&self) -> ProviderInfo {
        self.preset.server()
    }

    fn rules(&self) -> &RequestRules {
        &self.preset.rules
    }

    fn headers(&self, key: Option<&Secret>) -> Vec<(&'static str, String)> {
        self.preset.headers(key)
    }

    fn url(&self, base: &str, model: &str) -> String {
        match &self.api_version {
            Some(version) => {
                let resource = base.trim_end_matches("/v1").trim_end_matches("/openai");
                format!("{resource}/openai/deployments/{model}/chat/completions?api-version={version}")
            }
            None => format!("{base}/chat/completions"),
        }
    }

    fn head(&self, to: ModelAddress<'_>, request: &ChatRequest) -> Result<Map<String, Value>, ModelError> {
        let (preset, params) = (&self.preset, &request.params);
        let asks = ChatCompletionStreamOptions { include_usage: Some(true), include_obfuscation: None };
        let choice = tool_choice(preset, wire::tool_choice(request))?;
        let format = request.response_format.as_ref().map(|format| response_format(preset, format));
        Ok(wire::fields([
            ("model", Some(to.model.into())),
            ("stream", Some(true.into())),
            ("stream_options", preset.asks_for_usage.then(|| json!(asks))),
            ("tool_choice", choice),
            ("response_format", format.transpose()?),
            ("temperature", params.temperature.map(Value::from)),
            ("top_p", params.top_p.map(Value::from)),
            (preset.max_tokens_field, params.max_output_tokens.map(Value::from)),
            (preset.seed_field, params.seed.map(Value::from)),
            ("stop", (!params.stop.is_empty()).then(|| json!(params.stop))),
            ("logprobs", params.logprobs.map(|_| true.into())),
            ("top_logprobs", params.logprobs.filter(|count| *count > 0).map(Value::from)),
        ]))
    }

    fn tools(&self, tools: &[ToolSpec]) -> Value {
        let wired = tools.iter().map(|spec| {
            let mut wired = json!(tool(&self.preset, spec));
            wire::add_extras(&mut wired, Self::NAME, spec);
            wired
        });
        wired.collect()
    }

    fn write(
        &self,
        message: &Message,
        _: &MessagePlan,
        open: &mut ChatWriteState,
        out: &mut Vec<u8>,
        changes: &mut MessageChanges,
    ) -> Result<(), ModelError> {
        message::write(&self.preset, message, open, out, changes)
    }

    fn close(&self, open: &ChatWriteState, out: &mut Vec<u8>) {
        message::close(&self.preset, open, out);
    }

    fn decoder(&self, request: &ChatRequest) -> ChatDecoder {
        ChatDecoder::new(request, self.preset.ends_without_reason)
    }
}

fn tool_choice(preset: &Preset, choice: &ToolChoice) -> Result<Option<Value>, ModelError> {
    Ok(Some(match choice {
        // It is the default everywhere.
        ToolChoice::Auto => return Ok(None),
        ToolChoice::None => json!(ChatCompletionToolChoiceOption::Mode(ToolChoiceOptions::None)),
        ToolChoice::Required => preset.required.into(),
        ToolChoice::Named(name) => {
            let function = FunctionName { name: name.clone() };
            json!(ChatCompletionToolChoiceOption::Function(ChatCompletionNamedToolChoice { function }))
        }
        other => return Err(wire::unsupported_choice(other)),
    }))
}

fn response_format(preset: &Preset, format: &ResponseFormat) -> Result<Value, ModelError> {
    Ok(json!(match format {
        ResponseFormat::JsonObject => WiredFormat::JsonObject,
        ResponseFormat::JsonSchema { name, schema, strict } if preset.json_schema => {
            let form = if *strict { strict::exact_reply_schema(schema) } else { None };
            let (name, strict) = (name.clone(), Some(form.is_some()));
            let schema = form.unwrap_or_else(|| schema.clone());
            let json_schema = ResponseFormatJsonSchema { description: None, name, schema, strict };
            WiredFormat::JsonSchema { json_schema }
        }
        _ => {
            let message = "unsupported response format: this provider has no JSON Schema; request a JSON object, and describe the schema in the prompt";
            return Err(ModelError::new(ModelErrorKind::Unsupported, message));
        }
    }))
}

fn tool(preset: &Preset, spec: &ToolSpec) -> ChatCompletionTools {
    let strict = if preset.strict_tools { strict::parameters(&strict::OPENAI, spec) } else { None };
    let function = FunctionObject {
        name: spec.name.clone(),
        description: Some(spec.description.clone()),
        strict: strict.is_some().then_some(true),
        parameters: Some(strict.unwrap_or_else(|| spec.parameters.clone())),
    };
    ChatCompletionTools::Function(ChatCompletionTool { function })
}
