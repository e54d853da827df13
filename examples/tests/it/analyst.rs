//! What is written in `conversation.txt` is what comes of it: the results of the tools stand there as well.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::{printed, without_keys};

const CONVERSATION: &str = include_str!("../../analyst/conversation.txt");

fn analyst(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = without_keys(env!("CARGO_BIN_EXE_analyst"));
    command.arg("--folder").arg(folder).args(arguments);
    command
}

fn run(folder: &Path, arguments: &[&str]) -> Result<String, String> {
    printed(analyst(folder, arguments))
}

#[track_caller]
fn transcript(folder: &Path, session: &str) -> String {
    run(folder, &["--session", session, "--transcript"]).unwrap()
}

/// Starts it and kills it (SIGKILL) when it has printed so many lines. Whether it was still at work.
fn run_and_kill(folder: &Path, lines: usize) -> bool {
    let arguments = ["--session", "s", "--delay", "5"];
    let mut child = analyst(folder, &arguments).stdout(Stdio::piped()).spawn().unwrap();
    let mut printed = BufReader::new(child.stdout.take().unwrap()).lines();
    let is_at_work =
        printed.by_ref().take(lines).all(|line| !line.unwrap().starts_with("The session s is in"));
    child.kill().unwrap();
    child.wait().unwrap();
    is_at_work
}

#[test]
fn it_answers_from_the_database_and_says_that_no_model_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let printed = run(folder.path(), &[]).unwrap();
    assert!(printed.starts_with("There is no model here"), "{printed}");
    for expected in [
        "  ~ last_query unset -> \"SELECT",
        "  ~ app:queries 0 -> 1",
        "  ⋯ the model is shown less",
        "  c12!: this is refused",
        "analyst: The United States, with 29 zones.",
        " --inspect",
    ] {
        assert!(printed.contains(expected), "{expected} is not in:\n{printed}");
    }
    // The results of the tools are those that were written down, from the database as it is.
    assert_eq!(transcript(folder.path(), "replay-1"), CONVERSATION);
}

#[test]
fn killed_again_and_again_it_continues_where_it_stopped() {
    let folder = tempfile::tempdir().unwrap();
    // Each time after a few lines: within words, calls and commits, as it comes.
    let kills = (0..60).take_while(|kill| run_and_kill(folder.path(), 7 + kill % 5)).count();
    assert!((6..60).contains(&kills), "it was killed {kills} times");
    let printed = run(folder.path(), &["--session", "s"]).unwrap();
    assert!(printed.contains("another process may continue it"), "{printed}");
    assert_eq!(transcript(folder.path(), "s"), CONVERSATION);
    // Each query is counted once, however often it was interrupted.
    let inspected = run(folder.path(), &["--session", "s", "--inspect"]).unwrap();
    assert!(inspected.contains("\n  app:queries = 3\n"), "{inspected}");
    // Calls that end by the same poll are one commit: how many there are depends on the moments.
    let listed = run(folder.path(), &["--list"]).unwrap();
    assert!(listed.starts_with("s (version ") && listed.lines().count() == 1, "{listed}");
}

#[test]
fn a_fork_from_the_middle_of_a_turn_has_the_same_end() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), &[]).unwrap();
    let printed = run(folder.path(), &["--session", "replay-1", "--fork", "6"]).unwrap();
    assert!(printed.contains("replay-1-from-6 shares the past of replay-1 up to version 6"), "{printed}");
    assert!(CONVERSATION.starts_with(&transcript(folder.path(), "replay-1-from-6")));
    let printed = run(folder.path(), &["--session", "replay-1-from-6"]).unwrap();
    assert!(printed.contains("replay-1-from-6 continues with \""), "{printed}");
    assert_eq!(transcript(folder.path(), "replay-1-from-6"), CONVERSATION);
}

#[test]
fn the_newest_unfinished_session_continues_and_a_fork_is_one() {
    let folder = tempfile::tempdir().unwrap();
    let sessions = || {
        let listed = run(folder.path(), &["--list"]).unwrap();
        let mut names: Vec<String> =
            listed.lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect();
        names.sort();
        names
    };
    run(folder.path(), &[]).unwrap();
    let printed = run(folder.path(), &["--fork", "16"]).unwrap();
    let command = format!("\n  cargo analyst --folder {}  ", folder.path().display());
    assert!(printed.contains(&command) && printed.contains("  # continue with the written conversation\n"));
    // A conversation of one's own is not the written one, and is left alone.
    run(folder.path(), &["--session", "own", "What is the meaning of life?"]).unwrap_err();
    run(folder.path(), &[]).unwrap();
    assert_eq!(transcript(folder.path(), "replay-1-from-16"), CONVERSATION);
    assert_eq!(sessions(), ["own", "replay-1", "replay-1-from-16"]);
    let printed = run(folder.path(), &[]).unwrap();
    assert!(!printed.contains("# continue with the written conversation"), "{printed}");
    assert_eq!(sessions(), ["own", "replay-1", "replay-1-from-16", "replay-2"]);
}

#[test]
fn an_interrupt_says_that_all_is_stored_and_what_continues() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = analyst(folder.path(), &["--delay", "20"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut printed = BufReader::new(child.stdout.take().unwrap()).lines();
    printed.by_ref().take(4).for_each(|line| drop(line.unwrap()));
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    printed.for_each(|line| drop(line.unwrap()));
    let ended = child.wait_with_output().unwrap();
    let again = format!("cargo analyst --folder {}", folder.path().display());
    let expected = format!("\nStored. Run `{again}` again: it continues here. (exit status 130)\n");
    assert_eq!(String::from_utf8(ended.stderr).unwrap(), expected);
    assert_eq!(ended.status.code(), Some(130));
    run(folder.path(), &[]).unwrap();
    assert_eq!(transcript(folder.path(), "replay-1"), CONVERSATION);
}

#[test]
fn a_stop_names_the_command_that_continues() {
    let folder = tempfile::tempdir().unwrap();
    let printed = run(folder.path(), &["--picture", "200"]).unwrap();
    let expected = "press Ctrl-C, or `kill -9 4711` elsewhere, and run `cargo analyst` again";
    assert!(printed.contains(expected), "{printed}");
}

#[test]
fn a_reader_that_has_enough_is_no_failure() {
    let folder = tempfile::tempdir().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = analyst(folder.path(), &["--session", "s"])
        .stdout(writer.try_clone().unwrap())
        .stderr(writer)
        .status();
    assert!(status.unwrap().success());
    assert_eq!(transcript(folder.path(), "s"), CONVERSATION);
}

#[test]
fn preferences_are_the_users_in_every_session() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), &[]).unwrap();
    let printed =
        run(folder.path(), &["--session", "new", "Which country has the most time zones?"]).unwrap();
    assert!(printed.contains("with 29 zones"), "{printed}");
    let of = |user: &str| run(folder.path(), &["--user", user, "--session", "new", "--inspect"]).unwrap();
    assert!(of("you").contains("user:preferences = [\"answer in one sentence"), "{}", of("you"));
    assert!(!of("somebody").contains("user:preferences = [\"answer"), "{}", of("somebody"));
}

#[test]
fn what_cannot_be_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let error = run(folder.path(), &["What is the meaning of life?"]).unwrap_err();
    assert!(error.contains("this is not in the written conversation"), "{error}");
    let error = run(folder.path(), &["--model", "nobody:x"]).unwrap_err();
    let expected = if cfg!(feature = "live") { "provider `nobody`" } else { "the feature `live`" };
    assert!(error.contains(expected), "{error}");
}

#[test]
#[cfg(feature = "live")]
fn what_one_model_did_not_answer_another_one_does() {
    let folder = tempfile::tempdir().unwrap();
    let question = "Which country has the most time zones?";
    // No server listens there.
    let nobody = ["--model", "http://127.0.0.1:1/v1#x", "--session", "s", question];
    let error = run(folder.path(), &nobody).unwrap_err();
    assert!(error.contains("127.0.0.1:1"), "{error}");
    let printed = run(folder.path(), &["--session", "s"]).unwrap();
    let restart = format!(
        "The session s continues with \"{question}\", interrupted in step 1 before the model had answered."
    );
    assert!(printed.contains(&restart), "{printed}");
    assert_eq!(transcript(folder.path(), "s"), CONVERSATION);
}
