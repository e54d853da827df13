//! OpenAI's Responses API, which its own clients speak by default.
//!
//! Nothing is stored on the server: the whole conversation is sent, and reasoning is sent back encrypted.
//! Note that a server's item (a message, a call, reasoning, a search) is more than its text. Its other fields
//! are stored in an extra of its part, `openai`, and sent back with it.

mod decode;
mod dialect;
mod input;

pub use self::dialect::{OpenAiResponses, OpenAiResponsesBuilder, ResponsesApi};
