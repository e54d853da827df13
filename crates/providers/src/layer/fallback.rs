//! Falls back to other models.

use std::fmt;
use std::sync::Arc;

use futures_util::FutureExt;
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Extras, ModelError, ModelErrorKind, OmittedTool, ReplyStream, ToolSpec,
    WireRequest,
};

use super::ModelLayer;
use super::opening::{BegunReply, all_failed, opening};

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
        let reply = first_answer(Arc::clone(&self.models), request);
        let reply = reply.map(|begun| begun.map_or_else(ReplyStream::failed, BegunReply::into_stream));
        ReplyStream::new(reply.flatten_stream())
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

async fn first_answer(
    models: Arc<[Arc<dyn ChatModel>]>,
    request: ChatRequest,
) -> Result<BegunReply, ModelError> {
    let mut failures = Vec::new();
    let mut last = None;
    for (index, model) in models.iter().enumerate() {
        let adapted = match index {
            0 => request.clone(),
            _ => adapt_request(&request, models[0].id(), model.id()),
        };
        let error = match opening(model.respond(adapted)).await {
            Ok(begun) if index == 0 => return Ok(begun),
            // The id of the layer is that of the first model.
            Ok(begun) => return Ok(begun.answered_by(model.id())),
            Err(error) => error,
        };
        tracing::debug!(model = model.id(), %error, "a model cannot answer");
        failures.push(format!("{}: {error}", model.id()));
        let may_fall_back = is_model_specific(error.kind());
        last = Some(error);
        if !may_fall_back {
            break;
        }
    }
    let last = last.unwrap_or_else(|| ModelError::new(ModelErrorKind::Unsupported, "no model available"));
    Err(if failures.len() > 1 { all_failed(last, "all models failed", &failures) } else { last })
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
