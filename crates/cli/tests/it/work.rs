//! A worker: brings runs of all users to their end, but for those that would fail again.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;

use expect_test::expect;

use crate::room::Room;

#[test]
fn a_run_that_would_fail_again_is_left_to_a_person() {
    // The model refuses the request.
    let room = Room::new("", "");
    for user in ["ada", "bob"] {
        assert!(room.say(&format!("run a.toml --user {user} -s s1 hello"), "").contains("exit 1"));
    }
    room.write("a.script", "assistant: hi");
    room.check("work a.toml --once --parallel 1", expect![""]);
    assert!(!room.say("inspect a.toml --user bob -s s1", "").contains("assistant: hi"));
    room.check(
        "work a.toml --list",
        expect![[r"
        | 0 sessions without a worker, 0 of them blocked
    "]],
    );
    // Resumed by hand, it continues.
    room.say("resume a.toml --user bob -s s1", "");
    assert!(room.say("inspect a.toml --user bob -s s1", "").contains("assistant: hi"));
}

#[test]
fn it_is_about_all_sessions() {
    let room = Room::new("", "");
    room.check(
        "work a.toml -s s1",
        expect![[r"
            | error: `work` is about all sessions: leave `--session` out
            exit 2
        "]],
    );
}

#[test]
fn its_metrics_are_served() {
    let room = Room::new("", "");
    let mut worker = room.command("work a.toml --metrics 127.0.0.1:0").spawn().unwrap();
    let mut told = String::new();
    let mut notes = BufReader::new(worker.stderr.take().unwrap());
    notes.read_line(&mut told).unwrap();
    let address = told.trim().strip_prefix("metrics at http://").and_then(|it| it.strip_suffix("/metrics"));
    let address = address.unwrap_or_else(|| panic!("{told}"));
    let ask = |line: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "{line} HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        let mut told = String::new();
        stream.read_to_string(&mut told).unwrap();
        told
    };
    loop {
        let told = ask("GET /metrics");
        assert!(told.starts_with("HTTP/1.1 200 OK\r\n"), "{told}");
        assert!(told.contains("content-type: application/openmetrics-text; version=1.0.0"), "{told}");
        // Once it has looked.
        if told.contains("stepfold_blocked_sessions{app=\"a\"} 0\n") {
            break;
        }
    }
    assert!(ask("POST /metrics").starts_with("HTTP/1.1 405"));
    assert!(ask("GET /api/v1/apps").starts_with("HTTP/1.1 404"));
    let used = room.say(&format!("work a.toml --metrics {address}"), "");
    assert!(used.contains("could not listen at"), "{used}");
    worker.kill().unwrap();
    worker.wait().unwrap();
}
