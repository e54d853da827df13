//! Token counting: the port.

use std::fmt;
use std::sync::Arc;

use stepfold_state_core::chat::Message;

/// Counts the tokens of a message as a model's tokenizer does.
///
/// Implement it with a model's tokenizer, or use a closure with [`token_counter`]; token policies call it
/// once for each message they examine. It must be pure: the same message, the same count. The cost of a
/// conversation is the sum over its messages, so a counter includes the wire format's overhead per message.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use stepfold_trim::TokenCounter;
/// use stepfold_state_core::chat::Message;
///
/// struct Words;
///
/// impl TokenCounter for Words {
///     fn name(&self) -> &str {
///         "words"
///     }
///
///     fn count(&self, message: &Message) -> usize {
///         message.text().split_whitespace().count()
///     }
/// }
///
/// let shared: Arc<dyn TokenCounter> = Arc::new(Words);
/// assert_eq!(shared.count(&Message::user("which area has most stalls?")), 5);
/// ```
pub trait TokenCounter: Send + Sync {
    /// The name of the counter in printed policies. `approximate` is the name of
    /// [`ApproximateTokens`](crate::ApproximateTokens).
    fn name(&self) -> &str;

    /// The tokens of this one message.
    fn count(&self, message: &Message) -> usize;
}

macro_rules! forward {
    ($($pointer:ty),*) => {$(
        impl<C: TokenCounter + ?Sized> TokenCounter for $pointer {
            fn name(&self) -> &str {
                (**self).name()
            }

            fn count(&self, message: &Message) -> usize {
                (**self).count(message)
            }
        }
    )*};
}

forward!(&C, Box<C>, Arc<C>);

impl fmt::Debug for dyn TokenCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenCounter({})", self.name())
    }
}

/// A [`TokenCounter`] made of a name and a closure.
///
/// # Examples
/// ```
/// use stepfold_trim::{Trim, token_counter};
///
/// let quarter = token_counter("quarter", |message| message.text().len().div_ceil(4));
/// assert_eq!(Trim::max_tokens(8_000).counted_by(quarter).to_string(), "max_tokens(8000, by quarter)");
/// ```
pub fn token_counter(
    name: impl Into<Arc<str>>,
    count: impl Fn(&Message) -> usize + Send + Sync + 'static,
) -> impl TokenCounter + 'static {
    NamedCounter { name: name.into(), count }
}

struct NamedCounter<F> {
    name: Arc<str>,
    count: F,
}

impl<F: Fn(&Message) -> usize + Send + Sync> TokenCounter for NamedCounter<F> {
    fn name(&self) -> &str {
        &self.name
    }

    fn count(&self, message: &Message) -> usize {
        (self.count)(message)
    }
}
