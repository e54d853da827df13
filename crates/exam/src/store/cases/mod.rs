//! The cases by topic. Their names state the guarantee.

mod addressing;
mod appending;
mod branches;
mod budgets;
mod changes;
mod claims;
mod creating;
mod digests;
mod erasure;
mod handlers;
mod hostile;
mod inbox;
mod listing;
mod past;
mod reading;
mod scanning;
mod schemas;
mod searching;
mod shared;
mod versions;

use super::context::ContractCase;

pub(super) fn all() -> impl Iterator<Item = &'static ContractCase> {
    [
        creating::CASES,
        reading::CASES,
        appending::CASES,
        handlers::CASES,
        addressing::CASES,
        listing::CASES,
        versions::CASES,
        past::CASES,
        changes::CASES,
        shared::CASES,
        schemas::CASES,
        hostile::CASES,
        digests::CASES,
        searching::CASES,
        scanning::CASES,
    ]
    .into_iter()
    .flatten()
}

/// The cases of lists of forks and of labels, which a store may do without.
pub(super) fn of_branches() -> impl Iterator<Item = &'static ContractCase> {
    branches::CASES.iter()
}

/// The cases of budgets, which a store may do without.
pub(super) fn of_budgets() -> impl Iterator<Item = &'static ContractCase> {
    budgets::CASES.iter()
}

/// The cases of erasure, which a store may do without.
pub(super) fn of_erasure() -> impl Iterator<Item = &'static ContractCase> {
    erasure::CASES.iter()
}

/// The cases of claims and inboxes, which a store may do without.
pub(super) fn of_claims() -> impl Iterator<Item = &'static ContractCase> {
    [claims::CASES, inbox::CASES].into_iter().flatten()
}
