//! Notices by `LISTEN` and `NOTIFY`: sent after the commit, those of some milliseconds together, never inside of a
//! transaction, where they would make all commits of the database wait for each other.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Config};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::connection::Pool;
use crate::error::SessionError;
use crate::ids::SessionKey;
use crate::store::{NoticeSubscribers, StoreNotice, StoreNotices};

/// The time for which notices are collected before they are sent together.
const COLLECT_TIME: Duration = Duration::from_millis(20);

/// The time that [`notify_now`](PostgresNotifier::notify_now) waits until a notice was sent.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// The maximum number of names in a notice: a payload has 8,000 bytes.
const MAX_NAMES: usize = 400;

/// The pause before the listener reconnects, and between its checks for subscribers.
const RECONNECT_PAUSE: Duration = Duration::from_secs(1);

/// The notices of a store.
pub(super) struct PostgresNotifier {
    pool: Pool,
    config: Config,
    tls: MakeRustlsConnect,
    pending: Arc<Mutex<PendingNotice>>,
    subscribers: NoticeSubscribers,
    is_listening: Arc<Mutex<bool>>,
    /// Whether connections go through a pooler, which passes no notices on.
    is_pooled: bool,
}

/// The notice that is sent next.
#[derive(Default)]
struct PendingNotice {
    names: BTreeSet<u64>,
    has_work: bool,
    /// Callers that wait until it was sent.
    waiting: Vec<oneshot::Sender<()>>,
    is_scheduled: bool,
}

impl PendingNotice {
    fn add(&mut self, key: &SessionKey) {
        self.names.extend([StoreNotice::name_of(key), StoreNotice::name_of_user(&key.user)]);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PostgresNotifier {
    pub(super) fn new(pool: Pool, config: Config, tls: MakeRustlsConnect, is_pooled: bool) -> Self {
        let (pending, is_listening) = (Arc::default(), Arc::default());
        PostgresNotifier {
            pool,
            config,
            tls,
            pending,
            subscribers: NoticeSubscribers::default(),
            is_listening,
            is_pooled,
        }
    }

    /// Notifies all processes soon of a change of a session.
    pub(super) fn notify(&self, key: &SessionKey, has_work: bool) {
        let mut pending = locked(&self.pending);
        pending.add(key);
        pending.has_work |= has_work;
        if !std::mem::replace(&mut pending.is_scheduled, true) {
            let scheduled = ScheduledNotice(Arc::clone(&self.pending));
            tokio::spawn(send(scheduled, self.pool.clone()));
        }
    }

    /// As [`notify`](PostgresNotifier::notify), and waits until the notice was sent: for a process that ends.
    pub(super) async fn notify_now(&self, key: &SessionKey, has_work: bool) {
        let (sender, sent) = oneshot::channel();
        locked(&self.pending).waiting.push(sender);
        self.notify(key, has_work);
        // NOTE: the sending task ends early only with its runtime. A lost notice does no harm: listeners also poll, slowly.
        let _ = tokio::time::timeout(SEND_TIMEOUT, sent).await;
    }

    /// The notices from now on, by one connection for all who listen.
    pub(super) fn listen(&self) -> Result<StoreNotices, SessionError> {
        if self.is_pooled {
            return Err(SessionError::Unsupported { what: "notices through a pooler in transaction mode" });
        }
        let notices = self.subscribers.subscribe();
        let mut is_listening = locked(&self.is_listening);
        if !std::mem::replace(&mut *is_listening, true) {
            let guard = ListenerGuard(Arc::clone(&self.is_listening));
            let (config, tls) = (self.config.clone(), self.tls.clone());
            tokio::spawn(run_listener(guard, config, tls, self.subscribers.clone()));
        }
        Ok(notices)
    }
}

/// A scheduled notice. If its task ends before it is sent, the next notice is scheduled again.
struct ScheduledNotice(Arc<Mutex<PendingNotice>>);

impl Drop for ScheduledNotice {
    fn drop(&mut self) {
        locked(&self.0).is_scheduled = false;
    }
}

async fn send(scheduled: ScheduledNotice, pool: Pool) {
    // NOTE: collected for some milliseconds: a busy store sends one notice for many commits.
    tokio::time::sleep(COLLECT_TIME).await;
    let pending = std::mem::take(&mut *locked(&scheduled.0));
    // NOTE: dropped before the notice is sent, so that a commit from now on schedules the next notice.
    drop(scheduled);
    let payload = payload(&pending);
    let sent = async {
        let connection = pool.get().await.map_err(|error| error.to_string())?;
        let sent =
            connection.execute_typed("SELECT pg_notify('stepfold', $1)", &[(&payload, Type::TEXT)]).await;
        sent.map_err(|error| error.to_string())
    };
    // NOTE: only logged, since listeners also poll, slowly.
    if let Err(error) = sent.await {
        tracing::debug!(error, "a notice could not be sent");
    }
    for waiting in pending.waiting {
        // NOTE: the caller may have timed out.
        let _ = waiting.send(());
    }
}

/// The text of a notice: `w` if work is left, and the names; no names if there are too many of them.
fn payload(pending: &PendingNotice) -> String {
    let mut payload = String::from(if pending.has_work { "w" } else { "" });
    // NOTE: a notice without names concerns every session, which is true of so many changes.
    if pending.names.len() <= MAX_NAMES {
        for name in &pending.names {
            // Writing to a string cannot fail.
            let _ = write!(payload, ",{name:x}");
        }
    }
    payload
}

fn notice(payload: &str) -> StoreNotice {
    let mut parts = payload.split(',');
    let has_work = parts.next() == Some("w");
    let names: Vec<u64> = parts.filter_map(|part| u64::from_str_radix(part, 16).ok()).collect();
    if names.is_empty() { StoreNotice::anything() } else { StoreNotice::of(names, has_work) }
}

/// Marks the listening task as running until it is dropped.
struct ListenerGuard(Arc<Mutex<bool>>);

impl Drop for ListenerGuard {
    fn drop(&mut self) {
        *locked(&self.0) = false;
    }
}

async fn run_listener(
    _guard: ListenerGuard,
    config: Config,
    tls: MakeRustlsConnect,
    subscribers: NoticeSubscribers,
) {
    while subscribers.has_any() {
        if let Err(error) = listen_once(&config, &tls, &subscribers).await {
            tracing::debug!(%error, "the connection for notices ended");
        }
        tokio::time::sleep(RECONNECT_PAUSE).await;
    }
}

/// Listens until the connection ends, or no listener is left.
async fn listen_once(
    config: &Config,
    tls: &MakeRustlsConnect,
    subscribers: &NoticeSubscribers,
) -> Result<(), tokio_postgres::Error> {
    let (client, mut connection) = config.connect(tls.clone()).await?;
    let mut begins = pin!(client.batch_execute("LISTEN stepfold"));
    let mut has_begun = false;
    loop {
        tokio::select! {
            begun = &mut begins, if !has_begun => {
                begun?;
                has_begun = true;
                // NOTE: notices sent before `LISTEN` began are lost, so subscribers have to look at everything once.
                subscribers.notify(&StoreNotice::anything());
            }
            message = poll_fn(|context| connection.poll_message(context)) => match message.transpose()? {
                Some(AsyncMessage::Notification(pending)) => {
                    subscribers.notify(&notice(pending.payload()));
                }
                Some(_) => {}
                None => return Ok(()),
            },
            () = tokio::time::sleep(RECONNECT_PAUSE) => {
                if !subscribers.has_any() {
                    return Ok(());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::UserId;

    #[test]
    fn notices_survive_their_payload() {
        let key = |id: &str| SessionKey::new("app", "ada", id).unwrap();
        let of_user = |user: &str, notice: &StoreNotice| notice.may_concern_user(&UserId::new(user).unwrap());
        let mut pending = PendingNotice { has_work: true, ..PendingNotice::default() };
        for id in ["s1", "s2"] {
            pending.add(&key(id));
        }
        let received = notice(&payload(&pending));
        assert!(received.has_work() && received.may_concern(&key("s2")) && !received.may_concern(&key("s3")));
        assert!(of_user("ada", &received) && !of_user("bob", &received));
        pending.has_work = false;
        assert!(!notice(&payload(&pending)).has_work());
        pending.names.extend(0..MAX_NAMES as u64);
        let received = notice(&payload(&pending));
        assert!(
            received.may_concern(&key("s3")) && of_user("bob", &received),
            "too many to be named are all"
        );
        pending.names = (0..MAX_NAMES as u64).map(|name| u64::MAX - name).collect();
        assert!(payload(&pending).len() < 8_000);
    }
}
