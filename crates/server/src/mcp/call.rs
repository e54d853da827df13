//! A call of the agent: a turn in a session, followed to its end, to what it waits for, or until it is a task.

use futures_util::StreamExt as _;
use rmcp::model as wire;
use rmcp::service::{RequestContext, RoleServer};
use serde_json::{Value, json};
use stepfold_agent_loop::{ApprovalRequest, Decision, Exit, Ids as _, RandomIds, RunEvent};
use stepfold_runner::{
    Invocation, InvocationEvent, InvocationResult, ResumeRun, RunnerError, RunnerErrorKind, SessionHandle,
};

use super::AgentServer;
use super::ask::{self, LateAnswer};
use super::wording::in_words;

/// The result of following an invocation for a client.
enum FollowOutcome {
    Ended(InvocationResult),
    /// It takes longer than the client has to wait.
    Long,
    /// Its client is gone.
    Alone,
}

/// The outcome of asking a client.
enum AskOutcome {
    /// The response of its request, which asks, or says what waits.
    Told(Box<wire::CallToolResponse>),
    /// It has answered, and the run continues.
    Answered(Invocation),
}

const EARLIER_WAITS: &str = "the session waits for decisions about earlier calls";

const NOT_TAKEN: &str = "[the message was not taken: the session waited for decisions about an earlier one, which ended as follows]";

const STORED: &str =
    "[the message is stored: it comes after an earlier one, which waited for decisions and ended as follows]";

/// The response with a note before its content.
fn with_note(mut response: wire::CallToolResponse, note: Option<&str>) -> wire::CallToolResponse {
    if let (wire::CallToolResponse::Complete(result), Some(note)) = (&mut response, note) {
        result.content.insert(0, wire::ContentBlock::text(note));
    }
    response
}

impl AgentServer {
    /// Sends a message to the agent, or continues with the answers of a client.
    pub(super) async fn call(
        &self,
        request: wire::CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<wire::CallToolResponse, wire::ErrorData> {
        let arguments = request.arguments.unwrap_or_default();
        let text = |name: &str| arguments.get(name).and_then(Value::as_str);
        // The state of a request is a session: whose it is was said when the server started, and a decision names what it
        // is about by a digest, so that a client can do nothing with another's.
        let asked = request.request_state;
        let has_words = text("message").is_some_and(|message| !message.trim().is_empty());
        if asked.is_none() && !has_words {
            return Err(wire::ErrorData::invalid_params("missing argument `message`", None));
        }
        let session =
            asked.as_deref().or_else(|| text("session")).map_or_else(|| RandomIds.next(), str::to_owned);
        let session = match self.runner.session(&*self.user, session).await {
            Ok(session) => session,
            Err(error) => return Ok(failed(&in_words(&error))),
        };
        let answered = match (asked, text("message")) {
            (None, Some(message)) => match session.send(message).await {
                Ok(invocation) => self.follow_to_answer(&session, invocation, context).await,
                Err(RunnerError { kind: RunnerErrorKind::Pending { .. }, .. }) => {
                    self.ask_again(&session, context).await
                }
                Err(error) => Err(error),
            },
            _ => {
                self.continue_with_answers(&session, &request.input_responses.unwrap_or_default(), context)
                    .await
            }
        };
        answered.or_else(|error| Ok(failed(&in_words(&error))))
    }

    /// Continues with a client's answers. A client that sends them again, because it died before it heard of the end, hears
    /// of it.
    async fn continue_with_answers(
        &self,
        session: &SessionHandle,
        answers: &wire::InputResponses,
        context: &RequestContext<RoleServer>,
    ) -> Result<wire::CallToolResponse, RunnerError> {
        let pending = session.pending().await?;
        let decisions = ask::decisions(&pending, answers);
        let mut late = Vec::new();
        if !ask::are_all_about(&pending, answers) {
            let as_recorded = |decision| session.as_recorded(decision);
            late = ask::late_answers(&session.decisions().await?, answers, as_recorded);
        }
        if decisions.is_empty()
            && let Some(run) = session.last_run().await?
            && let Some(exit) = run.exit()
        {
            let result = result(session, &run.last_words().unwrap_or_default(), exit);
            return Ok(with_late_answers(result.into(), &late));
        }
        let invocation = self.resume(session, decisions)?;
        let response = self.follow_to_answer(session, invocation, context).await?;
        Ok(with_late_answers(response, &late))
    }

    pub(super) fn resume(
        &self,
        session: &SessionHandle,
        decisions: Vec<(String, Decision)>,
    ) -> Result<Invocation, RunnerError> {
        self.deciding(session, decisions).start()
    }

    /// The decisions of a client, by their author.
    pub(super) fn deciding(&self, session: &SessionHandle, decisions: Vec<(String, Decision)>) -> ResumeRun {
        let resume = session.resume().decide_all(decisions);
        match &self.author {
            Some(author) => resume.by(&**author),
            None => resume,
        }
    }

    async fn follow_to_answer(
        &self,
        session: &SessionHandle,
        mut invocation: Invocation,
        context: &RequestContext<RoleServer>,
    ) -> Result<wire::CallToolResponse, RunnerError> {
        let mut note = None;
        loop {
            let outcome = match self.follow(&invocation, context).await {
                FollowOutcome::Ended(outcome) => match (outcome, invocation.receipt()) {
                    (Err(error), Some(_)) if error.is_of_other_agent() => {
                        let stored = "the answer is stored, and the run waits for a version of the agent that continues it";
                        return Ok(failed(&format!("{stored}: {}", in_words(&error))));
                    }
                    (outcome, _) => outcome,
                },
                FollowOutcome::Long => {
                    hold_until_end(&invocation, context);
                    return self.begin_task(session, invocation).await.map(Into::into);
                }
                FollowOutcome::Alone => return Ok(failed("the connection was closed; the run continues")),
            };
            let (pending, text) = match outcome {
                Ok(outcome) if outcome.pending().is_empty() => {
                    let words = outcome.last_words().unwrap_or_default();
                    return Ok(with_note(result(session, &words, outcome.exit()).into(), note));
                }
                Ok(outcome) => (outcome.pending(), outcome.text().into_owned()),
                // A run that its process had left comes first, and waits.
                Err(RunnerError { kind: RunnerErrorKind::Pending { is_accepted, .. }, .. }) => {
                    note = Some(if is_accepted { STORED } else { NOT_TAKEN });
                    (session.pending().await?, EARLIER_WAITS.to_owned())
                }
                Err(error) => return Err(error),
            };
            match self.ask(session, &text, &pending, context).await? {
                AskOutcome::Told(response) => return Ok(*response),
                AskOutcome::Answered(continued) => invocation = continued,
            }
        }
    }

    /// Asks the client about what is pending, in the way that it can be asked.
    async fn ask(
        &self,
        session: &SessionHandle,
        text: &str,
        pending: &[ApprovalRequest],
        context: &RequestContext<RoleServer>,
    ) -> Result<AskOutcome, RunnerError> {
        if ask::can_require_input(context) && ask::of_persons(pending).next().is_some() {
            return Ok(AskOutcome::Told(Box::new(ask::required(session, pending).into())));
        }
        let decisions = ask::elicited(pending, context).await;
        Ok(match decisions.is_empty() {
            true => AskOutcome::Told(Box::new(waiting_result(session, text, pending).into())),
            false => AskOutcome::Answered(self.resume(session, decisions)?),
        })
    }

    /// The session waits for decisions from before, and takes no message meanwhile: the client is asked, also after a restart.
    async fn ask_again(
        &self,
        session: &SessionHandle,
        context: &RequestContext<RoleServer>,
    ) -> Result<wire::CallToolResponse, RunnerError> {
        let pending = session.pending().await?;
        match self.ask(session, EARLIER_WAITS, &pending, context).await? {
            AskOutcome::Told(response) => Ok(*response),
            AskOutcome::Answered(invocation) => {
                let response = self.follow_to_answer(session, invocation, context).await?;
                Ok(with_note(response, Some(NOT_TAKEN)))
            }
        }
    }

    /// Waits for the outcome, and tells the client of progress. A cancelled request cancels the run; but not one that is
    /// cancelled by the end of its connection.
    async fn follow(&self, invocation: &Invocation, context: &RequestContext<RoleServer>) -> FollowOutcome {
        let token = context.meta.get_progress_token();
        let mut seen = invocation.subscribe(0);
        let mut done = 0.0;
        let takes_tasks = context.client_capabilities().is_some_and(|client| client.supports_tasks());
        // NOTE: At once, also if the run ends faster than its first event is seen.
        if takes_tasks && self.task_after.is_zero() {
            return FollowOutcome::Long;
        }
        let mut long = std::pin::pin!(tokio::time::sleep(self.task_after));
        loop {
            tokio::select! {
                biased;
                () = context.ct.cancelled() => {
                    if self.outlives_clients && ask::is_modern(context) {
                        hold_until_end(invocation, context);
                        return FollowOutcome::Alone;
                    }
                    invocation.cancel();
                    return FollowOutcome::Ended(invocation.outcome().await);
                }
                event = seen.next() => {
                    let Some(event) = event else { return FollowOutcome::Ended(invocation.outcome().await) };
                    let (Some(token), Some(message)) = (&token, progress_message(&event)) else { continue };
                    done += 1.0;
                    let progress = wire::ProgressNotificationParam::new(token.clone(), done).with_message(message);
                    // A failure means that the client is gone: the end of its connection cancels the call.
                    let _ = context.peer.notify_progress(progress).await;
                }
                () = &mut long, if takes_tasks => return FollowOutcome::Long,
            }
        }
    }
}

/// The response, which names the answers that came after other ones: as its content, before the first question that it asks, or in
/// the status of its task.
fn with_late_answers(mut response: wire::CallToolResponse, late: &[LateAnswer]) -> wire::CallToolResponse {
    if late.is_empty() {
        return response;
    }
    let ids: Vec<&str> = late.iter().map(|late| late.request.as_str()).collect();
    let words: Vec<String> = late.iter().map(ToString::to_string).collect();
    match &mut response {
        wire::CallToolResponse::Complete(result) => {
            result.content.splice(0..0, words.into_iter().map(wire::ContentBlock::text));
            if let Some(Value::Object(structured)) = &mut result.structured_content {
                structured.insert("decided_before".to_owned(), json!(ids));
            }
        }
        wire::CallToolResponse::InputRequired(required) => {
            ask::say_before(required, &words.join("\n"));
            required.meta = serde_json::from_value(json!({"stepfold/decided_before": ids})).ok();
        }
        wire::CallToolResponse::Task(created) => created.task.status_message = Some(words.join("\n")),
        _ => {}
    }
    response
}

/// Holds the permit of the request until the run ends.
fn hold_until_end(invocation: &Invocation, context: &RequestContext<RoleServer>) {
    let (invocation, held) = (invocation.clone(), context.extensions.clone());
    tokio::spawn(async move {
        // The runner logs a failure.
        let _ = invocation.outcome().await;
        drop(held);
    });
}

/// The progress message of an event, for the client.
fn progress_message(seen: &InvocationEvent) -> Option<String> {
    let InvocationEvent::Event { event, .. } = seen else { return None };
    match event {
        RunEvent::Asking { step, .. } => Some(format!("step {step}")),
        RunEvent::ToolStarted { tool, .. } => Some(format!("calls {tool}")),
        RunEvent::ToolFinished { tool, status, .. } => Some(format!("{tool}: {status:?}")),
        RunEvent::NodeStarted { node, .. } => Some(format!("node {node}")),
        _ => None,
    }
}

pub(super) fn result(session: &SessionHandle, text: &str, exit: &Exit) -> wire::CallToolResult {
    let structured = json!({"session": session.key().id.as_str(), "text": text, "exit": exit});
    let mut result = wire::CallToolResult::success(vec![wire::ContentBlock::text(text)]);
    result.structured_content = Some(structured);
    result
}

/// The run waits, and the client can answer only by other means.
fn waiting_result(session: &SessionHandle, text: &str, pending: &[ApprovalRequest]) -> wire::CallToolResult {
    let waits: Vec<Value> = pending
        .iter()
        .map(|request| {
            let arguments = request.call.arguments.to_text();
            json!({"id": request.id, "tool": request.call.name, "arguments": arguments, "message": request.message})
        })
        .collect();
    let lines: Vec<String> = pending.iter().map(ApprovalRequest::to_text).collect();
    let session = session.key().id.as_str();
    let said = format!("{text}\n[session {session} waits for decisions: {}]", lines.join("\n"));
    let mut result = wire::CallToolResult::success(vec![wire::ContentBlock::text(said.trim())]);
    result.structured_content =
        Some(json!({"session": session, "text": text, "exit": "waits", "waits": waits}));
    result
}

fn failed(words: &str) -> wire::CallToolResponse {
    wire::CallToolResult::error(vec![wire::ContentBlock::text(words)]).into()
}
