//! Reads a reply: decodes it to its end, and decides whether it is complete, the same for all dialects.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use reqwest::header::HeaderMap;
use serde::de::DeserializeOwned;
use serde_json::Value;
use stepfold_state_core::chat::{Chunk, Extras, FinishReason, ModelError, ModelErrorKind, ReplyStream};
use tokio::time::{Instant, timeout};

use crate::conform::SERVER;
use crate::http::{Piece, Pieces, Progress, Target, classify};
use crate::layer::is_content;
use crate::raw::Unread;

/// The total time to wait for data after a finish reason, such as usage.
const AFTER_FINISH: Duration = Duration::from_secs(5);

/// A pure state machine that decodes a server's data into chunks.
pub trait Decode: Send + 'static {
    /// Reads one piece. Chunks before a fault are passed on.
    ///
    /// # Errors
    /// The reply is faulty.
    fn push(&mut self, piece: Piece, out: &mut Vec<Chunk>) -> Result<(), Bad>;

    /// How far the reply has come.
    fn end(&self) -> &End;

    /// Whether a finish reason has come.
    fn is_finished(&self) -> bool {
        self.end().reason.is_some()
    }

    /// Whether nothing more will come.
    fn is_over(&self) -> bool {
        self.end().is_over
    }

    /// The objects in an event, or in a whole reply, whose fields are about the reply, each with the names of those that
    /// are read. The others are [raw](crate::RawFields).
    fn objects(body: &Value, is_whole: bool) -> Vec<(&Value, &'static [&'static str])>;

    /// The last chunks, once nothing more comes.
    ///
    /// # Errors
    /// The reply is incomplete.
    fn finish(&mut self, out: &mut Vec<Chunk>) -> Result<(), Bad>;

    /// Passes on what is held back of a reply that breaks off.
    fn abandon(&mut self, _: &mut Vec<Chunk>) {}

    /// How much of the reply has come and is held back: more of it is progress, though nothing is passed on.
    fn held(&self) -> usize {
        0
    }
}

/// How far a reply has come.
#[derive(Debug, Default)]
pub struct End {
    /// Why it ended, as far as that has come.
    pub(crate) reason: Option<FinishReason>,
    /// Whether nothing more will come.
    pub(crate) is_over: bool,
}

impl End {
    /// The finish reason of a reply that ends here.
    ///
    /// # Errors
    /// None has come: it is not a whole reply.
    pub(crate) fn take(&mut self) -> Result<FinishReason, Bad> {
        let message = || "the stream ended without a finish reason".to_owned();
        self.reason.take().ok_or_else(|| Bad::Kind(ModelErrorKind::Truncated, message()))
    }
}

/// A fault of a reply.
#[derive(Debug)]
pub enum Bad {
    /// The server's error.
    Said(String),
    /// It is of this kind.
    Kind(ModelErrorKind, String),
    /// A piece of it is not JSON, or has another shape. After the finish that does not matter.
    Unreadable(String),
}

impl Bad {
    pub(crate) fn malformed(message: impl Into<String>) -> Self {
        Bad::Kind(ModelErrorKind::Malformed, message.into())
    }

    fn into_error(self, target: &Target) -> ModelError {
        match self {
            Bad::Said(body) => classify(target, None, &HeaderMap::new(), &body),
            Bad::Kind(kind, message) => target.error(kind, message),
            Bad::Unreadable(message) => target.error(ModelErrorKind::Malformed, message),
        }
    }
}

/// Parses the JSON of a piece; `None` if it is empty.
///
/// # Errors
/// The piece is not JSON, or has another shape.
pub(crate) fn json<T: DeserializeOwned>(piece: &Piece) -> Result<Option<T>, Bad> {
    let (text, what) = match piece {
        Piece::Event(event) => (event.data.trim(), "an event is not JSON"),
        Piece::Whole(text) => (text.as_str(), "the reply is neither a stream nor JSON"),
    };
    if matches!(piece, Piece::Event(_)) && text.is_empty() {
        return Ok(None);
    }
    let parsed = serde_json::from_str(text).or_else(|error| match with_whole_escapes(text) {
        Some(text) => serde_json::from_str(&text),
        None => Err(error),
    });
    match parsed {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_data() => {
            Err(Bad::Unreadable(format!("an event has an unknown shape: {error}")))
        }
        Err(error) => Err(Bad::Unreadable(format!("{what}: {error}"))),
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

/// A reply that is being read.
pub(crate) struct Reading<D> {
    pieces: Pieces,
    decoder: D,
    unread: Unread,
    target: Target,
    progress: Progress,
    ready: VecDeque<Chunk>,
    /// The time waited for data after the finish reason.
    waited: Duration,
    /// How it ends, once that is known.
    end: Option<Result<(), ModelError>>,
    /// The server that sends it.
    server: Option<Arc<str>>,
    /// Whether it has extras, which go back to this server only.
    has_extras: bool,
}

impl<D: Decode> Reading<D> {
    pub(crate) fn new(
        pieces: Pieces,
        decoder: D,
        unread: Unread,
        target: Target,
        progress: Progress,
    ) -> Self {
        let (ready, waited) = (VecDeque::new(), Duration::ZERO);
        let (server, has_extras) = (None, false);
        Reading { pieces, decoder, unread, target, progress, ready, waited, end: None, server, has_extras }
    }

    /// Marks a reply that has extras with the server that sent them.
    pub(crate) fn of_server(mut self, server: Arc<str>) -> Self {
        self.server = Some(server);
        self
    }

    pub(crate) fn into_stream(self) -> ReplyStream {
        ReplyStream::new(stream::unfold(self, |mut reading| async move {
            let item = reading.next().await?;
            Some((item, reading))
        }))
    }

    async fn next(&mut self) -> Option<Result<Chunk, ModelError>> {
        loop {
            if let Some(chunk) = self.ready.pop_front() {
                if is_content(&chunk) {
                    self.progress.begin();
                }
                return Some(Ok(chunk));
            }
            if let Some(end) = self.end.replace(Ok(())) {
                return end.err().map(Err);
            }
            let mut chunks = Vec::new();
            self.end = self.step(&mut chunks).await;
            self.ready.extend(chunks.into_iter().map(|chunk| self.target.clean_names(chunk)));
        }
    }

    /// One more piece, within one time limit for all of them.
    async fn next_after_finish(&mut self) -> Option<Piece> {
        let left = AFTER_FINISH.checked_sub(self.waited).filter(|left| !left.is_zero())?;
        let asked = Instant::now();
        let next = timeout(left, self.pieces.next()).await;
        self.waited += asked.elapsed();
        next.ok().flatten().and_then(Result::ok)
    }

    /// Reads one piece. Some is the end.
    async fn step(&mut self, out: &mut Vec<Chunk>) -> Option<Result<(), ModelError>> {
        let is_finished = self.decoder.is_finished();
        let next = if self.decoder.is_over() {
            None
        } else if is_finished {
            // The reply is complete; whatever the server sends now does not change that.
            self.progress.finish();
            self.next_after_finish().await
        } else {
            match self.pieces.next().await.transpose() {
                Ok(next) => next,
                Err(error) => {
                    self.decoder.abandon(out);
                    return Some(Err(error));
                }
            }
        };
        let (read, is_end) = if let Some(piece) = next {
            self.unread.read::<D>(&piece);
            let read = self.decoder.push(piece, out);
            self.progress.hold(self.decoder.held());
            (read, false)
        } else {
            out.extend(self.unread.chunk());
            (self.decoder.finish(out), true)
        };
        self.has_extras |= out.iter().any(is_of_server);
        if is_end && self.has_extras {
            let mark = |server: &Arc<str>| Chunk::MessageExtras(Extras::from_iter([(SERVER, &**server)]));
            // The reply is closed by its last chunk.
            let at = out.iter().position(|chunk| matches!(chunk, Chunk::Finished(_))).unwrap_or(out.len());
            out.splice(at..at, self.server.as_ref().map(mark));
        }
        match read {
            Ok(()) => is_end.then_some(Ok(())),
            Err(Bad::Unreadable(_)) if is_finished => None,
            Err(bad) => Some(Err(bad.into_error(&self.target))),
        }
    }
}

/// Whether a chunk holds what only its server understands.
const fn is_of_server(chunk: &Chunk) -> bool {
    matches!(chunk, Chunk::Part(_) | Chunk::PartExtras(_) | Chunk::MessageExtras(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has finished, and ignores further data.
    struct Finished(End);

    impl Decode for Finished {
        fn push(&mut self, _: Piece, _: &mut Vec<Chunk>) -> Result<(), Bad> {
            Ok(())
        }

        fn end(&self) -> &End {
            &self.0
        }

        fn objects(_: &Value, _: bool) -> Vec<(&Value, &'static [&'static str])> {
            Vec::new()
        }

        fn finish(&mut self, out: &mut Vec<Chunk>) -> Result<(), Bad> {
            out.push(Chunk::Finished(FinishReason::Stop));
            Ok(())
        }
    }

    fn reading(items: impl futures_util::Stream<Item = ()> + Send + 'static) -> ReplyStream {
        let target = Target {
            provider: "test".to_owned(),
            model: "model".to_owned(),
            secrets: Vec::new(),
            request_id: None,
        };
        let pieces = items.map(|()| Ok(Piece::Whole(String::new()))).boxed();
        let decoder = Finished(End { reason: Some(FinishReason::Stop), is_over: false });
        let unread = Unread::new(crate::RawFields::Drop);
        Reading::new(pieces, decoder, unread, target, Progress::new(None)).into_stream()
    }

    /// Each keep-alive comes in time; all together they do not.
    #[tokio::test(start_paused = true)]
    async fn a_server_that_continues_after_the_finish_is_not_waited_for() {
        let start = Instant::now();
        let pings = stream::unfold((), |()| async {
            // tidy: allow sleep, because the clock is paused and moves on by itself.
            tokio::time::sleep(Duration::from_secs(2)).await;
            Some(((), ()))
        });
        assert!(reading(pings).into_reply().await.is_ok());
        assert_eq!(start.elapsed(), AFTER_FINISH);
        let at_once = stream::repeat_with(|| {
            let _ = futures_util::FutureExt::now_or_never(tokio::time::advance(Duration::from_secs(1)));
        });
        assert!(reading(at_once).into_reply().await.is_ok());
        assert_eq!(start.elapsed(), AFTER_FINISH * 2);
    }
}
