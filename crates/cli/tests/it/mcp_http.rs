//! A run that calls a server of tools over HTTP, and is killed in the call.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};

use crate::room::Room;

/// A shop whose calls wait until the test lets them go on.
#[derive(Clone)]
struct Shop {
    calls: Arc<Mutex<Vec<Value>>>,
    called: Sender<()>,
    gate: Arc<Mutex<Receiver<()>>>,
}

impl Shop {
    /// Its address; what tells that a call is under way, and what lets it go on.
    fn start() -> (Self, String, Receiver<()>, Sender<()>) {
        let ((called, under_way), (go_on, gate)) = (channel(), channel());
        let shop = Shop { calls: Arc::default(), called, gate: Arc::new(Mutex::new(gate)) };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let serving = shop.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let serving = serving.clone();
                thread::spawn(move || serving.serve(stream.unwrap()));
            }
        });
        (shop, url, under_way, go_on)
    }

    fn serve(&self, mut stream: TcpStream) -> Option<()> {
        let mut reader = BufReader::new(stream.try_clone().ok()?);
        loop {
            let (mut line, mut length, mut method) = (String::new(), 0, None);
            while reader.read_line(&mut line).ok()? > 2 {
                method = method.or_else(|| line.split(' ').next().map(str::to_owned));
                if let Some(text) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = text.trim().parse().ok()?;
                }
                line.clear();
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).ok()?;
            let answer = match method?.as_str() {
                "POST" => self.answer(&serde_json::from_slice(&body).ok()?),
                _ => None,
            };
            let response = answer.map_or_else(
                || "HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n".to_owned(),
                |answer| {
                    let (head, answer) =
                        ("HTTP/1.1 200 OK\r\ncontent-type: application/json", answer.to_string());
                    format!("{head}\r\ncontent-length: {}\r\n\r\n{answer}", answer.len())
                },
            );
            stream.write_all(response.as_bytes()).ok()?;
        }
    }

    fn answer(&self, message: &Value) -> Option<Value> {
        let result = match message["method"].as_str() {
            Some("initialize") => json!({
                "protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "shop", "version": "1"},
            }),
            Some("tools/list") => json!({"tools": [{
                "name": "order",
                "inputSchema": {"type": "object", "properties": {"what": {"type": "string"}}},
                "annotations": {"idempotentHint": true},
            }]}),
            Some("tools/call") => {
                self.calls
                    .lock()
                    .unwrap()
                    .push(message["params"]["_meta"]["stepfold/idempotencyKey"].clone());
                self.called.send(()).unwrap();
                let _ = self.gate.lock().unwrap().recv();
                json!({"content": [{"type": "text", "text": "one tea"}]})
            }
            _ if message["id"].is_null() => return None,
            _ => {
                let error = json!({"code": -32601, "message": "unknown method"});
                return Some(json!({"jsonrpc": "2.0", "id": message["id"], "error": error}));
            }
        };
        Some(json!({"jsonrpc": "2.0", "id": message["id"], "result": result}))
    }
}

/// The call is made again where it may be, and then under the same idempotency key; else its outcome is unknown.
#[test]
fn a_command_that_is_killed_in_a_call_over_http() {
    for (rule, said, calls) in [
        ("effect = \"at_most_once\"", "outcome unknown: c1 shop_order(what=\"tea\")", 1),
        ("effect = \"pure\"", "c1: one tea", 2),
        ("trust_hints = true", "c1: one tea", 2),
        // What a server claims that is not trusted does not count.
        ("", "outcome unknown: c1 shop_order(what=\"tea\")", 1),
    ] {
        let (shop, url, under_way, go_on) = Shop::start();
        let room =
            Room::new("", "user: tea\nassistant: > c1 shop_order(what=\"tea\")\nassistant: Ordered.\n");
        let agent = format!("model = \"script:a.script\"\n\n[mcp.shop]\nurl = \"{url}\"\n{rule}\n");
        fs::write(room.path("a.toml"), agent).unwrap();
        let mut child = room.command("run a.toml tea --session s").spawn().unwrap();
        under_way.recv().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        // One for the call of the killed one, and one for each that comes.
        for _ in 0..3 {
            go_on.send(()).unwrap();
        }
        let resumed = room.say("resume a.toml --session s", "");
        assert!(resumed.starts_with("Ordered.\n") && resumed.contains(said), "{rule}: {resumed}");
        let made = shop.calls.lock().unwrap();
        assert_eq!(made.len(), calls, "{rule}: {made:?}");
        assert!(made[0].is_string() && made.iter().all(|key| *key == made[0]), "{rule}: {made:?}");
        // It has ended: nothing is left to resume.
        assert!(room.say("resume a.toml --session s", "").contains("exit"), "{rule}");
    }
}
