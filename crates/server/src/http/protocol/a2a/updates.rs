//! Encodes the updates of a run as updates of its task: artifacts as they grow, and the status at the end. Pure.

use serde_json::{Value, json};
use stepfold_session_scopes::Timestamp;

use super::task::{A2aTaskId, TaskState};
use crate::http::protocol::a2a::task;
use crate::http::protocol::run_updates::{RunUpdate, StreamEnd};
use crate::http::protocol::{ProtocolFrame, UpdateEncoder};

/// The response of JSON-RPC with this result.
pub(super) fn response(id: &Value, result: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "result": result})
}

/// Makes updates of a task.
pub(in super::super) struct A2aEncoder {
    /// The id of the request.
    id: Value,
    task: A2aTaskId,
    /// The artifacts from before.
    before: Vec<Value>,
    /// The number of replies that are whole.
    replies: usize,
    /// The last of them from before.
    last: Option<String>,
    /// Whether text of the next one was told.
    has_part: bool,
    /// The time of the newest commit.
    at: Timestamp,
}

impl A2aEncoder {
    pub(in super::super) fn new(id: Value, task: A2aTaskId) -> Self {
        A2aEncoder {
            id,
            task,
            before: Vec::new(),
            replies: 0,
            last: None,
            has_part: false,
            at: Timestamp::default(),
        }
    }

    /// Adds the replies that the task has before the first update.
    pub(super) fn after(mut self, artifacts: Vec<Value>) -> Self {
        let last = artifacts.last().and_then(|last| last.pointer("/parts/0/text")?.as_str());
        self.last = last.map(str::to_owned);
        (self.replies, self.before) = (artifacts.len(), artifacts);
        self
    }

    fn began(&mut self) -> Value {
        let mut task = json!({
            "id": self.task.to_string(),
            "contextId": self.task.session,
            "status": {"state": TaskState::Working.name(), "timestamp": self.at.to_string()},
        });
        if !self.before.is_empty() {
            task["artifacts"] = Value::Array(std::mem::take(&mut self.before));
        }
        json!({"task": task})
    }

    fn text(&mut self, text: &str) -> Value {
        let appends = std::mem::replace(&mut self.has_part, true);
        self.artifact(self.replies + 1, text, appends, false)
    }

    /// The whole reply takes the place of its parts.
    fn reply(&mut self, text: &str) -> Value {
        (self.replies, self.has_part) = (self.replies + 1, false);
        self.artifact(self.replies, text, false, true)
    }

    fn artifact(&self, number: usize, text: &str, appends: bool, is_whole: bool) -> Value {
        json!({"artifactUpdate": {
            "taskId": self.task.to_string(),
            "contextId": self.task.session,
            "artifact": task::artifact(number, text),
            "append": appends,
            "lastChunk": is_whole,
        }})
    }

    fn end(&self, end: &StreamEnd) -> Value {
        let (state, why) = match end {
            StreamEnd::Waiting(requests) => (TaskState::InputRequired, Some(task::asked(requests))),
            StreamEnd::Suspended => (TaskState::Working, None),
            StreamEnd::Failed(problem) => (TaskState::Failed, Some(json!([{"text": problem.detail()}]))),
            StreamEnd::Finished(exit) => task::after(exit),
        };
        let status = self.task.status(state, why, self.at);
        json!({"statusUpdate": {
            "taskId": self.task.to_string(), "contextId": self.task.session, "status": status,
        }})
    }
}

impl UpdateEncoder for A2aEncoder {
    fn push(&mut self, update: &RunUpdate) -> Vec<ProtocolFrame> {
        let results = match update {
            RunUpdate::Began { at, .. } => {
                self.at = *at;
                vec![self.began()]
            }
            RunUpdate::Text(text) if !text.is_empty() => vec![self.text(text)],
            // NOTE: The next reply may have no text to replace the part that was sent.
            RunUpdate::Restarted if std::mem::take(&mut self.has_part) => {
                vec![self.artifact(self.replies + 1, "", false, false)]
            }
            RunUpdate::Committed(commit) => {
                self.at = commit.event.at;
                let replies = commit.event.messages.iter().filter_map(|message| task::reply(message));
                replies.map(|text| self.reply(&text)).collect()
            }
            // It may be in the task already.
            RunUpdate::LastWords(text) => vec![self.reply(text)],
            RunUpdate::Repeated(text) if self.last.as_ref() != Some(text) => vec![self.reply(text)],
            RunUpdate::Ended { end, .. } => vec![self.end(end)],
            // The protocol has no updates for tools, state and steps.
            _ => Vec::new(),
        };
        results.iter().map(|result| ProtocolFrame::Json(response(&self.id, result))).collect()
    }
}
