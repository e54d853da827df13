//! The changes between two states, for people and for events.

use std::fmt;

use serde_json::Value;

use super::schema::MESSAGES;
use super::state::State;
use super::value::{StoredValue, ValueContent, ValueRef};
use crate::chat::Transcript;

/// The changes from one state to a later one, by key, in key order.
///
/// # Examples
/// ```
/// use stepfold_state_core::state::{Schema, State};
///
/// let schema = Schema::builder().key::<Vec<i64>>("numbers").key::<String>("name").build()?;
/// let mut state = State::new(&schema);
/// state.set("numbers", vec![1])?;
/// let before = state.clone();
/// state.set("numbers", vec![2, 3])?;
/// state.set("name", "Ada")?;
/// assert_eq!(state.diff(&before).to_string(), "name: unset -> \"Ada\"\nnumbers: + [2,3] (3 items)\n");
/// # Ok::<(), stepfold_state_core::state::StateError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Diff(Vec<KeyChange>);

/// The change of one key.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct KeyChange {
    /// The key.
    pub key: String,
    /// The kind of change.
    pub change: ValueChange,
}

/// The kinds of changes of a value.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ValueChange {
    /// The key was unset.
    Added {
        /// Its value now.
        after: Value,
    },
    /// The key is now unset.
    Removed {
        /// Its value before.
        before: Value,
    },
    /// The value was replaced.
    Replaced {
        /// Its value before.
        before: Value,
        /// Its value now.
        after: Value,
    },
    /// Items were appended to a list.
    Appended {
        /// The number of items before.
        from: usize,
        /// The new items.
        items: Vec<Value>,
    },
    /// Messages were appended to the conversation.
    Messages {
        /// The number of messages before.
        from: usize,
        /// The new messages.
        messages: Transcript,
    },
}

impl Diff {
    pub(crate) fn between(earlier: &State, later: &State) -> Self {
        let mut changes = Vec::new();
        let mut note = |key: &str, change: Option<ValueChange>| {
            changes.extend(change.map(|change| KeyChange { key: key.to_owned(), change }));
        };
        for (key, before) in earlier.values() {
            note(key, value_change(before, later.values().get(key)));
        }
        for (key, after) in later.values() {
            if !earlier.values().contains_key(key) {
                note(key, Some(ValueChange::Added { after: after.view().to_json() }));
            }
        }
        note(MESSAGES, messages_change(earlier, later));
        changes.sort_by(|left, right| left.key.cmp(&right.key));
        Diff(changes)
    }

    /// The changes, in key order.
    pub fn iter(&self) -> std::slice::Iter<'_, KeyChange> {
        self.0.iter()
    }

    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'a> IntoIterator for &'a Diff {
    type Item = &'a KeyChange;
    type IntoIter = std::slice::Iter<'a, KeyChange>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

fn value_change(before: &StoredValue, after: Option<&StoredValue>) -> Option<ValueChange> {
    let Some(after) = after else {
        return Some(ValueChange::Removed { before: before.view().to_json() });
    };
    if before.ptr_eq(after) {
        return None;
    }
    if let (ValueContent::List(before), ValueContent::List(after)) = (&before.0, &after.0)
        && after.len() > before.len()
        // NOTE: Shared chunks decide in constant time; a loaded state shares none, and its items are compared.
        && (after.grew_from(before) || before.iter().eq(after.iter().take(before.len())))
    {
        let items = after.iter_from(before.len()).map(|item| (**item).clone()).collect();
        return Some(ValueChange::Appended { from: before.len(), items });
    }
    replaced(before.view(), after.view())
}

fn messages_change(earlier: &State, later: &State) -> Option<ValueChange> {
    let (before, after) = (earlier.messages(), later.messages());
    if before.ptr_eq(after) {
        return None;
    }
    if after.len() > before.len() && after.starts_with(before) {
        let messages = after.iter_from(before.len()).cloned().collect();
        return Some(ValueChange::Messages { from: before.len(), messages });
    }
    replaced(ValueRef::Messages(before), ValueRef::Messages(after))
}

fn replaced(before: ValueRef<'_>, after: ValueRef<'_>) -> Option<ValueChange> {
    (before != after).then(|| ValueChange::Replaced { before: before.to_json(), after: after.to_json() })
}

/// One line per change; new messages below it, in the notation of transcripts.
impl fmt::Display for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|change| writeln!(f, "{change}"))
    }
}

/// The line of a change, without a line break at the end; new messages below it.
impl fmt::Display for KeyChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KeyChange { key, change } = self;
        match change {
            ValueChange::Added { after } => write!(f, "{key}: unset -> {after}"),
            ValueChange::Removed { before } => write!(f, "{key}: {before} -> unset"),
            ValueChange::Replaced { before, after } => write!(f, "{key}: {before} -> {after}"),
            ValueChange::Appended { from, items } => {
                let total = from + items.len();
                write!(f, "{key}: + {} ({total} items)", ValueRef::from(&Value::from(items.clone())))
            }
            ValueChange::Messages { from, messages } => {
                write!(f, "{key}: + ({} messages)", from + messages.len())?;
                messages.to_string().lines().try_for_each(|line| write!(f, "\n  {line}"))
            }
        }
    }
}
