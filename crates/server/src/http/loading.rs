//! How much of a session is loaded at once: pages are bounded by the bytes of their commits, which are known before they are read.

use serde_json::Value;
use stepfold_runner::Runner;
use stepfold_session_scopes::{
    ErrorKind, EventRange, EventSizes, SessionError, SessionKey, SessionStore as _,
};

use super::steps::{self, BEFORE};

/// The stored bytes of a page; a commit that is larger is a page of its own.
pub(super) const PAGE_BYTES: u64 = 8 << 20;

/// The stored bytes of what is read without an account: for what all readers of a session share.
const SMALL_BYTES: u64 = 1 << 20;

/// What a stored byte takes in memory until it is sent: the commit, its row, and the row as JSON.
const COPIES: usize = 5;

/// The commits of a page, and the bytes that it may have, where a store does not tell the sizes of events.
const UNKNOWN: (usize, usize) = (16, 1 << 20);

/// A page of commits, before it is loaded.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Page {
    /// With the commits before it that name what its first ones mention.
    pub(super) range: EventRange,
    /// The number of its commits.
    pub(super) limit: usize,
    /// The memory that it takes.
    pub(super) weight: usize,
}

impl Page {
    /// The commits after a version: at most a number, and of at most so many stored bytes, or one.
    pub(super) async fn after(
        runner: &Runner,
        key: &SessionKey,
        (after, limit): (u64, usize),
        bytes: u64,
    ) -> Result<Page, SessionError> {
        let first = after.saturating_sub(BEFORE as u64);
        let before = usize::try_from(after - first).unwrap_or(BEFORE);
        let sizes = EventSizes::new(key.clone(), first, before.saturating_add(limit));
        match runner.store().event_sizes(sizes).await {
            Ok(sizes) => Ok(Page::of(&sizes, after, bytes)),
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                let limit = limit.min(UNKNOWN.0);
                Ok(Page { range: steps::page(after, limit), limit, weight: UNKNOWN.1 * COPIES })
            }
            Err(error) => Err(error),
        }
    }

    /// The same without those before them.
    pub(super) async fn just_after(
        runner: &Runner,
        key: &SessionKey,
        (after, limit): (u64, usize),
    ) -> Result<Page, SessionError> {
        match runner.store().event_sizes(EventSizes::new(key.clone(), after, limit)).await {
            Ok(sizes) => Ok(Page::of(&sizes, after, SMALL_BYTES)),
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                let limit = limit.min(UNKNOWN.0);
                Ok(Page { range: EventRange::Page { after, limit }, limit, weight: UNKNOWN.1 * COPIES })
            }
            Err(error) => Err(error),
        }
    }

    fn of(sizes: &[(u64, u64)], after: u64, bytes: u64) -> Page {
        let (before, page) = sizes.split_at(sizes.partition_point(|(version, _)| *version <= after));
        let (limit, of_page) = fitting(page.iter(), bytes);
        // One at least.
        let (limit, of_page) = match (limit, page.first()) {
            (0, Some((_, size))) => (1, *size),
            _ => (limit, of_page),
        };
        let (count, of_before) = fitting(before.iter().rev(), bytes);
        let first = before.get(before.len() - count).map_or(after, |(version, _)| version.saturating_sub(1));
        Page {
            range: EventRange::Page { after: first, limit: count + limit },
            limit,
            weight: weight(of_page.saturating_add(of_before)),
        }
    }
}

/// The newest commits up to a version: at most a number, and of few stored bytes. What names others is rarely large.
pub(super) async fn newest(runner: &Runner, key: &SessionKey, (version, limit): (u64, usize)) -> EventRange {
    let first = version.saturating_sub(limit as u64);
    if let Ok(sizes) = runner.store().event_sizes(EventSizes::new(key.clone(), first, limit)).await {
        return Page::of(&sizes, version, SMALL_BYTES).range;
    }
    // What is wrong with the store is told by the read.
    let limit = limit.min(UNKNOWN.0);
    EventRange::Page { after: version.saturating_sub(limit as u64), limit }
}

/// How many of these sizes fit, and their sum.
fn fitting<'a>(sizes: impl Iterator<Item = &'a (u64, u64)>, bytes: u64) -> (usize, u64) {
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
pub(super) fn weight_of_value(value: &Value) -> usize {
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

/// The memory that a whole session takes, or its commits after a version.
pub(super) async fn weight_after(
    runner: &Runner,
    key: &SessionKey,
    after: u64,
) -> Result<usize, SessionError> {
    weight_of(runner, key, (after, usize::MAX)).await
}

/// The memory that the commits after a version take, up to a number.
pub(super) async fn weight_of(
    runner: &Runner,
    key: &SessionKey,
    (after, limit): (u64, usize),
) -> Result<usize, SessionError> {
    match runner.store().event_sizes(EventSizes::new(key.clone(), after, limit)).await {
        Ok(sizes) => Ok(weight(sizes.iter().map(|(_, size)| size).sum())),
        Err(error) if error.kind() == ErrorKind::Unsupported => Ok(UNKNOWN.1 * COPIES),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_what_fits_and_one_at_least() {
        let sizes = |sizes: &[u64]| (1..).zip(sizes.iter().copied()).collect::<Vec<(u64, u64)>>();
        let page = |sizes: &[(u64, u64)], after| {
            let Page { range, limit, weight } = Page::of(sizes, after, 10);
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
