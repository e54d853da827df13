//! What `docs/cli.md` shows is true: its agent files are sound, and its commands say what it says they do.
//!
//! With `UPDATE_EXPECT=1` the page is written again from what the commands say.

use std::fmt::Write as _;

use expect_test::expect_file;

use crate::room::Room;

#[test]
fn the_page_about_the_command_is_true() {
    let room = Room::new("", "");
    let page = include_str!("../../../../docs/cli.md");
    let (mut told, mut commands) = (String::new(), 0);
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        told.extend([line, "\n"]);
        let Some(words) = line.strip_prefix("```") else { continue };
        let inside: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        let mut block = format!("{}\n", inside.join("\n"));
        match words.split_once(' ') {
            // A file of this name, for the commands below it.
            Some((_, name)) => room.write(name, &block),
            None if words == "toml" => {
                room.write("block.toml", &block);
                let said = room.say("check block.toml", "");
                assert!(said.lines().count() == 1 && said.starts_with("block.toml: ok"), "{said}{block}");
            }
            None if words == "console" => {
                block.clear();
                for line in inside.iter().filter_map(|line| line.strip_prefix("$ stepfold ")) {
                    let _ = write!(block, "$ stepfold {line}\n{}", room.say_in_order(line));
                    commands += 1;
                }
            }
            None => {}
        }
        told.extend([&*block, "```\n"]);
    }
    assert!(commands > 5, "the page shows commands");
    expect_file!["../../../../docs/cli.md"].assert_eq(&told);
}

/// The page names each handler: those that an error about an unknown one lists.
#[test]
fn the_page_about_the_command_names_all_handlers() {
    let room = Room::new("[state.a]\ntype = \"array\"\nhandler = \"no such handler\"", "");
    let said = room.say("check a.toml", "");
    let listed = said.split_once("handlers: ").unwrap_or_else(|| panic!("{said}")).1;
    let listed = listed.split_once(" at ").unwrap().0;
    let page = include_str!("../../../../docs/cli.md");
    let handlers: Vec<&str> = listed.split(", ").map(|name| name.split('(').next().unwrap()).collect();
    assert!(handlers.len() >= 10, "{listed}");
    for handler in handlers {
        assert!(
            page.contains(&format!("`{handler}`")) || page.contains(&format!("`{handler}(")),
            "{handler}"
        );
    }
}
