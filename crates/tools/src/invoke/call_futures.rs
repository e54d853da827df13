//! The calls in progress, run concurrently.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{Stream, StreamExt};

/// Futures that run concurrently, as a stream of their outputs. Most replies have one call, and a single future needs
/// no queue of woken ones.
pub(super) enum CallFutures<T> {
    Alone(Option<BoxFuture<'static, T>>),
    Many(FuturesUnordered<BoxFuture<'static, T>>),
}

impl<T> CallFutures<T> {
    pub(super) const fn new() -> Self {
        CallFutures::Alone(None)
    }

    /// The number of unfinished futures.
    pub(super) fn len(&self) -> usize {
        match self {
            CallFutures::Alone(only) => usize::from(only.is_some()),
            CallFutures::Many(many) => many.len(),
        }
    }

    pub(super) fn push(&mut self, future: BoxFuture<'static, T>) {
        match self {
            CallFutures::Alone(only) => match only.take() {
                None => *only = Some(future),
                Some(first) => *self = CallFutures::Many([first, future].into_iter().collect()),
            },
            CallFutures::Many(many) => many.push(future),
        }
    }
}

impl<T> Stream for CallFutures<T> {
    type Item = T;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        match self.get_mut() {
            CallFutures::Alone(only) => {
                let Some(future) = only else { return Poll::Ready(None) };
                let ended = ready!(future.as_mut().poll(cx));
                *only = None;
                Poll::Ready(Some(ended))
            }
            CallFutures::Many(many) => many.poll_next_unpin(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn one_and_many_give_their_outputs() {
        let mut futures = CallFutures::new();
        assert_eq!((futures.len(), futures.next().await), (0, None));
        futures.push(async { 1 }.boxed());
        assert_eq!((futures.len(), futures.next().await, futures.len()), (1, Some(1), 0));
        // A waiting future is woken like the later ones.
        let (tell, told) = oneshot::channel();
        futures.push(async move { told.await.unwrap() }.boxed());
        assert_eq!(futures.next().now_or_never(), None);
        futures.push(async { 3 }.boxed());
        futures.push(async { 4 }.boxed());
        assert_eq!(futures.len(), 3);
        let both = [futures.next().await, futures.next().await];
        assert!(both.contains(&Some(3)) && both.contains(&Some(4)));
        tell.send(2).unwrap();
        assert_eq!((futures.next().await, futures.next().await), (Some(2), None));
    }
}
