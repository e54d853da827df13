//! Requests to a model. A request is cheap to clone: it shares the conversation and the tools, so a wrapper
//! can keep it for a retry.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Extras, Transcript};

/// A conversation to continue, with tools and parameters.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_state_core::chat::{ChatRequest, Message, ToolChoice, ToolSpec, Transcript};
///
/// let search = ToolSpec::new("search", "Finds stalls.", json!({
///     "type": "object",
///     "properties": { "q": { "type": "string" } },
/// }));
/// let request = ChatRequest::new(Transcript::new().with(Message::user("where?")))
///     .with_tools([search])
///     .with_tool_choice(ToolChoice::Required);
/// assert_eq!(request.tools.len(), 1);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ChatRequest {
    /// The conversation. It must pass [`check`](Transcript::check).
    pub messages: Transcript,
    /// The tools that the model may call.
    #[serde(default)]
    pub tools: Arc<[ToolSpec]>,
    /// Whether the model must call a tool.
    #[serde(default)]
    pub tool_choice: ToolChoice,
    /// The required format of the reply's text; `None` for any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_format: Option<ResponseFormat>,
    /// The sampling parameters.
    #[serde(default)]
    pub params: ModelParams,
    /// A model of the same provider that replaces its default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

impl ChatRequest {
    /// A request to continue this conversation.
    pub fn new(messages: Transcript) -> Self {
        ChatRequest { messages, ..ChatRequest::default() }
    }

    /// The id of the model that is asked: by default this one; with the request's [model](ChatRequest::model), that one of the
    /// same provider.
    ///
    /// # Examples
    /// ```
    /// use stepfold_state_core::chat::{ChatRequest, Transcript};
    ///
    /// let mut request = ChatRequest::new(Transcript::new());
    /// assert_eq!(request.model_id("openai/gpt-5"), "openai/gpt-5");
    /// request.model = Some("gpt-5-mini".to_owned());
    /// assert_eq!(request.model_id("openai/gpt-5"), "openai/gpt-5-mini");
    /// ```
    pub fn model_id(&self, by_default: &str) -> String {
        match (&self.model, by_default.split_once('/')) {
            (None, _) => by_default.to_owned(),
            (Some(other), Some((provider, _))) => format!("{provider}/{other}"),
            (Some(other), None) => other.clone(),
        }
    }

    /// Sets the tools.
    #[must_use]
    pub fn with_tools(mut self, tools: impl Into<Arc<[ToolSpec]>>) -> Self {
        self.tools = tools.into();
        self
    }

    /// Sets the tool choice.
    #[must_use]
    pub fn with_tool_choice(mut self, choice: ToolChoice) -> Self {
        self.tool_choice = choice;
        self
    }

    /// Sets the format of the reply's text.
    #[must_use]
    pub fn with_response_format(mut self, format: ResponseFormat) -> Self {
        self.response_format = Some(format);
        self
    }

    /// Sets the parameters.
    #[must_use]
    pub fn with_params(mut self, params: ModelParams) -> Self {
        self.params = params;
        self
    }

    /// Sets another model of the same provider.
    #[must_use]
    pub fn with_model(mut self, model: impl Into<String>) -> Self {
        self.model = Some(model.into());
        self
    }
}

/// A tool's specification for the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolSpec {
    /// The tool's name.
    pub name: String,
    /// The purpose of the tool and when to use it, for the model.
    #[serde(default)]
    pub description: String,
    /// The JSON Schema of the arguments, an object.
    pub parameters: Value,
    /// Whether the provider should enforce the schema. The parameters are the plain schema: a provider sends the form
    /// that its strict mode accepts, or the plain one if there is none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub strict: bool,
    /// Additional fields of an API for the tool, each under the name of its [dialect](ServerTool::dialect): that API
    /// gets them, others do not.
    #[serde(default, skip_serializing_if = "Extras::is_empty")]
    pub extras: Extras,
}

impl ToolSpec {
    /// A tool whose arguments have the JSON Schema `parameters`.
    pub fn new(
        name: impl Into<String>,
        description: impl Into<String>,
        parameters: impl Into<Value>,
    ) -> Self {
        ToolSpec {
            name: name.into(),
            description: description.into(),
            parameters: parameters.into(),
            strict: false,
            extras: Extras::new(),
        }
    }

    /// Adds the fields that this dialect has for the tool.
    ///
    /// # Examples
    /// ```
    /// use serde_json::json;
    /// use stepfold_state_core::chat::ToolSpec;
    ///
    /// let search = ToolSpec::new("search", "Finds stalls.", json!({"type": "object"}))
    ///     .with_extra("anthropic", json!({"cache_control": {"type": "ephemeral"}}));
    /// ```
    #[must_use]
    pub fn with_extra(mut self, dialect: impl Into<String>, fields: impl Into<Value>) -> Self {
        self.extras.insert(dialect, fields);
        self
    }

    /// Sets whether the provider should enforce the schema.
    #[must_use]
    pub fn with_strict(mut self, strict: bool) -> Self {
        self.strict = strict;
        self
    }
}

/// A tool that a model omits from its requests, and the reason; the other tools are offered.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OmittedTool {
    /// The tool's name.
    pub name: String,
    /// The reason.
    pub reason: String,
}

impl OmittedTool {
    /// A tool that is omitted for this reason.
    pub fn new(name: impl Into<String>, reason: impl Into<String>) -> Self {
        OmittedTool { name: name.into(), reason: reason.into() }
    }
}

/// Whether the model must call a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// The model must not call a tool.
    None,
    /// At least one tool call, of any tool.
    Required,
    /// A call of this tool.
    Named(String),
}

/// The required format of a reply's text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ResponseFormat {
    /// Any JSON object.
    JsonObject,
    /// JSON with this schema.
    JsonSchema {
        /// The schema's name.
        name: String,
        /// The JSON Schema.
        schema: Value,
        /// Whether the provider should enforce the schema, if it can.
        #[serde(default)]
        strict: bool,
    },
}

/// Sampling parameters. The provider's defaults apply to unset ones.
///
/// # Examples
/// ```
/// use stepfold_state_core::chat::ModelParams;
///
/// let params = ModelParams::default().with_temperature(0.2).with_max_output_tokens(500).with_stop(["END"]);
/// assert_eq!((params.temperature, params.seed), (Some(0.2), None));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ModelParams {
    /// The sampling temperature.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// The probability mass to sample from (nucleus sampling).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// The maximum number of output tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_output_tokens: Option<u64>,
    /// A seed, for providers with reproducible sampling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<i64>,
    /// Stop sequences; the reply ends before them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
    /// Requests the log probability of each token, and those of this many alternatives: see
    /// [`Message::logprobs`](super::Message::logprobs).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<u32>,
    /// Provider-specific parameters, passed through unchanged.
    #[serde(skip_serializing_if = "Extras::is_empty")]
    pub extras: Extras,
    /// Tools that the provider runs itself, such as web search. A run's list replaces that of its agent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub server_tools: Vec<ServerTool>,
}

/// A tool that a provider runs itself: it is offered with the other tools, and its results are in the reply
/// as unknown parts, which are sent back with the conversation. A model of another provider rejects the
/// request.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_state_core::chat::{ModelParams, ServerTool};
///
/// let search = ServerTool::new("anthropic", json!({"type": "web_search_20250305", "name": "web_search"}));
/// let params = ModelParams::default().with_server_tools([search]);
/// assert_eq!(params.server_tools.len(), 1);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ServerTool {
    /// The API it belongs to: `openai` (Responses), `openai-chat`, `anthropic`, `gemini`.
    pub dialect: String,
    /// The tool, in the form of that API.
    pub tool: Value,
}

impl ServerTool {
    /// A tool of an API, in the form of that API.
    pub fn new(dialect: impl Into<String>, tool: impl Into<Value>) -> Self {
        ServerTool { dialect: dialect.into(), tool: tool.into() }
    }
}

impl ModelParams {
    /// Sets the sampling temperature.
    #[must_use]
    pub const fn with_temperature(mut self, temperature: f64) -> Self {
        self.temperature = Some(temperature);
        self
    }

    /// Sets the probability mass to sample from.
    #[must_use]
    pub const fn with_top_p(mut self, top_p: f64) -> Self {
        self.top_p = Some(top_p);
        self
    }

    /// Limits the output tokens of a reply.
    #[must_use]
    pub const fn with_max_output_tokens(mut self, tokens: u64) -> Self {
        self.max_output_tokens = Some(tokens);
        self
    }

    /// Sets the seed.
    #[must_use]
    pub const fn with_seed(mut self, seed: i64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Sets the stop sequences.
    #[must_use]
    pub fn with_stop<S: Into<String>>(mut self, stop: impl IntoIterator<Item = S>) -> Self {
        self.stop = stop.into_iter().map(Into::into).collect();
        self
    }

    /// Requests the log probability of each token, and those of this many alternatives.
    #[must_use]
    pub const fn with_logprobs(mut self, others: u32) -> Self {
        self.logprobs = Some(others);
        self
    }

    /// Sets a provider-specific parameter, which is passed through unchanged.
    #[must_use]
    pub fn with_extra(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.extras.insert(name, value);
        self
    }

    /// Sets the tools that the provider runs itself.
    #[must_use]
    pub fn with_server_tools(mut self, tools: impl IntoIterator<Item = ServerTool>) -> Self {
        self.server_tools = tools.into_iter().collect();
        self
    }

    /// Fills unset parameters from `defaults`.
    ///
    /// # Examples
    /// ```
    /// use stepfold_state_core::chat::ModelParams;
    ///
    /// let agent = ModelParams::default().with_temperature(0.2).with_seed(7);
    /// let run = ModelParams::default().with_temperature(1.0);
    /// let params = run.or(&agent);
    /// assert_eq!((params.temperature, params.seed), (Some(1.0), Some(7)));
    /// ```
    #[must_use]
    pub fn or(self, defaults: &Self) -> Self {
        // NOTE: By name: a run overrides single parameters of its agent.
        let mut extras = defaults.extras.clone();
        extras.extend(self.extras.iter().map(|(name, value)| (name, value.clone())));
        ModelParams {
            temperature: self.temperature.or(defaults.temperature),
            top_p: self.top_p.or(defaults.top_p),
            max_output_tokens: self.max_output_tokens.or(defaults.max_output_tokens),
            seed: self.seed.or(defaults.seed),
            stop: if self.stop.is_empty() { defaults.stop.clone() } else { self.stop },
            logprobs: self.logprobs.or(defaults.logprobs),
            extras,
            server_tools: if self.server_tools.is_empty() {
                defaults.server_tools.clone()
            } else {
                self.server_tools
            },
        }
    }
}
