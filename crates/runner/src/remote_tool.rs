//! An agent in another session, and perhaps in another process, as a tool.

use std::time::Duration;

use serde_json::{Value, json};
use stepfold_agent_loop::Exit;
use stepfold_session_scopes::bounded_id;
use stepfold_tools::{BuildError, Effect, RawArgs, Tool, ToolContext, ToolError};

use crate::core::runner_core::Runner;
use crate::record::history::session_of;
use crate::record::report::{RunReport, RunStatus};
use crate::remedy::Remedy;

/// The first pause before the run is looked at, and the longest.
const FIRST: Duration = Duration::from_secs(1);

const LONGEST: Duration = Duration::from_secs(60);

/// The key of the run in its session, which is there for nothing else.
const KEY: &str = "call";

impl Runner {
    /// The agent of this runner as a tool of other agents: each call is a run in a session of its own, of the same
    /// user, begun under the idempotency key of the call. The run of the caller is suspended meanwhile and holds
    /// nothing; it checks whether the other one has ended after 1 second, 2, 4, and so on up to a minute, by durable
    /// timers, in whatever process [recovers](Runner::recover) it.
    ///
    /// The other run continues in this process, or by `recover` in another one of its runners. It may wait for
    /// approvals of its own, in its own session; the result is its output, or the text of its reply. The apps and the
    /// stores of both runners may be different ones.
    ///
    /// # Errors
    /// When the name is invalid.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_runner::Runner;
    /// use stepfold_session_scopes::{AnyStore, MemoryStore};
    ///
    /// let store = AnyStore::new(MemoryStore::new());
    /// let counter = Agent::builder(Script::parse("assistant: there are 12")?).build()?;
    /// let counters = Runner::builder(counter, store.clone()).app("counters")?.build();
    /// let count = counters.as_remote_tool("count", "Counts the stalls of an area.")?;
    ///
    /// let model = Script::parse("assistant: > c1 count(request=\"area 3\")\nassistant: twelve stalls")?;
    /// let agent = Agent::builder(model).tools([count]).build()?;
    /// let session = Runner::builder(agent, store).build().session("ada", "s1").await?;
    /// // It ends at once here; if it did not, the run would wait, and `recover` look again.
    /// assert_eq!(session.run("how many stalls has area 3?").await?.text(), "twelve stalls");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    #[doc(alias("sub-agent", "a2a", "handoff"))]
    pub fn as_remote_tool(
        &self,
        name: impl Into<String>,
        description: impl Into<String>,
    ) -> Result<Tool, BuildError> {
        let runner = self.clone();
        let call = move |RawArgs(arguments): RawArgs, context: ToolContext| {
            let runner = runner.clone();
            async move {
                let request = arguments["request"].as_str().unwrap_or_default().to_owned();
                runner.call(&context, request).await
            }
        };
        // A call with the same key returns the result.
        Tool::new(name, description, call)
            .parameters(json!({
                "type": "object",
                "properties": {"request": {"type": "string", "description": "The task, with all that is needed to do it."}},
                "required": ["request"],
                "additionalProperties": false,
            }))
            .effect(Effect::Idempotent)
            .build()
    }

    async fn call(&self, context: &ToolContext, request: String) -> Result<Value, ToolError> {
        let key = context.idempotency_key();
        let user = session_of(key).map_or_else(|| "unknown".to_owned(), |caller| caller.user.to_string());
        let session = self.session(user, bounded_id(key.to_owned())).await?;
        let ended = tokio::select! {
            biased;
            ended = session.run_as(KEY, request) => Some(ended),
            // The run continues.
            () = session.sleep(FIRST) => None,
        };
        match ended {
            Some(Ok(RunReport { status: RunStatus::Finished(exit), text, output, .. })) => {
                let has_failed = exit.is_limit() || exit == Exit::Cancelled;
                match (output, has_failed) {
                    (_, true) => {
                        Err(ToolError::permanent(format!("the agent did not end its work: {exit}. {text}")))
                    }
                    (Some(output), false) => Ok(output),
                    (None, false) => Ok(json!(text)),
                }
            }
            Some(Err(error)) if error.remedy() == Remedy::Never => {
                Err(ToolError::permanent(error.to_string()))
            }
            // It runs, waits, was suspended, or failed for now.
            _ => {
                let looked = u32::try_from(context.answered().len()).unwrap_or(u32::MAX);
                let pause = FIRST.saturating_mul(1 << looked.min(10)).min(LONGEST);
                // Each check waits under a label of its own.
                let again = context.later(format!("look-{looked}")).message("the agent is at work");
                again.within(pause).outcome()
            }
        }
    }
}
