//! Rows as both databases store them: what a write changes, and the checksums of the result, decided without a database.

pub(crate) mod branches;
pub(crate) mod budgets;
pub(crate) mod chain;
pub(crate) mod erasure;
pub(crate) mod leftovers;
pub(crate) mod lineage;
mod open_erasure;
pub(crate) mod rewinds;
pub(crate) mod seal;
pub(crate) mod search;
pub(crate) mod shared;
pub(crate) mod sql;
pub(crate) mod values;
pub(crate) mod work;

/// The allowed changes to a store when it is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreAccess {
    /// A missing store is created.
    Create,
    /// It is written, and must exist.
    Write,
    /// It is read, and must exist.
    Read,
}
