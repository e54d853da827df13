//! Generated histories: turns with steps, parallel calls, several user messages in a row, system messages
//! anywhere, no user message; and malformed ones, truncated or with missing pieces.

use proptest::prelude::*;
use stepfold_state_core::chat::{Arguments, Message, Role, ToolCall, ToolResult, Transcript};
use stepfold_trim::{Pins, Trim, token_counter};

pub(super) const TOOLS: [&str; 3] = ["search", "run_sql", "fetch"];

/// A message or a whole step.
pub(super) type Piece = Vec<Message>;

fn text() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "ok",
        "which area has most stalls?",
        "the answer is 42",
        "最多的是三号服务区",
        "",
    ])
    .prop_map(str::to_owned)
}

/// An assistant message with calls, and their results in any order.
pub(super) fn step() -> impl Strategy<Value = Piece> {
    let size = prop::sample::select(vec![0, 0, 0, 40, 200]);
    let calls = prop::collection::vec((prop::sample::select(TOOLS.to_vec()), any::<bool>(), size), 1..5);
    (calls, any::<bool>()).prop_map(|(calls, is_reversed)| {
        let mut reply = Message::new(Role::Assistant);
        let mut results = Vec::new();
        for (position, (tool, failed, size)) in calls.into_iter().enumerate() {
            let id = format!("c{position}");
            reply = reply.with_part(ToolCall::new(&*id, tool, Arguments::default()));
            results.push(Message::tool(match (failed, size) {
                (true, _) => ToolResult::error(id, tool, "timed out"),
                (false, 0) => ToolResult::value(id, tool, position),
                (false, size) => ToolResult::value(id, tool, "stall ".repeat(size)),
            }));
        }
        if is_reversed {
            results.reverse();
        }
        [reply].into_iter().chain(results).collect()
    })
}

fn user() -> impl Strategy<Value = Piece> {
    text().prop_map(|text| vec![Message::user(text)])
}

pub(super) fn system() -> impl Strategy<Value = Piece> {
    text().prop_map(|text| vec![Message::system(text)])
}

fn assistant() -> impl Strategy<Value = Piece> {
    text().prop_map(|text| vec![Message::assistant(text)])
}

fn joined(pieces: Vec<Vec<Piece>>) -> Transcript {
    pieces.into_iter().flatten().flatten().collect()
}

/// A history that passes `check`.
pub(super) fn well_formed() -> impl Strategy<Value = Transcript> {
    let pieces = |piece: BoxedStrategy<Piece>| prop::collection::vec(piece, 0..25);
    let anything = prop_oneof![
        3 => user(), 3 => assistant(), 4 => step(), 1 => system()
    ];
    let long_turns = prop_oneof![1 => user(), 2 => assistant(), 12 => step()];
    let no_user = prop_oneof![2 => assistant(), 3 => step(), 1 => system()];
    let rest = prop_oneof![
        4 => pieces(anything.boxed()),
        3 => pieces(long_turns.boxed()),
        1 => pieces(no_user.boxed()),
    ];
    (prop::collection::vec(system(), 0..3), rest).prop_map(|(lead, rest)| joined(vec![lead, rest]))
}

/// Damages to a history.
#[derive(Clone, Debug)]
enum Damage {
    Cut(prop::sample::Index),
    Remove(prop::sample::Index),
    Swap(prop::sample::Index, prop::sample::Index),
    Orphan(prop::sample::Index),
}

/// A history that may be truncated, or has lost or misplaced messages.
pub(super) fn damaged() -> impl Strategy<Value = Transcript> {
    let index = any::<prop::sample::Index>;
    let damage = prop_oneof![
        1 => index().prop_map(Damage::Cut),
        3 => index().prop_map(Damage::Remove),
        2 => (index(), index()).prop_map(|(one, other)| Damage::Swap(one, other)),
        2 => index().prop_map(Damage::Orphan),
    ];
    (well_formed(), prop::collection::vec(damage, 1..6)).prop_map(|(history, damages)| {
        let mut messages: Vec<_> = history.iter().cloned().collect();
        for damage in damages.into_iter().filter(|_| !history.is_empty()) {
            let length = messages.len().max(1);
            match damage {
                Damage::Cut(at) => messages.truncate(at.index(length)),
                Damage::Orphan(at) => {
                    let orphan = ToolResult::value("c0", "search", 1);
                    messages.insert(at.index(length).min(messages.len()), Message::tool(orphan).into());
                }
                _ if messages.is_empty() => {}
                Damage::Remove(at) => drop(messages.remove(at.index(length))),
                Damage::Swap(one, other) => messages.swap(one.index(length), other.index(length)),
            }
        }
        messages.into_iter().collect()
    })
}

fn pins() -> impl Strategy<Value = Pins> {
    let tools = prop::collection::vec(prop::sample::select(TOOLS.to_vec()), 0..3);
    (0..12_usize, any::<bool>(), any::<bool>(), tools).prop_map(|(messages, counts_pinned, users, tools)| {
        let pins = if counts_pinned { Pins::messages(messages) } else { Pins::up_to(messages) };
        let pins = pins.results_of(tools);
        if users { pins } else { pins.without_users() }
    })
}

/// One policy.
pub(super) fn policy() -> impl Strategy<Value = Trim> {
    prop_oneof![
        3 => (0..20_usize).prop_map(Trim::keep_last),
        3 => (0..20_usize, pins()).prop_map(|(count, pins)| Trim::keep_last(count).with_pins(pins)),
        2 => (0..10_usize, 0..30_usize, prop::option::of(pins())).prop_map(|(count, over, pins)| {
            let trim = Trim::keep_last(count).when_over(over);
            pins.into_iter().fold(trim, Trim::with_pins)
        }),
        2 => (0..4_usize, 0..60_usize, prop::option::of(pins())).prop_map(|(steps, tokens, pins)| {
            pins.into_iter().fold(Trim::clear_results(steps, tokens), Trim::with_pins)
        }),
        2 => (0..300_usize).prop_map(Trim::max_tokens),
        2 => (0..20_usize).prop_map(Trim::cap_messages),
        1 => (0..300_usize).prop_map(Trim::cap_tokens),
        1 => (0..30_usize).prop_map(|tokens| Trim::cap_tokens(tokens).counted_by(ones())),
    ]
}

/// A chain of policies.
pub(super) fn trim() -> impl Strategy<Value = Trim> {
    prop_oneof![
        3 => policy(),
        2 => prop::collection::vec(policy(), 0..4)
            .prop_map(|policies| policies.into_iter().fold(Trim::none(), Trim::then)),
    ]
}

/// Counts one token for each message.
pub(super) fn ones() -> impl stepfold_trim::TokenCounter + 'static {
    token_counter("ones", |_| 1)
}

pub(super) fn lead(log: &Transcript) -> usize {
    log.iter().take_while(|message| message.role() == Role::System).count()
}

pub(super) fn last_user(log: &Transcript) -> Option<usize> {
    log.turn_start(log.len())
}
