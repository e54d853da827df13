//! Bodies of requests, whatever was asked before: what a model remembers of one conversation must never show
//! in another.

use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Map, Value, json};
use stepfold_providers::openai::Preset;
use stepfold_providers::probe::{anthropic_body, gemini_body, openai_body, responses_body};
use stepfold_state_core::chat::{
    Arguments, ChatRequest, Content, Media, Message, ModelError, Part, Role, ToolCall, ToolContent,
    ToolResult, ToolSpec, Transcript, UnknownPart,
};

/// Text that means something in JSON, or does not fit in it as it stands.
fn text() -> impl Strategy<Value = String> {
    let odd =
        ["", " ", "\"", "\\", "\n", "\u{0}", "\u{2028}", "é", "😀", "\u{feff}", "{}", "]}", "},", "null"];
    prop_oneof![
        prop::collection::vec(prop::sample::select(odd.to_vec()), 0..4).prop_map(|all| all.concat()),
        "[a-z]{1,6}( [a-z]{1,6}){0,3}",
        any::<String>(),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from), map(inner)]
    })
}

fn map(value: impl Strategy<Value = Value>) -> impl Strategy<Value = Value> {
    let fields = prop::collection::vec((text(), value), 0..3);
    fields.prop_map(|fields| fields.into_iter().collect::<Map<_, _>>().into())
}

fn media() -> impl Strategy<Value = Media> {
    (text(), prop::sample::select(vec!["image/png", "application/pdf", "audio/mpeg", ""]), any::<bool>())
        .prop_map(|(data, kind, is_url)| if is_url { Media::url(data) } else { Media::base64(data, kind) })
}

/// What anybody may say, and what only few may.
fn part() -> impl Strategy<Value = Part> {
    let content = prop_oneof![
        5 => text().prop_map(Content::Text),
        2 => text().prop_map(Content::Reasoning),
        2 => media().prop_map(Content::Image),
        1 => media().prop_map(Content::File),
        1 => (map(value()), prop::sample::select(vec!["anthropic", "openai", "gemini"])).prop_filter_map("a known kind", |(block, whose)| {
            let fields = Map::from_iter([(whose.to_owned(), block)]);
            UnknownPart::new(fields).map(Content::Unknown)
        }),
    ];
    let extra = prop::sample::select(vec![
        "signature",
        "redacted_thinking",
        "cache_control",
        "caller",
        "openai",
        "thought_signature",
        "function_call_id",
        "other",
    ]);
    (content, prop::option::weighted(0.3, (extra, value()))).prop_map(|(content, extra)| {
        let part = Part::from(content);
        extra.into_iter().fold(part, |part, (name, value)| part.with_extra(name, value))
    })
}

fn id() -> impl Strategy<Value = String> {
    prop_oneof![prop::sample::select(vec!["c1", "c2", "search:0", ""]).prop_map(str::to_owned), text()]
}

fn call() -> impl Strategy<Value = Part> {
    let arguments = prop_oneof![
        map(value()).prop_map(|map| Arguments::parse(map.to_string())),
        text().prop_map(Arguments::parse),
    ];
    let signed = prop::option::weighted(0.2, value());
    (id(), text(), arguments, signed).prop_map(|(id, name, arguments, signature)| {
        let call = Part::from(ToolCall::new(id, name, arguments));
        signature.into_iter().fold(call, |call, value| call.with_extra("extra_content", value))
    })
}

fn result() -> impl Strategy<Value = Message> {
    let content = prop_oneof![
        3 => value().prop_map(ToolContent::Value),
        1 => text().prop_map(ToolContent::Error),
        3 => prop::collection::vec(part(), 0..3).prop_map(ToolContent::Parts),
    ];
    (id(), text(), content).prop_map(|(id, name, content)| Message::tool(ToolResult::new(id, name, content)))
}

/// Any message, most of them such as an agent has, some that no protocol can say.
fn message() -> impl Strategy<Value = Message> {
    let said = (
        prop::sample::select(vec![Role::System, Role::User, Role::Assistant]),
        prop::collection::vec(part(), 0..3),
    );
    let called = (prop::collection::vec(part(), 0..2), prop::collection::vec(call(), 1..4));
    prop_oneof![
        3 => said.prop_map(|(role, parts)| Message::from_parts(role, parts)),
        3 => called.prop_map(|(mut said, calls)| {
            said.extend(calls);
            Message::from_parts(Role::Assistant, said)
        }),
        4 => result(),
        2 => text().prop_map(Message::user),
        1 => (text(), value()).prop_map(|(said, details)| {
            Message::assistant(said).with_extra("reasoning_details", details)
        }),
    ]
}

/// A change of the conversation before the next request.
#[derive(Clone, Debug)]
enum Step {
    /// It grows.
    Push(Vec<Message>),
    /// An earlier version of it continues.
    GoBack(Index),
    /// Its middle is left out, as trimming does.
    Trim(Index, Index),
    /// Its last messages are dropped.
    Drop(Index),
    /// It is loaded from a store: the same messages in another place.
    Load,
    /// Other tools are offered.
    Offer(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => prop::collection::vec(message(), 0..3).prop_map(Step::Push),
        2 => any::<Index>().prop_map(Step::GoBack),
        2 => (any::<Index>(), any::<Index>()).prop_map(|(from, to)| Step::Trim(from, to)),
        1 => any::<Index>().prop_map(Step::Drop),
        1 => Just(Step::Load),
        1 => (0..3_usize).prop_map(Step::Offer),
    ]
}

/// Conversations, and what is offered with them.
struct Past {
    versions: Vec<Transcript>,
    tools: Vec<ToolSpec>,
}

impl Past {
    fn after(&mut self, step: Step) -> ChatRequest {
        let mut messages = self.versions.last().cloned().unwrap_or_default();
        let length = messages.len();
        match step {
            Step::Push(more) => more.into_iter().for_each(|message| messages.push(message)),
            Step::GoBack(to) if length > 0 => messages = self.versions[to.index(self.versions.len())].clone(),
            Step::Trim(from, to) => {
                let (from, to) = (from.index(length + 1), to.index(length + 1));
                let (from, to) = (from.min(to), from.max(to));
                messages = messages.iter().take(from).chain(messages.iter().skip(to)).cloned().collect();
            }
            Step::Drop(to) => messages = messages.iter().take(to.index(length + 1)).cloned().collect(),
            Step::Load => messages = messages.iter().map(|message| Message::clone(message)).collect(),
            Step::Offer(count) => {
                let tool =
                    |number| ToolSpec::new(format!("t{number}"), "\"a\" tool", json!({"type": "object"}));
                self.tools = (0..count).map(tool).collect();
            }
            Step::GoBack(_) => {}
        }
        self.versions.push(messages.clone());
        ChatRequest::new(messages).with_tools(self.tools.clone())
    }
}

/// Asks step by step, and compares each body with one of a model that was never asked before.
fn check<W>(steps: &[Step], writer: impl Fn() -> W) -> Result<(), TestCaseError>
where
    W: Fn(&ChatRequest) -> Result<Vec<u8>, ModelError>,
{
    let shown = |body: Result<Vec<u8>, ModelError>| {
        body.map(|body| String::from_utf8(body).unwrap()).map_err(|error| error.to_string())
    };
    let write = writer();
    let mut past = Past { versions: Vec::new(), tools: Vec::new() };
    for step in steps {
        let request = past.after(step.clone());
        let body = shown(write(&request));
        prop_assert_eq!(&body, &shown(writer()(&request)), "after {:?}", step);
        let Ok(body) = body else {
            continue;
        };
        let body: Value = serde_json::from_str(&body).unwrap();
        let messages = ["messages", "input", "contents"].iter().find(|name| body[**name].is_array());
        prop_assert!(messages.is_some_and(|name| *name == "contents" || body["stream"] == true), "{}", body);
        let tools = body.pointer("/tools/0/functionDeclarations").unwrap_or(&body["tools"]);
        let offered = tools.as_array().map_or(0, Vec::len);
        prop_assert_eq!(offered, request.tools.len());
    }
    Ok(())
}

#[test]
fn an_unknown_block_without_fields_is_left_out() {
    let fields = Map::from_iter([("anthropic".to_owned(), json!({}))]);
    let unknown = Part::from(Content::Unknown(UnknownPart::new(fields).unwrap()));
    let message = Message::from_parts(Role::Assistant, vec![Part::text("a"), unknown]);
    check(&[Step::Push(vec![message])], || anthropic_body(true)).unwrap();
}

proptest! {
    #[test]
    fn openai_remembers_nothing_that_shows(
        steps in prop::collection::vec(step(), 1..10),
        preset in prop::sample::select(vec![Preset::OPENAI, Preset::DEEPSEEK, Preset::OPENROUTER]),
    ) {
        check(&steps, || openai_body(preset))?;
    }

    #[test]
    fn anthropic_remembers_nothing_that_shows(
        steps in prop::collection::vec(step(), 1..10),
        marks_cache in any::<bool>(),
    ) {
        check(&steps, || anthropic_body(marks_cache))?;
    }

    #[test]
    fn responses_remember_nothing_that_shows(steps in prop::collection::vec(step(), 1..10)) {
        check(&steps, responses_body)?;
    }

    #[test]
    fn gemini_remembers_nothing_that_shows(steps in prop::collection::vec(step(), 1..10)) {
        check(&steps, gemini_body)?;
    }
}
