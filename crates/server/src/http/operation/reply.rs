//! The replies of handlers: a status, a media type and a schema for each.

use axum::body::Body;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;

use super::path::{BASE, segment};
use crate::http::app::App;

/// The answer of an operation.
pub(in crate::http) trait ApiReply {
    const STATUS: StatusCode;
    /// The media types that it may have, with their schemas.
    fn shapes(generator: &mut SchemaGenerator) -> MediaSchemas;
    fn respond(self) -> Response<Body>;
}

/// Media types with their schemas.
pub(in crate::http) type MediaSchemas = Vec<(&'static str, Schema)>;

/// The schema of what is no JSON.
pub(in crate::http) fn text_schema() -> Schema {
    schemars::json_schema!({"type": "string"})
}

/// A JSON value, with the status 200.
pub(in crate::http) struct JsonReply<T>(pub(in crate::http) T);

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

/// Nothing, with the status 204, and headers.
pub(in crate::http) struct NoContent(pub(in crate::http) HeaderMap);

/// A stream of events.
pub(in crate::http) struct EventStream(pub(in crate::http) Body);

/// Text of another media type.
pub(in crate::http) struct OpenMetrics(pub(in crate::http) String);

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

pub(in crate::http) fn json_response(status: StatusCode, value: &impl Serialize) -> Response<Body> {
    let text = serde_json::to_vec(value).unwrap_or_default();
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
