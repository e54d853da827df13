//! A run that calls a server of tools over HTTP, and is killed in the call.

use std::fs;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::http_peer::{Response, serve};
use crate::room::Room;

/// A shop whose calls wait until the test lets them continue.
#[derive(Clone)]
struct Shop {
    calls: Arc<Mutex<Vec<Value>>>,
    called: Sender<()>,
    gate: Arc<Mutex<Receiver<()>>>,
}

impl Shop {
    /// Its URL; a message for each call that has started, and the sender that lets one continue.
    fn start() -> (Self, String, Receiver<()>, Sender<()>) {
        let ((called, under_way), (go_on, gate)) = (channel(), channel());
        let shop = Shop { calls: Arc::default(), called, gate: Arc::new(Mutex::new(gate)) };
        let serving = shop.clone();
        let url = serve(move |method, message| match method {
            "POST" => Response::rpc(message, serving.result(message)),
            _ => Response::Accepted,
        });
        (shop, url, under_way, go_on)
    }

    fn result(&self, message: &Value) -> Option<Value> {
        Some(match message["method"].as_str()? {
            "initialize" => json!({
                "protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "shop", "version": "1"},
            }),
            "tools/list" => json!({"tools": [{
                "name": "order",
                "inputSchema": {"type": "object", "properties": {"what": {"type": "string"}}},
                "annotations": {"idempotentHint": true},
            }]}),
            "tools/call" => {
                self.calls
                    .lock()
                    .unwrap()
                    .push(message["params"]["_meta"]["stepfold/idempotencyKey"].clone());
                self.called.send(()).unwrap();
                let _ = self.gate.lock().unwrap().recv();
                json!({"content": [{"type": "text", "text": "one tea"}]})
            }
            _ => return None,
        })
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
