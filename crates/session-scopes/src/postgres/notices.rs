//! Notices by `LISTEN` and `NOTIFY`: sent after the commit, those of some milliseconds together, never inside of a
//! transaction, where they would make all commits of the database wait for each other.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use deadpool_postgres::Pool;
use tokio::sync::oneshot;
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Config};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::error::SessionError;
use crate::ids::SessionKey;
use crate::store::{StoreNotice, StoreNotices, Subscribers};

/// How long notices are collected.
const COLLECTED: Duration = Duration::from_millis(20);

/// How long is waited for a notice to be sent.
const SENT: Duration = Duration::from_secs(1);

/// How many names a notice has: a payload has 8,000 bytes.
const MOST: usize = 400;

/// How long the listener waits before it connects again, and how often it looks whether anybody listens.
const PAUSE: Duration = Duration::from_secs(1);

/// The notices of a store.
pub(super) struct Board {
    pool: Pool,
    config: Config,
    tls: MakeRustlsConnect,
    told: Arc<Mutex<Told>>,
    subscribers: Subscribers,
    is_heard: Arc<Mutex<bool>>,
    /// Whether a pooler is between, which passes no notices on.
    is_pooled: bool,
}

/// What is told next.
#[derive(Default)]
struct Told {
    names: BTreeSet<u64>,
    has_work: bool,
    /// Those who wait until it was sent.
    waiting: Vec<oneshot::Sender<()>>,
    is_scheduled: bool,
}

impl Told {
    fn add(&mut self, key: &SessionKey) {
        self.names.extend([StoreNotice::name_of(key), StoreNotice::name_of_user(&key.user)]);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Board {
    pub(super) fn new(pool: Pool, config: Config, tls: MakeRustlsConnect, is_pooled: bool) -> Self {
        let (told, is_heard) = (Arc::default(), Arc::default());
        Board { pool, config, tls, told, subscribers: Subscribers::default(), is_heard, is_pooled }
    }

    /// Notifies all processes soon of a change of a session.
    pub(super) fn tell(&self, key: &SessionKey, has_work: bool) {
        let mut told = locked(&self.told);
        told.add(key);
        told.has_work |= has_work;
        if !std::mem::replace(&mut told.is_scheduled, true) {
            let scheduled = Scheduled(Arc::clone(&self.told));
            tokio::spawn(send(scheduled, self.pool.clone()));
        }
    }

    /// The same, and waits until that was sent: for the last words of a process.
    pub(super) async fn tell_now(&self, key: &SessionKey, has_work: bool) {
        let (sender, sent) = oneshot::channel();
        locked(&self.told).waiting.push(sender);
        self.tell(key, has_work);
        // Its task ends before only with its runtime. Those who listen look by themselves, too.
        let _ = tokio::time::timeout(SENT, sent).await;
    }

    /// The notices from now on, by one connection for all who listen.
    pub(super) fn listen(&self) -> Result<StoreNotices, SessionError> {
        if self.is_pooled {
            return Err(SessionError::Unsupported { what: "notices through a pooler in transaction mode" });
        }
        let notices = self.subscribers.subscribe();
        let mut is_heard = locked(&self.is_heard);
        if !std::mem::replace(&mut *is_heard, true) {
            let hearing = Hearing(Arc::clone(&self.is_heard));
            let (config, tls) = (self.config.clone(), self.tls.clone());
            tokio::spawn(hear(hearing, config, tls, self.subscribers.clone()));
        }
        Ok(notices)
    }
}

/// Notices that are to be sent. If their task ends before, the next one is scheduled again.
struct Scheduled(Arc<Mutex<Told>>);

impl Drop for Scheduled {
    fn drop(&mut self) {
        locked(&self.0).is_scheduled = false;
    }
}

async fn send(scheduled: Scheduled, pool: Pool) {
    tokio::time::sleep(COLLECTED).await;
    let told = std::mem::take(&mut *locked(&scheduled.0));
    // What is committed from now on is told next time.
    drop(scheduled);
    let payload = payload(&told);
    let sent = async {
        let connection = pool.get().await.map_err(|error| error.to_string())?;
        let sent =
            connection.execute_typed("SELECT pg_notify('stepfold', $1)", &[(&payload, Type::TEXT)]).await;
        sent.map_err(|error| error.to_string())
    };
    // Those who listen look by themselves, too.
    if let Err(error) = sent.await {
        tracing::debug!(error, "a notice could not be sent");
    }
    for waiting in told.waiting {
        // It may have given up.
        let _ = waiting.send(());
    }
}

/// `w` if work is left, and the names; no names if there are too many of them.
fn payload(told: &Told) -> String {
    let mut payload = String::from(if told.has_work { "w" } else { "" });
    if told.names.len() <= MOST {
        for name in &told.names {
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

/// The task that listens.
struct Hearing(Arc<Mutex<bool>>);

impl Drop for Hearing {
    fn drop(&mut self) {
        *locked(&self.0) = false;
    }
}

async fn hear(_hearing: Hearing, config: Config, tls: MakeRustlsConnect, subscribers: Subscribers) {
    while subscribers.are_there() {
        if let Err(error) = hear_once(&config, &tls, &subscribers).await {
            tracing::debug!(%error, "the connection for notices ended");
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Listens until the connection ends, or no listener is left.
async fn hear_once(
    config: &Config,
    tls: &MakeRustlsConnect,
    subscribers: &Subscribers,
) -> Result<(), tokio_postgres::Error> {
    let (client, mut connection) = config.connect(tls.clone()).await?;
    let mut begins = pin!(client.batch_execute("LISTEN stepfold"));
    let mut has_begun = false;
    loop {
        tokio::select! {
            begun = &mut begins, if !has_begun => {
                begun?;
                has_begun = true;
                // Whatever was told before is unknown.
                subscribers.tell(&StoreNotice::anything());
            }
            message = poll_fn(|context| connection.poll_message(context)) => match message.transpose()? {
                Some(AsyncMessage::Notification(told)) => {
                    subscribers.tell(&notice(told.payload()));
                }
                Some(_) => {}
                None => return Ok(()),
            },
            () = tokio::time::sleep(PAUSE) => {
                if !subscribers.are_there() {
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
        let mut told = Told { has_work: true, ..Told::default() };
        for id in ["s1", "s2"] {
            told.add(&key(id));
        }
        let heard = notice(&payload(&told));
        assert!(heard.has_work() && heard.may_concern(&key("s2")) && !heard.may_concern(&key("s3")));
        assert!(of_user("ada", &heard) && !of_user("bob", &heard));
        told.has_work = false;
        assert!(!notice(&payload(&told)).has_work());
        told.names.extend(0..MOST as u64);
        let heard = notice(&payload(&told));
        assert!(heard.may_concern(&key("s3")) && of_user("bob", &heard), "too many to be named are all");
        told.names = (0..MOST as u64).map(|name| u64::MAX - name).collect();
        assert!(payload(&told).len() < 8_000);
    }
}
