//! Example programs. Each of them uses only the facade, `stepfold`.
//!
//! `analyst` is a conversation with a database: `cargo analyst`. `deep_research` is a graph of agents over a folder of
//! documents: `cargo research`. The others show one idea each and are in `examples/examples/`, one file each: `cargo run -p
//! stepfold-examples --example tools_share_state`. None needs a key or a network. This library contains the common parts:
//! the model, the sessions with their options, and the output.

mod model;
mod recording;
mod sessions;
mod show;

pub use self::model::live;
pub use self::recording::Recording;
pub use self::sessions::{
    ColorArgument, Failure, Options, USER, command, continuing, ended, farewell, fork, inspect,
    is_unfinished, list, newest, on_interrupt, unfinished,
};
pub use self::show::{ask, cut, say, tell, write};
