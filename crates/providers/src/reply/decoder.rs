//! The decoder of a reply as a trait: from the pieces of a response to chunks, with the faults that all dialects share.

use reqwest::header::HeaderMap;
use serde::de::DeserializeOwned;
use serde_json::Value;
use stepfold_state_core::chat::{Chunk, FinishReason, ModelError, ModelErrorKind};

use crate::http::{ErrorContext, ReplyPiece, classify};

/// A pure state machine that decodes a server's data into chunks.
pub trait ReplyDecoder: Send + 'static {
    /// Reads one piece. Chunks before a fault are passed on.
    ///
    /// # Errors
    /// The reply is faulty.
    fn push(&mut self, piece: ReplyPiece, out: &mut Vec<Chunk>) -> Result<(), ReplyFault>;

    /// The finish reason so far, and whether the reply is over.
    fn end(&self) -> &FinishState;

    /// Whether a finish reason has come.
    fn is_finished(&self) -> bool {
        self.end().reason.is_some()
    }

    /// Whether the reply is over.
    fn is_over(&self) -> bool {
        self.end().is_over
    }

    /// The objects in an event, or in a whole reply, whose fields are about the reply, each with the names of those that
    /// are read. The others are [raw](crate::RawFields).
    fn objects(body: &Value, is_whole: bool) -> Vec<(&Value, &'static [&'static str])>;

    /// Appends the last chunks after the last piece.
    ///
    /// # Errors
    /// The reply is incomplete.
    fn finish(&mut self, out: &mut Vec<Chunk>) -> Result<(), ReplyFault>;

    /// Passes on the chunks that are held back when a reply is interrupted.
    fn abandon(&mut self, _: &mut Vec<Chunk>) {}

    /// The amount of the reply that is held back. Growth counts as progress, though no chunk is passed on.
    fn held(&self) -> usize {
        0
    }
}

/// The finish reason of a reply as far as it is known, and whether the reply is over.
#[derive(Debug, Default)]
pub struct FinishState {
    /// The finish reason; `None` before it has arrived.
    pub(crate) reason: Option<FinishReason>,
    /// Whether the reply is over.
    pub(crate) is_over: bool,
}

impl FinishState {
    /// The finish reason of a reply that ends here.
    ///
    /// # Errors
    /// The finish reason is missing: the reply is incomplete.
    pub(crate) fn take(&mut self) -> Result<FinishReason, ReplyFault> {
        let message = || "the stream ended without a finish reason".to_owned();
        // NOTE: `[DONE]` alone is not enough: some proxies send it whenever their upstream goes away.
        self.reason.take().ok_or_else(|| ReplyFault::Kind(ModelErrorKind::Truncated, message()))
    }
}

/// A fault of a reply.
#[derive(Debug)]
pub enum ReplyFault {
    /// The server's error.
    Reported(String),
    /// A fault of a known kind.
    Kind(ModelErrorKind, String),
    /// A piece is not JSON, or has an unknown shape. After the finish reason it is ignored.
    Unreadable(String),
}

impl ReplyFault {
    pub(crate) fn malformed(message: impl Into<String>) -> Self {
        ReplyFault::Kind(ModelErrorKind::Malformed, message.into())
    }

    pub(super) fn into_error(self, context: &ErrorContext) -> ModelError {
        match self {
            ReplyFault::Reported(body) => classify(context, None, &HeaderMap::new(), &body),
            ReplyFault::Kind(kind, message) => context.error(kind, message),
            ReplyFault::Unreadable(message) => context.error(ModelErrorKind::Malformed, message),
        }
    }
}

/// Parses the JSON of a piece; `None` if it is empty.
///
/// # Errors
/// The piece is not JSON, or has another shape.
pub(crate) fn parse_piece<T: DeserializeOwned>(piece: &ReplyPiece) -> Result<Option<T>, ReplyFault> {
    let (text, what) = match piece {
        ReplyPiece::Event(event) => (event.data.trim(), "an event is not JSON"),
        ReplyPiece::Whole(text) => (text.as_str(), "the reply is neither a stream nor JSON"),
    };
    if matches!(piece, ReplyPiece::Event(_)) && text.is_empty() {
        return Ok(None);
    }
    // NOTE: Repaired only after a failure, so that valid pieces are parsed once.
    let parsed = serde_json::from_str(text).or_else(|error| match with_whole_escapes(text) {
        Some(text) => serde_json::from_str(&text),
        None => Err(error),
    });
    match parsed {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_data() => {
            Err(ReplyFault::Unreadable(format!("an event has an unknown shape: {error}")))
        }
        Err(error) => Err(ReplyFault::Unreadable(format!("{what}: {error}"))),
    }
}

/// The text with a replacement character for each lone surrogate, if there is one: some servers split a
/// character that JSON writes in two escapes.
fn with_whole_escapes(text: &str) -> Option<String> {
    let unit = |at: usize| {
        let digits = text.get(at..at + 6)?.strip_prefix("\\u")?;
        u16::from_str_radix(digits, 16).ok()
    };
    let (mut whole, mut copied, mut at) = (String::new(), 0, 0);
    while let Some(next) = text[at..].find('\\') {
        at += next;
        let (is_high, is_low) = match unit(at) {
            Some(unit) => ((0xd800..0xdc00).contains(&unit), (0xdc00..0xe000).contains(&unit)),
            None => (false, false),
        };
        if is_high && unit(at + 6).is_some_and(|low| (0xdc00..0xe000).contains(&low)) {
            at += 12;
        } else if is_high || is_low {
            whole.push_str(&text[copied..at]);
            whole.push('\u{fffd}');
            at += 6;
            copied = at;
        } else {
            // The backslash and the escaped character, which may be a backslash; at the end nothing.
            at += 1;
            at += text[at..].chars().next().map_or(0, char::len_utf8);
        }
    }
    (copied > 0).then(|| whole + &text[copied..])
}
