//! What is wrong with a request ends with the exit status 2, and nothing was done; what fails, with 1 and the name of the
//! file that a person has to look at.

use std::fs;
use std::process::Stdio;

use expect_test::expect;

use crate::room::Room;

const AGENT: &str = "[state.count]\ntype = \"integer\"";
const SCRIPT: &str = "assistant: One.\nassistant: Two.";

#[test]
fn a_wrong_request_ends_with_two() {
    let room = Room::new(AGENT, SCRIPT);
    room.say("run a.toml -s s1 hello", "");
    let wrong = [
        "",
        "runs a.toml",
        "run a.toml -s 'a\u{200b}b' hello",
        "inspect a.toml --user ''",
        "fork a.toml -s s1 --at 99",
        "fork a.toml -s s1 --to s1",
        "rewind a.toml -s s1 99",
        "run a.toml -s s2 --set other=1 hello",
        "run a.toml -s s2 --set count=many hello",
        "run a.toml --cassette none --mode replay hello",
        "run a.toml --model script:none hello",
        "run a.toml --model nobody:x hello",
        "run a.toml --otlp nowhere hello",
        "sessions a.toml --limit 0",
        "inspect a.toml --at 99",
        "inspect a.toml -s nobody",
        "resume a.toml",
        "resume a.toml --approve c1",
        "state get a.toml other",
        "state set a.toml other=1",
        "state set a.toml count",
        "delete a.toml",
        "label set a.toml",
        "label remove a.toml x",
        "forks a.toml -s nobody",
        "compare a.toml s1 nobody",
        "inspect a.toml --at nowhere",
        "rewind a.toml -s s1 nowhere",
        "draw a.toml",
        "check none.toml",
    ];
    for line in wrong {
        let said = room.say(line, "");
        assert!(said.ends_with("exit 2\n"), "{line}: {said}");
    }
    // A session that a wrong request made would be in the way.
    let sessions = room.say("sessions a.toml --json", "");
    assert_eq!(sessions.matches("\"session\"").count(), 1, "{sessions}");
    let said = room.say("--json rewind a.toml -s s1 99", "");
    assert_eq!(
        said,
        "{\"error\":\"version 99 of session a/local/s1 not found; available: 0 to 2\"}\nexit 2\n"
    );
    let said = room.say("--json sessions a.toml --limit 0", "");
    assert!(said.starts_with("{\"error\":") && said.ends_with("exit 2\n"), "{said}");
}

#[test]
fn a_question_that_is_not_text_is_refused() {
    let room = Room::new("", SCRIPT);
    let mut child = room.command("run a.toml -s s1 -").spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"caf\xe9\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let notes = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{notes}");
    assert!(notes.contains("question could not be read from standard input"), "{notes}");
}

/// A mistyped `--store` is told, and makes no file, whatever the command; `run` and `chat` begin a store.
#[test]
fn a_store_that_does_not_exist_is_named_and_not_created() {
    let room = Room::new("", SCRIPT);
    for line in [
        "sessions a.toml",
        "inspect a.toml",
        "state get a.toml",
        "state set a.toml count=1",
        "resume a.toml",
        "replay a.toml",
        "fork a.toml",
        "forks a.toml",
        "rewind a.toml 0",
        "delete a.toml -s s1",
        "verify a.toml",
        "label list a.toml",
        "compare a.toml s1 s2",
        "run a.toml --continue hello",
    ] {
        let said = room.say(&format!("{line} --store typo/s.db"), "");
        assert!(said.contains("`typo/s.db`") && said.ends_with("exit 2\n"), "{line}: {said}");
        let mut command = room.command(line);
        let output =
            command.env("STEPFOLD_STORE", room.path("typo.db")).stdin(Stdio::null()).output().unwrap();
        let notes = String::from_utf8(output.stderr).unwrap();
        assert!(notes.contains("typo.db") && output.status.code() == Some(2), "{line}: {notes}");
    }
    assert!(!room.path("typo").exists() && !room.path("typo.db").exists());
    // Commands that begin a store do so in a folder that is there.
    for line in ["run a.toml -s s1 hello", "chat a.toml -s s1", "serve a.toml --bind 127.0.0.1:0"] {
        let expected = "| error: session store new/s.db could not be created: folder new not found; create it, or correct \
                        `--store`\nexit 2\n";
        assert_eq!(room.say(&format!("{line} --store new/s.db"), ""), expected, "{line}");
        assert!(!room.path("new").exists());
    }
    fs::create_dir(room.path("new")).unwrap();
    let said = room.say("run a.toml -s s1 --store new/s.db hello", "");
    assert!(said.starts_with("One.") && room.path("new/s.db").exists(), "{said}");
}

/// Where no store was named and none exists, there are no sessions yet.
#[test]
fn a_fresh_install_has_no_sessions_and_says_how_to_begin_one() {
    let room = Room::new("", SCRIPT);
    room.check(
        "sessions a.toml",
        expect![[r#"
        | agent a has no session of user local yet; `stepfold run` begins one
    "#]],
    );
    for line in ["inspect a.toml", "state get a.toml", "resume a.toml", "fork a.toml", "label list a.toml"] {
        let said = room.say(line, "");
        assert!(said.contains("`stepfold run` begins one") && said.ends_with("exit 2\n"), "{line}: {said}");
    }
    assert!(!room.path("data").exists());
}

#[test]
fn a_file_that_is_no_store_is_named() {
    let room = Room::new("", SCRIPT);
    room.write("text.db", "This is no database, however long it may be.");
    let said = room.say("sessions a.toml --store text.db", "");
    assert!(said.contains("text.db") && said.ends_with("exit 1\n"), "{said}");
    assert!(!said.contains("commit"), "{said}");
}

/// A database of another program is not one to make tables in.
#[test]
fn a_foreign_database_is_not_changed() {
    let room = Room::new("", SCRIPT);
    let path = room.path("other.db");
    rusqlite::Connection::open(&path).unwrap().execute_batch("CREATE TABLE notes (text TEXT);").unwrap();
    let before = fs::read(&path).unwrap();
    for line in ["run a.toml -s s1 hello", "chat a.toml -s s1", "sessions a.toml"] {
        let said = room.say(&format!("{line} --store other.db"), "hello\n");
        assert!(
            said.contains("the database has no stepfold tables") && said.ends_with("exit 2\n"),
            "{line}: {said}"
        );
    }
    assert!(fs::read(&path).unwrap() == before && !room.path("other.db-wal").exists());
}

#[test]
fn a_damaged_store_is_named_and_reading_says_nothing_of_commits() {
    let room = Room::new("", SCRIPT);
    room.say("run a.toml -s s1 hello", "");
    let path = room.path("data/stepfold/sessions.db");
    let mut bytes = fs::read(&path).unwrap();
    // All but the first page, which says that it is a database.
    bytes[4096..].fill(0x5a);
    fs::write(&path, bytes).unwrap();
    for line in ["sessions a.toml", "inspect a.toml -s s1", "state get a.toml -s s1"] {
        let said = room.say(line, "");
        assert!(said.contains("sessions.db") && said.ends_with("exit 1\n"), "{line}: {said}");
        assert!(!said.contains("commit"), "{line}: {said}");
    }
}

#[test]
fn files_are_checked_after_one_that_cannot_be_read() {
    let room = Room::new("", SCRIPT);
    room.write("empty.toml", "# Nothing yet.\n");
    room.check(
        "check none.toml empty.toml a.toml",
        expect![[r#"
            agent file none.toml could not be read: No such file or directory (os error 2)
            empty.toml:1:1: empty file: an agent has `instructions`, `tools` or a `model`, and a graph has `nodes`
            a.toml: ok
            exit 2
        "#]],
    );
}

/// A reader that closes the output early does not change what is done.
#[test]
fn a_reader_that_has_enough_is_no_failure() {
    let room = Room::new(
        "[tools.now]\nbuiltin = { name = \"clock\" }",
        "assistant: Wait. > c1 now()\nassistant: Now.",
    );
    for line in ["run a.toml -s s1 go", "sessions a.toml", "inspect a.toml", "--help"] {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut command = room.command(line);
        command.stdin(Stdio::null()).stdout(writer.try_clone().unwrap()).stderr(writer);
        drop(reader);
        let status = command.status().unwrap();
        assert_eq!(status.code(), Some(0), "{line}");
    }
    let said = room.say("inspect a.toml", "");
    assert!(said.contains("assistant: Now."), "the run came to its end: {said}");
}
