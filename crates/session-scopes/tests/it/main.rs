//! Tests at the crate's boundary.

#![cfg(all(feature = "sqlite", feature = "postgres"))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::items_after_statements,
    clippy::needless_pass_by_value,
    clippy::similar_names,
    reason = "a helper of a test fails the test, takes what reads best, and need not be fast"
)]

/// Methods of a store that asks the one inside.
macro_rules! hand_on {
    ($($method:ident: $request:ty => $reply:ty;)*) => {$(
        async fn $method(&self, request: $request) -> Result<$reply, SessionError> {
            self.0.$method(request).await
        }
    )*};
}

mod budgets;
mod changes;
mod children;
mod claims;
mod counting;
mod crashes;
mod damage;
mod erasure;
mod erasure_laws;
mod files;
mod golden;
mod heartbeats;
mod inbox;
mod keys;
mod laws;
mod limits;
mod listed;
mod messages;
mod model;
mod parallel;
mod past;
mod pgbouncer;
mod pooler;
mod random;
mod scans;
mod scenario;
mod sealed;
mod sealed_erasure;
mod search;
mod semantics;
mod server;
mod set_up;
mod size;
mod statements;
mod stored;
mod tags;
mod tenancy;
mod tls;
