//! `stepfold serve` is killed again and again while a hundred readers follow: each has each commit once, in order.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Child;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use serde_json::Value;

use crate::room::Room;

/// Each with a session, and readers below the limit of streams of one user.
const USERS: [&str; 2] = ["ada", "bob"];
const READERS_OF_EACH: usize = 50;
const KILLS: usize = 4;
pub(crate) const SESSION: &str = "/api/v1/apps/a/sessions/s1";

/// How often the server has started: who lost it waits for the next time.
#[derive(Default)]
struct Starts {
    count: Mutex<usize>,
    changed: Condvar,
}

impl Starts {
    fn add(&self) {
        *self.count.lock().unwrap() += 1;
        self.changed.notify_all();
    }

    /// Waits for more than this many; how many there are.
    fn after(&self, known: usize) -> usize {
        *self.changed.wait_while(self.count.lock().unwrap(), |count| *count <= known).unwrap()
    }
}

pub(crate) struct Site {
    pub(crate) room: Room,
    address: String,
    tokens: Vec<String>,
    starts: Starts,
}

impl Site {
    pub(crate) fn new(room: Room) -> Self {
        let (mut tokens, mut lines) = (Vec::new(), Vec::new());
        for user in USERS {
            let made = room.command(&format!("--json token --user {user} --role act")).output().unwrap();
            let made: Value = serde_json::from_slice(&made.stdout).unwrap();
            tokens.push(made["token"].as_str().unwrap().to_owned());
            lines.push(made["line"].as_str().unwrap().to_owned());
        }
        room.write("tokens", &lines.join("\n"));
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        Site { room, address, tokens, starts: Starts::default() }
    }

    pub(crate) fn start(&self) -> Child {
        self.start_with("")
    }

    /// Starts the server with more options.
    pub(crate) fn start_with(&self, options: &str) -> Child {
        let line = format!("--json serve a.toml --tokens tokens --bind {} {options}", self.address);
        let mut command = self.room.command(line.trim_end());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("\"apps\""), "{line}");
        self.starts.add();
        child
    }

    /// A request, of which the server may die; the answer, if there is a whole one.
    pub(crate) fn ask(&self, user: usize, request: &str, header: &str, body: &str) -> Option<(u16, Value)> {
        let mut stream = self.send(user, request, header, body)?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let (head, body) = text.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some((status, serde_json::from_str(body).unwrap_or(Value::Null)))
    }

    /// As HTTP/1.0: so the body is all that comes until the end.
    pub(crate) fn send(&self, user: usize, request: &str, header: &str, body: &str) -> Option<TcpStream> {
        let mut stream = TcpStream::connect(&self.address).ok()?;
        let (address, token, length) = (&self.address, &self.tokens[user], body.len());
        write!(
            stream,
            "{request} HTTP/1.0\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n{header}\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}",
        )
        .ok()?;
        Some(stream)
    }

    /// Reads as a browser's `EventSource` does, until the last reply; the versions of the commits.
    fn read(&self, user: usize) -> Vec<u64> {
        let (mut last, mut versions, mut known) = (None::<String>, Vec::new(), 0);
        loop {
            known = self.starts.after(known);
            if self.read_once(user, &mut last, &mut versions) {
                return versions;
            }
        }
    }

    /// Reads until the connection ends; whether the last reply came.
    fn read_once(&self, user: usize, last: &mut Option<String>, versions: &mut Vec<u64>) -> bool {
        let header = last.as_ref().map(|last| format!("last-event-id: {last}\r\n")).unwrap_or_default();
        let from = if last.is_some() { "" } else { "?after=0" };
        let Some(stream) = self.send(user, &format!("GET {SESSION}/live{from}"), &header, "") else {
            return false;
        };
        let (mut id, mut event) = (None, String::new());
        for line in BufReader::new(stream).lines() {
            let Ok(line) = line else { return false };
            if let Some(found) = line.strip_prefix("id: ") {
                id = Some(found.to_owned());
            } else if let Some(found) = line.strip_prefix("event: ") {
                found.clone_into(&mut event);
            } else if let Some(data) = line.strip_prefix("data: ")
                && event == "committed"
            {
                // Data that was cut in the middle is not an event: its empty line is missing.
                let Ok(data) = serde_json::from_str::<Value>(data) else { return false };
                versions.push(data["version"].as_u64().unwrap());
                if data.to_string().contains("goodbye") {
                    return true;
                }
            } else if line.is_empty() {
                *last = id.take().or_else(|| last.take());
            }
        }
        false
    }
}

#[test]
fn when_the_server_is_killed_each_reader_has_each_commit_once() {
    let script = format!("{}assistant: goodbye\n", "assistant: again\n".repeat(KILLS));
    let site = Arc::new(Site::new(Room::new("", &script)));
    let mut server = site.start();
    for user in 0..USERS.len() {
        assert_eq!(site.ask(user, "POST /api/v1/apps/a/sessions", "", r#"{"id":"s1"}"#).unwrap().0, 201);
    }
    let readers: Vec<_> = (0..USERS.len() * READERS_OF_EACH)
        .map(|number| {
            let (site, user) = (Arc::clone(&site), number % USERS.len());
            (user, thread::spawn(move || site.read(user)))
        })
        .collect();
    for round in 0..=KILLS {
        let (key, body) = (format!("idempotency-key: turn-{round}\r\n"), r#"{"text":"go on"}"#);
        let path = format!("POST {SESSION}/messages");
        for user in 0..USERS.len() {
            // Of some an answer comes, of others it does not: a client that does not know sends it again.
            match (round + user) % 2 {
                0 => assert_eq!(site.ask(user, &path, &key, body).unwrap().0, 202),
                _ => drop(site.send(user, &path, &key, body)),
            }
        }
        if round < KILLS {
            server.kill().unwrap();
            server.wait().unwrap();
            server = site.start();
        }
        for user in 0..USERS.len() {
            assert_eq!(site.ask(user, &path, &key, body).unwrap().0, 202);
        }
    }
    for (user, reader) in readers {
        let read = reader.join().unwrap();
        let newest =
            site.ask(user, &format!("GET {SESSION}"), "", "").unwrap().1["version"].as_u64().unwrap();
        assert_eq!(read, (1..=newest).collect::<Vec<u64>>());
    }
    server.kill().unwrap();
    server.wait().unwrap();
}
