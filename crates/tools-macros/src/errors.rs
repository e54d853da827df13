//! Collects several compile errors, so that an author sees all of them in one build.

use quote::ToTokens;

/// The compile errors of one expansion.
#[derive(Default)]
pub(crate) struct CompileErrors(Option<syn::Error>);

impl CompileErrors {
    /// Adds an error that points at `culprit`.
    pub(crate) fn at(&mut self, culprit: impl ToTokens, message: impl std::fmt::Display) {
        self.push(syn::Error::new_spanned(culprit, message));
    }

    /// Returns the value of a result, or adds its error.
    pub(crate) fn keep<T>(&mut self, result: syn::Result<T>) -> Option<T> {
        result.map_err(|error| self.push(error)).ok()
    }

    /// All errors combined into one, if any.
    pub(crate) fn into_error(self) -> Option<syn::Error> {
        self.0
    }

    fn push(&mut self, error: syn::Error) {
        match &mut self.0 {
            Some(earlier) => earlier.combine(error),
            None => self.0 = Some(error),
        }
    }
}
