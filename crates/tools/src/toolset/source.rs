//! Sources of dynamic toolsets. Authors write an async method, the engine stores an erased one.

use std::error::Error;
use std::future::Future;
use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt};
use stepfold_state_core::state::State;

use crate::tool::Tool;

/// The listed tools, or the error.
pub(crate) type ListedTools = Result<Vec<Tool>, Box<dyn Error + Send + Sync>>;

/// Lists the tools of a dynamic toolset: by querying a server, or by permissions.
///
/// Implemented by authors, called by [`Toolset::resolve`](crate::Toolset::resolve) before each step, with the
/// current state. The sources of one toolset are called concurrently.
///
/// # Examples
/// ```
/// use std::error::Error;
/// use stepfold_tools::state_core::state::State;
/// use stepfold_tools::{Tool, ToolSource, Toolset};
///
/// struct ByRole {
///     refund: Tool,
/// }
///
/// impl ToolSource for ByRole {
///     async fn tools(&self, state: &State) -> Result<Vec<Tool>, Box<dyn Error + Send + Sync>> {
///         let is_admin = state.get("user:role").is_some_and(|role| role == "admin");
///         Ok(if is_admin { vec![self.refund.clone()] } else { Vec::new() })
///     }
/// }
/// # async fn refund() -> Result<&'static str, stepfold_tools::ToolError> { Ok("done") }
/// let refund = Tool::new("refund", "Refunds an order.", refund).build()?;
/// let billing = Toolset::dynamic("billing", ByRole { refund });
/// # Ok::<(), stepfold_tools::BuildError>(())
/// ```
pub trait ToolSource: Send + Sync + 'static {
    /// The current tools.
    ///
    /// # Errors
    /// The reason why they cannot be listed; the step then does not begin.
    fn tools(
        &self,
        state: &State,
    ) -> impl Future<Output = Result<Vec<Tool>, Box<dyn Error + Send + Sync>>> + Send;

    /// The tools that the last listing omitted, since they cannot be offered to a model: for people, who may repair them.
    /// Empty by default.
    ///
    /// # Examples
    /// ```
    /// use std::error::Error;
    /// use stepfold_tools::state_core::state::State;
    /// use stepfold_tools::{RefusedTool, Tool, ToolSource, Toolset};
    ///
    /// struct Remote;
    ///
    /// impl ToolSource for Remote {
    ///     async fn tools(&self, _: &State) -> Result<Vec<Tool>, Box<dyn Error + Send + Sync>> {
    ///         Ok(Vec::new())
    ///     }
    ///
    ///     fn refused(&self) -> Vec<RefusedTool> {
    ///         vec![RefusedTool::new("sum", "no object fits its schema")]
    ///     }
    /// }
    /// let refused = Toolset::dynamic("remote", Remote).refused();
    /// assert_eq!((refused[0].0.as_str(), refused[0].1.tool.as_str()), ("remote", "sum"));
    /// ```
    fn refused(&self) -> Vec<RefusedTool> {
        Vec::new()
    }
}

/// A tool of a source that is not offered to models, and the reason: see [`ToolSource::refused`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RefusedTool {
    /// The source's own name of the tool.
    pub tool: String,
    /// The reason.
    pub reason: String,
}

impl RefusedTool {
    /// A tool by the source's own name of it, and the reason why it is not offered.
    pub fn new(tool: impl Into<String>, reason: impl Into<String>) -> Self {
        RefusedTool { tool: tool.into(), reason: reason.into() }
    }
}

impl<S: ToolSource + ?Sized> ToolSource for Arc<S> {
    fn tools(
        &self,
        state: &State,
    ) -> impl Future<Output = Result<Vec<Tool>, Box<dyn Error + Send + Sync>>> + Send {
        (**self).tools(state)
    }

    fn refused(&self) -> Vec<RefusedTool> {
        (**self).refused()
    }
}

impl<S: ToolSource + ?Sized> ToolSource for Box<S> {
    fn tools(
        &self,
        state: &State,
    ) -> impl Future<Output = Result<Vec<Tool>, Box<dyn Error + Send + Sync>>> + Send {
        (**self).tools(state)
    }

    fn refused(&self) -> Vec<RefusedTool> {
        (**self).refused()
    }
}

impl<S: ToolSource + ?Sized> ToolSource for &'static S {
    fn tools(
        &self,
        state: &State,
    ) -> impl Future<Output = Result<Vec<Tool>, Box<dyn Error + Send + Sync>>> + Send {
        (**self).tools(state)
    }

    fn refused(&self) -> Vec<RefusedTool> {
        (**self).refused()
    }
}

/// The object-safe counterpart.
pub(crate) trait ErasedSource: Send + Sync {
    fn list<'a>(&'a self, state: &'a State) -> BoxFuture<'a, ListedTools>;

    fn refused_tools(&self) -> Vec<RefusedTool>;
}

impl<S: ToolSource> ErasedSource for S {
    fn list<'a>(&'a self, state: &'a State) -> BoxFuture<'a, ListedTools> {
        self.tools(state).boxed()
    }

    fn refused_tools(&self) -> Vec<RefusedTool> {
        self.refused()
    }
}

/// A function as a source.
pub(crate) struct SourceFunction<F>(pub(crate) F);

impl<F, Fut> ToolSource for SourceFunction<F>
where
    F: Fn(State) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = ListedTools> + Send,
{
    async fn tools(&self, state: &State) -> ListedTools {
        // NOTE: O(1). A closure's future cannot borrow its argument.
        (self.0)(state.clone()).await
    }
}
