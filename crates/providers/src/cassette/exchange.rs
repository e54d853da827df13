//! The recorded form of one exchange.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use stepfold_state_core::chat::{
    ChatRequest, Chunk, FinishReason, Message, ModelError, ModelErrorKind, PartialReply, Role, Usage,
};

/// A request and its answer.
#[derive(Clone, Debug)]
pub(super) struct RecordedExchange {
    pub(super) request: ChatRequest,
    pub(super) answer: RecordedAnswer,
}

/// The model's answer.
#[derive(Clone, Debug)]
pub(super) struct RecordedAnswer {
    pub(super) message: Message,
    pub(super) end: RecordedEnd,
}

/// The end of an answer, with its metadata.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct RecordedEnd {
    /// `None` if it did not complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) finish_reason: Option<FinishReason>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<RecordedError>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) usage: Option<Usage>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) model: Option<String>,
}

/// The serialisable fields of an error.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct RecordedError {
    kind: String,
    message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    provider: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    request_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    limit: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    used: Option<u64>,
}

impl RecordedAnswer {
    /// The result of a stream: its content and its end.
    pub(super) fn new(
        partial: PartialReply,
        reason: Option<FinishReason>,
        error: Option<&ModelError>,
    ) -> Self {
        let end = RecordedEnd {
            finish_reason: reason,
            error: error.map(RecordedError::of),
            usage: Some(partial.usage).filter(|usage| *usage != Usage::default()),
            id: partial.id,
            model: partial.model,
        };
        RecordedAnswer { message: partial.message, end }
    }

    /// Returns the results of the recorded stream.
    pub(super) fn results(&self) -> Vec<Result<Chunk, ModelError>> {
        let mut chunks = Vec::new();
        if self.end.id.is_some() || self.end.model.is_some() {
            chunks.push(Chunk::Identity { id: self.end.id.clone(), model: self.end.model.clone() });
        }
        chunks.extend(Chunk::of(&self.message));
        chunks.extend(self.end.usage.map(Chunk::Usage));
        chunks.extend(self.end.finish_reason.clone().map(Chunk::Finished));
        let error = self.end.error.as_ref().map(|failure| Err(failure.to_error()));
        chunks.into_iter().map(Ok).chain(error).collect()
    }

    /// An answer without content.
    pub(super) fn with_end(end: RecordedEnd) -> Self {
        RecordedAnswer { message: Message::new(Role::Assistant), end }
    }
}

impl RecordedError {
    fn of(error: &ModelError) -> Self {
        let (limit, used) = match error.kind() {
            ModelErrorKind::TooLong { limit, used } => (*limit, *used),
            ModelErrorKind::ReplyTooLarge { limit } => (u64::try_from(*limit).ok(), None),
            _ => (None, None),
        };
        let milliseconds = |wait: Duration| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        RecordedError {
            kind: error.kind().name().to_owned(),
            message: error.message().to_owned(),
            provider: error.provider().map(str::to_owned),
            model: error.model().map(str::to_owned),
            request_id: error.request_id().map(str::to_owned),
            retry_after_ms: error.retry_after().map(milliseconds),
            limit,
            used,
        }
    }

    fn to_error(&self) -> ModelError {
        let wait = self.retry_after_ms.map(Duration::from_millis);
        let kind = match ModelErrorKind::from_name(&self.kind) {
            Some(ModelErrorKind::TooLong { .. }) => {
                ModelErrorKind::TooLong { limit: self.limit, used: self.used }
            }
            Some(ModelErrorKind::ReplyTooLarge { .. }) => {
                let limit = self.limit.and_then(|limit| usize::try_from(limit).ok());
                ModelErrorKind::ReplyTooLarge { limit: limit.unwrap_or_default() }
            }
            // NOTE: A kind of a newer version is at least an error.
            kind => kind.unwrap_or(ModelErrorKind::Transient),
        };
        let mut error = ModelError::new(kind, self.message.clone());
        if let Some(provider) = &self.provider {
            error = error.with_provider(provider);
        }
        if let Some(model) = &self.model {
            error = error.with_model(model);
        }
        if let Some(request_id) = &self.request_id {
            error = error.with_request_id(request_id);
        }
        match wait {
            Some(wait) => error.with_retry_after(wait),
            None => error,
        }
    }
}
