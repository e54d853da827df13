//! The model port: streams, the fold of chunks into a reply, errors, and the stored forms around them.

use std::error::Error;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use expect_test::{Expect, expect};
use futures_core::Stream;
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Chunk, Content, Extras, FinishReason, MAX_REPLY_BYTES, Media, Message,
    ModelError, ModelErrorKind, ModelParams, Part, Reply, ReplyBuilder, ReplyStream, ResponseFormat,
    TimeoutKind, ToolCallChunk, ToolChoice, ToolSpec, Transcript, Usage,
};

/// The reply of a stream, polled without a runtime.
fn reply(stream: ReplyStream) -> Result<Reply, ModelError> {
    match pin!(stream.into_reply()).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(reply) => reply,
        Poll::Pending => panic!("the stream waits"),
    }
}

/// Folds the chunks, and prints the reply, or the error with the partial reply.
fn check(chunks: impl IntoIterator<Item = Chunk, IntoIter: Send + 'static>, expected: Expect) {
    let found = match reply(ReplyStream::from_chunks(chunks)) {
        Ok(reply) => format!("{}\n{}", reply.message, reply.finish_reason),
        Err(error) => format!("{}\n{error}", error.partial().unwrap().message),
    };
    expected.assert_eq(&found);
}

fn text(text: &str) -> Chunk {
    Chunk::Text(text.to_owned())
}

fn call(index: usize, id: &str, name: &str, arguments: &str) -> Chunk {
    let known = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let mut chunk = ToolCallChunk::new(index, arguments);
    (chunk.id, chunk.name) = (known(id), known(name));
    Chunk::ToolCall(chunk)
}

fn signed() -> Chunk {
    Chunk::PartExtras(Extras::from_iter([("signature", "EqQB")]))
}

const STOP: Chunk = Chunk::Finished(FinishReason::Stop);
const CALLS: Chunk = Chunk::Finished(FinishReason::ToolCalls);

#[test]
fn contiguous_text_is_one_part() {
    check(
        [text(""), text("a "), Chunk::Usage(Usage::default()), text(" b\n"), STOP],
        expect![[r#"
        assistant: "a  b\n"
        stop"#]],
    );
    check(
        [
            Chunk::Reasoning("h".into()),
            Chunk::Reasoning("m".into()),
            text("a"),
            call(0, "c1", "f", ""),
            text("b"),
            CALLS,
        ],
        expect![[r#"
        assistant: ~"hm"   "a"   > c1 f()   "b"
        tool_calls"#]],
    );
    check(
        [STOP],
        expect![[r"
        assistant:
        stop"]],
    );
}

#[test]
fn tool_calls_are_assembled_by_index() {
    check(
        [
            call(0, "c1", "search", "{\"q\":"),
            call(1, "c2", "fetch", ""),
            call(0, "", "", "\"a\"}"),
            call(1, "", "", "{\"id\":7}"),
            CALLS,
        ],
        expect![[r#"
            assistant: > c1 search(q="a")   > c2 fetch(id=7)
            tool_calls"#]],
    );
    // Id, name and arguments at once; arguments null; a name that comes late; no id at all.
    check(
        [
            call(0, "c1", "f", "{}"),
            call(1, "c2", "f", "null"),
            call(2, "c3", "", ""),
            call(2, "c3", "f", ""),
            call(3, "", "f", "{]"),
            CALLS,
        ],
        expect![[r#"
            assistant: > c1 f()   > c2 f()   > c3 f()   > "" f!("{]")
            tool_calls"#]],
    );
    // A server that numbers every call 0.
    check(
        [call(0, "c1", "f", "{}"), call(0, "c2", "g", "{\"a\""), call(0, "", "", ":1}"), CALLS],
        expect![[r"
        assistant: > c1 f()   > c2 g(a=1)
        tool_calls"]],
    );
}

/// Some servers give neither ids nor indexes of their own to the calls of a reply.
#[test]
fn calls_at_one_index_are_told_apart() {
    check(
        [
            call(0, "", "f", "{}"),
            call(0, "", "g", ""),
            call(0, "", "", "{\"x\": 1}"),
            call(0, "", "g", "{\"x\": 2}"),
            Chunk::Finished(FinishReason::ToolCalls),
        ],
        expect![[r#"
            assistant: > "" f()   > "" g(x=1)   > "" g(x=2)
            tool_calls"#]],
    );
    check(
        [
            call(0, "a", "f", "{\"x\":"),
            call(0, "b", "g", "{\"y\":"),
            call(0, "a", "", "1}"),
            call(0, "b", "", "2}"),
            Chunk::Finished(FinishReason::ToolCalls),
        ],
        expect![[r#"
            assistant: > a f(x=1)   > b g(y=2)
            tool_calls"#]],
    );
}

#[test]
fn a_signature_after_empty_reasoning_is_not_of_the_text_before() {
    check(
        [text("hi"), Chunk::Reasoning(String::new()), signed(), Chunk::Finished(FinishReason::Stop)],
        expect![[r#"
            assistant: "hi"   @{"reasoning": "", "extras": {"signature": "EqQB"}}
            stop"#]],
    );
}

#[test]
fn extras_close_the_part_that_they_are_for() {
    check(
        [
            Chunk::Reasoning("a".into()),
            signed(),
            Chunk::Reasoning("b".into()),
            call(0, "c1", "f", ""),
            signed(),
            STOP,
        ],
        expect![[r#"
        assistant: @{"reasoning": "a", "extras": {"signature": "EqQB"}}   ~"b"   @{"tool_call": {"id": "c1", "name": "f", "arguments": {}}, "extras": {"signature": "EqQB"}}
        stop"#]],
    );
    check(
        [signed(), Chunk::MessageExtras(Extras::from_iter([("cache", true)])), STOP],
        expect![[r#"
        assistant: @{"text": "", "extras": {"signature": "EqQB"}}   %{"cache": true}
        stop"#]],
    );
    let image = Part::from(Content::Image(Media::url("u")));
    check(
        [text("a"), Chunk::Part(image), text("b"), STOP],
        expect![[r#"
        assistant: "a"   @{"image": {"url": "u"}}   "b"
        stop"#]],
    );
}

#[test]
fn a_stream_that_just_ends_is_interrupted() {
    check(
        [text("area"), call(0, "c1", "f", "{\"q\": \"st")],
        expect![[r#"
        assistant: area   > c1 f!("{\"q\": \"st")
        reply interrupted: the stream ended without a finish reason"#]],
    );
}

#[test]
fn usage_and_identity_are_carried() {
    let usage = |output_tokens| Usage::new(5, output_tokens);
    let identity = |id: Option<&str>, model: Option<&str>| Chunk::Identity {
        id: id.map(str::to_owned),
        model: model.map(str::to_owned),
    };
    let chunks = [
        identity(Some("r1"), None),
        Chunk::Usage(usage(1)),
        identity(None, Some("m")),
        STOP,
        Chunk::Usage(usage(3)),
    ];
    let reply = reply(ReplyStream::from_chunks(chunks)).unwrap();
    assert_eq!((reply.id.as_deref(), reply.model.as_deref()), (Some("r1"), Some("m")));
    assert_eq!(reply.usage, usage(3));
    let all = usage(u64::MAX) + usage(3);
    assert_eq!(all, Usage::new(10, u64::MAX));
    assert_eq!([usage(1), usage(2)].into_iter().sum::<Usage>().total_tokens(), 13);
}

#[test]
fn an_error_is_the_last_item_and_carries_the_partial_reply() {
    let overloaded = || ModelError::new(ModelErrorKind::Overloaded, "");
    let error = reply(ReplyStream::from_results([Ok(text("a")), Err(overloaded()), Ok(STOP)])).unwrap_err();
    assert_eq!(error.kind(), &ModelErrorKind::Overloaded);
    assert_eq!(error.partial().unwrap().message, Message::assistant("a"));

    let mut stream = ReplyStream::from_results([Err(overloaded()), Ok(STOP)]);
    let mut next = || Pin::new(&mut stream).poll_next(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(next(), Poll::Ready(Some(Err(_)))));
    assert!(matches!(next(), Poll::Ready(None)));
    assert!(matches!(next(), Poll::Ready(None)));
    assert!(reply(ReplyStream::failed(overloaded())).is_err());
}

/// A stream that waits forever, and notices when it is dropped.
struct Waiting(Arc<AtomicBool>);

impl Stream for Waiting {
    type Item = Result<Chunk, ModelError>;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Pending
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn dropping_the_reply_drops_the_request() {
    let is_dropped = Arc::new(AtomicBool::new(false));
    {
        let mut reply = pin!(ReplyStream::new(Waiting(Arc::clone(&is_dropped))).into_reply());
        assert!(reply.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert!(!is_dropped.load(Ordering::Relaxed));
    }
    assert!(is_dropped.load(Ordering::Relaxed));
}

struct Silent;

impl ChatModel for Silent {
    fn id(&self) -> &'static str {
        "test/silent"
    }

    fn respond(&self, _: ChatRequest) -> ReplyStream {
        ReplyStream::from_chunks([STOP])
    }
}

#[test]
fn pointers_to_models_are_models() {
    fn id_of(model: impl ChatModel) -> String {
        assert!(reply(model.respond(ChatRequest::default())).is_ok());
        model.id().to_owned()
    }
    let shared: Arc<dyn ChatModel> = Arc::new(Silent);
    assert_eq!(id_of(&Silent), "test/silent");
    assert_eq!(id_of(Box::new(Silent)), "test/silent");
    assert_eq!(id_of(&*shared), "test/silent");
    assert_eq!(id_of(&shared), "test/silent");
    assert_eq!(id_of(shared), "test/silent");
}

#[test]
fn errors_say_what_and_where() {
    let plain = ModelError::new(ModelErrorKind::TimedOut(TimeoutKind::Idle), "");
    assert_eq!(plain.to_string(), "timed out between chunks");
    let too_long = ModelErrorKind::TooLong { limit: Some(8), used: Some(9) };
    let error = ModelError::new(too_long, "please reduce").with_model("m").with_source("status 400");
    assert_eq!(
        error.to_string(),
        "conversation too long: expected at most 8 tokens, found 9 (model m): please reduce: status 400"
    );
    assert_eq!(error.cause().unwrap().to_string(), "status 400");
    assert!(error.source().is_none(), "the text shows the cause");
    let bare = ModelError::new(ModelErrorKind::Transient, "").with_source("status 400");
    assert_eq!(bare.to_string(), "transient failure: status 400");
    let quoting =
        ModelError::new(ModelErrorKind::Transient, "no response: status 400").with_source("status 400");
    assert_eq!(quoting.to_string(), "transient failure: no response: status 400");
    assert!(!error.is_retryable());
    let wait = Duration::from_millis(1500);
    let limited = ModelError::new(ModelErrorKind::RateLimited, "").with_retry_after(wait);
    assert_eq!(limited.to_string(), "rate limited, retry after 1.5s");
    assert_eq!(limited.retry_after(), Some(wait));
}

/// Writes, compares, and reads back.
fn check_stored<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(value: &T, expected: Expect) {
    let json = serde_json::to_string(value).unwrap();
    expected.assert_eq(&json);
    assert_eq!(&serde_json::from_str::<T>(&json).unwrap(), value);
}

#[test]
fn stored_forms() {
    let mut reply = reply(ReplyStream::from_chunks([text("hi"), STOP])).unwrap();
    check_stored(
        &reply,
        expect![[
            r#"{"message":{"role":"assistant","parts":[{"text":"hi"}]},"finish_reason":"stop","usage":{"input_tokens":0,"output_tokens":0,"cached_input_tokens":0,"reasoning_tokens":0}}"#
        ]],
    );
    reply.finish_reason = "pause_turn".into();
    reply.id = Some("r1".to_owned());
    check_stored(
        &reply,
        expect![[
            r#"{"message":{"role":"assistant","parts":[{"text":"hi"}]},"finish_reason":"pause_turn","usage":{"input_tokens":0,"output_tokens":0,"cached_input_tokens":0,"reasoning_tokens":0},"id":"r1"}"#
        ]],
    );
    for reason in ["stop", "tool_calls", "length", "content_filter", "refusal"] {
        assert!(!matches!(FinishReason::from(reason), FinishReason::Other(_)));
        assert_eq!(serde_json::to_value(FinishReason::from(reason)).unwrap(), reason);
    }
    check_stored(
        &ToolSpec::new("search", "Finds.", json!({"type": "object"})).with_strict(true),
        expect![[r#"{"name":"search","description":"Finds.","parameters":{"type":"object"},"strict":true}"#]],
    );
    check_stored(&ToolChoice::Auto, expect![[r#""auto""#]]);
    check_stored(&ToolChoice::Named("f".into()), expect![[r#"{"named":"f"}"#]]);
    check_stored(
        &ModelParams::default().with_temperature(0.2).with_extra("top_k", 5),
        expect![[r#"{"temperature":0.2,"extras":{"top_k":5}}"#]],
    );
    let format = ResponseFormat::JsonSchema { name: "area".into(), schema: json!({}), strict: true };
    let request = ChatRequest::new(Transcript::new().with(Message::user("hi")))
        .with_response_format(format)
        .with_model("m");
    check_stored(
        &request,
        expect![[
            r#"{"messages":[{"role":"user","parts":[{"text":"hi"}]}],"tools":[],"tool_choice":"auto","response_format":{"json_schema":{"name":"area","schema":{},"strict":true}},"params":{},"model":"m"}"#
        ]],
    );
}

proptest! {
    #[test]
    fn a_message_in_chunks_is_the_same_message(transcript in super::arbitrary::transcript(), seed in any::<u64>()) {
        for message in &transcript {
            for chunks in [Chunk::of(message), Chunk::streamed(message, seed)] {
                let chunks = chunks.into_iter().chain([STOP]);
                let reply = reply(ReplyStream::from_chunks(chunks.collect::<Vec<_>>())).unwrap();
                prop_assert_eq!(reply.message.parts(), message.parts());
                prop_assert_eq!(reply.message.extras(), message.extras());
            }
        }
    }

    /// A text of two characters is always cut, and a long one into few pieces.
    #[test]
    fn a_streamed_text_is_cut(text in ".{2,4000}", seed in any::<u64>()) {
        let pieces = Chunk::streamed(&Message::assistant(&*text), seed).len();
        prop_assert!((2..1_000).contains(&pieces), "{pieces} pieces");
    }

    /// However a stream is cut into pieces, the reply is the same, byte for byte.
    #[test]
    fn pieces_do_not_matter(text in super::arbitrary::text(), arguments in super::arbitrary::text()) {
        let whole = [Chunk::Text(text.clone()), call(0, "c1", "f", &arguments), STOP];
        let pieces = text.chars().map(|piece| Chunk::Text(piece.to_string()));
        let pieces = pieces
            .chain([call(0, "c1", "f", "")])
            .chain(arguments.chars().map(|piece| call(0, "", "", &piece.to_string())))
            .chain([STOP]);
        let in_pieces = reply(ReplyStream::from_chunks(pieces.collect::<Vec<_>>())).unwrap();
        prop_assert_eq!(&in_pieces, &reply(ReplyStream::from_chunks(whole)).unwrap());
        prop_assert_eq!(in_pieces.message.text(), text);
    }
}

#[test]
fn what_crosses_threads_can() {
    fn can_be_sent<T: Send>(value: T) -> T {
        value
    }
    drop(can_be_sent(ReplyStream::from_chunks([STOP]).into_reply()));
    can_be_sent(ModelError::new(ModelErrorKind::Cancelled, ""));
    can_be_sent(&ChatRequest::default());
}

/// Whether the calls of a reply are numbered, named or neither, each costs the same: two hundred thousand of them
/// would take minutes otherwise.
#[test]
fn two_hundred_thousand_streamed_calls() {
    const CALLS_OF_REPLY: usize = 200_000;
    let numbered = |number: usize| call(number, "", "look", "{}");
    let named = |number: usize| call(0, &format!("c{number}"), "look", "{}");
    let neither = |_: usize| call(0, "", "look", "{}");
    for server in [&numbered as &dyn Fn(usize) -> Chunk, &named, &neither] {
        let mut reply = ReplyBuilder::new();
        (0..CALLS_OF_REPLY).map(server).for_each(|chunk| reply.push(chunk));
        reply.push(CALLS);
        assert_eq!(reply.finish().unwrap().message.tool_calls().count(), CALLS_OF_REPLY);
    }
}

/// A server that says the name again with each fragment: whether the arguments are complete is known without reading
/// them again.
#[test]
fn a_name_that_comes_with_each_of_very_many_fragments() {
    let fragments = (0..100_000).map(|number| call(0, "", "note", &format!("\"{number}\",")));
    let mut reply = ReplyBuilder::new();
    reply.push(call(0, "", "note", "{\"lines\": ["));
    fragments.for_each(|chunk| reply.push(chunk));
    reply.push(call(0, "", "note", "0]}"));
    reply.push(CALLS);
    let reply = reply.finish().unwrap();
    let calls: Vec<_> = reply.message.tool_calls().collect();
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0].arguments.as_object().unwrap()["lines"].as_array().unwrap().len(), 100_001);
}

#[test]
fn a_reply_is_bounded_in_bytes() {
    let endless = || ReplyStream::from_chunks(std::iter::repeat_with(|| text(&"x".repeat(1 << 16))));
    let error = reply(endless()).unwrap_err();
    assert_eq!(error.kind(), &ModelErrorKind::ReplyTooLarge { limit: MAX_REPLY_BYTES });
    assert!(!error.is_retryable());
    let said = error.partial().unwrap().message.text().len();
    assert!((MAX_REPLY_BYTES - (1 << 17)..=MAX_REPLY_BYTES + (1 << 16)).contains(&said), "{said}");
    // Of parts without words as well.
    let empty = ReplyStream::from_chunks((0..).map(|number| call(number, "", "", "")));
    assert_eq!(reply(empty).unwrap_err().kind(), error.kind());
    assert_eq!(
        ModelError::new(ModelErrorKind::ReplyTooLarge { limit: 9 }, "").to_string(),
        "reply too large: expected at most 9 bytes"
    );
}
