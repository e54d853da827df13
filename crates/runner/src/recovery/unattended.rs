//! Sessions with work and without a worker, and why none continues them.

use std::sync::Arc;

use stepfold_session_scopes::{ListUnattended, SessionCursor, SessionKey, SessionStore as _, Timestamp};

use crate::access::session_access::SessionAccess;
use crate::core::runner_core::Runner;
use crate::error::RunnerError;

/// A session in which work was left and no worker is: see [`Runner::unattended`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct UnattendedSession {
    /// The session.
    pub key: SessionKey,
    /// Since when: the expiry of the last claim, the time at which it was due, or the last known write.
    pub since: Timestamp,
    /// Why its last run has stopped, or cannot be continued by this agent; `None` if a worker only has to come.
    pub blocked: Option<String>,
    cursor: SessionCursor,
}

impl Runner {
    /// Lists the sessions of the application in which work was left and no worker is, the longest waiting first: at
    /// most `limit`, after one if given. A [recovery](Runner::recover) continues them, unless they are blocked: by a
    /// failure, or by an agent that has changed. Those that wait for a decision, or are left to a person after a
    /// failure that a repetition cannot mend, are not listed, unless messages wait in them.
    ///
    /// Of each it reads the last run, without values.
    ///
    /// # Errors
    /// [`RunnerErrorKind::Store`](crate::RunnerErrorKind::Store) when the store fails, or does not list such sessions.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use std::time::Duration;
    ///
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_runner::{Runner, WhenChanged};
    /// use stepfold_session_scopes::MemoryStore;
    /// use stepfold_tools::{Tool, ToolError};
    ///
    /// # let model = || Script::parse("assistant: > c1 look()\nassistant: hello");
    /// # let look = Tool::new("look", "Looks.", async || Ok::<_, ToolError>("here")).build()?;
    /// let store = std::sync::Arc::new(MemoryStore::new());
    /// let agent = Agent::builder(model()?).name("clerk").tools([look.clone()]).build()?;
    /// let runner = Runner::builder(agent, std::sync::Arc::clone(&store)).build();
    /// runner.session("ada", "s1").await?.run_as("k1", "hi").stop_after(Duration::ZERO).await?;
    /// let waiting = runner.unattended(None, 100).await?;
    /// assert_eq!((waiting[0].key.id.as_str(), &waiting[0].blocked), ("s1", &None));
    /// assert!(runner.unattended(waiting.last(), 100).await?.is_empty());
    ///
    /// // A deployment.
    /// let agent = Agent::builder(model()?).name("clerk").tools([look]).instructions("Be brief.").build()?;
    /// let runner = Runner::builder(agent, store).when_changed(WhenChanged::Refuse).build();
    /// let waiting = runner.unattended(None, 100).await?;
    /// assert!(waiting[0].blocked.as_ref().unwrap().contains("instructions"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    #[doc(alias("blocked", "dead_letter"))]
    pub async fn unattended(
        &self,
        after: Option<&UnattendedSession>,
        limit: usize,
    ) -> Result<Vec<UnattendedSession>, RunnerError> {
        let mut request = ListUnattended::new(self.0.app.clone(), self.0.clock.now());
        (request.limit, request.after) = (limit, after.map(|session| session.cursor.clone()));
        let listed = self.0.store.unattended(request).await.map_err(|error| self.failed(error))?;
        let mut sessions = Vec::with_capacity(listed.len());
        for session in listed {
            let blocked = self.blocked(&session.key).await;
            let (key, since, cursor) = (session.key, session.since, session.cursor);
            sessions.push(UnattendedSession { key, since, blocked, cursor });
        }
        Ok(sessions)
    }

    /// Why the last run of a session has stopped, or cannot be continued by this agent.
    async fn blocked(&self, key: &SessionKey) -> Option<String> {
        let access = SessionAccess::new(Arc::clone(&self.0), self.0.sessions().get(key.clone()));
        let (history, _) = match access.read_end().await {
            Ok(read) => read,
            Err(error) => return Some(error.to_string()),
        };
        let stopped = match history.last.as_ref().and_then(|last| last.failed.as_ref()) {
            Some(failed) => match failed.left_to_person(key) {
                Some(left) => left,
                None => {
                    return Some(format!(
                        "run in session {key} failed {} times: {}; it is tried again",
                        failed.times, failed.cause
                    ));
                }
            },
            None if history.has_ended() => return None,
            None => access.stopped_by_agent(history).await?,
        };
        Some(stopped.to_string())
    }
}
