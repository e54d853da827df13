//! OpenAI's Responses API, which its own clients speak by default.
//!
//! Nothing is kept on the server: the whole conversation is sent, and what a model thought goes back encrypted, as it
//! came. One thing surprises: an item that a server made (a message, a call, a thought, a search) is more than its
//! text. What else is in it travels as an extra of its part, `openai`, and goes back with it.

mod decode;
mod dialect;
mod input;

pub use self::dialect::{OpenAiResponses, OpenAiResponsesBuilder, Responses};
