//! The paths of operations, and the names in them.

use std::collections::HashMap;

use axum::extract::{FromRequestParts as _, Path};
use http::request::Parts;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::http::guard::problem::Problem;

/// The path before each operation.
pub(in crate::http) const BASE: &str = "/api/v1";

/// A name as a part of a path.
pub(in crate::http) fn segment(name: &str) -> String {
    utf8_percent_encode(name, RESERVED).to_string()
}

/// The characters that are escaped in a segment of a path.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

pub(in crate::http) async fn names(parts: &mut Parts) -> Result<HashMap<String, String>, Problem> {
    let names = Path::<HashMap<String, String>>::from_request_parts(parts, &()).await;
    names.map(|names| names.0).map_err(|error| Problem::invalid("path", error))
}
