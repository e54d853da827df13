//! Requests that are too long, in the words of the servers of each dialect, over HTTP: the run is rescued.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use stepfold::agent_loop::{AgentBuilder, Outcome, Recording, RunError, RunFault};
use stepfold::prelude::*;
use stepfold::providers::anthropic::Anthropic;
use stepfold::providers::check::{KnownServer, faults};
use stepfold::providers::gemini::Gemini;
use stepfold::providers::openai::{OpenAi, OpenAiResponses};
use stepfold::state_core::chat::ModelErrorKind;
use stepfold::tools::{RawArgs, ToolBuilder};
use stepfold::trim::Window;

use crate::http_peer::{Response, serve};

/// The tokens that a server takes, of three bytes each, and the number of files that the model reads: ten and more are refused.
const LIMIT: usize = 8_000;
const FILES: usize = 14;

/// The words of a server for a request of too many tokens. `LIMIT` and `USED` stand for numbers, as the server writes them.
struct Words {
    server: KnownServer,
    status: u16,
    body: &'static str,
    reports: Reports,
}

/// The sizes that are read from an error.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Reports {
    Both,
    Limit,
    Nothing,
}

const fn words(server: KnownServer, status: u16, reports: Reports, body: &'static str) -> Words {
    Words { server, status, body, reports }
}

const CHAT: KnownServer = KnownServer::OpenAiChat;
const RESPONSES: KnownServer = KnownServer::OpenAiResponses;
const CLAUDE: KnownServer = KnownServer::Anthropic;
const GEMINI: KnownServer = KnownServer::Gemini;

const ROWS: &[Words] = &[
    words(
        CHAT,
        400,
        Reports::Both,
        r#"{"error":{"message":"This model's maximum context length is LIMIT tokens. However, your messages resulted in USED tokens. Please reduce the length of the messages.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}"#,
    ),
    words(
        CHAT,
        400,
        Reports::Both,
        r#"{"error":{"message":"This model's maximum context length is LIMIT tokens, however you requested USED tokens (USED in your prompt; 0 for the completion). Please reduce your prompt; or completion length.","type":"invalid_request_error","param":null,"code":null}}"#,
    ),
    words(
        CHAT,
        400,
        Reports::Both,
        r#"{"object":"error","message":"You passed USED input tokens and requested 0 output tokens. However, the model's context length is only LIMIT tokens, resulting in a maximum input length of LIMIT tokens. Please reduce the length of the input prompt.","type":"BadRequestError","code":400}"#,
    ),
    words(
        CHAT,
        400,
        Reports::Both,
        r#"{"error":{"message":"The decoder prompt (length USED) is longer than the maximum model length of LIMIT. Make sure that `max_model_len` is no smaller than the number of text tokens.","type":"BadRequestError","param":null,"code":400}}"#,
    ),
    words(
        CHAT,
        400,
        Reports::Both,
        r#"{"error":{"code":400,"message":"the request exceeds the available context size, try increasing it","type":"exceed_context_size_error","n_prompt_tokens":USED,"n_ctx":LIMIT}}"#,
    ),
    words(
        CHAT,
        400,
        Reports::Both,
        r#"{"error":"Trying to keep the first USED tokens when context the overflows. However, the model is loaded with context length of only LIMIT tokens, which is not enough. Try to load the model with a larger context length, or provide a shorter input"}"#,
    ),
    words(
        CHAT,
        400,
        Reports::Both,
        r#"{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":"{\"error\":{\"message\":\"Requested input length USED exceeds maximum input length LIMIT\"}}","provider_name":"DeepInfra"}}}"#,
    ),
    words(
        CHAT,
        400,
        Reports::Both,
        r#"{"code":"Client specified an invalid argument","error":"This model's maximum prompt length is LIMIT but the request contains USED tokens."}"#,
    ),
    words(
        CHAT,
        422,
        Reports::Both,
        r#"{"error":"Input validation error: `inputs` must have less than LIMIT tokens. Given: USED","error_type":"validation"}"#,
    ),
    words(
        CHAT,
        400,
        Reports::Limit,
        r#"{"error":{"message":"Your request exceeded model token limit: LIMIT","type":"invalid_request_error"}}"#,
    ),
    words(
        CHAT,
        400,
        Reports::Limit,
        r#"{"error":{"code":"InvalidParameter","message":"<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, LIMIT]"}}"#,
    ),
    words(
        CHAT,
        400,
        Reports::Nothing,
        r#"{"error":{"message":"Please reduce the length of the messages or completion.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}"#,
    ),
    words(CHAT, 400, Reports::Nothing, r#"{"error":{"code":"1261","message":"Prompt 超长"}}"#),
    words(CHAT, 413, Reports::Nothing, ""),
    words(
        CHAT,
        200,
        Reports::Both,
        r#"{"error":{"code":400,"message":"This endpoint's maximum context length is LIMIT tokens. However, you requested about USED tokens (USED of text input). Please reduce the length of either one."}}"#,
    ),
    words(
        RESPONSES,
        400,
        Reports::Nothing,
        r#"{"error":{"message":"Your input exceeds the context window of this model. Please adjust your input and try again.","type":"invalid_request_error","param":"input","code":"context_length_exceeded"}}"#,
    ),
    words(
        RESPONSES,
        400,
        Reports::Both,
        r#"{"error":{"message":"Input tokens exceed the configured limit of LIMIT tokens. Your messages resulted in USED tokens. Please reduce the length of the messages.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}"#,
    ),
    words(
        RESPONSES,
        200,
        Reports::Nothing,
        r#"{"id":"r","object":"response","model":"m","status":"failed","output":[],"error":{"code":"context_length_exceeded","message":"Your input exceeds the context window of this model. Please adjust your input and try again."}}"#,
    ),
    words(
        CLAUDE,
        400,
        Reports::Both,
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: USED tokens > LIMIT maximum"}}"#,
    ),
    words(
        CLAUDE,
        400,
        Reports::Both,
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"input length and `max_tokens` exceed context limit: USED + 0 > LIMIT, decrease input length or `max_tokens` and try again"}}"#,
    ),
    words(
        CLAUDE,
        413,
        Reports::Nothing,
        r#"{"type":"error","error":{"type":"request_too_large","message":"Request exceeds the maximum size"}}"#,
    ),
    words(
        GEMINI,
        400,
        Reports::Both,
        r#"{"error":{"code":400,"message":"The input token count (USED) exceeds the maximum number of tokens allowed (LIMIT).","status":"INVALID_ARGUMENT"}}"#,
    ),
    words(
        GEMINI,
        400,
        Reports::Limit,
        r#"{"error":{"code":400,"message":"The input token count exceeds the maximum number of tokens allowed LIMIT.","status":"INVALID_ARGUMENT"}}"#,
    ),
    words(
        GEMINI,
        400,
        Reports::Both,
        r#"[{"error":{"code":400,"message":"Unable to submit request because the input token count is USED but model only supports up to LIMIT. Reduce the input token count and try again.","status":"INVALID_ARGUMENT"}}]"#,
    ),
    words(
        GEMINI,
        400,
        Reports::Nothing,
        r#"{"error":{"code":400,"message":"Request payload size exceeds the limit: 20971520 bytes.","status":"INVALID_ARGUMENT"}}"#,
    ),
];

/// A server of one dialect, strict about requests, whose model reads all files and then answers.
#[derive(Clone)]
struct StrictServer {
    words: &'static Words,
    /// The requests after which it refuses all.
    most: usize,
    accepted: Arc<AtomicUsize>,
    refused: Arc<AtomicUsize>,
}

impl StrictServer {
    fn new(words: &'static Words, most: usize) -> Self {
        StrictServer { words, most, accepted: Arc::default(), refused: Arc::default() }
    }

    fn refused(&self) -> usize {
        self.refused.load(Ordering::SeqCst)
    }

    fn answer(&self, body: &Value) -> Response {
        let broken = faults(self.words.server, body);
        assert!(broken.is_empty(), "{broken:?}");
        let used = body.to_string().len() / 3;
        if used <= LIMIT && self.accepted.load(Ordering::SeqCst) < self.most {
            let file = 1 + self.accepted.fetch_add(1, Ordering::SeqCst);
            return Response::Json(reply(self.words.server, file), "");
        }
        self.refused.fetch_add(1, Ordering::SeqCst);
        let used = used.max(LIMIT + 1).to_string();
        let body = self.words.body.replace("LIMIT", &LIMIT.to_string()).replace("USED", &used);
        Response::Status(self.words.status, serde_json::from_str(&body).unwrap_or_default())
    }

    /// A model that asks this server.
    fn model(&self) -> Arc<dyn ChatModel> {
        let server = self.clone();
        let url = serve(move |_, body| server.answer(body));
        match self.words.server {
            KnownServer::OpenAiResponses => Arc::new(OpenAiResponses::at(url, "m").key("k").build().unwrap()),
            KnownServer::Anthropic => Arc::new(Anthropic::new("m", "k").base_url(url).build().unwrap()),
            KnownServer::Gemini => {
                Arc::new(Gemini::new("gemini-3-flash", "k").base_url(url).build().unwrap())
            }
            _ => Arc::new(OpenAi::at(url, "m").key("k").build().unwrap()),
        }
    }
}

/// A reply in a dialect: it reads the next file, or says that it has read all.
fn reply(server: KnownServer, file: usize) -> Value {
    let (id, is_done, done) = (format!("c{file}"), file > FILES, "All are read.");
    match server {
        KnownServer::OpenAiResponses => {
            let item = match is_done {
                true => json!({"type": "message", "id": "m1", "role": "assistant", "status": "completed",
                    "content": [{"type": "output_text", "text": done, "annotations": []}]}),
                false => {
                    json!({"type": "function_call", "id": format!("fc_{file}"), "call_id": id, "name": "read",
                    "arguments": json!({"file": file}).to_string(), "status": "completed"})
                }
            };
            json!({"id": "r", "object": "response", "model": "m", "status": "completed", "output": [item]})
        }
        KnownServer::Anthropic => {
            let (block, reason) = match is_done {
                true => (json!({"type": "text", "text": done}), "end_turn"),
                false => (
                    json!({"type": "tool_use", "id": id, "name": "read", "input": {"file": file}}),
                    "tool_use",
                ),
            };
            json!({"id": "r", "type": "message", "role": "assistant", "model": "m", "content": [block],
                "stop_reason": reason, "usage": {"input_tokens": 1, "output_tokens": 1}})
        }
        KnownServer::Gemini => {
            let part = match is_done {
                true => json!({"text": done}),
                false => {
                    json!({"functionCall": {"name": "read", "args": {"file": file}}, "thoughtSignature": "cw=="})
                }
            };
            json!({"candidates": [{"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}]})
        }
        _ => {
            let function = json!({"name": "read", "arguments": json!({"file": file}).to_string()});
            let call = json!({"id": id, "type": "function", "function": function});
            let (message, reason) = match is_done {
                true => (json!({"role": "assistant", "content": done}), "stop"),
                false => (json!({"role": "assistant", "content": null, "tool_calls": [call]}), "tool_calls"),
            };
            json!({"id": "r", "object": "chat.completion", "model": "m",
                "choices": [{"index": 0, "message": message, "finish_reason": reason}]})
        }
    }
}

/// Reads files of 3 kB.
fn reader(model: Arc<dyn ChatModel>) -> AgentBuilder {
    let read = |RawArgs(arguments): RawArgs| async move {
        Ok::<_, ToolError>(format!("file {}: {}", arguments["file"], "stall ".repeat(500)))
    };
    let file = json!({"type": "object", "properties": {"file": {"type": "integer"}}, "required": ["file"]});
    let read: ToolBuilder = Tool::new("read", "Reads a file.", read);
    let read = read.parameters(file).effect(Effect::Pure).build().unwrap();
    Agent::builder(model).tools([read]).instructions("Read all files.")
}

async fn run(agent: &Agent) -> Result<Outcome, RunError> {
    let run = stepfold::agent_loop::Run::new(agent, "What do the files say?", "run").unwrap();
    let mut recording = Recording::of(&run);
    let outcome = run.resume().observe(&mut recording).await?;
    assert_eq!(recording.replay(agent).unwrap().digest(), outcome.run().digest());
    Ok(outcome)
}

/// Files of 3 kB in a window of 8,000 tokens end with the right answer, whatever the words; and a replay is the same.
#[tokio::test]
async fn a_run_is_rescued_in_the_words_of_each_server() {
    for words in ROWS {
        // Alone, and beside a window that is too large.
        for window in [None, Some(Window::new(30_000).clear_results(2))] {
            let server = StrictServer::new(words, usize::MAX);
            let agent = window.clone().into_iter().fold(reader(server.model()), AgentBuilder::window);
            let outcome =
                run(&agent.build().unwrap()).await.unwrap_or_else(|error| panic!("{}: {error}", words.body));
            assert_eq!(&*outcome.text(), "All are read.", "{}", words.body);
            assert_eq!(outcome.transcript().len(), 2 + 2 * FILES);
            // Well below the limit at once, so that it is not refused at every step.
            assert!((1..=5).contains(&server.refused()), "{}: {}", words.body, server.refused());
        }
    }
}

/// A request that does not fit after two rescues fails, with the sizes that the server reported, and what weighs most.
#[tokio::test]
async fn the_error_after_two_rescues_says_what_weighs_most() {
    for words in ROWS {
        let server = StrictServer::new(words, 3);
        // Instructions cannot be left out.
        let agent = reader(server.model()).instructions("Read all files. ".repeat(400));
        let failed = run(&agent.build().unwrap()).await.unwrap_err();
        assert_eq!(server.refused(), 3, "{}", words.body);
        let RunFault::Model(error) = failed.fault() else { panic!("{failed}") };
        let ModelErrorKind::TooLong { limit, used } = error.kind() else { panic!("{error}") };
        let read =
            (limit.is_some_and(|limit| limit == LIMIT as u64), used.is_some_and(|used| used > LIMIT as u64));
        let expected = (words.reports != Reports::Nothing, words.reports == Reports::Both);
        assert_eq!(read, expected, "{}: {limit:?} {used:?}", words.body);
        assert!(error.message().contains(" of tools, "), "{}: {error}", words.body);
        assert!(error.message().contains("of these a message of the system "), "{}: {error}", words.body);
    }
}
