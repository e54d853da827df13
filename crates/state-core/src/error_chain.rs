//! Shows an error with its causes.

use std::error::Error;
use std::fmt;

/// Formats an error with its causes, in one line: `what failed: why: cause`.
///
/// The errors of stepfold print their causes themselves: their `Display` includes the innermost one, and
/// their `source()` is `None`, so that nothing is printed twice. This does the same for errors of other
/// libraries. Causes that the text already shows are skipped.
///
/// # Examples
/// ```
/// use std::{fmt, io};
/// use stepfold_state_core::ErrorChain;
///
/// #[derive(Debug)]
/// struct NotRead(io::Error);
/// impl fmt::Display for NotRead {
///     fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
///         f.write_str("file not readable")
///     }
/// }
/// impl std::error::Error for NotRead {
///     fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
///         Some(&self.0)
///     }
/// }
///
/// let error = NotRead(io::Error::other("no disk"));
/// assert_eq!(ErrorChain(&error).to_string(), "file not readable: no disk");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ErrorChain<'a>(pub &'a (dyn Error + 'static));

impl fmt::Display for ErrorChain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.0.to_string();
        push_causes(&mut text, self.0.source());
        f.write_str(&text)
    }
}

/// Implements `Debug` of errors as their text with causes, since a `main` that returns an error prints it.
#[doc(hidden)]
#[macro_export]
macro_rules! debug_as_text {
    ($($error:ty),+ $(,)?) => {$(
        impl ::std::fmt::Debug for $error {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Display::fmt(&$crate::ErrorChain(self), f)
            }
        }
    )+};
}

/// Appends `source` and its causes to a text that does not show them yet.
pub(crate) fn push_causes(text: &mut String, source: Option<&(dyn Error + 'static)>) {
    let causes = || std::iter::successors(source, |error| (*error).source());
    // NOTE: Errors of stepfold print all their causes, so the innermost one stands for the chain.
    if causes().last().is_some_and(|innermost| shows(text, &innermost.to_string())) {
        return;
    }
    for cause in causes().map(ToString::to_string) {
        if !shows(text, &cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
}

/// Whether a text shows a cause: it is the whole text, or follows a colon.
fn shows(text: &str, cause: &str) -> bool {
    cause.is_empty() || text == cause || text.contains(&format!(": {cause}"))
}
