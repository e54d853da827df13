//! Every request is accepted by the server it goes to, whatever was said before, by whom.

use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::{Value, json};
use stepfold_providers::anthropic::Anthropic;
use stepfold_providers::check::{KnownServer, faults, unsigned_call};
use stepfold_providers::gemini::Gemini;
use stepfold_providers::openai::{OpenAi, OpenAiResponses, Preset};
use stepfold_state_core::chat::{
    Arguments, ChatModel, ChatRequest, Content, Media, Message, ModelParams, Part, Role, ToolCall,
    ToolContent, ToolResult, Transcript, UnknownPart, WireRequest,
};

/// The servers that replies came from, as messages name them. The last one is unknown.
const SERVERS: [&str; 6] = ["openai", "anthropic", "gemini", "openrouter", "https://gateway.test", ""];

type Model = (KnownServer, &'static str, Box<dyn ChatModel>);

/// A model of each server that is checked, and the name of that server in messages.
static MODELS: LazyLock<Vec<Model>> = LazyLock::new(models);

fn models() -> Vec<Model> {
    let chat = |preset: Preset| -> Box<dyn ChatModel> {
        let model = OpenAi::preset(&preset, "m").key("k");
        Box::new(model.build().unwrap())
    };
    vec![
        (KnownServer::OpenAiChat, "openai", chat(Preset::OPENAI)),
        (KnownServer::OpenAiResponses, "openai", Box::new(OpenAiResponses::new("m", "k").unwrap())),
        (KnownServer::Anthropic, "anthropic", Box::new(Anthropic::new("m", "k").build().unwrap())),
        (KnownServer::Gemini, "gemini", Box::new(Gemini::new("gemini-3-flash", "k").build().unwrap())),
        (KnownServer::Mistral, "mistral", chat(Preset::MISTRAL)),
        (KnownServer::Kimi, "moonshot", chat(Preset::MOONSHOT)),
        (KnownServer::DeepSeek, "deepseek", chat(Preset::DEEPSEEK)),
        (KnownServer::QwenTemplate, "vllm", chat(Preset::VLLM)),
    ]
}

/// Text that some server refuses, and some that none does.
fn text() -> impl Strategy<Value = String> {
    let odd = ["", " ", "\n\n", "\t", "\u{a0}", "\u{200b}", "a\n", " a", "{}", "\u{0}"];
    prop_oneof![2 => prop::sample::select(odd.to_vec()).prop_map(str::to_owned), 3 => "[a-z]{1,6}( [a-z]{1,6})?"]
}

fn media() -> impl Strategy<Value = Part> {
    let kinds =
        prop::sample::select(vec!["image/png", "application/pdf", "audio/mpeg", "video/mp4", "text/plain"]);
    (kinds, 0..3).prop_map(|(kind, source)| {
        let media = match source {
            0 => Media::base64("aGk=", kind),
            1 => Media::url("https://x.test/a"),
            _ => Media::file_id("file-1"),
        };
        if kind.starts_with("image") { Content::Image(media).into() } else { Content::File(media).into() }
    })
}

/// What a server adds to a part: recognisable as its own.
fn extras(part: Part, server: &str) -> Part {
    let mark = format!("secret-of-{server}");
    match &part.content {
        Content::Reasoning(_) => part
            .with_extra("signature", mark.clone())
            .with_extra("thought_signature", mark.clone())
            .with_extra("openai", json!({"type": "reasoning", "summary": [], "encrypted_content": mark})),
        Content::ToolCall(_) => part
            .with_extra("thought_signature", mark.clone())
            .with_extra("extra_content", json!({"google": {"thought_signature": mark}})),
        _ => part,
    }
}

#[derive(Clone, Debug)]
enum ReplyPart {
    Text(String),
    Reasoning(String),
    Call(String, String),
    Media(Part),
    Unknown(&'static str),
}

fn reply_part() -> impl Strategy<Value = ReplyPart> {
    let names = ["search", "multi_tool_use.parallel", "get weather", "", "21st", "-x", "ab"];
    let long = "n".repeat(70);
    let name =
        prop_oneof![prop::sample::select(names.to_vec()).prop_map(str::to_owned), Just(long), "[a-z]{1,8}"];
    let arguments = prop::sample::select(vec!["{}", r#"{"q": 1}"#, "", "{\"q\": ", "[1]", "null", "x"]);
    prop_oneof![
        3 => text().prop_map(ReplyPart::Text),
        2 => text().prop_map(ReplyPart::Reasoning),
        3 => (name, arguments).prop_map(|(name, text)| ReplyPart::Call(name, text.to_owned())),
        1 => media().prop_map(ReplyPart::Media),
        1 => prop::sample::select(vec!["anthropic", "openai", "gemini"]).prop_map(ReplyPart::Unknown),
    ]
}

fn unknown(dialect: &str, server: &str, id: &str) -> Part {
    let block = match dialect {
        "anthropic" => json!({"type": "compaction", "content": format!("secret-of-{server}")}),
        "openai" => json!({"type": "web_search_call", "id": id, "query": format!("secret-of-{server}")}),
        _ => json!({"executableCode": {"code": format!("secret-of-{server}")}}),
    };
    let fields = [(dialect.to_owned(), block)].into_iter().collect();
    Content::Unknown(UnknownPart::new(fields).unwrap()).into()
}

fn result() -> impl Strategy<Value = ToolContent> {
    let value =
        prop_oneof![Just(json!(null)), Just(json!(12)), Just(json!({})), text().prop_map(Value::from)];
    let part = prop_oneof![text().prop_map(Part::text), media()];
    prop_oneof![
        2 => value.prop_map(ToolContent::Value),
        1 => text().prop_map(ToolContent::Error),
        2 => prop::collection::vec(part, 0..3).prop_map(ToolContent::Parts),
    ]
}

/// A reply of a server, and the results of its calls.
#[derive(Clone, Debug)]
struct Step {
    server: usize,
    parts: Vec<ReplyPart>,
    results: Vec<ToolContent>,
    /// What its ids look like.
    ids: &'static str,
}

fn step() -> impl Strategy<Value = Step> {
    let ids = prop::sample::select(vec![
        "call_",
        "c:",
        "toolu/",
        "a-very-long-id-that-is-longer-than-any-server-takes-it-to-be-at-all-",
    ]);
    let parts = prop::collection::vec(reply_part(), 0..5);
    (0..SERVERS.len(), parts, prop::collection::vec(result(), 5), ids)
        .prop_map(|(server, parts, results, ids)| Step { server, parts, results, ids })
}

/// A message before a turn.
#[derive(Clone, Debug)]
enum Said {
    User(Vec<Part>),
    System(String),
}

fn said() -> impl Strategy<Value = Said> {
    let part = prop_oneof![4 => text().prop_map(Part::text), 1 => media()];
    prop_oneof![
        5 => prop::collection::vec(part, 0..3).prop_map(Said::User),
        1 => text().prop_map(Said::System),
    ]
}

fn write(step: &Step, messages: &mut Transcript) {
    let server = SERVERS[step.server];
    let (mut parts, mut results) = (Vec::new(), Vec::new());
    for (at, part) in step.parts.iter().enumerate() {
        let part = match part {
            ReplyPart::Text(text) => Part::text(text.clone()),
            ReplyPart::Reasoning(text) => Part::reasoning(text.clone()),
            ReplyPart::Call(name, arguments) => {
                let id = format!("{}{}-{at}", step.ids, messages.len());
                results.push(ToolResult::new(&id, name, step.results[at].clone()));
                ToolCall::new(id, name, Arguments::parse(arguments.clone())).into()
            }
            ReplyPart::Media(part) => part.clone(),
            ReplyPart::Unknown(dialect) => unknown(dialect, server, &format!("ws_{}-{at}", messages.len())),
        };
        parts.push(extras(part, server));
    }
    let message = Message::from_parts(Role::Assistant, parts);
    let details = json!([{"type": "reasoning.encrypted", "data": format!("secret-of-{server}")}]);
    let message = message.with_extra("reasoning_details", details);
    messages.push(if server.is_empty() { message } else { message.with_extra("server", server) });
    for result in results {
        messages.push(Message::tool(result));
    }
}

/// Any conversation that an agent can have, with models of any servers, that the user continues.
fn conversation() -> impl Strategy<Value = Transcript> {
    let turn = (prop::collection::vec(said(), 1..3), prop::collection::vec(step(), 0..4));
    prop::collection::vec(turn, 1..4).prop_map(|turns| {
        let mut messages = Transcript::new();
        for (said, steps) in turns {
            for said in said {
                messages.push(match said {
                    Said::User(parts) => Message::from_parts(Role::User, parts),
                    Said::System(text) => Message::system(text),
                });
            }
            for step in &steps {
                write(step, &mut messages);
            }
        }
        messages
    })
}

/// The body, and what is wrong with it.
fn check(
    server: KnownServer,
    name: &str,
    model: &dyn ChatModel,
    request: &ChatRequest,
) -> Result<(), TestCaseError> {
    let WireRequest { body, changes, .. } = match model.wire_request(request).unwrap() {
        Ok(wired) => wired,
        Err(error) => return Err(TestCaseError::fail(format!("{server:?}: {error}"))),
    };
    let parsed: Value = serde_json::from_str(&body).unwrap();
    let mut broken = faults(server, &parsed);
    broken.extend((server == KnownServer::Gemini).then(|| unsigned_call(&parsed)).flatten());
    let shown: Vec<String> = broken.iter().map(ToString::to_string).collect();
    prop_assert!(shown.is_empty(), "{:?}: {}\n{}", server, shown.join("\n"), body);
    for other in SERVERS.iter().filter(|other| **other != name) {
        let secret = format!("secret-of-{other}\"");
        prop_assert!(!body.contains(&secret), "{:?} is shown {}\n{}", server, secret, body);
    }
    for change in changes {
        prop_assert!(!change.change.is_empty());
    }
    Ok(())
}

proptest! {
    #[test]
    fn every_server_accepts_every_conversation(messages in conversation(), thinks in any::<bool>()) {
        prop_assert!(messages.check().is_ok(), "{:?}", messages.check());
        let messages = messages.with(Message::user("so?"));
        for (server, name, model) in MODELS.iter() {
            let mut params = ModelParams::default();
            if thinks && *server == KnownServer::Anthropic {
                params = params.with_extra("thinking", json!({"type": "enabled", "budget_tokens": 1024}));
            }
            check(*server, name, &**model, &ChatRequest::new(messages.clone()).with_params(params))?;
        }
    }

    /// In the middle of a turn as well, whichever model began it.
    #[test]
    fn every_server_continues_every_turn(messages in conversation(), step in step(), thinks in any::<bool>()) {
        let mut messages = messages.with(Message::user("so?"));
        let mut step = step;
        step.parts.truncate(4);
        step.parts.push(ReplyPart::Call("search".to_owned(), "{}".to_owned()));
        write(&step, &mut messages);
        for (server, name, model) in MODELS.iter() {
            let mut params = ModelParams::default();
            if thinks && *server == KnownServer::Anthropic {
                params = params.with_extra("thinking", json!({"type": "enabled", "budget_tokens": 1024}));
            }
            check(*server, name, &**model, &ChatRequest::new(messages.clone()).with_params(params))?;
        }
    }
}
