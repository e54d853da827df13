//! The cost of trimming: `cargo bench -p stepfold-trim --bench trim`.
//!
//! Histories are turns of ten messages: a question, four steps of a call and its result, a reply. The figures
//! are per call, once a turn; `within_a_turn` is per step.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on should stop")]

use divan::{Bencher, black_box};
use serde_json::json;
use stepfold_state_core::chat::{Message, Role, ToolCall, ToolResult, Transcript};
use stepfold_trim::{ApproximateTokens, Pins, TokenCounter, Trim, View, Window};

const LENGTHS: [usize; 3] = [100, 1_000, 10_000];
const REPLY: &str = "Area 3 has the most stalls: 42 of 120. It is open on weekends from 8 to 22.";

fn main() {
    divan::main();
}

fn history(length: usize) -> Transcript {
    let message = |index: usize| match index % 10 {
        0 => Message::user("which service area has the most stalls, and is it open on weekends?"),
        9 => Message::assistant(REPLY),
        position if position % 2 == 1 => Message::new(Role::Assistant).with_part(ToolCall::new(
            format!("c{index}"),
            "run_sql",
            json!({"query": "SELECT area, count(*) FROM stalls GROUP BY area ORDER BY 2 DESC"}),
        )),
        _ => Message::tool(ToolResult::value(
            format!("c{}", index - 1),
            "run_sql",
            json!([{"area": 3, "count": 42}, {"area": 7, "count": 40}]),
        )),
    };
    (0..length).map(message).collect()
}

fn bench(bencher: Bencher<'_, '_>, length: usize, trim: &Trim) {
    // Half a turn more, so that windows do not open with a user message by chance.
    let log = history(length + 5);
    bencher.bench_local(|| trim.view(black_box(&log)));
}

#[divan::bench(args = LENGTHS)]
fn unchanged(bencher: Bencher<'_, '_>, length: usize) {
    bench(bencher, length, &Trim::keep_last(20_000));
}

#[divan::bench(args = LENGTHS)]
fn keep_last_50(bencher: Bencher<'_, '_>, length: usize) {
    bench(bencher, length, &Trim::keep_last(50));
}

#[divan::bench(args = LENGTHS)]
fn keep_last_half(bencher: Bencher<'_, '_>, length: usize) {
    bench(bencher, length, &Trim::keep_last(length / 2));
}

/// The worst case: no older message is pinned, so all of them are examined.
#[divan::bench(args = LENGTHS)]
fn keep_last_50_with_pins_nowhere(bencher: Bencher<'_, '_>, length: usize) {
    let pins = Pins::up_to(50).results_of(["generate_sql"]).without_users();
    bench(bencher, length, &Trim::keep_last(50).with_pins(pins));
}

#[divan::bench(args = LENGTHS)]
fn keep_last_20_with_30_pins(bencher: Bencher<'_, '_>, length: usize) {
    bench(bencher, length, &Trim::keep_last(20).with_pins(Pins::up_to(30).results_of(["run_sql"])));
}

#[divan::bench(args = LENGTHS)]
fn max_tokens_2000(bencher: Bencher<'_, '_>, length: usize) {
    bench(bencher, length, &Trim::max_tokens(2_000));
}

#[divan::bench(args = LENGTHS)]
fn keep_last_100_then_cap_tokens_2000(bencher: Bencher<'_, '_>, length: usize) {
    bench(bencher, length, &Trim::keep_last(100).then(Trim::cap_tokens(2_000)));
}

/// One turn that is the whole log, cut inside.
#[divan::bench(args = LENGTHS)]
fn cap_inside_one_turn(bencher: Bencher<'_, '_>, length: usize) {
    let steps =
        history(length).iter().filter(|message| message.role() != Role::User).cloned().collect::<Vec<_>>();
    let mut log = Transcript::new().with(Message::user("go"));
    log.extend(steps);
    let trim = Trim::cap_messages(50);
    bencher.bench_local(|| trim.view(black_box(&log)));
}

/// One more step while everything fits: only the step is counted and appended.
#[divan::bench(args = LENGTHS)]
fn within_a_turn(bencher: Bencher<'_, '_>, length: usize) {
    let log = history(length);
    let begun = Window::new(10_000_000).begin(View::whole(&log), &log);
    let grown = history(length + 4);
    let mut log = log;
    log.extend(grown.iter_from(length + 1).take(2).cloned());
    bencher.with_inputs(|| begun.clone()).bench_local_values(|turn| turn.grown(black_box(&log)));
}

/// The step at which the window overflows.
#[divan::bench(args = LENGTHS)]
fn overflow(bencher: Bencher<'_, '_>, length: usize) {
    let log = history(length);
    let tokens = Window::new(usize::MAX).begin(View::whole(&log), &log).tokens();
    let begun = Window::new(tokens).begin(View::whole(&log), &log);
    let mut log = log;
    log.push(Message::assistant(REPLY));
    bencher.with_inputs(|| begun.clone()).bench_local_values(|turn| turn.grown(black_box(&log)));
}

#[divan::bench]
fn approximate_tokens_of_a_kilobyte(bencher: Bencher<'_, '_>) {
    let message = Message::user(REPLY.repeat(14).split_at(1_000).0);
    bencher.bench_local(|| ApproximateTokens.count(black_box(&message)));
}
