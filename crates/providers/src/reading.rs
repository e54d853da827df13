//! Reading a reply: what comes in is decoded until it ends, and whether the end is a good one is decided
//! here, the same for all dialects.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::stream::BoxStream;
use futures_util::{StreamExt, stream};
use reqwest::header::HeaderMap;
use stepfold_state_core::chat::{Chunk, ModelError, ModelErrorKind, ReplyStream};
use tokio::time::{Instant, timeout};

use crate::http::{Idle, Target, classify};

/// How long to wait, in all, for what may follow a finish reason: usage, mostly.
const AFTER_FINISH: Duration = Duration::from_secs(5);

/// A pure machine that makes chunks of what a server sends.
pub(crate) trait Decode: Send + 'static {
    /// What a server sends.
    type Item: Send;

    /// Reads one item. What came before a fault is handed on.
    fn push(&mut self, item: Self::Item, out: &mut Vec<Chunk>) -> Result<(), Bad>;

    /// Whether a finish reason has come.
    fn is_finished(&self) -> bool;

    /// Whether nothing more will come.
    fn is_over(&self) -> bool {
        false
    }

    /// The last chunks, once nothing more comes; or why it is no whole reply.
    fn finish(&mut self, out: &mut Vec<Chunk>) -> Result<(), Bad>;
}

/// Why a reply has to be given up.
#[derive(Debug)]
pub(crate) enum Bad {
    /// The server said that something went wrong; this is what it said.
    Said(String),
    /// It is of this kind.
    Kind(ModelErrorKind, String),
}

impl Bad {
    pub(crate) fn into_error(self, target: &Target) -> ModelError {
        match self {
            Bad::Said(body) => classify(target, None, &HeaderMap::new(), &body),
            Bad::Kind(kind, message) => target.error(kind, message),
        }
    }
}

/// A reply that is being read.
pub(crate) struct Reading<D: Decode> {
    pub(crate) items: BoxStream<'static, Result<D::Item, ModelError>>,
    pub(crate) decoder: D,
    pub(crate) target: Target,
    pub(crate) idle: Idle,
    pub(crate) ready: VecDeque<Chunk>,
    /// How long it was waited for what may follow the finish reason.
    pub(crate) waited: Duration,
    /// How it ends, once that is known.
    pub(crate) end: Option<Result<(), ModelError>>,
}

impl<D: Decode> Reading<D> {
    pub(crate) fn into_stream(self) -> ReplyStream {
        ReplyStream::new(stream::unfold(self, |mut reading| async move {
            let item = reading.next().await?;
            Some((item, reading))
        }))
    }

    async fn next(&mut self) -> Option<Result<Chunk, ModelError>> {
        loop {
            if let Some(chunk) = self.ready.pop_front() {
                if !matches!(chunk, Chunk::Identity { .. } | Chunk::Usage(_)) {
                    self.idle.begin();
                }
                return Some(Ok(chunk));
            }
            if let Some(end) = self.end.replace(Ok(())) {
                return end.err().map(Err);
            }
            let mut chunks = Vec::new();
            self.end = self.step(&mut chunks).await;
            self.ready.extend(chunks);
        }
    }

    /// One item more, within one time for all of them: what comes without a pause does not put it off.
    async fn next_after_finish(&mut self) -> Option<D::Item> {
        let left = AFTER_FINISH.checked_sub(self.waited).filter(|left| !left.is_zero())?;
        let asked = Instant::now();
        let next = timeout(left, self.items.next()).await;
        self.waited += asked.elapsed();
        next.ok().flatten().and_then(Result::ok)
    }

    /// Reads one item. Some is the end.
    async fn step(&mut self, out: &mut Vec<Chunk>) -> Option<Result<(), ModelError>> {
        let next = if self.decoder.is_over() {
            None
        } else if self.decoder.is_finished() {
            // The reply is whole; a server that now falls silent, breaks off or goes on does not change that.
            self.next_after_finish().await
        } else {
            match self.items.next().await {
                Some(Err(error)) => return Some(Err(error)),
                next => next.and_then(Result::ok),
            }
        };
        let (read, is_end) = match next {
            Some(item) => (self.decoder.push(item, out), false),
            None => (self.decoder.finish(out), true),
        };
        match read {
            Ok(()) => is_end.then_some(Ok(())),
            Err(bad) => Some(Err(bad.into_error(&self.target))),
        }
    }
}

#[cfg(test)]
mod tests {
    use stepfold_state_core::chat::FinishReason;

    use super::*;

    /// Has finished, and takes no notice of what follows.
    struct Finished;

    impl Decode for Finished {
        type Item = ();

        fn push(&mut self, (): (), _: &mut Vec<Chunk>) -> Result<(), Bad> {
            Ok(())
        }

        fn is_finished(&self) -> bool {
            true
        }

        fn finish(&mut self, out: &mut Vec<Chunk>) -> Result<(), Bad> {
            out.push(Chunk::Finished(FinishReason::Stop));
            Ok(())
        }
    }

    fn reading(items: impl futures_util::Stream<Item = ()> + Send + 'static) -> ReplyStream {
        let reading = Reading {
            items: items.map(Ok).boxed(),
            decoder: Finished,
            target: Target {
                provider: "test".to_owned(),
                model: "model".to_owned(),
                secrets: Vec::new(),
                request_id: None,
            },
            idle: Idle::new(None),
            ready: VecDeque::new(),
            waited: Duration::ZERO,
            end: None,
        };
        reading.into_stream()
    }

    /// Each keep-alive comes in time; all together they do not.
    #[tokio::test(start_paused = true)]
    async fn a_server_that_goes_on_after_the_finish_is_not_waited_for() {
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
