//! A small HTTP server for tests that write an MCP server by hand: it reads requests, and a function answers them.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use serde_json::{Value, json};

/// What the server does with a request.
pub(crate) enum Response {
    /// Answers with JSON, and with these header lines, each of which ends with CRLF.
    Json(Value, &'static str),
    /// Answers with this status and JSON.
    Status(u16, Value),
    /// Answers 202, without a body.
    Accepted,
    /// Answers with a stream of events, which the function keeps.
    Events(Box<dyn FnOnce(TcpStream) + Send>),
    /// Closes the connection without an answer.
    Close,
}

impl Response {
    /// The response of JSON-RPC to a message: a result, an error for an unknown method, or nothing for a notification.
    pub(crate) fn rpc(message: &Value, result: Option<Value>) -> Self {
        let id = &message["id"];
        match result {
            Some(result) => Response::Json(json!({"jsonrpc": "2.0", "id": id, "result": result}), ""),
            None if id.is_null() => Response::Accepted,
            None => {
                let error = json!({"code": -32601, "message": "unknown method"});
                Response::Json(json!({"jsonrpc": "2.0", "id": id, "error": error}), "")
            }
        }
    }

    /// The same response with a header line.
    pub(crate) fn with_header(self, header: &'static str) -> Self {
        match self {
            Response::Json(body, _) => Response::Json(body, header),
            other => other,
        }
    }
}

/// Serves on a free port until the process ends; returns the URL. A message is the JSON body of a request, `null` without
/// a body.
pub(crate) fn serve(answer: impl Fn(&str, &Value) -> Response + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let answer = Arc::new(answer);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, answer) = (stream.unwrap(), Arc::clone(&answer));
            thread::spawn(move || connection(stream, &*answer));
        }
    });
    url
}

/// Answers the requests of a connection until it is closed.
fn connection(mut stream: TcpStream, answer: &dyn Fn(&str, &Value) -> Response) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    loop {
        let (method, message) = request(&mut reader)?;
        match answer(&method, &message) {
            Response::Json(body, header) => {
                let (head, body) = ("HTTP/1.1 200 OK\r\ncontent-type: application/json", body.to_string());
                write!(stream, "{head}\r\n{header}content-length: {}\r\n\r\n{body}", body.len()).ok()?;
            }
            Response::Status(status, body) => {
                let (head, body) = ("content-type: application/json", body.to_string());
                write!(
                    stream,
                    "HTTP/1.1 {status} No\r\n{head}\r\ncontent-length: {}\r\n\r\n{body}",
                    body.len()
                )
                .ok()?;
            }
            Response::Accepted => {
                stream.write_all(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n").ok()?;
            }
            Response::Events(keep) => {
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n").ok()?;
                keep(stream);
                return Some(());
            }
            Response::Close => return None,
        }
    }
}

/// The method and the message of a request.
fn request(reader: &mut BufReader<TcpStream>) -> Option<(String, Value)> {
    let (mut line, mut length, mut method) = (String::new(), 0, None);
    while reader.read_line(&mut line).ok()? > 2 {
        method = method.or_else(|| line.split(' ').next().map(str::to_owned));
        if let Some(text) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = text.trim().parse().ok()?;
        }
        line.clear();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((method?, serde_json::from_slice(&body).unwrap_or_default()))
}
