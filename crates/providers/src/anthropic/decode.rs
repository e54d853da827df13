//! Decodes events into chunks: a pure state machine. At the end it knows whether the reply is complete.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use stepfold_state_core::chat::{
    CITATIONS, ChatRequest, Chunk, Extras, FinishReason, Part, ToolCallChunk, ToolChoice, Usage,
};

use super::message;
use crate::conform::UNANSWERED;
use crate::http::{ReplyPiece, SseEvent};
use crate::reply::calls::{self, ReplyCallIds};
use crate::reply::{FinishState, ReplyDecoder, ReplyFault, parse_piece};

/// Reads the events of one reply.
#[derive(Debug)]
pub struct AnthropicDecoder {
    choice: ToolChoice,
    /// The open blocks, by index: sequential from the provider, interleaved from some compatible servers.
    blocks: BTreeMap<u64, PartialBlock>,
    /// The names of the calls.
    calls: Vec<String>,
    ids: ReplyCallIds,
    usage: Map<String, Value>,
    end: FinishState,
    has_blocks: bool,
    /// The ids of calls of tools that the server runs, as long as their results did not follow.
    unanswered: Vec<String>,
}

#[derive(Debug)]
enum PartialBlock {
    Text {
        citations: Vec<Value>,
    },
    Thinking {
        signature: String,
    },
    /// A call: its index, its initial input, and whether arguments followed.
    Call {
        number: usize,
        input: Value,
        has_more: bool,
    },
    /// A block of an unknown kind, with the text of its input.
    Unknown {
        block: Value,
        input: String,
    },
}

impl ReplyDecoder for AnthropicDecoder {
    fn push(&mut self, piece: ReplyPiece, out: &mut Vec<Chunk>) -> Result<(), ReplyFault> {
        let Some(value) = parse_piece::<Value>(&piece)? else {
            return Ok(());
        };
        match piece {
            ReplyPiece::Event(event) => self.event(&event, &value, out),
            ReplyPiece::Whole(_) => self.whole(&value, out),
        }
    }

    fn end(&self) -> &FinishState {
        &self.end
    }

    fn objects(body: &Value, is_whole: bool) -> Vec<(&Value, &'static [&'static str])> {
        let read = &["type", "role", "id", "model", "content", "stop_reason", "container", "index", "delta"];
        match body["type"].as_str() {
            Some("message_start") => vec![(&body["message"], read)],
            Some("message_delta") => vec![(body, read), (&body["delta"], read)],
            _ if is_whole => vec![(body, read)],
            _ => Vec::new(),
        }
    }

    fn finish(&mut self, out: &mut Vec<Chunk>) -> Result<(), ReplyFault> {
        while let Some((_, block)) = self.blocks.pop_first() {
            stop(block, out);
        }
        let reason = self.end.take()?;
        // A turn that continues has the results in a later reply.
        let continues = matches!(&reason, FinishReason::ToolCalls) || reason.as_str() == "pause_turn";
        if !continues && !self.unanswered.is_empty() {
            let ids = std::mem::take(&mut self.unanswered);
            out.push(Chunk::MessageExtras(Extras::from_iter([(UNANSWERED, json!(ids))])));
        }
        let called = self.calls.iter().map(String::as_str);
        out.push(calls::finished(&self.choice, called, reason)?);
        Ok(())
    }
}

impl AnthropicDecoder {
    pub(super) fn new(request: &ChatRequest) -> Self {
        AnthropicDecoder {
            choice: request.tool_choice.clone(),
            blocks: BTreeMap::new(),
            calls: Vec::new(),
            ids: ReplyCallIds::default(),
            usage: Map::new(),
            end: FinishState::default(),
            has_blocks: false,
            unanswered: Vec::new(),
        }
    }

    /// Reads an event of a stream.
    fn event(&mut self, event: &SseEvent, value: &Value, out: &mut Vec<Chunk>) -> Result<(), ReplyFault> {
        if !value.is_object() {
            return Err(ReplyFault::Unreadable("expected a JSON object as the event".to_owned()));
        }
        let index = value["index"].as_u64().unwrap_or(0);
        // The kind is in two places; some servers send only one.
        match value["type"].as_str().unwrap_or(&event.name) {
            "message_start" if self.has_blocks => {
                return Err(ReplyFault::malformed("a second message began before the first one ended"));
            }
            "message_start" => self.start(&value["message"], out),
            "content_block_start" => {
                self.stop_block(index, out);
                self.start_block(index, &value["content_block"], out);
            }
            "content_block_delta" => self.delta(index, &value["delta"], out)?,
            "content_block_stop" => self.stop_block(index, out),
            "message_delta" => {
                self.usage(&value["usage"], out);
                container(&value["delta"], out);
                self.stop_reason(&value["delta"]["stop_reason"]);
            }
            "message_stop" => self.end.is_over = true,
            "error" => return Err(ReplyFault::Reported(value.to_string())),
            _ if value.get("error").is_some_and(|error| !error.is_null()) => {
                return Err(ReplyFault::Reported(value.to_string()));
            }
            // Pings, and future kinds.
            _ => {}
        }
        Ok(())
    }

    /// Reads a reply in one piece.
    fn whole(&mut self, value: &Value, out: &mut Vec<Chunk>) -> Result<(), ReplyFault> {
        if value["type"] != "message" {
            return Err(if value.get("error").is_some_and(|error| !error.is_null()) {
                ReplyFault::Reported(value.to_string())
            } else {
                ReplyFault::malformed("expected a message as the reply")
            });
        }
        self.start(value, out);
        for block in value["content"].as_array().into_iter().flatten() {
            self.start_block(0, block, out);
            self.stop_block(0, out);
        }
        self.stop_reason(&value["stop_reason"]);
        // A whole JSON body is a complete reply, with or without a reason.
        let by_calls = if self.calls.is_empty() { FinishReason::Stop } else { FinishReason::ToolCalls };
        self.end.reason.get_or_insert(by_calls);
        self.end.is_over = true;
        Ok(())
    }

    fn start(&mut self, message: &Value, out: &mut Vec<Chunk>) {
        let text = |name: &str| message[name].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        out.push(Chunk::Identity { id: text("id"), model: text("model") });
        self.usage(&message["usage"], out);
        container(message, out);
    }

    fn start_block(&mut self, index: u64, block: &Value, out: &mut Vec<Chunk>) {
        self.has_blocks = true;
        let text = |name: &str| block[name].as_str().unwrap_or_default().to_owned();
        let started = match block["type"].as_str() {
            Some("text") => {
                out.push(Chunk::Text(text("text")));
                PartialBlock::Text { citations: block["citations"].as_array().cloned().unwrap_or_default() }
            }
            Some("thinking") => {
                out.push(Chunk::Reasoning(text("thinking")));
                PartialBlock::Thinking { signature: text("signature") }
            }
            Some("redacted_thinking") => {
                let part = Part::reasoning("").with_extra("redacted_thinking", block["data"].clone());
                out.push(Chunk::Part(part));
                return;
            }
            Some("tool_use") => {
                let number = self.calls.len();
                let (id, name) = (self.ids.unique(block["id"].as_str()), text("name"));
                self.calls.push(name.clone());
                let arguments = String::new();
                out.push(Chunk::ToolCall(ToolCallChunk::new(number, arguments).with_id(id).with_name(name)));
                // NOTE: Code that the server runs calls tools, too; the API requires its caller back with the call.
                if let Some(caller) = block.get(message::CALLER).filter(|caller| !caller.is_null()) {
                    out.push(Chunk::PartExtras(Extras::from_iter([(message::CALLER, caller.clone())])));
                }
                PartialBlock::Call { number, input: block["input"].clone(), has_more: false }
            }
            kind => {
                self.track_server_call(kind.unwrap_or_default(), block);
                PartialBlock::Unknown { block: block.clone(), input: String::new() }
            }
        };
        self.blocks.insert(index, started);
    }

    /// Tracks calls of tools that the server runs, and their results.
    fn track_server_call(&mut self, kind: &str, block: &Value) {
        if let Some(id) = block["id"].as_str().filter(|_| kind.ends_with("_tool_use")) {
            self.unanswered.push(id.to_owned());
        }
        if let Some(id) = block["tool_use_id"].as_str() {
            self.unanswered.retain(|call| call != id);
        }
    }

    fn delta(&mut self, index: u64, delta: &Value, out: &mut Vec<Chunk>) -> Result<(), ReplyFault> {
        let block = self.blocks.get_mut(&index);
        let text = |name: &str| delta[name].as_str().unwrap_or_default().to_owned();
        match (delta["type"].as_str().unwrap_or_default(), block) {
            ("text_delta", _) => out.push(Chunk::Text(text("text"))),
            ("thinking_delta", _) => out.push(Chunk::Reasoning(text("thinking"))),
            ("citations_delta", Some(PartialBlock::Text { citations })) => {
                citations.push(delta["citation"].clone());
            }
            ("signature_delta", Some(PartialBlock::Thinking { signature })) => {
                signature.push_str(&text("signature"));
            }
            ("input_json_delta", Some(PartialBlock::Call { number, has_more, .. })) => {
                let arguments = text("partial_json");
                *has_more |= !arguments.is_empty();
                out.push(Chunk::ToolCall(ToolCallChunk::new(*number, arguments)));
            }
            ("input_json_delta", Some(PartialBlock::Unknown { input, .. })) => {
                input.push_str(&text("partial_json"));
            }
            ("input_json_delta", _) => {
                return Err(ReplyFault::malformed("arguments of an unknown call"));
            }
            // Each field of an unknown block grows.
            (_, Some(PartialBlock::Unknown { block, .. })) => grow(block, delta),
            // Future kinds.
            _ => {}
        }
        Ok(())
    }

    fn stop_block(&mut self, index: u64, out: &mut Vec<Chunk>) {
        if let Some(block) = self.blocks.remove(&index) {
            stop(block, out);
        }
    }

    fn stop_reason(&mut self, reason: &Value) {
        let Some(reason) = reason.as_str() else {
            return;
        };
        self.end.reason = Some(match reason {
            "end_turn" | "stop_sequence" => FinishReason::Stop,
            "tool_use" => FinishReason::ToolCalls,
            "max_tokens" | "model_context_window_exceeded" => FinishReason::Length,
            other => FinishReason::from(other),
        });
    }

    /// Usage in several events is merged by field.
    fn usage(&mut self, usage: &Value, out: &mut Vec<Chunk>) {
        let Some(fields) = usage.as_object() else {
            return;
        };
        let known = fields.iter().filter(|(_, value)| value.is_u64() || value.is_object());
        self.usage.extend(known.map(|(name, value)| (name.clone(), value.clone())));
        let number = |name: &str| self.usage.get(name).and_then(Value::as_u64).unwrap_or(0);
        let (cached, written) = (number("cache_read_input_tokens"), number("cache_creation_input_tokens"));
        let details = self.usage.get("output_tokens_details");
        let thought = details.and_then(|details| details["thinking_tokens"].as_u64());
        // Tokens read from and written to the cache are counted separately.
        let input = number("input_tokens").saturating_add(cached).saturating_add(written);
        let usage = Usage::new(input, number("output_tokens"))
            .with_cached_input_tokens(cached)
            .with_cache_write_tokens(written)
            .with_reasoning_tokens(thought.unwrap_or(0));
        out.push(Chunk::Usage(usage));
    }
}

/// The container in which the server runs code, which the rest of the turn continues with.
fn container(message: &Value, out: &mut Vec<Chunk>) {
    if message[message::CONTAINER].is_object() {
        let container = message[message::CONTAINER].clone();
        out.push(Chunk::MessageExtras(Extras::from_iter([(message::CONTAINER, container)])));
    }
}

/// Merges a delta into a block: texts and lists grow, other fields are replaced.
fn grow(block: &mut Value, delta: &Value) {
    if !block.is_object() {
        return;
    }
    for (name, more) in delta.as_object().into_iter().flatten().filter(|(name, _)| *name != "type") {
        match (&mut block[name], more) {
            (Value::String(text), Value::String(more)) => text.push_str(more),
            (Value::Array(items), Value::Array(more)) => items.extend(more.iter().cloned()),
            (field, more) => *field = more.clone(),
        }
    }
}

/// The remaining chunks of a block at its end.
fn stop(block: PartialBlock, out: &mut Vec<Chunk>) {
    match block {
        PartialBlock::Text { citations } if !citations.is_empty() => {
            out.push(Chunk::PartExtras(Extras::from_iter([(CITATIONS, citations)])));
        }
        PartialBlock::Thinking { signature } if !signature.is_empty() => {
            out.push(Chunk::PartExtras(Extras::from_iter([("signature", signature)])));
        }
        // NOTE: A server without fragments sends the input at once.
        PartialBlock::Call { number, input, has_more: false }
            if input.as_object().is_some_and(|input| !input.is_empty()) =>
        {
            let arguments = input.to_string();
            out.push(Chunk::ToolCall(ToolCallChunk::new(number, arguments)));
        }
        PartialBlock::Unknown { mut block, input } => {
            if let Ok(input) = serde_json::from_str::<Value>(&input) {
                block["input"] = input;
            }
            // Its position among the parts matters to the provider.
            out.extend(message::unknown(block).map(Chunk::Part));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use stepfold_state_core::chat::ReplyBuilder;

    use super::*;
    use crate::http::SseParser;

    /// Decodes a body.
    fn read(body: &[u8]) -> Result<Vec<Chunk>, ReplyFault> {
        let mut events = Vec::new();
        SseParser::default().push(body, &mut events).map_err(|_| ReplyFault::malformed("no events"))?;
        let mut decoder = AnthropicDecoder::new(&ChatRequest::default());
        let mut out = Vec::new();
        for event in events {
            decoder.push(ReplyPiece::Event(event), &mut out)?;
        }
        decoder.finish(&mut out)?;
        Ok(out)
    }

    const WORDS: &[&str] = &[
        "type",
        "message_start",
        "message",
        "content_block_start",
        "content_block",
        "content_block_delta",
        "delta",
        "content_block_stop",
        "message_delta",
        "stop_reason",
        "end_turn",
        "tool_use",
        "text",
        "text_delta",
        "thinking",
        "signature_delta",
        "input_json_delta",
        "partial_json",
        "index",
        "id",
        "name",
        "input",
        "usage",
        "input_tokens",
        "{}",
        "",
    ];

    /// Any JSON of the words that this protocol has: mostly nonsense.
    fn nonsense() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            prop::sample::select(WORDS).prop_map(Value::from),
        ];
        leaf.prop_recursive(5, 40, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec((prop::sample::select(WORDS), inner), 0..5).prop_map(|fields| {
                    Value::Object(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_reply_that_is_cut_is_never_a_whole_one(cut in any::<prop::sample::Index>()) {
            let body = [
                r#"data: {"type":"message_start","message":{"id":"m","usage":{"input_tokens":3}}}"#,
                r#"data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":"äöü"}}"#,
                r#"data: {"type":"content_block_stop","index":0}"#,
                r#"data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":1}}"#,
                r#"data: {"type":"message_stop"}"#,
                "",
            ]
            .join("\n\n");
            let whole = read(body.as_bytes()).unwrap();
            let cut = cut.index(body.len());
            if let Ok(chunks) = read(&body.as_bytes()[..cut]) {
                let end = body.find("\n\ndata: {\"type\":\"message_stop").unwrap();
                prop_assert!(cut > end);
                prop_assert_eq!(chunks, whole);
            }
        }

        #[test]
        fn no_json_makes_it_panic(items in prop::collection::vec(nonsense(), 0..8)) {
            let mut decoder = AnthropicDecoder::new(&ChatRequest::default());
            let mut out = Vec::new();
            for item in items {
                let event = SseEvent { name: String::new(), data: item.to_string() };
                let _ = decoder.push(ReplyPiece::Event(event), &mut out);
                let _ = decoder.push(ReplyPiece::Whole(item.to_string()), &mut out);
            }
            let _ = decoder.finish(&mut out);
            let mut reply = ReplyBuilder::new();
            for chunk in out {
                reply.push(chunk);
            }
            let _ = reply.partial();
        }
    }
}
