//! Retention: sessions, events and messages that go by their age, by a policy of the application.

mod lease;
mod pass;
mod policy;
mod task;

pub use self::lease::RETENTION_APP;
pub(crate) use self::pass::RetentionCounters;
pub use self::pass::{RetentionOptions, RetentionReport};
pub use self::policy::RetentionPolicy;
