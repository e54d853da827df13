//! Estimated memory of stored text once it is read: for readers that bound what they load.

#[cfg(any(feature = "postgres", feature = "sqlite"))]
use stepfold_state_core::count_values;

/// The memory of a value in a tree, besides its text.
const VALUE: u64 = 40;

/// The values of an event that is not large: they have no trees.
const USUAL: usize = 32;

/// The bytes of an event, of those of its text and the values in it.
pub(crate) fn of_event(bytes: u64, values: usize) -> u64 {
    with_values(bytes, values.saturating_sub(USUAL))
}

/// The bytes of an event, of its text.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) fn of_body(text: &str) -> u64 {
    of_event(text.len() as u64, count_values(text.as_bytes()))
}

/// The bytes of values, of their text.
#[cfg(feature = "sqlite")]
pub(crate) fn of_json(text: &str) -> u64 {
    with_values(text.len() as u64, count_values(text.as_bytes()))
}

fn with_values(bytes: u64, values: usize) -> u64 {
    bytes.saturating_add(VALUE.saturating_mul(values as u64))
}

/// Adds sizes, and stops once the sum exceeds a limit.
#[cfg(feature = "sqlite")]
pub(crate) struct SizeCounter {
    pub(crate) sum: u64,
    pub(crate) most: u64,
}

#[cfg(feature = "sqlite")]
impl SizeCounter {
    pub(crate) fn add(&mut self, bytes: u64) {
        self.sum = self.sum.saturating_add(bytes);
    }

    /// Adds stored bytes if they exceed the limit, so that their text need not be read for its values.
    pub(crate) fn is_exceeded_with(&mut self, stored: u64) -> bool {
        let is_exceeded = self.sum.saturating_add(stored) > self.most;
        if is_exceeded {
            self.add(stored);
        }
        is_exceeded
    }

    /// Whether the limit is exceeded, so that the rest does not matter.
    pub(crate) fn is_exceeded(&self) -> bool {
        self.sum > self.most
    }
}
