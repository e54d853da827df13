//! Rules about hosts and origins: requests are refused by their headers, before they are authenticated.
//!
//! A browser sends requests of any page to us, with our cookies. What tells them apart is seen in Chromium 156: a page on
//! another port of this host counts as `same-site` and sends cookies that are `SameSite=Strict`; a page whose name was
//! rebound to this address sends neither `Origin` nor `Sec-Fetch-Site`, and only its `Host` shows.

use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, ORIGIN, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Method, Uri};

/// The names of this host that anyone may use.
const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// The rules about hosts and origins.
#[derive(Clone, Debug, Default)]
pub(in crate::http) struct OriginRules {
    /// The names by which clients may reach the server, beside those of the loopback interface.
    pub(in crate::http) hosts: Vec<String>,
    /// The foreign origins whose pages may use the API, with bearer tokens.
    pub(in crate::http) origins: Vec<String>,
    /// Whether clients reach the server by HTTPS only.
    pub(in crate::http) is_https: bool,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum GateRefusal {
    /// The host is not a name of the server.
    Host,
    /// A page of another origin has sent it.
    Origin,
    /// It would change something and is not JSON.
    ContentType,
}

/// An admitted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum RequestOrigin {
    /// It is from no page, or from one of ours: a cookie counts.
    Own,
    /// It is from a page of another origin that is allowed: only a bearer token counts.
    Foreign,
}

impl OriginRules {
    /// Decides about a request.
    pub(in crate::http) fn admit(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<RequestOrigin, GateRefusal> {
        let host = text(headers, &HOST);
        // NOTE: Of two host names, both must be names of the server. A request without any is not from a browser, and
        // HTTP/1.1 forbids it.
        let named = [host, uri.authority().map(http::uri::Authority::as_str)];
        if named.iter().flatten().next().is_none() || !named.iter().flatten().all(|host| self.is_ours(host)) {
            return Err(GateRefusal::Host);
        }
        let admitted = self.origin(host.unwrap_or_default(), headers)?;
        // A form always names its content type. A page that sends nothing else has an origin, which is decided above.
        let is_bare = !headers.contains_key(CONTENT_TYPE) && !has_body(headers);
        let is_read = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
        if !is_read && !is_bare && !is_json(headers) {
            return Err(GateRefusal::ContentType);
        }
        Ok(admitted)
    }

    /// Decides about the host alone: for what anyone may read.
    pub(in crate::http) fn admit_host(&self, headers: &HeaderMap) -> Result<(), GateRefusal> {
        text(headers, &HOST).filter(|host| self.is_ours(host)).map(drop).ok_or(GateRefusal::Host)
    }

    fn is_ours(&self, host: &str) -> bool {
        let name = without_port(host);
        LOOPBACK.iter().any(|ours| ours.eq_ignore_ascii_case(name))
            || self.hosts.iter().any(|ours| ours.eq_ignore_ascii_case(name))
    }

    /// The foreign origin of a request, if it is allowed.
    pub(in crate::http) fn allowed_origin(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let origin = headers.get(ORIGIN)?;
        let text = origin.to_str().ok()?;
        self.origins.iter().any(|allowed| allowed == text).then(|| origin.clone())
    }

    fn origin(&self, host: &str, headers: &HeaderMap) -> Result<RequestOrigin, GateRefusal> {
        // NOTE: A header that is not text counts as foreign.
        let origin = headers.get(ORIGIN).map(|origin| origin.to_str().unwrap_or("null"));
        let site = headers.get("sec-fetch-site").map(|site| site.to_str().unwrap_or("cross-site"));
        // NOTE: An allowed origin comes before `Sec-Fetch-Site`, which says `cross-site` for it.
        if self.allowed_origin(headers).is_some() {
            return Ok(RequestOrigin::Foreign);
        }
        // NOTE: The scheme comes from an option: the server sees only its proxy, whose header would have to be trusted for
        // each request (docs/decisions/server.md).
        let scheme = if self.is_https { "https://" } else { "http://" };
        let is_own = |origin: &str| {
            let rest = origin.strip_prefix(scheme);
            rest.is_some_and(|rest| rest.eq_ignore_ascii_case(host))
        };
        if origin.is_some_and(|origin| !is_own(origin)) {
            return Err(GateRefusal::Origin);
        }
        match site {
            None | Some("none" | "same-origin") => Ok(RequestOrigin::Own),
            // NOTE: A page on another port of this host counts as the same site, and is foreign.
            Some(_) => Err(GateRefusal::Origin),
        }
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &http::HeaderName) -> Option<&'a str> {
    // NOTE: A header that is not text is no name of the server.
    headers.get(name).map(|value| value.to_str().unwrap_or_default())
}

/// Whether a request has a body, which may be empty if its length is not told.
fn has_body(headers: &HeaderMap) -> bool {
    let is_empty = |length: &HeaderValue| length.as_bytes() == b"0";
    headers.contains_key(TRANSFER_ENCODING) || !headers.get(CONTENT_LENGTH).is_none_or(is_empty)
}

fn is_json(headers: &HeaderMap) -> bool {
    let value = text(headers, &CONTENT_TYPE).unwrap_or_default();
    let kind = value.split(';').next().unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("application/json")
}

/// The name of a host, without its port.
pub(in crate::http) fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !port.is_empty() => name,
        _ => host,
    }
}

/// The name of the cookie with a token: by port, since cookies are shared by all ports of a host.
pub(in crate::http) fn cookie_name(headers: &HeaderMap) -> String {
    let host = text(headers, &HOST).unwrap_or_default();
    let port = &host[without_port(host).len()..];
    format!("stepfold_{}", port.trim_start_matches(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a request is let in, by its headers: `Host`, `Origin`, `Sec-Fetch-Site`.
    fn check(method: &Method, headers: &[(&'static str, &str)]) -> Result<(), GateRefusal> {
        let rules = OriginRules {
            hosts: vec!["agents.example".to_owned()],
            origins: vec!["https://app.example".to_owned()],
            is_https: false,
        };
        let mut map = HeaderMap::new();
        map.insert(CONTENT_TYPE, "application/json".parse().unwrap());
        for (name, value) in headers {
            map.insert(*name, value.parse().unwrap());
        }
        rules.admit(method, &Uri::from_static("/api/v1/apps"), &map).map(drop)
    }

    #[test]
    fn hosts() {
        let host = |host: &str| check(&Method::GET, &[("host", host)]);
        for ours in ["127.0.0.1:8812", "localhost", "LOCALHOST:1", "[::1]:80", "[::1]", "agents.example"] {
            assert_eq!(host(ours), Ok(()), "{ours}");
        }
        for other in
            ["evil.test:8812", "127.0.0.1.evil.test", "", "localhost.", "127.0.0.1:80@evil.test", "0.0.0.0"]
        {
            assert_eq!(host(other), Err(GateRefusal::Host), "{other}");
        }
        assert_eq!(check(&Method::GET, &[]), Err(GateRefusal::Host));
    }

    #[test]
    fn origins() {
        let post = |rest: &[(&'static str, &str)]| {
            let host = [("host", "127.0.0.1:8812")];
            check(&Method::POST, &host.iter().chain(rest).copied().collect::<Vec<_>>())
        };
        assert_eq!(post(&[]), Ok(()));
        assert_eq!(post(&[("origin", "http://127.0.0.1:8812"), ("sec-fetch-site", "same-origin")]), Ok(()));
        assert_eq!(post(&[("origin", "https://app.example"), ("sec-fetch-site", "cross-site")]), Ok(()));
        for hostile in [
            "http://127.0.0.1:8811",
            "http://evil.test:8812",
            "null",
            "http://localhost:8812",
            "127.0.0.1:8812",
            "http://127.0.0.1:8812.evil.test",
            "https://127.0.0.1:8812",
            "",
        ] {
            assert_eq!(post(&[("origin", hostile)]), Err(GateRefusal::Origin), "{hostile}");
        }
        for site in ["same-site", "cross-site", "other"] {
            assert_eq!(post(&[("sec-fetch-site", site)]), Err(GateRefusal::Origin), "{site}");
        }
    }

    #[test]
    fn forms_are_no_requests() {
        for kind in [
            "text/plain",
            "text/plain; application/json",
            "application/x-www-form-urlencoded",
            "multipart/form-data",
        ] {
            let headers = [("host", "localhost"), ("content-type", kind)];
            assert_eq!(check(&Method::POST, &headers), Err(GateRefusal::ContentType), "{kind}");
            assert_eq!(check(&Method::DELETE, &headers), Err(GateRefusal::ContentType), "{kind}");
        }
        let json = [("host", "localhost"), ("content-type", "Application/JSON; charset=utf-8")];
        assert_eq!(check(&Method::PUT, &json), Ok(()));
    }

    #[test]
    fn cookies_are_named_by_port() {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, "127.0.0.1:8812".parse().unwrap());
        assert_eq!(cookie_name(&headers), "stepfold_8812");
    }
}
