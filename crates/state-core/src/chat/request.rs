//! What a model is asked. A request is cheap to clone: the conversation and the tools are shared, so that
//! a layer can keep a request to send it again.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Extras, Transcript};

/// A conversation to go on with, and how.
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
    /// The conversation. It passes [`check`](Transcript::check).
    pub messages: Transcript,
    /// The tools that the model may call.
    #[serde(default)]
    pub tools: Arc<[ToolSpec]>,
    /// Whether the model has to call one.
    #[serde(default)]
    pub tool_choice: ToolChoice,
    /// What the text of the reply has to be; anything, if none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_format: Option<ResponseFormat>,
    /// How the model is to sample.
    #[serde(default)]
    pub params: ModelParams,
    /// Another model of the same provider than the one that is asked by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

impl ChatRequest {
    /// A request to go on with this conversation.
    pub fn new(messages: Transcript) -> Self {
        ChatRequest { messages, ..ChatRequest::default() }
    }

    /// The same request with these tools.
    #[must_use]
    pub fn with_tools(mut self, tools: impl Into<Arc<[ToolSpec]>>) -> Self {
        self.tools = tools.into();
        self
    }

    /// The same request with this choice of tools.
    #[must_use]
    pub fn with_tool_choice(mut self, choice: ToolChoice) -> Self {
        self.tool_choice = choice;
        self
    }

    /// The same request for text in this format.
    #[must_use]
    pub fn with_response_format(mut self, format: ResponseFormat) -> Self {
        self.response_format = Some(format);
        self
    }

    /// The same request with these parameters.
    #[must_use]
    pub fn with_params(mut self, params: ModelParams) -> Self {
        self.params = params;
        self
    }

    /// The same request to another model of the same provider.
    #[must_use]
    pub fn with_model(mut self, model: impl Into<String>) -> Self {
        self.model = Some(model.into());
        self
    }
}

/// A tool, as a model sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolSpec {
    /// What it is called by.
    pub name: String,
    /// What it does and when to use it, for the model.
    #[serde(default)]
    pub description: String,
    /// The JSON Schema of its arguments, an object.
    pub parameters: Value,
    /// Whether the provider is asked to hold the model to the schema. The parameters are the plain schema; a provider
    /// sends the form that its strict mode takes, or the plain one if the schema has no such form.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub strict: bool,
    /// Fields that an API has for a tool beside these, each under the name of its
    /// [dialect](ServerTool::dialect): they are added to the tool as that API writes it, and left out for others.
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

    /// The same tool with the fields that this dialect has for it beside the others.
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

    /// The same tool, whose schema the provider is to enforce.
    #[must_use]
    pub fn with_strict(mut self, strict: bool) -> Self {
        self.strict = strict;
        self
    }
}

/// Whether the model has to call a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolChoice {
    /// As it sees fit.
    #[default]
    Auto,
    /// It must not.
    None,
    /// It must call at least one, whichever.
    Required,
    /// It must call this one.
    Named(String),
}

/// What the text of a reply has to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ResponseFormat {
    /// Any JSON object.
    JsonObject,
    /// JSON of this schema.
    JsonSchema {
        /// What the schema is called.
        name: String,
        /// The JSON Schema.
        schema: Value,
        /// Whether the provider is to hold the model to it, if it can.
        #[serde(default)]
        strict: bool,
    },
}

/// How a model is to sample. What is not said is left to the provider.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelParams {
    /// The higher, the more adventurous.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// The share of probability to sample from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// The number of tokens after which a reply is cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_output_tokens: Option<u64>,
    /// A seed, for providers that can repeat themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<i64>,
    /// Texts before which a reply ends.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
    /// Asks for the log probability of each token, and for those of so many other likely tokens at its place: see
    /// [`Message::logprobs`](super::Message::logprobs).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<u32>,
    /// What only this provider knows; it goes into the request as it is.
    #[serde(skip_serializing_if = "Extras::is_empty")]
    pub extras: Extras,
    /// Tools that the provider runs itself, such as a web search. A run's list replaces that of its agent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub server_tools: Vec<ServerTool>,
}

/// A tool that a provider runs itself: it is offered beside the others, and what it did is in the reply, as unknown parts
/// that go back with it. A model of another provider refuses the request.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_state_core::chat::{ModelParams, ServerTool};
///
/// let search = ServerTool::new("anthropic", json!({"type": "web_search_20250305", "name": "web_search"}));
/// let params = ModelParams { server_tools: vec![search], ..ModelParams::default() };
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerTool {
    /// Whose it is: `openai` (Responses), `openai-chat`, `anthropic`, `gemini`.
    pub dialect: String,
    /// The tool, as that API writes it.
    pub tool: Value,
}

impl ServerTool {
    /// A tool of an API, as it writes it.
    pub fn new(dialect: impl Into<String>, tool: impl Into<Value>) -> Self {
        ServerTool { dialect: dialect.into(), tool: tool.into() }
    }
}

impl ModelParams {
    /// These parameters, and `defaults` where they say nothing.
    ///
    /// # Examples
    /// ```
    /// use stepfold_state_core::chat::ModelParams;
    ///
    /// let agent = ModelParams { temperature: Some(0.2), seed: Some(7), ..ModelParams::default() };
    /// let run = ModelParams { temperature: Some(1.0), ..ModelParams::default() };
    /// let params = run.or(&agent);
    /// assert_eq!((params.temperature, params.seed), (Some(1.0), Some(7)));
    /// ```
    #[must_use]
    pub fn or(self, defaults: &Self) -> Self {
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
