//! Redaction as an agent file configures it.

use crate::room::Room;

const RULES: &str = "[redact]\nallow = [\"help@example.org\"]\n\n[redact.patterns]\nticket = \"T-[0-9]+\"\n";

#[test]
fn a_file_redacts_before_storing() {
    let room = Room::new(RULES, "assistant: I wrote to ada@example.org and help@example.org about T-17.\n");
    let said = room.say("run a.toml -s s1 --store s.db bob@example.org", "");
    assert!(said.contains("I wrote to [email] and help@example.org about [ticket]."), "{said}");
    let stored = std::fs::read_dir(room.path("")).unwrap();
    let files = stored.filter_map(|file| std::fs::read(file.unwrap().path()).ok());
    let is_clean = |bytes: &[u8]| !bytes.windows(3).any(|window| window == b"bob");
    assert!(files.filter(|bytes| bytes.starts_with(b"SQLite")).all(|bytes| is_clean(&bytes)));
    let shown = room.say("inspect a.toml -s s1 --store s.db", "");
    assert!(shown.contains("[email]") && !shown.contains("bob@"), "{shown}");
}

#[test]
fn a_fault_of_a_rule_has_its_line() {
    let room = Room::new("", "");
    room.write(
        "f.toml",
        "instructions = \"Hi.\"\n\n[redact]\ndata = []\n\n[redact.patterns]\nticket = \"(\"\n",
    );
    let said = room.say("check f.toml", "");
    assert!(said.contains("f.toml:7:1: invalid pattern `ticket`"), "{said}");
}
