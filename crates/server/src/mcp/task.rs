//! Calls that take long, as tasks (the extension `io.modelcontextprotocol/tasks`).
//!
//! A task is a run of a session, and its id says which. Nothing is kept here but why a run failed: another process of the
//! server, over the same store, tells of the task as well, and continues with a run whose process died.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rmcp::model as wire;
use rmcp::service::{RequestContext, RoleServer};
use serde_json::json;
use stepfold_agent_loop::{Exit, Run};
use stepfold_runner::{Invocation, RunnerError, SessionHandle};
use stepfold_session_scopes::{EventRange, InvocationId, Session};

use tokio::time::Instant;

use super::AgentServer;
use super::ask;
use super::call::result;
use super::wording::in_words;

/// The interval at which a client should poll, in milliseconds.
const POLL: u64 = 1_000;

/// The number of events among which the start of a task is looked up.
const LOOKED_AT: usize = 64;

/// Bounds the failures that are remembered.
const REMEMBERED: usize = 1_000;

/// Why this process does not continue a run.
#[derive(Clone)]
enum TaskFailure {
    /// It failed.
    Failed(String),
    /// Another version of the agent continues it, as this one has seen at a time.
    OtherAgent(String, Instant),
}

/// The time after which a poll looks again whether this version continues a run by now.
const LOOKS_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Why runs failed, by their tasks, the oldest failure first.
#[derive(Clone, Default)]
pub(super) struct TaskFailures(Arc<Mutex<VecDeque<(String, TaskFailure)>>>);

impl TaskFailures {
    fn of(&self, task: &str) -> Option<TaskFailure> {
        let failures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = failures.iter().find(|(failed, _)| failed == task).map(|(_, why)| why.clone());
        found.filter(|why| match why {
            TaskFailure::OtherAgent(_, seen) => seen.elapsed() < LOOKS_AGAIN_AFTER,
            TaskFailure::Failed(_) => true,
        })
    }

    /// Why a task stands still that another version of the agent continues.
    fn waits_for_other(&self, task: &str) -> Option<String> {
        match self.of(task)? {
            TaskFailure::OtherAgent(why, _) => Some(why),
            TaskFailure::Failed(_) => None,
        }
    }

    /// Waits for the end of a run in the background, keeps its error, and drops the held value then.
    fn watch(&self, task: String, invocation: Invocation, held: impl Send + 'static) {
        let failures = self.clone();
        tokio::spawn(async move {
            let ended = invocation.outcome().await;
            drop(held);
            let mut failures = failures.0.lock().unwrap_or_else(PoisonError::into_inner);
            failures.retain(|(failed, _)| *failed != task);
            if let Err(error) = ended {
                let why = in_words(&error);
                let is_of_other = error.is_of_other_agent();
                let failure = match is_of_other {
                    true => TaskFailure::OtherAgent(why, Instant::now()),
                    false => TaskFailure::Failed(why),
                };
                failures.push_back((task, failure));
            }
            if failures.len() > REMEMBERED {
                failures.pop_front();
            }
        });
    }
}

/// The run of a task: the invocation that began it, in a session.
// NOTE: A task needs no table: its id names a run of a stored session, which outlives the process
// (docs/decisions/server.md).
struct McpTaskId<'a> {
    invocation: &'a str,
    session: &'a str,
}

impl<'a> McpTaskId<'a> {
    fn parse(task: &'a str) -> Option<Self> {
        let (invocation, session) = task.split_once('@')?;
        Some(McpTaskId { invocation, session })
    }

    fn of(run: &'a Run, session: &'a SessionHandle) -> Self {
        let invocation = run.id().rsplit('/').next().unwrap_or_default();
        McpTaskId { invocation, session: session.key().id.as_str() }
    }
}

impl fmt::Display for McpTaskId<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.invocation, self.session)
    }
}

/// Takes permits for runs that a request may start, of a user whose runs are limited.
#[derive(Clone)]
#[cfg(feature = "http")]
pub(crate) struct RunPermits(Arc<dyn Fn() -> Option<RunPermit> + Send + Sync>);

type RunPermit = Box<dyn Any + Send>;

#[cfg(feature = "http")]
impl RunPermits {
    pub(crate) fn new<P: Send + 'static>(take: impl Fn() -> Option<P> + Send + Sync + 'static) -> Self {
        RunPermits(Arc::new(move || take().map(|permit| Box::new(permit) as RunPermit)))
    }
}

/// A permit for a run that the request starts, if one is free. Where runs are not limited, there is always one.
fn permit_for(context: &RequestContext<RoleServer>) -> Option<RunPermit> {
    #[cfg(feature = "http")]
    if let Some(parts) = context.extensions.get::<http::request::Parts>()
        && let Some(RunPermits(take)) = parts.extensions.get()
    {
        return take();
    }
    #[cfg(not(feature = "http"))]
    let _ = context;
    Some(Box::new(()))
}

impl AgentServer {
    /// Turns a call into a task, which runs in the background.
    pub(super) async fn begin_task(
        &self,
        session: &SessionHandle,
        invocation: Invocation,
    ) -> Result<wire::CreateTaskResult, RunnerError> {
        let run = session.last_run().await?;
        let id = match &run {
            Some(run) => McpTaskId::of(run, session).to_string(),
            // It has committed nothing yet.
            None => McpTaskId { invocation: invocation.id().as_str(), session: session.key().id.as_str() }
                .to_string(),
        };
        self.failures.watch(id.clone(), invocation, ());
        let stored = session.read_events(EventRange::Last(LOOKED_AT)).await?;
        Ok(wire::CreateTaskResult::new(task(&id, &stored, wire::TaskStatus::Working)))
    }

    /// The state of a task.
    pub(super) async fn task(
        &self,
        id: &str,
        context: &RequestContext<RoleServer>,
    ) -> Result<wire::GetTaskResult, wire::ErrorData> {
        let (invocation, session) = self.find(id).await?;
        let stored =
            session.read_events(EventRange::Last(LOOKED_AT)).await.map_err(|error| internal(&error))?;
        let payload = self.payload(id, invocation, &session, &stored, context).await?;
        let mut task = task(id, &stored, payload.status());
        if payload.status() == wire::TaskStatus::Working {
            task.status_message = self.failures.waits_for_other(id);
        }
        Ok(wire::GetTaskResult::new(wire::DetailedTask::new(task, payload)))
    }

    async fn payload(
        &self,
        id: &str,
        invocation: &str,
        session: &SessionHandle,
        stored: &Session,
        context: &RequestContext<RoleServer>,
    ) -> Result<wire::TaskPayload, wire::ErrorData> {
        if session.running().is_some() {
            return Ok(wire::TaskPayload::Working);
        }
        let run = session.last_run().await.map_err(|error| internal(&error))?;
        let is_its = |run: &Run| McpTaskId::of(run, session).invocation == invocation;
        let Some(run) = run.filter(is_its) else {
            let words =
                format!("unknown task `{id}`: its session is not there or has gone on; read its transcript");
            return Err(wire::ErrorData::invalid_params(words, None));
        };
        let pending = run.pending();
        Ok(match run.exit() {
            Some(Exit::Cancelled) => wire::TaskPayload::Cancelled,
            Some(exit) => wire::TaskPayload::Completed {
                result: object(&result(session, &run.last_words().unwrap_or_default(), exit)),
            },
            None if !pending.is_empty() && ask::of_persons(&pending).next().is_none() => {
                wire::TaskPayload::Working
            }
            None if !pending.is_empty() => {
                wire::TaskPayload::InputRequired { input_requests: ask::questions(&pending) }
            }
            None => {
                match self.failures.of(id) {
                    Some(TaskFailure::Failed(reason)) => {
                        let error = wire::ErrorData::internal_error(reason, None);
                        return Ok(wire::TaskPayload::Failed { error: object(&error) });
                    }
                    // It has not failed: the other version tells of its end.
                    Some(TaskFailure::OtherAgent(..)) => return Ok(wire::TaskPayload::Working),
                    None => {}
                }
                // Its process died. If another worker has it, that one continues; and a user without a free place for runs
                // asks again.
                if self.runner.other_worker(stored).is_none()
                    // NOTE: Without a free permit a later poll continues the run: a poll must not exceed the runs of a user
                    // (docs/decisions/server.md).
                    && let Some(permit) = permit_for(context)
                {
                    let resumed = self.resume(session, Vec::new()).map_err(|error| internal(&error))?;
                    self.failures.watch(id.to_owned(), resumed, permit);
                }
                wire::TaskPayload::Working
            }
        })
    }

    /// Continues with a task after answers to what it asks. Others than those are left out.
    pub(super) async fn update(
        &self,
        id: &str,
        answers: &wire::InputResponses,
        context: &RequestContext<RoleServer>,
    ) -> Result<(), wire::ErrorData> {
        let (_, session) = self.find(id).await?;
        let pending = session.pending().await.map_err(|error| internal(&error))?;
        let decisions = ask::decisions(&pending, answers);
        if decisions.is_empty() {
            return Ok(());
        }
        let submitted = self.deciding(&session, decisions).submit().await;
        // An answer that does not fit is the client's to mend.
        let (_, invocation) =
            submitted.map_err(|error| wire::ErrorData::invalid_params(in_words(&error), None))?;
        self.failures.watch(id.to_owned(), invocation, context.extensions.clone());
        Ok(())
    }

    /// Cancels a task: what is under way, or what waits.
    pub(super) async fn cancel(&self, id: &str) -> Result<(), wire::ErrorData> {
        let (invocation, session) = self.find(id).await?;
        // A message that waits behind another run is withdrawn by its name, and that run continues.
        if let Ok(message) = InvocationId::new(invocation)
            && session.withdraw(&message).await.map_err(|error| internal(&error))?
        {
            return Ok(());
        }
        session.cancel_everywhere().await.map_err(|error| internal(&error))?;
        Ok(())
    }

    async fn find<'a>(&self, id: &'a str) -> Result<(&'a str, SessionHandle), wire::ErrorData> {
        let unknown = || wire::ErrorData::invalid_params(format!("unknown task `{id}`"), None);
        let McpTaskId { invocation, session } = McpTaskId::parse(id).ok_or_else(unknown)?;
        let session = self.existing(session).await.ok_or_else(unknown)?;
        Ok((invocation, session))
    }
}

fn task(id: &str, stored: &Session, status: wire::TaskStatus) -> wire::Task {
    let invocation = McpTaskId::parse(id).map(|id| id.invocation);
    let is_its = |event: &&stepfold_session_scopes::CommittedEvent| {
        Some(event.event.invocation.as_str()) == invocation
    };
    let began = stored.events.iter().find(is_its).or_else(|| stored.events.first());
    let began = began.map_or(stored.created, |committed| committed.event.at);
    wire::Task::new(id, status, began.to_string(), stored.updated.to_string()).with_poll_interval_ms(POLL)
}

fn object<T: serde::Serialize>(value: &T) -> wire::JsonObject {
    serde_json::to_value(value).unwrap_or_else(|_| json!({})).as_object().cloned().unwrap_or_default()
}

fn internal(error: &RunnerError) -> wire::ErrorData {
    wire::ErrorData::internal_error(in_words(error), None)
}
