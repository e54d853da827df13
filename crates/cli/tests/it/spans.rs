//! Spans go to a collector, and a collector that is not there spoils nothing. What they hold is tested with the facade.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::thread::{self, JoinHandle};

use expect_test::expect;
use serde_json::Value;

use crate::room::Room;
use crate::serve::asked;

const AGENT: &str = "[tools.now]\nbuiltin = { name = \"clock\" }";
const SCRIPT: &str = "assistant: > c1 now()\nassistant: Now.";

#[test]
fn a_run_is_told_to_the_collector() {
    let (address, collector) = collector();
    let room = Room::new(AGENT, SCRIPT);
    let said = room.say(&format!("run a.toml -s s1 --otlp http://{address} 'what time is it?'"), "");
    assert!(said.starts_with("Now.\n"), "{said}");
    check(collector);
}

/// The same spans, for runs of clients.
#[test]
fn runs_of_clients_are_told_to_the_collector() {
    let (address, collector) = self::collector();
    let room = Room::new(AGENT, SCRIPT);
    let mut child = room
        .command(&format!("--json serve a.toml --bind 127.0.0.1:0 --otlp http://{address}"))
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let told: Value = serde_json::from_str(&lines.next().unwrap()).unwrap();
    let (server, token) = (told["address"].as_str().unwrap(), told["token"].as_str().unwrap());
    let sessions = "POST /api/v1/apps/a/sessions";
    assert_eq!(asked(server, token, sessions, r#"{"id":"s1"}"#).0, 201);
    let (status, answer) = asked(server, token, &format!("{sessions}/s1/run"), r#"{"text":"what time?"}"#);
    assert_eq!((status, &answer["text"]), (200, &Value::from("Now.")), "{answer}");
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    child.wait().unwrap();
    check(collector);

    let (address, collector) = self::collector();
    let room = Room::new(AGENT, SCRIPT);
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"a","arguments":{"message":"what time?"}}}
"#;
    let mut child = room.command(&format!("mcp a.toml --otlp http://{address}")).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(call.as_bytes()).unwrap();
    let answers = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let answer = answers.into_iter().find(|line| line.contains("\"id\":2")).unwrap();
    assert!(answer.contains("Now."), "{answer}");
    drop(input);
    child.wait().unwrap();
    check(collector);
}

/// A collector of one request: its address, and the first line and the body of the request.
fn collector() -> (SocketAddr, JoinHandle<(String, String)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let collector = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            match line.trim().to_ascii_lowercase() {
                end if end.is_empty() => break,
                line => head.push(line),
            }
        }
        let length = head.iter().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        let mut body = vec![0; length.parse().unwrap()];
        reader.read_exact(&mut body).unwrap();
        write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").unwrap();
        (head.swap_remove(0), String::from_utf8_lossy(&body).into_owned())
    });
    (address, collector)
}

fn check(collector: JoinHandle<(String, String)>) {
    let (head, body) = collector.join().unwrap();
    assert_eq!(head, "post /v1/traces http/1.1");
    for span in ["invoke_agent a", "chat scripted", "execute_tool now"] {
        assert!(body.contains(span), "{span} in {body}");
    }
}

#[test]
fn results_of_an_evaluation_are_told_to_the_collector() {
    let (address, collector) = collector();
    let room = Room::new(AGENT, "assistant: area 3\n");
    let case =
        "[[case]]\nname = 'largest'\nsay = 'which?'\nexpect = [{ text_contains = ['area 4'] }, 'answered']\n";
    room.write("cases.toml", case);
    let options = format!("--model script:a.script --otlp http://{address}");
    room.say(&format!("eval run a.toml cases.toml {options}"), "");
    let (_, body) = collector.join().unwrap();
    let told = [
        "evaluate a",
        "gen_ai.evaluation.result",
        "gen_ai.evaluation.name",
        "text_contains",
        "gen_ai.evaluation.score.label",
        "fail",
        "gen_ai.evaluation.score.value",
        "gen_ai.evaluation.explanation",
        "expected `area 4` in the text, found `area 3`",
        "stepfold.eval.case",
        "largest",
    ];
    for text in told {
        assert!(body.contains(text), "{text} in {body}");
    }
}

#[test]
fn a_collector_that_is_not_there_is_a_warning() {
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let room = Room::new(AGENT, SCRIPT);
    let said = room.say(&format!("run a.toml -s s1 --otlp http://{gone} 'what time is it?'"), "");
    assert!(said.starts_with("Now.\n") && !said.contains("exit"), "{said}");
    assert!(said.contains("| warning: spans could not be exported"), "{said}");
    room.check(
        "sessions a.toml --otlp localhost:4318",
        expect![[r#"
        | error: invalid collector address `localhost:4318`: expected a base URL such as http://localhost:4318
        exit 2
    "#]],
    );
}
