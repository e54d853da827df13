//! Resolves the ids of approval requests on the command line.
//!
//! An id is a path and a digest: `pay#0/run#9f86d081884c7d65`. The path alone, or any prefix of the id, is accepted if it
//! matches only one request. Requests that were decided before count as well: otherwise a repeated `--approve publish`
//! would approve the next draft, unseen.

use stepfold::agent_loop::ApprovalRequest;
use stepfold::runner::RecordedDecision;

use crate::error::UsageError;

/// The hexadecimal digits of a digest.
const DIGITS: usize = 16;

/// Resolves ids among the requests of a session: the pending ones, and the decided ones, newest first.
pub(super) struct ApprovalIdResolver<'a> {
    pub(super) pending: &'a [ApprovalRequest],
    /// The pending ones that are asked again since their tool has changed: no one has seen them yet.
    pub(super) asked_again: &'a [&'a str],
    pub(super) decided: &'a [RecordedDecision],
    /// The idempotency key of the current decisions.
    pub(super) key: Option<&'a str>,
}

impl ApprovalIdResolver<'_> {
    /// Resolves a given text to the id of a request.
    pub(super) fn resolve(&self, given: &str) -> Result<String, UsageError> {
        if given.is_empty() {
            return Err(self.refused("invalid approval id ``: must not be empty"));
        }
        // NOTE: The first matcher with a match decides, so that a longer id cannot take the place of an exact one.
        let Some(matches) = matchers(given).iter().find(|matches| self.known().any(|id| matches(id, given)))
        else {
            // The whole id of a request that is asked again under another digest.
            if let Some(id) = self.asked_again.iter().find(|id| path(id) == path(given)) {
                return Err(self.unseen(given, id));
            }
            return Err(match self.pending {
                [] => UsageError(format!("unknown approval `{given}`: none is pending")),
                _ => self.refused(&format!("no pending approval with id `{given}`")),
            });
        };
        let pending: Vec<&str> = self.pending().filter(|id| matches(id, given)).collect();
        let decided: Vec<&RecordedDecision> =
            self.decided.iter().filter(|recorded| matches(&recorded.request, given)).collect();
        let is_repeat = |recorded: &&&RecordedDecision| {
            self.key.is_some() && recorded.idempotency_key.as_deref() == self.key
        };
        match (pending.as_slice(), decided.first(), decided.iter().find(is_repeat)) {
            // NOTE: A decided id is passed on: the session tells a repeat from a conflict, and reports who decided.
            (_, _, Some(recorded)) | ([], Some(recorded), _) => Ok(recorded.request.clone()),
            ([id], None, _) if *id != given && self.asked_again.contains(id) => Err(self.unseen(given, id)),
            ([id], None, _) => Ok((*id).to_owned()),
            (several, None, _) => {
                let several = several.join(", ");
                Err(UsageError(format!("ambiguous approval id `{given}`: it could be {several}")))
            }
            (_, Some(recorded), _) => {
                let words = format!(
                    "ambiguous approval id `{given}`: {} is decided already; give the whole id",
                    recorded.request
                );
                Err(self.refused(&words))
            }
        }
    }

    /// The refusal of a decision about a request that its approver cannot have seen.
    pub(super) fn unseen(&self, given: &str, id: &str) -> UsageError {
        let request = self.pending.iter().find(|request| request.id == id);
        let shown = request.map(ApprovalRequest::to_text).unwrap_or_default();
        UsageError(format!(
            "the tool has changed since the approval `{given}` was asked: it is asked again as {id}; decide by this id\n{shown}"
        ))
    }

    /// Splits `ID=TEXT`. A known id may contain `=`.
    pub(super) fn split<'p>(&self, pair: &'p str) -> (&'p str, Option<&'p str>) {
        let ends = |id: &&str| {
            pair.strip_prefix(id).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
                && !id.is_empty()
        };
        let known = self.known().flat_map(|id| [id, path(id)]).filter(ends).map(str::len).max();
        match known.or_else(|| pair.find('=')) {
            Some(end) => (&pair[..end], pair[end..].strip_prefix('=')),
            None => (pair, None),
        }
    }

    fn pending(&self) -> impl Iterator<Item = &str> {
        self.pending.iter().map(|request| request.id.as_str())
    }

    fn known(&self) -> impl Iterator<Item = &str> {
        self.pending().chain(self.decided.iter().map(|recorded| recorded.request.as_str()))
    }

    fn refused(&self, why: &str) -> UsageError {
        let pending: Vec<&str> = self.pending().collect();
        match pending.as_slice() {
            [] => UsageError(format!("{why}; none is pending")),
            pending => UsageError(format!("{why}; pending: {}", pending.join(", "))),
        }
    }
}

type IdMatcher = fn(&str, &str) -> bool;

/// The matchers of a text against ids, the strictest first. A whole id matches only itself, even if it is the prefix of
/// another one.
fn matchers(given: &str) -> &'static [IdMatcher] {
    const MATCHERS: [IdMatcher; 4] = [
        |id, given| id == given,
        |id, given| path(id) == given,
        |id, given| id.starts_with(given) && given.len() > path(id).len(),
        |id, given| path(id).starts_with(given),
    ];
    let digest = given.rsplit_once('#').map(|(_, digest)| digest);
    let is_digest = |text: &str| {
        text.len() == DIGITS && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    if digest.is_some_and(is_digest) { &MATCHERS[..1] } else { &MATCHERS }
}

/// An id without its digest.
fn path(id: &str) -> &str {
    id.rsplit_once('#').map_or(id, |(path, _)| path)
}
