//! What each dialect says, in one table: tests of all dialects are written once.

use std::sync::Arc;

use serde_json::{Value, json};
use stepfold_providers::anthropic::Anthropic;
use stepfold_providers::gemini::Gemini;
use stepfold_providers::layer::Timeout;
use stepfold_providers::openai::{OpenAi, OpenAiResponses};
use stepfold_providers::probe::{self, ProbeResponse};
use stepfold_state_core::chat::{ChatModel, ReplyStream};

/// A key that must not be seen anywhere.
pub(crate) const KEY: &str = "sk-Do-Not-Show-Me_1234567890";

/// A dialect: how it begins and finishes a reply, and the models that read it.
pub(crate) struct Wire {
    pub(crate) name: &'static str,
    /// The text `area`.
    pub(crate) begin: &'static str,
    pub(crate) finish: &'static str,
    /// An event with this text.
    pub(crate) text: fn(&str) -> Value,
    /// An event with a call at this index, under this id.
    pub(crate) call: fn(Value, Value) -> Value,
    /// An event with this number wherever tokens are counted.
    pub(crate) usage: fn(Value) -> Value,
    /// An event with this error.
    pub(crate) error: fn(&str) -> Value,
    /// The reply to a response.
    pub(crate) read: fn(Timeout, ProbeResponse) -> ReplyStream,
    /// A model behind this address.
    pub(crate) model: fn(&str, Timeout) -> Arc<dyn ChatModel>,
}

/// All dialects.
pub(crate) const WIRES: [Wire; 4] = [
    Wire {
        name: "openai",
        begin: "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"area\"}}]}\n\n",
        finish: "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
        text: |text| json!({"choices": [{"index": 0, "delta": {"content": text}}]}),
        call: |index, id| {
            let function = json!({"name": "search", "arguments": "{}"});
            let call = json!({"index": index, "id": id, "function": function});
            json!({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]})
        },
        usage: |count| {
            let details = json!({"cached_tokens": count, "reasoning_tokens": count});
            let usage = json!({"prompt_tokens": count, "completion_tokens": count, "cost": count,
                "prompt_tokens_details": details, "completion_tokens_details": details});
            json!({"choices": [], "usage": usage})
        },
        error: |message| json!({"error": {"message": message}}),
        read: |timeouts, response| {
            let model = OpenAi::at("http://127.0.0.1:1/v1", "m").key(KEY).timeout(timeouts).build();
            probe::reply(&model.unwrap(), response)
        },
        model: |url, timeouts| {
            Arc::new(OpenAi::at(format!("{url}/v1"), "m").key(KEY).timeout(timeouts).build().unwrap())
        },
    },
    Wire {
        name: "responses",
        begin: "data: {\"type\":\"response.output_text.delta\",\"output_index\":0,\"delta\":\"area\"}\n\n",
        finish: "data: {\"type\":\"response.completed\",\"response\":{\"status\":\"completed\",\"output\":[]}}\n\n",
        text: |text| json!({"type": "response.output_text.delta", "output_index": 0, "delta": text}),
        call: |index, id| {
            let item = json!({"type": "function_call", "call_id": id, "name": "search", "arguments": "{}"});
            json!({"type": "response.output_item.done", "output_index": index, "item": item})
        },
        usage: |count| {
            let details = json!({"cached_tokens": count, "reasoning_tokens": count});
            let usage = json!({"input_tokens": count, "output_tokens": count,
                "input_tokens_details": details, "output_tokens_details": details});
            json!({"type": "response.completed", "response": {"status": "completed", "output": [], "usage": usage}})
        },
        error: |message| json!({"type": "error", "error": {"message": message}}),
        read: |timeouts, response| {
            let model = OpenAiResponses::at("http://127.0.0.1:1/v1", "m").key(KEY).timeout(timeouts).build();
            probe::reply(&model.unwrap(), response)
        },
        model: |url, timeouts| {
            let model = OpenAiResponses::at(format!("{url}/v1"), "m").key(KEY).timeout(timeouts).build();
            Arc::new(model.unwrap())
        },
    },
    Wire {
        name: "anthropic",
        begin: "data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"area\"}}\n\n",
        finish: "data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"}}\n\n",
        text: |text| json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}),
        call: |index, id| {
            let block = json!({"type": "tool_use", "id": id, "name": "search", "input": {"q": 1}});
            json!({"type": "content_block_start", "index": index, "content_block": block})
        },
        usage: |count| {
            let usage = json!({"input_tokens": count, "output_tokens": count, "cache_read_input_tokens": count,
                "cache_creation_input_tokens": count, "output_tokens_details": {"thinking_tokens": count}});
            json!({"type": "message_delta", "delta": {}, "usage": usage})
        },
        error: |message| json!({"type": "error", "error": {"message": message}}),
        read: |timeouts, response| {
            probe::reply(&Anthropic::new("m", KEY).timeout(timeouts).build().unwrap(), response)
        },
        model: |url, timeouts| {
            Arc::new(Anthropic::new("m", KEY).base_url(url).timeout(timeouts).build().unwrap())
        },
    },
    Wire {
        name: "gemini",
        begin: "data: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"area\"}]}}]}\n\n",
        finish: "data: {\"candidates\":[{\"finishReason\":\"STOP\"}]}\n\n",
        text: |text| json!({"candidates": [{"content": {"parts": [{"text": text}]}}]}),
        call: |_, id| {
            let call = json!({"id": id, "name": "search", "args": {}});
            json!({"candidates": [{"content": {"parts": [{"functionCall": call}]}}]})
        },
        usage: |count| {
            json!({"usageMetadata": {"promptTokenCount": count, "candidatesTokenCount": count,
                "toolUsePromptTokenCount": count, "cachedContentTokenCount": count, "thoughtsTokenCount": count}})
        },
        error: |message| json!({"error": {"message": message}}),
        read: |timeouts, response| {
            probe::reply(&Gemini::new("m", KEY).timeout(timeouts).build().unwrap(), response)
        },
        model: |url, timeouts| {
            Arc::new(Gemini::new("m", KEY).base_url(url).timeout(timeouts).build().unwrap())
        },
    },
];

/// These values as a stream of events.
pub(crate) fn events(values: impl IntoIterator<Item = Value>) -> String {
    values.into_iter().map(|value| format!("data: {value}\n\n")).collect()
}
