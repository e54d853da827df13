//! `--keys`: a store whose content is sealed, by keys in a file and by those of a program.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use expect_test::expect;

use crate::room::Room;

const FILE: &str = r#"
[file]
path = "ring.json"
wrapping_keys = [{ file = "wrapping.key" }]
"#;

/// A program that has each key in a file of its own.
const PROGRAM: &str = r#"#!/bin/sh
read -r line
field() { printf '%s' "$line" | sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p"; }
held="held-$(field app)-$(field user)"
case "$(field operation)" in
    destroy) if rm "$held" 2>&-; then echo '{"destroyed":true}'; else echo '{"destroyed":false}'; fi; exit ;;
    make) [ -e "$held" ] || field key > "$held" ;;
esac
if [ -e "$held" ]; then echo "{\"key\":\"$(cat "$held")\"}"; else echo '{"key":null}'; fi
"#;

fn private(room: &Room, name: &str, text: &str) {
    room.write(name, text);
    fs::set_permissions(room.path(name), fs::Permissions::from_mode(0o600)).unwrap();
}

fn with_file() -> Room {
    let room = Room::new("", "assistant: noted\n");
    room.write("keys.toml", FILE);
    private(&room, "wrapping.key", "0123456789abcdef0123456789abcdef");
    room
}

fn with_program(program: &str) -> Room {
    let room = Room::new("", "assistant: noted\n");
    room.write("keys.toml", "[program]\nname = \"p\"\nargv = [\"./ring\"]\ntimeout_seconds = 1\n");
    room.write("ring", program);
    fs::set_permissions(room.path("ring"), fs::Permissions::from_mode(0o700)).unwrap();
    room
}

fn is_in_file(room: &Room, name: &str, text: &str) -> bool {
    let bytes = fs::read(room.path(name)).unwrap();
    bytes.windows(text.len()).any(|part| part == text.as_bytes())
}

/// Seals, and erases a user: a backup from before cannot be opened with the ring of after it.
fn check_ring(room: &Room) {
    const KEYED: &str = "--store s.db --keys keys.toml";
    room.say(&format!("run a.toml -s s1 {KEYED} 555-0199"), "");
    assert!(!is_in_file(room, "s.db", "555-0199"));
    let log = room.say(&format!("inspect a.toml -s s1 {KEYED}"), "");
    assert!(log.contains("555-0199"), "{log}");
    let log = room.say("inspect a.toml -s s1 --store s.db", "");
    assert!(log.contains("content is sealed: the store was opened without its key ring"), "{log}");
    assert!(log.contains("exit 1"), "{log}");
    let verified = room.json("verify a.toml --store s.db --json");
    assert_eq!(verified["whole"], true, "{verified}");
    let said = room.say("erase a.toml --everything --reason mail --store s.db", "");
    assert!(said.contains("nothing was erased: open it with the ring") && said.contains("exit 1"), "{said}");

    fs::copy(room.path("s.db"), room.path("backup.db")).unwrap();
    room.say(&format!("erase a.toml --everything --reason mail {KEYED}"), "");
    let log = room.say("inspect a.toml -s s1 --store backup.db --keys keys.toml", "");
    assert!(log.contains("content of a/local is sealed: its key was destroyed"), "{log}");
    let verified = room.json("verify a.toml --store backup.db --json");
    assert_eq!(verified["whole"], true, "{verified}");
    room.say(&format!("run a.toml -s s2 {KEYED} hello"), "");
    let log = room.say(&format!("inspect a.toml -s s2 {KEYED}"), "");
    assert!(log.contains("hello"), "{log}");
}

#[test]
fn keys_in_a_file_seal_a_store() {
    check_ring(&with_file());
}

#[test]
fn keys_of_a_program_seal_a_store() {
    check_ring(&with_program(PROGRAM));
}

/// Over a database the same, with a dump as the backup; and its ring is rotated.
#[tokio::test]
async fn keys_seal_a_database() {
    let Some(server) = crate::postgres::server() else { return };
    let (url, room) = (server.database("keys").await, with_file());
    let keyed = format!("--store {url} --keys keys.toml");
    room.say(&format!("run a.toml -s s1 {keyed} 555-0199"), "");
    room.say(&format!("run a.toml -s s1 --user ada {keyed} 555-0200"), "");
    server.run("keys", "CHECKPOINT").await;
    let (dump, files) = (room.path("dump.sql"), server.all_files());
    server.dump("keys", &dump);
    for (text, is_found) in [("555-0199", false), ("555-0200", false), ("ada", true)] {
        let found = Command::new("grep").args(["-rqF", text]).args([&dump, &files]).status().unwrap();
        assert_eq!(found.success(), is_found, "{text}");
    }
    let log = room.say(&format!("inspect a.toml -s s1 {keyed}"), "");
    assert!(log.contains("555-0199"), "{log}");
    let log = room.say(&format!("inspect a.toml -s s1 --store {url}"), "");
    assert!(log.contains("content is sealed: the store was opened without its key ring"), "{log}");
    let said = room.say(&format!("run a.toml -s s1 --store {url} more"), "");
    assert!(said.contains("content is sealed") && said.contains("exit 1"), "{said}");
    let verified = room.json(&format!("verify a.toml --store {url} --json"));
    assert_eq!(verified["whole"], true, "{verified}");

    room.say(&format!("erase a.toml --everything --reason mail {keyed}"), "");
    private(&room, "new.key", "another key of thirty-two bytes.");
    let lists = [r#"{ file = "new.key" }, { file = "wrapping.key" }"#, r#"{ file = "new.key" }"#];
    for list in lists {
        room.write("keys.toml", &format!("[file]\npath = \"ring.json\"\nwrapping_keys = [{list}]\n"));
        let said = room.say("keys rotate keys.toml", "");
        assert!(said.starts_with("the first wrapping key wraps the keys of "), "{said}");
        let log = room.say(&format!("inspect a.toml -s s1 --user ada {keyed}"), "");
        assert!(log.contains("555-0200"), "{log}");
    }
    server.restore("keys_backup", &dump).await;
    let backup = format!("--store {} --keys keys.toml", server.url_of("keys_backup"));
    let log = room.say(&format!("inspect a.toml -s s1 {backup}"), "");
    assert!(log.contains("content of a/local is sealed: its key was destroyed"), "{log}");
    let log = room.say(&format!("inspect a.toml -s s1 --user ada {backup}"), "");
    assert!(log.contains("555-0200"), "{log}");
}

#[test]
fn a_wrapping_key_is_rotated() {
    let room = with_file();
    room.say("run a.toml -s s1 --store s.db --keys keys.toml 555-0199", "");
    private(&room, "new.key", "another key of thirty-two bytes.");
    let keys = |list: &str| {
        room.write("keys.toml", &format!("[file]\npath = \"ring.json\"\nwrapping_keys = {list}\n"));
    };
    keys(r#"[{ file = "new.key" }, { file = "wrapping.key" }]"#);
    let said = room.say("keys rotate keys.toml", "");
    // The user's, and that of the stored agent files.
    assert_eq!(said, "the first wrapping key wraps the keys of 2 users\n");
    keys(r#"[{ file = "new.key" }]"#);
    let log = room.say("inspect a.toml -s s1 --store s.db --keys keys.toml", "");
    assert!(log.contains("555-0199"), "{log}");
    keys(r#"[{ file = "wrapping.key" }]"#);
    let log = room.say("inspect a.toml -s s1 --store s.db --keys keys.toml", "");
    assert!(log.contains("has wrapped its keys; add it to the others"), "{log}");
    keys(r#"[{ environment = "SECRET" }]"#);
    let log = room.say("inspect a.toml -s s1 --store s.db --keys keys.toml", "");
    assert!(log.contains("invalid wrapping key: expected at least 32 random bytes"), "{log}");
}

#[test]
fn a_faulty_ring_is_an_error() {
    let room = with_file();
    fs::set_permissions(room.path("wrapping.key"), fs::Permissions::from_mode(0o644)).unwrap();
    room.check(
        "sessions a.toml --store s.db --keys keys.toml",
        expect![[r#"
        | error: wrapping key wrapping.key could not be read: others can read it; set its mode to 600
        exit 2
    "#]],
    );
    room.write("keys.toml", "[program]\nname = \"p\"\n[file]\npath = \"x\"\n");
    let said = room.say("sessions a.toml --store s.db --keys keys.toml", "");
    assert!(said.contains("missing field") && said.contains("exit 2"), "{said}");
    for (program, why) in [
        ("#!/bin/sh\nsleep 9\n", "the program of the ring has not answered for 1s"),
        ("#!/bin/sh\nhead -c 9999 /dev/zero\n", "program output too large"),
        ("#!/bin/sh\necho '{\"key\":\"12\"}'\n", "expected `key` with 80 hexadecimal digits"),
        ("#!/bin/sh\necho no\n", "invalid answer of the program: expected JSON"),
        ("#!/bin/sh\nexit 3\n", "the program failed"),
    ] {
        let said = with_program(program).say("run a.toml -s s1 --store s.db --keys keys.toml hello", "");
        assert!(said.contains(why) && said.contains("exit 1"), "{said}");
    }
}

/// Lists need no key: what they show of a sealed session is not sealed.
#[test]
fn sessions_are_listed_without_the_ring() {
    let room = with_file();
    room.say("run a.toml -s s1 --store s.db --keys keys.toml 555-0199", "");
    let listed = room.say("sessions a.toml --store s.db", "");
    assert!(listed.starts_with("s1  ") && listed.ends_with(", sealed\n"), "{listed}");
    let sessions = room.json("sessions a.toml --store s.db --json");
    assert_eq!((&sessions[0]["session"], &sessions[0]["status"]), (&"s1".into(), &"sealed".into()));
    assert!(sessions[0]["version"].as_u64() > Some(0), "{sessions}");
    let keyed = room.say("sessions a.toml --store s.db --keys keys.toml", "");
    assert!(!keyed.contains("sealed"), "{keyed}");
    // A backup of an erased user, whose key is gone.
    fs::copy(room.path("s.db"), room.path("backup.db")).unwrap();
    room.say("erase a.toml --everything --reason mail --store s.db --keys keys.toml", "");
    let listed = room.say("sessions a.toml --store backup.db --keys keys.toml", "");
    assert!(listed.ends_with(", sealed\n"), "{listed}");
}

/// A missing ring of a store that has one is not made again: it would have none of its keys.
#[test]
fn a_missing_ring_is_an_error() {
    let room = with_file();
    room.say("run a.toml -s s1 --store s.db --keys keys.toml 555-0199", "");
    fs::rename(room.path("ring.json"), room.path("away")).unwrap();
    for line in [
        "run a.toml -s s1 --store s.db --keys keys.toml hello",
        "sessions a.toml --store s.db --keys keys.toml",
        "erase a.toml --everything --reason mail --store s.db --keys keys.toml",
    ] {
        let said = room.say(line, "");
        let has_words = said.contains("key ring ring.json not found: the store has its keys in the ring `");
        assert!(has_words && said.contains("restore it, or correct its path in keys.toml"), "{said}");
        assert!(said.contains("exit 2") && !room.path("ring.json").exists(), "{said}");
    }
    let said = room.say("keys rotate keys.toml", "");
    assert!(said.contains("key ring ring.json not found") && !room.path("ring.json").exists(), "{said}");
    fs::rename(room.path("away"), room.path("ring.json")).unwrap();
    let log = room.say("inspect a.toml -s s1 --store s.db --keys keys.toml", "");
    assert!(log.contains("555-0199"), "{log}");
}

#[test]
fn a_user_of_whom_only_the_key_is_left_is_erased() {
    const KEYED: &str = "--store s.db --keys keys.toml";
    let room = with_file();
    room.say(&format!("run a.toml -s s1 {KEYED} 555-0199"), "");
    room.say("erase a.toml -s s1 --reason mail --store s.db", "");
    room.check(
        &format!("erase a.toml --everything --reason mail --dry-run {KEYED}"),
        expect![[r#"
            | 0 sessions, 0 events, 0 values, the key of the user: would be erased; nothing was changed
        "#]],
    );
    room.check(
        &format!("erase a.toml --everything --reason mail --no-vacuum {KEYED}"),
        expect![[r#"
            | 0 sessions, 0 events, 0 values, the key of the user: erased
        "#]],
    );
    let again = room.say(&format!("erase a.toml --everything --reason mail {KEYED}"), "");
    assert!(again.contains("nothing found"), "{again}");
}
