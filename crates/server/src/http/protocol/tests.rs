//! Each encoder over the same updates, with a golden file.

use expect_test::{ExpectFile, expect_file};
use serde_json::json;
use std::collections::BTreeMap;
use stepfold_agent_loop::test_kit::Script;
use stepfold_agent_loop::{Agent, ApprovalRequest, Exit};
use stepfold_session_scopes::{Author, CommittedEvent, Event, EventId, InvocationId, MemoryStore, Timestamp};
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Chunk, FinishReason, Message, Part, ReplyStream, ToolCall, ToolResult, Usage,
};
use stepfold_state_core::state::{Delta, Schema};
use stepfold_tools::{Approval, Args, Tool, ToolError};

use super::run_updates::{CallEnd, StreamEnd, StreamedCall};
use super::*;

/// A model with more to say than is kept for readers.
struct Talker;

impl ChatModel for Talker {
    fn id(&self) -> &'static str {
        "talker"
    }

    fn respond(&self, _: ChatRequest) -> ReplyStream {
        let words = (0..WORDS).map(|number| Chunk::Text(format!("{number} ")));
        ReplyStream::from_chunks(words.chain([Chunk::Finished(FinishReason::Stop)]))
    }
}

const WORDS: usize = 10_000;

/// A reader that does not read while the run continues has each commit once, and the whole text.
#[tokio::test]
async fn a_slow_reader_has_it_all() {
    let runner = Runner::builder(Agent::builder(Talker).build().unwrap(), MemoryStore::new()).build();
    for read in [0, 1, 3, 100] {
        let session = runner.session("ada", format!("s{read}")).await.unwrap();
        let before = RunStart::read(&runner, &session).await.unwrap();
        let invocation = session.send("go").await.unwrap();
        let mut updates = RunReader::new(&runner, session, invocation.clone(), before).into_stream().boxed();
        let mut told: Vec<RunUpdate> = updates.by_ref().take(read).collect().await;
        invocation.outcome().await.unwrap();
        told.extend(updates.collect::<Vec<_>>().await);
        let (mut text, mut versions) = (String::new(), Vec::new());
        for update in &told {
            match update {
                RunUpdate::Restarted => text.clear(),
                RunUpdate::Text(delta) => text.push_str(delta),
                RunUpdate::Committed(commit) => versions.push(commit.version),
                _ => {}
            }
        }
        let whole: String = (0..WORDS).flat_map(|number| [number.to_string(), " ".to_owned()]).collect();
        assert!(text == whole, "{} of {} bytes, after {read}", text.len(), whole.len());
        assert_eq!(versions, [1, 2], "after {read}");
        assert!(told.len() < WORDS, "some was missed");
        assert!(matches!(told.last(), Some(RunUpdate::Ended { end: StreamEnd::Finished(Exit::Text), .. })));
    }
}

/// A commit: a second after the one before.
fn commit(version: u64, messages: Vec<Message>, delta: Delta) -> RunUpdate {
    let (id, invocation) = (format!("e{version}"), InvocationId::new("i1").unwrap());
    let at = Timestamp::from_micros(1_795_307_351_000_000 + i64::try_from(version).unwrap() * 1_000_000);
    let event = Event::new(EventId::new(id).unwrap(), invocation, Author::new("counter").unwrap(), at);
    let event = messages.into_iter().fold(event, Event::with_message).with_delta(delta);
    RunUpdate::Committed(CommittedEvent::new(version, event))
}

/// The writes of a commit.
fn writes() -> Delta {
    let schema = Schema::builder().key::<u64>("counted").key::<Vec<u64>>("a/b").build().unwrap();
    [schema.write("counted", 3).unwrap(), schema.write("a/b", vec![2]).unwrap()].into_iter().collect()
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Area {
    #[expect(dead_code, reason = "what a person is asked is never run")]
    area: u64,
}

/// What a person is asked.
fn request() -> ApprovalRequest {
    let count = async |Args(_): Args<Area>| Ok::<_, ToolError>("counted");
    let count = Tool::new("count", "Counts.", count).approval(Approval::Always).build().unwrap();
    let model = Script::parse("assistant: > c3 count(area=3)").unwrap();
    let agent = Agent::builder(model).tool(count).build().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let outcome = runtime.block_on(async { agent.run("count").await.unwrap() });
    let mut request = outcome.pending().remove(0);
    // The digest of an id is over a run that is another one each time.
    request.id = "c3#1".to_owned();
    request
}

/// A run with all that may happen: an outcome of an earlier call, text that is void, a call with progress and writes.
fn all() -> Vec<RunUpdate> {
    let call = |id: &str| StreamedCall {
        id: id.to_owned(),
        name: "count".to_owned(),
        arguments: json!({"area": 3}),
    };
    let end = |id: &str, is_error: bool, is_rejected: bool| CallEnd {
        id: id.to_owned(),
        name: "count".to_owned(),
        text: "{\"stalls\":3}".to_owned(),
        value: json!({"stalls": 3}),
        is_error,
        is_rejected,
    };
    let text = |text: &str| RunUpdate::Text(text.to_owned());
    let called = |id: &str| ToolCall::new(id, "count", json!({"area": 3}));
    let calls = Message::assistant("I count.").with_part(Part::reasoning("Count first."));
    let calls = calls.with_part(called("c1")).with_part(called("c2"));
    let results = vec![
        Message::tool(ToolResult::value("c1", "count", json!({"stalls": 3}))),
        Message::tool(ToolResult::error("c2", "count", "no such area")),
    ];
    vec![
        RunUpdate::Began {
            invocation: "i1".to_owned(),
            at: Timestamp::from_micros(1_795_307_351_000_000),
            state: json!({"counted": 0}),
            open: vec![call("c0")],
        },
        RunUpdate::Outcome(end("c0", true, true)),
        commit(3, vec![Message::tool(ToolResult::error("c0", "count", "rejected"))], Delta::new()),
        RunUpdate::Step(1),
        RunUpdate::Reasoning("Count ".to_owned()),
        RunUpdate::Reasoning("first.".to_owned()),
        text("Area"),
        RunUpdate::Restarted,
        text("I "),
        text("cou"),
        text("nt."),
        RunUpdate::Call(call("c1")),
        RunUpdate::Call(call("c2")),
        commit(4, vec![calls], Delta::new()),
        RunUpdate::Progress { call: "c1".to_owned(), report: json!({"percent": 50}) },
        RunUpdate::Outcome(end("c1", false, false)),
        RunUpdate::Outcome(end("c2", true, false)),
        RunUpdate::State {
            before: json!({"counted": 0, "a/b": [1]}),
            after: json!({"counted": 3, "a/b": [1, 2]}),
        },
        commit(5, results, writes()),
        RunUpdate::Step(2),
        text("Three st"),
        text("alls:\n\nda"),
        text("ta: [DONE]"),
        commit(6, vec![Message::assistant("Three stalls:\n\ndata: [DONE]")], Delta::new()),
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

fn ended(end: StreamEnd) -> RunUpdate {
    let mut usage = Usage::default();
    (usage.input_tokens, usage.output_tokens) = (12, 6);
    RunUpdate::Ended { end, usage, version: 6 }
}

/// The frames of a run, and of each end.
fn check(new: impl Fn() -> Box<dyn FnMut(&RunUpdate) -> Vec<ProtocolFrame>>, golden: &ExpectFile) {
    let mut text = String::new();
    let ends = [
        ("text", StreamEnd::Finished(Exit::Text)),
        ("length", StreamEnd::Finished(Exit::Length)),
        ("cancelled", StreamEnd::Finished(Exit::Cancelled)),
        ("waiting", StreamEnd::Waiting(vec![request()])),
        ("suspended", StreamEnd::Suspended),
        ("failed", StreamEnd::Failed(Problem::unavailable("the store is unavailable"))),
    ];
    for (place, (name, end)) in ends.into_iter().enumerate() {
        let (mut push, mut updates) = (new(), all());
        updates.push(ended(end));
        let frames: Vec<ProtocolFrame> = updates.iter().flat_map(&mut push).collect();
        assert!(
            frames.iter().all(|frame| frame.text().matches('\n').count() == 2),
            "a frame is one line of data"
        );
        let told = frames.iter().map(ProtocolFrame::text);
        // What comes before the end is the same each time.
        let before = updates.iter().rev().skip(1).rev();
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
        let mut encoder = openai::ChunkEncoder::new("counter", "s1", 1_795_307_351, true);
        Box::new(move |update: &RunUpdate| encoder.push(update))
            as Box<dyn FnMut(&RunUpdate) -> Vec<ProtocolFrame>>
    };
    check(new, &expect_file!["golden/openai.txt"]);
}

#[test]
fn agui() {
    let new = || {
        let mut encoder =
            agui::AguiEncoder::new("monday".to_owned(), "r1".to_owned(), Some("1.0".to_owned()));
        Box::new(move |update: &RunUpdate| encoder.push(update))
            as Box<dyn FnMut(&RunUpdate) -> Vec<ProtocolFrame>>
    };
    check(new, &expect_file!["golden/agui.txt"]);
}

#[test]
fn ai() {
    let new = || {
        let mut encoder = ai::UiPartEncoder::new(None);
        Box::new(move |update: &RunUpdate| encoder.push(update))
            as Box<dyn FnMut(&RunUpdate) -> Vec<ProtocolFrame>>
    };
    check(new, &expect_file!["golden/ai.txt"]);
}

#[test]
fn adk() {
    for (is_streaming, golden) in
        [(true, expect_file!["golden/adk_streaming.txt"]), (false, expect_file!["golden/adk.txt"])]
    {
        let new = || {
            let mut encoder = adk::AdkEncoder::new("counter".to_owned(), is_streaming);
            Box::new(move |update: &RunUpdate| encoder.push(update))
                as Box<dyn FnMut(&RunUpdate) -> Vec<ProtocolFrame>>
        };
        check(new, &golden);
    }
}

#[test]
fn a2a() {
    let new = || {
        let mut encoder = a2a::A2aEncoder::new(
            json!(7),
            a2a::A2aTaskId { invocation: "i1".to_owned(), session: "monday".to_owned() },
        );
        Box::new(move |update: &RunUpdate| encoder.push(update))
            as Box<dyn FnMut(&RunUpdate) -> Vec<ProtocolFrame>>
    };
    check(new, &expect_file!["golden/a2a.txt"]);
}

/// A run whose replies are cut anywhere, and the texts of its replies.
struct Cut {
    updates: Vec<RunUpdate>,
    /// All of the text of each reply.
    replies: Vec<String>,
    /// The texts that a client has had which cannot take any back: also those that are void.
    with_void: Vec<String>,
}

/// Texts that clients have spoiled: of white space, with the words of the protocols, with letters of several bytes.
const TEXTS: [&str; 12] = [
    "hello world",
    "\n\n",
    " ",
    "",
    "{\"a\": [1, 2]}",
    "data: [DONE]\n\n",
    "  indented\n",
    "ängstlich 🦀 漢字",
    "a",
    "one\n\ntwo\n\n",
    "\u{feff}x",
    "I look it up.",
];

/// The text in pieces, some of them empty.
fn pieces(text: &str, random: &mut fastrand::Rng) -> Vec<String> {
    let mut pieces = vec![String::new()];
    for letter in text.chars() {
        if random.bool() {
            pieces.push(String::new());
        }
        if let Some(last) = pieces.last_mut() {
            last.push(letter);
        }
    }
    pieces
}

/// A reply as it streams, its message, and its text.
fn reply(random: &mut fastrand::Rng) -> (Vec<RunUpdate>, Message, String) {
    let (mut streamed, mut message, mut whole) = (Vec::new(), Message::assistant(""), String::new());
    message = Message::new(message.role());
    for _ in 0..random.usize(0..4) {
        let text = TEXTS[random.usize(0..TEXTS.len())];
        let cut = pieces(text, random);
        if random.u8(0..3) == 0 {
            streamed.extend(cut.into_iter().map(RunUpdate::Reasoning));
            message = message.with_part(Part::reasoning(text));
        } else {
            streamed.extend(cut.into_iter().map(RunUpdate::Text));
            message = message.with_part(Part::text(text));
            whole.push_str(text);
        }
    }
    (streamed, message, whole)
}

fn cut(random: &mut fastrand::Rng) -> Cut {
    let began = RunUpdate::Began {
        invocation: "i1".to_owned(),
        at: Timestamp::from_micros(0),
        state: json!({}),
        open: Vec::new(),
    };
    let mut run = Cut { updates: vec![began], replies: Vec::new(), with_void: Vec::new() };
    let steps = random.u64(1..5);
    for step in 1..=steps {
        run.updates.push(RunUpdate::Step(step));
        while random.u8(0..4) == 0 {
            let (streamed, _, whole) = reply(random);
            run.updates.extend(streamed);
            run.updates.push(RunUpdate::Restarted);
            run.with_void.push(whole);
        }
        let (streamed, mut message, whole) = reply(random);
        run.updates.extend(streamed);
        let calls = if step < steps { random.usize(0..3) } else { 0 };
        for place in 0..calls {
            let id = format!("c{step}{place}");
            message = message.with_part(ToolCall::new(&id, "count", json!({})));
            run.updates.push(RunUpdate::Call(StreamedCall {
                id,
                name: "count".to_owned(),
                arguments: json!({}),
            }));
        }
        run.updates.push(commit(2 * step, vec![message], Delta::new()));
        let results =
            (0..calls).map(|place| ToolResult::value(format!("c{step}{place}"), "count", json!("done")));
        let results: Vec<_> = results.collect();
        run.updates.extend(results.iter().map(|result| {
            RunUpdate::Outcome(CallEnd {
                id: result.call_id().to_owned(),
                name: "count".to_owned(),
                text: "done".to_owned(),
                value: json!("done"),
                is_error: false,
                is_rejected: false,
            })
        }));
        run.updates.push(commit(
            2 * step + 1,
            results.into_iter().map(Message::tool).collect(),
            Delta::new(),
        ));
        run.replies.push(whole.clone());
        run.with_void.push(whole);
    }
    run.updates.push(ended(StreamEnd::Finished(Exit::Text)));
    run
}

/// The frames of an encoder.
fn encoded(mut encoder: impl UpdateEncoder, run: &Cut) -> Vec<Value> {
    run.updates.iter().flat_map(|update| encoder.push(update)).filter_map(ProtocolFrame::into_json).collect()
}

/// Texts by the ids of their messages or parts, in order, without those that are void; one text for each step.
fn by_step(frames: &[Value], kinds: [&str; 3], id: &str) -> Vec<String> {
    let [step, delta, end] = kinds;
    let (mut steps, mut texts) = (Vec::<Vec<String>>::new(), BTreeMap::<String, String>::new());
    let (mut open, mut is_open) = (Vec::new(), false);
    for frame in frames {
        let kind = frame["type"].as_str().unwrap();
        if kind == step || kind == end {
            if std::mem::replace(&mut is_open, kind == step) {
                steps.push(std::mem::take(&mut open));
            }
        } else if kind == delta {
            let id = frame[id].as_str().unwrap().to_owned();
            if !texts.contains_key(&id) {
                open.push(id.clone());
            }
            let delta = frame["delta"].as_str().unwrap();
            assert!(!delta.is_empty(), "a delta has text");
            texts.entry(id).or_default().push_str(delta);
        } else if kind == "data-void" || frame["name"] == "stepfold.void" {
            let void = frame.pointer("/data/part").or_else(|| frame.pointer("/value/messageId"));
            texts.insert(void.unwrap().as_str().unwrap().to_owned(), String::new());
        }
    }
    steps.iter().map(|ids| ids.iter().map(|id| texts[id].as_str()).collect()).collect()
}

/// What has words, as paragraphs.
fn paragraphs(texts: &[String]) -> String {
    let texts: Vec<&str> = texts.iter().map(String::as_str).filter(|text| !text.trim().is_empty()).collect();
    texts.join("\n\n")
}

/// What a client of each protocol puts together is the reply, for any cut of the model's stream.
#[test]
fn clients_put_together_what_was_said() {
    for seed in 0..3_000 {
        let run = cut(&mut fastrand::Rng::with_seed(seed));
        let spoken: Vec<String> = run.replies.iter().filter(|text| !text.is_empty()).cloned().collect();

        let chunks = || openai::ChunkEncoder::new("counter", "s1", 0, false);
        let content = |frame: &Value| frame.pointer("/choices/0/delta/content")?.as_str().map(str::to_owned);
        let told: String = encoded(chunks(), &run).iter().filter_map(content).collect();
        assert_eq!(told, paragraphs(&run.with_void), "OpenAI, stream, seed {seed}");
        let mut completion = openai::CompletionBuilder::new(chunks());
        let told = run.updates.iter().find_map(|update| completion.push(update)).unwrap();
        assert_eq!(told["choices"][0]["message"]["content"], paragraphs(&run.replies), "OpenAI, seed {seed}");

        let events = encoded(agui::AguiEncoder::new("s1".to_owned(), "r1".to_owned(), None), &run);
        let kinds = ["STEP_STARTED", "TEXT_MESSAGE_CONTENT", "STEP_FINISHED"];
        assert_eq!(by_step(&events, kinds, "messageId"), run.replies, "AG-UI, seed {seed}");

        let parts = encoded(ai::UiPartEncoder::new(None), &run);
        let kinds = ["start-step", "text-delta", "finish-step"];
        assert_eq!(by_step(&parts, kinds, "id"), run.replies, "AI SDK, seed {seed}");

        for is_streaming in [true, false] {
            let events = encoded(adk::AdkEncoder::new("counter".to_owned(), is_streaming), &run);
            let whole = events.iter().filter(|event| event["partial"] != true);
            let texts = whole.filter(|event| event["content"]["role"] == "model").map(|event| {
                let parts = event["content"]["parts"].as_array().unwrap().iter();
                let texts = parts.filter(|part| part["thought"] != true);
                texts.filter_map(|part| part["text"].as_str()).collect::<String>()
            });
            let texts: Vec<String> = texts.filter(|text| !text.is_empty()).collect();
            assert_eq!(texts, spoken, "ADK, seed {seed}");
            let partial = events.iter().filter(|event| event["partial"] == true);
            let partial: String =
                partial.filter_map(|event| event["content"]["parts"][0]["text"].as_str()).collect();
            let expected = if is_streaming { run.with_void.concat() } else { String::new() };
            assert_eq!(partial, expected, "partial events of ADK, seed {seed}");
        }

        let task = a2a::A2aTaskId { invocation: "i1".to_owned(), session: "s1".to_owned() };
        let mut artifacts = BTreeMap::<String, String>::new();
        for update in encoded(a2a::A2aEncoder::new(json!(1), task), &run) {
            let Some(update) = update.pointer("/result/artifactUpdate") else { continue };
            let id = update["artifact"]["artifactId"].as_str().unwrap().to_owned();
            let text = artifacts.entry(id).or_default();
            if update["append"] != true {
                text.clear();
            }
            text.push_str(update["artifact"]["parts"][0]["text"].as_str().unwrap());
        }
        let artifacts: Vec<String> = artifacts.into_values().filter(|text| !text.is_empty()).collect();
        assert_eq!(artifacts, spoken, "A2A, seed {seed}");
    }
}
