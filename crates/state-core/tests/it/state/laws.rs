//! The laws of state: a state is the fold of its delta, a snapshot never changes, JSON loses nothing.

use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Value, json};
use stepfold_state_core::chat::Message;
use stepfold_state_core::state::{Delta, Handler, Schema, State, Template, ValueChange};

use super::values::{HANDLERS, Operation, text, value, world};
use super::{handlers, json_of, strict};

/// Performs what can be performed and records it. What fails must change nothing.
fn perform(schema: &Schema, operations: &[Operation]) -> (State, Delta) {
    let mut state = State::new(schema);
    let mut delta = Delta::new();
    for operation in operations {
        let before = json_of(&state);
        let mut twin = state.clone();
        let performed = operation.perform(&mut twin);
        let written = operation.write(schema).and_then(|write| state.apply_write(&write).map(|()| write));
        assert_eq!(performed.is_ok(), written.is_ok(), "set and write differ: {operation:?}");
        assert_eq!(json_of(&twin), json_of(&state), "set and write differ: {operation:?}");
        match written {
            Ok(write) => delta.push(write),
            Err(_) => assert_eq!(json_of(&state), before, "a failed write changed something"),
        }
    }
    (state, delta)
}

proptest! {
    #[test]
    fn a_state_is_the_fold_of_its_delta((schema, operations) in world(0..24)) {
        let (state, delta) = perform(&schema, &operations);
        let mut folded = State::new(&schema);
        folded.apply(&delta).unwrap();
        prop_assert_eq!(json_of(&folded), json_of(&state));
        prop_assert_eq!(&folded, &state);
        // Whatever the handlers made of it fits the schema when it is read again.
        let read = State::from_json(&schema, &serde_json::to_string(&state).unwrap()).unwrap();
        prop_assert_eq!(json_of(&read), json_of(&state));
    }

    #[test]
    fn batches_do_not_matter((schema, operations) in world(0..24), cuts in prop::collection::vec(any::<Index>(), 0..4)) {
        let (state, delta) = perform(&schema, &operations);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(delta.len() + 1)).chain([0, delta.len()]).collect();
        cuts.sort_unstable();
        let mut folded = State::new(&schema);
        for pair in cuts.windows(2) {
            let batch: Delta = delta.iter().skip(pair[0]).take(pair[1] - pair[0]).cloned().collect();
            folded.apply(&batch).unwrap();
        }
        prop_assert_eq!(json_of(&folded), json_of(&state));
    }

    #[test]
    fn a_batch_with_a_fault_changes_nothing((schema, operations) in world(1..16)) {
        let (state, mut delta) = perform(&schema, &operations);
        let mut folded = state.clone();
        let failing: Delta = serde_json::from_value(json!([{"key": "undeclared", "remove": true}])).unwrap();
        delta.extend(failing);
        folded.apply(&delta).unwrap_err();
        prop_assert_eq!(json_of(&folded), json_of(&state));
    }

    #[test]
    fn a_delta_and_its_schema_survive_json((schema, operations) in world(0..24)) {
        let (state, delta) = perform(&schema, &operations);
        let stored = serde_json::to_string(&delta).unwrap();
        let read: Delta = serde_json::from_str(&stored).unwrap();
        prop_assert_eq!(&read, &delta);
        prop_assert_eq!(serde_json::to_string(&read).unwrap(), stored);

        // On a machine that has nothing but the JSON and the custom handlers.
        let json = serde_json::to_string(&schema).unwrap();
        let schema_there = Schema::from_json(&json, &handlers()).unwrap();
        prop_assert_eq!(serde_json::to_string(&schema_there).unwrap(), json);
        let mut replayed = State::new(&schema_there);
        replayed.apply(&read).unwrap();
        prop_assert_eq!(json_of(&replayed), json_of(&state));
    }

    #[test]
    fn a_snapshot_never_changes(
        (schema, operations) in world(1..40),
        choices in prop::collection::vec((any::<Index>(), 0..6_u8), 40),
    ) {
        let mut states = vec![State::new(&schema)];
        let mut snapshots: Vec<(State, String)> = Vec::new();
        for (operation, (which, choice)) in operations.iter().zip(choices) {
            let state = which.index(states.len());
            match choice {
                0 => snapshots.push((states[state].clone(), json_of(&states[state]))),
                1 => states.push(states[state].clone()),
                2 => states[state].push_message(Message::user("hi")),
                3 if !snapshots.is_empty() => states.push(snapshots[which.index(snapshots.len())].0.clone()),
                _ => drop(operation.perform(&mut states[state])),
            }
        }
        for (snapshot, json) in &snapshots {
            prop_assert_eq!(&json_of(snapshot), json);
        }
    }

    #[test]
    fn a_state_survives_json(values in prop::collection::vec((0..6_u8, value()), 0..6), words in prop::collection::vec(text(), 0..3)) {
        let schema = Schema::builder().open().build().unwrap();
        let mut state = State::new(&schema);
        for (key, value) in values {
            state.set(&format!("user:{key}"), value).unwrap();
        }
        for word in words {
            state.push_message(Message::user(word));
        }
        let stored = serde_json::to_string(&state).unwrap();
        let read = State::from_json(&schema, &stored).unwrap();
        prop_assert_eq!(&read, &state);
        prop_assert_eq!(serde_json::to_string(&read).unwrap(), stored);
    }

    #[test]
    fn a_diff_is_empty_exactly_for_equal_states((schema, operations) in world(0..12), cut in any::<Index>()) {
        let (earlier, _) = perform(&schema, &operations[..cut.index(operations.len() + 1)]);
        let (later, _) = perform(&schema, &operations);
        let diff = later.diff(&earlier);
        prop_assert_eq!(diff.is_empty(), later == earlier);
        prop_assert!(later.diff(&later.clone()).is_empty());
        // Whether they share anything does not matter.
        let apart = State::from_json(&schema, &serde_json::to_string(&earlier).unwrap()).unwrap();
        prop_assert_eq!(&later.diff(&apart), &diff);
        // It says what there was and what there is.
        for entry in &diff {
            let (before, after) = (earlier.get(&entry.key), later.get(&entry.key));
            match &entry.change {
                ValueChange::Added { after: value } => prop_assert!(before.is_none() && after.unwrap() == *value),
                ValueChange::Removed { before: value } => prop_assert!(after.is_none() && before.unwrap() == *value),
                ValueChange::Appended { from, items } => {
                    let all: Vec<Value> = before.unwrap().items().chain(items).cloned().collect();
                    prop_assert!(*from == before.unwrap().len().unwrap() && after.unwrap() == Value::from(all));
                }
                ValueChange::Replaced { before: old, after: new } => {
                    prop_assert!(before.unwrap() == *old && after.unwrap() == *new);
                }
                other => prop_assert!(false, "unknown change {other:?}"),
            }
        }
    }

    #[test]
    fn appended_items_are_what_a_diff_shows(first in prop::collection::vec(value(), 0..200), more in prop::collection::vec(value(), 1..5)) {
        let schema = Schema::builder().key::<Vec<Value>>("list").build().unwrap();
        let mut state = State::new(&schema);
        state.set("list", first.clone()).unwrap();
        let before = state.clone();
        state.set("list", more.clone()).unwrap();
        let diff = state.diff(&before);
        let change = &diff.iter().next().unwrap().change;
        prop_assert_eq!(change, &ValueChange::Appended { from: first.len(), items: more });
    }

    #[test]
    fn sums_of_integers_commute(mut numbers in prop::collection::vec(-1_000..1_000_i64, 0..12), start in any::<i32>()) {
        let schema = Schema::builder().key::<i64>("sum").handler(Handler::sum()).default(start).build().unwrap();
        let fold = |numbers: &[i64]| {
            let mut state = State::new(&schema);
            for number in numbers {
                state.set("sum", *number).unwrap();
            }
            json_of(&state)
        };
        let forwards = fold(&numbers);
        numbers.reverse();
        prop_assert_eq!(fold(&numbers), forwards);
    }

    #[test]
    fn unions_commute_but_for_the_order(lists in prop::collection::vec(prop::collection::vec(value(), 0..4), 0..5)) {
        let schema = Schema::builder().key::<Vec<Value>>("set").handler(Handler::union()).build().unwrap();
        let fold = |lists: &mut dyn Iterator<Item = &Vec<Value>>| {
            let mut state = State::new(&schema);
            lists.for_each(|list| state.set("set", list.clone()).unwrap());
            state.get("set").map(|set| set.items().cloned().collect::<Vec<_>>()).unwrap_or_default()
        };
        let (forwards, backwards) = (fold(&mut lists.iter()), fold(&mut lists.iter().rev()));
        prop_assert_eq!(forwards.len(), backwards.len());
        prop_assert!(forwards.iter().all(|item| backwards.contains(item)));
        // Nothing is there twice, and doing it again adds nothing.
        prop_assert!(forwards.iter().enumerate().all(|(index, item)| !forwards[..index].contains(item)));
        prop_assert_eq!(fold(&mut lists.iter().chain(&lists)), forwards);
    }

    #[test]
    fn upserts_of_different_fields_commute_but_for_the_order(
        left in prop::collection::vec((0..5_u8, value()), 0..6),
        right in prop::collection::vec((0..5_u8, value()), 0..6),
    ) {
        let schema = Schema::builder().key::<Vec<Value>>("tasks").handler(Handler::upsert_by("id")).build().unwrap();
        let items = |updates: &[(u8, Value)], field: &str| -> Value {
            updates.iter().map(|(id, value)| json!({"id": id, field: value})).collect()
        };
        let fold = |lists: [Value; 2]| {
            let mut state = State::new(&schema);
            for list in lists {
                state.set("tasks", list).unwrap();
            }
            let mut tasks: Vec<String> = state.get("tasks").unwrap().items().map(strict).collect();
            tasks.sort_unstable();
            tasks
        };
        let (left, right) = (items(&left, "left"), items(&right, "right"));
        prop_assert_eq!(fold([left.clone(), right.clone()]), fold([right, left]));
    }

    #[test]
    fn upserting_one_by_one_or_together_is_the_same(updates in prop::collection::vec((0..5_u8, "[ab]", value()), 0..12)) {
        let schema = Schema::builder().key::<Vec<Value>>("tasks").handler(Handler::upsert_by("id")).build().unwrap();
        let items: Vec<Value> =
            updates.iter().map(|(id, field, value)| json!({"id": id, (field.as_str()): value})).collect();
        let mut together = State::with_values(&schema, json!({"tasks": []})).unwrap();
        let mut one_by_one = together.clone();
        together.set("tasks", items.clone()).unwrap();
        for item in items {
            one_by_one.set("tasks", item).unwrap();
        }
        prop_assert_eq!(json_of(&one_by_one), json_of(&together));
    }

    #[test]
    fn the_largest_and_the_smallest_do_not_depend_on_the_order(mut numbers in prop::collection::vec(any::<f64>().prop_filter("finite", |number| number.is_finite()), 1..12)) {
        let schema = Schema::builder()
            .key::<f64>("high").handler(Handler::max())
            .key::<f64>("low").handler(Handler::min())
            .build().unwrap();
        let fold = |numbers: &[f64]| {
            let mut state = State::new(&schema);
            for number in numbers {
                state.set("high", *number).unwrap();
                state.set("low", *number).unwrap();
            }
            json_of(&state)
        };
        let forwards = fold(&numbers);
        numbers.reverse();
        prop_assert_eq!(&fold(&numbers), &forwards);
        let sorted = { numbers.sort_by(f64::total_cmp); numbers };
        prop_assert_eq!(forwards, strict(&json!({"version": 1, "values": {
            "high": sorted[sorted.len() - 1], "low": sorted[0], "messages": [],
        }})));
    }

    #[test]
    fn any_text_is_a_template(text in template_text()) {
        let schema = Schema::builder().open().build().unwrap();
        let state = State::with_values(&schema, json!({"a": 1, "user:b": "{a}", "c": {"d": null}})).unwrap();
        let template = Template::parse(text.clone());
        let rendered = template.render(&state);
        if template.placeholders().next().is_none() {
            let rendered = rendered.unwrap();
            if !text.contains("{{") {
                prop_assert_eq!(&rendered, &text);
            }
            prop_assert!(rendered.len() <= text.len());
        }
        for (name, _) in template.placeholders() {
            let is_plain = !name.contains(['{', '}', '?', ' ']);
            prop_assert!(text.contains(name) && is_plain);
        }
    }

    /// JSON needs no escaping, and survives it unchanged.
    #[test]
    fn json_passes_through(value in value().prop_filter("no braces in strings", |value| {
        let text = value.to_string();
        !text.contains(['\\', '\u{0}']) && !text.contains("{a}")
    })) {
        let text = value.to_string();
        prop_assume!(!braces_in_strings(&text));
        let state = State::new(&Schema::builder().build().unwrap());
        prop_assert_eq!(Template::parse(text.clone()).render(&state).unwrap(), text.clone());
        let escaped = text.replace('{', "{{").replace('}', "}}");
        prop_assert_eq!(Template::parse(escaped).render(&state).unwrap(), text);
    }

    #[test]
    fn nothing_panics_on_any_type_or_value(
        schema in type_like(), handler in select(HANDLERS.to_vec()), values in prop::collection::vec(value(), 0..4),
    ) {
        let keys = json!({"a": {"type": schema, "handler": handler}});
        let Ok(schema) = super::schema(&keys) else { return Ok(()) };
        let mut state = State::new(&schema);
        for value in values {
            let before = json_of(&state);
            if state.set("a", value).is_err() {
                prop_assert_eq!(json_of(&state), before);
            }
        }
        let stored = serde_json::to_string(&state).unwrap();
        let read = State::from_json(&schema, &stored).unwrap();
        prop_assert_eq!(json_of(&read), json_of(&state));
    }

    #[test]
    fn nothing_panics_on_any_stored_text(text in text(), value in value()) {
        let schema = Schema::builder().open().build().unwrap();
        for json in [text.clone(), value.to_string(), json!({"version": 1, "values": value, "keys": value}).to_string()] {
            let _ = State::from_json(&schema, &json);
            let _ = Schema::from_json(&json, &handlers());
            let _ = serde_json::from_str::<Delta>(&json);
        }
        let _ = State::with_values(&schema, value);
        let _ = text.parse::<Handler>();
    }
}

fn braces_in_strings(json: &str) -> bool {
    let mut is_inside = false;
    json.chars().any(|character| {
        is_inside ^= character == '"';
        is_inside && matches!(character, '{' | '}')
    })
}

fn template_text() -> impl Strategy<Value = String> {
    let pieces = [
        "{", "}", "{{", "}}", "{a}", "{user:b}", "{c.d}", "{x?}", "{x}", "?", ":", "user:", "a", " ", ".",
        "é", "\n", "\"", "{a b}", "{user:}", "{}", "😀", "e\u{301}", "-",
    ];
    prop_oneof![
        4 => prop::collection::vec(select(pieces.to_vec()), 0..12).prop_map(|pieces| pieces.concat()),
        1 => any::<String>(),
    ]
}

/// JSON Schemas and what looks like them.
fn type_like() -> impl Strategy<Value = Value> {
    let names = ["null", "boolean", "integer", "number", "string", "array", "object", "strnig"];
    let leaf = prop_oneof![
        4 => select(names.to_vec()).prop_map(|name| json!({"type": name})),
        1 => prop::collection::vec(select(names.to_vec()), 0..3).prop_map(|names| json!({"type": names})),
        1 => any::<bool>().prop_map(Value::from),
        1 => value(),
        1 => prop::collection::vec(value(), 0..3).prop_map(|values| json!({"enum": values})),
        1 => value().prop_map(|value| json!({"const": value})),
        1 => select(vec!["#", "#/$defs/a", "#/items", "#/anyOf/0", "nowhere"]).prop_map(|target| json!({"$ref": target})),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            inner.clone().prop_map(|item| json!({"type": "array", "items": item})),
            (inner.clone(), 0..3_u8).prop_map(|(item, most)| json!({"type": ["array", "null"], "items": item, "maxItems": most})),
            prop::collection::vec(inner.clone(), 0..3).prop_map(|all| json!({"anyOf": all})),
            prop::collection::vec(inner.clone(), 0..3).prop_map(|all| json!({"oneOf": all, "x-note": 1})),
            prop::collection::vec(inner.clone(), 1..3).prop_map(|all| json!({"type": "array", "prefixItems": all})),
            (inner.clone(), inner.clone()).prop_map(|(field, other)| json!({
                "type": "object", "properties": {"a": field}, "additionalProperties": other, "required": ["id"],
            })),
            (inner.clone(), inner).prop_map(|(mut root, definition)| {
                if let Some(fields) = root.as_object_mut() {
                    fields.insert("$defs".to_owned(), json!({"a": definition}));
                }
                root
            }),
        ]
    })
}
