//! The cases, by what they are about. Their names say what holds.

mod addressing;
mod appending;
mod changes;
mod creating;
mod handlers;
mod hostile;
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
