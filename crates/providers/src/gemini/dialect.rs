//! generateContent: where requests go, and everything in them but the conversation.

use serde_json::{Map, Value, json};
use stepfold_state_core::chat::{ChatRequest, Message, ModelError, ResponseFormat, ToolChoice, ToolSpec};

use super::content::{self, GeminiWriteState};
use super::decode::GeminiDecoder;
use crate::conform::MessageChanges;
use crate::dialect::{Dialect, MessagePlan, ModelAddress, ProviderInfo};
use crate::model::{HttpModel, HttpModelBuilder};
use crate::rules::RequestRules;
use crate::secret::Secret;
use crate::wire;

/// Gemini's generateContent, the dialect of a [`Gemini`].
#[derive(Clone, Copy, Debug)]
pub struct GenerateContent(());

/// A model of Google's Gemini API.
///
/// A model's reasoning is sent back with its signature. Provider-specific settings are [extras of the
/// parameters](stepfold_state_core::chat::ModelParams::extras); an extra named `generationConfig` is merged
/// into the request's own.
///
/// # Examples
/// ```
/// use stepfold_providers::gemini::Gemini;
/// use stepfold_state_core::chat::ChatModel;
///
/// let model = Gemini::new("gemini-3-flash", "AIza...").build()?;
/// assert_eq!(model.id(), "gemini/gemini-3-flash");
/// # Ok::<(), stepfold_state_core::chat::ModelError>(())
/// ```
pub type Gemini = HttpModel<GenerateContent>;

/// Builds a [`Gemini`] model.
pub type GeminiBuilder = HttpModelBuilder<GenerateContent>;

impl HttpModel<GenerateContent> {
    /// Begins a model with its name and a key.
    #[expect(clippy::new_ret_no_self, reason = "there is more to say before it is built")]
    pub fn new(model: impl Into<String>, key: impl Into<Secret>) -> GeminiBuilder {
        HttpModelBuilder::new(GenerateContent(()), model).key(key)
    }
}

impl Dialect for GenerateContent {
    type Decoder = GeminiDecoder;
    type WriteState = GeminiWriteState;

    const NAME: &'static str = "gemini";
    const MESSAGES: &'static str = "contents";
    const RESERVED: &'static [&'static str] = &["contents", "systemInstruction", "tools"];
    const SIGNATURE: Option<&'static str> = Some(content::SIGNATURE);
    const UNKNOWN: Option<&'static str> = Some(content::PART);

    fn server(&self) -> ProviderInfo {
        ProviderInfo {
            name: "gemini",
            base_url: Some("https://generativelanguage.googleapis.com/v1beta"),
            needs_key: true,
            key_variables: KEYS,
        }
    }

    fn rules(&self) -> &RequestRules {
        &RequestRules::GEMINI
    }

    fn plan(&self, to: ModelAddress<'_>, _: &ChatRequest) -> MessagePlan {
        MessagePlan { signs_calls: signs_calls(to.model), ..MessagePlan::default() }
    }

    fn headers(&self, key: Option<&Secret>) -> Vec<(&'static str, String)> {
        key.map(|key| ("x-goog-api-key", key.expose().to_owned())).into_iter().collect()
    }

    fn url(&self, base: &str, model: &str) -> String {
        let model = model.strip_prefix("models/").unwrap_or(model);
        format!("{base}/models/{model}:streamGenerateContent?alt=sse")
    }

    fn head(&self, _: ModelAddress<'_>, request: &ChatRequest) -> Result<Map<String, Value>, ModelError> {
        let params = &request.params;
        let (media_type, schema) = match &request.response_format {
            None => (None, None),
            Some(ResponseFormat::JsonObject) => (Some("application/json".into()), None),
            Some(ResponseFormat::JsonSchema { schema, .. }) => {
                (Some("application/json".into()), Some(schema.clone()))
            }
            Some(_) => {
                return Err(wire::unsupported(
                    "unsupported response format: expected a JSON object or a JSON Schema",
                ));
            }
        };
        let config = wire::fields([
            ("temperature", params.temperature.map(Value::from)),
            ("topP", params.top_p.map(Value::from)),
            ("maxOutputTokens", params.max_output_tokens.map(Value::from)),
            ("seed", params.seed.map(Value::from)),
            ("stopSequences", (!params.stop.is_empty()).then(|| json!(params.stop))),
            ("responseLogprobs", params.logprobs.map(|_| true.into())),
            ("logprobs", params.logprobs.filter(|count| *count > 0).map(Value::from)),
            ("responseMimeType", media_type),
            ("responseJsonSchema", schema),
        ]);
        let system = content::system(request.messages.iter().map(|message| &**message));
        Ok(wire::fields([
            ("systemInstruction", (!system.is_empty()).then(|| json!({"parts": system}))),
            ("generationConfig", (!config.is_empty()).then(|| config.into())),
            ("toolConfig", tool_choice(wire::tool_choice(request))?),
        ]))
    }

    fn extra(&self, head: &mut Map<String, Value>, name: &str, value: &Value) {
        match (head.get_mut(name), value) {
            (Some(Value::Object(ours)), Value::Object(more)) => ours.extend(more.clone()),
            _ => {
                head.insert(name.to_owned(), value.clone());
            }
        }
    }

    fn tools(&self, tools: &[ToolSpec]) -> Value {
        let declarations = tools.iter().map(|spec| {
            let (name, description) = (&spec.name, &spec.description);
            let mut declaration =
                json!({"name": name, "description": description, "parametersJsonSchema": spec.parameters});
            wire::add_extras(&mut declaration, Self::NAME, spec);
            declaration
        });
        json!([{"functionDeclarations": declarations.collect::<Vec<_>>()}])
    }

    fn write(
        &self,
        message: &Message,
        plan: &MessagePlan,
        open: &mut GeminiWriteState,
        out: &mut Vec<u8>,
        changes: &mut MessageChanges,
    ) -> Result<(), ModelError> {
        content::write(message, plan.signs_calls, open, out, changes)
    }

    fn close(&self, open: &GeminiWriteState, out: &mut Vec<u8>) {
        content::close(open, out);
    }

    fn decoder(&self, request: &ChatRequest) -> GeminiDecoder {
        GeminiDecoder::new(request)
    }
}

/// Whether a model requires signatures at calls: Gemini does from version 3 on, and names without a version are of the
/// newest one.
fn signs_calls(model: &str) -> bool {
    let name = model.rsplit('/').next().unwrap_or(model);
    let version = name.strip_prefix("gemini-").map(|rest| rest.split(['.', '-']).next().unwrap_or(""));
    version.is_some_and(|version| version.parse::<u32>().map_or(true, |version| version >= 3))
}

/// The environment variables that usually hold the key.
pub(crate) const KEYS: &[&str] = &["GEMINI_API_KEY", "GOOGLE_API_KEY"];

fn tool_choice(choice: &ToolChoice) -> Result<Option<Value>, ModelError> {
    let config = match choice {
        ToolChoice::Auto => return Ok(None),
        ToolChoice::None => json!({"mode": "NONE"}),
        ToolChoice::Required => json!({"mode": "ANY"}),
        ToolChoice::Named(name) => json!({"mode": "ANY", "allowedFunctionNames": [name]}),
        other => return Err(wire::unsupported_choice(other)),
    };
    Ok(Some(json!({"functionCallingConfig": config})))
}
