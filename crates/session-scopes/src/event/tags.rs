//! The tags of events: names under which an index finds them.

use std::borrow::Cow;

use serde::Deserialize;

use super::types::Event;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
use crate::keys::sealer::{is_sealed, sealed_tags};

/// The length of a tag's digest in an index, in bytes.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) const TAG_BYTES: usize = 16;

/// The digest of a tag, as indexes have it: of one length, whatever characters the tag has.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) type TagDigest = [u8; TAG_BYTES];

/// The digest of a tag.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) fn tag_digest(tag: &str) -> TagDigest {
    let mut digest = TagDigest::default();
    // NOTE: 128 bits: a collision is so unlikely that a hit is not compared with the tag itself.
    digest.copy_from_slice(&blake3::hash(tag.as_bytes()).as_bytes()[..TAG_BYTES]);
    digest
}

impl Event {
    /// The tags that the event is found by: its own, or those that it would have today.
    pub(crate) fn effective_tags(&self) -> Cow<'_, [String]> {
        match self.tags() {
            [] => implied_tags(self).unwrap_or_default().into(),
            tags => tags.into(),
        }
    }

    /// The digests of the tags that the event is found by, each once.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn tag_digests(&self) -> Vec<TagDigest> {
        let mut digests: Vec<TagDigest> = self.effective_tags().iter().map(|tag| tag_digest(tag)).collect();
        digests.sort_unstable();
        digests.dedup();
        digests
    }
}

/// The digests of the tags of a stored event. Those of most are found out without reading it.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) fn tags_of_body(id: &str, at: crate::time::Timestamp, body: &str) -> Vec<TagDigest> {
    if is_sealed(body) {
        return sealed_tags(body);
    }
    // NOTE: a search of the text is much cheaper than parsing, and few events have tags.
    if !MARKS.iter().any(|mark| body.contains(mark)) {
        return Vec::new();
    }
    let event = crate::ids::EventId::new(id).and_then(|id| Event::from_body(id, at, body));
    event.map(|event| event.tag_digests()).unwrap_or_default()
}

/// Marks of events with tags: each body contains one. The field, or a kind that had tags before the field existed.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) const MARKS: [&str; 4] =
    [r#""tags":["#, r#""kind":"decided""#, r#""kind":"edited""#, r#""kind":"state""#];

/// The part of the records of runs, in format 1, that contains the keys by which they are found.
#[derive(Deserialize)]
struct RunRecordKeys {
    kind: RunRecordKind,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum RunRecordKind {
    Decided {
        decisions: Vec<(String, serde::de::IgnoredAny)>,
        #[serde(default)]
        idempotency_key: Option<String>,
    },
    Edited {
        #[serde(default)]
        idempotency_key: Option<String>,
    },
}

/// The metadata of an edit between runs.
#[derive(Deserialize)]
struct StoredEditKey {
    #[serde(default)]
    idempotency_key: Option<String>,
}

/// The tags that the runner would give an event that was stored before events had tags. This never changes.
fn implied_tags(event: &Event) -> Option<Vec<String>> {
    let edited = |key: String| format!("edit {key}");
    match event.kind.as_str() {
        "decided" | "edited" => match event.record.as_ref()?.read::<RunRecordKeys>().ok()?.kind {
            RunRecordKind::Decided { decisions, idempotency_key } => {
                let key = idempotency_key.map(|key| format!("decision {key}"));
                let requests = decisions.into_iter().map(|(request, _)| format!("request {request}"));
                Some(key.into_iter().chain(requests).collect())
            }
            RunRecordKind::Edited { idempotency_key } => {
                Some(idempotency_key.map(edited).into_iter().collect())
            }
        },
        "state" if event.record.is_none() => {
            let about: StoredEditKey = event.metadata.read("edit")?;
            Some(about.idempotency_key.map(edited).into_iter().collect())
        }
        _ => None,
    }
}
