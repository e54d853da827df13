//! The limits of requests and reports that go through Restate, far below the limit of a message (32 MiB).
//!
//! A message above that limit is retried for ever, so a size is refused or cut here, and said.

use std::ops::Deref;

use serde::{Deserialize, Serialize};
use stepfold_runner::{RunReport, RunStatus};

/// The maximum size of a request, in bytes of JSON: 1 MiB.
pub const MAX_REQUEST_BYTES: usize = 1 << 20;

/// The maximum size of each part of a reply, in bytes: 64 KiB for the text, the same for the output and the requests as
/// JSON. Everything is in the session, at the version of the report.
pub const MAX_PART_BYTES: usize = 64 << 10;

/// The [`RunReport`] of a run, as it goes through Restate: its large parts are missing.
///
/// It dereferences to the report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RemoteReport {
    /// The report.
    #[serde(flatten)]
    pub report: RunReport,
    /// The names of the parts that are larger than [`MAX_PART_BYTES`]: of `text`, only the beginning is there; of `output`
    /// and of the requests in `status`, nothing is. The session has them, at the version of the report.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub truncated: Vec<String>,
}

impl Deref for RemoteReport {
    type Target = RunReport;

    fn deref(&self) -> &RunReport {
        &self.report
    }
}

impl From<RunReport> for RemoteReport {
    fn from(mut report: RunReport) -> Self {
        let mut truncated = Vec::new();
        if report.text.len() > MAX_PART_BYTES {
            let end = (0..=MAX_PART_BYTES).rfind(|place| report.text.is_char_boundary(*place));
            report.text.truncate(end.unwrap_or_default());
            truncated.push("text".to_owned());
        }
        if report.output.as_ref().is_some_and(is_large) {
            report.output = None;
            truncated.push("output".to_owned());
        }
        if let RunStatus::Waiting(requests) = &mut report.status
            && is_large(requests)
        {
            requests.clear();
            truncated.push("status".to_owned());
        }
        RemoteReport { report, truncated }
    }
}

fn is_large(part: &impl Serialize) -> bool {
    serde_json::to_vec(part).is_ok_and(|json| json.len() > MAX_PART_BYTES)
}
