//! Asking another model when one cannot answer.

use std::fmt;
use std::sync::Arc;

use futures_util::FutureExt;
use stepfold_state_core::chat::{ChatModel, ChatRequest, ModelError, ModelErrorKind, ReplyStream};

use super::opening::{Begun, all_failed, opening};

/// Models of which the first that can answer does; see
/// [`with_fallback`](super::ChatModelExt::with_fallback).
///
/// The next one is asked if nothing of a reply was handed on, and the error is one that another model
/// might not have: it may pass, the key or the name is wrong, the conversation is too long, or the model
/// cannot do what was asked. A request that is wrong or refused is so everywhere. The model that a request
/// names is one of the first model's provider; the others are asked for what they are by default.
#[derive(Clone)]
pub struct Fallback {
    /// Never empty.
    models: Arc<[Arc<dyn ChatModel>]>,
    id: Arc<str>,
}

impl Fallback {
    /// A list of one.
    pub fn new(first: impl ChatModel + 'static) -> Self {
        Fallback { id: first.id().into(), models: [Arc::new(first) as Arc<dyn ChatModel>].into() }
    }

    /// The same list with one more model at its end.
    #[must_use]
    pub fn or(self, other: impl ChatModel + 'static) -> Self {
        let other: Arc<dyn ChatModel> = Arc::new(other);
        Fallback { models: self.models.iter().cloned().chain([other]).collect(), id: self.id }
    }
}

impl ChatModel for Fallback {
    /// The id of the first model.
    fn id(&self) -> &str {
        &self.id
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        let reply = first_answer(Arc::clone(&self.models), request);
        let reply = reply.map(|begun| begun.map_or_else(ReplyStream::failed, Begun::into_stream));
        ReplyStream::new(reply.flatten_stream())
    }
}

async fn first_answer(
    models: Arc<[Arc<dyn ChatModel>]>,
    mut request: ChatRequest,
) -> Result<Begun, ModelError> {
    let mut failures = Vec::new();
    let mut last = None;
    for model in models.iter() {
        let error = match opening(model.respond(request.clone())).await {
            Ok(begun) => return Ok(begun),
            Err(error) => error,
        };
        tracing::debug!(model = model.id(), %error, "a model cannot answer");
        failures.push(format!("{}: {error}", model.id()));
        let goes_on = is_of_one_model(error.kind());
        last = Some(error);
        if !goes_on {
            break;
        }
        request.model = None;
    }
    let last = last.unwrap_or_else(|| ModelError::new(ModelErrorKind::Unsupported, "there is no model"));
    Err(if failures.len() > 1 { all_failed(last, "no model answered", &failures) } else { last })
}

/// Whether another model might do better.
fn is_of_one_model(kind: &ModelErrorKind) -> bool {
    kind.is_retryable()
        || matches!(
            kind,
            ModelErrorKind::Authentication
                | ModelErrorKind::NotFound
                | ModelErrorKind::TooLong { .. }
                | ModelErrorKind::ToolChoiceIgnored
                | ModelErrorKind::Unsupported
                | ModelErrorKind::Untrusted
        )
}

impl fmt::Debug for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.models.iter().map(ChatModel::id)).finish()
    }
}
