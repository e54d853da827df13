//! Live streams: of one session, of several, and of all sessions of a user.

pub(super) mod channel;
pub(super) mod live_stream;
pub(super) mod permit;
pub(super) mod sse;
pub(super) mod user_feed;
