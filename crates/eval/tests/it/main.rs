//! The laws of evaluation.

mod clerk;
mod laws;
mod planted;
mod streamed;
