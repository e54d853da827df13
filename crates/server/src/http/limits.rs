//! Bounds on what clients can take of the server, and who has taken what.

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
    /// How often an idle live stream has a comment, so that proxies keep it open; 15 seconds.
    pub keep_alive: Duration,
    /// Live streams of one user; 64. More are answered with 429.
    pub streams_per_user: usize,
    /// Live streams of all users; 10,000. More are answered with 429.
    pub streams: usize,
    /// Sessions of one live stream of several; 32. More are answered with 429.
    pub sessions_per_stream: usize,
    /// Running invocations of one user that this process has started; 16. More are answered with 429.
    pub runs_per_user: usize,
    /// Requests of one user at once that read or make a whole session: import, export, compare and replay; 2. More are answered
    /// with 429.
    pub heavy_per_user: usize,
    /// Such requests of all users; 8. More are answered with 429.
    pub heavy: usize,
    /// The time for a request that reads a whole session, which has a thread of its own; 60 seconds. Later, it is answered with
    /// 503. An import has no such limit.
    pub heavy_timeout: Duration,
    /// Open connections; 12,000. More wait until others are closed.
    pub connections: usize,
    /// The time between a signal to stop and the end of accepting connections, in which `/readyz` answers 503 and all else as
    /// before; 0 seconds. Behind a load balancer it must be longer than the time in which probes fail.
    pub shutdown_delay: Duration,
    /// The time that runs have to complete after a signal to stop; 30 seconds. Then they stop at their last commit.
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
            connections: 12_000,
            shutdown_delay: Duration::ZERO,
            drain: Duration::from_secs(30),
        }
    }
}

/// The requests that read or make a whole session.
const HEAVY: &str = "requests about whole sessions (import, export, compare, replay)";

/// What is taken.
#[derive(Clone, Debug, Default)]
pub(super) struct Usage(Arc<Mutex<Taken>>);

#[derive(Debug, Default)]
struct Taken {
    of_all: Counts,
    by_user: HashMap<UserId, Counts>,
}

/// The places that are taken, by kind.
type Counts = [usize; 3];

#[derive(Clone, Copy, Debug)]
enum Kind {
    Stream,
    Run,
    Heavy,
}

/// A place that is taken until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    usage: Usage,
    user: UserId,
    kind: Kind,
}

impl Usage {
    /// Takes a place for a live stream.
    pub(super) fn stream(&self, user: &UserId, limits: &Limits) -> Result<Place, Problem> {
        self.take(user, Kind::Stream, "live streams", limits.streams_per_user, limits.streams)
    }

    /// Takes a place for a run.
    pub(super) fn run(&self, user: &UserId, limits: &Limits) -> Result<Place, Problem> {
        self.take(user, Kind::Run, "runs", limits.runs_per_user, usize::MAX)
    }

    /// Takes a place for a request that reads or makes a whole session.
    pub(super) fn heavy(&self, user: &UserId, limits: &Limits) -> Result<Place, Problem> {
        self.take(user, Kind::Heavy, HEAVY, limits.heavy_per_user, limits.heavy)
    }

    /// Takes a place of a kind, of which a user has at most so many, and all users together.
    fn take(
        &self,
        user: &UserId,
        kind: Kind,
        what: &str,
        per_user: usize,
        of_all: usize,
    ) -> Result<Place, Problem> {
        self.with(|taken| {
            let of_user = taken.by_user.get(user).map_or(0, |of_user| of_user[kind as usize]);
            if of_user >= per_user {
                return Err(Problem::too_many(&format!("{what} of one user"), per_user));
            }
            if taken.of_all[kind as usize] >= of_all {
                return Err(Problem::too_many(what, of_all));
            }
            taken.of_all[kind as usize] += 1;
            taken.by_user.entry(user.clone()).or_default()[kind as usize] += 1;
            Ok(Place { usage: self.clone(), user: user.clone(), kind })
        })
    }

    fn with<T>(&self, change: impl FnOnce(&mut Taken) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.usage.with(|taken| {
            let Some(of_user) = taken.by_user.get_mut(&self.user) else { return };
            of_user[self.kind as usize] -= 1;
            taken.of_all[self.kind as usize] -= 1;
            if *of_user == Counts::default() {
                taken.by_user.remove(&self.user);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_is_free_again() {
        let (usage, user) = (Usage::default(), UserId::new("ada").unwrap());
        let limits = Limits { streams_per_user: 2, streams: 3, runs_per_user: 1, ..Limits::default() };
        let first = usage.stream(&user, &limits).unwrap();
        let _second = usage.stream(&user, &limits).unwrap();
        assert_eq!(usage.stream(&user, &limits).unwrap_err().status().as_u16(), 429);
        let bob = UserId::new("bob").unwrap();
        let _third = usage.stream(&bob, &limits).unwrap();
        assert_eq!(usage.stream(&bob, &limits).unwrap_err().status().as_u16(), 429, "all users together");
        drop(first);
        let _fourth = usage.stream(&bob, &limits).unwrap();
        let run = usage.run(&user, &limits).unwrap();
        assert!(usage.run(&user, &limits).is_err());
        drop(run);
        assert!(usage.run(&user, &limits).is_ok());
    }
}
