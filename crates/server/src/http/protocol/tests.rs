//! Each encoder over the same happenings, with a golden file.

use std::collections::BTreeMap;

use expect_test::{ExpectFile, expect_file};
use serde_json::json;
use stepfold_agent_loop::Exit;
use stepfold_state_core::chat::Usage;

use super::happening::{Call, CallEnd, End};
use super::*;

/// A run with all that may happen: an outcome of an earlier call, text that is void, a call with progress and writes.
fn all() -> Vec<Happening> {
    let call = |id: &str| Call { id: id.to_owned(), name: "count".to_owned(), arguments: json!({"area": 3}) };
    let end = |id: &str, is_error: bool, is_rejected: bool| CallEnd {
        id: id.to_owned(),
        name: "count".to_owned(),
        text: "{\"stalls\":3}".to_owned(),
        value: json!({"stalls": 3}),
        is_error,
        is_rejected,
    };
    let text = |text: &str| Happening::Text(text.to_owned());
    vec![
        Happening::Began {
            invocation: "i1".to_owned(),
            state: json!({"counted": 0}),
            open: vec![call("c0")],
        },
        Happening::Outcome(end("c0", true, true)),
        Happening::Committed { version: 3 },
        Happening::Step(1),
        Happening::Reasoning("Count ".to_owned()),
        Happening::Reasoning("first.".to_owned()),
        text("Area"),
        Happening::Restarted,
        text("I count."),
        Happening::Call(call("c1")),
        Happening::Call(call("c2")),
        Happening::Committed { version: 4 },
        Happening::Progress { call: "c1".to_owned(), report: json!({"percent": 50}) },
        Happening::Outcome(end("c1", false, false)),
        Happening::Outcome(end("c2", true, false)),
        Happening::State {
            before: json!({"counted": 0, "a/b": [1]}),
            after: json!({"counted": 3, "a/b": [1, 2]}),
        },
        Happening::Committed { version: 5 },
        Happening::Step(2),
        text("Three stalls:\n\ndata: [DONE]"),
        Happening::Committed { version: 6 },
    ]
}

/// With the members of objects in the order of their names: whether they keep their own is a feature of the whole build.
fn sorted(text: &str) -> String {
    let line = |line: &str| {
        let Some((before, data)) = line.split_once("data: ") else { return line.to_owned() };
        let Ok(data) = serde_json::from_str::<Value>(data) else { return line.to_owned() };
        format!("{before}data: {}", by_name(data))
    };
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

fn by_name(value: Value) -> Value {
    match value {
        Value::Array(items) => {
            let mut items: Vec<Value> = items.into_iter().map(by_name).collect();
            // Operations of a patch come in the order of members, too.
            if items.iter().all(|item| item["op"].is_string()) {
                items.sort_by_key(|item| item["path"].to_string());
            }
            items.into()
        }
        Value::Object(members) => {
            let members: BTreeMap<String, Value> = members.into_iter().collect();
            members.into_iter().map(|(name, member)| (name, by_name(member))).collect()
        }
        other => other,
    }
}

fn ended(end: End) -> Happening {
    let mut usage = Usage::default();
    (usage.input_tokens, usage.output_tokens) = (12, 6);
    Happening::Ended { end, usage, version: 6 }
}

/// The frames of a run, and of each end.
fn check(new: impl Fn() -> Box<dyn FnMut(&Happening) -> Vec<Frame>>, golden: &ExpectFile) {
    let mut text = String::new();
    let ends = [
        ("text", End::Finished(Exit::Text)),
        ("length", End::Finished(Exit::Length)),
        ("cancelled", End::Finished(Exit::Cancelled)),
        ("suspended", End::Suspended),
        ("failed", End::Failed(Problem::unavailable("the store is unavailable"))),
    ];
    for (place, (name, end)) in ends.into_iter().enumerate() {
        let (mut push, mut happenings) = (new(), all());
        happenings.push(ended(end));
        let frames: Vec<Frame> = happenings.iter().flat_map(&mut push).collect();
        assert!(
            frames.iter().all(|frame| frame.text().matches('\n').count() == 2),
            "a frame is one line of data"
        );
        let told = frames.iter().map(Frame::text);
        // What comes before the end is the same each time.
        let before = happenings.iter().rev().skip(1).rev();
        let mut push = new();
        let skipped = if place == 0 { 0 } else { before.flat_map(&mut push).count() };
        text.extend(["== ", name, "\n"]);
        text.extend(told.skip(skipped));
    }
    golden.assert_eq(&sorted(&text));
}

#[test]
fn openai() {
    let new = || {
        let mut encoder = openai::Chunks::new("counter", "s1", 1_795_307_351, true);
        Box::new(move |happening: &Happening| encoder.push(happening))
            as Box<dyn FnMut(&Happening) -> Vec<Frame>>
    };
    check(new, &expect_file!["golden/openai.txt"]);
}

#[test]
fn agui() {
    let new = || {
        let mut encoder = agui::Events::new("monday".to_owned(), "r1".to_owned(), Some("1.0".to_owned()));
        Box::new(move |happening: &Happening| encoder.push(happening))
            as Box<dyn FnMut(&Happening) -> Vec<Frame>>
    };
    check(new, &expect_file!["golden/agui.txt"]);
}

#[test]
fn ai() {
    let new = || {
        let mut encoder = ai::Parts::new(None);
        Box::new(move |happening: &Happening| encoder.push(happening))
            as Box<dyn FnMut(&Happening) -> Vec<Frame>>
    };
    check(new, &expect_file!["golden/ai.txt"]);
}
