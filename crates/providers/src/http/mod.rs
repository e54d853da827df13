//! Common code of HTTP models: one client, one error parser, one stream reader.

mod client;
mod events;
mod exchange;
mod fault;
mod guard;
mod retry_after;

pub(crate) use self::client::{Connect, base_url, client, secrets_of, sensitive, without_password};
pub(crate) use self::events::Event;
#[cfg(test)]
pub(crate) use self::events::Events;

pub(crate) use self::exchange::{Piece, Pieces, Progress, pieces, send};
pub(crate) use self::fault::{Target, classify};
pub use self::guard::{RealRequests, forbid_real_requests};
