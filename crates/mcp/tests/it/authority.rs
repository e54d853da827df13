//! A server that wants tokens, and the authorization server that gives them: both at one address of this machine. It checks
//! what it is sent as RFC 6749, 7591, 7636, 8414, 8707 and 9728 say.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use reqwest::Url;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::peer::{Does, Peer};
use crate::remote::request;

/// What the tests can say about it, and what it knows.
#[derive(Default)]
pub(crate) struct State {
    /// The client that is registered before.
    pub(crate) client: Option<(String, String)>,
    /// Whether it takes the URL of a document as a client's id.
    pub(crate) takes_documents: bool,
    /// The scope that a call wants; none beyond the first by default.
    pub(crate) scope_of_calls: Option<&'static str>,
    /// How the page is answered, if the user does not agree.
    pub(crate) refuses: bool,
    /// Whether a token request fails, and with what.
    pub(crate) fails: Option<(u16, String)>,
    /// Another address of the page.
    pub(crate) page: Option<String>,
    /// Whether the document names the resource of another server.
    pub(crate) is_of_another: bool,
    /// What was asked for, a line each.
    pub(crate) log: Vec<String>,
    clients: BTreeMap<String, Value>,
    codes: BTreeMap<String, BTreeMap<String, String>>,
    /// Tokens that are taken, with their scopes.
    pub(crate) access: BTreeMap<String, String>,
    pub(crate) refresh: BTreeMap<String, String>,
    issued: usize,
}

#[derive(Clone)]
pub(crate) struct Authority {
    pub(crate) base: String,
    state: Arc<Mutex<State>>,
    peer: Arc<Mutex<Peer>>,
}

type Query = BTreeMap<String, String>;

impl Authority {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let peer = Arc::new(Mutex::new(Peer::new("plain")));
        let authority = Authority { base, state: Arc::default(), peer };
        let serving = authority.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(serving.clone().serve(stream));
            }
        });
        authority
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn url(&self) -> String {
        format!("{}/mcp", self.base)
    }

    /// What was asked for since the last time.
    pub(crate) fn log(&self) -> String {
        std::mem::take(&mut self.state().log).join("\n") + "\n"
    }

    async fn serve(self, stream: TcpStream) {
        let mut stream = BufReader::new(stream);
        while let Some((head, body)) = request(&mut stream).await {
            let response = self.respond(&head, &body);
            if stream.write_all(response.as_bytes()).await.is_err() {
                return;
            }
        }
    }

    fn respond(&self, head: &[String], body: &[u8]) -> String {
        let mut words = head[0].split(' ');
        let (method, target) = (words.next().unwrap(), words.next().unwrap());
        let url = Url::parse(&self.base).unwrap().join(target).unwrap();
        let header = |name: &str| {
            head.iter().find_map(|line| line.strip_prefix(&format!("{name}: ")).map(str::to_owned))
        };
        let form: Query = form_of(std::str::from_utf8(body).unwrap_or_default());
        match (method, url.path()) {
            ("POST", "/mcp") => self.protected(header("authorization"), body),
            ("GET", "/.well-known/oauth-protected-resource/mcp") => {
                let resource = if self.state().is_of_another {
                    "https://example.com/mcp".to_owned()
                } else {
                    self.url()
                };
                json_of(
                    200,
                    &json!({
                        "resource": resource,
                        "authorization_servers": [self.base],
                        "scopes_supported": ["read"],
                    }),
                )
            }
            ("GET", "/.well-known/oauth-authorization-server") => self.metadata(),
            ("POST", "/register") => self.register(&serde_json::from_slice(body).unwrap()),
            ("GET", "/authorize") => self.authorize(&url.query_pairs().into_owned().collect()),
            ("POST", "/token") => self.token(header("authorization").as_deref(), &form),
            _ => "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_owned(),
        }
    }

    fn metadata(&self) -> String {
        let state = self.state();
        let base = &self.base;
        json_of(
            200,
            &json!({
                "issuer": base,
                "authorization_endpoint": state.page.clone().unwrap_or_else(|| format!("{base}/authorize")),
                "token_endpoint": format!("{base}/token"),
                "registration_endpoint": format!("{base}/register"),
                "response_types_supported": ["code"],
                "code_challenge_methods_supported": ["S256"],
                "client_id_metadata_document_supported": state.takes_documents,
                "authorization_response_iss_parameter_supported": true,
            }),
        )
    }

    fn register(&self, asked: &Value) -> String {
        let mut state = self.state();
        let id = format!("client-{}", state.clients.len() + 1);
        state.log.push(format!("register {} as {id}", asked["client_name"].as_str().unwrap()));
        state.clients.insert(id.clone(), asked["redirect_uris"].clone());
        let mut answer = asked.clone();
        answer["client_id"] = json!(id);
        json_of(201, &answer)
    }

    fn authorize(&self, asked: &Query) -> String {
        let mut state = self.state();
        state.log.push(format!("page for {} with scope `{}`", asked["client_id"], asked["scope"]));
        assert_eq!(asked["response_type"], "code");
        assert_eq!(asked["code_challenge_method"], "S256");
        assert_eq!(asked["resource"], self.url());
        if let Some(redirects) = state.clients.get(&asked["client_id"]) {
            assert_eq!(redirects, &json!([asked["redirect_uri"]]));
        }
        let mut back = Url::parse(&asked["redirect_uri"]).unwrap();
        let mut pairs = back.query_pairs_mut();
        pairs.append_pair("state", &asked["state"]).append_pair("iss", &self.base);
        if state.refuses {
            pairs.append_pair("error", "access_denied").append_pair("error_description", "not today");
        } else {
            let code = format!("code-{}", state.codes.len() + 1);
            pairs.append_pair("code", &code);
            state.codes.insert(code, asked.clone());
        }
        drop(pairs);
        format!("HTTP/1.1 302 Found\r\nlocation: {back}\r\ncontent-length: 0\r\n\r\n")
    }

    fn token(&self, authorization: Option<&str>, form: &Query) -> String {
        let mut state = self.state();
        let client = match authorization.and_then(|header| header.strip_prefix("Basic ")) {
            Some(encoded) => String::from_utf8(STANDARD.decode(encoded).unwrap()).unwrap(),
            None => form["client_id"].clone(),
        };
        state.log.push(format!("token by {} for {client}", form["grant_type"]));
        assert_eq!(form["resource"], self.url());
        if let Some((status, body)) = state.fails.clone() {
            return response(status, "application/json", &body);
        }
        let scopes = if form["grant_type"] == "refresh_token" {
            // A refresh token is taken once.
            state.refresh.remove(&form["refresh_token"])
        } else {
            state.codes.remove(&form["code"]).map(|asked| {
                let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(&form["code_verifier"]));
                assert_eq!(asked["code_challenge"], challenge);
                assert_eq!(asked["redirect_uri"], form["redirect_uri"]);
                asked["scope"].clone()
            })
        };
        let is_known = state.client.as_ref().is_none_or(|(id, secret)| client == format!("{id}:{secret}"));
        let Some(scopes) = scopes.filter(|_| is_known) else {
            return json_of(400, &json!({"error": "invalid_grant"}));
        };
        state.issued += 1;
        let (access, refresh) = (format!("acc3ss-{}", state.issued), format!("refr3sh-{}", state.issued));
        state.access.insert(access.clone(), scopes.clone());
        state.refresh.insert(refresh.clone(), scopes.clone());
        json_of(
            200,
            &json!({
                "access_token": access,
                "refresh_token": refresh,
                "token_type": "Bearer",
                "expires_in": 3600,
                "scope": scopes,
            }),
        )
    }

    /// The server of tools behind the tokens.
    fn protected(&self, authorization: Option<String>, body: &[u8]) -> String {
        let message: Value = serde_json::from_slice(body).unwrap();
        let token = authorization.and_then(|header| header.strip_prefix("Bearer ").map(str::to_owned));
        {
            let mut state = self.state();
            let metadata =
                format!("resource_metadata=\"{}/.well-known/oauth-protected-resource/mcp\"", self.base);
            let challenge = |status: &str, words: &str| {
                format!(
                    "HTTP/1.1 {status}\r\nwww-authenticate: Bearer {words}, {metadata}\r\ncontent-length: 0\r\n\r\n"
                )
            };
            let scopes = token.as_ref().and_then(|token| state.access.get(token).cloned());
            let Some(scopes) = scopes else {
                let words = match token {
                    // It sends back what it was sent.
                    Some(token) => format!("error=\"invalid_token\", error_description=\"{token}\""),
                    None => "scope=\"read\"".to_owned(),
                };
                return challenge("401 Unauthorized", &words);
            };
            if message["method"] == "tools/call" {
                if let Some(wanted) = state.scope_of_calls
                    && !scopes.split(' ').any(|scope| scope == wanted)
                {
                    let words = format!("error=\"insufficient_scope\", scope=\"{wanted}\"");
                    return challenge("403 Forbidden", &words);
                }
                state.log.push(format!("call of {}", message["params"]["name"].as_str().unwrap()));
            }
        }
        match self.peer.lock().unwrap().answer(&message) {
            Does::Says(messages) if messages.is_empty() => {
                "HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n".to_owned()
            }
            Does::Says(messages) => json_of(200, &messages[0]),
            _ => unreachable!("the tests call harmless tools"),
        }
    }
}

fn form_of(text: &str) -> Query {
    let url = Url::parse(&format!("http://x/?{text}")).unwrap();
    url.query_pairs().into_owned().collect()
}

fn json_of(status: u16, body: &Value) -> String {
    response(status, "application/json", &body.to_string())
}

fn response(status: u16, kind: &str, body: &str) -> String {
    format!("HTTP/1.1 {status} Said\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// What a browser does with a page: where it is sent, and what it reads.
pub(crate) async fn browse(page: &str) -> (Option<String>, String) {
    let url = Url::parse(page).unwrap();
    let address = format!("{}:{}", url.host_str().unwrap(), url.port().unwrap());
    let mut stream = TcpStream::connect(address).await.unwrap();
    let target = format!("{}?{}", url.path(), url.query().unwrap_or_default());
    let request = format!("GET {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let location = text.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("location").then(|| value.to_owned())
    });
    (location, text)
}
