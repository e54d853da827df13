//! Laws of every policy and every history.

use std::sync::Arc;

use proptest::prelude::*;
use stepfold_state_core::chat::{Message, Role, ToolResult, Transcript};
use stepfold_trim::{ApproximateTokens, Pins, TokenCounter, Trim, View};

use crate::histories::{self, last_user, lead, ones};

proptest! {
    #[test]
    fn what_is_shown_is_well_formed(log in histories::well_formed(), trim in histories::trim()) {
        prop_assert_eq!(log.check(), Ok(()));
        let view = trim.view(&log);
        prop_assert_eq!(view.transcript().check(), Ok(()));
    }

    #[test]
    fn what_is_shown_is_part_of_the_log(log in histories::well_formed(), trim in histories::trim()) {
        let view = trim.view(&log);
        let kept: Vec<_> = view.kept().indexes().map(|index| Arc::clone(log.get(index).unwrap())).collect();
        prop_assert_eq!(view.transcript().len(), kept.len());
        for ((index, shown), kept) in view.kept().indexes().zip(view.transcript().iter()).zip(&kept) {
            prop_assert_eq!(Arc::ptr_eq(shown, kept), !view.cleared().contains(index));
        }
        prop_assert_eq!(view.kept().len() + view.dropped(), log.len());
        prop_assert_eq!(view.reasons().iter().map(|reason| reason.dropped).sum::<usize>(), view.dropped());
        let restored = View::of(&log, view.kept().clone()).with_cleared(&log, view.cleared());
        prop_assert_eq!(restored.transcript(), view.transcript());
    }

    /// The calls stay; a line is of the same call, smaller, and an error only if the result was one; results of pinned
    /// tools and of the newest steps stay.
    #[test]
    fn cleared_results_are_lines_of_their_calls(
        log in histories::well_formed(),
        steps in 0..4_usize,
        tokens in 0..60_usize,
    ) {
        let pins = Pins::up_to(0).results_of(["fetch"]);
        let view = Trim::clear_results(steps, tokens).with_pins(pins).view(&log);
        prop_assert_eq!(view.dropped(), 0);
        let starts = log.steps().filter(|step| log.get(step.range().start).unwrap().has_tool_calls());
        let starts: Vec<usize> = starts.map(|step| step.range().start).collect();
        let newest = starts.len().checked_sub(steps).map_or(0, |at| starts.get(at).copied().unwrap_or(log.len()));
        let size = |message: &Message| ApproximateTokens.count(message);
        for index in 0..log.len() {
            let (whole, shown) = (log.get(index).unwrap(), view.transcript().get(index).unwrap());
            let Some(result) = whole.tool_result() else { continue };
            let may_be = result.name() != "fetch" && index < newest && size(whole) > tokens;
            prop_assert_eq!(view.cleared().contains(index), may_be && size(whole) >= 2 * size(&line_of(result)));
            let line = shown.tool_result().unwrap();
            prop_assert_eq!((line.call_id(), line.name()), (result.call_id(), result.name()));
            prop_assert_eq!(line.is_error(), result.is_error());
        }
    }

    /// The described variant, message by message: all that it keeps is kept, with the steps around it.
    #[test]
    fn messages_that_the_described_variant_keeps_are_kept(
        log in histories::well_formed(),
        count in 1..10_usize,
        most in 1..12_usize,
        over in 0..30_usize,
    ) {
        // What precedes the first user message cannot be shown alone.
        let log: Transcript = [Message::user("go").into()].into_iter().chain(log.iter().cloned()).collect();
        if log.len() <= count.max(over) {
            return Ok(());
        }
        let is_important = |index: &usize| {
            let message = log.get(*index).unwrap();
            message.role() == Role::User
                || message.tool_result().is_some_and(|result| result.name() == "run_sql")
        };
        let older: Vec<usize> = (0..log.len() - count).filter(is_important).collect();
        let described = older.iter().rev().take(most).copied().chain(log.len() - count..log.len());
        let pins = Pins::messages(most).results_of(["run_sql"]);
        let view = Trim::keep_last(count).when_over(over).with_pins(pins).view(&log);
        for index in described {
            prop_assert!(view.kept().contains(index), "{} of {}", index, view);
        }
    }

    #[test]
    fn when_over_shows_all_or_what_is_shown_without_it(
        log in histories::well_formed(),
        count in 0..20_usize,
        over in 0..40_usize,
    ) {
        let view = Trim::keep_last(count).when_over(over).view(&log);
        let is_over = log.len() - lead(&log) > over;
        let expected = if is_over { Trim::keep_last(count).view(&log) } else { View::whole(&log) };
        prop_assert_eq!(view.kept(), expected.kept());
    }

    #[test]
    fn what_must_stay_stays(log in histories::well_formed(), trim in histories::trim()) {
        let view = trim.view(&log);
        prop_assert!((0..lead(&log)).all(|index| view.kept().contains(index)));
        prop_assert!(last_user(&log).is_none_or(|index| view.kept().contains(index)));
        prop_assert!(log.is_empty() || !view.transcript().is_empty());
    }

    /// Hosted models reject a conversation that begins with a tool call. A whole view is the log, unchanged.
    #[test]
    fn what_is_cut_begins_with_a_user_message_if_there_is_one(
        log in histories::well_formed(),
        trim in histories::trim(),
    ) {
        let view = trim.view(&log);
        let shown = view.transcript();
        let opening = shown.get(lead(shown)).map(|message| message.role());
        if last_user(&log).is_some() && view.dropped() > 0 {
            prop_assert_eq!(opening, Some(Role::User), "{}: {}", trim, view);
        }
    }

    #[test]
    fn a_trim_of_a_trim_is_a_trim(log in histories::well_formed(), trim in histories::trim()) {
        let view = trim.view(&log);
        let again = trim.view(view.transcript());
        prop_assert!(again.transcript().ptr_eq(view.transcript()), "{} and then {}", view, again);
        prop_assert!(again.is_whole() && again.reasons().is_empty());
    }

    #[test]
    fn what_is_whole_is_shared(log in histories::well_formed(), trim in histories::trim()) {
        let view = trim.view(&log);
        prop_assert_eq!(view.is_whole(), view.transcript().ptr_eq(&log));
        prop_assert_eq!(view.is_whole(), view.dropped() == 0 && view.cleared().is_empty());
    }

    #[test]
    fn a_chain_satisfies_each_of_its_policies(
        log in histories::well_formed(),
        policies in prop::collection::vec(histories::policy(), 1..4),
    ) {
        let chain = policies.iter().cloned().fold(Trim::none(), Trim::then);
        let view = chain.view(&log);
        for policy in &policies {
            prop_assert!(policy.view(view.transcript()).is_whole(), "{} left {}", chain, view);
        }
    }

    #[test]
    fn chains_are_associative_and_none_is_nothing(
        log in histories::well_formed(),
        one in histories::trim(),
        two in histories::trim(),
        three in histories::trim(),
    ) {
        let left = one.clone().then(two.clone()).then(three.clone());
        let right = one.clone().then(two.then(three));
        prop_assert_eq!(left.to_string(), right.to_string());
        let (by_left, by_right) = (left.view(&log), right.view(&log));
        prop_assert_eq!(by_left.transcript(), by_right.transcript());
        prop_assert_eq!(Trim::none().then(one.clone()).to_string(), one.to_string());
        prop_assert_eq!(one.clone().then(Trim::none()).to_string(), one.to_string());
        prop_assert!(Trim::none().view(&log).transcript().ptr_eq(&log));
    }

    /// Trimming a view equals trimming its transcript.
    #[test]
    fn narrowing_a_view_is_trimming_it(
        log in histories::well_formed(),
        one in histories::trim(),
        two in histories::trim(),
    ) {
        let view = one.view(&log);
        let narrowed = two.narrow(&view, &log);
        let trimmed = two.view(view.transcript());
        prop_assert_eq!(narrowed.transcript(), trimmed.transcript());
        prop_assert_eq!(narrowed.dropped(), view.dropped() + trimmed.dropped());
    }

    #[test]
    fn keep_last_is_its_definition(log in histories::well_formed(), count in 0..25_usize) {
        let view = Trim::keep_last(count).view(&log);
        prop_assert_eq!(view.kept().indexes().collect::<Vec<_>>(), by_definition(&log, count));
    }

    #[test]
    fn pins_add_to_keep_last_and_take_nothing(
        log in histories::well_formed(),
        count in 0..20_usize,
        most in 0..12_usize,
    ) {
        let plain = Trim::keep_last(count).view(&log);
        let pins = Pins::up_to(most).results_of(["run_sql"]);
        let pinned = Trim::keep_last(count).with_pins(pins).view(&log);
        prop_assert!(plain.kept().indexes().all(|index| pinned.kept().contains(index)));
        prop_assert!(pinned.kept().len() - plain.kept().len() <= most);
        for index in pinned.kept().indexes().filter(|index| !plain.kept().contains(*index)) {
            let start = log.step_start(index);
            let step = log.iter_from(start).enumerate();
            let has_sql = step
                .take_while(|(offset, message)| *offset == 0 || message.role() == Role::Tool)
                .any(|(_, message)| message.tool_result().is_some_and(|result| result.name() == "run_sql"));
            prop_assert!(has_sql || log.get(index).unwrap().role() == Role::User);
        }
    }

    #[test]
    fn a_cap_is_a_cap(log in histories::well_formed(), cap in 0..30_usize) {
        let least = match last_user(&log) {
            Some(_) => lead(&log) + 1,
            None => lead(&log) + log.steps().map(|step| step.range().len()).max().unwrap_or(1),
        };
        let by_count = Trim::cap_messages(cap).view(&log);
        prop_assert!(by_count.transcript().len() <= cap.max(least));
        let by_tokens = Trim::cap_tokens(cap).counted_by(ones()).view(&log);
        prop_assert_eq!(by_tokens.transcript(), by_count.transcript());
    }

    #[test]
    fn max_tokens_shows_whole_turns_that_fit(log in histories::well_formed(), most in 0..400_usize) {
        let view = Trim::max_tokens(most).view(&log);
        let used = |log: &Transcript| log.iter().map(|message| ApproximateTokens.count(message)).sum::<usize>();
        let start = view.kept().ranges().last().map_or(0, |range| range.start);
        match last_user(&log) {
            Some(user) => prop_assert!(used(view.transcript()) <= most || start == user || view.is_whole()),
            None => prop_assert!(used(view.transcript()) <= most || view.transcript().steps().count() <= 1),
        }
        // One turn more would not fit.
        let (older, first) = (log.turns().rev().find(|turn| turn.range().start < start), view.kept().contains(0));
        if let Some(turn) = older.filter(|_| !view.is_whole() && (first || lead(&log) == 0)) {
            let more = used(view.transcript()) + used(&turn.messages().cloned().collect());
            prop_assert!(more > most || start <= lead(&log));
        }
    }
}

/// The line that stands for a cleared result.
fn line_of(result: &ToolResult) -> Message {
    let size = match result.text().len() {
        bytes @ ..1_000 => format!("{bytes} bytes"),
        bytes => format!("{} kB", bytes / 1_000),
    };
    let text =
        format!("[The result of {} ({}), {size}, is no longer shown.]", result.name(), result.call_id());
    Message::tool(ToolResult::value(result.call_id(), result.name(), text))
}

/// The definition of `keep_last`, with its rules for system messages and missing user messages, on a vector.
fn by_definition(log: &Transcript, count: usize) -> Vec<usize> {
    let lead = lead(log);
    let all: Vec<usize> = (0..log.len()).collect();
    let (systems, rest) = all.split_at(lead);
    if rest.len() <= count {
        return all;
    }
    let is_user = |index: &&usize| log.get(**index).unwrap().role() == Role::User;
    let (older, window) = rest.split_at(rest.len() - count);
    let window =
        match (window.first().filter(is_user), older.iter().rfind(is_user), window.iter().find(is_user)) {
            (Some(start), _, _) | (None, Some(start), _) | (None, None, Some(start)) => &rest[start - lead..],
            (None, None, None) => {
                let mut starts: Vec<usize> =
                    rest.iter().copied().filter(|index| log.step_start(*index) == *index).collect();
                let last = starts.pop().unwrap();
                let start = starts.into_iter().find(|start| log.len() - start <= count).unwrap_or(last);
                &rest[start - lead..]
            }
        };
    systems.iter().chain(window).copied().collect()
}
