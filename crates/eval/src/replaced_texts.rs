//! Texts of a record in which parts were replaced, beside those of a candidate: its instructions, for example.
//!
//! A record holds the words of an agent in its beginning, and where a call of it was refused. A case holds them without what rules find,
//! and an unchanged agent still has the originals.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

use regex_lite::Regex;
use stepfold_agent_loop::{Agent, AgentChange, ChangeKind, Fingerprint};

use crate::run_redaction::RunRedaction;

/// The mark in place of a replaced part: `[email]` of a session, `[email 1]` of a case.
static MARK: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"\[[^\[\]\s]+(?: [0-9]+)?\]").ok());

/// The comparison of such texts.
pub(crate) struct ReplacedTexts<'a> {
    redaction: &'a RunRedaction,
    /// The changed parts of the agent whose words a record holds; `None` where the recorded agent is not known.
    changes: Option<Vec<AgentChange>>,
    /// Whether a text was found to be alike.
    has_alike: AtomicBool,
}

impl<'a> ReplacedTexts<'a> {
    pub(crate) fn of(recorded: Option<&Fingerprint>, agent: &Agent, redaction: &'a RunRedaction) -> Self {
        let has_words = |change: &AgentChange| {
            change.kind == ChangeKind::Changed
                && ["instructions", "output"].into_iter().any(|part| change.is_of_agent_part(part))
        };
        let changes = recorded.map(|recorded| {
            recorded.differences(agent.fingerprint()).into_iter().filter(has_words).collect()
        });
        ReplacedTexts { redaction, changes, has_alike: AtomicBool::new(false) }
    }

    /// Whether a recorded text is one of the candidate with parts replaced: by the rules of the experiment, or by others, if the agent
    /// has the words that it had.
    pub(crate) fn are_alike(&self, recorded: &str, made: &str) -> bool {
        let has_same_words = self.changes.as_ref().is_some_and(Vec::is_empty);
        let is_alike = self.redaction.are_alike(recorded, made)
            || has_same_words && (fits(recorded, made) || fits(recorded, &compact(made)));
        self.has_alike.fetch_or(is_alike, Ordering::Relaxed);
        is_alike
    }

    /// The change of the agent that replaced parts hide, in words.
    pub(crate) fn hidden_change(&self) -> Option<String> {
        let changes = self.changes.as_ref().filter(|changes| !changes.is_empty())?;
        let words = changes.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        self.has_alike
            .load(Ordering::Relaxed)
            .then(|| format!("{words}, in a part that is replaced in the record"))
    }
}

/// Whether a text is a recorded one with something else in place of its marks, if it has any.
fn fits(recorded: &str, made: &str) -> bool {
    let Some(mark) = &*MARK else { return false };
    let parts: Vec<&str> = mark.split(recorded).collect();
    let [first, between @ .., last] = &*parts else { return false };
    let Some(mut rest) = made.strip_prefix(first) else { return false };
    for part in between {
        match rest.find(part) {
            Some(place) => rest = &rest[place + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// A text that is JSON as a redaction writes it.
fn compact(text: &str) -> String {
    let value: Result<serde_json::Value, _> = serde_json::from_str(text);
    value.map_or_else(|_| text.to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn a_text_fits_around_marks() {
        for (recorded, made, expected) in [
            ("mail [email 1] or [key].", "mail ada@example.org or sk-1.", true),
            ("mail [email 1] or [key].", "mail ada@example.org or sk-1!", false),
            ("mail [email 1] or [key].", "mails ada@example.org or sk-1.", false),
            ("mail [email 1] and [key].", "mail ada@example.org or sk-1.", false),
            ("mail", "mail", false),
            ("[email]", "anything", true),
        ] {
            assert_eq!(fits(recorded, made), expected, "{recorded} {made}");
        }
    }
}
