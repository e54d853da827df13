//! Processes that die: what was committed stays, and the next one continues.
//!
//! A child process is this test binary, started again. It runs an agent over a store in a folder and kills
//! itself with SIGKILL at a [named point](points), or is killed by its parent. Then another one resumes.

mod agent;
mod checks;
mod children;
mod kept;
mod live;
mod points;
mod postgres;
mod race;
// One server for all: the tests of the stores start it, and so do these.
#[path = "../../../../session-scopes/tests/it/server.rs"]
pub(crate) mod server;
mod sqlite;
pub(crate) mod store;
