//! Each rule over the whole table of routes, as the OpenAPI document lists them: a new route is tested by being there.

use http::Method;
use serde_json::{Value, json};
use stepfold_runner::Runner;
use stepfold_server::http::{App, Limits, ServerBuilder};
use stepfold_session_scopes::MemoryStore;

use super::clients::{ALL, request};
use super::openapi::operations;
use super::site::{Reply, Site, agent};

/// A route with names that exist, and the role that it needs.
struct Route {
    method: Method,
    path: String,
    needs: String,
    is_of_session: bool,
}

fn routes(document: &Value) -> Vec<Route> {
    let route = |(path, method, operation): (String, String, Value)| Route {
        method: Method::from_bytes(method.to_uppercase().as_bytes()).unwrap(),
        // One creates a session, and names it.
        is_of_session: path.contains("{session}") && operation["operationId"] != "adk_create_named",
        path: path
            .replace("{app}", "clerk")
            .replace("{session}", "s1")
            .replace("{message}", "m1")
            .replace("{label}", "l1"),
        needs: operation["x-stepfold-role"].as_str().unwrap().to_owned(),
    };
    let routes: Vec<Route> = operations(document).into_iter().map(route).collect();
    assert!(routes.len() > 20 && routes.iter().any(|route| route.is_of_session));
    routes
}

/// A site with the session `s1` of Ada.
async fn site() -> Site {
    let site = Site::new("").await;
    assert_eq!(site.post("ada", "/sessions", json!({"id": "s1"})).await.status, 201);
    site
}

/// Sends a request to each route, with these headers instead of the good ones, and compares its problem.
async fn each(site: &Site, headers: &[(&str, &str)], expected: (u16, &str)) {
    for route in routes(&site.server.openapi()) {
        let reply = send(site, &route, headers).await;
        let found = reply.problem();
        let expected = (expected.0, expected.1.to_owned());
        assert_eq!(found, expected, "{} {} with {headers:?}", route.method, route.path);
    }
}

async fn send(site: &Site, route: &Route, headers: &[(&str, &str)]) -> Reply {
    let bearer = site.bearer("root");
    let mut all = headers.to_vec();
    for good in [("authorization", bearer.as_str()), ("content-type", "application/json")] {
        if !headers.iter().any(|(name, _)| *name == good.0) {
            all.push(good);
        }
    }
    all.retain(|(_, value)| !value.is_empty());
    site.raw(route.method.clone(), &route.path, &all, "{}").await
}

#[tokio::test]
async fn nothing_is_told_to_strangers() {
    let site = site().await;
    let hash = format!("Bearer {}", "0".repeat(52));
    for authorization in ["", "Bearer", "Bearer guessed", "Basic cm9vdDpyb290", &hash] {
        each(&site, &[("authorization", authorization)], (401, "unauthenticated")).await;
    }
    // A path that is not there is not told apart from one that is.
    let unknown = site.raw(Method::GET, "/api/v1/secret", &[], "").await;
    assert_eq!(unknown.problem(), (401, "unauthenticated".to_owned()));
    assert_eq!(unknown.headers["www-authenticate"], "Bearer realm=\"stepfold\"");
}

#[tokio::test]
async fn other_hosts_are_refused() {
    let site = site().await;
    let port = site.address.rsplit(':').next().unwrap();
    for host in [format!("evil.test:{port}"), "evil.test".to_owned(), format!("localhost.evil.test:{port}")] {
        each(&site, &[("host", &host)], (421, "host")).await;
        for path in ["/", "/healthz", "/readyz", "/api/v1/openapi.json", "/studio/app.js"] {
            assert_eq!(site.raw(Method::GET, path, &[("host", &host)], "").await.status, 421, "{path}");
        }
    }
}

#[tokio::test]
async fn pages_of_other_origins_are_refused() {
    let site = site().await;
    let port: u16 = site.address.rsplit(':').next().unwrap().parse().unwrap();
    let other_port = format!("http://127.0.0.1:{}", port.wrapping_add(1).max(1));
    let rebound = format!("http://evil.test:{port}");
    let other_scheme = format!("https://{}", site.address);
    for origin in [other_port.as_str(), &rebound, &other_scheme, "https://evil.test", "null"] {
        each(&site, &[("origin", origin)], (403, "origin")).await;
    }
    for fetch in ["same-site", "cross-site"] {
        each(&site, &[("sec-fetch-site", fetch)], (403, "origin")).await;
    }
}

/// Behind a proxy with TLS, a page without TLS is of another origin: anyone on its way may have written it.
#[tokio::test]
async fn pages_of_the_other_scheme_are_refused() {
    let runner = Runner::builder(agent("", Vec::new()), MemoryStore::new()).build();
    let site = Site::with(App::from(runner), Limits::default(), ServerBuilder::secure_cookies).await;
    let bearer = site.bearer("ada");
    for (scheme, status) in [("http", 403), ("https", 200)] {
        let origin = format!("{scheme}://{}", site.address);
        let headers = [("authorization", bearer.as_str()), ("origin", &origin)];
        let reply = site.raw(Method::GET, "/api/v1/apps", &headers, "").await;
        assert_eq!(reply.status.as_u16(), status, "{scheme}: {}", reply.text);
    }
}

#[tokio::test]
async fn forms_are_refused() {
    let site = site().await;
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"] {
        for route in routes(&site.server.openapi()).iter().filter(|route| route.method != Method::GET) {
            let reply = send(&site, route, &[("content-type", kind)]).await;
            assert_eq!(reply.problem(), (415, "content_type".to_owned()), "{} {}", route.method, route.path);
        }
    }
}

#[tokio::test]
async fn a_session_of_another_user_does_not_exist() {
    let site = site().await;
    let bearer = site.bearer("bob");
    for route in routes(&site.server.openapi()).iter().filter(|route| route.is_of_session) {
        // Not even what is wrong with the request is told.
        for body in ["{}", "no JSON"] {
            let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
            let path = format!("{}?nonsense=1", route.path);
            let reply = site.raw(route.method.clone(), &path, &headers, body).await;
            let none = site.raw(route.method.clone(), &path.replace("/s1", "/s9"), &headers, body).await;
            assert_eq!(
                reply.problem(),
                (404, "unknown_session".to_owned()),
                "{} {}",
                route.method,
                route.path
            );
            assert_eq!(reply.text.replace("s1", "s9"), none.text);
        }
    }
    // Nor by another name in the query.
    assert_eq!(site.post("bob", "/sessions", json!({"id": "b1"})).await.status, 201);
    let compared = site.get("bob", "/sessions/b1/compare?with=s1").await;
    assert_eq!(compared.problem(), (404, "unknown_session".to_owned()));
    assert_eq!(site.get("bob", "/sessions").await.json()["sessions"].as_array().unwrap().len(), 1);
    // What Bob calls s1 is another session.
    assert_eq!(site.post("bob", "/sessions", json!({"id": "s1"})).await.status, 201);
    for id in ["..%2fada%2fs1", "%2e%2e%2fs1", "s1%00", "ada/s1"] {
        assert!(site.get("bob", &format!("/sessions/{id}")).await.status.is_client_error(), "{id}");
    }
}

/// No path and no parameter leads to a file: assets are a table, and agents have names.
#[tokio::test]
async fn no_path_leads_to_a_file() {
    let site = site().await;
    let bearer = site.bearer("root");
    let names = [
        "..",
        "%2e%2e",
        "..%2f..%2f..%2fetc%2fpasswd",
        "%2fetc%2fpasswd",
        "..%5c..",
        "clerk%00",
        "file:%2f%2f%2fetc",
    ];
    for name in names {
        for path in [
            format!("/studio/{name}"),
            format!("/studio/{name}/Cargo.toml"),
            format!("/{name}/Cargo.toml"),
            format!("/dev-ui/{name}"),
            format!("/api/v1/apps/{name}"),
            format!("/api/v1/apps/{name}/sessions"),
            format!("/api/v1/apps/clerk/sessions/{name}"),
            format!("/api/v1/apps/clerk/sessions/{name}/export"),
            format!("/a2a/{name}/.well-known/agent-card.json"),
        ] {
            let reply = site.raw(Method::GET, &path, &[("authorization", &bearer)], "").await;
            assert!(reply.status.is_client_error(), "{path}: {} {}", reply.status, reply.text);
            assert!(!reply.text.contains("root:") && !reply.text.contains("[package]"), "{path}");
        }
    }
}

/// There are no web sockets, whose requests any page may send.
#[tokio::test]
async fn nothing_is_upgraded() {
    let site = site().await;
    let own = format!("http://{}", site.address);
    for origin in ["https://evil.test", own.as_str()] {
        for path in ["/", "/api/v1/live", "/api/v1/apps/clerk/sessions/s1/live"] {
            let headers = [
                ("connection", "Upgrade"),
                ("upgrade", "websocket"),
                ("sec-websocket-version", "13"),
                ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
                ("origin", origin),
            ];
            let reply = site.raw(Method::GET, path, &headers, "").await;
            assert!(matches!(reply.status.as_u16(), 200 | 401 | 403), "{path}: {}", reply.status);
        }
    }
}

#[tokio::test]
async fn each_route_needs_its_role() {
    let site = site().await;
    for route in routes(&site.server.openapi()) {
        for (name, has) in [("reader", 0), ("ada", 1), ("payer", 2)] {
            let roles = ["read", "act", "raise_budgets", "administer"];
            let needs = roles.iter().position(|role| *role == route.needs).unwrap();
            if has < needs {
                let bearer = site.bearer(name);
                let reply = send(&site, &route, &[("authorization", &bearer)]).await;
                assert_eq!(reply.problem(), (403, "forbidden".to_owned()), "{} {}", route.method, route.path);
            }
        }
        // What changes something is not for readers.
        let changes =
            route.method != Method::GET && !route.path.ends_with("/replay") && route.path.contains("/apps/");
        assert!(!changes || route.needs != "read", "{} {}", route.method, route.path);
    }
    // Values of all users are for administrators.
    for (name, status) in [("ada", 403), ("root", 201)] {
        let body = json!({"values": {"app:motto": "pay"}});
        assert_eq!(site.post(name, "/sessions", body).await.status.as_u16(), status, "{name}");
    }
    let body = json!({"text": "hi", "values": {"app:motto": "pay"}});
    assert_eq!(site.post("ada", "/sessions/s1/messages", body).await.problem().0, 403);
}

#[tokio::test]
async fn a_cookie_counts_for_own_pages_only() {
    let site = site().await;
    let (bearer, own) = (site.bearer("ada"), format!("http://{}", site.address));
    let port = site.address.rsplit(':').next().unwrap();
    let headers =
        [("authorization", bearer.as_str()), ("content-type", "application/json"), ("origin", &own)];
    let login = site.raw(Method::POST, "/api/v1/login", &headers, "").await;
    assert_eq!(login.status, 204);
    let cookie = login.headers["set-cookie"].to_str().unwrap();
    assert!(cookie.starts_with(&format!("stepfold_{port}=stepfold_")), "named by its port");
    assert!(cookie.ends_with("; Path=/; HttpOnly; SameSite=Strict"), "{cookie}");
    let cookie = cookie.split(';').next().unwrap();

    let get = |headers: Vec<(&'static str, String)>| {
        let site = &site;
        async move {
            let headers: Vec<(&str, &str)> =
                headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
            site.raw(Method::GET, "/api/v1/apps", &headers, "").await.status.as_u16()
        }
    };
    let cookie = |rest: &[(&'static str, &str)]| {
        let mut headers = vec![("cookie", format!("other=1; {cookie}"))];
        headers.extend(rest.iter().map(|(name, value)| (*name, (*value).to_owned())));
        headers
    };
    assert_eq!(get(cookie(&[])).await, 200);
    assert_eq!(get(cookie(&[("sec-fetch-site", "same-origin")])).await, 200);
    // A page on another port of this host has the cookie too.
    assert_eq!(get(cookie(&[("sec-fetch-site", "same-site")])).await, 403);
    // A page of an allowed origin needs a token of its own.
    assert_eq!(get(cookie(&[("origin", "https://app.example")])).await, 401);
    assert_eq!(get(vec![("cookie", "stepfold_1=x".to_owned())]).await, 401);
}

#[tokio::test]
async fn an_allowed_origin_may_read() {
    let site = site().await;
    let bearer = site.bearer("ada");
    let origin = ("origin", "https://app.example");
    for path in ["/api/v1/apps", "/api/v1/apps/clerk/sessions/s1/messages"] {
        let preflight =
            site.raw(Method::OPTIONS, path, &[origin, ("access-control-request-method", "POST")], "").await;
        assert_eq!(
            (preflight.status.as_u16(), &preflight.headers["access-control-allow-origin"]),
            (204, &origin.1.parse().unwrap())
        );
        let refused = site.raw(Method::OPTIONS, path, &[("origin", "https://evil.test")], "").await;
        assert!(
            refused.status.is_client_error() && !refused.headers.contains_key("access-control-allow-origin")
        );
    }
    let read = site.raw(Method::GET, "/api/v1/apps", &[origin, ("authorization", &bearer)], "").await;
    assert_eq!(
        (read.status.as_u16(), &read.headers["access-control-allow-origin"]),
        (200, &origin.1.parse().unwrap())
    );
    assert!(!read.headers.contains_key("access-control-allow-credentials"));
}

#[tokio::test]
async fn every_response_is_closed_to_other_pages() {
    let site = site().await;
    let bearer = site.bearer("root");
    let mut paths: Vec<String> =
        ["/", "/studio/app.js", "/healthz", "/api/v1/nothing"].map(str::to_owned).to_vec();
    let of_get = |route: &Route| route.method == Method::GET && !route.path.ends_with("/live");
    paths.extend(routes(&site.server.openapi()).into_iter().filter(of_get).map(|route| route.path));
    for path in paths {
        let reply = site.raw(Method::GET, &path, &[("authorization", &bearer)], "").await;
        // Nothing of the page is secret, and browsers ask each time whether it has changed.
        let kept = if path == "/" || path.starts_with("/studio/") { "no-cache" } else { "no-store" };
        for (name, value) in [
            ("cache-control", kept),
            ("cross-origin-resource-policy", "same-origin"),
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
        ] {
            assert_eq!(reply.headers[name], value, "{path}");
        }
        let policy = reply.headers["content-security-policy"].to_str().unwrap();
        assert!(policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"), "{path}");
        assert!(!reply.headers.contains_key("access-control-allow-origin"), "{path}");
    }
}

/// A session that is named in a body, a header or an argument, by clients of each protocol: it is that of the principal.
#[tokio::test]
async fn clients_of_no_protocol_reach_a_session_of_another_user() {
    let site = Site::new(&"assistant: hi\n".repeat(ALL.len())).await;
    assert_eq!(site.post("ada", "/sessions", json!({"id": "s1"})).await.status, 201);
    assert_eq!(site.post("bob", "/sessions", json!({"id": "s1"})).await.status, 201);
    let bearer = site.bearer("bob");
    for protocol in ALL {
        let (path, more, body) = request(protocol, protocol);
        let mut headers = vec![("authorization", bearer.as_str()), ("content-type", "application/json")];
        headers.extend(more);
        let reply = site.raw(Method::POST, path, &headers, &body.to_string()).await;
        assert_eq!(reply.status, 200, "{protocol}: {}", reply.text);
        assert_eq!(site.get("ada", "/sessions/s1").await.json()["version"], 0, "{protocol}");
    }
    assert!(site.get("bob", "/sessions/s1").await.json()["version"].as_u64().unwrap() >= 14);
}
