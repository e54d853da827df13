//! The form of the retention of an agent file, and the policy that it describes.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use stepfold::runner::RetentionPolicy;

use super::faults::FaultCollector;

/// The seconds of a day.
const DAY: u64 = 24 * 60 * 60;

/// Removes sessions, events and waiting messages by their age, in `serve`, in `work`, and by `stepfold retain`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RetentionForm {
    /// Sessions that nothing was written to for more than this number of days are deleted; with 0, each at the next pass.
    pub(crate) idle_days: Option<u32>,
    /// The number of newest events of each session that are kept. The conversation before them goes; the values of the state
    /// stay.
    pub(crate) events: Option<u64>,
    /// Events that are older than this number of days are deleted, with their part of the conversation; the values of the state
    /// stay.
    pub(crate) event_days: Option<u32>,
    /// Messages that wait for more than this number of days are withdrawn, except requests to cancel a run.
    pub(crate) message_days: Option<u32>,
    /// Include sessions with an unfinished run, which are left as they are by default, with their messages.
    pub(crate) include_waiting: bool,
}

impl RetentionForm {
    /// The policy; a fault if it keeps everything.
    pub(crate) fn policy(&self, faults: &mut FaultCollector) -> RetentionPolicy {
        let days = |days: u32| Duration::from_secs(u64::from(days) * DAY);
        let mut policy = RetentionPolicy::new();
        if let Some(idle) = self.idle_days {
            policy = policy.delete_idle_after(days(idle));
        }
        if let Some(events) = self.events {
            policy = policy.keep_events(events);
        }
        if let Some(age) = self.event_days {
            policy = policy.keep_events_for(days(age));
        }
        if let Some(age) = self.message_days {
            policy = policy.keep_messages_for(days(age));
        }
        if policy.is_empty() {
            let words = "missing rule: expected `idle_days`, `events`, `event_days` or `message_days`";
            faults.within(&["retention"], |faults| faults.add_to_whole(words));
        }
        if self.include_waiting { policy.include_waiting() } else { policy }
    }
}
