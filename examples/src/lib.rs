//! Programs that show stepfold at work; each of them uses only the facade, `stepfold`.
//!
//! `analyst` is the main one: `cargo run -p stepfold-examples --bin analyst`. The others show one idea each and are
//! in `examples/examples/`, one file each: `cargo run -p stepfold-examples --example tools_share_state`. None
//! needs a key or a network.
