//! Layers around any model: timeout, trace, rate limit, concurrency limit, retry, fallback.
//!
//! [`ChatModelExt::layer`] puts one layer around a model, innermost first; [`Layers`] is a stack that can be kept and
//! put around several models. A good order, from the inside: [`Timeout`], so that a request that hangs becomes an
//! error, for models without timeouts of their own (HTTP models have them); [`Trace`], to see each attempt;
//! [`RateLimit`] and [`ConcurrencyLimit`], so that a retry counts as a request; [`Retry`]; and outermost
//! [`Fallback`], to another model when all attempts have failed.
//!
//! No layer repeats a request after a part of its reply was passed on: the reader of the stream would see the
//! beginning twice.

mod concurrency;
mod fallback;
mod opening;
mod rate_limit;
mod retry;
mod timeout;
mod trace;

use std::fmt;
use std::sync::Arc;

use stepfold_state_core::chat::ChatModel;

pub use self::concurrency::ConcurrencyLimit;
pub use self::fallback::Fallback;
pub use self::rate_limit::RateLimit;
pub use self::retry::{FailedAttempt, Retry};
pub use self::timeout::Timeout;
pub use self::trace::{Trace, TraceContent};
#[cfg(feature = "http")]
pub(crate) use self::{opening::is_content, timeout::with_timeout};

/// A wrapper of a model: it changes when and how often the model is called.
///
/// One layer can wrap several models. Each model then has its own limits.
///
/// # Examples
/// A layer of one's own, which fixes the seed of every request:
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use std::sync::Arc;
/// use stepfold_providers::Scripted;
/// use stepfold_providers::layer::{ChatModelExt, ModelLayer};
/// use stepfold_state_core::chat::{
///     ChatModel, ChatRequest, Message, ModelError, OmittedTool, ReplyStream, ToolSpec, Transcript, WireRequest,
/// };
///
/// struct Seeded(Arc<dyn ChatModel>);
///
/// impl ChatModel for Seeded {
///     fn id(&self) -> &str {
///         self.0.id()
///     }
///     fn respond(&self, mut request: ChatRequest) -> ReplyStream {
///         request.params.seed = Some(7);
///         self.0.respond(request)
///     }
///     fn omitted_tools(&self, tools: &Arc<[ToolSpec]>) -> Vec<OmittedTool> {
///         self.0.omitted_tools(tools)
///     }
///     fn wire_request(&self, request: &ChatRequest) -> Option<Result<WireRequest, ModelError>> {
///         self.0.wire_request(request)
///     }
/// }
///
/// struct Seed;
///
/// impl ModelLayer for Seed {
///     fn layer(&self, model: Arc<dyn ChatModel>) -> Arc<dyn ChatModel> {
///         Arc::new(Seeded(model))
///     }
/// }
///
/// let script = Scripted::new(["area 3"]);
/// let model = script.clone().layer(Seed);
/// let request = ChatRequest::new(Transcript::new().with(Message::user("which area?")));
/// model.respond(request).into_reply().await?;
/// assert_eq!(script.requests()[0].params.seed, Some(7));
/// # Ok::<(), stepfold_state_core::chat::ModelError>(())
/// # }).unwrap();
/// ```
pub trait ModelLayer: Send + Sync + 'static {
    /// The model with the layer around it.
    fn layer(&self, model: Arc<dyn ChatModel>) -> Arc<dyn ChatModel>;
}

/// A stack of layers, itself a layer.
///
/// # Examples
/// ```
/// use stepfold_providers::Scripted;
/// use stepfold_providers::layer::{ChatModelExt, ConcurrencyLimit, Layers, Retry, Timeout};
///
/// let stack = Layers::new().with(Timeout::default()).with(ConcurrencyLimit::new(8)).with(Retry::default());
/// let large = Scripted::new(["hi"]).layer(stack.clone());
/// let small = Scripted::new(["hi"]).layer(stack);
/// ```
#[derive(Clone, Default)]
pub struct Layers(Vec<Arc<dyn ModelLayer>>);

impl Layers {
    /// An empty stack.
    pub fn new() -> Self {
        Layers::default()
    }

    /// Adds an outer layer.
    #[must_use]
    pub fn with(mut self, layer: impl ModelLayer) -> Self {
        self.0.push(Arc::new(layer));
        self
    }
}

impl ModelLayer for Layers {
    fn layer(&self, model: Arc<dyn ChatModel>) -> Arc<dyn ChatModel> {
        self.0.iter().fold(model, |model, layer| layer.layer(model))
    }
}

impl fmt::Debug for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layers").field("count", &self.0.len()).finish()
    }
}

/// Puts layers around a model. Implemented for every model.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(async {
/// use stepfold_providers::layer::{ChatModelExt, Retry, Timeout};
/// use stepfold_providers::{Scripted, ScriptedReply};
/// use stepfold_state_core::chat::{ChatModel, ChatRequest, Message, ModelErrorKind, Transcript};
///
/// let script = Scripted::new([ScriptedReply::from(ModelErrorKind::Overloaded), "area 3".into()]);
/// let model = script.clone().layer(Timeout::default()).layer(Retry::default());
///
/// let request = ChatRequest::new(Transcript::new().with(Message::user("which area?")));
/// let reply = model.respond(request).into_reply().await?;
/// assert_eq!(reply.message.text(), "area 3");
/// assert_eq!(script.requests().len(), 2);
/// # Ok::<(), stepfold_state_core::chat::ModelError>(())
/// # }).unwrap();
/// ```
pub trait ChatModelExt: ChatModel + Sized + 'static + sealed::Sealed {
    /// This model with a layer around it.
    fn layer(self, layer: impl ModelLayer) -> Arc<dyn ChatModel> {
        layer.layer(Arc::new(self))
    }

    /// This model as a trait object that can be shared.
    fn shared(self) -> Arc<dyn ChatModel> {
        Arc::new(self)
    }
}

impl<M: ChatModel + Sized + 'static> ChatModelExt for M {}

mod sealed {
    pub trait Sealed {}
    impl<M: super::ChatModel> Sealed for M {}
}
