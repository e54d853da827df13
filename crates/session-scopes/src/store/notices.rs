//! Notices that something was committed, in this process or another one: a hint to look, which may come late, in vain, or
//! not at all.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::ids::{SessionKey, UserId};

/// A request for [notices](crate::SessionStore::notices).
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct WatchStore {
    /// Whether only notices are wanted that [name sessions](StoreNotice::names), as far as possible. A store that cannot
    /// name any rejects the request with [`SessionError::Unsupported`](crate::SessionError::Unsupported).
    pub is_named: bool,
}

impl WatchStore {
    /// All notices of a store.
    pub const fn new() -> Self {
        WatchStore { is_named: false }
    }

    /// Only from a store whose notices name sessions.
    #[must_use]
    pub const fn named(self) -> Self {
        WatchStore { is_named: true }
    }
}

/// A notice of commits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreNotice {
    /// The names of the sessions and of their users; none if it may be any.
    names: Option<Arc<[u64]>>,
    has_work: bool,
}

impl StoreNotice {
    /// Something may have happened in any session.
    pub const fn anything() -> Self {
        StoreNotice { names: None, has_work: true }
    }

    #[cfg(feature = "postgres")]
    pub(crate) fn of(names: impl IntoIterator<Item = u64>, has_work: bool) -> Self {
        StoreNotice { names: Some(names.into_iter().collect()), has_work }
    }

    /// Whether it may be about this session.
    pub fn may_concern(&self, key: &SessionKey) -> bool {
        self.has(StoreNotice::name_of(key))
    }

    /// Whether it may be about a session of this user.
    pub fn may_concern_user(&self, user: &UserId) -> bool {
        self.has(StoreNotice::name_of_user(user))
    }

    fn has(&self, name: u64) -> bool {
        self.names.as_ref().is_none_or(|names| names.contains(&name))
    }

    /// The [names of the sessions](StoreNotice::name_of) that it is about, and [of their
    /// users](StoreNotice::name_of_user); none if it may be any.
    pub fn names(&self) -> Option<&[u64]> {
        self.names.as_deref()
    }

    /// The name that notices have for a session: the same in every process, and shared with few others, if any.
    pub fn name_of(key: &SessionKey) -> u64 {
        digest(&[key.app.as_str(), key.user.as_str(), key.id.as_str()])
    }

    /// The name that notices have for a user, of any app.
    pub fn name_of_user(user: &UserId) -> u64 {
        digest(&[user.as_str()])
    }

    /// Whether work may be left that no worker has: messages were accepted, or a claim was released with work left.
    pub const fn has_work(&self) -> bool {
        self.has_work
    }
}

/// The same in every process (FNV-1a).
fn digest(parts: &[&str]) -> u64 {
    // NOTE: not the hasher of the standard library, which is seeded in each process. A payload has 8,000 bytes and all
    // listeners of the database see it, so it contains digests, not keys; a collision costs one read.
    let bytes = parts.iter().flat_map(|part| part.bytes().chain([0xff]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Notices of a store, until it is dropped.
pub struct StoreNotices(Box<dyn NoticeSource>);

impl StoreNotices {
    /// Notices from wherever they come.
    pub fn new(notices: impl NoticeSource + 'static) -> Self {
        StoreNotices(Box::new(notices))
    }

    /// The next notice; `None` if there are no more.
    pub async fn next(&mut self) -> Option<StoreNotice> {
        poll_fn(|context| Pin::new(&mut *self.0).poll_notice(context)).await
    }
}

impl fmt::Debug for StoreNotices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreNotices").finish_non_exhaustive()
    }
}

/// A source of notices: implemented by stores, polled by [`StoreNotices`].
pub trait NoticeSource: Send + Unpin {
    /// The next notice; `None` if there are no more.
    fn poll_notice(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<StoreNotice>>;
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod subscribers {
    use std::pin::Pin;
    use std::sync::{Arc, Mutex, PoisonError};
    use std::task::{Context, Poll};

    use tokio::sync::mpsc;

    use super::{NoticeSource, StoreNotice, StoreNotices};

    /// The number of notices that wait for a slow subscriber. Further ones are dropped: it has to look anyway.
    const KEPT: usize = 256;

    /// The subscribers of a store's notices.
    #[derive(Clone, Default)]
    pub(crate) struct NoticeSubscribers(Arc<Mutex<Vec<mpsc::Sender<StoreNotice>>>>);

    impl NoticeSubscribers {
        pub(crate) fn subscribe(&self) -> StoreNotices {
            let (sender, receiver) = mpsc::channel(KEPT);
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
            StoreNotices::new(NoticeSubscription(receiver))
        }

        /// Notifies all subscribers; returns whether any is left.
        pub(crate) fn notify(&self, notice: &StoreNotice) -> bool {
            let mut senders = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            senders.retain(|sender| {
                // NOTE: a full channel drops the notice: its subscriber has others to read, and each only makes it look.
                !matches!(sender.try_send(notice.clone()), Err(mpsc::error::TrySendError::Closed(_)))
            });
            !senders.is_empty()
        }

        /// Whether any subscriber is left.
        pub(crate) fn has_any(&self) -> bool {
            let mut senders = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            senders.retain(|sender| !sender.is_closed());
            !senders.is_empty()
        }
    }

    struct NoticeSubscription(mpsc::Receiver<StoreNotice>);

    impl NoticeSource for NoticeSubscription {
        fn poll_notice(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<StoreNotice>> {
            self.0.poll_recv(context)
        }
    }
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) use self::subscribers::NoticeSubscribers;
