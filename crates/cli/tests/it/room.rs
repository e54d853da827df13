//! A folder with an agent in it, and the command run there.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use expect_test::Expect;
use serde_json::Value;
use tempfile::TempDir;

/// A folder of a test's own. Sessions are in it too, where the data of a user is.
pub(crate) struct Room(TempDir);

impl Room {
    /// With an agent, `a.toml`, whose model says what the script says.
    pub(crate) fn new(agent: &str, script: &str) -> Self {
        let room = Room(tempfile::tempdir().unwrap());
        room.write("a.toml", &format!("model = \"script:a.script\"\n{agent}"));
        room.write("a.script", script);
        room
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    pub(crate) fn folder(&self) -> &Path {
        self.0.path()
    }

    /// The command with these words; single quotes hold words with spaces together.
    pub(crate) fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stepfold"));
        command
            .args(words(line))
            .current_dir(self.folder())
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("XDG_DATA_HOME", self.path("data"))
            .env("SECRET", "hush")
            .env("SHARED", "shown")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// What a command says when it reads `input`: what it prints, what it notes, how it ends if not well.
    pub(crate) fn say(&self, line: &str, input: &str) -> String {
        let mut child: Child = self.command(line).spawn().unwrap();
        // A command that reads nothing may be gone already.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        let output = child.wait_with_output().unwrap();
        let mut text = String::from_utf8(output.stdout).unwrap();
        let notes = String::from_utf8(output.stderr).unwrap();
        text.extend(notes.lines().map(|line| format!("| {line}\n")));
        if !output.status.success() {
            writeln!(text, "exit {}", output.status.code().unwrap()).unwrap();
        }
        without_digests(&text.replace(&*self.folder().to_string_lossy(), "ROOM"))
    }

    /// The object, or the first of them, that a command prints for programs.
    pub(crate) fn json(&self, line: &str) -> Value {
        json_lines(&self.say(line, "")).remove(0)
    }

    /// What a command says, prints and notes as they come.
    pub(crate) fn say_in_order(&self, line: &str) -> String {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let mut command = self.command(line);
        command.stdin(Stdio::null()).stdout(writer.try_clone().unwrap()).stderr(writer);
        let mut child = command.spawn().unwrap();
        // The command holds the ends to write to.
        drop(command);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        child.wait().unwrap();
        without_digests(&text)
    }

    pub(crate) fn check(&self, line: &str, expect: Expect) {
        expect.assert_eq(&self.say(line, ""));
    }

    pub(crate) fn check_with(&self, line: &str, input: &str, expect: Expect) {
        expect.assert_eq(&self.say(line, input));
    }
}

/// The objects among the lines of what a command says.
pub(crate) fn json_lines(said: &str) -> Vec<Value> {
    said.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Ids of requests, and heads of sessions, have a digest that differs from run to run.
pub(crate) fn without_digests(text: &str) -> String {
    without_digests_after(&without_digests_after(text, '#', 16), ':', 64)
}

fn without_digests_after(text: &str, mark: char, digits: usize) -> String {
    let mut parts = text.split(mark);
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let is_digest =
            part.len() >= digits && part.bytes().take(digits).all(|byte| byte.is_ascii_hexdigit());
        plain.push(mark);
        plain.push_str(if is_digest { "DIGEST" } else { "" });
        plain.push_str(if is_digest { &part[digits..] } else { part });
    }
    plain
}

/// The names of processes in claims, and until when these hold, differ from run to run.
pub(crate) fn without_workers(text: &str) -> String {
    let mut words: Vec<String> = text.split(' ').map(str::to_owned).collect();
    for place in 0..words.len() {
        if words[place].starts_with("process-") || words[place].starts_with("|\u{20}process-") {
            "PROCESS".clone_into(&mut words[place]);
        }
        if place > 0 && words[place - 1] == "until" {
            "THEN".clone_into(&mut words[place]);
        }
    }
    words.join(" ")
}

fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut is_quoted = false;
    for letter in line.chars() {
        match letter {
            '\'' => is_quoted = !is_quoted,
            ' ' if !is_quoted => words.push(String::new()),
            letter => words.last_mut().unwrap().push(letter),
        }
    }
    words
}
