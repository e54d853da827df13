//! Decodes raw chunks: a pure state machine. At the end it knows whether the reply is complete.

use std::borrow::Cow;
use std::collections::HashMap;

use serde_json::Value;
use stepfold_state_core::chat::{
    ArgumentsBuilder, CITATIONS, ChatRequest, Chunk, Cost, Extras, FinishReason, ModelErrorKind,
    ToolCallChunk, ToolChoice, Usage,
};

use super::chunk::{RawCall, RawChoice, RawChunk, RawDelta, RawFunction};
use crate::http::ReplyPiece;
use crate::reply::calls::{self, ReplyCallIds};
use crate::reply::{FinishState, ReplyDecoder, ReplyFault, parse_piece};

/// Reads the chunks of one reply.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each says one thing that came, or may be missing")]
pub struct ChatDecoder {
    choice: ToolChoice,
    /// Whether the server ends streams with `[DONE]` alone.
    ends_without_reason: bool,
    has_id: bool,
    has_model: bool,
    has_content: bool,
    calls: Vec<ChatCallDraft>,
    ids: ReplyCallIds,
    /// The last call with each of the server's numbers.
    by_index: HashMap<u64, usize>,
    /// The last call with each of the server's ids.
    by_id: HashMap<String, usize>,
    has_refusal: bool,
    reasoning_details: Vec<Value>,
    citations: Vec<Value>,
    logprobs: Vec<Value>,
    end: FinishState,
}

/// A tool call that has begun.
#[derive(Debug)]
struct ChatCallDraft {
    /// The server's id.
    id: Option<String>,
    name: Option<String>,
    arguments: ArgumentsBuilder,
    /// The id in the reply.
    our_id: String,
}

impl ReplyDecoder for ChatDecoder {
    fn push(&mut self, piece: ReplyPiece, out: &mut Vec<Chunk>) -> Result<(), ReplyFault> {
        if matches!(&piece, ReplyPiece::Event(event) if event.data.trim() == "[DONE]") {
            self.end.is_over = true;
            // NOTE: `[DONE]` counts as an end only for servers whose preset says so: proxies send it for failures,
            // too.
            if self.ends_without_reason && self.has_content {
                self.end.reason.get_or_insert(FinishReason::Stop);
            }
            return Ok(());
        }
        let Some(chunk) = parse_piece::<RawChunk>(&piece)? else {
            return Ok(());
        };
        self.end.is_over = matches!(piece, ReplyPiece::Whole(_));
        let has_choice = !chunk.choices.is_empty();
        self.chunk(chunk, out)?;
        if self.end.is_over && has_choice {
            // A whole JSON body is a complete reply, with or without a finish reason.
            self.end.reason.get_or_insert(FinishReason::Stop);
        }
        Ok(())
    }

    fn end(&self) -> &FinishState {
        &self.end
    }

    fn objects(body: &Value, _: bool) -> Vec<(&Value, &'static [&'static str])> {
        let choice = &["index", "delta", "message", "finish_reason", "logprobs"];
        vec![
            (body, &["id", "model", "object", "choices", "citations", "search_results", "error"]),
            (&body["choices"][0], choice),
        ]
    }

    fn finish(&mut self, out: &mut Vec<Chunk>) -> Result<(), ReplyFault> {
        let reason = self.end.take()?;
        if !self.reasoning_details.is_empty() {
            let details = std::mem::take(&mut self.reasoning_details);
            out.push(Chunk::MessageExtras(
                [("reasoning_details", Value::Array(details))].into_iter().collect(),
            ));
        }
        if !self.citations.is_empty() {
            let citations = std::mem::take(&mut self.citations);
            out.push(Chunk::MessageExtras(Extras::from_iter([(CITATIONS, citations)])));
        }
        out.extend(calls::logprobs(std::mem::take(&mut self.logprobs)));
        let reason = self.actual_reason(reason);
        let called = self.calls.iter().filter_map(|call| call.name.as_deref());
        out.push(calls::finished(&self.choice, called, reason)?);
        Ok(())
    }
}

impl ChatDecoder {
    /// Reads a chunk, or a whole reply.
    fn chunk(&mut self, raw: RawChunk, out: &mut Vec<Chunk>) -> Result<(), ReplyFault> {
        if let Some(message) = error(&raw) {
            return Err(ReplyFault::Reported(message));
        }
        self.identity(&raw, out);
        for sources in [&raw.search_results, &raw.citations] {
            if let Some(sources) = sources.as_array().filter(|sources| sources.len() > self.citations.len()) {
                self.citations.clone_from(sources);
            }
        }
        let usage = [&raw.usage, &raw.x_groq["usage"]].into_iter().find_map(usage);
        let of_choice = raw.choices.first().and_then(|choice| self::usage(&choice.usage));
        let choice = raw.choices.into_iter().find(|choice| choice.index.as_u64().unwrap_or(0) == 0);
        let pushed = choice.map_or(Ok(()), |choice| self.choice(choice, out));
        out.extend(usage.or(of_choice).map(Chunk::Usage));
        pushed
    }

    pub(super) fn new(request: &ChatRequest, ends_without_reason: bool) -> Self {
        ChatDecoder {
            choice: request.tool_choice.clone(),
            ends_without_reason,
            has_id: false,
            has_model: false,
            has_content: false,
            calls: Vec::new(),
            ids: ReplyCallIds::default(),
            by_index: HashMap::new(),
            by_id: HashMap::new(),
            has_refusal: false,
            reasoning_details: Vec::new(),
            citations: Vec::new(),
            logprobs: Vec::new(),
            end: FinishState::default(),
        }
    }

    /// The actual finish reason: some servers send `stop` after calls.
    fn actual_reason(&self, reason: FinishReason) -> FinishReason {
        match reason {
            FinishReason::Stop if !self.calls.is_empty() => FinishReason::ToolCalls,
            FinishReason::Stop if self.has_refusal => FinishReason::Refusal,
            reason => reason,
        }
    }

    fn identity(&mut self, raw: &RawChunk, out: &mut Vec<Chunk>) {
        let id = string(&raw.id).filter(|_| !self.has_id);
        let model = string(&raw.model).filter(|_| !self.has_model);
        self.has_id |= id.is_some();
        self.has_model |= model.is_some();
        if id.is_some() || model.is_some() {
            out.push(Chunk::Identity { id, model });
        }
    }

    fn choice(&mut self, choice: RawChoice, out: &mut Vec<Chunk>) -> Result<(), ReplyFault> {
        // NOTE: Some servers send the text so far beside a delta, others an empty delta beside a whole message.
        let delta =
            if self.end.is_over { choice.message.or(choice.delta) } else { choice.delta.or(choice.message) };
        if let Some(delta) = delta {
            self.delta(delta, out);
        }
        // A refusal is text of the reply as well.
        for name in ["content", "refusal"] {
            self.logprobs.extend(choice.logprobs[name].as_array().into_iter().flatten().cloned());
        }
        if !choice.error.is_null() {
            return Err(ReplyFault::Reported(choice.error.to_string()));
        }
        let Some(reason) = string(&choice.finish_reason) else {
            return Ok(());
        };
        self.end.reason = Some(match reason.as_str() {
            "function_call" => FinishReason::ToolCalls,
            "max_tokens" | "model_length" => FinishReason::Length,
            "eos" | "end_turn" | "stop_sequence" | "complete" | "eos_token" => FinishReason::Stop,
            "sensitive" => FinishReason::ContentFilter,
            "insufficient_system_resource" => {
                let message = "the server ran out of resources during the reply".to_owned();
                return Err(ReplyFault::Kind(ModelErrorKind::Overloaded, message));
            }
            "error" => {
                let message = "the server reports that the reply ended with an error".to_owned();
                return Err(ReplyFault::Kind(ModelErrorKind::Transient, message));
            }
            other => FinishReason::from(other),
        });
        Ok(())
    }

    fn delta(&mut self, delta: RawDelta, out: &mut Vec<Chunk>) {
        let before = out.len();
        let reasoning = [delta.reasoning_content, delta.reasoning, delta.thinking];
        // Some servers send the same under two names.
        if let Some(text) = reasoning.iter().map(text).find(|text| !text.is_empty()) {
            out.push(Chunk::Reasoning(text));
        }
        if let Value::Array(details) = delta.reasoning_details {
            for detail in details {
                join_detail(&mut self.reasoning_details, detail);
            }
        }
        if let Value::Array(annotations) = delta.annotations {
            self.citations.extend(annotations);
        }
        self.content(delta.content, out);
        let refusal = text(&delta.refusal);
        if !refusal.is_empty() {
            self.has_refusal = true;
            out.push(Chunk::Text(refusal));
        }
        for call in delta.tool_calls {
            self.call(call, out);
        }
        if let Some(function) = delta.function_call {
            self.call(RawCall { index: 0.into(), function, ..RawCall::default() }, out);
        }
        self.has_content |= out.len() > before;
    }

    /// Text, or a list of parts: some servers think in one of those.
    #[expect(clippy::unused_self, reason = "it reads beside its siblings")]
    fn content(&self, content: Value, out: &mut Vec<Chunk>) {
        match content {
            Value::Array(parts) => {
                for part in &parts {
                    let text = part_text(part);
                    let is_thought = part["type"] == "thinking" || part["type"] == "reasoning";
                    if !text.is_empty() {
                        out.push(if is_thought { Chunk::Reasoning(text) } else { Chunk::Text(text) });
                    }
                }
            }
            content => {
                let text = text(&content);
                if !text.is_empty() {
                    out.push(Chunk::Text(text));
                }
            }
        }
    }

    /// Adds a fragment to a call: the one with its index, else with its id, else the last one.
    fn call(&mut self, raw: RawCall, out: &mut Vec<Chunk>) {
        let RawCall { index, id, function: RawFunction { name, arguments }, extra_content } = raw;
        let index = index.as_u64();
        let id = string(&id);
        let name = string(&name);
        let position = self.position(index, id.as_deref(), name.as_deref());
        if position.is_none() && id.is_none() && name.is_none() && fragment(&arguments).is_empty() {
            // Empty fields that some servers send with every chunk are not a call.
            return;
        }
        let is_new = position.is_none();
        let position = position.unwrap_or_else(|| self.begin(index, id.as_deref()));
        let call = &mut self.calls[position];
        let name = if call.name.is_none() { name } else { None };
        call.name = call.name.take().or_else(|| name.clone());
        let arguments = fragment(&arguments).into_owned();
        call.arguments.push(&arguments);
        let our_id = is_new.then(|| call.our_id.clone());
        if is_new || name.is_some() || !arguments.is_empty() || !extra_content.is_null() {
            let mut chunk = ToolCallChunk::new(position, arguments);
            (chunk.id, chunk.name) = (our_id, name);
            out.push(Chunk::ToolCall(chunk));
        }
        if !extra_content.is_null() {
            out.push(Chunk::PartExtras(Extras::from_iter([("extra_content", extra_content)])));
        }
    }

    /// Finds the call that a fragment continues, if any.
    fn position(&mut self, index: Option<u64>, id: Option<&str>, name: Option<&str>) -> Option<usize> {
        let position = match (index, id) {
            (Some(index), _) => self.by_index.get(&index).copied(),
            (None, Some(id)) => self.by_id.get(id).copied(),
            // NOTE: Some servers send neither index nor id with later fragments.
            (None, None) => self.calls.len().checked_sub(1),
        }?;
        let call = &self.calls[position];
        if let (Some(ours), Some(theirs)) = (&call.id, id)
            && ours != theirs
        {
            let position = self.interleaved(theirs, name)?;
            self.by_index.extend(index.map(|index| (index, position)));
            return Some(position);
        }
        let call = &mut self.calls[position];
        let has_same_id = id.is_some() && call.id.as_deref() == id;
        let is_another_call = match (call.name.as_deref(), name) {
            (Some(ours), Some(theirs)) => !has_same_id && (ours != theirs || call.arguments.is_complete()),
            _ => false,
        };
        (!is_another_call).then_some(position)
    }

    /// Finds the earlier call with this id, whose fragments alternate with those of another call under the same index.
    fn interleaved(&mut self, id: &str, name: Option<&str>) -> Option<usize> {
        let position = *self.by_id.get(id)?;
        let call = &mut self.calls[position];
        let has_name = name.is_none() || call.name.as_deref() == name;
        (has_name && !call.arguments.is_complete()).then_some(position)
    }

    /// Begins a call under an id that no other call of the reply has.
    fn begin(&mut self, index: Option<u64>, id: Option<&str>) -> usize {
        let (position, our_id) = (self.calls.len(), self.ids.unique(id));
        self.by_index.extend(index.map(|index| (index, position)));
        self.by_id.extend(id.map(|id| (id.to_owned(), position)));
        let (id, arguments) = (id.map(str::to_owned), ArgumentsBuilder::new());
        self.calls.push(ChatCallDraft { id, name: None, arguments, our_id });
        position
    }
}

/// Adds a reasoning detail, or merges a fragment into the one that it continues: complete details are sent
/// back.
fn join_detail(details: &mut Vec<Value>, fragment: Value) {
    let is_text = fragment["type"] == "reasoning.text" || fragment["type"] == "reasoning.summary";
    let is_same = |last: &&mut Value| last["type"] == fragment["type"] && last["index"] == fragment["index"];
    let (Some(last), Value::Object(fields)) =
        (details.last_mut().filter(is_same).filter(|_| is_text), &fragment)
    else {
        return details.push(fragment);
    };
    for (name, value) in fields {
        match (&mut last[name], value) {
            (Value::String(text), Value::String(more)) if name == "text" || name == "summary" => {
                text.push_str(more);
            }
            (_, Value::Null) => {}
            (field, value) => *field = value.clone(),
        }
    }
}

/// The server's error, if the chunk has one.
fn error(raw: &RawChunk) -> Option<String> {
    if !raw.error.is_null() {
        return Some(serde_json::json!({"error": raw.error}).to_string());
    }
    let says_so = raw.object == "error" || raw.kind == "error";
    let is_bare = raw.choices.is_empty() && (raw.message.is_string() || !raw.detail.is_null());
    (says_so || is_bare).then(|| {
        serde_json::json!({"message": raw.message, "detail": raw.detail, "code": raw.code, "type": raw.kind})
            .to_string()
    })
}

/// A text that is not empty.
fn string(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// The text of a content part. Reasoning may be a list of parts.
fn part_text(part: &Value) -> String {
    match part.get("text").or_else(|| part.get("thinking")).unwrap_or(part) {
        Value::Array(parts) => parts.iter().map(part_text).collect(),
        other => text(other),
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// A piece of arguments, which some servers send as an object.
fn fragment(arguments: &Value) -> Cow<'_, str> {
    match arguments {
        Value::String(text) => Cow::Borrowed(text),
        Value::Null => Cow::Borrowed(""),
        other => Cow::Owned(other.to_string()),
    }
}

pub(crate) fn usage(value: &Value) -> Option<Usage> {
    let number = |names: &[&str]| names.iter().find_map(|name| value.pointer(name)?.as_u64());
    let input_tokens = number(&["/prompt_tokens", "/input_tokens"]);
    let output_tokens = number(&["/completion_tokens", "/output_tokens"]);
    if input_tokens.is_none() && output_tokens.is_none() {
        return None;
    }
    let number = |names: &[&str]| number(names).unwrap_or(0);
    let cached = number(&[
        "/prompt_tokens_details/cached_tokens",
        "/input_tokens_details/cached_tokens",
        "/prompt_token_details/cached_tokens",
        "/prompt_cache_hit_tokens",
        "/num_cached_tokens",
        "/cached_tokens",
    ]);
    let written = number(&[
        "/prompt_tokens_details/cache_write_tokens",
        "/prompt_tokens_details/cache_creation_tokens",
        "/input_tokens_details/cache_write_tokens",
        "/cache_creation_input_tokens",
    ]);
    let reasoning = number(&[
        "/completion_tokens_details/reasoning_tokens",
        "/output_tokens_details/reasoning_tokens",
        "/reasoning_tokens",
    ]);
    let cost = ["/cost/total_cost", "/cost", "/estimated_cost"]
        .iter()
        .find_map(|name| value.pointer(name)?.as_f64())
        .map_or(Cost::default(), Cost::from_dollars);
    let usage = Usage::new(input_tokens.unwrap_or(0), output_tokens.unwrap_or(0))
        .with_cached_input_tokens(cached)
        .with_cache_write_tokens(written)
        .with_reasoning_tokens(reasoning)
        .with_cost(cost);
    Some(usage)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use stepfold_state_core::chat::{ModelError, ReplyBuilder};

    use super::*;
    use crate::http::SseParser;

    /// The result of a whole body, wherever it is truncated.
    fn read(body: &[u8]) -> Result<String, String> {
        let mut events = Vec::new();
        SseParser::default().push(body, &mut events).map_err(|fault| format!("{fault:?}"))?;
        let mut decoder = ChatDecoder::new(&ChatRequest::default(), false);
        let mut reply = ReplyBuilder::new();
        let mut out = Vec::new();
        for event in events {
            decoder.push(ReplyPiece::Event(event), &mut out).map_err(|bad| format!("{bad:?}"))?;
        }
        decoder.finish(&mut out).map_err(|bad| format!("{bad:?}"))?;
        for chunk in out {
            reply.push(chunk);
        }
        let reply = reply.finish().map_err(|error: ModelError| error.to_string())?;
        Ok(format!("{:?}", reply.message))
    }

    const WORDS: &[&str] = &[
        "choices",
        "delta",
        "message",
        "index",
        "id",
        "model",
        "content",
        "reasoning",
        "refusal",
        "tool_calls",
        "function",
        "name",
        "arguments",
        "finish_reason",
        "stop",
        "tool_calls",
        "length",
        "usage",
        "prompt_tokens",
        "text",
        "type",
        "thinking",
        "{}",
        "{\"a\":",
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
                r#"data: {"choices":[{"delta":{"reasoning_content":"hm"}}]}"#,
                r#"data: {"choices":[{"delta":{"content":"äöü"}}]}"#,
                r#"data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"{}"}}]}}]}"#,
                r#"data: {"choices":[{"delta":{},"finish_reason":"stop"}]}"#,
                "data: [DONE]",
                "",
            ]
            .join("\n\n");
            let whole = read(body.as_bytes());
            prop_assert!(whole.is_ok());
            let cut = cut.index(body.len());
            match read(&body.as_bytes()[..cut]) {
                Err(_) => {}
                Ok(reply) => {
                    prop_assert!(cut >= body.find("\n\ndata: [DONE]").unwrap());
                    prop_assert_eq!(Ok(reply), whole);
                }
            }
        }

        #[test]
        fn no_json_makes_it_panic(items in prop::collection::vec(nonsense(), 0..8)) {
            let mut decoder = ChatDecoder::new(&ChatRequest::default(), false);
            let mut out = Vec::new();
            for item in items {
                let _ = decoder.push(ReplyPiece::Whole(item.to_string()), &mut out);
            }
            let _ = decoder.finish(&mut out);
            let mut reply = ReplyBuilder::new();
            for chunk in out {
                reply.push(chunk);
            }
            let ids: Vec<String> = reply.partial().message.tool_calls().map(|call| call.id.clone()).collect();
            let unique: std::collections::HashSet<&String> = ids.iter().collect();
            prop_assert!(unique.len() == ids.len() && !ids.contains(&String::new()), "{:?}", ids);
        }
    }
}
