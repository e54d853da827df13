//! The rules that every request passes: hosts and origins, principals, limits, and how a refusal is answered.

pub(super) mod access;
pub(super) mod auth;
pub(super) mod gate;
pub(super) mod limits;
pub(super) mod own_thread;
pub(super) mod problem;
pub(super) mod strict;
