//! Texts that many events of a session share: reading one of them again allocates nothing.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::value::RawValue;

use crate::error::SessionError;
use crate::ids::{Author, InvocationId};

/// The kinds, formats and names of metadata that runners write. Others are read as well, each as a text of its own.
const COMMON: [&str; 25] = [
    "stepfold.run",
    "replied",
    "answered",
    "began",
    "exit",
    "agent",
    "started",
    "message",
    "inner",
    "hooked",
    "planned",
    "asked",
    "asks",
    "decided",
    "edited",
    "steered",
    "summarized",
    "narrowed",
    "interrupted",
    "cancelled",
    "failed",
    "rewind",
    "taken",
    "worker",
    "temp",
];

/// A text, borrowed from the program if it is a common one.
pub(super) fn common(text: Cow<'_, str>) -> Cow<'static, str> {
    // NOTE: a name that is missing in the list costs an allocation and nothing else.
    match COMMON.iter().find(|common| **common == text) {
        Some(common) => Cow::Borrowed(common),
        None => Cow::Owned(text.into_owned()),
    }
}

/// The texts and values of the events that were read last.
#[derive(Debug, Default)]
pub(crate) struct RecentTexts {
    authors: RecentValues<Author>,
    invocations: RecentValues<InvocationId>,
    metadata: RecentValues<Arc<RawValue>>,
}

impl RecentTexts {
    pub(super) fn author(&mut self, name: &str) -> Result<Author, SessionError> {
        self.authors.get(|author| author.as_str() == name, || Author::new(name))
    }

    pub(super) fn invocation(&mut self, id: &str) -> Result<InvocationId, SessionError> {
        self.invocations.get(|invocation| invocation.as_str() == id, || InvocationId::new(id))
    }

    pub(super) fn metadata(&mut self, value: &RawValue) -> Arc<RawValue> {
        let made = || Ok::<_, std::convert::Infallible>(value.to_owned().into());
        let Ok(value) = self.metadata.get(|known| known.get() == value.get(), made);
        value
    }
}

/// The last few different values.
#[derive(Debug)]
struct RecentValues<T> {
    values: [Option<T>; RecentValues::<()>::LENGTH],
    /// The place of the next one.
    next: usize,
}

impl RecentValues<()> {
    const LENGTH: usize = 4;
}

impl<T> Default for RecentValues<T> {
    fn default() -> Self {
        RecentValues { values: std::array::from_fn(|_| None), next: 0 }
    }
}

impl<T: Clone> RecentValues<T> {
    fn get<E>(&mut self, is_it: impl Fn(&T) -> bool, made: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        if let Some(known) = self.values.iter().flatten().find(|value| is_it(value)) {
            return Ok(known.clone());
        }
        let value = made()?;
        self.values[self.next] = Some(value.clone());
        self.next = (self.next + 1) % self.values.len();
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Event;
    use crate::ids::EventId;
    use crate::time::Timestamp;

    #[test]
    fn events_that_are_read_together_share_texts() {
        let mut recent = RecentTexts::default();
        let mut read = |id: &str, body: &str| {
            Event::from_body_sharing(&mut recent, EventId::new(id).unwrap(), Timestamp::from_micros(0), body)
                .unwrap()
        };
        let body = r#"{"v":1,"author":"ada","kind":"own","metadata":{"agent":{"n":1},"own":2}}"#;
        let (first, second, third) = (read("i1.0", body), read("i1.1", body), read("i2.0", body));
        let texts = |event: &Event| {
            let metadata = event.metadata.text("agent").unwrap().as_ptr();
            (event.author.as_str().as_ptr(), event.invocation.as_str().as_ptr(), metadata)
        };
        assert_eq!(texts(&first), texts(&second));
        assert_eq!((texts(&first).0, texts(&first).2), (texts(&third).0, texts(&third).2));
        assert_eq!((third.invocation.as_str(), third.kind.as_str()), ("i2", "own"));
        // NOTE: six authors, more than are remembered.
        let authors: Vec<String> = (0..12).map(|number| format!("author {}", number % 6)).collect();
        for author in &authors {
            assert_eq!(read("i", &format!(r#"{{"v":1,"author":"{author}"}}"#)).author.as_str(), author);
        }
    }

    #[test]
    fn metadata_that_is_stored_in_another_order_is_sorted() {
        let body = r#"{"v":1,"author":"ada","metadata":{"b":1,"a":2,"b":3}}"#;
        let event = Event::from_body(EventId::new("i").unwrap(), Timestamp::from_micros(0), body).unwrap();
        assert_eq!(event.metadata.iter().collect::<Vec<_>>(), [("a", "2"), ("b", "3")]);
    }
}
