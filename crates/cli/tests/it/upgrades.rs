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
    room.check("check a.toml --runs", expect![[]]);
    // Another prompt is ahead of both.
    room.write("a.toml", &clerk("instructions = \"Be brief.\"", PAY));
    room.check("check a.toml --runs", expect![[]]);
    room.check("resume a.toml -s s1 --user ada --approve all", expect![[]]);
    room.check("check a.toml --runs --json", expect![[]]);
    // A tool that runs once where it could be repeated touches the call that waits.
    room.write("a.toml", &clerk("", &PAY.replace("idempotent", "at_most_once")));
    room.check("check a.toml --runs", expect![[]]);
    room.check("resume a.toml -s s2 --user ada", expect![[]]);
    room.write("a.toml", &clerk("when_changed = \"refuse\"\ninstructions = \"Be kind.\"", PAY));
    room.check("resume a.toml -s s2 --user ada", expect![[]]);
    room.write("a.toml", &clerk("when_changed = \"always\"", &PAY.replace("idempotent", "at_most_once")));
    room.check("resume a.toml -s s2 --user ada --approve all", expect![[]]);
    room.check("inspect a.toml -s s2 --user ada", expect![[]]);
    room.write("a.toml", &clerk("when_changed = \"sometimes\"", PAY));
    room.check("check a.toml --runs", expect![[]]);
}
