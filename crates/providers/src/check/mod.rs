//! Checkers of requests by the documented rules of each server, for authors of models and their tests.
//!
//! [`faults`] returns the rules of a [`KnownServer`] that the body of a request breaks. The rules come from
//! documentation and public reports, independent of the code that writes requests; [`RULES`] lists them with their
//! sources.
//!
//! ```
//! use serde_json::json;
//! use stepfold_providers::check::{KnownServer, faults};
//!
//! let body = json!({"model": "kimi-k2", "messages": [
//!     {"role": "user", "content": "hi"},
//!     {"role": "assistant", "content": ""},
//! ]});
//! let faults = faults(KnownServer::Kimi, &body);
//! assert_eq!(faults[0].to_string(), "text: messages[1]: the message is empty");
//! ```

mod anthropic;
mod chat;
mod gemini;
mod responses;
mod tools;

use std::fmt;

use serde_json::Value;

/// A server whose rules are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KnownServer {
    /// OpenAI's chat completions.
    OpenAiChat,
    /// OpenAI's Responses.
    OpenAiResponses,
    /// Anthropic's Messages.
    Anthropic,
    /// Google's Gemini API.
    Gemini,
    /// Mistral's chat completions.
    Mistral,
    /// Moonshot's chat completions (Kimi).
    Kimi,
    /// DeepSeek's chat completions.
    DeepSeek,
    /// vLLM with the chat template of Qwen, and with other templates of alternating roles.
    QwenTemplate,
}

impl KnownServer {
    /// All of them.
    pub const ALL: &'static [KnownServer] = &[
        KnownServer::OpenAiChat,
        KnownServer::OpenAiResponses,
        KnownServer::Anthropic,
        KnownServer::Gemini,
        KnownServer::Mistral,
        KnownServer::Kimi,
        KnownServer::DeepSeek,
        KnownServer::QwenTemplate,
    ];

    /// The name, for people.
    pub const fn name(self) -> &'static str {
        match self {
            KnownServer::OpenAiChat => "OpenAI chat completions",
            KnownServer::OpenAiResponses => "OpenAI Responses",
            KnownServer::Anthropic => "Anthropic",
            KnownServer::Gemini => "Gemini",
            KnownServer::Mistral => "Mistral",
            KnownServer::Kimi => "Kimi",
            KnownServer::DeepSeek => "DeepSeek",
            KnownServer::QwenTemplate => "Qwen by vLLM",
        }
    }
}

/// A rule of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerRule {
    /// Its name, unique.
    pub name: &'static str,
    /// The servers that have it.
    pub servers: &'static [KnownServer],
    /// The requirement.
    pub requires: &'static str,
    /// The substitute in requests of this crate for a conversation that breaks the rule.
    pub instead: &'static str,
    /// The documentation or the report.
    pub source: &'static str,
}

/// A rule that a request breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuleViolation {
    /// The name of the [rule](ServerRule::name).
    pub rule: &'static str,
    /// The place and the reason.
    pub reason: String,
}

impl fmt::Display for RuleViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.reason)
    }
}

/// The rules of a server that the body of a request breaks.
pub fn faults(server: KnownServer, body: &Value) -> Vec<RuleViolation> {
    let mut faults = RuleFaults(Vec::new());
    match server {
        KnownServer::OpenAiResponses => responses::check(body, &mut faults),
        KnownServer::Anthropic => anthropic::check(body, &mut faults),
        KnownServer::Gemini => gemini::check(body, &mut faults),
        server => chat::check(server, body, &mut faults),
    }
    tools::check(server, body, &mut faults);
    faults.0
}

/// The first reply whose first call has no signature, which Gemini refuses from version 3 on: the body does not name its
/// model.
pub fn unsigned_call(body: &Value) -> Option<RuleViolation> {
    gemini::unsigned(body).map(|reason| RuleViolation { rule: "signature", reason })
}

/// Collects faults.
struct RuleFaults(Vec<RuleViolation>);

impl RuleFaults {
    fn add(&mut self, rule: &'static str, reason: impl Into<String>) {
        self.0.push(RuleViolation { rule, reason: reason.into() });
    }

    /// Adds a fault unless `holds`.
    fn require(&mut self, holds: bool, rule: &'static str, reason: impl FnOnce() -> String) {
        if !holds {
            self.add(rule, reason());
        }
    }
}

/// The items of a list; none if it is no list.
fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value[name].as_str().unwrap_or_default()
}

fn is_blank(text: &str) -> bool {
    text.chars().all(char::is_whitespace)
}

/// Whether a text has from one to so many letters, digits, and characters of these.
fn is_name(text: &str, more: &str, most: usize) -> bool {
    !text.is_empty()
        && text.chars().count() <= most
        && text.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c))
}

/// All rules.
// NOTE: Written from documentation and reports, independent of `rules`: a fault in one must not be a fault in both.
pub const RULES: &[ServerRule] = &[
    ServerRule {
        name: "text",
        servers: KnownServer::ALL,
        requires: "a text is more than white space, and a message has content",
        instead: "a blank text is left out, and a reply with nothing else as well; where a text must stand, a stand-in",
        source: "Anthropic: github.com/home-assistant/core/issues/175637; Kimi, Mistral: reports of empty assistant messages",
    },
    ServerRule {
        name: "failure",
        servers: &[KnownServer::Anthropic],
        requires: "the result of a failed call has content",
        instead: "a stand-in",
        source: "Anthropic: \"content cannot be empty if is_error is true\"",
    },
    ServerRule {
        name: "first",
        servers: &[
            KnownServer::Anthropic,
            KnownServer::Gemini,
            KnownServer::Mistral,
            KnownServer::Kimi,
            KnownServer::DeepSeek,
            KnownServer::QwenTemplate,
        ],
        requires: "the first message is one of the user, and there is one",
        instead: "a stand-in before it",
        source: "Anthropic, Gemini: API references; Qwen: github.com/verl-project/verl/issues/7725",
    },
    ServerRule {
        name: "turns",
        servers: &[KnownServer::QwenTemplate],
        requires: "messages of the user and the assistant take turns",
        instead: "a message of the other role between them",
        source: "templates of vLLM: github.com/charmbracelet/crush/issues/279",
    },
    ServerRule {
        name: "after-result",
        servers: &[KnownServer::Mistral, KnownServer::QwenTemplate],
        requires: "no message of the user follows the result of a call",
        instead: "a message of the assistant between them",
        source: "Mistral: github.com/NousResearch/hermes-agent/issues/20154",
    },
    ServerRule {
        name: "system",
        servers: &[KnownServer::Mistral, KnownServer::Kimi, KnownServer::DeepSeek, KnownServer::QwenTemplate],
        requires: "one system message, at the beginning",
        instead: "leading ones are joined, later ones are texts of the user in tags",
        source: "Qwen: github.com/vllm-project/vllm/issues/41114",
    },
    ServerRule {
        name: "answered",
        servers: KnownServer::ALL,
        requires: "each call is answered once, after it and before anything else, and each answer has a call",
        instead: "the loop keeps the conversation so",
        source: "API references of all",
    },
    ServerRule {
        name: "call-id",
        servers: KnownServer::ALL,
        requires: "ids of calls have the form that the server knows, and are unique",
        instead: "another id that stands for it",
        source: "Mistral: 9 letters and digits; Anthropic: ^[a-zA-Z0-9_-]+$; OpenAI: at most 40, Responses 64",
    },
    ServerRule {
        name: "tool-name",
        servers: KnownServer::ALL,
        requires: "names of tools have the form that the server knows",
        instead: "a legal name that stands for it, mapped back in the reply",
        source: "API references; Kimi: github.com/MoonshotAI/kimi-cli/issues/1773",
    },
    ServerRule {
        name: "tools",
        servers: KnownServer::ALL,
        requires: "no more tools than the server takes, and the choice among them names one",
        instead: "the tools above the limit are left out, with the reason",
        source: "OpenAI, DeepSeek: API references, 128; Kimi: platform.kimi.ai/docs/api/tool-use, 128",
    },
    ServerRule {
        name: "parameters",
        servers: KnownServer::ALL,
        requires: "the parameters of a tool are a schema that the server takes, whose root is a plain object",
        instead: "an equal schema, or a wider one with the rest in words; a tool without any is left out alone",
        source: "OpenAI: github.com/langchain-ai/langchainjs/issues/9804, github.com/sigoden/aichat/pull/1049; Anthropic: \
            github.com/anthropics/claude-code/issues/5319 and 63673; Gemini: `responseJsonSchema` of its API reference; Kimi: \
            github.com/vercel/ai/pull/18921",
    },
    ServerRule {
        name: "property-name",
        servers: &[KnownServer::Anthropic],
        requires: "names of properties have at most 64 letters, digits, `_`, `.` and `-`",
        instead: "a legal name that stands for it, mapped back in the reply",
        source: "Anthropic: github.com/ComposioHQ/composio/issues/3500",
    },
    ServerRule {
        name: "reply-schema",
        servers: KnownServer::ALL,
        requires: "the schema of a reply is one that the server takes; OpenAI: of an object",
        instead: "an object with the value in it, which is unwrapped in the reply",
        source: "OpenAI: guide of structured outputs; DeepSeek: api-docs.deepseek.com/guides/json_mode",
    },
    ServerRule {
        name: "arguments",
        servers: &[
            KnownServer::Anthropic,
            KnownServer::Gemini,
            KnownServer::Mistral,
            KnownServer::Kimi,
            KnownServer::DeepSeek,
            KnownServer::QwenTemplate,
        ],
        requires: "arguments are a JSON object",
        instead: "an object with the malformed text in it",
        source: "vLLM parses arguments before it renders its template (entrypoints/chat_utils.py)",
    },
    ServerRule {
        name: "reasoning",
        servers: &[KnownServer::Kimi, KnownServer::DeepSeek],
        requires: "messages of the assistant have `reasoning_content`",
        instead: "an empty one",
        source: "Kimi: github.com/continuedev/continue/pull/11806; DeepSeek: api-docs.deepseek.com/guides/thinking_mode",
    },
    ServerRule {
        name: "reasoning-order",
        servers: &[KnownServer::OpenAiResponses, KnownServer::Anthropic],
        requires: "reasoning is followed by the text or the call that it was for",
        instead: "reasoning that nothing follows is left out",
        source: "Responses: github.com/vercel/ai/issues/7099, github.com/openai/codex/issues/1235",
    },
    ServerRule {
        name: "thinking",
        servers: &[KnownServer::Anthropic],
        requires: "with thinking on, a turn with calls begins with signed thinking",
        instead: "no thinking in a turn that another model began",
        source: "Anthropic: github.com/pydantic/pydantic-ai/issues/2075",
    },
    ServerRule {
        name: "signature",
        servers: &[KnownServer::Gemini],
        requires: "from Gemini 3 on, the first call of a reply has a signature",
        instead: "the documented stand-in of one",
        source: "Gemini: ai.google.dev/gemini-api/docs/thought-signatures",
    },
    ServerRule {
        name: "foreign",
        servers: KnownServer::ALL,
        requires: "signatures and encrypted reasoning are the server's own",
        instead: "those of other servers are left out",
        source: "Azure and OpenAI: github.com/openai/codex/issues/3573",
    },
];
