//! Load by one token: requests with the manners of a client that is slow, or wants too much.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use super::process::Process;

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) method: &'static str,
    pub(super) path: String,
    pub(super) body: Body,
    /// Whether the answer is read, and not only its head.
    pub(super) reads: bool,
}

/// The body of a request.
#[derive(Clone)]
pub(super) enum Body {
    None,
    Json(String),
    /// The second half never comes. Without a length, it is sent in chunks.
    Half {
        bytes: usize,
        has_length: bool,
    },
    /// It comes in pieces.
    Slow(String),
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Body::None => f.write_str("none"),
            Body::Json(text) => write!(f, "{} bytes", text.len()),
            Body::Half { bytes, has_length } => write!(f, "half of {bytes} bytes, length {has_length}"),
            Body::Slow(text) => write!(f, "{} bytes, slowly", text.len()),
        }
    }
}

impl Ask {
    pub(super) fn get(path: impl Into<String>) -> Self {
        Ask { method: "GET", path: path.into(), body: Body::None, reads: false }
    }

    pub(super) fn post(path: impl Into<String>, body: Body) -> Self {
        Ask { method: "POST", path: path.into(), body, reads: false }
    }

    pub(super) fn reading(self) -> Self {
        Ask { reads: true, ..self }
    }
}

/// The head of an answer, and its connection as long as it is open.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) retry_after: bool,
    pub(super) text: String,
    _stream: TcpStream,
}

/// The bytes that a client's own system keeps for it: few, so that the server has the rest.
const KEPT: u32 = 64 << 10;

/// Bytes of a body that are sent at once.
const PIECE: usize = 64 << 10;

/// Sends a request; the answer once its head has come, if it comes.
pub(super) async fn send(process: &Process, user: &str, ask: &Ask) -> Option<Answer> {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(KEPT).unwrap();
    let stream = socket.connect(process.address.parse().unwrap()).await.ok()?;
    let (mut reader, mut writer) = stream.into_split();
    let (text, length) = match &ask.body {
        Body::None => (String::new(), "content-length: 0".to_owned()),
        Body::Json(text) | Body::Slow(text) => (text.clone(), format!("content-length: {}", text.len())),
        Body::Half { bytes, has_length: true } => (" ".repeat(bytes / 2), format!("content-length: {bytes}")),
        Body::Half { bytes, has_length: false } => {
            (format!("{bytes:x}\r\n{}", " ".repeat(bytes / 2)), "transfer-encoding: chunked".to_owned())
        }
    };
    let head = format!(
        "{} {} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n\
         a2a-version: 1.0\r\n{length}\r\n\r\n",
        ask.method,
        ask.path,
        process.address,
        process.token(user)
    );
    let is_slow = matches!(ask.body, Body::Slow(_));
    let sent = async move {
        // A server that has answered may not read the rest.
        if writer.write_all(head.as_bytes()).await.is_ok() {
            let mut pause = tokio::time::interval(Duration::from_millis(20));
            for piece in text.as_bytes().chunks(PIECE) {
                if is_slow {
                    pause.tick().await;
                }
                if writer.write_all(piece).await.is_err() {
                    break;
                }
            }
        }
        writer
    };
    let answered = async {
        let (mut bytes, mut chunk) = (Vec::new(), vec![0; 16 << 10]);
        while !bytes.windows(4).any(|end| end == b"\r\n\r\n") {
            match reader.read(&mut chunk).await {
                Ok(read @ 1..) => bytes.extend_from_slice(&chunk[..read]),
                _ => return None,
            }
        }
        if ask.reads {
            let length = length_of(&bytes);
            while length.is_none_or(|length| bytes.len() < length)
                && let Ok(read @ 1..) = reader.read(&mut chunk).await
            {
                bytes.extend_from_slice(&chunk[..read]);
            }
        }
        Some((bytes, reader))
    };
    let (writer, answered) = tokio::join!(sent, answered);
    let (bytes, reader) = answered?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let status = text.split(' ').nth(1)?.parse().ok()?;
    let head = text.split("\r\n\r\n").next()?.to_ascii_lowercase();
    let retry_after = head.contains("\r\nretry-after: ");
    Some(Answer { status, retry_after, text, _stream: reader.reunite(writer).ok()? })
}

/// The bytes of an answer with its head, if it tells.
fn length_of(bytes: &[u8]) -> Option<usize> {
    let text = String::from_utf8_lossy(bytes).to_ascii_lowercase();
    let head = text.find("\r\n\r\n")? + 4;
    let length = text[..head].split("\r\ncontent-length: ").nth(1)?.split("\r\n").next()?;
    Some(head + length.parse::<usize>().ok()?)
}
