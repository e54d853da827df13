//! Approvals, and questions of tools, as questions to the client: required input, or elicitation, by what the client can
//! do.

use std::fmt;

use rmcp::model as wire;
use rmcp::service::{RequestContext, RoleServer};
use serde_json::{Value, json};
use stepfold_agent_loop::{ApprovalRequest, AskReason, Decision};
use stepfold_runner::{RecordedDecision, SessionHandle};

pub(super) use crate::question::of_persons;

/// Whether the client takes a result that asks for input, and sends the request again with it.
pub(super) fn can_require_input(context: &RequestContext<RoleServer>) -> bool {
    is_modern(context) && can_answer(context)
}

/// Whether the request is of a revision without `initialize`.
pub(super) fn is_modern(context: &RequestContext<RoleServer>) -> bool {
    context.protocol_version().is_some_and(|version| !version.has_initialize())
}

fn can_answer(context: &RequestContext<RoleServer>) -> bool {
    context.client_capabilities().is_some_and(|client| client.elicitation.is_some())
}

/// The form of a request. That of a tool's question is the tool's.
fn form(request: &ApprovalRequest) -> Value {
    let schema = match request.reason {
        AskReason::Input => {
            request.schema().cloned().unwrap_or_else(|| json!({"type": "object", "properties": {}}))
        }
        _ => json!({
            "type": "object",
            "properties": {
                "decision": {"type": "string", "enum": ["approve", "reject"]},
                "reason": {"type": "string", "description": "Why not, for the agent."},
            },
            "required": ["decision"],
        }),
    };
    json!({"mode": "form", "message": request.to_text(), "requestedSchema": schema})
}

/// The questions of a result that requires input, by the ids of the requests.
pub(super) fn questions(pending: &[ApprovalRequest]) -> wire::InputRequests {
    let asked = of_persons(pending).filter_map(|request| {
        let params = serde_json::from_value(form(request));
        let params = params
            .inspect_err(|error| tracing::warn!(%error, "a question has a schema that clients cannot show"));
        let question = wire::InputRequest::Elicitation(wire::ElicitRequest::new(params.ok()?));
        Some((request.id.clone(), question))
    });
    asked.collect()
}

/// Says something before the first question that a result asks.
pub(super) fn say_before(required: &mut wire::InputRequiredResult, words: &str) {
    let first = required.input_requests.iter_mut().flatten().next();
    let Some((_, wire::InputRequest::Elicitation(request))) = first else { return };
    if let wire::ElicitRequestParams::FormElicitationParams { message, .. } = &mut request.params {
        *message = format!("{words}\n{message}");
    }
}

/// The result that asks for decisions. The answers come with the session, to whichever process serves then.
pub(super) fn required(session: &SessionHandle, pending: &[ApprovalRequest]) -> wire::InputRequiredResult {
    wire::InputRequiredResult::new(Some(questions(pending)), Some(session.key().id.as_str().to_owned()))
}

/// The decisions of a client that is asked while the call waits. Empty if it cannot be asked, or answers not at all.
pub(super) async fn elicited(
    pending: &[ApprovalRequest],
    context: &RequestContext<RoleServer>,
) -> Vec<(String, Decision)> {
    let mut decisions = Vec::new();
    if !can_answer(context) {
        return decisions;
    }
    for request in of_persons(pending) {
        let Ok(params) = serde_json::from_value(form(request)) else { continue };
        let answer = tokio::select! {
            answer = context.peer.create_elicitation(params) => answer,
            () = context.ct.cancelled() => return Vec::new(),
        };
        let answer = answer.ok().and_then(|answer| serde_json::to_value(answer).ok());
        let decision = answer.as_ref().and_then(|answer| decision(request, answer));
        decisions.extend(decision.map(|decision| (request.id.clone(), decision)));
    }
    decisions
}

/// The decisions about what is pending. Answers to anything else are left out: they were given before.
pub(super) fn decisions(
    pending: &[ApprovalRequest],
    answers: &wire::InputResponses,
) -> Vec<(String, Decision)> {
    let decided =
        |request: &ApprovalRequest| Some((request.id.clone(), decision(request, answers.get(&request.id)?)?));
    of_persons(pending).filter_map(decided).collect()
}

/// Whether all answers are about what is pending.
pub(super) fn are_all_about(pending: &[ApprovalRequest], answers: &wire::InputResponses) -> bool {
    answers.keys().all(|id| pending.iter().any(|request| request.id == *id))
}

/// An answer that changes nothing: another decision came before it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LateAnswer {
    /// The id of the request.
    pub(super) request: String,
    /// The decision that counts.
    decided: &'static str,
    by: Option<String>,
}

impl fmt::Display for LateAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LateAnswer { request, decided, by } = self;
        write!(f, "answer to `{request}` not taken: it was {decided} before")?;
        by.iter().try_for_each(|by| write!(f, " by {by}"))
    }
}

/// The answers to requests that were decided otherwise before. An answer that was sent twice is left out.
pub(super) fn late_answers(
    recorded: &[RecordedDecision],
    answers: &wire::InputResponses,
    as_recorded: impl Fn(Decision) -> Decision,
) -> Vec<LateAnswer> {
    let late = answers.iter().filter_map(|(id, answer)| {
        let recorded = recorded.iter().find(|recorded| recorded.request == *id)?;
        let decided = match &recorded.decision {
            Decision::Approve => "approved",
            Decision::Modify { .. } => "answered with other values",
            _ => "rejected",
        };
        let late = LateAnswer { request: id.clone(), decided, by: recorded.by.clone() };
        differs(&recorded.decision, answer, &as_recorded).then_some(late)
    });
    late.collect()
}

/// Whether an answer decides otherwise. To cancel decides nothing. A record may have other values than were given: an answer is
/// compared as it would be recorded.
fn differs(recorded: &Decision, answer: &Value, as_recorded: &impl Fn(Decision) -> Decision) -> bool {
    let content = &answer["content"];
    let rejects = content["decision"] == "reject";
    match (answer["action"].as_str(), recorded) {
        (Some("decline"), recorded) => !matches!(recorded, Decision::Reject { .. }),
        (Some("accept"), Decision::Approve) => rejects,
        (Some("accept"), Decision::Modify { .. }) => {
            as_recorded(Decision::modify(content.clone())) != *recorded
        }
        (Some("accept"), _) => !rejects,
        _ => false,
    }
}

/// The decision in a client's answer. To decline is to reject; to cancel decides nothing.
fn decision(request: &ApprovalRequest, answer: &Value) -> Option<Decision> {
    let content = &answer["content"];
    match (answer["action"].as_str()?, content["decision"].as_str()) {
        // NOTE: To decline is an answer, and rejects; to cancel only closes the form, so that the request stays pending.
        ("decline", _) => Some(Decision::reject("declined")),
        ("accept", _) if request.reason == AskReason::Input => {
            Some(match request.can_modify() && content.is_object() {
                true => Decision::modify(content.clone()),
                false => Decision::Approve,
            })
        }
        ("accept", Some("approve")) => Some(Decision::Approve),
        ("accept", Some("reject")) => Some(Decision::reject(content["reason"].as_str().unwrap_or_default())),
        _ => None,
    }
}
