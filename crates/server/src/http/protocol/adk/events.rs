//! Encodes commits and updates of a run as events of the Agent Development Kit. Pure.
//!
//! A client reads the same events from a session later, and drops those whose id it has had.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use stepfold_agent_loop::{self as agent_loop, ApprovalRequest, AskReason, Decision, EventKind};
use stepfold_runner::RECORD_FORMAT;
use stepfold_session_scopes::{CommittedEvent, Event, Timestamp};
use stepfold_state_core::chat::{Content, Message, Role, ToolContent, ToolResult, Usage};
use stepfold_state_core::state::Write;

use crate::http::protocol::run_updates::{RunUpdate, StreamEnd};
use crate::http::protocol::{ProtocolFrame, UpdateEncoder};
use crate::question::of_persons;

/// The function by which a client is asked to confirm a call.
pub(super) const CONFIRMATION: &str = "adk_request_confirmation";

/// The key of the state in which clients keep the title of a session. It is not a value of the agent's.
pub(super) const METADATA: &str = "__session_metadata__";

/// Values after a commit, of the keys that it has written.
pub(super) type WrittenValues = BTreeMap<String, Value>;

/// The events of a commit: one for each message, and the state with the last.
pub(super) fn of_commit(agent: &str, commit: &CommittedEvent, written: &WrittenValues) -> Vec<Value> {
    let event = &*commit.event;
    let contents: Vec<AdkContent> =
        event.messages.iter().filter_map(|message| content(agent, message)).collect();
    let contents = match contents.is_empty() {
        true if written.is_empty() => return Vec::new(),
        true => vec![AdkContent { author: agent.to_owned(), content: None }],
        false => contents,
    };
    let (count, usage) = (contents.len(), usage(event));
    let encoded = contents.into_iter().enumerate().map(|(place, content)| {
        let is_last = place + 1 == count;
        // Clients drop an event whose id they have had.
        let id = if is_last { event.id.to_string() } else { format!("{}.{place}", event.id) };
        let delta = if is_last { json!(written) } else { json!({}) };
        let mut encoded = frame(&id, event.invocation.as_str(), &content.author, event.at, &delta);
        if let Some(content) = content.content {
            encoded["content"] = content;
        }
        if let (true, Some(usage)) = (is_last, &usage) {
            encoded["usageMetadata"] = usage.clone();
        }
        encoded
    });
    encoded.collect()
}

/// Text of a reply that is under way. The event with all of it follows.
fn partial(agent: &str, invocation: &str, number: usize, text: &str, at: Timestamp) -> Value {
    let mut event = frame(&format!("{invocation}.partial{number}"), invocation, agent, at, &json!({}));
    event["content"] = json!({"role": "model", "parts": [{"text": text}]});
    event["partial"] = json!(true);
    event
}

/// The events by which a client is asked: one for each request that a person decides.
pub(super) fn confirmations(
    agent: &str,
    invocation: &str,
    pending: &[ApprovalRequest],
    at: Timestamp,
) -> Vec<Value> {
    let ask = |request: &ApprovalRequest| {
        let mut event = frame(&format!("ask-{}", request.id), invocation, agent, at, &json!({}));
        let call = &request.call;
        let call = json!({"id": call.id, "name": call.name, "args": arguments(&call.arguments.to_text())});
        let arguments = json!({
            "originalFunctionCall": call,
            "toolConfirmation": {"hint": request.to_text(), "confirmed": false},
        });
        let call = json!({"id": request.id, "name": CONFIRMATION, "args": arguments});
        event["content"] = json!({"role": "model", "parts": [{"functionCall": call}]});
        event["longRunningToolIds"] = json!([request.id]);
        event
    };
    of_persons(pending).map(ask).collect()
}

/// The decision in a client's answer. The same arguments as asked about are an approval, others a modification.
pub(super) fn decision(request: &ApprovalRequest, response: &Value) -> Decision {
    let payload = &response["payload"];
    if response["confirmed"] != true {
        return Decision::reject("rejected by the user");
    }
    let is_same = payload.is_null() || *payload == arguments(&request.call.arguments.to_text());
    let is_answer = request.reason == AskReason::Input && payload.is_object();
    if is_same && !is_answer { Decision::Approve } else { Decision::modify(payload.clone()) }
}

/// Encodes a run.
pub(in super::super) struct AdkEncoder {
    agent: String,
    is_streaming: bool,
    invocation: String,
    /// The time of the newest commit.
    at: Timestamp,
    /// The values after it.
    state: Value,
    partials: usize,
}

impl AdkEncoder {
    pub(in super::super) fn new(agent: String, is_streaming: bool) -> Self {
        let (invocation, at, state) = (String::new(), Timestamp::default(), Value::Null);
        AdkEncoder { agent, is_streaming, invocation, at, state, partials: 0 }
    }

    fn text(&mut self, text: &str) -> Vec<Value> {
        if !self.is_streaming {
            return Vec::new();
        }
        self.partials += 1;
        vec![partial(&self.agent, &self.invocation, self.partials, text, self.at)]
    }

    fn committed(&mut self, commit: &CommittedEvent) -> Vec<Value> {
        self.at = commit.event.at;
        let written = commit.event.actions.delta.iter().map(Write::key);
        let written = written.map(|key| (key.to_owned(), self.state[key].clone())).collect();
        let mut events = of_commit(&self.agent, commit, &written);
        // The client shows its own message by itself.
        events.retain(|event| event["author"] != "user" || event["invocationId"] != *self.invocation);
        events
    }

    fn end(&self, end: &StreamEnd) -> Vec<Value> {
        match end {
            StreamEnd::Waiting(requests) => confirmations(&self.agent, &self.invocation, requests, self.at),
            StreamEnd::Failed(problem) => vec![json!({"error": problem.detail()})],
            StreamEnd::Finished(_) | StreamEnd::Suspended => Vec::new(),
        }
    }
}

impl UpdateEncoder for AdkEncoder {
    fn push(&mut self, update: &RunUpdate) -> Vec<ProtocolFrame> {
        let events = match update {
            RunUpdate::Began { invocation, at, state, .. } => {
                invocation.clone_into(&mut self.invocation);
                self.at = *at;
                self.state.clone_from(state);
                Vec::new()
            }
            RunUpdate::Text(text) => self.text(text),
            RunUpdate::State { after, .. } => {
                self.state.clone_from(after);
                Vec::new()
            }
            RunUpdate::Committed(commit) => self.committed(commit),
            RunUpdate::Ended { end, .. } => self.end(end),
            // The events of commits have them; no request of this protocol is repeated.
            _ => Vec::new(),
        };
        events.into_iter().map(ProtocolFrame::Json).collect()
    }
}

struct AdkContent {
    author: String,
    content: Option<Value>,
}

fn content(agent: &str, message: &Message) -> Option<AdkContent> {
    let (author, role) = match message.role() {
        Role::User => ("user", "user"),
        Role::Assistant => (agent, "model"),
        Role::Tool => (agent, "user"),
        _ => return None,
    };
    let parts: Vec<Value> = message.parts().iter().filter_map(|part| self::part(&part.content)).collect();
    let content = (!parts.is_empty()).then(|| json!({"role": role, "parts": parts}))?;
    Some(AdkContent { author: author.to_owned(), content: Some(content) })
}

fn part(content: &Content) -> Option<Value> {
    Some(match content {
        Content::Text(text) => json!({"text": text}),
        Content::Reasoning(text) => json!({"text": text, "thought": true}),
        Content::ToolCall(call) => {
            let arguments = arguments(&call.arguments.to_text());
            json!({"functionCall": {"id": call.id, "name": call.name, "args": arguments}})
        }
        Content::ToolResult(result) => {
            let response = response(result);
            json!({"functionResponse": {"id": result.call_id(), "name": result.name(), "response": response}})
        }
        _ => return None,
    })
}

/// A response is an object.
fn response(result: &ToolResult) -> Value {
    match result.content() {
        ToolContent::Value(value @ Value::Object(_)) => value.clone(),
        ToolContent::Value(value) => json!({"result": value}),
        ToolContent::Error(error) => json!({"error": error}),
        _ => json!({"result": result.text()}),
    }
}

/// Arguments are an object: text that is not an object becomes one.
fn arguments(text: &str) -> Value {
    match serde_json::from_str(text) {
        Ok(Value::Object(arguments)) => Value::Object(arguments),
        Ok(Value::Null) => json!({}),
        _ => json!({"arguments": text}),
    }
}

fn usage(event: &Event) -> Option<Value> {
    let record = event.record.as_ref().filter(|record| record.format == RECORD_FORMAT)?;
    let EventKind::Replied { usage, .. } = record.read::<agent_loop::Event>().ok()?.kind else { return None };
    let Usage { input_tokens, output_tokens, .. } = usage;
    Some(json!({
        "promptTokenCount": input_tokens,
        "candidatesTokenCount": output_tokens,
        "totalTokenCount": input_tokens + output_tokens,
    }))
}

fn frame(id: &str, invocation: &str, author: &str, at: Timestamp, delta: &Value) -> Value {
    json!({
        "id": id,
        "invocationId": invocation,
        "author": author,
        "timestamp": seconds(at),
        "actions": {
            "stateDelta": delta,
            "artifactDelta": {},
            "requestedAuthConfigs": {},
            "requestedToolConfirmations": {},
        },
    })
}

/// Seconds since 1970, as clients have them.
#[expect(clippy::cast_precision_loss, reason = "microseconds of this age have 52 bits")]
pub(super) fn seconds(at: Timestamp) -> f64 {
    at.as_micros() as f64 / 1e6
}

/// A session, without its events.
pub(super) fn session(
    app: &str,
    user: &str,
    id: &str,
    mut state: Map<String, Value>,
    title: Option<&Value>,
    updated: Timestamp,
) -> Value {
    if let Some(title) = title {
        state.insert(METADATA.to_owned(), title.clone());
    }
    json!({
        "id": id,
        "appName": app,
        "userId": user,
        "state": state,
        "events": [],
        "lastUpdateTime": seconds(updated),
    })
}
