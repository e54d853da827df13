//! Conversations: messages, transcripts, their text notation, and the port that models implement.
//!
//! In order: a [`Message`] has a [`Role`] and [`Part`]s; a [`Transcript`] is a list of messages with O(1)
//! clones. It knows its [turns](Transcript::turns), [checks](Transcript::check) whether it is well-formed,
//! and [repairs](Transcript::repair) itself. The [`notation`] is its text form. A [`ChatModel`] answers a
//! [`ChatRequest`] with a [`ReplyStream`] of [`Chunk`]s, which a [`ReplyBuilder`] folds into a [`Reply`]; or
//! it fails with a [`ModelError`], whose [kind](ModelErrorKind) decides how a caller reacts.

mod message;
mod part;
mod tool;

mod transcript;
mod turns;

mod call_ids;
mod check;
mod citation;
mod logprob;
mod repair;

pub mod notation;

mod model;
mod request;

mod fragments;
mod pieces;
mod price;
mod reply;
mod server_tool;
mod stored_text;
mod wire;

mod error;

mod extras;
mod json;

pub use call_ids::{fresh_call_id, with_unique_call_ids};
pub use check::{TranscriptFault, TranscriptFaultKind, TranscriptFaults};
pub use citation::{CITATIONS, Citation};
pub use error::{ModelError, ModelErrorKind, TimeoutKind};
pub use extras::Extras;
pub use fragments::ArgumentsBuilder;
pub use logprob::{LOGPROBS, TokenLogprob};
pub use message::{Message, Role};
pub use model::{ChatModel, MAX_REPLY_BYTES, ReplyStream};
pub use notation::NotationError;
pub use part::{Content, ImageDetail, Media, MediaSource, Part, UnknownPart};
pub use price::{Price, PriceSource, Prices};
pub use repair::{INTERRUPTED, Repair, RepairKind, RepairedTranscript};
pub use reply::{
    Chunk, Cost, FinishReason, NextAttempt, PartialReply, Reply, ReplyBuilder, ToolCallChunk, Usage,
};
pub use request::{ChatRequest, ModelParams, OmittedTool, ResponseFormat, ServerTool, ToolChoice, ToolSpec};
pub use server_tool::ServerToolUse;
pub use stored_text::StoredText;
pub use tool::{Arguments, ToolCall, ToolContent, ToolResult};
pub use transcript::{MessageIter, Transcript};
pub use turns::{Span, Step, Steps, Turn, Turns};
pub use wire::{WireChange, WireRequest};
