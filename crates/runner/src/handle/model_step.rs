//! Restores a step of a stored run as it was before the reply: everything that the model was shown.

use stepfold_agent_loop::{Event, EventKind, Run};
use stepfold_session_scopes::{EventRange, Session};

use crate::error::RunnerError;
use crate::handle::session_handle::SessionHandle;
use crate::record::events::{begins, loop_event};
use crate::record::history::SessionHistory;

/// A step of a stored run, before the reply of the model. Created by [`SessionHandle::model_step`].
#[derive(Debug)]
#[non_exhaustive]
pub struct ModelStep {
    /// The run at that step. [`Run::request`] is its request to the model.
    pub run: Run,
    /// The places of the items inside of which it is, outermost first; empty for the session's own run.
    pub path: Vec<usize>,
    /// The version of the session with the reply, and the reply's event; `None` if the model has not replied.
    pub reply: Option<(u64, Event)>,
    /// The changes of the agent since the run began, in words. Data that is not recorded is as it is now.
    pub changes: Vec<String>,
}

impl SessionHandle {
    /// The step of the model that a version of the session belongs to: the last reply at or before it, in the run inside
    /// of the items at `path`, and the run as it was before that reply. Without a path, it is that of the version's event.
    ///
    /// The run is restored from its record by the same machine that made it. What is not in the record is unknown: the
    /// tools that a dynamic toolset listed ([`Run::tools`] is `None`), and, where the model has not replied, what a
    /// hook or a summary before the request would make of it ([`Run::decide`] says so).
    ///
    /// Returns `None` if no run of a model is there.
    ///
    /// # Errors
    /// When the version does not exist, the record does not fit the agent, or the store fails.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_runner::Runner;
    /// use stepfold_session_scopes::MemoryStore;
    ///
    /// # let model = Script::parse("assistant: area 3")?;
    /// let agent = Agent::builder(model).instructions("Be brief.").build()?;
    /// let runner = Runner::builder(agent, MemoryStore::new()).build();
    /// let session = runner.session("ada", "s1").await?;
    /// session.run("which area has most stalls?").await?;
    /// let step = session.model_step(None, None).await?.expect("it has replied");
    /// assert_eq!(step.run.request().messages.to_string(), "\
    /// system:    Be brief.
    /// user:      which area has most stalls?
    /// ");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub async fn model_step(
        &self,
        version: Option<u64>,
        path: Option<&[usize]>,
    ) -> Result<Option<ModelStep>, RunnerError> {
        let (version, found) = self.find_step(version, path).await?;
        let Some(LocatedStep { path, reply }) = found else { return Ok(None) };
        // What it replied to is what there was just before.
        let session = self.read_at(Some(reply.as_ref().map_or(version, |(version, _)| version - 1))).await?;
        let access = self.access();
        let mut history = SessionHistory::default();
        history.extend(&session)?;
        access.pin(&mut history).await;
        let program = access.program(&history);
        let changes = history.changes(&program.agent);
        let state = history.state(&session, &program.schema)?;
        let Some(run) = history.last_run(&program.agent, state, self.key())? else { return Ok(None) };
        let asks = path.iter().try_fold(&run, |run, place| run.inside_of(*place)).cloned();
        let step = asks.map(|run| ModelStep { run, path, reply, changes });
        Ok(step.filter(|step| step.reply.is_some() || step.run.asks_model()))
    }

    /// The last run of the session as it was at a version, restored from its record; `None` if there was none.
    ///
    /// # Errors
    /// As [`model_step`](SessionHandle::model_step).
    pub async fn run_at(&self, version: u64) -> Result<Option<Run>, RunnerError> {
        let session = self.read_at(Some(version)).await?;
        let mut history = SessionHistory::default();
        history.extend(&session)?;
        let access = self.access();
        access.pin(&mut history).await;
        let program = access.program(&history);
        let state = history.state(&session, &program.schema)?;
        history.last_run(&program.agent, state, self.key())
    }

    /// The session as it was at a version, with what counts of its events.
    pub(crate) async fn read_at(&self, version: Option<u64>) -> Result<Session, RunnerError> {
        let access = self.access();
        let mut get = access.request().visible();
        get.version = version;
        access.get(get).await
    }

    /// The step of a model at the end of the session as it was at a version, and that version. It is looked for among the
    /// newest events first: most steps have few.
    async fn find_step(
        &self,
        version: Option<u64>,
        path: Option<&[usize]>,
    ) -> Result<(u64, Option<LocatedStep>), RunnerError> {
        let (access, mut events, mut version) = (self.access(), FIRST, version);
        loop {
            let mut get = access.request().visible().without_state();
            (get.events, get.version) = (EventRange::Last(events), version);
            let session = access.get(get).await?;
            let found = self.step_in(&session, path)?;
            if found.is_some() || session.events.len() < events {
                return Ok((session.version, found));
            }
            // What is appended meanwhile is not of this step.
            version = Some(session.version);
            events = events.saturating_mul(8);
        }
    }

    /// The step of a model at the end of these events; `None` if it began before them, or there is none.
    fn step_in(&self, session: &Session, path: Option<&[usize]>) -> Result<Option<LocatedStep>, RunnerError> {
        let mut path = path.map(<[usize]>::to_vec);
        let events: Vec<_> = session.visible_events().collect();
        for committed in events.into_iter().rev() {
            let Some(event) = loop_event(self.key(), committed)? else { continue };
            let (at, innermost) = located(&event);
            let path = path.get_or_insert_with(|| at.clone());
            let is_reply = matches!(innermost.kind, EventKind::Replied { .. });
            if at == *path && is_reply {
                return Ok(Some(LocatedStep {
                    path: at,
                    reply: Some((committed.version, innermost.clone())),
                }));
            }
            // The run, or the step around it, begins here, and the model has not replied in it.
            let begins_step = is_reply || matches!(innermost.kind, EventKind::Planned { .. });
            let begins_run = at == *path && matches!(innermost.kind, EventKind::Began { .. });
            if begins_run || begins(&committed.event) || (begins_step && is_around(&at, path)) {
                return Ok(Some(LocatedStep { path: path.clone(), reply: None }));
            }
        }
        Ok(None)
    }
}

/// The number of newest events among which a step is looked for first.
const FIRST: usize = 64;

/// A step of a model in the record.
struct LocatedStep {
    /// The places of the items inside of which it is.
    path: Vec<usize>,
    /// The version with its reply, and the reply; `None` if the model has not replied.
    reply: Option<(u64, Event)>,
}

/// The places inside of which an event happened, and the event there.
pub(super) fn located(event: &Event) -> (Vec<usize>, &Event) {
    let (mut places, mut event) = (Vec::new(), event);
    while let EventKind::Inner { place, event: inner } = &event.kind {
        places.push(*place);
        event = inner;
    }
    (places, event)
}

fn is_around(outer: &[usize], path: &[usize]) -> bool {
    outer.len() < path.len() && path.starts_with(outer)
}
