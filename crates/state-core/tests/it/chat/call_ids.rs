//! Call ids that servers omit or repeat. The cost of an id is the number of lookups of taken ids.

use std::cell::Cell;
use std::collections::HashSet;

use serde_json::json;
use stepfold_state_core::chat::{Message, Part, Role, ToolCall, with_unique_call_ids};

/// A conversation of replies with one call each, whose ids the server makes: how often each call asked whether an id
/// was taken.
fn asked(replies: usize, server: impl Fn(usize) -> String) -> Vec<usize> {
    let mut taken: HashSet<String> = HashSet::new();
    let replies = 0..replies;
    replies
        .map(|number| {
            let call = Part::from(ToolCall::new(server(number), "look", json!({})));
            let reply = Message::from_parts(Role::Assistant, vec![call]);
            let asked = Cell::new(0);
            let made = with_unique_call_ids(reply, taken.len(), |id| {
                asked.set(asked.get() + 1);
                taken.contains(id)
            });
            assert!(taken.insert(made.tool_calls().next().unwrap().id.clone()), "an id of its own");
            asked.get()
        })
        .collect()
}

#[test]
fn missing_ids_cost_the_same_in_the_thousandth_reply() {
    assert_eq!(asked(5_000, |_| String::new()).iter().max(), Some(&1));
}

#[test]
fn a_repeated_id_costs_the_same_in_the_thousandth_reply() {
    assert_eq!(asked(5_000, |_| "c1".to_owned()).iter().max(), Some(&2));
}

/// A server that takes the very ids which would be made next: 1,000 of its own, then none.
#[test]
fn ids_that_look_like_ours_cost_their_logarithm() {
    let server = |number| if number < 1_000 { format!("call-{}", number + 1_000) } else { String::new() };
    let asked = asked(3_000, server);
    assert!(asked.iter().all(|asked| *asked <= 24), "{:?}", asked.iter().max());
}

/// Within one reply as well.
#[test]
fn twenty_thousand_calls_without_ids_in_one_reply() {
    let calls = (0..20_000).map(|_| Part::from(ToolCall::new("", "look", json!({}))));
    let asked = Cell::new(0);
    let made = with_unique_call_ids(Message::from_parts(Role::Assistant, calls.collect()), 0, |_| {
        asked.set(asked.get() + 1);
        false
    });
    let ids: HashSet<&str> = made.tool_calls().map(|call| call.id.as_str()).collect();
    assert_eq!((ids.len(), asked.get()), (20_000, 20_000));
}
