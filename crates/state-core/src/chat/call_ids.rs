//! Call ids that can be told apart: models leave ids out and repeat them, and everything behind a call
//! (its marker, its key, its result, an approval) is bound to its id.

use std::collections::HashSet;

use super::{Content, Message};

/// The reply with an id for each of its calls that no other call has: its own where it can stay, else a
/// fresh one. Everything else of the message stays as it is.
///
/// An id cannot stay if it is blank, if an earlier call of the reply has it, or if it is `taken`, by an
/// earlier reply of the same conversation for instance. Fresh ids are made of the old id and the number of
/// the call in the conversation, of which `earlier` calls came before the reply, so that the same reply at
/// the same place always gets the same ones. To be called once, when the reply arrives and before anything
/// is stored.
///
/// The cost per call does not depend on `earlier`, also with a server that sends no ids or the same one for
/// ever: the number is free unless the server uses that id. Then the step of the search doubles.
///
/// `taken` must return false for some id, or the search does not end.
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

/// The ids that the calls should have; none if they are those that they have.
fn unique_ids(reply: &Message, earlier: usize, taken: impl Fn(&str) -> bool) -> Option<Vec<String>> {
    let mut first_with = HashSet::new();
    let keeps: Vec<bool> = reply
        .tool_calls()
        .map(|call| !call.id.trim().is_empty() && first_with.insert(&*call.id) && !taken(&call.id))
        .collect();
    if keeps.iter().all(|keeps| *keeps) {
        return None;
    }
    // A fresh id must not be that of a later call either, so all ids of the reply are known from the start.
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

/// A call id that is free: `base` (the id that cannot stay; `call` for an empty one) with the number `first`, or with one
/// above it.
///
/// Found by steps that double, and then by halving, so that a server which takes all numbers ahead of us costs no more
/// than their logarithm. `is_free` must return true for some id, or the search does not end.
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
    use crate::chat::{Part, ToolCall, Transcript};
    use serde_json::json;

    /// The notation of a reply in, the ids out.
    fn check(reply: &str, taken: &[&str], expected: &str) {
        let transcript: Transcript = reply.parse().unwrap();
        let reply = (**transcript.get(0).unwrap()).clone();
        let made = with_unique_call_ids(reply.clone(), 0, |id| taken.contains(&id));
        let ids: Vec<&str> = made.tool_calls().map(|call| call.id.as_str()).collect();
        assert_eq!(ids.join(" "), expected);
        assert_eq!(with_unique_call_ids(reply, 0, |id| taken.contains(&id)), made, "the same each time");
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
