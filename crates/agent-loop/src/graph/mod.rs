//! Graphs: workflows of nodes over one state.

pub mod progress;
