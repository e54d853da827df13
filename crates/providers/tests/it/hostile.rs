//! Hostile servers, each in all dialects: a reply or an error of a kind comes in bounded time and memory, and the key is
//! nowhere: not in the reply, the error, its debug form, or what is logged meanwhile.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use stepfold_providers::layer::Timeout;
use stepfold_providers::openai::OpenAi;
use stepfold_providers::probe::ProbeResponse;
use stepfold_state_core::chat::{ChatModel, ChatRequest, ModelError, ModelErrorKind, Reply};
use tokio::time::Instant;

use crate::server::{Play, Server, show};
use crate::wires::{KEY, WIRES, Wire, events};

const MIB: usize = 1 << 20;

/// What a server does, and the kinds of errors that may come of it; "reply" for a reply.
struct Attack {
    name: &'static str,
    response: ProbeResponse,
    kinds: &'static [&'static str],
}

fn attack(
    name: &'static str,
    pieces: impl IntoIterator<Item = impl Into<Vec<u8>>>,
    kinds: &'static [&'static str],
) -> Attack {
    let pieces = pieces.into_iter().map(Into::into).collect();
    let response =
        ProbeResponse { status: 200, content_type: "text/event-stream", pieces, pause: Duration::ZERO };
    Attack { name, response, kinds }
}

fn answer(name: &'static str, status: u16, content_type: &'static str, body: String) -> Attack {
    let mut attack = attack(name, [body], &["malformed", "authentication", "transient", "truncated"]);
    (attack.response.status, attack.response.content_type) = (status, content_type);
    attack
}

fn attacks(wire: &Wire) -> Vec<Attack> {
    let then_finish = |body: String| [wire.begin.to_owned(), body, wire.finish.to_owned()];
    let many = |value: Value| std::iter::repeat_n(events([value]), 40);
    let key_everywhere = "choices candidates output response message error type delta content usage id model";
    let key_everywhere: Value = key_everywhere
        .split(' ')
        .map(|name| (name.to_owned(), json!(KEY)))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let numbers = [json!(u64::MAX), json!(-1), json!(1e300), json!("12"), json!(null), json!([1])];
    let indexes =
        numbers.iter().enumerate().map(|(at, index)| (wire.call)(index.clone(), json!(format!("c{at}"))));
    let ids = [json!("c"), json!("c"), json!(""), json!(null), json!(7), json!({})];
    let ids = ids.into_iter().enumerate().map(|(at, id)| (wire.call)(json!(at), id));
    let mut slow =
        attack("a byte an hour", then_finish(String::new()), &["timed_out_first_token", "timed_out_idle"]);
    slow.response.pause = Duration::from_secs(3_600);
    vec![
        slow,
        attack("a line without an end", vec![vec![b'x'; MIB]; 20], &["reply_too_large"]),
        attack(
            "an event without an end",
            vec![b"data: ".repeat(MIB / 6 * 6); 1],
            &["malformed", "truncated"],
        ),
        attack("data without an end", vec![format!("data: {}\n", "x".repeat(MIB)); 20], &["reply_too_large"]),
        attack("text without an end", many((wire.text)(&"x".repeat(MIB))), &["reply_too_large"]),
        attack(
            "an id without an end",
            many((wire.call)(json!(0), json!("x".repeat(MIB)))),
            &["reply_too_large", "truncated"],
        ),
        attack("nesting without an end", [format!("data: {}\n\n", "[".repeat(200_000))], &["malformed"]),
        attack("bytes that are no text", [b"data: \xff\n\n".to_vec()], &["malformed"]),
        attack("zeros", [vec![0; MIB]], &["truncated", "malformed"]),
        attack("nothing", [""], &["truncated"]),
        attack("white space", ["\n \n\r\n\n".repeat(1_000)], &["truncated", "malformed"]),
        attack("half a surrogate pair", then_finish("data: {\"x\":\"\\ud83d\"}\n\n".to_owned()), &["reply"]),
        attack("the key as an event", then_finish(format!("data: {KEY}\n\n")), &["malformed"]),
        attack("the key as a value", then_finish(events([json!(KEY)])), &["malformed"]),
        attack("the key in each field", [events([key_everywhere])], &["malformed", "truncated", "transient"]),
        attack(
            "numbers that overflow",
            then_finish(events(numbers.iter().cloned().map(wire.usage))),
            &["reply"],
        ),
        attack("odd indexes", [events(indexes), wire.finish.to_owned()], &["reply", "malformed"]),
        attack("odd ids", [events(ids), wire.finish.to_owned()], &["reply", "malformed"]),
        attack("two finishes", [wire.begin, wire.finish, wire.begin, wire.finish], &["reply", "malformed"]),
        answer("a page in place of a reply", 200, "text/html", format!("<html>{KEY}</html>")),
        answer("a page without a type", 200, "", format!("<html>{KEY}</html>")),
        answer("half a reply", 200, "application/json", format!("{{\"error\": {{\"message\": \"{KEY}")),
        answer("a list", 200, "application/json", format!("[\"{KEY}\", {{}}]")),
        answer("a number", 200, "application/json", "7".to_owned()),
        answer("an error without an end", 500, "text/plain", KEY.repeat(MIB / 8)),
        answer("an unknown status", 999, "application/json", json!({"error": KEY}).to_string()),
    ]
}

/// Forms in which servers echo a key.
fn echoes() -> [String; 6] {
    [
        KEY.to_owned(),
        KEY.to_lowercase(),
        KEY.to_uppercase(),
        // Its Base64, alone and behind a name.
        "c2stRG8tTm90LVNob3ctTWVfMTIzNDU2Nzg5MA==".to_owned(),
        "dXNlcjpzay1Eby1Ob3QtU2hvdy1NZV8xMjM0NTY3ODkw".to_owned(),
        format!("{}\n{}", &KEY[..9], &KEY[9..]),
    ]
}

/// The result of an attack, whose time and size are bounded, as text without the key.
fn check(wire: &Wire, attack: &Attack, reply: Result<Reply, ModelError>) {
    let at = format!("{}: {}", wire.name, attack.name);
    let kind = reply.as_ref().map_or_else(|error| error.kind().name(), |_| "reply");
    if let Ok(reply) = &reply {
        let ids: Vec<&str> = reply.message.tool_calls().map(|call| call.id.as_str()).collect();
        let unique: HashSet<&str> = ids.iter().copied().collect();
        assert!(unique.len() == ids.len() && !unique.contains(""), "{at}: {ids:?}");
    }
    if let Err(error) = &reply {
        assert!(error.to_string().len() < 128 << 10, "{at}: an error of {} bytes", error.to_string().len());
    }
    let shown = format!("{reply:?}");
    assert!(!shown.contains(KEY), "{at}: {shown}");
    assert!(attack.kinds.contains(&kind), "{at}: {kind}: {}", shown.chars().take(400).collect::<String>());
}

/// A subscriber that keeps what is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<String>>);

impl tracing::field::Visit for &Log {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        writeln!(self.0.lock().unwrap(), "{}={value:?}", field.name()).unwrap();
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, attributes: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        attributes.record(&mut { self });
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, values: &tracing::span::Record<'_>) {
        values.record(&mut { self });
    }

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut { self });
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test(start_paused = true)]
async fn every_attack_ends_in_each_dialect() {
    let log = Log::default();
    let logged = tracing::subscriber::set_default(log.clone());
    for wire in &WIRES {
        for attack in attacks(wire) {
            let start = Instant::now();
            let reply = (wire.read)(Timeout::default(), attack.response.clone()).into_reply().await;
            assert!(start.elapsed() <= Duration::from_secs(600), "{}: {}", wire.name, attack.name);
            check(wire, &attack, reply);
        }
    }
    drop(logged);
    let logged = log.0.lock().unwrap();
    assert!(!logged.to_lowercase().contains(&KEY.to_lowercase()), "{logged}");
}

#[tokio::test(start_paused = true)]
async fn no_error_echoes_the_key_in_any_form() {
    for wire in &WIRES {
        for echo in echoes() {
            let error = (wire.error)(&format!("wrong key {echo} here"));
            for (status, content_type, body) in [
                (200, "text/event-stream", wire.begin.to_owned() + &events([error.clone()])),
                (200, "application/json", error.to_string()),
                (401, "application/json", error.to_string()),
                (500, "text/plain", format!("wrong key {echo} here")),
            ] {
                let pieces = vec![body.into_bytes()];
                let response = ProbeResponse { status, content_type, pieces, pause: Duration::ZERO };
                let error = (wire.read)(Timeout::default(), response).into_reply().await.unwrap_err();
                let shown = format!("{error} {error:?}");
                assert!(shown.contains("***"), "{}: {shown}", wire.name);
                let shown = shown.to_lowercase();
                assert!(!shown.contains("67890") && !shown.contains("njc4o"), "{}: {shown}", wire.name);
            }
        }
    }
}

/// An unknown reason is kept as it is named, and the name is the server's: bounded, and without the key.
#[tokio::test(start_paused = true)]
async fn an_unknown_finish_reason_is_a_short_name() {
    for wire in &WIRES {
        let name = format!("{KEY} {}", "x".repeat(MIB));
        let finish = match wire.name {
            "openai" => json!({"choices": [{"index": 0, "delta": {}, "finish_reason": name}]}),
            "responses" => json!({"type": "response.incomplete", "response":
                {"status": "incomplete", "output": [], "incomplete_details": {"reason": name}}}),
            "anthropic" => json!({"type": "message_delta", "delta": {"stop_reason": name}}),
            _ => json!({"candidates": [{"finishReason": name}]}),
        };
        let pieces = vec![(wire.begin.to_owned() + &events([finish])).into_bytes()];
        let response =
            ProbeResponse { status: 200, content_type: "text/event-stream", pieces, pause: Duration::ZERO };
        let reply = (wire.read)(Timeout::default(), response).into_reply().await.unwrap();
        let reason = reply.finish_reason.as_str();
        assert!(reason.starts_with("*** x") && reason.len() < 1_100, "{}: {} bytes", wire.name, reason.len());
    }
}

/// What only a socket can do: headers that lie, and bodies that do not come.
#[tokio::test]
async fn every_attack_by_headers_ends_in_each_dialect() {
    let elsewhere = Server::start([Play::json(200, "{}")], usize::MAX, |_| Ok(())).await;
    for wire in &WIRES {
        let said = || wire.begin.to_owned();
        let plays = [
            (Play::new(429, "retry-after: 99999999999999999999", ""), "rate_limited"),
            (Play::new(429, "retry-after: 1e300", ""), "rate_limited"),
            (Play::new(429, "x-ratelimit-reset-tokens: 99999999999999h", ""), "rate_limited"),
            (Play::new(307, &format!("location: {}", elsewhere.url), ""), "not_found"),
            (Play::new(200, "content-type: text/event-stream\ncontent-encoding: br", said()), "unsupported"),
            (Play::events(said()).cut(), "truncated"),
            (Play::events(said()).until_close(), "truncated"),
            (Play::events(said()).stall(), "timed_out_idle"),
            (Play::silence(), "timed_out_first_token"),
            (Play::new(200, &format!("x-long: {}", "x".repeat(MIB)), said()), "transient"),
            (Play::new(401, &format!("x-request-id: {KEY}"), KEY), "authentication"),
        ];
        for (play, kind) in plays {
            let limit = Some(play.limit());
            let server = Server::start([play.clone()], usize::MAX, |_| Ok(())).await;
            let timeouts = Timeout::NONE.first_token(limit).idle(limit);
            let model = (wire.model)(&server.url, timeouts);
            let request = stepfold_state_core::chat::ChatRequest::default();
            let error = model.respond(request).into_reply().await.unwrap_err();
            assert_eq!(error.kind().name(), kind, "{}: {play:?}: {error}", wire.name);
            show(Err(error), KEY);
        }
    }
    assert!(elsewhere.asked().is_empty(), "a redirection was followed, with the key");
}

/// Each call gets an id of its own. That a call costs the same beside many others is shown by the benchmark
/// `calls_in_one_reply`, and not by this test.
#[tokio::test(start_paused = true)]
async fn twenty_thousand_calls_without_ids() {
    for wire in &WIRES {
        let calls = (0..20_000).map(|index| (wire.call)(json!(index), Value::Null));
        let pieces = vec![events(calls).into_bytes(), wire.finish.as_bytes().to_vec()];
        let response =
            ProbeResponse { status: 200, content_type: "text/event-stream", pieces, pause: Duration::ZERO };
        let reply = (wire.read)(Timeout::default(), response).into_reply().await.unwrap();
        let ids: HashSet<&str> = reply.message.tool_calls().map(|call| call.id.as_str()).collect();
        assert_eq!(ids.len(), 20_000, "{}", wire.name);
    }
}

/// What follows the finish and cannot be read is not of the reply. An error of the server still is one.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_after_the_finish_does_not_matter() {
    for wire in &WIRES {
        for tail in
            ["data: [DONE]\n\n", "data: <html>\n\n", "data: {\"\n\n", "data: 7\n\n", "data: {", "\u{ff}\n"]
        {
            let body = format!("{}{}{tail}", wire.begin, wire.finish);
            let reply = (wire.read)(Timeout::default(), stream(body)).into_reply().await;
            assert_eq!(reply.unwrap().message.text(), "area", "{}: {tail:?}", wire.name);
        }
    }
}

/// A reason to finish is written into traces and records.
#[tokio::test(start_paused = true)]
async fn a_key_is_no_reason_to_finish() {
    let finishes = [
        json!({"choices": [{"index": 0, "delta": {}, "finish_reason": KEY}]}),
        json!({"type": "response.incomplete", "response": {"status": "incomplete", "output": [],
            "incomplete_details": {"reason": KEY}}}),
        json!({"type": "message_delta", "delta": {"stop_reason": KEY}}),
        json!({"candidates": [{"finishReason": KEY}]}),
    ];
    for (wire, finish) in WIRES.iter().zip(finishes) {
        let reply = (wire.read)(Timeout::default(), stream(events([finish]))).into_reply().await.unwrap();
        assert_eq!(reply.finish_reason.as_str(), "***", "{}", wire.name);
    }
}

/// Half a key, where what is read of an error ends.
#[tokio::test(start_paused = true)]
async fn half_a_key_is_not_shown() {
    for length in [9, 20, KEY.len() - 1] {
        let body = format!("{}{KEY}", " ".repeat((64 << 10) - length));
        let response = ProbeResponse { status: 500, content_type: "text/plain", ..stream(body) };
        let error = (WIRES[0].read)(Timeout::default(), response).into_reply().await.unwrap_err();
        assert_eq!(error.message(), "status 500: ***");
    }
}

fn stream(body: String) -> ProbeResponse {
    ProbeResponse {
        status: 200,
        content_type: "text/event-stream",
        pieces: vec![body.into_bytes()],
        pause: Duration::ZERO,
    }
}

/// Neither that of a proxy, which knows it and may say it in any form, nor one in an address.
#[tokio::test]
async fn passwords_are_not_shown() {
    let said = "denied: Basic YWRhOnMzY3JldC1wYSRzdzByZA== (ada:s3cret-pa$sw0rd, s3cret-pa%24sw0rd)";
    let server = Server::start([Play::new(407, "", said)], usize::MAX, |_| Ok(())).await;
    let proxy = server.url.replace("://", "://ada:s3cret-pa%24sw0rd@");
    let builder = OpenAi::at("http://model.test/v1", "m").proxy(proxy);
    assert!(!format!("{builder:?}").contains("sw0rd"), "{builder:?}");
    let error = builder.build().unwrap().respond(ChatRequest::default()).into_reply().await.unwrap_err();
    assert_eq!(error.kind(), &ModelErrorKind::Authentication, "{error}");
    let shown = format!("{error:?}");
    assert!(!shown.contains("sw0rd") && !shown.contains("3czB5"), "{shown}");

    for url in ["http://ada:s3cret@model.test/v1", "ftp://ada:s3cret@model.test/v1", "ada:s3cret@model.test"]
    {
        let builder = OpenAi::at(url, "m");
        let error = builder.clone().build().unwrap_err();
        let named = stepfold_providers::model_with(&format!("{url}#m"), |_| None).err().unwrap();
        let shown = format!(
            "{builder:?} {error:?} {error} {}",
            if url.contains("://") { named.to_string() } else { String::new() }
        );
        assert!(!shown.contains("s3cret") && error.to_string().contains("***@model.test"), "{shown}");
    }
}
