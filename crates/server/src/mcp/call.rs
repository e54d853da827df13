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
use super::ask;

/// The result of following an invocation for a client.
enum FollowOutcome {
    Ended(InvocationResult),
    /// It takes longer than the client has to wait.
    Long,
    /// Its client is gone.
    Alone,
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
            Err(error) => return Ok(failed(&error.to_string())),
        };
        let answered = match (asked, text("message")) {
            (None, Some(message)) => match session.send(message).await {
                Ok(invocation) => self.follow_to_answer(&session, invocation, context).await,
                Err(RunnerError { kind: RunnerErrorKind::Pending { .. }, .. }) => {
                    still_waiting(&session, context).await
                }
                Err(error) => Err(error),
            },
            _ => {
                self.continue_with_answers(&session, &request.input_responses.unwrap_or_default(), context)
                    .await
            }
        };
        answered.or_else(|error| Ok(failed(&error.to_string())))
    }

    /// Continues with a client's answers. A client that sends them again, because it died before it heard of the end, hears
    /// of it.
    async fn continue_with_answers(
        &self,
        session: &SessionHandle,
        answers: &wire::InputResponses,
        context: &RequestContext<RoleServer>,
    ) -> Result<wire::CallToolResponse, RunnerError> {
        let decisions = ask::decisions(&session.pending().await?, answers);
        if decisions.is_empty()
            && let Some(run) = session.last_run().await?
            && let Some(exit) = run.exit()
        {
            return Ok(result(session, &run.last_words().unwrap_or_default(), exit).into());
        }
        let invocation = self.resume(session, decisions)?;
        self.follow_to_answer(session, invocation, context).await
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
        loop {
            let outcome = match self.follow(&invocation, context).await {
                FollowOutcome::Ended(outcome) => outcome?,
                FollowOutcome::Long => {
                    hold_until_end(&invocation, context);
                    return self.begin_task(session, invocation).await.map(Into::into);
                }
                FollowOutcome::Alone => return Ok(failed("the connection was closed; the run continues")),
            };
            let pending = outcome.pending();
            if pending.is_empty() {
                let words = outcome.last_words().unwrap_or_default();
                return Ok(result(session, &words, outcome.exit()).into());
            }
            if ask::can_require_input(context) && ask::of_persons(&pending).next().is_some() {
                return Ok(ask::required(session, &pending).into());
            }
            let decisions = ask::elicited(&pending, context).await;
            if decisions.is_empty() {
                return Ok(waiting_result(session, &outcome.text(), &pending).into());
            }
            invocation = self.resume(session, decisions)?;
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

/// The session waits for decisions from before, and takes no message meanwhile.
async fn still_waiting(
    session: &SessionHandle,
    context: &RequestContext<RoleServer>,
) -> Result<wire::CallToolResponse, RunnerError> {
    let pending = session.pending().await?;
    if ask::can_require_input(context) && ask::of_persons(&pending).next().is_some() {
        return Ok(ask::required(session, &pending).into());
    }
    Ok(waiting_result(session, "the session waits for decisions about earlier calls", &pending).into())
}

/// Holds the permit of the request until the run ends.
fn hold_until_end(invocation: &Invocation, context: &RequestContext<RoleServer>) {
    let (invocation, held) = (invocation.clone(), context.extensions.clone());
    tokio::spawn(async move {
        if let Err(error) = invocation.outcome().await {
            tracing::info!(invocation = %invocation.id(), %error, "invocation failed");
        }
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
