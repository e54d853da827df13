//! Signing in to an MCP server from a terminal. The exam of the protocol's part is that of `stepfold-mcp`.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;

use expect_test::expect;
use serde_json::{Value, json};

use crate::room::Room;

/// A server with one resource, and the authorization server of its tokens, at one address.
fn authority() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let known = base.clone();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, base) = (stream.unwrap(), known.clone());
            thread::spawn(move || {
                let (head, body) = request(&stream);
                let response = respond(&base, &head, &body);
                // A client that has enough leaves.
                let _ = stream.write_all(response.as_bytes());
            });
        }
    });
    base
}

fn request(stream: &TcpStream) -> (String, String) {
    let mut reader = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line.trim().is_empty() {
            break;
        }
        head.push_str(&line);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    (head, String::from_utf8(body).unwrap())
}

fn respond(base: &str, head: &str, body: &str) -> String {
    let target = head.split(' ').nth(1).unwrap();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let answer = match path {
        "/mcp" if head.contains("Bearer t0ken") => match mcp(&serde_json::from_str(body).unwrap()) {
            Some(answer) => answer,
            None => return said("202 Accepted", "", ""),
        },
        "/mcp" => return said("401 Unauthorized", "www-authenticate: Bearer\r\n", ""),
        "/.well-known/oauth-protected-resource/mcp" => {
            json!({"resource": format!("{base}/mcp"), "authorization_servers": [base]})
        }
        "/.well-known/oauth-authorization-server" => json!({
            "issuer": base,
            "authorization_endpoint": format!("{base}/authorize"),
            "token_endpoint": format!("{base}/token"),
            "registration_endpoint": format!("{base}/register"),
            "code_challenge_methods_supported": ["S256"],
        }),
        "/register" => {
            let mut answer: Value = serde_json::from_str(body).unwrap();
            answer["client_id"] = json!("client");
            answer
        }
        "/authorize" => {
            let value = |name: &str| {
                let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
                pairs.clone().find(|(known, _)| *known == name).unwrap().1.to_owned()
            };
            let back = value("redirect_uri").replace("%3A", ":").replace("%2F", "/");
            let back = format!("location: {back}?code=c0de&state={}\r\n", value("state"));
            return said("302 Found", &back, "");
        }
        "/token" => json!({"access_token": "t0ken", "token_type": "Bearer", "expires_in": 3600}),
        _ => return said("404 Not Found", "", ""),
    };
    said("200 OK", "content-type: application/json\r\n", &answer.to_string())
}

fn mcp(message: &Value) -> Option<Value> {
    let result = match message["method"].as_str()? {
        "initialize" => json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}, "resources": {}},
            "serverInfo": {"name": "shop", "version": "1"},
        }),
        "tools/list" => json!({"tools": []}),
        "resources/list" => json!({"resources": [{"uri": "shop://prices", "name": "prices"}]}),
        _ if message["id"].is_null() => return None,
        _ => {
            let error = json!({"code": -32601, "message": "unknown method"});
            return Some(json!({"jsonrpc": "2.0", "id": message["id"], "error": error}));
        }
    };
    Some(json!({"jsonrpc": "2.0", "id": message["id"], "result": result}))
}

fn said(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
}

/// What a browser does with a page: where it is sent, if it is.
fn browse(page: &str) -> Option<String> {
    let (host, target) = page.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    write!(stream, "GET /{target} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text.lines().find_map(|line| line.strip_prefix("location: ")).map(str::to_owned)
}

#[test]
fn a_user_signs_in_from_a_terminal() {
    let base = authority();
    let room = Room::new(&format!("[mcp.shop]\nurl = \"{base}/mcp\"\noauth = {{}}\n"), "assistant: Done.\n");
    let refused = expect![[r#"
        | error: MCP server `shop` requires authorization: not signed in; run `stepfold login AGENT.toml shop` with this agent file
        exit 1
    "#]];
    refused.assert_eq(&room.say("resources a.toml", ""));

    let mut child = room.command("login a.toml").spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), "shop: open this page to sign in");
    let back = browse(&lines.next().unwrap()).unwrap();
    assert!(back.starts_with("http://127.0.0.1:"), "{back}");
    assert_eq!(browse(&back), None);
    assert_eq!(lines.next().unwrap(), "shop: signed in");
    assert!(child.wait().unwrap().success());

    room.check("resources a.toml", expect!["shop:shop://prices prices\n"]);
    room.check(
        "run a.toml -s s1 hello",
        expect![[r#"
        Done.
        | session s1
        | continue: stepfold chat a.toml --session s1
    "#]],
    );
    let kept: Vec<_> = std::fs::read_dir(room.path("data/stepfold/credentials")).unwrap().collect();
    assert_eq!(kept.len(), 1, "{kept:?}");
    room.check("logout a.toml shop", expect!["shop: signed out\n"]);
    refused.assert_eq(&room.say("resources a.toml", ""));
}

#[test]
fn a_login_without_a_server_that_wants_it_is_a_wrong_use() {
    let room = Room::new("[mcp.shop]\nurl = \"http://127.0.0.1:1/mcp\"\noauth = {}\n", "");
    room.check(
        "login a.toml other",
        expect![[r#"
        | error: unknown server `other`; servers with `oauth`: shop
        exit 2
    "#]],
    );
    let room = Room::new("", "");
    room.check(
        "logout a.toml",
        expect![[r#"
        | error: no MCP server of the agent has `oauth`
        exit 2
    "#]],
    );
    let room = Room::new(
        "[mcp.shop]\ncommand = { argv = [\"x\"] }\noauth = { client_secret_from_environment = \"S\" }\n",
        "",
    );
    let said = room.say("check a.toml", "");
    assert!(said.contains("`oauth` requires a `url`"), "{said}");
}
