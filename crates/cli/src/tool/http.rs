//! An HTTP server as a tool. Requests go only to the hosts that the file names, also after a redirect.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Request, Url, redirect};
use rustls_platform_verifier::BuilderVerifierExt as _;
use serde_json::{Map, Value};
use stepfold::prelude::*;
use stepfold::tools::ToolBuilder;

use super::read_output;
use crate::form::FaultCollector;
use crate::form::agent::{HttpForm, HttpMethod};

/// The maximum number of redirects.
const REDIRECTS: usize = 5;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The bytes of an error's body that the model reads.
const ERROR_BYTES: usize = 2 * 1024;

struct HttpTool {
    form: HttpForm,
    // NOTE: Created at the first call: checking a file needs no TLS.
    client: OnceLock<Result<Client, String>>,
}

pub(super) fn builder(
    name: &str,
    description: String,
    form: &HttpForm,
    parameters: &Value,
    faults: &mut FaultCollector,
) -> Option<ToolBuilder> {
    let before = faults.count();
    check_url(form, parameters, &mut |words| faults.add(&["http", "url"], words));
    for (name, value) in &form.headers {
        if HeaderName::try_from(name).is_err() || HeaderValue::try_from(value).is_err() {
            faults.add(&["http", "headers"], format!("invalid header `{name}`"));
        }
    }
    for name in form.headers_from_environment.keys() {
        if HeaderName::try_from(name).is_err() {
            let words = format!("invalid header `{name}`");
            faults.add(&["http", "headers_from_environment"], words);
        }
    }
    if faults.count() > before {
        return None;
    }
    let server = Arc::new(HttpTool { form: form.clone(), client: OnceLock::new() });
    let call = move |context: ToolContext| {
        let server = Arc::clone(&server);
        async move { server.call(&context).await }
    };
    Some(Tool::new(name, description, call))
}

fn check_url(form: &HttpForm, parameters: &Value, fault: &mut impl FnMut(String)) {
    let known = |name: &str| parameters["properties"].get(name).is_some();
    for name in placeholders(&form.url).filter(|name| !known(name)) {
        fault(format!("unknown parameter `{name}`: declare it in `parameters`"));
    }
    if whole_url(&form.url).is_some() {
        return;
    }
    match Url::parse(&form.url.replace(['{', '}'], "x")) {
        Err(error) => fault(format!("invalid URL: {error}")),
        Ok(url) => {
            let authority = form.url.split("://").nth(1).and_then(|rest| rest.split('/').next());
            if authority.is_some_and(|authority| authority.contains('{')) {
                fault("invalid argument in the host name: use `{url}` alone".into());
            } else if let Err(message) = check_host(&url, &form.hosts) {
                fault(message);
            }
        }
    }
}

/// The names in braces.
fn placeholders(url: &str) -> impl Iterator<Item = &str> {
    url.split('{').skip(1).filter_map(|rest| rest.split_once('}')).map(|(name, _)| name)
}

/// The argument that is the whole URL, if one is.
fn whole_url(url: &str) -> Option<&str> {
    let name = url.strip_prefix('{')?.strip_suffix('}')?;
    (!name.contains(['{', '}'])).then_some(name)
}

/// Whether a URL leads to one of the hosts.
fn check_host(url: &Url, hosts: &[String]) -> Result<(), String> {
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!("invalid scheme `{}`: expected http or https", url.scheme()));
    }
    let host = url.host_str().unwrap_or_default().to_ascii_lowercase();
    let with_port = format!("{host}:{}", url.port_or_known_default().unwrap_or_default());
    let is_allowed = hosts.iter().map(|allowed| allowed.to_ascii_lowercase()).any(|allowed| {
        // NOTE: A host without a port allows only the default port of the scheme: other ports are other services.
        allowed == with_port || (allowed == host && url.port().is_none())
    });
    if is_allowed {
        return Ok(());
    }
    let host = if url.port().is_some() { with_port } else { host };
    Err(format!("host `{host}` not allowed; allowed: {}", hosts.join(", ")))
}

impl HttpTool {
    async fn call(&self, context: &ToolContext) -> Result<Value, ToolError> {
        let request = self.request(context)?;
        let client = self.client.get_or_init(|| client(self.form.hosts.clone()));
        let client = client.as_ref().map_err(|error| ToolError::permanent(error.clone()))?;
        let response = client.execute(request).await.map_err(|error| {
            // NOTE: The URL may contain values of the state, which the model must not see.
            ToolError::new(crate::error::chain(&error.without_url()))
        })?;
        let status = response.status();
        let is_wrong = status.is_client_error() || status.is_server_error();
        let limit = if is_wrong { ERROR_BYTES } else { self.form.output_bytes };
        let (body, is_whole) = read_bounded(response, limit).await?;
        if is_wrong {
            let words = format!("server error {status}: {}", body.trim());
            // NOTE: Failures of the server and rate limits may pass, so calls can be retried; other errors are permanent.
            let is_passing = status.is_server_error() || status.as_u16() == 429;
            return Err(if is_passing { ToolError::new(words) } else { ToolError::permanent(words) });
        }
        if !is_whole {
            let words = format!("response too large: more than {limit} bytes; request less");
            return Err(ToolError::permanent(words));
        }
        read_output(self.form.output, &body)
    }

    fn request(&self, context: &ToolContext) -> Result<Request, ToolError> {
        let mut rest: Map<String, Value> = context.arguments().as_object().cloned().unwrap_or_default();
        let mut url = self.url(&mut rest)?;
        check_host(&url, &self.form.hosts).map_err(ToolError::permanent)?;
        let has_body = matches!(self.form.method, HttpMethod::Post | HttpMethod::Put | HttpMethod::Patch);
        if !has_body && !rest.is_empty() {
            let mut query = url.query_pairs_mut();
            for (name, value) in &rest {
                query.append_pair(name, &text_of(value));
            }
        }
        let mut request = Request::new(self.form.method.into(), url);
        let headers = request.headers_mut();
        self.add_headers(headers)?;
        if let (true, Ok(key)) = (has_body, HeaderValue::try_from(context.idempotency_key())) {
            headers.insert("idempotency-key", key);
        }
        if has_body {
            headers.entry("content-type").or_insert(HeaderValue::from_static("application/json"));
            *request.body_mut() = Some(Value::Object(rest).to_string().into());
        }
        Ok(request)
    }

    /// Builds the URL with the arguments that it names, and removes them from the rest.
    fn url(&self, rest: &mut Map<String, Value>) -> Result<Url, ToolError> {
        let template = self.form.url.as_str();
        let taken = |name: &str, rest: &Map<String, Value>| {
            rest.get(name)
                .map(text_of)
                .ok_or_else(|| ToolError::permanent(format!("missing argument `{name}`")))
        };
        let mut text = template.to_owned();
        if let Some(name) = whole_url(template) {
            text = taken(name, rest)?;
        } else {
            for name in placeholders(template) {
                let argument = taken(name, rest)?;
                // NOTE: `.` and `..` leave the path of the file, escaped or not: URL parsers resolve both.
                if matches!(&*argument, "." | "..") {
                    return Err(ToolError::permanent(format!("invalid argument `{name}`: `{argument}`")));
                }
                text = text.replace(&format!("{{{name}}}"), &escaped(&argument));
            }
        }
        for name in placeholders(template) {
            rest.remove(name);
        }
        Url::parse(&text).map_err(|error| ToolError::permanent(format!("invalid URL: {error}")))
    }

    fn add_headers(&self, headers: &mut HeaderMap) -> Result<(), ToolError> {
        let unfit = |name: &str| ToolError::permanent(format!("invalid header `{name}`"));
        let mut add = |name: &str, value: &str| {
            let mut value = HeaderValue::try_from(value).map_err(|_| unfit(name))?;
            // NOTE: Values of headers are often keys: sensitive ones are not in Debug output.
            value.set_sensitive(true);
            headers.insert(HeaderName::try_from(name).map_err(|_| unfit(name))?, value);
            Ok::<(), ToolError>(())
        };
        for (name, value) in &self.form.headers {
            add(name, value)?;
        }
        let from: &BTreeMap<String, String> = &self.form.headers_from_environment;
        for (name, variable) in from {
            let value = crate::environment::variable(variable).ok_or_else(|| {
                ToolError::permanent(format!("missing environment variable {variable} for header `{name}`"))
            })?;
            add(name, &value.to_string_lossy())?;
        }
        Ok(())
    }
}

impl From<HttpMethod> for reqwest::Method {
    fn from(method: HttpMethod) -> Self {
        match method {
            HttpMethod::Get => reqwest::Method::GET,
            HttpMethod::Post => reqwest::Method::POST,
            HttpMethod::Put => reqwest::Method::PUT,
            HttpMethod::Patch => reqwest::Method::PATCH,
            HttpMethod::Delete => reqwest::Method::DELETE,
        }
    }
}

fn client(hosts: Vec<String>) -> Result<Client, String> {
    let policy = redirect::Policy::custom(move |attempt| {
        if attempt.previous().len() > REDIRECTS {
            return attempt.error(format!("more than {REDIRECTS} redirects"));
        }
        // NOTE: An allowed server could otherwise lead requests to any host, such as one of the local network.
        match check_host(attempt.url(), &hosts) {
            Ok(()) => attempt.follow(),
            Err(message) => attempt.error(format!("redirect rejected: {message}")),
        }
    });
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(rustls::ConfigBuilder::with_platform_verifier)
        .map_err(|error| format!("TLS could not be set up: {error}"))?
        .with_no_client_auth();
    Client::builder()
        .redirect(policy)
        .connect_timeout(CONNECT_TIMEOUT)
        // NOTE: A proxy of the environment would be a host that the file does not name.
        .no_proxy()
        .tls_backend_preconfigured(tls)
        .user_agent(concat!("stepfold/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|error| format!("HTTP client could not be created: {}", crate::error::chain(&error)))
}

/// Reads a body up to a limit, and whether it is complete.
async fn read_bounded(mut response: reqwest::Response, limit: usize) -> Result<(String, bool), ToolError> {
    let mut bytes = Vec::new();
    let failed = |error: reqwest::Error| ToolError::new(crate::error::chain(&error.without_url()));
    while let Some(chunk) = response.chunk().await.map_err(failed)? {
        let room = limit - bytes.len();
        bytes.extend_from_slice(&chunk[..room.min(chunk.len())]);
        if chunk.len() > room {
            return Ok((String::from_utf8_lossy(&bytes).into_owned(), false));
        }
    }
    Ok((String::from_utf8_lossy(&bytes).into_owned(), true))
}

fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Escapes a text as one segment of a path.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'~' | b'.' => escaped.push(byte.into()),
            byte => {
                // Writing to a string cannot fail.
                let _ = write!(escaped, "%{byte:02X}");
            }
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(url: &str, hosts: &[&str]) -> Result<(), String> {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        check_host(&Url::parse(url).unwrap(), &hosts)
    }

    #[test]
    fn hosts_are_compared_whole() {
        assert_eq!(check("https://api.example.org/x", &["api.example.org"]), Ok(()));
        assert_eq!(check("https://API.example.org/x", &["Api.Example.org"]), Ok(()));
        assert_eq!(check("http://127.0.0.1:81/x", &["127.0.0.1:81"]), Ok(()));
        for url in [
            "https://api.example.org.evil.net/x",
            "https://evil.net/api.example.org",
            "https://api.example.org@evil.net/",
            "https://api.example.org:8443/x",
            "ftp://api.example.org/x",
        ] {
            assert!(check(url, &["api.example.org"]).is_err(), "{url}");
        }
    }

    #[test]
    fn an_argument_stays_one_segment() {
        assert_eq!(escaped("a/b?c#d"), "a%2Fb%3Fc%23d");
        assert_eq!(escaped("v1.2 ä"), "v1.2%20%C3%A4");
    }
}
