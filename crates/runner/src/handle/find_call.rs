//! Finds a call in the record of a session.

use stepfold_agent_loop::EventKind;
use stepfold_session_scopes::{CommittedEvent, EventRange, InvocationId, Session};
use stepfold_state_core::chat::{ToolCall, ToolResult};

use crate::error::RunnerError;
use crate::handle::session_handle::SessionHandle;
use crate::log::{SessionLog, own_values};
use crate::record::events::read_record;

/// A call in the record of a session. Created by [`SessionHandle::find_call`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct FoundCall {
    /// The call as the model made it.
    pub call: ToolCall,
    /// The version of the reply with the call.
    pub called_at: u64,
    /// The result of the call, if it has one; that of the newest edit, if it was edited.
    pub result: Option<ToolResult>,
    /// The version of the result: in a fork from here, [an edit](SessionHandle::fork_with) can replace it.
    pub answered_at: Option<u64>,
    /// The invocation that ran it.
    pub invocation: InvocationId,
}

impl SessionHandle {
    /// Finds the newest visible call with this id: `None` if there is none. Newest events are read first.
    ///
    /// # Errors
    /// When the store fails.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::{Agent, Edit};
    /// use stepfold_runner::Runner;
    /// use stepfold_session_scopes::MemoryStore;
    /// use stepfold_tools::{Tool, ToolError};
    ///
    /// # async fn count() -> Result<u32, ToolError> { Ok(3) }
    /// # let count = Tool::new("count", "Counts stalls.", count).build()?;
    /// # let model = Script::parse("assistant: > c1 count()\nassistant: thank you")?;
    /// let agent = Agent::builder(model).tools([count]).build()?;
    /// let session = Runner::builder(agent, MemoryStore::new()).build().session("ada", "s1").await?;
    /// session.run("how many?").await?;
    ///
    /// let found = session.find_call("c1").await?.expect("the model called it");
    /// assert_eq!((found.called_at, found.answered_at), (2, Some(4)));
    /// // Another result, from that version on.
    /// let fork = session.fork_with("s2", found.answered_at, Edit::new().result("c1", 12)).await?;
    /// fork.resume().await?;
    /// let found = fork.find_call("c1").await?.expect("it is in the shared past");
    /// assert_eq!(found.result.expect("it has one").text(), "12");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub async fn find_call(&self, id: &str) -> Result<Option<FoundCall>, RunnerError> {
        let find = |session: &Session| newest_call(id, session.visible_events().rev());
        self.access().search_newest(64, find).await
    }

    /// The log of the session, as `stepfold inspect` shows it: its visible events, with the changes that they made to the
    /// state. It reads the whole record.
    ///
    /// # Errors
    /// When the store fails, or a value does not match the schema.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_runner::Runner;
    /// use stepfold_session_scopes::MemoryStore;
    ///
    /// # let model = Script::parse("assistant: area 3")?;
    /// let runner = Runner::builder(Agent::builder(model).build()?, MemoryStore::new()).build();
    /// let session = runner.session("ada", "s1").await?;
    /// session.run("which area has most stalls?").await?;
    /// assert_eq!(
    ///     session.log().await?.to_string(),
    ///     "    1  began     user:      which area has most stalls?\n    2  replied   assistant: area 3\n"
    /// );
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub async fn log(&self) -> Result<SessionLog, RunnerError> {
        let session = self.access().read_events(EventRange::All).await?;
        let origin = self.access().get_at(Some(session.oldest), EventRange::None).await?;
        let origin = own_values(origin, &self.runner().0.program.schema)?;
        Ok(SessionLog::of(&session, origin))
    }
}

/// The newest call with this id among events, newest first.
fn newest_call<'a>(id: &str, newest_first: impl Iterator<Item = &'a CommittedEvent>) -> Option<FoundCall> {
    let mut answered = None;
    for committed in newest_first {
        if let Some(edited) = edited_result(id, committed) {
            answered = answered.or(Some((committed.version, edited)));
        }
        for message in &committed.event.messages {
            if let Some(result) = message.tool_result().filter(|result| result.call_id() == id) {
                answered = answered.or(Some((committed.version, result.clone())));
            }
            if let Some(call) = message.tool_calls().find(|call| call.id == id) {
                let (answered_at, result) = answered.unzip();
                let (call, called_at) = (call.clone(), committed.version);
                let invocation = committed.event.invocation.clone();
                return Some(FoundCall { call, called_at, result, answered_at, invocation });
            }
        }
    }
    None
}

/// The result that an edit gave the call.
fn edited_result(id: &str, committed: &CommittedEvent) -> Option<ToolResult> {
    if committed.event.kind.as_str() != "edited" {
        return None;
    }
    match read_record(&committed.event)?.kind {
        EventKind::Edited { results, .. } => results.into_iter().find(|result| result.call_id() == id),
        _ => None,
    }
}
