//! What a collector gets: a server on this machine reads the requests back.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::{Span, status::StatusCode};
use prost::Message as _;
use stepfold::agent_loop::Traces;
use stepfold::otel::{Exporter, OtelError};
use stepfold::prelude::*;
use stepfold::providers::{Scripted, ScriptedReply};
use tracing_subscriber::layer::SubscriberExt as _;

const LONG: Duration = Duration::from_secs(30);

/// A collector: hands on the head and the body of each request.
struct Collector {
    address: SocketAddr,
    requests: Receiver<(String, Vec<u8>)>,
}

impl Collector {
    fn start(status: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, requests) = channel();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let (mut head, mut length) = (String::new(), 0);
                loop {
                    let mut line = String::new();
                    reader.read_line(&mut line).unwrap();
                    if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap();
                    }
                    if line.trim().is_empty() {
                        break;
                    }
                    head.push_str(&line);
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                    .unwrap();
                if sender.send((head, body)).is_err() {
                    return;
                }
            }
        });
        Collector { address, requests }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn request(&self) -> (String, ExportTraceServiceRequest) {
        let (head, body) = self.requests.recv_timeout(LONG).unwrap();
        (head, ExportTraceServiceRequest::decode(&*body).unwrap())
    }
}

fn attributes(of: &[KeyValue]) -> BTreeMap<String, String> {
    let value = |pair: &KeyValue| match pair.value.clone().unwrap().value.unwrap() {
        Value::StringValue(text) => text,
        Value::IntValue(number) => number.to_string(),
        Value::BoolValue(flag) => flag.to_string(),
        other => panic!("no attribute of ours is {other:?}"),
    };
    of.iter().map(|pair| (pair.key.clone(), value(pair))).collect()
}

fn spans(request: &ExportTraceServiceRequest) -> Vec<Span> {
    let scopes = request.resource_spans.iter().flat_map(|resource| &resource.scope_spans);
    scopes.flat_map(|scope| scope.spans.clone()).collect()
}

fn span<'a>(spans: &'a [Span], name: &str) -> (&'a Span, BTreeMap<String, String>) {
    let names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
    let span = spans.iter().find(|span| span.name == name);
    let span = span.unwrap_or_else(|| panic!("no span `{name}` among {names:?}"));
    (span, attributes(&span.attributes))
}

/// Counts the stalls of an area.
#[tool(effect(Effect::Pure))]
async fn count(area: u64) -> Result<u64, ToolError> {
    match area {
        0 => Err(ToolError::new("there is no such area")),
        area => Ok(area * 4),
    }
}

/// Runs an agent under a subscriber that exports to this collector, on a thread of a runtime.
fn run(exporter: Exporter, replies: Vec<ScriptedReply>) -> Result<(), OtelError> {
    let (layer, guard) = exporter.layer()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
        runtime.block_on(async {
            let agent = Agent::builder(Scripted::new(replies)).name("analyst");
            let agent = agent.tools([count_tool().build().unwrap()]).build().unwrap();
            let _ = agent.run("how many stalls?").observe(Traces::new("analyst")).await;
            // Where a program ends is within its runtime, as often as not.
            guard.shutdown()
        })
    })
}

fn reply(notation: &str) -> ScriptedReply {
    let said: Transcript = notation.parse().unwrap();
    ScriptedReply::from((**said.iter().next().unwrap()).clone())
}

#[test]
fn a_run_its_model_calls_and_its_tool_calls_reach_the_collector() {
    let collector = Collector::start("200 OK");
    let exporter = Exporter::to(collector.url()).service("stalls").header("x-key", "hush");
    assert!(!format!("{exporter:?}").contains("hush"));
    let replies = vec![
        reply("assistant: > c1 count(area=3)   > c2 count(area=0)"),
        reply("assistant: Area 3 has 12 stalls."),
    ];
    run(exporter, replies).unwrap();

    let (head, request) = collector.request();
    let head = head.to_ascii_lowercase();
    assert!(head.starts_with("post /v1/traces http/1.1"), "{head}");
    assert!(head.contains("content-type: application/x-protobuf"), "{head}");
    assert!(head.contains("x-key: hush"), "{head}");
    let resource = request.resource_spans[0].resource.as_ref().unwrap();
    assert_eq!(attributes(&resource.attributes)["service.name"], "stalls");

    let spans = spans(&request);
    assert_eq!(spans.len(), 5, "a run, two model calls, two tool calls: {spans:#?}");
    let (run, told) = span(&spans, "invoke_agent analyst");
    assert_eq!(told["gen_ai.operation.name"], "invoke_agent");
    assert_eq!(told["gen_ai.agent.name"], "analyst");
    assert_eq!(told["stepfold.exit"], "the model answered");
    assert!(!told["gen_ai.conversation.id"].is_empty());
    assert!(run.parent_span_id.is_empty());
    assert!(run.start_time_unix_nano > 0 && run.start_time_unix_nano <= run.end_time_unix_nano);

    for inner in spans.iter().filter(|span| span.name != run.name) {
        assert_eq!(inner.parent_span_id, run.span_id, "{} is within the run", inner.name);
        assert_eq!(inner.trace_id, run.trace_id);
    }
    let chat = spans.iter().find(|span| span.name.starts_with("chat ")).unwrap();
    let told = attributes(&chat.attributes);
    assert_eq!(told["gen_ai.operation.name"], "chat");
    assert_eq!(told["gen_ai.response.finish_reasons"], "tool_calls");
    assert!(told.contains_key("gen_ai.usage.input_tokens"), "{told:?}");

    let calls = spans.iter().filter(|span| span.name == "execute_tool count");
    let by_id: BTreeMap<String, &Span> =
        calls.map(|span| (attributes(&span.attributes)["gen_ai.tool.call.id"].clone(), span)).collect();
    assert_eq!(by_id.keys().collect::<Vec<_>>(), ["c1", "c2"]);
    assert!(by_id["c1"].status.as_ref().is_none_or(|status| status.code() == StatusCode::Unset));
    assert_eq!(by_id["c2"].status.as_ref().unwrap().code(), StatusCode::Error);
    assert_eq!(attributes(&by_id["c2"].attributes)["error.type"], "Failed(Error)");
    // Messages and results are content, which was not requested.
    assert!(!spans.iter().any(|span| attributes(&span.attributes).contains_key("gen_ai.tool.call.result")));
}

#[test]
fn a_failed_model_call_is_an_error_of_its_span_and_of_the_run() {
    let collector = Collector::start("200 OK");
    // The whole path is an address too.
    let exporter = Exporter::to(format!("{}/v1/traces/", collector.url())).service("stalls");
    run(exporter, vec![reply("assistant: never fini").truncated()]).unwrap();
    let (head, request) = collector.request();
    assert!(head.starts_with("POST /v1/traces HTTP/1.1"), "{head}");
    let spans = spans(&request);
    for (name, error) in [("invoke_agent analyst", "run_error"), ("chat scripted", "model_error")] {
        let (span, told) = span(&spans, name);
        assert_eq!(told["error.type"], error);
        assert_eq!(span.status.as_ref().unwrap().code(), StatusCode::Error);
    }
}

#[test]
fn spans_of_the_program_itself_go_along_but_not_its_small_talk() {
    let collector = Collector::start("200 OK");
    let (layer, guard) = Exporter::to(collector.url()).layer().unwrap();
    tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
        tracing::info_span!("request").in_scope(|| tracing::debug_span!("detail").in_scope(|| ()));
    });
    guard.flush().unwrap();
    let (_, request) = collector.request();
    let spans = spans(&request);
    assert_eq!(spans.iter().map(|span| span.name.as_str()).collect::<Vec<_>>(), ["request"]);
    drop(guard);
}

#[test]
fn dropping_the_guard_sends_what_is_left() {
    let collector = Collector::start("200 OK");
    let (layer, guard) = Exporter::to(collector.url()).layer().unwrap();
    tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
        drop(tracing::info_span!("request"));
    });
    drop(guard);
    assert_eq!(spans(&collector.request().1).len(), 1);
}

#[test]
fn a_collector_that_refuses_is_an_error_and_holds_nobody_up() {
    let collector = Collector::start("400 Bad Request");
    let refused = run(Exporter::to(collector.url()), vec![reply("assistant: 12")]);
    assert!(matches!(refused, Err(OtelError::Export { .. })), "{refused:?}");

    // The collector has been stopped.
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let exporter = Exporter::to(format!("http://{gone}")).timeout(Duration::from_millis(200));
    let gone = run(exporter, vec![reply("assistant: 12")]);
    assert!(matches!(gone, Err(OtelError::Export { .. })), "{gone:?}");
}

#[test]
fn what_can_be_known_to_fail_is_refused_at_once() {
    let refused = |exporter: Exporter| exporter.layer::<tracing_subscriber::Registry>().err().unwrap();
    for url in ["localhost:4318", "", "ftp://localhost", "http://"] {
        let error = refused(Exporter::to(url));
        assert!(matches!(&error, OtelError::Address { url: given } if given == url), "{error}");
    }
    let error = refused(Exporter::to("http://localhost:4318").header("x-key", "hush\n"));
    assert_eq!(
        error.to_string(),
        "invalid header `x-key`: its name or value contains a character that HTTP does not allow"
    );
}
