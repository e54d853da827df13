//! The mark of imported commits, with the name of their importer: a file may claim authors and decisions that never
//! existed here.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use stepfold_runner::{SessionHandle, is_unfinished};
use stepfold_session_scopes::{CommittedEvent, Event, EventRange, Metadata, Timestamp};

use crate::http::guard::auth::{Principal, Role};
use crate::http::guard::problem::Problem;

/// The metadata of commits that came with a file.
const IMPORTED: &str = "imported";

/// The mark of an imported session. Its first commits are those of the file, with the authors and decisions that it names.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(in crate::http) struct ImportedRow {
    /// The name of the principal.
    pub(in crate::http) by: String,
    /// When (RFC 3339).
    pub(in crate::http) at: String,
    /// The newest version that came with the file.
    pub(in crate::http) version: u64,
}

impl ImportedRow {
    /// The mark of a session with these commits from its beginning; `None` if it was not imported.
    pub(in crate::http) fn of(first: &[CommittedEvent]) -> Option<Self> {
        first.first()?.event.metadata.read(IMPORTED)
    }

    /// The mark of a session.
    pub(in crate::http) async fn read(session: &SessionHandle) -> Result<Option<Self>, Problem> {
        Ok(ImportedRow::of(&session.read_events(EventRange::Page { after: 0, limit: 1 }).await?.events))
    }
}

/// The events of a file, marked. A mark that the file has itself is replaced.
pub(in crate::http) fn marked(events: Vec<Event>, principal: &Principal, now: Timestamp) -> Vec<Arc<Event>> {
    let version = events.len() as u64;
    let row = ImportedRow { by: principal.name().to_owned(), at: now.to_string(), version };
    // Strings and a number always have a text.
    let mark: Arc<RawValue> = to_raw_value(&row).unwrap_or_else(|_| RawValue::NULL.to_owned()).into();
    // NOTE: The mark is with each commit, not with the session: a fork keeps it, and retention cannot take it from the
    // commits that are left (docs/decisions/server.md).
    let marked = |event: Event| Arc::new(event.with_shared_metadata(IMPORTED, Arc::clone(&mark)));
    events.into_iter().map(marked).collect()
}

/// An event as it was in its file: the next import marks it again.
pub(in crate::http) fn unmarked(event: &Event) -> Event {
    let mut event = event.clone();
    if event.metadata.contains(IMPORTED) {
        let kept = event.metadata.iter().filter(|(name, _)| *name != IMPORTED);
        let kept = kept.filter_map(|(name, text)| Some((name.to_owned(), serde_json::from_str(text).ok()?)));
        event.metadata = kept.collect::<Metadata>();
    }
    event
}

/// Refuses to continue a run of a file, for all but administrators. It would call tools that no model has called, with
/// decisions that no person has made and hooks that were never asked.
pub(in crate::http) fn check_newest(
    principal: &Principal,
    newest: Option<&CommittedEvent>,
    what: &str,
) -> Result<(), Problem> {
    // NOTE: The rule is about the run, not about parts of its record: a run that continues calls tools with recorded
    // decisions and hooks, all of which a file can forge (docs/decisions/server.md).
    let is_open =
        newest.is_some_and(|newest| newest.event.metadata.contains(IMPORTED) && is_unfinished(&newest.event));
    match is_open && !principal.may(Role::Administer) {
        true => Err(Problem::open_import(what)),
        false => Ok(()),
    }
}
