//! The stream of UI messages of the AI SDK.

use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use stepfold_agent_loop::{Decision, Exit, Input};
use stepfold_runner::{RecordedDecision, SessionHandle};

use super::run_updates::{CallEnd, RunReader, RunUpdate, StreamEnd, StreamedCall};
use crate::http::app::SessionTarget;
use crate::http::guard::problem::Problem;
use crate::http::operation::request::{ApiRequest, AppTarget, JsonBody, find_session};
use crate::http::protocol::{
    ClientRequest, ProtocolFrame, UpdateEncoder, accept, key_of, run_permit, stream, with_words,
};
use crate::http::rows::{RequestRow, exit};

pub(super) const CHAT: &str =
    "Sends the last message of an AI SDK chat to an app, and streams the parts of the answer.";

pub(super) const RESUME: &str =
    "Streams the run of an AI SDK chat from its beginning, if one is running: 204 if not.";

/// A request of the transport of an AI SDK chat.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct UiChat {
    /// The id of the chat: that of the session.
    id: String,
    /// The conversation, of which only the last message is read.
    messages: Vec<UiMessage>,
    #[serde(default)]
    trigger: Option<String>,
}

/// A message of a chat.
#[derive(Deserialize, JsonSchema)]
struct UiMessage {
    id: String,
    role: String,
    #[serde(default)]
    parts: Vec<Value>,
}

impl UiMessage {
    fn input(&self) -> Result<Input, Problem> {
        match self.parts.iter().find(|part| part["type"] != "text") {
            None => {
                let text = self.parts.iter().filter_map(|part| part["text"].as_str()).collect();
                Ok(Input::new().say(with_words("messages", text)?))
            }
            Some(_) => Err(Problem::invalid("messages", "only parts of type `text` are read")),
        }
    }

    /// The decisions about some requests, by their ids.
    fn decisions(&self, is_one: impl Fn(&str) -> bool) -> Vec<(String, Decision)> {
        let answered = |part: &Value| {
            let approval = &part["approval"];
            let id = approval["id"].as_str().filter(|id| is_one(id))?;
            let decision = match approval["approved"].as_bool()? {
                true => Decision::Approve,
                false => Decision::reject(approval["reason"].as_str().unwrap_or_default()),
            };
            Some((id.to_owned(), decision))
        };
        self.parts.iter().filter_map(answered).collect()
    }
}

pub(super) async fn chat(request: ApiRequest<AppTarget, (), JsonBody<UiChat>>) -> Result<Response, Problem> {
    let (app, JsonBody(chat)) = (&request.target.0, request.body);
    let runner = app.runner();
    if chat.trigger.as_deref() == Some("regenerate-message") {
        return Err(Problem::invalid(
            "trigger",
            "history is not replaced; fork the session before the message, and send it",
        ));
    }
    let last = chat.messages.last().ok_or_else(|| Problem::invalid("messages", "expected at least one"))?;
    let (user, id) = (request.principal.user().as_str(), chat.id.as_str());
    let permit = run_permit(&request.shared, &request.principal)?;
    let stream_permit = request.shared.stream_permit(&request.principal)?;
    let (session, order, message) = if last.role == "user" {
        let order = ClientRequest::Send(Box::new(last.input()?), Some(key_of(&["ai", id, &last.id])));
        (runner.session(user, id).await?, order, None)
    } else {
        let session = find_session(app, &request.principal, id).await?;
        let decisions = answered_decisions(last, &session).await?;
        let ids: Vec<&str> = decisions.iter().map(|(id, _)| id.as_str()).collect();
        let key = key_of(&[&["ai", id], ids.as_slice()].concat());
        (session, ClientRequest::Decide(decisions, Some(key)), Some(last.id.clone()))
    };
    let reader = accept::<Problem>(permit, &request.principal, runner, session, order).await?;
    Ok(with_protocol_header(stream(stream_permit, reader, UiPartEncoder::new(message))))
}

/// The decisions of a message about what waits. A client that sends its message again decides nothing that does: then
/// these are the ones that it sent before, as the record has them together.
async fn answered_decisions(
    last: &UiMessage,
    session: &SessionHandle,
) -> Result<Vec<(String, Decision)>, Problem> {
    let pending = session.pending().await?;
    let decisions = last.decisions(|id| pending.iter().any(|request| request.id == id));
    if !decisions.is_empty() {
        return Ok(decisions);
    }
    let recorded = session.decisions().await?;
    let answered = last.decisions(|id| recorded.iter().any(|recorded| recorded.request == id));
    let is_answered = |recorded: &&RecordedDecision| answered.iter().any(|(id, _)| *id == recorded.request);
    let Some(newest) = recorded.iter().find(is_answered) else {
        let why = "the last one is not of the user, and decides nothing that waits";
        return Err(Problem::invalid("messages", why));
    };
    let is_together = |recorded: &&RecordedDecision| recorded.version == newest.version;
    let together: Vec<&str> =
        recorded.iter().filter(is_together).map(|recorded| recorded.request.as_str()).collect();
    Ok(answered.into_iter().filter(|(id, _)| together.contains(&id.as_str())).collect())
}

pub(super) async fn resume(request: ApiRequest<SessionTarget>) -> Result<Response, Problem> {
    let session = request.target.session.clone();
    let Some(reader) = RunReader::attach(request.target.runner(), &session).await? else {
        return Ok(StatusCode::NO_CONTENT.into_response());
    };
    let parts = UiPartEncoder::of_message(Some(reader.run().to_owned()));
    let stream_permit = request.shared.stream_permit(&request.principal)?;
    Ok(with_protocol_header(stream(stream_permit, reader, parts)))
}

/// Adds the header by which clients recognise the protocol.
fn with_protocol_header(response: Response) -> Response {
    ([("x-vercel-ai-ui-message-stream", "v1")], response).into_response()
}

/// A part that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpenPart {
    Nothing,
    Reasoning,
    Text,
}

/// Makes parts.
pub(super) struct UiPartEncoder {
    /// The message that continues, after a decision.
    message: Option<String>,
    open: OpenPart,
    texts: u64,
    /// The parts of the step's text and reasoning.
    step_parts: Vec<String>,
    is_in_step: bool,
    /// Calls of an earlier stream, which a client that comes new does not know.
    earlier: Vec<StreamedCall>,
    sent_calls: Vec<String>,
    continues: bool,
}

impl UiPartEncoder {
    pub(super) fn new(message: Option<String>) -> Self {
        let continues = message.is_some();
        UiPartEncoder { continues, ..UiPartEncoder::of_message(message) }
    }

    /// An encoder for a client that may not know the message.
    fn of_message(message: Option<String>) -> Self {
        UiPartEncoder {
            message,
            open: OpenPart::Nothing,
            texts: 0,
            step_parts: Vec::new(),
            is_in_step: false,
            earlier: Vec::new(),
            sent_calls: Vec::new(),
            continues: false,
        }
    }

    fn id(&self) -> String {
        format!("p{}", self.texts)
    }

    fn close(&mut self) -> Vec<Value> {
        let id = self.id();
        match std::mem::replace(&mut self.open, OpenPart::Nothing) {
            OpenPart::Nothing => Vec::new(),
            OpenPart::Text => vec![json!({"type": "text-end", "id": id})],
            OpenPart::Reasoning => vec![json!({"type": "reasoning-end", "id": id})],
        }
    }

    fn close_step(&mut self) -> Vec<Value> {
        let mut parts = self.close();
        self.step_parts.clear();
        if std::mem::take(&mut self.is_in_step) {
            parts.push(json!({"type": "finish-step"}));
        }
        parts
    }

    fn step(&mut self) -> Vec<Value> {
        let mut parts = self.close_step();
        self.is_in_step = true;
        parts.push(json!({"type": "start-step"}));
        parts
    }

    fn delta(&mut self, kind: OpenPart, delta: &str) -> Vec<Value> {
        let name = if kind == OpenPart::Text { "text" } else { "reasoning" };
        let mut parts = Vec::new();
        if delta.is_empty() {
            return parts;
        }
        if self.open != kind {
            parts = self.close();
            self.texts += 1;
            self.open = kind;
            self.step_parts.push(self.id());
            parts.push(json!({"type": format!("{name}-start"), "id": self.id()}));
        }
        parts.push(json!({"type": format!("{name}-delta"), "id": self.id(), "delta": delta}));
        parts
    }

    fn call(&mut self, call: &StreamedCall) -> Vec<Value> {
        let mut parts = self.close();
        self.sent_calls.push(call.id.clone());
        parts.push(json!({
            "type": "tool-input-available",
            "toolCallId": call.id,
            "toolName": call.name,
            "input": call.arguments,
            "dynamic": true,
        }));
        parts
    }

    /// A call that the client may not know.
    fn call_if_unknown(&mut self, call: &StreamedCall) -> Vec<Value> {
        let is_known = self.sent_calls.contains(&call.id) || (self.continues && self.earlier.contains(call));
        if is_known { Vec::new() } else { self.call(call) }
    }

    fn outcome(&mut self, end: &CallEnd) -> Vec<Value> {
        let found = self.earlier.iter().find(|call| call.id == end.id).cloned();
        let call = found.unwrap_or_else(|| StreamedCall {
            id: end.id.clone(),
            name: end.name.clone(),
            arguments: json!({}),
        });
        let mut parts = self.call_if_unknown(&call);
        parts.extend(self.close());
        parts.push(if end.is_rejected {
            json!({"type": "tool-output-denied", "toolCallId": end.id})
        } else if end.is_error {
            json!({"type": "tool-output-error", "toolCallId": end.id, "errorText": end.text, "dynamic": true})
        } else {
            json!({"type": "tool-output-available", "toolCallId": end.id, "output": end.value, "dynamic": true})
        });
        parts
    }

    fn end(&mut self, end: &StreamEnd, version: u64) -> Vec<Value> {
        let mut parts = self.close();
        let mut metadata = json!({"version": version});
        match end {
            StreamEnd::Failed(problem) => {
                parts.extend(self.close_step());
                parts.push(json!({"type": "error", "errorText": problem.detail()}));
                return parts;
            }
            StreamEnd::Waiting(requests) => {
                for request in requests {
                    parts.extend(self.call_if_unknown(&StreamedCall::from(&request.call)));
                    let ids = (&request.id, &request.call.id);
                    // The protocol's own part has no room for what is asked beside the input.
                    let asks =
                        json!({"approvalId": ids.0, "toolCallId": ids.1, "request": RequestRow::of(request)});
                    parts.push(json!({"type": "data-approval", "id": ids.0, "data": asks}));
                    parts.push(
                        json!({"type": "tool-approval-request", "approvalId": ids.0, "toolCallId": ids.1}),
                    );
                }
            }
            StreamEnd::Finished(reason) => metadata["exit"] = exit(reason),
            StreamEnd::Suspended => metadata["exit"] = json!("suspended"),
        }
        parts.extend(self.close_step());
        let reason = match end {
            StreamEnd::Waiting(_) => "tool-calls",
            StreamEnd::Finished(Exit::Length | Exit::MaxTokens) => "length",
            StreamEnd::Finished(Exit::ContentFilter | Exit::Refusal) => "content-filter",
            StreamEnd::Finished(Exit::Text | Exit::Output | Exit::Tool(_) | Exit::NoTools | Exit::End) => {
                "stop"
            }
            _ => "other",
        };
        parts.push(json!({"type": "finish", "finishReason": reason, "messageMetadata": metadata}));
        parts
    }
}

impl UpdateEncoder for UiPartEncoder {
    fn push(&mut self, update: &RunUpdate) -> Vec<ProtocolFrame> {
        let parts = match update {
            RunUpdate::Began { invocation, open, .. } => {
                self.earlier.clone_from(open);
                let message = self.message.take().unwrap_or_else(|| invocation.clone());
                vec![json!({"type": "start", "messageId": message})]
            }
            RunUpdate::Step(_) => self.step(),
            RunUpdate::Reasoning(delta) => self.delta(OpenPart::Reasoning, delta),
            RunUpdate::Text(delta) | RunUpdate::Repeated(delta) => self.delta(OpenPart::Text, delta),
            RunUpdate::Restarted => {
                let mut parts = self.close();
                let void = |id| json!({"type": "data-void", "data": {"part": id}});
                parts.extend(self.step_parts.drain(..).map(void));
                parts
            }
            RunUpdate::Call(call) => self.call(call),
            RunUpdate::Outcome(end) => self.outcome(end),
            RunUpdate::Progress { call, report } => {
                let data = json!({"toolCallId": call, "report": report});
                vec![json!({"type": "data-progress", "data": data, "transient": true})]
            }
            RunUpdate::State { after, .. } => {
                vec![json!({"type": "data-state", "id": "state", "data": after})]
            }
            RunUpdate::Committed(commit) => {
                vec![json!({"type": "message-metadata", "messageMetadata": {"version": commit.version}})]
            }
            // The result of the call has them.
            RunUpdate::LastWords(_) => Vec::new(),
            RunUpdate::Ended { end, version, .. } => self.end(end, *version),
        };
        let mut frames: Vec<ProtocolFrame> = parts.into_iter().map(ProtocolFrame::Json).collect();
        if matches!(update, RunUpdate::Ended { .. }) {
            frames.push(ProtocolFrame::Done);
        }
        frames
    }
}
