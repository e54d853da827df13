//! What is told of decisions that come twice, of messages that wait, and of runs that are given up.

use serde_json::{Value, json};

use crate::crashes::killed;
use crate::room::{Room, json_lines as lines};

const ASKS: &str = "[tools.now]\nbuiltin = { name = \"clock\" }\napproval = \"always\"";

/// A session that waits for a decision about `c1`.
fn asked() -> Room {
    let room = Room::new(ASKS, "assistant: > c1 now()\nassistant: Now.");
    room.say("run a.toml -s s1 go", "");
    room
}

#[test]
fn to_give_a_run_up_tells_what_is_unknown_and_asks_no_model() {
    let without_model = || {
        let room = killed("at_most_once");
        let agent = std::fs::read_to_string(room.path("a.toml")).unwrap();
        room.write("a.toml", &agent.replace("model = \"script:a.script\"\n", ""));
        room
    };
    let room = without_model();
    let said = room.say("resume a.toml", "");
    assert!(said.contains("missing model") && said.ends_with("exit 2\n"), "{said}");
    let said = room.say("resume a.toml --abandon", "");
    assert!(
        said.starts_with("run abandoned after 1 step; the session is ready for the next message\n"),
        "{said}"
    );
    assert!(said.contains("| outcome unknown: c1 slow()") && !said.contains("exit"), "{said}");

    let said = lines(&without_model().say("resume a.toml --abandon --json", ""));
    let told = said.last().unwrap();
    assert_eq!((&told["abandoned"], &told["unknown"][0]["id"]), (&json!(true), &json!("c1")));
}

#[test]
fn a_second_decision_hears_who_decided_and_when() {
    let room = asked();
    room.say("resume a.toml --approve c1 --by ada", "");
    for late in ["--reject c1=no", "--approve c1"] {
        let said = room.say(&format!("resume a.toml {late} --by bob"), "");
        assert!(said.contains("approval `c1#DIGEST` is already decided by ada: approved, at 20"), "{said}");
        assert!(said.ends_with("exit 2\n"), "{said}");
    }
    // There is no such request.
    let said = room.say("resume a.toml --approve c7", "");
    assert!(said.contains("unknown approval `c7`: none is pending") && said.ends_with("exit 2\n"), "{said}");
}

#[test]
fn a_decision_with_a_key_can_be_sent_again() {
    let room = asked();
    let click = |line: &str| room.say(&format!("resume a.toml {line} --key click-1"), "");
    let receipt = |line: &str| {
        let said = click(&format!("{line} --json"));
        let receipt = lines(&said).into_iter().find_map(|line| line.get("receipt").cloned());
        receipt.unwrap_or_else(|| panic!("{said}"))
    };
    let first = receipt("--approve c1 --by ada");
    assert_eq!(first["by"], "ada");
    assert_eq!(receipt("--approve c1 --by bob"), first);
    assert_eq!(receipt("--approve all"), first);
    let said = click("--approve c1");
    assert!(said.starts_with("Now.\n") && !said.contains("exit"), "{said}");
    let said = click("--reject c1");
    assert!(said.contains("idempotency key `click-1` was used for other decisions"), "{said}");
}

#[test]
fn messages_after_a_failing_run_are_reported_listed_and_withdrawn() {
    // The model has no reply.
    let room = Room::new("", "");
    let said = room.say("run a.toml -s s1 one", "");
    assert!(said.contains("| error: the run failed after 0 steps: "), "{said}");
    for (question, times) in [("two", 2), ("three --key retry", 3), ("three --key retry", 4)] {
        let said = room.say(&format!("run a.toml -s s1 {question}"), "");
        assert!(
            said.contains(&format!("the run before the message failed {times} times with the same error: ")),
            "{said}"
        );
        assert!(
            said.contains("the message is stored")
                && said.contains("stepfold resume a.toml --session s1 --abandon")
        );
        assert!(
            said.contains("stepfold inbox a.toml --session s1 --remove ") && said.ends_with("exit 1\n"),
            "{said}"
        );
    }
    let waiting = lines(&room.say("inbox a.toml --json", "")).remove(0);
    let ids: Vec<&str> = waiting.as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap()).collect();
    assert_eq!((ids.len(), ids[1]), (2, "retry"), "{waiting}");
    let said = room.say("inbox a.toml", "");
    assert!(said.contains("  two\n") && said.contains("retry  20"), "{said}");
    let said = room.say("sessions a.toml", "");
    assert!(said.contains(", interrupted, 2 messages in the inbox"), "{said}");
    let said = room.say("inspect a.toml", "");
    assert_eq!(said.matches("  failed    ").count(), 4, "{said}");

    assert_eq!(room.say(&format!("inbox a.toml --remove {}", ids[0]), ""), "1 message withdrawn\n");
    let said = room.say("inbox a.toml --remove two", "");
    assert!(said.contains("no message with the id `two` waits") && said.ends_with("exit 2\n"), "{said}");
    assert_eq!(room.say("inbox a.toml --remove all --json", ""), "{\"withdrawn\":[\"retry\"]}\n");
    assert_eq!(room.say("inbox a.toml", ""), "| no message waits\n");
}

/// Whose message is stored is told so once, in text; for programs it is a line of its own.
#[test]
fn that_a_message_is_stored_is_said_once() {
    let room = Room::new("", "");
    room.say("run a.toml -s s1 one", "");
    let said = room.say("run a.toml -s s1 two", "");
    assert_eq!(said.matches("the message is stored").count(), 1, "{said}");
    let told = lines(&room.say("run a.toml -s s1 three --json", ""));
    let stored: Vec<_> = told.iter().filter(|line| line.get("stored").is_some()).collect();
    assert_eq!(stored, [&json!({"stored": true, "taken": false})], "{told:?}");
}

/// Equal calls of one reply that are asked about once are one question, which says for how many it holds.
#[test]
fn a_question_says_how_many_calls_it_is_about() {
    let room =
        Room::new(&ASKS.replace("always", "once"), "assistant: > c1 now()   > c2 now()\nassistant: Twice.");
    let said = room.say("run a.toml -s s1 go", "");
    assert!(said.contains("now {} (the reply makes this call 2 times)"), "{said}");
    let told = lines(&room.say("resume a.toml --json", ""));
    let waits = told.iter().find_map(|line| line["outcome"]["waits"].get(0)).unwrap();
    assert_eq!((&waits["tool"], &waits["times"]), (&json!("now"), &json!(2)), "{told:?}");
    let said = room.say("resume a.toml --approve c1", "");
    assert!(said.starts_with("Twice.\n"), "{said}");
}

#[test]
fn a_question_with_a_key_is_asked_once() {
    let room = Room::new("", "assistant: Hello.\nassistant: Hello again.");
    for _ in 0..2 {
        let said = room.say("run a.toml -s s1 hi --key k1", "");
        assert!(said.starts_with("Hello.\n") && !said.contains("exit"), "{said}");
    }
    let said = room.say("run a.toml -s s1 bye --key k1", "");
    assert!(!said.contains("Hello") && said.contains("exit 2"), "{said}");
    assert_eq!(room.say("inspect a.toml", "").matches("  began ").count(), 1);
    assert!(
        room.say("run a.toml hi --key k1", "").ends_with("exit 2\n"),
        "without a session the key says nothing"
    );
}

/// Only the answer to the message is the command's own: also where its sender decides about the run before it.
#[test]
fn what_a_run_says_that_is_decided_about_first_is_no_answer() {
    let waits = || {
        let room = Room::new(ASKS, "assistant: > c1 now()\nassistant: Now.\nassistant: Hello.");
        room.say("run a.toml -s s1 go", "");
        room
    };
    for key in ["", " --key k1"] {
        let said = waits().say(&format!("run a.toml -s s1 --interactive hi{key}"), "y\n");
        assert!(said.starts_with("Hello.\n| session s1\n") && !said.contains("exit"), "{said}");
        assert!(said.contains("\n| earlier reply: Now.\n"), "{said}");

        let told = lines(&waits().say(&format!("run a.toml -s s1 --interactive --json hi{key}"), "y\n"));
        let of = |field: &str| told.iter().filter(|line| line.get(field).is_some()).collect::<Vec<_>>();
        let is_earlier = |line: &&Value| line.get("earlier") == Some(&json!(true));
        let texts: Vec<_> =
            of("outcome").iter().map(|line| (is_earlier(line), &line["outcome"]["text"])).collect();
        assert_eq!(texts, [(true, &json!("Now.")), (false, &json!("Hello."))], "{told:?}");
        let earlier: Vec<bool> = of("event").iter().map(is_earlier).collect();
        assert!(earlier.is_sorted_by(|one, next| one >= next), "{told:?}");
        assert_eq!((earlier.first(), earlier.last()), (Some(&true), Some(&false)), "{told:?}");
    }
}

/// A full disk is not a reader that has seen enough.
#[test]
#[cfg(target_os = "linux")]
fn an_answer_that_cannot_be_written_is_an_error() {
    let room = Room::new("", "assistant: Three.");
    for line in ["run a.toml -s s1 go", "--json inspect a.toml", "sessions a.toml"] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = room.command(line).stdout(full).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("error: standard output could not be written: "), "{line}: {said}");
        assert_eq!(output.status.code(), Some(1), "{line}");
    }
    let log = room.say("inspect a.toml", "");
    assert!(log.contains("assistant: Three."), "{log}");
}
