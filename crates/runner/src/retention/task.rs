//! The task of retention: pass after pass, until the runner is shut down.

use std::time::Duration;

use stepfold_session_scopes::ErrorKind;

use super::pass::RetentionOptions;
use crate::core::runner_core::Runner;
use crate::error::RunnerError;

/// The pause before a pass that continues another one.
const NEXT_PART: Duration = Duration::from_secs(1);

impl Runner {
    /// Makes passes of [retention](Runner::retain) until the runner is [shut down](Runner::shutdown): one in each
    /// [interval](crate::RetentionPolicy::every), and the parts of a pass that is too long for one after the other. An application
    /// spawns it in each of its processes: the process that comes first makes the pass. Returns at once without a policy.
    ///
    /// # Errors
    /// [`RunnerErrorKind::Store`](crate::RunnerErrorKind::Store) with
    /// [`Unsupported`](stepfold_session_scopes::SessionError::Unsupported) by a store without claims. Other failures are logged, and
    /// the next pass comes an interval later.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use std::time::Duration;
    ///
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_runner::{RetentionPolicy, Runner};
    /// use stepfold_session_scopes::MemoryStore;
    ///
    /// # let model = Script::parse("assistant: area 3")?;
    /// let policy = RetentionPolicy::new().delete_idle_after(Duration::from_secs(90 * 24 * 60 * 60));
    /// let runner = Runner::builder(Agent::builder(model).build()?, MemoryStore::new()).retention(policy).build();
    /// let retention = tokio::spawn(runner.run_retention());
    /// runner.shutdown(Duration::from_secs(10)).await;
    /// retention.await??;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn run_retention(&self) -> impl Future<Output = Result<(), RunnerError>> + Send + use<> {
        let runner = self.clone();
        async move {
            let Some(policy) = runner.0.retention.as_ref().filter(|policy| !policy.is_empty()) else {
                return Ok(());
            };
            let interval = policy.interval();
            loop {
                let options = RetentionOptions::new().if_due();
                let pause = match runner.retain(options).await {
                    Ok(report) if report.next.is_some() => NEXT_PART.min(interval),
                    // It looks more often than passes are due, since another process may have made the last one.
                    Ok(_) => interval / 4,
                    Err(error) if is_unsupported(&error) => return Err(error),
                    Err(error) => {
                        tracing::warn!(%error, "retention failed");
                        interval
                    }
                };
                tokio::select! {
                    biased;
                    () = runner.0.shutdown.closed() => return Ok(()),
                    () = runner.0.clock.sleep(pause) => {}
                }
            }
        }
    }
}

fn is_unsupported(error: &RunnerError) -> bool {
    error.of_store().is_some_and(|source| source.kind() == ErrorKind::Unsupported)
}
