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
        self.field(&["n_ctx", "limit", "max_context_length"]).or_else(|| {
            number_after(
                &self.message,
                &[
                    "maximum context length is ",
                    "maximum prompt length is ",
                    "tokens allowed (",
                    "tokens allowed ",
                    "cannot exceed ",
                    "tokens > ",
                    // After a sum that has the name of a limit before it.
                    "> ",
                    "limit: ",
                    "limit is ",
                    "limit of ",
                    "Limit ",
                    "[1, ",
                ],
            )
            .or_else(|| number_before(&self.message, &[" maximum"]))
        })
    }

    /// The number of tokens in the request.
    fn used(&self) -> Option<u64> {
        self.field(&["n_prompt_tokens"]).or_else(|| {
            let cues = [
                "resulted in ",
                "you requested about ",
                "you requested ",
                "prompt is too long: ",
                "contains ",
                "Requested ",
                "(requested: ",
                "token count (",
                "token count of ",
                "received ",
            ];
            sum_over_limit(&self.message).or_else(|| number_after(&self.message, &cues))
        })
    }

    fn field(&self, names: &[&str]) -> Option<u64> {
        names.iter().find_map(|name| self.body.get(*name)).and_then(Value::as_u64)
    }
}

const TOO_LONG_CODES: &[&str] =
    &["context_length_exceeded", "exceed_context_size_error", "request_too_large"];

const TOO_LONG_PHRASES: &[&str] = &[
    "maximum context length",
    "context length exceeded",
    "context window",
    "maximum prompt length",
    "exceeds the maximum number of tokens",
    "exceeded model token limit",
    "greater than the context length",
    "input is too long for requested model",
    "total number of tokens in the prompt cannot exceed",
    "exceed context limit",
    "exceeds the available context size",
    "context size has been exceeded",
    "too big compared to kv size",
    "prompt is too long",
    "range of input length",
    "reduce the length of the messages",
    "too large for model with",
    "prompt token count of",
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

/// The number after the first matching cue.
fn number_after(text: &str, cues: &[&str]) -> Option<u64> {
    cues.iter().find_map(|cue| {
        let (_, after) = text.split_once(cue)?;
        let end = after.find(|c: char| !c.is_ascii_digit() && c != ',').unwrap_or(after.len());
        after[..end].replace(',', "").parse().ok()
    })
}

/// The sum of the input and the longest reply, as in `188240 + 21333 > 200000`.
fn sum_over_limit(text: &str) -> Option<u64> {
    let (before, after) = text.split_once(" + ")?;
    let (reply, _) = after.split_once(" > ")?;
    let input = before.rsplit(|c: char| !c.is_ascii_digit()).next()?;
    Some(input.parse::<u64>().ok()?.saturating_add(reply.parse().ok()?))
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

    /// Sizes in the words of servers, as their users report them.
    #[test]
    fn sizes_that_servers_report() {
        for (message, limit, used) in [
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
            (
                "Your request exceeded model token limit: 262144 (requested: 291351)",
                Some(262_144),
                Some(291_351),
            ),
            (
                "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000",
                Some(4_081),
                Some(5_000),
            ),
            ("Input is too long for requested model.", None, None),
            (
                "The number of tokens to keep from the initial prompt is greater than the context length.",
                None,
                None,
            ),
        ] {
            let body = serde_json::json!({"error": {"code": 400, "message": message}}).to_string();
            let kind = ErrorBody::read(&body).kind();
            assert_eq!(kind, Some(ModelErrorKind::TooLong { limit, used }), "{message}");
        }
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
