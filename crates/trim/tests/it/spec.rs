//! Worked examples of trimming a LangGraph ReAct agent's messages (LangChain 1.x `trim_messages`).

use stepfold_state_core::chat::{Arguments, Message, Role, ToolCall, ToolResult, Transcript};
use stepfold_trim::{Pins, Trim};

/// Messages of a conversation: user messages at these indexes, a step of two messages directly after each
/// index of `calls`, plain replies elsewhere.
fn conversation(length: usize, users: &[usize], calls: &[usize]) -> Transcript {
    (0..length)
        .map(|index| match index {
            _ if users.contains(&index) => Message::user(format!("question at {index}")),
            _ if calls.contains(&index) => Message::new(Role::Assistant).with_part(ToolCall::new(
                "c1",
                "generate_sql",
                Arguments::default(),
            )),
            _ if index > 0 && calls.contains(&(index - 1)) => {
                Message::tool(ToolResult::value("c1", "generate_sql", "SELECT 1"))
            }
            _ => Message::assistant(format!("reply at {index}")),
        })
        .collect()
}

fn kept(trim: &Trim, log: &Transcript) -> String {
    assert_eq!(log.check(), Ok(()));
    trim.view(log).kept().to_string()
}

/// "120 messages; the last 100 begin at index 20, which is a user message: 100 are kept."
#[test]
fn user_at_20_keeps_100() {
    let log = conversation(120, &[20, 101], &[99]);
    let view = Trim::keep_last(100).view(&log);
    assert_eq!((view.kept().to_string().as_str(), view.transcript().len()), ("20..120", 100));
}

/// "The last 100 begin at index 20, a message of a step; the nearest user message before is at 18: 102 are
/// kept."
#[test]
fn users_at_18_and_101_keep_102() {
    let log = conversation(120, &[18, 101], &[19]);
    let view = Trim::keep_last(100).view(&log);
    assert_eq!((view.kept().to_string().as_str(), view.transcript().len()), ("18..120", 102));
    assert_eq!(view.transcript().first().unwrap().text(), "question at 18");
}

/// "If there are no more than that, nothing needs to be trimmed."
#[test]
fn up_to_100_are_unchanged() {
    let log = conversation(100, &[50], &[]);
    assert!(Trim::keep_last(100).view(&log).transcript().ptr_eq(&log));
}

/// `smart_trim_for_sql_workflow`: the last 20, and of what is older questions and results of the SQL tools,
/// at most 80. Here with the calls that those results answer.
#[test]
fn smart_trim_for_sql_workflow() {
    let trim =
        Trim::keep_last(20).with_pins(Pins::up_to(80).results_of(["generate_sql", "valid_sql", "run_sql"]));
    let users: Vec<usize> = (0..120).step_by(10).collect();
    let calls: Vec<usize> = (3..120).step_by(10).collect();
    let log = conversation(120, &users, &calls);
    let pinned = |turn| format!("{turn}0..{turn}1, {turn}3..{turn}5").replace("00..01, 03..05", "0..1, 3..5");
    assert_eq!(
        kept(&trim, &log),
        format!("{}, 100..120", (0..10).map(pinned).collect::<Vec<_>>().join(", "))
    );

    // No more than 80 of them: here every older message is pinned, and the last 80 of these stay.
    let users: Vec<usize> = (0..120).collect();
    let log = conversation(120, &users, &[]);
    assert_eq!(kept(&trim, &log), "20..120");
}

/// The same with its threshold and its count: untouched up to 100 messages; beyond, all that the described code keeps.
#[test]
fn smart_trim_with_its_threshold_and_its_count() {
    let tools = ["generate_sql", "valid_sql", "run_sql"];
    let trim = Trim::keep_last(20).when_over(100).with_pins(Pins::messages(80).results_of(tools));
    let users: Vec<usize> = (0..101).step_by(3).collect();
    let calls: Vec<usize> = (1..100).step_by(3).collect();
    assert_eq!(kept(&trim, &conversation(100, &users, &calls)), "0..100");
    // Of 180 older messages, 60 are questions and 60 results: the last 80 of these stay, with the calls between them.
    let users: Vec<usize> = (0..200).step_by(3).collect();
    let calls: Vec<usize> = (1..199).step_by(3).collect();
    assert_eq!(kept(&trim, &conversation(200, &users, &calls)), "60..200");
}

/// "Keeping one message breaks the tool chain": here the turn is kept.
#[test]
fn keeping_one_message_keeps_the_turn() {
    let log = conversation(8, &[0, 4], &[1, 5]);
    assert_eq!(kept(&Trim::keep_last(1), &log), "4..8");
}
