//! The simulator: it runs an agent or a graph, and then again and again with an end in the middle.
//!
//! A run is not torn down from outside but by its own observer, which fails: this may surprise. An
//! observer is told of everything before it happens, so wherever a process can die there is a moment at which
//! the observer can fail.

mod comparison;
mod effect_ledger;
mod failing_observer;
mod inner_starts;
mod simulation;

pub use self::simulation::{SimulationError, SimulationReport, Simulator};

use std::fmt;

/// The id of every simulated run.
const RUN_ID: &str = "simulated";

fn json_of<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

fn same<T: PartialEq + fmt::Debug>(what: &str, expected: &T, found: &T) -> Result<(), String> {
    match expected == found {
        true => Ok(()),
        false => Err(format!("{what} differs\n  expected: {expected:?}\n  found:    {found:?}")),
    }
}
