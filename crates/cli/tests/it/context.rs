//! What the model of an agent file is shown of a long conversation: cleared results, recall, thresholds, summaries.

use expect_test::expect;
use serde_json::{Value, json};

use crate::room::Room;

/// An agent that reads pages, in a small window.
const READER: &str = r#"
[tools.read]
description = "Reads a page."
effect = "pure"
parameters = { properties = { page = { type = "integer" } }, required = ["page"] }
command = { argv = ["sh", "-c", "echo the page of stalls; seq -s ' ' 1000"] }

[clear_results]
newest_steps = 1

[window]
tokens = 2500

[recall]
"#;

/// A page that is cleared is found and read again.
#[test]
fn a_cleared_page_is_read_again() {
    let room = Room::new(
        READER,
        "assistant: > c1 read(page=1)\n\
         assistant: > c2 read(page=2)\n\
         assistant: > c3 recall_search(query=\"stalls\", limit=1)\n\
         assistant: > c4 recall_read(call_id=\"c1\", characters=18)\n\
         assistant: All is read.\n",
    );
    let said = room.say("run a.toml -s s1 'Read all.'", "");
    assert!(said.contains("All is read."), "{said}");
    room.check("inspect a.toml", expect![[r#"
        session s1 of a/local, version 10
        head 10:DIGEST

            1  began     user:      Read all.
            2  replied   assistant: > c1 read(page=1)
            3  answered  tool c1 read: the page of stalls
                                    1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90 91 92 93 94 95 96 97 98 99 100 101 102 103 104 105 106 107 108 109 110 111 112 113 114 115 116 117 118 119 120  ... (3920 characters)
            4  replied   assistant: > c2 read(page=2)
            5  answered  tool c2 read: the page of stalls
                                    1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90 91 92 93 94 95 96 97 98 99 100 101 102 103 104 105 106 107 108 109 110 111 112 113 114 115 116 117 118 119 120  ... (3920 characters)
            6  replied   assistant: > c3 recall_search(query="stalls", limit=1)
            7  answered  tool c3 recall_search: {"found": [{"message": 2, "call_id": "c1", "of": "tool", "tool": "read", "characters": 3911, "excerpt": "the page of stalls\n1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 …"}]}
            8  replied   assistant: > c4 recall_read(call_id="c1", characters=18)
            9  answered  tool c4 recall_read: {"message": 2, "of": "tool", "characters": 3911, "text": "the page of stalls", "next": 18}
           10  replied   assistant: All is read.

        | 2 lines are cut; --full shows all
    "#]]);
}

/// Messages of another session of the user are found, and none of another user.
#[test]
fn other_sessions_of_the_user_are_searched() {
    let room = Room::new(
        "[recall]\nsessions = \"user\"\n",
        "user: The fee of the bakery is 5 euro.\n\
         assistant: noted\n\
         user: What is the fee?\n\
         assistant: > c1 recall_sessions(query=\"bakery\")\n\
         assistant: It was 5 euro.\n",
    );
    room.say("run a.toml -s s1 'The fee of the bakery is 5 euro.'", "");
    room.say("run a.toml -s s2 'What is the fee?'", "");
    let shown = room.say("inspect a.toml -s s2", "");
    let found = r#"tool c1 recall_sessions: {"found": [{"session": "s1", "version": 1, "message": 0,"#;
    assert!(shown.contains(found) && shown.contains("The fee of the bakery is 5 euro."), "{shown}");
    room.check(
        "search a.toml -s s1 'fees of bakeries'",
        expect![[r#"
        s1 v1  user: The fee of the bakery is 5 euro.
    "#]],
    );
    let found = room.say("search a.toml 'fees of bakeries' --limit 1", "");
    assert_eq!(found, "s1 v1  user: The fee of the bakery is 5 euro.\n");
    let found: Value = serde_json::from_str(&room.say("search a.toml -s s1 euro --json", "")).unwrap();
    let (found, excerpt) = (&found["found"][0], "The fee of the bakery is 5 euro.");
    assert_eq!(
        (&found["session"], &found["version"], &found["excerpt"]),
        (&json!("s1"), &json!(1), &json!(excerpt))
    );
    room.check(
        "search a.toml -s s1 nothing",
        expect![[r#"
        | no message has these words
    "#]],
    );
    room.check(
        "search a.toml the",
        expect![[r#"
        | error: the query has no words to search for: name what is sought, such as a person or a number
        exit 2
    "#]],
    );
    room.say("run a.toml -s s3 --user bob 'What is the fee?'", "");
    let shown = room.say("inspect a.toml -s s3 --user bob", "");
    assert!(shown.contains(r#"recall_sessions: {"found": []"#), "{shown}");
}

/// Up to the threshold all is shown, then what is kept; and a summary of the rest, by the model of the file.
#[test]
fn a_summary_is_made_beyond_the_threshold() {
    let room = Room::new(
        "[summarize]\nkeep_last = 2\nwhen_over = 4\nmodel = \"script:summary.script\"\n",
        "assistant: one\nassistant: two\nassistant: three\n",
    );
    room.write("summary.script", "assistant: One and two were said.");
    for text in ["1", "2", "3"] {
        room.say(&format!("run a.toml -s s1 {text}"), "");
    }
    room.check(
        "inspect a.toml",
        expect![[r#"
        session s1 of a/local, version 7
        head 7:DIGEST

            1  began     user:      1
            2  replied   assistant: one
            3  began     user:      2
            4  replied   assistant: two
            5  began     user:      3
            6  summarized One and two were said.
            7  replied   assistant: two

    "#]],
    );
}

/// Another policy is tried on what is stored: nothing runs, and nothing is written.
#[test]
fn a_policy_is_tried_on_stored_sessions() {
    let room = Room::new(
        READER,
        "assistant: > c1 read(page=1)\n\
         assistant: > c2 read(page=2)\n\
         assistant: Both are read.\n",
    );
    room.say("run a.toml -s s1 'Read both.'", "");
    room.say("run a.toml -s s2 'Read both.'", "");
    let policy = "name = \"a\"\n[tools.read]\ndescription = \"Reads.\"\ncommand = [\"true\"]\n";
    room.write("all.toml", policy);
    room.write(
        "short.toml",
        &format!("{policy}[clear_results]\nnewest_steps = 0\n[window]\ntokens = 1000\n"),
    );
    room.check("trim all.toml", expect![[r#"
        s2  1 turn: 0 leave messages out, 0 clear results, 0 malformed; at the end about 2873 of 2873 tokens are shown
        s1  1 turn: 0 leave messages out, 0 clear results, 0 malformed; at the end about 2873 of 2873 tokens are shown
        | 2 turns: 0 leave messages out, 0 clear results, 0 malformed; at the end about 5746 of 5746 tokens are shown
    "#]]);
    room.check("trim short.toml --session s1 --json", expect![[r#"
        {"sessions":[{"cleared":1,"malformed":0,"shown_tokens":97,"trimmed":0,"turns":1,"whole_tokens":2873,"session":"s1"}],"total":{"cleared":1,"malformed":0,"shown_tokens":97,"trimmed":0,"turns":1,"whole_tokens":2873}}
    "#]]);
    room.check(
        "trim short.toml --session s3",
        expect![[r#"
        | error: session a/local/s3 not found
        exit 2
    "#]],
    );
}

/// What a provider could cache of each request, and what broke it: a cleared result, and instructions with the time.
#[test]
fn the_prefix_of_each_request_is_compared_with_the_one_before() {
    let prices = "[prices.\"scripted\"]\ninput = 1.0\noutput = 4.0\ncached_input = 0.1\n";
    let room = Room::new(
        &format!(
            "instructions = \"You read for {{who?}}.\"\n[state.who]\ntype = \"string\"\n{prices}{READER}"
        ),
        "user: Read all.\n\
         assistant: > c1 read(page=1)\n\
         assistant: > c2 read(page=2)\n\
         assistant: All is read.\n\
         user: Again.\n\
         assistant: As I said.\n",
    );
    room.say("run a.toml -s s1 'Read all.'", "");
    room.say("state set a.toml -s s1 who=Ada", "");
    room.say("run a.toml -s s1 Again.", "");
    room.check(
        "inspect a.toml --cache",
        expect![[r#"
            2  about 15 tokens, 0 as before
            4  about 1444 tokens, 15 as before
            6  about 1495 tokens, 34 as before: results cleared, 1410 lost
            9  about 1510 tokens, 0 as before: other instructions, 1495 lost
        | 0 of 0 input tokens were read from the cache, as the provider counts
    "#]],
    );
    let first = &room.json("inspect a.toml --cache --json")[0];
    assert_eq!((&first["version"], &first["shared_tokens"]), (&serde_json::json!(2), &serde_json::json!(0)));
}

/// Names of tools that are almost those of the file are faults; others may be of tools that were there before.
#[test]
fn a_misspelt_tool_is_not_cleared_in_silence() {
    let room = Room::new("", "");
    let file = format!("name = \"b\"\n{READER}")
        .replace("newest_steps = 1", "newest_steps = 1\nexcept = [\"raed\", \"submit\"]");
    let pins = "[trim]\nkeep_last = 2\npins = { messages = 4, results_of = [\"reed\"] }\n";
    room.write("b.toml", &format!("{file}{pins}"));
    room.check(
        "check b.toml",
        expect![[r#"
        b.toml:11:11: unknown tool `raed`; did you mean `read`?
        b.toml:19:38: unknown tool `reed`; did you mean `read`?
        exit 2
    "#]],
    );
}
