//! A server on a loopback address that plays what it is told to, byte for byte, and checks each request.
//!
//! It is plain sockets on purpose: an HTTP library would not let us break the rules. A request that breaks
//! *our* rules gets status 400 and the reason, so that the test which sent it fails with that.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use stepfold_state_core::chat::{Message, ModelError, Reply, Role, Transcript};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// What to do with one request.
#[derive(Clone, Debug)]
pub(crate) struct Play {
    head: String,
    body: Vec<u8>,
    frame: Frame,
    end: End,
}

/// How a body's end can be told.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Frame {
    /// By its length.
    Length,
    /// By the end of the connection.
    Close,
    /// In pieces with lengths of their own.
    Chunked,
}

/// What happens behind the body.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    /// It ends as its frame says.
    Clean,
    /// The connection is closed in the middle of it.
    Cut,
    /// Nothing more comes.
    Stall,
}

impl Play {
    /// A whole response.
    pub(crate) fn new(status: u16, headers: &str, body: impl Into<Vec<u8>>) -> Self {
        let headers: String = headers.lines().map(|line| format!("{}\r\n", line.trim())).collect();
        let head = format!("HTTP/1.1 {status} Whatever\r\nconnection: close\r\n{headers}");
        Play { head, body: body.into(), frame: Frame::Length, end: End::Clean }
    }

    /// JSON with this status.
    pub(crate) fn json(status: u16, body: &str) -> Self {
        Play::new(status, "content-type: application/json", body)
    }

    /// A stream of events, as they stand.
    pub(crate) fn events(text: impl Into<Vec<u8>>) -> Self {
        let headers = "content-type: text/event-stream; charset=utf-8\nx-request-id: req_7";
        Play { frame: Frame::Chunked, ..Play::new(200, headers, text) }
    }

    /// The same, whose connection is closed before the body is over.
    pub(crate) fn cut(self) -> Self {
        Play { end: End::Cut, ..self }
    }

    /// The same, with a body that ends with the connection: its completeness is unknown.
    pub(crate) fn until_close(self) -> Self {
        Play { frame: Frame::Close, ..self }
    }

    /// The same, and then silence.
    pub(crate) fn stall(self) -> Self {
        Play { end: End::Stall, ..self }
    }

    /// A connection on which nothing is ever said.
    pub(crate) fn silence() -> Self {
        Play { head: String::new(), body: Vec::new(), frame: Frame::Close, end: End::Stall }
    }

    /// How long to wait for it: nearly for ever, unless it is about to stand still.
    pub(crate) fn limit(&self) -> Duration {
        Duration::from_millis(if self.end == End::Stall { 300 } else { 30_000 })
    }

    /// In writes of how many bytes it is to be played: at once, and one by one unless that takes too long.
    pub(crate) fn pieces(&self) -> &'static [usize] {
        if self.body.len() > 100_000 { &[usize::MAX] } else { &[usize::MAX, 1] }
    }

    /// The bytes that go out.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.head.clone().into_bytes();
        if self.head.is_empty() {
            return bytes;
        }
        let missing = usize::from(self.end != End::Clean);
        match self.frame {
            Frame::Length => {
                bytes.extend(format!("content-length: {}\r\n\r\n", self.body.len() + missing).bytes());
                bytes.extend(&self.body);
            }
            Frame::Close => {
                bytes.extend(b"\r\n");
                bytes.extend(&self.body);
            }
            Frame::Chunked => {
                bytes.extend(b"transfer-encoding: chunked\r\n\r\n");
                for piece in self.body.chunks(1 << 16) {
                    bytes.extend(format!("{:x}\r\n", piece.len()).bytes());
                    bytes.extend(piece);
                    bytes.extend(b"\r\n");
                }
                bytes.extend(if self.end == End::Clean { &b"0\r\n\r\n"[..] } else { b"" });
            }
        }
        bytes
    }
}

/// A request that came.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// The first line and the headers.
    pub(crate) head: String,
    /// The bytes of the body.
    pub(crate) raw: String,
    /// The body, read.
    pub(crate) body: Value,
}

impl Asked {
    pub(crate) fn path(&self) -> &str {
        self.head.split(' ').nth(1).unwrap_or("")
    }

    pub(crate) fn header(&self, name: &str) -> Option<String> {
        let lines = self.head.lines().filter_map(|line| line.split_once(':'));
        lines
            .filter(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim().to_owned())
            .next()
    }
}

/// What is wrong with a request, if anything is.
pub(crate) type Check = fn(&Asked) -> Result<(), String>;

/// The server. It stops when it is dropped.
pub(crate) struct Server {
    pub(crate) url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
    hung_up: Arc<Notify>,
    task: tokio::task::JoinHandle<()>,
}

impl Server {
    /// Plays one after the other, in writes of so many bytes; the last one again and again.
    pub(crate) async fn start(plays: impl IntoIterator<Item = Play>, piece: usize, check: Check) -> Self {
        let plays: Vec<Play> = plays.into_iter().collect();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&asked);
        let hung_up = Arc::new(Notify::new());
        let gone = Arc::clone(&hung_up);
        let task = tokio::spawn(async move {
            let mut number = 0;
            while let Ok((socket, _)) = listener.accept().await {
                let play = plays[number.min(plays.len() - 1)].clone();
                number += 1;
                tokio::spawn(serve(socket, play, piece, check, Arc::clone(&heard), Arc::clone(&gone)));
            }
        });
        Server { url, asked, hung_up, task }
    }

    /// Waits until a client hangs up on a play that stalls.
    pub(crate) async fn hung_up(&self) {
        self.hung_up.notified().await;
    }

    /// What was asked so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    mut socket: TcpStream,
    play: Play,
    piece: usize,
    check: Check,
    heard: Arc<Mutex<Vec<Asked>>>,
    gone: Arc<Notify>,
) {
    socket.set_nodelay(true).unwrap();
    let Some(asked) = read(&mut socket).await else {
        return;
    };
    let verdict = check(&asked);
    heard.lock().unwrap().push(asked);
    let play = match verdict {
        Ok(()) => play,
        Err(reason) => Play::json(400, &serde_json::json!({"error": {"message": reason}}).to_string()),
    };
    for bytes in play.bytes().chunks(piece) {
        if socket.write_all(bytes).await.is_err() {
            return;
        }
    }
    if play.end == End::Stall {
        // Until the client hangs up.
        let _ = socket.read(&mut [0]).await;
        gone.notify_one();
    }
}

async fn read(socket: &mut TcpStream) -> Option<Asked> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        if socket.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8_lossy(&bytes[..head_end]).into_owned();
    let mut asked = Asked { head, raw: String::new(), body: Value::Null };
    let length: usize = asked.header("content-length")?.parse().ok()?;
    while bytes.len() < head_end + length {
        if socket.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
    asked.raw = String::from_utf8_lossy(&bytes[head_end..]).into_owned();
    asked.body = serde_json::from_str(&asked.raw).unwrap_or(Value::Null);
    Some(asked)
}

/// What is wrong with any request that we send.
pub(crate) fn check_any(asked: &Asked) -> Result<(), String> {
    if !asked.head.starts_with("POST /") {
        return Err("it is no POST".to_owned());
    }
    if asked.header("content-type").as_deref() != Some("application/json") {
        return Err("its body is no JSON, by its header".to_owned());
    }
    if !asked.body.is_object() {
        return Err("its body is no JSON object".to_owned());
    }
    if asked.body["stream"] != true {
        return Err("it asks for no stream".to_owned());
    }
    let is_text = |name: &str| asked.body[name].as_str().is_some_and(|text| !text.is_empty());
    if !is_text("model") {
        return Err("it names no model".to_owned());
    }
    let names: Vec<&Value> = (asked.body["tools"].as_array().into_iter().flatten())
        .map(|tool| tool.pointer("/function/name").unwrap_or(&tool["name"]))
        .collect();
    let repeated = names.iter().enumerate().find(|(index, name)| names[..*index].contains(name));
    if let Some((_, name)) = repeated {
        return Err(format!("the tool {name} is offered twice"));
    }
    check_rules(asked)
}

/// The rules of the server that has such a path, which a request to it breaks.
#[cfg(feature = "check")]
fn check_rules(asked: &Asked) -> Result<(), String> {
    use stepfold_providers::check::{KnownServer, faults};
    let path = asked.path();
    let server = match path.split('?').next().unwrap_or(path) {
        path if path.ends_with("/chat/completions") => KnownServer::OpenAiChat,
        path if path.ends_with("/responses") => KnownServer::OpenAiResponses,
        path if path.ends_with("/messages") => KnownServer::Anthropic,
        path if path.ends_with(":streamGenerateContent") => KnownServer::Gemini,
        _ => return Ok(()),
    };
    let faults: Vec<String> = faults(server, &asked.body).iter().map(ToString::to_string).collect();
    if faults.is_empty() { Ok(()) } else { Err(faults.join("; ")) }
}

#[cfg(not(feature = "check"))]
fn check_rules(_: &Asked) -> Result<(), String> {
    Ok(())
}

/// What is wrong with a request to Gemini.
pub(crate) fn check_gemini(asked: &Asked) -> Result<(), String> {
    let is_good = asked.head.starts_with("POST /")
        && asked.path().ends_with(":streamGenerateContent?alt=sse")
        && asked.header("x-goog-api-key").is_some()
        && asked.body["contents"].is_array();
    if is_good { check_rules(asked) } else { Err(format!("{}: {}", asked.path(), asked.raw)) }
}

/// JSON with its keys sorted, however the features of `serde_json` are set.
pub(crate) fn pretty(value: &Value) -> String {
    fn sorted(value: &Value) -> Value {
        match value {
            Value::Object(map) => {
                let mut fields: Vec<_> =
                    map.iter().map(|(key, value)| (key.clone(), sorted(value))).collect();
                fields.sort_by(|left, right| left.0.cmp(&right.0));
                Value::Object(fields.into_iter().collect())
            }
            Value::Array(items) => items.iter().map(sorted).collect(),
            other => other.clone(),
        }
    }
    format!("{:#}\n", sorted(value))
}

/// A reply, or the error and all that is known of it, as text without the key.
pub(crate) fn show(reply: Result<Reply, ModelError>, key: &str) -> String {
    let shown = match reply {
        Ok(reply) => {
            let usage = reply.usage;
            let said: Transcript = [reply.message].into_iter().collect();
            let used = match usage.total_tokens() {
                0 => String::new(),
                _ => format!(
                    " [{}({}) + {}({}) tokens]",
                    usage.input_tokens,
                    usage.cached_input_tokens,
                    usage.output_tokens,
                    usage.reasoning_tokens
                ),
            };
            let written = usage.cache_write_tokens;
            let written =
                if written == 0 { String::new() } else { format!(" [{written} written to the cache]") };
            let cost = if usage.cost.is_zero() { String::new() } else { format!(" [{}]", usage.cost) };
            let used = used + &written + &cost;
            format!("{}\n{}{used}\n", without_port(said.to_string().trim_end()), reply.finish_reason)
        }
        Err(error) => {
            let partial = error.partial().filter(|partial| !partial.message.parts().is_empty());
            let partial = partial.map_or_else(String::new, |partial| {
                let said: Transcript = [partial.message.clone()].into_iter().collect();
                format!("had come: {}\n", without_port(said.to_string().trim_end()))
            });
            assert!(error.provider().is_some() && error.model().is_some(), "{error}");
            // Nothing that can be printed of it shows the key.
            assert!(!format!("{error:?}").contains(key), "{error:?}");
            format!("{error}\n{partial}")
        }
    };
    assert!(!shown.contains(key), "{shown}");
    shown
}

/// The text without the port of a server that was started for it.
fn without_port(text: &str) -> String {
    let Some((before, behind)) = text.split_once("http://127.0.0.1:") else {
        return text.to_owned();
    };
    let behind = behind.trim_start_matches(|c: char| c.is_ascii_digit());
    format!("{before}http://server{}", without_port(behind))
}

/// The one text that all of these are.
pub(crate) fn all_equal(shown: Vec<String>) -> String {
    let cut = |text: &String| text.chars().take(2_000).collect::<String>();
    for other in &shown[1..] {
        assert!(*other == shown[0], "at once: {}\nbyte by byte: {}", cut(&shown[0]), cut(other));
    }
    shown.into_iter().next().unwrap()
}

/// The conversation with all replies as this server's.
pub(crate) fn of_server(messages: &Transcript, server: &str) -> Transcript {
    let marked = messages.iter().map(|message| {
        let is_reply = message.role() == Role::Assistant;
        let message = Message::clone(message);
        if is_reply { message.with_extra("server", server) } else { message }
    });
    marked.collect()
}
