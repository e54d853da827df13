//! Generated malformed conversations: difficult strings, unknown and misplaced parts, duplicate ids. Ids are drawn
//! from a small set, so that calls and results match often.

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use stepfold_state_core::chat::{
    Arguments, Content, Extras, ImageDetail, Media, Message, Part, Role, ToolCall, ToolContent, ToolResult,
    Transcript, UnknownPart,
};

/// Pieces that mean something in the notation or in JSON.
const NASTY: [&str; 40] = [
    "",
    " ",
    "\n",
    "\r\n",
    "\t",
    "\"",
    "\\",
    ">",
    "> ",
    "> c1 f(",
    "> c1 f()",
    "> c1 f(a=1) ",
    "~\"x\"",
    "@{",
    "%{",
    "@{\"text\":\"a\"}",
    "%{}",
    "#",
    "# a",
    "user:",
    "\nuser: hi",
    "tool c1:",
    "assistant:",
    "{\"a\": 1}",
    "[3, 4]",
    "null",
    "1",
    "1.0",
    "true",
    "\"quoted\"",
    "a",
    "plain text",
    "word",
    "\u{0}",
    "\u{85}",
    "\u{2028}",
    "\u{3000}",
    "é",
    "😀",
    "\u{feff}",
];

pub(crate) fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => prop::collection::vec(prop::sample::select(NASTY.to_vec()), 0..5).prop_map(|all| all.concat()),
        1 => any::<String>(),
        2 => "[a-z]{1,5}( [a-z]{1,5}){0,3}",
    ]
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!(null)),
        Just(json!(1)),
        Just(json!(1.0)),
        Just(json!(-0.1e-7)),
        Just(json!(u64::MAX)),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::vec((text(), inner), 0..3)
                .prop_map(|entries| Value::Object(entries.into_iter().collect())),
        ]
    })
}

fn map() -> impl Strategy<Value = Map<String, Value>> {
    prop::collection::vec((text(), value()), 0..3).prop_map(|entries| entries.into_iter().collect())
}

fn extras() -> impl Strategy<Value = Extras> {
    prop_oneof![4 => Just(Extras::new()), 1 => map().prop_map(Extras::from)]
}

fn id() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => prop::sample::select(vec!["c1", "c2", "c3", "c1-1", "c1-2", ""]).prop_map(str::to_owned),
        1 => text(),
    ]
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => prop::sample::select(vec!["search", "fetch"]).prop_map(str::to_owned),
        1 => text(),
    ]
}

fn call() -> impl Strategy<Value = ToolCall> {
    let arguments = prop_oneof![map().prop_map(Arguments::from), text().prop_map(Arguments::parse)];
    (id(), name(), arguments).prop_map(|(id, name, arguments)| ToolCall::new(id, name, arguments))
}

fn media() -> impl Strategy<Value = Media> {
    let detail = prop::option::of(prop::sample::select(vec![ImageDetail::Low, ImageDetail::Original]));
    (text(), 0..4, prop::option::of(text()), detail, any::<bool>()).prop_map(
        |(source, form, name, detail, has_citations)| {
            let mut media = match form {
                0 => Media::url(source),
                1 => Media::text(source, "text/plain"),
                2 => Media::file_id(source),
                _ => Media::base64(source, "image/png"),
            };
            (media.name, media.detail, media.has_citations) = (name, detail, has_citations);
            media
        },
    )
}

fn simple_part() -> impl Strategy<Value = Part> {
    let content = prop_oneof![
        4 => text().prop_map(Content::Text),
        1 => text().prop_map(Content::Reasoning),
        1 => media().prop_map(Content::Image),
        1 => media().prop_map(Content::File),
        1 => map().prop_filter_map("a known kind", |map| UnknownPart::new(map).map(Content::Unknown)),
    ];
    (content, extras()).prop_map(|(content, extras)| Part::from(content).with_extras(extras))
}

fn result() -> impl Strategy<Value = ToolResult> {
    let content = prop_oneof![
        3 => value().prop_map(ToolContent::Value),
        2 => text().prop_map(ToolContent::Error),
        1 => prop::collection::vec(part_of_result(), 0..3).prop_map(ToolContent::Parts),
    ];
    (id(), name(), content).prop_map(|(id, name, content)| ToolResult::new(id, name, content))
}

fn part_of_result() -> impl Strategy<Value = Part> {
    prop_oneof![4 => simple_part(), 1 => call().prop_map(Part::from)]
}

fn part() -> impl Strategy<Value = Part> {
    let with_extras = |content: Content, extras| Part::from(content).with_extras(extras);
    prop_oneof![
        4 => simple_part(),
        3 => (call().prop_map(Content::ToolCall), extras()).prop_map(move |(c, e)| with_extras(c, e)),
        1 => (result().prop_map(Content::ToolResult), extras()).prop_map(move |(c, e)| with_extras(c, e)),
    ]
}

/// Any message at all.
fn message() -> impl Strategy<Value = Message> {
    let role = prop::sample::select(vec![Role::System, Role::User, Role::Assistant, Role::Tool]);
    let whatever = (role, prop::collection::vec(part(), 0..4))
        .prop_map(|(role, parts)| Message::from_parts(role, parts));
    let calls = prop::collection::vec(call().prop_map(Part::from), 1..4)
        .prop_map(|parts| Message::from_parts(Role::Assistant, parts));
    let message = prop_oneof![
        2 => whatever,
        2 => calls,
        3 => result().prop_map(Message::tool),
        1 => text().prop_map(Message::user),
        1 => text().prop_map(Message::assistant),
    ];
    (message, extras()).prop_map(|(message, extras)| message.with_extras(extras))
}

/// Any conversation at all.
pub(crate) fn transcript() -> impl Strategy<Value = Transcript> {
    prop::collection::vec(message(), 0..12).prop_map(Transcript::from_iter)
}

/// A conversation with many calls in one message, some of the same id, and results in any order.
pub(crate) fn crowd() -> impl Strategy<Value = Transcript> {
    let ids = || prop::collection::vec((0..40_u8, 0..2_u8), 10..60);
    (ids(), ids()).prop_map(|(calls, results)| {
        let name = |which: u8| if which == 0 { "search" } else { "fetch" };
        let calls = calls
            .into_iter()
            .map(|(id, which)| ToolCall::new(format!("c{id}"), name(which), json!({})).into())
            .collect();
        let results = results
            .into_iter()
            .map(|(id, which)| Message::tool(ToolResult::value(format!("c{id}"), name(which), 1)));
        std::iter::once(Message::from_parts(Role::Assistant, calls)).chain(results).collect()
    })
}
