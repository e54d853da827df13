//! Reads of sessions whose size is known before they are made: pages, indexes of writes, and comparisons.

pub(super) mod alignment;
pub(super) mod page_plan;
pub(super) mod write_index;
