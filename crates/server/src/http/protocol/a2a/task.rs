//! A run as a task of the protocol. Pure.

use serde_json::{Value, json};
use stepfold_agent_loop::{ApprovalRequest, Decision, Exit};
use stepfold_runner::failure;
use stepfold_session_scopes::{CommittedEvent, Session, Timestamp};
use stepfold_state_core::chat::{Message, Role};

use crate::http::rows::session_status::LastRun;
use crate::http::rows::{DecisionRow, RequestRow};
use crate::question::of_persons;

/// The name of a task: the invocation that began its run, in a session. Clients name both: `@` in that of the invocation,
/// which ends it, is written as `%40`, and `%` as `%25`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct A2aTaskId {
    pub(in super::super) invocation: String,
    pub(in super::super) session: String,
}

impl A2aTaskId {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (invocation, session) = text.split_once('@')?;
        let invocation = invocation.replace("%40", "@").replace("%25", "%");
        Some(A2aTaskId { invocation, session: session.to_owned() })
    }

    /// A status of the task, with the parts of a message.
    pub(super) fn status(&self, state: TaskState, parts: Option<Value>, at: Timestamp) -> Value {
        let mut status = json!({"state": state.name(), "timestamp": at.to_string()});
        if let Some(parts) = parts {
            let id = format!("{self}-status");
            status["message"] = self.message(&id, "ROLE_AGENT", &parts);
        }
        status
    }

    fn message(&self, id: &str, role: &str, parts: &Value) -> Value {
        json!({
            "messageId": id,
            "contextId": self.session,
            "taskId": self.to_string(),
            "role": role,
            "parts": parts,
        })
    }
}

impl std::fmt::Display for A2aTaskId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let invocation = self.invocation.replace('%', "%25").replace('@', "%40");
        write!(f, "{invocation}@{}", self.session)
    }
}

/// A run, as a session has it.
pub(super) struct A2aTask<'a> {
    pub(super) id: A2aTaskId,
    commits: Vec<&'a CommittedEvent>,
    /// Whether no run follows.
    is_last: bool,
}

/// The runs of a session, the oldest first.
pub(super) fn tasks(stored: &Session) -> Vec<A2aTask<'_>> {
    let mut tasks: Vec<A2aTask<'_>> = Vec::new();
    for commit in stored.visible_events() {
        let event = &commit.event;
        if event.kind.as_str() == "began" {
            if let Some(before) = tasks.last_mut() {
                before.is_last = false;
            }
            let id =
                A2aTaskId { invocation: event.invocation.to_string(), session: stored.key.id.to_string() };
            tasks.push(A2aTask { id, commits: vec![commit], is_last: true });
        } else if let Some(task) = tasks.last_mut() {
            task.commits.push(commit);
        }
    }
    tasks
}

/// The message of a task without an exit of which events were erased.
const ERASED: &str = "content of the task was erased, and the task cannot continue";

/// The message of a task whose run was ended by an erasure or a rewind of the session.
const ABANDONED: &str = "the task was ended by a rewind of its session, or by an erasure of earlier content";

/// The state of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TaskState {
    Submitted,
    Working,
    Completed,
    Failed,
    Canceled,
    InputRequired,
}

impl TaskState {
    pub(super) const ALL: [TaskState; 6] = [
        TaskState::Submitted,
        TaskState::Working,
        TaskState::Completed,
        TaskState::Failed,
        TaskState::Canceled,
        TaskState::InputRequired,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            TaskState::Submitted => "TASK_STATE_SUBMITTED",
            TaskState::Working => "TASK_STATE_WORKING",
            TaskState::Completed => "TASK_STATE_COMPLETED",
            TaskState::Failed => "TASK_STATE_FAILED",
            TaskState::Canceled => "TASK_STATE_CANCELED",
            TaskState::InputRequired => "TASK_STATE_INPUT_REQUIRED",
        }
    }

    /// Whether nothing more happens.
    pub(super) const fn is_terminal(self) -> bool {
        matches!(self, TaskState::Completed | TaskState::Failed | TaskState::Canceled)
    }
}

/// The state after an exit, and why it is that, if it failed.
pub(super) fn after(exit: &Exit) -> (TaskState, Option<Value>) {
    match exit {
        Exit::Cancelled => (TaskState::Canceled, None),
        Exit::Text | Exit::Output | Exit::Tool(_) | Exit::NoTools | Exit::End => (TaskState::Completed, None),
        exit => (TaskState::Failed, Some(json!([{"data": {"exit": exit}}]))),
    }
}

impl A2aTask<'_> {
    /// The exit of its run, once it has ended.
    fn exit(&self) -> Option<Exit> {
        let mut ends = self.commits.iter().rev().filter(|commit| commit.event.metadata.contains("exit"));
        ends.next().and_then(|last| last.event.metadata.read::<Exit>("exit"))
    }

    /// Whether content of its events was erased: its run had ended before, or was ended by that.
    fn is_erased(&self) -> bool {
        self.commits.iter().any(|commit| commit.event.erasure().is_some())
    }

    /// Whether its run was ended from outside: an event of the session that is not of the run follows the last one of it,
    /// for example that of a rewind or an erasure. Nothing continues it.
    fn is_abandoned(&self) -> bool {
        self.commits.iter().any(|commit| commit.event.invocation.as_str() != self.id.invocation)
    }

    /// Whether its last event is a reply without calls, which ends a run; an erased reply keeps that form, and not the exit.
    fn has_erased_reply(&self) -> bool {
        let is_own = |commit: &&&CommittedEvent| commit.event.invocation.as_str() == self.id.invocation;
        let Some(last) = self.commits.iter().rev().find(is_own) else { return false };
        let message = last.event.messages.last();
        last.event.erasure().is_some()
            && last.event.kind.as_str() == "replied"
            && message.is_some_and(|message| message.tool_calls().next().is_none())
    }

    /// Its state, with what the session waits for.
    pub(super) fn status(&self, run: &LastRun) -> (TaskState, Value) {
        let exit = self.exit();
        let failed = self.commits.last().and_then(|last| failure(&last.event));
        let at = self.commits.last().map(|last| last.event.at).unwrap_or_default();
        match (exit, failed) {
            (Some(exit), _) => {
                let (state, why) = after(&exit);
                (state, self.id.status(state, why, at))
            }
            (None, _) if self.is_erased() || self.is_abandoned() => {
                let state = if self.has_erased_reply() { TaskState::Completed } else { TaskState::Canceled };
                let why = if self.is_erased() { ERASED } else { ABANDONED };
                (state, self.id.status(state, Some(json!([{"text": why}])), at))
            }
            // The next run came before this one could end.
            (None, _) if !self.is_last => {
                (TaskState::Canceled, self.id.status(TaskState::Canceled, None, at))
            }
            (None, Some(why)) => {
                (TaskState::Failed, self.id.status(TaskState::Failed, Some(json!([{"text": why}])), at))
            }
            (None, None) => match run {
                LastRun::Invalid(why) => {
                    (TaskState::Failed, self.id.status(TaskState::Failed, Some(json!([{"text": why}])), at))
                }
                _ if of_persons(run.pending()).next().is_some() => {
                    let asked = asked(run.pending());
                    (TaskState::InputRequired, self.id.status(TaskState::InputRequired, Some(asked), at))
                }
                _ => (TaskState::Working, self.id.status(TaskState::Working, None, at)),
            },
        }
    }

    /// The whole of it, with at most so many messages.
    pub(super) fn to_json(&self, run: &LastRun, history: usize) -> Value {
        let messages = self.history();
        let shown = &messages[messages.len().saturating_sub(history)..];
        json!({
            "id": self.id.to_string(),
            "contextId": self.id.session,
            "status": self.status(run).1,
            "artifacts": self.artifacts(),
            "history": shown,
        })
    }

    /// The replies so far; after one without text, the last words of the run.
    pub(super) fn artifacts(&self) -> Vec<Value> {
        let messages = self.commits.iter().flat_map(|commit| &commit.event.messages);
        let last = messages.clone().rfind(|message| message.role() == Role::Assistant);
        let is_silent = last.is_some_and(|last| last.text().trim().is_empty());
        let words = self.exit().filter(|_| is_silent).and_then(|exit| exit.last_words(messages.clone()));
        let replies = messages.filter_map(|message| reply(message)).chain(words);
        (1..).zip(replies).map(|(number, text)| artifact(number, &text)).collect()
    }

    fn history(&self) -> Vec<Value> {
        let mut history = Vec::new();
        for commit in &self.commits {
            for (place, message) in commit.event.messages.iter().enumerate() {
                let role = match message.role() {
                    Role::User => "ROLE_USER",
                    Role::Assistant => "ROLE_AGENT",
                    _ => continue,
                };
                let text = message.text();
                if !text.is_empty() {
                    let id = format!("{}-{place}", commit.event.id);
                    history.push(self.id.message(&id, role, &json!([{"text": text}])));
                }
            }
        }
        history
    }
}

/// The text of a reply, if it has any.
pub(super) fn reply(message: &Message) -> Option<String> {
    let text = (message.role() == Role::Assistant).then(|| message.text())?;
    (!text.is_empty()).then(|| text.into_owned())
}

/// A reply as an artifact: of the run, by its number.
pub(super) fn artifact(number: usize, text: &str) -> Value {
    json!({"artifactId": format!("reply-{number}"), "parts": [{"text": text}]})
}

/// The parts of a request for input: text, and data with the ids that decisions name.
pub(super) fn asked(pending: &[ApprovalRequest]) -> Value {
    let words: Vec<String> = of_persons(pending).map(ApprovalRequest::to_text).collect();
    let requests: Vec<RequestRow> = of_persons(pending).map(RequestRow::of).collect();
    json!([{"text": words.join("\n\n")}, {"data": {"requests": requests}}])
}

/// The decisions in a message: data with `decisions` by id, or the words `approve` or `reject` about all that is asked.
pub(super) fn decisions(
    parts: &[Value],
    pending: &[ApprovalRequest],
) -> Result<Vec<(String, Decision)>, String> {
    if let Some(given) = parts.iter().find_map(|part| part["data"].get("decisions")) {
        let rows: std::collections::BTreeMap<String, DecisionRow> =
            serde_json::from_value(given.clone()).map_err(|error| format!("invalid decisions: {error}"))?;
        return Ok(rows.into_iter().map(|(id, row)| (id, Decision::from(row))).collect());
    }
    let text = text(parts);
    let (word, reason) = text.trim().split_once([' ', ':']).unwrap_or((text.trim(), ""));
    let decision = match &*word.to_ascii_lowercase() {
        "approve" => Decision::Approve,
        "reject" => Decision::reject(reason.trim()),
        _ => {
            return Err("the task waits for decisions: send a data part `{\"decisions\": {ID: \"approve\"}}`, or the text \
                        `approve` or `reject REASON`"
                .to_owned());
        }
    };
    Ok(of_persons(pending).map(|request| (request.id.clone(), decision.clone())).collect())
}

/// The text of a message.
pub(super) fn text(parts: &[Value]) -> String {
    let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
    texts.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_named_by_run_and_session() {
        for (text, session) in [("i1@s1", Some("s1")), ("m%40%25@a@b", Some("a@b")), ("s1", None)] {
            let id = A2aTaskId::parse(text);
            assert_eq!(id.as_ref().map(|id| &*id.session), session, "{text}");
            assert_eq!(id.map_or_else(|| "s1".to_owned(), |id| id.to_string()), text);
        }
    }
}
