//! A line in the log about sessions that could not be recovered.

use std::time::Duration;

use stepfold_session_scopes::SessionKey;
use tokio::time::Instant;

/// At least the time between two lines in the log about sessions that could not be recovered.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Sessions that could not be recovered, until the log has a line about them.
#[derive(Debug, Default)]
pub(crate) struct BlockedLog {
    new: usize,
    last: Option<(SessionKey, String)>,
    logged: Option<Instant>,
}

impl BlockedLog {
    pub(crate) fn add(&mut self, key: &SessionKey, error: String) {
        self.new += 1;
        self.last = Some((key.clone(), error));
    }

    /// Says in one line what came since the last one, at once or after a while; or now, if this is the end.
    pub(crate) fn log(&mut self, is_end: bool) {
        let is_time = self.logged.is_none_or(|logged| logged.elapsed() >= LOG_INTERVAL);
        if !(is_time || is_end) {
            return;
        }
        let Some((session, error)) = self.last.take() else { return };
        let sessions = std::mem::take(&mut self.new);
        self.logged = Some(Instant::now());
        tracing::warn!(sessions, %session, error, "sessions could not be recovered; this is the last of them");
    }
}
