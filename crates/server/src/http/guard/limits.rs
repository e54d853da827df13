//! Limits on the resources that clients use, and the permits that they hold.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use stepfold_session_scopes::UserId;

use super::problem::Problem;

/// The bounds of a server. All can be set.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Bytes of the body of a request; 8 MiB. More is answered with 413.
    pub body: usize,
    /// Files of a message; 16. More are refused with 400.
    pub files: usize,
    /// Bytes of a file of a message; 5 MiB. More is answered with 413.
    pub file: usize,
    /// Bytes of a session that is imported; 64 MiB. More is answered with 413.
    pub import: usize,
    /// The time for the headers of a request, after which the connection is closed; 10 seconds.
    pub header_timeout: Duration,
    /// The time for the body of a request; 30 seconds. Later, it is answered with 408.
    pub body_timeout: Duration,
    /// The time after which a connection is closed whose client does not read; 30 seconds.
    pub write_timeout: Duration,
    /// The interval of comments in an idle live stream, so that proxies keep it open; 15 seconds.
    pub keep_alive: Duration,
    /// Live streams of one user; 64. More are answered with 429.
    pub streams_per_user: usize,
    /// Live streams of all users; 10,000. More are answered with 429.
    pub streams: usize,
    /// Sessions of one live stream of several; 32. More are answered with 429.
    pub sessions_per_stream: usize,
    /// Running invocations of one user that this process has started; 16. More are answered with 429.
    pub runs_per_user: usize,
    /// Requests of one user at once that read or make a whole session: import, export, compare and replay; 2. More are
    /// answered with 429.
    pub heavy_per_user: usize,
    /// Such requests of all users; 8. More are answered with 429.
    pub heavy: usize,
    /// The time for a request that reads a whole session, which has a thread of its own; 60 seconds. Later, it is answered
    /// with
    /// 503. An import has no such limit.
    pub heavy_timeout: Duration,
    /// Experiments of an app that run at once in this process; 2. More wait.
    pub running_experiments: usize,
    /// Experiments of one user that wait or run, of an app; 4. More are answered with 429.
    pub experiments_per_user: usize,
    /// Experiments of all users that wait or run, of an app; 64. More are answered with 429.
    pub experiments: usize,
    /// Bytes of memory that the requests of one user hold at once; 256 MiB. Counted are bodies, the values that are read
    /// from them, what requests and streams load of sessions, and answers until they are sent. A request beyond it is
    /// answered with 429, and one that does not fit alone with 413; a stream waits.
    pub memory_per_user: usize,
    /// Bytes of memory that the requests of all users hold at once; 1 GiB. A request beyond it is answered with 503.
    pub memory: usize,
    /// Open connections; 12,000. More wait until others are closed.
    pub connections: usize,
    /// The time between a signal to stop and the end of accepting connections, in which `/readyz` answers 503 and all else
    /// as before; 0 seconds. Behind a load balancer it must be longer than the time in which probes fail.
    pub shutdown_delay: Duration,
    /// The time that runs, and the cases of experiments, have to complete after a signal to stop; 30 seconds. Then they stop at
    /// their last commit.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            body: 8 << 20,
            files: 16,
            file: 5 << 20,
            import: 64 << 20,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            keep_alive: Duration::from_secs(15),
            streams_per_user: 64,
            streams: 10_000,
            sessions_per_stream: 32,
            runs_per_user: 16,
            heavy_per_user: 2,
            heavy: 8,
            heavy_timeout: Duration::from_secs(60),
            running_experiments: 2,
            experiments_per_user: 4,
            experiments: 64,
            memory_per_user: 256 << 20,
            memory: 1 << 30,
            connections: 12_000,
            shutdown_delay: Duration::ZERO,
            drain: Duration::from_secs(30),
        }
    }
}

/// The requests that read or make a whole session.
const HEAVY: &str = "requests about whole sessions (import, export, compare, replay)";

/// The permits that are taken, shared by all requests.
#[derive(Clone, Debug, Default)]
pub(in crate::http) struct LimitUsage(Arc<Mutex<UsageCounts>>);

#[derive(Debug, Default)]
struct UsageCounts {
    of_all: CountsByKind,
    by_user: HashMap<UserId, CountsByKind>,
}

/// The number of permits that are taken, by kind.
type CountsByKind = [usize; 4];

#[derive(Clone, Copy, Debug)]
enum LimitKind {
    Stream,
    Run,
    Heavy,
    /// Bytes of memory.
    Memory,
}

/// A permit: a share of a limit, which is released when this is dropped.
#[derive(Debug)]
pub(in crate::http) struct LimitPermit {
    usage: LimitUsage,
    user: UserId,
    kind: LimitKind,
    /// One, or a number of bytes.
    amount: usize,
}

/// The memory that a request or a stream reserves, until this is dropped. Clones share it.
#[derive(Clone, Debug)]
pub(in crate::http) struct MemoryReservation {
    permit: Arc<Mutex<LimitPermit>>,
    /// The bytes of one user, and of all.
    limits: (usize, usize),
}

impl MemoryReservation {
    /// An empty reservation of the same user.
    pub(in crate::http) fn new_empty(&self) -> MemoryReservation {
        let permit = self.permit.lock().unwrap_or_else(PoisonError::into_inner);
        MemoryReservation {
            permit: Arc::new(Mutex::new(permit.usage.empty(&permit.user))),
            limits: self.limits,
        }
    }

    /// Reserves more bytes, before they are used.
    pub(in crate::http) fn grow(&self, bytes: usize) -> Result<(), Problem> {
        self.change(|held| held.saturating_add(bytes))
    }

    /// Reserves this number of bytes instead.
    pub(in crate::http) fn resize(&self, bytes: usize) -> Result<(), Problem> {
        self.change(|_| bytes)
    }

    /// The number of reserved bytes.
    pub(in crate::http) fn size(&self) -> usize {
        self.permit.lock().unwrap_or_else(PoisonError::into_inner).amount
    }

    /// Releases all bytes.
    pub(in crate::http) fn free(&self) {
        // Fewer bytes are never refused.
        let _ = self.resize(0);
    }

    /// The number of bytes that this user may hold.
    pub(in crate::http) fn limit(&self) -> usize {
        self.limits.0.min(self.limits.1)
    }

    fn change(&self, change: impl FnOnce(usize) -> usize) -> Result<(), Problem> {
        let mut permit = self.permit.lock().unwrap_or_else(PoisonError::into_inner);
        // NOTE: Memory is reserved before it is used: a measured allocator would know neither by whom nor before it is too
        // late (docs/decisions/server.md).
        let amount = change(permit.amount);
        let (of_user, of_all) = self.limits;
        permit.usage.with(|counts| {
            let (before, kind) = (permit.amount, LimitKind::Memory as usize);
            let user = counts.by_user.get(&permit.user).map_or(0, |of_user| of_user[kind]) - before + amount;
            let all = counts.of_all[kind] - before + amount;
            if amount > before {
                // NOTE: A request that never fits is refused with 413, so that its client does not retry; one that fits
                // later gets 429 or 503.
                if amount > of_user.min(of_all) {
                    return Err(Problem::no_memory(amount, of_user.min(of_all)));
                }
                if user > of_user {
                    return Err(Problem::too_many("bytes of memory of one user", of_user));
                }
                if all > of_all {
                    return Err(Problem::busy());
                }
            }
            counts.of_all[kind] = all;
            counts.set(&permit.user, kind, user);
            Ok(())
        })?;
        permit.amount = amount;
        Ok(())
    }
}

impl UsageCounts {
    fn set(&mut self, user: &UserId, kind: usize, count: usize) {
        let of_user = self.by_user.entry(user.clone()).or_default();
        of_user[kind] = count;
        // NOTE: Users without permits are removed, so that the map does not grow with each user who ever came.
        if *of_user == CountsByKind::default() {
            self.by_user.remove(user);
        }
    }
}

impl LimitUsage {
    /// An empty reservation, for a request or a stream.
    pub(in crate::http) fn memory(&self, user: &UserId, limits: &Limits) -> MemoryReservation {
        let permit = Arc::new(Mutex::new(self.empty(user)));
        MemoryReservation { permit, limits: (limits.memory_per_user, limits.memory) }
    }

    fn empty(&self, user: &UserId) -> LimitPermit {
        LimitPermit { usage: self.clone(), user: user.clone(), kind: LimitKind::Memory, amount: 0 }
    }

    /// Takes a permit for a live stream.
    pub(in crate::http) fn stream_permit(
        &self,
        user: &UserId,
        limits: &Limits,
    ) -> Result<LimitPermit, Problem> {
        self.permit(user, LimitKind::Stream, "live streams", limits.streams_per_user, limits.streams)
    }

    /// Takes a permit for a run.
    pub(in crate::http) fn run_permit(&self, user: &UserId, limits: &Limits) -> Result<LimitPermit, Problem> {
        self.permit(user, LimitKind::Run, "runs", limits.runs_per_user, usize::MAX)
    }

    /// Takes a permit for a request that reads or makes a whole session.
    // NOTE: These requests hold a whole session in memory. Its size is not known before it is read, so that their number is
    // limited (docs/decisions/server.md).
    pub(in crate::http) fn heavy_permit(
        &self,
        user: &UserId,
        limits: &Limits,
    ) -> Result<LimitPermit, Problem> {
        self.permit(user, LimitKind::Heavy, HEAVY, limits.heavy_per_user, limits.heavy)
    }

    /// Takes a permit of a kind, of which one user and all users together have a limited number.
    fn permit(
        &self,
        user: &UserId,
        kind: LimitKind,
        what: &str,
        per_user: usize,
        of_all: usize,
    ) -> Result<LimitPermit, Problem> {
        self.with(|counts| {
            let of_user = counts.by_user.get(user).map_or(0, |of_user| of_user[kind as usize]);
            if of_user >= per_user {
                return Err(Problem::too_many(&format!("{what} of one user"), per_user));
            }
            if counts.of_all[kind as usize] >= of_all {
                return Err(Problem::too_many(what, of_all));
            }
            counts.of_all[kind as usize] += 1;
            counts.by_user.entry(user.clone()).or_default()[kind as usize] += 1;
            Ok(LimitPermit { usage: self.clone(), user: user.clone(), kind, amount: 1 })
        })
    }

    fn with<T>(&self, change: impl FnOnce(&mut UsageCounts) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for LimitPermit {
    fn drop(&mut self) {
        self.usage.with(|counts| {
            let kind = self.kind as usize;
            let of_user = counts.by_user.get(&self.user).map_or(0, |of_user| of_user[kind]);
            counts.of_all[kind] -= self.amount;
            counts.set(&self.user, kind, of_user.saturating_sub(self.amount));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_is_free_again() {
        let (usage, user) = (LimitUsage::default(), UserId::new("ada").unwrap());
        let limits = Limits { streams_per_user: 2, streams: 3, runs_per_user: 1, ..Limits::default() };
        let first = usage.stream_permit(&user, &limits).unwrap();
        let _second = usage.stream_permit(&user, &limits).unwrap();
        assert_eq!(usage.stream_permit(&user, &limits).unwrap_err().status().as_u16(), 429);
        let bob = UserId::new("bob").unwrap();
        let _third = usage.stream_permit(&bob, &limits).unwrap();
        assert_eq!(
            usage.stream_permit(&bob, &limits).unwrap_err().status().as_u16(),
            429,
            "all users together"
        );
        drop(first);
        let _fourth = usage.stream_permit(&bob, &limits).unwrap();
        let run = usage.run_permit(&user, &limits).unwrap();
        assert!(usage.run_permit(&user, &limits).is_err());
        drop(run);
        assert!(usage.run_permit(&user, &limits).is_ok());
    }

    #[test]
    fn bytes_are_counted_until_they_are_dropped() {
        let usage = LimitUsage::default();
        let [ada, bob] = ["ada", "bob"].map(|user| UserId::new(user).unwrap());
        let limits = Limits { memory_per_user: 100, memory: 150, ..Limits::default() };
        let status = |result: Result<(), Problem>| result.map_err(|problem| problem.status().as_u16());
        let (first, second) = (usage.memory(&ada, &limits), usage.memory(&ada, &limits));
        assert_eq!(status(first.grow(101)), Err(413), "it never fits");
        assert_eq!((status(first.grow(60)), status(first.grow(41))), (Ok(()), Err(413)));
        assert_eq!((status(second.grow(41)), status(second.grow(40))), (Err(429), Ok(())));
        let of_bob = usage.memory(&bob, &limits);
        assert_eq!(
            (status(of_bob.grow(51)), status(of_bob.grow(50))),
            (Err(503), Ok(())),
            "all users together"
        );
        assert_eq!(status(first.new_empty().grow(1)), Err(429));
        // Fewer are never refused, and what is refused has changed nothing.
        assert_eq!((status(first.resize(10)), status(of_bob.resize(100))), (Ok(()), Ok(())));
        drop(first.clone());
        assert_eq!(status(second.resize(91)), Err(429));
        drop((first, of_bob));
        assert_eq!(status(second.resize(100)), Ok(()));
        drop(second);
        usage.with(|counts| assert!(counts.by_user.is_empty() && counts.of_all == CountsByKind::default()));
    }
}
