//! Redaction before storing: sensitive parts of all content are replaced before an event is made of it, so that no record,
//! digest, observer or subscriber has them.
//!
//! The answers to a run's needs are redacted, and the events follow from those: a run folds the events that are stored, and
//! a replay of them agrees. Originals exist in memory only, for the calls of the open step, and for the model if
//! it is [shown](ModelView) them.

mod answers;
mod content;
mod finders;
mod inputs;
mod originals;
mod rules;
mod stream;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub(crate) use self::answers::{redact_question, redacted_answer};
pub use self::content::ContentRedactor;
pub(crate) use self::originals::{KeptCall, KeptOriginals, Originals};
pub use self::rules::{Redaction, RedactionError, SensitiveData};
pub(crate) use self::stream::ReplyRedaction;

/// Finds the sensitive parts of texts: the rules of a [`Redaction`], or a program's own.
///
/// It must be pure: equal texts have equal parts, in every process, or a replay differs from its record. A replaced part
/// reads `[rule]`, and must not be found again.
///
/// # Examples
/// ```
/// use stepfold_agent_loop::{Redact, SensitivePart, redacted};
///
/// /// Finds the code name of a project.
/// struct CodeName;
///
/// impl Redact for CodeName {
///     fn find(&self, text: &str) -> Vec<SensitivePart> {
///         let found = text.match_indices("Bluebird");
///         found.map(|(at, name)| SensitivePart::new(at..at + name.len(), "project")).collect()
///     }
/// }
///
/// assert_eq!(redacted(&CodeName, "Bluebird is late"), "[project] is late");
/// ```
pub trait Redact: Send + Sync {
    /// The parts to replace: in order, on character boundaries, without overlaps.
    fn find(&self, text: &str) -> Vec<SensitivePart>;

    /// The start of the end of a text that more text may turn into a part, or into a longer one: so much of a streamed
    /// reply is held back. All of it by default, until the reply is complete.
    fn open_end(&self, text: &str) -> usize {
        let _ = text;
        0
    }
}

/// A part of a text that is replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SensitivePart {
    /// Its place, in bytes.
    pub range: Range<usize>,
    /// The name of the rule, which stands in its place.
    pub rule: String,
}

impl SensitivePart {
    /// A part that a rule has found.
    pub fn new(range: Range<usize>, rule: impl Into<String>) -> Self {
        SensitivePart { range, rule: rule.into() }
    }
}

/// A text with its sensitive parts replaced.
pub fn redacted(redact: &dyn Redact, text: &str) -> String {
    let mut shown = text.to_owned();
    ContentRedactor::new(redact).string(&mut shown);
    shown
}

/// The text in place of a part.
fn replacement(rule: &str) -> String {
    format!("[{rule}]")
}

/// The parts in order, those that overlap as one, which has the rule of the first.
fn merged(mut parts: Vec<SensitivePart>) -> Vec<SensitivePart> {
    parts.sort_by(|one, other| (one.range.start, other.range.end).cmp(&(other.range.start, one.range.end)));
    let mut merged: Vec<SensitivePart> = Vec::with_capacity(parts.len());
    for part in parts {
        match merged.last_mut() {
            Some(last) if part.range.start < last.range.end => {
                last.range.end = last.range.end.max(part.range.end);
            }
            _ => merged.push(part),
        }
    }
    merged
}

/// The note of an event in which something was replaced: the numbers of replaced parts, never the parts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RedactionNote {
    /// The number of replaced parts by rule.
    pub parts: BTreeMap<String, u64>,
    /// The places of calls of the open step whose arguments, or answers to their questions, were replaced. They run in the process
    /// that has the originals. After a restart they are answered as lost.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<usize>,
}

/// The view that the model has of the current run, where content was replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ModelView {
    /// It is shown the conversation as it is stored.
    #[default]
    Redacted,
    /// It is shown the messages of this run as they were, as long as the run stays in memory. After a restart, and in later runs
    /// of the session, it is shown them as they are stored.
    Keep,
}

/// The redaction of a run.
#[derive(Clone)]
pub(crate) struct RunRedaction {
    pub(crate) redact: Arc<dyn Redact>,
    pub(crate) view: ModelView,
}
