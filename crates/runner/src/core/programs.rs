//! The agents of a runner: that of today, and those that unfinished runs began with.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stepfold_agent_loop::{Agent, AgentChange, Fingerprint};
use stepfold_session_scopes::SessionSchema;

use tokio::sync::OnceCell;

use crate::ports::{AgentArchive, ArchiveError, EarlierAgent};
use crate::record::events::AgentAuthor;

/// An agent, the schema of its sessions and the author of its events.
pub(crate) struct AgentProgram {
    pub(crate) agent: Agent,
    pub(crate) schema: SessionSchema,
    pub(crate) author: AgentAuthor,
    /// Set once the archive has kept it.
    kept: OnceCell<()>,
}

impl AgentProgram {
    pub(crate) fn new(agent: Agent, schema: SessionSchema) -> Arc<Self> {
        Arc::new(AgentProgram { agent, schema, author: AgentAuthor::default(), kept: OnceCell::new() })
    }

    fn of(earlier: EarlierAgent) -> Arc<Self> {
        AgentProgram::new(earlier.agent, earlier.schema)
    }
}

/// The agent that the last run of a session continues with, if that of today is to leave it.
#[derive(Clone, Default)]
pub(crate) enum PinnedAgent {
    /// The agent of today, which may be refused.
    #[default]
    None,
    Known(Arc<AgentProgram>),
    /// It cannot be loaded from the archive.
    Broken {
        digest: String,
        source: Arc<ArchiveError>,
    },
}

impl PinnedAgent {
    pub(crate) fn known(&self) -> Option<&Arc<AgentProgram>> {
        match self {
            PinnedAgent::Known(program) => Some(program),
            PinnedAgent::None | PinnedAgent::Broken { .. } => None,
        }
    }
}

/// The most agents of the archive that are kept in memory beside those of sessions in use.
const MAX_LOADED: usize = 16;

/// The agents that runs may continue with under [`Pinned`](crate::WhenChanged::Pinned).
#[derive(Default)]
pub(crate) struct OlderAgents {
    registered: Vec<Arc<AgentProgram>>,
    archive: Option<Arc<dyn AgentArchive>>,
    /// Agents of the archive that were used last, by their digests.
    loaded: Mutex<VecDeque<(String, Arc<AgentProgram>)>>,
}

impl OlderAgents {
    pub(crate) fn register(&mut self, earlier: EarlierAgent) {
        self.registered.push(AgentProgram::of(earlier));
    }

    pub(crate) fn set_archive(&mut self, archive: Arc<dyn AgentArchive>) {
        self.archive = Some(archive);
    }

    /// The agent with this fingerprint; `None` if it is not registered, and there is no archive.
    pub(crate) async fn find(
        &self,
        recorded: &Fingerprint,
    ) -> Result<Option<Arc<AgentProgram>>, ArchiveError> {
        let is_it = |program: &&Arc<AgentProgram>| program.agent.changes_since(recorded).is_empty();
        if let Some(program) = self.registered.iter().find(is_it) {
            return Ok(Some(Arc::clone(program)));
        }
        let Some(archive) = &self.archive else { return Ok(None) };
        let digest = recorded.digest();
        if let Some(program) = self.used_again(&digest) {
            return Ok(Some(program));
        }
        let Some(earlier) = archive.load(&digest).await? else {
            return Err("no version of it is stored".into());
        };
        let program = AgentProgram::of(earlier);
        // An option of this process may name another model.
        let of_model = |change: &AgentChange| {
            ["model", "model parameters"].into_iter().any(|part| change.is_of_agent_part(part))
        };
        let changes = program.agent.changes_since(recorded);
        if let Some(other) = changes.iter().find(|change| !of_model(change)) {
            return Err(format!("what is stored of it makes another agent: {other}").into());
        }
        let mut loaded = self.loaded();
        loaded.truncate(MAX_LOADED - 1);
        loaded.push_front((digest, Arc::clone(&program)));
        Ok(Some(program))
    }

    /// Keeps an agent of which a run begins.
    pub(crate) async fn keep(&self, program: &AgentProgram) -> Result<(), ArchiveError> {
        let Some(archive) = &self.archive else { return Ok(()) };
        program.kept.get_or_try_init(|| archive.keep(&program.agent)).await.map(drop)
    }

    fn used_again(&self, digest: &str) -> Option<Arc<AgentProgram>> {
        let mut loaded = self.loaded();
        let place = loaded.iter().position(|(known, _)| known == digest)?;
        let used = loaded.remove(place)?;
        loaded.push_front(used);
        loaded.front().map(|(_, program)| Arc::clone(program))
    }

    fn loaded(&self) -> MutexGuard<'_, VecDeque<(String, Arc<AgentProgram>)>> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
