//! The nouns of stateful LLM agents: messages, transcripts, schema'd state, deltas.
//!
//! This is the foot of stepfold, a runtime in which *an agent run is a fold over committed steps*. Here is what is folded: pure data that can be kept, compared, stored and
//! read again. Take this crate alone to write a chat model (implement [`chat::ChatModel`]), a store, or a
//! tool; take the facade `stepfold` for agents.
//!
//! # The tour
//!
//! **State.** A [`Schema`](state::Schema) declares keys: the type of each and the
//! [`Handler`](state::Handler) that merges writes to it. A [`State`](state::State) holds the values. A
//! [`Delta`](state::Delta) is a list of writes as data; folding it over a state gives the next one. A
//! clone of a state costs nothing and does not change with it. A [`Template`](state::Template) puts
//! values into a prompt.
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
//!     .key::<u64>("visits").handler(Handler::sum()).default(0)    // unless you say otherwise
//!     .build()?;
//! let mut state = State::with_values(&schema, json!({"user:name": "Ada"}))?;
//!
//! // Writes are checked where they are made ...
//! let mut delta = Delta::new();
//! delta.push(schema.write(DOCUMENTS, vec!["first".to_owned(), "second".to_owned()])?);
//! delta.push(schema.write("visits", 1)?);
//! let refused = schema.write("visits", "many").unwrap_err();
//! assert_eq!(
//!     refused.to_string(),
//!     r#"key "visits" holds integer, which this value is not: at $: expected integer, found string"#,
//! );
//!
//! // ... and folded all at once or not at all. A snapshot stays what it was.
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
//! append-only list of them that knows its turns and steps, [checks](chat::Transcript::check) that every
//! call is answered and every answer has its call, and [repairs](chat::Transcript::repair) what an
//! interruption left open. It has a text notation that parses what it prints:
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
//! # What it costs
//!
//! A clone of a state, a snapshot or a transcript is O(1); so is appending a message, or an item to a list
//! key, at any length and with snapshots held of every earlier version. See [`List`].
//!
//! # What is absent
//!
//! Nothing here waits, reads a clock, draws a random number or touches I/O. There is no loop, no tool, no
//! session and no provider: those are the layers above.
//!
//! # Features
//!
//! - `validation`: check values against their whole JSON Schema, with a path for each fault. Without it a
//!   declared type is still checked: by `serde` where the key was declared with a Rust type
//!   ([`key`](state::SchemaBuilder::key)), by kind (string, integer, list, ...) for the rest.
//! - `preserve_order`: keep the order in which the fields of JSON objects were written.

pub mod chat;
mod decode;
mod depth;
mod error_chain;
mod faults;
mod invisible;
pub mod json_schema;
mod list;
pub mod state;

pub use crate::decode::{DecodeError, DecodeErrorKind, decode};
pub use crate::depth::MAX_DEPTH;
pub use crate::error_chain::ErrorChain;
pub use crate::invisible::{escape_all_invisible, escape_invisible, is_invisible};
pub use crate::list::List;
