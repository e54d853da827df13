//! The command at a terminal: a person types, and what the screen shows is what counts.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::num::NonZeroU16;
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use expect_test::{Expect, expect};

use crate::room::Room;

const ROWS: u16 = 60;
const COLUMNS: u16 = 110;

/// How long the screen may take to show what a test waits for.
const PATIENCE: Duration = Duration::from_secs(60);

/// A terminal with a command in it.
pub(crate) struct Terminal {
    child: Child,
    keyboard: File,
    screen: Arc<Screen>,
    reader: JoinHandle<()>,
}

/// What the terminal shows; told whenever it changes.
struct Screen {
    shown: Mutex<vt100::Parser>,
    changed: Condvar,
}

impl Terminal {
    pub(crate) fn open(room: &Room, line: &str) -> Self {
        let (pty, other_end) = pty_process::blocking::open().unwrap();
        pty.resize(pty_process::Size::new(ROWS, COLUMNS)).unwrap();
        let mut command = room.command(line);
        command.env("TERM", "xterm-256color");
        // The command gets the only other end: when it is gone, there is nothing more to read.
        let child = pty_process::blocking::Command::from(command).spawn(other_end).unwrap();
        let keyboard = File::from(OwnedFd::from(pty));
        let (rows, columns) = (NonZeroU16::new(ROWS).unwrap(), NonZeroU16::new(COLUMNS).unwrap());
        let shown = Mutex::new(vt100::Parser::new(rows, columns, 0));
        let screen = Arc::new(Screen { shown, changed: Condvar::new() });
        let (mut output, watched) = (keyboard.try_clone().unwrap(), Arc::clone(&screen));
        let reader = thread::spawn(move || {
            let mut bytes = [0; 4096];
            // Linux gives an error, others an end, when the command is gone.
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                watched.shown.lock().unwrap().process(&bytes[..count]);
                watched.changed.notify_all();
            }
        });
        Terminal { child, keyboard, screen, reader }
    }

    /// Waits until what the screen shows ends in these words, but for spaces.
    pub(crate) fn until(&self, words: &str) -> &Self {
        self.until_shown(words, |shown| shown.trim_end().ends_with(words))
    }

    /// Waits until the screen shows these words, and a prompt at its end.
    pub(crate) fn until_prompt_after(&self, words: &str) -> &Self {
        self.until_shown(words, |shown| shown.contains(words) && shown.trim_end().ends_with("\n>"))
    }

    /// Waits until the last line is the wheel, turning for this.
    pub(crate) fn until_wheel(&self, what: &str) -> &Self {
        self.until_shown(what, |shown| {
            let last = shown.trim_end().lines().last().unwrap_or_default();
            last.contains(&format!(" {what} ")) && last.ends_with('s')
        })
    }

    pub(crate) fn until_shown(&self, words: &str, is_there: impl Fn(&str) -> bool) -> &Self {
        let shown = self.screen.shown.lock().unwrap();
        let is_missing = |shown: &mut vt100::Parser| !is_there(&shown.screen().contents());
        let (shown, waited) = self.screen.changed.wait_timeout_while(shown, PATIENCE, is_missing).unwrap();
        assert!(!waited.timed_out(), "no `{words}` at the end of\n{}", shown.screen().contents());
        drop(shown);
        self
    }

    /// Types this, and Enter.
    pub(crate) fn enter(&self, line: &str) -> &Self {
        self.press(&format!("{line}\r"))
    }

    pub(crate) fn press(&self, keys: &str) -> &Self {
        (&self.keyboard).write_all(keys.as_bytes()).unwrap();
        self
    }

    /// What the screen shows once the command has ended.
    pub(crate) fn check(mut self, status: i32, expect: Expect) {
        let ended = self.child.wait().unwrap();
        self.reader.join().unwrap();
        let shown = self.screen.shown.lock().unwrap().screen().contents();
        let shown = shown.lines().map(str::trim_end).collect::<Vec<_>>().join("\n") + "\n";
        expect.assert_eq(&without_times(&crate::room::without_digests(&shown)));
        assert_eq!(ended.code(), Some(status));
    }
}

/// The text with `TIME` in place of each duration behind a `·`.
fn without_times(shown: &str) -> String {
    let is_time = |part: &str| {
        let mut words = part.split(' ');
        let is_number = words.next().is_some_and(|number| number.parse::<f64>().is_ok());
        is_number && matches!(words.next(), Some("ms" | "s" | "min"))
    };
    let line = |line: &str| {
        let parts: Vec<&str> =
            line.split(" · ").map(|part| if is_time(part) { "TIME" } else { part }).collect();
        parts.join(" · ")
    };
    shown.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

const ASK: &str = "run it? [y]es, [n]o, [m]odify, [l]ater:";

const AGENT: &str = r#"
[state.paid]
type = "integer"
handler = "sum"
default = 0

[tools.pay]
description = "Pays a bill."
approval = "always"
parameters = { properties = { euro = { type = "integer" } }, required = ["euro"] }
outputs_to_state = { paid = { source = "euro" } }
command = { argv = ["cat"], output = "json" }

[tools.slow]
description = "Takes long."
command = { argv = ["sh", "-c", "read line < gate"] }
"#;

const SCRIPT: &str = "\
assistant: I pay. > p1 pay(euro=500)
assistant: It is paid.
assistant: > c1 slow()
assistant: Then not.
assistant: > p2 pay(euro=7)
assistant: That was all.
";

#[test]
fn a_chat_is_asked_interrupted_left_resumed_inspected_and_forked() {
    let room = Room::new(AGENT, SCRIPT);
    assert!(Command::new("mkfifo").arg(room.path("gate")).status().unwrap().success());

    let chat = Terminal::open(&room, "chat a.toml -s s1");
    chat.until("\n>").enter("pay the bill");
    chat.until(ASK).enter("m");
    chat.until("arguments as JSON:").enter(r#"{"euro": 5}"#);
    chat.until_prompt_after("It is paid.").enter("now the slow thing");
    // The gate opens when the tool does: the turn is in its middle then.
    let gate = std::fs::OpenOptions::new().write(true).open(room.path("gate")).unwrap();
    chat.until_wheel("slow").press("\x03");
    chat.until_prompt_after("cancelled").enter("then not");
    drop(gate);
    chat.until_prompt_after("● Then not.").enter("pay another one");
    chat.until(ASK).enter("l");
    chat.until_prompt_after("decide with").enter("/state");
    chat.until("paid = 5\n>").enter("/quit");
    chat.check(3, expect![[r#"
        session s1
        a line is a turn; /state shows the state, /session the session, /quit ends (as does Ctrl-D); Ctrl-C stops a
            turn
        > pay the bill
        ● I pay.
        ? decide about p1#DIGEST: pay {"euro":500}
        run it? [y]es, [n]o, [m]odify, [l]ater: m
        arguments as JSON: {"euro": 5}
          ✓ pay(euro=5) → {"euro": 5} · TIME
          ~ paid 0 -> 5
        ● It is paid.
          1 step · 1 call · TIME
        > now the slow thing
          - slow() → tool 'slow' cancelled while it ran; the effect may have happened · TIME · at most once
          1 step · 1 call · TIME
        the run ended: the run was cancelled
        > then not
        ● Then not.
          1 step · TIME
        > pay another one
        ? decide about p2#DIGEST: pay {"euro":7}
        run it? [y]es, [n]o, [m]odify, [l]ater: l
        the run waits for a decision, and is stored; decide with
          stepfold resume a.toml
        > /state
        paid = 5
        > /quit
    "#]]);

    resumed_inspected_and_forked(&room);
}

/// What another process does later.
fn resumed_inspected_and_forked(room: &Room) {
    let resume = Terminal::open(room, "resume a.toml");
    resume.until(ASK).enter("y");
    resume.check(
        0,
        expect![[r#"
            session s1
            continues with "pay another one", which waits in step 1 for a decision about p2#DIGEST
            ? decide about p2#DIGEST: pay {"euro":7}
            run it? [y]es, [n]o, [m]odify, [l]ater: y
              ✓ pay(euro=7) → {"euro": 7} · TIME
              ~ paid 5 -> 12
            ● That was all.
              1 step · 1 call · TIME
        "#]],
    );

    Terminal::open(room, "inspect a.toml").check(
        0,
        expect![[r#"
            session s1 of a/local, version 19
            head 19:DIGEST

                1  began     user:      pay the bill
                2  replied   assistant: I pay.   > p1 pay(euro=500)
                3  decided   p1#DIGEST approved with {"euro":5}
                4  started   starts p1
                5  answered  tool p1 pay: {"euro":5}
                                        [The arguments were changed before the call ran, to {"euro":5}]
                             ~ paid: 0 -> 5
                6  replied   assistant: It is paid.
                7  began     user:      now the slow thing
                8  replied   assistant: > c1 slow()
                9  started   starts c1
               10  answered  tool c1 slow!: tool 'slow' cancelled while it ran; the effect may have happened
               11  cancelled
               12  began     user:      then not
               13  replied   assistant: Then not.
               14  began     user:      pay another one
               15  replied   assistant: > p2 pay(euro=7)
               16  decided   p2#DIGEST approved
               17  started   starts p2
               18  answered  tool p2 pay: {"euro": 7}
                             ~ paid: 5 -> 12
               19  replied   assistant: That was all.

            paid = 12  (version 18, sum, the last of 2 writes)
        "#]],
    );
    Terminal::open(room, "fork a.toml --at 6 --to s2").check(
        0,
        expect![[r#"
        s2
        continue: stepfold chat a.toml --session s2
    "#]],
    );

    let forked = Terminal::open(room, "chat a.toml -s s2");
    forked.until("\n>").press("\x04");
    forked.check(0, expect![[r#"
        session s2
        a line is a turn; /state shows the state, /session the session, /quit ends (as does Ctrl-D); Ctrl-C stops a
            turn
        >
    "#]]);
}

const GRAPH: &str = r#"
model = "script:g.script"
limits.parallel = 1
edges = [
    { from = "START", to = "plan" },
    { from = "plan", to = "read", each = "tasks" },
    { from = "read", to = "say" },
]

[nodes.plan]
command = ["sh", "-c", "echo '{\"writes\": {\"tasks\": [{\"id\": 1, \"title\": \"one\"}, {\"id\": 2, \"title\": \"two\"}]}}'"]

[nodes.read]
command = ["sh", "-c", "test -e read || { touch read; exit; }; read line < gate; echo it is lost >&2; exit 3"]
tracked = true

[nodes.say.agent]
tools.publish = { description = "Publishes.", approval = "always", command = { argv = ["echo", "published"] } }
"#;

#[test]
fn a_graph_shows_how_far_it_is_and_asks() {
    let room = Room::new("", "");
    room.write("g.toml", GRAPH);
    room.write("g.script", "assistant: I publish. > p1 publish()\nassistant: It is out.");
    assert!(Command::new("mkfifo").arg(room.path("gate")).status().unwrap().success());

    let run = Terminal::open(&room, "run g.toml -s s1 go");
    let gate = std::fs::OpenOptions::new().write(true).open(room.path("gate")).unwrap();
    run.until_wheel("50 % read#1");
    drop(gate);
    run.until(ASK).enter("y");
    run.check(
        0,
        expect![[r#"
            session s1
            plan | starts
            plan | done
              task 1 pending: one
              task 2 pending: two
              0 % (0 of 2)
              task 1 running: one
              task 2 running: two
            read#0 | starts with {"id":1,"title":"one"}
            read#0 | done
              task 1 completed: one
              50 % (1 of 2)
            read#1 | starts with {"id":2,"title":"two"}
            read#1 | failed: the program failed (exit status: 3): it is lost
              task 2 failed: two
            say | starts
            ● I publish.
            ? decide about say/p1#DIGEST: publish {}
            run it? [y]es, [n]o, [m]odify, [l]ater: y
            say | starts
            say | > p1 publish()
            say |   p1: published
            ● It is out.
            say | done
              1 step · TIME
            continue: stepfold chat g.toml -c
        "#]],
    );
}
