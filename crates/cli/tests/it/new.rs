//! A first agent, completions and manual pages.

use std::fs;
use std::path::Path;
use std::process::Command;

use expect_test::expect;

use crate::room::Room;

#[test]
fn a_new_agent_runs_at_once_and_its_test_passes() {
    let room = Room::new("", "");
    room.check(
        "new tasks",
        expect![[r#"
            tasks/agent.toml
            tasks/agent.script
            tasks/test.sh
            | try it: cd tasks && stepfold run agent.toml 'Remind me to buy tea.'
        "#]],
    );
    let agent = "tasks/agent.toml --session monday";
    let said = room.say(&format!("run {agent} 'Remind me to buy tea.'"), "");
    assert!(said.starts_with("Noted: buy tea.\n"), "{said}");
    let said = room.say(&format!("run {agent} 'Send the list to Ada.'"), "");
    assert!(said.contains("decide about c2#DIGEST: send_list {\"to\":\"Ada\"}"), "{said}");
    // The test finds the command in PATH.
    let command = Path::new(env!("CARGO_BIN_EXE_stepfold")).parent().unwrap();
    let test = Command::new("sh")
        .arg(room.path("tasks/test.sh"))
        .env("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin", command.display()))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&test.stdout);
    assert!(test.status.success() && said.ends_with("test.sh: ok\n"), "{test:?}");
    // And it fails where the agent does something else.
    fs::write(room.path("tasks/agent.script"), "assistant: No.").unwrap();
    let path = format!("{}:/usr/local/bin:/usr/bin:/bin", command.display());
    let test = Command::new("sh").arg(room.path("tasks/test.sh")).env("PATH", path).output().unwrap();
    assert!(!test.status.success(), "{test:?}");
}

#[test]
fn a_new_folder_is_new() {
    let room = Room::new("", "");
    room.say("new tasks", "");
    room.write("tasks/agent.toml", "mine");
    for line in ["new tasks", "new tasks --rust", "new a.toml"] {
        let said = room.say(line, "");
        assert!(said.contains("already exists") && said.ends_with("exit 2\n"), "{line}: {said}");
    }
    assert_eq!(fs::read_to_string(room.path("tasks/agent.toml")).unwrap(), "mine");
    let said = room.say("new gone/tasks", "");
    assert!(said.contains("folder gone/tasks could not be created") && said.ends_with("exit 1\n"), "{said}");
    assert_eq!(room.json("--json new more")["files"][0], "agent.toml");
}

#[test]
fn a_new_program_names_its_crate_and_the_library() {
    let room = Room::new("", "");
    room.check(
        "new my-tasks --rust",
        expect![[r#"
            my-tasks/Cargo.toml
            my-tasks/src/main.rs
            | try it: cd my-tasks && cargo run
        "#]],
    );
    let manifest = fs::read_to_string(room.path("my-tasks/Cargo.toml")).unwrap();
    let read: toml::Table = manifest.parse().unwrap();
    assert_eq!(read["package"]["name"].as_str(), Some("my-tasks"));
    let library = read["dependencies"]["stepfold"]["path"].as_str().unwrap();
    assert!(Path::new(library).join("Cargo.toml").exists(), "{manifest}");
    for name in ["stepfold", "1st", "a.b"] {
        let said = room.say(&format!("new {name} --rust"), "");
        assert!(said.contains("invalid name") && said.ends_with("exit 2\n"), "{said}");
        assert!(!room.path(name).exists());
    }
}

#[test]
fn completions_and_manual_pages_know_all_commands() {
    let room = Room::new("", "");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let said = room.say(&format!("completions {shell}"), "");
        assert!(said.contains("when-claimed") && said.contains("rewind"), "{shell}: {said}");
    }
    assert!(room.say("completions tcl", "").ends_with("exit 2\n"));
    let said = room.say("man pages", "");
    assert!(said.starts_with("pages; "), "{said}");
    let help = room.say("--help", "");
    let commands = help.split_once("Commands:\n").unwrap().1.split_once("\n\n").unwrap().0;
    let commands = commands.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let commands: Vec<&str> = commands.map(|line| line.split_whitespace().next().unwrap()).collect();
    assert!(commands.len() > 20, "{commands:?}");
    for command in commands.iter().filter(|command| **command != "help") {
        let page = fs::read_to_string(room.path(&format!("pages/stepfold-{command}.1"))).unwrap();
        assert!(page.contains(".SH SYNOPSIS"), "{command}: {page}");
    }
    assert!(room.path("pages/stepfold.1").exists());
}
