//! Decodes responses into chunks: a pure state machine. Each event is a whole response with the next parts in it.

use serde_json::Value;
use stepfold_state_core::chat::{
    CITATIONS, ChatRequest, Chunk, Extras, FinishReason, ModelErrorKind, Part, ToolCallChunk, ToolChoice,
    Usage,
};

use super::content::{self, CALL_ID};
use crate::http::ReplyPiece;
use crate::reply::calls::{self, ReplyCallIds};
use crate::reply::{FinishState, ReplyDecoder, ReplyFault, parse_piece};

/// Reads the responses of one reply.
#[derive(Debug)]
pub struct GeminiDecoder {
    choice: ToolChoice,
    is_identified: bool,
    /// The names of the calls.
    calls: Vec<String>,
    ids: ReplyCallIds,
    logprobs: Vec<Value>,
    end: FinishState,
}

impl ReplyDecoder for GeminiDecoder {
    fn push(&mut self, piece: ReplyPiece, out: &mut Vec<Chunk>) -> Result<(), ReplyFault> {
        let Some(value) = parse_piece::<Value>(&piece)? else {
            return Ok(());
        };
        self.end.is_over = matches!(piece, ReplyPiece::Whole(_));
        match value {
            // NOTE: Without `alt=sse` in the URL, servers send a list.
            Value::Array(responses) => responses.iter().try_for_each(|value| self.response(value, out)),
            value => self.response(&value, out),
        }
    }

    fn end(&self) -> &FinishState {
        &self.end
    }

    fn objects(body: &Value, _: bool) -> Vec<(&Value, &'static [&'static str])> {
        let read = &["index", "content", "finishReason", "logprobsResult"];
        vec![(body, &["candidates", "modelVersion", "responseId", "error"]), (&body["candidates"][0], read)]
    }

    fn finish(&mut self, out: &mut Vec<Chunk>) -> Result<(), ReplyFault> {
        let reason = self.end.take()?;
        let reason = match reason {
            FinishReason::Stop if !self.calls.is_empty() => FinishReason::ToolCalls,
            reason => reason,
        };
        out.extend(calls::logprobs(std::mem::take(&mut self.logprobs)));
        let called = self.calls.iter().map(String::as_str);
        out.push(calls::finished(&self.choice, called, reason)?);
        Ok(())
    }
}

impl GeminiDecoder {
    pub(super) fn new(request: &ChatRequest) -> Self {
        GeminiDecoder {
            choice: request.tool_choice.clone(),
            is_identified: false,
            calls: Vec::new(),
            ids: ReplyCallIds::default(),
            logprobs: Vec::new(),
            end: FinishState::default(),
        }
    }

    fn response(&mut self, value: &Value, out: &mut Vec<Chunk>) -> Result<(), ReplyFault> {
        if !value.is_object() {
            return Err(ReplyFault::Unreadable("expected a JSON object as the event".to_owned()));
        }
        if value.get("error").is_some_and(|error| !error.is_null()) {
            return Err(ReplyFault::Reported(value.to_string()));
        }
        let text = |name: &str| value[name].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let (id, model) = (text("responseId"), text("modelVersion"));
        if !self.is_identified && (id.is_some() || model.is_some()) {
            self.is_identified = true;
            out.push(Chunk::Identity { id, model });
        }
        out.extend(usage(&value["usageMetadata"]).map(Chunk::Usage));
        if let Some(reason) = value.pointer("/promptFeedback/blockReason").and_then(Value::as_str) {
            return Err(ReplyFault::Kind(
                ModelErrorKind::Refused,
                format!("the prompt was blocked: {reason}"),
            ));
        }
        let first = |candidate: &&Value| candidate["index"].as_u64().unwrap_or(0) == 0;
        let candidate = value["candidates"].as_array().into_iter().flatten().find(first);
        let Some(candidate) = candidate else {
            return Ok(());
        };
        self.candidate(candidate, out)?;
        if self.end.is_over {
            // A whole JSON body is a complete reply, with or without a reason.
            self.end.reason.get_or_insert(FinishReason::Stop);
        }
        Ok(())
    }

    fn candidate(&mut self, candidate: &Value, out: &mut Vec<Chunk>) -> Result<(), ReplyFault> {
        for part in candidate.pointer("/content/parts").and_then(Value::as_array).into_iter().flatten() {
            self.part(part, out)?;
        }
        if let Some(sources) =
            candidate.pointer("/groundingMetadata/groundingChunks").and_then(Value::as_array)
        {
            out.push(Chunk::MessageExtras(Extras::from_iter([(CITATIONS, sources.clone())])));
        }
        self.logprobs.extend(logprobs(&candidate["logprobsResult"]));
        // NOTE: Old models send `STOP` in each chunk: the last reason counts, and a stream that breaks after one is
        // complete. See docs/decisions/providers.md.
        let Some(reason) = candidate["finishReason"].as_str().filter(|reason| !reason.is_empty()) else {
            return Ok(());
        };
        self.end.reason = Some(match reason {
            // Compatible servers use it for calls.
            "STOP" | "FUNCTION_CALL" => FinishReason::Stop,
            "MAX_TOKENS" => FinishReason::Length,
            "SAFETY"
            | "RECITATION"
            | "LANGUAGE"
            | "BLOCKLIST"
            | "PROHIBITED_CONTENT"
            | "SPII"
            | "MODEL_ARMOR"
            | "IMAGE_SAFETY"
            | "IMAGE_PROHIBITED_CONTENT"
            | "IMAGE_RECITATION" => FinishReason::ContentFilter,
            // NOTE: The call has arrived, and the loop answers it as one of an unknown tool.
            "UNEXPECTED_TOOL_CALL" if !self.calls.is_empty() => FinishReason::Stop,
            "MALFORMED_FUNCTION_CALL" | "UNEXPECTED_TOOL_CALL" | "MALFORMED_RESPONSE" => {
                let more =
                    candidate["finishMessage"].as_str().unwrap_or("the model made an invalid tool call");
                return Err(ReplyFault::malformed(format!("{reason}: {more}")));
            }
            other => FinishReason::Other(other.to_owned()),
        });
        Ok(())
    }

    fn part(&mut self, part: &Value, out: &mut Vec<Chunk>) -> Result<(), ReplyFault> {
        let signature = content::signature(part);
        if let Some(text) = part["text"].as_str() {
            let text = text.to_owned();
            if text.is_empty() && signature.is_some() {
                // NOTE: A signature belongs to its part, even to an empty one.
                let mut part = if part["thought"] == true { Part::reasoning(text) } else { Part::text(text) };
                part.extras = signature.unwrap_or_default();
                out.push(Chunk::Part(part));
                return Ok(());
            }
            out.push(if part["thought"] == true { Chunk::Reasoning(text) } else { Chunk::Text(text) });
        } else if part["functionCall"].is_object() {
            self.call(&part["functionCall"], out)?;
        } else if part.as_object().is_some_and(|fields| fields.keys().any(|name| name != "thoughtSignature"))
        {
            // NOTE: An unknown part contains its signature.
            out.extend(content::unknown(part).map(Chunk::Part));
            return Ok(());
        }
        out.extend(signature.map(Chunk::PartExtras));
        Ok(())
    }

    fn call(&mut self, call: &Value, out: &mut Vec<Chunk>) -> Result<(), ReplyFault> {
        if call.get("partialArgs").is_some() || call["willContinue"] == true {
            let reason = "omit `streamFunctionCallArguments`";
            let message = format!("unsupported arguments in pieces of a function call: {reason}");
            return Err(ReplyFault::Kind(ModelErrorKind::Unsupported, message));
        }
        let (index, name) = (self.calls.len(), call["name"].as_str().unwrap_or_default().to_owned());
        let given = call["id"].as_str().filter(|id| !id.is_empty());
        let id = self.ids.unique(given);
        let is_given = given == Some(id.as_str());
        let arguments = if call["args"].is_null() { "{}".to_owned() } else { call["args"].to_string() };
        self.calls.push(name.clone());
        let call = ToolCallChunk::new(index, arguments).with_id(id.clone()).with_name(name);
        out.push(Chunk::ToolCall(call));
        if is_given {
            out.push(Chunk::PartExtras(Extras::from_iter([(CALL_ID, id)])));
        }
        Ok(())
    }
}

/// The tokens, each with the other likely ones at its place.
fn logprobs(result: &Value) -> impl Iterator<Item = Value> {
    let chosen = result["chosenCandidates"].as_array().into_iter().flatten();
    chosen.enumerate().map(|(at, token)| {
        let mut token = token.clone();
        if let (Some(fields), Some(others)) =
            (token.as_object_mut(), result["topCandidates"][at]["candidates"].as_array())
        {
            fields.insert("top_logprobs".to_owned(), others.as_slice().into());
        }
        token
    })
}

fn usage(value: &Value) -> Option<Usage> {
    let number = |name: &str| value[name].as_u64().unwrap_or(0);
    let reasoning_tokens = number("thoughtsTokenCount");
    let input = number("promptTokenCount").saturating_add(number("toolUsePromptTokenCount"));
    let output = number("candidatesTokenCount").saturating_add(reasoning_tokens);
    let usage = Usage::new(input, output)
        .with_cached_input_tokens(number("cachedContentTokenCount"))
        .with_reasoning_tokens(reasoning_tokens);
    value.is_object().then_some(usage)
}
