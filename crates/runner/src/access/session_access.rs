//! The access of this process to one session in the store.

use std::sync::Arc;

use stepfold_session_scopes::Session;

use crate::core::runner_core::RunnerCore;
use crate::record::history::SessionHistory;
use crate::session::local_session::LocalSession;

/// Accesses one session in the store, with the data of this process about it.
#[derive(Clone)]
pub(crate) struct SessionAccess {
    pub(crate) runner: Arc<RunnerCore>,
    pub(crate) local: Arc<LocalSession>,
}

/// The folded events of a session, and the session with its values.
pub(crate) type ReadSession = (Arc<SessionHistory>, Session);
