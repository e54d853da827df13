//! The Messages API: where requests go, and everything in them but messages.

use serde_json::{Map, Value, json};
use stepfold_state_core::chat::{ChatRequest, Message, ModelError, ResponseFormat, ToolChoice, ToolSpec};

use super::decode::AnthropicDecoder;
use super::message::{self, AnthropicWriteState};
use crate::conform::MessageChanges;
use crate::dialect::{Dialect, MessagePlan, ModelAddress, ProviderInfo, recipient};
use crate::model::{HttpModel, HttpModelBuilder};
use crate::rules::RequestRules;
use crate::secret::Secret;
use crate::{strict, wire};

/// Anthropic's Messages API, the dialect of an [`Anthropic`].
#[derive(Clone, Copy, Debug)]
pub struct MessagesApi {
    max_output_tokens: u64,
    marks_cache: bool,
    keeps_system: bool,
}

/// A model of Anthropic.
///
/// A model's reasoning is sent back with its signature. Unsigned reasoning, of another provider's model, is
/// omitted. Provider-specific settings (`thinking`, for example) are [extras of the
/// parameters](stepfold_state_core::chat::ModelParams::extras).
///
/// # Examples
/// ```
/// use stepfold_providers::anthropic::Anthropic;
/// use stepfold_state_core::chat::ChatModel;
///
/// let model = Anthropic::new("claude-sonnet-4-5", "sk-ant-...").cache_prompts(true).build()?;
/// assert_eq!(model.id(), "anthropic/claude-sonnet-4-5");
/// # Ok::<(), stepfold_state_core::chat::ModelError>(())
/// ```
pub type Anthropic = HttpModel<MessagesApi>;

/// Builds an [`Anthropic`] model.
pub type AnthropicBuilder = HttpModelBuilder<MessagesApi>;

impl HttpModel<MessagesApi> {
    /// Begins a model with its name and a key.
    #[expect(clippy::new_ret_no_self, reason = "there is more to say before it is built")]
    pub fn new(model: impl Into<String>, key: impl Into<Secret>) -> AnthropicBuilder {
        let dialect = MessagesApi { max_output_tokens: 8_192, marks_cache: false, keeps_system: false };
        HttpModelBuilder::new(dialect, model).key(key)
    }
}

impl HttpModelBuilder<MessagesApi> {
    /// Sets the maximum number of tokens of a reply, which this API requires, for requests without one: 8,192
    /// by default.
    pub fn max_output_tokens(mut self, tokens: u64) -> Self {
        self.dialect.max_output_tokens = tokens;
        self
    }

    /// Whether instructions, tools and the conversation so far are marked for the provider's cache: not by
    /// default. Marks of your own, extras of parts named `cache_control`, are sent either way.
    pub fn cache_prompts(mut self, caches: bool) -> Self {
        self.dialect.marks_cache = caches;
        self
    }

    /// Whether a system message right after one of the user is sent as such: not by default, since only newer models take
    /// it there ("mid-conversation system messages", from Claude Opus 4.8 on). Otherwise, and elsewhere, it becomes text
    /// of the user in `<system>` tags.
    pub fn system_messages(mut self, keeps_system: bool) -> Self {
        self.dialect.keeps_system = keeps_system;
        self
    }
}

impl Dialect for MessagesApi {
    type Decoder = AnthropicDecoder;
    type WriteState = AnthropicWriteState;

    const NAME: &'static str = "anthropic";
    const MESSAGES: &'static str = "messages";
    const RESERVED: &'static [&'static str] = &["messages", "model", "stream", "system", "tools"];
    const REASONING: Option<&'static str> = Some("thinking");
    const UNKNOWN: Option<&'static str> = Some(message::BLOCK);

    fn server(&self) -> ProviderInfo {
        ProviderInfo {
            name: "anthropic",
            base_url: Some("https://api.anthropic.com"),
            needs_key: true,
            key_variables: KEYS,
        }
    }

    fn rules(&self) -> &RequestRules {
        &RequestRules::ANTHROPIC
    }

    fn plan(&self, to: ModelAddress<'_>, request: &ChatRequest) -> MessagePlan {
        // NOTE: Adaptive thinking accepts turns that began without it.
        let thinking = request.params.extras.get("thinking").filter(|thinking| thinking["type"] == "enabled");
        let to = recipient(self, to.server);
        let bare_from = thinking.and_then(|_| message::unsigned_turn(&to, &request.messages));
        MessagePlan { bare_from, ..MessagePlan::default() }
    }

    fn headers(&self, key: Option<&Secret>) -> Vec<(&'static str, String)> {
        let key = key.map(|key| ("x-api-key", key.expose().to_owned()));
        [("anthropic-version", "2023-06-01".to_owned())].into_iter().chain(key).collect()
    }

    fn url(&self, base: &str, _: &str) -> String {
        // NOTE: People write the base URL with and without the version.
        format!("{}/v1/messages", base.trim_end_matches("/v1"))
    }

    fn head(&self, to: ModelAddress<'_>, request: &ChatRequest) -> Result<Map<String, Value>, ModelError> {
        let params = &request.params;
        let missing = [("seed", params.seed.is_some()), ("logprobs", params.logprobs.is_some())];
        if let Some((name, _)) = missing.iter().find(|(_, is_asked)| *is_asked) {
            let reason = "the Messages API does not have it; omit it";
            return Err(wire::unsupported(format!("unsupported parameter `{name}`: {reason}")));
        }
        let format = request.response_format.as_ref().map(output_config).transpose()?;
        let leading = request.messages.iter().map(|message| &**message);
        let system = message::system(leading, self.marks_cache);
        Ok(wire::fields([
            ("model", Some(to.model.into())),
            ("stream", Some(true.into())),
            ("max_tokens", Some(params.max_output_tokens.unwrap_or(self.max_output_tokens).into())),
            ("temperature", params.temperature.map(Value::from)),
            ("top_p", params.top_p.map(Value::from)),
            ("stop_sequences", (!params.stop.is_empty()).then(|| json!(params.stop))),
            ("output_config", format),
            ("tool_choice", tool_choice(wire::tool_choice(request))?),
            ("container", message::container(to.server, &request.messages)),
            ("system", (!system.is_empty()).then(|| system.into())),
        ]))
    }

    fn tools(&self, tools: &[ToolSpec]) -> Value {
        tools.iter().map(tool).collect()
    }

    fn write(
        &self,
        message: &Message,
        _: &MessagePlan,
        open: &mut AnthropicWriteState,
        out: &mut Vec<u8>,
        changes: &mut MessageChanges,
    ) -> Result<(), ModelError> {
        message::write(message, self.keeps_system, open, out, changes)
    }

    fn close(&self, open: &AnthropicWriteState, out: &mut Vec<u8>) {
        message::close(open, self.marks_cache, out);
    }

    fn decoder(&self, request: &ChatRequest) -> AnthropicDecoder {
        AnthropicDecoder::new(request)
    }
}

/// The environment variables that usually hold the key.
pub(crate) const KEYS: &[&str] = &["ANTHROPIC_API_KEY"];

fn tool(spec: &ToolSpec) -> Value {
    let strict = strict::parameters(&strict::ANTHROPIC, spec);
    let mut tool = json!({
        "name": spec.name,
        "description": spec.description,
        "input_schema": strict.as_ref().unwrap_or(&spec.parameters),
    });
    if strict.is_some() {
        tool["strict"] = true.into();
    }
    wire::add_extras(&mut tool, MessagesApi::NAME, spec);
    tool
}

fn tool_choice(choice: &ToolChoice) -> Result<Option<Value>, ModelError> {
    Ok(match choice {
        ToolChoice::Auto => None,
        ToolChoice::None => Some(json!({"type": "none"})),
        ToolChoice::Required => Some(json!({"type": "any"})),
        ToolChoice::Named(name) => Some(json!({"type": "tool", "name": name})),
        other => return Err(wire::unsupported_choice(other)),
    })
}

fn output_config(format: &ResponseFormat) -> Result<Value, ModelError> {
    match format {
        ResponseFormat::JsonSchema { schema, .. } => {
            // NOTE: Anthropic rejects a request whose schema it cannot enforce, so refused bounds move into
            // descriptions. See docs/decisions/providers.md.
            let schema = strict::reply_schema(schema);
            Ok(json!({"format": {"type": "json_schema", "schema": schema}}))
        }
        _ => Err(wire::unsupported(
            "unsupported response format: this provider requires a JSON Schema for JSON; add one, or describe the format in the prompt",
        )),
    }
}
