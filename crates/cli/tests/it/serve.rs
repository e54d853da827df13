//! The server of the command: its address and token, a turn over HTTP, and the end by a signal.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;

use expect_test::expect;
use serde_json::Value;

use crate::room::Room;

/// A request with this token: the status and the body.
pub(crate) fn asked(address: &str, token: &str, request: &str, body: &str) -> (u16, Value) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(
        stream,
        "{request} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or(Value::Null))
}

#[test]
fn a_turn_over_http_is_in_the_store_of_the_command() {
    let room = Room::new("", "assistant: area 3 has most stalls\n");
    let mut command = room.command("--json serve a.toml --bind 127.0.0.1:0");
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let told: Value = serde_json::from_str(&lines.next().unwrap()).unwrap();
    let (address, token) = (told["address"].as_str().unwrap(), told["token"].as_str().unwrap());
    assert_eq!(told["apps"], serde_json::json!(["a"]));
    assert_eq!(told["url"], format!("http://{address}/#token={token}"));

    let sessions = "/api/v1/apps/a/sessions";
    assert_eq!(asked(address, "wrong", &format!("GET {sessions}"), "").0, 401);
    assert_eq!(asked(address, token, &format!("POST {sessions}"), r#"{"id":"s1"}"#).0, 201);
    let send = format!("POST {sessions}/s1/messages");
    let (status, answer) = asked(address, token, &send, r#"{"text":"which area?"}"#);
    assert!((200..300).contains(&status), "{status} {answer}");
    // A signal ends it after the run.
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    child.wait().unwrap();
    assert!(room.say("inspect a.toml -s s1", "").contains("assistant: area 3 has most stalls"));
}

/// Two servers, one after the other, over a database that both are given by its URL.
#[tokio::test]
async fn sessions_are_in_the_database_of_the_url() {
    let Some(server) = crate::postgres::server() else { return };
    let url = server.database("command").await;
    let room = Room::new("", "assistant: area 3\n");
    let sessions = "/api/v1/apps/a/sessions";
    for is_first in [true, false] {
        let mut command = room.command(&format!("--json serve a.toml --bind 127.0.0.1:0 --store {url}"));
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let told: Value = serde_json::from_str(&lines.next().unwrap()).unwrap();
        let (address, token) = (told["address"].as_str().unwrap(), told["token"].as_str().unwrap());
        if is_first {
            assert_eq!(asked(address, token, &format!("POST {sessions}"), r#"{"id":"s1"}"#).0, 201);
            let run = asked(address, token, &format!("POST {sessions}/s1/run"), r#"{"text":"which area?"}"#);
            assert_eq!((run.0, &run.1["text"]), (200, &Value::from("area 3")), "{}", run.1);
        } else {
            let (status, session) = asked(address, token, &format!("GET {sessions}/s1"), "");
            assert_eq!((status, &session["version"]), (200, &Value::from(2)), "{session}");
        }
        assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
        child.wait().unwrap();
    }
    assert!(!room.path("data").exists(), "no file was made");
}

#[test]
fn other_hosts_are_served_with_tokens_only() {
    let room = Room::new("", "");
    room.check(
        "serve a.toml --bind 0.0.0.0:0",
        expect![[r"
            | error: `--bind` to other hosts needs `--tokens FILE`: make tokens with `stepfold token`
            exit 2
        "]],
    );
    let made = room.say("token --user ada --role read", "");
    assert!(made.contains("ada") && made.contains("read") && made.contains("stepfold_"), "{made}");
}

/// A line that `token` prints is one that `serve` reads in the same way; the others are refused before.
#[test]
fn a_token_is_made_only_for_a_line_that_can_be_read() {
    let room = Room::new("", "");
    for (words, user, name) in
        [("--user ada", "ada", "ada"), ("--user #ada --name 'Ada of the shop'", "#ada", "Ada of the shop")]
    {
        let made = room.command(&format!("--json token {words}")).output().unwrap().stdout;
        let made: Value = serde_json::from_slice(&made).unwrap();
        let tokens = stepfold::server::http::Tokens::parse(made["line"].as_str().unwrap()).unwrap();
        let known = tokens.find(made["token"].as_str().unwrap()).unwrap();
        assert_eq!((known.user().as_str(), known.name()), (user, name));
    }
    room.check(
        "token --user 'a b'",
        expect![[r#"
            | error: invalid user `a b`: must not have spaces, which a file of tokens cannot hold
            exit 2
        "#]],
    );
    for (words, why) in [
        ("--user 'a\tb'", "invalid user"),
        ("--user ''", "user"),
        ("--name ''", "invalid name"),
        ("--name ' ada'", "invalid name"),
        ("--name 'ada\nbob'", "invalid name"),
    ] {
        let said = room.say(&format!("token {words}"), "");
        assert!(
            said.contains(why) && said.ends_with("exit 2\n") && !said.contains("sha256"),
            "{words}: {said}"
        );
    }
}

#[test]
fn a_file_of_tokens_that_lets_nobody_in_is_refused() {
    let room = Room::new("", "");
    room.write("empty", "# none yet\n\n");
    room.check(
        "serve a.toml --bind 127.0.0.1:0 --tokens empty",
        expect![[r#"
            | error: empty: missing tokens; add lines of `stepfold token`
            exit 2
        "#]],
    );
    room.check(
        "serve a.toml --bind 127.0.0.1:0 --tokens gone",
        expect![[r#"
            | error: file of tokens gone could not be read: No such file or directory (os error 2)
            exit 2
        "#]],
    );
    let said = room.say("serve a.toml --bind nowhere", "");
    assert!(said.contains("expected HOST:PORT") && said.ends_with("exit 2\n"), "{said}");
    let said = room.say("work a.toml --metrics nowhere", "");
    assert!(said.contains("expected HOST:PORT") && said.ends_with("exit 2\n"), "{said}");
}

#[test]
fn a_host_may_be_named() {
    let room = Room::new("", "assistant: area 3");
    let mut child = room.command("--json serve a.toml --bind localhost:0").spawn().unwrap();
    let line = BufReader::new(child.stdout.take().unwrap()).lines().next().unwrap().unwrap();
    let told: Value = serde_json::from_str(&line).unwrap();
    assert!(told["address"].as_str().unwrap().starts_with("127.0.0.1:"), "{told}");
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    child.wait().unwrap();
}
