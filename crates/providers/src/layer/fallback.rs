//! Falls back to other models.

use std::fmt;
use std::sync::Arc;

use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Extras, ModelError, ModelErrorKind, NextAttempt, OmittedTool, ReplyStream,
    ToolSpec, WireRequest,
};

use super::ModelLayer;
use super::opening::{Attempted, Opening, OpeningStep, all_failed, reply_of};

/// Falls back to other models when the first one cannot answer.
///
/// The next model is called if no part of a reply was passed on and another model might succeed: the error is
/// temporary, the key or the name is wrong, the conversation is too long, or the model does not support the
/// request. An invalid or refused request fails everywhere.
///
/// The model name in a request belongs to the first model; the others use their own. Its
/// [extra parameters](stepfold_state_core::chat::ModelParams::extras) belong to the first model's provider, the part of
/// its [id](ChatModel::id) before the slash: models of other providers are called without them. A
/// [server tool](stepfold_state_core::chat::ServerTool) is not left out: a model without it rejects the request.
///
/// The [id](ChatModel::id) is that of the first model; [`Reply::model`](stepfold_state_core::chat::Reply::model) names the
/// one that answered, for prices.
///
/// # Examples
/// ```
/// use stepfold_providers::Scripted;
/// use stepfold_providers::layer::{ChatModelExt, Fallback};
///
/// let model = Scripted::new(["hi"]).layer(Fallback::to(Scripted::new(["hi"])).or(Scripted::new(["hi"])));
/// ```
#[derive(Clone)]
pub struct Fallback(Arc<[Arc<dyn ChatModel>]>);

impl Fallback {
    /// A fallback to one model.
    pub fn to(other: impl ChatModel + 'static) -> Self {
        Fallback([Arc::new(other) as Arc<dyn ChatModel>].into())
    }

    /// Adds a model, which is called last.
    #[must_use]
    pub fn or(self, other: impl ChatModel + 'static) -> Self {
        let other: Arc<dyn ChatModel> = Arc::new(other);
        Fallback(self.0.iter().cloned().chain([other]).collect())
    }
}

impl ModelLayer for Fallback {
    fn layer(&self, model: Arc<dyn ChatModel>) -> Arc<dyn ChatModel> {
        let models = [model].into_iter().chain(self.0.iter().cloned()).collect();
        Arc::new(FallbackModel { models })
    }
}

/// Never empty.
struct FallbackModel {
    models: Arc<[Arc<dyn ChatModel>]>,
}

impl ChatModel for FallbackModel {
    /// The id of the first model.
    fn id(&self) -> &str {
        self.models.first().map_or("", |model| model.id())
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        reply_of(FallbackAttempts::new(Arc::clone(&self.models), request), FallbackAttempts::proceed)
    }

    fn omitted_tools(&self, tools: &Arc<[ToolSpec]>) -> Vec<OmittedTool> {
        let mut omitted = Vec::new();
        for tool in self.models.iter().flat_map(|model| model.omitted_tools(tools)) {
            if !omitted.contains(&tool) {
                omitted.push(tool);
            }
        }
        omitted
    }

    fn wire_request(&self, request: &ChatRequest) -> Option<Result<WireRequest, ModelError>> {
        self.models.first()?.wire_request(request)
    }
}

/// The attempts of the models, in their order.
struct FallbackAttempts {
    models: Arc<[Arc<dyn ChatModel>]>,
    request: ChatRequest,
    /// The index of the model that is asked.
    index: usize,
    opening: Option<Opening>,
    failures: Vec<String>,
}

impl FallbackAttempts {
    fn new(models: Arc<[Arc<dyn ChatModel>]>, request: ChatRequest) -> Self {
        FallbackAttempts { models, request, index: 0, opening: None, failures: Vec::new() }
    }

    /// Continues with the current model, until it answers or fails.
    async fn proceed(mut self) -> Attempted<Self> {
        let Some(model) = self.models.get(self.index).cloned() else {
            let error = ModelError::new(ModelErrorKind::Unsupported, "no model available");
            return Attempted::Ended(Err(error));
        };
        let opening = match self.opening.take() {
            Some(opening) => opening,
            None => Opening::of(model.respond(self.adapted_request(&*model))),
        };
        match opening.step().await {
            // The id of the layer is that of the first model.
            Ok(OpeningStep::Begun(begun)) if self.index > 0 => {
                Attempted::Ended(Ok(begun.answered_by(model.id())))
            }
            Ok(OpeningStep::Begun(begun)) => Attempted::Ended(Ok(begun)),
            Ok(OpeningStep::NextAttempt(opening, next)) => {
                self.opening = Some(opening);
                Attempted::Again(next, self)
            }
            Err(error) => self.after_failure(&*model, error),
        }
    }

    fn adapted_request(&self, model: &dyn ChatModel) -> ChatRequest {
        match self.index {
            0 => self.request.clone(),
            _ => adapt_request(&self.request, self.models[0].id(), model.id()),
        }
    }

    fn after_failure(mut self, model: &dyn ChatModel, error: ModelError) -> Attempted<Self> {
        tracing::debug!(model = model.id(), %error, "a model cannot answer");
        self.failures.push(format!("{}: {error}", model.id()));
        self.index += 1;
        let other = self.models.get(self.index).filter(|_| is_model_specific(error.kind()));
        match other.map(|other| NextAttempt::after(&error).of_model(other.id())) {
            Some(next) => Attempted::Again(next, self),
            None if self.failures.len() > 1 => {
                Attempted::Ended(Err(all_failed(error, "all models failed", &self.failures)))
            }
            None => Attempted::Ended(Err(error)),
        }
    }
}

/// Adapts the request to another model: removes the model name and extras for the first model and its provider.
fn adapt_request(request: &ChatRequest, first: &str, other: &str) -> ChatRequest {
    let provider = |id: &str| id.split_once('/').map(|(provider, _)| provider.to_owned());
    let mut request = request.clone();
    request.model = None;
    if provider(first) != provider(other) {
        // NOTE: Extras of another API would make each fallback fail as an invalid request. See
        // docs/decisions/providers.md.
        request.params.extras = Extras::new();
    }
    request
}

/// Whether another model might succeed.
fn is_model_specific(kind: &ModelErrorKind) -> bool {
    kind.is_retryable()
        || matches!(
            kind,
            ModelErrorKind::Authentication
                | ModelErrorKind::QuotaExceeded
                | ModelErrorKind::NotFound
                | ModelErrorKind::TooLong { .. }
                | ModelErrorKind::ToolChoiceIgnored
                | ModelErrorKind::Unsupported
                | ModelErrorKind::Untrusted
        )
}

impl fmt::Debug for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(ChatModel::id)).finish()
    }
}
