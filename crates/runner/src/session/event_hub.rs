//! Broadcasts an invocation's events to subscribers, each at its own pace and from its own position.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::Stream;
use stepfold_agent_loop::RunEvent;
use tokio::sync::watch;

/// The number of events kept for late subscribers.
const MAX_KEPT: usize = 4096;

/// The number of events of a short run, for which there is room at once.
const USUAL_EVENTS: usize = 12;

/// An event of an invocation, as sent to [subscribers](crate::Invocation::subscribe).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum InvocationEvent {
    /// An event with its number, from 0, in order.
    Event {
        /// The number.
        number: u64,
        /// The version of the session: after the event, if that is a commit.
        version: u64,
        /// The event.
        event: RunEvent,
        /// Whether it belongs to a run before the one of this invocation: a recovered interrupted run, or the
        /// run of an earlier message.
        is_earlier: bool,
    },
    /// These events are no longer kept: the subscriber was too slow or too late. Commits can be read from the
    /// session.
    Missed {
        /// The number of missed events.
        events: u64,
    },
}

/// Keeps the last events and notifies all subscribers. Subscribers never slow the run down.
pub(crate) struct EventHub {
    buffer: Mutex<EventBuffer>,
    next: watch::Sender<u64>,
}

#[derive(Default)]
struct EventBuffer {
    /// The number of the first kept event.
    first: u64,
    events: VecDeque<PublishedEvent>,
    has_ended: bool,
}

#[derive(Clone)]
pub(crate) struct PublishedEvent {
    pub(crate) event: RunEvent,
    pub(crate) version: u64,
    pub(crate) is_earlier: bool,
}

impl EventHub {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(EventHub { buffer: Mutex::default(), next: watch::Sender::new(0) })
    }

    fn buffer(&self) -> MutexGuard<'_, EventBuffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, published: PublishedEvent) {
        let mut buffer = self.buffer();
        if buffer.events.is_empty() {
            buffer.events.reserve(USUAL_EVENTS);
        }
        if buffer.events.len() == MAX_KEPT {
            buffer.events.pop_front();
            buffer.first += 1;
        }
        buffer.events.push_back(published);
        let next = buffer.first + buffer.events.len() as u64;
        drop(buffer);
        // A later subscriber reads the kept events first.
        let _ = self.next.send(next);
    }

    /// No more events follow.
    pub(crate) fn end(&self) {
        let mut buffer = self.buffer();
        buffer.has_ended = true;
        let next = buffer.first + buffer.events.len() as u64;
        drop(buffer);
        // Wakes the waiting subscribers; a later one sees the end.
        let _ = self.next.send(next);
    }

    /// The events from number `from` on.
    pub(crate) fn subscribe(
        self: &Arc<Self>,
        from: u64,
    ) -> impl Stream<Item = InvocationEvent> + Send + use<> {
        let changes = self.next.subscribe();
        futures_util::stream::unfold((Arc::clone(self), changes, from), |(hub, mut changes, at)| async move {
            loop {
                changes.mark_unchanged();
                match hub.at(at) {
                    BufferRead::Event(PublishedEvent { event, version, is_earlier }) => {
                        let seen = InvocationEvent::Event { number: at, version, event, is_earlier };
                        return Some((seen, (hub, changes, at + 1)));
                    }
                    BufferRead::Missed(first) => {
                        return Some((InvocationEvent::Missed { events: first - at }, (hub, changes, first)));
                    }
                    BufferRead::End => return None,
                    BufferRead::NotYet => changes.changed().await.ok()?,
                }
            }
        })
    }

    fn at(&self, number: u64) -> BufferRead {
        let buffer = self.buffer();
        if number < buffer.first {
            return BufferRead::Missed(buffer.first);
        }
        let place = usize::try_from(number - buffer.first).unwrap_or(usize::MAX);
        match buffer.events.get(place) {
            Some(published) => BufferRead::Event(published.clone()),
            None if buffer.has_ended => BufferRead::End,
            None => BufferRead::NotYet,
        }
    }
}

enum BufferRead {
    Event(PublishedEvent),
    Missed(u64),
    NotYet,
    End,
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;

    use super::*;

    fn published(text: impl Into<String>) -> PublishedEvent {
        PublishedEvent { event: RunEvent::Text(text.into()), version: 7, is_earlier: false }
    }

    fn number(seen: &InvocationEvent) -> u64 {
        match seen {
            InvocationEvent::Event { number, .. } => *number,
            InvocationEvent::Missed { events } => panic!("missed {events}"),
        }
    }

    #[tokio::test]
    async fn a_late_subscriber_gets_the_kept_events() {
        let hub = EventHub::new();
        for place in 0..MAX_KEPT + 10 {
            hub.push(published(place.to_string()));
        }
        let mut late = Box::pin(hub.subscribe(0));
        assert_eq!(late.next().await, Some(InvocationEvent::Missed { events: 10 }));
        assert_eq!(number(&late.next().await.unwrap()), 10);
        let mut again = Box::pin(hub.subscribe(MAX_KEPT as u64));
        assert_eq!(number(&again.next().await.unwrap()), MAX_KEPT as u64);
    }

    #[tokio::test]
    async fn waiting_subscribers_are_notified() {
        let hub = EventHub::new();
        let mut events = Box::pin(hub.subscribe(0));
        let (seen, ()) = tokio::join!(events.next(), async {
            tokio::task::yield_now().await;
            hub.push(published("a"));
        });
        assert_eq!(number(&seen.unwrap()), 0);
        let (end, ()) = tokio::join!(events.next(), async {
            tokio::task::yield_now().await;
            hub.end();
        });
        assert_eq!(end, None);
    }
}
