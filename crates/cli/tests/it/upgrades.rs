//! A file that is changed under runs that wait: what `check --runs` says, and what continues.

use expect_test::expect;

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
        {"session":"s2","status":"compatible","user":"ada","version":2,"words":["instructions is new"]}
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
    room.check(
        "resume a.toml -s s2 --user ada --approve all",
        expect![[r#"
        It is paid.
        | session s2
        | continues with "Pay the bill.", which waits in step 1 for a decision about c1#DIGEST
        | > c1 pay(euro=5)
        |   c1: paid
    "#]],
    );
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
        a.toml:2:1: expected one of refuse, compatible, always
        exit 2
    "#]],
    );
}
