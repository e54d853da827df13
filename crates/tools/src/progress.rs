//! Progress reports of tools to observers: a bounded queue that never blocks a tool.
//!
//! A channel would allocate a block of memory for each invocation, and most invocations never report progress.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::sync::Notify;

/// A report, with the index of its call in the reply.
pub(crate) type ProgressReport = (usize, Value);

/// The maximum number of unread reports. Further ones are dropped: progress is not recorded.
pub(crate) const MAX_UNREAD_REPORTS: usize = 256;

/// The reports of one invocation.
#[derive(Default)]
pub(crate) struct ProgressQueue {
    reports: Mutex<VecDeque<ProgressReport>>,
    arrived: Notify,
}

impl ProgressQueue {
    /// Adds a report, unless the queue is full.
    pub(crate) fn push(&self, report: ProgressReport) {
        let mut reports = self.reports();
        if reports.len() < MAX_UNREAD_REPORTS {
            reports.push_back(report);
            self.arrived.notify_one();
        }
    }

    /// The next report, if there is one.
    pub(crate) fn pop(&self) -> Option<ProgressReport> {
        self.reports().pop_front()
    }

    /// Waits for the next report. Cancel-safe.
    pub(crate) async fn next(&self) -> ProgressReport {
        loop {
            // A tool that reports continuously must not starve the other tasks of the thread.
            tokio::task::coop::consume_budget().await;
            // A report that arrives between the check and the wait leaves a permit.
            if let Some(report) = self.pop() {
                return report;
            }
            self.arrived.notified().await;
        }
    }

    fn reports(&self) -> MutexGuard<'_, VecDeque<ProgressReport>> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn keeps_the_order_and_the_bound() {
        let progress = ProgressQueue::default();
        for number in 0..MAX_UNREAD_REPORTS + 10 {
            progress.push((number, json!(number)));
        }
        for number in 0..MAX_UNREAD_REPORTS {
            assert_eq!(progress.next().await.0, number);
        }
        assert!(progress.pop().is_none());
    }

    #[tokio::test]
    async fn wakes_whoever_waits() {
        let progress = ProgressQueue::default();
        let (report, ()) = tokio::join!(progress.next(), async {
            tokio::task::yield_now().await;
            progress.push((7, json!("half")));
        });
        assert_eq!(report, (7, json!("half")));
    }
}
