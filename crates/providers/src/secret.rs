//! Keys that do not show.

use std::fmt;
use std::sync::Arc;

/// A key, or another text that nobody is to read: it prints as `***`, in `Debug` as well.
///
/// It has no `Serialize`, so that it cannot end up in a file by mistake.
///
/// # Examples
/// ```
/// use stepfold_providers::Secret;
///
/// let key = Secret::new("sk-1234");
/// assert_eq!(format!("{key} {key:?}"), "*** Secret(***)");
/// assert_eq!(key.redact("the key sk-1234 is wrong"), "the key *** is wrong");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Keeps a text. White space around it, which is nearly always a slip of copying, is taken off.
    pub fn new(text: impl AsRef<str>) -> Self {
        Secret(text.as_ref().trim().into())
    }

    /// The text. Be careful where it goes.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// A text in which this one is replaced by `***`.
    pub fn redact(&self, text: &str) -> String {
        // Very short ones are not worth a secret, and would tear holes into everything.
        if self.0.len() < 4 { text.to_owned() } else { text.replace(&*self.0, "***") }
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Secret::new(text)
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Secret::new(text)
    }
}
