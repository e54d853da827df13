//! An operation of the API: one function with its types, from which its route and its part of the OpenAPI document are
//! made.
//!
//! Every request passes the same checks, in one place: host and origin, authentication, the role, the app and the session
//! of the principal, the query, the body. A handler is reached with all of it done.

pub(super) mod admission;
pub(super) mod openapi;
pub(super) mod path;
pub(super) mod reply;
pub(super) mod request;
pub(super) mod response;
pub(super) mod schemas;

use std::sync::Arc;

use axum::extract::{Query, Request};
use axum::response::Response;
use futures_util::future::BoxFuture;
use http::{Method, StatusCode};
use schemars::{JsonSchema, Schema};
use serde::de::DeserializeOwned;

use self::path::{BASE, names};
use self::reply::{ApiReply, MediaSchemas};
use self::request::{ApiRequest, NamedPath, PathTarget, RequestBody, read_body};
use self::schemas::SchemaGenerators;
use crate::http::guard::auth::{Principal, Role};
use crate::http::guard::limits::MemoryReservation;
use crate::http::guard::problem::{Problem, ProblemForm};
use crate::http::state::ServerState;

type OperationHandler = Arc<
    dyn Fn(
            Arc<ServerState>,
            Principal,
            MemoryReservation,
            Request,
        ) -> BoxFuture<'static, Result<Response, Problem>>
        + Send
        + Sync,
>;

/// An operation.
#[expect(clippy::struct_excessive_bools, reason = "each says one thing of the operation")]
// NOTE: Route, role and document come from one value, so that none can be forgotten; libraries for this were a second
// derive, or alpha versions (docs/decisions/server.md).
pub(in crate::http) struct ApiOperation {
    pub(in crate::http) method: Method,
    /// The prefix of the path.
    pub(in crate::http) base: &'static str,
    /// The path, from the base on.
    pub(in crate::http) path: &'static str,
    /// The name, as clients are generated with it.
    pub(in crate::http) id: &'static str,
    pub(in crate::http) summary: &'static str,
    pub(in crate::http) needs: Role,
    /// Whether it takes an `Idempotency-Key`.
    pub(in crate::http) takes_key: bool,
    /// Whether it reads or makes a whole session, so that it is done on a thread of its own.
    pub(in crate::http) is_whole: bool,
    /// Whether only some of its kind are served at once.
    pub(in crate::http) is_heavy: bool,
    /// Whether it may answer with nothing, and the status 204.
    pub(in crate::http) may_be_empty: bool,
    /// The form of its problems.
    pub(in crate::http) form: ProblemForm,
    pub(in crate::http) shapes: fn(&mut SchemaGenerators) -> OperationSchemas,
    pub(in crate::http) handler: OperationHandler,
}

/// The schemas of an operation.
pub(in crate::http) struct OperationSchemas {
    pub(in crate::http) query: Schema,
    pub(in crate::http) body: Option<Schema>,
    /// Whether an absent body is refused.
    pub(in crate::http) needs_body: bool,
    pub(in crate::http) status: StatusCode,
    pub(in crate::http) answers: MediaSchemas,
}

impl ApiOperation {
    pub(in crate::http) fn new<T, Q, B, A, F>(
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
                let request = ask::<T, Q, B>(shared, principal, memory, request).await?;
                handle(request).await.map(A::into_response)
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
    pub(in crate::http) fn whole(mut self) -> Self {
        self.is_whole = true;
        self
    }
}

/// Reads what a request is about. Whose session it is comes before what the request says.
async fn ask<T: PathTarget, Q: DeserializeOwned, B: RequestBody>(
    shared: Arc<ServerState>,
    principal: Principal,
    memory: MemoryReservation,
    request: Request,
) -> Result<ApiRequest<T, Q, B>, Problem> {
    let (mut parts, body) = request.into_parts();
    let names = names(&mut parts).await?;
    // NOTE: The target comes before query and body: an invalid request must not tell whether a session of another user
    // exists.
    let target = T::find(NamedPath { shared: &shared, principal: &principal, names: &names }).await?;
    let query = Query::<Q>::try_from_uri(&parts.uri).map_err(|error| Problem::invalid("query", error))?;
    let body = read_body(&shared, &memory, body, B::limit(&shared.limits)).await?;
    memory.grow(B::weight(&body))?;
    let (query, body) = (query.0, B::read(&body)?);
    Ok(ApiRequest { shared, principal, target, query, body, headers: parts.headers, memory })
}
