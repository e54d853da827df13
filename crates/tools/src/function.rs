//! Erases the types of tool functions: authors write typed functions, the engine stores erased ones.
//!
//! The requirements are split over several small traits, so that the compiler's error names the offending
//! part: the parameter, the result, or a value held across an `.await`.

use std::any::Any;
use std::error::Error;
use std::future::Future;
use std::io;
use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt};
use serde::Serialize;
use serde_json::Value;
use serde_json::ser::Formatter;
use stepfold_state_core::ErrorChain;

use crate::context::ToolContext;
use crate::error::ToolError;
use crate::extract::{Extract, Requirements};

/// A tool's function, type-erased.
#[derive(Clone)]
pub(crate) enum ErasedFunction {
    /// Runs in the run's own task.
    Async(Arc<dyn Fn(ToolContext) -> BoxFuture<'static, Result<Value, ToolError>> + Send + Sync>),
    /// Runs on a thread.
    Thread(ThreadKind, Arc<ThreadCall>),
    /// Has no function: the host runs it.
    Hosted(Arc<dyn Any + Send + Sync>),
}

/// The kind of thread that a function needs, which determines the pool.
#[derive(Clone, Copy)]
pub(crate) enum ThreadKind {
    Blocking,
    CpuBound,
}

/// A non-async function, type-erased.
pub(crate) type ThreadCall = dyn Fn(ToolContext) -> Result<Value, ToolError> + Send + Sync;

/// A function of up to eight parameters, async or not.
///
/// Implemented for all such functions and closures; `P` is the inferred tuple of their parameters.
#[diagnostic::on_unimplemented(
    message = "this is not a function that can be a tool",
    label = "expected a function or closure of up to eight parameters that is `Send`, `Sync` and `'static`"
)]
pub trait ToolFunction<P>: Send + Sync + 'static {
    /// The return type; of an async function, its future.
    type Output;

    #[doc(hidden)]
    fn call(&self, parameters: P) -> Self::Output;
}

/// The parameters of a tool function: a tuple of [extractors](Extract).
#[diagnostic::on_unimplemented(
    message = "these cannot be the parameters of a tool function",
    label = "one of its parameters is not an extractor",
    note = "parameters are `Args<T>`, `FromState<K>`, `StateWriter`, `Resource<T>`, `ToolContext`, or your own `Extract`"
)]
pub trait Parameters: Sized {
    #[doc(hidden)]
    fn needs(needs: &mut Requirements);

    #[doc(hidden)]
    fn extract(context: &ToolContext) -> Result<Self, ToolError>;
}

/// The return type of a tool function: a `Result` of a serialisable value, with an error that
/// [converts](IntoToolError) into a [`ToolError`].
#[diagnostic::on_unimplemented(
    message = "a tool function cannot return `{Self}`",
    label = "this function does not return a `Result`",
    note = "return `Result<T, ToolError>` with a serialisable `T`; wrap an infallible value in `Ok`",
    note = "use `Tool::new` for an async function, `Tool::blocking` for a blocking one, `Tool::cpu` for a CPU-bound one"
)]
pub trait ToolReturn {
    #[doc(hidden)]
    fn into_value(self) -> Result<Value, ToolError>;
}

/// Converts the error of a tool function.
///
/// Implemented for [`ToolError`] and for each error that can be boxed: those of `std`, `thiserror` and `anyhow`, and texts. The
/// model reads their text and causes. A function that asks the user ([`ToolContext::ask`]) or reads an outcome that comes later
/// returns [`ToolError`] itself, since no other error can carry the question. Implement it for a type that is no `std::error::Error` to decide who reads it: see
/// [`ToolError::permanent`] and [`ToolError::fatal`].
///
/// # Examples
/// ```
/// use stepfold_tools::{Args, IntoToolError, Tool, ToolError};
///
/// # #[derive(serde::Deserialize, schemars::JsonSchema)]
/// # struct Page { path: String }
/// async fn read(Args(page): Args<Page>) -> anyhow::Result<String> {
///     anyhow::ensure!(page.path.ends_with(".md"), "only pages in Markdown can be read");
///     Ok(std::fs::read_to_string(&page.path)?)
/// }
/// Tool::new("read", "Reads a page.", read).build()?;
///
/// struct Closed;
///
/// impl IntoToolError for Closed {
///     fn into_tool_error(self) -> ToolError {
///         ToolError::permanent("the library is closed")
///     }
/// }
///
/// async fn borrow() -> Result<(), Closed> {
///     Err(Closed)
/// }
/// Tool::new("borrow", "Borrows a book.", borrow).build()?;
/// # Ok::<(), stepfold_tools::BuildError>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the error of a tool",
    label = "neither a `ToolError` nor an error that is `Send`, `Sync` and `'static`",
    note = "return `Result<T, ToolError>`, or implement `IntoToolError` for this type"
)]
pub trait IntoToolError {
    /// The error of the call.
    fn into_tool_error(self) -> ToolError;
}

impl IntoToolError for ToolError {
    fn into_tool_error(self) -> ToolError {
        self
    }
}

#[diagnostic::do_not_recommend]
impl<E: Into<Box<dyn Error + Send + Sync>>> IntoToolError for E {
    fn into_tool_error(self) -> ToolError {
        ToolError::new(ErrorChain(&*self.into()).to_string())
    }
}

impl<T: Serialize, E: IntoToolError> ToolReturn for Result<T, E> {
    fn into_value(self) -> Result<Value, ToolError> {
        let value = self.map_err(IntoToolError::into_tool_error)?;
        let no_form = |error| ToolError::permanent(format!("result cannot be serialised as JSON: {error}"));
        // NOTE: Serialised twice, first to nowhere: endlessly nested values would overflow the stack and abort the
        // process. A serializer with a limit of its own would be 300 lines.
        let mut probe = serde_json::Serializer::with_formatter(std::io::sink(), DepthProbe(0));
        value.serialize(&mut probe).map_err(no_form)?;
        serde_json::to_value(value).map_err(no_form)
    }
}

/// The maximum nesting of a result. Values deeper than `stepfold_state_core::MAX_DEPTH` are kept as text.
const MAX_RESULT_DEPTH: usize = 500;

/// Writes nothing, and rejects deep nesting.
struct DepthProbe(usize);

impl DepthProbe {
    fn enter(&mut self) -> io::Result<()> {
        self.0 += 1;
        if self.0 > MAX_RESULT_DEPTH {
            return Err(io::Error::other(format!("nested deeper than {MAX_RESULT_DEPTH} levels")));
        }
        Ok(())
    }
}

impl Formatter for DepthProbe {
    fn begin_array<W: ?Sized + io::Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.enter()
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.0 -= 1;
        Ok(())
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.enter()
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.0 -= 1;
        Ok(())
    }
}

macro_rules! functions {
    ($($parameter:ident)*) => {
        impl<F, R, $($parameter,)*> ToolFunction<($($parameter,)*)> for F
        where
            F: Fn($($parameter),*) -> R + Send + Sync + 'static,
        {
            type Output = R;

            #[allow(non_snake_case, reason = "the names are those of the types")]
            fn call(&self, ($($parameter,)*): ($($parameter,)*)) -> R {
                self($($parameter),*)
            }
        }

        impl<$($parameter: Extract,)*> Parameters for ($($parameter,)*) {
            #[allow(unused_variables, reason = "a function may have no parameters")]
            fn needs(needs: &mut Requirements) {
                $($parameter::needs(needs);)*
            }

            #[allow(unused_variables, reason = "a function may have no parameters")]
            fn extract(context: &ToolContext) -> Result<Self, ToolError> {
                Ok(($($parameter::extract(context)?,)*))
            }
        }
    };
}

functions!();
functions!(P1);
functions!(P1 P2);
functions!(P1 P2 P3);
functions!(P1 P2 P3 P4);
functions!(P1 P2 P3 P4 P5);
functions!(P1 P2 P3 P4 P5 P6);
functions!(P1 P2 P3 P4 P5 P6 P7);
functions!(P1 P2 P3 P4 P5 P6 P7 P8);

impl ErasedFunction {
    pub(crate) fn of_async<P, F>(function: F) -> Self
    where
        P: Parameters,
        F: ToolFunction<P, Output: Future<Output: ToolReturn> + Send + 'static>,
    {
        ErasedFunction::Async(Arc::new(move |context| {
            // NOTE: Called here and not in the future, which must not borrow `function`.
            let started = P::extract(&context).map(|parameters| function.call(parameters));
            async move { started?.await.into_value() }.boxed()
        }))
    }

    pub(crate) fn on_thread<P, F>(kind: ThreadKind, function: F) -> Self
    where
        P: Parameters,
        F: ToolFunction<P, Output: ToolReturn>,
    {
        let call = move |context: ToolContext| function.call(P::extract(&context)?).into_value();
        ErasedFunction::Thread(kind, Arc::new(call))
    }
}
