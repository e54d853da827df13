//! Scripted models, and the simulator that stops a run wherever it can be stopped.

mod script;

pub use self::script::Script;
