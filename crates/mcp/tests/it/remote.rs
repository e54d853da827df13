//! The same server over streamable HTTP, in this process.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use stepfold_mcp::{McpServer, McpServerBuilder, ServerLimits};
use stepfold_tools::CallStatus;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::kit::{call, invocation, line, offered, until_progress};
use crate::peer::{Does, Peer};

/// How the server answers a request.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Form {
    Json,
    Events,
}

/// A server at an address of this machine, which wants a token.
async fn remote(form: Form) -> McpServerBuilder {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let peer = Arc::new(Mutex::new(Peer::new("plain")));
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(serve(stream, Arc::clone(&peer), form));
        }
    });
    McpServer::http("remote", url).prefix("").bearer_token("s3cret").header("x-tenant", "t1")
}

pub(crate) async fn serve(stream: TcpStream, peer: Arc<Mutex<Peer>>, form: Form) {
    let mut stream = BufReader::new(stream);
    while let Some((head, body)) = request(&mut stream).await {
        let has_token = head.iter().any(|line| line == "authorization: Bearer s3cret");
        let has_header = head.iter().any(|line| line == "x-tenant: t1");
        let response = match head[0].split(' ').next().unwrap() {
            _ if !has_token => {
                "HTTP/1.1 401 Unauthorized\r\nwww-authenticate: Bearer\r\ncontent-length: 0\r\n\r\n"
                    .to_owned()
            }
            "POST" if has_header => {
                let message: Value = serde_json::from_slice(&body).unwrap();
                let does = peer.lock().unwrap().answer(&message);
                match does {
                    Does::Says(messages) if messages.is_empty() => {
                        "HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n".to_owned()
                    }
                    Does::Says(messages) if form == Form::Json && messages.len() == 1 => {
                        let body = messages[0].to_string();
                        format!(
                            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                            body.len()
                        )
                    }
                    Does::Says(messages) => {
                        let events: String =
                            messages.iter().map(|message| format!("data: {message}\n\n")).collect();
                        // It ends with the last event; a call that hangs does not end.
                        let is_answered = messages.iter().any(|message| message.get("result").is_some());
                        let length = if is_answered {
                            format!("content-length: {}\r\n", events.len())
                        } else {
                            String::new()
                        };
                        format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{length}\r\n{events}")
                    }
                    Does::Writes(bytes) => {
                        let head = format!(
                            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                            bytes.len()
                        );
                        let _ = stream.write_all(head.as_bytes()).await;
                        let _ = stream.write_all(&bytes).await;
                        return;
                    }
                    Does::Floods => {
                        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
                        let note = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}});
                        let mut bytes = head.to_owned();
                        // A stream whose events have ids is one that clients open again.
                        while stream.write_all(bytes.as_bytes()).await.is_ok() {
                            bytes = format!("id: 1\ndata: {note}\n\n").repeat(100);
                        }
                        return;
                    }
                    Does::Dies | Does::Stays(_) => return,
                }
            }
            _ => "HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\n\r\n".to_owned(),
        };
        if stream.write_all(response.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// The lines of a head, in lower case but for values, and the body.
pub(crate) async fn request(stream: &mut BufReader<TcpStream>) -> Option<(Vec<String>, Vec<u8>)> {
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        match line.trim_end() {
            "" => break,
            line => head.push(match line.split_once(": ") {
                Some((name, value)) => format!("{}: {value}", name.to_lowercase()),
                None => line.to_owned(),
            }),
        }
    }
    let length = head
        .iter()
        .find_map(|line| line.strip_prefix("content-length: "))
        .map_or(0, |text| text.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some((head, body))
}

#[tokio::test]
async fn a_server_at_a_url_is_used_as_one_that_is_a_program() {
    for form in [Form::Json, Form::Events] {
        let server = remote(form).await.build().unwrap();
        assert_eq!(line(&server, "echo", json!({"text": "hi"})).await, "Succeeded: hi");
        assert_eq!(line(&server, "fail", json!({})).await, "Failed(Error): no such file");
        let tools = offered(&server).await;
        let mut invocation = invocation(&tools, "progress", json!({}));
        until_progress(&mut invocation).await;
        assert!(invocation.finish().await.outcomes[0].succeeded());
        server.stop().await;
    }
}

#[tokio::test]
async fn a_wrong_token_is_an_error_that_does_not_show_it() {
    let error = remote(Form::Json)
        .await
        .bearer_token("wr0ng")
        .build()
        .unwrap()
        .start()
        .await
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "MCP server `remote` requires authorization: it answered `Bearer`; set a valid bearer token, or OAuth"
    );
}

#[tokio::test]
async fn a_call_whose_connection_ends_is_unknown() {
    let server = remote(Form::Json).await.build().unwrap();
    let outcome = call(&server, "die", json!({})).await;
    assert_eq!(outcome.status, CallStatus::Unknown, "{outcome:?}");
    assert_eq!(line(&server, "other", json!({})).await, "Succeeded: other is done");
}

#[tokio::test]
async fn a_body_that_is_too_long_is_not_read() {
    let limits = ServerLimits::default().with_message_bytes(1024 * 1024);
    let server = remote(Form::Json).await.limits(limits).build().unwrap();
    let outcome = call(&server, "huge", json!({})).await;
    assert_eq!(outcome.status, CallStatus::Unknown, "{outcome:?}");
    assert!(outcome.result.text().contains("maximum size of 1048576 bytes"), "{outcome:?}");
}

#[tokio::test]
async fn a_server_that_sends_without_end_is_no_longer_read() {
    let limits = ServerLimits::default().with_message_bytes(64 * 1024);
    let server = remote(Form::Events).await.limits(limits).build().unwrap();
    for _ in 0..2 {
        let outcome = call(&server, "flood", json!({})).await;
        assert_eq!(outcome.status, CallStatus::Unknown, "{outcome:?}");
        let text = outcome.result.text();
        assert!(text.contains("it sent more than 262144 bytes after one request"), "{text}");
        // The next call has a connection of its own.
        assert_eq!(line(&server, "other", json!({})).await, "Succeeded: other is done");
    }
}
