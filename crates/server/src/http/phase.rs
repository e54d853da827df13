//! The phases of a server, from its start to the end of its last run.

use tokio::sync::watch;

/// The phase of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::http) enum ServerPhase {
    Serving,
    /// Load balancers are told that it stops; all requests are still answered.
    Leaving,
    /// No connection is accepted any more, and runs have the time to complete.
    Stopping,
    /// No run is active in this process any more.
    Stopped,
}

/// Waits for a phase. A server that is gone has none any more.
pub(in crate::http) async fn reaches(phase: &mut watch::Receiver<ServerPhase>, reached: ServerPhase) {
    if phase.wait_for(|phase| *phase >= reached).await.is_err() {
        std::future::pending::<()>().await;
    }
}
