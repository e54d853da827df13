//! The cases, by what they are about. Their names say what holds.

mod addressing;
mod appending;
mod changes;
mod claims;
mod creating;
mod handlers;
mod hostile;
mod inbox;
mod listing;
mod reading;
mod schemas;
mod shared;
mod versions;

use super::room::Case;

pub(super) fn all() -> impl Iterator<Item = &'static Case> {
    [
        creating::CASES,
        reading::CASES,
        appending::CASES,
        handlers::CASES,
        addressing::CASES,
        listing::CASES,
        versions::CASES,
        changes::CASES,
        shared::CASES,
        schemas::CASES,
        hostile::CASES,
    ]
    .into_iter()
    .flatten()
}

/// The cases of claims and inboxes, which a store may do without.
pub(super) fn of_claims() -> impl Iterator<Item = &'static Case> {
    [claims::CASES, inbox::CASES].into_iter().flatten()
}
