//! `stepfold erase`: what it lists, what it erases, and what `verify` tells afterwards.

use expect_test::expect;
use serde_json::Value;

use crate::room::Room;

/// The object that a command prints, with all its digests.
fn json(room: &Room, line: &str) -> Value {
    let output = room.command(&format!("{line} --store s.db --json")).output().unwrap();
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{line}: {error}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// A store with a session of two turns, and another one.
fn room() -> Room {
    let room = Room::new("", "assistant: noted\nassistant: hello\n");
    room.say("run a.toml -s s1 --store s.db 555-0199", "");
    room.say("run a.toml -s s1 --store s.db hi", "");
    room.say("run a.toml -s s2 --store s.db hi", "");
    room
}

/// The bytes of the store's file.
fn is_in_file(room: &Room, text: &str) -> bool {
    let bytes = std::fs::read(room.path("s.db")).unwrap();
    bytes.windows(text.len()).any(|part| part == text.as_bytes())
}

#[test]
fn an_event_is_erased_and_the_rest_is_verified() {
    let room = room();
    let head = json(&room, "verify a.toml -s s1")["head"].as_str().unwrap().to_owned();
    let dry = json(&room, "erase a.toml -s s1 --event 1 --reason mail --dry-run");
    assert_eq!((&dry["events"], &dry["vacuumed"]), (&1.into(), &false.into()));
    assert!(is_in_file(&room, "555-0199"));
    let erased = json(&room, "erase a.toml -s s1 --event 1 --reason mail --id t1");
    expect![[r#"{"budgets":0,"cases":[],"dry_run":false,"events":1,"found":true,"id":"t1","key":false,"results":0,"sessions":["s1"],"spend":0,"user_keys":[],"vacuumed":true,"versions":[{"session":"s1","version":1}]}"#]]
        .assert_eq(&erased.to_string());
    assert!(!is_in_file(&room, "555-0199"));
    let verified = json(&room, &format!("verify a.toml -s s1 --head {head}"));
    assert_eq!((&verified["erased"], &verified["whole"]), (&1.into(), &true.into()));
    assert_eq!(verified["expected"]["contained"], true);
    let log = room.say("inspect a.toml -s s1 --store s.db", "");
    assert!(log.contains("[erased]") && !log.contains("555-0199"), "{log}");
}

#[test]
fn a_session_or_a_user_is_erased_as_a_whole() {
    let room = room();
    let erased = json(&room, "erase a.toml -s s1 --reason mail");
    assert_eq!((&erased["events"], &erased["sessions"][0]), (&4.into(), &"s1".into()));
    assert!(!is_in_file(&room, "555-0199"));
    let erased = json(&room, "erase a.toml --everything --reason mail");
    assert_eq!(erased["sessions"], serde_json::json!(["s2"]));
    // The stored version of the agent file is no user's.
    assert_eq!(json(&room, "verify a.toml")["sessions"], 1);
}

/// Cases in the folder of a server are copies of its sessions.
#[test]
fn copies_in_the_folder_of_experiments_are_erased() {
    let room = room();
    std::fs::create_dir_all(room.path("experiments/a/local")).unwrap();
    room.say("eval add a.toml experiments/a/local/mine.jsonl --newest 5 --store s.db", "");
    let cases = || std::fs::read_to_string(room.path("experiments/a/local/mine.jsonl")).unwrap();
    assert!(cases().contains("local/s1/1") && cases().contains("local/s2/1"));
    let erase = "erase a.toml -s s1 --reason mail --experiments experiments";
    let dry = room.say(&format!("{erase} --dry-run --store s.db"), "");
    assert!(dry.contains("case local/s1/1, in data set mine of local"), "{dry}");
    assert!(cases().contains("local/s1/1"));
    let erased = json(&room, erase);
    assert_eq!(erased["cases"][0]["case"], "local/s1/1", "{erased}");
    assert!(!cases().contains("local/s1/") && cases().contains("local/s2/1"));
    // Copies of a session that is gone are found too, as after a kill.
    json(&room, "erase a.toml -s s2 --reason mail");
    let gone = json(&room, "erase a.toml -s s2 --reason mail --experiments experiments");
    assert_eq!((&gone["cases"][0]["case"], &gone["found"]), (&"local/s2/1".into(), &true.into()), "{gone}");
    assert!(!cases().contains("local/s2/"));
    let said = room.say(&format!("{} --store s.db", erase.replace("s1", "s2")), "");
    assert!(said.contains("not found"), "{said}");
}

#[test]
fn nothing_is_erased_without_a_subject_and_a_reason() {
    let room = room();
    for (arguments, fault) in [
        ("erase a.toml --reason mail", "say what is to be erased"),
        ("erase a.toml -s s1", "--reason"),
        ("erase a.toml -s s1 --everything --reason mail", "--everything"),
        ("erase a.toml --event 1 --reason mail", "--session"),
    ] {
        let said = room.say(&format!("{arguments} --store s.db"), "");
        assert!(said.contains(fault), "{arguments}: {said}");
    }
    assert!(is_in_file(&room, "555-0199"));
}

#[test]
fn an_unknown_user_is_not_said_to_be_erased_and_erasures_are_listed() {
    let room = room();
    let said = room.say("erase a.toml --user nobody --everything --reason mail --store s.db", "");
    assert!(said.contains("nothing found of this user"), "{said}");
    assert_eq!(
        json(&room, "erase a.toml --user nobody --everything --reason mail --dry-run")["found"],
        false
    );
    // A repeat under its id has the answer of the first, which may be lost.
    std::fs::create_dir(room.path("experiments")).unwrap();
    for experiments in ["", " --experiments experiments"] {
        let erase = format!("erase a.toml -s s1 --event 1 --reason ticket --id t17{experiments}");
        assert_eq!(json(&room, &erase)["found"], true);
    }
    let said = room.say("erasures a.toml --store s.db", "");
    assert!(said.contains("user, 0 sessions, 0 events, by operator: mail"), "{said}");
    assert!(said.contains("events, 1 session, 1 event, by operator: ticket  (t17)"), "{said}");
    assert!(said.contains("2 erasures") && !said.contains("nobody"), "{said}");
}

/// A law: nothing wider is erased than what the command names.
#[test]
fn everything_is_not_erased_with_a_narrower_subject() {
    let room = room();
    for narrower in ["--event 1", "--call c1", "-s s1"] {
        let said = room.say(&format!("erase a.toml --everything {narrower} --reason mail --store s.db"), "");
        assert!(said.contains("cannot be used with") && said.ends_with("exit 2\n"), "{said}");
    }
    assert!(room.say("sessions a.toml --store s.db", "").contains("s2"));
}

/// A reason is a text of a person: it makes no line of its own.
#[test]
fn a_reason_is_shown_in_one_line() {
    let room = room();
    let command = ["a.toml", "-s", "s1", "--event", "1", "--store", "s.db", "--reason", "ok\nforged: line"];
    let erased = room.command("erase").args(command).output().unwrap();
    assert!(erased.status.success(), "{erased:?}");
    for shown in ["erasures a.toml --store s.db", "verify a.toml --store s.db"] {
        let said = room.say(shown, "");
        assert!(said.contains(r"ok\nforged: line"), "{said}");
    }
}

/// A law: the erasure of a session that is repeated under its id has the answer of the first; another one of it is not found.
#[test]
fn a_repeated_erasure_of_a_session_has_the_answer_of_the_first() {
    let room = room();
    let erase = "erase a.toml -s s1 --reason mail --id t18";
    let first = json(&room, erase);
    assert!(first["events"].as_u64().unwrap() > 0 && first["found"] == true, "{first}");
    let missing = room.say(&format!("{erase} --experiments nowhere --store s.db"), "");
    assert!(missing.contains("there is no such folder"), "{missing}");
    std::fs::create_dir(room.path("experiments")).unwrap();
    for experiments in ["", " --experiments experiments"] {
        assert_eq!(json(&room, &format!("{erase}{experiments}")), first);
    }
    for other in ["erase a.toml -s s1 --reason mail", "erase a.toml -s s1 --reason other --id t18"] {
        let said = room.say(&format!("{other} --store s.db"), "");
        assert!(said.contains("not found"), "{said}");
    }
    // Another session is not erased under the id.
    for dry in ["", " --dry-run"] {
        let said = room.say(&format!("erase a.toml -s s2 --reason mail --id t18{dry} --store s.db"), "");
        assert!(said.contains("error: erasure id `t18` reused") && said.contains("use a new id"), "{said}");
    }
    let left = json(&room, "erase a.toml -s s2 --reason mail --dry-run");
    assert!(left["events"].as_u64().unwrap() > 0, "{left}");
}

/// A law: a command that has erased and not vacuumed names the id, and the same command with it vacuums.
#[test]
fn an_erasure_whose_vacuum_has_failed_is_repeated_under_its_id() {
    let room = room();
    let long = "a long message ".repeat(100_000);
    room.say("run a.toml -s s3 --store s.db -", &long);
    // NOTE: No file may grow beyond 512 KiB: the copy that a vacuum makes is longer.
    let program = env!("CARGO_BIN_EXE_stepfold");
    let limited = format!(
        "trap '' XFSZ; ulimit -f 512; exec '{program}' erase a.toml -s s1 --reason mail --store s.db"
    );
    let failed = std::process::Command::new("bash")
        .arg("-c")
        .arg(limited)
        .current_dir(room.folder())
        .output()
        .unwrap();
    let said = String::from_utf8(failed.stderr).unwrap();
    assert_eq!(failed.status.code(), Some(1), "{said}");
    let id = said.split("`--id ").nth(1).and_then(|rest| rest.split('`').next());
    let id = id.unwrap_or_else(|| panic!("{said}"));
    let again = json(&room, &format!("erase a.toml -s s1 --reason mail --id {id}"));
    assert_eq!((&again["id"], &again["vacuumed"]), (&id.into(), &true.into()), "{again}");
    assert!(!is_in_file(&room, "555-0199"));
}

#[test]
fn an_unknown_call_is_a_fault_of_the_command() {
    let said = room().say("erase a.toml -s s1 --call c9 --reason mail --store s.db", "");
    assert!(
        said.contains("unknown call `c9`") && said.contains("`stepfold inspect` lists the calls"),
        "{said}"
    );
    assert!(said.ends_with("exit 2\n"), "{said}");
}
