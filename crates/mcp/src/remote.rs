//! A server at a URL: streamable HTTP, with headers of the user.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::StreamExt as _;
use http::{HeaderName, HeaderValue};
use rmcp::model::ClientJsonRpcMessage;
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::common::client_side_sse::BoxedSseResponse;
use rmcp::transport::streamable_http_client::{
    SseError, StreamableHttpClient, StreamableHttpClientTransportConfig, StreamableHttpError,
    StreamableHttpPostResponse, StreamableHttpResponseLimits,
};

use crate::meter::ByteMeter;
use crate::oauth::ServerAuthorization;
use crate::repair::repaired;

/// The bytes that an event of a stream counts in addition to its data.
// NOTE: The SDK passes on events, not bytes. Comments and blank lines count nothing, and end with the timeout of
// their call. See docs/decisions/mcp.md.
const OF_EVENT: usize = 8;

/// The URL of a server, and the headers of each request. Headers may hold secrets and are never printed.
#[derive(Clone)]
pub(crate) struct RemoteServer {
    pub(crate) url: String,
    pub(crate) token: Option<String>,
    pub(crate) headers: HashMap<HeaderName, HeaderValue>,
    pub(crate) authorization: Option<Arc<ServerAuthorization>>,
}

impl RemoteServer {
    pub(crate) fn new(url: String) -> Self {
        RemoteServer { url, token: None, headers: HashMap::new(), authorization: None }
    }

    /// Redacts secrets in a text: a server may return what it received.
    pub(crate) fn redact(&self, text: &str) -> String {
        let text = match &self.authorization {
            Some(authorization) => authorization.redact(text),
            None => text.to_owned(),
        };
        match &self.token {
            Some(token) if !token.is_empty() => text.replace(token.as_str(), "[secret]"),
            _ => text,
        }
    }

    /// Checks the URL and the token.
    pub(crate) fn check(&self) -> Result<(), String> {
        let url = reqwest::Url::parse(&self.url).ok().filter(reqwest::Url::has_host);
        if url.is_none_or(|url| !matches!(url.scheme(), "http" | "https")) {
            return Err(format!("invalid URL `{}`: must begin with http:// or https://", self.url));
        }
        let token = self.token.as_ref().map(|token| HeaderValue::try_from(format!("Bearer {token}")));
        match token {
            // NOTE: Both would set the `Authorization` header.
            Some(_) if self.authorization.is_some() => {
                Err("a bearer token and OAuth exclude each other".to_owned())
            }
            Some(Err(_)) => {
                Err("the token has a character that cannot be sent, such as a line break".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// Creates the transport, which sends nothing yet.
    pub(crate) fn transport<C>(
        &self,
        client: C,
        meter: &Arc<ByteMeter>,
    ) -> StreamableHttpClientTransport<MeteredClient<C>>
    where
        C: StreamableHttpClient + Send + Sync + 'static,
    {
        let client = MeteredClient { client, meter: Arc::clone(meter) };
        let mut config = StreamableHttpClientTransportConfig::with_uri(self.url.as_str())
            .max_sse_event_size(meter.limit())
            .max_json_response_size(meter.limit())
            .custom_headers(self.headers.clone());
        if let Some(token) = &self.token {
            config = config.auth_header(token);
        }
        StreamableHttpClientTransport::with_client(client, config)
    }
}

/// A client that counts the events of all streams of a connection, and fails when there are too many. The inner client
/// limits the size of each.
#[derive(Clone)]
pub(crate) struct MeteredClient<C> {
    client: C,
    meter: Arc<ByteMeter>,
}

impl<C: StreamableHttpClient> MeteredClient<C> {
    fn counted(&self, events: BoxedSseResponse) -> BoxedSseResponse {
        let meter = Arc::clone(&self.meter);
        let counted = events.map(move |event| {
            let mut event = event?;
            if let Some(data) = event.data.as_ref().and_then(|data| repaired(data.as_bytes())) {
                event.data = String::from_utf8(data).ok();
            }
            let bytes = event.data.as_ref().map_or(0, String::len) + OF_EVENT;
            meter.count(bytes).map_err(|reason| SseError::Body(meter.mark_broken(reason).into()))?;
            Ok(event)
        });
        counted.boxed()
    }

    /// Refuses to reopen a stream after a limit was exceeded.
    fn check(&self) -> Result<(), StreamableHttpError<C::Error>> {
        let broken = self.meter.broken();
        broken.map_or(Ok(()), |reason| Err(StreamableHttpError::UnexpectedServerResponse(reason.into())))
    }
}

impl<C: StreamableHttpClient + Sync> StreamableHttpClient for MeteredClient<C> {
    type Error = C::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        token: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, StreamableHttpError<Self::Error>> {
        let mut limits = StreamableHttpResponseLimits::default();
        limits.max_sse_event_size = self.meter.limit();
        limits.max_json_response_size = self.meter.limit();
        self.post_message_with_response_limits(uri, message, session_id, token, headers, limits).await
    }

    async fn post_message_with_response_limits(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        token: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
        limits: StreamableHttpResponseLimits,
    ) -> Result<StreamableHttpPostResponse, StreamableHttpError<Self::Error>> {
        self.check()?;
        let post =
            self.client.post_message_with_response_limits(uri, message, session_id, token, headers, limits);
        Ok(match post.await? {
            StreamableHttpPostResponse::Sse(events, session) => {
                StreamableHttpPostResponse::Sse(self.counted(events), session)
            }
            other => other,
        })
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        token: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), StreamableHttpError<Self::Error>> {
        self.client.delete_session(uri, session_id, token, headers).await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        token: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxedSseResponse, StreamableHttpError<Self::Error>> {
        let limit = self.meter.limit();
        self.get_stream_with_max_sse_event_size(uri, session_id, last_event_id, token, headers, limit).await
    }

    async fn get_stream_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        token: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
        limit: usize,
    ) -> Result<BoxedSseResponse, StreamableHttpError<Self::Error>> {
        self.check()?;
        let events = self.client.get_stream_with_max_sse_event_size(
            uri,
            session_id,
            last_event_id,
            token,
            headers,
            limit,
        );
        Ok(self.counted(events.await?))
    }
}
