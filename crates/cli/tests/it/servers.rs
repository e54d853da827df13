//! Servers that are tools: the one asked is on this machine, and hosts that the file does not name are refused.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::thread;

use expect_test::expect;

use crate::room::Room;

/// A server that answers with what it was asked; `/away` sends elsewhere, `/big` says much, `/bad` fails.
struct Server {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn start(elsewhere: Option<SocketAddr>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let seen = Arc::clone(&asked);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let (mut head, mut length) = (String::new(), 0);
                loop {
                    let mut line = String::new();
                    reader.read_line(&mut line).unwrap();
                    if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap();
                    }
                    if line.to_ascii_lowercase().starts_with("x-key:") || head.is_empty() {
                        head.push_str(line.trim());
                        head.push(' ');
                    }
                    if line.trim().is_empty() {
                        break;
                    }
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                let head = head.replace(" HTTP/1.1", "");
                let said = format!("{}{}", head, String::from_utf8(body).unwrap()).trim().to_owned();
                seen.lock().unwrap().push(said.clone());
                let (status, more, body) = match said.split(' ').nth(1).unwrap() {
                    "/away" => {
                        ("302 Found", format!("location: http://{}/x\r\n", elsewhere.unwrap()), String::new())
                    }
                    "/big" => ("200 OK", String::new(), "x".repeat(5000)),
                    "/bad" => ("404 Not Found", String::new(), "no such area".to_owned()),
                    _ => ("200 OK", String::new(), said.clone()),
                };
                let length = body.len();
                // A reader that has enough leaves.
                let _ = write!(
                    stream,
                    "HTTP/1.1 {status}\r\n{more}content-length: {length}\r\nconnection: close\r\n\r\n{body}"
                );
            }
        });
        Server { address, asked }
    }
}

fn check(server: &Server, http: &str, call: &str, expect: expect_test::Expect) {
    let http = http.replace("HOST", &server.address.to_string());
    let agent = format!(
        "[tools.t]\ndescription = \"A tool.\"\neffect = \"pure\"\n\
         parameters = {{ properties = {{ id = {{}}, q = {{}}, url = {{}} }} }}\nhttp = {{ {http} }}"
    );
    let room = Room::new(&agent, &format!("assistant: > c1 {call}\nassistant: Well."));
    let said = room.say("run a.toml -s s1 go", "").replace(&server.address.to_string(), "HOST");
    let result: Vec<&str> = said.lines().filter(|line| line.starts_with("|   c1")).collect();
    expect.assert_eq(result.first().unwrap_or_else(|| panic!("{said}")));
}

#[test]
fn arguments_are_the_path_the_query_or_the_body() {
    let server = Server::start(None);
    let hosts = "hosts = [\"HOST\"]";
    check(
        &server,
        &format!("url = \"http://HOST/areas/{{id}}\", {hosts}"),
        r#"t(id="a/../b", q="x y")"#,
        expect!["|   c1: GET /areas/a%2F..%2Fb?q=x+y"],
    );
    check(
        &server,
        &format!("url = \"http://HOST/areas\", method = \"POST\", {hosts}"),
        "t(id=3)",
        expect![[r#"|   c1: POST /areas {"id":3}"#]],
    );
    check(
        &server,
        &format!("url = \"http://HOST/areas\", headers_from_environment = {{ x-key = \"SECRET\" }}, {hosts}"),
        "t()",
        expect!["|   c1: GET /areas x-key: hush"],
    );
}

#[test]
fn only_hosts_that_are_named_are_asked() {
    let elsewhere = Server::start(None);
    let server = Server::start(Some(elsewhere.address));
    let port = elsewhere.address.port();
    let any = r#"url = "{url}", hosts = ["HOST"]"#;
    let url = |path: &str| format!("t(url=\"http://127.0.0.1:{port}{path}\")");
    check(&server, any, &format!("t(url=\"http://{}/ok\")", server.address), expect!["|   c1: GET /ok"]);
    check(
        &server,
        any,
        "t(url=\"http://example.org/x\")",
        expect!["|   c1!: host `example.org` not allowed; allowed: HOST"],
    );
    check(
        &server,
        any,
        "t(url=\"file:///etc/passwd\")",
        expect!["|   c1!: invalid scheme `file`: expected http or https"],
    );
    check(
        &server,
        any,
        &url("/x").replace(&format!(":{port}"), ""),
        expect!["|   c1!: host `127.0.0.1` not allowed; allowed: HOST"],
    );
    let away = format!("url = \"http://HOST/away\", hosts = [\"{}\"]", server.address);
    let room = Room::new(
        &format!(
            "[tools.t]\ndescription = \"A tool.\"\nhttp = {{ {} }}",
            away.replace("HOST", &server.address.to_string())
        ),
        "assistant: > c1 t()\nassistant: Well.",
    );
    let text = room.say("run a.toml -s s1 go", "");
    assert!(text.contains(&format!("redirect rejected: host `127.0.0.1:{port}` not allowed")), "{text}");
    assert!(elsewhere.asked.lock().unwrap().is_empty(), "the other host got no request");
}

#[test]
fn answers_are_bounded_and_failures_told() {
    let server = Server::start(None);
    check(
        &server,
        "url = \"http://HOST/big\", output_bytes = 1000, hosts = [\"HOST\"]",
        "t()",
        expect!["|   c1!: response too large: more than 1000 bytes; request less"],
    );
    check(
        &server,
        "url = \"http://HOST/bad\", hosts = [\"HOST\"]",
        "t()",
        expect!["|   c1!: server error 404 Not Found: no such area"],
    );
}
