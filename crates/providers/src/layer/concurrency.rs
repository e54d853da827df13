//! At most so many requests at once.

use std::fmt;
use std::sync::Arc;

use futures_util::{FutureExt, StreamExt};
use stepfold_state_core::chat::{ChatModel, ChatRequest, ReplyStream};
use tokio::sync::Semaphore;

/// A model that is asked so many things at once at most; see
/// [`with_max_concurrency`](super::ChatModelExt::with_max_concurrency).
///
/// A request counts from when its stream is first polled until that has ended or is dropped.
pub struct Limited<M> {
    inner: Arc<M>,
    places: Arc<Semaphore>,
}

impl<M> Limited<M> {
    pub(super) fn new(inner: M, requests: usize) -> Self {
        let places = requests.clamp(1, Semaphore::MAX_PERMITS);
        Limited { inner: Arc::new(inner), places: Arc::new(Semaphore::new(places)) }
    }
}

impl<M: ChatModel + 'static> ChatModel for Limited<M> {
    fn id(&self) -> &str {
        self.inner.id()
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        let model = Arc::clone(&self.inner);
        let reply = Arc::clone(&self.places).acquire_owned().map(move |place| {
            // The semaphore is never closed, so that there is always a place in the end. The closure
            // holds it for as long as the stream lives.
            model.respond(request).map(move |chunk| {
                let _held = &place;
                chunk
            })
        });
        ReplyStream::new(reply.flatten_stream())
    }
}

impl<M: ChatModel> fmt::Debug for Limited<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let free = self.places.available_permits();
        f.debug_struct("Limited").field("model", &self.inner.id()).field("free", &free).finish()
    }
}
