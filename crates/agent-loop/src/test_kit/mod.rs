//! Scripted models, and the simulator that stops a run wherever it can be stopped.

mod executions;
mod script;
mod simulator;

pub use self::executions::Executions;
pub use self::script::Script;
pub use self::simulator::{SimulationError, SimulationReport, Simulator};
