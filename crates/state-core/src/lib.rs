//! The data types of stateful LLM agents: messages, transcripts, state with a schema, deltas.
//!
//! In the facade: `stepfold::state_core`. A program that depends on `stepfold` writes this path in place of
//! `stepfold_state_core` in the examples.
//!
//! This is the lowest layer of stepfold, a runtime in which *an agent run is a fold over committed steps*:
//! pure data that is compared, stored and read again. Use this crate alone to write a chat model (implement
//! [`chat::ChatModel`]), a store, or a tool; use the facade `stepfold` for agents.
//!
//! # The tour
//!
//! **State.** A [`Schema`](state::Schema) declares keys: the type of each and the [`Handler`](state::Handler)
//! (a *reducer*) that merges writes to it. A [`State`](state::State) holds the values. A
//! [`Delta`](state::Delta) is a list of writes as data; folding it over a state gives the next state. A clone
//! of a state is an O(1) snapshot. A [`Template`](state::Template) inserts values into a prompt.
//!
//! ```
//! use serde_json::json;
//! use stepfold_state_core::state::{Delta, Handler, Key, Schema, State, Template};
//!
//! const DOCUMENTS: Key<Vec<String>> = Key::new("documents");
//!
//! let schema = Schema::builder()
//!     .key(DOCUMENTS)                                             // lists are appended to
//!     .key::<String>("user:name")                                 // other values are replaced
//!     .key::<u64>("visits").handler(Handler::sum()).default(0)    // unless a handler is set
//!     .build()?;
//! let mut state = State::with_values(&schema, json!({"user:name": "Ada"}))?;
//!
//! // Writes are checked immediately ...
//! let mut delta = Delta::new();
//! delta.push(schema.write(DOCUMENTS, vec!["first".to_owned(), "second".to_owned()])?);
//! delta.push(schema.write("visits", 1)?);
//! let refused = schema.write("visits", "many").unwrap_err();
//! assert_eq!(
//!     refused.to_string(),
//!     r#"invalid value for key "visits": expected integer, found string at $"#,
//! );
//!
//! // ... and applied atomically. A snapshot does not change.
//! let before = state.clone();
//! state.apply(&delta)?;
//! assert_eq!(state.get(DOCUMENTS)?, Some(vec!["first".to_owned(), "second".to_owned()]));
//! assert!(before.get(DOCUMENTS)?.is_none());
//!
//! let prompt = Template::parse("{user:name} has {documents}, seen {visits} time(s).");
//! assert_eq!(prompt.render(&state)?, r#"Ada has ["first","second"], seen 1 time(s)."#);
//! # Ok::<(), stepfold_state_core::state::StateError>(())
//! ```
//!
//! **Chat.** A [`Message`](chat::Message) has a role and parts. A [`Transcript`](chat::Transcript) is an
//! append-only list of messages. It knows its turns and steps, [checks](chat::Transcript::check) that calls
//! and results match, and [repairs](chat::Transcript::repair) itself after an interruption. It has a text
//! notation that parses what it prints:
//!
//! ```
//! use stepfold_state_core::chat::Transcript;
//!
//! let cut_off: Transcript = r#"
//! user:      which area has most stalls?
//! assistant: > c1 search(q="stalls")   > c2 fetch(id=7)
//! tool c1:   [3, 4]
//! "#.parse()?;
//! assert!(cut_off.check().unwrap_err().to_string().contains("c2"));
//! assert!(cut_off.repair().transcript.check().is_ok());
//! # Ok::<(), stepfold_state_core::chat::NotationError>(())
//! ```
//!
//! [`ChatModel`](chat::ChatModel) is the port that every provider implements: a request in, a stream of
//! chunks out.
//!
//! # Costs
//!
//! Cloning a state, a snapshot or a transcript is O(1); so is appending a message, or an item to a list key,
//! at any length and with snapshots of every earlier version. See [`List`].
//!
//! # What is absent
//!
//! Nothing here waits, reads a clock, draws a random number or does I/O. The loop, tools, sessions and
//! providers are in the layers above.
//!
//! # Features
//!
//! - `validation`: checks values against their whole JSON Schema, with a path for each fault. Without it a
//!   declared type is still checked: by `serde` for keys declared with a Rust type
//!   ([`key`](state::SchemaBuilder::key)), otherwise by kind (string, integer, list, ...).
//! - `preserve_order`: keeps the order of JSON object fields.
#![doc = include_str!("../docs/limits.md")]

mod bm25;
mod canonical;
pub mod chat;
mod decode;
mod depth;
mod error_chain;
mod exact;
mod excerpt;
mod faults;
mod invisible;
pub mod json_schema;
mod list;
mod lookalike;
pub mod state;
mod word_index;
mod words;

pub use crate::bm25::Bm25;
pub use crate::canonical::{canonical_json, canonical_object};
pub use crate::decode::{DecodeError, DecodeErrorKind, decode};
pub use crate::depth::MAX_DEPTH;
pub use crate::error_chain::ErrorChain;
pub use crate::exact::{ExactError, check_exact, count_values, read_exact};
pub use crate::excerpt::{shortened, shortened_pair};
pub use crate::invisible::{escape_all_invisible, escape_invisible, is_invisible};
pub use crate::list::List;
pub use crate::lookalike::warnings;
pub use crate::word_index::{WordIndex, search_word_hash};
pub use crate::words::{
    for_each_search_hash, for_each_search_word, search_excerpt, search_words, searched_text,
};
