//! The parts of a request that a handler gets: its target, its query and its body.

use std::collections::HashMap;
use std::sync::Arc;

use axum::body::{Body, HttpBody as _};
use http::HeaderMap;
use http_body_util::BodyExt as _;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;
use stepfold_runner::SessionHandle;
use stepfold_state_core::{check_exact, count_values};

use crate::http::app::{App, SessionTarget};
use crate::http::guard::auth::Principal;
use crate::http::guard::limits::{Limits, MemoryReservation};
use crate::http::guard::problem::Problem;
use crate::http::guard::strict;
use crate::http::state::ServerState;

/// A request, as its handler gets it: the target is found, and query and body are read.
pub(in crate::http) struct ApiRequest<T, Q = (), B = ()> {
    pub(in crate::http) shared: Arc<ServerState>,
    pub(in crate::http) principal: Principal,
    pub(in crate::http) target: T,
    pub(in crate::http) query: Q,
    pub(in crate::http) body: B,
    pub(in crate::http) headers: HeaderMap,
    /// The memory that the request holds until it is answered.
    pub(in crate::http) memory: MemoryReservation,
}

impl<T, Q, B> ApiRequest<T, Q, B> {
    /// The header `Idempotency-Key`.
    pub(in crate::http) fn idempotency_key(&self) -> Result<Option<String>, Problem> {
        let Some(key) = self.headers.get("idempotency-key") else { return Ok(None) };
        let key = key.to_str().map_err(|_| Problem::invalid("Idempotency-Key", "must be ASCII text"))?;
        // The draft of the header writes it as a quoted string.
        Ok(Some(key.trim_matches('"').to_owned()))
    }
}

/// The target of an operation, as its path names it.
pub(in crate::http) trait PathTarget: Sized + Send {
    /// Finds it, for the principal.
    fn find(path: NamedPath<'_>) -> impl Future<Output = Result<Self, Problem>> + Send;
}

/// The names in the path of a request of a principal.
#[derive(Clone, Copy)]
pub(in crate::http) struct NamedPath<'a> {
    pub(super) shared: &'a ServerState,
    pub(super) principal: &'a Principal,
    pub(super) names: &'a HashMap<String, String>,
}

impl<'a> NamedPath<'a> {
    /// The value of a parameter; empty if the path has none of this name.
    pub(in crate::http) fn get(self, parameter: &str) -> &'a str {
        self.names.get(parameter).map_or("", String::as_str)
    }
}

/// The server.
pub(in crate::http) struct WholeServer;

/// An app.
pub(in crate::http) struct AppTarget(pub(in crate::http) Arc<App>);

impl PathTarget for WholeServer {
    async fn find(_: NamedPath<'_>) -> Result<Self, Problem> {
        Ok(WholeServer)
    }
}

impl PathTarget for AppTarget {
    async fn find(path: NamedPath<'_>) -> Result<Self, Problem> {
        let name = path.get("app");
        let app = path.shared.apps.get(name).ok_or_else(|| Problem::unknown_app(name))?;
        Ok(AppTarget(Arc::clone(app)))
    }
}

impl PathTarget for SessionTarget {
    async fn find(path: NamedPath<'_>) -> Result<Self, Problem> {
        let AppTarget(app) = AppTarget::find(path).await?;
        let session = find_session(&app, path.principal, path.get("session")).await?;
        Ok(SessionTarget { app, session })
    }
}

/// A part of a session of the principal, as a path names it.
pub(in crate::http) struct SessionPart<T> {
    pub(in crate::http) session: SessionTarget,
    pub(in crate::http) part: T,
}

/// A name of the path below a session.
pub(in crate::http) trait PathParameter: Sized + Send {
    /// The parameter of the path.
    const PARAMETER: &'static str;

    /// Its value, from the path.
    fn read(text: &str) -> Result<Self, Problem>;
}

impl<T: PathParameter> PathTarget for SessionPart<T> {
    async fn find(path: NamedPath<'_>) -> Result<Self, Problem> {
        let session = SessionTarget::find(path).await?;
        let part = T::read(path.get(T::PARAMETER))?;
        Ok(SessionPart { session, part })
    }
}

/// An existing session of the principal.
pub(in crate::http) async fn find_session(
    app: &App,
    principal: &Principal,
    id: &str,
) -> Result<SessionHandle, Problem> {
    let found = app.runner().find_session(principal.user().as_str(), id).await?;
    found.ok_or_else(|| Problem::unknown_session(id))
}

/// The body of a request.
pub(in crate::http) trait RequestBody: Sized + Send {
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

/// The memory for a JSON text while it is read, checked and written: its bytes a few times, and for each value in it
/// what a tree of values has for it.
pub(in crate::http) fn weight_of_json(text: &[u8]) -> usize {
    text.len() * COPIES + count_values(text) * VALUE
}

/// The copies of a body in memory, besides the body itself.
const COPIES: usize = 2;

/// The bytes of a value in the trees that are made of a body.
// NOTE: Measured: a tree of empty lists takes 230 bytes for each (docs/decisions/server.md).
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
pub(in crate::http) struct JsonBody<T>(pub(in crate::http) T);

impl<T: DeserializeOwned + JsonSchema + Send> RequestBody for JsonBody<T> {
    fn schema(generator: &mut SchemaGenerator) -> Option<Schema> {
        Some(generator.subschema_for::<T>())
    }

    fn read(bytes: &[u8]) -> Result<Self, Problem> {
        // An absent body is an empty object.
        let bytes = if bytes.is_empty() { b"{}" } else { bytes };
        let read = strict::from_slice(bytes).map_err(|error| Problem::invalid("request body", error));
        read.and_then(|value| exact_numbers(bytes, "request body", JsonBody(value)))
    }
}

/// Returns the value that was read from a body, if every number in it was read exactly.
pub(in crate::http) fn exact_numbers<T>(bytes: &[u8], what: &str, value: T) -> Result<T, Problem> {
    check_exact(bytes).map(|()| value).map_err(|error| Problem::invalid(what, error))
}

/// Reads a body, whose bytes are taken before they are read: all at once if its length is told.
pub(in crate::http) async fn read_body(
    shared: &ServerState,
    memory: &MemoryReservation,
    body: Body,
    limit: usize,
) -> Result<Vec<u8>, Problem> {
    let told = usize::try_from(body.size_hint().exact().unwrap_or(0)).unwrap_or(usize::MAX);
    if told > limit {
        return Err(Problem::too_large(limit));
    }
    memory.grow(told)?;
    let collected = async {
        let (mut bytes, mut body) = (Vec::with_capacity(told), body);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| Problem::invalid("request body", error))?;
            let Ok(data) = frame.into_data() else { continue };
            if bytes.len() + data.len() > limit {
                return Err(Problem::too_large(limit));
            }
            // A vector that grows has at most twice its bytes.
            memory.grow(2 * (bytes.len() + data.len()).saturating_sub(told.max(bytes.len())))?;
            bytes.extend_from_slice(&data);
        }
        Ok(bytes)
    };
    match tokio::time::timeout(shared.limits.body_timeout, collected).await {
        Err(_) => Err(Problem::too_slow()),
        Ok(read) => read,
    }
}
