//! Streams of changes: the commits of one session, and the sessions that changed, in this process and in others.

pub(crate) mod follow;
pub(crate) mod notices;
pub(crate) mod watch;
