//! Identifies the process of a worker, so that others on the same host detect immediately when it is dead.
//!
//! On Linux the name of a worker identifies where its process runs (the boot of the host, the PID namespace,
//! the user), its id and its start time. A process in the same environment can look it up in `/proc`. Nothing
//! is known about other processes and on other systems: there, claims have to expire.

use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, ErrorKind};

/// A process that can be looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
struct WorkerProcess {
    id: u32,
    /// Its start time, in ticks since the host booted: process ids are reused.
    started: u64,
    /// The environment in which its id is valid.
    place: u64,
}

/// The unique name of a worker of this process: `part` differs for each worker.
pub(crate) fn worker_name(part: &str) -> String {
    match WorkerProcess::this() {
        Some(process) => format!("{process}-{part}"),
        None => format!("process-{}-{part}", std::process::id()),
    }
}

/// Whether the process of the worker with this name is known to be dead.
pub(crate) fn is_dead(worker: &str) -> bool {
    let Some(process) = WorkerProcess::named(worker) else { return false };
    // NOTE: a name from another host or namespace says nothing: its process cannot be looked up here.
    WorkerProcess::this().is_some_and(|this| this.place == process.place)
        && process.is_gone(&std::fs::read_to_string(format!("/proc/{}/stat", process.id)))
}

impl WorkerProcess {
    fn this() -> Option<Self> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let namespace = std::fs::read_link("/proc/self/ns/pid").ok()?;
        let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
        let mut place = DefaultHasher::new();
        // With `hidepid` the processes of other users are invisible.
        (boot.trim(), namespace, user()?).hash(&mut place);
        Some(WorkerProcess { id: std::process::id(), started: stat_of(&stat)?.1, place: place.finish() })
    }

    /// The process of the worker with this name.
    fn named(worker: &str) -> Option<Self> {
        let mut parts = worker.strip_prefix("process-")?.split('-');
        let id = parts.next()?.parse().ok()?;
        let started = parts.next()?.parse().ok()?;
        let place = u64::from_str_radix(parts.next().filter(|place| place.len() == 16)?, 16).ok()?;
        parts.next().map(|_| WorkerProcess { id, started, place })
    }

    /// Whether it is dead, by the `/proc` entry of its id. An unreadable entry is inconclusive.
    fn is_gone(&self, stat: &io::Result<String>) -> bool {
        match stat {
            Err(error) => error.kind() == ErrorKind::NotFound,
            // A zombie only waits for its parent.
            Ok(stat) => stat_of(stat)
                .is_some_and(|(state, started)| matches!(state, 'Z' | 'X') || started != self.started),
        }
    }
}

impl fmt::Display for WorkerProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process-{}-{}-{:016x}", self.id, self.started, self.place)
    }
}

#[cfg(unix)]
fn user() -> Option<u32> {
    use std::os::unix::fs::MetadataExt as _;
    Some(std::fs::metadata("/proc/self").ok()?.uid())
}

#[cfg(not(unix))]
fn user() -> Option<u32> {
    None
}

/// The state of a process and its start time. The name before them may contain spaces and brackets.
fn stat_of(stat: &str) -> Option<(char, u64)> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    let state = fields.next()?.chars().next()?;
    // The state is the third field, the start time the twenty-second.
    Some((state, fields.nth(18)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str =
        "10348 (a (b) c) S 10341 10341 32426 0 -1 4194304 101 0 0 0 0 0 0 0 20 0 1 0 1407506 3133440 417";

    #[test]
    fn a_process_is_gone_when_its_id_is_free_or_was_given_again() {
        let process = WorkerProcess { id: 10_348, started: 1_407_506, place: 7 };
        let said = |stat: &str| process.is_gone(&Ok(stat.to_owned()));
        assert!(process.is_gone(&Err(ErrorKind::NotFound.into())));
        assert!(!process.is_gone(&Err(ErrorKind::PermissionDenied.into())));
        for alive in [STAT.to_owned(), STAT.replace(" S ", " T "), "what is this".to_owned()] {
            assert!(!said(&alive), "{alive}");
        }
        assert!(said(&STAT.replace(" S ", " Z ")));
        assert!(said(&STAT.replace("1407506", "1407507")));
    }

    #[test]
    fn a_name_says_which_process_it_is() {
        let process = WorkerProcess { id: 10_348, started: 1_407_506, place: 7 };
        assert_eq!(WorkerProcess::named(&format!("{process}-abc")), Some(process));
        for other in
            ["abc", "process-1-2", "process-1-2-7-abc", "process-1-abc", "process-x-2-0000000000000007-a"]
        {
            assert_eq!(WorkerProcess::named(other), None, "{other}");
        }
        assert!(!is_dead(&worker_name("abc")));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_process_that_ended_is_dead_and_one_elsewhere_is_not_known() {
        let this = WorkerProcess::this().unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let ended = WorkerProcess { id: child.id(), ..this.clone() };
        child.wait().unwrap();
        assert!(is_dead(&format!("{ended}-abc")));
        let elsewhere = WorkerProcess { place: !this.place, ..ended };
        assert!(!is_dead(&format!("{elsewhere}-abc")));
    }
}
