//! Authors write typed functions; the engine holds erased ones.
//!
//! What a function must be is split over several small traits, so that the compiler's error names the part
//! that does not fit: the parameter, the result, or what is held across an `.await`.

use std::any::Any;
use std::future::Future;
use std::io;
use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt};
use serde::Serialize;
use serde_json::Value;
use serde_json::ser::Formatter;

use crate::context::ToolContext;
use crate::error::ToolError;
use crate::extract::{Extract, Needs};

/// A tool's function without its types.
#[derive(Clone)]
pub(crate) enum Function {
    /// Runs in the run's own task.
    Async(Arc<dyn Fn(ToolContext) -> BoxFuture<'static, Result<Value, ToolError>> + Send + Sync>),
    /// Runs on a thread.
    Thread(Work, Arc<ThreadCall>),
    /// Is no function: the host knows what to do.
    Hosted(Arc<dyn Any + Send + Sync>),
}

/// What a function does on its thread, by which that is chosen.
#[derive(Clone, Copy)]
pub(crate) enum Work {
    Waits,
    Computes,
}

/// A function that is not async, without its types.
pub(crate) type ThreadCall = dyn Fn(ToolContext) -> Result<Value, ToolError> + Send + Sync;

/// A function of up to eight parameters, async or not.
///
/// Implemented for all such functions and closures; `P` is the tuple of their parameters and is always
/// inferred.
#[diagnostic::on_unimplemented(
    message = "this is not a function that can be a tool",
    label = "expected a function or closure of up to eight parameters, which is `Send`, `Sync` and `'static`"
)]
pub trait ToolFunction<P>: Send + Sync + 'static {
    /// What the function returns; for an async one, its future.
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
    fn needs(needs: &mut Needs);

    #[doc(hidden)]
    fn extract(context: &ToolContext) -> Result<Self, ToolError>;
}

/// What a tool function returns: a `Result` of what serialises, with an error that turns into a
/// [`ToolError`].
#[diagnostic::on_unimplemented(
    message = "a tool function cannot return `{Self}`",
    label = "this function does not return a `Result`",
    note = "return `Result<T, ToolError>`, where `T` serialises; a value that cannot fail goes into `Ok`",
    note = "an async function goes into `Tool::new`, one that waits into `Tool::blocking`, one that computes into `Tool::cpu`"
)]
pub trait ToolReturn {
    #[doc(hidden)]
    fn into_value(self) -> Result<Value, ToolError>;
}

impl<T: Serialize, E: Into<ToolError>> ToolReturn for Result<T, E> {
    fn into_value(self) -> Result<Value, ToolError> {
        let value = self.map_err(Into::into)?;
        let no_form = |error| ToolError::permanent(format!("the result has no JSON form: {error}"));
        // Turning what nests without end into a value would end the process: the stack is all it takes.
        let mut probe = serde_json::Serializer::with_formatter(std::io::sink(), DepthProbe(0));
        value.serialize(&mut probe).map_err(no_form)?;
        serde_json::to_value(value).map_err(no_form)
    }
}

/// The deepest nesting of a result. What is deeper than `stepfold_state_core::MAX_DEPTH` is kept as text.
const MAX_RESULT_DEPTH: usize = 500;

/// Writes nothing, and refuses what nests too deep.
struct DepthProbe(usize);

impl DepthProbe {
    fn enter(&mut self) -> io::Result<()> {
        self.0 += 1;
        if self.0 > MAX_RESULT_DEPTH {
            return Err(io::Error::other(format!("it nests deeper than {MAX_RESULT_DEPTH} levels")));
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
            fn needs(needs: &mut Needs) {
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

impl Function {
    pub(crate) fn of_async<P, F>(function: F) -> Self
    where
        P: Parameters,
        F: ToolFunction<P, Output: Future<Output: ToolReturn> + Send + 'static>,
    {
        Function::Async(Arc::new(move |context| {
            let started = P::extract(&context).map(|parameters| function.call(parameters));
            async move { started?.await.into_value() }.boxed()
        }))
    }

    pub(crate) fn on_thread<P, F>(work: Work, function: F) -> Self
    where
        P: Parameters,
        F: ToolFunction<P, Output: ToolReturn>,
    {
        let call = move |context: ToolContext| function.call(P::extract(&context)?).into_value();
        Function::Thread(work, Arc::new(call))
    }
}
