//! The permit of a live stream, which is taken before anything is stored for it.

use std::time::Duration;

use tokio::sync::watch;

use crate::http::guard::limits::MemoryReservation;
use crate::http::metrics::CountedStream;
use crate::http::phase::ServerPhase;

/// The permit of a live stream, and the settings that it is opened with.
pub(in crate::http) struct StreamPermit {
    pub(in crate::http) keep_alive: Duration,
    pub(in crate::http) phase: watch::Receiver<ServerPhase>,
    /// Counts the stream until it is dropped.
    pub(in crate::http) permit: CountedStream,
    /// The memory that the stream holds.
    pub(in crate::http) memory: MemoryReservation,
}
