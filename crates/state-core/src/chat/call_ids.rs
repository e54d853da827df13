//! Unique call ids: models omit and repeat ids, and everything about a call (its marker, key, result,
//! approval) refers to its id.

use std::collections::HashSet;

use super::{Content, Message, ToolCall};

/// Returns the reply with a unique id for each of its calls: its own id if possible, otherwise a fresh one.
/// The rest of the message is unchanged.
///
/// An id is replaced if it is blank, repeated within the reply, or `taken`, for instance by an earlier reply
/// of the conversation. Fresh ids are made from the old id and the number of the call in the conversation,
/// counted from `earlier`, so the same reply at the same point always gets the same ids. Call it once, when
/// the reply arrives and before anything is stored.
///
/// The cost per call does not depend on `earlier`, even if a server sends no ids or always the same one: the
/// number is free unless the server uses that id. In that case the search step doubles.
///
/// `taken` must return false for some id; otherwise the search does not end.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_state_core::chat::{Message, ToolCall, with_unique_call_ids};
///
/// let reply = Message::assistant("I look up both.")
///     .with_part(ToolCall::new("", "search", json!({"q": "stalls"})))
///     .with_part(ToolCall::new("c1", "fetch", json!({"id": 7})))
///     .with_part(ToolCall::new("c1", "fetch", json!({"id": 8})));
/// let reply = with_unique_call_ids(reply, 0, |_| false);
/// let ids: Vec<&str> = reply.tool_calls().map(|call| call.id.as_str()).collect();
/// assert_eq!(ids, ["call-1", "c1", "c1-3"]);
/// ```
pub fn with_unique_call_ids(reply: Message, earlier: usize, taken: impl Fn(&str) -> bool) -> Message {
    // NOTE: In most replies the ids are unique already: the message is returned without a copy.
    let Some(ids) = unique_ids(&reply, earlier, taken) else { return reply };
    let (role, extras) = (reply.role(), reply.extras().clone());
    let mut parts = reply.into_parts();
    let calls = parts.iter_mut().filter_map(|part| match &mut part.content {
        Content::ToolCall(call) => Some(call),
        _ => None,
    });
    calls.zip(ids).for_each(|(call, id)| call.id = id);
    Message::from_parts(role, parts).with_extras(extras)
}

/// The unique ids of the calls; `None` if the current ids are unique.
fn unique_ids(reply: &Message, earlier: usize, taken: impl Fn(&str) -> bool) -> Option<Vec<String>> {
    let is_own = |call: &ToolCall| !call.id.trim().is_empty() && !taken(&call.id);
    // Most replies have one call at most, and nothing to compare it with.
    let is_alone = reply.tool_calls().nth(1).is_none();
    let mut first_with = HashSet::new();
    let keeps: Vec<bool> =
        reply.tool_calls().map(|call| (is_alone || first_with.insert(&*call.id)) && is_own(call)).collect();
    if keeps.iter().all(|keeps| *keeps) {
        return None;
    }
    // A fresh id must differ from the ids of later calls too, so all ids of the reply are collected first.
    let mut used: HashSet<String> = reply.tool_calls().map(|call| call.id.clone()).collect();
    let ids = reply.tool_calls().zip(keeps).enumerate().map(|(place, (call, keeps))| {
        if keeps {
            return call.id.clone();
        }
        let id = fresh_call_id(&call.id, earlier + place + 1, |id| !taken(id) && !used.contains(id));
        used.insert(id.clone());
        id
    });
    Some(ids.collect())
}

/// Returns a free call id: `base` (the rejected id; `call` for an empty one) with the number `first` or a
/// higher one.
///
/// The search doubles its step, then bisects, so the cost is logarithmic in the number of taken ids.
/// `is_free` must return true for some id; otherwise the search does not end.
///
/// # Examples
/// ```
/// use stepfold_state_core::chat::fresh_call_id;
///
/// assert_eq!(fresh_call_id("c1", 2, |id| id != "c1-2"), "c1-3");
/// assert_eq!(fresh_call_id("", 1, |_| true), "call-1");
/// ```
pub fn fresh_call_id(base: &str, first: usize, is_free: impl Fn(&str) -> bool) -> String {
    let base = if base.trim().is_empty() { "call" } else { base };
    let id = |number: usize| format!("{base}-{number}");
    let found = id(first);
    if is_free(&found) {
        return found;
    }
    // NOTE: A server may send one id for every call. A linear search would make a long conversation quadratic.
    let (mut taken, mut step) = (first, 1_usize);
    let mut free = first.saturating_add(step);
    while !is_free(&id(free)) {
        taken = free;
        step = step.saturating_mul(2);
        free = free.saturating_add(step);
    }
    while free - taken > 1 {
        let middle = taken + (free - taken) / 2;
        if is_free(&id(middle)) {
            free = middle;
        } else {
            taken = middle;
        }
    }
    id(free)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::{Part, Transcript};
    use serde_json::json;

    /// Takes a reply in the notation and compares its ids.
    fn check(reply: &str, taken: &[&str], expected: &str) {
        let transcript: Transcript = reply.parse().unwrap();
        let reply = (**transcript.get(0).unwrap()).clone();
        let made = with_unique_call_ids(reply.clone(), 0, |id| taken.contains(&id));
        let ids: Vec<&str> = made.tool_calls().map(|call| call.id.as_str()).collect();
        assert_eq!(ids.join(" "), expected);
        assert_eq!(with_unique_call_ids(reply, 0, |id| taken.contains(&id)), made, "not deterministic");
    }

    #[test]
    fn good_ids_stay() {
        check("assistant: hello", &[], "");
        check("assistant: > c1 a()  > c2 b()", &["c3"], "c1 c2");
    }

    #[test]
    fn missing_ids_are_made() {
        check(r#"assistant: > "" a()  > c1 b()  > " " c()"#, &[], "call-1 c1 call-3");
    }

    #[test]
    fn repeated_ids_are_made_fresh_and_the_first_stays() {
        check("assistant: > c1 a()  > c1 b()  > c1 c()", &[], "c1 c1-2 c1-3");
    }

    #[test]
    fn fresh_ids_are_no_one_elses() {
        check("assistant: > c1 a()  > c1 b()  > c1-2 c()", &[], "c1 c1-3 c1-2");
        check(r#"assistant: > "" a()  > "" b()  > call-1 c()"#, &["call-2"], "call-3 call-4 call-1");
    }

    #[test]
    fn taken_ids_are_made_fresh() {
        check("assistant: > c1 a()  > c2 b()", &["c1", "c1-1"], "c1-2 c2");
    }

    #[test]
    fn everything_else_stays() {
        let call =
            |id: &str| Part::from(ToolCall::new(id, "a", json!({"x": 1}))).with_extra("signature", "EqQB");
        let reply = |first: &str, second: &str| {
            Message::assistant("hm")
                .with_part(call(first))
                .with_part(Part::reasoning("so"))
                .with_part(call(second))
                .with_extra("cache", true)
        };
        assert_eq!(with_unique_call_ids(reply("c1", "c1"), 0, |_| false), reply("c1", "c1-2"));
    }
}
