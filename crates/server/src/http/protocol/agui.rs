//! AG-UI 1.0: one request for each run, whose response is a stream of events.
//!
//! Clients send the history and the state with each request. Both are ours: only new messages of the user and decisions
//! are read.

use std::borrow::Cow;

use axum::response::Response;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use stepfold_agent_loop::{ApprovalRequest, Decision, Exit, Input};
use stepfold_runner::{Runner, SessionHandle};
use stepfold_session_scopes::Session;
use stepfold_state_core::chat::{Role, Usage};

use super::run_updates::{CallEnd, RunUpdate, StreamEnd, StreamedCall, recent};
use crate::http::guard::problem::Problem;
use crate::http::operation::request::{ApiRequest, AppTarget, JsonBody};
use crate::http::protocol::{
    ClientRequest, ProtocolFrame, UpdateEncoder, accept, key_of, run_permit, session_of, stream, with_words,
};
use crate::http::rows::exit;

pub(super) const RUN: &str = "Runs an app in the thread of an AG-UI client, and streams its events.";

/// A run request of an AG-UI client.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct RunAgentInput {
    /// The id of the session.
    thread_id: String,
    /// The id that the client has for the run; the same one again is the same run.
    run_id: String,
    #[serde(default)]
    protocol_version: Option<String>,
    /// The conversation, of which only the user's last messages are read.
    #[serde(default)]
    messages: Vec<AguiMessage>,
    /// Answers to interrupts.
    #[serde(default)]
    resume: Option<Vec<ResumeEntry>>,
}

/// A message of an AG-UI client.
#[derive(Deserialize, JsonSchema)]
struct AguiMessage {
    #[serde(default)]
    id: String,
    role: String,
    /// Text, or parts.
    #[serde(default)]
    content: Value,
}

/// An answer to an interrupt.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ResumeEntry {
    interrupt_id: String,
    /// `resolved` or `cancelled`.
    status: String,
    #[serde(default)]
    payload: Option<Answered>,
}

/// The answer of a person.
#[derive(Deserialize, JsonSchema)]
struct Answered {
    approved: bool,
    #[serde(default)]
    reason: Option<String>,
    /// Other arguments, or the answer to the question of a tool.
    #[serde(default)]
    arguments: Option<Value>,
}

impl ResumeEntry {
    fn decision(self) -> Result<(String, Decision), Problem> {
        let decision = match (self.status.as_str(), self.payload) {
            ("cancelled", _) => Decision::reject("cancelled by the user"),
            ("resolved", Some(Answered { approved: false, reason, .. })) => {
                Decision::reject(reason.unwrap_or_default())
            }
            ("resolved", Some(Answered { arguments: Some(arguments), .. })) => Decision::modify(arguments),
            ("resolved", Some(_)) => Decision::Approve,
            _ => {
                return Err(Problem::invalid(
                    "resume",
                    "expected `cancelled`, or `resolved` with `approved`",
                ));
            }
        };
        Ok((self.interrupt_id, decision))
    }
}

impl RunAgentInput {
    /// The messages of the user after the last message of another role.
    fn new_messages(&self) -> &[AguiMessage] {
        let last =
            self.messages.iter().rposition(|message| message.role != "user").map_or(0, |place| place + 1);
        self.messages.get(last..).unwrap_or_default()
    }

    fn order(&mut self) -> Result<ClientRequest, Problem> {
        let resume = self.resume.take().unwrap_or_default();
        let new = self.new_messages();
        let mut parts = vec!["agui", self.run_id.as_str()];
        match (resume.is_empty(), new.is_empty()) {
            (true, false) => {
                parts.extend(new.iter().map(|message| message.id.as_str()));
                let key = key_of(&parts);
                let mut texts = new.iter().map(|message| text_of(&message.content));
                let input = texts.try_fold(Input::new(), |input, text| Ok::<_, Problem>(input.say(text?)))?;
                Ok(ClientRequest::Send(Box::new(input), Some(key)))
            }
            (false, true) => {
                parts.extend(resume.iter().map(|entry| entry.interrupt_id.as_str()));
                let key = key_of(&parts);
                Ok(ClientRequest::Decide(
                    resume.into_iter().map(ResumeEntry::decision).collect::<Result<_, _>>()?,
                    Some(key),
                ))
            }
            (true, true) => {
                Err(Problem::invalid("messages", "nothing new: the last one must be of the user"))
            }
            (false, false) => {
                Err(Problem::invalid("resume", "decide first, and send the message with the next run"))
            }
        }
    }
}

fn text_of(content: &Value) -> Result<String, Problem> {
    let text = match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => match parts.iter().find(|part| part["type"] != "text") {
            None => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
            Some(_) => return Err(Problem::invalid("messages", "only parts of type `text` are read")),
        },
        _ => return Err(Problem::invalid("messages", "expected text")),
    };
    with_words("messages", text)
}

/// The order without the messages that the session has already.
async fn without_known(
    order: ClientRequest,
    runner: &Runner,
    session: &SessionHandle,
) -> Result<ClientRequest, Problem> {
    let ClientRequest::Send(input, Some(key)) = order else { return Ok(order) };
    let messages = input.only_messages().unwrap_or_default();
    // One alone is new.
    if messages.len() < 2 {
        return Ok(ClientRequest::Send(input, Some(key)));
    }
    let stored = recent(runner, session).await?;
    let texts: Vec<Cow<'_, str>> = messages.iter().map(|message| message.text()).collect();
    let new = texts.iter().skip(known(&stored, &key, &texts));
    let input = new.fold(Input::new(), |input, text| input.say(&**text));
    Ok(ClientRequest::Send(Box::new(input), Some(key)))
}

/// Counts the leading messages that the session has: clients send unanswered messages again before the new ones. The
/// messages of an invocation that the session has are not counted.
fn known(stored: &Session, invocation: &str, texts: &[Cow<'_, str>]) -> usize {
    let (mut unanswered, mut own) = (Vec::new(), Vec::new());
    for commit in stored.visible_events() {
        let is_own = commit.event.invocation.as_str() == invocation;
        for message in &commit.event.messages {
            match message.role() {
                Role::User if is_own => own.push(message.text()),
                Role::User => unanswered.push(message.text()),
                // No client gets it.
                Role::Assistant if message.text().is_empty() && message.tool_calls().next().is_none() => {}
                _ => unanswered.clear(),
            }
        }
    }
    if !own.is_empty() && texts.ends_with(&own) {
        return texts.len() - own.len();
    }
    let is_known = texts.len() > unanswered.len() && texts.starts_with(&unanswered);
    if is_known { unanswered.len() } else { 0 }
}

pub(super) async fn run(
    request: ApiRequest<AppTarget, (), JsonBody<RunAgentInput>>,
) -> Result<Response, Problem> {
    let (app, JsonBody(mut input)) = (&request.target.0, request.body);
    let (runner, order) = (app.runner(), input.order()?);
    let permit = run_permit(&request.shared, &request.principal)?;
    let stream_permit = request.shared.stream_permit(&request.principal)?;
    let session = session_of(app, &request.principal, &input.thread_id, &order).await?;
    let order = without_known(order, runner, &session).await?;
    let reader = accept::<Problem>(permit, &request.principal, runner, session, order).await?;
    let events = AguiEncoder::new(input.thread_id, input.run_id, input.protocol_version);
    Ok(stream(stream_permit, reader, events))
}

/// A message that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpenMessage {
    Nothing,
    Reasoning,
    Text,
}

/// Makes events.
pub(super) struct AguiEncoder {
    thread: String,
    run: String,
    protocol: Option<String>,
    invocation: String,
    open: OpenMessage,
    /// The number of messages until now.
    messages: u64,
    /// The id of the reply's message, once it has one.
    reply: Option<String>,
    /// The messages of the step's text and reasoning.
    step_messages: Vec<String>,
    step: Option<String>,
}

impl AguiEncoder {
    pub(super) fn new(thread: String, run: String, protocol: Option<String>) -> Self {
        let (invocation, reply, step_messages, step) = (String::new(), None, Vec::new(), None);
        AguiEncoder {
            thread,
            run,
            protocol,
            invocation,
            open: OpenMessage::Nothing,
            messages: 0,
            reply,
            step_messages,
            step,
        }
    }

    fn new_id(&mut self) -> String {
        self.messages += 1;
        format!("{}-{}", self.invocation, self.messages)
    }

    fn id(&self) -> String {
        format!("{}-{}", self.invocation, self.messages)
    }

    fn began(&mut self, invocation: &str, state: &Value) -> Vec<Value> {
        invocation.clone_into(&mut self.invocation);
        let mut started = json!({"type": "RUN_STARTED", "threadId": self.thread, "runId": self.run});
        if let Some(version) = &self.protocol {
            started["protocolVersion"] = json!(version);
        }
        vec![started, json!({"type": "STATE_SNAPSHOT", "snapshot": state})]
    }

    /// Closes what is open.
    fn close(&mut self) -> Vec<Value> {
        let id = self.id();
        match std::mem::replace(&mut self.open, OpenMessage::Nothing) {
            OpenMessage::Nothing => Vec::new(),
            OpenMessage::Text => vec![json!({"type": "TEXT_MESSAGE_END", "messageId": id})],
            OpenMessage::Reasoning => vec![
                json!({"type": "REASONING_MESSAGE_END", "messageId": id}),
                json!({"type": "REASONING_END", "messageId": id}),
            ],
        }
    }

    fn close_step(&mut self) -> Vec<Value> {
        let mut events = self.close();
        self.reply = None;
        self.step_messages.clear();
        events.extend(self.step.take().map(|step| json!({"type": "STEP_FINISHED", "stepName": step})));
        events
    }

    fn step(&mut self, step: u64) -> Vec<Value> {
        let mut events = self.close_step();
        let name = format!("step {step}");
        events.push(json!({"type": "STEP_STARTED", "stepName": name}));
        self.step = Some(name);
        events
    }

    fn delta(&mut self, kind: OpenMessage, delta: &str) -> Vec<Value> {
        if delta.is_empty() {
            return Vec::new();
        }
        let mut events = Vec::new();
        if self.open != kind {
            events = self.close();
            let id = self.new_id();
            self.step_messages.push(id.clone());
            if kind == OpenMessage::Text {
                self.reply = Some(id.clone());
                events.push(json!({"type": "TEXT_MESSAGE_START", "messageId": id, "role": "assistant"}));
            } else {
                events.push(json!({"type": "REASONING_START", "messageId": id}));
                events.push(json!({"type": "REASONING_MESSAGE_START", "messageId": id, "role": "reasoning"}));
            }
            self.open = kind;
        }
        let name =
            if kind == OpenMessage::Text { "TEXT_MESSAGE_CONTENT" } else { "REASONING_MESSAGE_CONTENT" };
        events.push(json!({"type": name, "messageId": self.id(), "delta": delta}));
        events
    }

    /// Voids the text and reasoning of this step.
    fn restarted(&mut self) -> Vec<Value> {
        let mut events = self.close();
        self.reply = None;
        let void = |id| json!({"type": "CUSTOM", "name": "stepfold.void", "value": {"messageId": id}});
        events.extend(self.step_messages.drain(..).map(void));
        events
    }

    fn call(&mut self, call: &StreamedCall) -> Vec<Value> {
        let mut events = self.close();
        let parent = match &self.reply {
            Some(reply) => reply.clone(),
            None => self.new_id(),
        };
        self.reply = Some(parent.clone());
        let arguments = match &call.arguments {
            Value::String(text) => text.clone(),
            arguments => arguments.to_string(),
        };
        let start = json!({
            "type": "TOOL_CALL_START", "toolCallId": call.id, "toolCallName": call.name, "parentMessageId": parent,
        });
        events.push(start);
        if !arguments.is_empty() {
            events.push(json!({"type": "TOOL_CALL_ARGS", "toolCallId": call.id, "delta": arguments}));
        }
        events.push(json!({"type": "TOOL_CALL_END", "toolCallId": call.id}));
        events
    }

    fn outcome(&mut self, end: &CallEnd) -> Vec<Value> {
        let mut events = self.close();
        let id = self.new_id();
        events.push(json!({
            "type": "TOOL_CALL_RESULT", "messageId": id, "toolCallId": end.id, "content": end.text, "role": "tool",
        }));
        events
    }

    fn end(&mut self, end: &StreamEnd, usage: Usage, version: u64) -> Vec<Value> {
        let mut events = self.close_step();
        if let StreamEnd::Failed(problem) = end {
            events.push(json!({"type": "RUN_ERROR", "message": problem.detail(), "code": problem.kind()}));
            return events;
        }
        let mut finished = json!({"type": "RUN_FINISHED", "threadId": self.thread, "runId": self.run});
        let mut result = json!({"version": version});
        finished["outcome"] = match end {
            StreamEnd::Waiting(requests) => {
                let interrupts: Vec<Value> = requests.iter().map(interrupt).collect();
                json!({"type": "interrupt", "interrupts": interrupts})
            }
            // The first generation of clients knows no other.
            StreamEnd::Finished(Exit::Cancelled) if self.protocol.is_some() => json!({"type": "cancelled"}),
            _ => json!({"type": "success"}),
        };
        match end {
            StreamEnd::Finished(reason) => result["exit"] = exit(reason),
            StreamEnd::Suspended => result["exit"] = json!("suspended"),
            _ => {}
        }
        finished["result"] = result;
        if self.protocol.is_some() {
            finished["usage"] =
                json!([{"inputTokens": usage.input_tokens, "outputTokens": usage.output_tokens}]);
        }
        events.push(finished);
        events
    }
}

impl UpdateEncoder for AguiEncoder {
    fn push(&mut self, update: &RunUpdate) -> Vec<ProtocolFrame> {
        let events = match update {
            RunUpdate::Began { invocation, state, .. } => self.began(invocation, state),
            RunUpdate::Step(step) => self.step(*step),
            RunUpdate::Reasoning(delta) => self.delta(OpenMessage::Reasoning, delta),
            RunUpdate::Text(delta) | RunUpdate::Repeated(delta) => self.delta(OpenMessage::Text, delta),
            RunUpdate::Restarted => self.restarted(),
            RunUpdate::Call(call) => self.call(call),
            RunUpdate::Outcome(end) => self.outcome(end),
            RunUpdate::Progress { call, report } => {
                let value = json!({"toolCallId": call, "report": report});
                vec![json!({"type": "CUSTOM", "name": "stepfold.progress", "value": value})]
            }
            RunUpdate::State { before, after } => {
                // NOTE: Clients apply patches (RFC 6902) by libraries, whose escapes and indexes must be met exactly
                // (docs/decisions/server.md).
                let delta = json_patch::diff(before, after);
                vec![json!({"type": "STATE_DELTA", "delta": delta})]
            }
            RunUpdate::Committed(commit) => {
                let version = commit.version;
                vec![json!({"type": "CUSTOM", "name": "stepfold.committed", "value": {"version": version}})]
            }
            // The result of the call has them.
            RunUpdate::LastWords(_) => Vec::new(),
            RunUpdate::Ended { end, usage, version } => self.end(end, *usage, *version),
        };
        events.into_iter().map(ProtocolFrame::Json).collect()
    }
}

/// A request as an interrupt.
fn interrupt(request: &ApprovalRequest) -> Value {
    let arguments = request.schema().cloned().unwrap_or_else(|| json!({"type": "object"}));
    let mut properties = Map::from_iter([
        ("approved".to_owned(), json!({"type": "boolean"})),
        ("reason".to_owned(), json!({"type": "string"})),
    ]);
    if request.can_modify() {
        properties.insert("arguments".to_owned(), arguments);
    }
    json!({
        "id": request.id,
        "reason": "tool_call",
        "toolCallId": request.call.id,
        "message": request.to_text(),
        "responseSchema": {"type": "object", "properties": properties, "required": ["approved"]},
    })
}
