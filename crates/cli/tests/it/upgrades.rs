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
            {"continues":true,"left":false,"reasons":["instructions is new"],"session":"s2","status":"compatible","user":"ada","version":2}
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
        | error: session a/ada/s1: agent 0d6839d1a5d59739129216f167adeddd, which the run continues with, cannot be loaded: it uses `echo paid` as the file of today does not; name it in `former_programs`, or keep it in the file if it has a folder, an environment, headers or credentials of its own; continue with the agent of today by --with-changed-agent, or cancel the run with --abandon
        exit 2
    "#]]);
    room.write("a.toml", &without("former_programs = [\"echo paid\"]"));
    room.check(
        "check a.toml --runs",
        expect![[r#"
            a.toml: ok
            ada/s1  pinned: dependencies: echo paid is gone; tool pay is gone
            ada/s3  pinned: dependencies: echo paid is gone; tool pay is gone
            ada/s2  pinned: dependencies: echo paid is gone; tool pay is gone
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
        |   asked again: with other arguments or values, or as another tool
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
    let old = format!("c1#{}", "0".repeat(16));
    assert!(
        room.say(&format!("{resume} --approve {old}"), "").contains("was asked: it is asked again as c1#")
    );
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
    // Neither is a message, which is sent again later; and a worker tells that it leaves the run.
    room.check(
        "run a.toml -s s1 --user ada 'And then?'",
        expect![[r#"
            | session s1
            | continues with "Pay the bill.", interrupted in step 1 with c1 pay(euro=5) open
            | the message is not stored: send it again once the session continues
            | error: session a/ada/s1: agent changed since the run was interrupted: tool pay: effect changed, and call `c1` is open; force it with --with-changed-agent, or cancel the run with --abandon
            exit 2
        "#]],
    );
    let said = room.say("work a.toml --once", "");
    assert!(said.contains("1 blocked session: the same command with `--list` says why"), "{said}");
    room.check(
        "check a.toml --runs",
        expect![[r#"
        a.toml: ok
        ada/s1  touched: tool pay: effect changed, and call `c1` is open
        | 1 unfinished run: 0 unchanged, 0 compatible, 1 that this agent does not continue
        exit 1
    "#]],
    );
    room.write("a.toml", &clerk("when_changed = \"always\"", &PAY.replace("idempotent", "at_most_once")));
    room.check("check a.toml --runs", expect![[r#"
        a.toml: ok
        ada/s1  continues by `when_changed = "always"`: tool pay: effect changed, and call `c1` is open
        | 1 unfinished run: 0 unchanged, 0 compatible, 1 touched and continued, 0 that this agent does not continue
    "#]]);
}

/// Another program under the same tool is another version of the agent.
#[test]
fn a_program_that_changes_is_a_change_of_the_agent() {
    let room = Room::new("", SCRIPT);
    room.write("a.toml", &clerk("", PAY));
    for session in ["s1", "s2"] {
        assert!(room.say(&format!("run a.toml -s {session} --user ada 'Pay.'"), "").contains("exit 3"));
    }
    let other = PAY.replace("\"paid\"", "\"sent\"");
    let check = |policy: &str, pay: &str, rows: expect_test::Expect| {
        room.write("a.toml", &clerk(policy, pay));
        let said = room.say("check a.toml --runs", "");
        rows.assert_eq(said.lines().find(|line| line.starts_with("ada/s1")).unwrap());
    };
    check(
        "",
        &other,
        expect!["ada/s1  compatible: dependencies: echo paid is gone; dependencies: echo sent is new"],
    );
    check(
        "",
        &PAY.replace("\"paid\"] }", "\"paid\"], folder = \".\" }"),
        expect!["ada/s1  compatible: dependencies: echo paid changed"],
    );
    check(
        "when_changed = \"refuse\"",
        &other,
        expect![[
            r#"ada/s1  refused by `when_changed = "refuse"`: dependencies: echo paid is gone; dependencies: echo sent is new"#
        ]],
    );
    check(
        "when_changed = \"pinned\"",
        &other,
        expect![[
            r#"ada/s1  refused by `when_changed = "pinned"`: dependencies: echo paid is gone; dependencies: echo sent is new; its own agent cannot be loaded: it uses `echo paid` as the file of today does not; name it in `former_programs`, or keep it in the file if it has a folder, an environment, headers or credentials of its own"#
        ]],
    );
    let allowed = "when_changed = \"pinned\"\nformer_programs = [\"echo paid\"]";
    check(
        allowed,
        &other,
        expect!["ada/s1  pinned: dependencies: echo paid is gone; dependencies: echo sent is new"],
    );
    let said = room.say("resume a.toml -s s1 --user ada --approve all -v", "");
    assert!(said.contains("c1: paid") && said.contains("It is paid."), "{said}");
    // Each version is stored with its own program.
    assert!(room.say("run a.toml -s s3 --user ada 'Pay.'", "").contains("exit 3"));
    let versions = room.say("agents a.toml", "");
    assert!(versions.contains("2 stored versions"), "{versions}");
    // A comment makes no other version.
    room.write("a.toml", &format!("# Pays.\n{}", clerk(allowed, &other)));
    room.say("resume a.toml -s s3 --user ada --abandon", "");
    let kept = room.say("agents a.toml --prune 0", "");
    assert!(kept.contains("the file of today") && kept.contains("0 removed"), "{kept}");
}

/// A value that no longer fits: what arrives for the run is stored, and the run can be ended.
#[test]
fn a_decision_is_stored_though_a_value_does_not_fit() {
    let room = Room::new("", SCRIPT);
    let state = |of: &str| format!("{PAY}\n[state.areas]\n{of}\n");
    let number = state("type = \"integer\"\ndefault = 1");
    room.write("a.toml", &clerk("", &number));
    for session in ["s1", "s2"] {
        let said = room.say(&format!("run a.toml -s {session} --user ada --set areas=5 'Pay.'"), "");
        assert!(said.contains("exit 3"), "{said}");
    }
    let text = state("type = \"string\"\ndefault = \"one\"");
    room.write("a.toml", &clerk("", &text));
    room.check("check a.toml --runs", expect![[r#"
        a.toml: ok
        ada/s2  cannot be read: incompatible stored value of key "areas": stored as integer, opened as string: expected string, found integer at $; set `migrate` of the key in the agent file
        ada/s1  cannot be read: incompatible stored value of key "areas": stored as integer, opened as string: expected string, found integer at $; set `migrate` of the key in the agent file
        | 2 unfinished runs: 0 unchanged, 0 compatible, 2 that this agent does not continue
        exit 1
    "#]]);
    room.check("resume a.toml -s s1 --user ada --approve c1", expect![[r#"
        | session s1
        | continues with "Pay.", which waits in step 1 for a decision about c1#DIGEST
        | stored, for when the run continues: the decision about c1#DIGEST
        | error: session a/ada/s1: the store failed: incompatible stored value of key "areas": stored as integer, opened as string: expected string, found integer at $; set its migration in the agent file: `migrate = ["text"]` under [state.areas], for example, or `["drop"]`
        exit 1
    "#]]);
    let listed = room.say("work a.toml --list", "");
    assert!(listed.starts_with("ada/s1") && listed.contains("set `migrate` of the key"), "{listed}");
    assert_eq!(
        room.say("work a.toml --once", "").lines().filter(|line| line.contains("worked in")).count(),
        0
    );
    room.check(
        "resume a.toml -s s2 --user ada --abandon",
        expect![[r#"
        run abandoned after 1 step; the session is ready for the next message
        | session s2
    "#]],
    );
    // With the migration, the run continues with the decision that was stored.
    room.write("a.toml", &clerk("", &text.replace("default", "migrate = [\"text\"]\ndefault")));
    let said = room.say("resume a.toml -s s1 --user ada", "");
    assert!(said.contains("It is paid."), "{said}");
}

/// An agent without tools replies once; a run that it continues has not had that reply.
#[test]
fn an_agent_whose_only_tool_is_gone_still_replies() {
    let room = Room::new("", SCRIPT);
    room.write("a.toml", &clerk("", PAY));
    assert!(room.say("run a.toml -s s1 --user ada 'Pay the bill.'", "").contains("exit 3"));
    room.write("b.script", "assistant: Hm.\nassistant: I cannot pay.\n");
    room.write("a.toml", "model = \"script:b.script\"\n");
    let said = room.say("resume a.toml -s s1 --user ada --approve c1", "");
    assert!(said.contains("stored, for when the run continues"), "{said}");
    room.check(
        "resume a.toml -s s1 --user ada --with-changed-agent",
        expect![[r#"
            I cannot pay.
            | session s1
            | continues with "Pay the bill.", interrupted in step 1 with c1 pay(euro=5) open
            | outcome unknown: c1 pay(euro=5) may have started when the process was interrupted, and was not run again; look whether it happened
        "#]],
    );
}

/// A check knows the names that a run refuses.
#[test]
fn a_name_that_no_session_can_have_is_a_fault_of_the_file() {
    let room = Room::new("", SCRIPT);
    for name in ["stepfold.agents", "", "a\\u0000b"] {
        room.write("a.toml", &format!("name = \"{name}\"\nmodel = \"script:a.script\"\n"));
        let said = room.say("check a.toml", "");
        assert!(said.starts_with("a.toml:1:") && said.ends_with("exit 2\n"), "{said}");
    }
}

/// A graph with an agent inside, whose model a command that reads does not have.
#[test]
fn a_check_finds_the_version_of_a_pinned_graph() {
    let graph = r#"
model = "script:a.script"
when_changed = "pinned"
edges = [{ from = "START", to = "clerk" }, { from = "clerk", to = "END" }]

[nodes.clerk]
agent = "clerk.toml"
"#;
    let room = Room::new("", SCRIPT);
    room.write("clerk.toml", PAY);
    room.write("g.toml", graph);
    assert!(room.say("run g.toml -s s1 --user ada 'Pay.'", "").contains("exit 3"));
    room.write("clerk.toml", &PAY.replace("idempotent", "at_most_once"));
    room.check(
        "check g.toml --runs",
        expect![[r#"
        g.toml: ok
        ada/s1  pinned: node clerk: agent: tool pay: effect changed
        | 1 unfinished run: 0 unchanged, 0 compatible, 1 pinned, 0 that this agent does not continue
    "#]],
    );
    let said = room.say("resume g.toml -s s1 --user ada --approve all", "");
    assert!(said.contains("It is paid."), "{said}");
}

/// A decision for a run that this version does not continue never ends it: only the version of the run can tell.
#[test]
fn a_rejection_that_is_stored_does_not_end_the_run_by_the_rules_of_another_version() {
    let script = "assistant: > c1 pay(euro=5)\nassistant: As you like.\n";
    let limited = format!("when_changed = \"refuse\"\n{PAY}\n[limits]\nsteps = 1\n");
    for changed in [limited.as_str(), "instructions = \"Be brief.\"\n"] {
        let room = Room::new("", script);
        room.write("a.toml", &clerk("", PAY));
        assert!(room.say("run a.toml -s s1 --user ada 'Pay.'", "").contains("exit 3"));
        room.write("a.toml", &clerk("", changed));
        let said = room.say("resume a.toml -s s1 --user ada --reject c1=no", "");
        assert!(said.contains("stored, for when the run continues"), "{said}");
        let checked = room.say("check a.toml --runs", "");
        assert!(checked.contains("ada/s1"), "{checked}");
        room.write("a.toml", &clerk("", PAY));
        let said = room.say("resume a.toml -s s1 --user ada", "");
        assert!(said.contains("As you like."), "{said}");
    }
}

/// The same inside of a graph: the call is not asked about again.
#[test]
fn a_rejection_that_is_stored_for_a_node_is_not_asked_again() {
    let graph = |policy: &str| {
        format!(
            r#"
model = "script:a.script"
when_changed = "{policy}"
edges = [{{ from = "START", to = "clerk" }}, {{ from = "clerk", to = "END" }}]

[nodes.clerk]
agent = "clerk.toml"
"#
        )
    };
    let room = Room::new("", "assistant: > c1 pay(euro=5)\nassistant: As you like.\n");
    room.write("clerk.toml", PAY);
    room.write("g.toml", &graph("refuse"));
    assert!(room.say("run g.toml -s s1 --user ada 'Pay.'", "").contains("exit 3"));
    room.write("clerk.toml", &PAY.replace("Pays a bill.", "Pays one bill."));
    let said = room.say("resume g.toml -s s1 --user ada --reject clerk/c1=no", "");
    assert!(said.contains("stored, for when the run continues"), "{said}");
    room.write("g.toml", &graph("compatible"));
    let said = room.say("resume g.toml -s s1 --user ada", "");
    assert!(said.contains("As you like.") && !said.contains("decide about"), "{said}");
}

/// Arguments that a person gives are checked by the version that runs the call, so they are not stored for it.
#[test]
fn given_arguments_are_not_stored_for_another_version() {
    let room = Room::new("", SCRIPT);
    room.write("a.toml", &clerk("", PAY));
    assert!(room.say("run a.toml -s s1 --user ada 'Pay.'", "").contains("exit 3"));
    room.write("a.toml", &clerk("", &PAY.replace("\"integer\"", "\"string\"")));
    for euro in ["7", "\"7\""] {
        let said = room.say(&format!("resume a.toml -s s1 --user ada --modify 'c1={{\"euro\":{euro}}}'"), "");
        assert!(said.contains("agent changed") && !said.contains("stored, for when"), "{said}");
    }
    room.write("a.toml", &clerk("", PAY));
    let said = room.say("resume a.toml -s s1 --user ada --modify 'c1={\"euro\":7}'", "");
    assert!(said.contains("It is paid."), "{said}");
}

/// Each setting of a node is a part of the graph: a run whose branch in it is open depends on it, another run does not, and how
/// often a node is attempted is never depended on.
#[test]
fn each_setting_of_a_node_is_compared() {
    let keys = "[state.a]\ntype = \"string\"\ndefault = \"\"\n[state.b]\ntype = \"string\"\ndefault = \"\"\n";
    let graph = |policy: &str| {
        format!(
            r#"
model = "script:a.script"
when_changed = "{policy}"
edges = [{{ from = "START", to = "work" }}, {{ from = "work", to = "last" }}, {{ from = "last", to = "END" }}]
{keys}
[nodes.work]
agent = "clerk.toml"
asks = "Pay {{a}}."
shares = ["a", "b"]
answers = "a"

[nodes.last]
command = ["echo", "done"]
approval = "always"
reads = ["a"]
"#
        )
    };
    let changes = [
        ("asks = \"Pay {a}.\"", "asks = \"Pay now, {a}.\"", "touched: node work: settings changed"),
        ("answers = \"a\"", "answers = \"b\"", "touched: node work: settings changed"),
        ("shares = [\"a\", \"b\"]", "shares = [\"a\"]", "touched: node work: settings changed"),
        ("answers = \"a\"", "answers = \"a\"\nretries = 2", "compatible: node work: attempts changed"),
        ("answers = \"a\"", "answers = \"a\"\ntimeout = \"9s\"", "compatible: node work: attempts changed"),
        ("reads = [\"a\"]", "reads = [\"b\"]", "compatible: node last: settings changed"),
        ("approval = \"always\"\n", "", "compatible: node last: settings changed"),
    ];
    for (before, after, row) in changes {
        let room = Room::new("", SCRIPT);
        room.write("clerk.toml", &format!("{keys}{PAY}"));
        room.write("g.toml", &graph("compatible"));
        assert!(room.say("run g.toml -s s1 --user ada 'Pay.'", "").contains("exit 3"));
        let checked = room.say("check g.toml --runs", "");
        assert!(checked.contains("ada/s1  unchanged"), "{checked}");
        let file = graph("compatible").replace(before, after);
        assert_ne!(file, graph("compatible"));
        room.write("g.toml", &file);
        let checked = room.say("check g.toml --runs", "");
        assert!(checked.contains(row), "{after}: {checked}");
        room.write("g.toml", &graph("refuse").replace(before, after));
        let said = room.say("resume g.toml -s s1 --user ada --approve all", "");
        assert!(said.contains("agent changed") && !said.contains("It is paid."), "{after}: {said}");
        // The decision is stored: its own version asks about the last node, as the run began.
        room.write("g.toml", &graph("refuse"));
        let said = room.say("resume g.toml -s s1 --user ada", "");
        assert!(said.contains("exit 3") && said.contains("last"), "{after}: {said}");
    }
}

/// The check says what happens: a key that is gone, and its value, touch the run whichever way it is continued.
#[test]
fn a_key_that_is_gone_leaves_the_run_that_has_its_value() {
    let room = Room::new("", SCRIPT);
    let with_key = clerk("", &format!("{PAY}\n[state.k]\ntype = \"integer\"\ndefault = 0\n"));
    room.write("a.toml", &with_key);
    assert!(room.say("run a.toml -s s1 --user ada 'Pay.'", "").contains("exit 3"));
    room.write("a.toml", &clerk("", PAY));
    let touched = "state key k is gone, and key `k` has a value";
    assert!(room.say("check a.toml --runs", "").contains(touched));
    let said = room.say("resume a.toml -s s1 --user ada --approve all", "");
    assert!(said.contains(touched) && said.ends_with("exit 2\n"), "{said}");
    let said = room.say("work a.toml --once", "");
    assert!(said.contains("1 blocked session"), "{said}");
    room.write("a.toml", &with_key);
    assert!(room.say("resume a.toml -s s1 --user ada", "").contains("It is paid."));
}

/// A version that does not continue a run does not edit it either: what it writes may fit neither.
#[test]
fn a_run_is_edited_by_the_version_that_continues_it() {
    let room = Room::new("", SCRIPT);
    let with_pay = |pay: &str| clerk("", &format!("{pay}\n[state.k]\ntype = \"integer\"\n"));
    room.write("a.toml", &with_pay(PAY));
    assert!(room.say("run a.toml -s s1 --user ada 'Pay.'", "").contains("exit 3"));
    room.write("a.toml", &with_pay(&PAY.replace("idempotent", "at_most_once")));
    room.check("state set a.toml -s s1 --user ada k=3", expect![[r#"
        | error: session a/ada/s1: agent changed since the run was interrupted: tool pay: effect changed, and call `c1` is open; force it with --with-changed-agent, or cancel the run with --abandon; or edit it with the version of the agent file that continues it
        exit 2
    "#]]);
    room.write("a.toml", &with_pay(PAY));
    assert!(room.say("state set a.toml -s s1 --user ada k=3", "").contains("is at version 3"));
}

/// A deployment over a database, from the shell alone: the check changes nothing, and each command works as over a file.
#[tokio::test]
async fn runs_in_a_database_are_checked_and_continued_from_the_shell() {
    let Some(server) = crate::postgres::server() else { return };
    let url = server.database("shell").await;
    let room = Room::new("", SCRIPT);
    let say = |line: &str| {
        let mut command = room.command(line);
        let output = command.env("STEPFOLD_STORE", &url).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (String::from_utf8(said).unwrap(), output.status.code().unwrap())
    };
    room.write("a.toml", &clerk("", PAY));
    for reading in ["check a.toml --runs", "sessions a.toml", "agents a.toml", "verify a.toml"] {
        let (said, code) = say(reading);
        assert!(
            said.contains("the database has no stepfold tables") && code == 2,
            "{reading}: {code} {said}"
        );
    }
    let (said, code) = say("run a.toml -s s1 --user ada 'Pay.'");
    assert_eq!(code, 3, "{said}");
    // The hint can be pasted, and does not tell the address.
    assert!(said.contains(r#"--store "$STEPFOLD_STORE""#) && !said.contains("postgres"), "{said}");
    assert!(say("check a.toml --runs").0.contains("ada/s1  unchanged"));
    assert!(say("sessions a.toml --user ada").0.contains("s1"));
    assert!(say("agents a.toml").0.contains("the file of today"), "{}", say("agents a.toml").0);

    room.write("a.toml", &clerk("instructions = \"Be kind.\"\n", PAY));
    let (said, code) = say("check a.toml --runs");
    assert!(said.contains("ada/s1  compatible: instructions is new") && code == 0, "{said}");
    room.write("a.toml", &clerk("", &PAY.replace("idempotent", "at_most_once")));
    let (said, code) = say("check a.toml --runs");
    assert!(said.contains("touched: tool pay: effect changed, and call `c1` is open") && code == 1, "{said}");
    assert!(say("work a.toml --once").1 != 2);

    room.write("a.toml", &clerk("instructions = \"Be kind.\"\n", PAY));
    let (said, code) = say("resume a.toml -s s1 --user ada --approve all");
    assert!(said.contains("It is paid.") && code == 0, "{said}");
    for (command, words) in [
        ("replay a.toml -s s1 --user ada", "same"),
        ("verify a.toml", "no damage found"),
        ("fork a.toml -s s1 --user ada --at 2 --to f1", "f1"),
        ("work a.toml --once", ""),
        ("search a.toml -s s1 --user ada paid", "paid"),
        ("erase a.toml -s f1 --user ada --reason asked", "erased"),
    ] {
        let (said, code) = say(command);
        assert!(said.contains(words) && code == 0, "{command}: {code} {said}");
    }
    assert!(!room.path("data").exists(), "no file was made");
}

/// A wrong address is an error that does not tell its password.
#[test]
fn the_password_of_a_database_is_not_told() {
    let room = Room::new("", SCRIPT);
    room.write("a.toml", &clerk("", PAY));
    for command in ["check a.toml --runs", "work a.toml --once", "agents a.toml", "run a.toml 'Pay.'"] {
        let said = room.say(&format!("{command} --store postgres://ada:hunter2@127.0.0.1:1/agents"), "");
        assert!(said.contains("the PostgreSQL store could not be opened"), "{said}");
        assert!(!said.contains("hunter2") && said.ends_with("exit 1\n"), "{said}");
    }
    let pairs = room.say("run a.toml 'Pay.' --store 'host=127.0.0.1 port=1 user=ada password=hunter2'", "");
    assert!(
        pairs.contains("the PostgreSQL store could not be opened") && !pairs.contains("hunter2"),
        "{pairs}"
    );
    for address in ["POSTGRES://ada:hunter2@h/a", "postgres:/ada:hunter2@h/a", "mysql://ada:hunter2@h/a"] {
        for command in ["run a.toml 'Pay.'", "check a.toml --runs", "--json sessions a.toml"] {
            let said = room.say(&format!("{command} --store '{address}'"), "");
            assert!(said.contains("not one of PostgreSQL") && !said.contains("hunter2"), "{said}");
        }
    }
    let files = std::fs::read_dir(room.folder()).unwrap();
    assert!(files.into_iter().all(|file| !file.unwrap().path().to_string_lossy().contains("hunter2")));
}

/// A decision approves what was shown, also after another person's look has stored the new question: the short id is refused.
#[test]
fn a_question_that_was_asked_again_needs_its_whole_id() {
    let room = Room::new("", SCRIPT);
    room.write("a.toml", &clerk("when_changed = \"always\"\n", PAY));
    assert!(room.say("run a.toml -s s1 --user ada 'Pay.'", "").contains("exit 3"));
    room.write("a.toml", &clerk("when_changed = \"always\"\n", &PAY.replace("idempotent", "at_most_once")));
    assert!(room.say("resume a.toml -s s1 --user ada", "").contains("exit 3"));
    for given in ["c1", "all"] {
        let said = room.say(&format!("resume a.toml -s s1 --user ada --approve {given}"), "");
        assert!(said.contains("it is asked again as c1#") && said.ends_with("exit 2\n"), "{said}");
    }
}
