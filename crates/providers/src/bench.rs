//! What the benchmarks measure. Not part of the interface.

use stepfold_state_core::chat::{ChatRequest, ModelError};

use crate::{anthropic, openai};

/// A function that writes bodies of one model, and remembers what it wrote.
pub fn openai_body() -> impl Fn(&ChatRequest) -> Result<Vec<u8>, ModelError> {
    openai::body_writer()
}

/// A function that writes bodies of one model, and remembers what it wrote.
pub fn anthropic_body() -> impl Fn(&ChatRequest) -> Result<Vec<u8>, ModelError> {
    anthropic::body_writer()
}
