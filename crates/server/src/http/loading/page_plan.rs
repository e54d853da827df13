//! Limits the part of a session that is loaded at once: the bytes of commits are known before they are read, and bound a
//! page.

use serde_json::Value;
use stepfold_runner::{Runner, SessionHandle};
use stepfold_session_scopes::{
    ErrorKind, EventRange, EventSizes, SessionError, SessionKey, SessionStore as _, StateSize,
};

use crate::http::guard::limits::MemoryReservation;
use crate::http::guard::problem::Problem;
use crate::http::rows::row_builder::{self, BEFORE};

/// The stored bytes of a page; a commit that is larger is a page of its own.
pub(in crate::http) const PAGE_BYTES: u64 = 8 << 20;

/// Limits the stored bytes of a read that counts for no user, since all readers of a session share it.
pub(in crate::http) const SMALL_BYTES: u64 = 1 << 20;

/// The bytes of memory for a stored byte, until it is sent: the commit, its row, and the row as JSON.
// NOTE: An estimate: a factor can be checked before anything is read, an exact size cannot (docs/decisions/server.md).
const COPIES: usize = 5;

/// The commits of a page, and the bytes that it may have, where a store does not tell the sizes of events.
// NOTE: A store of an application may not tell sizes: then a page is short, and counted as large.
const UNKNOWN_PAGE: (usize, usize) = (16, 1 << 20);

/// A page of commits, before it is loaded.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::http) struct PagePlan {
    /// The range of the page, with the commits before it whose items its first commits mention.
    pub(in crate::http) range: EventRange,
    /// The number of its commits.
    pub(in crate::http) limit: usize,
    /// The memory that it takes.
    pub(in crate::http) weight: usize,
}

impl PagePlan {
    /// The commits after a version: at most a number, and of at most so many stored bytes, or one. What they take is held
    /// before they are looked at.
    pub(in crate::http) async fn after<E: From<SessionError>>(
        runner: &Runner,
        key: &SessionKey,
        (after, limit): (u64, usize),
        bytes: u64,
        hold: impl Fn(usize) -> Result<(), E>,
    ) -> Result<PagePlan, E> {
        let first = after.saturating_sub(BEFORE as u64);
        let before = usize::try_from(after - first).unwrap_or(BEFORE);
        let sizes = EventSizes::new(key.clone(), first, before.saturating_add(limit));
        let Some(stored) = supported(runner.store().event_sizes(sizes).await)? else {
            let limit = limit.min(UNKNOWN_PAGE.0);
            let page =
                PagePlan { range: row_builder::page(after, limit), limit, weight: UNKNOWN_PAGE.1 * COPIES };
            return hold(page.weight).map(|()| page);
        };
        let page = PagePlan::of(&stored, after, bytes);
        hold(page.weight)?;
        let EventRange::Page { after: first, limit } = page.range else { return Ok(page) };
        // Many small values take more than their text, so the store counts them.
        let sizes = EventSizes::new(key.clone(), first, limit).in_memory();
        let page = PagePlan::of(&runner.store().event_sizes(sizes).await?, after, bytes);
        hold(page.weight).map(|()| page)
    }

    /// The same without the commits before the page, and of few stored bytes.
    pub(in crate::http) async fn just_after(
        runner: &Runner,
        key: &SessionKey,
        (after, limit): (u64, usize),
    ) -> Result<PagePlan, SessionError> {
        let sizes = EventSizes::new(key.clone(), after, limit);
        let page = supported(runner.store().event_sizes(sizes).await)?
            .map(|sizes| PagePlan::of(&sizes, after, SMALL_BYTES));
        Ok(page.unwrap_or_else(|| {
            let limit = limit.min(UNKNOWN_PAGE.0);
            PagePlan { range: EventRange::Page { after, limit }, limit, weight: UNKNOWN_PAGE.1 * COPIES }
        }))
    }

    fn of(sizes: &[(u64, u64)], after: u64, bytes: u64) -> PagePlan {
        let (before, page) = sizes.split_at(sizes.partition_point(|(version, _)| *version <= after));
        let (limit, of_page) = fitting_prefix(page.iter(), bytes);
        // One at least.
        let (limit, of_page) = match (limit, page.first()) {
            // NOTE: A page without commits would be the end for a client, and a large commit could never be read.
            (0, Some((_, size))) => (1, *size),
            _ => (limit, of_page),
        };
        let (count, of_before) = fitting_prefix(before.iter().rev(), bytes);
        let first = before.get(before.len() - count).map_or(after, |(version, _)| version.saturating_sub(1));
        PagePlan {
            range: EventRange::Page { after: first, limit: count + limit },
            limit,
            weight: weight(of_page.saturating_add(of_before)),
        }
    }
}

/// The newest commits up to a version: at most a number, and of few stored bytes, which suffice to name items.
pub(in crate::http) async fn newest(
    runner: &Runner,
    key: &SessionKey,
    (version, limit): (u64, usize),
) -> EventRange {
    let first = version.saturating_sub(limit as u64);
    if let Ok(sizes) = runner.store().event_sizes(EventSizes::new(key.clone(), first, limit)).await {
        return PagePlan::of(&sizes, version, SMALL_BYTES).range;
    }
    // The read itself reports a failure of the store.
    let limit = limit.min(UNKNOWN_PAGE.0);
    EventRange::Page { after: version.saturating_sub(limit as u64), limit }
}

/// The answer of a store that supports the request.
fn supported<T>(told: Result<T, SessionError>) -> Result<Option<T>, SessionError> {
    match told {
        Err(error) if error.kind() == ErrorKind::Unsupported => Ok(None),
        told => told.map(Some),
    }
}

/// The number of leading sizes that fit, and their sum.
fn fitting_prefix<'a>(sizes: impl Iterator<Item = &'a (u64, u64)>, bytes: u64) -> (usize, u64) {
    let (mut count, mut sum) = (0, 0_u64);
    for (_, size) in sizes {
        if sum.saturating_add(*size) > bytes {
            break;
        }
        (count, sum) = (count + 1, sum + size);
    }
    (count, sum)
}

/// The memory that stored bytes take.
fn weight(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX).saturating_mul(COPIES)
}

/// The memory that a value takes until it is sent.
pub(in crate::http) fn weight_of_value(value: &Value) -> usize {
    /// A value in a tree, and its text.
    const NODE: usize = 96;
    match value {
        Value::String(text) => NODE + 2 * text.len(),
        Value::Array(items) => NODE + items.iter().map(weight_of_value).sum::<usize>(),
        Value::Object(fields) => {
            let field = |(name, value): (&String, &Value)| NODE + 2 * name.len() + weight_of_value(value);
            NODE + fields.iter().map(field).sum::<usize>()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => NODE,
    }
}

/// Takes the memory of a whole session: its commits, and its values.
pub(in crate::http) async fn reserve_whole(
    memory: &MemoryReservation,
    runner: &Runner,
    key: &SessionKey,
) -> Result<(), Problem> {
    reserve_commits(memory, runner, key, (0, usize::MAX)).await?;
    reserve_state(memory, runner, key, None).await.map(drop)
}

/// Takes the memory of the commits after a version, up to a number.
pub(in crate::http) async fn reserve_commits(
    memory: &MemoryReservation,
    runner: &Runner,
    key: &SessionKey,
    (after, limit): (u64, usize),
) -> Result<(), Problem> {
    CommitSizes::after(runner, key, (after, limit)).await?.reserve(memory, runner).await
}

/// Commits of a session, before they are loaded.
pub(in crate::http) struct CommitSizes {
    sizes: EventSizes,
    /// Their stored bytes, if the store tells them.
    stored: Option<u64>,
}

impl CommitSizes {
    /// The commits after a version, up to a number.
    pub(in crate::http) async fn after(
        runner: &Runner,
        key: &SessionKey,
        (after, limit): (u64, usize),
    ) -> Result<Self, SessionError> {
        let sizes = EventSizes::new(key.clone(), after, limit);
        let stored = supported(runner.store().event_sizes(sizes.clone()).await)?;
        Ok(CommitSizes { sizes, stored: stored.map(|sizes| sum(&sizes)) })
    }

    /// Whether they have few stored bytes, as far as the store tells them.
    pub(in crate::http) fn are_small(&self) -> bool {
        self.stored.is_none_or(|stored| stored <= SMALL_BYTES)
    }

    /// Takes their memory.
    pub(in crate::http) async fn reserve(
        self,
        memory: &MemoryReservation,
        runner: &Runner,
    ) -> Result<(), Problem> {
        let Some(stored) = self.stored else { return memory.grow(UNKNOWN_PAGE.1 * COPIES) };
        let before = memory.size();
        memory.grow(weight(stored))?;
        // Many small values take more than their text, so the store counts them.
        let in_memory = runner.store().event_sizes(self.sizes.in_memory()).await?;
        memory.resize(before.saturating_add(weight(sum(&in_memory))))
    }
}

/// The commits of several sessions that are read at once.
pub(in crate::http) struct CommitBudget {
    /// The bytes that the commits of one read may have.
    pub(in crate::http) bytes: u64,
    /// Held until they are described.
    _held: MemoryReservation,
}

impl CommitBudget {
    /// Takes memory for two reads of commits that have at most so many bytes; `None` if there is not enough.
    pub(in crate::http) fn reserve(memory: &MemoryReservation, bytes: u64) -> Option<Self> {
        let bytes = bytes.min((memory.limit() / COPIES / 4) as u64);
        let held = memory.new_empty();
        held.grow(weight(bytes.saturating_mul(2))).ok()?;
        Some(CommitBudget { bytes, _held: held })
    }
}

/// The bytes of commits by their sizes.
fn sum(sizes: &[(u64, u64)]) -> u64 {
    sizes.iter().map(|(_, size)| size).sum()
}

/// Takes the memory of the newest commit.
pub(in crate::http) async fn reserve_newest(
    memory: &MemoryReservation,
    runner: &Runner,
    session: &SessionHandle,
) -> Result<(), Problem> {
    let version = session.read_events(EventRange::None).await?.version;
    reserve_commits(memory, runner, session.key(), (version.saturating_sub(1), 1)).await
}

/// Takes the memory of the values at a version, or the newest ones; whether the store has told it.
pub(in crate::http) async fn reserve_state(
    memory: &MemoryReservation,
    runner: &Runner,
    key: &SessionKey,
    version: Option<u64>,
) -> Result<bool, Problem> {
    let most = (memory.limit() / COPIES) as u64;
    match supported(runner.store().state_size(StateSize::new(key.clone(), version, most)).await)? {
        Some(size) => memory.grow(weight(size)).map(|()| true),
        None => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_what_fits_and_one_at_least() {
        let sizes = |sizes: &[u64]| (1..).zip(sizes.iter().copied()).collect::<Vec<(u64, u64)>>();
        let page = |sizes: &[(u64, u64)], after| {
            let PagePlan { range, limit, weight } = PagePlan::of(sizes, after, 10);
            let EventRange::Page { after, limit: all } = range else { panic!("{range:?}") };
            (after, all, limit, weight / COPIES)
        };
        let all = sizes(&[4, 6, 1, 11, 3, 3, 3, 3]);
        assert_eq!(page(&all, 0), (0, 2, 2, 10));
        // With those before it that fit.
        assert_eq!(page(&all, 2), (0, 3, 1, 11));
        // A commit that does not fit is a page of its own.
        assert_eq!(page(&all, 3), (1, 3, 1, 18));
        // One before it that does not fit is left out.
        assert_eq!(page(&all, 4), (4, 3, 3, 9));
        assert_eq!(page(&all, 7), (4, 4, 1, 12));
        assert_eq!(page(&all, 8), (5, 3, 0, 9));
        assert_eq!(page(&[], 3), (3, 0, 0, 0));
        // Retention has deleted the first ones.
        assert_eq!(page(&all[4..], 2), (2, 3, 3, 9));
    }
}
