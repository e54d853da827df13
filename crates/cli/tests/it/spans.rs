//! Spans go to a collector, and a collector that is not there spoils nothing. What they hold is tested with the facade.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::thread;

use expect_test::expect;

use crate::room::Room;

const AGENT: &str = "[tools.now]\nbuiltin = { name = \"clock\" }";
const SCRIPT: &str = "assistant: > c1 now()\nassistant: Now.";

#[test]
fn a_run_is_told_to_the_collector() {
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
    let room = Room::new(AGENT, SCRIPT);
    let said = room.say(&format!("run a.toml -s s1 --otlp http://{address} 'what time is it?'"), "");
    assert!(said.starts_with("Now.\n"), "{said}");
    let (head, body) = collector.join().unwrap();
    assert_eq!(head, "post /v1/traces http/1.1");
    for span in ["invoke_agent a", "chat scripted", "execute_tool now"] {
        assert!(body.contains(span), "{span} in {body}");
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
