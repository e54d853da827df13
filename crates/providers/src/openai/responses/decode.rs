//! Decodes events into chunks: a pure state machine. About a dozen of the API's event kinds matter; the event
//! that ends an item has its final content, even if parts of it were streamed before.
//!
//! The states of an item. Chunks of an item wait while an earlier item is open, since the extras at the end of an item
//! belong to its last part.
//!
//! | state | event | next state |
//! |---|---|---|
//! | unknown | `output_item.added`, or a delta of it | open |
//! | unknown | `output_item.done`, or listed in the final response | done |
//! | open | a delta | open |
//! | open | `output_item.done`, or listed in the final response | done |
//! | done | any event | done |

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::Value;
use stepfold_state_core::chat::{
    CITATIONS, ChatRequest, Chunk, Extras, FinishReason, ModelErrorKind, Part, ToolCallChunk, ToolChoice,
};

use super::input;
use crate::http::{ReplyPiece, SseEvent};
use crate::openai::decode::usage;
use crate::reply::calls::{self, ReplyCallIds};
use crate::reply::{FinishState, ReplyDecoder, ReplyFault, parse_piece};

/// Reads the events of one response.
#[derive(Debug)]
pub struct ResponsesDecoder {
    choice: ToolChoice,
    /// The items that have begun, by their index in the output.
    items: BTreeMap<u64, OutputItem>,
    /// The indexes of those that have not ended.
    open: BTreeSet<u64>,
    /// The number of chunks that waited for the end of an item.
    held: usize,
    /// Their indexes by their ids. Some servers give the same id to several items.
    places: HashMap<String, Vec<u64>>,
    /// The names of the calls.
    calls: Vec<String>,
    ids: ReplyCallIds,
    has_refusal: bool,
    logprobs: Vec<Value>,
    end: FinishState,
}

/// The received part of an item.
#[derive(Debug, Default)]
struct OutputItem {
    has_begun: bool,
    /// The number of the call that it is.
    call: Option<usize>,
    /// Whether part of its text, or of its arguments, was streamed.
    is_streamed: bool,
    is_done: bool,
    /// The chunks that wait for the end of an earlier item: the extras at the end of an item belong to its last part.
    held: Vec<Chunk>,
}

impl ReplyDecoder for ResponsesDecoder {
    fn push(&mut self, piece: ReplyPiece, out: &mut Vec<Chunk>) -> Result<(), ReplyFault> {
        if matches!(&piece, ReplyPiece::Event(event) if event.data.trim() == "[DONE]") {
            self.end.is_over = true;
            return Ok(());
        }
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
        let response = if is_whole { body } else { &body["response"] };
        // NOTE: The response repeats much of the request; these fields count as read.
        let read =
            &["id", "model", "object", "output", "status", "error", "instructions", "tools", "text", "input"];
        vec![(response, read)]
    }

    fn abandon(&mut self, out: &mut Vec<Chunk>) {
        self.flush(out);
    }

    fn held(&self) -> usize {
        self.held
    }

    fn finish(&mut self, out: &mut Vec<Chunk>) -> Result<(), ReplyFault> {
        self.flush(out);
        let reason = self.end.take()?;
        out.extend(calls::logprobs(std::mem::take(&mut self.logprobs)));
        let called = self.calls.iter().map(String::as_str);
        out.push(calls::finished(&self.choice, called, reason)?);
        Ok(())
    }
}

impl ResponsesDecoder {
    pub(super) fn new(request: &ChatRequest) -> Self {
        ResponsesDecoder {
            choice: request.tool_choice.clone(),
            items: BTreeMap::new(),
            open: BTreeSet::new(),
            held: 0,
            places: HashMap::new(),
            calls: Vec::new(),
            ids: ReplyCallIds::default(),
            has_refusal: false,
            logprobs: Vec::new(),
            end: FinishState::default(),
        }
    }

    /// Reads an event of a stream.
    fn event(&mut self, event: &SseEvent, value: &Value, out: &mut Vec<Chunk>) -> Result<(), ReplyFault> {
        if !value.is_object() {
            return Err(ReplyFault::Unreadable("expected a JSON object as the event".to_owned()));
        }
        let place = self.place(value);
        let delta = || value["delta"].as_str().unwrap_or_default().to_owned();
        match value["type"].as_str().unwrap_or(&event.name) {
            "response.created" => identity(&value["response"], out),
            "response.output_item.added" => self.begin(place, &value["item"], out),
            "response.output_text.delta" => self.streamed(place, Chunk::Text(delta()), out),
            "response.refusal.delta" => {
                self.has_refusal = true;
                self.streamed(place, Chunk::Text(delta()), out);
            }
            "response.reasoning_summary_part.added" if self.is_streamed(place) => {
                self.emit(place, Chunk::Reasoning("\n\n".to_owned()), out);
            }
            "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => {
                self.streamed(place, Chunk::Reasoning(delta()), out);
            }
            "response.function_call_arguments.delta" => self.arguments(place, delta(), out)?,
            "response.output_item.done" => self.end(place, &value["item"], out),
            "response.completed" | "response.incomplete" | "response.failed" => {
                self.response(&value["response"], out)?;
            }
            "error" => {
                self.flush(out);
                return Err(ReplyFault::Reported(value.to_string()));
            }
            _ if value.get("error").is_some_and(|error| !error.is_null()) => {
                return Err(ReplyFault::Reported(value.to_string()));
            }
            // Progress of server-side tools, and future kinds.
            _ => {}
        }
        Ok(())
    }

    /// Reads a response in one piece.
    fn whole(&mut self, value: &Value, out: &mut Vec<Chunk>) -> Result<(), ReplyFault> {
        if let Some(status @ ("queued" | "in_progress")) = value["status"].as_str() {
            let reason = "responses in the background are not supported; omit `background`";
            let message = format!("unsupported response with the status `{status}`: {reason}");
            return Err(ReplyFault::Kind(ModelErrorKind::Unsupported, message));
        }
        if value["output"].is_array() {
            self.response(value, out)
        } else if value.get("error").is_some_and(|error| !error.is_null()) {
            Err(ReplyFault::Reported(value.to_string()))
        } else {
            Err(ReplyFault::malformed("expected a response as the reply"))
        }
    }

    /// The end of a response: content that was not streamed, usage, and the finish reason.
    fn response(&mut self, response: &Value, out: &mut Vec<Chunk>) -> Result<(), ReplyFault> {
        if response["error"].is_object() {
            self.flush(out);
            return Err(ReplyFault::Reported(response.to_string()));
        }
        identity(response, out);
        let mut seen: HashMap<&str, usize> = HashMap::new();
        for (index, item) in (0..).zip(response["output"].as_array().into_iter().flatten()) {
            let count = id(item).map_or(0, |id| {
                let count = seen.entry(id).or_default();
                *count += 1;
                *count - 1
            });
            let place = self.place_in_output(index, id(item), count);
            if !self.items.get(&place).is_some_and(|item| item.is_done) {
                self.end(place, item, out);
            }
        }
        self.flush(out);
        out.extend(usage(&response["usage"]).map(Chunk::Usage));
        self.end.is_over = true;
        let cause = response.pointer("/incomplete_details/reason").and_then(Value::as_str);
        self.end.reason = Some(match (response["status"].as_str(), cause) {
            (Some("failed" | "cancelled"), _) => {
                return Err(ReplyFault::Kind(ModelErrorKind::Transient, "the response failed".to_owned()));
            }
            (_, Some("max_output_tokens" | "max_tokens")) => FinishReason::Length,
            (_, Some(cause)) => FinishReason::from(cause),
            _ if !self.calls.is_empty() => FinishReason::ToolCalls,
            _ if self.has_refusal => FinishReason::Refusal,
            _ => FinishReason::Stop,
        });
        Ok(())
    }

    /// Returns the index of the item of an event. Some servers omit it: then the item is found by its id, or else it is the
    /// last one, unless that is done or another one begins.
    fn place(&self, value: &Value) -> u64 {
        if let Some(place) = value["output_index"].as_u64() {
            return place;
        }
        let Some((last, item)) = self.items.last_key_value() else {
            return 0;
        };
        let id = id(&value["item"]).or_else(|| value["item_id"].as_str());
        let begins = item.has_begun && value["type"] == "response.output_item.added";
        let is_next = value["item"].is_object() && (item.is_done || begins);
        self.place_of(id).unwrap_or_else(|| last.saturating_add(is_next.into()))
    }

    /// The index of the last item with this id.
    fn place_of(&self, id: Option<&str>) -> Option<u64> {
        self.places.get(id?)?.last().copied()
    }

    /// Returns the index in the stream of an item of the whole output; `count` earlier items have the same id. Not
    /// all servers count the items of a stream from zero.
    fn place_in_output(&self, index: u64, id: Option<&str>, count: usize) -> u64 {
        match id.and_then(|id| self.places.get(id)) {
            Some(places) => places.get(count).copied().unwrap_or_else(|| {
                self.items.last_key_value().map_or(index, |(last, _)| last.saturating_add(1))
            }),
            None => index,
        }
    }

    /// Passes on all waiting chunks at the end of the reply.
    fn flush(&mut self, out: &mut Vec<Chunk>) {
        for item in self.items.values_mut() {
            out.append(&mut item.held);
        }
    }

    /// Whether all items before this one have ended.
    fn is_next(&self, place: u64) -> bool {
        self.open.first().is_none_or(|first| *first >= place)
    }

    /// The item at an index, which begins if it has not yet.
    fn item(&mut self, place: u64) -> &mut OutputItem {
        self.items.entry(place).or_insert_with(|| {
            self.open.insert(place);
            OutputItem::default()
        })
    }

    /// Passes a chunk of an item on, once all items before it have ended.
    fn emit(&mut self, place: u64, chunk: Chunk, out: &mut Vec<Chunk>) {
        if self.is_next(place) {
            out.push(chunk);
        } else {
            self.item(place).held.push(chunk);
            self.held += 1;
            // NOTE: An empty chunk shows progress: the reply must not look idle while its text is held back.
            out.push(Chunk::Raw(Extras::new()));
        }
    }

    /// Passes on the chunks that waited for the end of an item: those of later items, up to one that has not ended.
    fn release(&mut self, place: u64, out: &mut Vec<Chunk>) {
        if !self.is_next(place) {
            return;
        }
        for item in self.items.range_mut(place..).map(|(_, item)| item) {
            out.append(&mut item.held);
            if !item.is_done {
                break;
            }
        }
    }

    /// Begins an item. Of a call, its id and its name are known.
    fn begin(&mut self, place: u64, item: &Value, out: &mut Vec<Chunk>) {
        self.item(place).has_begun = true;
        if let Some(id) = id(item) {
            let places = self.places.entry(id.to_owned()).or_default();
            if !places.contains(&place) {
                places.push(place);
            }
        }
        if item["type"] == "function_call" && self.item(place).call.is_none() {
            let (index, name) = (self.calls.len(), item["name"].as_str().unwrap_or_default().to_owned());
            self.item(place).call = Some(index);
            self.calls.push(name.clone());
            let id = self.ids.unique(item["call_id"].as_str());
            self.emit(place, Chunk::ToolCall(ToolCallChunk::new(index, "").with_id(id).with_name(name)), out);
        }
    }

    fn is_streamed(&self, place: u64) -> bool {
        self.items.get(&place).is_some_and(|item| item.is_streamed)
    }

    fn streamed(&mut self, place: u64, chunk: Chunk, out: &mut Vec<Chunk>) {
        let is_empty = match &chunk {
            Chunk::Text(text) | Chunk::Reasoning(text) => text.is_empty(),
            Chunk::ToolCall(call) => call.arguments.is_empty(),
            _ => false,
        };
        self.item(place).is_streamed |= !is_empty;
        self.emit(place, chunk, out);
    }

    fn arguments(&mut self, place: u64, arguments: String, out: &mut Vec<Chunk>) -> Result<(), ReplyFault> {
        let call = self.items.get(&place).and_then(|item| item.call);
        let Some(index) = call else {
            return Err(ReplyFault::malformed("arguments of an unknown call"));
        };
        self.streamed(place, Chunk::ToolCall(ToolCallChunk::new(index, arguments)), out);
        Ok(())
    }

    /// Ends an item: content that was not streamed, and data to be sent back.
    fn end(&mut self, place: u64, item: &Value, out: &mut Vec<Chunk>) {
        self.begin(place, item, out);
        if self.items.get(&place).is_some_and(|item| item.is_done) {
            return;
        }
        let mut last = Vec::new();
        self.last_chunks(place, item, &mut last);
        for chunk in last {
            self.emit(place, chunk, out);
        }
        self.item(place).is_done = true;
        self.open.remove(&place);
        self.release(place, out);
    }

    /// Appends the chunks of the event that ends an item.
    fn last_chunks(&mut self, place: u64, item: &Value, out: &mut Vec<Chunk>) {
        let is_streamed = self.is_streamed(place);
        let call = self.items.get(&place).and_then(|item| item.call);
        let text = |name: &str| item[name].as_str().unwrap_or_default().to_owned();
        match (item["type"].as_str(), call) {
            (Some("message"), _) => {
                if !is_streamed {
                    // NOTE: A message without content is a part, too: its extras need one.
                    out.push(Chunk::Text(String::new()));
                    for part in item["content"].as_array().into_iter().flatten() {
                        self.has_refusal |= part["type"] == "refusal";
                        let text = part["text"].as_str().or_else(|| part["refusal"].as_str());
                        out.push(Chunk::Text(text.unwrap_or_default().to_owned()));
                    }
                }
                let annotations = item["content"].as_array().into_iter().flatten();
                let annotations = annotations.filter_map(|part| part["annotations"].as_array()).flatten();
                let annotations: Vec<Value> = annotations.cloned().collect();
                let logprobs = item["content"].as_array().into_iter().flatten();
                let logprobs = logprobs.filter_map(|part| part["logprobs"].as_array()).flatten();
                self.logprobs.extend(logprobs.cloned());
                let mut extras = input::rest(item, &["type", "role", "content"]);
                if !annotations.is_empty() {
                    extras.insert(CITATIONS, annotations);
                }
                out.push(Chunk::PartExtras(extras));
            }
            (Some("reasoning"), _) if is_streamed => out.push(Chunk::PartExtras(input::rest(item, &[]))),
            (Some("reasoning"), _) => {
                let part = Part::reasoning(thought(item));
                out.push(Chunk::Part(part.with_extras(input::rest(item, &[]))));
            }
            (_, Some(index)) => {
                let arguments = if is_streamed { String::new() } else { text("arguments") };
                out.push(Chunk::ToolCall(ToolCallChunk::new(index, arguments)));
                let known = ["type", "call_id", "name", "arguments"];
                out.push(Chunk::PartExtras(input::rest(item, &known)));
            }
            // Results of tools that the server ran, such as searches.
            _ => out.extend(input::unknown(item).map(Chunk::Part)),
        }
    }
}

/// Passes on the id of the response and its model, if they are known.
fn identity(response: &Value, out: &mut Vec<Chunk>) {
    let text = |name: &str| response[name].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let (id, model) = (text("id"), text("model"));
    if id.is_some() || model.is_some() {
        out.push(Chunk::Identity { id, model });
    }
}

/// The id of an item.
fn id(item: &Value) -> Option<&str> {
    item["id"].as_str().filter(|id| !id.is_empty())
}

/// The reasoning, or its summary.
fn thought(item: &Value) -> String {
    let parts = |name: &str| item[name].as_array().filter(|parts| !parts.is_empty());
    let parts = parts("summary").or_else(|| parts("content")).into_iter().flatten();
    parts.filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n\n")
}
