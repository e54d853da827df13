//! The threads of tools that are no futures: some that wait, and as many that compute as there are cores.
//!
//! Those that wait are the process's own, not a runtime's: a runtime that ends would wait for a tool that hangs.

use std::any::Any;
use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rayon::{ThreadPool, ThreadPoolBuilder};

/// So many blocking tools run at a time in a process; further ones wait for their turn.
pub const MAX_BLOCKING_THREADS: usize = 256;

/// For so long a thread waits for more work before it ends.
const IDLE: Duration = Duration::from_secs(10);

pub(super) type Job = Box<dyn FnOnce() + Send>;

/// Has the job run on a thread for work that waits, when there is one.
pub(super) fn wait_on_thread(job: Job) -> Result<(), String> {
    WAITING.submit(job).map_err(|error| format!("the threads for blocking tools cannot be started: {error}"))
}

/// Has the job run on a thread for work that computes, when there is one.
pub(super) fn compute_on_thread(job: Job) -> Result<(), String> {
    computing().map(|pool| pool.spawn(job))
}

static WAITING: Waiting = Waiting { queue: Mutex::new(Queue::new()), wake: Condvar::new() };

/// Threads that are started when they are needed and end when they are not.
struct Waiting {
    queue: Mutex<Queue>,
    wake: Condvar,
}

struct Queue {
    jobs: VecDeque<Job>,
    threads: usize,
    /// How many of the threads have nothing to do. One that was woken counts until it looks.
    idle: usize,
}

impl Queue {
    const fn new() -> Self {
        Queue { jobs: VecDeque::new(), threads: 0, idle: 0 }
    }

    fn needs_thread(&self) -> bool {
        self.jobs.len() > self.idle && self.threads < MAX_BLOCKING_THREADS
    }
}

impl Waiting {
    fn submit(&'static self, job: Job) -> io::Result<()> {
        let mut queue = self.lock();
        queue.jobs.push_back(job);
        if queue.needs_thread() {
            let thread = std::thread::Builder::new().name("stepfold-tool-blocking".to_owned());
            match thread.spawn(move || self.work()) {
                Ok(_) => queue.threads += 1,
                // Those that there are will come to it.
                Err(error) if queue.threads > 0 => {
                    tracing::warn!(%error, "no further thread for blocking tools");
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
            if let Err(panic) = catch_unwind(AssertUnwindSafe(job)) {
                tell_late_panic(&*panic);
            }
        }
    }

    /// The next job; none when none came for a while, and then the thread does not count any more.
    fn next(&self) -> Option<Job> {
        let mut queue = self.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                return Some(job);
            }
            queue.idle += 1;
            let (woken, waited) = self.wake.wait_timeout(queue, IDLE).unwrap_or_else(PoisonError::into_inner);
            queue = woken;
            queue.idle -= 1;
            if waited.timed_out() && queue.jobs.is_empty() {
                queue.threads -= 1;
                return None;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The threads for tools that compute, as many as there are cores, shared by all runs of the process.
fn computing() -> Result<&'static ThreadPool, String> {
    static POOL: OnceLock<Result<ThreadPool, String>> = OnceLock::new();
    POOL.get_or_init(|| {
        ThreadPoolBuilder::new()
            .thread_name(|index| format!("stepfold-tool-{index}"))
            // A panic is caught where the tool is called. What may still panic is what the tool left behind
            // for others to drop, and without this that would end the process.
            .panic_handler(|panic| tell_late_panic(&*panic))
            .build()
            .map_err(|error| format!("the threads for tools that compute cannot be started: {error}"))
    })
    .as_ref()
    .map_err(Clone::clone)
}

fn tell_late_panic(panic: &(dyn Any + Send)) {
    tracing::error!(panic = words_of_panic(panic), "a tool on a thread panicked late");
}

/// The message of a panic.
pub(super) fn words_of_panic(panic: &(dyn Any + Send)) -> String {
    let words = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    words.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}
