//! What the example programs beside this file share; each of them uses only the facade, `stepfold`.
//!
//! The programs are in `examples/examples/`, one file each. There is none yet; see `docs/status.md`.
