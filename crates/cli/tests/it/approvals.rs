//! What a decision approves: what was shown, by any approver, however often, and by whatever name.

use std::fs;
use std::process::{Command, Stdio};

use expect_test::expect;
use serde_json::{Value, json};

use crate::room::{Room, without_digests};
use crate::terminal::Terminal;

/// A tool that writes down what it was called with.
const PAY: &str = "[tools.pay]\ndescription = \"Pays.\"\napproval = \"always\"\n\
                   parameters = { properties = { euro = { type = \"integer\" } } }\n\
                   command = { argv = [\"sh\", \"-c\", \"cat >> paid\"] }";

/// A text that other sessions may change, and a program that publishes it.
const PUBLISHING: &str = r#"
model = "script:g.script"
edges = [{ from = "START", to = "publish" }]
state."app:draft".type = "string"

[nodes.publish]
command = ["sh", "-c", "cat >> published"]
reads = ["app:draft"]
approval = "always"
effect = "at_most_once"
"#;

/// A draft is made and published, again and again.
const LOOP: &str = r#"
model = "script:g.script"
edges = [
    { from = "START", to = "draft" },
    { from = "draft", to = "publish" },
    { from = "publish", to = "draft" },
]
state.n = { type = "integer", handler = "sum", default = 0 }

[nodes.draft]
command = ["sh", "-c", "echo '{\"writes\":{\"n\":1}}'"]

[nodes.publish]
command = ["sh", "-c", "cat >> published"]
reads = ["n"]
approval = "always"
"#;

fn graph(text: &str) -> Room {
    let room = Room::new("", "");
    room.write("g.toml", text);
    room.write("g.script", "");
    room
}

/// The requests that the first session waits for, as programs are told.
fn waits(room: &Room, file: &str) -> Vec<Value> {
    let output = room.command(&format!("inspect {file} --json")).output().unwrap();
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    told["waits"].as_array().unwrap().clone()
}

/// The id of the request that is pending, digest and all.
fn id(room: &Room, file: &str) -> String {
    waits(room, file)[0]["id"].as_str().unwrap().to_owned()
}

fn read(room: &Room, name: &str) -> String {
    fs::read_to_string(room.path(name)).unwrap_or_default()
}

/// A script whose variable is not set approves nothing.
#[test]
fn an_empty_id_names_no_request() {
    let room = Room::new(PAY, "assistant: > c1 pay(euro=5)\nassistant: Paid.");
    room.say("run a.toml -s s1 go", "");
    for line in ["--approve ''", "--reject ''", "--reject =no", "--modify '={\"euro\":9}'"] {
        let said = room.say(&format!("resume a.toml {line}"), "");
        assert_eq!(
            said,
            "| session s1\n| error: invalid approval id ``: must not be empty; pending: c1#DIGEST\nexit 2\n",
            "{line}"
        );
    }
    assert_eq!((waits(&room, "a.toml").len(), read(&room, "paid")), (1, String::new()));
}

/// The second of two clicks does not approve what came after the first.
#[test]
fn a_name_that_was_decided_before_needs_its_digest() {
    let room = graph(LOOP);
    room.say("run g.toml -s s1 go", "");
    let first = id(&room, "g.toml");
    let said = room.say("resume g.toml --approve publish", "");
    assert!(said.contains("| decide about publish/run#DIGEST: publish {\"state\":{\"n\":2}}\n"), "{said}");
    for given in ["publish", "publish/run", "pub"] {
        let said = room.say(&format!("resume g.toml --approve {given}"), "");
        assert_eq!(
            said,
            format!(
                "| session s1\n| error: ambiguous approval id `{given}`: publish/run#DIGEST is decided already; give the \
                 whole id; pending: publish/run#DIGEST\nexit 2\n"
            )
        );
    }
    let said = room.say(&format!("resume g.toml --approve {first}"), "");
    assert!(said.contains("is already decided"), "{said}");
    assert_eq!(read(&room, "published"), r#"{"node":"publish","state":{"n":1}}"#);
    let second = id(&room, "g.toml");
    let begin = &second[..second.len() - 8];
    room.say(&format!("resume g.toml --approve {begin}"), "");
    assert!(read(&room, "published").ends_with(r#""state":{"n":2}}"#));
}

/// Nor does a repeat under an idempotency key, which means the decision that it repeats.
#[test]
fn a_repeat_by_name_means_the_first_decision() {
    let room = graph(LOOP);
    room.say("run g.toml -s s1 go", "");
    room.say("resume g.toml --approve publish --key click", "");
    let again = room.say("resume g.toml --approve publish --key click", "");
    assert!(again.contains("{\"state\":{\"n\":2}}"), "{again}");
    assert_eq!(read(&room, "published"), r#"{"node":"publish","state":{"n":1}}"#);
}

/// A server that gives a call the id of an earlier request gets no decision that was meant for that one.
#[test]
fn a_whole_id_names_itself_only() {
    let room = Room::new(PAY, "user: five\nassistant: > c1 pay(euro=5)");
    room.say("run a.toml -s s1 five", "");
    let shown = id(&room, "a.toml");
    room.say("resume a.toml --abandon", "");
    room.write("a.script", &format!("user: more\nassistant: > \"{shown}\" pay(euro=5000)"));
    let said = room.say("run a.toml -s s1 more", "");
    assert!(said.contains("| decide about c1%23"), "{said}");
    for given in [shown.as_str(), &shown[..9], "c1#"] {
        let said = room.say(&format!("resume a.toml --approve {given}"), "");
        assert!(
            said.contains("no pending approval with id") && said.ends_with("exit 2\n"),
            "{given}: {said}"
        );
    }
    assert_eq!(read(&room, "paid"), "");
}

/// The commands that are printed can be run as they are, whatever servers and people call things.
#[test]
fn printed_commands_are_quoted_for_the_shell() {
    let room =
        Room::new(PAY, "assistant: > \"$(touch x); x=y\" pay(euro=5)\nassistant: Paid.\nassistant: Again.");
    let output = room.command("run a.toml -s 'a b' go").output().unwrap();
    let notes = String::from_utf8(output.stderr).unwrap();
    let printed = notes.lines().find(|line| line.contains("--modify")).unwrap();
    let line =
        printed.replace("stepfold", env!("CARGO_BIN_EXE_stepfold")).replace("=JSON", "='{\"euro\":4}'");
    let mut shell = Command::new("sh");
    shell.args(["-c", &line]).current_dir(room.folder()).env("XDG_DATA_HOME", room.path("data"));
    let output = shell.stdin(Stdio::null()).output().unwrap();
    let notes = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{line}: {notes}");
    assert_eq!(read(&room, "paid"), r#"{"euro":4}"#);
    assert!(!room.path("x").exists());
    let said = room.say("run a.toml -s 'a b' go", "");
    assert!(said.contains("--session 'a b'"), "{said}");
}

/// A node's name may have the sign in it that stands before a reason.
#[test]
fn an_id_with_an_equals_sign_is_known_before_the_reason() {
    let room =
        graph(&PUBLISHING.replace("to = \"publish\"", "to = \"x=y\"").replace(".publish]", ".\"x=y\"]"));
    room.say("run g.toml -s s1 go", "");
    let said = room.say("resume g.toml --reject 'x=y/run=not now'", "");
    assert!(said.contains("not run: rejected: not now"), "{said}");
}

/// What a program reads of the state is shown, and what it runs with is what was shown.
#[test]
fn a_node_asks_about_what_it_reads() {
    let room = graph(PUBLISHING);
    room.say("run g.toml -s s1 --set 'app:draft=draft 1' go", "");
    room.check(
        "inspect g.toml",
        expect![[r#"
        session s1 of g/local, version 4
        head 4:DIGEST
        decide about publish/run#DIGEST: publish {"state":{"app:draft":"draft 1"}}

            1  began     user:      go
                         ~ app:draft: unset -> "draft 1"
            2  planned   publish
            3  started   starts publish
            4  asks      publish asks: > run publish(state={"app:draft": "draft 1"})

        app:draft = "draft 1"  (version 1, replace_values)
    "#]],
    );
    // Another session changes what every session reads.
    room.say("run g.toml -s s2 --set 'app:draft=draft 2' go", "");
    let said = room.say("resume g.toml -s s1 --approve publish", "");
    assert!(
        said.contains(r#"| decide about publish/run#DIGEST: publish {"state":{"app:draft":"draft 2"}}"#),
        "{said}"
    );
    assert_eq!(read(&room, "published"), "");
    let said = room.say(&format!("resume g.toml -s s1 --approve {}", id_in(&room, "s1")), "");
    assert!(said.contains("publish | done"), "{said}");
    assert_eq!(read(&room, "published"), r#"{"node":"publish","state":{"app:draft":"draft 2"}}"#);
}

fn id_in(room: &Room, session: &str) -> String {
    id(room, &format!("g.toml -s {session}"))
}

/// A long value is cut where it is shown. Its digest stands for all of it.
#[test]
fn a_long_value_that_a_node_reads_is_cut_and_digested() {
    let room = graph(PUBLISHING);
    let text = "word ".repeat(1_000);
    let begin = |session: &str, last: &str| {
        room.say(&format!("run g.toml -s {session} --set 'app:draft={text}{last}' go"), "")
    };
    let said = begin("s1", "1");
    let (_, asked) = said.split_once("decide about").unwrap();
    assert!(asked.contains("\"bytes\": 5003") && asked.contains("\"sha256\": \""), "{said}");
    assert!(!asked.contains(&text), "{said}");
    begin("s2", "2");
    let said = room.say("resume g.toml -s s1 --approve publish", "");
    assert!(said.contains("\"bytes\": 5003") && said.ends_with("exit 3\n"), "{said}");
    assert_eq!(read(&room, "published"), "");
}

/// As for a tool: who decides is refused, and the request stays.
#[test]
fn arguments_that_do_not_fit_a_node_are_refused() {
    let room = graph(PUBLISHING);
    let said = room.say("run g.toml -s s1 --set app:draft=x go", "");
    assert!(said.contains("--reject") && !said.contains("--modify"), "{said}");
    room.check("resume g.toml --modify 'publish={\"draft\":\"e\"}'", expect![[r#"
        | session s1
        | continues with "go", which waits in step 2 for a decision about publish/run#DIGEST
        | error: session g/local/s1: invalid decision: invalid arguments for approval `publish/run#DIGEST`: nothing of it can be modified; approve or reject; the request stays pending
        exit 2
    "#]]);
    let room = graph(
        r#"
        model = "script:g.script"
        edges = [{ from = "START", to = "pay", each = "bills" }]
        state.bills = { type = "array", default = [5] }
        [nodes.pay]
        command = ["sh", "-c", "cat >> paid"]
        reads = []
        approval = "always"
        "#,
    );
    room.say("run g.toml -s s1 go", "");
    room.check("resume g.toml --modify 'pay={\"euro\":6}'", expect![[r#"
        | session s1
        | continues with "go", which waits in step 2 for a decision about pay#0/run#DIGEST
        | error: session g/local/s1: invalid decision: invalid arguments for approval `pay#0/run#DIGEST`: Additional properties are not allowed ('euro' was unexpected) at $; "item" is a required property at $; the request stays pending
        exit 2
    "#]]);
    assert_eq!(waits(&room, "g.toml").len(), 1);
    room.say("resume g.toml --modify 'pay={\"item\":6}'", "");
    assert_eq!(read(&room, "paid"), r#"{"item":6,"node":"pay","state":{}}"#);
}

#[test]
fn a_rewind_says_which_run_it_gives_up() {
    let room = Room::new(PAY, "assistant: > c1 pay(euro=5)\nassistant: Paid.");
    room.say("run a.toml -s s1 'pay five'", "");
    room.check(
        "inspect a.toml",
        expect![[r#"
        session s1 of a/local, version 2
        head 2:DIGEST
        decide about c1#DIGEST: pay {"euro":5}

            1  began     user:      pay five
            2  replied   assistant: > c1 pay(euro=5)

    "#]],
    );
    room.check(
        "rewind a.toml 0",
        expect![[r#"
        session s1 is as it was at version 0; that is version 3
        | gives up "pay five", which waits in step 1 for a decision about c1#DIGEST
    "#]],
    );
    assert!(waits(&room, "a.toml").is_empty());
    let said = room.say("rewind a.toml 0", "");
    assert!(!said.contains("gives up"), "{said}");
    room.say("run a.toml -s s2 'pay five'", "");
    let output = room.command("rewind a.toml -s s2 0 --json").output().unwrap();
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["abandoned"]["question"], "pay five", "{}", without_digests(&told.to_string()));
}

/// Another session changes what a tool takes from the state: the decision was about what was shown.
#[test]
fn a_tool_runs_with_the_values_that_were_shown() {
    let room = Room::new(
        "[state.\"app:account\"]\ntype = \"string\"\n\
         [tools.pay]\ndescription = \"Pays.\"\napproval = \"always\"\n\
         inputs_from_state = { \"app:account\" = \"account\" }\n\
         parameters = { properties = { euro = { type = \"integer\" }, account = { type = \"string\" } } }\n\
         command = { argv = [\"sh\", \"-c\", \"cat >> paid\"] }",
        "assistant: > c1 pay(euro=5)\nassistant: Paid.",
    );
    let said = room.say("run a.toml -s s1 --set app:account=A-1 go", "");
    let shown =
        "| decide about c1#DIGEST: pay {\"euro\":5}\n|   account = \"A-1\", from the state key app:account\n";
    assert!(said.contains(shown), "{said}");
    let told = &waits(&room, "a.toml -s s1")[0]["inputs_from_state"];
    assert_eq!(*told, json!([{"key": "app:account", "parameter": "account", "value": "A-1"}]));
    room.say("run a.toml -s s2 --set app:account=A-2 go", "");
    let said = room.say("resume a.toml -s s1 --approve c1", "");
    let shown =
        "| decide about c1#DIGEST: pay {\"euro\":5}\n|   account = \"A-2\", from the state key app:account\n";
    assert!(said.contains(shown) && said.ends_with("exit 3\n"), "{said}");
    assert_eq!(read(&room, "paid"), "");
    let id = id(&room, "a.toml -s s1");
    let said = room.say(&format!("resume a.toml -s s1 --approve {id}"), "");
    assert!(said.contains("Paid."), "{said}");
    let paid: Value = serde_json::from_str(&read(&room, "paid")).unwrap();
    assert_eq!(paid, json!({"account": "A-2", "euro": 5}));
}

/// A tool that takes any field, and writes down what it was called with.
const OPEN: &str = "[tools.pay]\ndescription = \"Pays.\"\napproval = \"always\"\nparameters = { additionalProperties = true }\n\
                    command = { argv = [\"sh\", \"-c\", \"cat >> paid\"] }";

/// The calls that each surface shows in its own test; those of protocols are in the server's.
const HOSTILE: &str = include_str!("../../../server/tests/it/http/hostile_calls.json");

/// A model that makes this call.
fn calls(arguments: &Value) -> String {
    let arguments = arguments.as_object().unwrap().iter();
    let arguments: Vec<String> = arguments.map(|(key, value)| format!("{}={value}", json!(key))).collect();
    format!("assistant: > c1 pay({})\nassistant: Paid.", arguments.join(", "))
}

#[test]
fn an_approver_sees_at_the_command_what_will_run() {
    let hostile: Vec<Value> = serde_json::from_str(HOSTILE).unwrap();
    for call in hostile {
        let room = Room::new(OPEN, &calls(&call["arguments"]));
        for line in ["run a.toml -s s1 go", "inspect a.toml"] {
            let said = room.say(line, "");
            let shown = said
                .lines()
                .map(|line| line.strip_prefix("| ").unwrap_or(line))
                .collect::<Vec<_>>()
                .join("\n");
            let shown = shown.split_once("decide about c1#DIGEST: pay").expect(line).1;
            assert!(
                !shown.contains(|one| one != '\n' && stepfold::state_core::is_invisible(one)),
                "{shown:?}"
            );
            let mut read = serde_json::Deserializer::from_str(shown).into_iter::<Value>();
            assert_eq!(read.next().unwrap().unwrap().to_string(), call["arguments"].to_string(), "{line}");
            for warning in call["warns"].as_array().unwrap() {
                assert!(shown[read.byte_offset()..].contains(warning.as_str().unwrap()), "{line}: {shown}");
            }
        }
        room.say("resume a.toml --approve all", "");
        assert_eq!(self::read(&room, "paid"), call["arguments"].to_string());
    }
}

#[test]
fn what_is_long_is_folded_at_a_terminal_and_read_before_it_is_approved() {
    let arguments = json!({"a": {"note": "All is well. ".repeat(400), "list": (0..200).collect::<Vec<_>>()}, "euro": 999_999});
    for unread in [false, true] {
        let room = Room::new(OPEN, &calls(&arguments));
        let terminal = Terminal::open(&room, "run a.toml -s s1 go");
        let all = "run it? [r]ead all, [y]es, [n]o, [m]odify, [l]ater:";
        terminal.until_shown(all, |shown| {
            // No field is out of sight.
            [
                "\"note\": \"All is well.",
                "...\" (5200 characters)",
                "... 180 more items (",
                "\"euro\": 999999",
                all,
            ]
            .iter()
            .all(|words| shown.contains(words))
        });
        terminal.enter("y");
        terminal.until_shown("not read", |shown| {
            shown.contains("2 parts of it not read yet") && shown.trim_end().ends_with(all)
        });
        assert_eq!(read(&room, "paid"), "");
        if unread {
            terminal.enter("yes unread");
        } else {
            terminal.enter("r").until("run it? [y]es, [n]o, [m]odify, [l]ater:");
            terminal.until_shown("the end of the list", |shown| {
                shown.contains("\n      199\n    ],") || shown.contains(" 199\n")
            });
            terminal.enter("y");
        }
        terminal.until_shown("Paid.", |shown| shown.contains("Paid."));
        let paid = arguments.to_string();
        terminal.until_shown("the record of the tool", |_| read(&room, "paid") == paid);
    }
}

/// What a person types is stored as it is typed, or refused with the reason.
#[test]
fn numbers_that_cannot_be_held_are_refused_where_they_are_typed() {
    let room = Room::new(&format!("{OPEN}\n[state.kept]\n[state.other]"), &calls(&json!({"euro": 5})));
    room.say("run a.toml -s s1 go", "");
    for (typed, why) in [
        (
            "0.123456789012345678901234567890",
            "has more digits than can be stored: it would become 0.12345678901234568",
        ),
        ("1e400", "the number 1e400 is out of range"),
        ("18446744073709551616", "the integer 18446744073709551616 is out of range"),
        ("-0", "-0 is not an integer"),
    ] {
        for line in [
            format!("resume a.toml --modify 'c1={{\"euro\":{typed}}}'"),
            format!("state set a.toml kept={typed}"),
            format!("state set a.toml 'kept=[{typed}]'"),
        ] {
            let said = room.say(&line, "");
            assert!(said.contains(why) && said.ends_with("exit 2\n"), "{line}: {said}");
        }
    }
    let said = room.say("resume a.toml --modify 'c1={\"euro\":5,\"euro\":6}'", "");
    assert!(said.contains("duplicate key \"euro\""), "{said}");
    room.say(
        "resume a.toml --modify 'c1={\"a\":2512292042121000001,\"b\":[1.0,-0.0,18446744073709551615]}'",
        "",
    );
    assert_eq!(read(&room, "paid"), r#"{"a":2512292042121000001,"b":[1.0,-0.0,18446744073709551615]}"#);
}
