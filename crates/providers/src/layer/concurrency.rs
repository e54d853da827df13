//! Limits concurrent requests.

use std::sync::Arc;

use futures_util::{FutureExt, StreamExt};
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, ModelError, OmittedTool, ReplyStream, ToolSpec, WireRequest,
};
use tokio::sync::Semaphore;

use super::ModelLayer;

/// Limits concurrent requests: further ones wait, in order of arrival.
///
/// A request counts from the first poll of its stream until the stream has ended or is dropped.
///
/// # Examples
/// ```
/// use stepfold_providers::Scripted;
/// use stepfold_providers::layer::{ChatModelExt, ConcurrencyLimit};
///
/// let model = Scripted::new(["hi"]).layer(ConcurrencyLimit::new(8));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConcurrencyLimit(usize);

impl ConcurrencyLimit {
    /// At most `requests` requests at once. Zero counts as one.
    pub fn new(requests: usize) -> Self {
        ConcurrencyLimit(requests.clamp(1, Semaphore::MAX_PERMITS))
    }
}

impl ModelLayer for ConcurrencyLimit {
    fn layer(&self, model: Arc<dyn ChatModel>) -> Arc<dyn ChatModel> {
        Arc::new(ConcurrencyLimitedModel { inner: model, permits: Arc::new(Semaphore::new(self.0)) })
    }
}

struct ConcurrencyLimitedModel {
    inner: Arc<dyn ChatModel>,
    permits: Arc<Semaphore>,
}

impl ChatModel for ConcurrencyLimitedModel {
    fn id(&self) -> &str {
        self.inner.id()
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        let model = Arc::clone(&self.inner);
        let reply = Arc::clone(&self.permits).acquire_owned().map(move |permit| {
            // The semaphore is never closed, so that there is always a permit in the end. The closure
            // holds it for as long as the stream lives.
            model.respond(request).map(move |chunk| {
                let _held = &permit;
                chunk
            })
        });
        ReplyStream::new(reply.flatten_stream())
    }

    fn omitted_tools(&self, tools: &Arc<[ToolSpec]>) -> Vec<OmittedTool> {
        self.inner.omitted_tools(tools)
    }

    fn wire_request(&self, request: &ChatRequest) -> Option<Result<WireRequest, ModelError>> {
        self.inner.wire_request(request)
    }
}
