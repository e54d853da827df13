//! The replies of handlers: a status, a media type and a schema for each.

use axum::Json;
use axum::body::Body;
use axum::response::{IntoResponse, NoContent, Response};
use http::{HeaderName, HeaderValue, StatusCode, header};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;

use super::path::{BASE, segment};
use crate::http::app::App;

/// The answer of an operation: a response, and its part of the OpenAPI document.
pub(in crate::http) trait ApiReply: IntoResponse {
    const STATUS: StatusCode = StatusCode::OK;

    /// The media types that it may have, with their schemas.
    fn shapes(generator: &mut SchemaGenerator) -> MediaSchemas;
}

/// Media types with their schemas.
pub(in crate::http) type MediaSchemas = Vec<(&'static str, Schema)>;

/// The schema of what is no JSON.
pub(in crate::http) fn text_schema() -> Schema {
    schemars::json_schema!({"type": "string"})
}

/// A JSON value, with the status 201, and the path of the session that was created.
pub(in crate::http) struct CreatedReply<T> {
    path: String,
    value: T,
}

impl<T> CreatedReply<T> {
    pub(in crate::http) fn session(app: &App, id: &str, value: T) -> Self {
        let path = format!("{BASE}/apps/{}/sessions/{}", segment(app.name()), segment(id));
        CreatedReply { path, value }
    }
}

/// A JSON value, with the status 202: it is stored, and continues without the client.
pub(in crate::http) struct AcceptedReply<T>(pub(in crate::http) T);

/// A stream of events.
pub(in crate::http) struct EventStream(pub(in crate::http) Body);

/// Text of another media type.
pub(in crate::http) struct OpenMetrics(pub(in crate::http) String);

impl<T: Serialize + JsonSchema> ApiReply for Json<T> {
    fn shapes(generator: &mut SchemaGenerator) -> MediaSchemas {
        vec![("application/json", generator.subschema_for::<T>())]
    }
}

impl<T: Serialize + JsonSchema> ApiReply for AcceptedReply<T> {
    const STATUS: StatusCode = StatusCode::ACCEPTED;

    fn shapes(generator: &mut SchemaGenerator) -> MediaSchemas {
        Json::<T>::shapes(generator)
    }
}

impl<T: Serialize> IntoResponse for AcceptedReply<T> {
    fn into_response(self) -> Response {
        (StatusCode::ACCEPTED, Json(self.0)).into_response()
    }
}

impl<T: Serialize + JsonSchema> ApiReply for CreatedReply<T> {
    const STATUS: StatusCode = StatusCode::CREATED;

    fn shapes(generator: &mut SchemaGenerator) -> MediaSchemas {
        Json::<T>::shapes(generator)
    }
}

impl<T: Serialize> IntoResponse for CreatedReply<T> {
    fn into_response(self) -> Response {
        (StatusCode::CREATED, [(header::LOCATION, self.path)], Json(self.value)).into_response()
    }
}

impl ApiReply for NoContent {
    const STATUS: StatusCode = StatusCode::NO_CONTENT;

    fn shapes(_: &mut SchemaGenerator) -> MediaSchemas {
        MediaSchemas::new()
    }
}

impl<const N: usize, A: ApiReply> ApiReply for ([(HeaderName, HeaderValue); N], A) {
    const STATUS: StatusCode = A::STATUS;

    fn shapes(generator: &mut SchemaGenerator) -> MediaSchemas {
        A::shapes(generator)
    }
}

impl ApiReply for EventStream {
    fn shapes(_: &mut SchemaGenerator) -> MediaSchemas {
        vec![("text/event-stream", text_schema())]
    }
}

impl IntoResponse for EventStream {
    fn into_response(self) -> Response {
        // Proxies that collect a response before they pass it on would keep it for ever.
        ([("content-type", "text/event-stream"), ("x-accel-buffering", "no")], self.0).into_response()
    }
}

impl ApiReply for OpenMetrics {
    fn shapes(_: &mut SchemaGenerator) -> MediaSchemas {
        vec![("application/openmetrics-text", text_schema())]
    }
}

impl IntoResponse for OpenMetrics {
    fn into_response(self) -> Response {
        let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        ([(header::CONTENT_TYPE, kind)], self.0).into_response()
    }
}
