//! Classifies a server's errors. Servers of one dialect have a dozen error formats; this is the only place
//! that parses them. Its results are kinds, and texts without keys.

use std::time::{Duration, SystemTime};

use reqwest::StatusCode;
use reqwest::header::HeaderMap;
use serde_json::Value;
use stepfold_state_core::chat::{Chunk, FinishReason, ModelError, ModelErrorKind};

use super::retry_after::{parse_units, retry_after};
use crate::secret::Secret;

/// The most characters of a server's text that go into an error.
const MAX_MESSAGE: usize = 1_000;

/// The provider and the model of a request, for its errors.
#[derive(Clone, Debug)]
pub(crate) struct ErrorContext {
    pub(crate) provider: String,
    pub(crate) model: String,
    /// The secrets to remove from texts.
    pub(crate) secrets: Vec<Secret>,
    pub(crate) request_id: Option<String>,
}

impl ErrorContext {
    /// An error about this request.
    pub(crate) fn error(&self, kind: ModelErrorKind, message: impl AsRef<str>) -> ModelError {
        self.label(ModelError::new(kind, self.clean(message.as_ref())))
    }

    /// Adds the provider, the model and the request id to an error.
    pub(crate) fn label(&self, error: ModelError) -> ModelError {
        let error = error.with_provider(&self.provider).with_model(&self.model);
        match &self.request_id {
            Some(request_id) => error.with_request_id(self.clean(request_id)),
            None => error,
        }
    }

    /// Removes keys from the names that a server gives, and bounds them: ids and finish reasons are logged and stored
    /// everywhere.
    pub(crate) fn clean_names(&self, chunk: Chunk) -> Chunk {
        match chunk {
            Chunk::Identity { id, model } => Chunk::Identity {
                id: id.map(|id| self.clean(&id)),
                model: model.map(|model| self.clean(&model)),
            },
            Chunk::Finished(FinishReason::Other(name)) => {
                Chunk::Finished(FinishReason::Other(self.clean(&name)))
            }
            chunk => chunk,
        }
    }

    /// Cleans a text of a server: no keys, no line breaks, bounded length.
    pub(crate) fn clean(&self, text: &str) -> String {
        let text = self.secrets.iter().fold(in_one_line(text), |text, secret| secret.redact(&text));
        // NOTE: The body may be truncated in the middle of a key.
        let text = self.secrets.iter().fold(text, without_truncated_secret);
        match text.char_indices().nth(MAX_MESSAGE) {
            Some((end, _)) => format!("{}…", &text[..end]),
            None => text,
        }
    }
}

/// Returns the beginning of a text in one line.
fn in_one_line(text: &str) -> String {
    let mut line = String::new();
    for word in text.split_whitespace() {
        let room = (8 * MAX_MESSAGE).saturating_sub(line.len());
        let end = word.char_indices().nth(room).map(|(end, _)| end);
        line.push_str(if line.is_empty() { "" } else { " " });
        line.push_str(&word[..end.unwrap_or(word.len())]);
        if end.is_some() {
            break;
        }
    }
    line
}

/// Removes the first part of a secret at the end of a text, which may have been truncated there.
fn without_truncated_secret(mut text: String, secret: &Secret) -> String {
    let secret = secret.expose();
    let halves = (8..secret.len()).rev().filter_map(|length| secret.get(..length));
    if let Some(half) = { halves }.find(|half| text.ends_with(half)) {
        text.truncate(text.len() - half.len());
        text.push_str("***");
    }
    text
}

/// The id that a server gave to a request.
pub(super) fn request_id(headers: &HeaderMap) -> Option<String> {
    let names = ["x-request-id", "request-id", "apim-request-id", "x-requestid", "cf-ray"];
    let found = names.iter().find_map(|name| headers.get(*name))?;
    found.to_str().ok().filter(|id| !id.is_empty()).map(str::to_owned)
}

/// The error of a response with this status, or of an error inside a stream.
pub(crate) fn classify(
    context: &ErrorContext,
    status: Option<StatusCode>,
    headers: &HeaderMap,
    body: &str,
) -> ModelError {
    let parsed = ErrorBody::read(body);
    let wait = retry_after(headers, now).or_else(|| parsed.wait());
    let by_status = || status.map(|status| kind_of_status(status.as_u16(), &parsed));
    let kind = match parsed.kind() {
        // Some use `api_error` for everything; a wrong key is still classified as such.
        Some(ModelErrorKind::Transient) if status.is_some_and(|status| status.is_client_error()) => {
            by_status()
        }
        kind => kind.or_else(by_status),
    };
    let message = match status {
        _ if !parsed.message.is_empty() => parsed.message.as_str(),
        Some(status) if status.is_redirection() => "redirects are not followed, since they would get the key",
        _ => "the server gave no reason",
    };
    let status = status.map_or_else(String::new, |status| format!("status {}: ", status.as_u16()));
    let code = parsed.code.first().map_or_else(String::new, |code| format!(" [{code}]"));
    let error = context.error(kind.unwrap_or(ModelErrorKind::Transient), format!("{status}{message}{code}"));
    match wait {
        Some(wait) => error.with_retry_after(wait),
        None => error,
    }
}

#[expect(clippy::disallowed_methods, reason = "a date in a header is compared with the clock on the wall")]
fn now() -> SystemTime {
    SystemTime::now()
}

/// The kind of a status without further information.
fn kind_of_status(status: u16, parsed: &ErrorBody) -> ModelErrorKind {
    match status {
        // NOTE: These kinds decide about retries and fallbacks: only errors that may pass are retryable. See
        // docs/decisions/providers.md.
        402 => ModelErrorKind::QuotaExceeded,
        401 | 403 | 407 => ModelErrorKind::Authentication,
        404 | 405 | 300..=399 => ModelErrorKind::NotFound,
        413 => ModelErrorKind::TooLong { limit: parsed.limit(), used: parsed.used() },
        451 => ModelErrorKind::Refused,
        // NOTE: Servers send 429 for an empty account, too; codes and phrases tell the difference before the status
        // does.
        429 => ModelErrorKind::RateLimited,
        503 | 529 => ModelErrorKind::Overloaded,
        501 => ModelErrorKind::Unsupported,
        408 | 409 | 425 | 500..=599 => ModelErrorKind::Transient,
        400..=499 => ModelErrorKind::InvalidRequest,
        _ => ModelErrorKind::Malformed,
    }
}

/// The content of an error's body.
#[derive(Debug, Default)]
struct ErrorBody {
    message: String,
    /// Codes and types, if they are words or numbers.
    code: Vec<String>,
    /// The whole body, for numbers in other fields.
    body: Value,
}

impl ErrorBody {
    fn read(body: &str) -> Self {
        let body = body.trim_start_matches('\u{feff}');
        let Ok(value) = serde_json::from_str::<Value>(body) else {
            return ErrorBody { message: body.to_owned(), ..ErrorBody::default() };
        };
        // Some wrap it in a list, some in `error`, some not at all.
        let outer = value.get(0).unwrap_or(&value);
        let inner = outer.get("error").filter(|error| !error.is_null()).unwrap_or(outer);
        let message = ["message", "detail", "msg", "error_description", "error"]
            .iter()
            .find_map(|name| {
                inner
                    .get(*name)
                    .or_else(|| outer.get(*name))
                    .filter(|text| !text.is_object() && !text.is_null())
            })
            .unwrap_or(inner);
        let code = ["code", "type", "status"].iter().filter_map(|name| match inner.get(*name) {
            Some(Value::String(code)) if code != "error" => Some(code.clone()),
            Some(Value::Number(code)) => Some(code.to_string()),
            _ => None,
        });
        // OpenRouter puts the provider's own error here.
        let raw = inner.pointer("/metadata/raw").and_then(Value::as_str);
        let raw = raw.map_or_else(String::new, |raw| format!(": {raw}"));
        ErrorBody { message: text(message) + &raw, code: code.collect(), body: inner.clone() }
    }

    /// The kind by codes and text, independent of the status.
    fn kind(&self) -> Option<ModelErrorKind> {
        let text = self.message.to_lowercase();
        let codes: Vec<String> = self.code.iter().map(|code| code.to_lowercase()).collect();
        let has_code = |names: &[&str]| codes.iter().any(|code| names.contains(&code.as_str()));
        let says = |phrases: &[&str]| phrases.iter().any(|phrase| text.contains(phrase));
        if has_code(TOO_LONG_CODES) || says(TOO_LONG_PHRASES) {
            return Some(ModelErrorKind::TooLong { limit: self.limit(), used: self.used() });
        }
        let by_code = KINDS.iter().find(|(names, _)| has_code(names)).map(|(_, kind)| kind.clone());
        let number = codes.iter().find_map(|code| code.parse::<u16>().ok());
        let by_number =
            || number.filter(|code| (400..600).contains(code)).map(|code| kind_of_status(code, self));
        let is_no_model = text.contains("model") && says(&["does not exist", "not found"]);
        // NOTE: Servers have no code for it.
        if says(EXHAUSTED_PHRASES) || self.is_quota_exhausted() {
            return Some(ModelErrorKind::QuotaExceeded);
        }
        if says(&["api key not valid"]) {
            return Some(ModelErrorKind::Authentication);
        }
        // OpenRouter's moderation: the status is the one of a wrong key.
        if self.body.pointer("/metadata/reasons").is_some() {
            return Some(ModelErrorKind::Refused);
        }
        by_code.or_else(|| is_no_model.then_some(ModelErrorKind::NotFound)).or_else(by_number)
    }

    /// Whether a quota of Google is exhausted for long: a daily one, or one that the account does not have. Its
    /// status and code are those of a rate limit.
    fn is_quota_exhausted(&self) -> bool {
        let details = self.body.get("details").and_then(Value::as_array).into_iter().flatten();
        let violations = details.filter_map(|detail| detail.get("violations")?.as_array()).flatten();
        violations.into_iter().any(|violation| {
            // NOTE: Quotas per minute pass by waiting; daily ones and those of zero do not.
            let is_of_day = violation["quotaId"].as_str().is_some_and(|id| id.contains("PerDay"));
            is_of_day || violation["quotaValue"].as_str() == Some("0")
        })
    }

    /// The wait in Google's format.
    fn wait(&self) -> Option<Duration> {
        let details = self.body.get("details")?.as_array()?;
        parse_units(details.iter().find_map(|detail| detail.get("retryDelay")?.as_str())?)
    }

    /// The number of tokens that fit.
    fn limit(&self) -> Option<u64> {
        let text = self.message.to_lowercase();
        self.field(&["n_ctx", "limit", "max_context_length"])
            .or_else(|| number_after(&text, LIMIT_CUES))
            .or_else(|| number_before(&text, &[" maximum"]))
    }

    /// The number of tokens in the request.
    fn used(&self) -> Option<u64> {
        let text = self.message.to_lowercase();
        self.field(&["n_prompt_tokens"])
            .or_else(|| sum_over_limit(&text))
            .or_else(|| sum_of_given(&text))
            .or_else(|| number_after(&text, USED_CUES))
    }

    fn field(&self, names: &[&str]) -> Option<u64> {
        names.iter().find_map(|name| self.body.get(*name)).and_then(Value::as_u64)
    }
}

/// The words before the number of tokens that fit, in lower case, the surest first.
const LIMIT_CUES: &[&str] = &[
    "maximum context length is ",
    "maximum context length of ",
    "maximum context length: ",
    "maximum context length (",
    // The rest of the context without the reply comes first.
    "maximum input length of ",
    "maximum input length (",
    "maximum input length ",
    "maximum model length of ",
    "context length is only ",
    "context length of only ",
    "context length (",
    "context length ",
    "context size is ",
    "context size (",
    "context limit is ",
    "n_ctx: ",
    "allowed input length of ",
    "must be <= ",
    "must have less than ",
    "must not exceed ",
    "max size: ",
    "max input tokens: ",
    "maximum prompt length is ",
    "only supports up to ",
    "tokens allowed (",
    "tokens allowed ",
    "tokens limit ",
    "cannot exceed ",
    "tokens > ",
    // After a sum that has the name of a limit before it.
    "> ",
    "limit: ",
    "limit is ",
    "limit of ",
    "limit ",
    "[1, ",
];

/// The words before the number of tokens of a request, in lower case, the surest first.
const USED_CUES: &[&str] = &[
    "for a total of at least ",
    "a total of ",
    "resulted in ",
    "you passed ",
    "you requested about ",
    "you requested ",
    "prompt is too long: ",
    "prompt has ",
    "request has ",
    "contains ",
    "number of input tokens ",
    "input token count is ",
    "input token count: ",
    "requested input length ",
    "requested ",
    "(requested: ",
    "given: ",
    "token count (",
    "token count of ",
    "received ",
    "current length is ",
    "n_keep: ",
    "keep the first ",
    "prompt (length ",
    "prompt length (",
    "total length ",
    "prompt=",
    "too long: ",
    "the input (",
    "request (",
    "input length (",
    "input length ",
];

const TOO_LONG_CODES: &[&str] = &[
    "context_length_exceeded",
    "context_window_exceeded",
    "exceed_context_size_error",
    "model_context_window_exceeded",
    "prompt_too_long",
    "request_too_large",
    "token_quantity_exceeded",
];

const TOO_LONG_PHRASES: &[&str] = &[
    "maximum context length",
    "context length exceeded",
    "context length is only",
    "context length of only",
    "exceeds the context length",
    "exceeds the model's context length",
    "context limit is",
    "context window",
    // The name that LiteLLM puts before the words of a server.
    "contextwindowexceeded",
    "maximum prompt length",
    "exceeds maximum input length",
    "longer than the maximum model length",
    "too long to fit into the model",
    "exceeds the maximum number of tokens",
    "only supports up to",
    "exceeded model token limit",
    "greater than the context length",
    "longer than the model's context length",
    "exceeded max context length",
    "configured context size",
    "maximum allowed input length",
    "exceeds max length",
    "size limit exceeded by",
    "`max_new_tokens` must be <= ",
    "'max_new_tokens' must not exceed ",
    "`inputs` must have less than ",
    "input is too long for requested model",
    "input token length too long",
    "input tokens exceed",
    "too many input tokens",
    "input tokens over the limit",
    "cannot exceed the total tokens limit",
    "total number of tokens in the prompt cannot exceed",
    "exceed context limit",
    "exceeds the available context size",
    "context size has been exceeded",
    "too big compared to kv size",
    "prompt is too long",
    "prompt too long",
    "prompt 超长",
    "range of input length",
    "reduce the length of the messages",
    "too large for model with",
    "prompt token count of",
    "payload size exceeds the limit",
    // A reply of no tokens or fewer is what was left of the context.
    "max_tokens must be at least 1, got -",
    // NOTE: More than the rate limit lets through at once: waiting does not help.
    "request too large for",
];

/// Phrases of servers about an empty account, sent under the code of another error.
const EXHAUSTED_PHRASES: &[&str] = &[
    "credit balance is too low",
    "credits are depleted",
    "exceeded your monthly included credits",
    "insufficient balance",
    "insufficient credit",
    "requires billing to be enabled",
    "spending cap",
    "spending limit",
    "used all available credits",
];

/// Codes and types that mean the same under any status.
const KINDS: &[(&[&str], ModelErrorKind)] = &[
    (
        &[
            "content_filter",
            "content_policy_violation",
            "data_inspection_failed",
            "responsibleaipolicyviolation",
            "moderation_blocked",
        ],
        ModelErrorKind::Refused,
    ),
    (&["model_not_found", "not_found_error", "model_not_available"], ModelErrorKind::NotFound),
    // NOTE: Waiting does not help when the account is empty.
    (
        &[
            "insufficient_quota",
            "insufficient_balance",
            "exceeded_current_quota_error",
            "billing_error",
            "billing_hard_limit_reached",
            "billing_not_active",
            "arrearage",
            "accountoverdueerror",
        ],
        ModelErrorKind::QuotaExceeded,
    ),
    (&["invalid_api_key", "authentication_error", "permission_error"], ModelErrorKind::Authentication),
    (&["rate_limit_error", "rate_limit_exceeded", "too_many_requests"], ModelErrorKind::RateLimited),
    (&["overloaded_error", "overloaded", "unavailable_error"], ModelErrorKind::Overloaded),
    (&["server_error", "api_error", "internal_error", "timeout_error"], ModelErrorKind::Transient),
];

/// A text, or the JSON of anything else.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// The number after the first matching cue that has one.
fn number_after(text: &str, cues: &[&str]) -> Option<u64> {
    cues.iter().find_map(|cue| {
        let mut places = text.match_indices(cue);
        places.find_map(|(at, _)| leading_number(&text[at + cue.len()..]))
    })
}

/// The number of tokens with which a text begins, in digits with or without commas, or in thousands or millions as in `128k`.
fn leading_number(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != ',').unwrap_or(text.len());
    let number: u64 = text[..end].replace(',', "").parse().ok()?;
    let rest = &text[end..];
    if OTHER_UNITS.iter().any(|unit| rest.trim_start().starts_with(unit)) {
        return None;
    }
    let mut rest = rest.chars();
    let unit = match (rest.next(), rest.next()) {
        (_, Some(next)) if next.is_alphanumeric() => 1,
        // NOTE: A thousand and not 1,024: too small a limit costs some room, too large a one the request.
        (Some('k' | 'K'), _) => 1_000,
        (Some('m' | 'M'), _) => 1_000_000,
        _ => 1,
    };
    number.checked_mul(unit)
}

/// The units of sizes that are not in tokens, and of the tokens of a reply.
const OTHER_UNITS: &[&str] = &["byte", "character", "output token"];

/// The sum of the input and the longest reply, as in `188240 + 21333 > 200000`, or in `2000 > 4096 - 2104`.
fn sum_over_limit(text: &str) -> Option<u64> {
    let (before, after) = text.split_once(" > ")?;
    let last_of = |text: &str| text.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse::<u64>().ok();
    let other = match before.rsplit_once(" + ") {
        Some((input, _)) => last_of(input)?,
        None => leading_number(after.split_once(" - ")?.1)?,
    };
    last_of(before)?.checked_add(other)
}

/// The sum of the input and the longest reply, as in "Given: 5011 `inputs` tokens and 1024 `max_new_tokens`".
fn sum_of_given(text: &str) -> Option<u64> {
    let (_, given) = text.split_once("given: ")?;
    let (_, reply) = given.split_once("tokens and ")?;
    leading_number(given)?.checked_add(leading_number(reply)?)
}

/// The number before the first of these cues that has one.
fn number_before(text: &str, cues: &[&str]) -> Option<u64> {
    cues.iter().find_map(|cue| {
        let (before, _) = text.split_once(cue)?;
        let start = before.rfind(|c: char| !c.is_ascii_digit() && c != ',').map_or(0, |at| at + 1);
        before.get(start..)?.replace(',', "").parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn check(status: u16, body: &str, expected: &Expect) {
        let context = ErrorContext {
            provider: "openai".to_owned(),
            model: "m".to_owned(),
            secrets: vec![Secret::new("sk-secret")],
            request_id: Some("r1".to_owned()),
        };
        let status = StatusCode::from_u16(status).ok();
        let error = classify(&context, status, &HeaderMap::new(), body);
        expected.assert_eq(&format!("{error}"));
    }

    /// Sizes in the words of servers, as their users report them: the limit, and what was used.
    const SIZES: &[(&str, Option<u64>, Option<u64>)] = &[
        (
            "The input token count (1200293) exceeds the maximum number of tokens allowed (1048576).",
            Some(1_048_576),
            Some(1_200_293),
        ),
        (
            "The input token count exceeds the maximum number of tokens allowed 1048576.",
            Some(1_048_576),
            None,
        ),
        (
            "This model's maximum prompt length is 131072 but the request contains 136973 tokens.",
            Some(131_072),
            Some(136_973),
        ),
        (
            "This model's maximum context length is 128000 tokens, however you requested 130,418 tokens (126418 in your prompt; 4000 for the completion).",
            Some(128_000),
            Some(130_418),
        ),
        (
            "This endpoint's maximum context length is 131072 tokens. However, you requested about 137104 tokens.",
            Some(131_072),
            Some(137_104),
        ),
        (
            "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000",
            Some(200_000),
            Some(209_573),
        ),
        ("prompt token count of 137000 exceeds the limit of 128000", Some(128_000), Some(137_000)),
        ("Your request exceeded model token limit: 262144 (requested: 291351)", Some(262_144), Some(291_351)),
        (
            "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000",
            Some(4_081),
            Some(5_000),
        ),
        // vLLM, by its version.
        (
            "This model's maximum context length is 262144 tokens. However, you requested 128000 output tokens and your prompt contains at least 134145 input tokens, for a total of at least 262145 tokens. Please reduce the length of the input prompt or the number of requested output tokens.",
            Some(262_144),
            Some(262_145),
        ),
        (
            "'max_tokens' or 'max_completion_tokens' is too large: 2000. This model's maximum context length is 4096 tokens and your request has 2104 input tokens (2000 > 4096 - 2104).",
            Some(4_096),
            Some(4_104),
        ),
        // SGLang, and Together.
        (
            "The input (20000 tokens) is longer than the model's context length (8192 tokens).",
            Some(8_192),
            Some(20_000),
        ),
        (
            "Requested token count exceeds the model's maximum context length of 32768 tokens. You requested a total of 40000 tokens: 35000 tokens from the input messages and 5000 tokens for the completion.",
            Some(32_768),
            Some(40_000),
        ),
        // Text Generation Inference.
        (
            "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097. Given: 5011 `inputs` tokens and 1024 `max_new_tokens`",
            Some(4_097),
            Some(6_035),
        ),
        (
            "Input length (265330) exceeds model's maximum context length (262144).",
            Some(262_144),
            Some(265_330),
        ),
        (
            "Input length 30000 exceeds the maximum allowed input length of 26214 tokens.",
            Some(26_214),
            Some(30_000),
        ),
        // OpenAI with an own limit, and with functions.
        (
            "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 280123 tokens. Please reduce the length of the messages.",
            Some(272_000),
            Some(280_123),
        ),
        (
            "This model's maximum context length is 8192 tokens. However, you requested 8213 tokens (6683 in the messages, 730 in the functions, and 800 in the completion).",
            Some(8_192),
            Some(8_213),
        ),
        (
            "Your input exceeds the context window of this model. Please adjust your input and try again.",
            None,
            None,
        ),
        // DeepSeek, OpenRouter, Mistral, Cerebras, Fireworks, Qwen.
        (
            "This model's maximum context length is 65536 tokens. However, you requested 69648 tokens (69648 in the messages, 0 in the completion).",
            Some(65_536),
            Some(69_648),
        ),
        (
            "This endpoint's maximum context length is 128000 tokens. However, you requested about 137104 tokens (120000 of text input, 9104 of tool input, 8000 in the output).",
            Some(128_000),
            Some(137_104),
        ),
        (
            "Prompt contains 200000 tokens and 0 draft tokens, too large for model with 131072 maximum context length",
            Some(131_072),
            Some(200_000),
        ),
        (
            "Please reduce the length of the messages or completion. Current length is 9153 while limit is 8192",
            Some(8_192),
            Some(9_153),
        ),
        ("The prompt is too long: 17000, model maximum context length: 16384", Some(16_384), Some(17_000)),
        (
            "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 98304]",
            Some(98_304),
            None,
        ),
        // llama.cpp, LM Studio, Ollama.
        (
            "request (5012 tokens) exceeds the available context size (4096 tokens), try increasing it",
            Some(4_096),
            Some(5_012),
        ),
        (
            "The number of tokens to keep from the initial prompt is greater than the context length (n_keep: 5000>= n_ctx: 4096). Try to load the model with a larger context length.",
            Some(4_096),
            Some(5_000),
        ),
        ("prompt too long; exceeded max context length by 4 tokens", None, None),
        // Anthropic, also through Bedrock.
        ("prompt is too long: 215000 tokens > 200000 maximum", Some(200_000), Some(215_000)),
        (
            "The model returned the following errors: prompt is too long: 1,000,017 tokens > 1,000,000 maximum",
            Some(1_000_000),
            Some(1_000_017),
        ),
        // Z.ai, MiniMax, Cohere.
        ("Prompt exceeds max length", None, None),
        ("invalid params, context window exceeds limit (2013)", None, None),
        ("too many tokens: size limit exceeded by 1432 tokens.", None, None),
        // vLLM since 0.12, NVIDIA NIM, Modal.
        (
            "You passed 33537 input tokens and requested 32000 output tokens. However, the model's context length is only 65536 tokens, resulting in a maximum input length of 33536 tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value=33537)",
            Some(33_536),
            Some(33_537),
        ),
        (
            "You passed 10243 input tokens and requested 6142 output tokens. However, the model's context length is only 16384",
            Some(16_384),
            Some(10_243),
        ),
        (
            "This model's maximum context length is 4096 tokens. However, your request has 5000 input tokens. Please reduce the length of the input messages.",
            Some(4_096),
            Some(5_000),
        ),
        (
            "The decoder prompt (length 12324) is longer than the maximum model length of 8192. Make sure that `max_model_len` is no smaller than the number of text tokens.",
            Some(8_192),
            Some(12_324),
        ),
        (
            "The prompt (total length 9000) is too long to fit into the model (context length 8192).",
            Some(8_192),
            Some(9_000),
        ),
        ("max_tokens must be at least 1, got -904.", None, None),
        // Vertex AI, and a request of too many bytes.
        (
            "Unable to submit request because the input token count is 135538 but model only supports up to 32768. Reduce the input token count and try again. You can also use the CountTokens API to calculate prompt token count and billable characters.",
            Some(32_768),
            Some(135_538),
        ),
        ("Request payload size exceeds the limit: 20971520 bytes.", None, None),
        // LM Studio, Ollama, DS4.
        (
            "Trying to keep the first 5406 tokens when context the overflows. However, the model is loaded with context length of only 4096 tokens, which is not enough. Try to load the model with a larger context length, or provide a shorter input",
            Some(4_096),
            Some(5_406),
        ),
        ("the input length exceeds the context length", None, None),
        (
            "Prompt has 9,000 tokens, but the configured context size is 8,192 tokens",
            Some(8_192),
            Some(9_000),
        ),
        (
            "Context limit is 8192 tokens; prompt=9000 leaves 0 output tokens, below the minimum 16",
            Some(8_192),
            Some(9_000),
        ),
        ("Request too long: 9000 input tokens over the limit of 8192", Some(8_192), Some(9_000)),
        // DeepInfra, Together, Hugging Face, watsonx, Bedrock, LiteLLM, Kimi, Zhipu.
        (
            "Requested input length 39818 exceeds maximum input length 32767 (via DeepInfra)",
            Some(32_767),
            Some(39_818),
        ),
        (
            "Input validation error: The sum of 'inputs' tokens and 'max_new_tokens' must not exceed 4097. Please adjust your inputs accordingly.",
            Some(4_097),
            None,
        ),
        (
            "Input validation error: `inputs` must have less than 4096 tokens. Given: 5000",
            Some(4_096),
            Some(5_000),
        ),
        (
            "Invalid input argument for Model 'x': the number of input tokens 4098 cannot exceed the total tokens limit 4096 for this model",
            Some(4_096),
            Some(4_098),
        ),
        (
            "Too many input tokens. Max input tokens: 128000, request input token count: 140000",
            Some(128_000),
            Some(140_000),
        ),
        ("litellm.ContextWindowExceededError: litellm.BadRequestError: the request is too large", None, None),
        ("Input token length too long", None, None),
        ("Your request exceeded model token limit : 131072", None, None),
        ("Prompt 超长", None, None),
        // As xAI's, in capitals.
        ("Maximum context length is 8192 tokens, found 9000.", Some(8_192), None),
        // In thousands.
        ("The maximum context length is 128k tokens.", Some(128_000), None),
        ("Input is too long for requested model.", None, None),
        (
            "The number of tokens to keep from the initial prompt is greater than the context length.",
            None,
            None,
        ),
    ];

    #[test]
    fn sizes_that_servers_report() {
        for (message, limit, used) in SIZES.iter().copied() {
            let body = serde_json::json!({"error": {"code": 400, "message": message}}).to_string();
            let kind = ErrorBody::read(&body).kind();
            assert_eq!(kind, Some(ModelErrorKind::TooLong { limit, used }), "{message}");
        }
        // About the reply alone.
        let reply = ErrorBody::read(
            r#"{"message": "The maximum tokens you requested exceeds the model limit of 2048."}"#,
        );
        assert_eq!(reply.kind(), None);
        // A rate limit passes by waiting.
        let waits = ErrorBody::read(r#"{"message": "Too many tokens, please wait before trying again."}"#);
        assert_eq!(waits.kind(), None);
    }

    #[test]
    fn the_errors_of_many_servers() {
        check(
            400,
            r#"{"error":{"message":"This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens.","type":"invalid_request_error","code":"context_length_exceeded"}}"#,
            &expect![
                "conversation too long: expected at most 8192 tokens, found 9001 (openai, model m, request r1): status 400: This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens. [context_length_exceeded]"
            ],
        );
        check(
            400,
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 210000 tokens > 200000 maximum"}}"#,
            &expect![
                "conversation too long: expected at most 200000 tokens, found 210000 (openai, model m, request r1): status 400: prompt is too long: 210000 tokens > 200000 maximum [invalid_request_error]"
            ],
        );
        check(
            400,
            r#"{"error":{"code":400,"message":"the request exceeds the available context size, try increasing it","type":"exceed_context_size_error","n_prompt_tokens":20,"n_ctx":16}}"#,
            &expect![
                "conversation too long: expected at most 16 tokens, found 20 (openai, model m, request r1): status 400: the request exceeds the available context size, try increasing it [400]"
            ],
        );
        check(
            401,
            r#"{"error":{"message":"Incorrect API key provided: sk-secret.","code":"invalid_api_key"}}"#,
            &expect![
                "not authorized (openai, model m, request r1): status 401: Incorrect API key provided: ***. [invalid_api_key]"
            ],
        );
        check(
            429,
            r#"{"error":{"message":"You exceeded your current quota","type":"insufficient_quota"}}"#,
            &expect![
                "quota exhausted (openai, model m, request r1): status 429: You exceeded your current quota [insufficient_quota]"
            ],
        );
        check(
            400,
            r#"{"error":{"message":"filtered","code":"content_filter","status":400}}"#,
            &expect!["refused (openai, model m, request r1): status 400: filtered [content_filter]"],
        );
        check(
            404,
            r#"{"error":{"message":"model 'x' not found"}}"#,
            &expect!["not found (openai, model m, request r1): status 404: model 'x' not found"],
        );
        check(
            400,
            r#"{"detail":[{"loc":["body","x"],"msg":"extra fields not permitted"}]}"#,
            &expect![[
                r#"invalid request (openai, model m, request r1): status 400: [{"loc":["body","x"],"msg":"extra fields not permitted"}]"#
            ]],
        );
        check(
            503,
            r#"{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}"#,
            &expect!["overloaded (openai, model m, request r1): status 503: Loading model [503]"],
        );
        check(
            500,
            "<html>\n oops </html>",
            &expect!["transient failure (openai, model m, request r1): status 500: <html> oops </html>"],
        );
        check(
            502,
            "",
            &expect![
                "transient failure (openai, model m, request r1): status 502: the server gave no reason"
            ],
        );
        check(
            529,
            r#"{"error":"busy"}"#,
            &expect!["overloaded (openai, model m, request r1): status 529: busy"],
        );
        check(
            200,
            r#"{"error":{"code":502,"message":"Provider error"}}"#,
            &expect!["transient failure (openai, model m, request r1): status 200: Provider error [502]"],
        );
        check(
            302,
            "",
            &expect![
                "not found (openai, model m, request r1): status 302: redirects are not followed, since they would get the key"
            ],
        );
    }

    /// The errors of empty accounts and of rates, as servers document them and as people report them.
    #[test]
    fn an_exhausted_quota_is_neither_a_wrong_key_nor_a_rate() {
        let kind = |status: u16, body: &str| {
            let context = ErrorContext {
                provider: String::new(),
                model: String::new(),
                secrets: Vec::new(),
                request_id: None,
            };
            let error = classify(&context, StatusCode::from_u16(status).ok(), &HeaderMap::new(), body);
            assert!(!error.to_string().contains("not authorized"), "{error}");
            error.kind().clone()
        };
        let google = |id: &str, value: &str| {
            let violation = serde_json::json!({"quotaId": id, "quotaValue": value});
            let failure = serde_json::json!({"violations": [violation]});
            let message = "You exceeded your current quota, please check your plan and billing details.";
            let error = serde_json::json!({
                "code": 429, "status": "RESOURCE_EXHAUSTED", "message": message, "details": [failure],
            });
            serde_json::json!({"error": error}).to_string()
        };
        for (status, body) in [
            (
                429,
                r#"{"error":{"message":"You exceeded your current quota","type":"insufficient_quota","code":"insufficient_quota"}}"#,
            ),
            (
                429,
                r#"{"error":{"message":"Your account is not active, please check your billing details.","type":"billing_not_active","code":"billing_not_active"}}"#,
            ),
            (
                400,
                r#"{"error":{"message":"Billing hard limit has been reached","type":"invalid_request_error","code":"billing_hard_limit_reached"}}"#,
            ),
            (
                400,
                r#"{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too low to access the Anthropic API."}}"#,
            ),
            (402, r#"{"type":"error","error":{"type":"billing_error","message":"Payment required"}}"#),
            (
                402,
                r#"{"error":{"message":"Insufficient Balance","type":"unknown_error","param":null,"code":"invalid_request_error"}}"#,
            ),
            (
                402,
                r#"{"error":{"code":402,"message":"This request requires more credits, or fewer max_tokens."}}"#,
            ),
            (200, r#"{"error":{"code":402,"message":"Insufficient credits."}}"#),
            (
                429,
                r#"{"error":{"type":"exceeded_current_quota_error","message":"Your account is suspended, please check your plan and billing details"}}"#,
            ),
            (
                400,
                r#"{"code":"Arrearage","message":"Access denied, please make sure your account is in good standing."}"#,
            ),
            (
                403,
                r#"{"code":"permission-denied","error":"Your team has used all available credits or reached its monthly spending limit."}"#,
            ),
            (402, ""),
            (429, &google("GenerateRequestsPerDayPerProjectPerModel-FreeTier", "50")),
            (429, &google("GenerateContentInputTokensPerModelPerMinute-FreeTier", "0")),
            (
                429,
                r#"{"error":{"code":429,"status":"RESOURCE_EXHAUSTED","message":"Your prepayment credits are depleted."}}"#,
            ),
        ] {
            assert_eq!(kind(status, body), ModelErrorKind::QuotaExceeded, "{status} {body}");
        }
        for (status, body) in [
            (429, google("GenerateRequestsPerMinutePerProjectPerModel-FreeTier", "15")),
            (429, r#"{"error":{"code":429,"status":"RESOURCE_EXHAUSTED","message":"Resource exhausted. Please try again later."}}"#.to_owned()),
            (429, r#"{"error":{"message":"Rate limit reached for requests","type":"requests","code":"rate_limit_exceeded"}}"#.to_owned()),
            (429, r#"{"type":"error","error":{"type":"rate_limit_error","message":"Number of request tokens has exceeded your per-minute rate limit"}}"#.to_owned()),
        ] {
            assert_eq!(kind(status, &body), ModelErrorKind::RateLimited, "{status} {body}");
        }
    }

    #[test]
    fn no_text_is_endless() {
        let context = ErrorContext {
            provider: String::new(),
            model: String::new(),
            secrets: Vec::new(),
            request_id: None,
        };
        let error = classify(&context, None, &HeaderMap::new(), &"ä".repeat(3_000));
        assert_eq!(error.message().chars().count(), MAX_MESSAGE + 1);
    }
}
