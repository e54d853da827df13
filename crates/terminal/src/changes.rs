//! Shows changes of the state, a line for each key.

use std::borrow::Cow;

use serde_json::Value;
use stepfold_state_core::state::{KeyChange, State, ValueChange};

use crate::brief::brief;
use crate::text::{StyledText, TextStyle};

/// The characters before the first difference of two texts.
const CONTEXT: usize = 10;

/// The changes from one state to another, without the conversation, in lines of at most `width` columns.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_state_core::state::{Handler, Schema, State};
/// use stepfold_terminal::changes;
///
/// let schema = Schema::builder().key_schema("app:queries", json!("integer")).handler(Handler::sum()).default(3).build()?;
/// let before = State::new(&schema);
/// let mut now = before.clone();
/// now.set("app:queries", 1)?;
/// let lines = changes(&now, &before, 60);
/// assert_eq!(lines[0].to_plain(), "  ~ app:queries 3 -> 4");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn changes(now: &State, before: &State, width: usize) -> Vec<StyledText> {
    let mut now = now.clone();
    // Messages are shown by the view, not as changes.
    now.replace_messages(before.messages().clone());
    now.diff(before).iter().map(|change| change_line(change, width)).collect()
}

/// One change in a line of at most `width` columns.
pub fn change_line(KeyChange { key, change, .. }: &KeyChange, width: usize) -> StyledText {
    let line = StyledText::new(TextStyle::DIM, "  ~ ").with(TextStyle::KEY, key);
    let room = width.saturating_sub(line.width() + 1);
    let pair = |before: String, after: String| {
        line.clone().with(TextStyle::DIM, format!(" {before} -> ")).and(&after)
    };
    let half = room.saturating_sub(4) / 2;
    match change {
        ValueChange::Added { after } => pair("unset".to_owned(), brief(after, room.saturating_sub(9))),
        ValueChange::Removed { before } => pair(brief(before, room.saturating_sub(9)), "unset".to_owned()),
        ValueChange::Replaced { before, after } => {
            let (before, after) = from_difference(before, after, half);
            let before = brief(&before, half);
            let left = room.saturating_sub(4 + StyledText::from(&before).width());
            pair(before, brief(&after, left))
        }
        ValueChange::Appended { from, items } => {
            let total = format!(" ({} items)", from + items.len());
            let items = Value::from(items.clone());
            let items = brief(&items, room.saturating_sub(2 + total.len()));
            line.with(TextStyle::DIM, " + ").and(&items).with(TextStyle::DIM, &total)
        }
        _ => line,
    }
}

/// Cuts the common beginning of two long texts, so that their difference fits in the line.
fn from_difference<'a>(
    before: &'a Value,
    after: &'a Value,
    width: usize,
) -> (Cow<'a, Value>, Cow<'a, Value>) {
    let (Value::String(left), Value::String(right)) = (before, after) else {
        return (Cow::Borrowed(before), Cow::Borrowed(after));
    };
    let common = left.chars().zip(right.chars()).take_while(|(left, right)| left == right).count();
    if common <= CONTEXT || left.chars().count().max(right.chars().count()) + 2 <= width {
        return (Cow::Borrowed(before), Cow::Borrowed(after));
    }
    let rest = |text: &str| {
        let rest: String = text.chars().skip(common - CONTEXT).collect();
        Cow::Owned(Value::String(format!("…{rest}")))
    };
    (rest(left), rest(right))
}
