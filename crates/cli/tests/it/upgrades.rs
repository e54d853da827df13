//! A file that is changed under runs that wait: what `check --runs` says, and what continues.

use expect_test::expect;
use serde_json::Value;

use crate::room::Room;

const SCRIPT: &str = "assistant: > c1 pay(euro=5)\nassistant: It is paid.\n";

fn clerk(more: &str, pay: &str) -> String {
    format!("model = \"script:a.script\"\n{more}\n{pay}")
}

const PAY: &str = r#"
[tools.pay]
description = "Pays a bill."
effect = "idempotent"
approval = "always"
parameters = { properties = { euro = { type = "integer" } }, required = ["euro"] }
command = { argv = ["echo", "paid"] }
"#;

#[test]
fn a_deployment_while_approvals_wait() {
    let room = Room::new("", SCRIPT);
    room.write("a.toml", &clerk("", PAY));
    for session in ["s1", "s2"] {
        let said = room.say(&format!("run a.toml -s {session} --user ada 'Pay the bill.'"), "");
        assert!(said.contains("exit 3"), "{said}");
    }
    room.check(
        "check a.toml --runs",
        expect![[r#"
            a.toml: ok
            ada/s2  unchanged
            ada/s1  unchanged
            | 2 unfinished runs: 2 unchanged, 0 compatible, 0 that this agent does not continue
        "#]],
    );
    // Another prompt is ahead of both.
    room.write("a.toml", &clerk("instructions = \"Be brief.\"", PAY));
    room.check(
        "check a.toml --runs",
        expect![[r#"
            a.toml: ok
            ada/s2  compatible: instructions is new
            ada/s1  compatible: instructions is new
            | 2 unfinished runs: 0 unchanged, 2 compatible, 0 that this agent does not continue
        "#]],
    );
    room.check(
        "resume a.toml -s s1 --user ada --approve all",
        expect![[r#"
        It is paid.
        | session s1
        | continues with "Pay the bill.", which waits in step 1 for a decision about c1#DIGEST
        | > c1 pay(euro=5)
        |   c1: paid
    "#]],
    );
    room.check(
        "check a.toml --runs --json",
        expect![[r#"
            {"faults":[],"file":"a.toml"}
            {"continues":true,"session":"s2","status":"compatible","user":"ada","version":2,"words":["instructions is new"]}
        "#]],
    );
    // A tool that runs once where it could be repeated touches the call that waits.
    room.write("a.toml", &clerk("", &PAY.replace("idempotent", "at_most_once")));
    room.check(
        "check a.toml --runs",
        expect![[r#"
            a.toml: ok
            ada/s2  touched: tool pay: effect changed, and call `c1` is open
            | 1 unfinished run: 0 unchanged, 0 compatible, 1 that this agent does not continue
            exit 1
        "#]],
    );
    room.check("resume a.toml -s s2 --user ada", expect![[r#"
        | session s2
        | continues with "Pay the bill.", which waits in step 1 for a decision about c1#DIGEST
        | error: session a/ada/s2: agent changed since the run was interrupted: tool pay: effect changed, and call `c1` is open; force it with --with-changed-agent, or cancel the run with --abandon
        exit 2
    "#]]);
    room.write("a.toml", &clerk("when_changed = \"refuse\"\ninstructions = \"Be kind.\"", PAY));
    room.check("resume a.toml -s s2 --user ada", expect![[r#"
        | session s2
        | continues with "Pay the bill.", which waits in step 1 for a decision about c1#DIGEST
        | error: session a/ada/s2: agent changed since the run was interrupted: instructions is new; force it with --with-changed-agent, or cancel the run with --abandon
        exit 2
    "#]]);
    room.write("a.toml", &clerk("when_changed = \"always\"", &PAY.replace("idempotent", "at_most_once")));
    decide_again(&room, "resume a.toml -s s2 --user ada");
    room.check(
        "inspect a.toml -s s2 --user ada",
        expect![[r#"
            session s2 of a/ada, version 7
            head 7:DIGEST

                1  began     user:      Pay the bill.
                2  replied   assistant: > c1 pay(euro=5)
                3  upgraded  agent changed: tool pay: effect changed; 1 approval is asked again
                4  decided   c1#DIGEST approved
                5  started   starts c1
                6  answered  tool c1 pay: paid
                7  replied   assistant: It is paid.

        "#]],
    );
    room.write("a.toml", &clerk("when_changed = \"sometimes\"", PAY));
    room.check(
        "check a.toml --runs",
        expect![[r#"
            a.toml:2:1: expected one of refuse, compatible, always, pinned
            exit 2
        "#]],
    );
}

/// A file whose next version cannot pay, while a payment waits.
#[test]
fn a_pinned_run_continues_with_the_file_that_it_began_with() {
    let room = Room::new("", SCRIPT);
    let pinned = |more: &str| format!("when_changed = \"pinned\"\n{more}");
    room.write("a.toml", &clerk(&pinned(""), PAY));
    for session in ["s1", "s2", "s3"] {
        let said = room.say(&format!("run a.toml -s {session} --user ada 'Pay the bill.'"), "");
        assert!(said.contains("exit 3"), "{said}");
    }
    // The script is stored with the file that names it.
    room.write("b.script", "user: And now?\nassistant: Hello.\n");
    std::fs::remove_file(room.path("a.script")).unwrap();
    let without = |more: &str| format!("name = \"a\"\nmodel = \"script:b.script\"\n{}", pinned(more));
    room.write("a.toml", &without(""));
    // The program is one that the file of today does not start.
    room.check("check a.toml --runs", expect![[r#"
        a.toml: ok
        ada/s3  touched: tool pay is gone, and call `c1` is open; its own agent cannot be loaded: it uses `echo paid` as the file of today does not; name it in `former_programs`, or keep it in the file if it has a folder, an environment, headers or credentials of its own
        ada/s2  touched: tool pay is gone, and call `c1` is open; its own agent cannot be loaded: it uses `echo paid` as the file of today does not; name it in `former_programs`, or keep it in the file if it has a folder, an environment, headers or credentials of its own
        ada/s1  touched: tool pay is gone, and call `c1` is open; its own agent cannot be loaded: it uses `echo paid` as the file of today does not; name it in `former_programs`, or keep it in the file if it has a folder, an environment, headers or credentials of its own
        | 3 unfinished runs: 0 unchanged, 0 compatible, 3 that this agent does not continue
        exit 1
    "#]]);
    room.check("resume a.toml -s s1 --user ada --approve all", expect![[r#"
        | session s1
        | continues with "Pay the bill.", which waits in step 1 for a decision about c1#DIGEST
        | stored, for when the run continues: the decision about c1#DIGEST
        | error: session a/ada/s1: agent 53e2a155db524e5cb53996eaab80d128, which the run continues with, cannot be loaded: it uses `echo paid` as the file of today does not; name it in `former_programs`, or keep it in the file if it has a folder, an environment, headers or credentials of its own; continue with the agent of today by --with-changed-agent, or cancel the run with --abandon
        exit 2
    "#]]);
    room.write("a.toml", &without("former_programs = [\"echo paid\"]"));
    room.check(
        "check a.toml --runs",
        expect![[r#"
            a.toml: ok
            ada/s1  pinned: tool pay is gone
            ada/s3  pinned: tool pay is gone
            ada/s2  pinned: tool pay is gone
            | 3 unfinished runs: 0 unchanged, 0 compatible, 3 pinned, 0 that this agent does not continue
        "#]],
    );
    // The decision was stored.
    room.check(
        "resume a.toml -s s1 --user ada",
        expect![[r#"
            It is paid.
            | session s1
            | continues with "Pay the bill.", interrupted in step 1 with c1 pay(euro=5) open
            | > c1 pay(euro=5)
            |   c1: paid
        "#]],
    );
    room.check(
        "run a.toml -s s1 --user ada 'And now?'",
        expect![[r#"
            Hello.
            | session s1
            | continue: stepfold chat a.toml --user ada --session s1
        "#]],
    );
    room.check(
        "inspect a.toml -s s1 --user ada",
        expect![[r#"
            session s1 of a/ada, version 7
            head 7:DIGEST

                1  began     user:      Pay the bill.
                2  replied   assistant: > c1 pay(euro=5)
                3  decided   c1#DIGEST approved
                4  answered  tool c1 pay: paid
                5  replied   assistant: It is paid.
                6  began     user:      And now?
                7  replied   assistant: Hello.

        "#]],
    );
    // A person may force the file of today.
    room.check(
        "resume a.toml -s s2 --user ada --with-changed-agent",
        expect![[r#"
        | session s2
        | continues with "Pay the bill.", which waits in step 1 for a decision about c1#DIGEST
        | decide about c1#DIGEST: pay {"euro":5}
        | the run waits for a decision, and is stored; decide with
        |   stepfold resume a.toml --user ada --session s2 --approve c1#DIGEST
        |   stepfold resume a.toml --user ada --session s2 --reject c1#DIGEST=REASON
        |   stepfold resume a.toml --user ada --session s2 --modify c1#DIGEST=JSON
        exit 3
    "#]],
    );
    let stored = |line: &str| -> Vec<(u64, bool, bool)> {
        let lines = super::room::json_lines(&room.say(&format!("{line} --json"), ""));
        let flag = |line: &Value, name: &str| line[name].as_bool().unwrap();
        let runs = |line: &Value| line["unfinished_runs"].as_u64().unwrap();
        lines.iter().map(|line| (runs(line), flag(line, "is_current"), flag(line, "removed"))).collect()
    };
    assert_eq!(stored("agents a.toml"), [(1, true, false), (1, false, false)]);
    // It is still needed.
    assert_eq!(stored("agents a.toml --prune 0"), [(1, true, false), (1, false, false)]);
    room.say("resume a.toml -s s3 --user ada --abandon", "");
    assert_eq!(stored("agents a.toml --prune 7"), [(1, true, false), (0, false, false)]);
    assert_eq!(stored("agents a.toml --prune 0"), [(1, true, false), (0, false, true)]);
    assert_eq!(stored("agents a.toml"), [(1, true, false)]);
}

/// Versions are stored under every policy, so that a file can pin its runs after the deployment that touches them.
#[test]
fn runs_are_pinned_after_the_deployment_that_touches_them() {
    let room = Room::new("", SCRIPT);
    room.write("a.toml", &clerk("", PAY));
    assert!(room.say("run a.toml -s s1 --user ada 'Pay the bill.'", "").contains("exit 3"));
    let once = PAY.replace("idempotent", "at_most_once");
    room.write("a.toml", &clerk("", &once));
    assert!(room.say("check a.toml --runs", "").contains("ada/s1  touched: tool pay: effect changed"));
    room.write("a.toml", &clerk("when_changed = \"pinned\"", &once));
    assert!(room.say("check a.toml --runs", "").contains("ada/s1  pinned: tool pay: effect changed"));
    assert!(room.say("resume a.toml -s s1 --user ada --approve all", "").contains("It is paid."));
    let log = room.say("inspect a.toml -s s1 --user ada", "");
    assert!(!log.contains("upgraded") && !log.contains("started"), "{log}");
}

/// Only the whole id of a request that is asked again decides about it: no one has seen it under the old one.
fn decide_again(room: &Room, resume: &str) {
    let refused = room.say(&format!("{resume} --approve all"), "");
    assert!(
        refused.contains("the tool has changed since the approval `all` was asked")
            && refused.ends_with("exit 2\n")
    );
    assert!(refused.contains("euro") && !refused.contains("stored, for when"), "{refused}");
    assert!(room.say(&format!("{resume} --approve c1"), "").contains("since the approval `c1` was asked"));
    let output = room.command(&format!("{resume} --approve c1")).output().unwrap();
    let words = String::from_utf8(output.stderr).unwrap();
    let id = words.split("it is asked again as ").nth(1).unwrap().split(';').next().unwrap();
    assert!(room.say(&format!("{resume} --approve {id}"), "").contains("It is paid."));
}

#[test]
fn a_forced_resume_decides_what_is_pending_then() {
    let room = Room::new("", SCRIPT);
    room.write("a.toml", &clerk("", PAY));
    assert!(room.say("run a.toml -s s1 --user ada 'Pay the bill.'", "").contains("exit 3"));
    room.write("a.toml", &clerk("", &PAY.replace("idempotent", "at_most_once")));
    decide_again(&room, "resume a.toml -s s1 --user ada --with-changed-agent");
}

/// A decision that comes too late is not reported as stored.
#[test]
fn only_new_decisions_are_reported_as_stored() {
    let room = Room::new("", SCRIPT);
    room.write("a.toml", &clerk("", PAY));
    assert!(room.say("run a.toml -s s1 --user ada 'Pay the bill.'", "").contains("exit 3"));
    room.write("a.toml", &clerk("", &PAY.replace("idempotent", "at_most_once")));
    let said = room.say("resume a.toml -s s1 --user ada --approve c1", "");
    assert!(said.contains("stored, for when the run continues"), "{said}");
    let said = room.say("resume a.toml -s s1 --user ada --reject c1=no --by bob", "");
    assert!(said.contains("already decided") && !said.contains("stored, for when"), "{said}");
}
