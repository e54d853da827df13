//! An operation of the API: one function with its types, from which its route and its part of the OpenAPI document are made.
//!
//! What every request has to pass stands here once: host and origin, authentication, the role, the app and the session of
//! the principal, the query, the body. A handler is reached with all of it done.

use std::collections::HashMap;
use std::sync::Arc;

use axum::body::{Body, HttpBody as _};
use axum::extract::{FromRequestParts as _, Path, Query};
use futures_util::future::BoxFuture;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;
use stepfold_runner::{Runner, SessionHandle};
use stepfold_state_core::{check_exact, count_values};

use super::auth::{Principal, Role};
use super::limits::{Limits, MemoryReservation};
use super::openapi::SchemaGenerators;
use super::problem::{Problem, ProblemForm};
use super::server::{App, BASE, ServerState};
use super::strict;

/// What a handler gets.
pub(super) struct ApiRequest<T, Q = (), B = ()> {
    pub(super) shared: Arc<ServerState>,
    pub(super) principal: Principal,
    pub(super) target: T,
    pub(super) query: Q,
    pub(super) body: B,
    pub(super) headers: HeaderMap,
    /// What the request holds until it is answered.
    pub(super) memory: MemoryReservation,
}

impl<T, Q, B> ApiRequest<T, Q, B> {
    /// The header `Idempotency-Key`.
    pub(super) fn idempotency_key(&self) -> Result<Option<String>, Problem> {
        let Some(key) = self.headers.get("idempotency-key") else { return Ok(None) };
        let key = key.to_str().map_err(|_| Problem::invalid("Idempotency-Key", "must be ASCII text"))?;
        // The draft of the header writes it as a quoted string.
        Ok(Some(key.trim_matches('"').to_owned()))
    }
}

/// What an operation is about, as its path names it.
pub(super) trait PathTarget: Sized + Send {
    /// Finds it, for this principal.
    fn find(
        shared: &Arc<ServerState>,
        principal: &Principal,
        names: &HashMap<String, String>,
    ) -> impl Future<Output = Result<Self, Problem>> + Send;
}

/// The server.
pub(super) struct WholeServer;

/// An app.
pub(super) struct AppTarget(pub(super) Arc<App>);

/// A session of the principal.
pub(super) struct SessionTarget {
    pub(super) app: Arc<App>,
    pub(super) session: SessionHandle,
}

impl SessionTarget {
    pub(super) fn runner(&self) -> &Runner {
        self.app.runner()
    }
}

impl PathTarget for WholeServer {
    async fn find(_: &Arc<ServerState>, _: &Principal, _: &HashMap<String, String>) -> Result<Self, Problem> {
        Ok(WholeServer)
    }
}

impl PathTarget for AppTarget {
    async fn find(
        shared: &Arc<ServerState>,
        _: &Principal,
        names: &HashMap<String, String>,
    ) -> Result<Self, Problem> {
        let name = names.get("app").map_or("", String::as_str);
        let app = shared.apps.get(name).ok_or_else(|| Problem::unknown_app(name))?;
        Ok(AppTarget(Arc::clone(app)))
    }
}

impl PathTarget for SessionTarget {
    async fn find(
        shared: &Arc<ServerState>,
        principal: &Principal,
        names: &HashMap<String, String>,
    ) -> Result<Self, Problem> {
        let AppTarget(app) = AppTarget::find(shared, principal, names).await?;
        let id = names.get("session").map_or("", String::as_str);
        let session = find_session(&app, principal, id).await?;
        Ok(SessionTarget { app, session })
    }
}

/// What a path names below a session of the principal.
pub(super) struct SessionPart<T> {
    pub(super) session: SessionTarget,
    pub(super) part: T,
}

/// A name of the path below a session.
pub(super) trait PathParameter: Sized + Send {
    /// The parameter of the path.
    const PARAMETER: &'static str;

    /// Its value, from the path.
    fn read(text: &str) -> Result<Self, Problem>;
}

impl<T: PathParameter> PathTarget for SessionPart<T> {
    async fn find(
        shared: &Arc<ServerState>,
        principal: &Principal,
        names: &HashMap<String, String>,
    ) -> Result<Self, Problem> {
        let session = SessionTarget::find(shared, principal, names).await?;
        let part = T::read(names.get(T::PARAMETER).map_or("", String::as_str))?;
        Ok(SessionPart { session, part })
    }
}

/// An existing session of the principal.
pub(super) async fn find_session(
    app: &App,
    principal: &Principal,
    id: &str,
) -> Result<SessionHandle, Problem> {
    let found = app.runner().find_session(principal.user().as_str(), id).await?;
    found.ok_or_else(|| Problem::unknown_session(id))
}

/// The body of a request.
pub(super) trait RequestBody: Sized + Send {
    fn schema(generator: &mut SchemaGenerator) -> Option<Schema>;
    fn read(bytes: &[u8]) -> Result<Self, Problem>;

    /// The number of bytes that it has at most.
    fn limit(limits: &Limits) -> usize {
        limits.body
    }

    /// The bytes of memory that are taken before it is read.
    fn weight(bytes: &[u8]) -> usize {
        weight_of_json(bytes)
    }
}

/// What a value of JSON takes in memory while it is read, checked and written: its text a few times, and for each value in it
/// what a tree of values has for it.
pub(super) fn weight_of_json(text: &[u8]) -> usize {
    text.len() * COPIES + count_values(text) * VALUE
}

/// How often the text of a body is in memory, besides the body itself.
const COPIES: usize = 2;

/// The bytes of a value in the trees that are made of a body.
const VALUE: usize = 224;

/// The bytes of the body of a request that says nothing.
const EMPTY: usize = 4 << 10;

impl RequestBody for () {
    fn schema(_: &mut SchemaGenerator) -> Option<Schema> {
        None
    }

    fn read(_: &[u8]) -> Result<Self, Problem> {
        Ok(())
    }

    fn limit(limits: &Limits) -> usize {
        limits.body.min(EMPTY)
    }
}

/// A body of JSON.
pub(super) struct JsonBody<T>(pub(super) T);

impl<T: DeserializeOwned + JsonSchema + Send> RequestBody for JsonBody<T> {
    fn schema(generator: &mut SchemaGenerator) -> Option<Schema> {
        Some(generator.subschema_for::<T>())
    }

    fn read(bytes: &[u8]) -> Result<Self, Problem> {
        // An absent body is an empty object.
        let bytes = if bytes.is_empty() { b"{}" } else { bytes };
        let read = strict::from_slice(bytes).map_err(|error| Problem::invalid("request body", error));
        read.and_then(|value| held(bytes, "request body", JsonBody(value)))
    }
}

/// What was read from a body, if no number in it was read as another one.
pub(super) fn held<T>(bytes: &[u8], what: &str, value: T) -> Result<T, Problem> {
    check_exact(bytes).map(|()| value).map_err(|error| Problem::invalid(what, error))
}

/// The answer of an operation.
pub(super) trait ApiReply {
    const STATUS: StatusCode;
    /// The media types that it may have, with their schemas.
    fn shapes(generator: &mut SchemaGenerator) -> MediaSchemas;
    fn respond(self) -> Response<Body>;
}

/// Media types with their schemas.
pub(super) type MediaSchemas = Vec<(&'static str, Schema)>;

/// The schema of what is no JSON.
pub(super) fn text_schema() -> Schema {
    schemars::json_schema!({"type": "string"})
}

/// A JSON value, with the status 200.
pub(super) struct JsonReply<T>(pub(super) T);

/// A JSON value, with the status 201, and the path of the session that was created.
pub(super) struct CreatedReply<T> {
    path: String,
    value: T,
}

impl<T> CreatedReply<T> {
    pub(super) fn session(app: &App, id: &str, value: T) -> Self {
        let path = format!("{BASE}/apps/{}/sessions/{}", segment(app.name()), segment(id));
        CreatedReply { path, value }
    }
}

/// A name as a part of a path.
pub(super) fn segment(name: &str) -> String {
    utf8_percent_encode(name, RESERVED).to_string()
}

/// What a part of a path cannot have as it is.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A JSON value, with the status 202: it is stored, and continues without the client.
pub(super) struct AcceptedReply<T>(pub(super) T);

/// Nothing, with the status 204, and headers.
pub(super) struct NoContent(pub(super) HeaderMap);

/// A stream of events.
pub(super) struct EventStream(pub(super) Body);

/// Text of another media type.
pub(super) struct OpenMetrics(pub(super) String);

macro_rules! json_answer {
    ($name:ident, $status:ident) => {
        impl<T: Serialize + JsonSchema> ApiReply for $name<T> {
            const STATUS: StatusCode = StatusCode::$status;

            fn shapes(generator: &mut SchemaGenerator) -> MediaSchemas {
                vec![("application/json", generator.subschema_for::<T>())]
            }

            fn respond(self) -> Response<Body> {
                json_response(Self::STATUS, &self.0)
            }
        }
    };
}

json_answer!(JsonReply, OK);
json_answer!(AcceptedReply, ACCEPTED);

impl<T: Serialize + JsonSchema> ApiReply for CreatedReply<T> {
    const STATUS: StatusCode = StatusCode::CREATED;

    fn shapes(generator: &mut SchemaGenerator) -> MediaSchemas {
        vec![("application/json", generator.subschema_for::<T>())]
    }

    fn respond(self) -> Response<Body> {
        let mut response = json_response(Self::STATUS, &self.value);
        if let Ok(path) = HeaderValue::from_str(&self.path) {
            response.headers_mut().insert(header::LOCATION, path);
        }
        response
    }
}

impl ApiReply for NoContent {
    const STATUS: StatusCode = StatusCode::NO_CONTENT;

    fn shapes(_: &mut SchemaGenerator) -> MediaSchemas {
        MediaSchemas::new()
    }

    fn respond(self) -> Response<Body> {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = Self::STATUS;
        *response.headers_mut() = self.0;
        response
    }
}

impl ApiReply for EventStream {
    const STATUS: StatusCode = StatusCode::OK;

    fn shapes(_: &mut SchemaGenerator) -> MediaSchemas {
        vec![("text/event-stream", text_schema())]
    }

    fn respond(self) -> Response<Body> {
        let mut response = Response::new(self.0);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        // Proxies that collect a response before they pass it on would keep it for ever.
        headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
        response
    }
}

impl ApiReply for OpenMetrics {
    const STATUS: StatusCode = StatusCode::OK;

    fn shapes(_: &mut SchemaGenerator) -> MediaSchemas {
        vec![("application/openmetrics-text", text_schema())]
    }

    fn respond(self) -> Response<Body> {
        let mut response = Response::new(Body::from(self.0));
        let kind = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        response
    }
}

pub(super) fn json_response(status: StatusCode, value: &impl Serialize) -> Response<Body> {
    let text = serde_json::to_vec(value).unwrap_or_default();
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

type OperationHandler = Arc<
    dyn Fn(
            Arc<ServerState>,
            Principal,
            MemoryReservation,
            Request<Body>,
        ) -> BoxFuture<'static, Result<Response<Body>, Problem>>
        + Send
        + Sync,
>;

/// An operation.
#[expect(clippy::struct_excessive_bools, reason = "each says one thing of the operation")]
pub(super) struct ApiOperation {
    pub(super) method: Method,
    /// What is before the path.
    pub(super) base: &'static str,
    /// The path, from the base on.
    pub(super) path: &'static str,
    /// The name, as clients are generated with it.
    pub(super) id: &'static str,
    pub(super) summary: &'static str,
    pub(super) needs: Role,
    /// Whether it takes an `Idempotency-Key`.
    pub(super) takes_key: bool,
    /// Whether it reads or makes a whole session, so that it is done on a thread of its own.
    pub(super) is_whole: bool,
    /// Whether only some of its kind are served at once.
    pub(super) is_heavy: bool,
    /// Whether it may answer with nothing, and the status 204.
    pub(super) may_be_empty: bool,
    /// How its problems are said.
    pub(super) form: ProblemForm,
    pub(super) shapes: fn(&mut SchemaGenerators) -> OperationSchemas,
    pub(super) handler: OperationHandler,
}

/// The schemas of an operation.
pub(super) struct OperationSchemas {
    pub(super) query: Schema,
    pub(super) body: Option<Schema>,
    /// Whether an absent body is refused.
    pub(super) needs_body: bool,
    pub(super) status: StatusCode,
    pub(super) answers: MediaSchemas,
}

impl ApiOperation {
    pub(super) fn new<T, Q, B, A, F>(
        method: Method,
        path: &'static str,
        needs: Role,
        id: &'static str,
        summary: &'static str,
        handle: impl Fn(ApiRequest<T, Q, B>) -> F + Clone + Send + Sync + 'static,
    ) -> Self
    where
        T: PathTarget + 'static,
        Q: DeserializeOwned + JsonSchema + Send + 'static,
        B: RequestBody + 'static,
        A: ApiReply,
        F: Future<Output = Result<A, Problem>> + Send,
    {
        let shapes = |generators: &mut SchemaGenerators| OperationSchemas {
            query: Q::json_schema(&mut generators.requests),
            body: B::schema(&mut generators.requests),
            needs_body: B::read(b"").is_err(),
            status: A::STATUS,
            answers: A::shapes(&mut generators.answers),
        };
        let handler: OperationHandler = Arc::new(move |shared, principal, memory, request| {
            let handle = handle.clone();
            Box::pin(async move {
                let asked = ask::<T, Q, B>(shared, principal, memory, request).await?;
                handle(asked).await.map(A::respond)
            })
        });
        ApiOperation {
            method,
            base: BASE,
            path,
            id,
            summary,
            needs,
            takes_key: false,
            is_whole: false,
            is_heavy: false,
            may_be_empty: false,
            form: ProblemForm::Plain,
            shapes,
            handler,
        }
    }

    /// It reads a whole session.
    pub(super) fn whole(mut self) -> Self {
        self.is_whole = true;
        self
    }
}

/// Reads what a request is about. Whose session it is comes before what the request says.
async fn ask<T: PathTarget, Q: DeserializeOwned, B: RequestBody>(
    shared: Arc<ServerState>,
    principal: Principal,
    memory: MemoryReservation,
    request: Request<Body>,
) -> Result<ApiRequest<T, Q, B>, Problem> {
    let (mut parts, body) = request.into_parts();
    let names = names(&mut parts).await?;
    let target = T::find(&shared, &principal, &names).await?;
    let query = Query::<Q>::try_from_uri(&parts.uri).map_err(|error| Problem::invalid("query", error))?;
    let body = read_body(&shared, &memory, body, B::limit(&shared.limits)).await?;
    memory.take(B::weight(&body))?;
    let (query, body) = (query.0, B::read(&body)?);
    Ok(ApiRequest { shared, principal, target, query, body, headers: parts.headers, memory })
}

pub(super) async fn names(parts: &mut Parts) -> Result<HashMap<String, String>, Problem> {
    let names = Path::<HashMap<String, String>>::from_request_parts(parts, &()).await;
    names.map(|names| names.0).map_err(|error| Problem::invalid("path", error))
}

/// Reads a body, whose bytes are taken before they are read: all at once if its length is told.
pub(super) async fn read_body(
    shared: &ServerState,
    memory: &MemoryReservation,
    body: Body,
    limit: usize,
) -> Result<Vec<u8>, Problem> {
    let told = usize::try_from(body.size_hint().exact().unwrap_or(0)).unwrap_or(usize::MAX);
    if told > limit {
        return Err(Problem::too_large(limit));
    }
    memory.take(told)?;
    let collected = async {
        let (mut bytes, mut body) = (Vec::with_capacity(told), body);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| Problem::invalid("request body", error))?;
            let Ok(data) = frame.into_data() else { continue };
            if bytes.len() + data.len() > limit {
                return Err(Problem::too_large(limit));
            }
            // A vector that grows has at most twice its bytes.
            memory.take(2 * (bytes.len() + data.len()).saturating_sub(told.max(bytes.len())))?;
            bytes.extend_from_slice(&data);
        }
        Ok(bytes)
    };
    match tokio::time::timeout(shared.limits.body_timeout, collected).await {
        Err(_) => Err(Problem::too_slow()),
        Ok(read) => read,
    }
}
