//! The page of adk-web, from a folder that the user has: read once, so that no request names a file.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http::header;
use thiserror::Error;

/// The path of the page.
pub(in crate::http) const BASE: &str = "/dev-ui/";

/// Bounds what is kept of a folder.
const MOST_BYTES: u64 = 64 << 20;

/// The content security policy of the page: the hash is that of `this.media='all'`, by which it loads its styles late. The
/// page shows text of models as Markdown: images, fonts and requests of other hosts are blocked.
const POLICY: &str = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval' 'unsafe-hashes' \
                      'sha256-MhtPZXr7+LpJUY5qtMutB+qWfQtMaPccfe7QXtCcEYc='; \
                      style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; media-src 'self' data: blob:; \
                      font-src 'self' data:; connect-src 'self'; worker-src 'self' blob:; form-action 'none'; \
                      base-uri 'self'; frame-ancestors 'none'";

/// The files of the page, by path.
#[derive(Clone, Debug, Default)]
pub(in crate::http) struct WebBundle(HashMap<String, Bytes>);

/// Why a folder is not a bundle.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BundleError {
    /// A file cannot be read.
    #[error("{} cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error.
        r#source: std::io::Error,
    },
    /// It has no page.
    #[error("missing index.html in {}: expected the folder `google/adk/cli/browser` of the package google-adk", folder.display())]
    NoPage {
        /// The folder.
        folder: PathBuf,
    },
    /// It is too large to be kept.
    #[error("{} is too large: at most {MOST_BYTES} bytes are kept", folder.display())]
    TooLarge {
        /// The folder.
        folder: PathBuf,
    },
}

impl WebBundle {
    /// Reads a folder. Links are not followed.
    pub(in crate::http) fn read(folder: &Path) -> Result<Self, BundleError> {
        let mut files = HashMap::new();
        let (mut folders, mut bytes) = (vec![folder.to_owned()], 0);
        // NOTE: Read once into memory: a request is looked up in a map, and can name no file outside the folder.
        while let Some(inside) = folders.pop() {
            let failed = |source| BundleError::Read { path: inside.clone(), source };
            for entry in std::fs::read_dir(&inside).map_err(failed)? {
                let entry = entry.map_err(failed)?;
                let kind = entry.file_type().map_err(failed)?;
                let path = entry.path();
                if kind.is_dir() {
                    folders.push(path);
                } else if kind.is_file() {
                    let read = std::fs::read(&path);
                    let read = read.map_err(|source| BundleError::Read { path: path.clone(), source })?;
                    bytes += read.len() as u64;
                    if bytes > MOST_BYTES {
                        return Err(BundleError::TooLarge { folder: folder.to_owned() });
                    }
                    files.insert(name(folder, &path), Bytes::from(read));
                }
            }
        }
        if !files.contains_key("index.html") {
            return Err(BundleError::NoPage { folder: folder.to_owned() });
        }
        Ok(WebBundle(files))
    }

    /// The response to a request of a path after [`BASE`].
    pub(in crate::http) fn file(&self, path: &str) -> Option<Response> {
        let path = if path.is_empty() { "index.html" } else { path };
        let body = match path {
            // The server is that of the page.
            "assets/config/runtime-config.json" => {
                Bytes::from_static(br#"{"backendUrl":"","telemetry":null}"#)
            }
            path => self.0.get(path)?.clone(),
        };
        let headers = [
            (header::CONTENT_TYPE, kind(path)),
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::CACHE_CONTROL, "no-cache"),
        ];
        Some((headers, body).into_response())
    }
}

fn name(folder: &Path, path: &Path) -> String {
    let parts = path.strip_prefix(folder).unwrap_or(path).components();
    parts.map(|part| part.as_os_str().to_string_lossy()).collect::<Vec<_>>().join("/")
}

fn kind(path: &str) -> &'static str {
    match path.rsplit_once('.').map(|(_, extension)| extension) {
        Some("html") => "text/html; charset=utf-8",
        Some("js" | "mjs") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("json") => "application/json",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        Some("wasm") => "application/wasm",
        Some("woff2") => "font/woff2",
        _ => "application/octet-stream",
    }
}
