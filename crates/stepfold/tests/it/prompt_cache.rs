//! The explanation of prompt caches beside a provider that keeps its requests as they are sent, in each dialect, and counts
//! the bytes with which each begins as the one before: the record alone tells the same.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use fastrand::Rng;
use serde_json::{Value, json};
use stepfold::agent_loop::AgentBuilder;
use stepfold::agent_loop::test_kit::Script;
use stepfold::prelude::*;
use stepfold::providers::openai::Preset;
use stepfold::providers::probe::{anthropic_body, gemini_body, openai_body, responses_body};
use stepfold::runner::{CachedRequest, PrefixBreak};
use stepfold::session_scopes::MemoryStore;
use stepfold::state_core::chat::{ChatRequest, ModelError, ModelErrorKind, ReplyStream, Role, ToolCall};
use stepfold::tools::{RawArgs, ToolBuilder};
use stepfold::trim::{ApproximateTokens, Pins, Summarize, Trim, Window};

const CONVERSATIONS: Range<u64> = 0..200;

/// The body of a request.
type Dialect = Box<dyn Fn(&ChatRequest) -> Result<Vec<u8>, ModelError>>;

fn dialects() -> [(&'static str, Dialect); 4] {
    [
        ("chat completions", Box::new(openai_body(Preset::OPENAI))),
        ("Responses", Box::new(responses_body())),
        ("Anthropic", Box::new(anthropic_body(false))),
        ("Gemini", Box::new(gemini_body())),
    ]
}

/// A provider that keeps the requests that it has answered, and refuses those that are too long. Its replies are by chance.
#[derive(Clone)]
struct Provider {
    random: Arc<Mutex<Rng>>,
    answered: Arc<Mutex<Vec<ChatRequest>>>,
    limit: usize,
}

impl ChatModel for Provider {
    fn id(&self) -> &'static str {
        "counting"
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        if ApproximateTokens::of_messages(&request.messages) > self.limit {
            let kind = ModelErrorKind::TooLong { limit: Some(self.limit as u64), used: None };
            return ReplyStream::failed(ModelError::new(kind, "too many tokens"));
        }
        let reply = self.reply();
        self.answered.lock().unwrap_or_else(PoisonError::into_inner).push(request);
        Script::new([reply]).respond(ChatRequest::new(Transcript::new()))
    }
}

impl Provider {
    fn reply(&self) -> Message {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        if random.u8(..5) < 2 {
            return Message::assistant("That is all. ".repeat(random.usize(1..5)));
        }
        (0..random.usize(1..4)).fold(Message::new(Role::Assistant), |reply, _| {
            let id = format!("c{}", random.u32(..));
            let (tool, arguments) = match random.u8(..6) {
                0 => ("rename", json!({"name": format!("name {}", random.u8(..3))})),
                _ => ("read", json!({"page": random.usize(..60)})),
            };
            reply.with_part(ToolCall::new(id, tool, arguments))
        })
    }
}

/// The parts of an agent, and those of its next version: other tools in some.
struct Choices {
    builder: AgentBuilder,
    are_tools_listed: bool,
}

fn tools(version: u8) -> Vec<ToolBuilder> {
    let read = |RawArgs(arguments): RawArgs| async move {
        let page = arguments["page"].as_u64().unwrap_or_default();
        Ok::<_, ToolError>("stall ".repeat(usize::try_from(page).unwrap()))
    };
    let rename = |RawArgs(arguments): RawArgs| async move { Ok::<_, ToolError>(arguments["name"].clone()) };
    let page = json!({"type": "object", "properties": {"page": {"type": "integer"}}});
    let name = json!({"type": "object", "properties": {"name": {"type": "string"}}});
    vec![
        Tool::new("read", format!("Reads a page, in version {version}."), read)
            .parameters(page)
            .effect(Effect::Pure),
        Tool::new("rename", "Names the reader.", rename)
            .parameters(name)
            .effect(Effect::Pure)
            .output_to_state("who", ResultSource::Whole),
    ]
}

fn choices(random: &mut Rng, provider: &Provider) -> Choices {
    let trim = match random.u8(..7) {
        0 => Trim::keep_last(random.usize(1..8)),
        1 => Trim::keep_last(2).when_over(random.usize(3..12)),
        2 => Trim::clear_results(random.usize(..2), 20),
        3 => Trim::max_tokens(random.usize(50..600)),
        4 => Trim::keep_last(1).with_pins(Pins::messages(6).results_of(["rename"])),
        5 => Trim::clear_results(1, 20).then(Trim::cap_messages(random.usize(4..12))),
        _ => Trim::none(),
    };
    let schema = Schema::builder().key::<String>("who").build().unwrap();
    let instructions = ["You read for {who?}.", "You read."][random.usize(..2)];
    let mut builder = Agent::builder(provider.clone()).schema(schema).instructions(instructions).trim(trim);
    if random.bool() {
        let window = Window::new(random.usize(150..600)).shrink_to_percent(random.u8(30..90));
        builder = builder.window(if random.bool() { window.clear_results(1) } else { window });
    }
    if random.u8(..3) == 0 {
        let summarize = Summarize::beyond(Trim::keep_last(random.usize(1..5)));
        let summaries = Script::parse(&"assistant: Pages were read.\n".repeat(100)).unwrap();
        builder = builder.summary_model(summaries).summarize(summarize);
    }
    Choices { builder, are_tools_listed: random.u8(..3) == 0 }
}

impl Choices {
    /// The agent with these tools; listed at each step, they are others in the middle of a run too.
    fn agent(&self, version: u8, random: &mut Rng) -> Agent {
        if !self.are_tools_listed {
            return self.builder.clone().tools(tools(version)).build().unwrap();
        }
        let random = Mutex::new(random.fork());
        let listed = Toolset::dynamic_with("remote", move |_| {
            let is_other = random.lock().unwrap_or_else(PoisonError::into_inner).u8(..8) == 0;
            let listed = tools(if is_other { version + 100 } else { version });
            async move { Ok(listed.into_iter().map(ToolBuilder::build).collect::<Result<Vec<_>, _>>()?) }
        });
        self.builder.clone().tools(listed).build().unwrap()
    }
}

/// A conversation of some turns, under agents that change between them; what was sent, and how it is explained.
async fn converse(seed: u64) -> (Vec<ChatRequest>, Vec<CachedRequest>) {
    let mut random = Rng::with_seed(seed);
    let provider = Provider {
        random: Arc::new(Mutex::new(random.fork())),
        answered: Arc::default(),
        limit: if random.u8(..3) == 0 { random.usize(300..900) } else { usize::MAX },
    };
    let choices = choices(&mut random, &provider);
    let store = Arc::new(MemoryStore::new());
    let (mut version, mut explained) = (0, Vec::new());
    for turn in 0..random.usize(2..7) {
        version += u8::from(random.u8(..5) == 0);
        let runner = Runner::builder(choices.agent(version, &mut random), Arc::clone(&store)).build();
        let session = runner.session("ada", "s1").await.unwrap();
        // A request that no rescue makes short enough ends the turn.
        let _ = session.run(format!("question {turn}: {}", "which stall? ".repeat(random.usize(..6)))).await;
        explained = session.prompt_cache().await.unwrap();
    }
    let answered = provider.answered.lock().unwrap_or_else(PoisonError::into_inner).clone();
    (answered, explained)
}

/// The prompt as a provider reads it: tools, instructions, and then the parts of the messages, in the order of the body; and the
/// bytes of the tools. None if the dialect cannot say the request.
fn prompt(dialect: &Dialect, request: &ChatRequest) -> Option<(Vec<u8>, usize)> {
    let body: Value = serde_json::from_slice(&dialect(request).ok()?).unwrap();
    let mut prompt = Vec::new();
    let mut add = |value: &Value| {
        prompt.extend(value.to_string().into_bytes());
        prompt.push(b'\n');
    };
    add(&body["tools"]);
    for instructions in ["system", "instructions", "systemInstruction", "system_instruction"] {
        add(&body[instructions]);
    }
    let items = ["messages", "input", "contents"].iter().find_map(|name| body[*name].as_array())?;
    for item in items {
        match (&item["content"], &item["parts"]) {
            (Value::Array(parts), _) | (_, Value::Array(parts)) => {
                for part in parts {
                    add(&json!([item["role"], part]));
                }
            }
            (Value::String(text), _) if item["role"] == "user" => {
                add(&json!(["user", {"type": "text", "text": text}]));
            }
            _ => add(item),
        }
    }
    Some((prompt, body["tools"].to_string().len()))
}

/// The number of equal bytes at the beginning.
fn shared_bytes(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

/// The first `count` messages of a request.
fn beginning(request: &ChatRequest, count: usize) -> ChatRequest {
    let mut beginning = request.clone();
    beginning.messages = request.messages.iter().take(count).cloned().collect();
    beginning
}

/// The cause of a break after so many shared messages, from what is sent alone.
fn cause(before: &ChatRequest, now: &ChatRequest, shared: usize) -> Option<PrefixBreak> {
    if before.tools != now.tools {
        return Some(PrefixBreak::Tools);
    }
    let broken = before.messages.get(shared)?;
    let Some(instead) = now.messages.get(shared) else { return Some(PrefixBreak::LeftOut) };
    let is_cleared = |message: &Message| {
        message.tool_result().is_some_and(|result| result.text().ends_with("is no longer shown.]"))
    };
    let is_summary = |message: &Message| message.text().starts_with("[Summary of ");
    let call = |message: &Message| message.tool_result().map(|result| result.call_id().to_owned());
    Some(match (call(broken), call(instead)) {
        _ if instead.role() == Role::System => PrefixBreak::Instructions,
        _ if is_summary(instead) || is_summary(broken) => PrefixBreak::Summary,
        (Some(one), Some(other)) if one == other && is_cleared(instead) => PrefixBreak::Cleared,
        (Some(one), Some(other)) if one == other && is_cleared(broken) => PrefixBreak::ShownAgain,
        // Messages that are shown again were before what was shown: questions have numbers, and calls ids.
        _ if now.messages.iter().skip(shared).any(|message| is_same(message, broken)) => {
            PrefixBreak::ShownAgain
        }
        _ => PrefixBreak::LeftOut,
    })
}

/// Whether a message is the same one, in full or as a line. Replies without calls say nothing about that.
fn is_same(one: &Message, other: &Message) -> bool {
    let call = |message: &Message| {
        let result = message.tool_result().map(|result| result.call_id().to_owned());
        result.or_else(|| message.tool_calls().next().map(|call| call.id.clone()))
    };
    match (call(one), call(other)) {
        (None, None) => one == other && one.role() == Role::User,
        (one_id, other_id) => one_id == other_id && one.role() == other.role(),
    }
}

#[tokio::test]
async fn a_provider_that_counts_bytes_finds_the_same() {
    let dialects = dialects();
    let mut causes = std::collections::BTreeMap::new();
    for seed in CONVERSATIONS {
        let (answered, explained) = converse(seed).await;
        assert_eq!(answered.len(), explained.len(), "conversation {seed}");
        for (place, pair) in answered.windows(2).enumerate() {
            let ([before, now], told) = (pair, &explained[place + 1]) else { unreachable!() };
            let at = format!("conversation {seed}, request {}: {told:?}", place + 1);
            assert_eq!(told.tokens, ApproximateTokens::of_messages(&now.messages), "{at}");
            let size = |count: &usize| ApproximateTokens::of_messages(now.messages.iter().take(*count));
            let shared = (0..=now.messages.len()).find(|count| size(count) == told.shared_tokens).expect(&at);
            let lost = ApproximateTokens::of_messages(&before.messages) - told.shared_tokens;
            assert_eq!(told.lost_tokens, lost, "{at}");
            for (name, dialect) in &dialects {
                compare_bytes(&format!("{name}, {at}"), dialect, before, now, shared);
            }
            assert_eq!(
                told.broken_by,
                cause(before, now, shared),
                "{at}\n{}\n--\n{}",
                before.messages,
                now.messages
            );
            *causes
                .entry(told.broken_by.map_or_else(|| "none".to_owned(), |cause| cause.to_string()))
                .or_insert(0) += 1;
        }
    }
    for cause in [
        "none",
        "other tools",
        "other instructions",
        "a summary",
        "messages left out",
        "results cleared",
        "messages shown again",
    ] {
        assert!(causes.get(cause).is_some_and(|count| *count >= 3), "{causes:?}");
    }
}

/// The bytes of the shared messages are the longest beginning of whole messages that both requests have.
fn compare_bytes(at: &str, dialect: &Dialect, before: &ChatRequest, now: &ChatRequest, shared: usize) {
    let ((bytes_before, _), (bytes, of_tools)) =
        (prompt(dialect, before).unwrap(), prompt(dialect, now).unwrap());
    let common = shared_bytes(&bytes_before, &bytes);
    if common < of_tools {
        assert_eq!(shared, 0, "{at}: only tools are shared");
        return;
    }
    let is_whole = shared == before.messages.len();
    assert_eq!(common == bytes_before.len(), is_whole, "{at}: {common} of {} bytes", bytes_before.len());
    for count in shared.saturating_sub(2)..=now.messages.len().min(shared + 2) {
        // Some dialects say a call without its result in another way, or not at all.
        let beginning = prompt(dialect, &beginning(now, count)).map(|(beginning, _)| beginning);
        if let Some(beginning) = beginning.filter(|beginning| bytes.starts_with(beginning)) {
            assert_eq!(beginning.len() <= common, count <= shared, "{at}: {count} messages, {common} bytes");
        }
    }
}
