//! Reads a reply to its end, and decides whether it is complete: the same for all dialects.
//!
//! The phases of a reply. A reply is *finishing* once its finish reason has arrived: from then on no failure makes it
//! incomplete.
//!
//! | phase | input | next phase |
//! |---|---|---|
//! | reading | a piece | reading |
//! | reading | a piece with a finish reason | finishing |
//! | reading | the last piece | over |
//! | reading | an unreadable piece | failed |
//! | reading | an error of the server | failed |
//! | reading | an error of the connection | failed |
//! | reading | the end of the body | failed |
//! | finishing | a piece | finishing |
//! | finishing | the last piece | over |
//! | finishing | an unreadable piece | finishing |
//! | finishing | an error of the server | failed |
//! | finishing | an error of the connection | done |
//! | finishing | the end of the body | done |
//! | finishing | no data for five seconds | done |
//! | over | no data for five seconds | done |

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use stepfold_state_core::chat::{Chunk, Extras, ModelError, ReplyStream};
use tokio::time::{Instant, timeout};

use super::decoder::{ReplyDecoder, ReplyFault};
use super::unread::UnreadFields;
use crate::conform::SERVER;
use crate::http::{ErrorContext, PieceStream, ReplyPiece, ReplyProgress};
use crate::layer::is_content;

/// The total time to wait for data after a finish reason, such as usage.
// NOTE: Usage follows the finish reason, but some servers keep the connection open without sending more. See
// docs/decisions/providers.md.
const AFTER_FINISH: Duration = Duration::from_secs(5);

/// A reply that is being read.
pub(crate) struct ReplyReader<D> {
    pieces: PieceStream,
    decoder: D,
    unread: UnreadFields,
    context: ErrorContext,
    progress: ReplyProgress,
    ready: VecDeque<Chunk>,
    /// The time waited for data after the finish reason.
    waited: Duration,
    /// The result at the end of the reply, once it is known.
    end: Option<Result<(), ModelError>>,
    /// The server that sends the reply.
    server: Option<Arc<str>>,
    /// Whether the reply has extras, which go back to this server only.
    has_extras: bool,
}

impl<D: ReplyDecoder> ReplyReader<D> {
    pub(crate) fn new(
        pieces: PieceStream,
        decoder: D,
        unread: UnreadFields,
        context: ErrorContext,
        progress: ReplyProgress,
    ) -> Self {
        let (ready, waited) = (VecDeque::new(), Duration::ZERO);
        let (server, has_extras) = (None, false);
        ReplyReader {
            pieces,
            decoder,
            unread,
            context,
            progress,
            ready,
            waited,
            end: None,
            server,
            has_extras,
        }
    }

    /// Marks a reply that has extras with the server that sent them.
    pub(crate) fn with_server(mut self, server: Arc<str>) -> Self {
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
            // NOTE: Ids and finish reasons are logged and stored, and a server may put a key into them.
            self.ready.extend(chunks.into_iter().map(|chunk| self.context.clean_names(chunk)));
        }
    }

    /// Waits for another piece, within a time limit shared by all pieces after the finish.
    async fn next_after_finish(&mut self) -> Option<ReplyPiece> {
        let left = AFTER_FINISH.checked_sub(self.waited).filter(|left| !left.is_zero())?;
        let started = Instant::now();
        let next = timeout(left, self.pieces.next()).await;
        self.waited += started.elapsed();
        next.ok().flatten().and_then(Result::ok)
    }

    /// Reads one piece. Returns `Some` at the end of the reply.
    async fn step(&mut self, out: &mut Vec<Chunk>) -> Option<Result<(), ModelError>> {
        let is_finished = self.decoder.is_finished();
        let next = if self.decoder.is_over() {
            None
        } else if is_finished {
            // The reply is complete; later data does not change that.
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
        self.has_extras |= out.iter().any(is_server_specific);
        if is_end && self.has_extras {
            let mark = |server: &Arc<str>| Chunk::MessageExtras(Extras::from_iter([(SERVER, &**server)]));
            // The reply is closed by its last chunk.
            let at = out.iter().position(|chunk| matches!(chunk, Chunk::Finished(_))).unwrap_or(out.len());
            out.splice(at..at, self.server.as_ref().map(mark));
        }
        match read {
            Ok(()) => is_end.then_some(Ok(())),
            // NOTE: The reply is complete: unreadable data after it must not turn it into an error.
            Err(ReplyFault::Unreadable(_)) if is_finished => None,
            Err(bad) => Some(Err(bad.into_error(&self.context))),
        }
    }
}

/// Whether a chunk holds data that only its server understands.
const fn is_server_specific(chunk: &Chunk) -> bool {
    matches!(chunk, Chunk::Part(_) | Chunk::PartExtras(_) | Chunk::MessageExtras(_))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use stepfold_state_core::chat::{FinishReason, ModelErrorKind};

    use super::super::FinishState;
    use super::*;

    /// Has finished, and ignores further data.
    struct Finished(FinishState);

    impl ReplyDecoder for Finished {
        fn push(&mut self, _: ReplyPiece, _: &mut Vec<Chunk>) -> Result<(), ReplyFault> {
            Ok(())
        }

        fn end(&self) -> &FinishState {
            &self.0
        }

        fn objects(_: &Value, _: bool) -> Vec<(&Value, &'static [&'static str])> {
            Vec::new()
        }

        fn finish(&mut self, out: &mut Vec<Chunk>) -> Result<(), ReplyFault> {
            out.push(Chunk::Finished(FinishReason::Stop));
            Ok(())
        }
    }

    fn context() -> ErrorContext {
        ErrorContext {
            provider: "test".to_owned(),
            model: "model".to_owned(),
            secrets: Vec::new(),
            request_id: None,
        }
    }

    fn reading(items: impl futures_util::Stream<Item = ()> + Send + 'static) -> ReplyStream {
        let pieces = items.map(|()| Ok(ReplyPiece::Whole(String::new()))).boxed();
        let decoder = Finished(FinishState { reason: Some(FinishReason::Stop), is_over: false });
        let unread = UnreadFields::new(crate::reply::RawFields::Drop);
        ReplyReader::new(pieces, decoder, unread, context(), ReplyProgress::new(None)).into_stream()
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

    /// Reads each piece as an input of the table.
    #[derive(Default)]
    struct TableDecoder(FinishState);

    impl ReplyDecoder for TableDecoder {
        fn push(&mut self, piece: ReplyPiece, _: &mut Vec<Chunk>) -> Result<(), ReplyFault> {
            let ReplyPiece::Whole(input) = piece else { return Ok(()) };
            if matches!(&*input, "a piece with a finish reason" | "the last piece") {
                self.0.reason = Some(FinishReason::Stop);
            }
            match &*input {
                "the last piece" => self.0.is_over = true,
                "an unreadable piece" => return Err(ReplyFault::Unreadable(input)),
                "an error of the server" => return Err(ReplyFault::Reported(input)),
                _ => {}
            }
            Ok(())
        }

        fn end(&self) -> &FinishState {
            &self.0
        }

        fn objects(_: &Value, _: bool) -> Vec<(&Value, &'static [&'static str])> {
            Vec::new()
        }

        fn finish(&mut self, out: &mut Vec<Chunk>) -> Result<(), ReplyFault> {
            out.push(Chunk::Finished(self.0.take()?));
            Ok(())
        }
    }

    /// The phase of a reply after this input.
    async fn phase_after(phase: &str, input: &str) -> &'static str {
        let first = match phase {
            "reading" => None,
            "finishing" => Some("a piece with a finish reason"),
            "over" => Some("the last piece"),
            other => panic!("unknown phase: {other}"),
        };
        let piece = |input: &str| Ok(ReplyPiece::Whole(input.to_owned()));
        let next = match input {
            "the end of the body" => stream::empty().boxed(),
            "no data for five seconds" => stream::pending().boxed(),
            "an error of the connection" => {
                stream::iter([Err(context().error(ModelErrorKind::Truncated, input))]).boxed()
            }
            input => stream::iter([piece(input)]).chain(stream::pending()).boxed(),
        };
        let pieces = stream::iter(first.map(piece)).chain(next).boxed();
        let unread = UnreadFields::new(crate::reply::RawFields::Drop);
        let decoder = TableDecoder::default();
        let mut reader = ReplyReader::new(pieces, decoder, unread, context(), ReplyProgress::new(None));
        if first.is_some() {
            assert!(reader.step(&mut Vec::new()).await.is_none(), "{phase}");
        }
        match reader.step(&mut Vec::new()).await {
            Some(Ok(())) => "done",
            Some(Err(_)) => "failed",
            None if reader.decoder.is_over() => "over",
            None if reader.decoder.is_finished() => "finishing",
            None => "reading",
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_table_of_phases_is_that_of_the_code() {
        let rows = include_str!("reader.rs").lines().filter_map(|line| line.strip_prefix("//! | "));
        let mut count = 0;
        for row in rows.skip(1) {
            let cells: Vec<&str> = row.trim_end_matches('|').split('|').map(str::trim).collect();
            let [phase, input, next] = cells[..] else { panic!("three cells: {row}") };
            assert_eq!(phase_after(phase, input).await, next, "{row}");
            count += 1;
        }
        assert_eq!(count, 15);
    }
}
