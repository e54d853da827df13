//! After any stop of a run a next message is accepted, and every request of every run is accepted by every server.
//!
//! A model that writes each request for eight servers, checks it by their rules, and answers with something odd, stands
//! under the whole runner: with tools that fail and are silent, approvals, limits, trims, cancellations, forks at any version
//! (what a killed process leaves), rewinds and abandoned runs.

use std::collections::VecDeque;
use std::sync::{Arc, LazyLock, Mutex};

use proptest::prelude::*;
use serde_json::{Value, json};
use stepfold::prelude::*;
use stepfold::providers::anthropic::Anthropic;
use stepfold::providers::check::{KnownServer, faults, unsigned_call};
use stepfold::providers::gemini::Gemini;
use stepfold::providers::openai::{OpenAi, OpenAiResponses, Preset};
use stepfold::session_scopes::{EventRange, MemoryStore};
use stepfold::state_core::chat::{
    Arguments, ChatRequest, Chunk, Content, FinishReason, Media, Message, ModelError, ModelErrorKind, Part,
    ReplyStream, Role, ToolCall,
};
use stepfold::tools::{RawArgs, ResultText, ToolBuilder};
use stepfold::trim::Trim;

static MODELS: LazyLock<Vec<(KnownServer, Box<dyn ChatModel>)>> = LazyLock::new(|| {
    let chat = |preset: Preset| -> Box<dyn ChatModel> {
        Box::new(OpenAi::preset(&preset, "m").key("k").build().unwrap())
    };
    vec![
        (KnownServer::OpenAiChat, chat(Preset::OPENAI)),
        (KnownServer::OpenAiResponses, Box::new(OpenAiResponses::new("m", "k").unwrap())),
        (KnownServer::Anthropic, Box::new(Anthropic::new("m", "k").build().unwrap())),
        (KnownServer::Gemini, Box::new(Gemini::new("gemini-3-flash", "k").build().unwrap())),
        (KnownServer::Mistral, chat(Preset::MISTRAL)),
        (KnownServer::Kimi, chat(Preset::MOONSHOT)),
        (KnownServer::DeepSeek, chat(Preset::DEEPSEEK)),
        (KnownServer::QwenTemplate, chat(Preset::VLLM)),
    ]
});

/// Writes requests for all servers, keeps what they refuse, and answers what it was told to.
#[derive(Clone, Default)]
struct Everywhere(Arc<Mutex<Known>>);

#[derive(Default)]
struct Known {
    replies: VecDeque<OddReply>,
    requests: usize,
    refused: Vec<String>,
}

impl ChatModel for Everywhere {
    fn id(&self) -> &'static str {
        "everywhere/m"
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        let mut known = self.0.lock().unwrap();
        known.requests += 1;
        for (server, model) in MODELS.iter() {
            known.refused.extend(refused(*server, &**model, &request));
        }
        let number = known.requests;
        known.replies.pop_front().unwrap_or_default().stream(number)
    }
}

/// What a server refuses of a request.
fn refused(server: KnownServer, model: &dyn ChatModel, request: &ChatRequest) -> Vec<String> {
    let body = match model.wire_request(request).unwrap() {
        // Media that the server has no form for, in the message that was just said: its sender is told.
        Err(error) if *error.kind() == ModelErrorKind::Unsupported => return Vec::new(),
        Err(error) => return vec![format!("{server:?}: {error}")],
        Ok(wired) => wired.body,
    };
    let parsed: Value = serde_json::from_str(&body).unwrap();
    let mut broken = faults(server, &parsed);
    broken.extend((server == KnownServer::Gemini).then(|| unsigned_call(&parsed)).flatten());
    broken.iter().map(|fault| format!("{server:?}: {fault}\n{body}")).collect()
}

/// What a model says. By default, that it is done.
#[derive(Clone, Debug, Default)]
struct OddReply {
    parts: Vec<OddPart>,
    end: usize,
    server: usize,
}

#[derive(Clone, Debug)]
enum OddPart {
    Text(&'static str),
    Reasoning(&'static str),
    Call(&'static str, &'static str),
    Image,
}

const SERVERS: [&str; 5] = ["openai", "anthropic", "gemini", "https://gateway.test", ""];

impl OddReply {
    fn stream(self, number: usize) -> ReplyStream {
        let server = SERVERS[self.server];
        let has_calls = self.parts.iter().any(|part| matches!(part, OddPart::Call(..)));
        let parts = self.parts.iter().enumerate().map(|(at, part)| match part {
            OddPart::Text(text) => Part::text(*text),
            OddPart::Reasoning(text) => Part::reasoning(*text)
                .with_extra("signature", "s")
                .with_extra("openai", json!({"type": "reasoning", "summary": [], "encrypted_content": "e"})),
            OddPart::Call(name, arguments) => {
                ToolCall::new(format!("c:{number}.{at}"), *name, Arguments::parse(*arguments)).into()
            }
            OddPart::Image => Content::Image(Media::base64("aGk=", "image/png")).into(),
        });
        let message = match self.parts.is_empty() && self.end == 0 {
            true => Message::assistant("done"),
            false => Message::from_parts(Role::Assistant, parts.collect()),
        };
        let message = if server.is_empty() { message } else { message.with_extra("server", server) };
        let mut chunks: Vec<Result<Chunk, ModelError>> = Chunk::of(&message).into_iter().map(Ok).collect();
        match self.end {
            5 => chunks.push(Ok(Chunk::Finished(FinishReason::Length))),
            6 => chunks.push(Ok(Chunk::Finished(FinishReason::ContentFilter))),
            7 => chunks.push(Ok(Chunk::Finished(FinishReason::Other("odd".to_owned())))),
            8 => chunks.push(Err(ModelError::new(ModelErrorKind::Transient, "the server is away"))),
            // The stream breaks off.
            9 => {}
            _ if has_calls => chunks.push(Ok(Chunk::Finished(FinishReason::ToolCalls))),
            _ => chunks.push(Ok(Chunk::Finished(FinishReason::Stop))),
        }
        ReplyStream::from_results(chunks)
    }
}

fn odd_reply() -> impl Strategy<Value = OddReply> {
    let text = prop::sample::select(vec!["", " ", "\n\n", "area 3", "I look."]);
    let names =
        vec!["search", "silent", "picture", "pay", "finish", "multi_tool_use.parallel", "get weather", ""];
    let call =
        (prop::sample::select(names), prop::sample::select(vec!["{}", "{\"q\": 1}", "", "{\"q\": ", "[1]"]));
    let part = prop_oneof![
        3 => text.clone().prop_map(OddPart::Text),
        1 => text.prop_map(OddPart::Reasoning),
        3 => call.prop_map(|(name, arguments)| OddPart::Call(name, arguments)),
        1 => Just(OddPart::Image),
    ];
    (prop::collection::vec(part, 0..4), 0..10_usize, 0..SERVERS.len())
        .prop_map(|(parts, end, server)| OddReply { parts, end, server })
}

/// What people do with a session.
#[derive(Clone, Debug)]
enum Act {
    Say(&'static str),
    Show,
    /// Says something, and cancels the run at once.
    Cancel,
    Approve,
    Reject(&'static str),
    Resume,
    Abandon,
    /// Continues in a fork at this part of the history: what a process leaves that is killed there.
    Fork(f64),
    Rewind(f64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => prop::sample::select(vec!["which area?", "", " ", "\n"]).prop_map(Act::Say),
        1 => Just(Act::Show),
        1 => Just(Act::Cancel),
        2 => Just(Act::Approve),
        1 => prop::sample::select(vec!["", "no"]).prop_map(Act::Reject),
        1 => Just(Act::Resume),
        1 => Just(Act::Abandon),
        3 => (0.0..1.0).prop_map(Act::Fork),
        1 => (0.0..1.0).prop_map(Act::Rewind),
    ]
}

fn agent(model: Everywhere) -> Agent {
    let any = |tool: ToolBuilder| tool.parameters(json!({"type": "object"}));
    let search = Tool::new("search", "Finds.", |_: RawArgs| async { Ok::<_, ToolError>(json!("")) });
    let silent = Tool::new("silent", "Fails.", |_: RawArgs| async { Err::<Value, _>(ToolError::new(" ")) });
    let parts = || vec![Part::text("\n"), Content::Image(Media::base64("aGk=", "image/png")).into()];
    let picture = Tool::new("picture", "Draws.", |_: RawArgs| async { Ok::<_, ToolError>(json!(1)) })
        .output_to_string(ResultText::parts(ResultSource::Whole, move |_| Ok(parts())));
    let pay = Tool::new("pay", "Pays.", |_: RawArgs| async { Ok::<_, ToolError>(json!(null)) });
    let finish = Tool::new("finish", "Ends.", |_: RawArgs| async { Ok::<_, ToolError>(json!("42")) });
    Agent::builder(model)
        .instructions("Be kind.")
        .tools([
            any(search).build().unwrap(),
            any(silent).build().unwrap(),
            any(picture).build().unwrap(),
            any(pay).approval(Approval::Always).build().unwrap(),
            any(finish).build().unwrap(),
        ])
        .exit_on(["finish"])
        .max_steps(4)
        .trim(Trim::keep_last(12))
        .build()
        .unwrap()
}

/// Does it, whatever comes of it.
async fn act_on(session: &mut SessionHandle, act: &Act, number: usize) {
    match act {
        Act::Say(text) => drop(session.run(*text).await),
        Act::Show => {
            let look = Message::user("look").with_part(Content::File(Media::base64("aGk=", "audio/mpeg")));
            drop(session.run(look).await);
        }
        Act::Cancel => {
            if let Ok(run) = session.send("and this?").await {
                run.cancel();
                drop(run.await);
            }
        }
        Act::Approve => decide(session, &Decision::Approve).await,
        Act::Reject(reason) => decide(session, &Decision::reject(*reason)).await,
        Act::Resume => {
            if let Ok(run) = session.resume().start() {
                drop(run.await);
            }
        }
        Act::Abandon => drop(session.abandon().await),
        Act::Fork(part) => {
            let version = version(session, *part).await;
            if let Ok(fork) = session.fork(format!("fork{number}"), Some(version)).await {
                *session = fork;
            }
        }
        Act::Rewind(part) => {
            let version = version(session, *part).await;
            drop(session.rewind(version).await);
        }
    }
}

async fn version(session: &SessionHandle, part: f64) -> u64 {
    let head = session.read(EventRange::None).await.unwrap().version;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "small"
    )]
    let version = (head as f64 * part).round() as u64;
    version
}

async fn decide(session: &SessionHandle, decision: &Decision) {
    let pending = session.pending().await.unwrap_or_default();
    let decide = |resume: stepfold::runner::ResumeRun, id: &str| resume.decide(id, decision.clone());
    let resume = pending.iter().fold(session.resume(), |resume, request| decide(resume, &request.id));
    if let Ok(run) = resume.start() {
        drop(run.await);
    }
}

/// Ends what is open, and says one thing more: the session is never lost.
async fn say_more(session: &SessionHandle, model: &Everywhere) -> Result<(), String> {
    model.0.lock().unwrap().replies.clear();
    for _ in 0..3 {
        if session.pending().await.is_ok_and(|pending| !pending.is_empty()) {
            decide(session, &Decision::Approve).await;
        }
    }
    let before = model.0.lock().unwrap().requests;
    let said = session.run("so?").await.map_err(|error| error.to_string())?;
    let after = model.0.lock().unwrap().requests;
    match (&*said.text(), after > before) {
        ("done", true) => Ok(()),
        (text, asked) => Err(format!("said `{text}`, asked {asked}")),
    }
}

fn check(replies: Vec<OddReply>, acts: &[Act]) -> Result<(), TestCaseError> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let model = Everywhere::default();
        model.0.lock().unwrap().replies = replies.into();
        let runner = Runner::builder(agent(model.clone()), MemoryStore::new()).build();
        let mut session = runner.session("ada", "s1").await.unwrap();
        for (number, act) in acts.iter().enumerate() {
            act_on(&mut session, act, number).await;
        }
        let said = say_more(&session, &model).await;
        let refused = std::mem::take(&mut model.0.lock().unwrap().refused);
        prop_assert!(refused.is_empty(), "{}", refused.join("\n"));
        prop_assert!(said.is_ok(), "{:?}", said);
        Ok(())
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn after_any_stop_the_next_message_is_accepted_everywhere(
        replies in prop::collection::vec(odd_reply(), 0..12),
        acts in prop::collection::vec(act(), 1..7),
    ) {
        check(replies, &acts)?;
    }
}

/// As many as are asked for; else 1,000.
#[expect(clippy::disallowed_methods, reason = "proptest reads the same variable")]
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(1_000)
}
