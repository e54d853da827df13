//! The tags of a session's events. Few have any.

use hashbrown::HashMap;

use crate::event::Event;

/// The versions of the events with each tag, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct TagIndex(Option<Box<HashMap<String, Vec<u64>>>>);

impl TagIndex {
    /// Adds the event of a version, which is the newest.
    pub(super) fn insert(&mut self, event: &Event, version: u64) {
        for tag in &*event.effective_tags() {
            let versions = self.0.get_or_insert_default().entry_ref(tag).or_default();
            if versions.last() != Some(&version) {
                versions.push(version);
            }
        }
    }

    /// The versions of the events with a tag, newest first.
    pub(super) fn newest_first(&self, tag: &str) -> impl Iterator<Item = u64> {
        let versions = self.0.as_ref().and_then(|tags| tags.get(tag));
        versions.into_iter().flatten().rev().copied()
    }

    /// Forgets the events of all versions but these.
    pub(super) fn retain(&mut self, is_kept: impl Fn(u64) -> bool) {
        let Some(tags) = &mut self.0 else { return };
        tags.retain(|_, versions| {
            versions.retain(|version| is_kept(*version));
            !versions.is_empty()
        });
        if tags.is_empty() {
            self.0 = None;
        }
    }
}
