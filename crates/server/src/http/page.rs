//! The page: hand-written modules, embedded, each with its type and its tag.

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};

/// What the page may do: run its own modules, ask its own server, and nothing else. No text becomes markup.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; \
     form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
);

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

/// A file of the page.
struct File {
    path: &'static str,
    kind: &'static str,
    bytes: &'static [u8],
}

macro_rules! files {
    ($($path:literal $kind:ident $file:literal;)*) => {
        [$(File { path: $path, kind: $kind, bytes: include_bytes!(concat!("../../page/", $file)) }),*]
    };
}

/// All files: what is not here is not served.
static FILES: [File; 20] = files! {
    "/" HTML "index.html";
    "/studio/style.css" CSS "style.css";
    "/studio/app.js" SCRIPT "app.js";
    "/studio/act.js" SCRIPT "act.js";
    "/studio/api.js" SCRIPT "api.js";
    "/studio/compare.js" SCRIPT "compare.js";
    "/studio/conversation.js" SCRIPT "conversation.js";
    "/studio/graph.js" SCRIPT "graph.js";
    "/studio/inspector.js" SCRIPT "inspector.js";
    "/studio/live.js" SCRIPT "live.js";
    "/studio/router.js" SCRIPT "router.js";
    "/studio/rows.js" SCRIPT "rows.js";
    "/studio/scrubber.js" SCRIPT "scrubber.js";
    "/studio/sessions.js" SCRIPT "sessions.js";
    "/studio/store.js" SCRIPT "store.js";
    "/studio/text.js" SCRIPT "text.js";
    "/studio/timeline.js" SCRIPT "timeline.js";
    "/studio/usage.js" SCRIPT "usage.js";
    "/studio/vendor/preact.js" SCRIPT "vendor/preact.js";
    "/studio/vendor/LICENSES" TEXT "vendor/LICENSES";
};

/// The paths of the files.
pub(super) fn paths() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|file| file.path)
}

/// The file at a path of [`paths`]; without its content if the browser has it.
pub(super) fn answer(path: &str, asked: &HeaderMap) -> Response<Body> {
    let file = FILES.iter().find(|file| file.path == path).unwrap_or(&FILES[0]);
    let tag = tag(file.bytes);
    let is_known = asked.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes());
    let mut response = Response::new(match is_known {
        true => Body::empty(),
        false => Body::from(Bytes::from_static(file.bytes)),
    });
    if is_known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    for (name, value) in [
        (header::CONTENT_TYPE, HeaderValue::from_static(file.kind)),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        // Browsers keep files, and ask each time whether they are the same.
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (header::ETAG, tag),
    ] {
        response.headers_mut().insert(name, value);
    }
    response
}

/// The tag of a content: its length, and a hash (FNV-1a) that tells versions of a file apart.
fn tag(bytes: &[u8]) -> HeaderValue {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let text = format!("\"{:x}-{hash:016x}\"", bytes.len());
    HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("\"-\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_small() {
        let bytes: usize = FILES.iter().map(|file| file.bytes.len()).sum();
        assert!(bytes <= 150 * 1024, "{bytes}");
    }

    /// A module that is imported and not in the table would be missing in browsers only.
    #[test]
    fn what_modules_import_is_served() {
        for file in FILES.iter().filter(|file| file.kind == SCRIPT) {
            let folder = file.path.rsplit_once('/').unwrap().0;
            for part in std::str::from_utf8(file.bytes).unwrap().split(" from \"./").skip(1) {
                let imported = format!("{folder}/{}", part.split('"').next().unwrap());
                assert!(paths().any(|path| path == imported), "{imported} of {}", file.path);
            }
        }
    }

    #[test]
    fn a_browser_that_has_a_file_is_sent_none() {
        let first = answer("/studio/app.js", &HeaderMap::new());
        assert_eq!(
            (first.status(), &first.headers()[header::CONTENT_TYPE]),
            (StatusCode::OK, &HeaderValue::from_static(SCRIPT))
        );
        let known = HeaderMap::from_iter([(header::IF_NONE_MATCH, first.headers()[header::ETAG].clone())]);
        assert_eq!(answer("/studio/app.js", &known).status(), StatusCode::NOT_MODIFIED);
        assert_eq!(answer("/studio/style.css", &known).status(), StatusCode::OK);
    }
}
