//! A scripted model, for tests.

mod script;

pub use self::script::Script;
