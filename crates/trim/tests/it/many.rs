//! The laws that providers and the model depend on, over a hundred thousand histories: a fault that one in ten thousand
//! shows is found. Made without proptest, which takes a millisecond for a history.

use std::collections::HashMap;
use std::sync::Arc;

use fastrand::Rng;
use stepfold_state_core::chat::{Arguments, Message, Role, ToolCall, ToolResult, Transcript};
use stepfold_trim::{Pins, Trim, View, Window};

use crate::histories::{TOOLS, last_user, lead};

const HISTORIES: u64 = 100_000;

/// Fewer where few cases of each property are requested.
#[expect(
    clippy::disallowed_methods,
    reason = "the number of cases is set in the environment, as that of properties"
)]
fn histories() -> u64 {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    cases.filter(|cases: &u64| *cases < 100).map_or(HISTORIES, |cases| cases * 100)
}

/// The tool that reads cleared results.
const READER: &str = "recall_read";
const PINNED: [&str; 2] = ["run_sql", "fetch"];

/// Before a turn, by any trim, and at each step of the last turn, within any window.
#[test]
fn a_hundred_thousand_histories_are_shown_well() {
    let mut pool = MessagePool::default();
    for seed in 0..histories() {
        let shown = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| show(seed, &mut pool)));
        assert!(shown.is_ok(), "history {seed}");
    }
}

fn show(seed: u64, pool: &mut MessagePool) {
    let random = &mut Rng::with_seed(seed);
    let log = history(random, pool);
    let trim = trim(random);
    check_view(&log, &trim.view(&log).with_reader(&log, READER));
    check_turn(&log, &trim, &window(random));
    let pins = Pins::messages(log.len()).results_of(PINNED);
    let pinning = Trim::keep_last(random.usize(..20)).then(clear_results(random)).with_pins(pins);
    check_pinned(&log, &pinning.view(&log));
    let most = random.usize(..12);
    let pins = if random.bool() { Pins::up_to(most) } else { Pins::messages(most) };
    let pinning = Trim::keep_last(random.usize(..10)).with_pins(pins.results_of(PINNED));
    check_newest(&log, &pinning.view(&log));
}

/// The view is well-formed, opens with a user message if anything was dropped before one, and shows each message as it is or
/// as a line by which recall reads it.
fn check_view(log: &Transcript, view: &View) {
    let shown = view.transcript();
    assert_eq!(shown.check(), Ok(()), "{view}");
    if last_user(log).is_some() && view.dropped() > 0 {
        assert_eq!(shown.get(lead(shown)).map(|message| message.role()), Some(Role::User), "{view}");
    }
    for (index, message) in view.kept().indexes().zip(shown.iter()) {
        let original = log.get(index).unwrap();
        if view.cleared().contains(index) {
            assert_eq!(read_by_recall(log, message), Some(index), "{index} of {view}");
            assert_eq!(of_call(message), of_call(original), "{index} of {view}");
        } else {
            assert!(Arc::ptr_eq(message, original), "{index} of {view}");
        }
    }
}

/// The call of a result, its tool, and whether it failed.
fn of_call(message: &Message) -> Option<(&str, &str, bool)> {
    message.tool_result().map(|result| (result.call_id(), result.name(), result.is_error()))
}

/// The index of the result that recall reads, called as the line says: the newest of that call.
fn read_by_recall(log: &Transcript, line: &Message) -> Option<usize> {
    let text = line.tool_result()?.text();
    let (_, call) = text.split_once("recall_read(call_id=")?;
    let id: String = serde_json::from_str(call.strip_suffix(") reads it.]")?).ok()?;
    let is_it = |message: &Message| message.tool_result().is_some_and(|result| result.call_id() == id);
    log.iter().rposition(|message| is_it(message))
}

/// The steps of the last turn, one after the other; without a user message, all steps.
fn check_turn(log: &Transcript, trim: &Trim, window: &Window) {
    let turn_start = last_user(log).unwrap_or_default();
    let mut grown: Transcript = log.iter().take(block_end(log, turn_start)).cloned().collect();
    let view = trim.view(&grown).with_reader(&grown, READER);
    let cleared_before = view.cleared().clone();
    let mut turn = window.resume(view, &grown, turn_start);
    let mut left_out = None;
    loop {
        if window.pins().is_some() {
            let cleared = turn.view().cleared().indexes().filter(|index| !cleared_before.contains(*index));
            let pinned =
                cleared.filter(|index| grown.get(*index).is_some_and(|message| has_pinned_result(message)));
            assert_eq!(pinned.collect::<Vec<usize>>(), Vec::<usize>::new(), "{}", turn.view());
        }
        let now = (turn.view().dropped(), turn.view().cleared().len());
        // Otherwise it has only grown.
        if left_out.replace(now) != Some(now) || grown.len() == log.len() {
            check_view(&grown, turn.view());
        }
        if grown.len() == log.len() {
            return;
        }
        let end = block_end(log, grown.len());
        grown.extend(log.iter_from(grown.len()).take(end - grown.len()).cloned());
        turn.grow(&grown);
    }
}

/// The end of a message with the results after it.
fn block_end(log: &Transcript, start: usize) -> usize {
    start + 1 + log.iter_from(start + 1).take_while(|message| message.role() == Role::Tool).count()
}

/// Pinned messages are shown as they are, from the first user message on: nothing before it can open a conversation.
fn check_pinned(log: &Transcript, view: &View) {
    let first_user = log.iter().position(|message| message.role() == Role::User).unwrap_or(log.len());
    let shown = view.shown_in_full();
    for (index, message) in (first_user..log.len()).zip(log.iter_from(first_user)) {
        if message.role() == Role::User || has_pinned_result(message) {
            assert!(shown.contains(index), "{index} of {view}");
        }
    }
}

fn has_pinned_result(message: &Message) -> bool {
    message.tool_result().is_some_and(|result| PINNED.contains(&result.name()))
}

/// Of what is pinned the newest is shown: nothing older than a step that is left out, but for the user message that opens the
/// view.
fn check_newest(log: &Transcript, view: &View) {
    let opening = view.kept().indexes().find(|index| *index >= lead(log));
    let (mut left_out, mut end) = (None, log.len());
    while end > lead(log) {
        let start = log.step_start(end - 1);
        let mut messages = log.iter_from(start).take(end - start);
        if messages.any(|message| message.role() == Role::User || has_pinned_result(message)) {
            match view.kept().contains(start) {
                true => assert!(left_out.is_none() || Some(start) == opening, "{left_out:?} of {view}"),
                false => left_out = left_out.or(Some(start)),
            }
        }
        end = start;
    }
}

/// The messages that histories share: to make them is most of the time.
#[derive(Default)]
struct MessagePool {
    texts: HashMap<(Role, usize), Arc<Message>>,
    results: HashMap<(usize, &'static str, usize), Arc<Message>>,
}

const TEXTS: [&str; 5] = ["ok", "which area has most stalls?", "the answer is 42", "最多的是三号服务区", ""];

impl MessagePool {
    fn text(&mut self, role: Role, random: &mut Rng) -> Arc<Message> {
        let text = random.usize(..TEXTS.len());
        let new = || Message::new(role).with_part(TEXTS[text]);
        Arc::clone(self.texts.entry((role, text)).or_insert_with(|| new().into()))
    }

    /// The result of a call: a word, a long text, or an error.
    fn result(&mut self, call: usize, tool: &'static str, random: &mut Rng) -> Arc<Message> {
        let kind = random.usize(..6);
        let new = || match (id(call), kind) {
            (id, 0) => ToolResult::error(id, tool, "timed out"),
            (id, 1) => ToolResult::error(id, tool, "no such stall ".repeat(30)),
            (id, 2..4) => ToolResult::value(id, tool, call),
            (id, kind) => ToolResult::value(id, tool, "stall ".repeat(40 * (kind - 3))),
        };
        Arc::clone(self.results.entry((call, tool, kind)).or_insert_with(|| Message::tool(new()).into()))
    }
}

/// As runs make them: no two calls have one id. Some ids have to be escaped in a line.
fn id(call: usize) -> String {
    if call % 7 == 3 { format!("c\"{call}\\") } else { format!("c{call}") }
}

/// Turns with steps, several user messages in a row, system messages anywhere; long turns; no user message.
fn history(random: &mut Rng, pool: &mut MessagePool) -> Transcript {
    let mut log: Vec<Arc<Message>> = Vec::new();
    log.extend((0..random.usize(..3)).map(|_| pool.text(Role::System, random)));
    let [user, assistant, step, system] =
        [[3, 3, 4, 1], [3, 3, 4, 1], [1, 2, 12, 0], [0, 2, 3, 1]][random.usize(..4)];
    let mut calls = 0;
    for _ in 0..random.usize(..14) {
        match random.usize(..user + assistant + step + system) {
            place if place < user => log.push(pool.text(Role::User, random)),
            place if place < user + assistant => log.push(pool.text(Role::Assistant, random)),
            place if place < user + assistant + step => add_step(&mut log, &mut calls, random, pool),
            _ => log.push(pool.text(Role::System, random)),
        }
    }
    log.into_iter().collect()
}

/// An assistant message with calls, and their results in any order.
fn add_step(log: &mut Vec<Arc<Message>>, calls: &mut usize, random: &mut Rng, pool: &mut MessagePool) {
    let first = *calls;
    *calls += random.usize(1..5);
    let mut reply = Message::new(Role::Assistant);
    let mut results = Vec::new();
    for call in first..*calls {
        let tool = TOOLS[random.usize(..TOOLS.len())];
        reply = reply.with_part(ToolCall::new(id(call), tool, Arguments::default()));
        results.push(pool.result(call, tool, random));
    }
    random.shuffle(&mut results);
    log.push(reply.into());
    log.extend(results);
}

fn trim(random: &mut Rng) -> Trim {
    (0..random.usize(..3)).fold(Trim::none(), |trim, _| trim.then(policy(random)))
}

fn policy(random: &mut Rng) -> Trim {
    let policy = match random.u8(..6) {
        0 => Trim::keep_last(random.usize(..20)),
        1 => Trim::keep_last(random.usize(..10)).when_over(random.usize(..30)),
        2 => clear_results(random),
        3 => Trim::max_tokens(random.usize(..600)),
        4 => Trim::cap_messages(random.usize(..20)),
        _ => Trim::cap_tokens(random.usize(..600)),
    };
    let most = random.usize(..12);
    match random.u8(..4) {
        0 => policy.with_pins(Pins::up_to(most).results_of(PINNED)),
        1 => policy.with_pins(Pins::messages(most).results_of(PINNED).without_users()),
        _ => policy,
    }
}

fn clear_results(random: &mut Rng) -> Trim {
    Trim::clear_results(random.usize(..4), random.usize(..60))
}

fn window(random: &mut Rng) -> Window {
    let window = Window::new(random.usize(..800)).shrink_to_percent(random.u8(..=100));
    match random.u8(..4) {
        0 | 1 => window,
        2 => window.clear_results(random.usize(..4)),
        _ => window.clear_results(random.usize(..4)).with_pins(Pins::up_to(0).results_of(PINNED)),
    }
}
