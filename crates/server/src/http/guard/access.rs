//! A line for each request, for the log of a program: without tokens, queries and bodies.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, HttpBody as _};
use axum::extract::Request;
use axum::middleware::Next;
use http::{HeaderValue, Response, header};
use http_body_util::BodyExt as _;
use stepfold_session_scopes::Timestamp;
use tokio::time::Instant;

/// A request that was answered, at the end of its answer: of a stream, when its reader is gone. It has no token, no query
/// and no body.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Access {
    /// The address of the client, if the server accepted the connection itself.
    pub peer: Option<IpAddr>,
    /// The name of the principal, if it was authenticated.
    pub principal: Option<String>,
    /// The method.
    pub method: String,
    /// The path, without a query.
    pub path: String,
    /// The status of the answer.
    pub status: u16,
    /// The bytes of the answer that were sent.
    pub bytes: u64,
    /// The time until its end.
    pub elapsed: Duration,
}

impl Access {
    /// The line in the Common Log Format of web servers, with the microseconds after it.
    ///
    /// # Examples
    /// ```text
    /// 127.0.0.1 - ada [25/Nov/2026:23:01:07 +0000] "GET /api/v1/apps HTTP/1.1" 200 412 1830
    /// ```
    pub fn common_log(&self, at: Timestamp) -> String {
        let peer = self.peer.map_or_else(|| "-".to_owned(), |peer| peer.to_string());
        let principal = self.principal.as_deref().map_or_else(|| "-".to_owned(), plain);
        let Access { status, bytes, .. } = self;
        let (method, path, elapsed) = (plain(&self.method), plain(&self.path), self.elapsed.as_micros());
        format!(
            "{peer} - {principal} [{}] \"{method} {path} HTTP/1.1\" {status} {bytes} {elapsed}",
            date(&at.to_string())
        )
    }
}

/// A text without what would end a field or a line: neither names nor paths make lines of their own.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' | b' ' | 0..=0x1f | 0x7f.. => {
                // Writing to a string never fails.
                let _ = write!(plain, "\\x{byte:02x}");
            }
            byte => plain.push(char::from(byte)),
        }
    }
    plain
}

/// `2026-11-25T23:01:07Z` as `25/Nov/2026:23:01:07 +0000`.
fn date(at: &str) -> String {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let part = |range: std::ops::Range<usize>| at.get(range).unwrap_or_default();
    let month = part(5..7).parse::<usize>().ok().and_then(|month| MONTHS.get(month.checked_sub(1)?));
    format!("{}/{}/{}:{} +0000", part(8..10), month.unwrap_or(&"-"), part(0..4), part(11..19))
}

/// The function that logs requests.
pub(in crate::http) type AccessLog = Arc<dyn Fn(&Access) + Send + Sync>;

/// The address of a client, in the extensions of its requests.
#[derive(Clone, Copy, Debug)]
pub(in crate::http) struct PeerAddress(pub(in crate::http) IpAddr);

/// The name of a principal, in the extensions of the answer.
#[derive(Clone, Debug)]
pub(in crate::http) struct CallerName(pub(in crate::http) String);

/// Answers a request, and logs it at the end of its answer.
pub(in crate::http) async fn logged(log: AccessLog, request: Request, next: Next) -> Response<Body> {
    let access = Access {
        peer: request.extensions().get().map(|PeerAddress(peer)| *peer),
        principal: None,
        method: request.method().to_string(),
        path: request.uri().path().to_owned(),
        status: 0,
        bytes: 0,
        elapsed: Duration::ZERO,
    };
    let mut entry = AccessEntry { access, began: Instant::now(), log };
    let mut response = next.run(request).await;
    entry.access.status = response.status().as_u16();
    entry.access.principal = response.extensions_mut().remove().map(|CallerName(name)| name);
    if let Some(bytes) = response.body().size_hint().exact() {
        // NOTE: A body that counts its frames has no known length; without this header, the answer would be chunked.
        response.headers_mut().entry(header::CONTENT_LENGTH).or_insert(HeaderValue::from(bytes));
        if bytes == 0 {
            return response;
        }
    }
    response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            // All of it is held until the body ends.
            let entry = &mut entry;
            entry.access.bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
            frame
        }))
    })
}

/// A line that is written when it is dropped.
struct AccessEntry {
    access: Access,
    began: Instant,
    log: AccessLog,
}

impl Drop for AccessEntry {
    fn drop(&mut self) {
        self.access.elapsed = self.began.elapsed();
        (self.log)(&self.access);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_its_fields_whatever_they_say() {
        let mut access = Access {
            peer: Some(IpAddr::from([127, 0, 0, 1])),
            principal: Some("ada".to_owned()),
            method: "GET".to_owned(),
            path: "/api/v1/apps".to_owned(),
            status: 200,
            bytes: 412,
            elapsed: Duration::from_micros(1_830),
        };
        let at = Timestamp::from_micros(1_795_647_667_123_456);
        let line = r#"127.0.0.1 - ada [25/Nov/2026:23:01:07 +0000] "GET /api/v1/apps HTTP/1.1" 200 412 1830"#;
        assert_eq!(access.common_log(at), line);
        access.principal = Some("a b\"\n- x [".to_owned());
        access.path = "/\\\"\u{202e}".to_owned();
        let line = access.common_log(at);
        assert!(line.contains(r#" a\x20b\x22\x0a-\x20x\x20[ ["#), "{line}");
        assert!(line.contains(r#""GET /\x5c\x22\xe2\x80\xae HTTP/1.1" 200"#) && line.is_ascii(), "{line}");
    }
}
