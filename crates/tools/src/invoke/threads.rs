//! The threads of blocking tools, and a pool with one thread per core for CPU-bound ones.
//!
//! Threads of blocking tools belong to the process, not to a runtime: a runtime would wait for a hanging tool
//! at its end.

use std::any::Any;
use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rayon::{ThreadPool, ThreadPoolBuilder};

/// The maximum number of concurrent blocking tools in a process; further ones wait.
pub const MAX_BLOCKING_THREADS: usize = 256;

/// The time after which an idle thread ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) type ThreadJob = Box<dyn FnOnce() + Send>;

/// Runs the job on a thread for blocking work, when one is available.
pub(super) fn run_blocking(job: ThreadJob) -> Result<(), String> {
    BLOCKING_POOL
        .submit(job)
        .map_err(|error| format!("thread for blocking tools could not be started: {error}"))
}

/// Runs the job on a thread for CPU-bound work, when one is available.
pub(super) fn run_cpu_bound(job: ThreadJob) -> Result<(), String> {
    cpu_pool().map(|pool| pool.spawn(job))
}

// NOTE: Not tokio's blocking threads: a runtime waits for them at its end, and a tool may hang.
static BLOCKING_POOL: BlockingPool =
    BlockingPool { queue: Mutex::new(JobQueue::new()), wake: Condvar::new() };

/// Threads that are started on demand and end when idle.
struct BlockingPool {
    queue: Mutex<JobQueue>,
    wake: Condvar,
}

struct JobQueue {
    jobs: VecDeque<ThreadJob>,
    threads: usize,
    /// The number of idle threads. A woken thread counts until it takes a job.
    idle: usize,
}

impl JobQueue {
    const fn new() -> Self {
        JobQueue { jobs: VecDeque::new(), threads: 0, idle: 0 }
    }

    fn needs_thread(&self) -> bool {
        self.jobs.len() > self.idle && self.threads < MAX_BLOCKING_THREADS
    }
}

impl BlockingPool {
    fn submit(&'static self, job: ThreadJob) -> io::Result<()> {
        let mut queue = self.lock();
        queue.jobs.push_back(job);
        if queue.needs_thread() {
            let thread = std::thread::Builder::new().name("stepfold-tool-blocking".to_owned());
            match thread.spawn(move || self.work()) {
                Ok(_) => queue.threads += 1,
                // An existing thread will take the job.
                Err(error) if queue.threads > 0 => {
                    tracing::warn!(%error, "failed to start another thread for blocking tools");
                }
                Err(error) => {
                    queue.jobs.pop_back();
                    return Err(error);
                }
            }
        }
        self.wake.notify_one();
        Ok(())
    }

    fn work(&self) {
        while let Some(job) = self.next() {
            // NOTE: A panic must not end the thread, which is counted as running.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(job)) {
                log_late_panic(&*panic);
            }
        }
    }

    /// The next job; `None` after an idle timeout, when the thread is no longer counted.
    fn next(&self) -> Option<ThreadJob> {
        let mut queue = self.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                return Some(job);
            }
            queue.idle += 1;
            let (woken, waited) =
                self.wake.wait_timeout(queue, IDLE_TIMEOUT).unwrap_or_else(PoisonError::into_inner);
            queue = woken;
            queue.idle -= 1;
            if waited.timed_out() && queue.jobs.is_empty() {
                queue.threads -= 1;
                return None;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, JobQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The threads for CPU-bound tools, one per core, shared by all runs of the process.
fn cpu_pool() -> Result<&'static ThreadPool, String> {
    static POOL: OnceLock<Result<ThreadPool, String>> = OnceLock::new();
    POOL.get_or_init(|| {
        ThreadPoolBuilder::new()
            .thread_name(|index| format!("stepfold-tool-{index}"))
            // Panics are caught where the tool is called. A value that the tool left to be dropped may still
            // panic, which would otherwise abort the process.
            .panic_handler(|panic| log_late_panic(&*panic))
            .build()
            .map_err(|error| format!("threads for CPU-bound tools could not be started: {error}"))
    })
    .as_ref()
    .map_err(Clone::clone)
}

fn log_late_panic(panic: &(dyn Any + Send)) {
    tracing::error!(panic = panic_message(panic), "a tool on a thread panicked after its call");
}

/// The message of a panic, as `catch_unwind` gives it.
///
/// # Examples
/// ```
/// use stepfold_tools::panic_message;
///
/// let panic = std::panic::catch_unwind(|| panic!("no stalls")).unwrap_err();
/// assert_eq!(panic_message(&*panic), "no stalls");
/// ```
pub fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}
