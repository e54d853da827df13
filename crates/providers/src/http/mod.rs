//! Common code of HTTP models: one client, one error parser, one stream reader.

mod client;
mod exchange;
mod guard;
mod retry_after;
mod server_error;
mod sse;

pub(crate) use self::client::{ConnectOptions, base_url, client, secrets_of, sensitive, without_password};
pub(crate) use self::sse::SseEvent;
#[cfg(test)]
pub(crate) use self::sse::SseParser;

pub(crate) use self::exchange::{PieceStream, ReplyPiece, ReplyProgress, pieces, send};
pub use self::guard::{OfflineGuard, forbid_real_requests};
pub(crate) use self::server_error::{ErrorContext, classify};
